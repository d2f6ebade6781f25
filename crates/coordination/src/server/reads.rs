//! Reads, and the watches that they set.

use std::borrow::Cow;

use bytes::Bytes;

use super::{ConnectionId, Server};
use crate::acl::{self, Acl, Id, perms};
use crate::jute::{
    ClientInfo, DataReply, ErrorReply, EventType, FrameTooLong, MultiResult, NumberReply, PathAndWatch, PathReply,
    ReadOperation, Record, ReplyHeader, Request, Sequence, SetWatches2, Stat, Writer,
};
use crate::limits::{MULTI_READ_REPLY_BYTES_MAX, REPLY_BYTES_MAX, WATCHED_PATH_BYTES_MAX, WATCHES_MAX};
use crate::state::State;
use crate::tree::NodeRef;
use crate::watches::{WatchTarget, WatcherType, Watches};
use crate::{ErrorCode, jute};

/// The result of a read.
enum ReadReply<'a> {
    Nothing,
    Stat(Stat),
    Data(NodeRef<'a>),
    Children(NodeRef<'a>),
    ChildrenAndStat(NodeRef<'a>),
    Acl(NodeRef<'a>, Cow<'a, [Acl]>),
    Number(i32),
    Paths(Vec<&'a str>),
    Identities(&'a [Id]),
    Path(&'a str),
    Error(ErrorReply),
    Each(Vec<Result<EachRead<'a>, ErrorCode>>),
}

/// The result of one operation of a multiRead.
enum EachRead<'a> {
    Data(NodeRef<'a>),
    Children(NodeRef<'a>),
}

/// Events that a client missed between two connections.
type Missed<'a> = Vec<(EventType, &'a str)>;

impl Server {
    /// Evaluates a read on the current tree and returns the reply. Events caused by the request are sent first.
    pub(super) fn answer(&mut self, connection: ConnectionId, xid: i32, op: i32, body: &[u8]) -> Bytes {
        let Some(client) = self.connections.get(&connection) else {
            debug_assert!(false, "the caller looks up the connection");
            return Bytes::new();
        };
        let ids = client.ids.clone();
        let session = client.established().map_or(0, |established| established.session.0);
        let mut missed = Missed::new();
        let request = Request::decode(op, body);
        let context = ReadContext { state: &self.state, ids: &ids, session, connection };
        let answer = match &request {
            Ok(request) => context.answer(request, &mut self.watches, &mut missed),
            Err(_) => Err(ErrorCode::Marshalling),
        };
        let zxid = self.state.zxid();
        let limit = match &request {
            Ok(Request::MultiRead(_)) => MULTI_READ_REPLY_BYTES_MAX,
            _ => REPLY_BYTES_MAX,
        };
        let frame = self.writer.frame_within(limit, |writer| {
            let err = answer.as_ref().map_or_else(|error| error.code(), |_| 0);
            ReplyHeader { xid, zxid, err }.encode(writer);
            if let Ok(answer) = &answer {
                answer.encode(writer);
            }
        });
        for (kind, path) in missed {
            // ZooKeeper sends these without a zxid.
            let event = self.notification(kind, path, -1);
            self.send_event(connection, event);
        }
        if (self.watches.count() > WATCHES_MAX || self.watches.path_bytes() > WATCHED_PATH_BYTES_MAX)
            && let Some(largest) = self.watches.largest()
        {
            self.close(largest);
        }
        frame.unwrap_or_else(|FrameTooLong { .. }| self.header(xid, Some(ErrorCode::Marshalling)))
    }
}

/// The context of a read.
struct ReadContext<'a> {
    state: &'a State,
    ids: &'a [Id],
    session: i64,
    connection: ConnectionId,
}

impl<'a> ReadContext<'a> {
    fn node(&self, path: &str) -> Option<NodeRef<'a>> {
        self.state.tree().get(path)
    }

    fn readable(&self, path: &str, perm: i32) -> Result<NodeRef<'a>, ErrorCode> {
        let node = self.node(path).ok_or(ErrorCode::NoNode)?;
        acl::check(node.acl(), perm, self.ids)?;
        Ok(node)
    }

    /// The node. Sets a watch if requested.
    fn watched(
        &self,
        read: &PathAndWatch<'_>,
        target: WatchTarget,
        watches: &mut Watches<ConnectionId>,
    ) -> Result<NodeRef<'a>, ErrorCode> {
        let node = self.readable(read.path, perms::READ)?;
        if read.watch {
            watches.add(target, read.path, self.connection);
        }
        Ok(node)
    }

    fn answer<'b, 'c>(
        &self,
        request: &Request<'b>,
        watches: &mut Watches<ConnectionId>,
        missed: &mut Missed<'b>,
    ) -> Result<ReadReply<'c>, ErrorCode>
    where
        'a: 'c,
        'b: 'c,
    {
        Ok(match request {
            Request::Exists(read) => {
                if read.path.contains('\0') {
                    return Err(ErrorCode::BadArguments);
                }
                let node = self.node(read.path);
                if let Some(node) = node {
                    acl::check(node.acl(), perms::READ, self.ids)?;
                }
                // A watch on a missing node fires when the node is created.
                if read.watch {
                    watches.add(WatchTarget::Data, read.path, self.connection);
                }
                ReadReply::Stat(node.ok_or(ErrorCode::NoNode)?.stat())
            }
            Request::GetData(read) => ReadReply::Data(self.watched(read, WatchTarget::Data, watches)?),
            Request::GetChildren(read) => ReadReply::Children(self.watched(read, WatchTarget::Child, watches)?),
            Request::GetChildren2(read) => {
                ReadReply::ChildrenAndStat(self.watched(read, WatchTarget::Child, watches)?)
            }
            Request::GetAcl(read) => {
                let node = self.readable(read.path, perms::READ | perms::ADMIN)?;
                let is_admin = acl::permits(node.acl(), perms::ADMIN, self.ids);
                let list: &'a [Acl] = node.acl();
                ReadReply::Acl(node, if is_admin { list.into() } else { list.iter().map(acl::masked).collect() })
            }
            Request::GetAllChildrenNumber(read) => {
                self.readable(read.path, perms::READ)?;
                let count = self.state.tree().descendants(read.path).unwrap_or(0);
                ReadReply::Number(i32::try_from(count).unwrap_or(i32::MAX))
            }
            Request::GetEphemerals(read) => {
                let prefix = read.prefix.filter(|prefix| !matches!(prefix.trim(), "" | "/")).unwrap_or_default();
                let all = self.state.tree().ephemerals(self.session);
                ReadReply::Paths(all.filter(|path| path.starts_with(prefix)).collect())
            }
            Request::WhoAmI => ReadReply::Identities(self.ids),
            Request::Sync(sync) => ReadReply::Path(sync.path),
            Request::MultiRead(reads) => {
                let each = reads.iter().map(|read| match read {
                    ReadOperation::GetData(read) => self.readable(read.path, perms::READ).map(EachRead::Data),
                    ReadOperation::GetChildren(read) => self.readable(read.path, perms::READ).map(EachRead::Children),
                });
                ReadReply::Each(each.collect())
            }
            Request::SetWatches(set) => {
                let none = Sequence::of(&[]);
                let set = SetWatches2 {
                    relative_zxid: set.relative_zxid,
                    data: set.data,
                    exist: set.exist,
                    child: set.child,
                    persistent: none,
                    persistent_recursive: none,
                };
                self.set_watches(&set, watches, missed);
                ReadReply::Nothing
            }
            Request::SetWatches2(set) => {
                self.set_watches(set, watches, missed);
                ReadReply::Nothing
            }
            Request::AddWatch(add) => {
                if !matches!(add.mode, 0 | 1) {
                    return Err(ErrorCode::Marshalling);
                }
                watches.add_persistent(add.path, self.connection, add.mode == 1);
                ReadReply::Error(ErrorReply { err: 0 })
            }
            Request::CheckWatches(of_type) => {
                let kind = WatcherType::from_code(of_type.kind).ok_or(ErrorCode::Marshalling)?;
                if !watches.contains(of_type.path, kind, self.connection) {
                    return Err(ErrorCode::NoWatcher);
                }
                ReadReply::Nothing
            }
            Request::RemoveWatches(of_type) => {
                let kind = WatcherType::from_code(of_type.kind).ok_or(ErrorCode::Marshalling)?;
                if !watches.remove(of_type.path, kind, self.connection) {
                    return Err(ErrorCode::NoWatcher);
                }
                ReadReply::Nothing
            }
            // Writes go through the log; others were handled on arrival.
            _ => return Err(ErrorCode::Unimplemented),
        })
    }

    /// Restores the watches of a client that has reconnected. Watches of nodes that changed after `relative_zxid` fire
    /// immediately instead.
    fn set_watches<'b>(&self, set: &SetWatches2<'b>, watches: &mut Watches<ConnectionId>, missed: &mut Missed<'b>) {
        let mut check = |target, path: &'b str, event: Option<EventType>| match event {
            Some(event) => missed.push((event, path)),
            None => watches.add(target, path, self.connection),
        };
        for path in set.data.iter() {
            check(
                WatchTarget::Data,
                path,
                match self.node(path).map(NodeRef::stat) {
                    None => Some(EventType::Deleted),
                    Some(stat) => (stat.mzxid > set.relative_zxid).then_some(EventType::DataChanged),
                },
            );
        }
        for path in set.exist.iter() {
            check(WatchTarget::Data, path, self.node(path).map(|_| EventType::Created));
        }
        for path in set.child.iter() {
            check(
                WatchTarget::Child,
                path,
                match self.node(path).map(NodeRef::stat) {
                    None => Some(EventType::Deleted),
                    Some(stat) => (stat.pzxid > set.relative_zxid).then_some(EventType::ChildrenChanged),
                },
            );
        }
        for path in set.persistent.iter() {
            watches.add_persistent(path, self.connection, false);
        }
        for path in set.persistent_recursive.iter() {
            watches.add_persistent(path, self.connection, true);
        }
    }
}

