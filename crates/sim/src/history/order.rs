//! The search for a total order of a row's operations that explains every response.
//!
//! A search state holds the number of steps taken, the pending observations, how many members of each group of unknown
//! writes were used, and the row. An observation changes nothing, so taking it as soon as it agrees with the row loses
//! no order; the search takes all such observations before it makes a choice. The choice is the next write: the next
//! step, or an unknown write before it. Only *useful* unknown writes are tried: in an order with as few of them as
//! possible, the effect of each is observed (an observation sees the column that it deleted as absent, or a condition
//! matches a version that it wrote) before a step overwrites it.
//!
//! At first, members of groups are not counted: each unknown write may be used any number of times. If no order exists
//! even so, none exists at all. If the order found uses more of a group than it has members, that group becomes
//! *limited* and the search restarts. So only scarce groups are counted.
//!
//! A failed state is memoized. It rules out every state of the same row and step that is no better: one with at least
//! as high a version floor, at least the same pending observations, and at least the same usage of each limited group.
//! A state that fails with fewer limited groups also fails with more, so memoized failures survive a restart.

use std::collections::HashMap;

use super::Kind;
use super::parse::{ABSENT, Code, NAMELESS, Row, Writer};
use super::report::{Finding, text};
use super::slots::Timelines;

/// Groups considered and states compared before the search stops undecided: about ten seconds.
const MAX_EFFORT: u64 = 500_000_000;

/// Approximate limit of memory for failed states, in bytes. Beyond it the search continues without recording more.
const MAX_REMEMBERED_BYTES: usize = 256 << 20;

/// Observations and columns listed in the report of a failed search.
const REPORTED: usize = 8;

/// Succeeds if an order exists.
pub(super) fn find(row: &Row<'_>, timelines: &Timelines) -> Result<(), Finding> {
    Search::new(row, timelines).run()
}

#[derive(Clone, Debug)]
struct State {
    step: usize,
    /// The first observation that was called after the earliest pending return, and so must wait.
    next: usize,
    /// The observations before `next` that are still pending. They all overlap, so there are at most as many as
    /// clients.
    pending: Vec<usize>,
    /// Members used of each group.
    used: Vec<usize>,
    /// The groups of which more members were used than exist.
    overused: Vec<usize>,
    /// The version of the last write.
    floor: i64,
    row: Vec<Code>,
    /// Number of columns that exist.
    present: usize,
}

/// A write that may come next.
#[derive(Clone, Copy, Debug)]
enum Move {
    /// The next step, with a known write.
    Step,
    /// The next step, performed by a write of this group.
    StepBy(usize),
    /// A write of this group between steps, with this version.
    Between { group: usize, version: i64, code: Code },
}

/// A state on the path to the current one.
#[derive(Debug)]
struct Frame {
    state: State,
    /// The result of [`Search::settle`].
    frontier: u64,
    /// Moves not yet tried, the most promising last.
    moves: Vec<Move>,
    /// Whether a successor was pruned because of a state earlier on the path. This state has then failed only if that
    /// one fails: if that one leads to an order, the next attempt could not reuse this failure.
    provisional: bool,
}

/// A memoized failed state, without its lookup key.
#[derive(Debug)]
struct Failed {
    /// Members used of each limited group.
    used: Box<[(usize, usize)]>,
    floor: i64,
    next: usize,
    pending: Box<[usize]>,
    provisional: bool,
}

struct Search<'a> {
    row: &'a Row<'a>,
    timelines: &'a Timelines,
    /// For each step, the earliest return among it and all later steps.
    first_return: Vec<u64>,
    /// For each step, one past the last observation that must come before it.
    observation_deadlines: Vec<usize>,
    /// For each deletable column: the observations that see it absent, each with the earliest slot among it and all
    /// later ones.
    absences: Vec<Vec<(usize, usize)>>,
    /// For columns and versions of steps: the last observation that sees it; `None` if a step's condition does, which
    /// is later.
    last_sights: HashMap<(usize, Code), Option<usize>>,
    /// For each group: the slots that its conditions allow, and the steps that may be writes of it.
    group_slots: Vec<(usize, usize)>,
    candidacies: Vec<Vec<usize>>,
    /// For each column: the groups with the condition that it is absent.
    absence_conditions: Vec<Vec<usize>>,
    /// The groups with counted members.
    limited: Vec<bool>,
    /// Failed states, keyed by row followed by step.
    failed: HashMap<Box<[Code]>, Vec<Failed>>,
    remembered_bytes: usize,
    effort: u64,
    start: State,
    furthest: State,
}

