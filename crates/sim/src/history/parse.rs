//! Converts the operations of one row into steps, observations and groups, and derives what each response implies about
//! the order.
//!
//! A version identifies a write: no two effective writes of a row share one. This module finds the write of each
//! version that was seen. Values help to identify it and are dropped afterwards: the search compares versions only.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use base::Timestamp;
use bytes::Bytes;
use tablets::request::{Cell, Mutation};

use super::report::{Finding, text};
use super::{Kind, Operation, What, WriteOutcome};

/// Content of a column in the search: [`ABSENT`], a step's version (its index plus one), one of [`Row::extra`] after
/// those, or [`NAMELESS`].
pub(super) type Code = u32;

/// The column does not exist.
pub(super) const ABSENT: Code = 0;

/// The column has a version that no operation in the history names.
pub(super) const NAMELESS: Code = Code::MAX;

/// A value that no column ever has: the code of a condition that cannot hold.
const NEVER: Code = Code::MAX - 1;

/// The history of one row, prepared for the search.
#[derive(Debug)]
pub(super) struct Row<'a> {
    pub(super) columns: Vec<&'a Bytes>,
    /// The writes that certainly took effect, by version.
    pub(super) steps: Vec<Step>,
    /// The completed operations without effect, by call time.
    pub(super) observations: Vec<Observation>,
    /// The writes that may have taken effect. Of equal ones the search uses the earliest call first.
    pub(super) groups: Vec<Group>,
    /// Versions, in order, that only conditions of unknown writes name.
    pub(super) extra: Vec<i64>,
}

/// A write that certainly took effect.
#[derive(Debug)]
pub(super) struct Step {
    pub(super) version: i64,
    pub(super) called: u64,
    pub(super) returned: u64,
    pub(super) writer: Writer,
}

/// The operation that a step is.
#[derive(Debug)]
pub(super) enum Writer {
    Known {
        operation: usize,
        change: Change,
    },
    /// A member of one of these groups.
    OneOf(Vec<usize>),
}

/// The conditions and effects of a write.
#[derive(Debug, Default)]
pub(super) struct Change {
    pub(super) conditions: Vec<(usize, Code)>,
    /// Columns, and whether they are put (true) or deleted.
    pub(super) effects: Vec<(usize, bool)>,
}

/// An operation that saw part of the row and changed nothing.
#[derive(Debug)]
pub(super) struct Observation {
    pub(super) operation: usize,
    pub(super) called: u64,
    pub(super) returned: u64,
    /// Columns, in order, and their contents.
    pub(super) sees: Vec<(usize, Code)>,
    /// Whether it returned all columns, so that any other column was absent.
    pub(super) whole: bool,
    /// The minimum and maximum number of steps before it.
    pub(super) slots: (usize, usize),
}

/// Interchangeable unknown writes: same columns, same conditions, and same values if those may be seen.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) change: Change,
    /// Call times and operations, by call time.
    pub(super) members: Vec<(u64, usize)>,
    /// The codes of [`Row::extra`] that it could give to a column whose version is needed.
    pub(super) names: Vec<Code>,
}

impl Row<'_> {
    /// The step with the version `code`, if it is a step's.
    pub(super) fn step_of(&self, code: Code) -> Option<usize> {
        (code as usize).checked_sub(1).filter(|&step| step < self.steps.len())
    }

    /// The version that `code` stands for, if it is known.
    pub(super) fn version(&self, code: Code) -> Option<i64> {
        let index = (code as usize).checked_sub(1)?;
        match index.checked_sub(self.steps.len()) {
            None => Some(self.steps[index].version),
            Some(extra) => self.extra.get(extra).copied(),
        }
    }

    /// The operations that may be this step.
    pub(super) fn writers(&self, step: usize) -> Vec<usize> {
        match &self.steps[step].writer {
            Writer::Known { operation, .. } => vec![*operation],
            Writer::OneOf(groups) => groups
                .iter()
                .flat_map(|&group| self.groups[group].members.iter().map(|&(_, operation)| operation))
                .collect(),
        }
    }
}

impl Observation {
    /// Whether it saw `column` absent.
    pub(super) fn sees_absent(&self, column: usize) -> bool {
        match self.sees.binary_search_by_key(&column, |&(seen, _)| seen) {
            Ok(at) => self.sees[at].1 == ABSENT,
            Err(_) => self.whole,
        }
    }
}

