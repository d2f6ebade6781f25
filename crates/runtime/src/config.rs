//! The configuration file of `loggos start --config FILE`. Each key has a unit and a range. Unknown keys are rejected,
//! so that a mistyped key does not silently fall back to the default.
//!
//! ```toml
//! node = 1                              # this node's number, 1 to 65535
//! data = "loggos-data/node-1"           # its directory
//! cluster = "0f…"                      # optional: refuse data of any other cluster; 32 hexadecimal digits
//!
//! clock = "kernel"                      # optional: how the error of the wall clock is known
//!
//! [listen]                              # HOST:PORT each
//! peers = "0.0.0.0:7101"                # for the other nodes
//! grpc = "0.0.0.0:7201"                 # for clients
//! http = "127.0.0.1:8081"               # optional: the console, for browsers and Prometheus
//! zookeeper = "127.0.0.1:2181"          # optional: for ZooKeeper clients
//! postgres = "127.0.0.1:5441"           # optional: for PostgreSQL clients
//! nbd = "127.0.0.1:10809"               # optional: for NBD clients
//!
//! [advertise]                           # optional: the addresses that others use, if they differ
//! peers = "node-1:7101"
//! grpc = "node-1:7201"
//!
//! [[peers]]                             # every other node; may include this one
//! node = 2
//! address = "node-2:7101"
//! grpc = "node-2:7201"
//!
//! [zookeeper]                           # all optional
//!
//! [nbd]                                 # all optional
//!
//! [tuning]                              # all optional
//! ```

use std::path::{Path, PathBuf};

use base::HostPort;
use base::budget::ClientBudgets;
use base::limits::{self, CLIENT_MEMORY_BYTES_DEFAULT, CLIENT_MEMORY_BYTES_MIN};
use coordination::log_port::{ParsePlaybackError, Playback};
use node::NodeConfig;
use serde::{Deserialize, Serialize};

use super::clock::Source;

pub use base::limits::zookeeper::SESSION_TIMEOUT_MIN_MS;

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// This node's number: 1 to 65535. It must be the one that the data directory was formatted for.
    pub node: u32,
    /// The node's directory, relative to the working directory of the process.
    pub data: PathBuf,
    /// The cluster that the data must belong to: 32 hexadecimal digits. Not checked if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster: Option<String>,
    /// Allows addresses beyond this machine, without encryption or authentication. Default: false.
    #[serde(default)]
    pub insecure_plaintext: bool,
    /// How the node knows the error of its wall clock, which transactions need: `host` (all nodes of the cluster run on
    /// one machine and read the same clock), `kernel` (the bound that a time daemon such as chrony gives the kernel),
    /// `configured` (`clock_uncertainty`) or `none`. Default: `host` if all peer addresses are loopback addresses,
    /// otherwise `kernel`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clock: Option<ClockKind>,
    /// The greatest error of the wall clock, for `clock = "configured"` only: `1us` to `250ms`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clock_uncertainty: Option<String>,
    /// A greater error of the wall clock counts as unknown: `1ms` to `250ms`. Default: 250ms.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clock_uncertainty_max: Option<String>,
    /// This node's listen addresses, as HOST:PORT with a host name or an IP address.
    pub listen: Listen,
    /// This node's addresses for others, if they differ from the listen addresses.
    #[serde(default, skip_serializing_if = "Advertise::is_empty")]
    pub advertise: Advertise,
    /// The addresses of the other nodes: every member of the cluster, optionally including this node.
    #[serde(default)]
    pub peers: Vec<Peer>,
    /// Settings of the ZooKeeper endpoint.
    #[serde(default)]
    pub zookeeper: ZooKeeper,
    /// Settings of the NBD endpoint.
    #[serde(default, skip_serializing_if = "Nbd::is_empty")]
    pub nbd: Nbd,
    /// Settings of the PostgreSQL endpoint.
    #[serde(default, skip_serializing_if = "Sql::is_empty")]
    pub sql: Sql,
    /// Tuning parameters.
    #[serde(default)]
    pub tuning: Tuning,
}

