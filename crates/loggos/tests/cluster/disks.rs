//! Virtual disks through a small NBD client: attachment, reads and writes while nodes are killed, errors.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Signal, test_kill_process};

use crate::console::{get, metric};
use crate::harness::{Cluster, Running, loggos, wait_for};

const PATIENCE: Duration = Duration::from_secs(20);
const READ: u16 = 0;
const WRITE: u16 = 1;
const TRIM: u16 = 4;
const EIO: u32 = 5;

/// A connection with one request in progress. If its node closes it while it runs, as after a stall of the machine, it is
/// opened again.
struct Nbd {
    port: u16,
    disk: String,
    stream: TcpStream,
    size: u64,
    flags: u16,
    cookie: u64,
}

impl Nbd {
    /// Attaches a disk at a node; `None` if the node or the disk is not there.
    fn attach(cluster: &Cluster, node: u32, disk: &str) -> Option<Self> {
        Self::connect(cluster.nbd_port(node), disk)
    }

    fn connect(port: u16, disk: &str) -> Option<Self> {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
        stream.set_read_timeout(Some(PATIENCE)).ok()?;
        let mut greeting = [0; 18];
        stream.read_exact(&mut greeting).ok()?;
        assert_eq!(&greeting[..16], b"NBDMAGICIHAVEOPT");
        // Fixed newstyle, no zeroes; option 1: the name of the export.
        let mut option = 3_u32.to_be_bytes().to_vec();
        option.extend_from_slice(b"IHAVEOPT");
        option.extend_from_slice(&1_u32.to_be_bytes());
        option.extend_from_slice(&(disk.len() as u32).to_be_bytes());
        option.extend_from_slice(disk.as_bytes());
        stream.write_all(&option).ok()?;
        let mut export = [0; 10];
        stream.read_exact(&mut export).ok()?;
        let size = u64::from_be_bytes(export[..8].try_into().expect("eight bytes"));
        let flags = u16::from_be_bytes(export[8..].try_into().expect("two bytes"));
        Some(Self { port, disk: disk.to_owned(), stream, size, flags, cookie: 0 })
    }

    fn await_attached(cluster: &Cluster, node: u32, disk: &str) -> Self {
        wait_for("an attached disk", PATIENCE, || Self::attach(cluster, node, disk))
    }

    /// Sends a request; `None` if the connection was lost.
    fn send(&mut self, command: u16, offset: u64, length: u32, data: &[u8]) -> Option<()> {
        self.cookie += 1;
        let mut request = 0x2560_9513_u32.to_be_bytes().to_vec();
        request.extend_from_slice(&0_u16.to_be_bytes());
        request.extend_from_slice(&command.to_be_bytes());
        request.extend_from_slice(&self.cookie.to_be_bytes());
        request.extend_from_slice(&offset.to_be_bytes());
        request.extend_from_slice(&length.to_be_bytes());
        request.extend_from_slice(data);
        self.stream.write_all(&request).ok()
    }

    /// Sends a request and returns the error number of the reply; `None` if the connection was lost.
    fn request(&mut self, command: u16, offset: u64, length: u32, data: &[u8], out: &mut [u8]) -> Option<u32> {
        let first = self.request_once(command, offset, length, data, out);
        if first.is_some() {
            return first;
        }
        *self = Self::connect(self.port, &self.disk)?;
        self.request_once(command, offset, length, data, out)
    }

    fn request_once(&mut self, command: u16, offset: u64, length: u32, data: &[u8], out: &mut [u8]) -> Option<u32> {
        self.send(command, offset, length, data)?;
        let mut reply = [0; 16];
        self.stream.read_exact(&mut reply).ok()?;
        assert_eq!(&reply[8..], &self.cookie.to_be_bytes(), "the cookie of the request");
        let error = u32::from_be_bytes(reply[4..8].try_into().expect("four bytes"));
        if error == 0 {
            self.stream.read_exact(out).ok()?;
        }
        Some(error)
    }

    fn write(&mut self, offset: u64, data: &[u8]) -> Option<u32> {
        self.request(WRITE, offset, data.len() as u32, data, &mut [])
    }

