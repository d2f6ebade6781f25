//! Users of a shared log: they append, read, request the tail and trim, each through some node, and check every
//! response against all earlier ones (guarantee 20).
//!
//! * A position never has two values.
//! * A completed append stays at the position that was returned; if it completed before another began, its position is
//!   lower.
//! * An append occupies at most as many positions as it was attempted. A reader of the whole log delivers each append
//!   once.
//! * The tail is above every append that completed before the tail was requested.
//! * Once faults have ended, one user reads the whole log.

use std::collections::{BTreeMap, BTreeSet};

use base::{Duration, Member, NodeId, SplitMix64};
use bytes::Bytes;
use catalog::{Catalog, LogRecord};
use node::contract::{Event, RequestId};
use node::request::{Outcome, Request, Response};
use sharedlog::duplicates::Duplicates;
use sharedlog::limits::BATCH_BYTES_MAX;
use sharedlog::log_unit::LogUnit;
use sharedlog::recovery::{Homes, healings};
use sharedlog::request::{Content, LogEntry, LogRequest, LogResponse};
use sharedlog::{Batch, ClientId, Position, Stamp, UnitId};
use state_machine::Failure;

use super::events::Happening;
use super::{MILLISECOND, World};

const LOG: &str = "log";
/// Deadline of a request to one node.
const DEADLINE: Duration = Duration::from_millis(2_000);
/// Deadline of requests that expire before their wait is over.
const HURRIED: Duration = Duration::from_millis(40);
/// How long a user waits for a response before it tries another node.
const PATIENCE: u64 = 2_500 * MILLISECOND;
const READ: u32 = 8;

/// The users of the log.
pub(crate) struct LogUsers {
    random: SplitMix64,
    users: Vec<User>,
    asked: BTreeMap<RequestId, usize>,
    is_created: bool,
    stripes: u32,
    /// The content seen at each position.
    seen: BTreeMap<u64, ObservedEntry>,
    /// The positions at which each append was seen.
    places: BTreeMap<Stamp, BTreeSet<u64>>,
    attempts: BTreeMap<Stamp, usize>,
    /// The acknowledged appends, by position.
    acknowledged: BTreeMap<u64, Stamp>,
    /// The stamps seen by the reader of the whole log, and the appends that it delivered.
    reader: Duplicates,
    delivered: BTreeSet<Stamp>,
    /// One past the highest position of a completed append.
    ended: u64,
    /// Positions below were requested to be trimmed.
    trimmed: u64,
    /// Whether the whole log was read at the end.
    is_read: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ObservedEntry {
    Data(Stamp),
    Junk,
}

#[derive(Default)]
struct User {
    doing: Option<Doing>,
    /// Number of the last append.
    sequence: u64,
    /// The request in flight and its node.
    asked: Option<(RequestId, NodeId)>,
    /// Counts scheduled wakeups; older ones are ignored.
    calls: u64,
    /// The end of the last read, and its node: a reader that follows the log continues there.
    read_to: Option<(u64, NodeId)>,
}

#[derive(Clone, Debug)]
enum Doing {
    Create,
    /// `floor`: positions of appends that completed before this attempt are below.
    Append {
        floor: u64,
    },
    Read {
        from: u64,
        wait: Duration,
        floor: u64,
        /// An entry was seen there before.
        is_there: bool,
        how: Haste,
    },
    Tail {
        floor: u64,
    },
    Trim {
        before: u64,
    },
    /// Reads the whole log up to a tail.
    ReadAll {
        next: u64,
        tail: Option<u64>,
        floor: u64,
    },
}

/// How a reader deals with a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Haste {
    None,
    /// Its deadline is before the end of its wait: at a hole, it may receive an empty result.
    Deadline,
    /// It cancels before it receives a response.
    Leaves,
}

impl LogUsers {
    pub(crate) fn new(users: u32, seed: u64) -> Self {
        let users = (0..users).map(|_| User::default()).collect();
        let mut random = SplitMix64::new(seed ^ 0x10_6000);
        // Only logs with one chain are followed.
        let stripes = 1 + random.below(2) as u32;
        Self {
            random,
            users,
            asked: BTreeMap::new(),
            is_created: false,
            stripes,
            seen: BTreeMap::new(),
            places: BTreeMap::new(),
            attempts: BTreeMap::new(),
            acknowledged: BTreeMap::new(),
            reader: Duplicates::default(),
            delivered: BTreeSet::new(),
            ended: 0,
            trimmed: 0,
            is_read: false,
        }
    }

