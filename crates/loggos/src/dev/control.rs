//! The control socket between `loggos dev restart` and the running `dev`: a Unix socket in the cluster's directory,
//! accessible only to its owner, with one line in each direction.

use std::fs;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::ExitCode;
use std::sync::mpsc::{self, Sender};
use std::time::{Duration, Instant};

use rustix::fs::Mode;
use rustix::process::umask;

use super::nodes::Endpoints;
use super::{SupervisorEvent, probe, say};

pub(super) const SOCKET: &str = "dev.sock";
/// Maximum bytes of a line.
const LINE_BYTES_MAX: u64 = 256;
/// Timeout for a caller to send its line.
const LINE_PATIENCE: Duration = Duration::from_secs(5);
/// Time within which a node that was just killed is detected as down.
const DOWN_PATIENCE: Duration = Duration::from_secs(2);
/// Timeout for a started node to serve.
const SERVE_PATIENCE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(50);
/// Time within which a node learns of an existing leader.
const LEADER_PATIENCE: Duration = Duration::from_secs(2);

/// A request to the supervisor.
#[derive(Debug)]
pub(crate) struct ControlRequest {
    pub(crate) node: u32,
    /// Start the node if it is down.
    pub(crate) start: bool,
    pub(crate) reply_to: Sender<ControlReply>,
}

#[derive(Clone, Debug)]
pub(crate) enum ControlReply {
    /// It was just started.
    Started { pid: u32, endpoints: Endpoints },
    /// It is already running.
    Running { pid: u32 },
    /// It is not running.
    Down,
    /// It cannot be started, with the reason.
    Refused(String),
}

/// Serves the socket on a separate thread, one caller at a time.
pub(crate) fn listen(data: &Path, events: Sender<SupervisorEvent>) -> io::Result<()> {
    forget(data);
    let listener = through_directory(data, |path| {
        // The socket is private to its owner from its creation on.
        let before = umask(Mode::from_raw_mode(0o177));
        let listener = UnixListener::bind(path);
        umask(before);
        listener
    })?;
    std::thread::Builder::new().name("control".to_owned()).spawn(move || {
        for stream in listener.incoming() {
            if let Err(error) = stream.and_then(|stream| serve_caller(stream, &events)) {
                eprintln!("loggos: control socket: {error}");
            }
        }
    })?;
    Ok(())
}

pub(crate) fn forget(data: &Path) {
    let _ = fs::remove_file(data.join(SOCKET));
}

/// Opens the socket through a handle of its directory: a socket's path is limited to 107 bytes, and this one is always
/// short.
fn through_directory<T>(data: &Path, open: impl FnOnce(&Path) -> io::Result<T>) -> io::Result<T> {
    let directory = fs::File::open(data)?;
    open(Path::new(&format!("/proc/self/fd/{}/{SOCKET}", directory.as_raw_fd())))
}

fn serve_caller(mut stream: UnixStream, events: &Sender<SupervisorEvent>) -> io::Result<()> {
    stream.set_read_timeout(Some(LINE_PATIENCE))?;
    let mut line = String::new();
    BufReader::new((&stream).take(LINE_BYTES_MAX)).read_line(&mut line)?;
    let node = line.trim().strip_prefix("restart ").and_then(|node| node.parse().ok());
    let reply = match node {
        Some(node) => restart_node(node, events),
        None => Err("unknown command: only `restart NODE` is supported".to_owned()),
    };
    match reply {
        Ok(done) => writeln!(stream, "ok {done}"),
        Err(why) => writeln!(stream, "error {why}"),
    }
}

fn restart_node(node: u32, events: &Sender<SupervisorEvent>) -> Result<String, String> {
    let (pid, endpoints) = start(node, events)?;
    let until = Instant::now() + SERVE_PATIENCE;
    while !probe::serves(endpoints) {
        match request(node, false, events)? {
            ControlReply::Running { pid: running } if running == pid => {}
            _ => return Err(format!("node {node} exited again; see its log")),
        }
        if Instant::now() > until {
            return Err(format!("node {node} is running (pid {pid}) but does not serve requests yet"));
        }
        std::thread::sleep(PAUSE);
    }
    let until = Instant::now() + LEADER_PATIENCE;
    let but = loop {
        if probe::knows_a_leader(endpoints.grpc) {
            break "";
        }
        if Instant::now() > until {
            break ", but it knows no leader; check that a majority of the nodes is running";
        }
        std::thread::sleep(PAUSE);
    };
    Ok(format!("node {node} serves again (pid {pid}){but}"))
}

fn start(node: u32, events: &Sender<SupervisorEvent>) -> Result<(u32, Endpoints), String> {
    let until = Instant::now() + DOWN_PATIENCE;
    loop {
        match request(node, true, events)? {
            ControlReply::Started { pid, endpoints } => return Ok((pid, endpoints)),
            ControlReply::Refused(reason) => return Err(reason),
            ControlReply::Running { pid } if Instant::now() > until => {
                return Err(format!("node {node} is already running (pid {pid})"));
            }
            ControlReply::Running { .. } | ControlReply::Down => std::thread::sleep(PAUSE),
        }
    }
}

fn request(node: u32, start: bool, events: &Sender<SupervisorEvent>) -> Result<ControlReply, String> {
    let (reply_to, reply) = mpsc::channel();
    let stopping = |_| "`loggos dev` is stopping".to_owned();
    events
        .send(SupervisorEvent::Control(ControlRequest { node, start, reply_to }))
        .map_err(|_| stopping(mpsc::RecvError))?;
    reply.recv().map_err(stopping)
}

/// `loggos dev restart NODE`: sends the request to the `dev` that runs on `data`, and waits until the node serves.
pub(crate) fn restart(data: &Path, node: u32) -> ExitCode {
    let reply = match through_directory(data, |path| UnixStream::connect(path)) {
        Ok(stream) => send_restart(stream, node),
        Err(error) => {
            eprintln!("loggos: no `loggos dev` is running in {}: {error}", data.display());
            return ExitCode::from(3);
        }
    };
    match reply {
        Ok(reply) => match reply.split_once(' ') {
            Some(("ok", done)) => {
                say(done);
                ExitCode::SUCCESS
            }
            Some((_, why)) => {
                eprintln!("loggos: {why}");
                ExitCode::from(1)
            }
            None => {
                eprintln!("loggos: `loggos dev` stopped before it responded");
                ExitCode::from(3)
            }
        },
        Err(error) => {
            eprintln!("loggos: can't send the request to `loggos dev`: {error}");
            ExitCode::from(3)
        }
    }
}

fn send_restart(mut stream: UnixStream, node: u32) -> io::Result<String> {
    writeln!(stream, "restart {node}")?;
    let mut reply = String::new();
    BufReader::new(stream).read_line(&mut reply)?;
    Ok(reply.trim_end().to_owned())
}
