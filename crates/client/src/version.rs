//! Versions of columns.

use std::fmt;
use std::num::ParseIntError;
use std::str::FromStr;

/// The version of a column: the commit timestamp of its last write, in nanoseconds since 1970. It increases with every
/// write of the column.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(i64);

impl Version {
    /// As a condition: the column must be absent. In [`Error::Refused`](crate::Error::Refused): it is absent.
    pub const ABSENT: Self = Self(0);

    /// The version with this timestamp, in nanoseconds since 1970.
    #[must_use]
    pub const fn from_nanos(nanos: i64) -> Self {
        Self(nanos)
    }

    /// The timestamp, in nanoseconds since 1970.
    #[must_use]
    pub const fn as_nanos(self) -> i64 {
        self.0
    }
}

/// The nanoseconds, in decimal.
impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for Version {
    type Err = ParseIntError;

    fn from_str(text: &str) -> Result<Self, ParseIntError> {
        text.parse().map(Self)
    }
}
