//! A log unit as the state machine of a cohort (guarantee 20).
//!
//! A unit's commands are the entries of its cohort's log, and so records of its node's write-ahead log: one force
//! serves all that the node has. Its cohort has one member. The copies of a position are made by the shared log, on the
//! other units of the position's chain, and not by this log's replication. What the unit knows by itself is
//! [`Unit`]; the values lie in a tree, under their positions, and move from the log to its tables as a
//! tablet's rows do.
//!
//! Units have messages of their own ([`unit::Request`], [`Reply`]): they are not asked by requests to their cohorts
//! ([`NoRequest`]), and how a command is answered is an event.

use base::codec::{DecodeError, Reader, Writer};
use base::{CohortId, Entry, Incarnation, Lsn, Timestamp};
use machine::checkpoint::{Chunked, Keep, LoadError, Loader, Snapshot};
use machine::state_machine::{
    self, Applied, Effect, Evaluated, Kind, NoView, Payload, Read, Reading, StateMachine, Wire,
};
use machine::{ApplyError, LogicalHash, Progress, ReadError};
use store::cell;
use store::sstable::Io;
use store::tree::{Tree, View};

use crate::unit::{self, Command, Met, Reply, Request, Unit};
use crate::{Kept, Position, ProjectionEpoch, Stripe};

/// Where the value of a position's row lies.
const COLUMN: &[u8] = b"v";

/// The positions of a log that one unit holds.
#[derive(Debug)]
pub struct LogUnit {
    progress: Progress,
    unit: Unit,
    tree: Tree,
    /// What the last entry applied is to those who wait.
    news: News,
}

/// What an entry that was applied is to those who wait at the unit.
#[derive(Debug, Default)]
pub struct News {
    /// The positions that it has stored something at.
    pub stored: Vec<Position>,
    /// It has sealed the unit, or trimmed it: for whatever position one waits, another answer may come.
    pub is_other: bool,
}

/// Something that must be looked up to be answered.
#[derive(Clone, Debug)]
pub struct Lookup {
    values: View,
    at: Timestamp,
    /// What lies below was trimmed.
    mark: Position,
    /// What the answers are made of.
    asked: unit::Outcome,
}

/// How a request to a unit, or an applied command, is answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// With this.
    Reply(Reply),
    /// With the result of this, which may have to wait for the disk.
    Lookup(Lookup),
}

/// No request to the cohort of a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoRequest {}

impl LogUnit {
    fn of(progress: Progress, unit: Unit, tree: Tree) -> Self {
        Self { progress, unit, tree, news: News::default() }
    }

    /// Keeps what is to be kept: what remains is the answer, or what must be looked up for it.
    fn keep(&mut self, outcome: unit::Outcome, entry: &Entry) -> unit::Outcome {
        match outcome {
            unit::Outcome::Store { position, kept, reply } => {
                let mut value = Writer::new();
                kept.encode(&mut value);
                self.news.stored.push(position);
                self.tree.put(key(position).into(), entry.timestamp, entry.lsn, Some(value.finish()));
                unit::Outcome::Reply(reply)
            }
            unit::Outcome::Many { each, bytes } => {
                let each = each.into_iter().map(|outcome| self.keep(outcome, entry)).collect();
                unit::Outcome::Many { each, bytes }
            }
            outcome => outcome,
        }
    }

    /// Answers a request from the applied state; none if it is a command that the log is to carry.
    #[must_use]
    pub fn meet(&self, request: &Request) -> Option<Answer> {
        match self.unit.meet(request) {
            Met::Log { .. } => None,
            Met::Answer(outcome) => Some(self.answer(outcome)),
        }
    }

    /// The answer, if nothing must be looked up for it.
    fn answer(&self, outcome: unit::Outcome) -> Answer {
        match outcome {
            unit::Outcome::Reply(reply) | unit::Outcome::Store { reply, .. } | unit::Outcome::Forget { reply, .. } => {
                Answer::Reply(reply)
            }
            unit::Outcome::Many { each, .. } if each.iter().all(|one| matches!(one, unit::Outcome::Reply(_))) => {
                let said = |one| if let unit::Outcome::Reply(reply) = one { Some(reply) } else { None };
                Answer::Reply(Reply::Many(each.into_iter().filter_map(said).collect()))
            }
            asked => {
                let (values, at, mark) = (self.tree.view(), self.progress.last_timestamp, self.unit.trimmed());
                Answer::Lookup(Lookup { values, at, mark, asked })
            }
        }
    }

    /// What the last entry applied is to those who wait at the unit; once.
    pub fn take_news(&mut self) -> News {
        std::mem::take(&mut self.news)
    }

    /// Whether it has not begun.
    #[must_use]
    pub fn is_blank(&self) -> bool {
        self.unit == Unit::new(self.unit.disk())
    }

    /// Everything of this epoch of its log and before is refused.
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

    /// The stripes that it was told of.
    pub fn told(&self) -> impl Iterator<Item = Stripe> {
        self.unit.told()
    }