/// The values of `clock`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ClockKind {
    Host,
    Kernel,
    Configured,
    None,
}

/// The listen addresses: a host name or an IP address, and a port. A name is resolved once, at the start.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Listen {
    /// For the other nodes.
    #[serde(with = "address")]
    pub peers: HostPort,
    /// For clients: columns, administration, health, reflection.
    #[serde(with = "address")]
    pub grpc: HostPort,
    /// The console, for browsers and Prometheus. Disabled if absent.
    #[serde(default, with = "optional_address", skip_serializing_if = "Option::is_none")]
    pub http: Option<HostPort>,
    /// For ZooKeeper clients. Disabled if absent.
    #[serde(default, with = "optional_address", skip_serializing_if = "Option::is_none")]
    pub zookeeper: Option<HostPort>,
    /// For PostgreSQL clients. Disabled if absent.
    #[serde(default, with = "optional_address", skip_serializing_if = "Option::is_none")]
    pub postgres: Option<HostPort>,
    /// For clients of the Network Block Device protocol, which attach virtual disks. Disabled if absent.
    #[serde(default, with = "optional_address", skip_serializing_if = "Option::is_none")]
    pub nbd: Option<HostPort>,
}

/// The addresses at which others reach this node, if they differ from the listen addresses. Others resolve a host name
/// at each connection attempt.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Advertise {
    /// For the other nodes.
    #[serde(default, with = "optional_address", skip_serializing_if = "Option::is_none")]
    pub peers: Option<HostPort>,
    /// For clients.
    #[serde(default, with = "optional_address", skip_serializing_if = "Option::is_none")]
    pub grpc: Option<HostPort>,
}

