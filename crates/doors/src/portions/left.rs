//! What is left of answers that have begun to leave, over all connections: who keeps it, who waits for it to be less,
//! and who is given up for others' sake.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::kind::Kind;
use super::making::Making;
use crate::limits::{ANSWERS_OF_CALLS_AT_ONCE_BYTES_MAX, CLEARING_PAUSE, LEAVING_CROWDED_BYTES};
use crate::taking::{Standing, Taking};

/// What is left of answers that have begun to leave, shared by all connections.
#[derive(Clone, Debug, Default)]
pub(crate) struct Portions(Arc<Mutex<Left>>);

/// Each kind has room of its own, so that none waits for another.
#[derive(Debug, Default)]
pub(super) struct Left {
    pub(super) of_calls: Pool,
    pub(super) of_seen: Pool,
    pub(super) of_unseen: Pool,
    last: u64,
    /// The streams' answers that are open.
    pub(super) open: BTreeMap<u64, Weak<Making>>,
    /// When they were last looked through for the sake of all.
    looked_at: Option<Instant>,
}

/// What is left of one kind.
#[derive(Debug, Default)]
pub(super) struct Pool {
    /// In memory for all of them.
    pub(super) bytes: usize,
    /// By turn: the first was touched before all others.
    pub(super) rests: BTreeMap<u64, Rest>,
    /// Streams that wait with a large message.
    pub(super) waiting: BTreeMap<u64, Waker>,
}

/// The rest of a message.
#[derive(Debug)]
pub(super) struct Rest {
    pub(super) bytes: Bytes,
    /// As large as it was when it was whole, it stays in memory.
    pub(super) whole: usize,
    pub(super) touched: Instant,
    /// Whose it is, if it is of a stream.
    stream: Option<Taking>,
    making: Weak<Making>,
}

/// Who came later has a greater number.
#[derive(Clone, Copy, Debug)]
pub(super) struct Turn {
    of: Kind,
    number: u64,
}

impl Portions {
    /// Keeps the rest of a message.
    pub(super) fn keep(&self, bytes: Bytes, whole: usize, making: &Arc<Making>) -> Turn {
        let stream = making.on_its_way.stream.clone();
        stream.iter().for_each(|taking| taking.charge(whole));
        let of = stream.as_ref().map_or(Kind::Call, Kind::of);
        let rest = Rest { bytes, whole, touched: Instant::now(), stream, making: Arc::downgrade(making) };
        let mut left = self.left();
        let turn = left.turn(of);
        let pool = left.pool(of);
        pool.bytes += whole;
        pool.rests.insert(turn.number, rest);
        let given_up = pool.give_up(of);
        drop(left);
        end(given_up);
        turn
    }

    /// The rest that was kept, unless it has been given up.
    pub(super) fn take(&self, turn: Turn) -> Option<Rest> {
        let mut left = self.left();
        let pool = left.pool(turn.of);
        let rest = pool.remove(turn.number)?;
        let next = pool.next_waiting(turn.of);
        drop(left);
        next.into_iter().for_each(Waker::wake);
        Some(rest)
    }

    /// A stream's answer begins: the number that it has from now on.
    pub(super) fn opened(&self, making: &Arc<Making>) -> u64 {
        let mut left = self.left();
        left.last += 1;
        let number = left.last;
        left.open.insert(number, Arc::downgrade(making));
        number
    }

    /// It is over.
    pub(super) fn closed(&self, number: u64) {
        self.left().open.remove(&number);
    }

    /// Nothing that holds this lock panics half-way.
    pub(super) fn left(&self) -> MutexGuard<'_, Left> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Left {
    fn turn(&mut self, of: Kind) -> Turn {
        self.last += 1;
        Turn { of, number: self.last }
    }

    fn pool(&mut self, of: Kind) -> &mut Pool {
        match of {
            Kind::Call => &mut self.of_calls,
            Kind::Stream(Standing::Seen) => &mut self.of_seen,
            Kind::Stream(Standing::Unseen) => &mut self.of_unseen,
        }
    }

    pub(super) fn of_streams(&self) -> usize {
        self.of_seen.bytes + self.of_unseen.bytes
    }

    /// The streams that are open. They are to be let go of when this is unlocked: whoever is the last takes it again.
    fn open(&self) -> Vec<Arc<Making>> {
        self.open.values().filter_map(Weak::upgrade).collect()
    }
}

