//! A range read: requests many positions from each chain's tail at once.
//!
//! The tail's answer for each position is the answer that a single read would get, so an entry found there is final. A
//! position that is unwritten or damaged at the tail is read on its own ([`Read`]). So a range read returns nothing
//! that single reads would not return. It ends before the first position without an answer.
//!
//! It runs a few internal calls at a time, each for a [`Part`] of its positions on one chain, or for a single position.
//! If a tail's reply ends early, the range read ends there, and the caller asks again.
//!
//! The caller limits the bytes of the answer. Each part has a share in proportion to its positions, and a single
//! position may use all of them, so that at most three times the limit is in flight or in memory. A single entry above
//! the limit is an answer of its own.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use base::Monotonic;
use base::canary::{Bug, planted};

use crate::client::read::Read;
use crate::client::task::{Next, Task, View};
use crate::client::{CallId, Error, LogReply, ReadMany, Timing, Wait};
use crate::limits::{BATCH_BYTES_MAX, MANY_MAX, POSITION_MAX, ROW_BYTES_MAX, ROW_CALLS_MAX, ROW_MAX};
use crate::unit::{Reply, Request};
use crate::{Entry, Position, PositionRun, UnitId};

/// A range read in progress.
#[derive(Debug)]
pub(super) struct RangeRead {
    run: PositionRun,
    wait: Wait,
    /// Maximum bytes in the answer.
    bytes_max: usize,
    timing: Timing,
    /// End of the wait for unwritten positions.
    waits_until: Option<Monotonic>,
    is_split: bool,
    /// The answer ends before this position.
    end: Position,
    /// Runs to request from tails, in ascending order.
    parts: VecDeque<PositionRun>,
    /// Positions to read individually.
    alone: BTreeSet<Position>,
    calls: BTreeSet<CallId>,
    /// Individual reads in progress.
    alone_under_way: usize,
    found: BTreeMap<Position, LogReply>,
    /// Bytes of the entries found.
    bytes: usize,
    /// Why the first position cannot be read.
    failure: Option<Error>,
    /// The first entry exceeds the size limit.
    is_larger: bool,
}

impl RangeRead {
    pub(super) fn new(wanted: ReadMany, timing: Timing) -> Self {
        let ReadMany { run, wait, bytes } = wanted;
        let run = run.first(ROW_MAX);
        let run = run.first(run.positions().take_while(|position| position.0 < POSITION_MAX).count());
        Self {
            run,
            wait,
            bytes_max: bytes.min(BATCH_BYTES_MAX),
            timing,
            waits_until: None,
            is_split: false,
            end: run.position(run.count as u64),
            parts: VecDeque::new(),
            alone: BTreeSet::new(),
            calls: BTreeSet::new(),
            alone_under_way: 0,
            found: BTreeMap::new(),
            bytes: 0,
            failure: None,
            is_larger: false,
        }
    }

    pub(super) fn calls(&self) -> impl Iterator<Item = CallId> {
        self.calls.iter().copied()
    }

    pub(super) fn began(&mut self, call: CallId) {
        self.calls.insert(call);
    }

    pub(super) fn next(&mut self, view: &View) -> Next {
        if !self.is_split {
            self.split(view);
        }
        if self.is_found() {
            return Next::Done(self.outcome());
        }
        let mut tasks = Vec::new();
        while self.calls.len() + tasks.len() < ROW_CALLS_MAX
            && let Some(task) = self.next_task(view.now)
        {
            tasks.push(task);
        }
        if tasks.is_empty() { Next::Until(Monotonic::NEVER) } else { Next::Calls(tasks) }
    }

