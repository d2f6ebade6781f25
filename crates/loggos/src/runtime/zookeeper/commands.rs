//! ZooKeeper's four-letter commands: they are sent instead of a connect request, and answered with text.
//!
//! Every node is equal here. Outside a single node all report the mode `follower`, which monitoring takes for a member of a
//! working ensemble.

use std::fmt::Write as _;

use coordination::limits::FRAME_BYTES_MAX;
use coordination::server::{ClientStatus, ConnectionId};

use super::super::clock;
use super::Service;

/// The release whose protocol is served. Clients parse the version, and the date in this form.
const VERSION: &str = concat!("3.9.3-loggos-", env!("CARGO_PKG_VERSION"), ", built on 11/01/2026 00:00 UTC");

/// The answer to a command.
pub(super) fn answer(word: [u8; 4], service: &Service) -> String {
    let mut out = String::new();
    let name = String::from_utf8_lossy(&word);
    let is_answered =
        service.settings.commands.as_ref().is_none_or(|commands| commands.iter().any(|other| *other == name));
    let written = match &word {
        _ if !is_answered => writeln!(out, "{name} is not executed because it is not in the whitelist."),
        b"ruok" => write!(out, "imok"),
        b"isro" => write!(out, "{}", if service.server.is_read_only() { "ro" } else { "rw" }),
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
        _ => writeln!(out, "{name} is not executed because it is not supported."),
    };
    debug_assert!(written.is_ok(), "a string takes any text");
    out
}

type Written = std::fmt::Result;

fn mode(service: &Service) -> &'static str {
    match () {
        () if service.server.is_read_only() => "read-only",
        () if service.settings.node.is_none() => "observer",
        () if service.settings.nodes == 1 => "standalone",
        () => "follower",
    }
}

fn outstanding(service: &Service) -> usize {
    service.server.clients().map(|client| client.outstanding).sum()
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
    let clients = &service.clients;
    let state = service.server.state();
    writeln!(out, "Latency min/avg/max: 0/0.0/0\nReceived: {}\nSent: {}", clients.received, clients.sent)?;
    writeln!(out, "Connections: {}\nOutstanding: {}", service.server.clients().len(), outstanding(service))?;
    writeln!(out, "Zxid: {:#x}\nMode: {}", state.zxid(), mode(service))?;
    writeln!(out, "Node count: {}", state.tree().node_count())
}

fn connections(out: &mut String, service: &Service, has_details: bool) -> Written {
    let now = clock::monotonic();
    for ClientStatus { connection, session, timeout, outstanding, .. } in service.server.clients() {
        let Some(client) = service.clients.get(connection) else { continue };
        write!(out, " /{}[1](queued={outstanding},recved={},sent={}", client.address, client.received, client.sent)?;
        if has_details && let (Some(session), Some(timeout)) = (session, timeout) {
            let established = now.since(client.since).as_millis();
            write!(out, ",sid={:#x},est={established},to={}", session.0, timeout.as_millis())?;
        }
        writeln!(out, ")")?;
    }
    writeln!(out)
}

fn monitor(out: &mut String, service: &Service) -> Written {
    let state = service.server.state();
    let tree = state.tree();
    let uptime = clock::monotonic().since(service.started).as_millis();
    let descriptors = std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
    writeln!(out, "zk_version\t{VERSION}")?;
    writeln!(out, "zk_server_state\t{}", mode(service))?;
    for (key, value) in [
        ("zk_min_latency", 0),
        ("zk_max_latency", 0),
        ("zk_packets_received", service.clients.received),
        ("zk_packets_sent", service.clients.sent),
        ("zk_num_alive_connections", service.server.clients().len() as u64),
        ("zk_outstanding_requests", outstanding(service) as u64),
        ("zk_znode_count", tree.node_count() as u64),
        ("zk_watch_count", service.server.watches().count() as u64),
        ("zk_ephemerals_count", tree.ephemeral_count() as u64),
        ("zk_approximate_data_size", tree.data_bytes()),
        ("zk_global_sessions", state.sessions().len() as u64),
        ("zk_local_sessions", 0),
        ("zk_open_file_descriptor_count", descriptors as u64),
        ("zk_uptime", uptime),
        ("zk_last_zxid", state.zxid().cast_unsigned()),
    ] {
        writeln!(out, "{key}\t{value}")?;
    }
    writeln!(out, "zk_avg_latency\t0.0")
}

fn configuration(out: &mut String, service: &Service) -> Written {
    let settings = &service.settings;
    // ZooKeeper's shortest timeout is two ticks.
    let [least, most] = settings.session_timeout.map(|timeout| timeout.as_millis());
    let per_address = if settings.connections_per_address == usize::MAX { 0 } else { settings.connections_per_address };
    writeln!(out, "clientPort={}\nclientPortAddress={}", settings.address.port(), settings.address.ip())?;
    writeln!(out, "tickTime={}\nmaxClientCnxns={per_address}", least / 2)?;
    writeln!(out, "minSessionTimeout={least}\nmaxSessionTimeout={most}")?;
    writeln!(out, "jute.maxbuffer={FRAME_BYTES_MAX}\nserverId={}", settings.node.unwrap_or_default())
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

fn session_of(service: &Service, connection: ConnectionId) -> i64 {
    let mut clients = service.server.clients();
    clients.find(|client| client.connection == connection).and_then(|client| client.session).map_or(0, |id| id.0)
}

fn watches_by_session(out: &mut String, service: &Service) -> Written {
    for (connection, paths) in service.server.watches().by_connection() {
        writeln!(out, "{:#x}", session_of(service, connection))?;
        for path in paths {
            writeln!(out, "\t{path}")?;
        }
    }
    Ok(())
}

fn watches_by_path(out: &mut String, service: &Service) -> Written {
    let mut by_path = std::collections::BTreeMap::<&str, Vec<i64>>::new();
    for (connection, paths) in service.server.watches().by_connection() {
        let session = session_of(service, connection);
        paths.for_each(|path| by_path.entry(path).or_default().push(session));
    }
    for (path, sessions) in by_path {
        writeln!(out, "{path}")?;
        for session in sessions {
            writeln!(out, "\t{session:#x}")?;
        }
    }
    Ok(())
}

fn dump(out: &mut String, service: &Service) -> Written {
    let state = service.server.state();
    writeln!(out, "SessionTracker dump:\nSession Sets ({}):", state.sessions().len())?;
    for (id, session) in state.sessions() {
        writeln!(out, "\t{:#x}\t{}ms", id.0, session.timeout_ms)?;
    }
    let tree = state.tree();
    writeln!(out, "ephemeral nodes dump:\nSessions with Ephemerals ({}):", tree.owners().count())?;
    for owner in tree.owners() {
        writeln!(out, "{owner:#x}:")?;
        for path in tree.ephemerals(owner) {
            writeln!(out, "\t{path}")?;
        }
    }
    Ok(())
}

fn environment(out: &mut String) -> Written {
    writeln!(out, "Environment:\nzookeeper.version={VERSION}")?;
    let host = rustix::system::uname();
    writeln!(out, "host.name={}", host.nodename().to_string_lossy())?;
    writeln!(out, "java.version=none\nos.name={}", host.sysname().to_string_lossy())?;
    writeln!(out, "os.arch={}\nos.version={}", host.machine().to_string_lossy(), host.release().to_string_lossy())
}