    /// Whether all users are idle and the whole log was read.
    pub(crate) fn are_done(&self) -> bool {
        self.users.is_empty() || self.is_read && self.users.iter().all(|user| user.doing.is_none())
    }

    /// Describes pending operations, for a run that is stuck.
    pub(crate) fn waiting_for(&self) -> String {
        let doing: Vec<_> = self.users.iter().filter_map(|user| user.doing.as_ref()).collect();
        if doing.is_empty() { String::new() } else { format!("users of the log: {doing:?}") }
    }

    fn next(&mut self, user: usize, healed: bool) -> Option<Doing> {
        if !self.is_created {
            return (user == 0).then_some(Doing::Create);
        }
        if healed {
            return (user == 0 && !self.is_read).then_some(Doing::ReadAll { next: self.trimmed, tail: None, floor: 0 });
        }
        let floor = self.ended;
        Some(match self.random.below(20) {
            0..11 => {
                self.users[user].sequence += 1;
                Doing::Append { floor }
            }
            11..14 if let Some((from, _)) = self.users[user].read_to => {
                let (wait, is_there) = (Duration::from_millis(30), self.seen.contains_key(&from));
                Doing::Read { from, wait, floor, is_there, how: Haste::None }
            }
            11..17 => {
                let from = self.trimmed + self.random.below(self.ended.saturating_sub(self.trimmed) + 4);
                let wait = Duration::from_millis([0, 0, 30][self.random.below(3) as usize]);
                let how = [Haste::None, Haste::None, Haste::Deadline, Haste::Leaves][self.random.below(4) as usize];
                Doing::Read { from, wait, floor, is_there: self.seen.contains_key(&from), how }
            }
            17..19 => Doing::Tail { floor },
            _ => Doing::Trim { before: self.trimmed + self.random.below(self.ended.saturating_sub(self.trimmed) + 1) },
        })
    }

    fn stamp(&self, user: usize) -> Stamp {
        Stamp { client: ClientId(1 << 60 | user as u64), sequence: self.users[user].sequence }
    }

    fn request(&self, user: usize, doing: &Doing) -> LogRequest {
        let log = || LOG.to_owned();
        match doing {
            Doing::Create => LogRequest::Create { name: log(), stripes: self.stripes, copies: 0 },
            Doing::Append { .. } => {
                let stamp = self.stamp(user);
                let record = Bytes::from(format!("{} of {user}", stamp.sequence));
                let batch = Batch::of(&[record]).expect("the batch is small");
                LogRequest::Append { log: log(), batch, stamp: Some(stamp) }
            }
            Doing::Read { from, wait, .. } => {
                LogRequest::Read { log: log(), from: Position(*from), count: READ, wait: *wait, bytes: BATCH_BYTES_MAX }
            }
            Doing::Tail { .. } | Doing::ReadAll { tail: None, .. } => LogRequest::Tail { log: log() },
            Doing::Trim { before } => LogRequest::Trim { log: log(), before: Position(*before) },
            Doing::ReadAll { next, tail: Some(tail), .. } if next >= tail => LogRequest::Tail { log: log() },
            Doing::ReadAll { next, .. } => {
                let wait = Duration::from_millis(50);
                LogRequest::Read { log: log(), from: Position(*next), count: READ, wait, bytes: BATCH_BYTES_MAX }
            }
        }
    }

    /// Records the content of a position.
    fn see(&mut self, position: u64, seen: ObservedEntry) -> Result<(), String> {
        match self.seen.insert(position, seen) {
            Some(before) if before != seen => Err(format!("position {position} changed from {before:?} to {seen:?}")),
            _ => Ok(()),
        }
    }

    fn see_entries(&mut self, from: u64, entries: &[LogEntry]) -> Result<(), String> {
        for (entry, position) in entries.iter().zip(from..) {
            if entry.position.0 != position {
                return Err(format!("position {} was returned instead of {position}", entry.position));
            }
            match &entry.content {
                Content::Data(data) => {
                    let places = self.places.entry(data.stamp).or_default();
                    places.insert(position);
                    let attempts = self.attempts.get(&data.stamp).copied().unwrap_or(0);
                    if places.len() > attempts {
                        return Err(format!("{:?} occupies {places:?} after {attempts} attempts", data.stamp));
                    }
                    self.see(position, ObservedEntry::Data(data.stamp))?;
                }
                Content::Junk => self.see(position, ObservedEntry::Junk)?,
                Content::Trimmed { mark } if mark.0 <= self.trimmed && position < mark.0 => {}
                other => {
                    return Err(format!(
                        "position {position} has content {other:?}, with the log trimmed below {}",
                        self.trimmed
                    ));
                }
            }
        }
        Ok(())
    }

