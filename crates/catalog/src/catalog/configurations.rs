//! Configurations of cohorts under primary/backup replication (PacificA, section 2.2; guarantee 27).
//!
//! The catalog is their configuration manager. The first configuration comes with the range. A replica petitions for
//! another one, and the first petition for the next version wins; a later one for the same version has no effect. The
//! members and the primary of a range are decided here alone, and the cohort's log follows.
//!
//! A range that is split off inherits the configuration. Until the split has ended, both ranges have the same one, and
//! it can only lose members: a new member could lack the entries of the new range.

use base::{CohortId, Configuration, Member};

use super::{Catalog, Change, RangeRecord};

impl Catalog {
    /// Replaces the configuration of a range, if the wanted one is a valid successor of the current one. Added members
    /// must have a replica by the placement plan.
    pub(super) fn configure(&mut self, cohort: CohortId, wanted: &Configuration) -> Option<Change> {
        let mut ranges = self.tables.values().flat_map(|table| &table.ranges);
        let range = ranges.find(|range| range.cohort == cohort)?;
        let current = range.configuration.as_deref()?;
        wanted.may_follow(current).ok()?;
        let is_placed =
            |member: &Member| range.members.contains(member) || range.leaving.iter().flatten().any(|at| at == member);
        let mut added = wanted.members.iter().filter(|member| !current.has(**member)).peekable();
        if (added.peek().is_some() && range.split.is_some()) || !added.all(is_placed) {
            return None;
        }
        self.change_range(cohort, |range| range.configuration = Some(Box::new(wanted.clone())));
        Some(Change::Configured { cohort })
    }

    /// The configuration of a range, or of the part being split off from one; none under Multi-Paxos.
    #[must_use]
    pub fn configuration_of(&self, cohort: CohortId) -> Option<&Configuration> {
        self.part_of(cohort)?.configuration
    }

    /// All cohorts under primary/backup replication, with their configurations.
    pub fn configurations(&self) -> impl Iterator<Item = (CohortId, &Configuration)> {
        self.parts().filter_map(|part| Some((part.cohort, part.configuration?)))
    }
}

impl RangeRecord {
    /// This new range, with its first configuration. The primaries of successive cohorts are on different nodes.
    pub(super) fn configured(mut self) -> Self {
        let place = self.cohort.0 as usize % self.members.len().max(1);
        if let Some(primary) = self.members.get(place) {
            let first = Configuration::new(base::Epoch(1), self.members.clone(), *primary);
            self.configuration = Some(Box::new(first));
        }
        self
    }
}
