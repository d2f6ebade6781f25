//! Splitting a range in two phases, so that the cohort's own log makes the decision and not the catalog (guarantee 19).
//!
//! `BeginSplit` records the split with the range and assigns the new cohort id. The range's cohort then commits the
//! split to its own log. From that entry on it serves only the keys below the split key, and the new cohort serves the
//! others. `EndSplit` puts both ranges into the map. A split that has begun always ends: it cannot be cancelled, and
//! the table cannot be dropped until then.

use base::limits::{RANGES_MAX, SPLIT_BYTES_MAX};
use base::{CohortId, Durability, Member, shown};
use bytes::Bytes;
use state_machine::failure::precondition;
use state_machine::{Failure, KeyPosition, Kind};

use super::{Catalog, Change, RangeRecord, SplitRecord, TableRecord};
use crate::request::Outcome;

/// A split in progress, with all that is needed to drive it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SplitUnderWay {
    pub name: String,
    /// The kind of the table's state machines.
    pub kind: Kind,
    /// The cohort whose range is split.
    pub parent: CohortId,
    /// The key at which the new range begins.
    pub key: Bytes,
    /// The new range's cohort.
    pub child: CohortId,
    /// The members of both cohorts.
    pub members: Vec<Member>,
}

impl Catalog {
    /// Begins a split. On success there is no outcome yet: the client is answered when the split ends. A repeated
    /// request for a split in progress waits for the same end.
    pub(super) fn begin_split(&mut self, name: &str, key: &Bytes) -> (Option<Outcome>, Option<Change>) {
        match self.note_split(name, key) {
            Ok(child) => (None, Some(Change::SplitBegun { child })),
            Err(failure) => (Some(Err(failure)), None),
        }
    }

    fn note_split(&mut self, name: &str, key: &Bytes) -> Result<CohortId, Failure> {
        let table = self.table(name).ok_or_else(|| Failure::UnknownTable(name.to_owned()))?;
        if !table.options.kind.properties().can_split {
            return Err(precondition(format!(
                "table {name} cannot be split: its state machine does not support splits"
            )));
        }
        if table.options.durability() == Durability::Memory {
            return Err(precondition(format!(
                "table {name} is in main memory and cannot be split: a data loss could undo the split"
            )));
        }
        let range = table.at(&KeyPosition::At(key.clone()));
        if range.start == *key {
            return Err(Failure::Exists(format!("a range of table {name} already begins at \"{}\"", shown(key))));
        }
        match &range.split {
            Some(split) if split.key == *key => return Ok(split.child),
            Some(split) => {
                let other = shown(&split.key);
                return Err(Failure::Unavailable(format!("that range of table {name} is being split at \"{other}\"")));
            }
            None if range.is_short_after_loss(&table.options, self.staying().count()) => {
                return Err(Failure::Unavailable(format!(
                    "that range of table {name} has too few replicas since a declared loss, until others take their place"
                )));
            }
            None if range.leaving.is_some() => {
                return Err(Failure::Unavailable(format!("that range of table {name} is moving")));
            }
            None => {}
        }
        check_size(name, table, key)?;
        self.check_ranges(1)?;
        let (parent, child) = (range.cohort, self.next_cohort);
        self.next_cohort = CohortId(child.0 + 1);
        // Copied, because a slice would keep the whole entry in memory.
        let split = SplitRecord { key: Bytes::copy_from_slice(key), child };
        self.change_table(name, |table| {
            let range = table.ranges.iter_mut().find(|range| range.cohort == parent);
            range.expect("the range was found by its keys").split = Some(split);
        });
        Ok(child)
    }

    /// Puts both ranges of a split into the map.
    pub(super) fn end_split(&mut self, name: &str, child: CohortId) -> Option<Change> {
        let is_meant = |range: &RangeRecord| range.split.as_ref().is_some_and(|split| split.child == child);
        let place = self.tables.get(name)?.ranges.iter().position(is_meant)?;
        self.change_table(name, |table| {
            let parent = &mut table.ranges[place];
            let Some(SplitRecord { key, child }) = parent.split.take() else { return };
            let (members, configuration) = (parent.members.clone(), parent.configuration.as_deref());
            let configuration = configuration.map(|known| Box::new(known.for_child()));
            let parent = Some(parent.cohort);
            let child = RangeRecord { parent, configuration, ..RangeRecord::new(key, child, members) };
            table.ranges.insert(place + 1, child);
        });
        Some(Change::SplitEnded { child })
    }

    pub(super) fn change_table(&mut self, name: &str, change: impl FnOnce(&mut TableRecord)) {
        let Some(table) = self.tables.get_mut(name) else { return };
        self.bytes -= table.bytes(name);
        change(table);
        self.bytes += table.bytes(name);
    }

    /// The splits in progress.
    pub fn splits(&self) -> impl Iterator<Item = SplitUnderWay> {
        self.tables()
            .flat_map(|(name, table)| table.ranges.iter().map(move |range| (name, table.options.kind, range)))
            .filter_map(|(name, kind, range)| {
                let SplitRecord { key, child } = range.split.clone()?;
                let (name, members) = (name.to_owned(), range.members.clone());
                Some(SplitUnderWay { name, kind, parent: range.cohort, key, child, members })
            })
    }
}

/// Checks the limits on the number of ranges of a table and on the total bytes of its split keys.
fn check_size(name: &str, table: &TableRecord, key: &Bytes) -> Result<(), Failure> {
    let (count, bytes) =
        table.parts().fold((1, key.len()), |(count, bytes), part| (count + 1, bytes + part.range.start.len()));
    if count > RANGES_MAX {
        return Err(precondition(format!("table {name} would have {count} ranges, over the limit of {RANGES_MAX}")));
    }
    if bytes > SPLIT_BYTES_MAX {
        return Err(precondition(format!(
            "the split keys of table {name} would have {bytes} bytes, over the limit of {SPLIT_BYTES_MAX}"
        )));
    }
    Ok(())
}
