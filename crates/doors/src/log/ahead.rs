//! What a subscription reads: one stretch of positions after the other, several at a time while it is far behind the
//! log's end, and one that waits when it is there.
//!
//! A [`Stretch`] has one read under way at most. An answer may end before its stretch does, and what is missing is
//! asked for again. What stretches brought is taken in the order of positions, each once.
//!
//! A read says how many bytes it may bring, and there must be room for them ([`Wish`]). That is guessed from entries
//! that came before. So the first read is a small one, and there are more of them at a time as the client takes what
//! they bring. Where an entry is larger than was guessed, that is the answer, and it is read by itself.

use std::collections::{BTreeMap, VecDeque};

use base::limits::LOG_READ_MAX;
use sharedlog::Position;
use tablets::request::LogEntry;

use super::translate::{after, entry_bytes};
use crate::guess::Guess;
use crate::limits::{
    READ_BYTES_MAX, SUBSCRIPTION_AHEAD_BYTES, SUBSCRIPTION_FIRST, SUBSCRIPTION_STRETCH_BYTES,
    SUBSCRIPTION_STRETCHES_MAX,
};

/// Where so many entries came at once, at what was the log's end, there may be a lot more.
const AT_TAIL_MANY: usize = 16;

/// What to ask the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// What lies at so many positions, and has no more bytes than that.
    Read { from: Position, count: u32, bytes: usize },
    /// Where the log ends.
    Tail,
}

/// Room that a read needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wish {
    pub(crate) bytes: usize,
    /// Nothing may be there yet, so that it waits and brings nothing. It makes do with less room, too.
    pub(crate) waits: bool,
}

/// The reads of a subscription.
#[derive(Debug)]
pub(crate) struct Ahead {
    /// The first position that was not taken.
    next: Position,
    /// The first position that no stretch holds.
    asked: Position,
    /// Something lies below this, as far as known.
    tail: Position,
    /// The tail is to be asked for: there may be more than is known.
    wants_tail: bool,
    /// In the order of positions.
    stretches: VecDeque<Stretch>,
    /// The stretch that each read under way is of; none: the tail is asked for.
    under_way: BTreeMap<u64, Option<u64>>,
    tickets: u64,
    guess: Guess,
    /// Stretches that there may be.
    stretches_max: usize,
    /// Positions that are read at the log's end: as many as are likely to be there when the first is.
    at_tail: usize,
    /// Bytes of entries that nobody will take.
    dropped: usize,
}

/// Positions in a row, those that were read and those still to be.
#[derive(Debug)]
struct Stretch {
    number: u64,
    /// The first position that is still to be read.
    from: Position,
    end: Position,
    is_under_way: bool,
    /// Bytes that were asked for last.
    bytes: usize,
    /// The first entry that is to be read has more than those.
    is_larger: bool,
    entries: VecDeque<LogEntry>,
}

impl Ahead {
    /// A subscription from a position on.
    pub(crate) fn new(from: Position) -> Self {
        Self {
            next: from,
            asked: from,
            tail: Position(0),
            wants_tail: true,
            stretches: VecDeque::new(),
            under_way: BTreeMap::new(),
            tickets: 0,
            guess: Guess::default(),
            stretches_max: 1,
            at_tail: SUBSCRIPTION_FIRST,
            dropped: 0,
        }
    }

    /// The first position that was not taken.
    pub(crate) fn next(&self) -> Position {
        self.next
    }

    /// What to ask next, if anything, and under which ticket. A read is asked if there is room for it: so many bytes as
    /// are given.
    pub(crate) fn ask(&mut self, room: impl FnOnce(Wish) -> Option<usize>) -> Option<(u64, Wanted)> {
        if std::mem::take(&mut self.wants_tail) {
            return Some((self.begin(None), Wanted::Tail));
        }
        let is_idle = |stretch: &Stretch| !stretch.is_under_way && stretch.from < stretch.end;
        if !self.stretches.iter().any(is_idle) {
            self.stretch()?;
        }
        let stretch = self.stretches.iter().find(|stretch| is_idle(stretch))?;
        let left = usize::try_from(stretch.end.0 - stretch.from.0).unwrap_or(usize::MAX);
        let (count, wish) = if stretch.is_larger {
            let usual = self.guess.bytes_of(1);
            let bytes = if stretch.bytes < usual { usual } else { READ_BYTES_MAX };
            (1, Wish { bytes, waits: false })
        } else {
            let count = left.min(self.fitting());
            (count, Wish { bytes: self.guess.bytes_of(count), waits: stretch.from >= self.tail })
        };
        let bytes = room(wish)?;
        let stretch = self.stretches.iter_mut().find(|stretch| is_idle(stretch))?;
        (stretch.is_under_way, stretch.bytes) = (true, bytes);
        let (number, from) = (stretch.number, stretch.from);
        Some((self.begin(Some(number)), Wanted::Read { from, count: count as u32, bytes }))
    }

    /// Entries of the usual size that a stretch has.
    fn fitting(&self) -> usize {
        let fitting = self.guess.usual().map_or(SUBSCRIPTION_FIRST, |usual| SUBSCRIPTION_STRETCH_BYTES / usual.max(1));
        fitting.clamp(1, LOG_READ_MAX as usize)
    }