impl<'a> Search<'a> {
    fn new(row: &'a Row<'a>, timelines: &'a Timelines) -> Self {
        let mut first_return = vec![u64::MAX; row.steps.len() + 1];
        for (index, step) in row.steps.iter().enumerate().rev() {
            first_return[index] = first_return[index + 1].min(step.returned);
        }
        let mut observation_deadlines = vec![0; row.steps.len() + 1];
        for (index, observation) in row.observations.iter().enumerate() {
            let deadline = &mut observation_deadlines[observation.slots.1];
            *deadline = index + 1;
        }
        let start = State {
            step: 0,
            next: 0,
            pending: Vec::new(),
            used: vec![0; row.groups.len()],
            overused: Vec::new(),
            floor: 0,
            row: vec![ABSENT; row.columns.len()],
            present: 0,
        };
        let sights = row
            .observations
            .iter()
            .enumerate()
            .flat_map(|(index, observation)| observation.sees.iter().map(move |&it| (it, Some(index))));
        let mut last_sights: HashMap<(usize, Code), Option<usize>> = sights.collect();
        for step in &row.steps {
            if let Writer::Known { change, .. } = &step.writer {
                last_sights.extend(change.conditions.iter().map(|&it| (it, None)));
            }
        }
        let mut absence_conditions = vec![Vec::new(); row.columns.len()];
        for (group, it) in row.groups.iter().enumerate() {
            for (column, _) in it.change.conditions.iter().filter(|(_, code)| *code == ABSENT) {
                absence_conditions[*column].push(group);
            }
        }
        let mut candidacies = vec![Vec::new(); row.groups.len()];
        for (index, step) in row.steps.iter().enumerate() {
            if let Writer::OneOf(groups) = &step.writer {
                groups.iter().for_each(|&group| candidacies[group].push(index));
            }
        }
        let group_slots = row.groups.iter().map(|group| timelines.slots(row, &group.change)).collect();
        let absences = (0..row.columns.len()).map(|column| absences(row, timelines, column)).collect();
        Self {
            row,
            timelines,
            first_return,
            observation_deadlines,
            absences,
            last_sights,
            group_slots,
            candidacies,
            absence_conditions,
            limited: vec![false; row.groups.len()],
            failed: HashMap::new(),
            remembered_bytes: 0,
            effort: 0,
            furthest: start.clone(),
            start,
        }
    }

    fn run(mut self) -> Result<(), Finding> {
        loop {
            let overused = self.attempt()?;
            if overused.is_empty() {
                return Ok(());
            }
            for group in overused {
                self.limited[group] = true;
            }
        }
    }

    /// Finds an order and returns the unlimited groups that it overuses.
    fn attempt(&mut self) -> Result<Vec<usize>, Finding> {
        self.furthest.clone_from(&self.start);
        self.failed.values_mut().for_each(|failed| failed.retain(|failed| !failed.provisional));
        let mut frames: Vec<Frame> = Vec::new();
        let mut state = self.start.clone();
        loop {
            let frontier = self.settle(&mut state);
            if self.is_done(&state) {
                return Ok(state.overused);
            }
            if progress(&state) > progress(&self.furthest) {
                self.furthest.clone_from(&state);
            }
            if !self.is_hopeless(&state, &mut frames) {
                let moves = self.moves(&state, frontier);
                frames.push(Frame { state, frontier, moves, provisional: false });
            }
            let Some((before, frontier, next)) = self.next_choice(&mut frames) else { return Err(self.inexplicable()) };
            state = before;
            self.effort += 1 + self.row.groups.len() as u64;
            if self.effort > MAX_EFFORT {
                return Err(self.undecided());
            }
            self.place(&mut state, next, frontier);
        }
    }

    /// The next move of the last frame that has one. Frames without moves have failed and are popped.
    fn next_choice(&mut self, frames: &mut Vec<Frame>) -> Option<(State, u64, Move)> {
        loop {
            let frame = frames.last_mut()?;
            if let Some(next) = frame.moves.pop() {
                return Some((frame.state.clone(), frame.frontier, next));
            }
            let failed = Failed { provisional: frame.provisional, ..Failed::new(&frame.state, &self.limited) };
            self.remember(&frame.state, failed);
            frames.pop();
        }
    }

    fn is_done(&self, state: &State) -> bool {
        state.step == self.row.steps.len() && state.next == self.row.observations.len() && state.pending.is_empty()
    }

