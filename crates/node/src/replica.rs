//! A replica: the protocol and the state machine of one cohort on this node.

use std::collections::BTreeMap;

use base::{CohortId, Lsn, Member, Monotonic, NodeId, Sequence, Timestamp};
use bytes::Bytes;
use replication::{Cohort, Config, Outbox, Start};
use store::manifest::{CheckpointRef, CohortManifest};
use tablets::State;

use crate::config::NodeConfig;
use crate::pending::PendingId;

/// A cohort's protocol and state on this node.
#[derive(Clone, Debug)]
pub(crate) struct Replica {
    pub(crate) cohort: Cohort,
    pub(crate) state: State,
    /// The table's name; empty for the catalogue.
    pub(crate) table: String,
    /// Our own proposals that aren't committed yet, and who waits for them.
    pub(crate) proposed: BTreeMap<Sequence, (Lsn, PendingId)>,
    /// The checkpoint that the manifest names.
    pub(crate) checkpoint: Option<CheckpointRef>,
    /// The checkpoint that is being written, and its last entry's timestamp.
    pub(crate) writing: Option<(Lsn, Timestamp)>,
    /// How much the whole node had appended when the last checkpoint was taken.
    pub(crate) checkpoint_mark: u64,
    /// A whole state that is arriving.
    pub(crate) incoming: Option<Incoming>,
    /// A whole state on its way into the manifest.
    pub(crate) arrived: Option<Box<Arrived>>,
    /// The leader that requests were last routed by.
    pub(crate) leader_seen: Option<NodeId>,
    pub(crate) housekeeping_at: Monotonic,
}

/// A whole state of which some parts are here.
#[derive(Clone, Debug)]
pub(crate) struct Incoming {
    pub(crate) from: NodeId,
    pub(crate) lsn: Lsn,
    pub(crate) timestamp: Timestamp,
    pub(crate) count: u32,
    pub(crate) chunks: Vec<Bytes>,
}

/// A whole state that is here.
#[derive(Clone, Debug)]
pub(crate) struct Arrived {
    pub(crate) from: NodeId,
    pub(crate) lsn: Lsn,
    pub(crate) timestamp: Timestamp,
    pub(crate) state: State,
}

/// What the disk held of a cohort that the catalogue hasn't named yet.
#[derive(Clone, Debug, Default)]
pub(crate) struct Dormant {
    pub(crate) manifest: CohortManifest,
    pub(crate) start: Start,
    pub(crate) chunks: Vec<Bytes>,
}

impl Replica {
    pub(crate) fn new(cohort: Cohort, state: State, table: String, checkpoint: Option<CheckpointRef>) -> Self {
        Self {
            cohort,
            state,
            table,
            proposed: BTreeMap::new(),
            checkpoint,
            writing: None,
            checkpoint_mark: 0,
            incoming: None,
            arrived: None,
            leader_seen: None,
            housekeeping_at: Monotonic(0),
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
    /// Bytes appended to the log by this process.
    pub(crate) appended_bytes: u64,
}
