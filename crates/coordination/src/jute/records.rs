//! Records shared by requests and replies.

use super::{Sequence, record};

record! {
    Stat {
        czxid: i64,
        mzxid: i64,
        ctime: i64,
        mtime: i64,
        version: i32,
        cversion: i32,
        aversion: i32,
        ephemeral_owner: i64,
        data_length: i32,
        num_children: i32,
        pzxid: i64,
    }
}

record! {
    /// An identity within an authentication scheme. Null fields decode, and are rejected later.
    IdRecord<'a> {
        scheme: Option<&'a str>,
        id: Option<&'a str>,
    }
}

record! {
    /// Permissions of an identity.
    AclRecord<'a> {
        perms: i32,
        id: IdRecord<'a>,
    }
}

pub(super) type AclList<'a> = Sequence<'a, AclRecord<'a>>;
/// A vector of paths or names.
pub(super) type Strings<'a> = Sequence<'a, &'a str>;
