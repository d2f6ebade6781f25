//! What the tests of this crate share: a log that mints entries, and short names for writes.

use base::{Entry, Lsn, SplitMix64, Timestamp};
use bytes::Bytes;

use crate::command::Command;
use crate::request::{Mutation, Outcome, SessionId, SessionStamp, Write};
use crate::state::State;

/// Mints entries, each the successor of the last.
#[derive(Clone, Debug)]
pub(crate) struct Log {
    pub(crate) last: Lsn,
    pub(crate) timestamp: Timestamp,
}

impl Log {
    pub(crate) fn new() -> Self {
        Self { last: Lsn::ZERO, timestamp: Timestamp(0) }
    }

    /// A log that goes on after a state.
    pub(crate) fn after(state: &State) -> Self {
        Self { last: state.last_applied(), timestamp: state.last_timestamp() }
    }

    pub(crate) fn entry(&mut self, payload: Bytes) -> Entry {
        let lsn = Lsn::new(self.last.epoch.0.max(1), self.last.sequence.0 + 1);
        self.timestamp = Timestamp(self.timestamp.0 + 10);
        let entry = Entry { lsn, previous: self.last, timestamp: self.timestamp, payload };
        self.last = lsn;
        entry
    }

    /// Applies a command, and gives its outcome.
    pub(crate) fn apply(&mut self, state: &mut State, command: &Command) -> Option<Outcome> {
        state.apply(&self.entry(command.encode())).expect("the log's next entry").outcome
    }

    pub(crate) fn write(&mut self, state: &mut State, write: &Write) -> Outcome {
        let command = state.as_tablet().expect("it is a tablet").decide(write.clone());
        self.apply(state, &command).expect("a write has an outcome")
    }
}

pub(crate) fn bytes(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

pub(crate) fn put(column: &str, value: &str) -> Mutation {
    Mutation { column: bytes(column), value: Some(bytes(value)), condition: None }
}

pub(crate) fn delete(column: &str) -> Mutation {
    Mutation { column: bytes(column), value: None, condition: None }
}

/// The mutation, if the column has this version.
pub(crate) fn if_version(mutation: Mutation, version: i64) -> Mutation {
    Mutation { condition: Some(Timestamp(version)), ..mutation }
}

pub(crate) fn write(key: &str, mutations: impl Into<Vec<Mutation>>) -> Write {
    Write { stamp: None, key: bytes(key), mutations: mutations.into() }
}

/// The write as a session's.
pub(crate) fn stamped(write: Write, session: SessionId, sequence: u64, first_incomplete: u64) -> Write {
    Write { stamp: Some(SessionStamp { session, sequence, first_incomplete }), ..write }
}

/// So many random bytes.
pub(crate) fn noise(random: &mut SplitMix64, length: usize) -> Bytes {
    (0..length).map(|_| random.draw().to_le_bytes()[0]).collect()
}