impl ReadReply<'_> {
    fn encode(&self, writer: &mut Writer) {
        match self {
            ReadReply::Nothing => {}
            ReadReply::Stat(stat) => stat.encode(writer),
            ReadReply::Data(node) => DataReply { data: node.data(), stat: node.stat() }.encode(writer),
            ReadReply::Children(node) => writer.sequence(node.children()),
            ReadReply::ChildrenAndStat(node) => {
                writer.sequence(node.children());
                node.stat().encode(writer);
            }
            ReadReply::Acl(node, list) => {
                writer.sequence(list.iter().map(Acl::record));
                node.stat().encode(writer);
            }
            ReadReply::Number(number) => NumberReply { number: *number }.encode(writer),
            ReadReply::Paths(paths) => writer.sequence(paths.iter().copied()),
            ReadReply::Identities(ids) => {
                writer.sequence(ids.iter().map(|id| ClientInfo { scheme: &id.scheme, user: id.user() }));
            }
            ReadReply::Path(path) => PathReply { path }.encode(writer),
            ReadReply::Error(error) => error.encode(writer),
            ReadReply::Each(each) => {
                for read in each {
                    encode_each(read, writer);
                    if writer.is_over_limit() {
                        return;
                    }
                }
                MultiResult::encode_end(writer);
            }
        }
    }
}

fn encode_each(read: &Result<EachRead<'_>, ErrorCode>, writer: &mut Writer) {
    match read {
        Ok(EachRead::Data(node)) => {
            MultiResult::GetData(DataReply { data: node.data(), stat: node.stat() }).encode(writer);
        }
        Ok(EachRead::Children(node)) => {
            let names: Vec<&str> = node.children().collect();
            MultiResult::GetChildren(jute::ChildrenReply { children: Sequence::of(&names) }).encode(writer);
        }
        Err(error) => MultiResult::Error(ErrorReply { err: error.code() }).encode(writer),
    }
}
