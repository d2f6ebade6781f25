//! Hosts that run one node each, started individually on their own disks.

use std::fs::{self, File};
use std::process::{Child, Stdio};
use std::time::Duration;

use api::admin::formation_client::FormationClient;
use api::admin::{Disk, FormRequest, LookRequest, LookResponse};
use tonic::Code;

use crate::harness::{COMMAND_PATIENCE, ClusterSlot, Done, Scratch, free_offset, loggos, runtime, wait_for};

const PATIENCE: Duration = Duration::from_secs(30);

/// Hosts that know each other's addresses, with blank disks.
pub(crate) struct Hosts {
    pub(crate) scratch: Scratch,
    offset: u16,
    pub(crate) running: Vec<(u32, Child)>,
    _slot: ClusterSlot,
}

impl Hosts {
    pub(crate) fn new() -> Self {
        Self { scratch: Scratch::new(), offset: free_offset(), running: Vec::new(), _slot: ClusterSlot::take() }
    }

    pub(crate) fn grpc(&self, node: u32) -> String {
        format!("127.0.0.1:{}", 7_200 + self.offset + node as u16)
    }

    pub(crate) fn all(&self) -> String {
        [1, 2, 3].map(|node| self.grpc(node)).join(",")
    }

    /// Starts a node; `more` is put at the top of its configuration.
    pub(crate) fn start(&mut self, node: u32, more: &str) {
        let peers = |of: u32| format!("127.0.0.1:{}", 7_100 + self.offset + of as u16);
        let others: String = (1..=3)
            .map(|of| format!("[[peers]]\nnode = {of}\naddress = \"{}\"\ngrpc = \"{}\"\n", peers(of), self.grpc(of)))
            .collect();
        let data = self.scratch.path().join(format!("host-{node}"));
        let listen = format!("[listen]\npeers = \"{}\"\ngrpc = \"{}\"\n", peers(node), self.grpc(node));
        let config = format!("node = {node}\ndata = {data:?}\n{more}\n{listen}{others}");
        // Nodes know each other by name.
        let config = config.replace("127.0.0.1", "localhost");
        let config = self.scratch.file(&format!("host-{node}.toml"), config);
        let log = File::create(self.scratch.path().join(format!("host-{node}.log"))).expect("a file for its log");
        let mut command = loggos();
        command.args(["start", "--config", &config]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        self.running.push((node, command.spawn().expect("a node can be started")));
    }

    /// Waits until a node exits; returns its exit status and output.
    pub(crate) fn ended(&mut self, node: u32) -> (Option<i32>, String) {
        let place = self.running.iter().position(|(running, _)| *running == node).expect("it was started");
        let (_, mut child) = self.running.swap_remove(place);
        let status = wait_for("a node that ends", PATIENCE, || child.try_wait().expect("a child can be looked at"));
        let said = fs::read_to_string(self.scratch.path().join(format!("host-{node}.log")));
        (status.code(), said.expect("its log"))
    }

    pub(crate) fn kill(&mut self, node: u32) {
        let place = self.running.iter().position(|(running, _)| *running == node).expect("it runs");
        let (_, mut child) = self.running.swap_remove(place);
        child.kill().and_then(|()| child.wait()).expect("it runs");
    }

    /// A node's description of itself, once it serves.
    pub(crate) fn look(&self, node: u32) -> LookResponse {
        wait_for("a node that serves", PATIENCE, || {
            runtime().block_on(async {
                let mut client = FormationClient::connect(format!("http://{}", self.grpc(node))).await.ok()?;
                Some(client.look(LookRequest {}).await.ok()?.into_inner())
            })
        })
    }

    pub(crate) fn form(&self, node: u32, disks: &[Disk]) -> Result<(), Code> {
        runtime().block_on(async {
            let mut client = FormationClient::connect(format!("http://{}", self.grpc(node))).await.expect("it serves");
            client.form(FormRequest { disks: disks.to_vec() }).await.map(|_| ()).map_err(|status| status.code())
        })
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Done {
        Done::of(loggos().args(arguments), COMMAND_PATIENCE)
    }

    pub(crate) fn admin_form(&self) -> Done {
        self.run(&["admin", "form", "--at", &self.all(), "--timeout", "30s"])
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
