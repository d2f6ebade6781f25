//! Dropping a table: whoever leads the catalogue has each of its cohorts take the drop into its own log, and every node
//! lets go of its replicas once the table is gone (guarantee 19; `catalog/src/catalog/drops.rs` has the two steps).
//!
//! Whoever asked for the drop is answered when it has ended. By then no replica can answer for the table any more,
//! whatever copy of the map it is asked by: a leader that reads under its lease has applied the drop.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use base::canary::{Bug, planted};
use base::{CohortId, Duration, Lsn, Now};
use catalog::{Catalog, CatalogCommand, Change};
use machine::state_machine::Kind;
use machine::storage::{FileId, Storage, StoredFile};

use crate::contract::ManifestId;
use crate::hosting::Dormant;
use crate::message::Query;
use crate::node::Node;
use crate::pending::{Origin, Target};
use crate::registry::drop_request;
use crate::request::Outcome;

/// How long a cohort has to take a drop into its log before it is asked again.
const DROP_PATIENCE: Duration = Duration::from_millis(5_000);

/// The drops that this node drives or waits for, and what it lets go of.
#[derive(Debug, Default)]
pub(crate) struct Drops {
    /// A drop may be brought one step on.
    pub(crate) has_work: bool,
    /// Cohorts that are being asked to take the drop into their logs.
    asked: BTreeSet<CohortId>,
    /// Cohorts whose logs hold it.
    dropped: BTreeSet<CohortId>,
    /// Cohorts that are gone and whose promises the manifest still holds: as of which entry of the catalogue they are.
    kept: BTreeMap<CohortId, Lsn>,
    /// Cohorts that are gone and whose promises it holds no more. It grows with the drops of one process.
    pub(crate) forgotten: BTreeSet<CohortId>,
    /// The storages of cohorts that are gone, until their files are.
    leaving: Vec<Leaving>,
}

/// The storage of a cohort that is gone. Its files are needed while a manifest names them: a start that finds one missing
/// doubts the cohort. And some of them may still be read, by a compaction or for a request of another node.
#[derive(Debug)]
struct Leaving {
    cohort: CohortId,
    storage: Box<dyn Storage>,
    /// The first manifest that doesn't name it, while that is on its way.
    left_out_by: Option<ManifestId>,
    is_left_out: bool,
    /// The cohort goes on without a replica here.
    is_elsewhere: bool,
}

impl Drops {
    pub(crate) fn on_apply(&mut self, change: &Change) {
        self.has_work |= matches!(change, Change::DropBegun { .. });
    }

    /// We lead the catalogue no more, and whoever does drives the drops.
    pub(crate) fn lead_lost(&mut self) {
        self.dropped.clear();
    }

    pub(crate) fn leave(&mut self, cohort: CohortId, storage: Box<dyn Storage>, is_elsewhere: bool) {
        self.leaving.push(Leaving { cohort, storage, left_out_by: None, is_left_out: false, is_elsewhere });
    }

    /// The manifest in the making leaves out what is forgotten.
    pub(crate) fn name_tables(&mut self, manifest: ManifestId) {
        let is_left_out = |leaving: &Leaving| leaving.is_elsewhere || self.forgotten.contains(&leaving.cohort);
        for leaving in self.leaving.iter_mut().filter(|leaving| is_left_out(leaving)) {
            if !leaving.is_left_out {
                leaving.left_out_by.get_or_insert(manifest);
            }
        }
    }

    /// A manifest is forced.
    pub(crate) fn tables_forced(&mut self, through: ManifestId) {
        for leaving in &mut self.leaving {
            if leaving.left_out_by.take_if(|manifest| *manifest <= through).is_some() {
                leaving.is_left_out = true;
                leaving.storage.retire();
            }
        }
    }

    /// The files of what is gone that no manifest names for its sake.
    pub(crate) fn give_up(&mut self) -> Vec<(FileId, Arc<dyn StoredFile>)> {
        let files = self.leaving.iter_mut().flat_map(|leaving| leaving.storage.give_up()).collect();
        self.leaving.retain(|leaving| !leaving.is_left_out || leaving.storage.has_leftovers());
        files
    }
}

