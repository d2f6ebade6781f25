//! What a client has seen of its tables, which no timeline read of its own goes behind (guarantee 15).

use std::collections::BTreeMap;

use base::limits::RANGES_MAX;
use base::{CohortId, KeyRange, Lsn};
use bytes::Bytes;

/// Where in a table's order of keys a read begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Position {
    /// At a key.
    At(Bytes),
    /// Right below an end; none is above every key.
    Below(Option<Bytes>),
}

/// A place in the log of a range's cohort.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The cohort.
    pub cohort: CohortId,
    /// The entry.
    pub lsn: Lsn,
}

/// The state that an answer is of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shown {
    /// The last entry of it.
    pub place: Place,
    /// The keys that the cohort owns in it.
    pub range: KeyRange,
}

/// How far a client has seen its tables.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen(BTreeMap<String, Ranges>);

/// How far it has seen the ranges of one table.
///
/// A cohort's range may become smaller, and what it kept is then kept by a later cohort: of those that kept a key, the
/// last one seen counts.
#[derive(Clone, Debug, Default)]
struct Ranges(BTreeMap<CohortId, Shown>);

impl Seen {
    /// How far the range was seen that holds a place.
    pub(crate) fn at(&self, table: &str, position: &Position) -> Option<Place> {
        let holds = |shown: &&Shown| match position {
            Position::At(key) => shown.range.contains(key),
            Position::Below(end) => shown.range.contains_below(end.as_deref()),
        };
        self.0.get(table)?.0.values().rev().find(holds).map(|shown| shown.place)
    }

    /// An answer has shown this state.
    pub(crate) fn note(&mut self, table: &str, shown: Shown) {
        let Shown { place, range } = shown.clone();
        let Ranges(ranges) = self.0.entry(table.to_owned()).or_default();
        let seen = ranges.entry(place.cohort).or_insert(shown);
        // By epoch first: after a loss, sequences are given out again (guarantee 11).
        if place.lsn > seen.place.lsn {
            seen.place = place;
        }
        seen.range.start = range.start.min(std::mem::take(&mut seen.range.start));
        seen.range.end = match (seen.range.end.take(), range.end) {
            (Some(seen), Some(end)) => Some(seen.max(end)),
            _ => None,
        };
        while ranges.len() > RANGES_MAX {
            ranges.pop_first();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(cohort: u32, sequence: u64, start: &'static str, end: Option<&'static str>) -> Shown {
        let place = Place { cohort: CohortId(cohort), lsn: Lsn::new(1, sequence) };
        Shown { place, range: KeyRange { start: start.into(), end: end.map(Into::into) } }
    }

    fn seen_at(seen: &Seen, position: &Position) -> Option<(u32, u64)> {
        seen.at("t", position).map(|place| (place.cohort.0, place.lsn.sequence.0))
    }

    fn at(key: &'static str) -> Position {
        Position::At(key.into())
    }

    #[test]
    fn what_was_seen_of_a_range_only_grows() {
        let mut seen = Seen::default();
        assert_eq!(seen_at(&seen, &at("a")), None);
        seen.note("t", shown(2, 9, "", Some("m")));
        seen.note("t", shown(2, 7, "", Some("m")));
        seen.note("u", shown(3, 99, "", None));
        assert_eq!((seen_at(&seen, &at("a")), seen_at(&seen, &at("m"))), (Some((2, 9)), None));
        assert_eq!(seen_at(&seen, &Position::Below(Some("m".into()))), Some((2, 9)));
        assert_eq!(seen_at(&seen, &Position::Below(None)), None);
    }

    #[test]
    fn a_later_cohort_takes_over_what_it_owns_and_no_more() {
        let mut seen = Seen::default();
        seen.note("t", shown(2, 9, "", None));
        seen.note("t", shown(5, 3, "m", None));
        seen.note("t", shown(2, 12, "", Some("m")));
        assert_eq!((seen_at(&seen, &at("a")), seen_at(&seen, &at("m"))), (Some((2, 12)), Some((5, 3))));
    }
}
