//! The states of its tables that a client has seen. Its timeline reads never return an older state (guarantee 15).

use std::collections::BTreeMap;

use base::limits::RANGES_MAX;
use base::{CohortId, KeyRange, Lsn};
use bytes::Bytes;

/// The position in a table's key order at which a read begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ScanStart {
    At(Bytes),
    /// Immediately below this exclusive end; none is above every key.
    Below(Option<Bytes>),
}

impl ScanStart {
    fn is_in(&self, range: &KeyRange) -> bool {
        match self {
            Self::At(key) => range.contains(key),
            Self::Below(end) => range.contains_below(end.as_deref()),
        }
    }
}

/// A position in the log of a range's cohort.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CohortLsn {
    pub cohort: CohortId,
    pub lsn: Lsn,
}

/// The state that a response was read from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shown {
    pub place: CohortLsn,
    /// The keys that the cohort owned in this state.
    pub range: KeyRange,
}

/// The latest seen states of all tables.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SeenStates(BTreeMap<String, Ranges>);

/// The latest seen state of each cohort of one table.
///
/// A split shrinks a cohort's range, and a later cohort owns the rest. So for each key the cohort with the highest id
/// that was seen to own it is relevant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Ranges(BTreeMap<CohortId, Shown>);

impl SeenStates {
    /// The latest seen state of the range that contains a position.
    pub(crate) fn at(&self, table: &str, position: &ScanStart) -> Option<CohortLsn> {
        self.0.get(table)?.0.values().rev().find(|shown| position.is_in(&shown.range)).map(|shown| shown.place)
    }

    /// The newer seen state of the cohort that responded, if the cohort no longer owned the position in it. The
    /// response then shows the position as of before the split, which is older than the state seen.
    ///
    /// If the cohort still owned the position in the newer state, the read either required that state or began before
    /// it was seen.
    pub(crate) fn newer(&self, table: &str, position: &ScanStart, shown: &Shown) -> Option<CohortLsn> {
        let seen = self.0.get(table)?.0.get(&shown.place.cohort)?;
        (seen.place.lsn > shown.place.lsn && !position.is_in(&seen.range)).then_some(seen.place)
    }

    /// The states of one table, or of all.
    pub(crate) fn of(&self, table: Option<&str>) -> Self {
        let chosen = self.0.iter().filter(|(name, _)| table.is_none_or(|table| **name == *table));
        Self(chosen.map(|(name, ranges)| (name.clone(), ranges.clone())).collect())
    }

    /// All states, with their tables.
    pub(crate) fn all(&self) -> impl Iterator<Item = (&str, &Shown)> {
        self.0.iter().flat_map(|(table, Ranges(ranges))| ranges.values().map(|shown| (&**table, shown)))
    }

    /// Records the state of a response.
    pub(crate) fn note(&mut self, table: &str, shown: Shown) {
        let Shown { place, range } = shown.clone();
        let Ranges(ranges) = self.0.entry(table.to_owned()).or_default();
        let seen = ranges.entry(place.cohort).or_insert(shown);
        // Compared by epoch first: after a loss, sequences are reused (guarantee 11).
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
        let place = CohortLsn { cohort: CohortId(cohort), lsn: Lsn::new(1, sequence) };
        Shown { place, range: KeyRange { start: start.into(), end: end.map(Into::into) } }
    }

    fn seen_at(seen: &SeenStates, position: &ScanStart) -> Option<(u32, u64)> {
        seen.at("t", position).map(|place| (place.cohort.0, place.lsn.sequence.0))
    }

    fn at(key: &'static str) -> ScanStart {
        ScanStart::At(key.into())
    }

    #[test]
    fn seen_position_is_monotonic() {
        let mut seen = SeenStates::default();
        assert_eq!(seen_at(&seen, &at("a")), None);
        seen.note("t", shown(2, 9, "", Some("m")));
        seen.note("t", shown(2, 7, "", Some("m")));
        seen.note("u", shown(3, 99, "", None));
        assert_eq!((seen_at(&seen, &at("a")), seen_at(&seen, &at("m"))), (Some((2, 9)), None));
        assert_eq!(seen_at(&seen, &ScanStart::Below(Some("m".into()))), Some((2, 9)));
        assert_eq!(seen_at(&seen, &ScanStart::Below(None)), None);
    }

    #[test]
    fn pre_split_answer_is_stale() {
        let mut seen = SeenStates::default();
        seen.note("t", shown(2, 9, "", None));
        seen.note("t", shown(4, 6, "", Some("m")));
        assert_eq!(seen_at(&seen, &at("n")), Some((2, 9)));
        let newer = |seen: &SeenStates, sequence| seen.newer("t", &at("n"), &shown(4, sequence, "", None));
        assert_eq!(newer(&seen, 5).map(|place| place.lsn.sequence.0), Some(6));
        assert_eq!((newer(&seen, 6), newer(&seen, 7)), (None, None));
        assert_eq!(
            seen.newer("t", &at("a"), &shown(4, 5, "", None)),
            None,
            "the read required the state seen, or began before it"
        );
        assert_eq!(seen.newer("t", &at("n"), &shown(5, 1, "m", None)), None, "no state of this cohort was seen");
    }

    #[test]
    fn later_cohort_replaces_only_its_range() {
        let mut seen = SeenStates::default();
        seen.note("t", shown(2, 9, "", None));
        seen.note("t", shown(5, 3, "m", None));
        seen.note("t", shown(2, 12, "", Some("m")));
        assert_eq!((seen_at(&seen, &at("a")), seen_at(&seen, &at("m"))), (Some((2, 12)), Some((5, 3))));
    }
}