impl Advertise {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Addresses as text in the file.
mod address {
    use base::HostPort;
    use serde::de::Error as _;
    use serde::{Deserialize as _, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(address: &HostPort, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(address)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<HostPort, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

/// The same for optional keys.
mod optional_address {
    use base::HostPort;
    use serde::{Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(address: &Option<HostPort>, serializer: S) -> Result<S::Ok, S::Error> {
        match address {
            Some(address) => serializer.collect_str(address),
            None => serializer.serialize_none(),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<HostPort>, D::Error> {
        super::address::deserialize(deserializer).map(Some)
    }
}

/// Settings of the ZooKeeper endpoint. All nodes should have the same.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ZooKeeper {
    /// The shortest session timeout in milliseconds: 400 to 120,000. Default: 4,000.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_timeout_min_ms: Option<u64>,
    /// The longest session timeout in milliseconds, up to 86,400,000. Default: 40,000.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_timeout_max_ms: Option<u64>,
    /// Maximum number of connections per client address. Default: 0, unlimited.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connections_per_address: Option<usize>,
    /// The enabled four-letter commands. Default: all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub commands: Option<Vec<String>>,
    /// The administrator, as `super:DIGEST` with a digest of the scheme `digest`. Default: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub super_digest: Option<String>,
    /// Whether reads are linearizable: each waits until the server has applied all writes that completed before it.
    /// Default: false, as in ZooKeeper.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub linearizable_reads: Option<bool>,
    /// When the server reads the log: `push` (as soon as entries are written), an interval from `1ms` to `1s`, or
    /// `adaptive` (at once while clients wait for entries, otherwise every 1 to 100 ms). A longer interval costs less,
    /// but others' changes are seen later. Default: push.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub playback: Option<String>,
}

/// Settings of the NBD endpoint: each node's apply to the clients that attach disks at this node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Nbd {
    /// The replica that answers a read: `any` (this node's, after a round of messages that makes the read current, if it
    /// is a follower that has caught up and writes no checkpoint; otherwise the leader's) or `primary` (always the
    /// leader's). Both are strong. Default: any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reads: Option<DiskReads>,
    /// Whether disks are read-only at this node: clients learn this when they attach one, and changes are refused
    /// (EPERM). Default: false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_only: Option<bool>,
    /// How long a request waits while a majority of a stripe's replicas is lost before it fails (EIO): `1s` to `1d`. A
    /// change that may have been executed always waits for its outcome. Default: none, requests wait for ever.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub patience: Option<String>,
}

/// Settings of the PostgreSQL endpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Sql {
    /// Maximum number of connections: 1 to 5,000. Default: 250.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connections: Option<usize>,
}

/// The values of `nbd.reads`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum DiskReads {
    /// The replica on the node of the client, if it has caught up; otherwise the leader.
    #[default]
    Any,
    /// The leader.
    Primary,
}

/// Another node.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Peer {
    /// Its number.
    pub node: u32,
    /// Its address for other nodes: a host name or an IP address, and a port.
    #[serde(with = "address")]
    pub address: HostPort,
    /// Its address for clients, in the same form.
    #[serde(with = "address")]
    pub grpc: HostPort,
}

/// Tuning parameters; the defaults are right for most clusters. An absent key means the machine's default.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Tuning {
    /// Whether leaders serve reads under a lease, which relies on the rates of monotonic clocks. Otherwise each read
    /// confirms leadership with a majority (read index). Default: true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub leases: Option<bool>,
    /// Heartbeat interval in milliseconds: 5 to 100, a quarter of the lease. Default: 100.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub heartbeat_ms: Option<u64>,
    /// Maximum delay in milliseconds until a leader sends its commit point to its followers: 1 to 15,000. It
    /// determines the staleness of followers and the takeover time of the next leader. Default: 100.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub commit_period_ms: Option<u64>,
    /// Whether proposals and heartbeats carry the commit point, so that it is sent before the period ends. Default:
    /// true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub piggyback_commits: Option<bool>,
    /// Bytes of log that a cohort writes between two checkpoints: 1 MiB to 64 GiB. Default: 256 MiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoint_log_bytes: Option<u64>,
    /// Bytes of memory for rows: 32 MiB to 1 TiB. Three eighths cache blocks of SSTables, and one eighth keeps memtables
    /// that were flushed. When the other memtables take a quarter, the largest is flushed; at two quarters, writes wait
    /// for the disk. Default: shares of 128, 64, 128 and 256 MiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// Bytes of memory for clients of all protocols (requests, responses, results and queries): 128 MiB to 64 GiB.
    /// Half is open to all, and the other half divided into reserves; requests beyond both are rejected.
    /// Default: 512 MiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_memory_bytes: Option<u64>,
    /// Maximum read rate of compactions in bytes per second, as long as writes need not wait for them: 1 MiB to 64 GiB.
    /// Default: 64 MiB per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compaction_bytes_per_second: Option<u64>,
    /// Bytes of log retained for lagging replicas although checkpoints cover them: up to 1 TiB. Default: 128
    /// MiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log_keep_bytes: Option<u64>,
    /// Seconds after which another node takes the place of a node that is away, in tables with primary/backup replication
    /// and if there is a node without a replica of the range: up to 86,400; 0: never. Default: 60.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replace_after_seconds: Option<u64>,
}

/// ZooKeeper's session timeout limits with the tick of its sample configuration.
const SESSION_TIMEOUT_MS: [u64; 2] = [4_000, 40_000];
/// Bounds of `nbd.patience`.
const PATIENCE_MIN: std::time::Duration = std::time::Duration::from_secs(1);
const PATIENCE_MAX: std::time::Duration = std::time::Duration::from_secs(86_400);
/// Memory for rows per node.
const MEMORY_BYTES_MIN: u64 = 32 << 20;
const MEMORY_BYTES_MAX: u64 = 1 << 40;

/// Default of `clock_uncertainty_max`.
const CLOCK_UNCERTAINTY_MAX: base::Duration = base::Duration::from_millis(250);
/// Upper bound of both errors: a fourth of the longest commit wait, because a timestamp may come from another node's
/// clock.
const CLOCK_UNCERTAINTY_US: u64 = 250_000;

/// The longest commit period in Spinnaker's evaluation (D.1).
const COMMIT_PERIOD_MS_MAX: u64 = 15_000;

/// Why a configuration is invalid.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("can't read {path}: {error}")]
    Unreadable { path: String, error: std::io::Error },
    #[error("{path}: {error}")]
    Malformed { path: String, error: toml::de::Error },
    #[error("{key}: {problem}")]
    Refused { key: &'static str, problem: String },
}

impl Config {
    /// Reads and validates a file.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let name = || path.display().to_string();
        let text = std::fs::read_to_string(path).map_err(|error| ConfigError::Unreadable { path: name(), error })?;
        let config: Self = toml::from_str(&text).map_err(|error| ConfigError::Malformed { path: name(), error })?;
        config.check()?;
        config.check_reachable()?;
        Ok(config)
    }

