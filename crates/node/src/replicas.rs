//! The replicas of a node, and to which of them something has happened: whatever a step leaves open is looked for at
//! these alone, so that what rests costs nothing. What other threads are shown is made anew for these alone, too.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Index;

use base::{CohortId, Monotonic};

use crate::replica::Replica;
use crate::timers::Timers;

/// The replicas by cohort.
///
/// **Invariant:** whoever changes a replica in a way that may leave something to be done gets it by
/// [`Replicas::get_mut`], which notes it for [`Replicas::next_touched`] and [`Replicas::take_changed`].
#[derive(Debug, Default)]
pub(crate) struct Replicas {
    by_id: BTreeMap<CohortId, Replica>,
    touched: BTreeSet<CohortId>,
    /// What other threads see of these may be out of date.
    changed: BTreeSet<CohortId>,
    timers: Timers<CohortId>,
}

impl Replicas {
    pub(crate) fn get(&self, id: &CohortId) -> Option<&Replica> {
        self.by_id.get(id)
    }

    /// The replica, to be looked at when the step is settled.
    pub(crate) fn get_mut(&mut self, id: &CohortId) -> Option<&mut Replica> {
        let replica = self.by_id.get_mut(id)?;
        self.touched.insert(*id);
        self.changed.insert(*id);
        Some(replica)
    }

    /// The replica, for a change that leaves nothing to be done.
    pub(crate) fn quietly(&mut self, id: CohortId) -> Option<&mut Replica> {
        self.by_id.get_mut(&id)
    }

    /// All of them, for a change that leaves nothing to be done.
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

    /// Those to which something has happened.
    pub(crate) fn touched(&self) -> impl Iterator<Item = CohortId> + '_ {
        self.touched.iter().copied()
    }

    /// One to which something has happened.
    pub(crate) fn next_touched(&self) -> Option<CohortId> {
        self.touched.first().copied()
    }

    /// Nothing of it is left to be done.
    pub(crate) fn settled(&mut self, id: CohortId) {
        self.touched.remove(&id);
    }

    /// Those to which something has happened since this was last asked, also if they are no more.
    pub(crate) fn take_changed(&mut self) -> BTreeSet<CohortId> {
        std::mem::take(&mut self.changed)
    }

    /// Something is to be done about the replica at that moment, or never.
    pub(crate) fn wake_at(&mut self, id: CohortId, at: Monotonic) {
        self.timers.set(id, at);
    }

    /// A replica whose moment has come.
    pub(crate) fn take_due(&mut self, now: Monotonic) -> Option<CohortId> {
        self.timers.take_due(now)
    }

    /// No moment of a replica is missed to which nothing has happened since it was set.
    pub(crate) fn invariants(&self) {
        for (id, replica) in self.by_id.iter().filter(|(id, _)| !self.touched.contains(id)) {
            let (wanted, queued) = (replica.cohort.next_timer(Monotonic::NEVER), self.timers.of(*id));
            let is_noted = wanted == Monotonic::NEVER || queued.is_some_and(|queued| queued <= wanted);
            assert!(is_noted, "cohort {id} waits for {wanted:?}, and is noted for {queued:?}");
        }
    }

    /// The next moment of any.
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
