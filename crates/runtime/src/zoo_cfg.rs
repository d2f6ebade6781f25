//! ZooKeeper's own configuration file, `zoo.cfg`, as the configuration of a node.
//!
//! A node uses a server's quorum port for peers, its election port for gRPC, and the port of the admin server or of the
//! metrics, if configured, for the console. So files of several ZooKeeper servers on one machine have no port conflicts
//! here either. The data is stored in `DIRECTORY` below `dataDir`.
//!
//! Keys without effect are accepted, as in ZooKeeper; those that clients might notice are logged. Settings that ask for
//! another guarantee (TLS, authentication between servers, hierarchical quorums, observers) are rejected.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;

use base::HostPort;

/// The node's directory in `dataDir`.
pub(crate) const DIRECTORY: &str = "loggos";
/// ZooKeeper's defaults (`ZooKeeperServer`, `QuorumPeerConfig`).
const TICK_MS_DEFAULT: u32 = 3_000;
const SESSION_MIN_TICKS: u32 = 2;
const SESSION_MAX_TICKS: u32 = 20;
const CONNECTIONS_DEFAULT: u32 = 60;
const FOUR_LETTER_WORDS_DEFAULT: &str = "srvr";
/// Supported numbers of servers of a cluster.
const SERVER_COUNTS: [usize; 4] = [1, 3, 5, 7];
const TLS: &str = "TLS is not supported: without this key, connections are not encrypted";
const AUTHENTICATION: &str = "not supported: clients are authenticated by scheme digest only, and servers not at all";
const OBSERVER: &str = "observers are not supported: instead, `loggos zk serve --at NODE,... --listen ADDRESS` runs a \
                        server without a vote";

/// Keys about ZooKeeper's election and storage. They have no effect here, and are not logged.
const WITHOUT_MEANING: &[&str] = &[
    "dataLogDir",
    "initLimit",
    "syncLimit",
    "connectToLearnerMasterLimit",
    "electionAlg",
    "standaloneEnabled",
    "peerType",
    "autopurge.snapRetainCount",
    "autopurge.purgeInterval",
    "snapCount",
    "preAllocSize",
    "forceSync",
    "syncEnabled",
    "leaderServes",
    "serverCnxnFactory",
    "extendedTypesEnabled",
    "admin.enableServer",
    "admin.serverAddress",
    "admin.commandURL",
    "admin.idleTimeout",
    "metricsProvider.className",
    "localSessionsEnabled",
    "localSessionsUpgradingEnabled",
];

/// The contents of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ZooCfg {
    /// The directory with `myid`. A server without a disk needs none.
    pub(crate) data_dir: Option<PathBuf>,
    /// The listen address for clients, if configured.
    pub(crate) client_address: Option<String>,
    pub(crate) client_port: Option<u16>,
    /// The minimum and maximum session timeout, in milliseconds.
    pub(crate) session_timeout_ms: [u32; 2],
    /// Maximum number of connections per client address; 0 for unlimited.
    pub(crate) connections_per_client: u32,
    /// The enabled four-letter commands; `*` enables all.
    pub(crate) four_letter_words: Vec<String>,
    /// `super:` and the digest of the password of the superuser, who bypasses ACLs.
    pub(crate) super_digest: Option<String>,
    /// The port of the console.
    pub(crate) http_port: Option<u16>,
    /// Whether to listen for peers on all addresses of this machine (`quorumListenOnAllIPs`).
    pub(crate) listens_on_all: bool,
    pub(crate) servers: BTreeMap<u32, Server>,
    /// The separate file with the `server.N` lines, if there is one.
    pub(crate) dynamic_file: Option<PathBuf>,
    /// Keys without effect that are logged.
    pub(crate) unsupported: Vec<String>,
}

/// A `server.N` line: `host:quorumPort:electionPort[:role][;[clientAddress:]clientPort]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Server {
    pub(crate) host: String,
    pub(crate) quorum_port: u16,
    pub(crate) election_port: u16,
    client_address: Option<String>,
    client_port: Option<u16>,
}

