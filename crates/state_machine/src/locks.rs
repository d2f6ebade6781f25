//! Locks: the keys that a change locks, from before its proposal until it is applied or refused.
//!
//! The leader holds them in memory as latches (`node/src/latches.rs`). They order the changes of a key, so that a
//! condition is evaluated on a state without unapplied changes of the keys that it depends on. The locks of a prepared
//! transaction are part of the state: a leader holds them from its first moment until the transaction is resolved.

use std::ops::Bound;

use base::{KeyRange, Timestamp};
use bytes::Bytes;

/// The locks of a change. It takes all of them, atomically. They may overlap.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Locks {
    spans: Spans,
    /// The transaction that has them, if it may have others in other ranges meanwhile.
    pub owner: Option<LockOwner>,
}

/// No, one or several spans; most changes have one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum Spans {
    #[default]
    None,
    One(LockSpan),
    Several(Vec<LockSpan>),
}

/// Keys that are locked in one mode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockSpan {
    pub keys: LockKeys,
    pub mode: LockMode,
}

/// One key, or a range of keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LockKeys {
    Key(Bytes),
    /// Every key of a range.
    Range(KeyRange),
}

/// The transaction that a request belongs to. Lower ones are older and have priority over younger ones (wound-wait). A
/// transaction that is tried again keeps its owner, so that it becomes the oldest at last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LockOwner {
    /// When it was tried first, by the client's clock. It decides about priority only.
    pub started: Timestamp,
    /// A random number that tells transactions with the same start apart.
    pub id: u64,
}

base::wire! { struct LockOwner { started, id } }

/// How a change locks its keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockMode {
    /// The change only depends on the keys: it waits until all earlier changes of them are applied, and later ones wait
    /// until it is decided.
    Shared,
    /// The outcome does not depend on the current values: blind changes of a key do not wait for each other.
    Blind,
    /// The outcome depends on the current values: the change waits until all earlier changes of its keys are applied,
    /// and later ones wait until it is decided.
    Exclusive,
}

impl Locks {
    pub const NONE: Self = Self { spans: Spans::None, owner: None };

    /// Locks one key or range.
    #[must_use]
    pub fn one(span: LockSpan) -> Self {
        Self { spans: Spans::One(span), owner: None }
    }

    /// Locks all of these.
    #[must_use]
    pub fn several(spans: Vec<LockSpan>) -> Self {
        Self { spans: Spans::Several(spans), owner: None }
    }

    /// The same locks of a transaction that may have others in other ranges.
    #[must_use]
    pub fn of(self, owner: LockOwner) -> Self {
        Self { owner: Some(owner), ..self }
    }

    #[must_use]
    pub fn key(key: Bytes, mode: LockMode) -> Self {
        Self::one(LockSpan { keys: LockKeys::Key(key), mode })
    }

    #[must_use]
    pub fn all(mode: LockMode) -> Self {
        Self::one(LockSpan { keys: LockKeys::Range(KeyRange::default()), mode })
    }

    #[must_use]
    pub fn spans(&self) -> &[LockSpan] {
        match &self.spans {
            Spans::None => &[],
            Spans::One(span) => std::slice::from_ref(span),
            Spans::Several(spans) => spans,
        }
    }

    /// Whether it excludes every other change, as a split or a drop does.
    #[must_use]
    pub fn excludes_all(&self) -> bool {
        *self == Self::all(LockMode::Exclusive)
    }

    /// Whether it locks no key.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.spans().is_empty()
    }

    /// The keys that it changes.
    pub fn changed(&self) -> impl Iterator<Item = &LockKeys> {
        self.spans().iter().filter(|span| span.mode != LockMode::Shared).map(|span| &span.keys)
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

    /// The keys of a range: one key, if the range contains no other.
    #[must_use]
    pub fn of(range: &KeyRange) -> Self {
        let is_one = |end: &Bytes| end.strip_suffix(&[0]) == Some(&range.start[..]);
        match range.end.as_ref().is_some_and(is_one) {
            true => Self::Key(range.start.clone()),
            false => Self::Range(range.clone()),
        }
    }

    /// Whether both contain some key.
    #[must_use]
    pub fn meets(&self, other: &Self) -> bool {
        let is_empty = |range: &KeyRange| range.end.as_ref().is_some_and(|end| *end <= range.start);
        match (self, other) {
            (Self::Key(one), Self::Key(other)) => one == other,
            (Self::Range(range), keys) | (keys, Self::Range(range)) => {
                !is_empty(range)
                    && match keys {
                        Self::Key(key) => range.contains(key),
                        Self::Range(other) => !is_empty(other) && range.overlaps(other),
                    }
            }
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
    fn changed_keys_are_those_not_only_read() {
        let [blind, exclusive, shared] = [LockMode::Blind, LockMode::Exclusive, LockMode::Shared]
            .map(|mode| LockSpan { keys: LockKeys::Key("a".into()), mode });
        assert!(Locks::NONE.is_empty() && Locks::NONE.changed().next().is_none());
        assert_eq!(Locks::key("a".into(), LockMode::Blind), Locks::one(blind.clone()));
        assert_eq!(Locks::one(shared.clone()).changed().count(), 0);
        assert_eq!(Locks::several(vec![blind, exclusive, shared]).changed().count(), 2);
    }

    #[test]
    fn keys_and_ranges_meet() {
        let spans = [
            LockKeys::Key("b".into()),
            LockKeys::Key("c".into()),
            LockKeys::Range(range("b", Some("c"))),
            LockKeys::Range(range("c", None)),
            LockKeys::Range(range("b", Some("b"))),
        ];
        let meets = |one: usize| spans.iter().map(|other| u8::from(spans[one].meets(other))).collect::<Vec<_>>();
        assert_eq!(meets(0), [1, 0, 1, 0, 0]);
        assert_eq!(meets(1), [0, 1, 0, 1, 0]);
        assert_eq!(meets(2), [1, 0, 1, 0, 0]);
        assert_eq!(meets(3), [0, 1, 0, 1, 0]);
        assert_eq!(meets(4), [0; 5], "no keys");
    }
}
