//! The position in a table's key order at which a request begins. The range that contains the position serves the
//! request.

use base::KeyRange;
use bytes::Bytes;

/// A position in key order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum KeyPosition {
    At(Bytes),
    /// Immediately below this exclusive end, where a reverse scan begins. None is above every key.
    Below(Option<Bytes>),
}

impl KeyPosition {
    /// Whether the range contains the position.
    #[must_use]
    pub fn is_in(&self, range: &KeyRange) -> bool {
        match self {
            Self::At(key) => range.contains(key),
            Self::Below(end) => range.contains_below(end.as_deref()),
        }
    }
}