    /// Whether it knows that what lies at a position can't be read.
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
    fn reply(&self, asked: &unit::Outcome, io: Io) -> Result<Reply, ReadError> {
        match asked {
            unit::Outcome::Look { position } => Ok(unit::found(self.kept(*position, io)?, self.mark)),
            unit::Outcome::Compare { position, entry } => {
                Ok(unit::compared(self.kept(*position, io)?.as_ref(), entry, self.mark))
            }
            unit::Outcome::Many { each, bytes } => {
                Reply::of_many(each.iter().map(|asked| self.reply(asked, io)), *bytes)
            }
            unit::Outcome::Reply(reply) | unit::Outcome::Store { reply, .. } | unit::Outcome::Forget { reply, .. } => {
                Ok(reply.clone())
            }
        }
    }

    /// What is kept under a position. What can't be read as a value is as good as lost.
    fn kept(&self, position: Position, io: Io) -> Result<Option<Kept>, ReadError> {
        let value = self.values.newest(&position.0.to_be_bytes(), COLUMN, self.at, io)?;
        Ok(value.and_then(|(_, value)| Kept::decode(&mut Reader::new(value)).ok()))
    }
}

impl PartialEq for Lookup {
    /// Of the same sources, at the same places.
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.mark) == (other.at, other.mark)
            && self.asked == other.asked
            && self.values.is_same(&other.values)
    }
}

impl Eq for Lookup {}

impl Read for Lookup {
    type Response = Box<Reply>;

    fn answer(&self, io: Io) -> Result<Evaluated<Box<Reply>>, ReadError> {
        Ok(Evaluated::Outcome(Ok(Box::new(self.reply(&self.asked, io)?))))
    }
}

impl Wire for NoRequest {
    fn encode(&self, _: &mut Writer) {
        match *self {}
    }

    fn decode(_: &mut Reader) -> Result<Self, DecodeError> {
        Err(DecodeError::Invalid { what: "request to a log unit" })
    }
}

impl state_machine::Request for NoRequest {
    fn reads(&self) -> bool {
        match *self {}
    }
}

/// The endpoints bound the bytes of log reads in flight: their answers are not replaced when the queue to a peer is long.
impl state_machine::Response for Reply {
    fn is_of_read(&self) -> bool {
        false
    }
}

impl StateMachine for LogUnit {
    const KIND: Kind = Kind::LOG_UNIT;

    type Request = NoRequest;
    type Response = Box<Reply>;
    type Event = Answer;
    type Read = Lookup;
    type View = NoView<NoRequest, Lookup>;
    type Snapshot = UnitSnapshot;
    type Storage = Tree;

    fn new(cohort: CohortId, disk: Incarnation, tree: Tree) -> Self {
        Self::of(Progress::new(cohort), Unit::new(disk), tree)
    }

    fn progress(&self) -> &Progress {
        &self.progress
    }

    fn apply(&mut self, entry: &Entry) -> Result<Applied<Box<Reply>, Answer>, ApplyError> {
        self.progress.check(entry)?;
        self.news = News::default();
        if entry.payload.is_empty() {
            self.progress.advance(entry);
            return Ok(Applied::NOTHING);
        }
        let command = Command::decode(entry.payload.clone()).map_err(|e| self.progress.undecodable(entry, e))?;
        self.progress.advance(entry);
        let before = (self.unit.sealed(), self.unit.trimmed());
        let outcome = self.unit.apply(command);
        self.news.is_other = before != (self.unit.sealed(), self.unit.trimmed());
        let kept = self.keep(outcome, entry);
        Ok(Applied::effect(Effect::Own(self.answer(kept))))
    }

    fn read(&self, request: &NoRequest) -> Reading<Box<Reply>, Lookup> {
        match *request {}
    }

    fn propose(&self, request: &NoRequest) -> Payload<Lookup> {
        match *request {}
    }

    /// Units are asked by other nodes, and by nobody else.
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

    /// Tables that were trimmed since the checkpoint go once there is a newer one.
    fn reclaimable_bytes(&self, checkpoint: Option<&UnitSnapshot>) -> u64 {
        let kept = kept_cells(&self.unit);
        let before = checkpoint.map_or_else(cell::Range::all, |checkpoint| kept_cells(&checkpoint.unit));
        if before.start == kept.start { 0 } else { self.tree.bytes_ending(&before.start, &kept.start) }
    }
}

/// A unit, frozen.
#[derive(Clone, Debug)]
pub struct UnitSnapshot {
    progress: Progress,
    unit: Unit,
}

impl Chunked for UnitSnapshot {
    fn kind(&self) -> Kind {
        Kind::LOG_UNIT
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

/// All of it is in the header.
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

/// Values sort as their positions do.
fn key(position: Position) -> Vec<u8> {
    cell::encode(&position.0.to_be_bytes(), COLUMN)
}

/// What a unit has not trimmed.
fn kept_cells(unit: &Unit) -> cell::Range {
    cell::Range::rows(&unit.trimmed().0.to_be_bytes(), None)
}

#[cfg(test)]
mod tests;
