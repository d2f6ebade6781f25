//! Moving the replicas of a range. The catalog holds a placement plan for each range. The range's own cohort carries it
//! out step by step by membership changes (guarantee 8); the map follows.
//!
//! `BeginMove` sets the new members and increments the plan number. New members start their replicas; leaving members
//! keep theirs for now. The catalog's leader makes the cohort carry out the plan. `EndMove` is proposed after the
//! cohort has committed the plan and completed it. Leaving members then delete their replicas.
//!
//! A moving range is not split, and a range being split does not move. So at a split, exactly the members of the parent
//! start a replica of the child.

use base::{CohortId, Member, NodeId, counted};

use super::{Catalog, Change, RangeRecord, Standing};
use crate::request::{CatalogResponse, Outcome};
use state_machine::Failure;
use state_machine::failure::{invalid, precondition};

/// A range whose replicas are moving.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Move {
    pub cohort: CohortId,
    /// The number of the plan.
    pub plan: u64,
    pub members: Vec<Member>,
}

impl Catalog {
    /// Plans the nodes for a range's replicas. Success means that the plan is recorded, not that it is carried out.
    /// Without `force`, a plan that takes fault tolerance from the range is refused.
    pub(super) fn begin_move(&mut self, cohort: CohortId, nodes: &[NodeId], force: bool) -> Outcome {
        let mut members = Vec::new();
        for node in nodes {
            let known = self.nodes().find(|known| known.member.node == *node);
            let known = known.ok_or_else(|| precondition(format!("there is no node {node}")))?;
            if known.standing == Standing::Leaving {
                return Err(precondition(format!("node {node} is leaving")));
            }
            members.push(known.member);
        }
        members.sort_unstable();
        members.dedup();
        if members.is_empty() {
            return Err(invalid("a range needs at least one replica".to_owned()));
        }
        if !force {
            self.check_fault_tolerance(cohort, members.len())?;
        }
        let is_dropping = self.tables.values().any(|table| table.is_dropping && table.has(cohort));
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
        if changed {
            Ok(CatalogResponse::MoveBegun)
        } else {
            Err(precondition(format!("no table has cohort {cohort}")))
        }
    }

    /// Refuses to plan fewer replicas of a range than it has, if its table should have more.
    fn check_fault_tolerance(&self, cohort: CohortId, planned: usize) -> Result<(), Failure> {
        let mut tables = self.tables().filter(|(_, table)| !table.is_dropping);
        let found = tables.find_map(|(name, table)| {
            let range = table.ranges.iter().find(|range| range.cohort == cohort)?;
            Some((name, table.options.replicas as usize, range.members.len()))
        });
        match found {
            Some((name, wanted, there)) if planned < wanted && planned < there => {
                let (wanted, planned) = (counted(wanted as u64, "replica"), counted(planned as u64, "node"));
                Err(precondition(format!(
                    "table {name} has {wanted} of each range, and {planned} given; to reduce the fault tolerance of \
                     this range, use --force"
                )))
            }
            _ => Ok(()),
        }
    }

    /// Ends a move, if `plan` is still the current plan.
    pub(super) fn end_move(&mut self, cohort: CohortId, plan: u64) -> Option<Change> {
        let is_last = self.moves().any(|planned| (planned.cohort, planned.plan) == (cohort, plan));
        if is_last {
            self.change_range(cohort, |range| range.leaving = None);
        }
        is_last.then_some(Change::MoveEnded)
    }

    /// The moves in progress.
    pub fn moves(&self) -> impl Iterator<Item = Move> + '_ {
        let tables = self.tables.values().filter(|table| !table.is_dropping);
        let moving = tables.flat_map(|table| &table.ranges).filter(|range| range.leaving.is_some());
        moving.map(|range| Move { cohort: range.cohort, plan: range.plan, members: range.members.clone() })
    }

    pub(super) fn change_range(&mut self, cohort: CohortId, change: impl FnOnce(&mut RangeRecord)) -> bool {
        let of = self.tables.iter().find(|(_, table)| table.has(cohort)).map(|(name, _)| name.clone());
        let Some(name) = of else { return false };
        self.change_table(&name, |table| {
            if let Some(range) = table.ranges.iter_mut().find(|range| range.cohort == cohort) {
                change(range);
            }
        });
        true
    }
}