    /// Adds a stretch below the tail, or the one that waits there.
    fn stretch(&mut self) -> Option<()> {
        self.tidy();
        let is_behind = self.asked < self.tail;
        let count = self.fitting();
        let of_large = (SUBSCRIPTION_AHEAD_BYTES / self.guess.bytes_of(count)).max(2);
        let most = if is_behind { self.stretches_max.min(of_large) } else { 1 };
        if self.stretches.len() >= most {
            return None;
        }
        let end_after = |count: usize| Position(self.asked.0.saturating_add(count as u64));
        let end = if is_behind { end_after(count).min(self.tail) } else { end_after(count.min(self.at_tail)) };
        self.tickets += 1;
        let (number, from) = (self.tickets, self.asked);
        let entries = VecDeque::new();
        self.stretches.push_back(Stretch {
            number,
            from,
            end,
            is_under_way: false,
            bytes: 0,
            is_larger: false,
            entries,
        });
        self.asked = end;
        Some(())
    }

    fn begin(&mut self, stretch: Option<u64>) -> u64 {
        self.tickets += 1;
        self.under_way.insert(self.tickets, stretch);
        self.tickets
    }

    /// Every append that had ended lies below.
    pub(crate) fn told_tail(&mut self, ticket: u64, tail: Position) {
        self.under_way.remove(&ticket);
        self.tail = self.tail.max(tail);
    }

    /// A read has brought this.
    pub(crate) fn told(&mut self, ticket: u64, entries: Vec<LogEntry>) {
        let number = self.under_way.remove(&ticket).flatten();
        let last = self.stretches.back().map(|last| last.number);
        let Some(stretch) = self.stretches.iter_mut().find(|stretch| Some(stretch.number) == number) else {
            self.dropped += entries.iter().map(entry_bytes).sum::<usize>();
            return;
        };
        (stretch.is_under_way, stretch.is_larger) = (false, false);
        let begin = stretch.from;
        for entry in entries {
            let bytes = entry_bytes(&entry);
            // What was given up together came as one; and what does not follow is asked for again.
            if entry.position != stretch.from {
                self.dropped += bytes;
                continue;
            }
            self.guess.saw(bytes);
            stretch.from = after(&entry);
            stretch.entries.push_back(entry);
        }
        self.tail = self.tail.max(stretch.from);
        if Some(stretch.number) != last {
            return;
        }
        // The next stretch begins where this one's answer ended. One that was full may not have been all.
        let got = stretch.from.0.saturating_sub(begin.0) as usize;
        if self.tail == stretch.from {
            let is_full = stretch.from >= stretch.end;
            self.wants_tail |= is_full && got >= AT_TAIL_MANY && self.under_way.is_empty();
            self.at_tail = if is_full { 2 * got } else { got }.clamp(1, LOG_READ_MAX as usize);
        }
        stretch.end = stretch.from;
        self.asked = stretch.from;
    }

    /// The first entry of a read has more bytes than it was to bring.
    pub(crate) fn told_larger(&mut self, ticket: u64) {
        let number = self.under_way.remove(&ticket).flatten();
        if let Some(stretch) = self.stretches.iter_mut().find(|stretch| Some(stretch.number) == number) {
            (stretch.is_under_way, stretch.is_larger) = (false, true);
            self.tail = self.tail.max(stretch.from.next());
        }
    }

    /// What was asked came to nothing: it is asked again.
    pub(crate) fn failed(&mut self, ticket: u64) {
        match self.under_way.remove(&ticket).flatten() {
            None => self.wants_tail = true,
            Some(number) => {
                let asked = self.stretches.iter_mut().find(|stretch| stretch.number == number);
                asked.into_iter().for_each(|stretch| stretch.is_under_way = false);
            }
        }
    }

    /// There is too much of all this: what is not next is given up, and asked again.
    pub(crate) fn retreat(&mut self) {
        self.tidy();
        self.stretches_max = 1;
        for stretch in self.stretches.drain(self.stretches.len().min(1)..) {
            self.dropped += stretch.entries.iter().map(entry_bytes).sum::<usize>();
        }
        self.asked = self.stretches.front().map_or(self.next, |first| first.end.max(first.from));
    }

    /// The entry that comes next, if it is there.
    pub(crate) fn front(&mut self) -> Option<&LogEntry> {
        self.tidy();
        self.stretches.front()?.entries.front()
    }

    /// Takes it.
    pub(crate) fn take(&mut self) -> Option<LogEntry> {
        self.tidy();
        let stretch = self.stretches.front_mut()?;
        let entry = stretch.entries.pop_front()?;
        if stretch.entries.is_empty() {
            self.stretches_max = (2 * self.stretches_max).min(SUBSCRIPTION_STRETCHES_MAX);
        }
        self.next = after(&entry);
        self.tidy();
        Some(entry)
    }

    /// Drops what lies below the next position, which may be beyond what was asked for: much is trimmed at once.
    fn tidy(&mut self) {
        let next = self.next;
        while let Some(stretch) = self.stretches.front_mut() {
            while let Some(entry) = stretch.entries.pop_front_if(|entry| after(entry) <= next) {
                self.dropped += entry_bytes(&entry);
            }
            // Of what was given up together some may have been told.
            if let Some(entry) = stretch.entries.front_mut() {
                entry.position = entry.position.max(next);
            }
            let is_taken = stretch.entries.is_empty() && stretch.from >= stretch.end;
            if !is_taken && stretch.end > next {
                // A read under way brings what is below, and it is dropped.
                return;
            }
            if !stretch.entries.is_empty() {
                return;
            }
            self.stretches.pop_front();
        }
        self.asked = self.asked.max(next);
    }

    /// Bytes of entries that nobody will take, since this was last asked.
    pub(crate) fn take_dropped(&mut self) -> usize {
        std::mem::take(&mut self.dropped)
    }
}

#[cfg(test)]
mod tests;
