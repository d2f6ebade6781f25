//! Computes the steps between which each observation fits, and checks that the steps agree with real time.
//!
//! Every conclusion here holds in all orders that explain the history, regardless of the unknown writes.

use super::Kind;
use super::parse::{ABSENT, Change, Code, Row, Writer};
use super::report::{Finding, text};

/// The certain facts about each column over the sequence of steps.
#[derive(Debug)]
pub(super) struct Timelines {
    columns: Vec<Timeline>,
}

#[derive(Clone, Debug, Default)]
struct Timeline {
    /// The steps that certainly change the column, in order, and whether they put it.
    touches: Vec<(usize, bool)>,
    /// Whether an unknown write could delete it at any time.
    deletable: bool,
}

/// A bound on an operation's place among the steps, and its reason.
#[derive(Clone, Copy, Debug)]
struct Bound {
    slot: usize,
    reason: Reason,
}

/// Why an operation comes after or before a step.
#[derive(Clone, Copy, Debug)]
enum Reason {
    Free,
    /// The operation is itself a step.
    Own,
    /// Real-time order.
    Time(usize),
    /// It saw the version that this step gave the column.
    Seen(usize, usize),
    /// It saw the version of the column that this step overwrites.
    Overwritten(usize, usize),
    /// It saw the column absent after this step deleted it.
    Deleted(usize, usize),
    /// It saw the column absent, and no later step deletes it.
    NeverDeleted(usize),
    /// It saw the column absent before this step put it.
    Put(usize, usize),
}

/// Sets the slots of every observation.
pub(super) fn narrow(row: &mut Row<'_>) -> Result<Timelines, Finding> {
    check_time(row)?;
    let timelines = Timelines::new(row);
    for (index, step) in row.steps.iter().enumerate() {
        if let Writer::Known { operation, change } = &step.writer {
            let own = Bound { slot: index, reason: Reason::Own };
            timelines
                .place(&change.conditions, false, (own, own))
                .map_err(|bounds| misplaced(row, *operation, bounds))?;
        }
    }
    let clock = Clock::new(row);
    let mut slots = Vec::with_capacity(row.observations.len());
    for observation in &row.observations {
        let bounds = timelines.place(
            &observation.sees,
            observation.whole,
            clock.bounds(observation.called, observation.returned),
        );
        slots.push(bounds.map_err(|bounds| misplaced(row, observation.operation, bounds))?);
    }
    for (observation, slots) in row.observations.iter_mut().zip(slots) {
        observation.slots = slots;
    }
    Ok(timelines)
}

/// Checks that no step returned before one with a lower version was called.
fn check_time(row: &Row<'_>) -> Result<(), Finding> {
    let mut first_return: Option<usize> = None;
    for (index, step) in row.steps.iter().enumerate().rev() {
        if let Some(later) = first_return.filter(|&later| row.steps[later].returned < step.called) {
            let (low, high) = (step.version, row.steps[later].version);
            let (low_name, high_name) = (names(row, index), names(row, later));
            let what =
                format!("{high_name} wrote version {high} and returned before {low_name}, version {low}, was called");
            return Err(Finding::new(Kind::Versions, [row.writers(index), row.writers(later)].concat(), what));
        }
        if first_return.is_none_or(|later| step.returned < row.steps[later].returned) {
            first_return = Some(index);
        }
    }
    Ok(())
}

impl Timelines {
    fn new(row: &Row<'_>) -> Self {
        let mut columns = vec![Timeline::default(); row.columns.len()];
        for (index, step) in row.steps.iter().enumerate() {
            let certain: Vec<(usize, bool)> = match &step.writer {
                Writer::Known { change, .. } => change.effects.clone(),
                Writer::OneOf(groups) => {
                    let mut effects = row.groups[groups[0]].change.effects.clone();
                    effects.retain(|it| groups.iter().all(|&group| row.groups[group].change.effects.contains(it)));
                    effects
                }
            };
            for (column, put) in certain {
                columns[column].touches.push((index, put));
            }
        }
        for &(column, put) in row.groups.iter().flat_map(|group| &group.change.effects) {
            columns[column].deletable |= !put;
        }
        Self { columns }
    }

    /// The first step at or after `step` that certainly changes `column`.
    pub(super) fn next(&self, column: usize, step: usize) -> Option<usize> {
        let touches = &self.columns[column].touches;
        touches.get(touches.partition_point(|&(touch, _)| touch < step)).map(|&(touch, _)| touch)
    }

    pub(super) fn is_deletable(&self, column: usize) -> bool {
        self.columns[column].deletable
    }

    /// The slots at which the conditions of a change can hold; an empty range if there are none.
    pub(super) fn slots(&self, row: &Row<'_>, change: &Change) -> (usize, usize) {
        let named = |&&(_, code): &&(usize, Code)| code == ABSENT || row.step_of(code).is_some();
        let sees: Vec<(usize, Code)> = change.conditions.iter().filter(named).copied().collect();
        let free = |slot| Bound { slot, reason: Reason::Free };
        self.place(&sees, false, (free(0), free(row.steps.len()))).unwrap_or((usize::MAX, 0))
    }

