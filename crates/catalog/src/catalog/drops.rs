//! How a table goes: in two steps, so that the cohorts' own logs decide it and not the map (guarantee 19).
//!
//! The first entry marks the table: it is known to nobody any more who asks the catalog, and its name stays taken.
//! Then each of its cohorts takes a drop into its own log, whereupon it answers nothing, whoever still asks by an older
//! map. The last entry follows when all have: it removes the record, and nodes let go of their replicas.

use base::CohortId;

use super::{Catalog, Change, FIRST_TABLE_COHORT, TableRecord};
use machine::Failure;

use crate::request::Outcome;

impl Catalog {
    /// Marks a table as being dropped. A success is no answer yet: that comes with the end.
    pub(super) fn begin_drop(&mut self, name: &str) -> (Option<Outcome>, Option<Change>) {
        let Some(table) = self.tables.get_mut(name) else {
            return (Some(Err(Failure::UnknownTable(name.to_owned()))), None);
        };
        if let Some(split) = table.ranges.iter().find_map(|range| range.split.as_ref()) {
            let key = base::shown(&split.key).to_string();
            let why = format!("table {name} is being split at \"{key}\": it can be dropped after that");
            return (Some(Err(Failure::Unavailable(why))), None);
        }
        table.is_dropping = true;
        (None, Some(Change::DropBegun { table: table.id() }))
    }

    /// Removes a table that is being dropped. Another of the same name, which came since, stays.
    pub(super) fn end_drop(&mut self, name: &str, id: CohortId) -> Option<Change> {
        let is_meant = |table: &&TableRecord| table.is_dropping && table.id() == id;
        self.tables.get(name).filter(is_meant)?;
        let table = self.tables.remove(name)?;
        self.bytes -= table.bytes(name);
        Some(Change::TableDropped { table: id })
    }

    /// The tables that are being dropped.
    pub fn dropping(&self) -> impl Iterator<Item = (&str, &TableRecord)> {
        self.tables().filter(|(_, table)| table.is_dropping)
    }

    /// Those of the cohorts that had a range once, or were a log unit, and are so no more. A cohort's number is never
    /// given out twice.
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
