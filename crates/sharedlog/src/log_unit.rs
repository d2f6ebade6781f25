//! A log unit as the state machine of a cohort (guarantee 20).
//!
//! A unit's commands are the entries of its cohort's log, and therefore records of its node's write-ahead log: one
//! forced write covers all cohorts of the node. The cohort has a single member, because the shared log replicates each
//! position to the other units of its chain. [`Unit`] holds the unit's state without the values. The values are stored
//! in a log-structured merge tree, keyed by position, and are flushed to SSTables like the rows of a tablet.
//!
//! Other nodes send [`unit::Request`]s to units and get [`Reply`]s, so the response to an applied command is delivered
//! as an event. The only cohort request is the one that drops the log ([`UnitRequest`]).

use base::codec::{Reader, Writer};
use base::{CohortId, Entry, Incarnation, Lsn, Timestamp};
use state_machine::checkpoint::{Chunked, Keep, LoadError, Loader, Snapshot};
use state_machine::{Applied, Effect, Evaluated, Kind, NoView, Payload, Read, ReadStep, StateMachine, Wire};
use state_machine::{ApplyError, Failure, LogicalHash, Progress, ReadError};
use store::cell;
use store::sstable::Io;
use store::tree::{Tree, View};

use crate::unit::{self, Command, DROPPED, Decision, Reply, Request, Unit};
use crate::{Kept, Position, ProjectionEpoch, Stripe};

/// The column of a position's row that holds its value.
const COLUMN: &[u8] = b"v";

/// The positions of a log that one unit holds.
#[derive(Debug)]
pub struct LogUnit {
    progress: Progress,
    unit: Unit,
    tree: Tree,
    /// Changes by the entry applied last.
    news: News,
}

/// Changes by an applied entry that parked reads may wait for.
#[derive(Debug, Default)]
pub struct News {
    /// The positions with new values.
    pub stored: Vec<Position>,
    /// The unit was sealed or trimmed, which may change the reply for any position.
    pub is_other: bool,
}

/// A lookup of stored values that completes a reply.
#[derive(Clone, Debug)]
pub struct Lookup {
    values: View,
    at: Timestamp,
    /// Positions below are trimmed.
    mark: Position,
    /// The outcome to complete.
    outcome: unit::Outcome,
}

/// The response to a request, or to an applied command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UnitResponse {
    Reply(Reply),
    /// The reply needs stored values, and may have to wait for the disk.
    Lookup(Lookup),
}

/// A request to a unit's cohort.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnitRequest {
    /// The log is being dropped: the unit refuses all further requests.
    Drop,
}

impl LogUnit {
    fn of(progress: Progress, unit: Unit, tree: Tree) -> Self {
        Self { progress, unit, tree, news: News::default() }
    }

    /// Stores the values of an outcome. Returns the remaining outcome, which is a reply or needs a lookup.
    fn keep(&mut self, outcome: unit::Outcome, entry: &Entry) -> unit::Outcome {
        match outcome {
            unit::Outcome::Store { position, kept, reply } => {
                let mut value = Writer::new();
                kept.encode(&mut value);
                self.news.stored.push(position);
                self.tree.put(key(position).into(), entry.timestamp, Some(value.finish()));
                unit::Outcome::Reply(reply)
            }
            unit::Outcome::Many { each, bytes } => {
                let each = each.into_iter().map(|outcome| self.keep(outcome, entry)).collect();
                unit::Outcome::Many { each, bytes }
            }
            outcome => outcome,
        }
    }

    /// Answers a request from the applied state. `None` if the request is a command to be appended to the log.
    #[must_use]
    pub fn decide(&self, request: &Request) -> Option<UnitResponse> {
        match self.unit.decide(request) {
            Decision::Log { .. } => None,
            Decision::Answer(outcome) => Some(self.answer(outcome)),
        }
    }

    /// Converts an outcome to a reply, or to a lookup if the reply needs stored values.
    fn answer(&self, outcome: unit::Outcome) -> UnitResponse {
        match outcome {
            unit::Outcome::Reply(reply) | unit::Outcome::Store { reply, .. } | unit::Outcome::Forget { reply, .. } => {
                UnitResponse::Reply(reply)
            }
            unit::Outcome::Many { each, .. } if each.iter().all(|one| matches!(one, unit::Outcome::Reply(_))) => {
                let reply = |one| if let unit::Outcome::Reply(reply) = one { Some(reply) } else { None };
                UnitResponse::Reply(Reply::Many(each.into_iter().filter_map(reply).collect()))
            }
            outcome => {
                let (values, at, mark) = (self.tree.view(), self.progress.last_timestamp, self.unit.trimmed());
                UnitResponse::Lookup(Lookup { values, at, mark, outcome })
            }
        }
    }

