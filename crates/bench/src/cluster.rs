//! A cluster of processes that can be killed or paused: a running one, or one started for the benchmark.
//!
//! Its processes and addresses are read from the data directory of `loggos dev`, which has a directory for each node with
//! its configuration and pid.

use std::collections::BTreeMap;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{self, Receiver, TryRecvError};
use std::time::{Duration, Instant};
use std::{fmt, fs, thread};

use base::{CohortId, SplitMix64};
use bytes::Bytes;
use clap::ValueEnum;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};
use sdk::admin::{Cohort, StatusResponse};
use serde::{Deserialize, Serialize};
use tempfile::TempDir;
use terminal::Stop;
use tokio::time::sleep;

use super::servers::Servers;
use crate::scratch;

/// Without the leader, two other nodes must remain as a majority.
const NODES_MIN: usize = 3;
/// Timeout for a started cluster to become ready.
const READY_PATIENCE: Duration = Duration::from_secs(60);
/// Timeout for a restarted node to catch up.
const CAUGHT_UP_PATIENCE: Duration = Duration::from_secs(60);
/// Timeout of `dev restart`.
const RESTART_PATIENCE: Duration = Duration::from_secs(70);
/// Timeout for a cluster started by the benchmark to stop.
const STOP_PATIENCE: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(20);
const PAUSE_OF_EXIT: Duration = Duration::from_millis(2);
/// Timeout of a status request.
const STATUS_PATIENCE: Duration = Duration::from_secs(2);
/// Port offsets for a cluster started by the benchmark. Below 32,768, where ephemeral ports start.
const PORT_PLACES: u64 = 100;
const PORT_OFFSET_FIRST: u16 = 1_000;
const PORT_OFFSET_STEP: u16 = 200;
const PORT_TRIES: usize = 50;
/// Below the ports of the first node, as in `loggos dev`.
const PORTS: [u16; 6] = [2_180, 5_440, 7_100, 7_200, 8_080, 10_808];

/// A fault that can be injected into a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum NodeFault {
    /// SIGKILL: the process ends, and its connections close.
    Kill,
    /// SIGSTOP: the process pauses, and its connections stay open.
    Stop,
    /// SIGTERM: the node hands its leaderships over, and then ends.
    Term,
}

impl NodeFault {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Kill => "kill",
            Self::Stop => "stop",
            Self::Term => "term",
        }
    }
}

/// A cohort of the cluster.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Which<'a> {
    /// The cohort of a table with one range.
    Table(&'a str),
    /// The cohort with this number.
    Cohort(u32),
    Catalog,
}

impl Which<'_> {
    fn is(self, cohort: &Cohort) -> bool {
        match self {
            Self::Table(table) => cohort.table == table,
            Self::Cohort(number) => cohort.cohort == number,
            Self::Catalog => cohort.cohort == CohortId::CATALOG.0,
        }
    }
}

impl fmt::Display for Which<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Table(table) => write!(f, "the table {table}"),
            Self::Cohort(number) => write!(f, "cohort {number}"),
            Self::Catalog => f.write_str("the catalog"),
        }
    }
}

/// The leader of a cohort and its epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Term {
    pub(crate) epoch: u64,
    pub(crate) leader: u32,
}

/// How to start a cluster for a benchmark.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Start {
    /// Number of nodes: 1, 3 or 5. `None`: 3.
    pub(crate) nodes: Option<u32>,
    /// Added to every port. `None`: one with free ports.
    pub(crate) port_offset: Option<u16>,
    /// The bound on the error of the wall clock, in microseconds. `None`: 1.
    pub(crate) clock_uncertainty_us: Option<u64>,
}

impl Start {
    fn nodes(self) -> u32 {
        self.nodes.unwrap_or(NODES_MIN as u32)
    }
}

