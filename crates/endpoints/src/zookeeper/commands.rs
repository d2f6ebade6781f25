//! ZooKeeper's four-letter commands: sent in place of a connect request, with a response in text.
//!
//! Keys, their order and the format are those of Apache ZooKeeper 3.9, without keys that have no meaning here. Unlike
//! there, the commands about watches include child watches, and a connection that sends a command is not counted as a
//! client.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use base::{Duration, Monotonic};
use coordination::jute::op;
use coordination::limits::FRAME_BYTES_MAX;
use coordination::server::{ClientStatus, ConnectionId, Sizes, Statistics};
use server::zookeeper::{Role, Value};

use super::report::{latency, mode, outstanding, role, zookeeper_metrics};
use super::{GREETING_TIMEOUT, Service};
use crate::clock;
use crate::connections::Traffic;
use crate::endpoint::BACKLOG;

/// The ZooKeeper release with this protocol. Clients parse the version, and the date in this format.
const VERSION: &str = concat!("3.9.3-loggos-", env!("CARGO_PKG_VERSION"), ", built on 11/01/2026 00:00 UTC");

/// Commands outside the whitelist that are executed as well, as in ZooKeeper: `zkServer.sh status` needs `srvr`, and a
/// read-only client finds a writable server with `isro`.
const ALWAYS_ALLOWED: [&[u8; 4]; 2] = [b"srvr", b"isro"];

/// Whether a command is executed, given the whitelist if there is one.
fn is_allowed(word: [u8; 4], whitelist: Option<&[String]>) -> bool {
    ALWAYS_ALLOWED.contains(&&word) || whitelist.is_none_or(|words| words.iter().any(|other| other.as_bytes() == word))
}

/// Returns the response to a command.
pub(super) fn answer(word: [u8; 4], service: &mut Service) -> String {
    let mut out = String::new();
    let name = String::from_utf8_lossy(&word);
    let written = match &word {
        _ if !is_allowed(word, service.settings.commands.as_deref()) => {
            writeln!(out, "{name} is not executed because it is not in the whitelist.")
        }
        b"ruok" => write!(out, "imok"),
        b"isro" => read_only(&mut out, service),
        b"srvr" => server(&mut out, service),
        b"stat" => stat(&mut out, service),
        b"mntr" => monitor(&mut out, service),
        b"conf" => configuration(&mut out, service),
        b"cons" => connections(&mut out, service, true),
        b"wchs" => watch_summary(&mut out, service),
        b"wchc" => watches_by_session(&mut out, service),
        b"wchp" => watches_by_path(&mut out, service),
        b"dump" => dump(&mut out, service),
        b"envi" => environment(&mut out),
        b"crst" => reset_connections(&mut out, service),
        b"srst" => reset_server(&mut out, service),
        _ => writeln!(out, "{name} is not executed because it is not supported."),
    };
    debug_assert!(written.is_ok(), "writes to a string do not fail");
    out
}

type Written = std::fmt::Result;

fn read_only(out: &mut String, service: &mut Service) -> Written {
    // Without sessions the server appends nothing, so whether the log accepts appends is checked here.
    service.server.probe_log();
    write!(out, "{}", if service.server.is_read_only() { "ro" } else { "rw" })
}

fn reset_connections(out: &mut String, service: &mut Service) -> Written {
    service.clients.reset_statistics();
    service.server.reset_client_statistics();
    writeln!(out, "Connection stats reset.")
}

fn reset_server(out: &mut String, service: &mut Service) -> Written {
    service.clients.traffic = Traffic::default();
    service.server.reset_statistics();
    writeln!(out, "Server stats reset.")
}

fn server(out: &mut String, service: &Service) -> Written {
    writeln!(out, "Zookeeper version: {VERSION}")?;
    summary(out, service)
}

fn stat(out: &mut String, service: &Service) -> Written {
    writeln!(out, "Zookeeper version: {VERSION}\nClients:")?;
    connections(out, service, false)?;
    summary(out, service)
}