/// Parses the operations of one row.
pub(super) fn parse<'a>(history: &'a [Operation], operations: &[usize]) -> Result<Row<'a>, Finding> {
    let mut parser = Parser { history, ..Parser::default() };
    for &operation in operations {
        parser.take(operation)?;
    }
    let open = parser.name_writers()?;
    Ok(parser.finish(&open))
}

/// An observation before its versions are replaced by codes.
struct Glimpse {
    operation: usize,
    sees: Vec<(usize, i64)>,
    whole: bool,
}

/// All observations of one version.
struct Sighting<'a> {
    /// Columns and values, where values were shown, with the first operation that saw them.
    cells: BTreeMap<(usize, Option<&'a Bytes>), usize>,
    /// The earliest return of an operation that saw it: the write was called before.
    returned: u64,
}

#[derive(Default)]
struct Parser<'a> {
    history: &'a [Operation],
    columns: Vec<&'a Bytes>,
    column_of: HashMap<&'a Bytes, usize>,
    /// The write of each version, where that is certain.
    writer_of: BTreeMap<i64, usize>,
    sightings: BTreeMap<i64, Sighting<'a>>,
    glimpses: Vec<Glimpse>,
    unknown: Vec<usize>,
    not_done: Vec<usize>,
}

impl<'a> Parser<'a> {
    fn take(&mut self, operation: usize) -> Result<(), Finding> {
        let it = &self.history[operation];
        if it.returned.is_some_and(|returned| returned < it.called) {
            return Err(malformed(operation, "returned before it was called"));
        }
        match &it.what {
            What::Read { .. } if it.returned.is_none() => Ok(()),
            What::Read { columns, cells } => self.take_read(operation, columns.as_deref(), cells),
            What::Write { outcome: WriteOutcome::NotDone, .. } => {
                self.not_done.push(operation);
                Ok(())
            }
            What::Write { outcome, mutations } if it.returned.is_some() => match outcome {
                WriteOutcome::Written(version) => self.take_written(operation, version.0),
                WriteOutcome::Mismatch { column, expected, actual } => {
                    self.take_mismatch(operation, mutations, (column, *expected, *actual))
                }
                WriteOutcome::Unknown | WriteOutcome::NotDone => {
                    self.unknown.push(operation);
                    Ok(())
                }
            },
            What::Write { .. } => {
                self.unknown.push(operation);
                Ok(())
            }
        }
    }

    fn take_read(&mut self, operation: usize, asked: Option<&'a [Bytes]>, cells: &'a [Cell]) -> Result<(), Finding> {
        let mut sees = BTreeMap::new();
        for column in asked.into_iter().flatten() {
            sees.insert(self.column(column), 0);
        }
        for cell in cells {
            let column = self.column(&cell.column);
            if cell.version.0 <= 0 {
                return Err(malformed(
                    operation,
                    &format!("returned {} at version {}", text(&cell.column), cell.version),
                ));
            }
            let before = sees.insert(column, cell.version.0);
            if before != asked.map(|_| 0) {
                return Err(malformed(operation, &format!("returned {} unrequested or twice", text(&cell.column))));
            }
            self.see(operation, column, cell.version.0, Some(&cell.value));
        }
        self.glimpses.push(Glimpse { operation, sees: sees.into_iter().collect(), whole: asked.is_none() });
        Ok(())
    }

    fn take_written(&mut self, operation: usize, version: i64) -> Result<(), Finding> {
        if version <= 0 {
            return Err(malformed(operation, &format!("was written with version {version}")));
        }
        if let Some(other) = self.writer_of.insert(version, operation) {
            let what = format!("#{other} and #{operation} were both written with version {version}");
            return Err(Finding::new(Kind::Versions, [other, operation], what));
        }
        for mutation in mutations(&self.history[operation]) {
            self.column(&mutation.column);
        }
        self.see_conditions(operation);
        Ok(())
    }

    fn take_mismatch(
        &mut self,
        operation: usize,
        mutations: &'a [Mutation],
        (column, expected, actual): (&Bytes, Timestamp, Timestamp),
    ) -> Result<(), Finding> {
        let named = |mutation: &Mutation| mutation.column == *column && mutation.condition == Some(expected);
        let Some(at) = mutations.iter().position(named).filter(|_| actual != expected && actual.0 >= 0) else {
            return Err(malformed(operation, "was refused for a condition that it does not have"));
        };
        let mut sees = Vec::new();
        let met = mutations[..at].iter().filter_map(|mutation| Some((&mutation.column, mutation.condition?.0)));
        for (column, version) in met.chain([(&mutations[at].column, actual.0)]) {
            let column = self.column(column);
            self.see(operation, column, version, None);
            sees.push((column, version));
        }
        self.glimpses.push(Glimpse { operation, sees, whole: false });
        Ok(())
    }

