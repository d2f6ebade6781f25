//! Requests: a header with a request id (xid) and the operation code, followed by the operation's record.

use super::records::{AclList, Strings};
use super::{DecodeError, Operation, Operations, ReadOperation, Reader, Record, Writer, record};

record! {
    /// The header of every request except the connect request.
    RequestHeader {
        xid: i32,
        op: i32,
    }
}

record! {
    /// Deletes a node; version -1 for any.
    Delete<'a> {
        path: &'a str,
        version: i32,
    }
}

record! {
    /// Sets a node's data; version -1 for any.
    SetData<'a> {
        path: &'a str,
        data: Option<&'a [u8]>,
        version: i32,
    }
}

record! {
    /// Sets a node's ACL; the version is that of the ACL, -1 for any.
    SetAcl<'a> {
        path: &'a str,
        acl: AclList<'a>,
        version: i32,
    }
}

record! {
    /// Compares a node's version, in a multi.
    CheckVersion<'a> {
        path: &'a str,
        version: i32,
    }
}

record! {
    /// exists, getData, getChildren and getChildren2.
    PathAndWatch<'a> {
        path: &'a str,
        watch: bool,
    }
}

record! {
    /// Reads a node's ACL.
    GetAcl<'a> {
        path: &'a str,
    }
}

record! {
    /// Counts a node's descendants.
    GetChildrenNumber<'a> {
        path: &'a str,
    }
}

record! {
    /// Lists the ephemeral nodes of the session below a prefix.
    GetEphemerals<'a> {
        prefix: Option<&'a str>,
    }
}

record! {
    /// Waits until the server has applied all completed writes.
    Sync<'a> {
        path: &'a str,
    }
}

record! {
    /// Registers a client's one-shot watches at its new server.
    SetWatches<'a> {
        relative_zxid: i64,
        data: Strings<'a>,
        exist: Strings<'a>,
        child: Strings<'a>,
    }
}

record! {
    /// Like [`SetWatches`], with persistent watches.
    SetWatches2<'a> {
        relative_zxid: i64,
        data: Strings<'a>,
        exist: Strings<'a>,
        child: Strings<'a>,
        persistent: Strings<'a>,
        persistent_recursive: Strings<'a>,
    }
}

record! {
    /// Adds a persistent watch.
    AddWatch<'a> {
        path: &'a str,
        mode: i32,
    }
}

record! {
    WatchesOfType<'a> {
        path: &'a str,
        kind: i32,
    }
}

record! {
    /// Adds an identity to the connection.
    AuthPacket<'a> {
        kind: i32,
        scheme: Option<&'a str>,
        auth: Option<&'a [u8]>,
    }
}

record! {
    /// Changes the members of the ensemble.
    Reconfig<'a> {
        joining: Option<&'a str>,
        leaving: Option<&'a str>,
        members: Option<&'a str>,
        config: i64,
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Create<'a> {
    pub kind: CreateKind,
    /// The path; for sequential nodes, the prefix.
    pub path: &'a str,
    pub data: Option<&'a [u8]>,
    pub acl: AclList<'a>,
    /// 0 persistent, 1 ephemeral, 2 sequential, 3 both, 4 container, 5 with a TTL, 6 with a TTL and sequential.
    pub flags: i32,
    /// Time to live in milliseconds; only for [`CreateKind::Ttl`].
    pub ttl_ms: Option<i64>,
}

/// The operations that create nodes. They differ in their replies and in the kinds of nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the operations' own names")]
pub enum CreateKind {
    Create,
    Create2,
    Container,
    Ttl,
}

impl CreateKind {
    #[must_use]
    pub const fn op(self) -> i32 {
        match self {
            Self::Create => op::CREATE,
            Self::Create2 => op::CREATE2,
            Self::Container => op::CREATE_CONTAINER,
            Self::Ttl => op::CREATE_TTL,
        }
    }
}

impl<'a> Create<'a> {
    pub(super) fn decode(kind: CreateKind, reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        Ok(Self {
            kind,
            path: Record::decode(reader)?,
            data: Record::decode(reader)?,
            acl: Record::decode(reader)?,
            flags: Record::decode(reader)?,
            ttl_ms: if kind == CreateKind::Ttl { Some(Record::decode(reader)?) } else { None },
        })
    }

    pub(super) fn encode(&self, writer: &mut Writer) {
        self.path.encode(writer);
        self.data.encode(writer);
        self.acl.encode(writer);
        self.flags.encode(writer);
        if self.kind == CreateKind::Ttl {
            self.ttl_ms.unwrap_or(-1).encode(writer);
        }
    }
}