fn summary(out: &mut String, service: &Service) -> Written {
    let (latency, Traffic { received, sent, .. }) = (latency(service), service.clients.traffic);
    let state = service.server.state();
    let (min, max) = (latency.min.as_millis(), latency.max.as_millis());
    writeln!(out, "Latency min/avg/max: {min}/{}/{max}", decimal(latency.mean_ms()))?;
    writeln!(out, "Received: {received}\nSent: {sent}")?;
    writeln!(out, "Connections: {}\nOutstanding: {}", service.server.clients().len(), outstanding(service))?;
    writeln!(out, "Zxid: {:#x}\nMode: {}", state.zxid(), mode(service))?;
    writeln!(out, "Node count: {}", state.tree().node_count())?;
    if role(service) == Role::Leader {
        let Statistics { batches, batch_bytes: Sizes { last, min, max }, .. } = *service.server.statistics();
        match batches {
            0 => writeln!(out, "Proposal sizes last/min/max: -1/-1/-1")?,
            _ => writeln!(out, "Proposal sizes last/min/max: {last}/{min}/{max}")?,
        }
    }
    // Not in ZooKeeper: explains why the server is read-only, for example.
    service.settings.endpoint.problems().iter().try_for_each(|problem| writeln!(out, "Problem: {problem}"))
}

/// Formats a number as Java does, rounded to four decimal places.
fn decimal(number: f64) -> String {
    format!("{:?}", (number * 10_000.0).round() / 10_000.0)
}

fn connections(out: &mut String, service: &Service, has_details: bool) -> Written {
    let now = clock::now();
    for ClientStatus { connection, session, timeout, outstanding, statistics, .. } in service.server.clients() {
        let Some(client) = service.clients.get(connection) else { continue };
        write!(out, " /{}[1](queued={outstanding},recved={},sent={}", client.address, client.received, client.sent)?;
        if has_details && let (Some(session), Some(timeout)) = (session, timeout) {
            let established = now.wall.0 / 1_000_000 - now.monotonic.since(client.since).as_millis().cast_signed();
            let last = statistics.last;
            let name = last.map_or("NA", |last| operation(last.op));
            write!(out, ",sid={:#x},lop={name},est={established},to={}", session.0, timeout.as_millis())?;
            if let Some(xid) = statistics.last_xid {
                write!(out, ",lcxid={xid:#x}")?;
            }
            let at = last.map_or(0, |last| last.at.since(Monotonic(0)).as_millis());
            let latest = last.map_or(0, |last| last.latency.as_millis());
            write!(out, ",lzxid={:#x},lresp={at},llat={latest}", last.map_or(-1, |last| last.zxid))?;
            let latency = statistics.latency;
            let (min, max) = (latency.min.as_millis(), latency.max.as_millis());
            write!(out, ",minlat={min},avglat={},maxlat={max}", latency.mean_ms() as u64)?;
        }
        writeln!(out, ")")?;
    }
    writeln!(out)
}

/// ZooKeeper's name of an operation.
const fn operation(code: i32) -> &'static str {
    match code {
        op::CREATE_SESSION => "SESS",
        op::CLOSE_SESSION => "CLOS",
        op::CREATE | op::CREATE2 | op::CREATE_CONTAINER | op::CREATE_TTL => "CREA",
        op::DELETE => "DELE",
        op::EXISTS => "EXIS",
        op::GET_DATA => "GETD",
        op::SET_DATA => "SETD",
        op::GET_ACL => "GETA",
        op::SET_ACL => "SETA",
        op::GET_CHILDREN | op::GET_CHILDREN2 => "GETC",
        op::SYNC => "SYNC",
        op::PING => "PING",
        op::CHECK => "CHEC",
        op::MULTI => "MULT",
        op::MULTI_READ => "MLTR",
        op::RECONFIG => "RECO",
        op::CHECK_WATCHES => "CHKW",
        op::REMOVE_WATCHES => "REMW",
        op::SET_WATCHES => "SETW",
        op::SET_WATCHES2 => "STW2",
        op::ADD_WATCH => "ADDW",
        op::GET_EPHEMERALS => "GETE",
        op::GET_ALL_CHILDREN_NUMBER => "GETACN",
        op::WHO_AM_I => "HOMI",
        _ => "NA",
    }
}

