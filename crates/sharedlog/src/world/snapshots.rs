//! Client processes store snapshots of their state in the log, and start from them.

use base::{Duration, SplitMix64};
use bytes::Bytes;

use super::clients::Call;
use super::{PLAYER, World};
use crate::client::{Error, LogReply, ReadMany, Token, Wait};
use crate::duplicates::Duplicates;
use crate::limits::BATCH_BYTES_MAX;
use crate::player::Player;
use crate::snapshot::{Appended, Finder, Found, Keeper, Snapshot, There, Wanted};
use crate::{Position, PositionRun, Stamp};

/// Deadline of a snapshot's appends and of reads in a search.
const PATIENCE: Duration = Duration::from_millis(120);
/// How long a search waits at a hole.
const HOLE: Duration = Duration::from_millis(12);
/// Probability of storing a snapshot at an opportunity, in parts per million.
const KEPT: u64 = 400_000;
/// Probability that a keeper stops after a failed append, in parts per million.
const ABANDONED: u64 = 200_000;

/// The application state after a delivery: a hash.
pub(super) fn played_on(state: u64, position: Position, stamp: Stamp) -> u64 {
    SplitMix64::new(state ^ position.0 << 32 ^ stamp.client.0 << 20 ^ stamp.sequence).draw()
}

impl World {
    /// A process may start to store a snapshot.
    pub(super) fn keep(&mut self, id: u32) {
        if self.is_healed || !self.random.chance(KEPT) {
            return;
        }
        let padding = self.random.below(40) as usize;
        let Some(process) = self.clients.processes.get_mut(&id).filter(|process| process.keeper.is_none()) else {
            return;
        };
        let (next, duplicates) = (process.player.next(), process.player.duplicates().clone());
        let mut state = process.state.to_be_bytes().to_vec();
        state.resize(state.len() + padding, 0);
        let snapshot = Snapshot { next, duplicates, state: state.into() };
        let number = self.token();
        let Some(process) = self.clients.processes.get_mut(&id) else { return };
        process.keeper = Some((number, Keeper::new(&snapshot).expect("within the limits")));
        self.keep_on(id);
    }

    /// Sends a keeper's appends, and records the position to trim to.
    fn keep_on(&mut self, id: u32) {
        let now = self.clock();
        loop {
            let token = self.token();
            let Some(process) = self.clients.processes.get_mut(&id) else { return };
            let Some((of, keeper)) = &mut process.keeper else { return };
            if let Some((number, batch)) = keeper.next_append() {
                process.calls.insert(token, Call::Keep { keeper: *of, number });
                process.client.append(token, batch, None, now + PATIENCE, now);
                continue;
            }
            let has_ended = keeper.kept_at().is_some();
            let kept = keeper.may_trim_below();
            if has_ended {
                process.keeper = None;
            }
            if let Some(next) = kept {
                self.checks.kept.insert(next);
            }
            if has_ended {
                self.count("snapshots stored");
            }
            return;
        }
    }

    /// An append of a keeper has ended.
    pub(super) fn keeper_receives(&mut self, id: u32, keeper: Token, number: usize, outcome: &Result<LogReply, Error>) {
        let is_abandoned = outcome.is_err() && self.random.chance(ABANDONED);
        let Some(process) = self.clients.processes.get_mut(&id) else { return };
        let Some((_, keeper)) = process.keeper.as_mut().filter(|(of, _)| *of == keeper) else { return };
        if is_abandoned {
            // Its other appends are abandoned.
            process.keeper = None;
            return;
        }
        keeper.appended(number, Appended::from(outcome));
        self.keep_on(id);
    }

    /// A process starts from the beginning of the log, or from a snapshot at or above the mark.
    pub(super) fn find(&mut self, id: u32, mark: Position) {
        let Some(process) = self.clients.processes.get_mut(&id) else { return };
        process.player = Player::new(PLAYER, mark, Duplicates::default());
        process.finder = Some(Finder::new(mark));
        self.find_on(id);
    }

