//! Shared logs in the catalog: their projections, and the disks of their units (guarantee 20).
//!
//! The catalog decides which projection is current: a new projection replaces the one it names as its predecessor, if
//! it is a valid successor. A log unit is a cohort with one member, which is one disk. So a disk that was lost cannot
//! bring back an empty unit under the old id. A unit that a new projection omits is forgotten here, as is the range of
//! a dropped table.

use std::collections::BTreeSet;

use base::limits::LOGS_MAX;
use base::{CohortId, Member, NodeId, Timestamp, counted};
use sharedlog::limits::{EXTENTS_MAX, STRIPE_WIDTH};
use sharedlog::validate::COORDINATION_LOG;
use sharedlog::{Extent, LogId, Position, Projection, ProjectionEpoch, SequencerId, UnitId};

use super::{Catalog, Change, RECORD_BYTES};
use sharedlog::request::{ExtentDescription, LogDescription, LogResponse};
use state_machine::LogicalHash;

use crate::request::{CatalogResponse, Outcome};
use state_machine::Failure;
use state_machine::failure::{invalid, precondition};

/// Default copies of each position; one more on clusters of [`MANY_NODES`] nodes or more.
const COPIES: u32 = 2;
/// Number of nodes from which the default is one copy more.
const MANY_NODES: usize = 5;
/// Maximum spare units of one log, that is, units in no projection yet.
const SPARES_MAX: usize = 16;

/// Metadata of a shared log.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LogRecord {
    /// The log's id, which is the id of its first unit.
    pub id: LogId,
    /// When it was created.
    pub created: Timestamp,
    /// The number of chains it should have.
    pub stripes: u32,
    /// The number of units each chain should have.
    pub copies: u32,
    pub projection: Projection,
    /// The units in the current projection and the spare units, each with its disk, in order of unit id.
    pub units: Vec<(UnitId, Member)>,
    /// Whether it is being dropped. The record remains until all its units are sealed.
    pub is_dropping: bool,
    /// Whether the drop ends without the units that cannot be reached: the operator has declared them lost.
    pub is_drop_forced: bool,
}

impl LogRecord {
    /// The cohort of its first unit, which has the same number as the log.
    #[must_use]
    pub fn cohort(&self) -> CohortId {
        CohortId(u32::try_from(self.id.0).unwrap_or(u32::MAX))
    }

    /// The disk of a unit.
    #[must_use]
    pub fn member_of(&self, unit: UnitId) -> Option<Member> {
        let place = self.units.binary_search_by_key(&unit, |(unit, _)| *unit).ok()?;
        Some(self.units[place].1)
    }

    /// The spare units: those in no projection yet.
    pub fn spares(&self) -> impl Iterator<Item = (UnitId, Member)> {
        let standing = BTreeSet::from_iter(self.projection.units());
        self.units.iter().copied().filter(move |(unit, _)| !standing.contains(unit))
    }

    pub(super) fn bytes(&self, name: &str) -> usize {
        RECORD_BYTES + name.len() + 12 * self.units.len() + self.projection.encode().len()
    }

    pub(super) fn hash(&self, hash: &mut LogicalHash) {
        hash.word(self.id.0);
        hash.signed(self.created.0);
        hash.word(u64::from(self.stripes));
        hash.word(u64::from(self.copies));
        hash.bytes(&self.projection.encode());
        hash.word(u64::from(self.is_dropping) + u64::from(self.is_drop_forced));
        for (unit, member) in &self.units {
            hash.word(unit.0);
            super::hash_member(*member, hash);
        }
    }

    fn describe(&self) -> LogDescription {
        let node = |unit: UnitId| self.member_of(unit).map_or(NodeId(0), |member| member.node);
        let extent = |extent: &Extent| ExtentDescription {
            from: extent.from,
            width: extent.width,
            chains: extent
                .chains
                .iter()
                .map(|chain| chain.iter().map(|unit| (unit.0, node(*unit))).collect())
                .collect(),
        };
        LogDescription {
            id: self.id.0,
            epoch: self.projection.epoch,
            sequencer: self.projection.sequencer.node,
            stripes: self.stripes,
            copies: self.copies,
            extents: self.projection.extents.iter().map(extent).collect(),
        }
    }
}

