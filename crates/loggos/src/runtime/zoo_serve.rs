//! `loggos zk serve --zoo-cfg FILE`: a node in the place of a ZooKeeper server, from its configuration file.
//!
//! Servers with blank disks form a cluster by themselves, because ZooKeeper has no such step: the one with the lowest
//! number asks the others, and itself last, so that it goes on asking until all are formed, whatever is restarted in
//! between. A disk that was lost is never formed into the same cluster again: the others' disks name another (see
//! `founding`).

use std::net::{IpAddr, ToSocketAddrs as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;
use std::{fs, io};

use super::config::{Config, Listen, Peer, SESSION_TIMEOUT_MIN_MS, Tuning, ZooKeeper};
use super::files::OsFiles;
use super::start::{self, LogFormat, STORE};
use super::zoo_cfg::{DIRECTORY, Ensemble, ZooCfg, ZooCfgError};
use super::{founding, say};

/// How long the others are waited for before their absence is reported, and they are asked again.
const FORMING: Duration = Duration::from_secs(10);

/// What the command line says beside the file.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// ZooKeeper's configuration file.
    #[arg(long, value_name = "FILE")]
    zoo_cfg: PathBuf,
    /// The administrator, as `super:DIGEST`; the system property `zookeeper.DigestAuthenticationProvider.superDigest`.
    #[arg(long, value_name = "NAME:DIGEST")]
    super_digest: Option<String>,
    /// Allow addresses beyond this machine, without encryption or authentication between nodes.
    #[arg(long)]
    insecure_plaintext: bool,
}

/// Why a server can't be started.
#[derive(Debug, thiserror::Error)]
enum ServeError {
    #[error("{path}: {error}")]
    File { path: PathBuf, error: io::Error },
    #[error("{path}: {error}")]
    Config { path: PathBuf, error: ZooCfgError },
    #[error("{0}: a number from 1 to 65535 is wanted")]
    MyId(PathBuf),
    #[error("{0}")]
    Start(#[from] start::StartError),
}

/// Serves until it is told to stop.
pub(crate) fn run(options: &Options) -> ExitCode {
    start::log_to_stderr(LogFormat::Text);
    match configure(options).and_then(|config| prepare(&config).map(|()| config)) {
        Ok(config) => start::run_configured(&config),
        Err(error) => {
            say(&error.to_string());
            ExitCode::from(2)
        }
    }
}

/// The node's configuration.
fn configure(options: &Options) -> Result<Config, ServeError> {
    let path = &options.zoo_cfg;
    let wrong = |error| ServeError::Config { path: path.clone(), error };
    let mut zoo_cfg = ZooCfg::parse(&read(path)?).map_err(wrong)?;
    if let Some(dynamic) = zoo_cfg.dynamic_file.clone() {
        let text = read(&dynamic)?;
        zoo_cfg.add_dynamic(&text).map_err(|error| ServeError::Config { path: dynamic, error })?;
    }
    for key in &zoo_cfg.unsupported {
        tracing::warn!(key, "not supported, and ignored");
    }
    let ensemble = zoo_cfg.ensemble(my_id(&zoo_cfg.data_dir)?, options.insecure_plaintext, resolve).map_err(wrong)?;
    Ok(config(zoo_cfg, &ensemble, options))
}

fn read(path: &Path) -> Result<String, ServeError> {
    fs::read_to_string(path).map_err(|error| ServeError::File { path: path.to_owned(), error })
}

/// The number in the file `myid`, if there is one.
fn my_id(data_dir: &Path) -> Result<Option<u32>, ServeError> {
    let path = data_dir.join("myid");
    match fs::read_to_string(&path) {
        Ok(text) => {
            let number = text.trim().parse().ok().filter(|number| (1..=65_535).contains(number));
            number.map(Some).ok_or(ServeError::MyId(path))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(ServeError::File { path, error }),
    }
}

/// An address of a name; of several one of the fourth version, as Java prefers.
fn resolve(host: &str) -> Option<IpAddr> {
    let found: Vec<IpAddr> = (host, 0).to_socket_addrs().ok()?.map(|address| address.ip()).collect();
    found.iter().find(|address| address.is_ipv4()).or_else(|| found.first()).copied()
}

fn config(zoo_cfg: ZooCfg, ensemble: &Ensemble, options: &Options) -> Config {
    let own = ensemble.members[&ensemble.node];
    let peer = |(&node, addresses): (&u32, &super::zoo_cfg::MemberAddresses)| Peer {
        node,
        address: addresses.peers,
        grpc: addresses.grpc,
    };
    let [least_ms, most_ms] = zoo_cfg.session_timeout_ms;
    Config {
        node: ensemble.node,
        data: zoo_cfg.data_dir.join(DIRECTORY),
        universe: None,
        insecure_plaintext: options.insecure_plaintext,
        listen: Listen { peers: own.peers, grpc: own.grpc, http: ensemble.http, zookeeper: Some(ensemble.clients) },
        peers: ensemble.members.iter().map(peer).collect(),
        zookeeper: ZooKeeper {
            session_timeout_min_ms: Some(u64::from(least_ms).max(SESSION_TIMEOUT_MIN_MS)),
            session_timeout_max_ms: Some(u64::from(most_ms).max(SESSION_TIMEOUT_MIN_MS)),
            connections_per_address: Some(zoo_cfg.connections_per_client as usize),
            commands: (!zoo_cfg.four_letter_words.iter().any(|word| word == "*")).then_some(zoo_cfg.four_letter_words),
            super_digest: options.super_digest.clone().or(zoo_cfg.super_digest),
            linearizable_reads: None,
        },
        tuning: Tuning::default(),
    }
}

/// Sees to it that a blank disk becomes a cluster's.
fn prepare(config: &Config) -> Result<(), ServeError> {
    let store = config.data.join(STORE);
    fs::create_dir_all(&store).map_err(|error| ServeError::File { path: store.clone(), error })?;
    let found = store::identity::read(&OsFiles::new(&store));
    let found = found.map_err(|error| start::StartError::Store { directory: config.data.clone(), error })?;
    if found.is_some() {
        return Ok(());
    }
    if config.peers.len() == 1 {
        return Ok(founding::form_alone(config)?);
    }
    if config.peers.iter().all(|peer| config.node <= peer.node) {
        let others = config.peers.iter().filter(|peer| peer.node != config.node);
        let mut endpoints: Vec<String> = others.map(|peer| peer.grpc.to_string()).collect();
        endpoints.push(config.listen.grpc.to_string());
        let started = super::spawn("formation", move || form(&endpoints));
        started.map_err(start::StartError::Io)?;
    }
    Ok(())
}

/// Forms the cluster, as soon as all servers are there.
fn form(endpoints: &[String]) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => super::die(&format!("can't form the cluster: {error}")),
    };
    loop {
        match runtime.block_on(sdk::formation::form(endpoints, FORMING)) {
            Ok(genesis) => {
                tracing::info!(universe = %genesis.universe, "formed");
                return;
            }
            Err(error @ sdk::Error::Unavailable(_)) => {
                tracing::warn!(%error, "waits for the other servers, to form the cluster with them");
            }
            Err(error) => super::die(&format!("can't form the cluster: {error}")),
        }
    }
}
