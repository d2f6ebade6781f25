//! The catalogue: which tables and nodes there are, as the state machine of the first, fixed cohort.
//!
//! A table is created by an entry: its cohort's number and its members are computed when the entry is applied, from the
//! catalogue alone, so that every replica of the catalogue names the same. A node's disk is known by its incarnation, and
//! the catalogue never forgets it: an empty disk under a known name is refused here, for it would be a replica that has
//! promised things it doesn't remember (guarantee 6).

use base::limits::TABLES_MAX;
use base::{CohortId, Entry, Lsn, Member, NodeId, Timestamp};
use imbl::OrdMap;

use crate::command::CatalogueCommand;
use crate::hash::LogicalHash;
use crate::progress::{ApplyError, Progress};
use crate::request::{Failure, Outcome, Response};
use crate::tablet::invalid;

/// Nodes of a universe, at most: every node holds the list, and every peer connection is one of them.
pub const NODES_MAX: usize = 1_000;

/// Replicas of a table's cohort (fewer while fewer nodes are known): Spinnaker's three.
pub const REPLICAS: usize = 3;

/// The first cohort that a table can have.
const FIRST_TABLE_COHORT: CohortId = CohortId(CohortId::CATALOGUE.0 + 1);

/// Bytes of a table's or a node's record beside its strings, roughly.
const RECORD_BYTES: usize = 192;

/// What is known of a table.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TableRecord {
    /// The cohort that keeps its rows.
    pub cohort: CohortId,
    /// The cohort's members at its creation, in the order of nodes.
    pub members: Vec<Member>,
    /// When it was created.
    pub created: Timestamp,
}

/// What is known of a node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NodeRecord {
    /// The node and its disk.
    pub member: Member,
    /// Where other nodes reach it, as `host:port`.
    pub peer: String,
    /// Where clients reach it, as `host:port`.
    pub grpc: String,
}

/// What an entry changed, for the node to act on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Change {
    /// A table was created: its members start a replica.
    TableCreated {
        /// Its name.
        name: String,
        /// What is known of it.
        table: TableRecord,
    },
}

/// The tables and nodes of a universe.
#[derive(Clone, Debug)]
pub struct Catalogue {
    pub(crate) progress: Progress,
    pub(crate) tables: OrdMap<String, TableRecord>,
    pub(crate) nodes: OrdMap<NodeId, NodeRecord>,
    pub(crate) next_cohort: CohortId,
    bytes: usize,
}

impl Catalogue {
    /// The catalogue before its first entry.
    #[must_use]
    pub fn new() -> Self {
        Self {
            progress: Progress::new(CohortId::CATALOGUE),
            tables: OrdMap::new(),
            nodes: OrdMap::new(),
            next_cohort: FIRST_TABLE_COHORT,
            bytes: 0,
        }
    }

    /// The catalogue of a snapshot.
    pub(crate) fn of(
        progress: Progress,
        nodes: OrdMap<NodeId, NodeRecord>,
        tables: OrdMap<String, TableRecord>,
        next_cohort: CohortId,
    ) -> Self {
        let bytes = tables.iter().map(|(name, table)| table_bytes(name, table)).sum::<usize>()
            + nodes.values().map(node_bytes).sum::<usize>();
        Self { progress, tables, nodes, next_cohort, bytes }
    }

    /// Applies an entry: the outcome of a table's creation or of a refused registration, and what changed.
    ///
    /// # Errors
    /// When the entry doesn't follow the last one or is no command of the catalogue's. The catalogue is unchanged, and
    /// the node must halt.
    pub fn apply(&mut self, entry: &Entry) -> Result<(Option<Outcome>, Option<Change>), ApplyError> {
        self.progress.check(entry)?;
        if entry.payload.is_empty() {
            self.progress.advance(entry);
            return Ok((None, None));
        }
        let command =
            CatalogueCommand::decode(entry.payload.clone()).map_err(|e| self.progress.undecodable(entry, e))?;
        self.progress.advance(entry);
        Ok(match command {
            CatalogueCommand::CreateTable { name } => self.create_table(name, entry.timestamp),
            CatalogueCommand::RegisterNodes { nodes } => match self.register_nodes(nodes) {
                Ok(()) => (None, None),
                Err(failure) => (Some(Err(failure)), None),
            },
        })
    }

    fn create_table(&mut self, name: String, created: Timestamp) -> (Option<Outcome>, Option<Change>) {
        if self.tables.contains_key(&name) {
            return (Some(Ok(Response::TableCreated { existed: true })), None);
        }
        if self.tables.len() >= TABLES_MAX {
            let full = Failure::Overloaded(format!("there are {TABLES_MAX} tables, and no more may be"));
            return (Some(Err(full)), None);
        }
        if self.nodes.is_empty() {
            return (Some(Err(Failure::Unavailable("no node is registered that could keep a table".into()))), None);
        }
        let cohort = self.next_cohort;
        let Some(next) = cohort.0.checked_add(1) else {
            return (Some(Err(Failure::Overloaded("the numbers of cohorts are used up".into()))), None);
        };
        self.next_cohort = CohortId(next);
        let table = TableRecord { cohort, members: self.members_of(cohort), created };
        self.insert_table(name.clone(), table.clone());
        (Some(Ok(Response::TableCreated { existed: false })), Some(Change::TableCreated { name, table }))
    }

    /// Chained declustering (Spinnaker, section 4): neighbours in the ring of nodes, each cohort one node further on.
    fn members_of(&self, cohort: CohortId) -> Vec<Member> {
        let nodes: Vec<Member> = self.nodes.values().map(|node| node.member).collect();
        let first = (cohort.0 - FIRST_TABLE_COHORT.0) as usize % nodes.len();
        let mut members: Vec<Member> =
            nodes.iter().cycle().skip(first).take(REPLICAS.min(nodes.len())).copied().collect();
        members.sort_unstable();
        members
    }

