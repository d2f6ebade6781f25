//! The catalog: metadata of tables, shared logs and nodes, as the state machine of cohort 1.
//!
//! A `CreateTable` entry creates a table and carries its split keys. The cohort and members of each range are computed
//! when the entry is applied, from the catalog's state alone, so all replicas of the catalog compute the same
//! placement. The catalog is only a *map*: a hint about which cohort serves a key. The range that a cohort owns is
//! decided in that cohort's log (guarantee 19).
//!
//! A node's disk is identified by its incarnation, and the catalog never forgets it. An empty disk under a registered
//! node id is rejected: it would be a replica that does not remember the promises it made (guarantee 6).

use base::limits::{RANGES_IN_CLUSTER_MAX, TABLES_MAX};
use base::{CohortId, Entry, Lsn, Member, NodeId, Timestamp, counted};
use bytes::Bytes;
use imbl::OrdMap;
use sharedlog::LogId;

use state_machine::failure::precondition;
use state_machine::{ApplyError, ClientSessionId, Failure, LogicalHash, NoStorage, Progress};

use crate::command::CatalogCommand;
use crate::options::{Replication, TableOptions};
use crate::request::{CatalogResponse, DiskDescription, Outcome};

mod configurations;
mod drops;
mod logs;
mod moves;
mod nodes;
mod splits;
mod table;

pub use logs::{LogRecord, cohort_of};
pub use moves::Move;
pub use nodes::{NodeRecord, Standing};
pub use splits::SplitUnderWay;
pub use table::{Part, RangeRecord, SplitRecord, TableRecord};

use table::RECORD_BYTES;

/// Maximum number of nodes of a cluster. Every node stores the list and keeps a connection to each peer.
pub const NODES_MAX: usize = 1_000;

/// Default number of replicas of a range, as in Spinnaker. Fewer while the cluster has fewer nodes.
pub const REPLICAS: u32 = 3;

/// The lowest cohort id of a range.
const FIRST_TABLE_COHORT: CohortId = CohortId(CohortId::CATALOG.0 + 1);

/// The change that an entry made, for the node to act on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A table was created: the members of its ranges start their replicas.
    TableCreated { name: String },
    /// A table or log is being dropped: the catalog's leader makes each of its cohorts commit the drop.
    DropBegun {
        /// The id of the table or log: the cohort of its first range or unit.
        id: CohortId,
    },
    /// A table was removed: nodes delete its replicas, and clients that wait for the drop are answered.
    TableDropped { table: CohortId },
    /// A log was removed: nodes delete its units, and clients that wait for the drop are answered.
    LogDropped {
        /// The log's id: the cohort of its first unit.
        id: CohortId,
    },
    /// A range is being split: the catalog's leader makes its cohort commit the split.
    SplitBegun {
        /// The new range's cohort.
        child: CohortId,
    },
    /// The map contains both ranges of a split: clients that wait for the split are answered.
    SplitEnded {
        /// The new range's cohort.
        child: CohortId,
    },
    /// A new placement was planned for a range: the catalog's leader carries it out.
    MoveBegun,
    /// A node joined, began to leave, or left.
    NodesChanged,
    /// A range reached its planned placement: former members delete their replicas.
    MoveEnded,
    /// A range has another configuration, which its replicas must receive.
    Configured { cohort: CohortId },
    /// A log was created, or its projection or set of units changed.
    LogProjected { log: LogId },
}

/// Metadata of a cluster: tables, nodes and shared logs.
#[derive(Clone, Debug)]
pub struct Catalog {
    pub(crate) progress: Progress,
    pub(crate) tables: OrdMap<String, TableRecord>,
    pub(crate) nodes: OrdMap<NodeId, NodeRecord>,
    pub(crate) logs: OrdMap<String, LogRecord>,
    pub(crate) next_cohort: CohortId,
    /// The nodes with a full disk, in order.
    pub(crate) full: Vec<NodeId>,
    bytes: usize,
    pub(crate) storage: NoStorage,
}

