//! Where units are, and which of them may share a chain.
//!
//! A chain's units hold copies of the same, so that one lives when another is lost. Two units of one node are lost
//! together: a chain with both has one copy less than it seems to have.

use std::collections::BTreeMap;

use base::canary::{Bug, planted};
use base::{Member, NodeId};

use crate::UnitId;

/// The node of each unit, and the disk that it is on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Homes(pub BTreeMap<UnitId, Member>);

impl Homes {
    /// The nodes that units are on, as far as their places are known.
    pub fn of(&self, units: impl IntoIterator<Item = UnitId>) -> impl Iterator<Item = NodeId> {
        units.into_iter().filter_map(|unit| self.0.get(&unit)).map(|home| home.node)
    }

    /// Whether a unit may join a chain: its place is known, and no unit of the chain is on the same node.
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
