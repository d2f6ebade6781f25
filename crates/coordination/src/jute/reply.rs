//! Replies: a header, followed by the operation's record unless the header has an error.

use super::records::{AclList, Strings};
use super::{Sequence, Stat, record};

pub mod xid {
    pub const NOTIFICATION: i32 = -1;
    /// Of pings and their replies.
    pub const PING: i32 = -2;
}

record! {
    /// The header of every reply and event.
    ReplyHeader {
        xid: i32,
        zxid: i64,
        err: i32,
    }
}

record! {
    /// create, and sync.
    PathReply<'a> {
        path: &'a str,
    }
}

record! {
    /// create2, createContainer, createTTL.
    Create2Reply<'a> {
        path: &'a str,
        stat: Stat,
    }
}

record! {
    /// exists, setData, setACL.
    StatReply {
        stat: Stat,
    }
}

record! {
    DataReply<'a> {
        data: Option<&'a [u8]>,
        stat: Stat,
    }
}

record! {
    /// getChildren, getEphemerals.
    ChildrenReply<'a> {
        children: Strings<'a>,
    }
}

record! {
    /// getChildren2.
    Children2Reply<'a> {
        children: Strings<'a>,
        stat: Stat,
    }
}

record! {
    AclReply<'a> {
        acl: AclList<'a>,
        stat: Stat,
    }
}

record! {
    NumberReply {
        number: i32,
    }
}

record! {
    /// A failed operation of a multi; also addWatch, with 0.
    ErrorReply {
        err: i32,
    }
}

record! {
    /// An identity of the client.
    ClientInfo<'a> {
        scheme: &'a str,
        user: &'a str,
    }
}

record! {
    WhoAmIReply<'a> {
        clients: Sequence<'a, ClientInfo<'a>>,
    }
}