/// Why a file is invalid.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ZooCfgError {
    #[error("{0} is missing")]
    Missing(&'static str),
    #[error("{key}={value}: {wanted}")]
    Invalid { key: String, value: String, wanted: &'static str },
    #[error("{key}: {why}")]
    Unsupported { key: String, why: &'static str },
    #[error("{0} servers configured: a cluster has 1, 3, 5 or 7")]
    ServerCount(usize),
    #[error("myid is {0}, but there is no server.{0} line")]
    NotListed(u32),
    #[error("can't resolve {0}")]
    Unresolved(String),
    #[error(
        "{0} is reachable from other machines, and this version has no encryption or authentication between nodes: \
         anyone there could read and change all data. To allow it, use --insecure-plaintext"
    )]
    Reachable(SocketAddr),
}

/// A cluster as a file describes it, with resolved addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ensemble {
    pub(crate) node: u32,
    /// Its listen address for ZooKeeper clients.
    pub(crate) clients: SocketAddr,
    /// Its listen address for the console.
    pub(crate) http: Option<SocketAddr>,
    /// The listen address for peers, if it differs from the address in `members` (`quorumListenOnAllIPs`).
    pub(crate) listens_on: Option<IpAddr>,
    /// The servers with host names that do not resolve now.
    pub(crate) unresolved: BTreeMap<u32, String>,
    /// All servers with resolved host names. In a cluster of one without a `server.N` line, this server's addresses are
    /// unused: no other process connects to it.
    pub(crate) members: BTreeMap<u32, MemberAddresses>,
}

/// A server's addresses for the other servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MemberAddresses {
    pub(crate) peers: SocketAddr,
    pub(crate) grpc: SocketAddr,
}

impl ZooCfg {
    /// Reads the text of a file.
    pub(crate) fn parse(text: &str) -> Result<Self, ZooCfgError> {
        let mut properties = properties(text);
        let mut take = |key: &str| properties.remove(key).filter(|value| !value.is_empty());
        let tick_ms = number("tickTime", take("tickTime"), 1)?.unwrap_or(TICK_MS_DEFAULT);
        // -1 means the default, as does no value.
        let mut timeout = |key: &str, ticks: u32| {
            let value = take(key).filter(|value| value != "-1");
            Ok::<_, ZooCfgError>(number(key, value, 1)?.unwrap_or_else(|| tick_ms.saturating_mul(ticks)))
        };
        let session_timeout_ms =
            [timeout("minSessionTimeout", SESSION_MIN_TICKS)?, timeout("maxSessionTimeout", SESSION_MAX_TICKS)?];
        if session_timeout_ms[0] > session_timeout_ms[1] {
            let value = session_timeout_ms[0].to_string();
            return Err(invalid("minSessionTimeout", value, "must not exceed maxSessionTimeout"));
        }
        let admin_port = take_port(&mut take, "admin.serverPort")?;
        let metrics_port = take_port(&mut take, "metricsProvider.httpPort")?;
        let words = take("4lw.commands.whitelist").unwrap_or_else(|| FOUR_LETTER_WORDS_DEFAULT.to_owned());
        let mut config = Self {
            data_dir: take("dataDir").map(PathBuf::from),
            client_address: take("clientPortAddress"),
            client_port: take_port(&mut take, "clientPort")?,
            session_timeout_ms,
            connections_per_client: number("maxClientCnxns", take("maxClientCnxns"), 0)?.unwrap_or(CONNECTIONS_DEFAULT),
            four_letter_words: words.split(',').map(|word| word.trim().to_owned()).collect(),
            super_digest: take("DigestAuthenticationProvider.superDigest"),
            http_port: admin_port.or(metrics_port),
            listens_on_all: take("quorumListenOnAllIPs").is_some_and(|value| value.eq_ignore_ascii_case("true")),
            servers: BTreeMap::new(),
            dynamic_file: take("dynamicConfigFile").map(PathBuf::from),
            unsupported: Vec::new(),
        };
        config.take_servers(&mut properties)?;
        config.take_rest(properties)?;
        Ok(config)
    }

