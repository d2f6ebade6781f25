//! The processes of a local cluster.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::control::{ControlReply, ControlRequest};
use super::plan::{Plan, node_directory};
use super::{DevError, Options, SupervisorEvent, say};
use runtime::EXIT_LEFT;
use runtime::config::{Advertise, ClockKind, Config, Listen, Nbd, Peer, Sql, Tuning, ZooKeeper};
use runtime::directory_lock::DirectoryLock;

const PEERS_PORT: u16 = 7_100;
const GRPC_PORT: u16 = 7_200;
const HTTP_PORT: u16 = 8_080;
const ZOOKEEPER_PORT: u16 = 2_180;
const POSTGRES_PORT: u16 = 5_440;
const NBD_PORT: u16 = 10_808;
const PORTS: [u16; 6] = [PEERS_PORT, GRPC_PORT, HTTP_PORT, ZOOKEEPER_PORT, POSTGRES_PORT, NBD_PORT];
/// With this offset, every port stays below 65,536.
pub(crate) const PORT_OFFSET_MAX: u16 = 50_000;
/// Timeout for a node of a killed `dev` to exit and release its directory.
const CLAIM_PATIENCE: Duration = Duration::from_secs(5);
const CLAIM_PAUSE: Duration = Duration::from_millis(20);

/// A process that has ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Exit {
    pub(crate) node: u32,
    pub(crate) pid: u32,
    pub(crate) status: ExitStatus,
}

/// The addresses of a node's servers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Endpoints {
    pub(crate) grpc: SocketAddr,
    pub(crate) http: SocketAddr,
    pub(crate) zookeeper: SocketAddr,
    pub(crate) postgres: SocketAddr,
    pub(crate) nbd: SocketAddr,
}

#[derive(Debug)]
struct Running {
    pid: u32,
    /// Identifies this process even after its pid is reused.
    handle: OwnedFd,
    /// The node exits when this is closed.
    _alive: ChildStdin,
}

/// All nodes, running or not.
#[derive(Debug)]
pub(crate) struct Nodes {
    data: PathBuf,
    plan: Plan,
    port_offset: u16,
    tuning: Tuning,
    zookeeper: ZooKeeper,
    nbd: Nbd,
    clock_uncertainty: Option<String>,
    running: BTreeMap<u32, Running>,
    events: Sender<SupervisorEvent>,
}

impl Nodes {
    pub(crate) fn new(data: &Path, plan: Plan, options: &Options, events: Sender<SupervisorEvent>) -> Self {
        let tuning = Tuning { memory_bytes: options.memory, ..Tuning::default() };
        let playback = options.playback.map(|playback| playback.to_string());
        let zookeeper = ZooKeeper { playback, ..ZooKeeper::default() };
        let nbd = Nbd { reads: options.disk_reads, ..Nbd::default() };
        let (port_offset, running) = (options.port_offset, BTreeMap::new());
        let clock_uncertainty = options.clock_uncertainty.clone();
        Self { data: data.to_owned(), plan, port_offset, tuning, zookeeper, nbd, clock_uncertainty, running, events }
    }

    /// Starts every node that has its disk, and reports the others.
    pub(crate) fn start_all(&mut self) -> Result<(), DevError> {
        for node in self.plan.nodes().collect::<Vec<_>>() {
            match self.start(node) {
                Ok(_) => {}
                Err(StartRefused::Refused(reason)) => eprintln!("loggos: {reason}"),
                Err(StartRefused::Failed(error)) => return Err(DevError::io(format!("start node {node}"))(error)),
            }
        }
        if self.running.is_empty() {
            return Err(DevError::NoNode(self.data.display().to_string()));
        }
        Ok(())
    }

