//! Where in a table's order of keys a request begins: the range that holds that place answers it.

use base::KeyRange;
use bytes::Bytes;

/// A place in the order of keys.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum KeyPosition {
    /// At a key.
    At(Bytes),
    /// Right below an end, where a scan in reverse begins; none is above every key.
    Below(Option<Bytes>),
}

impl KeyPosition {
    /// Whether that range holds it.
    #[must_use]
    pub fn is_in(&self, range: &KeyRange) -> bool {
        match self {
            Self::At(key) => range.contains(key),
            Self::Below(end) => range.contains_below(end.as_deref()),
        }
    }
}
