//! Watch events.

use super::{DecodeError, record};

record! {
    /// A change of a watched node.
    WatcherEvent<'a> {
        kind: i32,
        state: i32,
        path: &'a str,
    }
}

/// The kind of change of a watched node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum EventType {
    Created = 1,
    Deleted = 2,
    /// Its data was set.
    DataChanged = 3,
    /// Children were created or deleted.
    ChildrenChanged = 4,
}

impl EventType {
    /// The event type with that code.
    ///
    /// # Errors
    /// When the code is unknown.
    pub const fn from_code(code: i32) -> Result<Self, DecodeError> {
        Ok(match code {
            1 => Self::Created,
            2 => Self::Deleted,
            3 => Self::DataChanged,
            4 => Self::ChildrenChanged,
            value => return Err(DecodeError::Invalid { what: "event type", value }),
        })
    }
}

/// The connection state in an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeeperState {
    SyncConnected = 3,
}

impl<'a> WatcherEvent<'a> {
    /// An event of a node.
    #[must_use]
    pub const fn of(kind: EventType, path: &'a str) -> Self {
        Self { kind: kind as i32, state: KeeperState::SyncConnected as i32, path }
    }
}
