//! A universe of nodes that were each started by themselves, on blank disks: how it is formed, what can come between, and
//! what is never formed.

use std::fs::{self, File};
use std::process::{Child, Stdio};
use std::time::Duration;

use api::admin::formation_client::FormationClient;
use api::admin::{Disk, FormRequest, LookRequest, LookResponse};
use tonic::Code;

use crate::harness::{COMMAND_PATIENCE, Done, Place, Scratch, free_offset, loggos, runtime, wait_for};

const PATIENCE: Duration = Duration::from_secs(30);

/// Hosts that know each other's addresses, with blank disks.
struct Hosts {
    scratch: Scratch,
    offset: u16,
    running: Vec<(u32, Child)>,
    _place: Place,
}

impl Hosts {
    fn new() -> Self {
        Self { scratch: Scratch::new(), offset: free_offset(), running: Vec::new(), _place: Place::take() }
    }

    fn grpc(&self, node: u32) -> String {
        format!("127.0.0.1:{}", 7_200 + self.offset + node as u16)
    }

    fn all(&self) -> String {
        [1, 2, 3].map(|node| self.grpc(node)).join(",")
    }

    /// Starts a node; `more` stands above all in its configuration.
    fn start(&mut self, node: u32, more: &str) {
        let peers = |of: u32| format!("127.0.0.1:{}", 7_100 + self.offset + of as u16);
        let others: String = (1..=3)
            .map(|of| format!("[[peers]]\nnode = {of}\naddress = \"{}\"\ngrpc = \"{}\"\n", peers(of), self.grpc(of)))
            .collect();
        let data = self.scratch.path().join(format!("host-{node}"));
        let listen = format!("[listen]\npeers = \"{}\"\ngrpc = \"{}\"\n", peers(node), self.grpc(node));
        let config = format!("node = {node}\ndata = {data:?}\n{more}\n{listen}{others}");
        let config = self.scratch.file(&format!("host-{node}.toml"), config);
        let log = File::create(self.scratch.path().join(format!("host-{node}.log"))).expect("a file for its log");
        let mut command = loggos();
        command.args(["start", "--config", &config]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        self.running.push((node, command.spawn().expect("a node can be started")));
    }

    fn kill(&mut self, node: u32) {
        let place = self.running.iter().position(|(running, _)| *running == node).expect("it runs");
        let (_, mut child) = self.running.swap_remove(place);
        child.kill().and_then(|()| child.wait()).expect("it runs");
    }

    /// What a node says it is, once it serves.
    fn look(&self, node: u32) -> LookResponse {
        wait_for("a node that serves", PATIENCE, || {
            runtime().block_on(async {
                let mut door = FormationClient::connect(format!("http://{}", self.grpc(node))).await.ok()?;
                Some(door.look(LookRequest {}).await.ok()?.into_inner())
            })
        })
    }

    fn form(&self, node: u32, disks: &[Disk]) -> Result<(), Code> {
        runtime().block_on(async {
            let mut door = FormationClient::connect(format!("http://{}", self.grpc(node))).await.expect("it serves");
            door.form(FormRequest { disks: disks.to_vec() }).await.map(|_| ()).map_err(|status| status.code())
        })
    }

    fn run(&self, arguments: &[&str]) -> Done {
        Done::of(loggos().args(arguments), COMMAND_PATIENCE)
    }

    fn admin_form(&self) -> Done {
        self.run(&["admin", "form", "--at", &self.all(), "--timeout", "30000"])
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for (node, child) in &mut self.running {
            let _ = child.kill();
            let _ = child.wait();
            if std::thread::panicking() {
                let log = fs::read_to_string(self.scratch.path().join(format!("host-{node}.log")));
                eprintln!("--- host {node}:\n{}", log.unwrap_or_default());
            }
        }
    }
}

#[test]
fn hosts_with_blank_disks_become_a_universe() {
    let mut hosts = Hosts::new();
    (1..=3).for_each(|node| hosts.start(node, ""));
    let disks = [1, 2, 3].map(|node| hosts.look(node).disk.expect("every node has a disk"));
    let at = hosts.all();
    hosts.run(&["columns", "--at", &at, "--timeout", "500", "create", "t"]).failed(3, &["blank"]);
    hosts.run(&["admin", "form", "--at", &hosts.grpc(1), "--at", &hosts.grpc(2)]).failed(2, &["1, 3, 5 or 7"]);

    // Cut short: one node is formed, another was started again meanwhile, and has the number that was told of it.
    let other_disk = Disk { incarnation: 1, ..disks[1] };
    assert_eq!(hosts.form(2, &[disks[0], other_disk, disks[2]]), Err(Code::AlreadyExists));
    assert_eq!(hosts.form(1, &disks), Ok(()));
    hosts.kill(3);
    hosts.start(3, "");
    let formed = hosts.admin_form().ok();
    let universe = formed.split_whitespace().nth(1).expect("its name").to_owned();
    assert!(formed.contains("nodes 1, 2, 3"), "{formed}");
    assert_eq!(hosts.admin_form().ok(), formed, "done already");

    hosts.run(&["columns", "--at", &at, "create", "t"]).ok();
    hosts.run(&["columns", "--at", &at, "put", "t", "k", "c", "v"]).ok();
    for node in 1..=3 {
        let genesis = hosts.look(node).genesis.expect("it is formed");
        assert_eq!((&genesis.universe, &genesis.disks[..]), (&universe, &disks[..]));
        assert_eq!(
            hosts.form(node, &disks[..1]),
            Err(if node == 1 { Code::AlreadyExists } else { Code::InvalidArgument })
        );
        let read = hosts.run(&["columns", "--at", &hosts.grpc(node), "--json", "get", "t", "k", "c"]).ok();
        assert!(read.contains("\"value\":\"v\""), "{read}");
    }

    // A disk that lost everything is not formed once more, and one that should be a universe's doesn't even wait.
    hosts.kill(3);
    fs::remove_dir_all(hosts.scratch.path().join("host-3")).expect("its data");
    hosts.start(3, "");
    assert_ne!(hosts.look(3).disk, Some(disks[2]));
    hosts.admin_form().failed(1, &["node 3", "another disk"]);
    hosts.kill(3);
    hosts.start(3, &format!("universe = \"{universe}\""));
    let (_, refused) = hosts.running.last_mut().expect("it was just started");
    assert_eq!(refused.wait().expect("a child").code(), Some(3));
    hosts.run(&["columns", "--at", &at, "put", "t", "k", "c", "w"]).ok();
}
