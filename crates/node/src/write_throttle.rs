//! Write throttle: slows down writes to a tablet while its compactions fall behind, to avoid write stalls that last
//! until a compaction ends. Each write gets a time slot in arrival order, at the rate that the tablet's tree allows
//! ([`store::tree::Tree::pace`]).

use base::{Duration, Monotonic, NodeId, Now};
use state_machine::Failure;

use crate::checkpoint_schedule::Checkpoints;
use crate::config::NodeConfig;
use crate::replica::Replica;
use crate::request::Counters;
use crate::request_table::{Pending, RequestState};
use crate::requests::RequestStep;

/// How far ahead slots are assigned. A write that would wait longer is refused and may be retried. This is shorter than
/// the time after which a node that forwarded a write tries another node.
const AHEAD_MAX: Duration = Duration::from_millis(400);
/// Slots are rounded up to a multiple of this, so that one timer wakes the machine for many writes.
const GRAIN: u64 = Duration::from_millis(1).0;

/// The time through which slots for writes to one tablet are assigned.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct WriteThrottle {
    free_at: Monotonic,
}

/// When a write may be proposed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    Now,
    At(Monotonic),
    /// The next slot is too far ahead: the write is refused.
    Never,
}

impl WriteThrottle {
    /// Assigns a slot to a write of `bytes` bytes, at a rate of `pace` bytes per second.
    fn turn(&mut self, bytes: u64, pace: u64, now: Monotonic) -> Turn {
        let turn = self.free_at.max(now);
        if turn.since(now) > AHEAD_MAX {
            return Turn::Never;
        }
        let lasts = u128::from(bytes) * 1_000_000_000 / u128::from(pace.max(1));
        self.free_at = turn + Duration(u64::try_from(lasts).unwrap_or(u64::MAX));
        if turn == now { Turn::Now } else { Turn::At(Monotonic(turn.0.next_multiple_of(GRAIN))) }
    }
}

/// The state of this node's disk, as far as writes depend on it.
#[derive(Debug)]
pub(crate) struct DiskAdmission<'a> {
    pub(crate) node: NodeId,
    pub(crate) config: &'a NodeConfig,
    pub(crate) checkpoints: &'a Checkpoints,
    pub(crate) counters: &'a mut Counters,
}