    /// Takes every observation that can come now. Returns the earliest return among pending operations: operations
    /// called later must wait.
    fn settle(&self, state: &mut State) -> u64 {
        loop {
            let pending = state.pending.iter().map(|&observation| self.row.observations[observation].returned);
            let mut frontier = pending.min().unwrap_or(u64::MAX).min(self.first_return[state.step]);
            while let Some(observation) =
                self.row.observations.get(state.next).filter(|observation| observation.called <= frontier)
            {
                frontier = frontier.min(observation.returned);
                state.pending.push(state.next);
                state.next += 1;
            }
            let before = state.pending.len();
            let mut pending = std::mem::take(&mut state.pending);
            pending.retain(|&observation| !self.agrees(state, observation));
            state.pending = pending;
            if state.pending.len() == before {
                return frontier;
            }
        }
    }

    fn agrees(&self, state: &State, index: usize) -> bool {
        let observation = &self.row.observations[index];
        (!observation.whole || observation.sees.len() == state.present) && holds(state, &observation.sees)
    }

    /// The writes that may come next, the most promising last.
    fn moves(&self, state: &State, frontier: u64) -> Vec<Move> {
        let mut moves = Vec::new();
        let mut wanted = vec![None; self.row.columns.len()];
        for group in (0..self.row.groups.len()).filter(|&group| self.could_come(state, group, frontier)) {
            self.between(state, group, &mut wanted, &mut moves);
        }
        let Some(step) = self.row.steps.get(state.step) else { return moves };
        if step.version <= state.floor || self.leaves_behind(state) {
            return moves;
        }
        match &step.writer {
            Writer::Known { change, .. } => {
                if step.called <= frontier && holds(state, &change.conditions) {
                    moves.push(Move::Step);
                }
            }
            Writer::OneOf(groups) => {
                let possible = groups.iter().filter(|&&group| self.could_come(state, group, frontier));
                moves.extend(possible.map(|&group| Move::StepBy(group)));
            }
        }
        moves
    }

    /// Whether a write of `group` may come next.
    fn could_come(&self, state: &State, group: usize, frontier: u64) -> bool {
        let it = &self.row.groups[group];
        let ready =
            if self.limited[group] { self.has_ready(state, group, frontier) } else { it.members[0].0 <= frontier };
        ready && holds(state, &it.change.conditions)
    }

    /// Whether `group` has an unused member that was called in time.
    fn has_ready(&self, state: &State, group: usize, frontier: u64) -> bool {
        self.row.groups[group].members.get(state.used[group]).is_some_and(|&(called, _)| called <= frontier)
    }

    /// Whether the next step would come before an observation that must precede it.
    fn leaves_behind(&self, state: &State) -> bool {
        state.pending.iter().any(|&observation| self.row.observations[observation].slots.1 <= state.step)
            || self.observation_deadlines[state.step] > state.next
    }

    /// Adds the ways in which a write of `group` between steps is useful.
    fn between(&self, state: &State, group: usize, wanted: &mut [Option<bool>], moves: &mut Vec<Move>) {
        let it = &self.row.groups[group];
        if it.change.effects.iter().any(|&(column, _)| self.is_still_needed(state, column)) {
            return;
        }
        let ceiling = self.row.steps.get(state.step).map_or(i64::MAX, |step| step.version);
        let names = it.names.iter().filter_map(|&code| Some((code, self.row.version(code)?)));
        let names: Vec<(Code, i64)> =
            names.filter(|&(_, version)| state.floor < version && version < ceiling).collect();
        let mut deleted = it.change.effects.iter().filter(|(_, put)| !put).map(|&(column, _)| column);
        if deleted.any(|column| {
            state.row[column] != ABSENT && *wanted[column].get_or_insert_with(|| self.wants_absence(state, column))
        }) {
            let mut version = state.floor.saturating_add(1);
            while names.iter().any(|&(_, name)| name == version) {
                version += 1;
            }
            if version < ceiling {
                moves.push(Move::Between { group, version, code: NAMELESS });
            }
        }
        moves.extend(names.into_iter().rev().map(|(code, version)| Move::Between { group, version, code }));
    }

    /// Whether a later operation sees the current version of `column`: once overwritten, it does not return.
    fn is_still_needed(&self, state: &State, column: usize) -> bool {
        let code = state.row[column];
        let Some(&last) = self.last_sights.get(&(column, code)).filter(|_| code != ABSENT) else { return false };
        let Some(observation) = last else { return true };
        let sees =
            |&observation: &usize| self.row.observations[observation].sees.binary_search(&(column, code)).is_ok();
        observation >= state.next || state.pending.iter().any(sees)
    }

