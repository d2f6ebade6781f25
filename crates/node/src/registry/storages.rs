//! The storages of the kinds, from the files that were found on disk or empty.

use state_machine::storage::{NoStorage, Storage};
use store::Bulk;
use store::stream::StreamStore;
use store::tree::{Site, Tree};

/// Storage for kinds with bulk data in a log-structured merge tree; none if the files are others.
pub(super) fn in_tree(found: Option<Bulk>, site: Site) -> Option<Box<dyn Storage>> {
    match found {
        None => Some(Box::new(Tree::new(site))),
        Some(Bulk::Tree(tree)) => Some(tree),
        Some(Bulk::Stream(_)) => None,
    }
}

/// Storage for kinds with blocks in place; none if the files are others.
pub(super) fn in_place(found: Option<Bulk>, site: Site) -> Option<Box<dyn Storage>> {
    match found {
        None => Some(Box::new(StreamStore::new(site))),
        Some(Bulk::Stream(stream)) => Some(stream),
        Some(Bulk::Tree(_)) => None,
    }
}

/// The storage of data found on disk, of any kind.
pub(crate) fn storage_found(found: Bulk) -> Box<dyn Storage> {
    match found {
        Bulk::Tree(tree) => tree,
        Bulk::Stream(stream) => stream,
    }
}

/// Storage for kinds that keep all data in their checkpoints.
pub(super) fn in_checkpoint(_: Option<Bulk>, _: Site) -> Option<Box<dyn Storage>> {
    Some(Box::new(NoStorage))
}
