//! Drops tables and logs. The catalog leader has each cohort of the table, or each unit of the log, append the drop to its
//! own log, and every node removes its replicas once the table or log is gone (guarantee 19). The two steps are described in `catalog/src/catalog/drops.rs`.
//!
//! The client gets its reply when the drop has completed. By then no replica can answer for the table, not even to a
//! client with a stale copy of the map, because a leader that reads under its lease has applied the drop. A forced drop
//! ends without the cohorts that do not reply.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use base::canary::{Bug, planted};
use base::{CohortId, Duration, Lsn, Member, Now};
use catalog::{Catalog, CatalogCommand, Change, LogRecord, TableRecord, cohort_of};
use sharedlog::UnitId;
use sharedlog::log_unit::LogUnit;
use state_machine::StateMachine as _;
use state_machine::interface::Kind;
use state_machine::storage::{FileId, Storage, StoredFile};

use crate::contract::ManifestId;
use crate::hosting::StoppedReplica;
use crate::message::Query;
use crate::node::Node;
use crate::registry::{drop_request, storage_found};
use crate::request::Outcome;
use crate::request_table::{ReplyTo, Target};

/// How long a cohort may take to append a drop to its log before the request is repeated.
const DROP_PATIENCE: Duration = Duration::from_millis(2_000);

/// The drops that this node coordinates or waits for, and the replicas that it removes.
#[derive(Debug, Default)]
pub(crate) struct Drops {
    /// A drop may be able to make progress.
    pub(crate) has_work: bool,
    /// Cohorts with an outstanding request to append the drop to their logs.
    asked: BTreeSet<CohortId>,
    /// Cohorts with the drop in their logs, or skipped by a forced drop.
    dropped: BTreeSet<CohortId>,
    /// Removed cohorts with promises still in the manifest, with the catalog entry as of which they were removed.
    kept: BTreeMap<CohortId, Lsn>,
    /// Removed cohorts without promises in the manifest. Grows with the number of drops in this process.
    pub(crate) forgotten: BTreeSet<CohortId>,
    /// Storages of removed cohorts, until their files are removed.
    leaving: Vec<Leaving>,
}

/// The storage of a removed cohort. Its files are needed while a manifest names them, because a start that finds a
/// named file missing puts the cohort in doubt. A compaction or a request of another node may also still read them.
#[derive(Debug)]
struct Leaving {
    cohort: CohortId,
    storage: Box<dyn Storage>,
    /// The first manifest that does not name it, until that manifest is forced.
    left_out_by: Option<ManifestId>,
    is_left_out: bool,
    /// The cohort continues to exist on other nodes.
    is_elsewhere: bool,
}

impl Drops {
    pub(crate) fn on_apply(&mut self, change: &Change) {
        self.has_work |= matches!(change, Change::DropBegun { .. });
    }

    /// This node no longer leads the catalog; the new leader coordinates the drops.
    pub(crate) fn lead_lost(&mut self) {
        self.dropped.clear();
    }

    pub(crate) fn leave(&mut self, cohort: CohortId, storage: Box<dyn Storage>, is_elsewhere: bool) {
        self.leaving.push(Leaving { cohort, storage, left_out_by: None, is_left_out: false, is_elsewhere });
    }

    /// The next manifest omits the forgotten cohorts.
    pub(crate) fn name_sstables(&mut self, manifest: ManifestId) {
        let is_left_out = |leaving: &Leaving| leaving.is_elsewhere || self.forgotten.contains(&leaving.cohort);
        for leaving in self.leaving.iter_mut().filter(|leaving| is_left_out(leaving)) {
            if !leaving.is_left_out {
                leaving.left_out_by.get_or_insert(manifest);
            }
        }
    }

    pub(crate) fn sstables_forced(&mut self, through: ManifestId) {
        for leaving in &mut self.leaving {
            if leaving.left_out_by.take_if(|manifest| *manifest <= through).is_some() {
                leaving.is_left_out = true;
                leaving.storage.retire();
            }
        }
    }

    /// The files of removed cohorts that no manifest names.
    pub(crate) fn give_up(&mut self) -> Vec<(FileId, Arc<dyn StoredFile>)> {
        let files = self.leaving.iter_mut().flat_map(|leaving| leaving.storage.give_up()).collect();
        self.leaving.retain(|leaving| !leaving.is_left_out || leaving.storage.has_leftovers());
        files
    }
}

impl Node {
    /// Advances every drop in progress, if this node leads the catalog.
    pub(crate) fn run_drops(&mut self, now: Now) -> bool {
        if !std::mem::take(&mut self.drops.has_work) {
            return false;
        }
        let mut drops = Vec::new();
        for (name, table) in self.led_catalog().into_iter().flat_map(Catalog::dropping) {
            let cohorts: Vec<CohortId> = table.ranges.iter().map(|range| range.cohort).collect();
            let end = CatalogCommand::EndDrop { name: name.to_owned(), table: table.id() };
            drops.push((end, table.options.kind, cohorts));
        }
        for (name, log) in self.led_catalog().into_iter().flat_map(Catalog::dropping_logs) {
            let cohorts = log.units.iter().filter_map(|(unit, _)| cohort_of(*unit)).collect();
            let end = CatalogCommand::EndLogDrop { name: name.to_owned(), log: log.id };
            drops.push((end, LogUnit::KIND, cohorts));
        }
        for (end, kind, mut cohorts) in drops {
            cohorts.retain(|cohort| !self.drops.dropped.contains(cohort));
            if cohorts.is_empty() || planted(Bug::DropInMapOnly) {
                self.propose(CohortId::CATALOG, end.encode(), now);
            } else {
                cohorts.into_iter().for_each(|cohort| self.ask_to_drop(cohort, kind, now));
            }
        }
        true
    }

