//! Compares random histories with a simple model that discards nothing.

use std::collections::BTreeMap;

use base::{KeyRange, Sequence, SplitMix64};

use super::*;
use crate::request::{Mutation, Row, SessionStamp};

#[derive(Default)]
struct ModelSession {
    last_used: i64,
    floor: u64,
    outcomes: BTreeMap<u64, Outcome>,
}

/// All versions of all columns, and all outcomes above the floor.
#[derive(Default)]
struct Model {
    columns: BTreeMap<(Bytes, Bytes), BTreeMap<i64, Option<Bytes>>>,
    sessions: BTreeMap<u64, ModelSession>,
    watermark: i64,
}

impl Model {
    fn at(&self, key: &Bytes, column: &Bytes, moment: i64) -> Option<(i64, Bytes)> {
        let versions = self.columns.get(&(key.clone(), column.clone()))?;
        let (version, value) = versions.range(..=moment).next_back()?;
        Some((*version, value.clone()?))
    }

    fn apply(&mut self, asked: &GeneratedRequest, sequence: u64, now: i64) -> Option<Outcome> {
        match asked {
            GeneratedRequest::Write(write) => Some(self.write(write, now)),
            GeneratedRequest::Command(command) => self.command(command, sequence, now),
        }
    }

    fn command(&mut self, command: &Command, sequence: u64, now: i64) -> Option<Outcome> {
        match command {
            Command::Write { .. }
            | Command::Refuse { .. }
            | Command::AssignRange { .. }
            | Command::Split { .. }
            | Command::Drop
            | Command::Commit { .. }
            | Command::Conflict { .. }
            | Command::Prepare { .. }
            | Command::Resolve { .. }
            | Command::Abort { .. }
            | Command::Forget { .. }
            | Command::DeclareLoss => {
                unreachable!("these are not generated")
            }
            Command::DeleteRow { key, .. } => {
                for (_, versions) in self.columns.iter_mut().filter(|((row, _), _)| row == key) {
                    versions.insert(now, None);
                }
                Some(Ok(TableResponse::Written { version: Timestamp(now) }))
            }
            Command::OpenSession { .. } => {
                let session = ClientSessionId::new(CohortId(2), Sequence(sequence)).expect("small numbers");
                self.sessions.insert(session.0, ModelSession { last_used: now, floor: 1, ..Default::default() });
                Some(Ok(TableResponse::SessionOpened { session, range: KeyRange::all() }))
            }
            Command::ExpireSessions { sessions } => {
                for (id, last_used) in sessions {
                    if self.sessions.get(&id.0).is_some_and(|session| session.last_used <= last_used.0) {
                        self.sessions.remove(&id.0);
                    }
                }
                None
            }
            Command::Watermark(watermark) => {
                self.watermark = self.watermark.max(watermark.0);
                None
            }
        }
    }

    fn write(&mut self, write: &Write, now: i64) -> Outcome {
        let Some(SessionStamp { session, sequence, first_incomplete }) = write.stamp else {
            return self.execute(write, now);
        };
        let Some(known) = self.sessions.get_mut(&session.0) else {
            return Err(Failure::UnknownSession(session));
        };
        known.last_used = now;
        known.floor = known.floor.max(first_incomplete);
        if sequence < known.floor {
            return Err(Failure::Unknown(String::new()));
        }
        if let Some(outcome) = known.outcomes.get(&sequence) {
            return outcome.clone();
        }
        let outcome = self.execute(write, now);
        let known = self.sessions.get_mut(&session.0).expect("it was there");
        known.outcomes.insert(sequence, outcome.clone());
        outcome
    }

    fn execute(&mut self, write: &Write, now: i64) -> Outcome {
        for Mutation { column, condition, .. } in &write.mutations {
            let actual = self.at(&write.key, column, now).map_or(0, |(version, _)| version);
            if condition.is_some_and(|expected| expected.0 != actual) {
                let (expected, actual) = (condition.unwrap(), Timestamp(actual));
                return Err(Failure::VersionMismatch { column: column.clone(), expected, actual });
            }
        }
        for Mutation { column, value, .. } in &write.mutations {
            self.columns.entry((write.key.clone(), column.clone())).or_default().insert(now, value.clone());
        }
        Ok(TableResponse::Written { version: Timestamp(now) })
    }

