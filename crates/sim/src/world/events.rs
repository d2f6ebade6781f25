//! What is going to happen, in the order of time.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use base::{CohortId, Entry, Monotonic, NodeId};
use client::Link;
use node::contract::{Answer, ReadId, RequestId};
use node::request::Request;
use store::log::SegmentJob;

use super::TrueTime;
use super::door::Reading;
use super::network::Envelope;
use super::roster::Errand;

/// Counts the processes of a machine.
pub(crate) type Generation = u64;

/// The steps of writing a manifest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ManifestStep {
    First,
    Second,
}

/// Something that will happen. What belongs to a process names it by its generation, and is void after its end.
pub(crate) enum Happening {
    /// A machine starts its process.
    Start { node: NodeId },
    /// A message arrives.
    Deliver(Box<Envelope>),
    /// A timer of the machine fires.
    Timer { node: NodeId, generation: Generation, number: u64 },
    /// The log's batch in flight is forced, or fails to be.
    LogForced { node: NodeId, generation: Generation },
    /// The log was idle for a while.
    Echo { node: NodeId, generation: Generation, batches: u64 },
    /// What the log was to force soon is to be forced now.
    Hurry { node: NodeId, generation: Generation },
    /// The next step of writing a manifest.
    Manifest { node: NodeId, generation: Generation, step: ManifestStep },
    /// The next step of a work on tables.
    Work { node: NodeId, generation: Generation, number: u64 },
    /// A read of the log has ended.
    LogRead { node: NodeId, generation: Generation, id: ReadId, entries: Option<Vec<Entry>> },
    /// A segment's file is prepared.
    Segment { node: NodeId, generation: Generation, job: SegmentJob },
    /// A client's request has come in at the door, or the door leaves it to the machine.
    Request {
        node: NodeId,
        generation: Generation,
        id: RequestId,
        deadline: Monotonic,
        request: Box<Request>,
        is_at_door: bool,
    },
    /// A door goes on with a read.
    Door { node: NodeId, generation: Generation, reading: Box<Reading> },
    /// The doors close that were open after a clean stop.
    DoorsClose { node: NodeId, generation: Generation },
    /// An answer of a process came too late to be given.
    AnswerExpired { node: NodeId, generation: Generation, answer: Answer },
    /// A process is asked to stop.
    Stop { node: NodeId, generation: Generation },
    /// A process that stood still goes on.
    Resume { node: NodeId, generation: Generation },
    /// A client does what it does next.
    Client { client: u32 },
    /// A request without a stamp has waited long enough.
    ClientPatience { request: RequestId },
    /// A connection that a client's library makes comes about, or fails.
    LinkMade { library: usize, link: Link },
    /// A connection breaks by itself.
    LinkBroken { library: usize, link: Link },
    /// The timer of a client's library.
    LibraryTimer { library: usize, number: u64 },
    /// An operator has a range move once more.
    MoveAgain { cohort: CohortId },
    /// The operator goes on with an errand.
    Errand { errand: Errand },
    /// A user of the log goes on.
    LogUser { user: usize, call: u64 },
    /// A machine loses its power.
    PowerLoss { node: NodeId },
    /// A disk that was full has room again.
    Room { node: NodeId },
    /// What found no room on the disk is tried again.
    RoomWanted { node: NodeId, generation: Generation },
    /// A bit flips on the machine whose disk rots.
    Rot,
    /// A fault.
    Fault,
    /// The network's partition ends.
    Rejoin { number: u64 },
}

impl Happening {
    /// The process that it belongs to.
    pub(crate) fn owner(&self) -> Option<(NodeId, Generation)> {
        match self {
            Self::Timer { node, generation, .. }
            | Self::LogForced { node, generation }
            | Self::Echo { node, generation, .. }
            | Self::Hurry { node, generation }
            | Self::AnswerExpired { node, generation, .. }
            | Self::Stop { node, generation }
            | Self::Manifest { node, generation, .. }
            | Self::Work { node, generation, .. }
            | Self::LogRead { node, generation, .. }
            | Self::Segment { node, generation, .. }
            | Self::Request { node, generation, .. }
            | Self::RoomWanted { node, generation }
            | Self::Door { node, generation, .. }
            | Self::Resume { node, generation } => Some((*node, *generation)),
            _ => None,
        }
    }

    /// A number for the trace.
    pub(crate) fn tag(&self) -> u64 {
        let of = |kind: u64, node: NodeId| kind << 32 | u64::from(node.0);
        match self {
            Self::Start { node } => of(1, *node),
            Self::Deliver(envelope) => of(2, envelope.to) | u64::from(envelope.from.node.0) << 16,
            Self::Timer { node, .. } => of(3, *node),
            Self::LogForced { node, .. } => of(4, *node),
            Self::Echo { node, .. } => of(5, *node),
            Self::Hurry { node, .. } => of(25, *node),
            Self::AnswerExpired { node, .. } => of(26, *node),
            Self::Stop { node, .. } => of(24, *node),
            Self::Manifest { node, .. } => of(6, *node),
            Self::Work { node, .. } => of(7, *node),
            Self::LogRead { node, .. } => of(8, *node),
            Self::Segment { node, .. } => of(9, *node),
            Self::Resume { node, .. } => of(10, *node),
            Self::Client { client } => 11 << 32 | u64::from(*client),
            Self::ClientPatience { request } => 17 << 32 | request.0,
            Self::LinkMade { library, link } => 18 << 32 | (*library as u64) << 16 | link.number,
            Self::LinkBroken { library, link } => 19 << 32 | (*library as u64) << 16 | link.number,
            Self::LibraryTimer { library, .. } => 20 << 32 | *library as u64,
            Self::Request { node, .. } => of(15, *node),
            Self::Door { node, .. } => of(21, *node),
            Self::DoorsClose { node, .. } => of(22, *node),
            Self::PowerLoss { node } => of(14, *node),
            Self::Rot => 16 << 32,
            Self::MoveAgain { cohort } => 23 << 32 | u64::from(cohort.0),
            Self::Errand { .. } => 24 << 32,
            Self::LogUser { user, .. } => 27 << 32 | *user as u64,
            Self::Room { node } => of(17, *node),
            Self::RoomWanted { node, .. } => of(18, *node),
            Self::Fault => 12 << 32,
            Self::Rejoin { number } => 13 << 32 | number,
        }
    }
}

/// The future. What is put in for one moment happens in the order it was put in.
#[derive(Default)]
pub(crate) struct Queue {
    order: BinaryHeap<Reverse<(TrueTime, u64)>>,
    happenings: BTreeMap<u64, Happening>,
    next: u64,
}

impl Queue {
    pub(crate) fn put(&mut self, time: TrueTime, happening: Happening) {
        self.next += 1;
        self.order.push(Reverse((time, self.next)));
        self.happenings.insert(self.next, happening);
    }

    pub(crate) fn next_time(&self) -> Option<TrueTime> {
        self.order.peek().map(|Reverse((time, _))| *time)
    }

    pub(crate) fn take(&mut self) -> Option<(TrueTime, Happening)> {
        let Reverse((time, number)) = self.order.pop()?;
        self.happenings.remove(&number).map(|happening| (time, happening))
    }
}