    fn read(&mut self, offset: u64, length: usize) -> Option<Result<Vec<u8>, u32>> {
        let mut out = vec![0; length];
        let error = self.request(READ, offset, length as u32, &[], &mut out)?;
        Some(if error == 0 { Ok(out) } else { Err(error) })
    }
}

fn block(number: u64) -> Vec<u8> {
    number.to_le_bytes().repeat(512)
}

#[test]
fn disk_is_served_while_nodes_are_killed() {
    let cluster = Cluster::of(3);
    cluster.disk(&["create", "data", "--size", "64M", "--stripes", "2"]).ok();
    let mut attached = (1, Nbd::await_attached(&cluster, 1, "data"));
    assert_eq!(attached.1.size, 64 << 20);
    let mut written = 0;
    for killed in 1..=3_u32 {
        for at in 0..150_u64 {
            if at == 50 {
                cluster.signal(killed, Signal::KILL);
            }
            // Blocks of all units, so of both stripes.
            let offset = at * 300 * 1024 / 4096 * 4096;
            // The node of the connection may be the killed one: the write is repeated through the next one.
            while attached.1.write(offset, &block(written + at)) != Some(0) {
                let next = attached.0 % 3 + 1;
                attached = (next, Nbd::await_attached(&cluster, next, "data"));
            }
        }
        cluster.restart(killed).ok();
        for node in cluster.nodes() {
            let mut reader = Nbd::await_attached(&cluster, node, "data");
            for at in 0..150_u64 {
                let offset = at * 300 * 1024 / 4096 * 4096;
                assert_eq!(reader.read(offset, 4096), Some(Ok(block(written + at))), "block {at} at node {node}");
            }
        }
        written += 150;
    }
    // Parts of blocks through different nodes.
    let mut other = Nbd::await_attached(&cluster, 3, "data");
    assert_eq!(attached.1.write(1_000, b"one"), Some(0));
    assert_eq!(other.write(1_003, b"two"), Some(0));
    assert_eq!(attached.1.read(1_000, 6), Some(Ok(b"onetwo".to_vec())));
    assert_eq!(other.request(TRIM, 0, 8_192, &[], &mut []), Some(0));
    assert_eq!(attached.1.read(1_000, 6), Some(Ok(vec![0; 6])));
}

/// Kills a node, and starts it with these lines at the end of its configuration.
fn start_with(cluster: &Cluster, node: u32, lines: &str) -> Running {
    let pid = cluster.pid(node).expect("the node runs");
    cluster.signal(node, Signal::KILL);
    wait_for("the node is down", PATIENCE, || test_kill_process(pid).is_err().then_some(()));
    let config = fs::read_to_string(cluster.config(node)).expect("dev has written it");
    let config = cluster.scratch().file(&format!("node-{node}.toml"), format!("{config}\n{lines}\n"));
    let mut command = loggos();
    command.args(["start", "--config", &config]).stdout(Stdio::null()).stderr(Stdio::null());
    Running::of(&mut command)
}

/// Strong reads at a node that were confirmed by a round of messages.
fn checked_reads(cluster: &Cluster, node: u32) -> f64 {
    metric(&get(cluster, node, "/metrics").1, "loggos_checked_reads_total")
}

