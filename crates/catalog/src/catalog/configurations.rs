//! Configurations of cohorts under primary/backup replication (PacificA, section 2.2; guarantee 27).
//!
//! The catalog is their configuration manager. The first configuration comes with the range. A replica petitions for
//! another one, and the first petition for the next version wins; a later one for the same version has no effect. The
//! members and the primary of a range are decided here alone, and the cohort's log follows.
//!
//! A range that is split off inherits the configuration. Until the split has ended, both ranges have the same one, and
//! it can only lose members: a new member could lack the entries of the new range.

use std::borrow::Cow;

use base::{CohortId, Configuration, Epoch, Member, NodeId};
use state_machine::Failure;
use state_machine::failure::precondition;

use super::{Catalog, Change, RangeRecord};
use crate::options::TableOptions;
use crate::request::{CatalogResponse, Outcome};

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
        let next = Configuration { loss: current.loss, ..wanted.clone() };
        self.change_range(cohort, |range| range.configuration = Some(Box::new(next)));
        Some(Change::Configured { cohort })
    }

    /// Makes the replica of a node the only member of a range, and plans the range on that node alone, so that the other
    /// nodes delete their replicas. An operator has decided that its other members are lost.
    pub(super) fn declare_loss(&mut self, name: &str, cohort: CohortId, node: NodeId) -> Outcome {
        let table = self.table(name).ok_or_else(|| Failure::UnknownTable(name.to_owned()))?;
        let range = table.ranges.iter().find(|range| range.cohort == cohort);
        let range = range.ok_or_else(|| precondition(format!("table {name} has no cohort {cohort}")))?;
        let Some(current) = range.configuration.as_deref() else {
            return Err(precondition(format!("table {name} has no primary/backup replication")));
        };
        if range.split.is_some() {
            return Err(Failure::Unavailable(format!("that range of table {name} is being split")));
        }
        let there = || range.members.iter().chain(range.leaving.iter().flatten()).chain(&current.members).copied();
        let registered = self.nodes().find(|known| known.member.node == node).map(|known| known.member);
        let Some(member) = there().find(|member| Some(*member) == registered) else {
            return Err(precondition(format!("node {node} has no replica of that range of table {name}")));
        };
        let version = current.version.next();
        let next = Configuration { loss: version, ..Configuration::new(version, vec![member], member) };
        let mut leaving: Vec<Member> = there().filter(|other| *other != member).collect();
        leaving.sort_unstable();
        leaving.dedup();
        self.change_range(cohort, |range| {
            range.configuration = Some(Box::new(next));
            (range.members, range.leaving) = (vec![member], Some(leaving));
            range.plan += 1;
        });
        Ok(CatalogResponse::MoveBegun)
    }

    /// The placements that restore replicas of ranges: other nodes take the place of removed members on these absent
    /// nodes, and of replicas that a declared loss deleted. Suspected nodes, and those with a full disk, take no place. Empty if there is no spare
    /// node. A move in progress is replaced only if it waits for an absent node.
    #[must_use]
    pub fn replacements(&self, absent: &[NodeId], suspected: &[NodeId]) -> Vec<(CohortId, Vec<NodeId>)> {
        let mut load = self.load();
        load.retain(|node, _| !absent.contains(node) && !suspected.contains(node) && !self.full.contains(node));
        let mut replacements = Vec::new();
        for table in self.tables.values().filter(|table| !table.is_dropping) {
            let settled = table.ranges.iter().filter(|range| range.split.is_none());
            for (range, configuration) in settled.filter_map(|range| Some((range, range.configuration.as_deref()?))) {
                let is_away = |member: &&Member| absent.contains(&member.node) && !configuration.has(**member);
                if range.leaving.is_some() && !range.members.iter().any(|member| is_away(&member)) {
                    continue;
                }
                // Apart from a declared loss, only an operator plans fewer replicas.
                let has_lost = configuration.loss > Epoch(0);
                let wanted = if has_lost { table.options.replicas as usize } else { range.members.len() };
                let present = range.members.iter().filter(|member| !is_away(member));
                let mut nodes: Vec<NodeId> = present.map(|member| member.node).collect();
                let kept = nodes.len();
                while nodes.len() < wanted {
                    let others = load.iter_mut().filter(|(node, _)| !nodes.contains(node));
                    let Some((least, ranges)) = others.min_by_key(|(node, ranges)| (**ranges, **node)) else { break };
                    *ranges += 1;
                    nodes.push(*least);
                }
                // Without a spare node, the absent one keeps its place.
                if nodes.len() > kept && nodes.len() >= range.members.len() {
                    replacements.push((range.cohort, nodes));
                }
            }
        }
        replacements
    }

    pub(super) fn replace(&mut self, absent: &[NodeId], suspected: &[NodeId]) -> Option<Change> {
        let mut begun = false;
        for (cohort, nodes) in self.replacements(absent, suspected) {
            begun |= self.begin_move(cohort, &nodes, true).is_ok();
        }
        begun.then_some(Change::MoveBegun)
    }

    /// The configuration of a range, or of the part being split off from one; none under Multi-Paxos.
    #[must_use]
    pub fn configuration_of(&self, cohort: CohortId) -> Option<Cow<'_, Configuration>> {
        self.part_of(cohort)?.configuration
    }

    /// All cohorts under primary/backup replication, with their configurations.
    pub fn configurations(&self) -> impl Iterator<Item = (CohortId, Cow<'_, Configuration>)> {
        self.parts().filter_map(|part| Some((part.cohort, part.configuration?)))
    }
}

impl RangeRecord {
    /// Whether a declared loss has deleted replicas that are not replaced yet. A child would not be filled up.
    pub(super) fn is_short_after_loss(&self, options: &TableOptions, nodes: usize) -> bool {
        let has_lost = self.configuration.as_ref().is_some_and(|known| known.loss > Epoch(0));
        has_lost && self.members.len() < nodes.min(options.replicas as usize)
    }

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