    /// Adds the servers of the `dynamicConfigFile`.
    pub(crate) fn add_dynamic(&mut self, text: &str) -> Result<(), ZooCfgError> {
        let mut properties = properties(text);
        properties.remove("version");
        self.take_servers(&mut properties)?;
        self.take_rest(properties)
    }

    /// Rejects or notes the remaining keys.
    fn take_rest(&mut self, properties: BTreeMap<String, String>) -> Result<(), ZooCfgError> {
        for (key, value) in properties {
            if let Some(why) = refusal(&key, &value) {
                return Err(ZooCfgError::Unsupported { key, why });
            }
            if key == "reconfigEnabled" && value != "true" || WITHOUT_MEANING.contains(&key.as_str()) {
                continue;
            }
            self.unsupported.push(key);
        }
        Ok(())
    }

    fn take_servers(&mut self, properties: &mut BTreeMap<String, String>) -> Result<(), ZooCfgError> {
        let is_group = |key: &&String| key.starts_with("group.") || key.starts_with("weight.");
        if let Some(key) = properties.keys().find(is_group) {
            return Err(ZooCfgError::Unsupported { key: key.clone(), why: "hierarchical quorums are not supported" });
        }
        let keys: Vec<String> = properties.keys().filter(|key| key.starts_with("server.")).cloned().collect();
        for key in keys {
            let value = properties.remove(&key).unwrap_or_default();
            let number = key["server.".len()..].parse::<u32>().ok().filter(|number| (1..=65_535).contains(number));
            let number = number.ok_or_else(|| invalid(&key, value.clone(), "a server number is from 1 to 65535"))?;
            self.servers.insert(number, Server::parse(&key, &value)?);
        }
        Ok(())
    }

    /// The cluster, with this process as server `my_id`. Host names are resolved by `resolve`.
    pub(crate) fn ensemble(
        &self,
        myid: Option<u32>,
        insecure_plaintext: bool,
        resolve: impl Fn(&str) -> Option<IpAddr>,
    ) -> Result<Ensemble, ZooCfgError> {
        let checked = |address: SocketAddr| match address.ip().is_loopback() || insecure_plaintext {
            true => Ok(address),
            false => Err(ZooCfgError::Reachable(address)),
        };
        let node = match myid {
            None if self.servers.is_empty() => 1,
            None => return Err(ZooCfgError::Missing("the file myid in dataDir")),
            Some(node) if !self.servers.is_empty() && !self.servers.contains_key(&node) => {
                return Err(ZooCfgError::NotListed(node));
            }
            Some(node) => node,
        };
        let (mut members, mut unresolved) = (BTreeMap::new(), BTreeMap::new());
        for (number, server) in &self.servers {
            let Some(host) = resolve(&server.host) else {
                unresolved.insert(*number, server.host.clone());
                continue;
            };
            let peers = checked((host, server.quorum_port).into())?;
            members.insert(*number, MemberAddresses { peers, grpc: (host, server.election_port).into() });
        }
        if self.servers.is_empty() {
            let any_port = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
            members.insert(node, MemberAddresses { peers: any_port, grpc: any_port });
        }
        let count = members.len() + unresolved.len();
        if !SERVER_COUNTS.contains(&count) {
            return Err(ZooCfgError::ServerCount(count));
        }
        let any_address = match members.get(&node) {
            Some(own) if own.peers.is_ipv6() => IpAddr::from(Ipv6Addr::UNSPECIFIED),
            _ => Ipv4Addr::UNSPECIFIED.into(),
        };
        let listens_on = (self.listens_on_all && !self.servers.is_empty()).then_some(any_address);
        if let (Some(address), Some(own)) = (listens_on, members.get(&node)) {
            checked((address, own.peers.port()).into())?;
        }
        let clients = self.clients(self.servers.get(&node), insecure_plaintext, &resolve)?;
        let clients = checked(clients)?;
        let http = self.http_port.map(|port| SocketAddr::from((clients.ip(), port)));
        Ok(Ensemble { node, clients, http, listens_on, unresolved, members })
    }

