//! Per-range data of one table.

use std::collections::BTreeMap;
use std::ops::Bound::{Included, Unbounded};

use base::KeyRange;
use bytes::Bytes;

/// A value for each range, without overlapping ranges. A new range replaces all ranges that it overlaps, because their
/// cohorts own other keys by now.
#[derive(Clone, Debug)]
pub struct Ranges<T> {
    by_start: BTreeMap<Bytes, (KeyRange, T)>,
}

impl<T> Default for Ranges<T> {
    fn default() -> Self {
        Self { by_start: BTreeMap::new() }
    }
}

impl<T> Ranges<T> {
    /// The value of the range that contains `key`.
    #[must_use]
    pub fn find(&self, key: &[u8]) -> Option<&T> {
        let (_, (range, kept)) = self.by_start.range::<[u8], _>((Unbounded, Included(key))).next_back()?;
        range.contains(key).then_some(kept)
    }

    /// Sets the value of a range, and removes all ranges that it overlaps.
    pub fn keep(&mut self, range: KeyRange, kept: T) {
        self.by_start.retain(|_, (other, _)| !other.overlaps(&range));
        self.by_start.insert(range.start.clone(), (range, kept));
    }

    /// The values, in order of range.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.by_start.values().map(|(_, kept)| kept)
    }

    /// Removes the chosen values.
    pub fn forget(&mut self, is_chosen: impl Fn(&T) -> bool) {
        self.by_start.retain(|_, (_, kept)| !is_chosen(kept));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: &'static str, end: Option<&'static str>) -> KeyRange {
        KeyRange { start: start.into(), end: end.map(Bytes::from) }
    }

    fn found(ranges: &Ranges<u32>) -> [Option<u32>; 4] {
        ["a", "b", "c", "d"].map(|key| ranges.find(key.as_bytes()).copied())
    }

    #[test]
    fn finds_range_by_key() {
        let mut ranges = Ranges::default();
        assert_eq!(found(&ranges), [None; 4]);
        ranges.keep(range("b", Some("c")), 1);
        ranges.keep(range("d", None), 2);
        assert_eq!(found(&ranges), [None, Some(1), None, Some(2)]);
    }

    #[test]
    fn newer_range_replaces_overlaps() {
        let mut ranges = Ranges::default();
        ranges.keep(KeyRange::all(), 1);
        ranges.keep(range("b", Some("d")), 2);
        assert_eq!(found(&ranges), [None, Some(2), Some(2), None]);
        ranges.keep(range("", Some("b")), 3);
        ranges.keep(range("c", None), 4);
        assert_eq!(found(&ranges), [Some(3), None, Some(4), Some(4)]);
        ranges.keep(range("c", None), 5);
        assert_eq!(found(&ranges), [Some(3), None, Some(5), Some(5)]);
    }

    #[test]
    fn forget_keeps_adjacent_ranges() {
        let mut ranges = Ranges::default();
        ranges.keep(range("", Some("c")), 1);
        ranges.keep(range("c", None), 2);
        ranges.forget(|kept| *kept == 1);
        assert_eq!(found(&ranges), [None, None, Some(2), Some(2)]);
    }
}
