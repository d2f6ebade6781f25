//! Names the replicas that are down, in the errors of requests that got no result. The texts are for operators: nothing
//! is decided by them.

use base::{CohortId, Duration, Monotonic, NodeId, Now};

use catalog::{CatalogCommand, CatalogRequest, cohort_of};

use crate::message::Query;
use crate::node::Node;
use crate::replica::Replica;
use crate::request::Ask;
use crate::request_table::{Pending, RequestState, Target};
use crate::roster::{ALIVE, Peer, Roster};

impl Roster {
    /// Whether messages to a node can be delivered, as far as the driver has reported.
    pub(crate) fn is_connected(&self, node: NodeId) -> bool {
        self.peers.get(&node).is_none_or(|peer| !peer.is_disconnected)
    }

    /// Whether a node is alive, as far as this one can tell: it is connected, and has sent a message recently.
    pub(crate) fn is_alive(&self, node: NodeId, now: Monotonic) -> bool {
        let has_contact = |at: Monotonic| now.since(at) < ALIVE;
        let is_alive = |peer: &Peer| !peer.is_disconnected && peer.last_contact.is_some_and(has_contact);
        node == self.me.node || self.peers.get(&node).is_some_and(is_alive)
    }

    /// Whether a leader on this node is certain not to reach a quorum now, so that a proposal would stay uncommitted.
    pub(crate) fn lacks_quorum(&self, replica: &Replica, now: Monotonic) -> bool {
        let connected = replica.cohort.electorate().filter(|member| self.is_connected(member.node)).count();
        connected < replica.cohort.quorum() || replica.cohort.lacks_votes(now)
    }
}

impl Node {
    /// Describes the replicas of a cohort that are down, if a majority is: "2 of 3 replicas of range ["", end) of table
    /// t are down (nodes 2, 3)".
    pub(crate) fn outage(&self, cohort: CohortId, now: Now) -> Option<String> {
        self.outage_of(cohort, self.contact_expected(cohort, now.monotonic), now)
    }

    /// The same for the leader of a cohort that resigns.
    pub(crate) fn outage_of_leader(&self, cohort: CohortId, now: Now) -> Option<String> {
        self.outage_of(cohort, Some(self.config.timing.lease), now)
    }

    fn outage_of(&self, cohort: CohortId, contact: Option<Duration>, now: Now) -> Option<String> {
        let planned: Vec<NodeId> = if cohort == CohortId::CATALOG {
            self.replicas.get(&cohort)?.cohort.membership().voters().iter().map(|member| member.node).collect()
        } else if let Some(part) = self.catalog().part_of(cohort) {
            part.members.iter().map(|member| member.node).collect()
        } else {
            vec![self.catalog().unit_of(cohort)?.1.node]
        };
        let is_down = |node: &NodeId| self.is_down(*node, contact, now.monotonic);
        let down: Vec<String> = planned.iter().copied().filter(is_down).map(|node| node.to_string()).collect();
        if (planned.len() - down.len()) * 2 > planned.len() {
            return None;
        }
        let (nodes, verb) = if down.len() == 1 { ("node", "is") } else { ("nodes", "are") };
        let replicas = base::counted(planned.len() as u64, "replica");
        let (of, down_count, down) = (self.part_name(cohort), down.len(), down.join(", "));
        Some(format!("{down_count} of {replicas} of {of} {verb} down ({nodes} {down})"))
    }