/// The cohort id of a unit.
#[must_use]
pub fn cohort_of(unit: UnitId) -> Option<CohortId> {
    u32::try_from(unit.0).ok().map(CohortId)
}

impl Catalog {
    /// Creates a log, with `sequencer` in its first projection.
    pub(super) fn create_log(
        &mut self,
        name: &str,
        stripes: u32,
        copies: u32,
        sequencer: SequencerId,
        created: Timestamp,
    ) -> (Option<Outcome>, Option<Change>) {
        match self.place_log(name, stripes, copies, sequencer, created) {
            Ok(None) => (Some(Ok(CatalogResponse::Log(LogResponse::Created { existed: true }))), None),
            Ok(Some(log)) => {
                let created = CatalogResponse::Log(LogResponse::Created { existed: false });
                (Some(Ok(created)), Some(Change::LogProjected { log }))
            }
            Err(failure) => (Some(Err(failure)), None),
        }
    }

    fn place_log(
        &mut self,
        name: &str,
        stripes: u32,
        copies: u32,
        sequencer: SequencerId,
        created: Timestamp,
    ) -> Result<Option<LogId>, Failure> {
        if let Some(log) = self.logs.get(name) {
            if log.is_dropping {
                return Err(Failure::Unavailable(format!("the previous log {name} is still being dropped")));
            }
            let is_so = |asked: u32, is: u32| asked == 0 || asked == is;
            if is_so(stripes, log.stripes) && is_so(copies, log.copies) {
                return Ok(None);
            }
            let (stripes, copies) = (counted(log.stripes.into(), "stripe"), counted(log.copies.into(), "copy"));
            return Err(Failure::Exists(format!("log {name} already exists, with {stripes} of {copies}")));
        }
        if self.logs.len() >= LOGS_MAX {
            return Err(Failure::Overloaded(format!("log limit reached ({LOGS_MAX})")));
        }
        let nodes: Vec<Member> = self.staying().collect();
        if nodes.is_empty() {
            return Err(Failure::Unavailable("no registered node can hold a log unit".into()));
        }
        let usual = if nodes.len() >= MANY_NODES { COPIES + 1 } else { COPIES.min(nodes.len() as u32) };
        let (stripes, copies) = (stripes.max(1), if copies == 0 { usual } else { copies });
        if copies as usize > nodes.len() {
            let nodes = counted(nodes.len() as u64, "node");
            return Err(precondition(format!("{copies} copies requested, but the cluster has {nodes}")));
        }
        self.check_ranges((stripes * copies) as usize)?;
        let first = self.next_cohort.0 as usize;
        // The head of the coordination log is beside its sequencer: an append takes a hop less.
        let beside = nodes.iter().position(|member| name == COORDINATION_LOG && member.node == sequencer.node);
        let head = beside.unwrap_or(first);
        let mut units = Vec::new();
        // Chained declustering: consecutive nodes of the ring, each chain one node after the previous one.
        let mut chains = Vec::new();
        for chain in 0..stripes as usize {
            let on = (0..copies as usize).map(|copy| nodes[(head + chain + copy) % nodes.len()]);
            chains.push(on.map(|member| self.name_unit(member, &mut units)).collect());
        }
        let id = LogId(first as u64);
        let extents = vec![Extent::new(Position(0), STRIPE_WIDTH, chains)];
        let newest_unit = units.last().map_or(UnitId(0), |(unit, _)| *unit);
        let (epoch, start) = (ProjectionEpoch(1), Position(0));
        let projection = Projection { log: id, epoch, sequencer, start, newest_unit, extents };
        let (is_dropping, is_drop_forced) = (false, false);
        let record = LogRecord { id, created, stripes, copies, projection, units, is_dropping, is_drop_forced };
        self.insert_log(name.to_owned(), record);
        Ok(Some(id))
    }

