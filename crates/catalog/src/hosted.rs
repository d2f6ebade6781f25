//! Implements the hosting interface of a node ([`StateMachine`]) for the catalog, and that of the map ([`RangeMap`]).

use base::{CohortId, Entry, Incarnation, KeyRange, Timestamp};
use state_machine::interface::{Applied, Effect, Evaluated, Kind, Payload, Read, ReadStep, StateMachine, View};
use state_machine::range_map::{RangeMap, TableRanges};
use state_machine::storage::Io;
use state_machine::{ApplyError, Failure, KeyPosition, LogicalHash, NoStorage, Progress, ReadError};

use crate::catalog::{Catalog, Change, TableRecord};
use crate::checkpoint::CatalogSnapshot;
use crate::request::{CatalogRequest, CatalogResponse, Outcome};

/// A read of the catalog. It is evaluated when created, because the catalog is in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CatalogRead(Outcome);

impl Read for CatalogRead {
    type Response = CatalogResponse;

    fn answer(&self, _: Io) -> Result<Evaluated<CatalogResponse>, ReadError> {
        Ok(Evaluated::Outcome(self.0.clone()))
    }
}

impl Catalog {
    fn look_up(&self, request: &CatalogRequest) -> Outcome {
        match request {
            CatalogRequest::ListTables => Ok(self.list()),
            CatalogRequest::ListDisks => Ok(CatalogResponse::Disks(self.disks().collect())),
            CatalogRequest::ListNodes => Ok(self.list_nodes()),
            CatalogRequest::ListLogs => Ok(self.list_logs()),
            CatalogRequest::DescribeLog(name) => self.describe_log(name),
            CatalogRequest::DescribeTable(name) => self.describe(name),
            CatalogRequest::FindTable(name) => match self.table(name) {
                Some(_) => Ok(CatalogResponse::TableCreated { existed: true }),
                None => Err(Failure::UnknownTable(name.clone())),
            },
            CatalogRequest::FindRemnant(name) => match self.remnant(name) {
                Some(_) => Ok(CatalogResponse::TableCreated { existed: true }),
                None => Err(Failure::UnknownTable(name.clone())),
            },
            CatalogRequest::Change(_) => Err(Failure::Invalid("a change is not a read".to_owned())),
        }
    }
}

impl View for Catalog {
    type Request = CatalogRequest;
    type Read = CatalogRead;

    fn read(&self, request: &CatalogRequest) -> Option<CatalogRead> {
        Some(CatalogRead(self.look_up(request)))
    }

    fn at(self, _: Timestamp) -> Result<Self, Failure> {
        Err(Failure::Invalid("the catalog keeps no earlier versions".to_owned()))
    }

    fn timestamp(&self) -> Timestamp {
        self.last_timestamp()
    }

    fn range(&self) -> Option<&KeyRange> {
        None
    }

    fn is_same(&self, other: &Self) -> bool {
        self.last_applied() == other.last_applied()
    }
}

impl RangeMap for Catalog {
    type Table = TableRecord;

    fn table(&self, name: &str) -> Option<&TableRecord> {
        self.table(name)
    }

    fn is_gone(&self, cohort: CohortId) -> bool {
        self.is_gone(cohort)
    }
}

impl TableRanges for TableRecord {
    fn created(&self) -> Timestamp {
        self.created
    }

    fn takes_part(&self) -> bool {
        self.options.takes_part()
    }

    fn cohort_at(&self, position: &KeyPosition) -> CohortId {
        self.at(position).cohort
    }

    fn cohorts(&self) -> impl Iterator<Item = (KeyRange, CohortId)> {
        self.ranges().map(|(range, record)| (range, record.cohort))
    }
}

impl StateMachine for Catalog {
    const KIND: Kind = Kind(1);

    type Request = CatalogRequest;
    type Response = CatalogResponse;
    type Event = Change;
    type Read = CatalogRead;
    type View = Self;
    type Snapshot = CatalogSnapshot;
    type Storage = NoStorage;

    fn new(_: CohortId, _: Incarnation, _: NoStorage) -> Self {
        Self::empty()
    }

    fn progress(&self) -> &Progress {
        &self.progress
    }

    fn apply(&mut self, entry: &Entry) -> Result<Applied<CatalogResponse, Change>, ApplyError> {
        let (outcome, change) = self.apply_entry(entry)?;
        Ok(Applied { outcome, effect: change.map(Effect::Own) })
    }

    fn read(&self, request: &CatalogRequest) -> ReadStep<CatalogResponse, CatalogRead> {
        ReadStep::Answer(self.look_up(request))
    }

    fn propose(&self, request: &CatalogRequest) -> Payload<CatalogRead> {
        match request {
            CatalogRequest::Change(command) => Payload::Command(command.encode()),
            _ => Payload::Refuse(Failure::Invalid("a read is not a change".to_owned())),
        }
    }

    fn view(&self) -> Option<Self> {
        Some(self.clone())
    }

    fn snapshot(&self) -> CatalogSnapshot {
        CatalogSnapshot::of(self)
    }

    fn snapshot_bytes(&self) -> usize {
        self.approximate_bytes()
    }

    fn storage(&self) -> &NoStorage {
        &self.storage
    }

    fn storage_mut(&mut self) -> &mut NoStorage {
        &mut self.storage
    }

    fn into_storage(self) -> NoStorage {
        self.storage
    }

    fn hash(&self, hash: &mut LogicalHash) -> Result<(), ReadError> {
        self.hash_into(hash);
        Ok(())
    }

    fn invariants(&self) {
        self.assert_invariants();
    }
}