impl DiskAdmission<'_> {
    /// Refuses or delays a change that adds `bytes` bytes, if the disk is full or can't keep up. `None` if it may
    /// proceed. A change that adds nothing, such as a drop, needs no space and always may.
    pub(crate) fn delay_or_refuse(
        &mut self,
        replica: &mut Replica,
        pending: &Pending,
        bytes: u64,
        now: Now,
    ) -> Option<RequestStep> {
        if bytes == 0 {
            return None;
        }
        if self.checkpoints.is_disk_full(now) {
            let what = format!("the disk of node {} is full: its rows are read-only", self.node);
            return Some(RequestStep::Reply(Err(Failure::NoSpace(what))));
        }
        if replica.is_stalled(self.config) || self.checkpoints.are_memtables_full(self.config) {
            self.counters.writes_stalled += 1;
            return Some(RequestStep::Wait(RequestState::Waiting));
        }
        let pace = replica.state.pressure().pace.filter(|_| !pending.had_turn)?;
        match replica.throttle.turn(bytes, pace, now.monotonic) {
            Turn::Now => None,
            Turn::At(turn) => {
                self.counters.writes_paced += 1;
                Some(RequestStep::Wait(RequestState::Paced(turn)))
            }
            Turn::Never => {
                let failure = Failure::Overloaded("writes are throttled: compactions have fallen behind".to_owned());
                Some(RequestStep::Reply(Err(failure)))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use catalog::{CatalogCommand, CatalogRequest, TableOptions};
    use state_machine::StateMachine as _;
    use store::tree::{Config, Tablespace};
    use tablets::request::{Mutation, TableRequest, Write};
    use tablets::{TableResponse, Tablet};

    use super::*;
    use crate::contract::RequestId;
    use crate::request::{Ask, Request, Response};
    use crate::testing::{Bench, empty};

    const MILLI: u64 = GRAIN;

    /// Submits a row write. A few such rows fill a memtable.
    fn write(bench: &mut Bench, number: u64) -> RequestId {
        let mutations = vec![Mutation { column: "c".into(), value: Some(Bytes::from(vec![7; 20])), condition: None }];
        let write = Write { stamp: None, key: "k".into(), mutations };
        bench.ask(number, Request::Table { table: "t".into(), request: Ask::Tablet(TableRequest::Write(write)) });
        RequestId(number)
    }

    /// No compaction ever ends: writes continue at a reduced rate, and a burst is refused with a retriable error.
    #[test]
    fn compaction_backlog_throttles_writes() {
        let tiny = Config {
            memtable_bytes: 1_000,
            level0_sstables: 2,
            level0_sstables_max: 40,
            brake: Duration::from_millis(2_000),
            ..Config::DEFAULT
        };
        let mut disk = empty(1, 1);
        disk.tablespace = Tablespace::new(disk.identity.owner(), tiny, 1 << 20, 1 << 20);
        let mut bench = Bench::start(disk);
        bench.pass(Duration::from_millis(5_000));
        bench.ask(
            1,
            Request::Catalog(CatalogRequest::Change(CatalogCommand::CreateTable {
                name: "t".to_owned(),
                split_at: vec![],
                options: TableOptions::of(Tablet::KIND),
            })),
        );
        bench.pass(Duration::from_millis(1_000));
        bench.writes_checkpoints = true;

        let mut waits = Vec::new();
        for number in 2..182 {
            let (id, asked) = (write(&mut bench, number), bench.now.monotonic);
            while !bench.answers.contains_key(&id) {
                bench.pass(Duration(GRAIN));
            }
            assert!(matches!(bench.answers[&id], Ok(Response::Tablet(TableResponse::Written { .. }))));
            waits.push(bench.now.monotonic.since(asked).0 / MILLI);
        }
        let sums: Vec<u64> = waits.chunks(30).map(|waits| waits.iter().sum()).collect();
        assert_eq!(sums[..2], [0, 0], "the throttle starts gradually: {sums:?}");
        assert!(sums[2..].is_sorted() && sums[2] > 0 && waits.iter().all(|wait| *wait < 100), "{waits:?}");
        assert_eq!(bench.node.counters().writes_stalled, 0);

        let crowd: Vec<RequestId> = (200..240).map(|number| write(&mut bench, number)).collect();
        let is_refused = |id: &&RequestId| matches!(bench.answers.get(id), Some(Err(Failure::Overloaded(_))));
        let refused = crowd.iter().filter(is_refused).count();
        bench.pass(Duration::from_millis(3_000));
        let is_written = |id: &&RequestId| matches!(bench.answers.get(id), Some(Ok(_)));
        let written = crowd.iter().filter(is_written).count();
        assert_eq!((refused + written, written > 0), (crowd.len(), true), "{refused} refused, {written} written");
    }

    #[test]
    fn brake_paces_turns_within_horizon() {
        let (mut throttle, start) = (WriteThrottle::default(), Monotonic(1_000 * MILLI));
        // 1,000 bytes take 2.5 ms at this rate.
        let mut turn = |after: u64| throttle.turn(1_000, 400_000, start + Duration(after * MILLI));
        let at = |after: u64| Turn::At(start + Duration(after * MILLI));
        assert_eq!([turn(0), turn(0), turn(0), turn(4)], [Turn::Now, at(3), at(5), at(8)]);
        assert_eq!(turn(1_000), Turn::Now, "unused slots are not saved");
        assert_eq!(turn(1_000), at(1_003));
        let given = (0..1_000).take_while(|_| turn(1_000) != Turn::Never).count();
        assert_eq!(given, 159, "slots within 400 ms");
        assert_eq!(turn(1_004), at(1_403), "a refused write takes no slot");
    }

    #[test]
    fn brake_extreme_rates_and_sizes() {
        let mut throttle = WriteThrottle::default();
        assert_eq!(throttle.turn(u64::MAX, 0, Monotonic(7)), Turn::Now);
        assert_eq!(throttle.turn(0, u64::MAX, Monotonic(8)), Turn::Never);
    }
}