    /// This node's addresses for peers and clients: those that it advertises, or those that it lists for itself among
    /// its peers, or else those that it listens on.
    pub fn own_addresses(&self) -> (&HostPort, &HostPort) {
        let listed = self.peers.iter().find(|peer| peer.node == self.node);
        let (peers, grpc) = listed.map_or((&self.listen.peers, &self.listen.grpc), |own| (&own.address, &own.grpc));
        (self.advertise.peers.as_ref().unwrap_or(peers), self.advertise.grpc.as_ref().unwrap_or(grpc))
    }

    /// The source of the wall clock's error bound.
    pub(crate) fn clock_source(&self) -> Result<Source, ConfigError> {
        const KEY: &str = "clock_uncertainty";
        let is_here =
            || self.own_addresses().0.is_loopback() && self.peers.iter().all(|peer| peer.address.is_loopback());
        let default = || if is_here() { ClockKind::Host } else { ClockKind::Kernel };
        let source = match (self.clock.unwrap_or_else(default), &self.clock_uncertainty) {
            (ClockKind::Configured, Some(text)) => Source::Configured(uncertainty(KEY, text, 1)?),
            (ClockKind::Configured, None) => {
                return refuse(KEY, "clock = \"configured\" requires it: the greatest error of the wall clock".into());
            }
            (_, Some(_)) => return refuse(KEY, "requires clock = \"configured\"".into()),
            (ClockKind::Host, None) => Source::Host,
            (ClockKind::Kernel, None) => Source::Kernel,
            (ClockKind::None, None) => Source::None,
        };
        Ok(source)
    }

    /// A greater error of the wall clock counts as unknown.
    pub fn clock_uncertainty_max(&self) -> Result<base::Duration, ConfigError> {
        let text = self.clock_uncertainty_max.as_deref();
        text.map_or(Ok(CLOCK_UNCERTAINTY_MAX), |text| uncertainty("clock_uncertainty_max", text, 1_000))
    }

    /// Rejects own addresses that others cannot connect to. A `zoo.cfg` may have them, since each server uses the
    /// addresses in its own file.
    fn check_reachable(&self) -> Result<(), ConfigError> {
        let (peers, grpc) = self.own_addresses();
        check_advertised("advertise.peers", "other nodes", peers)?;
        check_advertised("advertise.grpc", "clients", grpc)
    }

