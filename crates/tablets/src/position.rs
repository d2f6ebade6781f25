//! Where in a table's order of keys a request begins: the range that holds that place answers it.

use base::KeyRange;
use bytes::Bytes;

use crate::request::Scan;
use crate::tablet::reads::{after_prefix, least};

/// A place in the order of keys.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Position {
    /// At a key.
    At(Bytes),
    /// Right below an end, where a scan in reverse begins; none is above every key.
    Below(Option<Bytes>),
}

impl Position {
    /// Whether that range holds it.
    #[must_use]
    pub fn is_in(&self, range: &KeyRange) -> bool {
        match self {
            Self::At(key) => range.contains(key),
            Self::Below(end) => range.contains_below(end.as_deref()),
        }
    }
}

impl Scan {
    /// Where it begins, or goes on: forwards at the greatest of the keys that it may not come before, in reverse below
    /// the least of those that it may not reach.
    #[must_use]
    pub fn position(&self) -> Position {
        if self.reverse {
            let end = least(least(self.to.clone(), after_prefix(&self.prefix)), self.continuation.clone());
            if end.as_ref().is_some_and(Bytes::is_empty) {
                // No key is below the first: any range may say so.
                return Position::At(Bytes::new());
            }
            return Position::Below(end);
        }
        let from = self.from.clone().max(self.prefix.clone());
        Position::At(self.continuation.clone().unwrap_or_default().max(from))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(text: &'static str) -> Bytes {
        Bytes::from_static(text.as_bytes())
    }

    #[test]
    fn a_scan_begins_at_the_end_that_it_comes_from() {
        let scan = Scan { from: key("b"), to: Some(key("x")), prefix: key("c"), ..Scan::default() };
        assert_eq!(scan.position(), Position::At(key("c")));
        assert_eq!(Scan { continuation: Some(key("cc")), ..scan.clone() }.position(), Position::At(key("cc")));
        assert_eq!(Scan { continuation: Some(key("a")), ..scan.clone() }.position(), Position::At(key("c")));
        let back = Scan { reverse: true, ..scan };
        assert_eq!(back.position(), Position::Below(Some(key("d"))));
        assert_eq!(Scan { continuation: Some(key("cc")), ..back }.position(), Position::Below(Some(key("cc"))));
        assert_eq!(Scan { reverse: true, ..Scan::default() }.position(), Position::Below(None));
        let nothing = Scan { reverse: true, to: Some(key("")), ..Scan::default() };
        assert_eq!(nothing.position(), Position::At(key("")));
    }
}
