//! Behavior on a full disk. Nothing is lost, because failed writes to the disk are retried. Row writes are rejected in
//! the meantime, which reserves the remaining space in log segments for operations that free space, such as dropping a
//! table or moving a range.

use base::limits::SESSIONS_MAX;
use base::{Duration, Now, counted};

use crate::checkpoint_schedule::Checkpoints;
use crate::node::Node;

/// How long the disk counts as full after a write failed for lack of space. Longer than the pause before the retry.
const FULL_FOR: Duration = Duration::from_millis(8_000);

impl Checkpoints {
    /// Whether changes that add bytes are refused.
    pub(crate) fn is_disk_full(&self, now: Now) -> bool {
        now.monotonic < self.full_until
    }
}

impl Node {
    /// A write to the disk failed for lack of space.
    pub(crate) fn disk_full(&mut self, now: Now) {
        self.checkpoints.full_until = now.monotonic + FULL_FOR;
    }

    /// Problems of this node, as messages for operators.
    pub(crate) fn troubles(&self, now: Now) -> Vec<String> {
        let full = "disk full: ranges that it leads are read-only until space is freed";
        let damaged = "damaged data file: other replicas serve its data, and the node's log names the file";
        let troubles = [(self.checkpoints.is_disk_full(now), full), (self.counters.sstables_damaged > 0, damaged)];
        let troubles = troubles.into_iter().filter(|(is_so, _)| *is_so).map(|(_, words)| words.to_owned());
        let lost = match self.mending.lost() {
            0 => None,
            lost => Some(format!(
                "{} without content on any replica: reads of them fail",
                counted(lost as u64, "damaged block")
            )),
        };
        let troubles = troubles.chain(lost).chain(self.ranges_at_session_limit()).chain(self.stranded_ranges());
        troubles.chain(self.clock_trouble(now)).collect()
    }

    /// The ranges under primary/backup replication that wait for an operator.
    fn stranded_ranges(&self) -> impl Iterator<Item = String> {
        let stranded = self.replicas.iter().filter(|(_, replica)| replica.cohort.is_stranded());
        stranded.map(|(id, replica)| {
            format!(
                "range {id} of table {} has stopped: this node is its only member, and its disk may have lost \
                 acknowledged writes; the way out is: loggos admin declare-loss",
                replica.table
            )
        })
    }

    /// The ranges that this node leads and that evict sessions, or will soon.
    fn ranges_at_session_limit(&self) -> impl Iterator<Item = String> {
        let led = self.replicas.iter().filter(|(_, replica)| replica.cohort.leads());
        let crowded = led.filter(|(_, replica)| replica.state.sessions_open() >= SESSIONS_MAX / 10 * 9);
        crowded.map(|(id, replica)| {
            format!(
                "range {id} of table {} has {} of {SESSIONS_MAX} client sessions: at the limit, sessions that never \
                 wrote and those idle for longest are evicted",
                replica.table,
                replica.state.sessions_open()
            )
        })
    }
}