    /// Validates values and their combinations.
    pub fn check(&self) -> Result<(), ConfigError> {
        let insecure = self.insecure_plaintext;
        range("node", u64::from(self.node), 1, 65_535)?;
        Self::check_listen("listen.peers", &self.listen.peers, insecure)?;
        Self::check_listen("listen.grpc", &self.listen.grpc, insecure)?;
        if let Some(http) = &self.listen.http {
            Self::check_listen("listen.http", http, insecure)?;
        }
        if let Some(zookeeper) = &self.listen.zookeeper {
            Self::check_listen("listen.zookeeper", zookeeper, insecure)?;
        }
        if let Some(postgres) = &self.listen.postgres {
            if cfg!(not(feature = "sql")) {
                return refuse("listen.postgres", "this binary was built without SQL".to_owned());
            }
            Self::check_listen("listen.postgres", postgres, insecure)?;
        }
        if let Some(nbd) = &self.listen.nbd {
            Self::check_listen("listen.nbd", nbd, insecure)?;
        }
        self.zookeeper.check()?;
        self.nbd.patience()?;
        self.sql.connections()?;
        self.clock_source()?;
        self.clock_uncertainty_max()?;
        if let Some(cluster) = &self.cluster
            && (cluster.len() != 32 || !cluster.bytes().all(|digit| digit.is_ascii_hexdigit()))
        {
            return refuse("cluster", format!("{cluster:?} is not 32 hexadecimal digits"));
        }
        for (place, peer) in self.peers.iter().enumerate() {
            range("peers.node", u64::from(peer.node), 1, 65_535)?;
            if self.peers[..place].iter().any(|other| other.node == peer.node) {
                return refuse("peers", format!("node {} is listed twice", peer.node));
            }
            // Its own entry has the addresses under which others reach it. That may be a host name, or any if it listens
            // on all addresses, or is advertised under others.
            let listens_on = self.listen.peers.ip().filter(|ip| !ip.is_unspecified());
            let is_own = peer.address == self.listen.peers
                || peer.address.ip().is_none()
                || listens_on.is_none()
                || self.advertise.peers.is_some();
            if peer.node == self.node && !is_own {
                let problem = format!("node {} is this node, and another one has address {}", peer.node, peer.address);
                return refuse("peers", problem);
            }
        }
        self.check_distinct()?;
        self.tuning.check()
    }

    /// Rejects two listeners on one address.
    fn check_distinct(&self) -> Result<(), ConfigError> {
        let Listen { peers, grpc, http, zookeeper, postgres, nbd } = &self.listen;
        let optional = [("http", http), ("zookeeper", zookeeper), ("postgres", postgres), ("nbd", nbd)];
        let optional = optional.into_iter().filter_map(|(key, address)| Some((key, address.as_ref()?)));
        let all: Vec<(&str, &HostPort)> = [("peers", peers), ("grpc", grpc)].into_iter().chain(optional).collect();
        for (place, (key, address)) in all.iter().enumerate() {
            // Port 0 is a free one.
            let is_same = |(_, other): &&(&str, &HostPort)| other == address && address.port() != 0;
            if let Some((other, _)) = all[..place].iter().find(is_same) {
                return refuse("listen", format!("{other} and {key} have the same address {address}"));
            }
        }
        Ok(())
    }

    /// Rejects a non-loopback address unless `insecure_plaintext` is set.
    pub fn check_listen(key: &'static str, address: &HostPort, insecure_plaintext: bool) -> Result<(), ConfigError> {
        if address.is_loopback() || insecure_plaintext {
            return Ok(());
        }
        refuse(
            key,
            format!(
                "{address} is reachable from other machines, and this version has no encryption or authentication: \
                 anyone there could read and change all data. To allow it, set `insecure_plaintext = true`, \
                 or --insecure-plaintext on a command line"
            ),
        )
    }
}

impl ZooKeeper {
    /// The limits of session timeouts, in milliseconds.
    pub fn session_timeout_ms(&self) -> [u64; 2] {
        let [least, most] = SESSION_TIMEOUT_MS;
        let least = self.session_timeout_min_ms.unwrap_or(least);
        [least, self.session_timeout_max_ms.unwrap_or_else(|| most.max(least))]
    }

    /// The playback interval.
    pub fn playback(&self) -> Result<Playback, ParsePlaybackError> {
        self.playback.as_deref().map_or(Ok(Playback::Push), str::parse)
    }

