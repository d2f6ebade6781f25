//! `loggos zk serve`: nodes in the place of ZooKeeper servers.

use std::fs::{self, File};
use std::process::{Child, Stdio};
use std::time::Duration;

use coordination::jute::{
    AclRecord, Create, CreateKind, DataReply, IdRecord, PathAndWatch, Reader, Record as _, Request, Sequence, Sync,
};
use rustix::process::{Pid, Signal, kill_process};

use crate::client::Client;
use crate::harness::{ClusterSlot, Scratch, free_offset, loggos, wait_for};
use crate::zookeeper::session;

const PATIENCE: Duration = Duration::from_secs(30);

/// Servers with ZooKeeper's own configuration files.
struct Servers {
    scratch: Scratch,
    offset: u16,
    third_host: &'static str,
    running: Vec<Child>,
    _slot: ClusterSlot,
}

impl Servers {
    fn new() -> Self {
        Self {
            scratch: Scratch::new(),
            offset: free_offset(),
            third_host: "localhost",
            running: Vec::new(),
            _slot: ClusterSlot::take(),
        }
    }

    fn clients(&self) -> Vec<String> {
        (2_181..=2_183).map(|port: u16| format!("127.0.0.1:{}", port + self.offset)).collect()
    }

    fn start(&mut self) {
        self.start_some(3);
    }

    /// Starts the first few servers.
    fn start_some(&mut self, count: u16) {
        let lines: String = (1..=3)
            .map(|server: u16| {
                let ports = [7_100, 7_200].map(|port| port + server + self.offset);
                let host = if server == 3 { self.third_host } else { "localhost" };
                format!("server.{server}={host}:{}:{}\n", ports[0], ports[1])
            })
            .collect();
        for server in 1..=count {
            let data = self.scratch.path().join(format!("server-{server}"));
            fs::create_dir_all(&data).expect("a directory");
            fs::write(data.join("myid"), format!("{server}\n")).expect("its number");
            let port = 2_180 + server + self.offset;
            let config = format!("tickTime=2000\ninitLimit=5\ndataDir={}\nclientPort={port}\n{lines}", data.display());
            let config = self.scratch.file(&format!("zoo-{server}.cfg"), config);
            let log = File::create(self.scratch.path().join(format!("server-{server}.log"))).expect("a file");
            let mut command = loggos();
            command.args(["zk", "serve", "--zoo-cfg", &config]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
            self.running.push(command.spawn().expect("a server can be started"));
        }
    }

    /// SIGTERM, and waits for success.
    fn stop(&mut self) {
        for mut child in self.running.drain(..) {
            kill_process(Pid::from_child(&child), Signal::TERM).expect("it runs");
            let status = wait_for("a server that ends", PATIENCE, || child.try_wait().expect("it is a child"));
            assert!(status.success(), "{status}");
        }
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        for child in &mut self.running {
            let _ = child.kill().and_then(|()| child.wait());
        }
    }
}

fn get(client: &mut Client, path: &str) -> Vec<u8> {
    client.call(&Request::Sync(Sync { path })).expect("a tail");
    let reply = client.call(&Request::GetData(PathAndWatch { path, watch: false })).expect("it is there");
    DataReply::decode(&mut Reader::new(&reply)).expect("a reply").data.unwrap_or_default().to_vec()
}

#[test]
fn three_node_zoo_cfg_cluster_is_durable() {
    let mut servers = Servers::new();
    servers.start();
    let mut client = session(&servers.clients());
    let everybody = [AclRecord { perms: 31, id: IdRecord { scheme: Some("world"), id: Some("anyone") } }];
    let (kind, acl) = (CreateKind::Create, Sequence::of(&everybody));
    let create = Create { kind, path: "/kept", data: Some(b"data"), acl, flags: 0, ttl_ms: None };
    client.call(&Request::Create(create)).expect("it is created");
    let log = fs::read_to_string(servers.scratch.path().join("server-2.log")).expect("its log");
    assert!(log.contains("waiting to form a cluster with the other servers") && !log.contains("admin form"), "{log}");
    client.close();
    for _ in 0..2 {
        servers.stop();
        servers.start();
        // At each server.
        for server in servers.clients() {
            let mut client = session(std::slice::from_ref(&server));
            assert_eq!(get(&mut client, "/kept"), b"data");
            client.close();
        }
    }
    servers.stop();

    // Two of three are enough, also while the name of the third does not resolve.
    servers.third_host = "nowhere.invalid";
    servers.start_some(2);
    let mut client = session(&servers.clients()[..2]);
    assert_eq!(get(&mut client, "/kept"), b"data");
    client.close();
    servers.stop();
}

#[test]
fn rejects_invalid_zoo_cfg() {
    let scratch = Scratch::new();
    let refused = |text: &str| {
        let config = scratch.file("zoo.cfg", text);
        let output = loggos().args(["zk", "serve", "--zoo-cfg", &config]).output().expect("it runs");
        assert_eq!(output.status.code(), Some(2));
        String::from_utf8(output.stderr).expect("text")
    };
    assert!(refused("clientPort=2181\n").contains("dataDir is missing"));
    let data = scratch.path().display().to_string();
    assert!(refused(&format!("dataDir={data}\n")).contains("clientPort is missing"));
    let servers = "server.1=127.0.0.1:1:2\nserver.2=127.0.0.1:3:4\nserver.3=127.0.0.1:5:6\n";
    assert!(refused(&format!("dataDir={data}\nclientPort=2181\n{servers}")).contains("myid"));
    assert!(refused(&format!("dataDir={data}\nclientPort=2181\nclientPortAddress=10.0.0.1\n")).contains("plaintext"));
    assert!(refused(&format!("dataDir={data}\nclientPort=2181\nsslQuorum=true\n")).contains("sslQuorum: TLS"));
}
