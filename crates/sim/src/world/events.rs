//! Future events, ordered by time.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use base::{CohortId, Entry, Monotonic, NodeId};
use bytes::Bytes;
use client::Link;
use coordination::server::ConnectionId;
use node::contract::{ReadId, ReplyDestination, RequestId};
use node::request::Request;
use store::log::SegmentJob;

use super::TrueTime;
use super::endpoint::PendingLocalRead;
use super::network::Envelope;
use super::roster::Errand;
use super::zookeeper::Input;

/// Counts the processes of a machine.
pub(crate) type Generation = u64;

/// The steps of writing a manifest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ManifestStep {
    First,
    Second,
}

/// A future event. Events of a process carry its generation, and are ignored once the process has ended.
pub(crate) enum Happening {
    /// A machine starts its process.
    Start {
        node: NodeId,
    },
    Deliver(Box<Envelope>),
    /// A timer of the machine fires.
    Timer {
        node: NodeId,
        generation: Generation,
        number: u64,
    },
    /// The force of the log's batch in flight completes or fails.
    LogForced {
        node: NodeId,
        generation: Generation,
    },
    /// The log has been idle for a while.
    Echo {
        node: NodeId,
        generation: Generation,
        batches: u64,
    },
    /// Records that the log may force later are now due.
    Hurry {
        node: NodeId,
        generation: Generation,
    },
    /// The next step of writing a manifest.
    Manifest {
        node: NodeId,
        generation: Generation,
        step: ManifestStep,
    },
    /// The next step of background work on SSTables.
    Work {
        node: NodeId,
        generation: Generation,
        number: u64,
    },
    /// A read of the log has completed.
    LogRead {
        node: NodeId,
        generation: Generation,
        id: ReadId,
        entries: Option<Vec<Entry>>,
    },
    /// The file of a segment is prepared.
    Segment {
        node: NodeId,
        generation: Generation,
        job: SegmentJob,
    },
    /// A client's request arrives at the endpoint, or the endpoint passes it to the machine.
    Request {
        node: NodeId,
        generation: Generation,
        id: RequestId,
        deadline: Monotonic,
        request: Box<Request>,
        is_at_endpoint: bool,
    },
    /// An endpoint continues a read.
    LocalRead {
        node: NodeId,
        generation: Generation,
        reading: Box<PendingLocalRead>,
    },
    /// The endpoints close that stayed open after a clean stop.
    EndpointClosed {
        node: NodeId,
        generation: Generation,
    },
    /// A response of a process was too late to be sent.
    ReplyExpired {
        node: NodeId,
        generation: Generation,
        destination: ReplyDestination,
    },
    /// A process notices that its connection to a peer is closed, unless the peer can be reached again.
    PeerLost {
        node: NodeId,
        generation: Generation,
        peer: NodeId,
    },
    /// A process is stopped cleanly.
    Stop {
        node: NodeId,
        generation: Generation,
    },
    Resume {
        node: NodeId,
        generation: Generation,
    },
    Client {
        client: u32,
    },
    /// A request without a stamp has timed out.
    ClientPatience {
        request: RequestId,
    },
    /// A connection attempt of a client library succeeds or fails.
    LinkMade {
        library: usize,
        link: Link,
    },
    LinkBroken {
        library: usize,
        link: Link,
    },
    /// The timer of a client library fires.
    LibraryTimer {
        library: usize,
        number: u64,
    },
    /// An operator requests another move of a range.
    MoveAgain {
        cohort: CohortId,
    },
    /// The operator continues a task.
    Errand {
        errand: Errand,
    },
    /// A user of the log continues.
    LogUser {
        user: usize,
        call: u64,
    },
    /// A client of the disk continues.
    DiskClient {
        client: usize,
        call: u64,
    },
    /// An input of a node's ZooKeeper endpoint.
    Translation {
        node: NodeId,
        generation: Generation,
        input: Box<Input>,
    },
    ZooKeeperClient {
        client: usize,
    },
    /// A transactional client continues.
    TransactionClient {
        client: usize,
    },
    /// A request of a transactional client has timed out.
    TransactionPatience {
        request: RequestId,
    },
    /// A ZooKeeper client receives a frame, or the end of its connection.
    ZooKeeperFrame {
        client: usize,
        connection: ConnectionId,
        frame: Option<Bytes>,
    },
    PowerLoss {
        node: NodeId,
    },
    /// A disk that was full has space again.
    Room {
        node: NodeId,
    },
    /// A write that found no space on the disk is retried.
    RoomWanted {
        node: NodeId,
        generation: Generation,
    },
    /// A bit flips on the machine with the rotting disk.
    Rot,
    Fault,
    Rejoin {
        number: u64,
    },
}

impl Happening {
    /// The process that the event belongs to.
    pub(crate) fn owner(&self) -> Option<(NodeId, Generation)> {
        match self {
            Self::Timer { node, generation, .. }
            | Self::LogForced { node, generation }
            | Self::Echo { node, generation, .. }
            | Self::Hurry { node, generation }
            | Self::ReplyExpired { node, generation, .. }
            | Self::PeerLost { node, generation, .. }
            | Self::Stop { node, generation }
            | Self::Manifest { node, generation, .. }
            | Self::Work { node, generation, .. }
            | Self::LogRead { node, generation, .. }
            | Self::Segment { node, generation, .. }
            | Self::Request { node, generation, .. }
            | Self::RoomWanted { node, generation }
            | Self::LocalRead { node, generation, .. }
            | Self::Translation { node, generation, .. }
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
            Self::ReplyExpired { node, .. } => of(26, *node),
            Self::Stop { node, .. } => of(24, *node),
            Self::PeerLost { node, peer, .. } => of(31, *node) | u64::from(peer.0) << 16,
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
            Self::LocalRead { node, .. } => of(21, *node),
            Self::EndpointClosed { node, .. } => of(22, *node),
            Self::PowerLoss { node } => of(14, *node),
            Self::Rot => 16 << 32,
            Self::MoveAgain { cohort } => 23 << 32 | u64::from(cohort.0),
            Self::Errand { .. } => 24 << 32,
            Self::LogUser { user, .. } => 27 << 32 | *user as u64,
            Self::DiskClient { client, .. } => 34 << 32 | *client as u64,
            Self::Translation { node, .. } => of(28, *node),
            Self::TransactionClient { client } => 32 << 32 | *client as u64,
            Self::TransactionPatience { request } => 33 << 32 | request.0,
            Self::ZooKeeperClient { client } => 29 << 32 | *client as u64,
            Self::ZooKeeperFrame { client, connection, .. } => 30 << 32 | connection.0 << 4 | *client as u64,
            Self::Room { node } => of(17, *node),
            Self::RoomWanted { node, .. } => of(18, *node),
            Self::Fault => 12 << 32,
            Self::Rejoin { number } => 13 << 32 | number,
        }
    }
}

/// Future events. Events at the same instant occur in the order of insertion.
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
