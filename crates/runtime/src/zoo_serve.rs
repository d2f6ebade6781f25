//! `loggos zk serve`: runs a node with the configuration file of a ZooKeeper server (`--zoo-cfg FILE`), or a
//! translation server of a running cluster (`--at HOST:PORT,...`; see `translation_server`).
//!
//! Servers with blank disks form a cluster automatically, because ZooKeeper requires no such step. The server with the
//! lowest number forms the others first and itself last. So if any server restarts in between, it is still blank and
//! repeats the formation until all are formed. A replacement for a lost disk cannot become a member again, because the
//! incarnations on the other disks do not include it (see `founding`).

use std::net::{SocketAddr, ToSocketAddrs as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;
use std::{fs, io};

use base::HostPort;

use coordination::log_port::Playback;

use super::config::{
    Advertise, Config, ConfigError, Listen, Nbd, Peer, SESSION_TIMEOUT_MIN_MS, Sql, Tuning, ZooKeeper,
};
use super::files::{OsFiles, STORE};
use super::resolver::resolve;
use super::start::{self, LogFormat};
use super::start_error::StartError;
use super::zoo_cfg::{DIRECTORY, Ensemble, ZooCfg, ZooCfgError};
use super::{founding, say, translation_server};

/// Timeout of one attempt to form the cluster, after which the unreachable servers are logged.
const FORMING: Duration = Duration::from_secs(10);
/// Interval at which host names that are needed for the start are resolved again.
const RESOLVE_EVERY: Duration = Duration::from_secs(10);

#[derive(Debug, clap::Args)]
pub struct Options {
    /// gRPC addresses of one or more nodes of a running cluster: serve its znodes from memory, without a disk. Any
    /// number of such servers can be started and stopped at any time.
    #[arg(long, value_name = "HOST:PORT,...", value_delimiter = ',')]
    at: Vec<String>,
    /// The same for a cluster of `loggos dev --port-offset`.
    #[arg(long, value_name = "K", conflicts_with = "at")]
    port_offset: Option<u16>,
    /// With --at or --port-offset: listen address for ZooKeeper clients [default: the client port of --zoo-cfg, or any free port on
    /// loopback]. The address is printed once clients can connect.
    #[arg(long, value_name = "HOST:PORT", value_parser = address)]
    listen: Option<SocketAddr>,
    /// ZooKeeper configuration file. With --at or --port-offset, only its client port, session timeouts, connection limit, four-letter
    /// commands and super digest are used.
    #[arg(long, value_name = "FILE")]
    zoo_cfg: Option<PathBuf>,
    /// Superuser as `super:DIGEST` (ZooKeeper's property `zookeeper.DigestAuthenticationProvider.superDigest`).
    #[arg(long, value_name = "NAME:DIGEST")]
    super_digest: Option<String>,
    /// When to read the log: `push` (as soon as entries are written), an interval from 1ms to 1s, or `adaptive`
    /// (immediately while clients wait for entries) [default: push].
    #[arg(long, value_name = "WHEN")]
    playback: Option<Playback>,
    /// Allow addresses that other machines can reach, without encryption or authentication.
    #[arg(long)]
    insecure_plaintext: bool,
}

/// Parses a port with a host name or an IP address.
fn address(text: &str) -> Result<SocketAddr, String> {
    let mut found = text.to_socket_addrs().map_err(|error| error.to_string())?;
    found.next().ok_or_else(|| "the host name has no address".to_owned())
}

/// Why a server cannot be started.
#[derive(Debug, thiserror::Error)]
enum ServeError {
    #[error(
        "--zoo-cfg FILE is missing, to run a node, or --at HOST:PORT,... or --port-offset K, to serve a running cluster"
    )]
    NoFile,
    #[error(
        "--listen requires --at or --port-offset, the addresses of a running cluster: a node listens on the addresses in \
         the --zoo-cfg file"
    )]
    Listen,
    #[error("{0}")]
    Addresses(terminal::Stop),
    #[error("{path}: {error}")]
    File { path: PathBuf, error: io::Error },
    #[error("{path}: {error}")]
    Config { path: PathBuf, error: ZooCfgError },
    #[error("{0}: expected a number from 1 to 65535")]
    MyId(PathBuf),
    #[error("{0}")]
    Check(#[from] ConfigError),
    #[error("{0}")]
    Start(#[from] StartError),
}

/// Serves until SIGTERM or SIGINT.
pub fn run(options: &Options) -> ExitCode {
    let is_node = options.at.is_empty() && options.port_offset.is_none();
    let run = if is_node { run_node } else { run_without_disk };
    start::log_to_stderr(LogFormat::Text).map_err(ServeError::Check).and_then(|()| run(options)).unwrap_or_else(
        |error| {
            say(&error.to_string());
            ExitCode::from(2)
        },
    )
}

fn run_node(options: &Options) -> Result<ExitCode, ServeError> {
    if options.listen.is_some() {
        return Err(ServeError::Listen);
    }
    let path = options.zoo_cfg.as_deref().ok_or(ServeError::NoFile)?;
    let config = configure(options, path)?;
    prepare(&config)?;
    Ok(start::run_configured(&config, translation_server::ready))
}

fn run_without_disk(options: &Options) -> Result<ExitCode, ServeError> {
    let Options { insecure_plaintext, super_digest, .. } = options;
    let at = terminal::GRPC.endpoints(&options.at, options.port_offset).map_err(ServeError::Addresses)?;
    let (mut listen, mut zookeeper) = (options.listen, ZooKeeper::default());
    if let Some(path) = &options.zoo_cfg {
        let zoo_cfg = parse(path)?;
        if listen.is_none() {
            let clients = zoo_cfg.clients(None, *insecure_plaintext, resolve);
            listen = Some(clients.map_err(|error| ServeError::Config { path: path.clone(), error })?);
        }
        zookeeper = settings(&zoo_cfg);
    }
    zookeeper.super_digest = super_digest.clone().or(zookeeper.super_digest);
    zookeeper.playback = options.playback.map(|playback| playback.to_string());
    Ok(translation_server::run(&at, listen, *insecure_plaintext, &zookeeper))
}

/// The node's configuration.
fn configure(options: &Options, path: &Path) -> Result<Config, ServeError> {
    let wrong = |error| ServeError::Config { path: path.to_owned(), error };
    let zoo_cfg = parse(path)?;
    let data_dir = zoo_cfg.data_dir.as_ref().ok_or_else(|| wrong(ZooCfgError::Missing("dataDir")))?;
    let (my_id, is_blank) = (my_id(data_dir)?, is_blank(&data_dir.join(DIRECTORY))?);
    let ensemble = loop {
        let ensemble = zoo_cfg.ensemble(my_id, options.insecure_plaintext, resolve).map_err(wrong)?;
        // The other servers need this server's address, and formation needs the addresses of all.
        let is_needed = |(node, _): &(&u32, &String)| is_blank || **node == ensemble.node;
        let Some((_, host)) = ensemble.unresolved.iter().find(is_needed) else { break ensemble };
        tracing::warn!(host, "can't resolve the host name of a server: retrying");
        std::thread::sleep(RESOLVE_EVERY);
    };
    for host in ensemble.unresolved.values() {
        tracing::warn!(host, "can't resolve the host name of a server: starting without it, and retrying");
    }
    let config = config(&zoo_cfg, data_dir, &ensemble, options)?;
    config.check()?;
    Ok(config)
}

/// Reads a file and its `dynamicConfigFile`. Keys without effect are logged.
fn parse(path: &Path) -> Result<ZooCfg, ServeError> {
    let mut zoo_cfg =
        ZooCfg::parse(&read(path)?).map_err(|error| ServeError::Config { path: path.to_owned(), error })?;
    if let Some(dynamic) = zoo_cfg.dynamic_file.clone() {
        let text = read(&dynamic)?;
        zoo_cfg.add_dynamic(&text).map_err(|error| ServeError::Config { path: dynamic, error })?;
    }
    for key in &zoo_cfg.unsupported {
        tracing::warn!(key, "unsupported key ignored");
    }
    Ok(zoo_cfg)
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

fn config(zoo_cfg: &ZooCfg, data_dir: &Path, ensemble: &Ensemble, options: &Options) -> Result<Config, ServeError> {
    let own = ensemble.members[&ensemble.node];
    let resolved = ensemble.members.iter().map(|(&node, addresses)| Peer {
        node,
        address: addresses.peers.into(),
        grpc: addresses.grpc.into(),
    });
    // Names are resolved again at each connection attempt.
    let named = zoo_cfg.servers.iter().map(|(&node, server)| {
        let [address, grpc] = [server.quorum_port, server.election_port].map(|port| server.address(port));
        Ok(Peer { node, address: address?, grpc: grpc? })
    });
    let named = named.collect::<Result<Vec<Peer>, ZooCfgError>>();
    let named = named.map_err(|error| ServeError::Config { path: data_dir.to_owned(), error })?;
    let listens_on = |address: SocketAddr| {
        SocketAddr::new(ensemble.listens_on.unwrap_or_else(|| address.ip()), address.port()).into()
    };
    let listen = Listen {
        peers: listens_on(own.peers),
        grpc: listens_on(own.grpc),
        http: ensemble.http.map(HostPort::from),
        zookeeper: Some(ensemble.clients.into()),
        postgres: None,
        nbd: None,
    };
    let mut zookeeper = settings(zoo_cfg);
    zookeeper.super_digest = options.super_digest.clone().or(zookeeper.super_digest);
    zookeeper.playback = options.playback.map(|playback| playback.to_string());
    Ok(Config {
        node: ensemble.node,
        data: data_dir.join(DIRECTORY),
        cluster: None,
        insecure_plaintext: options.insecure_plaintext,
        clock: None,
        clock_uncertainty: None,
        clock_uncertainty_max: None,
        listen,
        advertise: Advertise::default(),
        peers: if named.is_empty() { resolved.collect() } else { named },
        zookeeper,
        nbd: Nbd::default(),
        sql: Sql::default(),
        tuning: Tuning::default(),
    })
}

/// The settings of the ZooKeeper endpoint.
fn settings(zoo_cfg: &ZooCfg) -> ZooKeeper {
    let [least_ms, most_ms] = zoo_cfg.session_timeout_ms.map(|ms| u64::from(ms).max(SESSION_TIMEOUT_MIN_MS));
    let words = &zoo_cfg.four_letter_words;
    ZooKeeper {
        session_timeout_min_ms: Some(least_ms),
        session_timeout_max_ms: Some(most_ms),
        connections_per_address: Some(zoo_cfg.connections_per_client as usize),
        commands: (!words.iter().any(|word| word == "*")).then(|| words.clone()),
        super_digest: zoo_cfg.super_digest.clone(),
        linearizable_reads: None,
        playback: None,
    }
}

/// Whether a node's directory belongs to no cluster yet.
fn is_blank(data: &Path) -> Result<bool, ServeError> {
    let store = data.join(STORE);
    if !store.exists() {
        return Ok(true);
    }
    let found = store::identity::read(&OsFiles::new(&store));
    let found = found.map_err(|error| StartError::Store { directory: data.to_owned(), error })?;
    Ok(found.is_none())
}

/// Starts the formation of a cluster if the disk is blank.
fn prepare(config: &Config) -> Result<(), ServeError> {
    if !is_blank(&config.data)? {
        return Ok(());
    }
    let store = config.data.join(STORE);
    fs::create_dir_all(&store).map_err(|error| ServeError::File { path: store, error })?;
    if config.peers.len() == 1 {
        return Ok(founding::form_alone(config)?);
    }
    if config.peers.iter().all(|peer| config.node <= peer.node) {
        let others = config.peers.iter().filter(|peer| peer.node != config.node);
        let mut endpoints: Vec<String> = others.map(|peer| peer.grpc.to_string()).collect();
        endpoints.push(config.listen.grpc.to_string());
        let started = super::spawn("formation", move || form(&endpoints));
        started.map_err(StartError::Io)?;
    }
    Ok(())
}

/// Forms the cluster as soon as all servers are reachable.
fn form(endpoints: &[String]) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => super::die(&format!("can't form the cluster: {error}")),
    };
    loop {
        match runtime.block_on(sdk::formation::form(endpoints, FORMING)) {
            Ok(genesis) => {
                tracing::info!(cluster = %genesis.cluster, "formed");
                return;
            }
            Err(error @ sdk::Error::Unavailable(_)) => {
                tracing::warn!(%error, "waiting for the other servers to form the cluster");
            }
            Err(error) => super::die(&format!("can't form the cluster: {error}")),
        }
    }
}
