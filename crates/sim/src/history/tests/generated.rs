//! Generated histories: good ones pass, corrupted ones fail, and small ones agree with a brute-force search.

use std::time::{Duration, Instant};

use base::{SplitMix64, Timestamp};

use super::generate::{Generated, Shape, answers, apply, generate, refusal};
use crate::history::{Kind, Operation, What, WriteOutcome, check};

const SMALL: Shape = Shape {
    operations: 60,
    clients: 5,
    columns: 3,
    values: 0,
    reads: 50,
    deletes: 25,
    conditions: 20,
    unknown: 15,
    delay: 8,
    version_step: 3,
};

/// Draws a shape, varying every parameter that affects the search.
fn shape(random: &mut SplitMix64) -> Shape {
    Shape {
        operations: 5 + usize::try_from(random.below(80)).expect("small"),
        clients: 1 + random.below(12),
        columns: 1 + random.below(4),
        values: if random.below(2) > 0 { 0 } else { 1 + random.below(5) },
        reads: 20 + random.below(60),
        deletes: random.below(60),
        conditions: random.below(60),
        unknown: random.below(40),
        delay: 1 + random.below(30),
        version_step: 1 + random.below(5),
    }
}

#[test]
fn valid_histories_pass() {
    let mut random = SplitMix64::new(1);
    for run in 0..5_000 {
        let shape = shape(&mut random);
        let Generated { history, .. } = generate(shape, &mut random);
        if let Err(violation) = check(&history) {
            panic!("run {run}, {shape:?}: {violation}");
        }
    }
}

/// Makes one read return a version that an acknowledged write had overwritten before the read was called. No order
/// explains that, regardless of the unknown writes.
fn make_stale(generated: &mut Generated, random: &mut SplitMix64) -> bool {
    let Generated { history, effects } = generated;
    let reads: Vec<usize> = (0..history.len()).filter(|&it| matches!(history[it].what, What::Read { .. })).collect();
    for _ in 0..reads.len() {
        let read = reads[usize::try_from(random.below(reads.len() as u64)).expect("an index")];
        let called = history[read].called;
        let covered = |column: &bytes::Bytes, version: Timestamp| {
            effects.iter().any(|(writer, row)| {
                let What::Write { mutations, outcome: WriteOutcome::Written(written) } = &history[*writer].what else {
                    return false;
                };
                let before = history[*writer].returned.is_some_and(|returned| returned < called);
                before
                    && *written > version
                    && mutations.iter().any(|it| it.column == *column)
                    && row.get(column).is_none_or(|(now, _)| *now == *written)
            })
        };
        let What::Read { columns, .. } = &history[read].what else { continue };
        let asked = |column| columns.as_ref().is_none_or(|columns| columns.contains(column));
        let stale = effects
            .iter()
            .find(|(_, row)| row.iter().any(|(column, (version, _))| asked(column) && covered(column, *version)));
        if let Some((_, row)) = stale {
            let old: Vec<_> = row
                .iter()
                .filter(|(column, _)| asked(column))
                .map(|(column, (version, value))| tablets::request::Cell {
                    column: column.clone(),
                    value: value.clone(),
                    version: *version,
                })
                .collect();
            let What::Read { cells, .. } = &mut history[read].what else { continue };
            *cells = old;
            return true;
        }
    }
    false
}

#[test]
fn stale_histories_fail() {
    let mut random = SplitMix64::new(2);
    let mut spoilt = 0;
    for _ in 0..3_000 {
        let mut generated = generate(shape(&mut random), &mut random);
        if make_stale(&mut generated, &mut random) {
            spoilt += 1;
            match check(&generated.history) {
                Err(violation) => assert_ne!(violation.kind, Kind::Undecided, "{violation}"),
                Ok(_) => panic!("passed: {:#?}", generated.history),
            }
        }
    }
    assert!(spoilt > 1_000, "{spoilt}");
}