#[test]
fn disk_settings_of_node() {
    const EPERM: u32 = 1;
    const READ_ONLY: u16 = 1 << 1;
    let cluster = Cluster::of(3);
    cluster.disk(&["create", "data", "--size", "1M", "--stripes", "1"]).ok();
    let (_, leader) = wait_for("a leader", PATIENCE, || cluster.leader("data"));
    let (follower, other) = (leader % 3 + 1, (leader + 1) % 3 + 1);
    let mut writer = Nbd::await_attached(&cluster, leader, "data");
    // By default, a follower answers with everything that was written before.
    let mut reader = Nbd::await_attached(&cluster, follower, "data");
    assert_eq!(reader.flags & READ_ONLY, 0);
    let before = checked_reads(&cluster, follower);
    for number in 0..20 {
        assert_eq!(writer.write(4_096, &block(number)), Some(0));
        assert_eq!(reader.read(4_096, 4_096), Some(Ok(block(number))), "write {number}");
    }
    if cluster.leader("data").is_some_and(|(_, now)| now == leader) {
        assert!(checked_reads(&cluster, follower) > before, "the follower has answered no read");
    }

    let settings = "[nbd]\nreads = \"primary\"\nread_only = true\npatience = \"2s\"";
    let started = start_with(&cluster, follower, settings);
    let mut reader = Nbd::await_attached(&cluster, follower, "data");
    assert_eq!(reader.flags & READ_ONLY, READ_ONLY);
    assert_eq!(reader.write(4_096, &block(99)), Some(EPERM));
    assert_eq!(reader.request(TRIM, 4_096, 4_096, &[], &mut []), Some(EPERM));
    for _ in 0..20 {
        assert_eq!(reader.read(4_096, 4_096), Some(Ok(block(19))));
    }
    assert!(checked_reads(&cluster, follower) < 1.0, "the leader answers");
    // Without a majority a request fails once its patience is over, and the connection stays.
    cluster.signal(leader, Signal::KILL);
    cluster.signal(other, Signal::KILL);
    wait_for("an error", PATIENCE, || (reader.read(4_096, 4_096) == Some(Err(EIO))).then_some(()));
    cluster.restart(other).ok();
    wait_for("a majority", PATIENCE, || (reader.read(4_096, 4_096) == Some(Ok(block(19)))).then_some(()));
    drop(started);
}

#[test]
fn disk_commands_and_errors() {
    const EINVAL: u32 = 22;
    const ENOSPC: u32 = 28;
    let cluster = Cluster::of(1);
    cluster.disk(&["create", "small", "--size", "1M"]).ok();
    cluster.disk(&["create", "small", "--size", "1M"]).ok();
    cluster.disk(&["create", "small", "--size", "2M"]).failed(1, &["already exists"]);
    cluster.disk(&["create", "odd", "--size", "1000"]).failed(2, &["multiple of 4096"]);
    cluster.columns(&["create", "rows"]).ok();
    assert_eq!(cluster.columns(&["list"]).ok().trim(), "rows");
    assert_eq!(cluster.disk(&["list"]).ok().trim(), "small  1M  1 stripe");
    cluster.columns(&["get", "small", "key"]).failed(2, &["not supported"]);
    cluster.disk(&["delete", "rows"]).failed(1, &["no disk named \"rows\""]);
    cluster.disk(&["resize", "rows", "2M"]).failed(1, &["no disk named \"rows\""]);
    cluster.disk(&["create", "a/b", "--size", "1M"]).failed(2, &["the disk's name"]);
    cluster.disk(&["info", "absent"]).failed(1, &["absent"]);
    assert!(Nbd::attach(&cluster, 1, "absent").is_none());
    let mut disk = Nbd::await_attached(&cluster, 1, "small");
    assert_eq!(disk.write((1 << 20) - 10, &[1; 11]), Some(ENOSPC));
    assert_eq!(disk.read(1 << 20, 1), Some(Err(EINVAL)));
    assert_eq!(disk.write(0, &block(7)), Some(0));
    cluster.disk(&["resize", "small", "512K"]).failed(1, &["cannot shrink"]);
    cluster.disk(&["resize", "small", "2M"]).ok();
    wait_for("the new size", PATIENCE, || (disk.write(1 << 20, &block(8)) == Some(0)).then_some(()));
    assert_eq!(Nbd::await_attached(&cluster, 1, "small").size, 2 << 20);
    cluster.disk(&["delete", "small"]).failed(1, &["is attached by 127.0.0.1", "--force"]);
    cluster.columns(&["drop", "small"]).failed(1, &["is a disk"]);
    cluster.disk(&["delete", "small", "--force"]).ok();
    assert_eq!(disk.read(0, 4096), Some(Err(EIO)), "the disk was deleted");
    assert!(Nbd::attach(&cluster, 1, "small").is_none());
    // Garbage closes its own connection only.
    let mut garbage = TcpStream::connect(("127.0.0.1", cluster.nbd_port(1))).expect("the node serves");
    garbage.write_all(&[0xff; 4_000]).expect("a socket");
    let mut rest = Vec::new();
    let _ = garbage.read_to_end(&mut rest);
    cluster.disk(&["create", "small", "--size", "1M"]).ok();
    assert_eq!(Nbd::await_attached(&cluster, 1, "small").read(0, 4096), Some(Ok(vec![0; 4096])));
}

