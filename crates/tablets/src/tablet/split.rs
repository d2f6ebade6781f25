//! How a range is split: the tablet's own log says so, and from that entry on the keys behind the one it names belong
//! to a tablet of another cohort, on the same nodes (guarantee 19).
//!
//! The other begins with all that this one knows at that entry: the rows, the sessions with their outcomes, the last
//! timestamp, the watermark (guarantees 10, 16 and 17). So a write that was acknowledged before the split is in one of
//! them, its retry finds its outcome in that one, and versions go on growing in both.
//!
//! Invariant: what a split makes is a function of this tablet's state at the entry alone. So the replicas of the new
//! cohort begin equal, whenever each of them comes to that entry, and however often.

use base::canary::{Bug, planted};
use base::{CohortId, KeyRange, Timestamp};
use bytes::Bytes;
use machine::failure::invalid;
use machine::progress::SPLIT_OFF;
use machine::{Failure, Ownership, Progress};

use store::tree::Site;

use super::{Sessions, Tablet};

impl Tablet {
    /// Gives up the keys from this one on, and says which those are; none if that was done before.
    pub(super) fn split(&mut self, key: &Bytes, child: CohortId) -> Result<Option<KeyRange>, Failure> {
        if self.children.contains(&child) {
            return Ok(None);
        }
        let Some(range) = self.ownership.range() else {
            return Err(Failure::Unavailable("the range belongs to nobody yet, or to nobody any more".to_owned()));
        };
        if *key <= range.start || !range.contains(key) {
            return Err(invalid(format!("the range {range} can't be split at \"{}\"", base::shown(key))));
        }
        // The key is a slice of the entry that brought it, which goes.
        let key = Bytes::copy_from_slice(key);
        let kept = KeyRange { start: range.start.clone(), end: Some(key.clone()) };
        let given = KeyRange { start: key, end: range.end.clone() };
        if !planted(Bug::SplitInMapOnly) {
            self.ownership = Ownership::Owns(kept);
        }
        self.children.push(child);
        Ok(Some(given))
    }

    /// The state of the tablet that was split off with the entry applied last: to be asked for before the next is
    /// applied.
    pub(super) fn part_split_off(&mut self, range: KeyRange, site: Site) -> Self {
        let forgets_time = planted(Bug::SplitForgetsTimestamp);
        let last_timestamp = if forgets_time { Timestamp(1) } else { self.last_timestamp() };
        let progress = Progress { cohort: site.cohort, last_applied: SPLIT_OFF, last_timestamp, losses: 0 };
        let sessions = if planted(Bug::SplitForgetsSessions) || forgets_time {
            Sessions::default()
        } else {
            self.sessions.clone()
        };
        let watermark = self.watermark().min(last_timestamp);
        let tree = self.rows.tree.split_off(site);
        Self::of(progress, Ownership::Owns(range), Vec::new(), watermark, sessions, tree)
    }
}
