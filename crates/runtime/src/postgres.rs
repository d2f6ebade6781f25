//! The PostgreSQL endpoint: a runtime of its own for all sessions. They reach the data as clients do:
//! at this node without a connection, and at other nodes if they lead a range, or while this one cannot serve them.

use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base::budget::ByteBudget;
use postgres::{Activity, Databases, Overview, SessionRow};
use prometheus::Registry;
use serde_json::{Value, json};
use tokio::runtime::Handle;
use tokio::sync::Mutex;

use super::config::Config;
use super::gateway::MachineGateway;

/// How long the list of databases is reused.
const FRESH: Duration = Duration::from_secs(10);
/// Timeout of a look at the databases.
const LOOK_TIME_MAX: Duration = Duration::from_secs(2);
/// Characters of a statement that the console shows.
const STATEMENT_CHARS: usize = 500;

/// The addresses at which sessions reach the cluster.
pub(crate) fn endpoints(config: &Config) -> Vec<String> {
    let others = config.peers.iter().filter(|peer| peer.node != config.node).map(|peer| &peer.grpc);
    std::iter::once(config.own_addresses().1).chain(others).map(ToString::to_string).collect()
}

/// No sessions yet, and their metrics in a registry.
pub(crate) fn activity(registry: &Registry) -> Result<Activity, prometheus::Error> {
    let activity = Activity::new()?;
    activity.register(registry)?;
    Ok(activity)
}

pub(crate) fn start(
    listener: TcpListener,
    endpoints: Vec<String>,
    gateway: MachineGateway,
    (memory, connections): (ByteBudget, usize),
    activity: Arc<Activity>,
) -> io::Result<Sql> {
    let node = Arc::new(server::LocalNode::new(gateway));
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).thread_name("postgres").enable_all().build()?;
    let client = {
        let _context = runtime.enter();
        sdk::Client::within_node(endpoints, node).map_err(io::Error::other)?
    };
    let databases = Arc::new(Databases::new(client, memory, activity));
    let (served, handle) = (Arc::clone(&databases), runtime.handle().clone());
    super::spawn("postgres", move || {
        let ended = runtime.block_on(async {
            if let Ok(address) = listener.local_addr() {
                tracing::info!(%address, "serving PostgreSQL clients");
            }
            postgres::serve(listener, served, connections).await
        });
        if let Err(error) = ended {
            super::die(&format!("PostgreSQL endpoint: {error}"));
        }
    })?;
    Ok(Sql { databases, runtime: handle, last: Mutex::new(None) })
}

/// The sessions and the databases, for the console.
pub(crate) struct Sql {
    databases: Arc<Databases>,
    /// The sessions' runtime, which the connections belong to.
    runtime: Handle,
    /// Locked while the databases are looked at: concurrent requests wait for the result.
    last: Mutex<Option<(Instant, Value)>>,
}

impl Sql {
    /// The sessions, and the databases as of the last seconds, as JSON.
    pub(crate) async fn document(&self) -> Arc<str> {
        let sessions: Vec<Value> = self.databases.sessions().iter().map(session).collect();
        let mut last = self.last.lock().await;
        let fresh = last.as_ref().filter(|(at, _)| at.elapsed() < FRESH).map(|(_, known)| known.clone());
        let databases = match fresh {
            Some(known) => known,
            None => {
                let databases = Arc::clone(&self.databases);
                let look = self.runtime.spawn(async move { databases.overview().await });
                let found = tokio::time::timeout(LOOK_TIME_MAX, look).await.ok().and_then(Result::ok);
                let known = found.map(|found| found.iter().map(database).collect()).unwrap_or_default();
                *last = Some((Instant::now(), known));
                last.as_ref().map(|(_, known)| known.clone()).unwrap_or_default()
            }
        };
        json!({ "sessions": sessions, "databases": databases }).to_string().into()
    }
}

fn session(session: &SessionRow) -> Value {
    // From 2000-01-01 to 1970-01-01.
    let ms = |micros: i64| micros / 1_000 + 946_684_800_000;
    json!({
        "process": session.process,
        "database": session.database,
        "user": session.user,
        "application": session.application,
        "client": session.client.as_ref().map(|(address, port)| format!("{address}:{port}")),
        "state": session.state,
        "since_ms": ms(session.changed),
        "transaction_since_ms": session.transaction_started.map(ms),
        "statement": session.text.chars().take(STATEMENT_CHARS).collect::<String>(),
    })
}

fn database(of: &Overview) -> Value {
    let tables = of.tables.iter().map(|(name, bytes)| json!({ "table": name, "bytes": bytes }));
    json!({ "database": of.name, "bytes": of.bytes, "tables": tables.collect::<Vec<_>>() })
}