impl Catalog {
    /// An empty catalog, before its first entry.
    #[must_use]
    pub fn empty() -> Self {
        Self {
            progress: Progress::new(CohortId::CATALOG),
            tables: OrdMap::new(),
            nodes: OrdMap::new(),
            logs: OrdMap::new(),
            next_cohort: FIRST_TABLE_COHORT,
            full: Vec::new(),
            bytes: 0,
            storage: NoStorage,
        }
    }

    /// Restores a catalog from the contents of a snapshot.
    pub(crate) fn of(
        progress: Progress,
        nodes: OrdMap<NodeId, NodeRecord>,
        tables: OrdMap<String, TableRecord>,
        logs: OrdMap<String, LogRecord>,
        (next_cohort, full): (CohortId, Vec<NodeId>),
    ) -> Self {
        let mut catalog = Self { progress, tables, nodes, logs, next_cohort, full, bytes: 0, storage: NoStorage };
        catalog.bytes = catalog.bytes_of_records();
        catalog
    }

    fn bytes_of_records(&self) -> usize {
        self.tables.iter().map(|(name, table)| table.bytes(name)).sum::<usize>()
            + self.nodes.values().map(node_bytes).sum::<usize>()
            + self.logs.iter().map(|(name, log)| log.bytes(name)).sum::<usize>()
    }

    /// Applies an entry. Returns the outcome of the request and the change for the node to act on, if any.
    ///
    /// # Errors
    /// The entry is not the successor of the last one applied, or its payload is not a catalog command. The catalog is
    /// unchanged, and the node must halt.
    pub fn apply_entry(&mut self, entry: &Entry) -> Result<(Option<Outcome>, Option<Change>), ApplyError> {
        self.progress.check(entry)?;
        if entry.payload.is_empty() {
            self.progress.advance(entry);
            return Ok((None, None));
        }
        let command = CatalogCommand::decode(entry.payload.clone()).map_err(|e| self.progress.undecodable(entry, e))?;
        self.progress.advance(entry);
        Ok(match command {
            CatalogCommand::CreateTable { name, split_at, options } => {
                let created = self.create_table(&name, split_at, options, entry.timestamp);
                let change = matches!(created, Ok(CatalogResponse::TableCreated { existed: false }));
                (Some(created), change.then_some(Change::TableCreated { name }))
            }
            CatalogCommand::BeginSplit { name, key } => self.begin_split(&name, &key),
            CatalogCommand::EndSplit { name, child } => (None, self.end_split(&name, child)),
            CatalogCommand::BeginDrop { name, force } => self.begin_drop(&name, force),
            CatalogCommand::EndDrop { name, table } => (None, self.end_drop(&name, table)),
            CatalogCommand::BeginMove { cohort, nodes, force } => {
                let begun = self.begin_move(cohort, &nodes, force);
                let change = begun.is_ok().then_some(Change::MoveBegun);
                (Some(begun), change)
            }
            CatalogCommand::Configure { cohort, configuration } => (None, self.configure(cohort, &configuration)),
            CatalogCommand::DeclareLoss { table, cohort, node } => {
                let declared = self.declare_loss(&table, cohort, node);
                let change = declared.is_ok().then_some(Change::MoveBegun);
                (Some(declared), change)
            }
            CatalogCommand::EndMove { cohort, plan } => (None, self.end_move(cohort, plan)),
            CatalogCommand::ResizeDisk { name, bytes } => (Some(self.resize_disk(&name, bytes)), None),
            CatalogCommand::RegisterNodes { nodes } => match self.register_nodes(nodes) {
                Ok(()) => (None, Some(Change::NodesChanged)),
                Err(failure) => (Some(Err(failure)), None),
            },
            CatalogCommand::AddNode { node } => changed_nodes(self.add_node(node)),
            CatalogCommand::BeginLeave { node } => changed_nodes(self.begin_leave(node)),
            CatalogCommand::MoveOff { absent } => (None, self.move_off(&absent)),
            CatalogCommand::Replace { absent, suspected } => (None, self.replace(&absent, &suspected)),
            CatalogCommand::NoteFull { nodes } => {
                self.full = nodes;
                (None, None)
            }
            CatalogCommand::EndLeave { node } => (None, self.end_leave(node)),
            CatalogCommand::CreateLog { name, stripes, copies, sequencer } => {
                self.create_log(&name, stripes, copies, sequencer, entry.timestamp)
            }
            CatalogCommand::Project { projection } => self.project(&projection),
            CatalogCommand::AddUnits { log, nodes } => (None, self.add_units(log, &nodes)),
            CatalogCommand::ForgetSpares { log, units } => (None, self.forget_spares(log, &units)),
            CatalogCommand::BeginLogDrop { name, force } => self.begin_log_drop(&name, force),
            CatalogCommand::EndLogDrop { name, log } => (None, self.end_log_drop(&name, log)),
        })
    }