fn monitor(out: &mut String, service: &Service) -> Written {
    writeln!(out, "zk_version\t{VERSION}")?;
    writeln!(out, "zk_server_state\t{}", mode(service))?;
    if let Some(state) = peer_state(service) {
        writeln!(out, "zk_peer_state\t{state} - broadcast")?;
    }
    for metric in zookeeper_metrics(service) {
        match metric.value {
            Value::Gauge(value) | Value::Counter(value) => writeln!(out, "zk_{}\t{value}", metric.name)?,
            Value::Real(value) => writeln!(out, "zk_{}\t{}", metric.name, decimal(value))?,
        }
    }
    let descriptors = std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
    writeln!(out, "zk_open_file_descriptor_count\t{descriptors}")?;
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    writeln!(out, "zk_max_file_descriptor_count\t{}", limit.unwrap_or(u64::MAX))?;
    let Statistics { reads, writes, .. } = service.server.statistics();
    for (name, latency) in [("readlatency", reads), ("updatelatency", writes)] {
        writeln!(out, "zk_avg_{name}\t{}", decimal(latency.mean_ms()))?;
        writeln!(out, "zk_min_{name}\t{}\nzk_max_{name}\t{}", latency.min.as_millis(), latency.max.as_millis())?;
        writeln!(out, "zk_cnt_{name}\t{}\nzk_sum_{name}\t{}", latency.count, latency.sum.as_millis())?;
    }
    Ok(())
}

fn peer_state(service: &Service) -> Option<&'static str> {
    if service.server.is_read_only() {
        return None;
    }
    match role(service) {
        Role::Leader => Some("leading"),
        Role::Follower => Some("following"),
        Role::Observer => Some("observing"),
        Role::Standalone => None,
    }
}

fn configuration(out: &mut String, service: &Service) -> Written {
    let settings = &service.settings;
    let [least, most] = settings.session_timeout.map(Duration::as_millis);
    let per_address = if settings.connections_per_address == usize::MAX { 0 } else { settings.connections_per_address };
    writeln!(
        out,
        "clientPort={}\nsecureClientPort=-1\ntickTime={}",
        settings.address.port(),
        tick(service).as_millis()
    )?;
    writeln!(out, "maxClientCnxns={per_address}\nminSessionTimeout={least}\nmaxSessionTimeout={most}")?;
    writeln!(out, "clientPortListenBacklog={BACKLOG}\nserverId={}", settings.node.unwrap_or_default())?;
    writeln!(out, "clientPortAddress={}\njute.maxbuffer={FRAME_BYTES_MAX}", settings.address.ip())
}

/// ZooKeeper's shortest session timeout is two ticks.
fn tick(service: &Service) -> Duration {
    let [least, _] = service.settings.session_timeout;
    Duration(least.0 / 2)
}

fn watch_summary(out: &mut String, service: &Service) -> Written {
    let watches = service.server.watches();
    let (mut connections, mut paths) = (0, std::collections::BTreeSet::new());
    for (_, watched) in watches.by_connection() {
        connections += 1;
        paths.extend(watched);
    }
    writeln!(out, "{connections} connections watching {} paths\nTotal watches:{}", paths.len(), watches.count())
}

/// The session of each connection; 0 if it has none yet.
fn sessions(service: &Service) -> BTreeMap<ConnectionId, i64> {
    let session = |client: ClientStatus| (client.connection, client.session.map_or(0, |id| id.0));
    service.server.clients().map(session).collect()
}

fn watches_by_session(out: &mut String, service: &Service) -> Written {
    let sessions = sessions(service);
    for (connection, paths) in service.server.watches().by_connection() {
        writeln!(out, "{:#x}", sessions.get(&connection).copied().unwrap_or(0))?;
        for path in paths {
            writeln!(out, "\t{path}")?;
        }
    }
    writeln!(out)
}

fn watches_by_path(out: &mut String, service: &Service) -> Written {
    let sessions = sessions(service);
    let mut by_path = BTreeMap::<&str, Vec<i64>>::new();
    for (connection, paths) in service.server.watches().by_connection() {
        let session = sessions.get(&connection).copied().unwrap_or(0);
        paths.for_each(|path| by_path.entry(path).or_default().push(session));
    }
    for (path, sessions) in by_path {
        writeln!(out, "{path}")?;
        for session in sessions {
            writeln!(out, "\t{session:#x}")?;
        }
    }
    writeln!(out)
}