    /// Takes the changes by the entry applied last.
    pub fn take_news(&mut self) -> News {
        std::mem::take(&mut self.news)
    }

    /// Whether the unit was not started.
    #[must_use]
    pub fn is_blank(&self) -> bool {
        self.unit == Unit::new(self.unit.disk())
    }

    /// Requests of this epoch and earlier ones are refused.
    #[must_use]
    pub fn sealed(&self) -> ProjectionEpoch {
        self.unit.sealed()
    }

    /// One more than the highest position ever written.
    #[must_use]
    pub fn tail(&self) -> Position {
        self.unit.tail()
    }

    /// Whether a position is written or trimmed.
    #[must_use]
    pub fn holds(&self, position: Position) -> bool {
        self.unit.holds(position)
    }

    /// The stripes assigned to it.
    pub fn stripes(&self) -> impl Iterator<Item = Stripe> {
        self.unit.stripes()
    }

    /// Whether a position is known to be damaged.
    #[must_use]
    pub fn knows_damaged(&self, position: Position) -> bool {
        self.unit.is_damaged(position)
    }

    /// The last entry applied.
    #[must_use]
    pub fn last_applied(&self) -> Lsn {
        self.progress.last_applied
    }

    /// The timestamp of the last entry applied; 0 before the first.
    #[must_use]
    pub fn last_timestamp(&self) -> Timestamp {
        self.progress.last_timestamp
    }
}

impl Lookup {
    fn reply(&self, outcome: &unit::Outcome, io: Io) -> Result<Reply, ReadError> {
        match outcome {
            unit::Outcome::Look { position } => Ok(unit::found(self.kept(*position, io)?, self.mark)),
            unit::Outcome::Compare { position, entry } => {
                Ok(unit::compared(self.kept(*position, io)?.as_ref(), entry, self.mark))
            }
            unit::Outcome::Many { each, bytes } => {
                Reply::of_many(each.iter().map(|outcome| self.reply(outcome, io)), *bytes)
            }
            unit::Outcome::Reply(reply) | unit::Outcome::Store { reply, .. } | unit::Outcome::Forget { reply, .. } => {
                Ok(reply.clone())
            }
        }
    }

    /// The stored value of a position. An undecodable value counts as lost.
    fn kept(&self, position: Position, io: Io) -> Result<Option<Kept>, ReadError> {
        let value = self.values.newest(&position.0.to_be_bytes(), COLUMN, self.at, io)?;
        Ok(value.and_then(|(_, value)| Kept::decode(&mut Reader::new(value)).ok()))
    }
}

impl PartialEq for Lookup {
    /// Compares the inputs of the lookups, not the stored values.
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.mark) == (other.at, other.mark)
            && self.outcome == other.outcome
            && self.values.is_same(&other.values)
    }
}

impl Eq for Lookup {}

impl Read for Lookup {
    type Response = Box<Reply>;

    fn answer(&self, io: Io) -> Result<Evaluated<Box<Reply>>, ReadError> {
        Ok(Evaluated::Outcome(Ok(Box::new(self.reply(&self.outcome, io)?))))
    }
}

base::wire! {
    enum UnitRequest, "request to a log unit" {
        1 => Drop,
    }
}

impl state_machine::Request for UnitRequest {
    fn validate(&self) -> Result<(), Failure> {
        Ok(())
    }

    fn reads(&self) -> bool {
        false
    }

    fn is_idempotent(&self) -> bool {
        true
    }
}

/// The endpoints already bound the bytes of log reads in flight, so replies are not replaced by an error when the queue
/// to a peer is full.
impl state_machine::Response for Reply {
    fn is_of_read(&self) -> bool {
        false
    }
}

impl StateMachine for LogUnit {
    const KIND: Kind = Kind(3);

    type Request = UnitRequest;
    type Response = Box<Reply>;
    type Event = UnitResponse;
    type Read = Lookup;
    type View = NoView<UnitRequest, Lookup>;
    type Snapshot = UnitSnapshot;
    type Storage = Tree;

    fn new(cohort: CohortId, disk: Incarnation, tree: Tree) -> Self {
        Self::of(Progress::new(cohort), Unit::new(disk), tree)
    }

    fn progress(&self) -> &Progress {
        &self.progress
    }