    /// Whether a later operation could see `column` absent before a step overwrites it: an observation, a step's
    /// condition, or the condition of an unknown write that is itself useful then.
    fn wants_absence(&self, state: &State, column: usize) -> bool {
        let end = self.row.steps.len();
        let cover = |column, step| self.timelines.next(column, step).unwrap_or(end);
        let mut last_slots: Vec<Option<usize>> = vec![None; self.row.columns.len()];
        let mut open = vec![(column, cover(column, state.step))];
        while let Some((column, last)) = open.pop() {
            if last_slots[column].is_some_and(|before| before >= last) {
                continue;
            }
            last_slots[column] = Some(last);
            if self.observation_wants_absence(state, column, last) || self.step_wants_absence(state, column, last) {
                return true;
            }
            for &group in &self.absence_conditions[column] {
                if !self.fits(group, state.step, last) {
                    continue;
                }
                if !self.row.groups[group].names.is_empty() || self.may_be_step(group, state.step, last) {
                    return true;
                }
                let effects = self.row.groups[group].change.effects.iter();
                let deleted = effects.filter(|&&(deleted, put)| !put && deleted != column);
                open.extend(deleted.map(|&(deleted, _)| (deleted, cover(deleted, last))));
            }
        }
        false
    }

    fn observation_wants_absence(&self, state: &State, column: usize, last: usize) -> bool {
        let fits = |observation: usize| {
            let (low, high) = self.row.observations[observation].slots;
            low <= last && state.step <= high
        };
        let absences = &self.absences[column];
        let to_come = absences.partition_point(|&(observation, _)| observation < state.next);
        state
            .pending
            .iter()
            .any(|&observation| fits(observation) && self.row.observations[observation].sees_absent(column))
            || absences[to_come..]
                .iter()
                .take_while(|&&(_, first)| first <= last)
                .any(|&(observation, _)| fits(observation))
    }

    fn step_wants_absence(&self, state: &State, column: usize, last: usize) -> bool {
        let mut step = state.step;
        while let Some(touch) = self.timelines.next(column, step).filter(|&touch| touch <= last) {
            if let Writer::Known { change, .. } = &self.row.steps[touch].writer
                && change.conditions.contains(&(column, ABSENT))
            {
                return true;
            }
            step = touch + 1;
        }
        false
    }

    /// Whether a write of `group` may come at one of the slots `first..=last`.
    fn fits(&self, group: usize, first: usize, last: usize) -> bool {
        let (low, high) = self.group_slots[group];
        let called = self.row.groups[group].members[0].0;
        low <= last && first <= high && called <= self.first_return[last]
    }

    /// Whether one of the steps `first..=last` may be a write of `group`.
    fn may_be_step(&self, group: usize, first: usize, last: usize) -> bool {
        let steps = &self.candidacies[group];
        steps.get(steps.partition_point(|&step| step < first)).is_some_and(|&step| step <= last)
    }

    fn place(&self, state: &mut State, next: Move, frontier: u64) {
        let (change, code) = match next {
            Move::Between { group, version, code } => {
                state.floor = version;
                self.spend(state, group, frontier);
                (&self.row.groups[group].change, code)
            }
            Move::Step | Move::StepBy(_) => {
                let step = &self.row.steps[state.step];
                state.floor = step.version;
                state.step += 1;
                let code = Code::try_from(state.step).expect("fewer operations than codes");
                match (&step.writer, next) {
                    (Writer::Known { change, .. }, _) => (change, code),
                    (Writer::OneOf(_), Move::StepBy(group)) => {
                        self.spend(state, group, frontier);
                        (&self.row.groups[group].change, code)
                    }
                    (Writer::OneOf(_), _) => unreachable!("a step of an unknown writer is taken by a group"),
                }
            }
        };
        for &(column, put) in &change.effects {
            state.present -= usize::from(state.row[column] != ABSENT);
            state.present += usize::from(put);
            state.row[column] = if put { code } else { ABSENT };
        }
    }

    fn spend(&self, state: &mut State, group: usize, frontier: u64) {
        if !self.has_ready(state, group, frontier) && !state.overused.contains(&group) {
            state.overused.push(group);
        }
        state.used[group] += 1;
    }

    /// Whether a state no worse than this one has failed, or is on the path to this one, which makes this one a detour.
    fn is_hopeless(&mut self, state: &State, frames: &mut [Frame]) -> bool {
        if self.row.groups.is_empty() {
            return false;
        }
        let same_step = frames.iter().enumerate().rev().take_while(|(_, frame)| frame.state.step == state.step);
        let mut same_row = same_step.filter(|(_, frame)| frame.state.row == state.row);
        if let Some((at, _)) =
            same_row.find(|(_, frame)| Failed::new(&frame.state, &self.limited).is_no_worse_than(state))
        {
            frames[at + 1..].iter_mut().for_each(|frame| frame.provisional = true);
            return true;
        }
        let Some(failed) = self.failed.get(&key(state)) else { return false };
        self.effort += failed.len() as u64;
        let Some(failed) = failed.iter().find(|failed| failed.is_no_worse_than(state)) else { return false };
        if failed.provisional {
            // The pruned state shares this step with the state that it was pruned for.
            let same_step = frames.iter_mut().rev().take_while(|frame| frame.state.step == state.step);
            same_step.for_each(|frame| frame.provisional = true);
        }
        true
    }

