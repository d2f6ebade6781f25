//! A disk without room. Nothing is lost by it: what finds no room is tried again. But rows are not taken meanwhile, so
//! that what is left in the log's segments is left for what makes room: a table that is dropped, a range that moves
//! away.

use base::{Duration, Now};
use machine::Failure;

use crate::node::Node;

/// Until so long after something found no room, the disk is said to be full: longer than the pause before it is tried
/// again.
const FULL_FOR: Duration = Duration::from_millis(8_000);

impl Node {
    /// Something found no room on the disk.
    pub(crate) fn disk_full(&mut self, now: Now) {
        self.checkpoints.full_until = now.monotonic + FULL_FOR;
    }

    fn is_disk_full(&self, now: Now) -> bool {
        now.monotonic < self.checkpoints.full_until
    }

    /// Why a row can't be written here just now.
    pub(crate) fn no_room(&self, now: Now) -> Option<Failure> {
        let what = format!("the disk of node {} is full, and its rows are read only", self.cluster.me.node);
        self.is_disk_full(now).then_some(Failure::Unavailable(what))
    }

    /// What this node can't do as it should, in words for people.
    pub(crate) fn troubles(&self, now: Now) -> Vec<String> {
        let full = "its disk is full: what it leads is read only until there is room";
        let damaged = "a table on its disk was found damaged: others serve what it can't, and its log says where";
        let troubles = [(self.is_disk_full(now), full), (self.counters.tables_damaged > 0, damaged)];
        troubles.into_iter().filter(|(is_so, _)| *is_so).map(|(_, words)| words.to_owned()).collect()
    }
}
