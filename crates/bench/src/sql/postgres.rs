//! The peer: PostgreSQL with one synchronous standby, started for the benchmark in a temporary directory.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, geteuid, kill_process};
use tempfile::TempDir;
use terminal::Stop;
use tokio::time::sleep;

use super::pgbench::{Endpoint, psql, succeed};
use crate::scratch;

/// Debian's directory of the programs, by version.
const VERSIONS: &str = "/usr/lib/postgresql";
/// Timeout of starting and of copying a server.
const START_PATIENCE: Duration = Duration::from_secs(60);
const STOP_PATIENCE: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(50);
/// Settings that differ from the defaults. `fsync` and `synchronous_commit` are on by default: named because they matter.
const SETTINGS: [&str; 6] = [
    "listen_addresses=127.0.0.1",
    "fsync=on",
    "synchronous_commit=on",
    "synchronous_standby_names=*",
    "shared_buffers=512MB",
    "max_wal_size=8GB",
];

/// A primary and its standby. Both are stopped, and their data is removed, when this is dropped.
pub(super) struct Postgres {
    primary: Child,
    standby: Option<Child>,
    endpoint: Endpoint,
    /// Removed after the servers have ended: fields are dropped after `drop` has returned.
    scratch: TempDir,
}

impl Postgres {
    /// Starts both, with the programs of a directory; with the newest ones if it is empty.
    pub(super) async fn start(programs: &Path) -> Result<Self, Stop> {
        let programs = if programs.as_os_str().is_empty() { newest()? } else { programs.to_owned() };
        let scratch = scratch(&std::env::temp_dir()).map_err(Stop::io("create a temporary directory"))?;
        let directory = scratch.path();
        if geteuid().is_root() {
            let mut chown = Command::new("chown");
            chown.arg("postgres").arg(directory);
            succeed(chown, START_PATIENCE).await?;
        }
        let (primary, standby) = (directory.join("primary"), directory.join("standby"));
        let mut initdb = program(&programs, "initdb");
        initdb.args(["--username=postgres", "--auth=trust", "--encoding=UTF8", "--locale=C", "--pgdata"]).arg(&primary);
        succeed(initdb, START_PATIENCE).await?;
        let endpoint = Endpoint { host: "127.0.0.1".to_owned(), port: free_port()? };
        let mut postgres =
            Self { primary: server(&programs, &primary, endpoint.port, directory)?, standby: None, endpoint, scratch };
        postgres.wait_for("SELECT 1", "1").await?;
        let mut copy = program(&programs, "pg_basebackup");
        copy.args(["--host=127.0.0.1", "--username=postgres", "--checkpoint=fast", "--write-recovery-conf"]);
        copy.args(["--port", &postgres.endpoint.port.to_string(), "--pgdata"]).arg(&standby);
        succeed(copy, START_PATIENCE).await?;
        let server = server(&programs, &standby, free_port()?, postgres.scratch.path())?;
        postgres.standby = Some(server);
        postgres.wait_for("SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'", "1").await?;
        Ok(postgres)
    }

    pub(super) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// The main processes, which are the parents of the others.
    pub(super) fn pids(&self) -> Vec<u32> {
        std::iter::once(&self.primary).chain(&self.standby).map(Child::id).collect()
    }

    /// Waits until a query has this result.
    async fn wait_for(&mut self, query: &str, wanted: &str) -> Result<(), Stop> {
        let until = Instant::now() + START_PATIENCE;
        loop {
            let found = psql(&self.endpoint, "postgres", query).await;
            if found.as_ref().is_ok_and(|found| found.trim() == wanted) {
                return Ok(());
            }
            let servers = std::iter::once(&mut self.primary).chain(&mut self.standby);
            let has_ended = servers.into_iter().any(|server| !matches!(server.try_wait(), Ok(None)));
            if has_ended || Instant::now() > until {
                found?;
                return Err(Stop::Refused("PostgreSQL did not start, or its standby did not attach".to_owned()));
            }
            sleep(PAUSE).await;
        }
    }
}

impl Drop for Postgres {
    /// Sends SIGINT, which PostgreSQL calls a fast shutdown: to the standby last, because the primary waits for it.
    fn drop(&mut self) {
        for server in std::iter::once(&mut self.primary).chain(&mut self.standby) {
            let _ = kill_process(Pid::from_child(server), Signal::INT);
            let until = Instant::now() + STOP_PATIENCE;
            while matches!(server.try_wait(), Ok(None)) {
                if Instant::now() > until {
                    let _ = server.kill();
                    let _ = server.wait();
                }
                thread::sleep(PAUSE);
            }
        }
    }
}

/// A program of PostgreSQL. Its servers refuse to run as root.
fn program(programs: &Path, name: &str) -> Command {
    let program = programs.join(name);
    if !geteuid().is_root() {
        return Command::new(program);
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid=postgres", "--regid=postgres", "--clear-groups"]).arg(program);
    command
}

fn server(programs: &Path, data: &Path, port: u16, sockets: &Path) -> Result<Child, Stop> {
    let mut server = program(programs, "postgres");
    server.arg("-D").arg(data).args(["-p", &port.to_string()]).arg("-k").arg(sockets);
    for setting in SETTINGS {
        server.args(["-c", setting]);
    }
    server.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    server.spawn().map_err(Stop::io("start PostgreSQL"))
}

fn free_port() -> Result<u16, Stop> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).map_err(Stop::io("find a free port"))?;
    Ok(listener.local_addr().map_err(Stop::io("find a free port"))?.port())
}

fn newest() -> Result<PathBuf, Stop> {
    let none = || Stop::invalid(format!("there is no PostgreSQL in {VERSIONS}; give the directory of its programs"));
    let entries = std::fs::read_dir(VERSIONS).map_err(|_| none())?;
    let versions = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let of = |version: u32| Path::new(VERSIONS).join(version.to_string()).join("bin");
    versions.filter(|version| of(*version).join("initdb").exists()).max().map(of).ok_or_else(none)
}
