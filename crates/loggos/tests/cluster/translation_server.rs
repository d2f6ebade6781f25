//! `loggos zk serve --at`: translation servers without a disk, beside a cluster.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use coordination::jute::{Request, Sync};
use rustix::process::{Pid, Signal, kill_process};

use crate::client::{Client, Fault};
use crate::harness::{COMMAND_PATIENCE, Cluster, Done, Scratch, loggos, wait_for};
use crate::zookeeper::{create, exists, get, servers, session, set};

const PATIENCE: Duration = Duration::from_secs(30);

struct Server {
    child: Child,
    address: String,
    log: PathBuf,
}

impl Server {
    /// Starts it and waits until it is ready.
    fn start(cluster: &Cluster, options: &[&str]) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("translation-server-{}.log", COUNT.fetch_add(1, Ordering::Relaxed));
        let log = cluster.scratch().path().join(name);
        let mut command = loggos();
        command.args(["zk", "serve", "--at", &cluster.endpoints(1).join(",")]).args(options);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        command.stderr(File::create(&log).expect("a file"));
        let mut child = command.spawn().expect("it can be started");
        let mut out = BufReader::new(child.stdout.take().expect("a pipe"));
        let (tell, told) = mpsc::channel();
        thread::spawn(move || {
            let mut line = String::new();
            let _ = out.read_line(&mut line);
            let _ = tell.send(line);
        });
        let line = told.recv_timeout(PATIENCE).expect("it is ready in time");
        let address = line.trim().strip_prefix("ready ").expect("its address").to_owned();
        Self { child, address, log }
    }

    /// Sends SIGTERM and waits for a clean exit.
    fn stop(mut self) {
        kill_process(Pid::from_child(&self.child), Signal::TERM).expect("it runs");
        let began = Instant::now();
        let status = wait_for("it stops", PATIENCE, || self.child.try_wait().expect("it is a child"));
        assert!(status.success(), "{status}");
        assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
    }

    fn command(&self, word: &str) -> String {
        let mut stream = TcpStream::connect(&self.address).expect("it listens");
        stream.write_all(word.as_bytes()).expect("it is read");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("text");
        answer
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill().and_then(|()| self.child.wait());
    }
}

fn get_newest(client: &mut Client, path: &str) -> Vec<u8> {
    client.call(&Request::Sync(Sync { path })).expect("a tail");
    get(client, path, false).expect("it exists")
}

/// Repeats a write whose outcome is unknown.
fn set_surely(client: &mut Client, path: &str, data: &[u8]) {
    wait_for("a write", PATIENCE, || match set(client, path, data) {
        Ok(_) => Some(()),
        Err(Fault::Unknown(_)) => None,
        Err(fault) => panic!("{fault}"),
    });
}

/// A write at a translation server is read at a node, and the other way round. The death of the node that the server asks
/// does not disturb the sessions at the server. When the server stops, its sessions move to a node.
#[test]
fn diskless_server_serves_sessions() {
    let cluster = Cluster::of(3);
    let mut of_node = session(&servers(&cluster, 2));
    create(&mut of_node, "/a", b"1", 0).expect("created");
    let server = Server::start(&cluster, &[]);
    assert!(server.command("srvr").contains("Mode: observer"));
    // Its sessions can continue at node 2.
    let mut endpoints = vec![server.address.clone()];
    endpoints.extend(servers(&cluster, 2));
    let mut client = session(&endpoints);
    let id = client.session;
    assert_eq!(get(&mut client, "/a", false).expect("it is there when the session is"), b"1");
    create(&mut client, "/b", b"1", 0).expect("created");
    create(&mut client, "/ephemeral", b"", 1).expect("created");
    assert_eq!(get_newest(&mut of_node, "/b"), b"1");
    set(&mut of_node, "/b", b"2").expect("set");
    assert_eq!(get_newest(&mut client, "/b"), b"2");

    cluster.signal(1, Signal::KILL);
    let connected = server.command("cons").lines().filter(|line| line.contains("sid=")).count();
    for data in [b"3", b"4", b"5"] {
        set(&mut client, "/a", data).expect("the connection has not broken");
        assert_eq!(get_newest(&mut of_node, "/a"), data);
    }
    assert_eq!((client.session, connected), (id, 1));

    // Another server starts without node 1, and the first one stops.
    let second = Server::start(&cluster, &[]);
    let mut of_second = session(std::slice::from_ref(&second.address));
    assert!(exists(&mut of_second, "/ephemeral"));
    server.stop();
    set_surely(&mut client, "/a", b"6");
    assert_eq!(client.session, id, "the session has moved");
    assert_eq!(get_newest(&mut of_second, "/a"), b"6");
    assert!(exists(&mut of_second, "/ephemeral"));
    client.close();
    assert!(!exists(&mut of_second, "/ephemeral"), "its session was closed");
    second.stop();
}