impl Node {
    /// Brings every drop that has begun one step on, if we lead the catalogue.
    pub(crate) fn run_drops(&mut self, now: Now) -> bool {
        if !std::mem::take(&mut self.drops.has_work) {
            return false;
        }
        let mut tables = Vec::new();
        for (name, table) in self.led_catalogue().into_iter().flat_map(Catalog::dropping) {
            let cohorts: Vec<CohortId> = table.ranges.iter().map(|range| range.cohort).collect();
            tables.push((name.to_owned(), table.id(), table.kind, cohorts));
        }
        for (name, table, kind, mut cohorts) in tables {
            cohorts.retain(|cohort| !self.drops.dropped.contains(cohort));
            if cohorts.is_empty() || planted(Bug::DropInMapOnly) {
                self.propose(CohortId::CATALOGUE, CatalogCommand::EndDrop { name, table }.encode(), now);
            } else {
                cohorts.into_iter().for_each(|cohort| self.ask_to_drop(cohort, kind, now));
            }
        }
        true
    }

    pub(super) fn ask_to_drop(&mut self, cohort: CohortId, kind: Kind, now: Now) {
        let ask = expected!(drop_request(kind), "the catalog has tables only of machines that can be dropped");
        if self.drops.asked.insert(cohort) {
            let deadline = now.monotonic + DROP_PATIENCE;
            self.begin(Origin::Drop(cohort), deadline, Target::Cohort(cohort), Query::Machine(ask), now);
        }
    }

    /// What a cohort said that was asked to take the drop into its log. If it failed, housekeeping asks again.
    pub(crate) fn drop_answered(&mut self, cohort: CohortId, outcome: &Outcome) {
        self.drops.asked.remove(&cohort);
        if outcome.is_ok() {
            self.drops.dropped.insert(cohort);
            self.drops.has_work = true;
        }
    }

    /// Stops the replicas of cohorts that the catalogue gave out once and names no more.
    ///
    /// Their promises stay in the manifest for now. What this node has applied of the catalogue's log may be more than
    /// it knows to be committed after a restart: then it finds the table named once more and starts the replica again.
    /// With its promises and its log that does no harm. A blank one would promise anew what it had promised to others,
    /// and a majority of such replicas would serve a table that is dropped as if it were new.
    pub(crate) fn let_go(&mut self) {
        let catalogue = self.catalogue();
        let as_of = catalogue.last_applied();
        let known = self.replicas.keys().chain(self.hosting.dormant.keys()).copied().collect();
        let mut is_news = false;
        for id in catalogue.gone(known) {
            self.end_replica(id, false);
            if let Some(tree) = self.hosting.dormant.get_mut(&id).and_then(|dormant| dormant.tree.take()) {
                self.drops.leave(id, Box::new(tree), false);
            }
            self.cluster.routes.remove(&id);
            self.hosting.lives.forget_cohort(id);
            self.drops.dropped.remove(&id);
            if let Entry::Vacant(entry) = self.drops.kept.entry(id) {
                entry.insert(as_of);
                is_news = true;
            }
        }
        if let Some(catalogue) = self.replicas.get_mut(&CohortId::CATALOGUE).filter(|_| is_news) {
            catalogue.on_disk.is_wanted = true;
        }
        self.forget_gone();
    }

    /// Stops a replica, if it runs. What the manifest says of it stays, and so do the tables that it names.
    pub(crate) fn end_replica(&mut self, id: CohortId, is_elsewhere: bool) {
        if !self.replicas.contains_key(&id) {
            return;
        }
        self.lead_lost(id);
        let mut replica = expected!(self.replicas.remove(id), "it was there just now");
        let (unused, arriving) = (replica.begin_lineage(), replica.end_arrival());
        self.discard(unused);
        self.abandon(&arriving);
        self.hosting.dormant.insert(id, Dormant { manifest: replica.manifest(false), ..Dormant::default() });
        // The manifest may name the files of a whole state that was about to take the storage's place.
        if let Some(arrived) = replica.arrived.take() {
            self.drops.leave(id, arrived.storage, is_elsewhere);
        }
        self.drops.leave(id, replica.state.into_storage(), is_elsewhere);
    }

    /// Forgets what is gone as of the catalogue's own checkpoint: no start finds it named any more, whatever it knows
    /// to be committed. The manifest that leaves the cohorts out names that checkpoint, or comes after one that did.
    pub(crate) fn forget_gone(&mut self) {
        let checkpoint = self.replicas.get(&CohortId::CATALOGUE).and_then(|replica| replica.on_disk.lsn());
        // Until then all is kept.
        let Some(checkpoint) = checkpoint.map(|lsn| lsn.sequence) else { return };
        let drops = &mut self.drops;
        let ripe = drops.kept.extract_if(.., |_, as_of| as_of.sequence <= checkpoint);
        let before = drops.forgotten.len();
        for (id, _) in ripe {
            self.hosting.dormant.remove(&id);
            drops.forgotten.insert(id);
        }
        if drops.forgotten.len() > before {
            self.outgoing.outbox.change_manifest();
        }
    }
}

#[cfg(test)]
mod tests;
