//! Messages between nodes, and their codec.

use base::codec::{DecodeError, OrZero, Reader, Wire, WireAs, Writer};
use base::{Boot, CohortId, Duration, Epoch, Interval, Lsn, Monotonic, NodeId, SharedMembership, Timestamp};
use bytes::Bytes;
use sharedlog::client::Suspect;
use sharedlog::{AskId, LogId, ProjectionEpoch, RequestSource, SequencerId, UnitId, sequencer, unit};
use state_machine::storage::FileRef;

use crate::request::Outcome;

mod beat;
mod query;
#[cfg(test)]
mod tests;

pub use beat::{Beaten, List, ListId, PeerClock};
pub use query::Query;

/// A message between two nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// From a replica to another of its cohort.
    Cohort { cohort: CohortId, message: replication::Message },
    /// The heartbeats of all cohorts that the sender leads and that are idle at the receiver.
    Beat {
        /// The number of the list of these cohorts.
        list: ListId,
        /// The list; `None` once the receiver has confirmed that it has it.
        cohorts: Option<List>,
        /// Send time by the sender's clock: leases count from here.
        sent: Monotonic,
        /// The receiver's clock as shown by its last reply for this list; `None` before the first reply.
        peer_clock: Option<PeerClock>,
    },
    /// The reply to a beat.
    BeatAnswer {
        /// The list that the beat named.
        list: ListId,
        /// The `sent` of the beat.
        sent: Monotonic,
        /// Send time of the reply, by the clock of its sender.
        at: Monotonic,
        beaten: Beaten,
    },
    /// Asks for the interval in which the receiver's wall clock places true time.
    CompareClocks {
        /// Send time by the sender's monotonic clock.
        sent: Monotonic,
        /// The sender's interval at that time.
        interval: Interval,
    },
    /// The reply. It repeats the question's fields, so that the asking node need not remember them.
    ClockReply {
        sent: Monotonic,
        asked: Interval,
        /// The interval of the replying node; `None` if the error of its wall clock has no bound.
        interval: Option<Interval>,
    },
    /// A request for the leader of a cohort.
    Forward {
        cohort: CohortId,
        /// The sender's number for the request.
        request: u64,
        /// How long the sender will wait.
        patience: Duration,
        query: Query,
    },
    /// The reply to a forwarded request.
    Answer {
        /// The number of the forwarded request.
        request: u64,
        outcome: Outcome,
    },
    /// The forwarded request was refused: the sender does not lead the cohort.
    NotLeader {
        /// The number of the forwarded request.
        request: u64,
        cohort: CohortId,
        /// The leader, if the sender knows it.
        leader: Option<NodeId>,
    },
    /// The forwarded request was refused: the sender leads the cohort, but its tablet does not own the request's first
    /// key position. The receiver must look up the range again (guarantee 19).
    ElsewhereNow {
        /// The number of the forwarded request.
        request: u64,
    },
    /// A part of a state snapshot, for a replica too far behind for the log.
    StateChunk {
        cohort: CohortId,
        epoch: Epoch,
        state: StateId,
        /// The timestamp of the last entry applied in it.
        timestamp: Timestamp,
        /// The part's number, from 0.
        index: u32,
        /// Whether it is the last.
        last: bool,
        part: StatePart,
    },
    /// Acknowledges the received parts of a snapshot.
    StateReply {
        cohort: CohortId,
        state: StateId,
        /// Number of parts received, in order.
        received: u32,
        /// Whether the snapshot is installed.
        installed: bool,
    },
    /// A message between two replicas of which at least one was removed from its node and has returned.
    OfGenerations {
        /// The generation of the sender's replica.
        from: ReplicaGeneration,
        /// The generation of the receiver's replica that is meant, as far as the sender knows.
        to: ReplicaGeneration,
        message: Box<Self>,
    },
    /// A request of a shared log's client to a sequencer.
    ToSequencer {
        log: LogId,
        /// The process that is meant.
        sequencer: SequencerId,
        /// The sender's number for the request.
        ask: AskId,
        request: sequencer::Request,
    },
    FromSequencer {
        log: LogId,
        /// The process that sent the request.
        to: Boot,
        /// The number of the request.
        ask: AskId,
        reply: sequencer::Reply,
    },
    /// A request to a log unit. It is answered at most once: the sender retransmits it.
    ToUnit {
        log: LogId,
        unit: UnitId,
        /// The machine that sent the request. The reply names it.
        source: RequestSource,
        request: unit::Request,
    },
    FromUnit {
        log: LogId,
        /// The process that sent the request.
        to: Boot,
        /// The machine that sent the request.
        source: RequestSource,
        reply: unit::Reply,
    },
    /// Reports a process or unit that blocks a log to the catalog leader, which replaces it.
    Suspected {
        log: LogId,
        /// The epoch of the projection.
        epoch: ProjectionEpoch,
        suspect: Suspect,
    },
    /// Reports log units of the sender that are permanently in doubt. The catalog leader reconfigures their logs
    /// without them.
    UnitsInDoubt { units: Vec<UnitId> },
    /// The sender's disk is full. Repeated while that is so.
    DiskFull,
    /// The receiver's message was for another generation of the sender's replica.
    Generation {
        cohort: CohortId,
        /// The current generation of the sender's replica.
        generation: ReplicaGeneration,
    },
}

