//! `loggos dev`: a cluster of real node processes on this machine, formed on the first run.
//!
//! `dev` supervises its nodes: it starts them, prints their addresses, prints `ready` once the cluster accepts writes,
//! reports when a node ends, restarts it on `loggos dev restart`, and stops all of them when it is stopped. It does not
//! restart nodes automatically, because `dev` serves to observe failures. A node with a missing disk is not formatted
//! again (guarantee 6): it is not started, the reason is printed, and the others run.
//!
//! If `dev` is killed, its nodes exit: each watches a pipe that `dev` holds open.

mod control;
mod nodes;
mod plan;
mod probe;
mod running;

use std::fmt;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::{Duration, Instant};

use coordination::log_port::Playback;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use self::control::ControlRequest;
use self::nodes::{Exit, Nodes};
use self::plan::{Plan, PlanError};
use runtime::config::DiskReads;
use runtime::directory_lock::{DirectoryLock, DirectoryLockError};

pub(crate) use self::control::restart;
pub(crate) use self::running::running;

/// A node still running this long after a request to stop is killed.
const STOP_PATIENCE: Duration = Duration::from_secs(5);
/// Polling interval until the cluster is ready.
const READY_PAUSE: Duration = Duration::from_millis(50);
/// After this time, the reason why the cluster is not ready is printed.
const READY_PATIENCE: Duration = Duration::from_secs(10);

#[derive(Clone, Debug)]
pub(crate) struct Options {
    /// Number of nodes: 1, 3 or 5. `None`: the existing number, or three for a new cluster.
    pub(crate) nodes: Option<u32>,
    pub(crate) data: PathBuf,
    /// Added to every port.
    pub(crate) port_offset: u16,
    /// Bytes of memory for the rows of each node.
    pub(crate) memory: Option<u64>,
    /// When the ZooKeeper endpoints read the log. `None`: the default.
    pub(crate) playback: Option<Playback>,
    /// The replica that answers a read of a disk. `None`: the default.
    pub(crate) disk_reads: Option<DiskReads>,
    /// The bound on the error of the wall clock, as in a configuration file. `None`: that of processes on one machine.
    pub(crate) clock_uncertainty: Option<String>,
}

/// Why the cluster cannot be started.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DevError {
    #[error("{0}")]
    Plan(#[from] PlanError),
    #[error("{0}")]
    DirectoryLock(#[from] DirectoryLockError),
    #[error("can't {what}: {error}")]
    Io { what: String, error: io::Error },
    #[error("--port-offset {0} is not within 0 to {max}", max = nodes::PORT_OFFSET_MAX)]
    PortOffset(u16),
    #[error("no node is running; see {0}/node-*/log")]
    NoNode(String),
}

impl DevError {
    fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        move |error| Self::Io { what: what.into(), error }
    }

    fn exit_status(&self) -> u8 {
        match self {
            Self::PortOffset(_) => 2,
            Self::Plan(error) if error.is_wrong_use() => 2,
            _ => 3,
        }
    }
}

/// Input of the supervisor.
#[derive(Debug)]
pub(crate) enum SupervisorEvent {
    /// A signal requests a stop.
    Stop,
    /// A node's process has ended.
    Exited(Exit),
    /// A request from `loggos dev restart`.
    Control(ControlRequest),
}

/// Runs the cluster until SIGINT or SIGTERM.
pub(crate) fn run(options: &Options) -> ExitCode {
    match supervise(options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("loggos: {error}");
            ExitCode::from(error.exit_status())
        }
    }
}

fn supervise(options: &Options) -> Result<(), DevError> {
    if options.port_offset > nodes::PORT_OFFSET_MAX {
        return Err(DevError::PortOffset(options.port_offset));
    }
    plan::check_count(options.nodes)?;
    // Skipped for an existing cluster: nodes of an earlier `dev` may still be exiting.
    if let Some(count) = plan::to_be_formed(&options.data, options.nodes) {
        nodes::check_ports(count, options.port_offset)?;
    }
    let data = plan::make_directory(&options.data)?;
    let _claim = DirectoryLock::take(&data)?;
    let plan = Plan::form(&data, options.nodes)?;
    let (sender, events) = mpsc::channel();
    stop_on_signals(sender.clone()).map_err(DevError::io("wait for signals"))?;
    control::listen(&data, sender.clone()).map_err(DevError::io("listen for `loggos dev restart`"))?;

    let mut nodes = Nodes::new(&data, plan, options, sender);
    nodes.start_all()?;
    nodes.print_table();
    let mut supervisor = Supervisor { nodes, events, data };
    let outcome = supervisor.run();
    supervisor.stop();
    control::forget(&supervisor.data);
    outcome
}