    fn apply(&mut self, entry: &Entry) -> Result<Applied<Box<Reply>, UnitResponse>, ApplyError> {
        self.progress.check(entry)?;
        self.news = News::default();
        if entry.payload.is_empty() {
            self.progress.advance(entry);
            return Ok(Applied::NOTHING);
        }
        let command = Command::decode(entry.payload.clone()).map_err(|e| self.progress.undecodable(entry, e))?;
        self.progress.advance(entry);
        let before = (self.unit.sealed(), self.unit.trimmed());
        let is_drop = command == Command::Seal { epoch: DROPPED };
        let outcome = self.unit.apply(command);
        self.news.is_other = before != (self.unit.sealed(), self.unit.trimmed());
        let kept = self.keep(outcome, entry);
        let dropped = is_drop.then(|| Ok(Box::new(Reply::Done)));
        Ok(Applied { outcome: dropped, effect: Some(Effect::Own(self.answer(kept))) })
    }

    fn read(&self, _: &UnitRequest) -> ReadStep<Box<Reply>, Lookup> {
        ReadStep::Answer(Err(Failure::Invalid("a drop is not a read".to_owned())))
    }

    fn propose(&self, request: &UnitRequest) -> Payload<Lookup> {
        match request {
            UnitRequest::Drop => Payload::Command(Command::Seal { epoch: DROPPED }.encode()),
        }
    }

    /// Only other nodes send requests to units, so no local thread needs a view.
    fn view(&self) -> Option<Self::View> {
        None
    }

    fn snapshot(&self) -> UnitSnapshot {
        UnitSnapshot { progress: self.progress, unit: self.unit.clone() }
    }

    fn snapshot_bytes(&self) -> usize {
        64 + 16 * self.unit.intervals()
    }

    fn storage(&self) -> &Tree {
        &self.tree
    }

    fn storage_mut(&mut self) -> &mut Tree {
        &mut self.tree
    }

    fn into_storage(self) -> Tree {
        self.tree
    }

    fn hash(&self, hash: &mut LogicalHash) -> Result<(), ReadError> {
        self.progress.add_to(hash);
        hash.bytes(&self.unit.encode());
        let now = self.last_timestamp();
        for version in self.tree.view().versions(kept_cells(&self.unit), now, Timestamp(i64::MAX), Io::Allowed) {
            let version = version?;
            hash.bytes(&version.key);
            hash.bytes(version.value.as_deref().unwrap_or_default());
        }
        Ok(())
    }

    fn invariants(&self) {
        self.unit.invariants();
        self.tree.invariants();
    }

    fn drop_request() -> Option<UnitRequest> {
        Some(UnitRequest::Drop)
    }

    /// SSTables that were trimmed since the last checkpoint are deleted after the next one.
    fn reclaimable_bytes(&self, checkpoint: Option<&UnitSnapshot>) -> u64 {
        let kept = kept_cells(&self.unit);
        let before = checkpoint.map_or_else(cell::Range::all, |checkpoint| kept_cells(&checkpoint.unit));
        if before.start == kept.start { 0 } else { self.tree.bytes_ending(&before.start, &kept.start) }
    }
}

/// A frozen copy of a unit's state.
#[derive(Clone, Debug)]
pub struct UnitSnapshot {
    progress: Progress,
    unit: Unit,
}

impl Chunked for UnitSnapshot {
    fn kind(&self) -> Kind {
        LogUnit::KIND
    }

    fn progress(&self) -> &Progress {
        &self.progress
    }

    fn header(&self, out: &mut Writer) {
        out.bytes(&self.unit.encode());
    }
}

impl Snapshot for UnitSnapshot {
    type Machine = LogUnit;
    type Loader = Self;

    fn keep(&self) -> Keep {
        Keep { watermark: self.progress.last_timestamp, cells: kept_cells(&self.unit) }
    }

    fn into_machine(self, tree: Tree) -> LogUnit {
        LogUnit::of(self.progress, self.unit, tree)
    }
}

/// The header holds the whole state.
impl Loader for UnitSnapshot {
    type Snapshot = Self;

    fn begin(progress: Progress, mut header: Reader) -> Result<Self, LoadError> {
        let unit = Unit::decode(header.bytes()?)?;
        header.end()?;
        Ok(Self { progress, unit })
    }

    fn finish(self) -> Result<Self, LoadError> {
        Ok(self)
    }
}

/// The key of a position. Keys sort in the order of positions.
fn key(position: Position) -> Vec<u8> {
    cell::encode(&position.0.to_be_bytes(), COLUMN)
}

/// The key range of the positions that are not trimmed.
fn kept_cells(unit: &Unit) -> cell::Range {
    cell::Range::rows(&unit.trimmed().0.to_be_bytes(), None)
}

#[cfg(test)]
mod tests;
