//! Positions for appends: one asking of the sequencer for all that wait.

use std::collections::BTreeSet;

use base::Monotonic;

use crate::client::task::{Fill, Task};
use crate::client::{CallId, Client, Whose};
use crate::limits::POSITIONS_AT_ONCE_MAX;
use crate::{Position, ProjectionEpoch};

impl Client {
    /// Positions have come for those that they were asked for. Whom they were asked for and who waits no more has his
    /// filled, so that readers needn't wait.
    pub(super) fn given(
        &mut self,
        asking: CallId,
        for_whom: Vec<CallId>,
        epoch: ProjectionEpoch,
        first: Position,
        count: u64,
        now: Monotonic,
    ) {
        self.end(asking);
        self.asking = None;
        self.note_tail(epoch, Position(first.0.saturating_add(count)));
        for (number, id) in for_whom.into_iter().enumerate() {
            let number = number as u64;
            if number >= count {
                self.wanting.push(id);
                continue;
            }
            let position = Position(first.0.saturating_add(number));
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
    }

    /// Asks for as many positions as are wanted, if no asking is under way. An append takes a position that was asked for
    /// after it began: one from before might lie below an append that had ended by then.
    pub(super) fn ask_positions(&mut self, now: Monotonic) {
        let calls = &self.calls;
        self.wanting.retain(|id| calls.contains_key(id));
        if self.asking.is_some() || self.wanting.is_empty() {
            return;
        }
        let take = self.wanting.len().min(POSITIONS_AT_ONCE_MAX as usize);
        let tokens = self.wanting.drain(..take).collect();
        self.asking = Some(self.last_call + 1);
        self.start(Whose::Nobody, Task::Asking(self.id, tokens), Monotonic::NEVER, now);
    }

    /// The appends that are given a position, sooner or later: they needn't say again that they want one.
    pub(super) fn wait_for_positions(&self) -> BTreeSet<CallId> {
        let asking = self.asking.and_then(|id| self.calls.get(&id)).map(|call| &call.task);
        let asked_for = match asking {
            Some(Task::Asking(_, appends)) => appends.as_slice(),
            _ => &[],
        };
        self.wanting.iter().chain(asked_for).copied().collect()
    }

    /// Whether a call asks for positions for appends that have all ended.
    pub(super) fn is_in_vain(&self, id: CallId) -> bool {
        match self.calls.get(&id).map(|call| &call.task) {
            Some(Task::Asking(_, appends)) => !appends.iter().any(|id| self.calls.contains_key(id)),
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