/// Resources that a node has used since it started.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Usage {
    pub(crate) cpu: Duration,
    /// Bytes written to files.
    pub(crate) written_bytes: u64,
    /// Bytes exchanged with other nodes.
    pub(crate) sent_bytes: u64,
    pub(crate) received_bytes: u64,
}

/// A cluster with processes that can be signalled.
pub(crate) struct Cluster {
    data: PathBuf,
    nodes: Vec<Node>,
    client: sdk::Client,
    /// Stopped and removed when dropped.
    _own: Option<Own>,
}

#[derive(Clone, Debug)]
struct Node {
    number: u32,
    endpoint: String,
}

impl Cluster {
    /// The cluster that runs in this directory.
    pub(crate) fn running(data: &Path) -> Result<Self, Stop> {
        let cluster = Self::open(data, None)?;
        let nodes = cluster.nodes.len();
        if nodes < NODES_MIN {
            let message = format!("{} has {nodes} nodes, but at least {NODES_MIN} are required", data.display());
            return Err(Stop::invalid(message));
        }
        Ok(cluster)
    }

    /// Forms a cluster in the temporary directory, and waits until it is ready.
    pub(crate) async fn start(start: Start) -> Result<Self, Stop> {
        let own = Own::start(start).await?;
        Self::open(&own.data(), Some(own))
    }

    fn open(data: &Path, own: Option<Own>) -> Result<Self, Stop> {
        // As in the command lines of the nodes.
        let data = fs::canonicalize(data).map_err(Stop::io(format!("read {}", data.display())))?;
        let mut nodes = Vec::new();
        let reading = format!("read {}", data.display());
        for entry in fs::read_dir(&data).map_err(Stop::io(reading.clone()))? {
            let name = entry.map_err(Stop::io(reading.clone()))?.file_name();
            let number =
                name.to_str().and_then(|name| name.strip_prefix("node-")).and_then(|number| number.parse().ok());
            if let Some(number) = number {
                nodes.push(Node { number, endpoint: address(&data, number, "grpc")? });
            }
        }
        nodes.sort_by_key(|node| node.number);
        let client = sdk::Client::connect(nodes.iter().map(|node| &node.endpoint))?.with_deadline(STATUS_PATIENCE);
        Ok(Self { data, nodes, client, _own: own })
    }

    pub(crate) fn data(&self) -> &Path {
        &self.data
    }

    /// The current processes of the nodes.
    pub(crate) fn servers(&self) -> Result<Servers, Stop> {
        Servers::of(&[], Some(&self.data))
    }

    /// The resources that each running node has used since it started.
    pub(crate) fn usage(&self) -> Result<BTreeMap<u32, Usage>, Stop> {
        let mut usage = BTreeMap::new();
        for (name, (cpu, written_bytes)) in self.servers()?.cpu_and_written()? {
            let Some(node) = name.strip_prefix("node-").and_then(|number| number.parse().ok()) else { continue };
            let metrics = metrics(&address(&self.data, node, "http")?);
            let metrics = metrics.map_err(Stop::io(format!("read the metrics of node {node}")))?;
            let metric = |name: &str| {
                let value = metrics.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
                value.ok_or_else(|| Stop::invalid(format!("node {node} has no metric {name}")))
            };
            let (sent_bytes, received_bytes) =
                (metric("loggos_peer_sent_bytes_total ")?, metric("loggos_peer_received_bytes_total ")?);
            usage.insert(node, Usage { cpu, written_bytes, sent_bytes, received_bytes });
        }
        Ok(usage)
    }

    pub(crate) fn nodes(&self) -> Vec<u32> {
        self.nodes.iter().map(|node| node.number).collect()
    }

    /// The endpoints of all nodes, starting with `first` and continuing cyclically.
    pub(crate) fn endpoints_from(&self, first: u32) -> Vec<String> {
        let mut endpoints = self.endpoints();
        let index = self.nodes.iter().position(|node| node.number == first);
        endpoints.rotate_left(index.unwrap_or_default());
        endpoints
    }

