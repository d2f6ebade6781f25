//! The invariants of the simulation.
//!
//! * A position never has two values, and never changes from a value to junk or back, as seen by any reader at any
//!   time.
//! * An acknowledged append is at its acknowledged position until that is trimmed.
//! * A client that does not crash appends an entry at one position and returns that position, even if the outcome is
//!   unknown. Without a crash the entry is at no other position.
//! * Appends are linearizable: an append that completed before another one started has a lower position. The same holds
//!   for the tail.
//! * Players deliver the same entries, and each stamp once, even if the log contains it twice.
//! * Nothing at or above the mark is trimmed. The log has a snapshot at or above the mark, and its content is as
//!   played.
//! * Only positions that were handed out are filled.
//! * At the end all units of a chain agree, and their states are small.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use super::World;
use crate::client::{Error, LogReply};
use crate::unit::Command;
use crate::{Batch, Data, Entry, Kept, Position, PositionRun, Stamp, Stripe, UnitId};

/// The content seen at a position.
#[derive(Clone, Debug, PartialEq, Eq)]
enum ObservedContent {
    Data(Stamp, Batch),
    Junk,
}

#[derive(Debug, Default)]
pub(super) struct Checks {
    seen: BTreeMap<Position, ObservedContent>,
    complete: BTreeMap<Position, Stamp>,
    /// The stamp that players delivered at each position, if any.
    played: BTreeMap<Position, Option<Stamp>>,
    /// The position at which each stamp was delivered.
    delivered: BTreeMap<Stamp, Position>,
    /// Deduplication and application state of players, by position.
    pub(super) states: BTreeMap<Position, (Bytes, u64)>,
    /// Positions of stored snapshots. Everything below the highest may be trimmed.
    pub(super) kept: BTreeSet<Position>,
    /// The highest mark of any trim request.
    pub(super) trimmed: Position,
    /// Positions of requests to trim a single one.
    pub(super) trimmed_singly: BTreeSet<Position>,
    /// Positions in abandoned chains.
    lost: BTreeSet<Position>,
    /// Entries found by the final read of the log.
    found: BTreeMap<Position, Stamp>,
}

type Said = Result<(), String>;

impl Checks {
    pub(super) fn highest_complete(&self) -> Option<Position> {
        self.complete.last_key_value().map(|(position, _)| *position)
    }

    pub(super) fn was_seen(&self, position: Position) -> bool {
        self.seen.contains_key(&position)
    }

    fn see(&mut self, position: Position, seen: ObservedContent) -> Said {
        match self.seen.get(&position) {
            Some(before) if *before != seen => Err(format!("position {position} was {before:?} and is {seen:?}")),
            _ => {
                self.seen.insert(position, seen);
                Ok(())
            }
        }
    }

    pub(super) fn appended(&mut self, stamp: Stamp, batch: Batch, position: Position, floor: Option<Position>) -> Said {
        if floor.is_some_and(|floor| position <= floor) {
            return Err(format!("an append is at {position}, below {floor:?} of an append that completed before it"));
        }
        self.complete.insert(position, stamp);
        self.see(position, ObservedContent::Data(stamp, batch))
    }

    pub(super) fn tail(&self, outcome: &Result<LogReply, Error>, floor: Option<Position>) -> Said {
        match outcome {
            Ok(LogReply::Tail(tail)) if floor.is_some_and(|floor| *tail <= floor) => {
                Err(format!("the tail is {tail}, although an append at {floor:?} had completed"))
            }
            _ => Ok(()),
        }
    }

    pub(super) fn told_trimmed(&self, mark: Position) -> Said {
        let is_asked_for = mark <= self.trimmed;
        if is_asked_for { Ok(()) } else { Err(format!("trimmed below {mark}, but requested below {}", self.trimmed)) }
    }

    /// Checks the outcome of a read. `was_there`: the position was written when the read started.
    pub(super) fn read(&mut self, position: Position, outcome: &Result<LogReply, Error>, was_there: bool) -> Said {
        match outcome {
            Ok(LogReply::Entry(data)) => self.see(position, ObservedContent::Data(data.stamp, data.batch.clone())),
            Ok(LogReply::Junk) => self.see(position, ObservedContent::Junk),
            Ok(LogReply::Trimmed { .. }) if self.trimmed_singly.contains(&position) => Ok(()),
            Ok(LogReply::Trimmed { mark }) => {
                if position >= *mark {
                    return Err(format!("{position} is reported as trimmed with the mark {mark}"));
                }
                self.told_trimmed(*mark)
            }
            Ok(LogReply::Unwritten) | Err(Error::BeyondTail { .. }) if was_there => {
                Err(format!("{position} was read before and is now {outcome:?}"))
            }
            _ => Ok(()),
        }
    }

