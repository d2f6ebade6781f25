//! Published read views: other threads answer most reads from these without the node machine.
//!
//! A [`ReadView`] is an immutable snapshot of the state from which a replica can answer, together with the validity
//! conditions of an answer. A new view replaces the previous one before any reply that depends on the new state, and
//! before any message by which a leader relinquishes its lead ([`crate::contract::Action::Publish`]).
//!
//! A [`LocalRead`] has three steps, and is safe against any event between them. It takes the view. It reads the rows
//! without waiting for a disk. Then it validates the result: the view published *now* must be of the same epoch, and
//! the clock, read after these steps, must not be past the lease of that view (guarantees 3, 12 and 14). No other
//! leader then existed when the first view was taken, and the view contained all acknowledged writes. Reads that can't
//! be answered this way go to the machine.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use base::canary::{Bug, planted};
use base::{CohortId, Epoch, Monotonic};
use replication::Freshness;
use state_machine::interface::Evaluated;
use state_machine::{AsOf, Consistency, LogPlace};
use store::sstable::Io;

use crate::contract::Action;
use crate::node::Node;
use crate::reads::{ReadRequirement, is_whole};
use crate::registry::{Read, View};
use crate::replica::Replica;
use crate::request::{Outcome, Request, Response};

/// The state from which a replica could answer at one time.
#[derive(Clone, Debug)]
pub struct ReadView {
    content: View,
    place: LogPlace,
    epoch: Epoch,
    /// End of the exclusive lease, if the replica may serve lease reads.
    lease_end: Option<Monotonic>,
    /// Until when the replica considers its leader alive.
    leader_until: Option<Monotonic>,
    is_current: bool,
    writes_checkpoint: bool,
    freshness: Freshness,
    /// When the view was made.
    at: Monotonic,
    /// Number of reads answered from views of this replica.
    reads: Arc<AtomicU64>,
}

pub trait Views {
    /// The view of a cohort's local replica, if there is one.
    fn view(&self, cohort: CohortId) -> Option<Arc<ReadView>>;
}

/// Whether the replica on this node should answer a strong read by read index, instead of the leader: it does not lead,
/// has caught up since its start, and writes no checkpoint, which would compete for its disk (Gaios, 3.3.2).
#[must_use]
pub fn should_read_here(views: &impl Views, request: &Request) -> bool {
    let Request::Table { table, request: ask } = request else { return false };
    let replica = ask.position().and_then(|position| {
        let catalog = views.view(CohortId::CATALOG)?;
        views.view(catalog.content.as_catalog()?.table(table)?.at(&position).cohort)
    });
    replica.is_some_and(|view| view.lease_end.is_none() && view.is_current && !view.writes_checkpoint)
}

/// A read of a published view.
#[derive(Debug)]
pub struct LocalRead {
    cohort: CohortId,
    view: Arc<ReadView>,
    /// The content of the view, as of the requested timestamp.
    shown: View,
    read: Read,
    consistency: Consistency,
}

impl LocalRead {
    /// Takes the view for a request; `None` if the machine must answer it.
    #[must_use]
    pub fn begin(views: &impl Views, request: &Request) -> Option<Self> {
        let Request::Table { table, request: ask } = request else { return None };
        let (position, consistency) = (ask.position()?, ask.consistency());
        if !ask.reads() {
            return None;
        }
        let catalog = views.view(CohortId::CATALOG)?;
        let cohort = catalog.content.as_catalog()?.table(table)?.at(&position).cohort;
        let view = views.view(cohort)?;
        let shown = match consistency {
            Consistency::Strong | Consistency::StrongAsOf => view.lease_end.map(|_| view.content.clone())?,
            Consistency::Timeline { .. } => view.content.clone(),
            Consistency::At(moment) => view.content.clone().at(moment).ok()?,
            Consistency::Anywhere | Consistency::Locking(_) | Consistency::ForUpdate(_) => return None,
        };
        let read = shown.read(ask)?;
        Some(Self { cohort, view, shown, read, consistency })
    }

    /// Reads data in memory; `None` if the read needs the disk, or the range does not own the rows.
    #[must_use]
    pub fn evaluate(&self) -> Option<Outcome> {
        match self.read.answer(Io::CacheOnly) {
            Ok(Evaluated::Outcome(outcome)) => Some(outcome),
            Ok(Evaluated::Decided(_) | Evaluated::Elsewhere | Evaluated::Unresolved(_)) | Err(_) => None,
        }
    }