    fn remember(&mut self, state: &State, failed: Failed) {
        if self.row.groups.is_empty() || self.remembered_bytes > MAX_REMEMBERED_BYTES {
            return;
        }
        let key = key(state);
        self.remembered_bytes += 2 * size_of::<Failed>() + size_of_val(&key[..]);
        self.remembered_bytes += size_of_val(&failed.used[..]) + size_of_val(&failed.pending[..]);
        self.failed.entry(key).or_default().push(failed);
    }

    fn undecided(&self) -> Finding {
        let what = format!("the search reached its limit; {}", self.stuck().0);
        Finding::new(Kind::Undecided, self.stuck().1, what)
    }

    fn inexplicable(&self) -> Finding {
        let (what, suspects) = self.stuck();
        Finding::new(Kind::Inexplicable, suspects, what)
    }

    /// The furthest state that the search reached, and what could not come next.
    fn stuck(&self) -> (String, Vec<usize>) {
        let state = &self.furthest;
        let there = state.row.iter().zip(&self.row.columns).filter(|(code, _)| **code != ABSENT);
        let cells: Vec<String> = there
            .map(|(&code, column)| match self.row.version(code) {
                Some(version) => format!("{}@{version}", text(column)),
                None => format!("{}@?", text(column)),
            })
            .take(REPORTED)
            .collect();
        let mut waiting = state.pending.clone();
        waiting.sort_by_key(|&observation| self.row.observations[observation].returned);
        waiting.truncate(REPORTED);
        let mut suspects: Vec<usize> =
            waiting.iter().map(|&observation| self.row.observations[observation].operation).collect();
        if state.step < self.row.steps.len() {
            suspects.extend(self.row.writers(state.step));
        }
        let names: Vec<String> = suspects.iter().map(|operation| format!("#{operation}")).collect();
        let row = if cells.is_empty() { "empty".to_owned() } else { cells.join(" ") };
        let what = format!(
            "no order explains all responses; furthest: after {} writes of known version the row is {row}, \
             and none of {} can come next",
            state.step,
            names.join(", "),
        );
        if state.step > 0 {
            suspects.extend(self.row.writers(state.step - 1));
        }
        (what, suspects)
    }
}

impl Failed {
    fn new(state: &State, limited: &[bool]) -> Self {
        Self {
            used: state.used.iter().copied().enumerate().filter(|&(group, _)| limited[group]).collect(),
            floor: state.floor,
            next: state.next,
            pending: state.pending.clone().into_boxed_slice(),
            provisional: false,
        }
    }

    /// Whether every completion of `state`, which has the same row and step, is also a completion of this one.
    fn is_no_worse_than(&self, state: &State) -> bool {
        self.floor <= state.floor
            && self.used.iter().all(|&(group, used)| used <= state.used[group])
            && self.pending.iter().all(|&observation| observation >= state.next || state.pending.contains(&observation))
            && (self.next..state.next).all(|observation| state.pending.contains(&observation))
    }
}

/// The lookup key of a failed state: its row followed by its step.
fn key(state: &State) -> Box<[Code]> {
    let step = Code::try_from(state.step).expect("fewer operations than codes");
    state.row.iter().copied().chain([step]).collect()
}

/// The observations that see `column` absent, each with the lowest slot of it and all later ones.
fn absences(row: &Row<'_>, timelines: &Timelines, column: usize) -> Vec<(usize, usize)> {
    if !timelines.is_deletable(column) {
        return Vec::new();
    }
    let sees = row.observations.iter().enumerate().filter(|(_, observation)| observation.sees_absent(column));
    let mut absences: Vec<(usize, usize)> = sees.map(|(index, observation)| (index, observation.slots.0)).collect();
    let mut first = usize::MAX;
    for (_, slot) in absences.iter_mut().rev() {
        first = first.min(*slot);
        *slot = first;
    }
    absences
}

fn holds(state: &State, sees: &[(usize, Code)]) -> bool {
    sees.iter().all(|&(column, code)| state.row[column] == code)
}

/// Number of steps and observations taken.
fn progress(state: &State) -> usize {
    state.step + state.next - state.pending.len()
}
