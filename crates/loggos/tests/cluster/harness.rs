//! Clusters of real processes, each with its own directory and ports, and removed at the end of its test, also on
//! failure.
//!
//! Every wait is bounded and has a description. When a test fails, the output of `dev` and of the nodes is printed.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::net::TcpStream;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Condvar, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use base::SplitMix64;
use rustix::process::{Pid, Signal, kill_process};

/// Clusters that run concurrently: more would only compete for processors.
const CLUSTERS_MAX: u32 = 2;
/// Timeout for a cluster to become ready, on a busy machine.
const READY_PATIENCE: Duration = Duration::from_secs(40);
/// Timeout for a cluster to stop.
const STOP_PATIENCE: Duration = Duration::from_secs(15);
/// Timeout of a command.
pub(crate) const COMMAND_PATIENCE: Duration = Duration::from_secs(70);
/// Bytes of each log printed when a test fails.
const TAIL_BYTES: usize = 3_000;

/// The binary under test.
pub(crate) fn loggos() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_loggos"));
    command.env_remove("LOGGOS_AT").env_remove("LOGGOS_ZK_AT");
    command
}

/// A runtime for the client library.
pub(crate) fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}

/// Polls until there is a result.
pub(crate) fn wait_for<T>(what: &str, patience: Duration, mut look: impl FnMut() -> Option<T>) -> T {
    let until = Instant::now() + patience;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < until, "{what}: not within {patience:?}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// A temporary directory, removed on drop.
#[derive(Debug)]
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    pub(crate) fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("loggos-cluster-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).expect("the temporary directory takes a directory");
        Self(path.canonicalize().expect("it was just made"))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Creates a file in it and returns its path.
    pub(crate) fn file(&self, name: &str, content: impl AsRef<[u8]>) -> String {
        let path = self.0.join(name);
        fs::write(&path, content).expect("a file can be written");
        path.display().to_string()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A command that runs until it exits or is dropped.
#[derive(Debug)]
pub(crate) struct Running(Child);

impl Running {
    pub(crate) fn of(command: &mut Command) -> Self {
        let child = command.stdin(Stdio::null()).spawn();
        Self(child.unwrap_or_else(|error| panic!("{command:?}: {error}")))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill().and_then(|()| self.0.wait());
    }
}

/// The result of a command.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) status: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Done {
    /// Runs a command until it exits.
    pub(crate) fn of(command: &mut Command, patience: Duration) -> Self {
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let child = child.unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let pid = Pid::from_child(&child);
        let (tell, told) = mpsc::channel();
        thread::spawn(move || tell.send(child.wait_with_output()));
        let output: Output = match told.recv_timeout(patience) {
            Ok(output) => output.expect("a child can be waited for"),
            Err(_) => {
                let _ = kill_process(pid, Signal::KILL);
                panic!("{command:?} is not over within {patience:?}");
            }
        };
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        let status = output.status.code().unwrap_or_else(|| -output.status.signal().unwrap_or_default());
        Self { status, out: text(&output.stdout), err: text(&output.stderr) }
    }

    /// Asserts success and returns the output.
    #[track_caller]
    pub(crate) fn ok(self) -> String {
        assert_eq!(self.status, 0, "{self:?}");
        self.out
    }

    /// Asserts this exit status, and that standard error contains all of these strings.
    #[track_caller]
    pub(crate) fn failed(self, status: i32, says: &[&str]) -> String {
        assert_eq!(self.status, status, "{self:?}");
        for part in says {
            assert!(self.err.contains(part), "{part:?} is not said: {self:?}");
        }
        self.err
    }
}

/// A permit for a running cluster.
#[derive(Debug)]
pub(crate) struct ClusterSlot;

static RUNNING: Mutex<u32> = Mutex::new(0);
static FREED: Condvar = Condvar::new();

impl ClusterSlot {
    pub(crate) fn take() -> Self {
        let running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
        let mut running =
            FREED.wait_while(running, |running| *running >= CLUSTERS_MAX).unwrap_or_else(PoisonError::into_inner);
        *running += 1;
        Self
    }
}

impl Drop for ClusterSlot {
    fn drop(&mut self) {
        *RUNNING.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        FREED.notify_one();
    }
}

/// A cluster, running or stopped.
#[derive(Debug)]
pub(crate) struct Cluster {
    scratch: Scratch,
    offset: u16,
    nodes: u32,
    /// Limit of file descriptors of each process; inherited if `None`.
    descriptors: Option<u32>,
    /// Whether a killed process loses its unforced writes.
    loses_unforced: bool,
    dev: Option<(Child, ClusterSlot)>,
}

impl Cluster {
    /// Forms a cluster of this size and waits until it is ready.
    pub(crate) fn of(nodes: u32) -> Self {
        Self::form(nodes, None, false)
    }

    /// The same with a limit of file descriptors per process.
    pub(crate) fn with_descriptors(nodes: u32, descriptors: u32) -> Self {
        Self::form(nodes, Some(descriptors), false)
    }

    /// The same, but a killed process loses its unforced writes, as in a power failure.
    pub(crate) fn losing_what_is_not_forced(nodes: u32) -> Self {
        Self::form(nodes, None, true)
    }

    fn form(nodes: u32, descriptors: Option<u32>, loses_unforced: bool) -> Self {
        let mut cluster =
            Self { scratch: Scratch::new(), offset: free_offset(), nodes, descriptors, loses_unforced, dev: None };
        cluster.start();
        cluster
    }

    /// Starts `dev` and waits until it prints `ready`.
    pub(crate) fn start(&mut self) {
        assert!(self.dev.is_none(), "it runs already");
        let place = ClusterSlot::take();
        let said = File::create(self.said()).expect("a file for what dev says");
        let mut command = self.dev_command();
        command.stdin(Stdio::null()).stdout(said.try_clone().expect("a second handle")).stderr(said);
        self.dev = Some((command.spawn().expect("dev can be started"), place));
        wait_for("dev says ready", READY_PATIENCE, || {
            let said = fs::read_to_string(self.said()).unwrap_or_default();
            let (dev, _) = self.dev.as_mut().expect("it was just started");
            let ended = dev.try_wait().expect("a child can be looked at");
            assert!(ended.is_none(), "dev ended before it was ready: {ended:?}");
            said.lines().any(|line| line == "ready").then_some(())
        });
    }

    /// The `dev` command for this cluster, without redirected standard streams.
    pub(crate) fn dev_command(&self) -> Command {
        let mut command = match self.descriptors {
            None => loggos(),
            Some(descriptors) => {
                let mut shell = Command::new("sh");
                shell.args(["-c", "ulimit -n \"$0\" && exec \"$@\"", &descriptors.to_string()]);
                shell.arg(env!("CARGO_BIN_EXE_loggos"));
                shell
            }
        };
        command.args(["dev", "--nodes", &self.nodes.to_string(), "--port-offset", &self.offset.to_string()]);
        command.arg("--data").arg(self.data());
        if self.loses_unforced {
            command.env("LOGGOS_HOLD_UNFORCED", "1");
        }
        command
    }

    /// Stops it with SIGINT, like Ctrl-C.
    pub(crate) fn stop(&mut self) {
        let (mut dev, _place) = self.dev.take().expect("it runs");
        kill_process(Pid::from_child(&dev), Signal::INT).expect("dev runs");
        let status = wait_for("dev stops", STOP_PATIENCE, || dev.try_wait().expect("a child can be looked at"));
        assert!(status.success(), "dev stopped with {status}");
    }

    /// Kills `dev`, which then cannot stop its nodes.
    pub(crate) fn kill_dev(&mut self) {
        let (mut dev, _place) = self.dev.take().expect("it runs");
        dev.kill().and_then(|()| dev.wait()).expect("dev runs");
    }

    pub(crate) fn scratch(&self) -> &Scratch {
        &self.scratch
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.scratch.path().join("data")
    }

    pub(crate) fn node_directory(&self, node: u32) -> PathBuf {
        self.data().join(format!("node-{node}"))
    }

    pub(crate) fn config(&self, node: u32) -> PathBuf {
        self.node_directory(node).join("node.toml")
    }

    /// The output of `dev` since its last start.
    fn said(&self) -> PathBuf {
        self.scratch.path().join("dev.out")
    }

    pub(crate) fn nodes(&self) -> std::ops::RangeInclusive<u32> {
        1..=self.nodes
    }

    /// Asserts that no node has closed a connection to another because of excessive pending output.
    pub(crate) fn check_no_peer_was_given_up(&self) {
        for node in self.nodes() {
            let said = fs::read_to_string(self.node_directory(node).join("log")).expect("it is there");
            assert!(said.contains(" connected") && !said.contains("send buffer full"), "node {node}: {said}");
        }
    }

    pub(crate) fn grpc_port(&self, node: u32) -> u16 {
        7_200 + self.offset + node as u16
    }

    pub(crate) fn zookeeper_port(&self, node: u32) -> u16 {
        2_180 + self.offset + node as u16
    }

    pub(crate) fn http_port(&self, node: u32) -> u16 {
        8_080 + self.offset + node as u16
    }

    #[cfg(feature = "sql")]
    pub(crate) fn postgres_port(&self, node: u32) -> u16 {
        5_440 + self.offset + node as u16
    }

    pub(crate) fn nbd_port(&self, node: u32) -> u16 {
        10_808 + self.offset + node as u16
    }

    /// The newest epoch of a table that has a leader, and that leader.
    pub(crate) fn leader(&self, table: &str) -> Option<(u64, u32)> {
        let statuses = runtime().block_on(self.client(1).status_of_each());
        let cohorts = statuses.iter().flatten().flat_map(|status| &status.cohorts);
        let led =
            cohorts.filter(|cohort| cohort.table == table).filter_map(|cohort| Some((cohort.epoch, cohort.leader?)));
        led.max()
    }

    pub(crate) fn peers_port(&self, node: u32) -> u16 {
        7_100 + self.offset + node as u16
    }

    /// The gRPC addresses, starting with that of node `first`.
    pub(crate) fn endpoints(&self, first: u32) -> Vec<String> {
        let others = self.nodes().cycle().skip(first as usize - 1).take(self.nodes as usize);
        others.map(|node| format!("127.0.0.1:{}", self.grpc_port(node))).collect()
    }

    pub(crate) fn client(&self, first: u32) -> sdk::Client {
        sdk::Client::connect(self.endpoints(first)).expect("the endpoints are addresses")
    }

    /// Runs `loggos columns ...`.
    pub(crate) fn columns(&self, arguments: &[&str]) -> Done {
        let mut command = loggos();
        command.args(["columns", "--at", &self.endpoints(1).join(",")]).args(arguments);
        Done::of(&mut command, COMMAND_PATIENCE)
    }

    /// Runs `loggos columns ...` against one node only.
    pub(crate) fn columns_of(&self, node: u32, arguments: &[&str]) -> Done {
        let mut command = loggos();
        command.args(["columns", "--at", &format!("127.0.0.1:{}", self.grpc_port(node))]).args(arguments);
        Done::of(&mut command, COMMAND_PATIENCE)
    }

    /// The command `loggos log ...`, not started.
    pub(crate) fn log_command(&self, arguments: &[&str]) -> Command {
        let mut command = loggos();
        command.args(["log", "--at", &self.endpoints(1).join(",")]).args(arguments);
        command
    }

    /// Runs `loggos log ...`.
    pub(crate) fn log(&self, arguments: &[&str]) -> Done {
        Done::of(&mut self.log_command(arguments), COMMAND_PATIENCE)
    }

    /// Runs `loggos disk ...`.
    pub(crate) fn disk(&self, arguments: &[&str]) -> Done {
        let mut command = loggos();
        command.args(["disk", "--at", &self.endpoints(1).join(",")]).args(arguments);
        Done::of(&mut command, COMMAND_PATIENCE)
    }

    /// Runs `loggos admin ...`.
    pub(crate) fn admin(&self, arguments: &[&str]) -> Done {
        let mut command = loggos();
        command.args(["admin", "--at", &self.endpoints(1).join(",")]).args(arguments);
        Done::of(&mut command, COMMAND_PATIENCE)
    }

    /// Runs `loggos status ...`.
    pub(crate) fn status(&self, arguments: &[&str]) -> Done {
        let mut command = loggos();
        command.args(["status", "--at", &self.endpoints(1).join(",")]).args(arguments);
        Done::of(&mut command, COMMAND_PATIENCE)
    }

    /// Runs `loggos dev restart`.
    pub(crate) fn restart(&self, node: u32) -> Done {
        let mut command = loggos();
        command.args(["dev", "restart", &node.to_string(), "--data"]).arg(self.data());
        Done::of(&mut command, COMMAND_PATIENCE)
    }

    /// The same, with the cluster identified by its port offset only.
    pub(crate) fn restart_by_offset(&self, node: u32) -> Done {
        let mut command = loggos();
        command.args(["dev", "--port-offset", &self.offset.to_string(), "restart", &node.to_string()]);
        Done::of(&mut command, COMMAND_PATIENCE)
    }

    /// The process of a node, if it is running.
    pub(crate) fn pid(&self, node: u32) -> Option<Pid> {
        let pid: i32 = fs::read_to_string(self.node_directory(node).join("pid")).ok()?.trim().parse().ok()?;
        // The pid may have been reused.
        let command = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        let of_ours = String::from_utf8_lossy(&command).contains(&*self.config(node).to_string_lossy());
        of_ours.then(|| Pid::from_raw(pid)).flatten()
    }

    /// Sends a signal to a running node.
    pub(crate) fn signal(&self, node: u32, signal: Signal) {
        let pid = self.pid(node).unwrap_or_else(|| panic!("node {node} doesn't run"));
        kill_process(pid, signal).unwrap_or_else(|error| panic!("{signal:?} to node {node}: {error}"));
    }

    /// A value in `/proc/PID/status`, in KiB.
    pub(crate) fn memory_kib(&self, node: u32, figure: &str) -> u64 {
        let pid = self.pid(node).expect("the node runs").as_raw_pid();
        let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("a process has a status");
        let line = status.lines().find(|line| line.starts_with(figure)).expect("the figure is there");
        line.split_whitespace().nth(1).and_then(|kib| kib.parse().ok()).expect("a number")
    }

    fn print_logs(&self) {
        let mut logs = vec![self.said()];
        logs.extend(self.nodes().map(|node| self.node_directory(node).join("log")));
        for log in logs {
            let bytes = fs::read(&log).unwrap_or_default();
            let tail = &bytes[bytes.len().saturating_sub(TAIL_BYTES)..];
            eprintln!("--- the end of {}:\n{}", log.display(), String::from_utf8_lossy(tail));
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if thread::panicking() {
            self.print_logs();
        }
        let nodes: Vec<Pid> = self.nodes().filter_map(|node| self.pid(node)).collect();
        if let Some((dev, _place)) = &mut self.dev {
            let _ = dev.kill();
            let _ = dev.wait();
        }
        for node in nodes {
            let _ = kill_process(node, Signal::KILL);
        }
    }
}

/// A port offset with free ports. Offsets are spaced so that port ranges do not overlap.
pub(crate) fn free_offset() -> u16 {
    static TAKEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());
    let mut taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
    let mut random = SplitMix64::new(u64::from(std::process::id()) << 16 | taken.len() as u64);
    let is_free = |offset: u16| {
        const BASES: [u16; 6] = [2_180, 5_440, 7_100, 7_200, 8_080, 10_808];
        let ports = (1..=5).flat_map(|node| BASES.map(|base| base + node));
        // Not by listening there: a child that another test starts at that moment would have the port until it runs.
        ports.into_iter().all(|port| TcpStream::connect(("127.0.0.1", port + offset)).is_err())
    };
    wait_for("free ports", Duration::from_secs(10), || {
        // Below 32,768, where ephemeral ports start.
        let offset = 1_000 + 200 * random.below(100) as u16 + 50 * random.below(2) as u16;
        (is_free(offset) && taken.insert(offset)).then_some(offset)
    })
}