    /// Groups the positions by chain.
    fn split(&mut self, view: &View) {
        self.is_split = true;
        self.waits_until = self.wait.time().map(|wait| view.now + wait);
        if self.run.count == 1 {
            self.alone.insert(self.run.from);
            return;
        }
        let mut parts: BTreeMap<_, Vec<PositionRun>> = BTreeMap::new();
        for position in self.run.positions() {
            let of_chain = parts.entry(view.projection.place_of(position)).or_default();
            // Equidistant positions of one chain are requested together.
            let follows = |part: &&mut PositionRun| part.count == 1 || part.position(part.count as u64) == position;
            match of_chain.last_mut().filter(|part| part.count < MANY_MAX).filter(follows) {
                Some(part) => {
                    if part.count == 1 {
                        part.step = position.0 - part.from.0;
                    }
                    part.count += 1;
                }
                None => of_chain.push(PositionRun::of(position, 1)),
            }
        }
        let mut parts: Vec<PositionRun> = parts.into_values().flatten().collect();
        parts.sort();
        self.parts = parts.into();
    }

    /// Maximum bytes of all parts together.
    fn room(&self) -> usize {
        self.bytes_max.min(ROW_BYTES_MAX)
    }

    /// Maximum bytes of one part.
    fn share(&self, part: PositionRun) -> usize {
        (self.room() * part.count / self.run.count.max(1)).max(1)
    }

    /// The next request, lowest position first.
    fn next_task(&mut self, now: Monotonic) -> Option<Task> {
        if self.bytes >= self.room() {
            // The pending requests are enough.
            let part = self.parts.front().map(|part| part.from).filter(|from| *from > self.run.from);
            let alone = self.alone.range(self.run.from.next()..).next().copied();
            part.into_iter().chain(alone).min().into_iter().for_each(|next| self.end_before(next));
        }
        // A copier fills many holes, and these have no bytes.
        let alone_max = if matches!(self.wait, Wait::Each(_)) { ROW_CALLS_MAX } else { 1 };
        if self.alone_under_way < alone_max
            && let Some(position) = self.alone.pop_first()
        {
            let is_waited_for = position == self.run.from || matches!(self.wait, Wait::Each(_));
            let left = self.waits_until.filter(|_| is_waited_for).map(|until| until.since(now));
            let wait = left.map_or(Wait::No, |left| self.wait.with(left));
            self.alone_under_way += 1;
            return Some(Task::Read(Read::new(position, wait, self.bytes_max, self.timing)));
        }
        let part = self.parts.pop_front()?;
        Some(Task::Part(Part::new(part, self.share(part))))
    }

    /// Handles the end of one of its calls.
    pub(super) fn ended(&mut self, call: CallId, task: Task, outcome: Result<LogReply, Error>) {
        self.calls.remove(&call);
        if let Task::Read(_) = &task {
            self.alone_under_way -= 1;
        }
        match (task, outcome) {
            (Task::Part(part), Ok(_)) => self.part_answered(part),
            (Task::Part(part), Err(error)) => self.answered(part.run.from, Err(error)),
            (Task::Read(read), outcome) => self.answered(read.position(), outcome),
            _ => {}
        }
    }

    /// Handles a tail's reply for a part.
    fn part_answered(&mut self, part: Part) {
        let Part { run: part, asked_for, is_larger, replies, .. } = part;
        let mut covered = 0;
        for (position, reply) in part.first(asked_for).positions().zip(replies) {
            covered += 1;
            match reply {
                Reply::Value(Entry::Data(data)) => self.answered(position, Ok(LogReply::Entry(data))),
                Reply::Value(Entry::Junk) => self.answered(position, Ok(LogReply::Junk)),
                Reply::Trimmed { mark } => self.answered(position, Ok(LogReply::Trimmed { mark })),
                Reply::Unwritten if position > self.run.from && !matches!(self.wait, Wait::Each(_)) => {
                    self.end_before(position);
                }
                _ => self.read_alone(position),
            }
        }
        if is_larger && part.from > self.run.from {
            return self.end_before(part.from);
        }
        if covered == 0 {
            self.read_alone(part.from);
        }
        if covered.max(1) < part.count {
            self.end_before(part.position(covered.max(1) as u64));
        }
    }

    fn read_alone(&mut self, position: Position) {
        if position < self.end {
            self.alone.insert(position);
        }
    }