/// Generation of a replica: counts how often the cohort's replica was removed from a node within one process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ReplicaGeneration(pub u32);

base::wire! { newtype ReplicaGeneration }

impl ReplicaGeneration {
    /// The replica was never removed.
    pub const FIRST: Self = Self(0);
}

/// Identifies a state snapshot. Two snapshots of the same entry differ if their rows are in different SSTables, as they
/// are after a compaction. Parts of one can't be used for the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateId {
    /// The last entry applied in it.
    pub lsn: Lsn,
    /// A checksum over the names of its SSTables.
    pub sstables: u32,
}

impl StateId {
    /// The snapshot through that entry, with its rows in those SSTables.
    #[must_use]
    pub fn new<'a>(lsn: Lsn, sstables: impl Iterator<Item = &'a FileRef>) -> Self {
        let mut names = Writer::new();
        sstables.for_each(|sstable| sstable.encode(&mut names));
        Self { lsn, sstables: base::checksum(&names.finish()) }
    }
}

base::wire! { struct StateId { lsn, sstables } }

/// A part of a state snapshot. The chunks come first, then the list of SSTables, then the SSTables one after the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StatePart {
    /// A chunk of the state without the rows.
    Chunk(Bytes),
    /// The SSTables that follow, and the cohort's membership as of the snapshot.
    Files {
        /// The SSTables with the rows, by the sender's names.
        files: Vec<FileRef>,
        /// The members of the cohort.
        membership: SharedMembership,
    },
    /// The next bytes of the SSTables.
    Piece(Bytes),
}

impl StatePart {
    /// Approximate size in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        match self {
            Self::Chunk(bytes) | Self::Piece(bytes) => bytes.len(),
            Self::Files { files, membership } => files.len() * FileRef::BYTES + membership.bytes(),
        }
    }
}

base::wire! {
    enum StatePart, "part of a state" {
        1 => Chunk(bytes),
        2 => Files { files, membership },
        3 => Piece(bytes),
    }
}

base::wire! {
    enum Message, "message" {
        1 => Cohort { cohort, message },
        2 => Forward { cohort, request, patience, query },
        3 => Answer { request, outcome },
        4 => NotLeader { request, cohort, leader as OrZero },
        5 => StateChunk { cohort, epoch, state, timestamp, index, last, part },
        6 => StateReply { cohort, state, received, installed },
        7 => ElsewhereNow { request },
        8 => OfGenerations { from, to, message as BetweenReplicas },
        9 => Generation { cohort, generation },
        10 => ToSequencer { log, ask, sequencer, request },
        11 => FromSequencer { log, to, ask, reply },
        12 => Suspected { log, epoch, suspect },
        13 => UnitsInDoubt { units },
        14 => ToUnit { log, unit, source, request },
        15 => FromUnit { log, to, source, reply },
        20 => Beat { list, sent, cohorts, peer_clock },
        21 => BeatAnswer { list, sent, at, beaten },
        22 => CompareClocks { sent, interval },
        23 => ClockReply { sent, asked, interval },
        24 => DiskFull,
    }
}

/// A message between replicas: `Cohort`, `StateChunk` or `StateReply`. So a message with generations is at most two
/// levels deep.
struct BetweenReplicas;

impl WireAs<Box<Message>> for BetweenReplicas {
    const BYTES_MIN: usize = 1;

    fn encode(&self, message: &Box<Message>, out: &mut Writer) {
        message.encode(out);
    }

    fn decode(&self, input: &mut Reader) -> Result<Box<Message>, DecodeError> {
        match input.clone().u8()? {
            1 | 5 | 6 => Wire::decode(input),
            tag => Err(DecodeError::UnknownTag { what: "message", tag: u64::from(tag) }),
        }
    }
}

impl Message {
    /// The cohort, if this is a message between two replicas.
    #[must_use]
    pub fn is_between_replicas(&self) -> Option<CohortId> {
        match self {
            Self::Cohort { cohort, .. } | Self::StateChunk { cohort, .. } | Self::StateReply { cohort, .. } => {
                Some(*cohort)
            }
            _ => None,
        }
    }
}
