//! `loggos start --config FILE`: runs one node.
//!
//! All checks precede any change: the configuration, the owner of the directory, other processes, the identity of the
//! data. Only then is the store opened, which counts this boot on the disk.

use std::collections::BTreeMap;
use std::io::{self, Read as _, Write as _};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use base::budget::ClientBudgets;
use base::{HostPort, Member, NodeId};
use endpoints::{listener, nbd, zookeeper};
use mio::{Poll, Waker};
use node::{Node, NodeConfig, Replays};
use server::nbd::Endpoint;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use state_machine::Consistency;
use store::identity::Identity;
use store::{Recovered, Store};
use streams::gateway;
use tracing_subscriber::filter::LevelFilter;

use super::budget::{Budget, COMPACTION_BYTES_PER_SECOND};
use super::clock::Clock;
use super::cluster_view::ClusterView;
use super::config::{Config, ConfigError, DiskReads, ZooKeeper};
use super::descriptors;
use super::directory_lock::DirectoryLock;
use super::disk::Disk;
use super::disk_metrics::DiskMetrics;
use super::event_loop::{End, INBOX, Machine};
use super::files::{OsFiles, STORE};
use super::founding::{self, Formation, Waited, without_address};
use super::gateway::{MachineGateway, Responses};
use super::inbox::{Inbox, Input};
use super::peers::handshake;
use super::peers::traffic::Traffic;
use super::peers::{PeerAddress, Peers};
#[cfg(feature = "sql")]
use super::postgres;
use super::random;
use super::resolver::{self, Resolver};
use super::server_thread::{self, Server};
use super::sstables::SstableFiles;
use super::start_error::{StartError, listen};
use super::views::Published;

/// A file in a node's directory, written when the other nodes reject the disk as an older copy. It contains the reason,
/// and prevents further starts: each would count a boot, until peers could not tell the copy from the former disk.
const ROLLED_BACK: &str = "rolled-back";
/// A node that has not stopped after this time exits anyway: that is safe, but failover takes longer than after a clean
/// stop.
const STOP_PATIENCE: Duration = Duration::from_secs(3);
/// Timeout for calls in progress to receive their responses after the machine has stopped.
const SERVER_CLOSE_PATIENCE: Duration = Duration::from_millis(500);

/// The format of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// Text.
    Text,
    /// One JSON object per line.
    Json,
}

/// Runs one node until it is stopped. With `parent_pipe` it also exits when its standard input is closed, because the
/// parent process has exited.
pub fn run(config: &Path, log_format: LogFormat, parent_pipe: bool) -> ExitCode {
    if parent_pipe {
        end_with_parent();
    }
    let config = log_to_stderr(log_format).and_then(|()| Config::read(config));
    exit(config.map_err(StartError::Config).and_then(|config| run_node(&config, Formation::ByOperator, |_| ())))
}

/// Runs one node of a cluster that forms by itself, with a validated configuration, until it is stopped. Calls `ready`
/// when ZooKeeper clients can connect.
pub(crate) fn run_configured(config: &Config, ready: fn(SocketAddr)) -> ExitCode {
    exit(run_node(config, Formation::Automatic, ready))
}

fn exit(end: Result<End, StartError>) -> ExitCode {
    match end {
        Ok(End::Stopped) => {
            tracing::info!("stopped");
            ExitCode::SUCCESS
        }
        Ok(End::Halted(reason) | End::RolledBack(reason)) => super::die(&reason),
        Ok(End::Left(reason)) => {
            tracing::error!(reason, "exiting");
            super::say(&reason);
            ExitCode::from(super::EXIT_LEFT)
        }
        Err(error) => {
            super::say(&error.to_string());
            ExitCode::from(error.exit_status())
        }
    }
}