    /// The endpoints of all nodes.
    pub(crate) fn endpoints(&self) -> Vec<String> {
        self.nodes.iter().map(|node| node.endpoint.clone()).collect()
    }

    /// The address of a node for NBD clients.
    pub(crate) fn nbd(&self, node: u32) -> Result<String, Stop> {
        address(&self.data, node, "nbd")
    }

    /// The address of a node for PostgreSQL clients.
    pub(crate) fn postgres(&self, node: u32) -> Result<String, Stop> {
        address(&self.data, node, "postgres")
    }

    /// The endpoints of all nodes but one.
    pub(crate) fn others(&self, but: u32) -> Vec<String> {
        self.nodes.iter().filter(|node| node.number != but).map(|node| node.endpoint.clone()).collect()
    }

    /// A node other than the leader.
    pub(crate) fn follower(&self, leader: u32) -> u32 {
        let mut others = self.nodes.iter().map(|node| node.number).filter(|node| *node != leader);
        others.next().unwrap_or(leader)
    }

    /// The current leader of a cohort.
    pub(crate) async fn term(&self, which: Which<'_>) -> Result<Term, Stop> {
        let statuses = self.client.status_of_each().await;
        let cohorts = statuses.iter().flatten().flat_map(|status| &status.cohorts);
        let terms = cohorts
            .filter(|cohort| which.is(cohort))
            .filter_map(|cohort| Some(Term { epoch: cohort.epoch, leader: cohort.leader? }));
        let none = || sdk::Error::Unavailable(format!("no node knows the leader of {which}"));
        Ok(terms.max().ok_or_else(none)?)
    }

    /// The current leaders of a table's ranges and their first keys, by cohort.
    pub(crate) async fn leads(&self, table: &str) -> BTreeMap<u32, (Term, Bytes)> {
        let mut leads: BTreeMap<u32, (Term, Bytes)> = BTreeMap::new();
        let statuses = self.client.status_of_each().await;
        let cohorts = statuses.iter().flatten().flat_map(|status| &status.cohorts);
        for cohort in cohorts.filter(|cohort| cohort.table == table) {
            let Some(leader) = cohort.leader else { continue };
            let term = Term { epoch: cohort.epoch, leader };
            let known = leads.entry(cohort.cohort).or_insert_with(|| (term, cohort.start.clone()));
            known.0 = term.max(known.0);
        }
        leads
    }

    /// Waits until every node serves, and every replica of a cohort has caught up.
    pub(crate) async fn caught_up(&self, which: Which<'_>) -> Result<(), Stop> {
        wait_until(&format!("the replicas of {which} have caught up"), async || {
            let statuses: Result<Vec<StatusResponse>, _> = self.client.status_of_each().await.into_iter().collect();
            Ok(has_caught_up(&statuses?, which).then_some(()))
        })
        .await
    }

    /// Kills or pauses a node's process.
    pub(crate) fn inject(&self, node: u32, fault: NodeFault) -> Result<FaultedNode, Stop> {
        let process = self.process(node).map_err(Stop::io(format!("find the process of node {node}")))?;
        let signal = match fault {
            NodeFault::Kill => Signal::KILL,
            NodeFault::Stop => Signal::STOP,
            NodeFault::Term => Signal::TERM,
        };
        let sent = pidfd_send_signal(&process, signal).map_err(io::Error::from);
        sent.map_err(Stop::io(format!("signal node {node}")))?;
        Ok(FaultedNode { node, fault, process })
    }

    /// A handle of a node's process. The pid in its directory may have been reused, so the command line is checked.
    fn process(&self, node: u32) -> io::Result<OwnedFd> {
        let directory = self.data.join(format!("node-{node}"));
        let text = fs::read_to_string(directory.join("pid"))?;
        let none = || {
            io::Error::new(io::ErrorKind::NotFound, format!("{} has no pid of a running process", directory.display()))
        };
        let pid = text.trim().parse().ok().and_then(Pid::from_raw).ok_or_else(none)?;
        let process = pidfd_open(pid, PidfdFlags::empty())?;
        let command = fs::read(format!("/proc/{}/cmdline", pid.as_raw_pid()))?;
        let config = directory.join("node.toml").display().to_string();
        if String::from_utf8_lossy(&command).contains(&config) { Ok(process) } else { Err(none()) }
    }