    fn create_table(
        &mut self,
        name: &str,
        mut split_at: Vec<Bytes>,
        options: TableOptions,
        created: Timestamp,
    ) -> Outcome {
        // The server rejects duplicate keys. Applying must still yield a valid record for any entry.
        split_at.sort_unstable();
        split_at.dedup();
        split_at.retain(|key| !key.is_empty());
        if let Some(table) = self.tables.get(name) {
            if table.is_dropping {
                return Err(Failure::Unavailable(format!("the previous table {name} is still being dropped")));
            }
            return table.created_again(name, &split_at, &options);
        }
        self.check_room(split_at.len() + 1, options.replicas)?;
        let options = options.completed();
        let starts = std::iter::once(Bytes::new()).chain(split_at);
        let is_managed = options.replication() == Replication::PrimaryBackup;
        let ranges = starts.map(|start| self.place(&start, options.replicas));
        let ranges = ranges.map(|range| if is_managed { range.configured() } else { range }).collect();
        let table = TableRecord { options, ranges, created, is_dropping: false, is_drop_forced: false };
        self.insert_table(name.to_owned(), table);
        Ok(CatalogResponse::TableCreated { existed: false })
    }

    /// Sets the size of a disk. Repeated, it changes nothing.
    fn resize_disk(&mut self, name: &str, bytes: u64) -> Outcome {
        let table = self.tables.get_mut(name).filter(|table| !table.is_dropping && table.options.is_disk());
        let table = table.ok_or_else(|| Failure::UnknownTable(name.to_owned()))?;
        let before = table.options.disk_bytes;
        if bytes < before {
            return Err(precondition(format!("disk {name} has {before} bytes, and a disk cannot shrink")));
        }
        table.options.disk_bytes = bytes;
        Ok(CatalogResponse::DiskResized)
    }

    /// All disks in order of name, except those being deleted.
    pub(crate) fn disks(&self) -> impl Iterator<Item = DiskDescription> {
        let disks = self.tables.iter().filter(|(_, table)| table.options.is_disk() && !table.is_dropping);
        disks.map(|(name, table)| DiskDescription {
            name: name.clone(),
            bytes: table.options.disk_bytes,
            stripes: table.ranges.len() as u32,
            created: table.created,
            is_exclusive: table.options.is_exclusive,
        })
    }

    /// Checks the limits for a new table with this many ranges and replicas (0: the default).
    fn check_room(&self, ranges: usize, replicas: u32) -> Result<(), Failure> {
        let nodes = self.staying().count();
        if self.tables.len() >= TABLES_MAX {
            return Err(Failure::Overloaded(format!("table limit reached ({TABLES_MAX})")));
        }
        self.check_ranges(ranges)?;
        if nodes == 0 {
            return Err(Failure::Unavailable("no registered node can hold a table".into()));
        }
        if replicas as usize > nodes {
            let nodes = counted(nodes as u64, "node");
            return Err(precondition(format!("{replicas} replicas requested, but the cluster has {nodes}")));
        }
        Ok(())
    }

    /// Checks whether this many ranges can be added.
    fn check_ranges(&self, ranges: usize) -> Result<(), Failure> {
        let there = self.parts().count() + self.units().count();
        if there + ranges > RANGES_IN_CLUSTER_MAX {
            return Err(Failure::Overloaded(format!(
                "range limit exceeded: {there} ranges and log units exist, {ranges} requested, at most \
                 {RANGES_IN_CLUSTER_MAX}"
            )));
        }
        let cohorts_left = ClientSessionId::COHORTS_MAX.saturating_sub(u64::from(self.next_cohort.0));
        if cohorts_left < ranges as u64 {
            return Err(Failure::Overloaded("cohort ids exhausted".into()));
        }
        Ok(())
    }