    fn scan(&self, from: &Bytes, to: &Bytes, moment: i64) -> Vec<Row> {
        let mut rows: Vec<Row> = Vec::new();
        for (key, column) in self.columns.keys().filter(|(key, _)| key >= from && key < to) {
            let Some((version, value)) = self.at(key, column, moment) else { continue };
            let cell = Cell { column: column.clone(), value, version: Timestamp(version) };
            match rows.last_mut().filter(|row| row.key == *key) {
                Some(row) => row.cells.push(cell),
                None => rows.push(Row { key: key.clone(), cells: vec![cell] }),
            }
        }
        rows
    }
}

/// A generated request: the tablet decides a write before it is applied.
#[derive(Debug)]
enum GeneratedRequest {
    Write(Write),
    Command(Command),
}

/// Generates commands that conflict: few keys, few columns, few sessions, and versions that are often right.
struct Driver {
    random: SplitMix64,
    model: Model,
    log: Log,
    /// For each session ever opened: the next number, and the stamped writes generated so far.
    made: Vec<(u64, Vec<Write>)>,
}

impl Driver {
    fn pick<'a>(&mut self, names: &[&'a str]) -> &'a str {
        names[self.random.below(names.len() as u64) as usize]
    }

    fn ask(&mut self) -> GeneratedRequest {
        GeneratedRequest::Command(match self.random.below(100) {
            0..3 => open_session(),
            3..6 => Command::Watermark(Timestamp(self.log.timestamp.0 - self.random.below(200).cast_signed())),
            6..9 => self.expiry(),
            9..12 => Command::DeleteRow { stamp: None, key: bytes(self.pick(&["a", "ab", "b", "c"])) },
            12..60 => return GeneratedRequest::Write(self.plain_write()),
            _ => return GeneratedRequest::Write(self.session_write()),
        })
    }

    fn expiry(&mut self) -> Command {
        let stale = self.random.chance(500_000);
        let sessions = self.model.sessions.iter().take(2);
        let last_used = |session: &ModelSession| Timestamp(session.last_used - i64::from(stale));
        Command::ExpireSessions { sessions: sessions.map(|(id, s)| (ClientSessionId(*id), last_used(s))).collect() }
    }

    fn plain_write(&mut self) -> Write {
        let key = bytes(self.pick(&["a", "ab", "b", "c", "d", "e"]));
        let mut mutations = Vec::new();
        for column in ["x", "y", "z"] {
            if mutations.is_empty() || self.random.chance(300_000) {
                mutations.push(self.mutation(&key, bytes(column)));
            }
        }
        Write { stamp: None, key, mutations }
    }

    fn mutation(&mut self, key: &Bytes, column: Bytes) -> Mutation {
        let length = [1, 20, 2_000, 5_000][self.random.below(4) as usize];
        let fill = self.random.draw().to_le_bytes()[0];
        let value = self.random.chance(600_000).then(|| Bytes::from(vec![fill; length]));
        let current = self.model.at(key, &column, i64::MAX).map_or(0, |(version, _)| version);
        let condition = match self.random.below(10) {
            0..6 => None,
            6..9 => Some(Timestamp(current)),
            _ => Some(Timestamp(10)),
        };
        Mutation { column, value, condition }
    }

    /// A new write of a session or, equally often, an earlier one: a retry, possibly a very late one.
    fn session_write(&mut self) -> Write {
        if self.made.is_empty() {
            return self.plain_write();
        }
        let index = self.random.below(self.made.len() as u64) as usize;
        let write = self.plain_write();
        let retried = self.random.draw();
        let lag = self.random.below(6);
        let (session, made) = &mut self.made[index];
        if !made.is_empty() && retried.is_multiple_of(2) {
            return made[(retried / 2) as usize % made.len()].clone();
        }
        let number = made.len() as u64 + 1;
        let stamped = stamped(write, ClientSessionId(*session), number, number.saturating_sub(lag).max(1));
        made.push(stamped.clone());
        stamped
    }

    fn apply(&mut self, state: &mut State, replica: &mut State) {
        let asked = self.ask();
        let command = match &asked {
            GeneratedRequest::Write(write) => {
                tablet(state).view_now().decide(write, Io::Allowed).expect("the disk can be read")
            }
            GeneratedRequest::Command(command) => command.clone(),
        };
        let entry = self.log.entry(command.encode());
        let outcome = state.apply(&entry).expect("the log's next entry").outcome;
        let expected = self.model.apply(&asked, entry.lsn.sequence.0, entry.timestamp.0);
        if let Some(Ok(TableResponse::SessionOpened { session, .. })) = &outcome {
            self.made.push((session.0, Vec::new()));
        }
        assert_eq!(replica.apply(&entry).expect("the log's next entry").outcome, outcome, "replicas decide alike");
        match (outcome, expected) {
            (Some(Err(Failure::Unknown(_))), Some(Err(Failure::Unknown(_)))) => {}
            (outcome, expected) => assert_eq!(outcome, expected, "{asked:?}"),
        }
    }

    fn compare(&mut self, state: &State) {
        let (low, high) = (self.model.watermark, self.log.timestamp.0);
        let moment = low + self.random.below((high - low + 1).cast_unsigned()).cast_signed();
        let (from, to) = (self.pick(&["", "a", "b"]), self.pick(&["b", "d", "zz"]));
        let rows = self.model.scan(&bytes(from), &bytes(to), moment);
        for (reverse, expected) in [(false, rows.clone()), (true, rows.into_iter().rev().collect())] {
            let scan = Scan { from: bytes(from), to: Some(bytes(to)), reverse, ..Scan::default() };
            let view = tablet(state).view_now();
            let found = view.scan_at(&scan, Timestamp(moment), Io::Allowed).expect("the disk can be read");
            assert_eq!(found, Ok(TableResponse::Rows { rows: expected.clone(), continuation: None, rest: None }));
            let columns = vec![bytes(self.pick(&["x", "y"]))];
            let with_column = expected.into_iter().filter_map(|mut row| {
                row.cells.retain(|cell| cell.column == columns[0]);
                (!row.cells.is_empty()).then_some(row)
            });
            let rows = with_column.collect();
            let scan = Scan { columns: Some(columns), ..scan };
            let found = view.scan_at(&scan, Timestamp(moment), Io::Allowed).expect("the disk can be read");
            assert_eq!(found, Ok(TableResponse::Rows { rows, continuation: None, rest: None }));
        }
        let key = bytes(self.pick(&["a", "b"]));
        let row = self.model.scan(&key, &[&key[..], &[0]].concat().into(), moment);
        let cells = row.into_iter().next().map(|row| row.cells).unwrap_or_default();
        let view = tablet(state).view_now();
        let found = view.get_at(&key, &all_or(None), Timestamp(moment), Io::Allowed).expect("the disk can be read");
        assert_eq!(found, Ok(TableResponse::row(cells)));
        let (key, column) = (bytes(self.pick(&["a", "b"])), bytes(self.pick(&["x", "y"])));
        let expected = self.model.at(&key, &column, i64::MAX);
        let expected = expected.map(|(v, value)| Cell { column: column.clone(), value, version: Timestamp(v) });
        let view = tablet(state).view_now();
        let found = view.get(&key, &all_or(Some(&[column])), Io::Allowed).expect("the disk can be read");
        assert_eq!(found, Ok(TableResponse::row(expected.into_iter().collect())));
    }
}

/// A tablet behaves as the model, and so does a replica with frequent flushes and compactions. The two store different
/// obsolete versions and are logically equal.
#[test]
fn tablet_matches_model() {
    for seed in 0..30 {
        let (mut state, log) = fresh();
        let mut replica = testing::tablet_of_all(CohortId(2));
        let mut disk = testing::disk();
        let mut driver = Driver { random: SplitMix64::new(seed), model: Model::default(), log, made: Vec::new() };
        for step in 0..2_000 {
            driver.apply(&mut state, &mut replica);
            if step % 7 == 0 {
                driver.compare(&state);
                driver.compare(&replica);
            }
            if step % 29 == 0 {
                state.invariants();
                replica.invariants();
                assert_eq!(state.logical_hash(), replica.logical_hash(), "seed {seed}, step {step}");
            }
            if driver.random.chance(20_000) {
                testing::settle(&mut replica, &disk);
            }
            if driver.random.chance(5_000) {
                (replica, disk) = (testing::copy(&state), testing::disk());
            }
        }
    }
}
