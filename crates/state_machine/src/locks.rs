//! Locks: the keys that a change locks, from before its proposal until it is applied or refused.
//!
//! The leader holds them in memory as latches (`node/src/latches.rs`). They order the changes of a key, so that a
//! condition is evaluated on a state without unapplied changes of the keys that it depends on.

use std::ops::Bound;

use base::KeyRange;
use bytes::Bytes;

/// The locks of a change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Locks {
    /// It locks no key.
    #[default]
    None,
    /// It locks one key or one range.
    One(LockSpan),
    /// It locks all of these, atomically. They may overlap.
    Several(Vec<LockSpan>),
}

/// Keys that are locked in one mode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockSpan {
    /// The keys.
    pub keys: LockKeys,
    /// The mode.
    pub mode: LockMode,
}

/// One key, or a range of keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LockKeys {
    /// One key.
    Key(Bytes),
    /// Every key of a range.
    Range(KeyRange),
}

/// How a change locks its keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockMode {
    /// The outcome does not depend on the current values: blind changes of a key do not wait for each other.
    Blind,
    /// The outcome depends on the current values: the change waits until all earlier changes of its keys are applied,
    /// and later ones wait until it is decided.
    Exclusive,
}

impl Locks {
    /// Locks one key.
    #[must_use]
    pub fn key(key: Bytes, mode: LockMode) -> Self {
        Self::One(LockSpan { keys: LockKeys::Key(key), mode })
    }

    /// The locked keys.
    #[must_use]
    pub fn spans(&self) -> &[LockSpan] {
        match self {
            Self::None => &[],
            Self::One(span) => std::slice::from_ref(span),
            Self::Several(spans) => spans,
        }
    }

    /// Whether the outcome of the change depends on current values.
    #[must_use]
    pub fn is_exclusive(&self) -> bool {
        self.spans().iter().any(|span| span.mode == LockMode::Exclusive)
    }
}

impl LockKeys {
    /// Whether any of them is in the range.
    #[must_use]
    pub fn overlaps(&self, range: &KeyRange) -> bool {
        match self {
            Self::Key(key) => range.contains(key),
            Self::Range(own) => own.overlaps(range),
        }
    }

    /// The bounds of the keys in a sorted map. A range that ends before its start has no keys.
    #[must_use]
    pub fn bounds(&self) -> (Bound<&Bytes>, Bound<&Bytes>) {
        match self {
            Self::Key(key) => (Bound::Included(key), Bound::Included(key)),
            Self::Range(KeyRange { start, end }) => {
                let end = end.as_ref().map_or(Bound::Unbounded, |end| Bound::Excluded(end.max(start)));
                (Bound::Included(start), end)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: &'static str, end: Option<&'static str>) -> KeyRange {
        KeyRange { start: start.into(), end: end.map(Bytes::from) }
    }

    #[test]
    fn bounds_are_those_of_the_keys() {
        let all = std::collections::BTreeSet::from(["a", "b", "c"].map(Bytes::from));
        let cases = [
            (LockKeys::Key("b".into()), vec!["b"]),
            (LockKeys::Key("x".into()), vec![]),
            (LockKeys::Range(range("a", Some("c"))), vec!["a", "b"]),
            (LockKeys::Range(range("b", None)), vec!["b", "c"]),
            (LockKeys::Range(range("", None)), vec!["a", "b", "c"]),
            (LockKeys::Range(range("b", Some("b"))), vec![]),
            (LockKeys::Range(range("c", Some("b"))), vec![]),
        ];
        for (keys, expected) in cases {
            assert_eq!(all.range::<Bytes, _>(keys.bounds()).collect::<Vec<_>>(), expected, "{keys:?}");
        }
    }

    #[test]
    fn overlap_of_keys_and_ranges() {
        let of = range("b", Some("d"));
        let keys = ["a", "b", "c", "d"].map(|key| LockKeys::Key(key.into()).overlaps(&of));
        assert_eq!(keys, [false, true, true, false]);
        let ranges = [range("", Some("b")), range("a", Some("c")), range("c", None), range("d", None)];
        assert_eq!(ranges.map(|own| LockKeys::Range(own).overlaps(&of)), [false, true, true, false]);
    }

    #[test]
    fn exclusive_if_any_span_is() {
        let [blind, exclusive] =
            [LockMode::Blind, LockMode::Exclusive].map(|mode| LockSpan { keys: LockKeys::Key("a".into()), mode });
        assert!(!Locks::None.is_exclusive() && Locks::None.spans().is_empty());
        assert_eq!(Locks::key("a".into(), LockMode::Blind), Locks::One(blind.clone()));
        assert_eq!(Locks::One(blind.clone()).spans(), std::slice::from_ref(&blind));
        assert!(!Locks::One(blind.clone()).is_exclusive());
        assert!(Locks::Several(vec![blind, exclusive]).is_exclusive());
    }
}
