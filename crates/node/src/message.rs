//! Messages between nodes, and their codec.

use base::codec::{DecodeError, Reader, Writer};
use base::{Boot, CohortId, Duration, Epoch, Lsn, Membership, Monotonic, NodeId, SharedMembership, Timestamp};
use bytes::Bytes;
use sharedlog::client::Suspect;
use sharedlog::wire;
use sharedlog::{AskId, LogId, ProjectionEpoch, RequestSource, SequencerId, UnitId, sequencer, unit};
use state_machine::Failure;
use state_machine::interface::Wire as _;
use state_machine::storage::FileRef;

use crate::registry::Response;
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
        /// The votes.
        beaten: Beaten,
    },
    /// A request for the leader of a cohort.
    Forward {
        cohort: CohortId,
        /// The sender's number for the request.
        request: u64,
        /// How long the sender will wait.
        patience: Duration,
        /// The request.
        query: Query,
    },
    /// The reply to a forwarded request.
    Answer {
        /// The number of the forwarded request.
        request: u64,
        /// The result.
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
        /// The sender's epoch.
        epoch: Epoch,
        /// The snapshot.
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
        /// The snapshot.
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
    /// The sequencer's reply.
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
    /// The unit's reply.
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

    fn encode(self, out: &mut Writer) {
        out.lsn(self.lsn);
        out.u32(self.sstables);
    }

    fn decode(input: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Self { lsn: input.lsn()?, sstables: input.u32()? })
    }
}

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

    fn encode(&self, out: &mut Writer) {
        match self {
            Self::Chunk(bytes) => {
                out.u8(1);
                out.bytes(bytes);
            }
            Self::Files { files, membership } => {
                out.u8(2);
                out.count(files.len());
                files.iter().for_each(|file| file.encode(out));
                membership.encode(out);
            }
            Self::Piece(bytes) => {
                out.u8(3);
                out.bytes(bytes);
            }
        }
    }

    fn decode(input: &mut Reader) -> Result<Self, DecodeError> {
        Ok(match input.u8()? {
            1 => Self::Chunk(input.bytes()?),
            2 => {
                let count = input.count(FileRef::BYTES)?;
                let files = (0..count).map(|_| FileRef::decode(input)).collect::<Result<_, _>>()?;
                Self::Files { files, membership: Membership::decode(input)?.into() }
            }
            3 => Self::Piece(input.bytes()?),
            tag => return Err(DecodeError::UnknownTag { what: "part of a state", tag: u64::from(tag) }),
        })
    }
}

impl Message {
    /// Appends the message to `out`.
    pub fn encode(&self, out: &mut Writer) {
        match self {
            Self::Cohort { cohort, message } => {
                out.u8(1);
                out.u32(cohort.0);
                message.encode(out);
            }
            Self::Forward { cohort, request, patience, query } => {
                out.u8(2);
                out.u32(cohort.0);
                out.u64(*request);
                out.u64(patience.0);
                query.encode(out);
            }
            Self::Answer { request, outcome } => {
                out.u8(3);
                out.u64(*request);
                encode_outcome(outcome, out);
            }
            Self::NotLeader { request, cohort, leader } => {
                out.u8(4);
                out.u64(*request);
                out.u32(cohort.0);
                out.u32(leader.map_or(0, |node| node.0));
            }
            Self::StateChunk { cohort, epoch, state, timestamp, index, last, part } => {
                out.u8(5);
                out.u32(cohort.0);
                out.u64(epoch.0);
                state.encode(out);
                out.i64(timestamp.0);
                out.u32(*index);
                out.bool(*last);
                part.encode(out);
            }
            Self::StateReply { cohort, state, received, installed } => {
                out.u8(6);
                out.u32(cohort.0);
                state.encode(out);
                out.u32(*received);
                out.bool(*installed);
            }
            Self::ElsewhereNow { request } => {
                out.u8(7);
                out.u64(*request);
            }
            Self::OfGenerations { from, to, message } => {
                out.u8(8);
                out.u32(from.0);
                out.u32(to.0);
                message.encode(out);
            }
            Self::Generation { cohort, generation } => {
                out.u8(9);
                out.u32(cohort.0);
                out.u32(generation.0);
            }
            Self::ToSequencer { log, sequencer, ask, request } => {
                out.u8(10);
                out.u64(log.0);
                out.u64(ask.0);
                wire::encode_question(*sequencer, request, out);
            }
            Self::FromSequencer { log, to, ask, reply } => {
                out.u8(11);
                out.u64(log.0);
                out.u64(to.0);
                out.u64(ask.0);
                wire::encode_given(reply, out);
            }
            Self::ToUnit { log, unit, source, request } => {
                out.u8(14);
                out.u64(log.0);
                out.u64(unit.0);
                source.encode(out);
                request.encode(out);
            }
            Self::FromUnit { log, to, source, reply } => {
                out.u8(15);
                out.u64(log.0);
                out.u64(to.0);
                source.encode(out);
                reply.encode(out);
            }
            Self::Suspected { log, epoch, suspect } => {
                out.u8(12);
                out.u64(log.0);
                out.u64(epoch.0);
                wire::encode_suspect(*suspect, out);
            }
            Self::UnitsInDoubt { units } => {
                out.u8(13);
                out.u32(u32::try_from(units.len()).unwrap_or(u32::MAX));
                units.iter().for_each(|unit| out.u64(unit.0));
            }
            Self::Beat { list, cohorts, sent, peer_clock } => {
                out.u8(20);
                out.u64(list.0);
                out.u64(sent.0);
                beat::encode_list(cohorts.as_ref(), out);
                beat::encode_peer_clock(peer_clock.as_ref(), out);
            }
            Self::BeatAnswer { list, sent, at, beaten } => {
                out.u8(21);
                out.u64(list.0);
                out.u64(sent.0);
                out.u64(at.0);
                beaten.encode(out);
            }
        }
    }

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

