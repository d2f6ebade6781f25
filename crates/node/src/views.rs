//! What the replicas publish for other threads to read, and a read of it: most reads need no turn of the machine.
//!
//! A [`ReadView`] is what one replica could answer from at one moment: the rows, and what makes an answer from them
//! right. It takes the place of the one before ahead of every answer that rests on what is new in it, and ahead of what
//! a leader says when it gives up its lead ([`crate::contract::Action::Publish`]). Nothing of it changes.
//!
//! A [`DoorRead`] has three steps, and whatever happens between them does no harm. It takes the views; it reads the
//! rows, without waiting for a disk; and it looks whether it may say what it read: the view that is published *now*
//! must be one of the same reign, and the clock, read after all that, not past its lease (guarantees 3, 12 and 14).
//! Then nobody else led when the first view was taken, and it held all that was acknowledged. What can't be answered so
//! is left to the machine.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use base::canary::{Bug, planted};
use base::{CohortId, Epoch, Monotonic};
use machine::state_machine::Evaluated;
use machine::{AsOf, Consistency, LogPlace};
use replication::Freshness;
use store::sstable::Io;

use crate::contract::Action;
use crate::node::Node;
use crate::reads::Seen;
use crate::registry::{Read, View};
use crate::replica::Replica;
use crate::request::{Outcome, Request, Response};

/// What a replica could answer from at one moment.
#[derive(Clone, Debug)]
pub struct ReadView {
    content: View,
    place: LogPlace,
    epoch: Epoch,
    /// Until when it leads alone, if it may read by a lease.
    lease_end: Option<Monotonic>,
    /// Until when it counts on its leader.
    leader_until: Option<Monotonic>,
    is_current: bool,
    freshness: Freshness,
    /// When it was made.
    at: Monotonic,
    /// Reads that were answered from any view of this replica.
    reads: Arc<AtomicU64>,
}

/// Where views are published.
pub trait Views {
    /// The view of a cohort's replica here, if there is one.
    fn view(&self, cohort: CohortId) -> Option<Arc<ReadView>>;
}

/// A read of a published view.
#[derive(Debug)]
pub struct DoorRead {
    cohort: CohortId,
    view: Arc<ReadView>,
    /// What the replica showed, at the moment asked for.
    shown: View,
    read: Read,
    consistency: Consistency,
}

impl DoorRead {
    /// Takes the views that a request is to be answered from; none if the machine is to answer it.
    #[must_use]
    pub fn begin(views: &impl Views, request: &Request) -> Option<Self> {
        let Request::Table { table, request: ask } = request else { return None };
        let (position, consistency) = (ask.position()?, ask.consistency());
        if !ask.reads() {
            return None;
        }
        let catalog = views.view(CohortId::CATALOGUE)?;
        let cohort = catalog.content.as_catalog()?.table(table)?.at(&position).cohort;
        let view = views.view(cohort)?;
        let shown = match consistency {
            Consistency::Strong => view.lease_end.map(|_| view.content.clone())?,
            Consistency::Timeline { .. } => view.content.clone(),
            Consistency::At(moment) => view.content.clone().at(moment).ok()?,
            Consistency::Anywhere => return None,
        };
        let read = shown.read(ask)?;
        Some(Self { cohort, view, shown, read, consistency })
    }

    /// Reads what lies in memory; none if the disk would have to be waited for, or the rows are another's.
    #[must_use]
    pub fn evaluate(&self) -> Option<Outcome> {
        match self.read.answer(Io::CacheOnly) {
            Ok(Evaluated::Outcome(outcome)) => Some(outcome),
            Ok(Evaluated::Decided(_) | Evaluated::Elsewhere) | Err(_) => None,
        }
    }