    /// Why a request got no result by its deadline.
    pub(crate) fn no_result(&self, pending: &Pending, now: Now) -> String {
        let is_unmapped = pending.place == RequestState::LookingUp
            || pending.cohort.is_none() && matches!(pending.target, Target::Table(_));
        let cohort = match (pending.cohort, &pending.target) {
            _ if is_unmapped => CohortId::CATALOG,
            (Some(cohort), _) => cohort,
            (None, Target::Cohort(cohort)) => *cohort,
            (None, _) => return "no reply from the log".to_owned(),
        };
        if let Some(outage) = self.outage(cohort, now).or_else(|| self.outage_of_drop(&pending.query, now)) {
            return outage;
        }
        let of = self.part_name(cohort);
        match pending.place {
            RequestState::Forwarded(node, _) => format!("no reply from node {node}, asked as the leader of {of}"),
            RequestState::Proposed => format!("no majority of the replicas of {of} confirmed it in time"),
            RequestState::Latched => format!("an earlier write to the same row of {of} has not completed"),
            RequestState::Evaluated => format!("a read of {of} from the disk has not completed"),
            RequestState::Waiting if self.awaits_flush(cohort) => {
                format!("writes to {of} wait until its memtables are flushed to the disk")
            }
            _ => format!("{of} has no leader that is in contact with a majority"),
        }
    }

    /// Describes an outage that a drop waits for, and the way out.
    fn outage_of_drop(&self, query: &Query, now: Now) -> Option<String> {
        let Query::Machine(Ask::Catalog(CatalogRequest::Change(command))) = query else { return None };
        let (what, cohorts): (String, Vec<CohortId>) = match command {
            CatalogCommand::BeginDrop { name, .. } => {
                let (_, table) = self.catalog().dropping().find(|(of, _)| of == name)?;
                (format!("table {name}"), table.ranges.iter().map(|range| range.cohort).collect())
            }
            CatalogCommand::BeginLogDrop { name, .. } => {
                let (_, log) = self.catalog().dropping_logs().find(|(of, _)| of == name)?;
                (format!("log {name}"), log.units.iter().filter_map(|(unit, _)| cohort_of(*unit)).collect())
            }
            _ => return None,
        };
        let outage = cohorts.into_iter().find_map(|cohort| self.outage(cohort, now))?;
        Some(format!(
            "{what} is being dropped, but {outage}; if these replicas are lost for good, drop it with --force"
        ))
    }

    /// Whether writes to a range that this node leads wait for space in memtables.
    fn awaits_flush(&self, cohort: CohortId) -> bool {
        self.replicas.get(&cohort).is_some_and(|replica| {
            let is_full = replica.is_stalled(&self.config) || self.checkpoints.are_memtables_full(&self.config);
            replica.cohort.leads() && is_full
        })
    }

    /// Within which time all members of a cohort that are alive send this node a message: if it leads the cohort, or is
    /// a replica that has long looked for a leader.
    fn contact_expected(&self, cohort: CohortId, now: Monotonic) -> Option<Duration> {
        let replica = self.replicas.get(&cohort)?;
        let is_alone = replica.alone_since.is_some_and(|since| now.since(since) >= ALIVE);
        match replica.cohort.leads() {
            true => Some(self.config.timing.lease),
            false => is_alone.then_some(ALIVE),
        }
    }

    fn is_down(&self, node: NodeId, contact: Option<Duration>, now: Monotonic) -> bool {
        let Some(peer) = self.cluster.peers.get(&node) else { return false };
        let is_quiet = |span| peer.last_contact.is_none_or(|last_contact| now.since(last_contact) >= span);
        peer.is_disconnected || peer.silent && is_quiet(ALIVE) || contact.is_some_and(is_quiet)
    }

    fn unit_name(&self, cohort: CohortId) -> Option<String> {
        let (unit, _) = self.catalog().unit_of(cohort)?;
        let (log, _) = self.catalog().logs().find(|(_, log)| log.member_of(unit).is_some())?;
        Some(format!("unit {cohort} of log {log}"))
    }

    fn part_name(&self, cohort: CohortId) -> String {
        if cohort == CohortId::CATALOG {
            return "the catalog".to_owned();
        }
        let tables = self.catalog().tables();
        let mut parts = tables.flat_map(|(name, table)| table.parts().map(move |part| (name, part)));
        match parts.find(|(_, part)| part.cohort == cohort) {
            Some((table, part)) => format!("range {} of table {table}", part.range),
            None => self.unit_name(cohort).unwrap_or_else(|| format!("cohort {cohort}")),
        }
    }
}
