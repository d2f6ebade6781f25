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
use base::{CohortId, Epoch, KeyRange, Lsn, Sequence, Timestamp};
use bytes::Bytes;
use store::tree::Site;

use super::sessions::Sessions;
use super::{Ownership, Tablet, invalid};
use crate::progress::Progress;
use crate::request::Failure;
use crate::state::State;

impl Tablet {
    /// The place in its log at which the tablet of a range that was split off begins: no entry has it, and no log holds
    /// what comes before. A replica that was not there at the split has nothing, and can't mistake that for this.
    pub const SPLIT_OFF: Lsn = Lsn { epoch: Epoch(0), sequence: Sequence(1) };

    /// The cohorts that parts of its range were split off to, in their order.
    #[must_use]
    pub fn children(&self) -> &[CohortId] {
        &self.children
    }

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
    #[must_use]
    pub fn split_off(&mut self, range: KeyRange, site: Site) -> State {
        let forgets_time = planted(Bug::SplitForgetsTimestamp);
        let last_timestamp = if forgets_time { Timestamp(1) } else { self.last_timestamp() };
        let progress = Progress { cohort: site.cohort, last_applied: Self::SPLIT_OFF, last_timestamp, losses: 0 };
        let sessions = if planted(Bug::SplitForgetsSessions) || forgets_time {
            Sessions::default()
        } else {
            self.sessions.clone()
        };
        let watermark = self.watermark().min(last_timestamp);
        let tree = self.tree_mut().split_off(site);
        let tablet = Self::of(progress, Ownership::Owns(range), Vec::new(), watermark, sessions, tree);
        State::Tablet(Box::new(tablet))
    }
}