/// Logs to standard error, filtered by `LOGGOS_LOG` (the syntax of `tracing`'s filters; `info` by default).
///
/// # Errors
/// The variable is not a filter.
pub(crate) fn log_to_stderr(format: LogFormat) -> Result<(), ConfigError> {
    let text = std::env::var("LOGGOS_LOG").unwrap_or_default();
    let text = if text.is_empty() { "info" } else { &text };
    let refused = |problem| ConfigError::Refused { key: "LOGGOS_LOG", problem };
    // The name of a part without a level would silence all others.
    if let Some(wrong) = text.split(',').find(|part| !part.contains('=') && part.parse::<LevelFilter>().is_err()) {
        return Err(refused(format!("{wrong:?} is neither a level (error, warn, info, debug, trace) nor PART=LEVEL")));
    }
    let filter = tracing_subscriber::EnvFilter::try_new(text).map_err(|error| refused(error.to_string()))?;
    // Failures to log (its disk may be full) are ignored: the node keeps running.
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(false)
        .log_internal_errors(false);
    // Fails on a second call, which keeps the first logger.
    let _ = match format {
        LogFormat::Text => subscriber.try_init(),
        LogFormat::Json => subscriber.json().flatten_event(true).try_init(),
    };
    Ok(())
}

fn end_with_parent() {
    std::thread::spawn(|| {
        let mut stdin = io::stdin().lock();
        let mut ignored = [0; 64];
        while matches!(stdin.read(&mut ignored), Ok(1..)) {}
        // An abrupt end is safe, and the parent may have been killed.
        super::die("the parent process has exited");
    });
}

