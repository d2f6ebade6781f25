//! Invariants.
//!
//! A reference state applies each position as soon as it is resolved, before any server does.

use std::collections::{BTreeMap, BTreeSet};

use base::Duration;
use bytes::Bytes;

use super::Time;
use crate::entry::{Batch, Entry, Item, Position, SessionId};
use crate::path;
use crate::state::{Outcome, State};

/// The invariants and the data to check them.
#[derive(Debug, Default)]
pub struct Checks {
    pub violation: Option<String>,
    /// Number of occurrences of each kind of event.
    pub counters: BTreeMap<&'static str, u64>,
    pub time: Time,
    /// Known stalls of the log, each with start and end.
    pub stalls: Vec<(Time, Time)>,
    timeout: Duration,
    tick: Duration,
    spectator: State,
    /// When each position was resolved.
    settled: Vec<Time>,
    /// The fingerprint of the state at each position.
    states: BTreeMap<Position, u64>,
    /// Acknowledged writes by path and zxid.
    writes: BTreeMap<String, BTreeMap<i64, Acknowledged>>,
    /// Reads: path, zxid of the state, mzxid of the node.
    reads: Vec<(String, i64, i64)>,
    /// The zxid that wrote each value.
    values: BTreeMap<u64, i64>,
    /// Values of failed multis.
    undone: BTreeSet<u64>,
    sent: BTreeMap<u64, Time>,
}

#[derive(Clone, Copy, Debug)]
struct Acknowledged {
    acknowledged: Time,
}

impl Checks {
    pub(super) fn new(timeout: Duration, tick: Duration) -> Self {
        Self { timeout, tick, ..Self::default() }
    }

    /// The state at the last settled position.
    #[must_use]
    pub const fn spectator(&self) -> &State {
        &self.spectator
    }

    pub fn count(&mut self, what: &'static str) {
        *self.counters.entry(what).or_default() += 1;
    }

    /// Reports a violated invariant.
    pub fn violated(&mut self, what: impl AsRef<str>) {
        if self.violation.is_none() {
            self.violation = Some(format!("at {} us: {}", self.time / 1_000, what.as_ref()));
        }
    }

    /// Checks that states at equal positions are equal.
    pub fn state(&mut self, state: &State) {
        let fingerprint = fingerprint(state);
        let known = *self.states.entry(state.next()).or_insert(fingerprint);
        if known != fingerprint {
            self.violated(format!("states differ at {:?}", state.next()));
        }
    }

    pub(super) fn settle(
        &mut self,
        entry: Option<&Bytes>,
        made: Option<Time>,
        believer: impl Fn(i64) -> Option<usize>,
    ) {
        self.settled.push(self.time);
        let bytes = entry.map_or(0, Bytes::len);
        let entry = entry.and_then(|bytes| Entry::decode(bytes.clone()).ok());
        let admitted = self.spectator.admit(entry.as_ref(), bytes);
        if !admitted.removed.is_empty() {
            self.count("servers removed");
        }
        if admitted.batches.len() > 1 {
            self.count("batches that waited for another");
        }
        for batch in &admitted.batches {
            for item in &batch.items {
                self.item(item, batch, made, &believer);
            }
        }
        self.invariants();
        let spectator = std::mem::take(&mut self.spectator);
        self.state(&spectator);
        self.spectator = spectator;
    }

    fn item(&mut self, item: &Item, batch: &Batch, made: Option<Time>, believer: impl Fn(i64) -> Option<usize>) {
        let session = match item {
            Item::Request { stamp, .. } => Some(stamp.session),
            Item::Expire { session, .. } => Some(*session),
            _ => None,
        };
        let before = session.and_then(|session| self.spectator.session(session).copied());
        let outcome = self.spectator.apply(batch, item).outcome;
        match (item, outcome, before) {
            (Item::Request { stamp, .. }, Outcome::Written(_), Some(before)) if before.epoch != stamp.epoch => {
                self.violated(format!("{stamp:?} takes effect at epoch {:?}", before.epoch));
            }
            (Item::Request { .. }, Outcome::Stale, _) => self.count("requests of sessions that have moved"),
            (Item::Move { .. }, Outcome::Connected { .. }, _) => self.count("moves"),
            (Item::Expire { .. }, Outcome::Nothing, Some(_)) => self.count("expiries without effect"),
            (Item::Expire { session, .. }, Outcome::Ended { .. }, Some(before)) => {
                self.count("expiries");
                if let Some(made) = made {
                    self.check_silence(*session, before.last_touch, made);
                }
                if let Some(client) = believer(session.0) {
                    self.violated(format!("{session:?} expires while client {client} is connected"));
                }
            }
            _ => {}
        }
    }