    /// Assigns the next cohort id and the members of a range by chained declustering (Spinnaker, section 4):
    /// consecutive nodes in the ring of nodes. Each cohort starts one node after the previous cohort, across all
    /// tables. Nodes with a full disk are left out while there are enough others.
    fn place(&mut self, start: &Bytes, replicas: u32) -> RangeRecord {
        let cohort = self.next_cohort;
        self.next_cohort = CohortId(cohort.0 + 1);
        let mut nodes: Vec<Member> = self.staying().filter(|member| !self.full.contains(&member.node)).collect();
        if nodes.len() < replicas as usize {
            nodes = self.staying().collect();
        }
        let first = (cohort.0 - FIRST_TABLE_COHORT.0) as usize % nodes.len();
        let count = nodes.len().min(replicas as usize);
        let mut members: Vec<Member> = nodes.iter().cycle().skip(first).take(count).copied().collect();
        members.sort_unstable();
        // Copied, because a slice would keep the whole entry in memory.
        let start = Bytes::copy_from_slice(start);
        RangeRecord::new(start, cohort, members)
    }

    /// Inserts a table; returns false if the name was already taken.
    pub(crate) fn insert_table(&mut self, name: String, table: TableRecord) -> bool {
        self.bytes += table.bytes(&name);
        self.tables.insert(name, table).is_none()
    }

    /// Inserts a node; returns false if the node id was already taken.
    pub(crate) fn insert_node(&mut self, node: NodeRecord) -> bool {
        self.bytes += node_bytes(&node);
        self.nodes.insert(node.member.node, node).is_none()
    }

    /// A table, unless it is being dropped.
    #[must_use]
    pub fn table(&self, name: &str) -> Option<&TableRecord> {
        self.tables.get(name).filter(|table| !table.is_dropping)
    }

    /// A table, also while it is being dropped: its ranges may still know the outcomes of transactions.
    #[must_use]
    pub fn remnant(&self, name: &str) -> Option<&TableRecord> {
        self.tables.get(name)
    }

    /// All tables in order of name, including those being dropped.
    pub fn tables(&self) -> impl Iterator<Item = (&str, &TableRecord)> {
        self.tables.iter().map(|(name, table)| (name.as_str(), table))
    }

    /// Describes a table: a [`CatalogResponse::Table`].
    ///
    /// # Errors
    /// [`Failure::UnknownTable`].
    pub fn describe(&self, name: &str) -> Outcome {
        self.table(name).map(TableRecord::describe).ok_or_else(|| Failure::UnknownTable(name.to_owned()))
    }

    /// Whether a range has existed and does not any more: its table was dropped.
    #[must_use]
    pub fn is_gone(&self, cohort: CohortId) -> bool {
        cohort < self.next_cohort && self.part_of(cohort).is_none()
    }

