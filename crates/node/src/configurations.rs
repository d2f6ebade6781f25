//! Connects cohorts under primary/backup replication with the catalog, their configuration manager (guarantee 27).
//!
//! Every node has a replica of the catalog. When it applies a configuration, it passes it to the local replica of that
//! cohort. In the other direction, a replica petitions for a configuration: the petition is an ordinary request to the
//! catalog's leader. Its reply has no effect: the replica learns the outcome from the catalog, and repeats the petition
//! until it knows a later version.

use std::borrow::Cow;
use std::collections::BTreeSet;

use base::{CohortId, Configuration, Member, MembershipChange, Now};
use catalog::{CatalogCommand, CatalogRequest};

use crate::message::Query;
use crate::node::Node;
use crate::replica::Replica;
use crate::request_table::{ReplyTo, Target};

/// The petitions in progress.
#[derive(Debug, Default)]
pub(crate) struct Configurations {
    /// The catalog may have newer configurations than the local replicas.
    pub(crate) has_work: bool,
    /// The cohorts with an outstanding petition of this node.
    asked: BTreeSet<CohortId>,
    /// Members that left configurations of which this node is the primary, since the start.
    pub(crate) removals: u64,
}

impl Node {
    /// Passes new configurations to the local replicas.
    pub(crate) fn run_configurations(&mut self, now: Now) -> bool {
        if !std::mem::take(&mut self.configurations.has_work) {
            return false;
        }
        let is_news = |(cohort, configuration): &(CohortId, Cow<'_, Configuration>)| {
            let replica = self.replicas.get(cohort);
            let known = replica.map(|replica| replica.cohort.configuration());
            known.is_some_and(|known| known.is_none_or(|known| known.version < configuration.version))
        };
        let news = self.catalog().configurations().filter(is_news);
        let news: Vec<_> = news.map(|(cohort, newest)| (cohort, newest.into_owned())).collect();
        for (cohort, configuration) in news {
            self.configurations.asked.remove(&cohort);
            let is_lost = |replica: &Replica| replica.cohort.must_begin_again(&configuration);
            if self.replicas.get(&cohort).is_some_and(is_lost) {
                // The state that splits depend on stays until they are settled. The replica takes no part meanwhile.
                if !self.is_rested_on(cohort) {
                    self.retire(cohort);
                }
                continue;
            }
            self.note_members(cohort, &configuration, now);
            self.with_cohort(cohort, now, |cohort, out| cohort.appointed(configuration, now, out));
        }
        true
    }

    /// As the primary of a new configuration: counts and reports the members that it lacks.
    fn note_members(&mut self, id: CohortId, newest: &Configuration, now: Now) {
        let known = self.replicas.get(&id).and_then(|replica| replica.cohort.configuration());
        let Some(known) = known.filter(|_| newest.primary == self.cluster.me) else { return };
        let numbers = |members: &mut dyn Iterator<Item = &Member>| {
            members.map(|member| member.node.to_string()).collect::<Vec<_>>().join(", ")
        };
        let removed = known.members.iter().filter(|member| !newest.members.contains(member)).count();
        if removed == 0 {
            return;
        }
        self.configurations.removals += removed as u64;
        let left = numbers(&mut known.members.iter().filter(|member| !newest.members.contains(member)));
        let (version, rest) = (newest.version, numbers(&mut newest.members.iter()));
        self.notice(now, |node| {
            let name = node.name_of(id);
            format!("removed node {left} from the configuration of {name}: version {version}, members {rest}")
        });
    }

    /// Asks the catalog's leader to install a configuration. The replica's view was withdrawn in this step: views are
    /// published before any other action.
    pub(crate) fn petition(&mut self, cohort: CohortId, configuration: Configuration, now: Now) {
        if !self.configurations.asked.insert(cohort) {
            return;
        }
        self.counters.petitions += 1;
        let deadline = now.monotonic + self.config.timing.lease;
        let request = CatalogRequest::Change(CatalogCommand::Configure { cohort, configuration });
        let query = Query::Machine(request.into());
        self.begin(ReplyTo::Petition(cohort), deadline, Target::Cohort(CohortId::CATALOG), query, now);
    }

    /// A petition was answered, or its deadline has passed.
    pub(crate) fn petition_answered(&mut self, cohort: CohortId) {
        self.configurations.asked.remove(&cohort);
    }

    /// As a primary: petitions to add a candidate that has caught up, if the placement plan gives it a replica.
    pub(crate) fn add_candidates(&mut self, id: CohortId, now: Now) {
        let Some(replica) = self.replicas.quietly(id) else { return };
        if !replica.cohort.is_managed() {
            return;
        }
        let mut candidates = replica.cohort.candidates();
        if candidates.is_empty() {
            return;
        }
        let plan = replica.cohort.membership().plan();
        let Some(part) = self.catalog().part_of(id) else { return };
        candidates.retain(|(candidate, _)| part.members.contains(candidate));
        for (candidate, _) in candidates {
            self.take_step_of(id, MembershipChange::Promote(candidate), plan, now);
        }
    }
}