/// Changes one response at random; the result may be good or bad.
fn disturb(history: &mut [Operation], random: &mut SplitMix64) {
    let at = usize::try_from(random.below(history.len() as u64)).expect("an index");
    let version = Timestamp(1 + i64::try_from(random.below(6)).expect("small"));
    let kind = random.below(6);
    let operation = &mut history[at];
    match &mut operation.what {
        What::Read { cells, .. } if !cells.is_empty() => {
            let cell = usize::try_from(random.below(cells.len() as u64)).expect("an index");
            match kind {
                0..3 => drop(cells.remove(cell)),
                3 => cells[cell].version = version,
                4 => operation.called = operation.called.saturating_sub(3),
                _ => operation.returned = operation.returned.map(|returned| returned + 3),
            }
        }
        What::Write { outcome, mutations } => match (kind, &outcome) {
            (0, _) => *outcome = WriteOutcome::Written(version),
            (1, _) => *outcome = WriteOutcome::NotDone,
            (2, WriteOutcome::Mismatch { column, expected, .. }) => {
                *outcome = WriteOutcome::Mismatch { column: column.clone(), expected: *expected, actual: version };
            }
            (2, WriteOutcome::Written(_)) if mutations[0].condition.is_some_and(|condition| condition != version) => {
                let expected = mutations[0].condition.unwrap_or_default();
                *outcome = WriteOutcome::Mismatch { column: mutations[0].column.clone(), expected, actual: version };
            }
            (3, _) => mutations[0].condition = Some(version),
            _ => *outcome = WriteOutcome::Unknown,
        },
        What::Read { .. } => {}
    }
}

/// A brute-force checker: tries every order and, for unknown writes, every version up to `versions`.
struct Naive<'a> {
    history: &'a [Operation],
    versions: i64,
}

impl Naive<'_> {
    fn explains(
        &self,
        done: u32,
        row: &std::collections::BTreeMap<bytes::Bytes, (Timestamp, bytes::Bytes)>,
        last: i64,
    ) -> bool {
        let answered = |it: &Operation| it.returned.filter(|_| !it.is_unknown_write());
        let left = || (0..self.history.len()).filter(|it| done & (1 << it) == 0);
        let must = |it: usize| match &self.history[it].what {
            What::Write { outcome, .. } => *outcome != WriteOutcome::NotDone && answered(&self.history[it]).is_some(),
            What::Read { .. } => self.history[it].returned.is_some(),
        };
        if !left().any(must) {
            return true;
        }
        let frontier =
            left().filter(|&it| must(it)).filter_map(|it| self.history[it].returned).min().unwrap_or(u64::MAX);
        left().filter(|&it| self.history[it].called <= frontier).any(|it| {
            let done = done | 1 << it;
            match &self.history[it].what {
                What::Read { columns, cells } => {
                    self.history[it].returned.is_some()
                        && answers(row, columns.as_deref(), cells)
                        && self.explains(done, row, last)
                }
                What::Write { outcome: WriteOutcome::NotDone, .. } => false,
                What::Write { mutations, outcome } => {
                    let refused = refusal(row, mutations);
                    let mut versions = match outcome {
                        _ if self.history[it].is_unknown_write() => last + 1..=self.versions,
                        WriteOutcome::Written(version) => version.0..=version.0,
                        _ => return refused.as_ref() == Some(outcome) && self.explains(done, row, last),
                    };
                    refused.is_none()
                        && versions.any(|version| {
                            let mut after = row.clone();
                            apply(&mut after, mutations, Timestamp(version));
                            version > last && self.explains(done, &after, version)
                        })
                }
            }
        })
    }
}

/// The highest version that the history names.
fn highest(history: &[Operation]) -> i64 {
    let named = history.iter().flat_map(|operation| match &operation.what {
        What::Read { cells, .. } => cells.iter().map(|cell| cell.version.0).collect::<Vec<_>>(),
        What::Write { mutations, outcome } => {
            let conditions = mutations.iter().filter_map(|mutation| Some(mutation.condition?.0));
            let condition = match outcome {
                WriteOutcome::Written(version) | WriteOutcome::Mismatch { actual: version, .. } => version.0,
                WriteOutcome::Unknown | WriteOutcome::NotDone => 0,
            };
            conditions.chain([condition]).collect()
        }
    });
    named.max().unwrap_or(0)
}