#[test]
fn holder_of_disk_excludes_others() {
    const EPERM: u32 = 1;
    let cluster = Cluster::of(3);
    cluster.disk(&["create", "data", "--size", "1M", "--stripes", "2"]).ok();
    cluster.disk(&["create", "own", "--size", "1M", "--exclusive"]).ok();
    assert!(Nbd::attach(&cluster, 1, "own").is_none(), "without a holder");
    assert!(Nbd::attach(&cluster, 1, "own@").is_none() && Nbd::attach(&cluster, 1, "own@a b").is_none());
    let mut shared = Nbd::await_attached(&cluster, 1, "data");
    assert_eq!(shared.write(0, &block(1)), Some(0));
    let mut first = Nbd::await_attached(&cluster, 2, "data@first");
    let mut second = Nbd::await_attached(&cluster, 3, "data@first");
    assert_eq!((first.write(0, &block(2)), second.write(4_096, &block(3))), (Some(0), Some(0)));
    assert_eq!((shared.write(0, &block(4)), shared.read(0, 4_096)), (Some(EPERM), Some(Ok(block(2)))));
    let info = cluster.disk(&["info", "data"]).ok();
    assert!(info.contains("held by first") && info.contains("as first through node 3"), "{info}");
    let mut other = Nbd::await_attached(&cluster, 1, "data@other");
    assert_eq!((first.write(0, &block(5)), other.write(0, &block(6))), (Some(EPERM), Some(0)));
    assert_eq!(second.read(0, 4_096), Some(Ok(block(6))));
    drop((shared, first, second, other));
    wait_for("no attachment", PATIENCE, || (!cluster.disk(&["info", "data"]).ok().contains("attached")).then_some(()));
    cluster.disk(&["delete", "data"]).failed(1, &["held by \"other\"", "release it"]);
    let mut shared = Nbd::await_attached(&cluster, 3, "data");
    assert_eq!(shared.write(0, &block(7)), Some(EPERM));
    cluster.disk(&["release", "data"]).ok();
    assert_eq!(shared.write(0, &block(8)), Some(0));
    cluster.disk(&["release", "absent"]).failed(1, &["no disk named"]);
}

/// A node is stopped with writes in its sockets, and the client goes on through another node.
#[test]
fn paused_node_executes_nothing_old() {
    let cluster = Cluster::of(3);
    cluster.disk(&["create", "data", "--size", "1M", "--stripes", "1"]).ok();
    for round in 0..9_u32 {
        let (paused, other) = (1 + round % 3, 1 + (round + 1) % 3);
        let names = match round / 3 {
            0 => ("data".to_owned(), "data".to_owned()),
            1 => (format!("data@one-{round}"), format!("data@two-{round}")),
            _ => ("data@same".to_owned(), "data@same".to_owned()),
        };
        let mut client = Nbd::await_attached(&cluster, paused, &names.0);
        assert_eq!(client.write(0, &block(1)), Some(0));
        cluster.signal(paused, Signal::STOP);
        client.send(WRITE, 0, 4_096, &block(2)).expect("the kernel takes it");
        drop(client);
        let mut next = Nbd::await_attached(&cluster, other, &names.1);
        let newest = block(100 + u64::from(round));
        assert_eq!((next.write(0, &block(3)), next.write(0, &newest)), (Some(0), Some(0)), "round {round}");
        std::thread::sleep(Duration::from_millis(300));
        cluster.signal(paused, Signal::CONT);
        std::thread::sleep(Duration::from_millis(300));
        for node in cluster.nodes() {
            let mut reader = Nbd::await_attached(&cluster, node, &names.1);
            assert_eq!(reader.read(0, 4_096), Some(Ok(newest.clone())), "round {round}, node {node}");
        }
    }
}