    /// Checks the outcome of a range read. `was_there`: the first position was written when the read started.
    pub(super) fn read_many(&mut self, run: PositionRun, outcome: Result<LogReply, Error>, was_there: bool) -> Said {
        match outcome {
            Ok(LogReply::Range(answers)) if answers.is_empty() => {
                self.read(run.from, &Ok(LogReply::Unwritten), was_there)
            }
            Ok(LogReply::Range(answers)) if answers.len() > run.count => {
                Err(format!("a read of {run:?} returned {answers:?}"))
            }
            Ok(LogReply::Range(answers)) => {
                let mut answers = run.positions().zip(answers);
                answers.try_for_each(|(position, answer)| self.read(position, &Ok(answer), false))
            }
            // The size limit was below the size of the entry.
            Ok(LogReply::Larger) => Ok(()),
            Ok(other) => Err(format!("a read of {run:?} returned {other:?}")),
            Err(error) => self.read(run.from, &Err(error), was_there),
        }
    }

    /// Checks positions passed by a player, which delivered at most the last one.
    pub(super) fn played(&mut self, from: Position, next: Position, delivered: Option<(Position, Data)>) -> Said {
        let agree = self.do_players_agree();
        for position in (from.0..next.0).map(Position).filter(|_| agree) {
            let stamp = delivered.as_ref().filter(|(at, _)| *at == position).map(|(_, data)| data.stamp);
            let before = *self.played.entry(position).or_insert(stamp);
            if before != stamp {
                return Err(format!("at {position} one player delivered {before:?} and another {stamp:?}"));
            }
            if let Some(stamp) = stamp {
                let first = *self.delivered.entry(stamp).or_insert(position);
                if first != position {
                    return Err(format!("{stamp:?} was delivered at {first} and again at {position}"));
                }
            }
        }
        match delivered {
            Some((position, data)) => self.see(position, ObservedContent::Data(data.stamp, data.batch)),
            None => Ok(()),
        }
    }

    /// Players may disagree on lost entries and on positions trimmed individually.
    fn do_players_agree(&self) -> bool {
        self.lost.is_empty() && self.trimmed_singly.is_empty()
    }

    /// Checks a state that a player has reached.
    pub(super) fn reached_state(&mut self, next: Position, table: Bytes, state: u64) -> Said {
        let agree = self.do_players_agree();
        let known = self.states.entry(next).or_insert_with(|| (table.clone(), state));
        if agree && *known != (table, state) {
            return Err(format!("two players have different states at {next}"));
        }
        Ok(())
    }

    /// Checks the snapshot that a process starts with.
    pub(super) fn started_from(&self, next: Position, table: &Bytes, state: u64) -> Said {
        let is_as_played = self.states.get(&next).is_some_and(|known| known.0 == table && known.1 == state);
        if is_as_played || !self.do_players_agree() {
            return Ok(());
        }
        Err(format!("the snapshot at {next} differs from the state of players"))
    }

    /// Parts of snapshots may have been declared lost or trimmed individually.
    pub(super) fn may_lack_snapshots(&self) -> bool {
        !self.do_players_agree()
    }

    /// Checks a position in the final read of the log.
    pub(super) fn finally(&mut self, position: Position, outcome: &Result<LogReply, Error>) -> Said {
        let stamp = match outcome {
            Ok(LogReply::Entry(data)) => data.stamp,
            Ok(LogReply::Lost) => {
                self.lost.insert(position);
                return Ok(());
            }
            Ok(LogReply::Junk | LogReply::Trimmed { .. }) => return Ok(()),
            other => return Err(format!("a read of {position} failed: {other:?}")),
        };
        self.found.insert(position, stamp);
        Ok(())
    }
}

impl World {
    /// The checks at the end of a run, after the whole log was read.
    pub(super) fn check_end(&mut self) {
        if self.violation.is_none()
            && let Err(what) = self.compare_all().and_then(|()| self.agree()).and_then(|()| self.are_small())
        {
            self.violate(&what);
        }
        let lie_twice = self.clients.jobs.iter().filter(|job| self.places(job.stamp).len() > 1).count();
        (0..lie_twice).for_each(|_| self.count("stamps at two positions"));
    }

