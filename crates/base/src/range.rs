//! Ranges of keys in byte order.

use std::fmt;

use bytes::Bytes;

use crate::codec::DecodeError;
use crate::text::shown;

/// The keys from `start` (inclusive) to `end` (exclusive).
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyRange {
    /// The first key, inclusive; empty: unbounded.
    pub start: Bytes,
    /// The end, exclusive; none: unbounded.
    pub end: Option<Bytes>,
}

impl KeyRange {
    /// The keys with a prefix.
    #[must_use]
    pub fn of_prefix(prefix: &Bytes) -> Self {
        let last = prefix.iter().rposition(|byte| *byte != u8::MAX);
        // The least key above all keys with the prefix, if there is one.
        let end = last.map(|last| [&prefix[..last], &[prefix[last] + 1]].concat().into());
        Self { start: prefix.clone(), end }
    }

    /// The keys in both; none if there are none.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Option<Self> {
        let start = self.start.clone().max(other.start.clone());
        let end = match (&self.end, &other.end) {
            (Some(one), Some(other)) => Some(one.clone().min(other.clone())),
            (one, other) => one.clone().or_else(|| other.clone()),
        };
        end.as_ref().is_none_or(|end| start < *end).then_some(Self { start, end })
    }

    /// Whether it contains every key of another range.
    #[must_use]
    pub fn includes(&self, other: &Self) -> bool {
        let ends_within = match (&self.end, &other.end) {
            (None, _) => true,
            (Some(own), Some(end)) => end <= own,
            (Some(_), None) => false,
        };
        other.start >= self.start && ends_within
    }

    #[must_use]
    pub fn all() -> Self {
        Self::default()
    }

    /// Whether the range contains `key`.
    #[must_use]
    pub fn contains(&self, key: &[u8]) -> bool {
        self.start[..] <= *key && self.end.as_ref().is_none_or(|end| *key < end[..])
    }

    /// Whether the range contains the keys immediately below `end`; none is above every key.
    #[must_use]
    pub fn contains_below(&self, end: Option<&[u8]>) -> bool {
        match (end, &self.end) {
            (None, last) => last.is_none(),
            (Some(end), last) => self.start[..] < *end && last.as_ref().is_none_or(|last| *end <= last[..]),
        }
    }

    /// Whether the two ranges have common keys.
    #[must_use]
    pub fn overlaps(&self, other: &Self) -> bool {
        let begins_before_end = |one: &Self, other: &Self| other.end.as_ref().is_none_or(|end| one.start < *end);
        begins_before_end(self, other) && begins_before_end(other, self)
    }
}

crate::wire! {
    struct KeyRange { start, end } checked by |range| {
        let is_empty = range.end.as_ref().is_some_and(|end| *end <= range.start);
        if is_empty { Err(DecodeError::Invalid { what: "range of keys" }) } else { Ok(()) }
    }
}

impl fmt::Display for KeyRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.end {
            Some(end) => write!(f, "[\"{}\", \"{}\")", shown(&self.start), shown(end)),
            None => write!(f, "[\"{}\", end)", shown(&self.start)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::Wire as _;

    fn range(start: &'static str, end: Option<&'static str>) -> KeyRange {
        KeyRange { start: start.into(), end: end.map(Bytes::from) }
    }

    #[test]
    fn range_is_half_open() {
        let middle = range("b", Some("d"));
        let held = ["", "a", "b", "b\0", "c", "cz", "d", "e"].map(|key| middle.contains(key.as_bytes()));
        assert_eq!(held, [false, false, true, true, true, true, false, false]);
        assert!(KeyRange::all().contains(b"") && KeyRange::all().contains(b"\xff\xff"));
    }

    #[test]
    fn prefix_is_a_range() {
        let of_prefix = |prefix: &[u8]| KeyRange::of_prefix(&Bytes::copy_from_slice(prefix));
        assert_eq!(of_prefix(b"ab"), range("ab", Some("ac")));
        assert_eq!(of_prefix(b""), KeyRange::all());
        assert_eq!(of_prefix(b"a\xff\xff").end, Some("b".into()));
        assert_eq!(of_prefix(b"\xff").end, None);
    }

    /// In reverse order, a range's end belongs to it, and its start to the range before.
    #[test]
    fn reverse_bound_maps_to_one_range() {
        let ranges = [range("", Some("b")), range("b", Some("d")), range("d", None)];
        let holder = |end: Option<&str>| {
            let holds: Vec<usize> =
                (0..3).filter(|index| ranges[*index].contains_below(end.map(str::as_bytes))).collect();
            assert_eq!(holds.len(), 1, "{end:?}");
            holds[0]
        };
        let holders = [Some("a"), Some("b"), Some("b\0"), Some("d"), Some("e"), None].map(holder);
        assert_eq!(holders, [0, 0, 1, 1, 2, 2]);
    }

    #[test]
    fn adjacent_ranges_do_not_overlap() {
        let (first, second) = (range("", Some("b")), range("b", None));
        assert!(!first.overlaps(&second) && !second.overlaps(&first));
        assert!(range("a", Some("c")).overlaps(&second) && second.overlaps(&range("a", Some("c"))));
        assert!(KeyRange::all().overlaps(&first));
    }

    #[test]
    fn range_codec_rejects_empty_range() {
        let decoded = |range: &KeyRange| KeyRange::from_bytes(range.to_bytes());
        for range in [KeyRange::all(), range("a", None), range("", Some("b")), range("a", Some("b"))] {
            assert_eq!(decoded(&range).as_ref(), Ok(&range));
        }
        assert!(decoded(&range("b", Some("b"))).is_err() && decoded(&range("", Some(""))).is_err());
    }
}