    /// Registers all of the nodes, or none if one is refused.
    fn register_nodes(&mut self, nodes: Vec<NodeRecord>) -> Result<(), Failure> {
        let mut registered = self.nodes.clone();
        for node in nodes {
            let known = registered.get(&node.member.node);
            if let Some(known) = known.filter(|known| known.member != node.member) {
                return Err(invalid(format!(
                    "node {} is known with the disk {}: the disk {} is another's",
                    node.member.node, known.member, node.member
                )));
            }
            registered.insert(node.member.node, node);
        }
        if registered.len() > NODES_MAX {
            return Err(Failure::Overloaded(format!(
                "{} nodes would be known, over the limit of {NODES_MAX}",
                registered.len()
            )));
        }
        self.bytes -= self.nodes.values().map(node_bytes).sum::<usize>();
        self.bytes += registered.values().map(node_bytes).sum::<usize>();
        self.nodes = registered;
        Ok(())
    }

    /// Puts a table in; false if it was there before.
    pub(crate) fn insert_table(&mut self, name: String, table: TableRecord) -> bool {
        self.bytes += table_bytes(&name, &table);
        self.tables.insert(name, table).is_none()
    }

    /// Puts a node in; false if it was there before.
    pub(crate) fn insert_node(&mut self, node: NodeRecord) -> bool {
        self.bytes += node_bytes(&node);
        self.nodes.insert(node.member.node, node).is_none()
    }

    /// A table.
    #[must_use]
    pub fn table(&self, name: &str) -> Option<&TableRecord> {
        self.tables.get(name)
    }

    /// All tables, in the order of their names.
    pub fn tables(&self) -> impl Iterator<Item = (&str, &TableRecord)> {
        self.tables.iter().map(|(name, table)| (name.as_str(), table))
    }

    /// The names of all tables: a [`Response::Tables`].
    #[must_use]
    pub fn list(&self) -> Response {
        Response::Tables(self.tables.keys().cloned().collect())
    }

    /// All nodes, in the order of their numbers.
    pub fn nodes(&self) -> impl Iterator<Item = &NodeRecord> {
        self.nodes.values()
    }

    /// The last entry applied.
    #[must_use]
    pub fn last_applied(&self) -> Lsn {
        self.progress.last_applied
    }

    /// The timestamp of the last entry applied; 0 before the first.
    #[must_use]
    pub fn last_timestamp(&self) -> Timestamp {
        self.progress.last_timestamp
    }

    /// Bytes of memory that the records take, roughly.
    #[must_use]
    pub fn approximate_bytes(&self) -> usize {
        self.bytes
    }

    /// Checks what must always hold; simulation calls it after every step.
    ///
    /// # Panics
    /// When an invariant is broken.
    pub fn invariants(&self) {
        if let Err(broken) = self.check() {
            panic!("the catalogue's invariant is broken: {broken}");
        }
    }

    /// What must always hold, and what a checkpoint must show.
    pub(crate) fn check(&self) -> Result<(), &'static str> {
        let mut cohorts: Vec<CohortId> = self.tables.values().map(|table| table.cohort).collect();
        cohorts.sort_unstable();
        let in_range = |cohort: &CohortId| (FIRST_TABLE_COHORT..self.next_cohort).contains(cohort);
        let members_fit = |table: &TableRecord| {
            let members = &table.members;
            members.len() <= REPLICAS
                && !members.is_empty()
                && members.is_sorted_by(|a, b| a.node < b.node)
                && members.iter().all(|member| self.nodes.contains_key(&member.node))
        };
        let bytes = self.tables.iter().map(|(name, table)| table_bytes(name, table)).sum::<usize>()
            + self.nodes.values().map(node_bytes).sum::<usize>();
        match () {
            () if self.tables.len() > TABLES_MAX => Err("too many tables"),
            () if self.nodes.len() > NODES_MAX => Err("too many nodes"),
            () if self.next_cohort < FIRST_TABLE_COHORT => Err("a next cohort that no table can have"),
            () if !cohorts.is_sorted_by(|a, b| a < b) => Err("two tables in one cohort"),
            () if !cohorts.iter().all(in_range) => Err("a table's cohort that was never given out"),
            () if !self.tables.values().all(members_fit) => Err("a table's members are not three known nodes"),
            () if bytes != self.bytes => Err("the account of bytes is not what the records take"),
            () => Ok(()),
        }
    }

    pub(crate) fn hash(&self, hash: &mut LogicalHash) {
        self.progress.hash(hash);
        hash.word(u64::from(self.next_cohort.0));
        hash.word(self.nodes.len() as u64);
        for node in self.nodes.values() {
            hash_member(node.member, hash);
            hash.bytes(node.peer.as_bytes());
            hash.bytes(node.grpc.as_bytes());
        }
        for (name, table) in &self.tables {
            hash.bytes(name.as_bytes());
            hash.word(u64::from(table.cohort.0));
            hash.signed(table.created.0);
            hash.word(table.members.len() as u64);
            table.members.iter().for_each(|member| hash_member(*member, hash));
        }
    }
}

impl Default for Catalogue {
    fn default() -> Self {
        Self::new()
    }
}

fn hash_member(member: Member, hash: &mut LogicalHash) {
    hash.word(u64::from(member.node.0));
    hash.word(member.incarnation.0);
}

fn table_bytes(name: &str, table: &TableRecord) -> usize {
    RECORD_BYTES + name.len() + size_of_val(table.members.as_slice())
}

fn node_bytes(node: &NodeRecord) -> usize {
    RECORD_BYTES + node.peer.len() + node.grpc.len()
}

#[cfg(test)]
mod tests;