#[test]
fn checker_matches_brute_force() {
    let mut random = SplitMix64::new(3);
    let mut verdicts = [0, 0];
    for _ in 0..30_000 {
        let shape = Shape {
            operations: 2 + usize::try_from(random.below(6)).expect("small"),
            clients: 1 + random.below(4),
            columns: 1 + random.below(3),
            values: random.below(3),
            reads: 20 + random.below(50),
            deletes: 20 + random.below(50),
            conditions: random.below(70),
            unknown: 20 + random.below(50),
            delay: 1 + random.below(6),
            version_step: 1 + random.below(2),
        };
        let Generated { mut history, .. } = generate(shape, &mut random);
        for _ in 0..random.below(4) {
            disturb(&mut history, &mut random);
        }
        let unknown = history.iter().filter(|it| it.is_unknown_write()).count();
        let versions = highest(&history) + i64::try_from(unknown).expect("few");
        let naive = Naive { history: &history, versions }.explains(0, &std::collections::BTreeMap::new(), 0);
        let verdict = check(&history);
        assert_eq!(verdict.is_ok(), naive, "{verdict:?} {history:#?}");
        verdicts[usize::from(naive)] += 1;
    }
    println!("{} bad, {} good", verdicts[0], verdicts[1]);
    assert!(verdicts.iter().all(|&count| count > 3_000), "{verdicts:?}");
}

#[test]
fn checks_5000_operations_within_two_seconds() {
    let mut random = SplitMix64::new(4);
    for (deletes, unknown, values) in
        [(10, 2, 0), (30, 3, 0), (30, 20, 0), (30, 3, 4), (60, 3, 0), (0, 10, 0), (30, 10, 3)]
    {
        let shape = Shape {
            operations: 5_000,
            clients: 32,
            delay: 30,
            columns: 4,
            deletes,
            unknown,
            values,
            version_step: 1_000,
            ..SMALL
        };
        let mut generated = generate(shape, &mut random);
        let started = Instant::now();
        let verdict = check(&generated.history).unwrap_or_else(|violation| panic!("{shape:?}: {violation}"));
        let good = started.elapsed();
        assert!(verdict.overlapping > 4_000, "{verdict:?}");
        assert!(make_stale(&mut generated, &mut random));
        let started = Instant::now();
        check(&generated.history).unwrap_err();
        let bad = started.elapsed();
        println!("{deletes}% deletes, {} unknown, {values} values: good {good:?}, bad {bad:?}", verdict.unknown);
        assert!(good.max(bad) < Duration::from_secs(2), "{shape:?}: {good:?} {bad:?}");
    }
}

/// A read near the end of the history misses a column. Every operation has a slot, so the search has to fail.
#[test]
fn late_violation_in_long_history_is_found_fast() {
    let mut random = SplitMix64::new(5);
    let mut tried = 0;
    for unknown in [1, 3, 5] {
        for _ in 0..5 {
            let shape = Shape { operations: 3_000, clients: 16, unknown, delay: 20, version_step: 1_000, ..SMALL };
            let Generated { mut history, .. } = generate(shape, &mut random);
            let last = history.iter().rposition(|it| matches!(&it.what, What::Read { cells, .. } if cells.len() > 1));
            let Some(last) = last else { continue };
            let What::Read { cells, .. } = &mut history[last].what else { continue };
            cells.remove(0);
            let started = Instant::now();
            let verdict = check(&history);
            let kind = verdict.as_ref().err().map(|violation| violation.kind);
            println!("{unknown}% unknown: {:?} {kind:?}", started.elapsed());
            assert!(started.elapsed() < Duration::from_secs(5));
            assert_ne!(kind, Some(Kind::Undecided));
            tried += 1;
        }
    }
    assert!(tried > 10);
}
