//! The replicas of a node, and the set of those with recent activity. Each step examines only these, so idle replicas
//! cost nothing. Published views are also rebuilt only for these.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Index;

use base::{CohortId, Monotonic};

use crate::replica::Replica;
use crate::timers::Timers;

/// The replicas by cohort.
///
/// **Invariant:** code that changes a replica in a way that may require further work obtains it through
/// [`Replicas::get_mut`], which records it for [`Replicas::next_touched`] and [`Replicas::take_changed`].
#[derive(Debug, Default)]
pub(crate) struct Replicas {
    by_id: BTreeMap<CohortId, Replica>,
    touched: BTreeSet<CohortId>,
    /// Replicas with published views that may be out of date.
    changed: BTreeSet<CohortId>,
    timers: Timers<CohortId>,
}

impl Replicas {
    pub(crate) fn get(&self, id: &CohortId) -> Option<&Replica> {
        self.by_id.get(id)
    }

    /// The replica, marked for examination at the end of the step.
    pub(crate) fn get_mut(&mut self, id: &CohortId) -> Option<&mut Replica> {
        let replica = self.by_id.get_mut(id)?;
        self.touched.insert(*id);
        self.changed.insert(*id);
        Some(replica)
    }

    /// The replica, for a change that requires no further work.
    pub(crate) fn quietly(&mut self, id: CohortId) -> Option<&mut Replica> {
        self.by_id.get_mut(&id)
    }

    /// All replicas, for a change that requires no further work.
    pub(crate) fn all_quietly(&mut self) -> impl Iterator<Item = (CohortId, &mut Replica)> {
        self.by_id.iter_mut().map(|(id, replica)| (*id, replica))
    }

    pub(crate) fn insert(&mut self, id: CohortId, replica: Replica) {
        self.touched.insert(id);
        self.changed.insert(id);
        self.by_id.insert(id, replica);
    }

    pub(crate) fn remove(&mut self, id: CohortId) -> Option<Replica> {
        self.touched.insert(id);
        self.changed.insert(id);
        self.by_id.remove(&id)
    }

    pub(crate) fn contains_key(&self, id: &CohortId) -> bool {
        self.by_id.contains_key(id)
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = &CohortId> {
        self.by_id.keys()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&CohortId, &Replica)> {
        self.by_id.iter()
    }

    /// The replicas with activity in this step.
    pub(crate) fn touched(&self) -> impl Iterator<Item = CohortId> + '_ {
        self.touched.iter().copied()
    }

    /// One replica with activity in this step.
    pub(crate) fn next_touched(&self) -> Option<CohortId> {
        self.touched.first().copied()
    }

    /// The replica needs no further work.
    pub(crate) fn settled(&mut self, id: CohortId) {
        self.touched.remove(&id);
    }

    /// Returns the cohorts with activity since the last call, including removed ones.
    pub(crate) fn take_changed(&mut self) -> BTreeSet<CohortId> {
        std::mem::take(&mut self.changed)
    }

    /// Sets the replica's timer. [`Monotonic::NEVER`] sets none.
    pub(crate) fn wake_at(&mut self, id: CohortId, at: Monotonic) {
        self.timers.set(id, at);
    }

    /// Returns one replica with an expired timer.
    pub(crate) fn take_due(&mut self, now: Monotonic) -> Option<CohortId> {
        self.timers.take_due(now)
    }

    /// Checks that every replica without activity has its timer set early enough.
    pub(crate) fn invariants(&self) {
        for (id, replica) in self.by_id.iter().filter(|(id, _)| !self.touched.contains(id)) {
            let (wanted, queued) = (replica.cohort.next_timer(Monotonic::NEVER), self.timers.of(*id));
            let is_noted = wanted == Monotonic::NEVER || queued.is_some_and(|queued| queued <= wanted);
            assert!(is_noted, "cohort {id} needs a timer at {wanted:?}, but has one at {queued:?}");
        }
    }

    /// The earliest timer of any replica.
    pub(crate) fn next_timer(&self) -> Option<Monotonic> {
        self.timers.next_due()
    }
}

impl Index<&CohortId> for Replicas {
    type Output = Replica;

    fn index(&self, id: &CohortId) -> &Replica {
        &self.by_id[id]
    }
}