    fn answered(&mut self, position: Position, outcome: Result<LogReply, Error>) {
        if position >= self.end {
            return;
        }
        match outcome {
            Ok(LogReply::Unwritten) => self.end_before(position),
            Ok(LogReply::Larger) => {
                self.is_larger |= position == self.run.from;
                self.end_before(position);
            }
            Ok(answer) => {
                if let LogReply::Entry(data) = &answer {
                    self.bytes += data.batch.len();
                }
                self.found.insert(position, answer);
            }
            Err(error) => {
                if position == self.run.from {
                    self.failure = Some(error);
                }
                self.end_before(position);
            }
        }
    }

    fn end_before(&mut self, position: Position) {
        self.end = self.end.min(position);
        self.found.split_off(&self.end);
        self.alone.split_off(&self.end);
        self.parts.retain(|part| part.from < self.end);
    }

    /// Whether every position before the end has an answer.
    fn is_found(&self) -> bool {
        let before_end = self.end.0.saturating_sub(self.run.from.0).div_ceil(self.run.step.max(1));
        self.found.len() as u64 >= before_end
    }

    fn outcome(&mut self) -> Result<LogReply, Error> {
        if let Some(error) = self.failure {
            return Err(error);
        }
        let mut bytes = 0;
        let fits = |answer: &LogReply| {
            if let LogReply::Entry(data) = answer {
                bytes += data.batch.len();
            }
            bytes <= self.bytes_max
        };
        let is_any = !self.found.is_empty();
        let answers: Vec<LogReply> = std::mem::take(&mut self.found).into_values().take_while(fits).collect();
        // An entry that was filled or repaired may have any size.
        let is_larger = self.is_larger || is_any && answers.is_empty();
        Ok(if is_larger { LogReply::Larger } else { LogReply::Range(answers) })
    }

    /// At the deadline it returns the answers so far.
    pub(super) fn out_of_time(&mut self) -> Result<LogReply, Error> {
        let missing = self.run.positions().find(|position| !self.found.contains_key(position));
        match missing {
            Some(first) if first == self.run.from => self.failure = self.failure.or(Some(Error::OutOfTime)),
            Some(first) => self.end_before(first),
            None => {}
        }
        self.outcome()
    }
}

/// Positions of one chain.
#[derive(Debug)]
pub(super) struct Part {
    run: PositionRun,
    /// Number of positions requested: those that are still on one chain.
    asked_for: usize,
    /// Maximum bytes in the reply.
    bytes: usize,
    /// The first value exceeds the limit.
    is_larger: bool,
    replies: Vec<Reply>,
    has_ended: bool,
    pub(super) asked: Option<UnitId>,
}

impl Part {
    fn new(run: PositionRun, bytes: usize) -> Self {
        Self { run, asked_for: 0, bytes, is_larger: false, replies: Vec::new(), has_ended: false, asked: None }
    }

    pub(super) fn next(&mut self, view: &View) -> Next {
        self.asked = None;
        let chain = view.projection.chain_of(self.run.from).unwrap_or_default();
        let unit = if planted(Bug::RowAtHead) { chain.first() } else { chain.last() };
        // A chain without a unit is trimmed or lost: an individual read finds out which.
        let Some(unit) = unit.filter(|_| !self.has_ended) else { return Next::Done(Ok(LogReply::Done)) };
        let place = view.projection.place_of(self.run.from);
        let is_there = |position: &Position| view.projection.place_of(*position) == place;
        self.asked_for = self.run.positions().take_while(is_there).count();
        self.asked = Some(*unit);
        let (epoch, run) = (view.projection.epoch, self.run.first(self.asked_for));
        Next::Unit(*unit, Request::ReadMany { epoch, run, bytes: self.bytes })
    }

    pub(super) fn unit_replied(&mut self, reply: Reply) {
        self.has_ended = true;
        if let Reply::Many(replies) = reply {
            (self.is_larger, self.replies) = (replies.is_empty(), replies);
        }
    }
}
