//! Where replicas are to be: a plan for each range. What comes of it is decided in the range's own cohort, step by step
//! (guarantee 8); the map follows.
//!
//! The first entry says who is to have a replica, and numbers the plan. Those who come start theirs, those who go keep
//! theirs for now. Whoever leads the catalog has the cohort carry the plan out. The last entry follows once the
//! cohort's log holds the plan and nothing is left to be done of it: then those who go let go.
//!
//! A range that moves is not split, and one that is being split does not move: so whoever has a replica of a range at
//! its split begins one of the new range, and nobody else does.

use base::{CohortId, Member, NodeId};

use super::{Catalog, Change, RangeRecord, Standing};
use crate::request::{CatalogResponse, Outcome};
use machine::Failure;
use machine::failure::invalid;

/// A range whose replicas are on their way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Move {
    /// Its cohort.
    pub cohort: CohortId,
    /// The plan's number.
    pub plan: u64,
    /// Who is to have a replica.
    pub members: Vec<Member>,
}

impl Catalog {
    /// Plans on which nodes a range's replicas are to be. A success says that the plan is made, not that it is carried
    /// out.
    pub(super) fn begin_move(&mut self, cohort: CohortId, nodes: &[NodeId]) -> Outcome {
        let mut members = Vec::new();
        for node in nodes {
            let known = self.nodes().find(|known| known.member.node == *node);
            let known = known.ok_or_else(|| invalid(format!("there is no node {node}")))?;
            if known.standing == Standing::Leaving {
                return Err(invalid(format!("node {node} is leaving")));
            }
            members.push(known.member);
        }
        members.sort_unstable();
        members.dedup();
        if members.is_empty() {
            return Err(invalid("a range has one replica at least".to_owned()));
        }
        let is_dropping = self.tables.values().any(|table| table.is_dropping && has(table, cohort));
        if is_dropping {
            return Err(Failure::Unavailable(format!("the table of cohort {cohort} is being dropped")));
        }
        let is_splitting = self.splits().any(|split| split.parent == cohort || split.child == cohort);
        if is_splitting {
            return Err(Failure::Unavailable(format!("the range of cohort {cohort} is being split")));
        }
        let changed = self.change_range(cohort, |range| {
            let there = range.leaving.take().unwrap_or_default().into_iter().chain(range.members.iter().copied());
            let mut leaving: Vec<Member> = there.filter(|member| !members.contains(member)).collect();
            leaving.sort_unstable();
            leaving.dedup();
            range.leaving = Some(leaving);
            range.plan += 1;
            range.members = members;
        });
        if changed { Ok(CatalogResponse::MoveBegun) } else { Err(invalid(format!("no table has a cohort {cohort}"))) }
    }

    /// A plan is carried out, if it is still the last.
    pub(super) fn end_move(&mut self, cohort: CohortId, plan: u64) -> Option<Change> {
        let is_last = self.moves().any(|planned| (planned.cohort, planned.plan) == (cohort, plan));
        if is_last {
            self.change_range(cohort, |range| range.leaving = None);
        }
        is_last.then_some(Change::MoveEnded)
    }

    /// The plans that are being carried out.
    pub fn moves(&self) -> impl Iterator<Item = Move> + '_ {
        let tables = self.tables.values().filter(|table| !table.is_dropping);
        let moving = tables.flat_map(|table| &table.ranges).filter(|range| range.leaving.is_some());
        moving.map(|range| Move { cohort: range.cohort, plan: range.plan, members: range.members.clone() })
    }

    fn change_range(&mut self, cohort: CohortId, change: impl FnOnce(&mut RangeRecord)) -> bool {
        let of = self.tables.iter().find(|(_, table)| has(table, cohort)).map(|(name, _)| name.clone());
        let Some(name) = of else { return false };
        self.change_table(&name, |table| {
            if let Some(range) = table.ranges.iter_mut().find(|range| range.cohort == cohort) {
                change(range);
            }
        });
        true
    }
}

fn has(table: &super::TableRecord, cohort: CohortId) -> bool {
    table.ranges.iter().any(|range| range.cohort == cohort)
}