    /// Restarts a killed node, or resumes a paused one.
    pub(crate) async fn restore(&self, faulted: FaultedNode) -> Result<(), Stop> {
        let node = faulted.node;
        let fault = faulted.fault;
        if fault == NodeFault::Term && !faulted.ended(STOP_PATIENCE).await? {
            let late = format!("node {node} did not stop within {STOP_PATIENCE:?}");
            return Err(sdk::Error::Unavailable(late).into());
        }
        // Dropping it resumes the process.
        drop(faulted);
        if fault == NodeFault::Stop {
            return Ok(());
        }
        let mut restart = loggos()?;
        restart.args(["dev", "restart", &node.to_string(), "--data"]).arg(&self.data);
        restart.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let restarting = format!("restart node {node}");
        let output = output_of(restart, RESTART_PATIENCE).await.map_err(Stop::io(restarting))?;
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr);
        Err(sdk::Error::Unavailable(said.trim().trim_start_matches("loggos: ").to_owned()).into())
    }
}

impl FaultedNode {
    /// Waits until the process has ended, after SIGKILL or SIGTERM; false if it has not within `patience`.
    pub(crate) async fn ended(&self, patience: Duration) -> Result<bool, Stop> {
        let until = Instant::now() + patience;
        loop {
            let mut ready = [PollFd::new(&self.process, PollFlags::IN)];
            let polled = poll(&mut ready, Some(&Timespec::default())).map_err(io::Error::from);
            if polled.map_err(Stop::io(format!("wait for node {}", self.node)))? > 0 {
                return Ok(true);
            }
            if Instant::now() >= until {
                return Ok(false);
            }
            sleep(PAUSE_OF_EXIT).await;
        }
    }
}

/// A node that was killed or paused. A paused one resumes when this is dropped, however the benchmark ends.
pub(crate) struct FaultedNode {
    node: u32,
    fault: NodeFault,
    process: OwnedFd,
}

impl Drop for FaultedNode {
    fn drop(&mut self) {
        if self.fault == NodeFault::Stop {
            let _ = pidfd_send_signal(&self.process, Signal::CONT);
        }
    }
}

/// Polls until there is a result.
pub(crate) async fn wait_until<T>(
    what: &str,
    look: impl AsyncFn() -> Result<Option<T>, sdk::Error>,
) -> Result<T, Stop> {
    let until = Instant::now() + CAUGHT_UP_PATIENCE;
    loop {
        match look().await {
            Ok(Some(found)) => return Ok(found),
            Err(error) if Instant::now() > until => return Err(error.into()),
            Ok(None) if Instant::now() > until => {
                return Err(sdk::Error::Unavailable(format!(
                    "timed out after {CAUGHT_UP_PATIENCE:?} waiting until {what}"
                ))
                .into());
            }
            _ => sleep(PAUSE).await,
        }
    }
}