    /// Validates the result at `now`, which must be read from the clock after the evaluation. `None` if the result must
    /// not be returned.
    #[must_use]
    pub fn finish(self, outcome: Outcome, views: &impl Views, now: Monotonic) -> Option<Outcome> {
        let Self { cohort, view, shown, consistency, .. } = self;
        let said = match consistency {
            Consistency::Strong => view.still_leads(&*views.view(cohort)?, now).then_some(outcome),
            Consistency::StrongAsOf => view
                .still_leads(&*views.view(cohort)?, now)
                .then(|| if is_whole(&shown) { dated(outcome, view.as_of(&shown, now)) } else { outcome }),
            Consistency::Timeline { at_least, stale_ok } => {
                let requirement = ReadRequirement { cohort, at_least, stale_ok };
                let has_leader = view.leader_until.is_some_and(|until| now <= until);
                let may = requirement.may_be_shown(view.place.lsn, has_leader, view.is_current);
                (may && now.since(view.at) <= STALE).then(|| dated(outcome, view.as_of(&shown, now)))
            }
            Consistency::At(_) => Some(dated(outcome, view.as_of(&shown, now))),
            Consistency::Anywhere | Consistency::Locking(_) | Consistency::ForUpdate(_) => None,
        };
        view.reads.fetch_add(u64::from(said.is_some()), Ordering::Relaxed);
        said
    }
}

impl ReadView {
    /// Whether the same epoch continues, according to the newest view and the clock.
    fn still_leads(&self, newest: &Self, now: Monotonic) -> bool {
        if planted(Bug::ViewCheckBeforeRead) {
            // The lease was valid when the view was published.
            return newest.epoch == self.epoch && newest.lease_end.is_some();
        }
        newest.epoch == self.epoch && newest.lease_end.is_some_and(|end| now <= end)
    }

    fn as_of(&self, shown: &View, now: Monotonic) -> AsOf {
        let (timestamp, range) = (shown.timestamp(), shown.range().cloned().unwrap_or_default());
        AsOf { place: self.place, timestamp, age: self.freshness.age(now), range }
    }

    /// Whether a view of this replica would be equivalent to the newer one, apart from small changes of lease or
    /// staleness.
    fn is_as_good_as(&self, newer: &Self) -> bool {
        self.content.is_same(&newer.content)
            && self.place == newer.place
            && self.epoch == newer.epoch
            && self.is_current == newer.is_current
            && self.writes_checkpoint == newer.writes_checkpoint
            && newer.at.since(self.at) < RENEWED
            && is_near(self.lease_end, newer.lease_end)
            && is_near(self.leader_until, newer.leader_until)
            && self.freshness.is_near(newer.freshness, A_LITTLE)
    }
}

/// Maximum age of a view for timeline reads, because staleness and leader information are fixed when it is made. Idle
/// cohorts are renewed by batched heartbeats (`heartbeat_batch`), which publish no views. A timeline read of an older
/// view goes to the machine, which has newer information and publishes it.
const STALE: base::Duration = base::Duration::from_millis(250);
/// A view is renewed after this time if its replica has activity: well before it is stale.
const RENEWED: base::Duration = base::Duration::from_millis(100);
/// A lease extension shorter than this is not published.
const A_LITTLE: base::Duration = base::Duration::from_millis(20);

fn is_near(old: Option<Monotonic>, new: Option<Monotonic>) -> bool {
    match (old, new) {
        (Some(old), Some(new)) => old <= new && new.since(old) < A_LITTLE,
        (old, new) => old == new,
    }
}

/// A result together with the state that it is based on.
pub(crate) fn dated(outcome: Outcome, as_of: AsOf) -> Outcome {
    outcome.map(|response| Response::Dated { response: Box::new(response), as_of: Box::new(as_of) })
}

impl Node {
    /// Publishes changed views before any other action of this step.
    pub(crate) fn publish(&mut self, now: Monotonic, actions: &mut Vec<Action>) {
        for cohort in self.replicas.take_changed() {
            let Some(replica) = self.replicas.quietly(cohort) else {
                actions.push(Action::Publish { cohort, view: None });
                continue;
            };
            let Some(view) = view_of(cohort, replica, now) else { continue };
            let published = replica.published.as_ref();
            let is_kept = published.is_some_and(|published| {
                let ends = published.lease_end.is_some() && view.lease_end.is_none();
                published.is_as_good_as(&view) || (ends && planted(Bug::ReadViewNotWithdrawn))
            });
            if !is_kept {
                let view = Arc::new(view);
                replica.published = Some(Arc::clone(&view));
                actions.push(Action::Publish { cohort, view: Some(view) });
            }
        }
    }
}

/// The view of a replica for other threads; `None` for a log unit, which serves requests of other nodes.
fn view_of(cohort: CohortId, replica: &Replica, now: Monotonic) -> Option<ReadView> {
    let is_alone = replica.cohort.electorate().eq([replica.cohort.config().me]);
    Some(ReadView {
        content: replica.state.view()?,
        place: LogPlace { cohort, lsn: replica.state.last_applied() },
        epoch: replica.cohort.promised().epoch,
        // With a single voter no other node can become the leader, so the lease never expires.
        lease_end: replica.cohort.lease_end(now).map(|end| if is_alone { Monotonic::NEVER } else { end }),
        leader_until: replica.cohort.leader_until(),
        is_current: replica.cohort.is_current(),
        writes_checkpoint: replica.on_disk.writing.is_some(),
        freshness: replica.cohort.freshness(),
        at: now,
        reads: Arc::clone(&replica.reads_elsewhere),
    })
}