    /// The listen address for clients; `own` is this server's `server.N` line, if there is one.
    pub(crate) fn clients(
        &self,
        own: Option<&Server>,
        insecure_plaintext: bool,
        resolve: impl Fn(&str) -> Option<IpAddr>,
    ) -> Result<SocketAddr, ZooCfgError> {
        let port = self.client_port.or_else(|| own?.client_port).ok_or(ZooCfgError::Missing("clientPort"))?;
        // Without an address ZooKeeper listens on all.
        let default: IpAddr =
            if insecure_plaintext { Ipv4Addr::UNSPECIFIED.into() } else { Ipv4Addr::LOCALHOST.into() };
        let named = self.client_address.as_ref().or_else(|| own?.client_address.as_ref());
        let resolved = |host: &String| resolve(host).ok_or_else(|| ZooCfgError::Unresolved(host.clone()));
        Ok((named.map_or(Ok(default), resolved)?, port).into())
    }
}

impl Server {
    /// Its address with this port.
    pub(crate) fn address(&self, port: u16) -> Result<HostPort, ZooCfgError> {
        let text =
            if self.host.contains(':') { format!("[{}]:{port}", self.host) } else { format!("{}:{port}", self.host) };
        text.parse().map_err(|_| ZooCfgError::Unresolved(self.host.clone()))
    }

    fn parse(key: &str, value: &str) -> Result<Self, ZooCfgError> {
        const FORM: &str = "expected host:quorumPort:electionPort[:role][;[clientAddress:]clientPort]";
        let wrong = || invalid(key, value.to_owned(), FORM);
        let unsupported = |why| ZooCfgError::Unsupported { key: key.to_owned(), why };
        if value.contains('|') {
            return Err(unsupported("multiple addresses per server are not supported"));
        }
        let (server, client) = value.split_once(';').map_or((value, None), |(server, client)| (server, Some(client)));
        let (host, ports) = split_host(server).ok_or_else(wrong)?;
        let ports: Vec<&str> = ports.split(':').map(str::trim).collect();
        let (quorum, election, role) = match ports[..] {
            [quorum, election] => (quorum, election, "participant"),
            [quorum, election, role] => (quorum, election, role),
            _ => return Err(wrong()),
        };
        match role.to_ascii_lowercase().as_str() {
            "participant" => {}
            "observer" => return Err(unsupported(OBSERVER)),
            _ => return Err(wrong()),
        }
        let (client_address, client_port) = match client.map(str::trim) {
            None => (None, None),
            Some(port) if !port.contains(':') => (None, Some(port)),
            Some(address) => split_host(address).map(|(host, port)| (Some(host), Some(port))).ok_or_else(wrong)?,
        };
        Ok(Self {
            host,
            quorum_port: port(quorum).ok_or_else(wrong)?,
            election_port: port(election).ok_or_else(wrong)?,
            client_address,
            client_port: client_port.map(|text| port(text).ok_or_else(wrong)).transpose()?,
        })
    }
}

/// Why a key cannot be ignored: it asks for security that is not provided, or for another kind of server.
fn refusal(key: &str, value: &str) -> Option<&'static str> {
    if matches!(value, "" | "0" | "-1") || value.eq_ignore_ascii_case("false") {
        return None;
    }
    match key {
        "peerType" => value.eq_ignore_ascii_case("observer").then_some(OBSERVER),
        "sslQuorum" | "secureClientPort" | "secureClientPortAddress" | "admin.forceHttps" => Some(TLS),
        "requireClientAuthScheme" | "sessionRequireClientSASLAuth" => Some(AUTHENTICATION),
        _ if key.starts_with("ssl.") || key.ends_with("ortUnification") => Some(TLS),
        _ if ["authProvider", "quorum.auth.", "enforce.auth."].iter().any(|prefix| key.starts_with(prefix)) => {
            Some(AUTHENTICATION)
        }
        _ => None,
    }
}