/// Whether every replica known to the leader reports a log as long as the leader's, and is not in doubt.
fn has_caught_up(statuses: &[StatusResponse], which: Which<'_>) -> bool {
    let own = |status: &StatusResponse| {
        let cohort = status.cohorts.iter().find(|cohort| which.is(cohort))?;
        Some((status.node, cohort.clone()))
    };
    let cohorts: Vec<(u32, Cohort)> = statuses.iter().filter_map(own).collect();
    let leads = |(node, cohort): &&(u32, Cohort)| cohort.leader == Some(*node);
    let Some((leader, cohort)) = cohorts.iter().filter(leads).max_by_key(|(_, cohort)| cohort.epoch) else {
        return false;
    };
    let last = |(node, cohort): &(u32, Cohort)| {
        let replica = cohort.replicas.iter().find(|replica| replica.node == *node)?;
        replica.last_lsn.filter(|_| !replica.doubtful)
    };
    let wanted = cohorts.iter().find(|(node, _)| node == leader).and_then(last);
    let has_all = |node: u32| cohorts.iter().any(|own| own.0 == node && last(own) == wanted);
    // A replica that has not voted for the leader yet is not known to the leader.
    let is_known = |node: u32| cohort.replicas.iter().any(|replica| replica.node == node);
    let all_are_known = cohorts.iter().all(|(node, _)| is_known(*node));
    let are_members = cohort.configuration.as_ref().is_none_or(|known| known.candidates.is_empty());
    wanted.is_some() && all_are_known && are_members && cohort.replicas.iter().all(|replica| has_all(replica.node))
}

/// The address of this name in a node's configuration.
fn address(data: &Path, node: u32, name: &str) -> Result<String, Stop> {
    let path = data.join(format!("node-{node}")).join("node.toml");
    let text = fs::read_to_string(&path).map_err(Stop::io(format!("read {}", path.display())))?;
    let config: Option<toml::Table> = text.parse().ok();
    let endpoint = config.as_ref().and_then(|config| config.get("listen")?.get(name)?.as_str());
    endpoint.map(str::to_owned).ok_or_else(|| Stop::invalid(format!("{} has no address for {name}", path.display())))
}

/// A node's metrics, as Prometheus reads them.
fn metrics(address: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(STATUS_PATIENCE))?;
    write!(stream, "GET /metrics HTTP/1.0\r\nhost: {address}\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}

/// A command that runs this program.
fn loggos() -> Result<Command, Stop> {
    Ok(Command::new(std::env::current_exe().map_err(Stop::io("find this program"))?))
}

/// Runs a command until it exits, without blocking the executor.
pub(crate) async fn output_of(mut command: Command, patience: Duration) -> io::Result<Output> {
    let mut child = command.spawn()?;
    let until = Instant::now() + patience;
    while child.try_wait()?.is_none() {
        if Instant::now() > until {
            let _ = child.kill();
            let _ = child.wait();
            return Err(io::Error::new(io::ErrorKind::TimedOut, format!("timed out after {patience:?}")));
        }
        sleep(PAUSE).await;
    }
    child.wait_with_output()
}

/// A cluster started by the benchmark: `loggos dev` as a child process, in a temporary directory.
struct Own {
    dev: Child,
    /// Removed after the child has ended: fields are dropped after `drop` runs.
    scratch: TempDir,
}

impl Own {
    async fn start(start: Start) -> Result<Self, Stop> {
        let scratch = scratch(&std::env::temp_dir()).map_err(Stop::io("create a temporary directory"))?;
        let mut command = loggos()?;
        let port_offset = start.port_offset.map_or_else(|| free_offset(start.nodes()), Ok)?;
        command.args(["dev", "--nodes", &start.nodes().to_string(), "--port-offset", &port_offset.to_string()]);
        if let Some(microseconds) = start.clock_uncertainty_us {
            command.args(["--clock-uncertainty", &format!("{microseconds}us")]);
        }
        command.arg("--data").arg(scratch.path().join("data"));
        let dev = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().map_err(Stop::io("start a cluster"))?;
        let mut own = Self { dev, scratch };
        own.ready().await?;
        Ok(own)
    }

    fn data(&self) -> PathBuf {
        self.scratch.path().join("data")
    }

    /// Waits until `dev` prints `ready`.
    async fn ready(&mut self) -> Result<(), Stop> {
        let lines = self.lines();
        let until = Instant::now() + READY_PATIENCE;
        loop {
            match lines.try_recv() {
                Ok(line) if line == "ready" => return Ok(()),
                Ok(_) => {}
                Err(TryRecvError::Empty) if Instant::now() < until => sleep(PAUSE).await,
                Err(TryRecvError::Empty) => {
                    let late = format!("the cluster was not ready within {READY_PATIENCE:?}");
                    return Err(sdk::Error::Unavailable(late).into());
                }
                Err(TryRecvError::Disconnected) => {
                    return Err(sdk::Error::Unavailable("the cluster exited before it was ready".into()).into());
                }
            }
        }
    }

    /// The lines that `dev` prints. They are read until the end, so that `dev` never blocks on its output.
    fn lines(&mut self) -> Receiver<String> {
        let (tell, lines) = mpsc::channel();
        let out = self.dev.stdout.take().expect("stdout is piped, and taken once");
        thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                // The receiver is dropped once `dev` is ready.
                let _ = tell.send(line);
            }
        });
        lines
    }
}