    pub(super) fn ask_to_drop(&mut self, cohort: CohortId, kind: Kind, now: Now) {
        let ask = expected!(drop_request(kind), "the catalog creates only machines that support drops");
        if self.drops.asked.insert(cohort) {
            let deadline = now.monotonic + DROP_PATIENCE;
            self.begin(ReplyTo::Drop(cohort), deadline, Target::Cohort(cohort), Query::Machine(ask), now);
        }
    }

    /// Handles a cohort's reply to the request to append a drop. After a failure, a forced drop does without the cohort;
    /// for any other drop, housekeeping repeats the request.
    pub(crate) fn drop_answered(&mut self, cohort: CohortId, outcome: &Outcome) {
        self.drops.asked.remove(&cohort);
        let is_forced = |(_, table): (&str, &TableRecord)| table.is_drop_forced && table.has(cohort);
        let is_unit = |(unit, _): &(UnitId, Member)| cohort_of(*unit) == Some(cohort);
        let is_forced_log = |(_, log): (&str, &LogRecord)| log.is_drop_forced && log.units.iter().any(is_unit);
        let catalog = self.catalog();
        if outcome.is_ok() || catalog.dropping().any(is_forced) || catalog.dropping_logs().any(is_forced_log) {
            self.drops.dropped.insert(cohort);
            self.drops.has_work = true;
        }
    }

    /// Stops the replicas of cohorts that the catalog once allocated and no longer names.
    ///
    /// Their promises stay in the manifest for now. This node may have applied catalog entries that it does not know to
    /// be committed after a restart. It then finds the table in the catalog again and restarts the replica. With its
    /// promises and log the replica is harmless. A blank replica could repeat votes that the former one gave to others,
    /// and a majority of blank replicas would serve the dropped table as if it were new.
    pub(crate) fn stop_dropped_replicas(&mut self) {
        let catalog = self.catalog();
        let as_of = catalog.last_applied();
        let known = self.replicas.keys().chain(self.hosting.stopped.keys()).copied().collect();
        let mut is_news = false;
        for id in catalog.gone(known) {
            self.end_replica(id, false);
            if let Some(bulk) = self.hosting.stopped.get_mut(&id).and_then(|stopped| stopped.bulk.take()) {
                self.drops.leave(id, storage_found(bulk), false);
            }
            self.cluster.routes.remove(&id);
            self.hosting.generations.forget_cohort(id);
            self.drops.dropped.remove(&id);
            if let Entry::Vacant(entry) = self.drops.kept.entry(id) {
                entry.insert(as_of);
                is_news = true;
            }
        }
        if let Some(catalog) = self.replicas.get_mut(&CohortId::CATALOG).filter(|_| is_news) {
            catalog.on_disk.is_wanted = true;
        }
        self.forget_gone();
    }

    /// Stops a replica, if it runs. Its manifest entry and the SSTables named there remain.
    pub(crate) fn end_replica(&mut self, id: CohortId, is_elsewhere: bool) {
        if !self.replicas.contains_key(&id) {
            return;
        }
        self.lead_lost(id, None);
        let mut replica = expected!(self.replicas.remove(id), "checked above");
        let (unused, arriving) = (replica.begin_lineage(), replica.end_arrival());
        self.discard(unused);
        self.abandon(&arriving);
        self.hosting
            .stopped
            .insert(id, StoppedReplica { manifest: replica.manifest(false), ..StoppedReplica::default() });
        // The manifest may name the files of a received snapshot that was about to replace the storage.
        if let Some(arrived) = replica.arrived.take() {
            self.drops.leave(id, arrived.storage, is_elsewhere);
        }
        self.drops.leave(id, replica.state.into_storage(), is_elsewhere);
    }

    /// Forgets cohorts that are absent as of the catalog's own checkpoint: no restart finds them in the catalog again,
    /// regardless of the commit point it knows. The manifest that omits them names that checkpoint or a later one.
    pub(crate) fn forget_gone(&mut self) {
        let checkpoint = self.replicas.get(&CohortId::CATALOG).and_then(|replica| replica.on_disk.lsn());
        // All promises are kept until the catalog has a checkpoint.
        let Some(checkpoint) = checkpoint.map(|lsn| lsn.sequence) else { return };
        let drops = &mut self.drops;
        let ripe = drops.kept.extract_if(.., |_, as_of| as_of.sequence <= checkpoint);
        let before = drops.forgotten.len();
        for (id, _) in ripe {
            self.hosting.stopped.remove(&id);
            drops.forgotten.insert(id);
        }
        if drops.forgotten.len() > before {
            self.outgoing.outbox.change_manifest();
        }
    }
}

#[cfg(test)]
mod tests;
