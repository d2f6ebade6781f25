//! The nodes that a client may ask: which it is connected to, which it prefers, and from which it has heard.

use std::collections::BTreeMap;

use base::{Duration, KeyRange, Monotonic};

use crate::ranges::Ranges;
use crate::{CallId, Link, Pace};

/// A prompt request's first attempt has so long before a silent endpoint is passed over: about as long as the others
/// take to see that a leader is gone.
const PROMPT: Duration = Duration::from_millis(400);
/// The same of a slow one, and of a prompt one at an endpoint that answers others.
const PATIENT: Duration = Duration::from_millis(1_000);
/// An attempt has so many times as long as answers have taken lately ...
const LATENCIES: u64 = 4;
/// ... up to this: whoever was slow may be gone now.
const LATENCIES_MAX: Duration = Duration::from_millis(2_000);
/// Bytes that are a nanosecond's work on a slow way: a request of 8 MiB has two seconds more.
const BYTES_PER_SECOND: u64 = 4 << 20;
/// Who has failed is asked nothing that others can answer for so long.
const SHUNNED: Duration = Duration::from_millis(1_000);
/// The share that one latency has in the average.
const LATENCY_SHARE: u64 = 8;

/// Whether there is a connection.
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
    /// When anything last came from it.
    heard_at: Monotonic,
    /// Until when nothing goes to it that may go elsewhere.
    shunned_until: Monotonic,
}

/// All endpoints.
#[derive(Clone, Debug)]
pub(crate) struct Endpoints {
    all: Vec<Endpoint>,
    preferred: usize,
    /// Who was asked last of what anybody may answer.
    turn: usize,
    /// Who leads which range, as far as told.
    leaders: BTreeMap<String, Ranges<usize>>,
    links: u64,
    /// How long prompt answers take.
    latency: Duration,
}

impl Endpoints {
    pub(crate) fn new(count: usize) -> Self {
        let (connection, waiting, never) = (Connection::None, Vec::new(), Monotonic(0));
        let endpoint = Endpoint { connection, waiting, heard_at: never, shunned_until: never };
        let all = vec![endpoint; count.max(1)];
        Self { all, preferred: 0, turn: 0, leaders: BTreeMap::new(), links: 0, latency: Duration::ZERO }
    }

    pub(crate) fn count(&self) -> usize {
        self.all.len()
    }

    pub(crate) fn get_mut(&mut self, endpoint: usize) -> &mut Endpoint {
        &mut self.all[endpoint]
    }

    /// Whom to ask: the range's leader if it is known, or else the preferred endpoint; in neither case `avoided`.
    pub(crate) fn choose(&self, table: &str, key: &[u8], avoided: Option<usize>) -> usize {
        let leader = self.leaders.get(table).and_then(|ranges| ranges.find(key)).copied();
        let chosen = leader.filter(|leader| Some(*leader) != avoided).unwrap_or(self.preferred);
        if Some(chosen) == avoided { (chosen + 1) % self.count() } else { chosen }
    }

    /// Whom to ask what any node may answer: all in turn, but for `avoided` and those that have failed lately, unless
    /// there is nobody else.
    pub(crate) fn choose_any(&mut self, avoided: Option<usize>, now: Monotonic) -> usize {
        let count = self.count();
        let next = (1..=count).map(|step| (self.turn + step) % count);
        let others = next.filter(|endpoint| Some(*endpoint) != avoided || count == 1);
        let is_well = |endpoint: &usize| self.all[*endpoint].shunned_until <= now;
        let chosen = others.clone().find(is_well).or_else(|| others.clone().next());
        self.turn = chosen.unwrap_or(self.preferred);
        self.turn
    }

    /// Prefers the endpoint after `failed`, unless another call has done so already, and forgets what it leads.
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

    pub(crate) fn leads(&mut self, endpoint: usize, table: &str, range: KeyRange) {
        if endpoint < self.count() {
            self.leaders.entry(table.to_owned()).or_default().keep(range, endpoint);
        }
    }

    pub(crate) fn new_link(&mut self, endpoint: usize) -> Link {
        self.links += 1;
        Link { endpoint, number: self.links }
    }

    /// The connection is no more; false if another has taken its place, or none was there.
    pub(crate) fn lose(&mut self, link: Link) -> bool {
        let endpoint = &mut self.all[link.endpoint];
        let is_this =
            matches!(endpoint.connection, Connection::Beginning(this) | Connection::There(this) if this == link);
        if is_this {
            endpoint.connection = Connection::None;
        }
        is_this
    }

    pub(crate) fn heard(&mut self, endpoint: usize, now: Monotonic) {
        let heard_at = &mut self.all[endpoint].heard_at;
        *heard_at = now.max(*heard_at);
    }

    /// Whether nothing has come from an endpoint since then.
    pub(crate) fn is_silent_since(&self, endpoint: usize, moment: Monotonic) -> bool {
        self.all[endpoint].heard_at <= moment
    }

    /// A prompt request was answered after so long.
    pub(crate) fn took(&mut self, latency: Duration) {
        let Duration(average) = self.latency;
        self.latency = Duration((average * (LATENCY_SHARE - 1) + latency.0) / LATENCY_SHARE);
    }

    /// How long the first attempt at such a request has at a silent endpoint.
    pub(crate) fn patience(&self, pace: Pace, bytes: usize) -> Duration {
        let least = match pace {
            Pace::Prompt => PROMPT,
            Pace::Slow => PATIENT,
        };
        self.at_least(least, bytes)
    }

    /// The same at one that answers others.
    pub(crate) fn long_patience(&self, bytes: usize) -> Duration {
        self.at_least(PATIENT, bytes)
    }

    fn at_least(&self, least: Duration, bytes: usize) -> Duration {
        let on_its_way = (bytes as u64).saturating_mul(1_000_000_000) / BYTES_PER_SECOND;
        let usual = self.latency.0.saturating_mul(LATENCIES).min(LATENCIES_MAX.0);
        Duration(least.0.max(usual) + on_its_way)
    }
}
