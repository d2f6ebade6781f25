//! The history of a log's users, and a checker for guarantee 20.
//!
//! * A position never has two values, for any reader at any time.
//! * A completed append is at the position that was returned, and, if it was retried, possibly at others too; an append
//!   reported as not done is at none. A follower receives its first entry, and a marker for each repetition.
//! * If an append completed before another began, its position is lower.
//! * A tail is above every append that completed before the tail was requested.

use std::collections::btree_map::Entry as Slot;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;
use sdk::{Content, Entry};

/// Identifies an append: the appender's number, and the number of its earlier appends.
pub(super) type Name = (u32, u32);

#[derive(Clone, Copy, Debug)]
pub(super) struct Append {
    pub(super) name: Name,
    /// Monotonic nanoseconds, like all times here.
    pub(super) called: u64,
    pub(super) returned: u64,
    pub(super) outcome: Outcome,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// Appended at this position.
    At(u64),
    Unknown,
    NotDone,
}

/// A request for the tail.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tail {
    pub(super) called: u64,
    pub(super) position: u64,
}

/// The content of a position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    Append(Name),
    Junk,
}

/// All observations of users.
#[derive(Debug, Default)]
pub(super) struct History {
    pub(super) appends: Vec<Append>,
    pub(super) tails: Vec<Tail>,
    seen: BTreeMap<u64, Seen>,
    /// Positions reported to followers as repetitions.
    repeated: BTreeSet<u64>,
    /// The appends delivered to each follower.
    delivered: BTreeMap<u32, BTreeSet<Name>>,
}

/// Statistics that make the check meaningful.
#[derive(Debug, Default)]
#[expect(dead_code, reason = "not all of it is asserted: it is printed")]
pub(super) struct Summary {
    pub(super) ended: usize,
    pub(super) unknown: usize,
    pub(super) not_done: usize,
    /// Of unknown outcome, but found in the log.
    pub(super) found: usize,
    pub(super) tails: usize,
    pub(super) junk: usize,
    /// Entries in addition to the first of an append.
    pub(super) repeated: usize,
}

/// The records of an append: unique, and some larger than a message between nodes or a block on disk.
pub(super) fn batch((appender, number): Name) -> Vec<Bytes> {
    let filler = match number % 16 {
        0 => 40_000,
        few => few as usize * 40,
    };
    vec![Bytes::from(format!("{appender}:{number}")), Bytes::new(), Bytes::from(vec![number as u8; filler])]
}

/// The append with these records, if they are complete.
fn name(records: &[Bytes]) -> Option<Name> {
    let (appender, number) = std::str::from_utf8(records.first()?).ok()?.split_once(':')?;
    let name = (appender.parse().ok()?, number.parse().ok()?);
    (batch(name) == records).then_some(name)
}

impl History {
    /// Records an entry that was read.
    pub(super) fn saw(&mut self, entry: &Entry) -> Result<(), String> {
        let position = entry.position;
        let now = match &entry.content {
            Content::Records(records) => Seen::Append(
                name(records).ok_or_else(|| format!("position {position} holds what nobody appended: {records:?}"))?,
            ),
            Content::Junk => Seen::Junk,
            other => return Err(format!("position {position} is told to be {other:?}")),
        };
        self.saw_at(position, now)
    }

    /// Records an entry delivered to a follower.
    pub(super) fn heard(&mut self, follower: u32, entry: &Entry) -> Result<(), String> {
        match &entry.content {
            Content::Repeated => {
                self.repeated.insert(entry.position);
                return Ok(());
            }
            Content::Records(records) => {
                let is_new = name(records).is_none_or(|name| self.delivered.entry(follower).or_default().insert(name));
                if !is_new {
                    return Err(format!("{:?} is told more than once, at last at {}", name(records), entry.position));
                }
            }
            _ => {}
        }
        self.saw(entry)
    }

