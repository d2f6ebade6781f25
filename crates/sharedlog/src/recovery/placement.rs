//! Maps units to disks and decides which units may share a chain.
//!
//! The units of a chain hold copies of the same entries so that a failure loses only one copy. Two units on one node
//! fail together, so a chain must not contain both.

use std::collections::BTreeMap;

use base::canary::{Bug, planted};
use base::{Member, NodeId};

use crate::UnitId;

/// The disk and node of each unit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Homes(pub BTreeMap<UnitId, Member>);

impl Homes {
    /// The nodes of units. Skips units with an unknown disk.
    pub fn of(&self, units: impl IntoIterator<Item = UnitId>) -> impl Iterator<Item = NodeId> {
        units.into_iter().filter_map(|unit| self.0.get(&unit)).map(|home| home.node)
    }

    /// Whether a unit may join a chain: its disk is known, and no unit of the chain is on the same node.
    #[must_use]
    pub fn may_join(&self, unit: UnitId, chain: &[UnitId]) -> bool {
        let node = |unit: &UnitId| self.0.get(unit).map(|home| home.node);
        let own = node(&unit);
        planted(Bug::TwoOnOneNode) || own.is_some() && chain.iter().all(|other| node(other) != own)
    }
}

impl FromIterator<(UnitId, Member)> for Homes {
    fn from_iter<I: IntoIterator<Item = (UnitId, Member)>>(homes: I) -> Self {
        Self(homes.into_iter().collect())
    }
}
