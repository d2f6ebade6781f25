//! A counter: the smallest state machine that a node can host. It tests the interface and is a template for new state
//! machines. No release binary contains it: `node` registers it only with its feature `counter`, which tests enable.

use std::convert::Infallible;

use base::codec::{Reader, Writer};
use base::{CohortId, Entry, Incarnation, KeyRange, Timestamp};
use state_machine::checkpoint::{Chunked, Keep, LoadError, Loader, Snapshot};
use state_machine::interface::{
    Applied, Evaluated, Kind, Payload, Read, ReadStep, Request, Response, StateMachine, View, Wire,
};
use state_machine::storage::{NoStorage, ReadError};
use state_machine::{ApplyError, Consistency, Failure, KeyPosition, LogicalHash, Outcome, Progress};

/// A request to a counter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CounterRequest {
    /// Adds to the counter, and returns its new value. Not idempotent: a retry may add again.
    Add(u64),
    /// Returns the current value.
    Get(Consistency),
}

/// The value of a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count(pub u64);

base::wire! { newtype Count }

impl Response for Count {
    fn is_of_read(&self) -> bool {
        false
    }
}

base::wire! {
    enum CounterRequest, "request to a counter" {
        1 => Add(amount),
        2 => Get(consistency),
    }
}

impl Request for CounterRequest {
    fn validate(&self) -> Result<(), Failure> {
        Ok(())
    }

    fn reads(&self) -> bool {
        matches!(self, Self::Get(_))
    }

    fn consistency(&self) -> Consistency {
        if let Self::Get(consistency) = self { *consistency } else { Consistency::Strong }
    }

    /// A counter is the only range of its table.
    fn position(&self) -> Option<KeyPosition> {
        Some(KeyPosition::At([].as_slice().into()))
    }
}

/// The state of a counter.
#[derive(Clone, Debug)]
pub struct Counter {
    progress: Progress,
    count: Count,
    storage: NoStorage,
}

/// A read of a counter. It is answered from memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CounterRead(Count);

impl Read for CounterRead {
    type Response = Count;

    fn answer(&self, _: state_machine::storage::Io) -> Result<Evaluated<Count>, ReadError> {
        Ok(Evaluated::Outcome(Ok(self.0)))
    }
}

impl View for Counter {
    type Request = CounterRequest;
    type Read = CounterRead;

    fn read(&self, request: &CounterRequest) -> Option<CounterRead> {
        request.reads().then_some(CounterRead(self.count))
    }

    fn at(self, moment: Timestamp) -> Result<Self, Failure> {
        if moment == self.progress.last_timestamp {
            return Ok(self);
        }
        Err(Failure::Invalid("a counter keeps no earlier versions".to_owned()))
    }

    fn timestamp(&self) -> Timestamp {
        self.progress.last_timestamp
    }

    fn range(&self) -> Option<&KeyRange> {
        None
    }

    fn is_same(&self, other: &Self) -> bool {
        self.progress == other.progress
    }
}

impl StateMachine for Counter {
    const KIND: Kind = Kind(0xf1);

    type Request = CounterRequest;
    type Response = Count;
    type Event = Infallible;
    type Read = CounterRead;
    type View = Self;
    type Snapshot = CounterSnapshot;
    type Storage = NoStorage;

    fn new(cohort: CohortId, _: Incarnation, storage: NoStorage) -> Self {
        Self { progress: Progress::new(cohort), count: Count(0), storage }
    }

    fn progress(&self) -> &Progress {
        &self.progress
    }

    fn apply(&mut self, entry: &Entry) -> Result<Applied<Count, Infallible>, ApplyError> {
        self.progress.check(entry)?;
        if entry.payload.is_empty() {
            self.progress.advance(entry);
            return Ok(Applied::NOTHING);
        }
        let mut input = Reader::new(entry.payload.clone());
        let amount = input.u64().map_err(|source| self.progress.undecodable(entry, source))?;
        self.progress.advance(entry);
        self.count.0 = self.count.0.wrapping_add(amount);
        Ok(Applied::outcome(Ok(self.count)))
    }

    fn read(&self, request: &CounterRequest) -> ReadStep<Count, CounterRead> {
        let outcome: Outcome<Count> = match request {
            CounterRequest::Get(_) => Ok(self.count),
            CounterRequest::Add(_) => Err(Failure::Invalid("a change is not a read".to_owned())),
        };
        ReadStep::Answer(outcome)
    }

    fn propose(&self, request: &CounterRequest) -> Payload<CounterRead> {
        match request {
            CounterRequest::Add(amount) => {
                let mut out = Writer::new();
                out.u64(*amount);
                Payload::Command(out.finish())
            }
            CounterRequest::Get(_) => Payload::Refuse(Failure::Invalid("a read is not a change".to_owned())),
        }
    }

    fn view(&self) -> Option<Self> {
        Some(self.clone())
    }

    fn snapshot(&self) -> CounterSnapshot {
        CounterSnapshot { progress: self.progress, count: self.count }
    }

    fn snapshot_bytes(&self) -> usize {
        size_of::<CounterSnapshot>()
    }

    fn storage(&self) -> &NoStorage {
        &self.storage
    }

    fn storage_mut(&mut self) -> &mut NoStorage {
        &mut self.storage
    }

    fn into_storage(self) -> NoStorage {
        self.storage
    }

    fn hash(&self, hash: &mut LogicalHash) -> Result<(), ReadError> {
        self.progress.add_to(hash);
        hash.word(self.count.0);
        Ok(())
    }

    fn invariants(&self) {}
}

/// An immutable snapshot of a counter.
#[derive(Clone, Debug)]
pub struct CounterSnapshot {
    progress: Progress,
    count: Count,
}

impl Chunked for CounterSnapshot {
    fn kind(&self) -> Kind {
        Counter::KIND
    }

    fn progress(&self) -> &Progress {
        &self.progress
    }

    fn header(&self, out: &mut Writer) {
        self.count.encode(out);
    }
}

impl Snapshot for CounterSnapshot {
    type Machine = Counter;
    type Loader = Self;

    fn keep(&self) -> Keep {
        Keep::all()
    }

    fn into_machine(self, storage: NoStorage) -> Counter {
        Counter { progress: self.progress, count: self.count, storage }
    }
}

/// The header contains the whole state.
impl Loader for CounterSnapshot {
    type Snapshot = Self;

    fn begin(progress: Progress, mut header: Reader) -> Result<Self, LoadError> {
        let count = Count::decode(&mut header)?;
        header.end()?;
        Ok(Self { progress, count })
    }

    fn finish(self) -> Result<Self, LoadError> {
        Ok(self)
    }
}