    fn name_unit(&mut self, member: Member, units: &mut Vec<(UnitId, Member)>) -> UnitId {
        let unit = UnitId(u64::from(self.next_cohort.0));
        self.next_cohort.0 += 1;
        units.push((unit, member));
        unit
    }

    /// Inserts a log; returns false if the name was already taken.
    pub(crate) fn insert_log(&mut self, name: String, log: LogRecord) -> bool {
        self.bytes += log.bytes(&name);
        self.logs.insert(name, log).is_none()
    }

    /// Replaces the current projection, if the new one is a valid successor, and returns the current projection. A
    /// proposal with the next epoch that is not a valid successor is rejected with the reason.
    pub(super) fn project(&mut self, projection: &Projection) -> (Option<Outcome>, Option<Change>) {
        let log = projection.log;
        let Some((name, record)) = self.log_of(log).map(|(name, record)| (name.to_owned(), record.clone())) else {
            return (Some(Err(Failure::UnknownLog(log.to_string()))), None);
        };
        if record.is_dropping {
            return (Some(Err(Failure::UnknownLog(name))), None);
        }
        let newest =
            |projection: &Projection| Ok(CatalogResponse::Log(LogResponse::Projected(Box::new(projection.clone()))));
        if projection.epoch != record.projection.epoch.next() {
            return (Some(newest(&record.projection)), None);
        }
        if let Err(unfit) = projection.may_follow(&record.projection) {
            return (Some(Err(invalid(unfit.to_string()))), None);
        }
        let gone: Vec<UnitId> =
            projection.units().into_iter().filter(|unit| record.member_of(*unit).is_none()).collect();
        if !gone.is_empty() {
            return (Some(Ok(CatalogResponse::Log(LogResponse::UnitsGone(gone)))), None);
        }
        let (was, is) = (BTreeSet::from_iter(record.projection.units()), BTreeSet::from_iter(projection.units()));
        self.change_log(&name, |record| {
            // A unit that a projection omitted is never used again.
            record.units.retain(|(unit, _)| is.contains(unit) || !was.contains(unit));
            record.projection = projection.clone();
        });
        self.forget_vain_spares();
        (Some(newest(projection)), Some(Change::LogProjected { log }))
    }

    /// Assigns new spare units, which a later projection may use. A new spare replaces an existing spare of the log on
    /// the same disk: a further one is requested only when the existing one proved unusable.
    pub(super) fn add_units(&mut self, log: LogId, nodes: &[NodeId]) -> Option<Change> {
        let staying: Vec<Member> = self.staying().filter(|member| nodes.contains(&member.node)).collect();
        let (name, record) = self.log_of(log).filter(|(_, record)| !record.is_dropping)?;
        let is_replaced = |member: &Member| staying.contains(member);
        let vain: BTreeSet<UnitId> =
            record.spares().filter(|(_, member)| is_replaced(member)).map(|(unit, _)| unit).collect();
        let (name, spares) = (name.to_owned(), record.spares().count() - vain.len());
        if spares + staying.len() > SPARES_MAX || self.check_ranges(staying.len()).is_err() {
            return None;
        }
        let mut units = Vec::new();
        staying.into_iter().for_each(|member| _ = self.name_unit(member, &mut units));
        self.change_log(&name, |record| {
            record.units.retain(|(unit, _)| !vain.contains(unit));
            record.units.append(&mut units);
        });
        Some(Change::LogProjected { log })
    }

    /// Forgets the given units unless the projection uses them. The catalog's leader knows that no later projection
    /// will.
    pub(super) fn forget_spares(&mut self, log: LogId, units: &[UnitId]) -> Option<Change> {
        let (name, record) = self.log_of(log)?;
        let vain: BTreeSet<UnitId> =
            record.spares().map(|(unit, _)| unit).filter(|unit| units.contains(unit)).collect();
        if vain.is_empty() {
            return None;
        }
        let name = name.to_owned();
        self.change_log(&name, |record| record.units.retain(|(unit, _)| !vain.contains(unit)));
        Some(Change::LogProjected { log })
    }