/// The data files of a node that contain this block, and where.
fn places_of(cluster: &Cluster, node: u32, content: &[u8]) -> Vec<(std::path::PathBuf, u64)> {
    let mut places = Vec::new();
    let mut directories = vec![cluster.node_directory(node)];
    while let Some(directory) = directories.pop() {
        for entry in
            fs::read_dir(directory).expect("a directory of the node").map(|entry| entry.expect("an entry").path())
        {
            if entry.is_dir() {
                // The log has the content, too.
                directories.extend(Some(entry).filter(|path| !path.ends_with("log")));
                continue;
            }
            let bytes = fs::read(&entry).expect("a file of the node");
            let blocks = bytes.chunks_exact(4_096).enumerate();
            places.extend(
                blocks.filter(|(_, block)| *block == content).map(|(at, _)| (entry.clone(), at as u64 * 4_096)),
            );
        }
    }
    places
}

/// Damages a block at rest on a node that does not run.
fn damage(cluster: &Cluster, node: u32, content: &[u8]) {
    let places = places_of(cluster, node, content);
    assert!(!places.is_empty(), "the block is on the disk of node {node}");
    for (path, offset) in places {
        let file = fs::OpenOptions::new().write(true).open(path).expect("a file of the node");
        std::os::unix::fs::FileExt::write_all_at(&file, b"damage", offset + 100).expect("a file");
        file.sync_all().expect("a file");
    }
}

#[test]
fn damaged_blocks_are_mended() {
    const MIB: u64 = 1 << 20;
    let cluster = Cluster::of(3);
    cluster.disk(&["create", "data", "--size", "256M", "--stripes", "1"]).ok();
    let mut client = Nbd::await_attached(&cluster, 1, "data");
    // Replay does not write blocks 1 to 4 again.
    let flushed = |node| metric(&get(&cluster, node, "/metrics").1, "loggos_flushes_total") >= 1.0;
    for chunk in 0..200 {
        let data: Vec<u8> = (0..256).flat_map(|at| block(1 + chunk * 256 + at)).collect();
        assert_eq!(client.write(chunk * MIB, &data), Some(0));
        if chunk > 80 && cluster.nodes().all(flushed) {
            break;
        }
    }
    wait_for("flushes", PATIENCE, || cluster.nodes().all(flushed).then_some(()));
    let at_rest = |number: u64| cluster.nodes().all(|node| !places_of(&cluster, node, &block(number)).is_empty());
    wait_for("blocks at rest", PATIENCE, || [1, 2, 3, 4].into_iter().all(at_rest).then_some(()));
    drop(client);
    cluster.nodes().for_each(|node| cluster.signal(node, Signal::KILL));
    for node in cluster.nodes() {
        wait_for("the node is down", PATIENCE, || {
            cluster.pid(node).is_none_or(|pid| test_kill_process(pid).is_err()).then_some(())
        });
        // A different one on each node, and one on all.
        damage(&cluster, node, &block(u64::from(node)));
        damage(&cluster, node, &block(4));
    }
    cluster.nodes().for_each(|node| _ = cluster.restart(node).ok());
    let mut clients: Vec<Nbd> = cluster.nodes().map(|node| Nbd::await_attached(&cluster, node, "data")).collect();
    for client in &mut clients {
        for number in 1..=3 {
            assert_eq!(client.read((number - 1) * 4_096, 4_096), Some(Ok(block(number))), "block {number}");
        }
        assert_eq!(client.read(3 * 4_096, 4_096), Some(Err(EIO)), "no replica has it");
        // A part of a damaged block can't be changed, the whole one can.
        assert_eq!(client.write(3 * 4_096, b"part"), Some(EIO));
    }
    assert_eq!(clients[0].write(3 * 4_096, &block(5)), Some(0));
    for client in &mut clients {
        assert_eq!(client.read(3 * 4_096, 4_096), Some(Ok(block(5))));
    }
    // A follower may still have to apply the last change.
    wait_for("intact replicas", PATIENCE, || (cluster.disk(&["check", "data"]).status == 0).then_some(()));
}