    fn start(&mut self, node: u32) -> Result<u32, StartRefused> {
        if let Some(refusal) = self.plan.refusal(&self.data, node) {
            return Err(StartRefused::Refused(refusal));
        }
        let directory = node_directory(&self.data, node);
        wait_until_free(&directory)?;
        are_free(&PORTS.map(|port| self.address(port, node)))?;
        let config = directory.join("node.toml");
        write_if_changed(&config, &self.config(node)?)?;
        let log = OpenOptions::new().create(true).append(true).open(directory.join("log"))?;
        let mut child = Command::new(std::env::current_exe()?)
            .arg("start")
            .arg("--config")
            .arg(&config)
            .arg("--parent-pipe")
            .stdin(Stdio::piped())
            .stdout(log.try_clone()?)
            .stderr(log)
            // Ctrl-C must reach only `dev`, which then stops the nodes.
            .process_group(0)
            .spawn()?;
        let pid = child.id();
        // `wait` would close stdin, on which the node exits.
        let alive = child.stdin.take().ok_or_else(|| io::Error::other("no pipe"))?;
        let handle = pid_handle(pid)?;
        let events = self.events.clone();
        std::thread::spawn(move || {
            if let Ok(status) = child.wait() {
                let _ = events.send(SupervisorEvent::Exited(Exit { node, pid, status }));
            }
        });
        self.running.insert(node, Running { pid, handle, _alive: alive });
        Ok(pid)
    }

    fn config(&self, node: u32) -> io::Result<String> {
        let config = Config {
            node,
            data: node_directory(&self.data, node),
            cluster: Some(self.plan.cluster().to_owned()),
            insecure_plaintext: false,
            clock: Some(self.clock_uncertainty.as_ref().map_or(ClockKind::Host, |_| ClockKind::Configured)),
            clock_uncertainty: self.clock_uncertainty.clone(),
            clock_uncertainty_max: None,
            listen: Listen {
                peers: self.peers_address(node).into(),
                grpc: self.grpc_address(node).into(),
                http: Some(self.http_address(node).into()),
                zookeeper: Some(self.zookeeper_address(node).into()),
                postgres: cfg!(feature = "sql").then(|| self.address(POSTGRES_PORT, node).into()),
                nbd: Some(self.address(NBD_PORT, node).into()),
            },
            advertise: Advertise::default(),
            zookeeper: self.zookeeper.clone(),
            nbd: self.nbd.clone(),
            sql: Sql::default(),
            peers: self.plan.nodes().map(|node| self.peer(node)).collect(),
            tuning: self.tuning,
        };
        let text = toml::to_string(&config).map_err(io::Error::other)?;
        Ok(format!("# Written by `loggos dev` at each start; changes are overwritten.\n{text}"))
    }

    fn peer(&self, node: u32) -> Peer {
        Peer { node, address: self.peers_address(node).into(), grpc: self.grpc_address(node).into() }
    }

    fn peers_address(&self, node: u32) -> SocketAddr {
        self.address(PEERS_PORT, node)
    }

    fn grpc_address(&self, node: u32) -> SocketAddr {
        self.address(GRPC_PORT, node)
    }

    fn http_address(&self, node: u32) -> SocketAddr {
        self.address(HTTP_PORT, node)
    }

    fn zookeeper_address(&self, node: u32) -> SocketAddr {
        self.address(ZOOKEEPER_PORT, node)
    }

    fn address(&self, port: u16, node: u32) -> SocketAddr {
        address(port, node, self.port_offset)
    }

    /// The addresses of the running nodes.
    pub(crate) fn endpoints(&self) -> BTreeMap<u32, Endpoints> {
        self.running.keys().map(|node| (*node, self.endpoints_of(*node))).collect()
    }

    fn endpoints_of(&self, node: u32) -> Endpoints {
        Endpoints {
            grpc: self.grpc_address(node),
            http: self.http_address(node),
            zookeeper: self.zookeeper_address(node),
            postgres: self.address(POSTGRES_PORT, node),
            nbd: self.address(NBD_PORT, node),
        }
    }

    pub(crate) fn print_table(&self) {
        say(format_args!(
            "{:<6} {:>8}  {:<18} {:<18} {:<18} {:<18} {:<18} console",
            "node", "pid", "gRPC", "peers", "ZooKeeper", "PostgreSQL", "NBD"
        ));
        for node in self.plan.nodes() {
            let pid = match self.running.get(&node) {
                Some(running) => running.pid.to_string(),
                None if self.plan.has_left(node) => "left".to_owned(),
                None => "refused".to_owned(),
            };
            let (grpc, peers) = (self.grpc_address(node).to_string(), self.peers_address(node).to_string());
            let (zookeeper, nbd) = (self.zookeeper_address(node).to_string(), self.address(NBD_PORT, node).to_string());
            let (postgres, http) = (self.address(POSTGRES_PORT, node).to_string(), self.http_address(node));
            say(format_args!(
                "{node:<6} {pid:>8}  {grpc:<18} {peers:<18} {zookeeper:<18} {postgres:<18} {nbd:<18} http://{http}/"
            ));
        }
    }