impl Pool {
    fn remove(&mut self, number: u64) -> Option<Rest> {
        let rest = self.rests.remove(&number)?;
        self.bytes -= rest.whole;
        rest.stream.iter().for_each(|taking| taking.release(rest.whole));
        Some(rest)
    }

    fn is_full(&self, of: Kind) -> bool {
        self.bytes > of.bytes_max()
    }

    /// Gives up what has not been touched for long, as far as it is in the way.
    fn give_up(&mut self, of: Kind) -> Vec<Rest> {
        let mut given_up = Vec::new();
        while let Some((number, first)) = self.rests.first_key_value()
            && self.is_full(of)
            && (first.is_idle(of) || (of == Kind::Call && self.bytes > ANSWERS_OF_CALLS_AT_ONCE_BYTES_MAX))
        {
            let number = *number;
            given_up.extend(self.remove(number));
        }
        given_up
    }

    /// Who has waited longest, if it may look again.
    fn next_waiting(&mut self, of: Kind) -> Option<Waker> {
        if self.is_full(of) { None } else { self.waiting.pop_first().map(|(_, waker)| waker) }
    }
}

impl Rest {
    /// Nothing of it was taken for long.
    fn is_idle(&self, of: Kind) -> bool {
        self.touched.elapsed() > of.idle_max()
    }
}

/// Ends the answers whose rests were given up, with all that waits behind these. Not while anything is locked.
fn end(given_up: Vec<Rest>) {
    if !given_up.is_empty() {
        tracing::debug!(answers = given_up.len(), "answers given up: their clients take nothing, and others wait");
    }
    for rest in given_up {
        rest.making.upgrade().iter().for_each(|making| making.end());
    }
}

/// Whether a stream may begin another large message.
#[derive(Debug)]
pub(crate) struct Room {
    portions: Portions,
    taking: Taking,
    waits: Option<Turn>,
}

impl Room {
    /// Of one stream, for a client of which that is known.
    pub(crate) fn new(portions: Portions, taking: Taking) -> Self {
        Self { portions, taking, waits: None }
    }

    /// Whether so much has begun to leave in streams that others may want room soon.
    pub(crate) fn is_crowded(&self) -> bool {
        self.portions.left().of_streams() >= LEAVING_CROWDED_BYTES
    }

    /// Ends the streams of its connection whose client has taken nothing for long: this one waits for room that they
    /// have.
    pub(crate) fn clear_own(&self) {
        if !self.taking.may_look() {
            return;
        }
        let open = self.portions.left().open();
        let is_its = |of: &Taking| of.is_same(&self.taking);
        let its = open.iter().filter(|making| making.on_its_way.stream.as_ref().is_some_and(is_its));
        its.filter(|making| making.on_its_way.is_lying(Duration::ZERO)).for_each(|making| making.end());
    }

    /// The same of all connections, of streams that have lain there for so long at least. Reads in streams may be many
    /// clients' that take all in their turn, and whose streams lie meanwhile: these have more time.
    pub(crate) fn clear_all(&self, least: Duration) {
        let mut left = self.portions.left();
        if left.looked_at.is_some_and(|at| at.elapsed() < CLEARING_PAUSE) {
            return;
        }
        left.looked_at = Some(Instant::now());
        let open = left.open();
        drop(left);
        open.iter().filter(|making| making.on_its_way.is_lying(least)).for_each(|making| making.end());
    }

    /// Whether a message may begin that has more than a portion. If not, the stream is woken when it may; it should
    /// look again now and then all the same: time makes room, too.
    pub(crate) fn is_there(&mut self, context: &Context<'_>) -> bool {
        let of = Kind::of(&self.taking);
        let mut left = self.portions.left();
        let before = self.waits.take();
        before.and_then(|turn| left.pool(turn.of).waiting.remove(&turn.number));
        let given_up = left.pool(of).give_up(of);
        let is_full = left.pool(of).is_full(of);
        if is_full {
            // It keeps its turn, also where its client's standing is another one by now.
            let turn = before.map_or_else(|| left.turn(of), |turn| Turn { of, ..turn });
            left.pool(of).waiting.insert(turn.number, context.waker().clone());
            self.waits = Some(turn);
        }
        // What came free may be enough for others, too.
        let next = left.pool(of).next_waiting(of);
        drop(left);
        end(given_up);
        next.into_iter().for_each(Waker::wake);
        !is_full
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        if let Some(turn) = self.waits {
            self.portions.left().pool(turn.of).waiting.remove(&turn.number);
        }
    }
}