    /// Delivers the next entries, like a subscription.
    fn deliver(&mut self, entries: &[LogEntry]) -> Result<(), String> {
        for LogEntry { position, content } in entries {
            if let Content::Data(data) = content
                && self.reader.is_first(data.stamp, *position)
                && !self.delivered.insert(data.stamp)
            {
                return Err(format!("{:?} was delivered twice, again at {position}", data.stamp));
            }
        }
        Ok(())
    }

    /// After the whole log was read, checks that every acknowledged append that is not trimmed was delivered.
    fn check_delivered(&self) -> Result<(), String> {
        let lies = |position: &u64, stamp: &Stamp| self.seen.get(position) == Some(&ObservedEntry::Data(*stamp));
        let mut acknowledged = self.acknowledged.range(self.trimmed..);
        match acknowledged.find(|(at, stamp)| !lies(at, stamp) || !self.delivered.contains(stamp)) {
            Some((at, stamp)) => Err(format!("{stamp:?} was appended at {at} but not delivered")),
            None => Ok(()),
        }
    }

    /// Handles a response. Returns whether the user has completed its operation.
    ///
    /// # Errors
    /// The invariant that the response violates.
    fn answered(&mut self, user: usize, doing: &mut Doing, outcome: &Outcome) -> Result<bool, String> {
        let response = match outcome {
            Ok(Response::Log(response)) => response,
            Err(Failure::MayLie { .. }) if !matches!(doing, Doing::Append { .. }) => {
                return Err("the outcome is only valid for an append".to_owned());
            }
            Err(Failure::MayLie { .. } | Failure::Unknown(_)) => return Ok(false),
            // A reader with a short deadline tries once.
            Err(Failure::Unavailable(_) | Failure::NoSpace(_))
                if matches!(doing, Doing::Read { how: Haste::Deadline, .. }) =>
            {
                return Ok(true);
            }
            Err(Failure::Unavailable(_) | Failure::NoSpace(_) | Failure::Overloaded(_)) => return Ok(false),
            other => return Err(format!("unexpected outcome: {other:?}")),
        };
        match (doing, response) {
            (Doing::Create, LogResponse::Created { .. }) => self.is_created = true,
            (Doing::Append { floor }, LogResponse::Appended(position)) => {
                let stamp = self.stamp(user);
                self.see(position.0, ObservedEntry::Data(stamp))?;
                self.acknowledged.insert(position.0, stamp);
                if position.0 < *floor {
                    return Err(format!(
                        "an append got {position}, but one at {floor} - 1 had completed before it began"
                    ));
                }
                self.ended = self.ended.max(position.0 + 1);
            }
            (Doing::Read { from, wait, floor, is_there, how }, LogResponse::Entries(entries)) => {
                self.see_entries(*from, entries)?;
                let read_to = &mut self.users[user].read_to;
                let is_trimmed = entries.iter().any(|entry| matches!(entry.content, Content::Trimmed { .. }));
                *read_to = read_to.filter(|_| !is_trimmed).map(|(_, node)| (*from + entries.len() as u64, node));
                let is_filled = *wait > Duration::ZERO && *how != Haste::Deadline;
                if entries.is_empty() && (*is_there || is_filled && *from < *floor) {
                    return Err(format!("a read at {from} was empty, although appends below {floor} had completed"));
                }
            }
            (Doing::Tail { floor }, LogResponse::Tail(tail)) => {
                if tail.0 < *floor {
                    return Err(format!("the tail is {tail}, although an append below {floor} had completed"));
                }
            }
            (Doing::Trim { .. }, LogResponse::Trimmed) => {}
            (Doing::ReadAll { next, tail, floor }, LogResponse::Tail(end)) => {
                if end.0 < *floor {
                    return Err(format!("the final tail is {end}, although an append below {floor} had completed"));
                }
                *tail = Some(end.0);
                self.is_read = *next >= end.0;
                if self.is_read {
                    self.check_delivered()?;
                }
                return Ok(self.is_read);
            }
            (Doing::ReadAll { next, tail, .. }, LogResponse::Entries(entries)) => {
                self.see_entries(*next, entries)?;
                self.deliver(entries)?;
                *next += entries.len() as u64;
                // Positions that a sequencer assigned and no client wrote are assigned again by its successor: the tail
                // may have gone backwards.
                *tail = tail.filter(|_| !entries.is_empty());
                return Ok(false);
            }
            (doing, other) => return Err(format!("{doing:?}: unexpected response {other:?}")),
        }
        Ok(true)
    }
}