    fn find_on(&mut self, id: u32) {
        let (now, token) = (self.clock(), self.token());
        let Some(process) = self.clients.processes.get_mut(&id) else { return };
        let Some(finder) = &process.finder else { return };
        finder.invariants();
        match finder.wants() {
            Wanted::Tail => {
                process.calls.insert(token, Call::FindTail);
                process.client.tail(token, now + PATIENCE, now);
            }
            Wanted::Read(run) => {
                process.calls.insert(token, Call::Find(run));
                let wanted = ReadMany { run, wait: Wait::Each(HOLE), bytes: BATCH_BYTES_MAX };
                process.client.read_many(token, wanted, now + PATIENCE, now);
            }
            Wanted::Nothing => {
                let Some(finder) = process.finder.take() else { return };
                match finder.found() {
                    Found::Snapshot(snapshot) => self.begin_with(id, snapshot),
                    Found::Nothing { mark } => self.begin_without(id, mark),
                }
            }
        }
    }

    /// Passes the tail or the content of positions to a finder.
    pub(super) fn finder_receives(&mut self, id: u32, run: Option<PositionRun>, outcome: &Result<LogReply, Error>) {
        let Some(process) = self.clients.processes.get_mut(&id) else { return };
        let Some(finder) = &mut process.finder else { return };
        match (run, outcome) {
            (None, Ok(LogReply::Tail(tail)) | Err(Error::BeyondTail { tail })) => finder.tail(*tail),
            // Positions that were handed out and never written are handed out again.
            (Some(_), Err(Error::BeyondTail { tail })) => finder.tail(*tail),
            (Some(run), Ok(LogReply::Range(answers))) => {
                let there = run.positions().zip(answers).map_while(|(position, answer)| There::of(answer, position));
                finder.read(there);
            }
            _ => {}
        }
        self.find_on(id);
    }

    fn begin_with(&mut self, id: u32, snapshot: Snapshot) {
        let now = self.clock();
        let Snapshot { next, duplicates, state } = snapshot;
        let state = state.first_chunk().map_or(0, |first| u64::from_be_bytes(*first));
        if let Err(what) = self.checks.started_from(next, &duplicates.encode(), state) {
            return self.violate(&what);
        }
        self.count("players started from a snapshot");
        self.begin_at(id, next, duplicates, state);
        if let Some(process) = self.clients.processes.get_mut(&id) {
            process.player.nudge(now);
        }
    }

    /// No snapshot was found: nothing was trimmed, or parts were lost or trimmed individually.
    fn begin_without(&mut self, id: u32, mark: Position) {
        let now = self.clock();
        if mark.0 > 0 && !self.checks.may_lack_snapshots() {
            return self.violate(&format!("positions below {mark} are trimmed, and no snapshot covers them"));
        }
        let known = self.checks.states.range(mark..).next().map(|(next, known)| (*next, known.clone()));
        match known.filter(|_| mark.0 > 0) {
            Some((next, (table, state))) => {
                let duplicates = Duplicates::decode(table).expect("own encoding");
                self.begin_at(id, next, duplicates, state);
            }
            None => self.begin_at(id, mark, Duplicates::default(), 0),
        }
        if let Some(process) = self.clients.processes.get_mut(&id) {
            process.player.nudge(now);
        }
    }

    fn begin_at(&mut self, id: u32, next: Position, duplicates: Duplicates, state: u64) {
        let Some(process) = self.clients.processes.get_mut(&id) else { return };
        (process.player, process.checked_to, process.state) = (Player::new(PLAYER, next, duplicates), next, state);
    }

    /// Records a player's state, to compare with others.
    pub(super) fn note_state(&mut self, id: u32) {
        let Some(process) = self.clients.processes.get(&id) else { return };
        let table: Bytes = process.player.duplicates().encode();
        let (next, state) = (process.player.next(), process.state);
        if let Err(what) = self.checks.reached_state(next, table, state) {
            self.violate(&what);
        }
    }
}