    /// What may be said of what was read, at a moment that was read from the clock after it; none if it may not be
    /// said.
    #[must_use]
    pub fn finish(self, outcome: Outcome, views: &impl Views, now: Monotonic) -> Option<Outcome> {
        let Self { cohort, view, shown, consistency, .. } = self;
        let said = match consistency {
            Consistency::Strong => view.still_leads(&*views.view(cohort)?, now).then_some(outcome),
            Consistency::Timeline { at_least, stale_ok } => {
                let seen = Seen { cohort, at_least, stale_ok };
                let has_leader = view.leader_until.is_some_and(|until| now <= until);
                let may = seen.may_be_shown(view.place.lsn, has_leader, view.is_current);
                (may && now.since(view.at) <= STALE).then(|| dated(outcome, view.as_of(&shown, now)))
            }
            Consistency::At(_) => Some(dated(outcome, view.as_of(&shown, now))),
            Consistency::Anywhere => None,
        };
        view.reads.fetch_add(u64::from(said.is_some()), Ordering::Relaxed);
        said
    }
}

impl ReadView {
    /// Whether this reign goes on, by the newest view and the clock.
    fn still_leads(&self, newest: &Self, now: Monotonic) -> bool {
        if planted(Bug::ViewCheckBeforeRead) {
            // It was within its lease when it was published.
            return newest.epoch == self.epoch && newest.lease_end.is_some();
        }
        newest.epoch == self.epoch && newest.lease_end.is_some_and(|end| now <= end)
    }

    fn as_of(&self, shown: &View, now: Monotonic) -> AsOf {
        let (timestamp, range) = (shown.timestamp(), shown.range().cloned().unwrap_or_default());
        AsOf { place: self.place, timestamp, age: self.freshness.age(now), range }
    }

    /// Whether a view of this would say the same, but for a lease or an age that is a little newer.
    fn is_as_good_as(&self, newer: &Self) -> bool {
        self.content.is_same(&newer.content)
            && self.place == newer.place
            && self.epoch == newer.epoch
            && self.is_current == newer.is_current
            && newer.at.since(self.at) < RENEWED
            && is_near(self.lease_end, newer.lease_end)
            && is_near(self.leader_until, newer.leader_until)
            && self.freshness.is_near(newer.freshness, A_LITTLE)
    }
}

/// What a view says of ages and of the leader is as it was when it was made. Of a cohort at rest, whose votes and ages
/// are renewed by the beats (`beats`), nothing is published. A timeline read of a view that was made before this is
/// left to the machine, which knows better, and publishes what it knows.
const STALE: base::Duration = base::Duration::from_millis(250);
/// A view is made anew after this, if something has happened to its replica: well before it is stale.
const RENEWED: base::Duration = base::Duration::from_millis(100);
/// A lease that is longer by less is not published anew.
const A_LITTLE: base::Duration = base::Duration::from_millis(20);

fn is_near(old: Option<Monotonic>, new: Option<Monotonic>) -> bool {
    match (old, new) {
        (Some(old), Some(new)) => old <= new && new.since(old) < A_LITTLE,
        (old, new) => old == new,
    }
}

/// An answer, and the state that it is of.
pub(crate) fn dated(outcome: Outcome, as_of: AsOf) -> Outcome {
    outcome.map(|response| Response::Dated { response: Box::new(response), as_of: Box::new(as_of) })
}

impl Node {
    /// Shows other threads what has changed, before anything else of this step is done.
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

/// What other threads may answer from: nothing of a log unit, which is asked by other nodes.
fn view_of(cohort: CohortId, replica: &Replica, now: Monotonic) -> Option<ReadView> {
    let is_alone = replica.cohort.membership().voters() == [replica.cohort.config().me];
    Some(ReadView {
        content: replica.state.view()?,
        place: LogPlace { cohort, lsn: replica.state.last_applied() },
        epoch: replica.cohort.promised().epoch,
        // Nobody else can be elected where there is nobody else.
        lease_end: replica.cohort.lease_end(now).map(|end| if is_alone { Monotonic::NEVER } else { end }),
        leader_until: replica.cohort.leader_until(),
        is_current: replica.cohort.is_current(),
        freshness: replica.cohort.freshness(),
        at: now,
        reads: Arc::clone(&replica.reads_elsewhere),
    })
}