    /// Checks that a session expires no earlier than one timeout after its last touch.
    fn check_silence(&mut self, session: SessionId, last_touch: Position, made: Time) {
        let touched = usize::try_from(last_touch.0).ok().and_then(|position| self.settled.get(position)).copied();
        let touched = touched.unwrap_or(0);
        // No touch can be logged during a stall, of which at most two ticks count.
        let stalls = self.stalls.iter().map(|(from, to)| made.min(*to).saturating_sub(touched.max(*from)));
        let not_counted: Time = stalls.map(|stall| stall.saturating_sub(2 * self.tick.0)).sum();
        let silent = made.saturating_sub(touched + not_counted);
        if silent < self.timeout.0 {
            self.violated(format!("{session:?} expires {} us after a touch", silent / 1_000));
        }
    }

    fn invariants(&mut self) {
        let tree = self.spectator.tree();
        if tree.owners().any(|owner| self.spectator.session(SessionId(owner)).is_none()) {
            self.violated("an ephemeral node has no session");
        }
        let mut passwords = BTreeSet::new();
        if !self.spectator.sessions().all(|(_, session)| passwords.insert(session.password)) {
            self.violated("one request has opened two sessions");
        }
    }

    /// Records that a write was sent.
    pub(super) fn sent(&mut self, value: u64) {
        self.sent.insert(value, self.time);
    }

    /// Checks an acknowledged write: it must be ordered after all writes acknowledged before it was sent.
    pub(super) fn written(&mut self, path: &str, value: u64, zxid: i64) {
        self.count("writes");
        self.value(value, zxid);
        let sent = self.sent.get(&value).copied().unwrap_or(0);
        let writes = self.writes.entry(path.to_owned()).or_default();
        let later = writes.range(zxid..).find(|(_, write)| write.acknowledged < sent).map(|(zxid, _)| *zxid);
        writes.insert(zxid, Acknowledged { acknowledged: self.time });
        if let Some(later) = later {
            self.violated(format!("write {zxid} of {path} was sent after write {later} had ended"));
        }
    }

    pub(super) fn undone(&mut self, value: u64) {
        self.count("multis undone");
        self.undone.insert(value);
    }

    fn value(&mut self, value: u64, zxid: i64) {
        let known = *self.values.entry(value).or_insert(zxid);
        if known != zxid {
            self.violated(format!("value {value} was written at {known} and at {zxid}"));
        }
        if self.undone.contains(&value) {
            self.violated(format!("value {value} belongs to a failed multi"));
        }
    }

    /// Checks a read of a node. A read after a sync must see every write acknowledged before the sync.
    pub(super) fn read(&mut self, path: &str, value: Option<u64>, state: i64, mzxid: i64, synced: Option<Time>) {
        self.count("reads");
        if let Some(value) = value {
            self.value(value, mzxid);
        }
        self.reads.push((path.to_owned(), state, mzxid));
        let Some(synced) = synced else { return };
        self.count("reads after a sync");
        let missed = self.writes.get(path).and_then(|writes| {
            writes.range(mzxid + 1..).find(|(_, write)| write.acknowledged < synced).map(|(zxid, _)| *zxid)
        });
        if let Some(missed) = missed {
            self.violated(format!("a read of {path} after a sync misses write {missed}"));
        }
    }

    /// Checks that every read has seen the last write up to its state.
    pub fn finish(&mut self) {
        for (path, state, mzxid) in std::mem::take(&mut self.reads) {
            let missed = self.writes.get(&path).and_then(|writes| writes.range(mzxid + 1..).next());
            if let Some((missed, _)) = missed.filter(|(zxid, _)| **zxid <= state) {
                self.violated(format!("a read of {path} at {state} misses write {missed}"));
            }
        }
    }
}

/// A hash of a whole state.
fn fingerprint(state: &State) -> u64 {
    let mut seen = Fingerprint(0);
    seen.add(state.zxid().cast_unsigned());
    for (id, session) in state.sessions() {
        seen.bytes(&session.password);
        for field in [session.server.0, session.epoch.0.into(), session.sequence, session.last_touch.0] {
            seen.add(field);
        }
        seen.add(id.0.cast_unsigned());
    }
    let mut pending = vec![path::ROOT.to_owned()];
    while let Some(path) = pending.pop() {
        let Some(node) = state.tree().get(&path) else { continue };
        pending.extend(node.children().map(|name| path::join(&path, name)));
        seen.bytes(path.as_bytes());
        seen.bytes(node.data().unwrap_or(b"null"));
        let stat = node.stat();
        for field in [stat.czxid, stat.mzxid, stat.pzxid, stat.ctime, stat.mtime, stat.ephemeral_owner] {
            seen.add(field.cast_unsigned());
        }
        for field in [stat.version, stat.cversion, stat.aversion] {
            seen.add(u64::from(field.cast_unsigned()));
        }
    }
    seen.0
}

struct Fingerprint(u64);

impl Fingerprint {
    fn add(&mut self, value: u64) {
        self.0 = (self.0.rotate_left(5) ^ value).wrapping_mul(0x517c_c1b7_2722_0a95);
    }

    fn bytes(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.add((*byte).into()));
    }
}
