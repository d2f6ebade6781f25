//! Positions for appends: one asking of the sequencer for all that wait.

use std::collections::BTreeSet;

use base::Monotonic;

use crate::client::task::{Fill, Task, Wanted};
use crate::client::{Call, CallId, Client, Whose};
use crate::limits::{POSITION_MAX, POSITIONS_AT_ONCE_MAX};
use crate::sequencer::Told;
use crate::{Position, ProjectionEpoch, Run};

impl Client {
    /// Positions have come for those that they were asked for: so many in a row, and the places of those that are
    /// named. Whom they were asked for and who waits no more has his filled, so that readers needn't wait; a place that
    /// is named may be another process's, which goes on.
    pub(super) fn given(
        &mut self,
        asking: CallId,
        for_whom: Wanted,
        epoch: ProjectionEpoch,
        run: Run,
        places: &[Told],
        now: Monotonic,
    ) {
        self.end(asking);
        self.asking = None;
        let given = run.positions().chain(places.iter().filter_map(Told::position));
        if let Some(last) = given.max() {
            self.note_tail(epoch, last.next());
        }
        let mut positions = run.positions();
        for id in for_whom.any {
            let Some(position) = positions.next() else {
                self.wanting.push(id);
                continue;
            };
            match self.calls.get_mut(&id).map(|call| &mut call.task) {
                Some(Task::Append(append)) => {
                    append.given(position, epoch);
                    self.advance(id, now);
                }
                _ => {
                    self.start(Whose::Nobody, Task::Fill(Fill::new(position)), now + self.timing.errand, now);
                }
            }
        }
        let mut places = places.iter();
        let start = self.projection.as_ref().filter(|known| known.epoch == epoch).map(|known| known.start);
        // Replaced meanwhile: who has a place writes nothing there.
        let start = start.unwrap_or(Position(POSITION_MAX));
        for (id, ..) in for_whom.named {
            let place = places.next();
            let Some(Call { task: Task::Append(append), .. }) = self.calls.get_mut(&id) else { continue };
            match place {
                Some(Told::At(placed)) => append.placed(*placed, epoch, start),
                Some(Told::Decided) => append.called_decided(),
                Some(Told::Forgotten { known_from }) => append.called_forgotten(*known_from),
                Some(Told::Beyond { next }) => append.called_beyond(*next),
                None => {
                    self.wanting.push(id);
                    continue;
                }
            }
            self.advance(id, now);
        }
    }

    /// Asks for as many positions as are wanted, if no asking is under way. An append takes a position that was asked
    /// for after it began: one from before might lie below an append that had ended by then.
    pub(super) fn ask_positions(&mut self, now: Monotonic) {
        let calls = &self.calls;
        self.wanting.retain(|id| calls.contains_key(id));
        if self.asking.is_some() || self.wanting.is_empty() {
            return;
        }
        let take = self.wanting.len().min(POSITIONS_AT_ONCE_MAX as usize);
        let mut wanted = Wanted::default();
        for id in self.wanting.drain(..take) {
            match self.calls.get(&id).map(|call| &call.task) {
                Some(Task::Append(append)) if let Some((named, decided_in)) = append.named() => {
                    wanted.named.push((id, named, decided_in));
                }
                _ => wanted.any.push(id),
            }
        }
        self.asking = Some(self.last_call + 1);
        self.start(Whose::Nobody, Task::Asking(self.id, wanted), Monotonic::NEVER, now);
    }

    /// The appends that are given a position, sooner or later: they needn't say again that they want one.
    pub(super) fn wait_for_positions(&self) -> BTreeSet<CallId> {
        let asking = self.asking.and_then(|id| self.calls.get(&id)).map(|call| &call.task);
        let asked_for = match asking {
            Some(Task::Asking(_, wanted)) => Some(wanted.calls()),
            _ => None,
        };
        self.wanting.iter().copied().chain(asked_for.into_iter().flatten()).collect()
    }

    /// Whether a call asks for positions for appends that have all ended.
    pub(super) fn is_in_vain(&self, id: CallId) -> bool {
        match self.calls.get(&id).map(|call| &call.task) {
            Some(Task::Asking(_, wanted)) => !wanted.calls().any(|id| self.calls.contains_key(&id)),
            _ => false,
        }
    }

    /// Notes how far positions are given out.
    pub(super) fn note_tail(&mut self, epoch: ProjectionEpoch, tail: Position) {
        if self.tail.is_none_or(|noted| noted < (epoch, tail)) {
            self.tail = Some((epoch, tail));
        }
    }
}