/// Splits off a host, which is in brackets if it is an IPv6 address, from the text after its colon.
fn split_host(text: &str) -> Option<(String, &str)> {
    let text = text.trim();
    let (host, rest) = match text.strip_prefix('[') {
        Some(bracketed) => bracketed.split_once("]:")?,
        None => text.split_once(':')?,
    };
    (!host.is_empty()).then(|| (host.to_owned(), rest))
}

fn port(text: &str) -> Option<u16> {
    text.trim().parse().ok().filter(|port| *port > 0)
}

fn take_port(take: &mut impl FnMut(&str) -> Option<String>, key: &'static str) -> Result<Option<u16>, ZooCfgError> {
    let Some(value) = take(key) else { return Ok(None) };
    // 0 disables it.
    if value == "0" {
        return Ok(None);
    }
    port(&value).map(Some).ok_or_else(|| invalid(key, value, "expected a port from 1 to 65535"))
}

fn number(key: &str, value: Option<String>, least: u32) -> Result<Option<u32>, ZooCfgError> {
    let Some(value) = value else { return Ok(None) };
    let parsed = value.parse().ok().filter(|number| (least..=i32::MAX as u32).contains(number));
    parsed.map(Some).ok_or_else(|| invalid(key, value, "expected a positive number"))
}

fn invalid(key: &str, value: String, wanted: &'static str) -> ZooCfgError {
    ZooCfgError::Invalid { key: key.to_owned(), value, wanted }
}

/// Parses a Java properties file (`java.util.Properties`): one property per line, continued after a backslash; the key
/// ends at `=`, `:` or white space. The last value of a repeated key is used.
fn properties(text: &str) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut lines = text.lines().map(str::trim_start);
    while let Some(line) = lines.next() {
        if line.is_empty() || line.starts_with(['#', '!']) {
            continue;
        }
        let mut logical = line.to_owned();
        while is_continued(&logical) {
            logical.pop();
            match lines.next() {
                Some(next) => logical.push_str(next),
                None => break,
            }
        }
        let mut characters = logical.chars().peekable();
        let key = unescaped(&mut characters, |character| matches!(character, '=' | ':') || character.is_whitespace());
        while characters.next_if(|character| character.is_whitespace()).is_some() {}
        if characters.next_if(|character| matches!(character, '=' | ':')).is_some() {
            while characters.next_if(|character| character.is_whitespace()).is_some() {}
        }
        // ZooKeeper trims values.
        found.insert(key, unescaped(&mut characters, |_| false).trim().to_owned());
    }
    found
}

/// Whether an odd number of backslashes ends the line.
fn is_continued(line: &str) -> bool {
    line.bytes().rev().take_while(|byte| *byte == b'\\').count() % 2 == 1
}

