//! The console's view of the whole cluster: it queries every node, including this one, over gRPC like any client
//! (`sdk`), and combines the responses (`view`). A node that is down or slow delays the others' responses only briefly.
//!
//! The result is shared by all requests within [`FRESH`], so that many browsers cost no more than one.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use sdk::Client;
use sdk::admin::StatusResponse;
use server::console::Cluster;
use tokio::sync::Mutex;
use tokio::task::JoinSet;

use super::config::Config;
use crate::view::{View, document, not_queried};

/// How long a result is reused.
const FRESH: Duration = Duration::from_millis(500);
/// A node that does not respond within this counts as down, and its connection is reestablished.
const ANSWER_TIME_MAX: Duration = Duration::from_millis(400);
/// The same, including the time to connect.
const LOOK_TIME_MAX: Duration = Duration::from_millis(600);

pub(crate) struct ClusterView {
    own: u32,
    /// A client for each configured node, by address, so that each is queried separately.
    clients: BTreeMap<String, Client>,
    /// Locked during a query: concurrent requests wait for its result.
    last: Mutex<Option<(Instant, Arc<str>)>>,
}

impl ClusterView {
    /// For the node with this configuration. Other nodes are found through the responses of the configured ones.
    pub(crate) fn new(config: &Config) -> Result<Self, sdk::Error> {
        let others = config.peers.iter().map(|peer| (peer.node, &peer.grpc));
        let addresses: BTreeMap<u32, _> = others.chain([(config.node, &config.listen.grpc)]).collect();
        let client = |address: &base::HostPort| Ok((address.to_string(), client(&address.to_string())?));
        let clients = addresses.into_values().map(client).collect::<Result<_, sdk::Error>>()?;
        Ok(Self { own: config.node, clients, last: Mutex::new(None) })
    }

    async fn look(&self) -> Vec<StatusResponse> {
        let mut answers = ask(self.clients.values().cloned()).await;
        let others = not_queried(&answers).into_iter().filter(|address| !self.clients.contains_key(address));
        answers.extend(ask(others.filter_map(|address| client(&address).ok())).await);
        answers.sort_by_key(|answer| answer.node);
        answers
    }
}

fn client(address: &str) -> Result<Client, sdk::Error> {
    Ok(Client::connect([address])?.with_deadline(ANSWER_TIME_MAX))
}

/// Queries all of them concurrently.
async fn ask(clients: impl Iterator<Item = Client>) -> Vec<StatusResponse> {
    let mut asked = JoinSet::new();
    for client in clients {
        asked.spawn(async move {
            let answer = tokio::time::timeout(LOOK_TIME_MAX, client.status_of_each_with_map()).await;
            answer.ok().into_iter().flatten().flatten().next()
        });
    }
    asked.join_all().await.into_iter().flatten().collect()
}

impl Cluster for ClusterView {
    async fn status(&self) -> Arc<str> {
        let mut last = self.last.lock().await;
        if let Some((at, document)) = &*last
            && at.elapsed() < FRESH
        {
            return Arc::clone(document);
        }
        let view = View::of(&self.look().await);
        let time_ms = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
        let document = document(&view, self.own, u64::try_from(time_ms).unwrap_or(u64::MAX));
        let text: Arc<str> = document.to_string().into();
        *last = Some((Instant::now(), Arc::clone(&text)));
        text
    }
}