    /// The range, or the part being split off from a range, that a cohort serves.
    #[must_use]
    pub fn part_of(&self, cohort: CohortId) -> Option<Part<'_>> {
        self.parts().find(|part| part.cohort == cohort)
    }

    /// All parts of all tables, in order of table name and key.
    pub fn parts(&self) -> impl Iterator<Item = Part<'_>> {
        self.tables.values().flat_map(TableRecord::parts)
    }

    /// The names of all tables except those being dropped: a [`CatalogResponse::Tables`].
    #[must_use]
    pub fn list(&self) -> CatalogResponse {
        let is_there = |(_, table): &(&str, &TableRecord)| !table.is_dropping && !table.options.is_disk();
        CatalogResponse::Tables(self.tables().filter(is_there).map(|(name, _)| name.to_owned()).collect())
    }

    /// LSN of the last applied entry.
    #[must_use]
    pub fn last_applied(&self) -> Lsn {
        self.progress.last_applied
    }

    /// Timestamp of the last applied entry; 0 before the first.
    #[must_use]
    pub fn last_timestamp(&self) -> Timestamp {
        self.progress.last_timestamp
    }

    /// Approximate memory of the records, in bytes.
    #[must_use]
    pub fn approximate_bytes(&self) -> usize {
        self.bytes
    }

    /// Checks the invariants. The simulator calls it after every step.
    ///
    /// # Panics
    /// When an invariant is broken.
    pub fn assert_invariants(&self) {
        if let Err(broken) = self.check() {
            panic!("catalog invariant violated: {broken}");
        }
    }

    /// The invariants. A checkpoint that breaks one is rejected.
    pub(crate) fn check(&self) -> Result<(), &'static str> {
        let ranges = || self.tables.values().flat_map(TableRecord::parts);
        let units = self.units().map(|(cohort, _)| cohort);
        let mut cohorts: Vec<CohortId> = ranges().map(|range| range.cohort).chain(units).collect();
        cohorts.sort_unstable();
        let was_given_out = |cohort: &CohortId| (FIRST_TABLE_COHORT..self.next_cohort).contains(cohort);
        let is_sorted = |members: &[Member]| members.is_sorted_by(|a, b| a.node < b.node);
        let members_fit = |range: Part<'_>| {
            !range.members.is_empty()
                && !range.genesis.is_empty()
                && is_sorted(range.members)
                && is_sorted(range.genesis)
                && range.members.iter().all(|member| self.nodes().any(|node| node.member == *member))
        };
        let is_configured = |table: &TableRecord| {
            let is_managed = table.options.replication() == Replication::PrimaryBackup;
            let fits = |range: &RangeRecord| match &range.configuration {
                Some(configuration) => is_managed && configuration.is_well_formed(),
                None => !is_managed,
            };
            table.ranges.iter().all(fits)
        };
        self.check_logs()?;
        match () {
            () if self.tables.len() > TABLES_MAX => Err("too many tables"),
            () if cohorts.len() > RANGES_IN_CLUSTER_MAX => Err("too many ranges"),
            () if self.nodes().count() > NODES_MAX => Err("too many nodes"),
            () if self.next_cohort < FIRST_TABLE_COHORT => Err("next cohort id out of range"),
            () if !self.tables.values().all(TableRecord::is_whole) => {
                Err("a table's ranges do not partition the key space")
            }
            () if !cohorts.is_sorted_by(|a, b| a < b) => Err("two ranges share a cohort"),
            () if !cohorts.iter().all(was_given_out) => Err("a range has an unassigned cohort id"),
            () if !ranges().all(members_fit) => Err("a range has an unknown member"),
            () if !self.tables.values().all(is_configured) => Err("a range has an invalid configuration"),
            () if self.bytes_of_records() != self.bytes => Err("byte count does not match the records"),
            () => Ok(()),
        }
    }

    pub(crate) fn hash_into(&self, hash: &mut LogicalHash) {
        self.progress.add_to(hash);
        hash.word(u64::from(self.next_cohort.0));
        self.full.iter().for_each(|node| hash.word(u64::from(node.0)));
        hash.word(self.nodes.len() as u64);
        for node in self.nodes.values() {
            hash_member(node.member, hash);
            hash.bytes(node.peer.as_bytes());
            hash.bytes(node.grpc.as_bytes());
            hash.word(u64::from(node.standing.tag()));
        }
        for (name, table) in &self.tables {
            hash.bytes(name.as_bytes());
            table.hash(hash);
        }
        for (name, log) in &self.logs {
            hash.bytes(name.as_bytes());
            log.hash(hash);
        }
    }
}

impl Default for Catalog {
    fn default() -> Self {
        Self::empty()
    }
}

fn changed_nodes(outcome: Outcome) -> (Option<Outcome>, Option<Change>) {
    let change = outcome.is_ok().then_some(Change::NodesChanged);
    (Some(outcome), change)
}

fn hash_member(member: Member, hash: &mut LogicalHash) {
    hash.word(u64::from(member.node.0));
    hash.word(member.incarnation.0);
}

fn node_bytes(node: &NodeRecord) -> usize {
    RECORD_BYTES + node.peer.len() + node.grpc.len()
}

#[cfg(test)]
mod tests;