/// Takes characters up to a terminator, and removes backslash escapes.
fn unescaped(characters: &mut std::iter::Peekable<std::str::Chars<'_>>, ends: impl Fn(char) -> bool) -> String {
    let mut text = String::new();
    while let Some(character) = characters.next_if(|character| !ends(*character)) {
        let escaped = if character == '\\' { characters.next() } else { None };
        text.push(match (character, escaped) {
            ('\\', Some('t')) => '\t',
            ('\\', Some('n')) => '\n',
            ('\\', Some(other)) => other,
            _ => character,
        });
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const THREE: &str = "dataDir=/d\nclientPort=20000\ntickTime=2000\n\
                         server.1=localhost:20002:20001:participant\nserver.2=localhost:20012:20011:participant\n\
                         server.3=localhost:20022:20021:participant\n";

    fn resolve(host: &str) -> Option<IpAddr> {
        match host {
            "localhost" => Some(Ipv4Addr::LOCALHOST.into()),
            "elsewhere" => Some([10, 0, 0, 1].into()),
            address => address.parse().ok(),
        }
    }

    fn local(port: u16) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, port))
    }

    fn refused(text: &str) -> String {
        ZooCfg::parse(text).and_then(|config| config.ensemble(Some(1), false, resolve)).unwrap_err().to_string()
    }

    /// The file that kazoo's harness writes, without TLS and SASL.
    #[test]
    fn parses_kazoo_harness_config() {
        let text = format!(
            "\n{THREE}maxClientCnxns=0\nadmin.serverPort=20003\n\
             serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory\n4lw.commands.whitelist=*\n\
             reconfigEnabled=true\nlocalSessionsEnabled=false\ninitLimit=4\nsyncLimit=2\npeerType=participant\n"
        );
        let config = ZooCfg::parse(&text).unwrap();
        assert_eq!(config.session_timeout_ms, [4_000, 40_000]);
        assert_eq!((config.connections_per_client, &config.four_letter_words[..]), (0, &["*".to_owned()][..]));
        assert_eq!(config.unsupported, ["reconfigEnabled"]);
        let ensemble = config.ensemble(Some(2), false, resolve).unwrap();
        assert_eq!((ensemble.node, ensemble.clients, ensemble.http), (2, local(20_000), Some(local(20_003))));
        let second = MemberAddresses { peers: local(20_012), grpc: local(20_011) };
        assert_eq!((ensemble.members.len(), ensemble.members[&2]), (3, second));
    }

    #[test]
    fn minimal_config_is_standalone() {
        let config = ZooCfg::parse("dataDir=/d\nclientPort=2181\n").unwrap();
        assert_eq!(config.session_timeout_ms, [6_000, 60_000]);
        assert_eq!((config.connections_per_client, &config.four_letter_words[..]), (60, &["srvr".to_owned()][..]));
        let ensemble = config.ensemble(None, false, resolve).unwrap();
        let alone = MemberAddresses { peers: local(0), grpc: local(0) };
        assert_eq!((ensemble.node, ensemble.clients, ensemble.http), (1, local(2_181), None));
        assert_eq!(ensemble.members, BTreeMap::from([(1, alone)]));
    }

    #[test]
    fn client_port_from_server_lines() {
        let mut config = ZooCfg::parse("dataDir=/d\ndynamicConfigFile=/c\n").unwrap();
        assert_eq!(config.dynamic_file, Some("/c".into()));
        let lines = "server.1=[::1]:1:2;2181\nserver.2=[::1]:3:4:participant;127.0.0.1:2182\nserver.7=[::1]:5:6;2183\n";
        config.add_dynamic(&format!("{lines}version=100000000\n")).unwrap();
        assert_eq!(config.ensemble(Some(1), false, resolve).unwrap().clients, local(2_181));
        let ensemble = config.ensemble(Some(2), false, resolve).unwrap();
        assert_eq!((ensemble.clients, ensemble.members[&7].peers), (local(2_182), "[::1]:5".parse().unwrap()));
        assert_eq!(config.ensemble(Some(3), false, resolve), Err(ZooCfgError::NotListed(3)));
    }

    #[test]
    fn session_timeout_defaults_from_tick_time() {
        let timeouts = |lines: &str| ZooCfg::parse(&format!("dataDir=/d\n{lines}")).map(|read| read.session_timeout_ms);
        assert_eq!(timeouts("tickTime=500\nmaxSessionTimeout=-1"), Ok([1_000, 10_000]));
        assert_eq!(timeouts("minSessionTimeout=10\nmaxSessionTimeout=20"), Ok([10, 20]));
        assert!(timeouts("minSessionTimeout=30\nmaxSessionTimeout=20").is_err());
        assert!(timeouts("tickTime=0").is_err() && timeouts("tickTime=x").is_err());
    }

    #[test]
    fn public_address_requires_insecure_plaintext() {
        let text = THREE.replace("localhost", "elsewhere");
        assert!(refused(&text).contains("--insecure-plaintext"));
        assert!(refused(&format!("{THREE}clientPortAddress=elsewhere\n")).contains("10.0.0.1:20000"));
        let ensemble = ZooCfg::parse(&text).unwrap().ensemble(Some(1), true, resolve).unwrap();
        assert_eq!(ensemble.clients, "0.0.0.0:20000".parse().unwrap());
    }

    #[test]
    fn reports_unresolved_hosts() {
        let text = THREE.replace("server.3=localhost", "server.3=unknown");
        let config = ZooCfg::parse(&text).unwrap();
        let ensemble = config.ensemble(Some(1), false, resolve).unwrap();
        assert_eq!(ensemble.unresolved, BTreeMap::from([(3, "unknown".to_owned())]));
        assert_eq!(ensemble.members.keys().collect::<Vec<_>>(), [&1, &2]);
        assert!(config.ensemble(Some(3), false, resolve).unwrap().unresolved.contains_key(&3), "its own name");
        assert!(refused(&format!("{THREE}clientPortAddress=unknown\n")).contains("unknown"));
    }

    #[test]
    fn quorum_listen_on_all_ips() {
        let text = format!("{THREE}quorumListenOnAllIPs=true\n");
        assert!(refused(&text).contains("--insecure-plaintext"));
        let ensemble = ZooCfg::parse(&text).unwrap().ensemble(Some(1), true, resolve).unwrap();
        assert_eq!(ensemble.listens_on, Some(Ipv4Addr::UNSPECIFIED.into()));
        assert_eq!(ensemble.members[&1].peers, local(20_002), "others dial its own address");
        let without = ZooCfg::parse(THREE).unwrap().ensemble(Some(1), true, resolve).unwrap();
        assert_eq!(without.listens_on, None);
    }

    #[test]
    fn rejects_invalid_configs() {
        assert!(refused("dataDir=/d\n").contains("clientPort"));
        assert!(refused("dataDir=/d\nclientPort=70000\n").contains("70000"));
        let two = THREE.lines().take(5).collect::<Vec<_>>().join("\n");
        assert!(refused(&two).contains("2 servers"));
        assert!(refused(&THREE.replace("server.1", "server.9")).contains("server.1"));
        assert!(refused(&format!("{THREE}group.1=1:2:3\n")).contains("hierarchical"));
        assert!(refused(&format!("{THREE}server.4=a:1:2:observer\n")).contains("zk serve --at"));
        for line in ["a:1", "a", ":1:2", "a:1:2:boss", "a:0:2", "a:1:2;x", "a:1:2|b:1:2", "[::1:1:2"] {
            assert!(ZooCfg::parse(&format!("{THREE}server.4={line}\n")).is_err(), "{line}");
        }
        for key in ["server.0", "server.x", "server.65536"] {
            assert!(ZooCfg::parse(&format!("{THREE}{key}=localhost:1:2\n")).is_err(), "{key}");
        }
    }

    #[test]
    fn rejects_security_that_is_not_provided() {
        for (line, why) in [
            ("sslQuorum=true", "sslQuorum: TLS"),
            ("secureClientPort=2281", "TLS"),
            ("ssl.keyStore.location=/keys", "TLS"),
            ("client.portUnification=true", "TLS"),
            ("authProvider.1=org.apache.zookeeper.server.auth.SASLAuthenticationProvider", "digest only"),
            ("quorum.auth.enableSasl=true", "servers not at all"),
            ("enforce.auth.enabled=true", "digest only"),
            ("peerType=observer", "zk serve --at"),
        ] {
            assert!(refused(&format!("{THREE}{line}\n")).contains(why), "{line}");
            let mut config = ZooCfg::parse(THREE).unwrap();
            assert!(config.add_dynamic(line).is_err(), "{line}");
        }
        let off = "sslQuorum=false\nsecureClientPort=0\nquorum.auth.enableSasl=false\nportUnification=\n\
                   peerType=participant\n";
        assert!(ZooCfg::parse(&format!("{THREE}{off}")).is_ok());
    }

    #[test]
    fn parses_java_properties() {
        let text = "# comment\n! too\n a = b \nc:d\ne f\ng\nh=1\\\n   2\ni=x\\\\\nj\\=k=l\na=last";
        let read = properties(text);
        let pairs: Vec<(&str, &str)> = read.iter().map(|(key, value)| (&**key, &**value)).collect();
        let expected = [("a", "last"), ("c", "d"), ("e", "f"), ("g", ""), ("h", "12"), ("i", "x\\"), ("j=k", "l")];
        assert_eq!(pairs, expected);
    }
}