    fn column(&mut self, name: &'a Bytes) -> usize {
        *self.column_of.entry(name).or_insert_with(|| {
            self.columns.push(name);
            self.columns.len() - 1
        })
    }

    /// Records that `operation` saw `version` in `column`, unless it is 0.
    fn see(&mut self, operation: usize, column: usize, version: i64, value: Option<&'a Bytes>) {
        if version == 0 {
            return;
        }
        let returned = self.history[operation].end();
        let empty = || Sighting { cells: BTreeMap::new(), returned };
        let sighting = self.sightings.entry(version).or_insert_with(empty);
        sighting.cells.entry((column, value)).or_insert(operation);
        sighting.returned = sighting.returned.min(returned);
    }

    /// A write that took effect saw its conditions hold.
    fn see_conditions(&mut self, operation: usize) {
        for mutation in mutations(&self.history[operation]) {
            if let Some(version) = mutation.condition {
                let column = self.column(&mutation.column);
                self.see(operation, column, version.0, None);
            }
        }
    }

    /// Finds the write of each version that was seen. Returns the versions for which it is ambiguous, with the
    /// candidates.
    fn name_writers(&mut self) -> Result<BTreeMap<i64, Vec<usize>>, Finding> {
        let index = self.puts_of_unknown();
        let deadlines = self.deadlines();
        let mut taken = BTreeSet::new();
        loop {
            let mut open = BTreeMap::new();
            let mut named = Vec::new();
            for (&version, sighting) in &self.sightings {
                if self.writer_of.contains_key(&version) {
                    continue;
                }
                let later = deadlines.partition_point(|&(written, _)| written <= version);
                let deadline = deadlines.get(later).map_or(u64::MAX, |&(_, returned)| returned).min(sighting.returned);
                let mut candidates = self.candidates(&index, version, sighting, deadline);
                candidates.retain(|candidate| !taken.contains(candidate));
                match candidates[..] {
                    [] => return Err(self.unwritten(version, sighting)),
                    [only] => {
                        taken.insert(only);
                        named.push((version, only));
                    }
                    _ => {
                        open.insert(version, candidates);
                    }
                }
            }
            if named.is_empty() {
                self.unknown.retain(|operation| !taken.contains(operation));
                self.check_sightings()?;
                return Ok(open);
            }
            for (version, operation) in named {
                self.writer_of.insert(version, operation);
                self.see_conditions(operation);
            }
        }
    }

    /// Indexes the unknown writes by the cells that they put.
    fn puts_of_unknown(&mut self) -> HashMap<(usize, Option<&'a Bytes>), Vec<usize>> {
        let mut index: HashMap<_, Vec<usize>> = HashMap::new();
        for operation in self.unknown.clone() {
            for mutation in mutations(&self.history[operation]) {
                let column = self.column(&mutation.column);
                if let Some(value) = &mutation.value {
                    index.entry((column, Some(value))).or_default().push(operation);
                    index.entry((column, None)).or_default().push(operation);
                }
            }
        }
        index
    }

    /// For each acknowledged version, in order: the earliest return among its write and all later ones.
    fn deadlines(&self) -> Vec<(i64, u64)> {
        let mut first = u64::MAX;
        let mut deadlines: Vec<(i64, u64)> = Vec::with_capacity(self.writer_of.len());
        for (&version, &operation) in self.writer_of.iter().rev() {
            first = first.min(self.history[operation].end());
            deadlines.push((version, first));
        }
        deadlines.reverse();
        deadlines
    }