    fn saw_at(&mut self, position: u64, now: Seen) -> Result<(), String> {
        match self.seen.entry(position) {
            Slot::Vacant(slot) => {
                slot.insert(now);
            }
            Slot::Occupied(slot) if *slot.get() == now => {}
            Slot::Occupied(slot) => {
                return Err(format!("position {position} was {:?}, and now is {now:?}", slot.get()));
            }
        }
        Ok(())
    }

    /// Checks the complete history. The whole log must have been read.
    pub(super) fn check(&self) -> Result<Summary, String> {
        let lies = self.lies()?;
        let mut summary = Summary { tails: self.tails.len(), ..Summary::default() };
        for position in &self.repeated {
            let of = |name: &Name| lies[name].first().is_some_and(|first| first < position);
            if !matches!(self.seen.get(position), Some(Seen::Append(name)) if of(name)) {
                return Err(format!("{position} is told to be repeated, and has {:?}", self.seen.get(position)));
            }
        }
        for append in &self.appends {
            let found = lies.get(&append.name).map_or(&[][..], |found| found);
            summary.repeated += found.len().saturating_sub(1);
            match append.outcome {
                Outcome::At(told) if !found.contains(&told) => {
                    let there = self.seen.get(&told);
                    return Err(format!("{append:?} lies at {found:?}; at {told} lies {there:?}"));
                }
                Outcome::NotDone if !found.is_empty() => return Err(format!("{append:?} lies at {found:?}")),
                Outcome::At(_) => summary.ended += 1,
                Outcome::NotDone => summary.not_done += 1,
                Outcome::Unknown => {
                    summary.unknown += 1;
                    summary.found += usize::from(!found.is_empty());
                }
            }
        }
        self.check_order(&lies)?;
        summary.junk = self.seen.values().filter(|seen| **seen == Seen::Junk).count();
        Ok(summary)
    }

    /// The positions of each append.
    fn lies(&self) -> Result<BTreeMap<Name, Vec<u64>>, String> {
        let asked: BTreeSet<Name> = self.appends.iter().map(|append| append.name).collect();
        let mut lies: BTreeMap<Name, Vec<u64>> = BTreeMap::new();
        for (position, seen) in &self.seen {
            let Seen::Append(name) = seen else { continue };
            if !asked.contains(name) {
                return Err(format!("position {position} holds {name:?}, which nobody appended"));
            }
            lies.entry(*name).or_default().push(*position);
        }
        Ok(lies)
    }

    /// Checks real-time order: an append is above all appends that completed before it began.
    fn check_order(&self, lies: &BTreeMap<Name, Vec<u64>>) -> Result<(), String> {
        let at =
            |append: &Append| if let Outcome::At(told) = append.outcome { Some((append.returned, told)) } else { None };
        let mut ended: Vec<(u64, u64)> = self.appends.iter().filter_map(at).collect();
        ended.sort_unstable();
        // From this time on, the log extends at least to this position.
        let reaches = ended.iter().scan(0, |most, (returned, told)| {
            *most = told.saturating_add(1).max(*most);
            Some((*returned, *most))
        });
        let reaches: Vec<(u64, u64)> = reaches.collect();
        let reach = |called: u64| {
            let count = reaches.partition_point(|(returned, _)| *returned < called);
            count.checked_sub(1).map_or(0, |last| reaches[last].1)
        };
        for append in &self.appends {
            let first = lies.get(&append.name).and_then(|lies| lies.first());
            let before = reach(append.called);
            if first.is_some_and(|first| *first < before) {
                return Err(format!(
                    "{append:?} lies at {first:?}, and had begun after the end of one at {}",
                    before - 1
                ));
            }
        }
        for tail in &self.tails {
            let before = reach(tail.called);
            if tail.position < before {
                return Err(format!("{tail:?} misses an append at {}", before - 1));
            }
        }
        Ok(())
    }