    /// Handles the end of a process; false if it is not the node's current process.
    pub(crate) fn exited(&mut self, exit: &Exit) -> bool {
        let is_current = self.running.get(&exit.node).is_some_and(|running| running.pid == exit.pid);
        if is_current {
            self.running.remove(&exit.node);
        }
        if is_current && exit.status.code() == Some(EXIT_LEFT.into()) {
            // Otherwise the node is started again by the next `dev`, and exits again.
            if let Err(error) = self.plan.mark_left(&self.data, exit.node) {
                eprintln!("loggos: {error}");
            }
        }
        is_current
    }

    pub(crate) fn any_running(&self) -> bool {
        !self.running.is_empty()
    }

    pub(crate) fn ask_to_stop(&self) {
        self.signal(Signal::TERM);
    }

    pub(crate) fn kill(&self) {
        self.signal(Signal::KILL);
    }

    fn signal(&self, signal: Signal) {
        for running in self.running.values() {
            // The process may have exited already.
            let _ = pidfd_send_signal(&running.handle, signal);
        }
    }

    /// Handles `loggos dev restart`.
    pub(crate) fn handle(&mut self, request: ControlRequest) {
        let ControlRequest { node, start, reply_to } = request;
        let reply = match self.running.get(&node) {
            _ if !self.plan.nodes().any(|planned| planned == node) => {
                ControlReply::Refused(format!("this cluster has no node {node}"))
            }
            Some(running) => ControlReply::Running { pid: running.pid },
            None if !start => ControlReply::Down,
            None => match self.start(node) {
                Ok(pid) => {
                    say(format_args!("node {node} restarted (pid {pid})"));
                    ControlReply::Started { pid, endpoints: self.endpoints_of(node) }
                }
                Err(StartRefused::Refused(reason)) => ControlReply::Refused(reason),
                Err(StartRefused::Failed(error)) => ControlReply::Refused(format!("can't start node {node}: {error}")),
            },
        };
        // The caller may have disconnected.
        let _ = reply_to.send(reply);
    }
}

/// Why a node was not started.
#[derive(Debug)]
enum StartRefused {
    /// Its disk is missing or belongs to another node.
    Refused(String),
    /// A system call failed.
    Failed(io::Error),
}

impl From<io::Error> for StartRefused {
    fn from(error: io::Error) -> Self {
        Self::Failed(error)
    }
}

/// Writes a file only if its content changes, so that an unchanged configuration needs no disk space.
fn write_if_changed(path: &Path, text: &str) -> io::Result<()> {
    if fs::read(path).is_ok_and(|known| known == text.as_bytes()) { Ok(()) } else { fs::write(path, text) }
}

fn pid_handle(pid: u32) -> io::Result<OwnedFd> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or_else(|| io::Error::other("no process id"))?;
    Ok(pidfd_open(pid, PidfdFlags::empty())?)
}

fn address(port: u16, node: u32, port_offset: u16) -> SocketAddr {
    let node = u16::try_from(node).unwrap_or(u16::MAX);
    let port = port.saturating_add(node).saturating_add(port_offset);
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}

/// Checks that the ports of new nodes are free, before anything is created for them.
pub(crate) fn check_ports(count: u32, port_offset: u16) -> Result<(), DevError> {
    (1..=count).try_for_each(|node| {
        let addresses = PORTS.map(|port| address(port, node, port_offset));
        are_free(&addresses).map_err(DevError::io(format!("start node {node}")))
    })
}

/// Checks that no other process listens on the addresses: clients would reach it instead of this cluster.
fn are_free(addresses: &[SocketAddr]) -> io::Result<()> {
    for address in addresses {
        TcpListener::bind(address).map_err(|error| {
            io::Error::new(error.kind(), format!("{address}: {error}; use --port-offset K to select other ports"))
        })?;
    }
    Ok(())
}

/// Waits until the node of a killed `dev` has ended.
fn wait_until_free(directory: &Path) -> Result<(), StartRefused> {
    let until = Instant::now() + CLAIM_PATIENCE;
    loop {
        match DirectoryLock::is_free(directory) {
            Ok(()) => return Ok(()),
            Err(refused) if Instant::now() >= until => return Err(StartRefused::Refused(refused.to_string())),
            Err(_) => std::thread::sleep(CLAIM_PAUSE),
        }
    }
}