impl World {
    pub(crate) fn begin_log_users(&mut self) {
        for user in 0..self.log_users.users.len() {
            let at = self.now + self.log_users.random.below(500 * MILLISECOND);
            self.queue.put(at, Happening::LogUser { user, call: 0 });
        }
    }

    /// A user wakes up: it begins an operation, or its request has timed out.
    pub(crate) fn log_user(&mut self, user: usize, call: u64) {
        let healed = self.healed;
        let users = &mut self.log_users;
        if users.users[user].calls != call {
            return;
        }
        if let Some((request, node)) = users.users[user].asked.take() {
            users.asked.remove(&request);
            users.users[user].read_to = None;
            users.users[user].doing.take_if(|doing| matches!(doing, Doing::Read { how: Haste::Leaves, .. }));
            let is_up = self.hosts.get(&node).is_some_and(|machine| machine.process.is_some() && !machine.paused);
            if is_up {
                self.step(node, Event::GivenUp { requests: BTreeSet::from([request]) });
            }
        }
        let users = &mut self.log_users;
        let doing = users.users[user].doing.take().or_else(|| users.next(user, healed));
        let ended = users.ended;
        let Some(mut doing) = doing else { return self.wake_log_user(user, 200 * MILLISECOND) };
        match &mut doing {
            Doing::Trim { before } => users.trimmed = users.trimmed.max(*before),
            Doing::ReadAll { floor, .. } => *floor = ended,
            // An append of unknown outcome is retried.
            Doing::Append { floor } => *floor = ended,
            _ => {}
        }
        let request = Request::Log(users.request(user, &doing));
        let (deadline, patience) = match &doing {
            Doing::Read { how: Haste::Deadline, .. } => (HURRIED, PATIENCE),
            Doing::Read { how: Haste::Leaves, .. } => (DEADLINE, 10 * MILLISECOND),
            _ => (DEADLINE, PATIENCE),
        };
        users.users[user].doing = Some(doing);
        let count = self.hosts.len() as u64;
        let node = NodeId(1 + self.log_users.random.below(count) as u32);
        let user_here = &mut self.log_users.users[user];
        let node = match (&user_here.doing, user_here.read_to) {
            (Some(Doing::Read { from, .. }), Some((next, at))) if *from == next => at,
            (Some(Doing::Read { from, .. }), _) => {
                user_here.read_to = Some((*from, node));
                node
            }
            _ => node,
        };
        let is_up = self.hosts.get(&node).is_some_and(|machine| machine.process.is_some() && !machine.paused);
        if !is_up {
            self.log_users.users[user].read_to = None;
            return self.wake_log_user(user, 50 * MILLISECOND);
        }
        let deadline = self.hosts[&node].clocks.monotonic(self.now) + deadline;
        let number = self.libraries.number();
        self.log_users.users[user].asked = Some((number, node));
        self.log_users.asked.insert(number, user);
        if matches!(self.log_users.users[user].doing, Some(Doing::Append { .. })) {
            *self.log_users.attempts.entry(self.log_users.stamp(user)).or_default() += 1;
        }
        self.wake_log_user(user, patience);
        self.step(node, Event::Request { id: number, deadline, request });
    }

    /// Whether every log has all its copies, as far as suitable units exist, and none on a node that is leaving,
    /// according to the newest copy of the catalog.
    pub(crate) fn are_logs_whole(&self) -> bool {
        self.under_replicated_log().is_none()
    }

    /// The newest copy of the catalog. Nodes that have left receive no updates.
    fn newest_catalog(&self) -> Option<&Catalog> {
        let processes = self.hosts.values().filter_map(|machine| machine.process.as_ref());
        let catalogs =
            processes.flat_map(|process| process.node.replicas()).filter_map(|(.., state)| state.as_catalog());
        catalogs.max_by_key(|catalog| catalog.last_applied())
    }

