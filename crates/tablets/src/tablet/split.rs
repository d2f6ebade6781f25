//! Splitting a range. The tablet's own log decides it: from the split entry on, the keys at and above the split key
//! belong to a tablet of another cohort, on the same nodes (guarantee 19).
//!
//! The child begins with the parent's state at that entry: the rows, the sessions with their outcomes, the last
//! timestamp, the watermark (guarantees 10, 16 and 17). So each write that was acknowledged before the split is in one
//! of the two tablets, its retry finds the outcome there, and versions keep increasing in both.
//!
//! Invariant: the child's initial state is a function of the parent's state at the entry alone. So the replicas of the
//! child begin equal, no matter when each of them applies the entry, or how often.

use base::canary::{Bug, planted};
use base::{CohortId, KeyRange, Timestamp};
use bytes::Bytes;
use state_machine::failure::precondition;
use state_machine::progress::SPLIT_OFF;
use state_machine::{Failure, Ownership, Progress};

use store::tree::Site;

use super::{ClientSessions, Tablet};

impl Tablet {
    /// Releases the keys from `key` on, and returns their range; none if this split was applied before.
    pub(super) fn split(&mut self, key: &Bytes, child: CohortId) -> Result<Option<KeyRange>, Failure> {
        if self.children.contains(&child) {
            return Ok(None);
        }
        let Some(range) = self.ownership.range() else {
            return Err(Failure::Unavailable("the range is not assigned yet, or was dropped".to_owned()));
        };
        if *key <= range.start || !range.contains(key) {
            return Err(precondition(format!("the range {range} cannot be split at \"{}\"", base::shown(key))));
        }
        if !self.prepared().is_empty() && !planted(Bug::SplitWhilePrepared) {
            return Err(Failure::Unavailable("a transaction is prepared in the range".to_owned()));
        }
        // Copied, because a slice would keep the whole entry in memory.
        let key = Bytes::copy_from_slice(key);
        let kept = KeyRange { start: range.start.clone(), end: Some(key.clone()) };
        let given = KeyRange { start: key, end: range.end.clone() };
        if !planted(Bug::SplitInMapOnly) {
            self.ownership = Ownership::Owns(kept);
        }
        self.children.push(child);
        self.transactions.split(&given.start);
        Ok(Some(given))
    }

    /// The tablet that the last applied entry split off. Must be called before the next entry is applied.
    pub(super) fn part_split_off(&mut self, range: KeyRange, site: Site) -> Self {
        let forgets_time = planted(Bug::SplitForgetsTimestamp);
        let last_timestamp = if forgets_time { Timestamp(1) } else { self.last_timestamp() };
        let progress = Progress { cohort: site.cohort, last_applied: SPLIT_OFF, last_timestamp, losses: 0 };
        let sessions = if planted(Bug::SplitForgetsSessions) || forgets_time {
            ClientSessions::default()
        } else {
            self.sessions.clone()
        };
        let watermark = self.watermark().min(last_timestamp);
        let tree = self.rows.tree.split_off(site);
        let transactions = self.transactions.split_off();
        Self::of(progress, Ownership::Owns(range), Vec::new(), watermark, sessions, transactions, tree)
    }
}