fn dump(out: &mut String, service: &Service) -> Written {
    let state = service.server.state();
    writeln!(out, "SessionTracker dump:\nGlobal Sessions({}):", state.sessions().len())?;
    for (id, session) in state.sessions() {
        writeln!(out, "{:#x}\t{}ms", id.0, session.timeout_ms)?;
    }
    let tree = state.tree();
    writeln!(out, "ephemeral nodes dump:\nSessions with Ephemerals ({}):", tree.owners().count())?;
    for owner in tree.owners() {
        writeln!(out, "{owner:#x}:")?;
        for path in tree.ephemerals(owner) {
            writeln!(out, "\t{path}")?;
        }
    }
    connection_timeouts(out, service)
}

/// The connections by the tick at which they are closed if nothing more is received.
fn connection_timeouts(out: &mut String, service: &Service) -> Written {
    let (now, tick) = (clock::now(), tick(service).as_millis().max(1));
    let mut by_tick = BTreeMap::<u64, Vec<ClientStatus>>::new();
    for client in service.server.clients() {
        let silent = now.monotonic.since(client.last_received);
        let patience = client.timeout.unwrap_or(GREETING_TIMEOUT).0.saturating_sub(silent.0);
        let end = now.wall.0.cast_unsigned().saturating_add(patience) / 1_000_000;
        by_tick.entry(end.next_multiple_of(tick)).or_default().push(client);
    }
    let all = service.server.clients().len();
    writeln!(out, "Connections dump:\nConnections Sets ({})/({all}):", by_tick.len())?;
    for (end, clients) in by_tick {
        writeln!(out, "{} expire at {}:", clients.len(), date(end / 1_000))?;
        for client in clients {
            let Some(address) = service.clients.get(client.connection).map(|client| client.address) else { continue };
            writeln!(out, "\tip: /{address} sessionId: {:#x}", client.session.map_or(0, |id| id.0))?;
        }
    }
    Ok(())
}

/// Seconds since 1970 in the form of Java's `Date`. The date is from H. Hinnant, "chrono-compatible low-level date
/// algorithms": years begin in March, so that the leap day is the last one.
fn date(seconds: u64) -> String {
    const WEEK: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    const MONTHS: [&str; 12] = ["Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec", "Jan", "Feb"];
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let from_0000_03_01 = days + 719_468;
    let (era, day) = (from_0000_03_01 / 146_097, from_0000_03_01 % 146_097);
    let year_of_era = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day_of_year = day - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day_of_month = day_of_year - (153 * month + 2) / 5 + 1;
    let year = 400 * era + year_of_era + u64::from(month >= 10);
    let [hour, minute, second] = [second / 3_600, second / 60 % 60, second % 60];
    let (week, month) = (WEEK[(days % 7) as usize], MONTHS[month as usize]);
    format!("{week} {month} {day_of_month:02} {hour:02}:{minute:02}:{second:02} UTC {year}")
}

fn environment(out: &mut String) -> Written {
    writeln!(out, "Environment:\nzookeeper.version={VERSION}")?;
    let host = rustix::system::uname();
    writeln!(out, "host.name={}", host.nodename().to_string_lossy())?;
    writeln!(out, "java.version=none\nos.name={}", host.sysname().to_string_lossy())?;
    writeln!(out, "os.arch={}\nos.version={}", host.machine().to_string_lossy(), host.release().to_string_lossy())?;
    for (key, variable) in [("user.name", "USER"), ("user.home", "HOME")] {
        writeln!(out, "{key}={}", std::env::var(variable).unwrap_or_default())?;
    }
    writeln!(out, "user.dir={}", std::env::current_dir().unwrap_or_default().display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whitelist_always_has_srvr_and_isro() {
        let whitelist = ["conf".to_owned()];
        let allowed = |word: &[u8; 4]| is_allowed(*word, Some(&whitelist));
        assert!([b"conf", b"srvr", b"isro"].into_iter().all(allowed));
        assert!(![b"mntr", b"ruok"].into_iter().any(allowed));
        assert!(is_allowed(*b"mntr", None));
        assert!(is_allowed(*b"isro", Some(&[])));
    }

    #[test]
    fn java_date_and_decimal_format() {
        assert_eq!(date(0), "Thu Jan 01 00:00:00 UTC 1970");
        assert_eq!(date(951_868_799), "Tue Feb 29 23:59:59 UTC 2000");
        assert_eq!(date(1_795_575_531), "Wed Nov 25 02:58:51 UTC 2026");
        assert_eq!([decimal(0.0), decimal(4.774_193), decimal(12.0)], ["0.0", "4.7742", "12.0"]);
    }
}
