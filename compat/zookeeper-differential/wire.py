"""The parts of the ZooKeeper protocol that the comparison needs: encodes requests, and decodes replies into plain
values."""

import enum
import socket
import struct


class Op(enum.IntEnum):
    CREATE = 1
    DELETE = 2
    EXISTS = 3
    GET_DATA = 4
    SET_DATA = 5
    GET_ACL = 6
    SET_ACL = 7
    GET_CHILDREN = 8
    SYNC = 9
    GET_CHILDREN2 = 12
    CHECK = 13
    MULTI = 14
    CREATE2 = 15
    RECONFIG = 16
    CHECK_WATCHES = 17
    REMOVE_WATCHES = 18
    CREATE_CONTAINER = 19
    CREATE_TTL = 21
    MULTI_READ = 22
    AUTH = 100
    SET_WATCHES = 101
    GET_EPHEMERALS = 103
    GET_ALL_CHILDREN_NUMBER = 104
    SET_WATCHES2 = 105
    ADD_WATCH = 106
    WHO_AM_I = 107
    CLOSE_SESSION = -11
    ERROR = -1


AUTH_XID, NOTIFICATION_XID, PING_XID, SET_WATCHES_XID = -4, -1, -2, -8
REPLY_SECONDS = 10


class Closed(Exception):
    """The server closed the connection."""


def integer(value):
    return struct.pack(">i", value)


def long(value):
    return struct.pack(">q", value)


def boolean(value):
    return b"\1" if value else b"\0"


def buffer(value):
    return integer(-1) if value is None else integer(len(value)) + value


def string(value):
    return buffer(None if value is None else value.encode())


def vector(items, encode=string):
    return integer(len(items)) + b"".join(encode(item) for item in items)


def acl(entry):
    permissions, scheme, identity = entry
    return integer(permissions) + string(scheme) + string(identity)


class Reader:
    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, count):
        if self.at + count > len(self.data):
            raise ValueError(f"truncated reply: {self.data.hex()}")
        self.at += count
        return self.data[self.at - count : self.at]

    def rest(self):
        return self.data[self.at :]

    def integer(self):
        return struct.unpack(">i", self.take(4))[0]

    def long(self):
        return struct.unpack(">q", self.take(8))[0]

    def boolean(self):
        return self.take(1) != b"\0"

    def buffer(self):
        length = self.integer()
        return None if length < 0 else self.take(length)

    def string(self):
        value = self.buffer()
        return None if value is None else value.decode()

    def vector(self, decode=None):
        return [(decode or Reader.string)(self) for _ in range(max(0, self.integer()))]

    def stat(self):
        zxids = {"czxid": self.long(), "mzxid": self.long()}
        self.take(16)  # ctime, mtime
        return {
            **zxids,
            "version": self.integer(),
            "cversion": self.integer(),
            "aversion": self.integer(),
            "owner": self.long(),
            "length": self.integer(),
            "children": self.integer(),
            "pzxid": self.long(),
        }

    def acl(self):
        return (self.integer(), self.string(), self.string())

    def identity(self):
        return (self.string(), self.string())


def multi_results(reader):
    results = []
    while True:
        op, done, err = reader.integer(), reader.boolean(), reader.integer()
        if done:
            return results
        result = {"op": op, "err": err}
        if op == Op.ERROR:
            result["code"] = reader.integer()
        else:
            result |= body(op, reader)
        results.append(result)


def body(op, reader):
    """Decodes the body of a reply. Lists without a defined order are sorted."""
    match op:
        case Op.CREATE | Op.SYNC:
            return {"path": reader.string()}
        case Op.CREATE2 | Op.CREATE_CONTAINER | Op.CREATE_TTL:
            return {"path": reader.string(), "stat": reader.stat()}
        case Op.EXISTS | Op.SET_DATA | Op.SET_ACL:
            return {"stat": reader.stat()}
        case Op.GET_DATA:
            return {"data": reader.buffer(), "stat": reader.stat()}
        case Op.GET_ACL:
            return {"acl": sorted(reader.vector(Reader.acl)), "stat": reader.stat()}
        case Op.GET_CHILDREN | Op.GET_EPHEMERALS:
            return {"children": sorted(reader.vector())}
        case Op.GET_CHILDREN2:
            return {"children": sorted(reader.vector()), "stat": reader.stat()}
        case Op.GET_ALL_CHILDREN_NUMBER:
            return {"number": reader.integer()}
        case Op.MULTI | Op.MULTI_READ:
            return {"results": multi_results(reader)}
        case Op.WHO_AM_I:
            return {"identities": sorted(reader.vector(Reader.identity))}
        case Op.ADD_WATCH:
            return {"code": reader.integer()} if reader.rest() else {}
    return {}


class Session:
    """A session. `connect` moves it to another server."""

    def __init__(self, timeout_ms):
        self.timeout_ms, self.id, self.password, self.zxid, self.socket = timeout_ms, 0, bytes(16), 0, None

    def connect(self, endpoint):
        if self.socket:
            self.socket.close()
        host, port = endpoint.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), timeout=REPLY_SECONDS)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.received = b""
        self.xid = 0
        request = integer(0) + long(self.zxid) + integer(self.timeout_ms) + long(self.id) + buffer(self.password)
        self.send(buffer(request + boolean(False)))
        reader = Reader(self.frame())
        reader.integer()
        timeout, self.id, self.password = reader.integer(), reader.long(), reader.buffer()
        return timeout

    def send(self, frames):
        try:
            self.socket.sendall(frames)
        except OSError as error:
            raise Closed("reset") from error

    def frame(self):
        while True:
            if len(self.received) >= 4:
                length = struct.unpack(">i", self.received[:4])[0]
                if len(self.received) >= 4 + length:
                    frame, self.received = self.received[4 : 4 + length], self.received[4 + length :]
                    return frame
            try:
                data = self.socket.recv(1 << 20)
            except TimeoutError as error:
                raise Closed(f"no reply within {REPLY_SECONDS} s") from error
            except OSError as error:
                raise Closed("reset") from error
            if not data:
                raise Closed("closed")
            self.received += data

    def exchange(self, requests):
        """Sends requests (op, body, xid or None) at once; returns all replies and events in order, and
        whether the connection is still open."""
        expected, told, frames = [], [], b""
        for op, data, xid in requests:
            if xid is None:
                self.xid += 1
                xid = self.xid
            expected.append((xid, op))
            frames += integer(8 + len(data)) + integer(xid) + integer(op) + data
        try:
            self.send(frames)
            while expected:
                told.append(self.told(expected))
            return told, True
        except Closed as error:
            return told + [{"closed": str(error)}], False

    def told(self, expected):
        reader = Reader(self.frame())
        xid, zxid, err = reader.integer(), reader.long(), reader.integer()
        if xid == NOTIFICATION_XID:
            return {"event": reader.integer(), "state": reader.integer(), "path": reader.string()}
        wanted, op = expected.pop(0)
        if xid != wanted:
            return {"op": op, "xid": f"{xid} in place of {wanted}"}
        if zxid > 0:
            self.zxid = max(self.zxid, zxid)
        reply = {"op": op, "err": err, "zxid": zxid}
        if err == 0:
            reply |= body(op, reader)
            if reader.rest():
                reply["rest"] = reader.rest().hex()
        return reply