    /// Tightens the bounds of an operation that saw `sees`; fails with contradictory bounds.
    fn place(
        &self,
        sees: &[(usize, Code)],
        whole: bool,
        bounds: (Bound, Bound),
    ) -> Result<(usize, usize), (Bound, Bound)> {
        let (mut low, mut high) = bounds;
        for &(column, code) in sees.iter().filter(|&&(_, code)| code != ABSENT) {
            let writer = code as usize - 1;
            low = low.max(Bound { slot: writer + 1, reason: Reason::Seen(writer, column) });
            if let Some(next) = self.next(column, writer + 1) {
                high = high.min(Bound { slot: next, reason: Reason::Overwritten(next, column) });
            }
        }
        if low.slot > high.slot {
            return Err((low, high));
        }
        let named = sees.iter().filter(|&&(_, code)| code == ABSENT).map(|&(column, _)| column);
        let rest = (0..if whole { self.columns.len() } else { 0 })
            .filter(|column| sees.binary_search_by_key(column, |&(seen, _)| seen).is_err());
        for column in named.chain(rest).filter(|&column| !self.columns[column].deletable) {
            self.columns[column].place_absence(column, &mut low, &mut high);
            if low.slot > high.slot {
                return Err((low, high));
            }
        }
        Ok((low.slot, high.slot))
    }
}

impl Timeline {
    /// Tightens the bounds until the column, which only steps delete, is absent at both.
    fn place_absence(&self, column: usize, low: &mut Bound, high: &mut Bound) {
        let before_low = self.touches.partition_point(|&(touch, _)| touch < low.slot);
        if before_low > 0 && self.touches[before_low - 1].1 {
            *low = match self.touches[before_low..].iter().find(|&&(_, put)| !put) {
                Some(&(delete, _)) => Bound { slot: delete + 1, reason: Reason::Deleted(delete, column) },
                None => Bound { slot: usize::MAX, reason: Reason::NeverDeleted(column) },
            };
        }
        let before_high = self.touches.partition_point(|&(touch, _)| touch < high.slot);
        if before_high > 0 && self.touches[before_high - 1].1 {
            let run = self.touches[..before_high].iter().rev().take_while(|&&(_, put)| put).last();
            if let Some(&(first, _)) = run {
                *high = Bound { slot: first, reason: Reason::Put(first, column) };
            }
        }
    }
}

impl Bound {
    fn max(self, other: Self) -> Self {
        if other.slot > self.slot { other } else { self }
    }

    fn min(self, other: Self) -> Self {
        if other.slot < self.slot { other } else { self }
    }
}

/// Real-time order between steps and other operations.
struct Clock {
    /// Returns in order, each with the last step that returned by then.
    returns: Vec<(u64, usize)>,
    /// Calls in order, each with the first step that was called at or after it.
    calls: Vec<(u64, usize)>,
    steps: usize,
}

impl Clock {
    fn new(row: &Row<'_>) -> Self {
        let mut returns: Vec<(u64, usize)> =
            row.steps.iter().zip(0..).map(|(step, index)| (step.returned, index)).collect();
        returns.sort_unstable();
        let mut last = 0;
        for (_, index) in &mut returns {
            last = last.max(*index);
            *index = last;
        }
        let mut calls: Vec<(u64, usize)> =
            row.steps.iter().zip(0..).map(|(step, index)| (step.called, index)).collect();
        calls.sort_unstable();
        let mut first = usize::MAX;
        for (_, index) in calls.iter_mut().rev() {
            first = first.min(*index);
            *index = first;
        }
        Self { returns, calls, steps: row.steps.len() }
    }

    fn bounds(&self, called: u64, returned: u64) -> (Bound, Bound) {
        let low = match self.returns.partition_point(|&(time, _)| time < called) {
            0 => Bound { slot: 0, reason: Reason::Free },
            count => {
                let step = self.returns[count - 1].1;
                Bound { slot: step + 1, reason: Reason::Time(step) }
            }
        };
        let high = match self.calls.get(self.calls.partition_point(|&(time, _)| time <= returned)) {
            None => Bound { slot: self.steps, reason: Reason::Free },
            Some(&(_, step)) => Bound { slot: step, reason: Reason::Time(step) },
        };
        (low, high)
    }
}

fn misplaced(row: &Row<'_>, operation: usize, (low, high): (Bound, Bound)) -> Finding {
    let mut suspects = vec![operation];
    let mut explain = |reason: Reason, time: &str, own: &str| match reason {
        Reason::Free => "all others".to_owned(),
        Reason::Own => format!("all of {own} version"),
        Reason::NeverDeleted(column) => {
            format!("a delete of {}, which it saw absent, but there is none", text(row.columns[column]))
        }
        Reason::Time(step) => {
            suspects.extend(row.writers(step));
            format!("{}, which {time}", names(row, step))
        }
        Reason::Seen(step, column)
        | Reason::Overwritten(step, column)
        | Reason::Deleted(step, column)
        | Reason::Put(step, column) => {
            suspects.extend(row.writers(step));
            let column = text(row.columns[column]);
            let because = match reason {
                Reason::Seen(..) => format!("whose version {} of {column} it saw", row.steps[step].version),
                Reason::Overwritten(..) => format!("which overwrites the version of {column} that it saw"),
                Reason::Deleted(..) => format!("which deletes {column}, which it saw absent"),
                _ => format!("which puts {column}, which it saw absent"),
            };
            format!("{}, {because}", names(row, step))
        }
    };
    let after = explain(low.reason, "returned before it was called", "lower");
    let before = explain(high.reason, "was called after it returned", "higher");
    Finding::new(Kind::Misplaced, suspects, format!("#{operation} comes after {after}; and before {before}"))
}

/// The operation of a step, or the candidates for it.
fn names(row: &Row<'_>, step: usize) -> String {
    let names: Vec<String> = row.writers(step).iter().map(|operation| format!("#{operation}")).collect();
    match &names[..] {
        [only] => only.clone(),
        _ => format!("one of {}", names.join(", ")),
    }
}
