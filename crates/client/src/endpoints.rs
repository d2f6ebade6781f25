//! The endpoints of a client: connections, preference, known leaders, and response times.

use std::collections::BTreeMap;

use base::{Duration, KeyRange, Monotonic};

use crate::ranges::Ranges;
use crate::{CallId, Link, Pace};

/// Timeout of a prompt request's first attempt at a silent endpoint: about the time that the other nodes need to detect
/// a failed leader.
const PROMPT: Duration = Duration::from_millis(400);
/// Timeout of a slow request's first attempt, and of a prompt one at an endpoint that answers other requests.
const PATIENT: Duration = Duration::from_millis(1_000);
/// A timeout is at least this multiple of the average response time ...
const LATENCIES: u64 = 4;
/// ... but at most this, because a slow endpoint may have failed since.
const LATENCIES_MAX: Duration = Duration::from_millis(2_000);
/// Assumed throughput of a slow network: a request of 8 MiB gets two additional seconds.
const BYTES_PER_SECOND: u64 = 4 << 20;
/// How long an endpoint is avoided after a failure, for requests that others can answer.
const SHUNNED: Duration = Duration::from_millis(1_000);
/// Weight of one response time in the moving average, as 1/n.
const LATENCY_SHARE: u64 = 8;

/// The state of the connection to an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Connection {
    None,
    Beginning(Link),
    There(Link),
}

#[derive(Clone, Debug)]
pub(crate) struct Endpoint {
    pub(crate) connection: Connection,
    /// Calls that wait for the connection.
    pub(crate) waiting: Vec<CallId>,
    /// Time of the last response.
    responded_at: Monotonic,
    /// Until this time it gets no requests that others can answer.
    shunned_until: Monotonic,
}

#[derive(Clone, Debug)]
pub(crate) struct Endpoints {
    all: Vec<Endpoint>,
    preferred: usize,
    /// The endpoint of the last read that any node may answer.
    turn: usize,
    /// The endpoint that gets all reads that any node may answer.
    nearest: Option<usize>,
    /// The known leaders of ranges.
    leaders: BTreeMap<String, Ranges<usize>>,
    links: u64,
    /// Moving average of the response time of prompt requests.
    latency: Duration,
}

impl Endpoints {
    pub(crate) fn new(count: usize) -> Self {
        let (connection, waiting, never) = (Connection::None, Vec::new(), Monotonic(0));
        let endpoint = Endpoint { connection, waiting, responded_at: never, shunned_until: never };
        let all = vec![endpoint; count.max(1)];
        Self { all, preferred: 0, turn: 0, nearest: None, leaders: BTreeMap::new(), links: 0, latency: Duration::ZERO }
    }

    pub(crate) fn count(&self) -> usize {
        self.all.len()
    }

    pub(crate) fn get_mut(&mut self, endpoint: usize) -> &mut Endpoint {
        &mut self.all[endpoint]
    }

    /// Chooses the range's leader if known, otherwise the preferred endpoint; in neither case `avoided`.
    pub(crate) fn choose(&self, table: &str, key: &[u8], avoided: Option<usize>) -> usize {
        let leader = self.leaders.get(table).and_then(|ranges| ranges.find(key)).copied();
        let chosen = leader.filter(|leader| Some(*leader) != avoided).unwrap_or(self.preferred);
        if Some(chosen) == avoided { (chosen + 1) % self.count() } else { chosen }
    }

    /// Chooses an endpoint for a read that any node may answer: the nearest, or round robin; without `avoided` and
    /// endpoints that failed recently, unless no other is left.
    pub(crate) fn choose_any(&mut self, avoided: Option<usize>, now: Monotonic) -> usize {
        let count = self.count();
        if let Some(nearest) = self.nearest.filter(|nearest| Some(*nearest) != avoided)
            && self.all[nearest].shunned_until <= now
        {
            return nearest;
        }
        let next = (1..=count).map(|step| (self.turn + step) % count);
        let others = next.filter(|endpoint| Some(*endpoint) != avoided || count == 1);
        let is_well = |endpoint: &usize| self.all[*endpoint].shunned_until <= now;
        let chosen = others.clone().find(is_well).or_else(|| others.clone().next());
        self.turn = chosen.unwrap_or(self.preferred);
        self.turn
    }

    /// Prefers the endpoint after `failed`, unless another call has done so already, and forgets the ranges that it
    /// leads.
    pub(crate) fn pass_over(&mut self, failed: usize, now: Monotonic) {
        self.all[failed].shunned_until = now + SHUNNED;
        if self.preferred == failed {
            self.preferred = (failed + 1) % self.count();
        }
        self.leaders.values_mut().for_each(|ranges| ranges.forget(|leader| *leader == failed));
    }

    pub(crate) fn preferred(&self) -> usize {
        self.preferred
    }

    pub(crate) fn prefer(&mut self, endpoint: usize) {
        self.preferred = endpoint % self.count();
    }

    pub(crate) fn set_nearest(&mut self, endpoint: usize) {
        self.nearest = Some(endpoint).filter(|endpoint| *endpoint < self.count());
    }

    pub(crate) fn leads(&mut self, endpoint: usize, table: &str, range: KeyRange) {
        if endpoint < self.count() {
            self.leaders.entry(table.to_owned()).or_default().keep(range, endpoint);
        }
    }

    pub(crate) fn new_link(&mut self, endpoint: usize) -> Link {
        self.links += 1;
        Link { endpoint, number: self.links }
    }

    /// Records that a connection is closed; false if it was not the current one.
    pub(crate) fn lose(&mut self, link: Link) -> bool {
        let endpoint = &mut self.all[link.endpoint];
        let is_this =
            matches!(endpoint.connection, Connection::Beginning(this) | Connection::There(this) if this == link);
        if is_this {
            endpoint.connection = Connection::None;
        }
        is_this
    }

    pub(crate) fn responded(&mut self, endpoint: usize, now: Monotonic) {
        let responded_at = &mut self.all[endpoint].responded_at;
        *responded_at = now.max(*responded_at);
    }

    /// Whether an endpoint has sent nothing since `moment`.
    pub(crate) fn is_silent_since(&self, endpoint: usize, moment: Monotonic) -> bool {
        self.all[endpoint].responded_at <= moment
    }

    /// Whether new calls are sent over this connection.
    pub(crate) fn is_in_use(&self, link: Link) -> bool {
        let is_open = matches!(self.all[link.endpoint].connection, Connection::There(this) if this == link);
        is_open && self.preferred == link.endpoint
    }

    /// Records the response time of a prompt request.
    pub(crate) fn took(&mut self, latency: Duration) {
        let Duration(average) = self.latency;
        self.latency = Duration((average * (LATENCY_SHARE - 1) + latency.0) / LATENCY_SHARE);
    }

    /// Timeout of a request's first attempt at a silent endpoint.
    pub(crate) fn patience(&self, pace: Pace, bytes: usize) -> Duration {
        let least = match pace {
            Pace::Prompt => PROMPT,
            Pace::Slow => PATIENT,
        };
        self.at_least(least, bytes)
    }

    /// The same for an endpoint that answers other requests.
    pub(crate) fn long_patience(&self, bytes: usize) -> Duration {
        self.at_least(PATIENT, bytes)
    }

    fn at_least(&self, least: Duration, bytes: usize) -> Duration {
        let on_its_way = (bytes as u64).saturating_mul(1_000_000_000) / BYTES_PER_SECOND;
        let usual = self.latency.0.saturating_mul(LATENCIES).min(LATENCIES_MAX.0);
        Duration(least.0.max(usual) + on_its_way)
    }
}