/// Prints a line to standard output. A closed pipe or a full disk must not end the nodes.
fn say(line: impl fmt::Display) {
    let _ = writeln!(io::stdout().lock(), "{line}");
}

struct Supervisor {
    nodes: Nodes,
    events: Receiver<SupervisorEvent>,
    data: PathBuf,
}

impl Supervisor {
    fn run(&mut self) -> Result<(), DevError> {
        if !self.wait_until_ready()? {
            return Ok(());
        }
        say("ready");
        while let Ok(event) = self.events.recv() {
            if self.handle(event).is_break() {
                break;
            }
        }
        Ok(())
    }

    /// Returns false if a stop was requested first.
    fn wait_until_ready(&mut self) -> Result<bool, DevError> {
        let began = Instant::now();
        let mut is_reported = false;
        loop {
            let Some(missing) = probe::why_not_ready(&self.nodes.endpoints()) else { return Ok(true) };
            if began.elapsed() > READY_PATIENCE && !is_reported {
                say(format_args!("not ready: {missing}"));
                is_reported = true;
            }
            match self.events.recv_timeout(READY_PAUSE) {
                Ok(event) => {
                    if self.handle(event).is_break() {
                        return Ok(false);
                    }
                }
                Err(mpsc::RecvTimeoutError::Timeout) => {}
                Err(mpsc::RecvTimeoutError::Disconnected) => return Ok(false),
            }
            if self.nodes.endpoints().is_empty() {
                return Err(DevError::NoNode(self.data.display().to_string()));
            }
        }
    }

    fn handle(&mut self, event: SupervisorEvent) -> std::ops::ControlFlow<()> {
        match event {
            SupervisorEvent::Stop => return std::ops::ControlFlow::Break(()),
            SupervisorEvent::Exited(exit) => {
                if self.nodes.exited(&exit) {
                    let next = match exit.status.code() {
                        Some(status) if status == i32::from(runtime::EXIT_LEFT) => {
                            "it has left the cluster, so its data is not needed any more".to_owned()
                        }
                        _ => hint(&self.data, exit.node),
                    };
                    say(format_args!("node {} exited ({}); {next}", exit.node, exit.status));
                }
            }
            SupervisorEvent::Control(request) => self.nodes.handle(request),
        }
        std::ops::ControlFlow::Continue(())
    }

    /// Asks all nodes to stop, and kills those that do not.
    fn stop(&mut self) {
        self.nodes.ask_to_stop();
        let until = Instant::now() + STOP_PATIENCE;
        while self.nodes.any_running() {
            match self.events.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(SupervisorEvent::Exited(exit)) => {
                    self.nodes.exited(&exit);
                }
                Ok(_) => {}
                Err(_) => return self.kill(),
            }
        }
    }

    fn kill(&mut self) {
        say("killing the nodes that did not stop in time");
        self.nodes.kill();
        while self.nodes.any_running() {
            match self.events.recv() {
                Ok(SupervisorEvent::Exited(exit)) => {
                    self.nodes.exited(&exit);
                }
                Ok(_) => {}
                Err(_) => return,
            }
        }
    }
}

fn hint(data: &Path, node: u32) -> String {
    format!(
        "restart it with `loggos dev restart {node} --data {}`; its log is {}",
        data.display(),
        plan::node_directory(data, node).join("log").display()
    )
}

fn stop_on_signals(sender: Sender<SupervisorEvent>) -> io::Result<()> {
    let mut signals = Signals::new([SIGTERM, SIGINT])?;
    std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
        for _ in signals.forever() {
            if sender.send(SupervisorEvent::Stop).is_err() {
                return;
            }
        }
    })?;
    Ok(())
}