fn run_node(config: &Config, formation: Formation, ready: fn(SocketAddr)) -> Result<End, StartError> {
    let descriptors = descriptors::raise();
    tracing::debug!(descriptors, "limit of open files");
    let files = OsFiles::new(&config.data.join(STORE));
    if is_blank(config, &files)? && founding::wait(config, formation)? == Waited::Stopped {
        return Ok(End::Stopped);
    }
    let identity = check_identity(config, &files)?;
    let addresses = addresses(config, &identity);
    let _claim = DirectoryLock::take(&config.data)?;
    check_not_rolled_back(config)?;
    let peers_listener = listen("peers", &config.listen.peers)?;
    let grpc_listener = listen("gRPC", &config.listen.grpc)?;
    let http_listener = config.listen.http.as_ref().map(|address| listen("HTTP", address)).transpose()?;
    let bind_zookeeper = |address| bind("ZooKeeper clients", address);
    let zookeeper_socket = config.listen.zookeeper.as_ref().map(bind_zookeeper).transpose()?;
    #[cfg(feature = "sql")]
    let postgres_listener =
        config.listen.postgres.as_ref().map(|address| listen("PostgreSQL clients", address)).transpose()?;
    let nbd_socket = config.listen.nbd.as_ref().map(|address| bind("NBD clients", address)).transpose()?;

    let sstables = SstableFiles::new(files.clone(), descriptors::for_sstables());
    let nonce = random::bytes(8)?.into_iter().fold(0, |nonce, byte| nonce << 8 | u64::from(byte));
    let (store, mut recovered) = open_store(config, files, &sstables, nonce)?;
    for note in &recovered.notes {
        tracing::warn!(note, "recovery");
    }
    let own = Member { node: identity.node, incarnation: identity.incarnation };
    tracing::info!(
        node = %own.node, incarnation = format_args!("{:x}", own.incarnation.0), boot = %recovered.boot,
        cluster = %identity.cluster, records = recovered.records.records(), peers = %config.listen.peers,
        grpc = %config.listen.grpc, http = config.listen.http.as_ref().map(tracing::field::display), pid = std::process::id(),
        "starting"
    );

    for node in without_address(config, &identity) {
        tracing::warn!(%node, "no address configured for a founding member of the cluster");
    }
    let poll = Poll::new()?;
    let inbox = Arc::new(Inbox::new(Waker::new(poll.registry(), INBOX)?));
    let responses = Arc::new(Responses::default());
    let hello = handshake::Identity {
        cluster: identity.cluster,
        member: own,
        starts: store.starts().clone(),
        peers: recovered.peers.clone(),
        address: config.own_addresses().0.to_string(),
        members: identity.known().collect(),
    };
    let registry = prometheus::Registry::new();
    let traffic = Traffic::register(&registry).map_err(io::Error::other)?;
    let (resolver, poll_registry) = (peer_resolver(config, &inbox), poll.registry().try_clone()?);
    let peers = Peers::new(poll_registry, peers_listener, hello, &addresses, resolver, traffic)?;
    let budget = Budget::new(config.tuning.compaction_bytes_per_second.unwrap_or(COMPACTION_BYTES_PER_SECOND));
    let metrics = DiskMetrics::register(&registry).map_err(io::Error::other)?;
    let disk = Disk::start(store, &sstables, &budget, &inbox, metrics)?;
    let clock_source = config.clock_source()?;
    let mut machine_config = machine_config(config, &recovered);
    machine_config.clock = clock_source.kind();
    machine_config.clock_uncertainty_max = config.clock_uncertainty_max()?;
    let mut first = Vec::new();
    let mut clock = Clock::new(clock_source);
    let node = Node::new(machine_config, &mut recovered, clock.now(), &mut first)
        .map_err(|error| StartError::Machine(error.to_string()))?;
    // The machine has its own copy of the parts that it needs.
    drop(recovered);
    let views = Arc::new(Published::default());
    let to_server = (Arc::clone(&responses), Arc::clone(&views));
    let machine = Machine::new((node, clock), first, poll, peers, disk, Arc::clone(&inbox), to_server);
    #[cfg(feature = "sql")]
    let sql_activity = postgres::activity(&registry).map_err(io::Error::other)?;
    let mut observer = server::Observer::new(registry, config.listen.http.as_ref()).map_err(io::Error::other)?;
    #[cfg_attr(not(feature = "sql"), expect(unused_mut, reason = "SQL adds to it"))]
    let mut cluster_view = ClusterView::new(config).map_err(io::Error::other)?;
    let memory = config.tuning.client_budgets();
    let listeners = server_thread::Listeners { grpc: grpc_listener, http: http_listener, memory: memory.clone() };
    let gateway = MachineGateway::new(Arc::clone(&inbox), views);
    let founded = founding::founded(config, &identity);
    if let Some((socket, address)) = zookeeper_socket {
        let gateway = gateway.clone();
        let connect = |completions| Ok(zookeeper::NodeTransport::new(gateway, completions));
        let nodes = u32::try_from(identity.members.len()).unwrap_or(u32::MAX);
        let settings = zookeeper_settings(&config.zookeeper, Some((config.node, nodes)), address, &memory);
        observer = observer.with_zookeeper(Arc::clone(&settings.endpoint));
        zookeeper::start(socket, settings, connect, move || ready(address))?;
    }
    if let Some((socket, address)) = nbd_socket {
        let endpoint = Arc::clone(observer.nbd());
        nbd::start(socket, address, nbd_settings(config, &memory, endpoint)?, gateway.clone())?;
    }
    #[cfg(feature = "sql")]
    if let Some(listener) = postgres_listener {
        let (endpoints, gateway) = (postgres::endpoints(config), gateway.for_other_runtime());
        let limits = (memory.sql.clone(), config.sql.connections()?);
        let sql = postgres::start(listener, endpoints, gateway, limits, Arc::new(sql_activity))?;
        cluster_view = cluster_view.with_sql(sql);
    }
    let server = Server::start(listeners, gateway, responses, founded, observer, cluster_view)?;
    stop_on_signals(Arc::clone(&inbox))?;

    let end = machine.run();
    match &end {
        End::Stopped => {
            inbox.close();
            server.close(SERVER_CLOSE_PATIENCE);
        }
        End::RolledBack(reason) => mark_rolled_back(config, reason)?,
        End::Halted(_) | End::Left(_) => {}
    }
    Ok(end)
}

/// Whether the disk is blank and may form or join a cluster: not if the configuration names a cluster.
fn is_blank(config: &Config, files: &OsFiles) -> Result<bool, StartError> {
    let found = store::identity::read(files);
    let found = found.map_err(|error| StartError::Store { directory: config.data.clone(), error })?;
    Ok(found.is_none() && config.cluster.is_none())
}