    /// Validates values and their combinations.
    pub fn check(&self) -> Result<(), ConfigError> {
        let refused =
            |error: ParsePlaybackError| ConfigError::Refused { key: "zookeeper.playback", problem: error.to_string() };
        self.playback().map_err(refused)?;
        let [least, most] = self.session_timeout_ms();
        range("zookeeper.session_timeout_min_ms", least, SESSION_TIMEOUT_MIN_MS, 120_000)?;
        if let Some(digest) = &self.super_digest
            && !is_super_digest(digest)
        {
            let problem = format!(
                "{digest:?} is not \"super:\" and a SHA-1 in base64, such as super:D/InIHSb7yEEbrWz8b9l71RjZJU="
            );
            return refuse("zookeeper.super_digest", problem);
        }
        range("zookeeper.session_timeout_max_ms", most, least, 86_400_000)
    }
}

/// Whether a text is `super:` and the base64 of a SHA-1, which has 20 bytes.
fn is_super_digest(text: &str) -> bool {
    let is_base64 = |char: u8| char.is_ascii_alphanumeric() || matches!(char, b'+' | b'/');
    let digest = text.strip_prefix("super:").and_then(|digest| digest.strip_suffix('='));
    digest.is_some_and(|digest| digest.len() == 27 && digest.bytes().all(is_base64))
}