    /// The unknown writes, called no later than `deadline`, that may have produced everything seen of `version`.
    fn candidates(
        &self,
        index: &HashMap<(usize, Option<&'a Bytes>), Vec<usize>>,
        version: i64,
        sighting: &Sighting<'a>,
        deadline: u64,
    ) -> Vec<usize> {
        let Some((first, _)) = sighting.cells.last_key_value() else { return Vec::new() };
        let possible = |&&operation: &&usize| {
            let write = &self.history[operation];
            let asked_before = |mutation: &Mutation| mutation.condition.is_none_or(|wanted| wanted.0 < version);
            write.called <= deadline
                && mutations(write).iter().all(asked_before)
                && sighting.cells.keys().all(|&(column, value)| self.puts(operation, column, value))
        };
        index.get(first).into_iter().flatten().filter(possible).copied().collect()
    }

    fn puts(&self, operation: usize, column: usize, value: Option<&Bytes>) -> bool {
        mutations(&self.history[operation]).iter().any(|mutation| {
            mutation.column == *self.columns[column]
                && mutation.value.as_ref().is_some_and(|put| value.is_none_or(|value| value == put))
        })
    }

    /// Checks that everything seen of each version is what its write put.
    fn check_sightings(&self) -> Result<(), Finding> {
        for (version, sighting) in &self.sightings {
            let Some(&writer) = self.writer_of.get(version) else { continue };
            for (&(column, value), &by) in &sighting.cells {
                if !self.puts(writer, column, value) {
                    let column = text(self.columns[column]);
                    let what =
                        format!("#{by} saw {column} at version {version}, which #{writer} wrote with another content");
                    return Err(Finding::new(Kind::Unwritten, [by, writer], what));
                }
            }
        }
        Ok(())
    }

    /// The finding that no write can have produced `version`, with near matches.
    fn unwritten(&self, version: i64, sighting: &Sighting<'a>) -> Finding {
        let mut suspects: Vec<usize> = sighting.cells.values().copied().collect();
        let mut what = format!("#{} saw version {version}, which no write can have produced", suspects[0]);
        for (&(column, value), _) in sighting.cells.iter().filter(|((_, value), _)| value.is_some()) {
            let puts = |operation: &&usize| self.puts(**operation, column, value);
            for &near in self.not_done.iter().filter(puts) {
                what += &format!("; #{near} has that value but was not executed");
                suspects.push(near);
            }
            for (written, &near) in self.writer_of.iter().filter(|(_, operation)| puts(operation)) {
                what += &format!("; #{near} has that value but wrote it as version {written}: applied twice?");
                suspects.push(near);
            }
        }
        Finding::new(Kind::Unwritten, suspects, what)
    }

    fn finish(mut self, open: &BTreeMap<i64, Vec<usize>>) -> Row<'a> {
        let (groups, group_of) = self.group_unknown(open);
        let versions: BTreeSet<i64> = self.writer_of.keys().chain(open.keys()).copied().collect();
        let wanted = groups.iter().flat_map(|group| wanted_versions(&self.history[group[0]]));
        let extra: BTreeSet<i64> =
            wanted.map(|(_, version)| version).filter(|it| *it > 0 && !versions.contains(it)).collect();
        let codes =
            Codes { codes: (1..).zip(versions.iter().chain(&extra)).map(|(code, &version)| (version, code)).collect() };
        let steps = versions.iter().map(|&version| match open.get(&version) {
            None => self.step(version, &codes),
            Some(candidates) => {
                let groups: BTreeSet<usize> = candidates.iter().map(|operation| group_of[operation]).collect();
                let called = candidates.iter().map(|&operation| self.history[operation].called).min().unwrap_or(0);
                Step { version, called, returned: u64::MAX, writer: Writer::OneOf(groups.into_iter().collect()) }
            }
        });
        let steps: Vec<Step> = steps.collect();
        let groups = self.groups(&groups, &codes, steps.len());
        let slots = (0, steps.len());
        let observation = |glimpse: Glimpse| {
            let Operation { called, .. } = self.history[glimpse.operation];
            let returned = self.history[glimpse.operation].end();
            let codes = glimpse.sees.into_iter().map(|(column, version)| (column, codes.of(version)));
            let mut sees: Vec<(usize, Code)> = codes.collect();
            sees.sort_unstable();
            Observation { operation: glimpse.operation, called, returned, sees, whole: glimpse.whole, slots }
        };
        let mut observations: Vec<Observation> =
            std::mem::take(&mut self.glimpses).into_iter().map(observation).collect();
        observations.sort_by_key(|observation| (observation.called, observation.operation));
        Row { columns: self.columns, steps, observations, groups, extra: extra.into_iter().collect() }
    }

    fn step(&self, version: i64, codes: &Codes) -> Step {
        let operation = self.writer_of[&version];
        let write = &self.history[operation];
        let writer = Writer::Known { operation, change: self.change(operation, codes) };
        Step { version, called: write.called, returned: write.end(), writer }
    }