    fn compare_all(&self) -> Said {
        let checks = &self.checks;
        for (position, stamp) in checks.complete.range(checks.trimmed..) {
            if checks.trimmed_singly.contains(position) || checks.lost.contains(position) {
                continue;
            }
            if checks.found.get(position) != Some(stamp) {
                return Err(format!("the append at {position} is lost"));
            }
        }
        for job in &self.clients.jobs {
            let places = self.places(job.stamp);
            let unreported = places.iter().filter(|position| !job.reported.contains(position)).count();
            if unreported > job.unreported {
                let (stamp, reported) = (job.stamp, &job.reported);
                return Err(format!("{stamp:?} is at {places:?}, but its clients got {reported:?}"));
            }
            let is_delivered = checks.delivered.contains_key(&job.stamp);
            let may_miss = is_delivered || !(checks.lost.is_empty() && checks.trimmed_singly.is_empty());
            let is_delivered_nowhere = self.options.players && job.is_done && !may_miss;
            if is_delivered_nowhere && places.iter().any(|position| *position >= checks.trimmed) {
                return Err(format!("{:?} was appended at {places:?} and never delivered", job.stamp));
            }
        }
        Ok(())
    }

    /// The current and trimmed positions of an append.
    fn places(&self, stamp: Stamp) -> BTreeSet<Position> {
        let seen =
            self.checks.seen.iter().filter(|(_, seen)| matches!(seen, ObservedContent::Data(of, _) if *of == stamp));
        let found = self.checks.found.iter().filter(|(_, of)| **of == stamp);
        seen.map(|(at, _)| *at).chain(found.map(|(at, _)| *at)).collect()
    }

    /// Checks that a position reported as lost is in an abandoned chain.
    pub(super) fn check_lost(&mut self, position: Position) -> Said {
        self.checks.lost.insert(position);
        let chain = self.newest().chain_of(position);
        let is_lost = chain.is_none_or(<[UnitId]>::is_empty);
        if is_lost { Ok(()) } else { Err(format!("{position} is reported as lost, but is on {chain:?}")) }
    }

    /// Checks that a fill is below the end of the positions handed out in its epoch; otherwise it would end the log
    /// there.
    pub(super) fn check_command(&self, command: &Command) -> Said {
        let Command::Write { epoch, position, entry: Entry::Junk } = command else { return Ok(()) };
        let projection = self.registry.history.get(epoch.0 as usize - 1);
        let start = projection.map_or(Position(0), |projection| projection.start);
        let end = self.handed_out.get(epoch).copied().unwrap_or_default().max(start);
        if *position < end {
            Ok(())
        } else {
            Err(format!("{position} is filled in epoch {epoch}, although only positions below {end} were handed out"))
        }
    }

    /// The value that a unit stores for a position.
    fn kept(&self, unit: UnitId, position: Position) -> Option<&Kept> {
        let node = self.nodes.get(self.registry.units.get(&unit)?)?;
        node.process.as_ref()?.units.values.get(&(unit, position))
    }

    /// Checks that a unit's size depends only on its stripes and holes, not on when it learned of the stripes.
    fn are_small(&self) -> Said {
        for unit in self.newest().units() {
            let process = self.registry.units.get(&unit).and_then(|node| self.nodes.get(node)?.process.as_ref());
            let Some(state) = process.and_then(|process| process.units.units.get(&unit)) else { continue };
            let mut stripes: Vec<_> = state.stripes().chain([Stripe::ALL]).collect();
            stripes.sort_by_key(|stripe| (*stripe != Stripe::ALL, stripe.order()));
            // The stripe that contains each position, and its number there.
            let counted = |position: &Position| {
                let stripe = stripes.iter().rev().find(|stripe| stripe.holds(*position))?;
                Some((*stripe, stripe.before(*position)))
            };
            let held = (state.trimmed().0..state.tail().0).map(Position).filter(|position| state.holds(*position));
            let held: BTreeSet<_> = held.filter_map(|position| counted(&position)).collect();
            let starts = |(stripe, number): &&(Stripe, u64)| *number == 0 || !held.contains(&(*stripe, number - 1));
            let wanted = held.iter().filter(starts).count();
            if state.intervals() != wanted {
                return Err(format!("unit {unit} has {} intervals instead of {wanted}", state.intervals()));
            }
        }
        Ok(())
    }

    /// Checks that all units of a chain hold the same values.
    fn agree(&self) -> Said {
        let newest = self.newest();
        let last = self.checks.found.last_key_value().map_or(Position(0), |(position, _)| *position);
        let singly = &self.checks.trimmed_singly;
        for position in (self.checks.trimmed.0..=last.0).map(Position).filter(|position| !singly.contains(position)) {
            let chain = newest.chain_of(position).unwrap_or_default();
            let kept: Vec<_> = chain.iter().map(|unit| self.kept(*unit, position)).collect();
            if kept.windows(2).any(|pair| pair[0] != pair[1]) {
                return Err(format!("the units {chain:?} hold different values at {position}: {kept:?}"));
            }
        }
        Ok(())
    }
}
