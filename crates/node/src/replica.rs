//! A replica: the protocol and the state machine of one cohort on this node.

use std::collections::BTreeMap;

use base::{CohortId, Lsn, Member, Monotonic, NodeId, Sequence, Timestamp};
use bytes::Bytes;
use replication::{Cohort, Config, Outbox, Start};
use store::manifest::{CheckpointRef, CohortManifest};
use tablets::{Loader, State};

use crate::config::NodeConfig;
use crate::latches::Latches;
use crate::moments::Moments;
use crate::pending::PendingId;
use crate::transfer::Part;

/// A cohort's protocol and state on this node.
#[derive(Clone, Debug)]
pub(crate) struct Replica {
    pub(crate) cohort: Cohort,
    pub(crate) state: State,
    /// The table's name; empty for the catalogue.
    pub(crate) table: String,
    /// Our own proposals that aren't committed yet, and who waits for them.
    pub(crate) proposed: BTreeMap<Sequence, Proposal>,
    /// The rows that they write.
    pub(crate) latches: Latches,
    /// The checkpoint that the manifest names.
    pub(crate) checkpoint: Option<CheckpointRef>,
    /// The checkpoint that is being written, and its last entry's timestamp.
    pub(crate) writing: Option<(Lsn, Timestamp)>,
    /// A checkpoint that is on disk, for the manifest to name once our own log is forced through it.
    pub(crate) written: Option<CheckpointRef>,
    /// How much the whole node had appended when the last checkpoint was taken.
    pub(crate) checkpoint_mark: u64,
    /// A whole state that is arriving.
    pub(crate) incoming: Option<Incoming>,
    /// A whole state on its way into the manifest.
    pub(crate) arrived: Option<Box<Arrived>>,
    /// The leader that requests were last routed by.
    pub(crate) leader_seen: Option<NodeId>,
    pub(crate) housekeeping_at: Monotonic,
    /// The timestamp of the last entry applied that a client asked for.
    pub(crate) last_change: Timestamp,
    /// While we lead: when `last_change` was what.
    pub(crate) moments: Moments,
}

/// An entry that a request waits for.
#[derive(Clone, Debug)]
pub(crate) struct Proposal {
    pub(crate) lsn: Lsn,
    pub(crate) pending: PendingId,
    /// The row that it writes, if it writes one.
    pub(crate) row: Option<Bytes>,
}

/// A whole state of which some parts are here.
#[derive(Clone, Debug)]
pub(crate) struct Incoming {
    from: NodeId,
    lsn: Lsn,
    timestamp: Timestamp,
    /// Parts received, in order.
    parts: u32,
    /// What they have come to.
    loader: Loader,
}

/// A whole state that is here.
#[derive(Clone, Debug)]
pub(crate) struct Arrived {
    pub(crate) from: NodeId,
    pub(crate) lsn: Lsn,
    pub(crate) timestamp: Timestamp,
    pub(crate) parts: u32,
    pub(crate) state: State,
    pub(crate) is_being_written: bool,
}

/// What the disk held of a cohort that the catalogue hasn't named yet.
#[derive(Clone, Debug, Default)]
pub(crate) struct Dormant {
    pub(crate) manifest: CohortManifest,
    pub(crate) start: Start,
    pub(crate) chunks: Vec<Bytes>,
    /// How much the log held before the first record that is not in the checkpoint.
    pub(crate) checkpoint_mark: u64,
}

impl Replica {
    pub(crate) fn new(cohort: Cohort, state: State, table: String, checkpoint: Option<CheckpointRef>) -> Self {
        let last_change = state.last_timestamp();
        Self {
            cohort,
            state,
            table,
            proposed: BTreeMap::new(),
            latches: Latches::default(),
            checkpoint,
            writing: None,
            written: None,
            checkpoint_mark: 0,
            incoming: None,
            arrived: None,
            leader_seen: None,
            housekeeping_at: Monotonic(0),
            last_change,
            moments: Moments::default(),
        }
    }

    /// Takes a part of a whole state, if it is the next; with the last one the state is here. Says how many parts are.
    pub(crate) fn take_part(&mut self, from: NodeId, part: &Part) -> u32 {
        let (cohort, lsn, timestamp) = (self.state.cohort(), part.lsn, part.timestamp);
        let fresh = || Incoming { from, lsn, timestamp, parts: 0, loader: Loader::new(cohort) };
        let same = self.incoming.take().filter(|incoming| incoming.lsn == lsn && incoming.from == from);
        let mut incoming = same.unwrap_or_else(fresh);
        if part.index == incoming.parts {
            if incoming.loader.push(&part.bytes).is_err() {
                // The leader will start over.
                return 0;
            }
            incoming.parts += 1;
            if part.last {
                return self.arrive(incoming);
            }
        }
        let parts = incoming.parts;
        self.incoming = Some(incoming);
        parts
    }

    fn arrive(&mut self, Incoming { from, lsn, timestamp, parts, loader }: Incoming) -> u32 {
        match loader.finish() {
            Ok(state) if state.last_applied() == lsn => {
                let arrived = Arrived { from, lsn, timestamp, parts, state, is_being_written: false };
                self.arrived = Some(Box::new(arrived));
                parts
            }
            // What came was another state than the leader said: it will start over.
            Ok(_) | Err(_) => 0,
        }
    }

    /// What the manifest must hold of it.
    pub(crate) fn manifest(&self) -> CohortManifest {
        CohortManifest {
            promised: self.cohort.promised(),
            checkpoint: self.checkpoint,
            doubtful: self.cohort.doubtful(),
        }
    }
}

/// The protocol's configuration for a cohort on this node.
pub(crate) fn cohort_config(node: &NodeConfig, cohort: CohortId, me: Member, members: Vec<Member>) -> Config {
    let seed = node.seed ^ (u64::from(cohort.0) << 32) ^ u64::from(me.node.0);
    Config { cohort, me, members, timing: node.timing, limits: node.limits, seed }
}

/// The outbox and what is known of the node's appends.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outgoing {
    pub(crate) outbox: Outbox,
    /// Bytes of the log: those that this process found and those it appended.
    pub(crate) appended_bytes: u64,
}
