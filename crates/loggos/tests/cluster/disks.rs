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

/// A connection with one request in progress.
struct Nbd {
    stream: TcpStream,
    size: u64,
    flags: u16,
    cookie: u64,
}

impl Nbd {
    /// Attaches a disk at a node; `None` if the node or the disk is not there.
    fn attach(cluster: &Cluster, node: u32, disk: &str) -> Option<Self> {
        let mut stream = TcpStream::connect(("127.0.0.1", cluster.nbd_port(node))).ok()?;
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
        Some(Self { stream, size, flags, cookie: 0 })
    }

    fn await_attached(cluster: &Cluster, node: u32, disk: &str) -> Self {
        wait_for("an attached disk", PATIENCE, || Self::attach(cluster, node, disk))
    }

    /// Sends a request and returns the error number of the reply; `None` if the connection was lost.
    fn request(&mut self, command: u16, offset: u64, length: u32, data: &[u8], out: &mut [u8]) -> Option<u32> {
        self.cookie += 1;
        let mut request = 0x2560_9513_u32.to_be_bytes().to_vec();
        request.extend_from_slice(&0_u16.to_be_bytes());
        request.extend_from_slice(&command.to_be_bytes());
        request.extend_from_slice(&self.cookie.to_be_bytes());
        request.extend_from_slice(&offset.to_be_bytes());
        request.extend_from_slice(&length.to_be_bytes());
        request.extend_from_slice(data);
        self.stream.write_all(&request).ok()?;
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
    cluster.disk(&["delete", "rows"]).failed(1, &["rows"]);
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
    cluster.disk(&["delete", "small"]).ok();
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