    /// Decodes the output of [`Message::encode`].
    ///
    /// # Errors
    /// If the bytes are not exactly one message.
    pub fn decode(bytes: Bytes) -> Result<Self, DecodeError> {
        let mut input = Reader::new(bytes);
        let message = match input.u8()? {
            2 => Self::Forward {
                cohort: CohortId(input.u32()?),
                request: input.u64()?,
                patience: Duration(input.u64()?),
                query: Query::decode(&mut input)?,
            },
            3 => Self::Answer { request: input.u64()?, outcome: decode_outcome(&mut input)? },
            4 => {
                let request = input.u64()?;
                let cohort = CohortId(input.u32()?);
                let leader = input.u32()?;
                Self::NotLeader { request, cohort, leader: (leader != 0).then_some(NodeId(leader)) }
            }
            7 => Self::ElsewhereNow { request: input.u64()? },
            8 => {
                let (from, to, tag) = (ReplicaGeneration(input.u32()?), ReplicaGeneration(input.u32()?), input.u8()?);
                Self::OfGenerations { from, to, message: Box::new(decode_between_replicas(tag, &mut input)?) }
            }
            9 => Self::Generation { cohort: CohortId(input.u32()?), generation: ReplicaGeneration(input.u32()?) },
            10 => {
                let (log, ask) = (LogId(input.u64()?), AskId(input.u64()?));
                let (sequencer, request) = wire::decode_question(&mut input)?;
                Self::ToSequencer { log, sequencer, ask, request }
            }
            11 => {
                let (log, to, ask) = (LogId(input.u64()?), Boot(input.u64()?), AskId(input.u64()?));
                Self::FromSequencer { log, to, ask, reply: wire::decode_given(&mut input)? }
            }
            14 => Self::ToUnit {
                log: LogId(input.u64()?),
                unit: UnitId(input.u64()?),
                source: RequestSource::decode(&mut input)?,
                request: unit::Request::decode(&mut input)?,
            },
            15 => Self::FromUnit {
                log: LogId(input.u64()?),
                to: Boot(input.u64()?),
                source: RequestSource::decode(&mut input)?,
                reply: unit::Reply::decode(&mut input)?,
            },
            12 => {
                let (log, epoch) = (LogId(input.u64()?), wire::decode_epoch(&mut input)?);
                Self::Suspected { log, epoch, suspect: wire::decode_suspect(&mut input)? }
            }
            13 => {
                let units = (0..input.count(8)?).map(|_| input.u64().map(UnitId));
                Self::UnitsInDoubt { units: units.collect::<Result<_, _>>()? }
            }
            20 => {
                let (list, sent) = (ListId(input.u64()?), Monotonic(input.u64()?));
                let (cohorts, peer_clock) = (beat::decode_list(&mut input)?, beat::decode_peer_clock(&mut input)?);
                Self::Beat { list, cohorts, sent, peer_clock }
            }
            21 => {
                let (list, sent) = (ListId(input.u64()?), Monotonic(input.u64()?));
                let at = Monotonic(input.u64()?);
                Self::BeatAnswer { list, sent, at, beaten: Beaten::decode(&mut input)? }
            }
            tag => decode_between_replicas(tag, &mut input)?,
        };
        input.end()?;
        Ok(message)
    }
}

/// Outcomes contain no messages, so a message with generations is at most two levels deep.
fn encode_outcome(outcome: &Outcome, out: &mut Writer) {
    out.bool(outcome.is_ok());
    match outcome {
        Ok(response) => response.encode(out),
        Err(failure) => failure.encode(out),
    }
}

fn decode_outcome(input: &mut Reader) -> Result<Outcome, DecodeError> {
    if input.bool()? { Ok(Ok(Response::decode(input)?)) } else { Ok(Err(Failure::decode(input)?)) }
}

fn decode_between_replicas(tag: u8, input: &mut Reader) -> Result<Message, DecodeError> {
    Ok(match tag {
        1 => Message::Cohort { cohort: CohortId(input.u32()?), message: replication::Message::decode(input)? },
        5 => Message::StateChunk {
            cohort: CohortId(input.u32()?),
            epoch: Epoch(input.u64()?),
            state: StateId::decode(input)?,
            timestamp: Timestamp(input.i64()?),
            index: input.u32()?,
            last: input.bool()?,
            part: StatePart::decode(input)?,
        },
        6 => Message::StateReply {
            cohort: CohortId(input.u32()?),
            state: StateId::decode(input)?,
            received: input.u32()?,
            installed: input.bool()?,
        },
        tag => return Err(DecodeError::UnknownTag { what: "message", tag: u64::from(tag) }),
    })
}