/// Checks the identity of the data before anything is changed.
fn check_identity(config: &Config, files: &OsFiles) -> Result<Identity, StartError> {
    let directory = config.data.clone();
    let identity = match store::identity::read(files) {
        Ok(Some(identity)) => identity,
        Ok(None) => return Err(StartError::Blank(directory)),
        Err(error) => return Err(StartError::Store { directory, error }),
    };
    if identity.node.0 != config.node {
        return Err(StartError::OtherNode { directory, found: identity.node, wanted: config.node });
    }
    match &config.cluster {
        Some(wanted) if *wanted.to_ascii_lowercase() != identity.cluster.to_string() => {
            Err(StartError::OtherCluster { directory, found: identity.cluster, wanted: wanted.clone() })
        }
        _ => Ok(identity),
    }
}

fn check_not_rolled_back(config: &Config) -> Result<(), StartError> {
    match std::fs::read(config.data.join(ROLLED_BACK)) {
        Ok(reason) => {
            let reason = String::from_utf8_lossy(&reason).into_owned();
            Err(StartError::RolledBack { directory: config.data.clone(), reason })
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn mark_rolled_back(config: &Config, reason: &str) -> io::Result<()> {
    let mut mark = std::fs::File::create(config.data.join(ROLLED_BACK))?;
    mark.write_all(reason.as_bytes())?;
    mark.sync_all()?;
    std::fs::File::open(&config.data)?.sync_all()
}

/// The configured addresses of other nodes, and the recorded ones of the other nodes that were known when the disk was
/// formatted. Configured addresses take precedence, so that nodes that have moved can be found.
fn addresses(config: &Config, identity: &Identity) -> Vec<PeerAddress> {
    let configured = config.peers.iter().map(|peer| (NodeId(peer.node), peer.address.clone()));
    let recorded = identity.hosts.iter().filter_map(|host| Some((host.member.node, host.peer.parse().ok()?)));
    let addresses: BTreeMap<NodeId, HostPort> = recorded.chain(configured).collect();
    addresses.into_iter().map(|(node, address)| PeerAddress { node, address }).collect()
}

fn bind(what: &'static str, address: &HostPort) -> Result<(OwnedFd, SocketAddr), StartError> {
    let bound = resolver::first(address).and_then(|address| Ok((listener::bind(address)?, address)));
    bound.map_err(|error| StartError::Listen { what, address: address.clone(), error })
}

/// Resolves the host names of peers. Like listeners, connections are limited to loopback unless the configuration
/// allows others.
fn peer_resolver(config: &Config, inbox: &Arc<Inbox>) -> Resolver {
    let (allows_all, inbox) = (config.insecure_plaintext, Arc::clone(inbox));
    let lookup = move |name: &HostPort| {
        let mut found = resolver::lookup(name)?;
        found.retain(|address| allows_all || address.ip().is_loopback());
        Ok(found)
    };
    Resolver::new(lookup, move |resolved| inbox.post(Input::Resolved(resolved)))
}

/// Settings of a ZooKeeper endpoint. `node` has the node's number and the number of founding nodes; `None` for a
/// translation server without a node.
pub(crate) fn zookeeper_settings(
    config: &ZooKeeper,
    node: Option<(u32, u32)>,
    address: SocketAddr,
    memory: &ClientBudgets,
) -> zookeeper::Settings {
    use server::zookeeper::Endpoint;
    zookeeper::Settings {
        node: node.map(|(node, _)| node),
        nodes: node.map_or(0, |(_, nodes)| nodes),
        address,
        session_timeout: config.session_timeout_ms().map(base::Duration::from_millis),
        super_digest: config.super_digest.clone(),
        linearizable_reads: config.linearizable_reads.unwrap_or(false),
        // The configuration was validated.
        playback: config.playback().unwrap_or_default(),
        commands: config.commands.clone(),
        connections_max: descriptors::for_endpoints().zookeeper,
        memory: memory.zookeeper.clone(),
        connections_per_address: config.connections_per_address.filter(|max| *max > 0).unwrap_or(usize::MAX),
        endpoint: Arc::new(if node.is_some() { Endpoint::default() } else { Endpoint::observer() }),
    }
}

fn nbd_settings(
    config: &Config,
    memory: &ClientBudgets,
    endpoint: Arc<Endpoint>,
) -> Result<nbd::Settings, ConfigError> {
    let reads = match config.nbd.reads.unwrap_or_default() {
        DiskReads::Any => Consistency::Anywhere,
        DiskReads::Primary => Consistency::Strong,
    };
    let gateway = gateway::Settings { reads, patience: config.nbd.patience()?, ..gateway::Settings::default() };
    let (memory, request_memory) = (memory.nbd.clone(), memory.nbd_requests.clone());
    let are_read_only = config.nbd.read_only.unwrap_or_default();
    Ok(nbd::Settings { gateway, are_read_only, memory, request_memory, endpoint })
}

fn open_store(
    config: &Config,
    files: OsFiles,
    sstables: &SstableFiles,
    nonce: u64,
) -> Result<(Store<OsFiles>, Recovered<Replays>), StartError> {
    let mut store_config = store::Config::default();
    if let Some(bytes) = config.tuning.log_keep_bytes {
        store_config.keep_bytes = bytes;
    }
    if let Some(bytes) = config.tuning.memory_bytes {
        store_config.cache_bytes = bytes * 3 / 8;
        store_config.recent_bytes = bytes / 8;
        let tree = &mut store_config.tree;
        tree.memtable_bytes = (bytes / 16).min(tree.memtable_bytes);
        // The Bloom filters of the SSTables in this level are in memory, too.
        tree.level1_bytes = bytes.saturating_mul(2).min(tree.level1_bytes);
    }
    store::open_into(files, sstables, store_config, nonce, Replays::default())
        .map_err(|error| StartError::Store { directory: config.data.clone(), error })
}

fn machine_config(config: &Config, recovered: &Recovered<Replays>) -> NodeConfig {
    let mut machine = NodeConfig::default();
    let tuning = &config.tuning;
    if let Some(heartbeat_ms) = tuning.heartbeat_ms {
        machine.timing.heartbeat = base::Duration::from_millis(heartbeat_ms);
    }
    if let Some(period_ms) = tuning.commit_period_ms {
        machine.timing.commit_period = base::Duration::from_millis(period_ms);
    }
    if let Some(piggyback) = tuning.piggyback_commits {
        machine.timing.piggyback_commits = piggyback;
    }
    if let Some(leases) = tuning.leases {
        machine.timing.leases = leases;
    }
    if let Some(bytes) = tuning.checkpoint_log_bytes {
        machine.checkpoint_log_bytes = bytes;
    }
    if let Some(bytes) = tuning.memory_bytes {
        machine.memtables_bytes = bytes / 4;
        machine.memtable_bytes_max = (bytes / 4).min(machine.memtable_bytes_max);
    }
    if let Some(seconds) = tuning.replace_after_seconds {
        machine.replace_after = base::Duration::from_millis(seconds * 1_000);
    }
    let members = recovered.identity.members.iter();
    machine.addresses = members.filter_map(|member| addresses_of(config, *member)).collect();
    // Varies timers between nodes and boots; need not be unpredictable.
    machine.seed = recovered.identity.incarnation.0 ^ recovered.boot.0;
    machine
}

/// A member's addresses for peers and for clients.
fn addresses_of(config: &Config, member: Member) -> Option<(Member, String, String)> {
    let (peers, grpc) = if member.node.0 == config.node {
        config.own_addresses()
    } else {
        let peer = config.peers.iter().find(|peer| peer.node == member.node.0)?;
        (&peer.address, &peer.grpc)
    };
    Some((member, peers.to_string(), grpc.to_string()))
}

/// The first signal asks the machine to stop, and starts the timeout.
fn stop_on_signals(inbox: Arc<Inbox>) -> io::Result<()> {
    let mut signals = Signals::new([SIGTERM, SIGINT])?;
    super::spawn("signals", move || {
        if signals.forever().next().is_some() {
            tracing::info!("stopping");
            inbox.post(Input::Stop);
            std::thread::sleep(STOP_PATIENCE);
            tracing::warn!("did not stop in time: exiting");
            std::process::exit(0);
        }
    })?;
    Ok(())
}