impl Drop for Own {
    /// Sends SIGINT, like Ctrl-C; `dev` then stops its nodes.
    fn drop(&mut self) {
        let _ = kill_process(Pid::from_child(&self.dev), Signal::INT);
        let until = Instant::now() + STOP_PATIENCE;
        while matches!(self.dev.try_wait(), Ok(None)) {
            if Instant::now() > until {
                let _ = self.dev.kill();
                let _ = self.dev.wait();
            }
            thread::sleep(PAUSE);
        }
    }
}

/// A port offset with currently free ports.
fn free_offset(nodes: u32) -> Result<u16, Stop> {
    let mut draw = SplitMix64::new(u64::from(std::process::id()));
    let is_free = |offset: &u16| {
        let mut ports = (1..=nodes as u16).flat_map(|node| PORTS.map(|port| port + node + offset));
        ports.all(|port: u16| TcpListener::bind(("127.0.0.1", port)).is_ok())
    };
    let mut offsets = (0..PORT_TRIES).map(|_| PORT_OFFSET_FIRST + PORT_OFFSET_STEP * draw.below(PORT_PLACES) as u16);
    let none = || sdk::Error::Unavailable("no free ports for a cluster".into());
    Ok(offsets.find(is_free).ok_or_else(none)?)
}

#[cfg(test)]
mod tests {
    use sdk::admin::{Lsn, Replica};

    use super::*;

    fn status(node: u32, leader: u32, sequence: u64, doubtful: bool) -> StatusResponse {
        let replica = |node, sequence, doubtful| Replica {
            node,
            last_lsn: Some(Lsn { epoch: 5, sequence }),
            committed_lsn: None,
            doubtful,
        };
        // The leader's view of the other replicas may be stale.
        let mut replicas = vec![replica(node, sequence, doubtful)];
        if node == leader {
            replicas.extend((1..=3).filter(|other| *other != node).map(|other| replica(other, 1, false)));
        }
        let cohort =
            Cohort { cohort: 2, table: "t".into(), leader: Some(leader), epoch: 5, replicas, ..Cohort::default() };
        StatusResponse { node, incarnation: 1, boot: 1, cohorts: vec![cohort], ..StatusResponse::default() }
    }

    #[test]
    fn catch_up_needs_report_of_each_replica() {
        let (of_table, of_another) = (Which::Table("t"), Which::Table("another"));
        let all = [status(1, 2, 9, false), status(2, 2, 9, false), status(3, 2, 9, false)];
        assert!(has_caught_up(&all, of_table));
        assert!(!has_caught_up(&all, of_another) && !has_caught_up(&all, Which::Catalog));
        assert!(!has_caught_up(&all[..2], of_table), "a node is missing");
        assert!(!has_caught_up(&[status(1, 2, 8, false), all[1].clone(), all[2].clone()], of_table));
        assert!(!has_caught_up(&[status(1, 2, 9, true), all[1].clone(), all[2].clone()], of_table));
        assert!(!has_caught_up(&[all[0].clone(), all[2].clone(), status(2, 3, 9, false)], of_table), "no leader");
    }
}