impl Sql {
    /// Maximum number of connections.
    pub fn connections(self) -> Result<usize, ConfigError> {
        let connections = self.connections.unwrap_or(limits::sql::CONNECTIONS);
        if (1..=limits::sql::CONNECTIONS_MAX).contains(&connections) {
            return Ok(connections);
        }
        refuse("sql.connections", format!("{connections} is not within 1 to {}", limits::sql::CONNECTIONS_MAX))
    }

    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl Nbd {
    /// How long a request waits for a majority; none: for ever.
    pub fn patience(&self) -> Result<Option<base::Duration>, ConfigError> {
        let Some(text) = &self.patience else { return Ok(None) };
        let problem = match terminal::duration(text) {
            Ok(patience) if (PATIENCE_MIN..=PATIENCE_MAX).contains(&patience) => {
                return Ok(Some(super::clock::duration(patience)));
            }
            Ok(_) => format!("{text} is not within 1s to 1d"),
            Err(problem) => format!("{text:?}: {problem}"),
        };
        refuse("nbd.patience", problem)
    }

    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl Tuning {
    /// The memory for clients.
    pub fn client_budgets(&self) -> ClientBudgets {
        ClientBudgets::new(self.client_memory_bytes.map_or(CLIENT_MEMORY_BYTES_DEFAULT, |bytes| bytes as usize))
    }

    fn check(&self) -> Result<(), ConfigError> {
        // The lease is not configurable: all replicas must have the same, across restarts (guarantee 2).
        let lease_ms = NodeConfig::default().timing.lease.as_millis();
        if let Some(heartbeat_ms) = self.heartbeat_ms {
            range("tuning.heartbeat_ms", heartbeat_ms, 5, lease_ms / 4)?;
        }
        if let Some(period_ms) = self.commit_period_ms {
            range("tuning.commit_period_ms", period_ms, 1, COMMIT_PERIOD_MS_MAX)?;
        }
        if let Some(bytes) = self.checkpoint_log_bytes {
            range("tuning.checkpoint_log_bytes", bytes, 1 << 20, 64 << 30)?;
        }
        if let Some(bytes) = self.memory_bytes {
            range("tuning.memory_bytes", bytes, MEMORY_BYTES_MIN, MEMORY_BYTES_MAX)?;
        }
        if let Some(bytes) = self.client_memory_bytes {
            range("tuning.client_memory_bytes", bytes, CLIENT_MEMORY_BYTES_MIN as u64, 64 << 30)?;
        }
        if let Some(bytes) = self.compaction_bytes_per_second {
            range("tuning.compaction_bytes_per_second", bytes, 1 << 20, 64 << 30)?;
        }
        if let Some(bytes) = self.log_keep_bytes {
            range("tuning.log_keep_bytes", bytes, 0, 1 << 40)?;
        }
        if let Some(seconds) = self.replace_after_seconds {
            range("tuning.replace_after_seconds", seconds, 0, 86_400)?;
        }
        Ok(())
    }
}

/// Parses a memory size: a number and `KiB`, `MiB`, `GiB` or nothing.
pub fn memory_size(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|other: char| !other.is_ascii_digit());
    let shift = match &text[digits.len()..] {
        "" => 0,
        "KiB" => 10,
        "MiB" => 20,
        "GiB" => 30,
        unit => return Err(format!("invalid unit {unit:?}: use KiB, MiB or GiB")),
    };
    let number: u64 = digits.parse().map_err(|_| format!("{text:?} does not begin with a number"))?;
    let bytes = number.saturating_mul(1 << shift);
    if !(MEMORY_BYTES_MIN..=MEMORY_BYTES_MAX).contains(&bytes) {
        let [least, most] = [MEMORY_BYTES_MIN, MEMORY_BYTES_MAX].map(as_size);
        return Err(format!("the size must be within {least} to {most}"));
    }
    Ok(bytes)
}

/// Formats a size with the largest unit that divides it.
fn as_size(bytes: u64) -> String {
    match bytes.trailing_zeros() {
        30.. => format!("{}GiB", bytes >> 30),
        20.. => format!("{}MiB", bytes >> 20),
        10.. => format!("{}KiB", bytes >> 10),
        _ => bytes.to_string(),
    }
}

/// Rejects an address that others can't connect to.
fn check_advertised(key: &'static str, whom: &str, address: &HostPort) -> Result<(), ConfigError> {
    if address.ip().is_none_or(|ip| !ip.is_unspecified()) {
        return Ok(());
    }
    refuse(
        key,
        format!(
            "{whom} can't connect to {address}, which stands for all addresses of this machine: set the key to an address \
             that they can reach, as \"HOST:PORT\""
        ),
    )
}

fn range(key: &'static str, value: u64, least: u64, most: u64) -> Result<(), ConfigError> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    refuse(key, format!("{value} is not within {least} to {most}"))
}

/// Validates the argument of `dev --clock-uncertainty`.
pub fn clock_uncertainty(text: &str) -> Result<String, String> {
    match uncertainty("clock_uncertainty", text, 1) {
        Ok(_) => Ok(text.to_owned()),
        Err(ConfigError::Refused { problem, .. }) => Err(problem),
        Err(error) => Err(error.to_string()),
    }
}

/// Parses an error of the wall clock of at least `least` microseconds.
fn uncertainty(key: &'static str, text: &str, least: u64) -> Result<base::Duration, ConfigError> {
    const UNITS: [(&str, u64); 3] = [("us", 1), ("ms", 1_000), ("s", 1_000_000)];
    let digits = text.trim_end_matches(|other: char| !other.is_ascii_digit());
    let unit = UNITS.iter().find(|(name, _)| *name == &text[digits.len()..]);
    let microseconds = unit.and_then(|(_, unit)| digits.parse::<u64>().ok()?.checked_mul(*unit));
    let Some(microseconds) = microseconds else {
        return refuse(key, format!("{text:?} is not a number with a unit: us, ms or s, such as \"500us\""));
    };
    if !(least..=CLOCK_UNCERTAINTY_US).contains(&microseconds) {
        let [least, most] = [least, CLOCK_UNCERTAINTY_US].map(base::Duration::from_micros);
        return refuse(key, format!("{text} is not within {least} to {most}"));
    }
    Ok(base::Duration::from_micros(microseconds))
}

fn refuse<T>(key: &'static str, problem: String) -> Result<T, ConfigError> {
    Err(ConfigError::Refused { key, problem })
}

#[cfg(test)]
mod tests;