/// A server that starts after the log was trimmed restores the snapshot; one that stood still while the log was trimmed
/// beyond it starts again from there.
#[test]
fn server_starts_from_snapshot() {
    const SETS: usize = 140;
    let cluster = Cluster::of(1);
    let early = Server::start(&cluster, &[]);
    let mut writer = session(&servers(&cluster, 1));
    create(&mut writer, "/large", b"", 0).expect("created");
    create(&mut writer, "/small", b"kept", 0).expect("created");
    kill_process(Pid::from_child(&early.child), Signal::STOP).expect("it runs");
    let data = vec![7; 1_000_000];
    for _ in 0..SETS {
        set(&mut writer, "/large", &data).expect("set");
    }
    wait_for("the log is trimmed", PATIENCE, || {
        cluster.log(&["read", "zookeeper", "0"]).err.contains("is trimmed below").then_some(())
    });
    kill_process(Pid::from_child(&early.child), Signal::CONT).expect("it runs");
    wait_for("it starts again", PATIENCE, || {
        fs::read_to_string(&early.log).expect("text").contains("trimmed beyond").then_some(())
    });
    let late = Server::start(&cluster, &[]);
    for server in [early, late] {
        let mut client = session(std::slice::from_ref(&server.address));
        assert_eq!(get_newest(&mut client, "/small"), b"kept");
        assert_eq!(get_newest(&mut client, "/large").len(), data.len());
        set_surely(&mut client, "/small", b"kept");
        client.close();
        server.stop();
    }
}

#[test]
fn diskless_server_options() {
    let scratch = Scratch::new();
    let run = |options: &[&str]| Done::of(loggos().args(["zk", "serve"]).args(options), COMMAND_PATIENCE);
    run(&[]).failed(2, &["--zoo-cfg"]);
    run(&["--listen", "127.0.0.1:0"]).failed(2, &["--at", "--port-offset", "--zoo-cfg"]);
    run(&["--port-offset", "60000"]).failed(2, &["range of ports"]);
    run(&["--at", "nowhere"]).failed(2, &["HOST:PORT"]);
    run(&["--at", "127.0.0.1:1", "--listen", "0.0.0.0:0"]).failed(2, &["insecure"]);
    run(&["--at", "127.0.0.1:1", "--listen", "127.0.0.1"]).failed(2, &["--listen"]);

    let cluster = Cluster::of(1);
    let text =
        "tickTime=1500\nclientPort=1\nmaxClientCnxns=7\n4lw.commands.whitelist=conf\nserver.1=nowhere.invalid:1:2\n";
    let file = scratch.file("zoo.cfg", text);
    let server = Server::start(&cluster, &["--zoo-cfg", &file, "--listen", "127.0.0.1:0"]);
    let answer = server.command("conf");
    for line in ["minSessionTimeout=3000\n", "maxSessionTimeout=30000\n", "maxClientCnxns=7\n"] {
        assert!(answer.contains(line), "{line}: {answer}");
    }
    assert!(server.command("mntr").contains("not in the whitelist"));
    assert!(server.command("srvr").contains("Mode: "));
    assert!(["ro", "rw"].contains(&&*server.command("isro")));
    server.stop();
}
