//! What a node's console knows of the whole universe: it asks every node through its gRPC door, this one too, as any
//! client does (`sdk`), and puts the answers together (`view`). A node that is down or slow costs the others' answers
//! only a short wait.
//!
//! One look serves all who ask within [`FRESH`], so that many browsers cost no more than one.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use doors::console::Universe;
use sdk::Client;
use sdk::admin::StatusResponse;
use tokio::sync::Mutex;
use tokio::task::JoinSet;

use super::config::Config;
use crate::view::{View, document, not_asked};

/// A look is good for so long.
const FRESH: Duration = Duration::from_millis(500);
/// A node that does not answer within this does not answer, and is connected to anew.
const ANSWER_TIME_MAX: Duration = Duration::from_millis(400);
/// With the time that a connection to it may take.
const LOOK_TIME_MAX: Duration = Duration::from_millis(600);

/// Looks at the universe.
pub(crate) struct Onlooker {
    own: u32,
    /// A client for each node of the configuration, by its address, so that each is asked by itself.
    clients: BTreeMap<String, Client>,
    /// Held while looking: those who ask meanwhile wait for that look.
    last: Mutex<Option<(Instant, Arc<str>)>>,
}

impl Onlooker {
    /// For the node of this configuration. Nodes that it does not name, those tell of that it does.
    pub(crate) fn new(config: &Config) -> Result<Self, sdk::Error> {
        let others = config.peers.iter().map(|peer| (peer.node, peer.grpc));
        let addresses: BTreeMap<u32, _> = others.chain([(config.node, config.listen.grpc)]).collect();
        let client = |address: std::net::SocketAddr| Ok((address.to_string(), client(&address.to_string())?));
        let clients = addresses.into_values().map(client).collect::<Result<_, sdk::Error>>()?;
        Ok(Self { own: config.node, clients, last: Mutex::new(None) })
    }

    async fn look(&self) -> Vec<StatusResponse> {
        let mut answers = ask(self.clients.values().cloned()).await;
        let others = not_asked(&answers).into_iter().filter(|address| !self.clients.contains_key(address));
        answers.extend(ask(others.filter_map(|address| client(&address).ok())).await);
        answers.sort_by_key(|answer| answer.node);
        answers
    }
}

fn client(address: &str) -> Result<Client, sdk::Error> {
    Ok(Client::connect([address])?.with_deadline(ANSWER_TIME_MAX))
}

/// Asks all of them at once.
async fn ask(clients: impl Iterator<Item = Client>) -> Vec<StatusResponse> {
    let mut asked = JoinSet::new();
    for client in clients {
        asked.spawn(async move {
            let answer = tokio::time::timeout(LOOK_TIME_MAX, client.status_of_each()).await;
            answer.ok().into_iter().flatten().flatten().next()
        });
    }
    asked.join_all().await.into_iter().flatten().collect()
}

impl Universe for Onlooker {
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
