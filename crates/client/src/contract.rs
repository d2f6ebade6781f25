//! The input and output types of the state machine.

use std::fmt;
use std::str::FromStr;

use base::{Duration, KeyRange, Monotonic};
use bytes::Bytes;

use crate::{CohortLsn, Error, Fault, ScanStart, Shown};

/// A call, from its beginning to its [`Action::Done`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallId(pub u64);

/// An attempt of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AttemptId(pub u64);

/// A connection, from its [`Action::Connect`] on. Numbers are unique.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Link {
    /// The index of the endpoint.
    pub endpoint: usize,
    /// The number of the connection.
    pub number: u64,
}

/// Identifies a write of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Stamp {
    /// The id of the session.
    pub session: u64,
    /// The number of the write in the session, from 1.
    pub sequence: u64,
    /// The client will not retry any lower number.
    pub first_incomplete: u64,
}

/// Identifies a commit that was sent: the row at which its outcome is decided, and its stamp.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TransactionId {
    /// The table of the coordinator's key.
    pub table: String,
    /// The range that holds this key knows the outcome.
    pub key: Bytes,
    /// The stamp of the commit.
    pub stamp: Stamp,
}

impl fmt::Display for TransactionId {
    /// A text that [`TransactionId::from_str`] reads.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { table, key, stamp } = self;
        write!(f, "{}/{}/{}/", stamp.session, stamp.sequence, stamp.first_incomplete)?;
        key.iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        write!(f, "/{table}")
    }
}

/// A text that is not the id of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not the id of a transaction")]
pub struct InvalidTransactionId;

impl FromStr for TransactionId {
    type Err = InvalidTransactionId;

    fn from_str(text: &str) -> Result<Self, InvalidTransactionId> {
        let mut parts = text.splitn(5, '/');
        let mut next = || parts.next().ok_or(InvalidTransactionId);
        let number = |text: &str| text.parse::<u64>().map_err(|_| InvalidTransactionId);
        let stamp = Stamp { session: number(next()?)?, sequence: number(next()?)?, first_incomplete: number(next()?)? };
        let (key, table) = (next()?, next()?);
        if key.len() % 2 != 0 || !key.is_ascii() {
            return Err(InvalidTransactionId);
        }
        let byte = |at| u8::from_str_radix(&key[at..at + 2], 16).map_err(|_| InvalidTransactionId);
        let key = (0..key.len()).step_by(2).map(byte).collect::<Result<Vec<u8>, _>>()?;
        Ok(Self { table: table.to_owned(), key: key.into(), stamp })
    }
}

/// The effect of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// None: it only reads.
    Reads,
    /// Repeating it is harmless, as for the creation of a table.
    Repeatable,
    /// Writes a row. Retries are idempotent because of the stamp.
    Writes,
    /// Commits a transaction, with a stamp as a write. After an unknown outcome its session takes no further writes: they
    /// would acknowledge the commit, and its range would forget the outcome before it can be asked for.
    Commits,
    /// Opens a session in the range of the key, which this client uses for nothing else. The call ends with
    /// [`Action::Opened`].
    OpensSession,
    /// Appends to a shared log. A retry may append a second time, and readers deliver the entry once because of the
    /// caller's stamp.
    Appends,
    /// Appends to a shared log, and is never repeated after an attempt that may have been executed: then the call ends
    /// with [`Error::OutcomeUnknown`].
    AppendsOnce,
}

impl Effect {
    /// Whether it carries a stamp of a session.
    pub(crate) fn has_stamp(self) -> bool {
        matches!(self, Self::Writes | Self::Commits)
    }
}

/// The expected response time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// Milliseconds, as for one row.
    Prompt,
    /// Longer, as for a page of rows or a new table.
    Slow,
}

/// A request of a caller.
#[derive(Clone, Debug)]
pub struct Ask<Q> {
    /// The table; empty if none.
    pub table: String,
    /// The row, or the position where a scan begins.
    pub key: Bytes,
    pub effect: Effect,
    /// The expected response time.
    pub pace: Pace,
    /// The size in bytes: large requests get more time.
    pub bytes: usize,
    /// For reads that any replica may answer: the position where the read begins. Such reads are distributed over all
    /// nodes.
    pub anywhere: Option<ScanStart>,
    /// The stamp of a commit in a session that the caller has opened ([`Effect::OpensSession`]). None: one in a session
    /// of this client.
    pub stamp: Option<Stamp>,
    pub request: Q,
}

/// A request to a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sent<Q> {
    /// Opens a session in the range that contains the key.
    OpenSession { table: String, key: Bytes },
    Request {
        request: Q,
        /// The stamp of a write.
        stamp: Option<Stamp>,
        /// For reads that any replica may answer: the latest seen state of the range. The result of a timeline read
        /// must not be older.
        seen: Option<CohortLsn>,
        /// Whether an earlier attempt may have been executed.
        in_doubt: bool,
    },
}

/// A successful response of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeResponse<A> {
    /// The response to [`Sent::OpenSession`].
    Session {
        session: u64,
        /// The keys that the session can write.
        range: KeyRange,
    },
    /// The response to [`Sent::Request`].
    Of(A),
    /// The response to [`Sent::Request`], with the state it was read from.
    Shown { answer: A, shown: Shown },
}

/// An action for the driver.
#[derive(Clone, Debug, PartialEq)]
pub enum Action<Q, A> {
    /// Connect to an endpoint, and report [`connected`](crate::Client::connected) or [`broken`](crate::Client::broken).
    Connect(Link),
    /// Stop using a connection. Responses that still arrive over it may be reported.
    Disconnect(Link),
    /// Send a request over an open connection, and report [`answered`](crate::Client::answered), unless the connection
    /// breaks.
    Send {
        link: Link,
        /// Identifies the attempt in its response.
        attempt: AttemptId,
        /// The timeout for the node.
        time: Duration,
        sent: Sent<Q>,
    },
    /// Report the outcome to the caller.
    Done {
        call: CallId,
        outcome: Result<A, Error>,
        /// Whether an earlier attempt with unknown outcome may have been executed.
        in_doubt: bool,
        /// The stamp of a write.
        stamp: Option<Stamp>,
    },
    /// Report the new session to the caller of an [`Effect::OpensSession`]. This ends the call.
    Opened { call: CallId, session: u64 },
    /// Call [`timer`](crate::Client::timer) at this time. This replaces the previous timer.
    SetTimer(Monotonic),
}

/// The result of an attempt.
pub(crate) type AttemptResult<A> = Result<NodeResponse<A>, Fault>;