    fn change(&self, operation: usize, codes: &Codes) -> Change {
        let mut change = Change::default();
        for mutation in mutations(&self.history[operation]) {
            let column = self.column_of[&mutation.column];
            change.effects.push((column, mutation.value.is_some()));
            if let Some(version) = mutation.condition {
                change.conditions.push((column, codes.of(version.0)));
            }
        }
        change
    }

    /// The unknown writes that can matter, grouped by equality, and the group of each. A write that only puts, and puts
    /// no version that any operation names, cannot be observed.
    fn group_unknown(&self, open: &BTreeMap<i64, Vec<usize>>) -> (Vec<Vec<usize>>, HashMap<usize, usize>) {
        let candidates: BTreeSet<usize> = open.values().flatten().copied().collect();
        let deletes =
            |operation: usize| mutations(&self.history[operation]).iter().any(|mutation| mutation.value.is_none());
        let (mut matter, mut rest): (Vec<usize>, Vec<usize>) =
            self.unknown.iter().partition(|&&operation| deletes(operation) || candidates.contains(&operation));
        loop {
            let wanted: BTreeSet<&Bytes> = matter
                .iter()
                .flat_map(|&operation| wanted_versions(&self.history[operation]))
                .filter(|(_, version)| {
                    *version > 0 && !self.writer_of.contains_key(version) && !open.contains_key(version)
                })
                .map(|(column, _)| column)
                .collect();
            let helps = |mutation: &Mutation| mutation.value.is_some() && wanted.contains(&mutation.column);
            let (more, less): (Vec<usize>, Vec<usize>) =
                rest.into_iter().partition(|&operation| mutations(&self.history[operation]).iter().any(helps));
            rest = less;
            if more.is_empty() {
                break;
            }
            matter.extend(more);
        }
        matter.sort_by_key(|&operation| (self.history[operation].called, operation));
        // Values distinguish writes only where they may be those of a step.
        let request = |operation: usize| -> Vec<(&Bytes, Option<&Bytes>, bool, Option<Timestamp>)> {
            let value = |mutation: &'a Mutation| mutation.value.as_ref().filter(|_| candidates.contains(&operation));
            let mutations = mutations(&self.history[operation]).iter();
            mutations.map(|it| (&it.column, value(it), it.value.is_some(), it.condition)).collect()
        };
        let mut groups: Vec<Vec<usize>> = Vec::new();
        let mut by_request: HashMap<_, usize> = HashMap::new();
        let mut group_of = HashMap::new();
        for operation in matter {
            let group = *by_request.entry(request(operation)).or_insert_with(|| {
                groups.push(Vec::new());
                groups.len() - 1
            });
            groups[group].push(operation);
            group_of.insert(operation, group);
        }
        (groups, group_of)
    }

    fn groups(&self, groups: &[Vec<usize>], codes: &Codes, steps: usize) -> Vec<Group> {
        let changes: Vec<Change> = groups.iter().map(|group| self.change(group[0], codes)).collect();
        let extra = |code: Code| code != NEVER && code as usize > steps;
        let wanted: BTreeSet<(usize, Code)> =
            changes.iter().flat_map(|change| &change.conditions).copied().filter(|&(_, code)| extra(code)).collect();
        let group = |(members, change): (&Vec<usize>, Change)| {
            let puts = |column| change.effects.contains(&(column, true));
            let names: BTreeSet<Code> =
                wanted.iter().filter(|(column, _)| puts(*column)).map(|&(_, code)| code).collect();
            let members = members.iter().map(|&operation| (self.history[operation].called, operation)).collect();
            Group { names: names.into_iter().collect(), members, change }
        };
        groups.iter().zip(changes).map(group).collect()
    }
}

/// The code of each version.
struct Codes {
    codes: HashMap<i64, Code>,
}

impl Codes {
    fn of(&self, version: i64) -> Code {
        if version == 0 { ABSENT } else { self.codes.get(&version).copied().unwrap_or(NEVER) }
    }
}

fn mutations(operation: &Operation) -> &[Mutation] {
    match &operation.what {
        What::Write { mutations, .. } => mutations,
        What::Read { .. } => &[],
    }
}

fn wanted_versions(operation: &Operation) -> impl Iterator<Item = (&Bytes, i64)> {
    mutations(operation).iter().filter_map(|mutation| Some((&mutation.column, mutation.condition?.0)))
}

fn malformed(operation: usize, what: &str) -> Finding {
    Finding::new(Kind::Malformed, [operation], format!("#{operation} {what}"))
}
