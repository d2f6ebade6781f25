//! The console's view of the whole cluster: it queries every node, including this one, over gRPC like any client
//! (`sdk`), and combines the responses (`view`). A node that is down or slow delays the others' responses only briefly.
//!
//! The result is shared by all requests within `FRESH`, so that many browsers cost no more than one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use sdk::Client;
use sdk::admin::StatusResponse;
use server::console::Cluster;
use tokio::sync::Mutex;
use tokio::task::JoinSet;

use super::config::Config;
use terminal::view::{View, document, is_refused, not_queried};

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
    #[cfg(feature = "sql")]
    sql: Option<super::postgres::Sql>,
}

impl ClusterView {
    /// For the node with this configuration. Other nodes are found through the responses of the configured ones.
    pub(crate) fn new(config: &Config) -> Result<Self, sdk::Error> {
        let others = config.peers.iter().map(|peer| (peer.node, &peer.grpc));
        let addresses: BTreeMap<u32, _> = others.chain([(config.node, &config.listen.grpc)]).collect();
        let client = |address: &base::HostPort| Ok((address.to_string(), client(&address.to_string())?));
        let clients = addresses.into_values().map(client).collect::<Result<_, sdk::Error>>()?;
        Ok(Self {
            own: config.node,
            clients,
            last: Mutex::new(None),
            #[cfg(feature = "sql")]
            sql: None,
        })
    }

    /// The same, with the sessions and databases of the PostgreSQL endpoint.
    #[cfg(feature = "sql")]
    pub(crate) fn with_sql(self, sql: super::postgres::Sql) -> Self {
        Self { sql: Some(sql), ..self }
    }

    async fn look(&self) -> View {
        let mut refused = BTreeSet::new();
        let mut answers = ask(self.clients.clone(), &mut refused).await;
        let others = not_queried(&answers).into_iter().filter(|address| !self.clients.contains_key(address));
        let others = others.filter_map(|address| Some((address.clone(), client(&address).ok()?)));
        answers.extend(ask(others, &mut refused).await);
        answers.sort_by_key(|answer| answer.node);
        let mut view = View::of(&answers);
        view.refused(&refused);
        view
    }
}

fn client(address: &str) -> Result<Client, sdk::Error> {
    Ok(Client::connect([address])?.with_deadline(ANSWER_TIME_MAX))
}

/// Queries all of them concurrently. Adds the addresses that refuse connections to `refused`.
async fn ask(
    clients: impl IntoIterator<Item = (String, Client)>,
    refused: &mut BTreeSet<String>,
) -> Vec<StatusResponse> {
    let mut asked = JoinSet::new();
    for (address, client) in clients {
        asked.spawn(async move {
            let answer = tokio::time::timeout(LOOK_TIME_MAX, client.status_of_each_with_map()).await;
            (address, answer.ok().into_iter().flatten().next())
        });
    }
    let mut answers = Vec::new();
    for (address, answer) in asked.join_all().await {
        match answer {
            Some(Ok(answer)) => answers.push(answer),
            Some(Err(error)) => refused.extend(is_refused(&error).then_some(address)),
            None => {}
        }
    }
    answers
}

impl Cluster for ClusterView {
    async fn status(&self) -> Arc<str> {
        let mut last = self.last.lock().await;
        if let Some((at, document)) = &*last
            && at.elapsed() < FRESH
        {
            return Arc::clone(document);
        }
        let view = self.look().await;
        let time_ms = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
        let document = document(&view, self.own, u64::try_from(time_ms).unwrap_or(u64::MAX));
        let text: Arc<str> = document.to_string().into();
        *last = Some((Instant::now(), Arc::clone(&text)));
        text
    }

    async fn sql(&self) -> Arc<str> {
        #[cfg(feature = "sql")]
        if let Some(sql) = &self.sql {
            return sql.document().await;
        }
        "{}".into()
    }
}
