//! Dropping a table or a log in two phases, so that each cohort's own log makes the decision and not the catalog (guarantee 19).
//!
//! `BeginDrop` marks the table: the catalog no longer returns it to clients, and its name stays reserved. Each cohort
//! of the table then commits a drop to its own log. From that entry on it serves no request, even from a client with a
//! stale map. `EndDrop` is proposed after all cohorts have committed the drop. It removes the record, and nodes delete
//! their replicas.
//!
//! A cohort that lost a majority of its replicas for good never commits the drop. An operator can therefore force the
//! drop, which declares that the cohorts that cannot be reached are lost. Should one be only cut off, its replicas can
//! serve the table until they apply `EndDrop`.
//!
//! A log is dropped in the same way by `BeginLogDrop` and `EndLogDrop`. Its cohorts are its units, and the entry that
//! drops a unit seals it for all epochs: no append or read with an earlier projection succeeds from then on. A log that
//! is being dropped is not repaired, and its projection is not replaced.

use base::CohortId;
use sharedlog::LogId;

use super::{Catalog, Change, FIRST_TABLE_COHORT, LogRecord, TableRecord};
use state_machine::Failure;

use crate::request::Outcome;

impl Catalog {
    /// Marks a table as being dropped. On success there is no outcome yet: the client is answered when the drop ends.
    pub(super) fn begin_drop(&mut self, name: &str, force: bool) -> (Option<Outcome>, Option<Change>) {
        let Some(table) = self.tables.get_mut(name) else {
            return (Some(Err(Failure::UnknownTable(name.to_owned()))), None);
        };
        if let Some(split) = table.ranges.iter().find_map(|range| range.split.as_ref()) {
            let key = base::shown(&split.key).to_string();
            let why = format!("table {name} is being split at \"{key}\"; it can be dropped after the split");
            return (Some(Err(Failure::Unavailable(why))), None);
        }
        table.is_dropping = true;
        table.is_drop_forced |= force;
        (None, Some(Change::DropBegun { id: table.id() }))
    }

    /// Removes a table that is being dropped. `id` protects a newer table that was created under the same name.
    pub(super) fn end_drop(&mut self, name: &str, id: CohortId) -> Option<Change> {
        let is_meant = |table: &&TableRecord| table.is_dropping && table.id() == id;
        self.tables.get(name).filter(is_meant)?;
        let table = self.tables.remove(name)?;
        self.bytes -= table.bytes(name);
        Some(Change::TableDropped { table: id })
    }

    /// Marks a log as being dropped. On success there is no outcome yet, as for a table.
    pub(super) fn begin_log_drop(&mut self, name: &str, force: bool) -> (Option<Outcome>, Option<Change>) {
        let Some(log) = self.logs.get_mut(name) else {
            return (Some(Err(Failure::UnknownLog(name.to_owned()))), None);
        };
        log.is_dropping = true;
        log.is_drop_forced |= force;
        (None, Some(Change::DropBegun { id: log.cohort() }))
    }

    /// Removes a log that is being dropped. `id` protects a newer log that was created under the same name.
    pub(super) fn end_log_drop(&mut self, name: &str, id: LogId) -> Option<Change> {
        self.logs.get(name).filter(|log| log.is_dropping && log.id == id)?;
        let log = self.logs.remove(name)?;
        self.bytes -= log.bytes(name);
        Some(Change::LogDropped { id: log.cohort() })
    }

    /// The logs that are being dropped.
    pub fn dropping_logs(&self) -> impl Iterator<Item = (&str, &LogRecord)> {
        self.logs().filter(|(_, log)| log.is_dropping)
    }

    /// The tables that are being dropped.
    pub fn dropping(&self) -> impl Iterator<Item = (&str, &TableRecord)> {
        self.tables().filter(|(_, table)| table.is_dropping)
    }

    /// Filters `cohorts` to those that once were a range or a log unit and no longer are. Cohort ids are never reused.
    #[must_use]
    pub fn gone(&self, mut cohorts: Vec<CohortId>) -> Vec<CohortId> {
        let units = self.units().map(|(cohort, _)| cohort);
        let mut named: Vec<CohortId> = self.parts().map(|range| range.cohort).chain(units).collect();
        named.sort_unstable();
        let was_given_out = |cohort: &CohortId| (FIRST_TABLE_COHORT..self.next_cohort).contains(cohort);
        cohorts.retain(|cohort| was_given_out(cohort) && named.binary_search(cohort).is_err());
        cohorts
    }
}