    /// A running unit, and whether it is in doubt.
    fn unit(&self, log: &LogRecord, unit: UnitId) -> Option<(&LogUnit, bool)> {
        let machine = self.hosts.values().find(|machine| log.member_of(unit) == Some(machine.member))?;
        let mut replicas = machine.process.as_ref()?.node.replicas();
        let (_, cohort, state) = replicas.find(|(id, ..)| catalog::cohort_of(unit) == Some(*id))?;
        Some((state.as_unit()?, cohort.is_in_doubt()))
    }

    fn is_in_doubt(&self, log: &LogRecord, unit: UnitId) -> bool {
        self.unit(log, unit).is_some_and(|(_, is_in_doubt)| is_in_doubt)
    }

    /// Whether a disk may lose its units because each position has a copy on another disk, in the current projection
    /// and in one that may be about to replace it.
    pub(crate) fn may_units_be_lost(&self) -> bool {
        // An unsealed unit is in no later projection without the other units of its chain.
        let is_unsealed = |log: &LogRecord, unit: UnitId| {
            self.unit(log, unit).is_some_and(|(unit, _)| unit.sealed() < log.projection.epoch)
        };
        let logs = || self.newest_catalog().into_iter().flat_map(|catalog| catalog.logs()).map(|(_, log)| log);
        let are_unsealed = logs().all(|log| log.projection.units().into_iter().all(|unit| is_unsealed(log, unit)));
        let has_logs = self.options.log_users + self.options.zookeeper_clients > 0;
        !has_logs || logs().next().is_some() && self.are_logs_whole() && are_unsealed
    }

    /// A log with missing copies.
    pub(crate) fn under_replicated_log(&self) -> Option<&LogRecord> {
        let is_thin = |catalog: &Catalog, log: &LogRecord| {
            let has_disk = |member: &Member| {
                self.hosts
                    .values()
                    .any(|machine| machine.member == *member && !machine.is_gone && !machine.is_foreign())
            };
            let staying: Vec<Member> = catalog.staying().filter(has_disk).collect();
            let stays = |unit: UnitId| log.member_of(unit).is_some_and(|member| staying.contains(&member));
            let copies = (log.copies as usize).min(staying.len());
            let homes: Homes = log.units.iter().copied().collect();
            !log.projection.units().into_iter().all(|unit| stays(unit) && !self.is_in_doubt(log, unit))
                || log.projection.last().chains.iter().any(|chain| chain.len() < copies)
                || !healings(&log.projection, copies, &homes, &BTreeSet::new()).is_empty()
        };
        let newest = self.newest_catalog()?;
        newest.logs().map(|(_, log)| log).find(|log| is_thin(newest, log))
    }

    fn wake_log_user(&mut self, user: usize, after: u64) {
        let woken = &mut self.log_users.users[user];
        woken.calls += 1;
        let call = woken.calls;
        self.queue.put(self.now + after, Happening::LogUser { user, call });
    }

    /// Handles a node's response to a user of the log; returns false if the request was not a user's.
    pub(crate) fn log_user_answered(&mut self, id: RequestId, outcome: &Outcome) -> bool {
        let users = &mut self.log_users;
        let Some(user) = users.asked.remove(&id) else { return false };
        users.users[user].asked = None;
        let Some(mut doing) = users.users[user].doing.take() else { return true };
        match users.answered(user, &mut doing, outcome) {
            Err(wrong) => self.violate(&format!("user {user} of the log, {doing:?}: {wrong}")),
            Ok(is_done) => {
                let think = if self.healed { 1 } else { 40 };
                let after = self.log_users.random.below(think * MILLISECOND) + MILLISECOND;
                if is_done {
                    self.count(match doing {
                        Doing::Create => "logs created",
                        Doing::Append { .. } => "log appends",
                        Doing::Read { .. } | Doing::ReadAll { .. } => "log reads",
                        Doing::Tail { .. } => "log tail requests",
                        Doing::Trim { .. } => "log trims",
                    });
                } else {
                    self.log_users.users[user].doing = Some(doing);
                    self.log_users.users[user].read_to = None;
                }
                self.wake_log_user(user, after);
            }
        }
        true
    }
}
