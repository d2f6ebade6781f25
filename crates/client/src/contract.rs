//! What goes into the machine and what comes out of it.

use base::{Duration, KeyRange, Monotonic};
use bytes::Bytes;

use crate::{Error, Fault, Place, Position, Shown};

/// A call, from its beginning to its [`Action::Done`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallId(pub u64);

/// One attempt of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AttemptId(pub u64);

/// One connection, from [`Action::Connect`] on. No two have the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Link {
    /// To whom: the endpoint's place in the list.
    pub endpoint: usize,
    /// Counts all connections.
    pub number: u64,
}

/// Which write of which session a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Stamp {
    /// The session.
    pub session: u64,
    /// The write's number in it, from 1.
    pub sequence: u64,
    /// The client will not ask again about any lower number.
    pub first_incomplete: u64,
}

/// What a call may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Nothing that anybody could tell.
    Reads,
    /// Something that is there once however often it is made, such as a table.
    Repeatable,
    /// A row. It applies once because it carries a stamp.
    Writes,
    /// An append to a shared log: a retry may append it a second time, and the stamp that the caller gave it has readers
    /// deliver it once.
    Appends,
}

/// How soon an answer may be expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// Within milliseconds, as of one row.
    Prompt,
    /// In its own time: a page of rows, a new table.
    Slow,
}

/// What a caller wants.
#[derive(Clone, Debug)]
pub struct Ask<Q> {
    /// The table; empty: none in particular.
    pub table: String,
    /// The row, or where a scan begins.
    pub key: Bytes,
    /// What it may change.
    pub effect: Effect,
    /// How soon it may be answered.
    pub pace: Pace,
    /// Its bytes: many take their time on the way.
    pub bytes: usize,
    /// Of a read that any replica may answer: where it begins. It goes to all nodes in turn.
    pub anywhere: Option<Position>,
    /// The request itself.
    pub request: Q,
}

/// What goes to a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sent<Q> {
    /// A session is to be opened in the range that holds the key.
    OpenSession {
        /// The table.
        table: String,
        /// The key.
        key: Bytes,
    },
    /// What a caller wants.
    Request {
        /// The request.
        request: Q,
        /// A write's stamp.
        stamp: Option<Stamp>,
        /// How far the client has seen the range of a read that any replica may answer: a timeline read shows no less.
        seen: Option<Place>,
        /// Whether an earlier attempt may have been carried out.
        in_doubt: bool,
    },
}

/// A definite good answer of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer<A> {
    /// To [`Sent::OpenSession`].
    Session {
        /// The session.
        session: u64,
        /// The keys that can be written in it.
        range: KeyRange,
    },
    /// To [`Sent::Request`].
    Of(A),
    /// To [`Sent::Request`], by a replica that tells which state it has shown.
    Shown {
        /// The answer.
        answer: A,
        /// The state.
        shown: Shown,
    },
}

/// What the driver is to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Action<Q, A> {
    /// Connect to an endpoint; [`connected`](crate::Client::connected) or [`broken`](crate::Client::broken) must
    /// follow.
    Connect(Link),
    /// Leave a connection: nothing more is sent over it. What still comes from it may be handed in.
    Disconnect(Link),
    /// Send a request over a connection that is there; [`answered`](crate::Client::answered) follows, or the connection
    /// is broken.
    Send {
        /// The connection.
        link: Link,
        /// Names the attempt in its answer.
        attempt: AttemptId,
        /// How long the node has for its answer.
        time: Duration,
        /// The request.
        sent: Sent<Q>,
    },
    /// Tell the caller.
    Done {
        /// The call.
        call: CallId,
        /// What it came to.
        outcome: Result<A, Error>,
        /// Whether an earlier attempt may have been carried out that nobody told of.
        in_doubt: bool,
    },
    /// Call [`timer`](crate::Client::timer) at this time; it takes the place of the last one.
    SetTimer(Monotonic),
}

/// What an attempt came to.
pub(crate) type Told<A> = Result<Answer<A>, Fault>;