/// Operation codes (`ZooDefs.OpCode`).
#[expect(missing_docs, reason = "the operations' own names")]
pub mod op {
    pub const CREATE: i32 = 1;
    pub const DELETE: i32 = 2;
    pub const EXISTS: i32 = 3;
    pub const GET_DATA: i32 = 4;
    pub const SET_DATA: i32 = 5;
    pub const GET_ACL: i32 = 6;
    pub const SET_ACL: i32 = 7;
    pub const GET_CHILDREN: i32 = 8;
    pub const SYNC: i32 = 9;
    pub const PING: i32 = 11;
    pub const GET_CHILDREN2: i32 = 12;
    pub const CHECK: i32 = 13;
    pub const MULTI: i32 = 14;
    pub const CREATE2: i32 = 15;
    pub const RECONFIG: i32 = 16;
    pub const CHECK_WATCHES: i32 = 17;
    pub const REMOVE_WATCHES: i32 = 18;
    pub const CREATE_CONTAINER: i32 = 19;
    pub const CREATE_TTL: i32 = 21;
    pub const MULTI_READ: i32 = 22;
    pub const AUTH: i32 = 100;
    pub const SET_WATCHES: i32 = 101;
    pub const SASL: i32 = 102;
    pub const GET_EPHEMERALS: i32 = 103;
    pub const GET_ALL_CHILDREN_NUMBER: i32 = 104;
    pub const SET_WATCHES2: i32 = 105;
    pub const ADD_WATCH: i32 = 106;
    pub const WHO_AM_I: i32 = 107;
    pub const CREATE_SESSION: i32 = -10;
    pub const CLOSE_SESSION: i32 = -11;
    pub const ERROR: i32 = -1;
}

/// Requests that consist of one record.
macro_rules! requests {
    ($($op:ident => $name:ident($type:ty),)*) => {
        /// A request of a client.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[expect(missing_docs, reason = "the operations' own names")]
        pub enum Request<'a> {
            Create(Create<'a>),
            Ping,
            WhoAmI,
            CloseSession,
            $($name($type),)*
        }

        impl<'a> Request<'a> {
            /// Decodes the record of operation `op`. Trailing bytes are ignored, as in ZooKeeper.
            ///
            /// # Errors
            /// When the operation is unknown, or its record cannot be decoded.
            pub fn decode(op: i32, body: &'a [u8]) -> Result<Self, DecodeError> {
                let reader = &mut Reader::new(body);
                Ok(match op {
                    op::CREATE => Self::Create(Create::decode(CreateKind::Create, reader)?),
                    op::CREATE2 => Self::Create(Create::decode(CreateKind::Create2, reader)?),
                    op::CREATE_CONTAINER => Self::Create(Create::decode(CreateKind::Container, reader)?),
                    op::CREATE_TTL => Self::Create(Create::decode(CreateKind::Ttl, reader)?),
                    op::PING => Self::Ping,
                    op::WHO_AM_I => Self::WhoAmI,
                    op::CLOSE_SESSION => Self::CloseSession,
                    $(op::$op => Self::$name(Record::decode(reader)?),)*
                    unknown => return Err(DecodeError::UnknownOperation(unknown)),
                })
            }

            #[must_use]
            pub const fn op(&self) -> i32 {
                match self {
                    Self::Create(create) => create.kind.op(),
                    Self::Ping => op::PING,
                    Self::WhoAmI => op::WHO_AM_I,
                    Self::CloseSession => op::CLOSE_SESSION,
                    $(Self::$name(_) => op::$op,)*
                }
            }

            /// Writes the record without a header.
            pub fn encode(&self, writer: &mut Writer) {
                match self {
                    Self::Create(create) => create.encode(writer),
                    Self::Ping | Self::WhoAmI | Self::CloseSession => {}
                    $(Self::$name(record) => record.encode(writer),)*
                }
            }
        }
    };
}

requests! {
    DELETE => Delete(Delete<'a>),
    EXISTS => Exists(PathAndWatch<'a>),
    GET_DATA => GetData(PathAndWatch<'a>),
    SET_DATA => SetData(SetData<'a>),
    GET_ACL => GetAcl(GetAcl<'a>),
    SET_ACL => SetAcl(SetAcl<'a>),
    GET_CHILDREN => GetChildren(PathAndWatch<'a>),
    SYNC => Sync(Sync<'a>),
    GET_CHILDREN2 => GetChildren2(PathAndWatch<'a>),
    MULTI => Multi(Operations<'a, Operation<'a>>),
    RECONFIG => Reconfig(Reconfig<'a>),
    CHECK_WATCHES => CheckWatches(WatchesOfType<'a>),
    REMOVE_WATCHES => RemoveWatches(WatchesOfType<'a>),
    MULTI_READ => MultiRead(Operations<'a, ReadOperation<'a>>),
    AUTH => Auth(AuthPacket<'a>),
    SET_WATCHES => SetWatches(SetWatches<'a>),
    GET_EPHEMERALS => GetEphemerals(GetEphemerals<'a>),
    GET_ALL_CHILDREN_NUMBER => GetAllChildrenNumber(GetChildrenNumber<'a>),
    SET_WATCHES2 => SetWatches2(SetWatches2<'a>),
    ADD_WATCH => AddWatch(AddWatch<'a>),
}

impl Request<'_> {
    /// Whether the request is appended to the log.
    #[must_use]
    pub const fn is_write(&self) -> bool {
        matches!(
            self,
            Self::Create(_)
                | Self::Delete(_)
                | Self::SetData(_)
                | Self::SetAcl(_)
                | Self::Multi(_)
                | Self::CloseSession
        )
    }

    /// Encodes the request with its header as one frame.
    #[must_use]
    pub fn to_frame(&self, xid: i32) -> bytes::Bytes {
        Writer::new().frame(|writer| {
            RequestHeader { xid, op: self.op() }.encode(writer);
            self.encode(writer);
        })
    }
}