    /// Forgets spare units that no projection can use any more: their node or disk is leaving, or the projection
    /// already contains a unit with a higher id.
    pub(super) fn forget_vain_spares(&mut self) {
        let staying: BTreeSet<Member> = self.staying().collect();
        let is_vain = |log: &LogRecord, unit: UnitId, member: &Member| {
            unit <= log.projection.newest_unit || !staying.contains(member)
        };
        let has_vain = |log: &LogRecord| log.spares().any(|(unit, member)| is_vain(log, unit, &member));
        let vain: Vec<String> =
            self.logs.iter().filter(|(_, log)| has_vain(log)).map(|(name, _)| name.clone()).collect();
        for name in vain {
            self.change_log(&name, |record| {
                let standing = BTreeSet::from_iter(record.projection.units());
                let mut units = std::mem::take(&mut record.units);
                units.retain(|(unit, member)| standing.contains(unit) || !is_vain(record, *unit, member));
                record.units = units;
            });
        }
    }

    fn change_log(&mut self, name: &str, change: impl FnOnce(&mut LogRecord)) {
        let Some(log) = self.logs.get_mut(name) else { return };
        self.bytes -= log.bytes(name);
        change(log);
        self.bytes += log.bytes(name);
    }

    /// The log with this name, unless it is being dropped.
    #[must_use]
    pub fn log(&self, name: &str) -> Option<&LogRecord> {
        self.logs.get(name).filter(|log| !log.is_dropping)
    }

    /// All logs in order of name, including those being dropped.
    pub fn logs(&self) -> impl Iterator<Item = (&str, &LogRecord)> {
        self.logs.iter().map(|(name, log)| (name.as_str(), log))
    }

    /// The log with this id, and its name.
    #[must_use]
    pub fn log_of(&self, id: LogId) -> Option<(&str, &LogRecord)> {
        self.logs().find(|(_, log)| log.id == id)
    }

    /// The unit that a cohort implements, and its disk.
    #[must_use]
    pub fn unit_of(&self, cohort: CohortId) -> Option<(UnitId, Member)> {
        let unit = UnitId(u64::from(cohort.0));
        let log = self.logs.values().find(|log| log.member_of(unit).is_some())?;
        Some((unit, log.member_of(unit)?))
    }

    /// The cohort and the disk of each unit of all logs.
    pub fn units(&self) -> impl Iterator<Item = (CohortId, Member)> {
        let units = self.logs.values().flat_map(|log| &log.units);
        units.filter_map(|(unit, member)| Some((cohort_of(*unit)?, *member)))
    }

    /// The names of all logs except those being dropped: a [`LogResponse::Logs`].
    #[must_use]
    pub fn list_logs(&self) -> CatalogResponse {
        let is_there = |(_, log): &(&str, &LogRecord)| !log.is_dropping;
        CatalogResponse::Log(LogResponse::Logs(self.logs().filter(is_there).map(|(name, _)| name.to_owned()).collect()))
    }

    /// Describes a log: a [`LogResponse::Log`].
    ///
    /// # Errors
    /// [`Failure::UnknownLog`].
    pub fn describe_log(&self, name: &str) -> Outcome {
        let log = self.log(name).ok_or_else(|| Failure::UnknownLog(name.to_owned()))?;
        Ok(CatalogResponse::Log(LogResponse::Log(Box::new(log.describe()))))
    }

    /// The invariants of the logs.
    pub(super) fn check_logs(&self) -> Result<(), &'static str> {
        let is_whole = |log: &LogRecord| {
            let units = log.projection.units();
            log.projection.check().is_ok()
                && log.projection.log == log.id
                && log.units.is_sorted_by(|a, b| a.0 < b.0)
                && units.iter().all(|unit| log.member_of(*unit).is_some())
                && log.projection.extents.len() <= EXTENTS_MAX
        };
        match () {
            () if self.logs.len() > LOGS_MAX => Err("too many logs"),
            () if !self.logs.values().all(is_whole) => Err("a log has an invalid projection or unknown units"),
            () => Ok(()),
        }
    }
}