    /// The longest time without a completed append, excluding gaps that overlap the time in which all nodes were down.
    pub(super) fn gap(&self, down: (u64, u64)) -> Duration {
        let ended = self.appends.iter().filter(|append| matches!(append.outcome, Outcome::At(_)));
        let mut ends: Vec<u64> = ended.map(|append| append.returned).collect();
        ends.sort_unstable();
        let gaps = ends.windows(2).filter(|pair| pair[1] < down.0 || pair[0] > down.1).map(|pair| pair[1] - pair[0]);
        Duration::from_nanos(gaps.max().unwrap_or_default())
    }
}

/// The checker must detect violations.
#[cfg(test)]
mod tests {
    use super::*;

    /// Three sequential appends at 0, 2 and 3, with junk at 1, and a tail.
    fn good() -> History {
        let append = |number: u32, outcome| {
            let called = u64::from(number) * 10;
            Append { name: (1, number), called, returned: called + 5, outcome }
        };
        let appends = vec![append(0, Outcome::At(0)), append(1, Outcome::At(2)), append(2, Outcome::Unknown)];
        let tails = vec![Tail { called: 16, position: 3 }];
        let mut history = History { appends, tails, ..History::default() };
        for (position, seen) in
            [(0, Seen::Append((1, 0))), (1, Seen::Junk), (2, Seen::Append((1, 1))), (3, Seen::Append((1, 2)))]
        {
            history.saw_at(position, seen).expect("it is new");
        }
        history
    }

    #[track_caller]
    fn is_found(what: &str, spoil: impl FnOnce(&mut History)) {
        let mut history = good();
        spoil(&mut history);
        let found = history.check().expect_err("it is bad");
        assert!(found.contains(what), "{found}");
    }

    #[test]
    fn checker_finds_log_violations() {
        let summary = good().check().expect("it is good");
        assert_eq!((summary.ended, summary.found, summary.junk), (2, 1, 1));
        is_found("lies at []", |history| {
            history.seen.remove(&2);
        });
        is_found("lies at [2]", |history| history.appends[1].outcome = Outcome::At(1));
        is_found("lies at [3]", |history| history.appends[2].outcome = Outcome::NotDone);
        is_found("nobody appended", |history| {
            history.seen.insert(5, Seen::Append((2, 0)));
        });
        is_found("begun after the end of one at 3", |history| {
            history.appends[0].called = 20;
            history.appends[0].returned = 21;
            history.appends[2].outcome = Outcome::At(3);
            history.appends[2].returned = 19;
        });
        is_found("misses", |history| history.tails[0].position = 2);
    }

    #[test]
    fn checker_finds_duplicate_delivery() {
        let entry = |position, number| Entry { position, content: Content::Records(batch((1, number))) };
        let repeated = |position| Entry { position, content: Content::Repeated };
        let mut history = good();
        history.saw(&entry(4, 1)).expect("a retry");
        for told in [entry(2, 1), entry(3, 2), repeated(4)] {
            history.heard(9, &told).expect("each once");
        }
        assert_eq!(history.check().expect("it is good").repeated, 1);
        assert!(history.heard(8, &entry(4, 1)).is_ok(), "another begins there");
        let found = history.heard(9, &entry(4, 1)).expect_err("it was told before");
        assert!(found.contains("more than once"), "{found}");
        for alone in [1, 2, 7] {
            is_found("told to be repeated", |history| {
                history.heard(9, &repeated(alone)).expect("it isn't known yet");
            });
        }
    }

    #[test]
    fn checker_rejects_conflicting_values() {
        let mut history = good();
        assert!(history.saw_at(1, Seen::Junk).is_ok());
        assert!(history.saw_at(1, Seen::Append((1, 1))).is_err());
        let other = Entry { position: 9, content: Content::Records(vec![Bytes::from_static(b"1:1")]) };
        assert!(history.saw(&other).is_err(), "an append's first record alone");
    }
}
