//! Writing a snapshot of the server's state into the log, piece by piece.

use base::Monotonic;
use base::canary::{Bug, planted};
use sharedlog::duplicates::Duplicates;
use sharedlog::snapshot::{Appended, Keeper};

use super::{LogPort, Output, Purpose, append_request};
use crate::entry::Position;
use crate::server::Event;

/// The snapshot in progress.
#[derive(Debug, Default)]
pub(super) struct Snapshots {
    /// Number of snapshots started.
    attempts: u64,
    writing: Option<Writing>,
}

#[derive(Debug)]
struct Writing {
    attempt: u64,
    next: Position,
    keeper: Keeper,
    /// The piece after which the server waits to pass in the next one.
    wants_after: Option<u32>,
}

impl Snapshots {
    pub(super) fn cancel(&mut self) {
        self.writing = None;
    }
}

impl LogPort {
    pub(super) fn keep_piece(&mut self, next: Position, index: u32, piece: &[u8], is_last: bool, now: Monotonic) {
        let snapshots = &mut self.snapshots;
        if index == 0 {
            snapshots.attempts += 1;
            let keeper = Keeper::begin(sharedlog::Position(next.0), &Duplicates::default());
            snapshots.writing = Some(Writing { attempt: snapshots.attempts, next, keeper, wants_after: None });
        }
        let Some(writing) = snapshots.writing.as_mut().filter(|writing| writing.next == next) else {
            // The snapshot failed while the server produced this piece.
            return self.outputs.push(Output::Event(Event::SnapshotFailed { next }));
        };
        if let Err(error) = writing.keeper.push(piece) {
            return self.snapshot_failed(next, error.to_string());
        }
        writing.wants_after = (!is_last).then_some(index);
        if is_last {
            writing.keeper.end();
        }
        if is_last && planted(Bug::ZnodesKeptEarly) {
            self.outputs.push(Output::Event(Event::SnapshotKept { next }));
        }
        self.write_on(now);
    }

    /// An append of the snapshot has ended.
    pub(super) fn snapshot_appended(&mut self, attempt: u64, part: usize, outcome: Appended, now: Monotonic) {
        let writing = self.snapshots.writing.as_mut().filter(|writing| writing.attempt == attempt);
        let Some(writing) = writing else { return };
        if let Appended::At(_) = outcome {
            writing.keeper.appended(part, outcome);
            self.write_on(now);
        } else {
            let next = writing.next;
            self.snapshot_failed(next, "an append of the snapshot has failed or timed out".to_owned());
        }
    }

    fn snapshot_failed(&mut self, next: Position, reason: String) {
        self.snapshots.writing = None;
        self.outputs.extend([Output::SnapshotFailed(reason), Output::Event(Event::SnapshotFailed { next })]);
    }

    /// Appends the parts that are complete, and asks the server for the next piece.
    fn write_on(&mut self, now: Monotonic) {
        let Some(writing) = &mut self.snapshots.writing else {
            return debug_assert!(false, "the callers check that a snapshot is in progress");
        };
        let (attempt, next) = (writing.attempt, writing.next);
        let appends: Vec<_> = std::iter::from_fn(|| writing.keeper.next_append()).collect();
        let event = if writing.keeper.kept_at().is_some() {
            self.snapshots.writing = None;
            Some(Event::SnapshotKept { next })
        } else if writing.keeper.is_busy() {
            None
        } else {
            writing.wants_after.take().map(|index| Event::PieceKept { next, index })
        };
        for (part, batch) in appends {
            self.ask(Purpose::Snapshot { attempt, part }, append_request(batch), now);
        }
        self.outputs.extend(event.map(Output::Event));
    }
}
