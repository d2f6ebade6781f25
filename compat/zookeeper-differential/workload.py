"""Random requests of several sessions, mostly valid, on few paths so that they conflict."""

import wire
from wire import Op

DATA = [None, b"", b"x", b"some data", bytes(range(256)), b"z" * 5000]
# No TTL expires during the test.
TTL_MS = 3_600_000
# Containers have separate names and no children: an emptied container is deleted at a nondeterministic time.
CONTAINER = "/k"
WORLD = (31, "world", "anyone")
USERS = ["ann:secret", "bob:hunter2"]
ACLS = [
    [WORLD],
    [WORLD],
    [WORLD],
    [(1, "world", "anyone")],
    [(31, "auth", "")],
    [(31, "ip", "127.0.0.1")],
    [(31, "ip", "10.0.0.0/8"), (1, "world", "anyone")],
    [WORLD, WORLD],
    [(31, "digest", "ann:malformed")],
    [(31, "sasl", "x")],
    [(31, "nothing", "x")],
    [(0, "world", "anyone")],
    [(31, "world", "nobody")],
    [],
]
WRONG_PATHS = ["", "a", "/a/", "//", "/a//b", "/a/./b", "/a/../b", "/\x01", "/a\x00b", "/.", "/ü", "/a b"]
# Not /zookeeper/config, because its data contains the servers' addresses.
SPECIAL = ["/", "/zookeeper", "/zookeeper/quota"]
READS = {Op.EXISTS, Op.GET_DATA, Op.GET_ACL, Op.GET_CHILDREN, Op.GET_CHILDREN2, Op.GET_ALL_CHILDREN_NUMBER}


def digest(user):
    import base64
    import hashlib

    name = user.split(":")[0]
    return f"{name}:{base64.b64encode(hashlib.sha1(user.encode()).digest()).decode()}"


class Workload:
    def __init__(self, random):
        self.random = random
        self.acls = ACLS + [[(31, "digest", digest(user))] for user in USERS] * 2

    def path(self):
        draw = self.random.random()
        if draw < 0.02:
            return self.random.choice(WRONG_PATHS)
        if draw < 0.05:
            return self.random.choice(SPECIAL)
        depth = self.random.choice([1, 1, 2, 2, 2, 3, 3])
        path = "".join(f"/{self.random.choice('abc')}" for _ in range(depth))
        return path + CONTAINER if draw < 0.1 else path

    def container(self):
        path = self.path()
        return path if path.endswith(CONTAINER) else path.rstrip("/") + CONTAINER

    def data(self):
        return self.random.choice(DATA)

    def version(self):
        return self.random.choice([-1, -1, -1, -1, 0, 0, 1, 2, 3, 7, -2])

    def acl(self):
        return wire.vector(self.random.choice(self.acls), wire.acl)

    def create(self, op, in_multi):
        flags, ttls = {
            Op.CREATE_CONTAINER: ([4] * 12 + [0, 5, 9], []),
            Op.CREATE_TTL: ([5] * 6 + [6] * 6 + [0, 1, 4, -1], [TTL_MS, TTL_MS, TTL_MS, 0, -1, 1 << 40]),
        }.get(op, ([0] * 8 + [1, 1, 1, 2, 2, 3, 3, 4, 5, 7, -1], []))
        if in_multi:
            # A mode that does not match the operation, or a TTL out of range, crashes a ZooKeeper server.
            valid = {Op.CREATE_CONTAINER: {4}, Op.CREATE_TTL: {5, 6}}.get(op, {0, 1, 2, 3, 4})
            flags, ttls = [flag for flag in flags if flag in valid], [TTL_MS] if ttls else []
        flags = self.random.choice(flags)
        path = self.container() if op == Op.CREATE_CONTAINER else self.path()
        body = wire.string(path) + wire.buffer(self.data()) + self.acl() + wire.integer(flags)
        if not ttls:
            return body
        ttl = self.random.choice(ttls)
        # A node without a TTL also crashes it.
        return body + wire.long(0 if ttl == -1 and flags not in (5, 6) else ttl)

    def watched(self):
        return wire.string(self.path()) + wire.boolean(self.random.random() < 0.3)

    def versioned(self):
        return wire.string(self.path()) + wire.integer(self.version())

    def set_data(self):
        return wire.string(self.path()) + wire.buffer(self.data()) + wire.integer(self.version())

    def paths(self):
        return wire.vector([self.path() for _ in range(self.random.randrange(3))])

    def operation(self, ops, body):
        op = self.random.choice(ops)
        return wire.integer(op) + wire.boolean(False) + wire.integer(-1) + body(op)

    def operations(self, ops, body):
        count = self.random.choice([0, 1, 2, 2, 3, 3, 4, 6])
        end = wire.integer(-1) + wire.boolean(True) + wire.integer(-1)
        return b"".join(self.operation(ops, body) for _ in range(count)) + end

    def body(self, op, in_multi=False):
        match op:
            case Op.CREATE | Op.CREATE2 | Op.CREATE_CONTAINER | Op.CREATE_TTL:
                return self.create(op, in_multi)
            case Op.DELETE | Op.CHECK:
                return self.versioned()
            case Op.EXISTS | Op.GET_DATA | Op.GET_CHILDREN | Op.GET_CHILDREN2:
                return self.watched()
            case Op.SET_DATA:
                return self.set_data()
            case Op.GET_ACL | Op.GET_EPHEMERALS | Op.GET_ALL_CHILDREN_NUMBER | Op.SYNC:
                return wire.string(self.path())
            case Op.SET_ACL:
                return wire.string(self.path()) + self.acl() + wire.integer(self.version())
            case Op.MULTI:
                ops = [Op.CREATE, Op.CREATE, Op.CREATE2, Op.DELETE, Op.SET_DATA, Op.SET_DATA, Op.CHECK]
                ops += [Op.CREATE_CONTAINER, Op.CREATE_TTL]
                return self.operations(ops, lambda op: self.body(op, in_multi=True))
            case Op.MULTI_READ:
                return self.operations([Op.GET_DATA, Op.GET_CHILDREN], lambda op: self.body(op, in_multi=True))
            case Op.SET_WATCHES:
                return wire.long(0) + b"".join(self.paths() for _ in range(3))
            case Op.SET_WATCHES2:
                return wire.long(0) + b"".join(self.paths() for _ in range(5))
            case Op.ADD_WATCH:
                return wire.string(self.path()) + wire.integer(self.random.choice([0, 0, 0, 1, 1, 1, 2, -1]))
            case Op.CHECK_WATCHES | Op.REMOVE_WATCHES:
                return wire.string(self.path()) + wire.integer(self.random.choice([1, 2, 3, 4, 5, 0, 9]))
            case Op.RECONFIG:
                return wire.string("server.9=127.0.0.1:1:2;3") + wire.string(None) + wire.string(None) + wire.long(-1)
        return b""

    OPS = {
        Op.CREATE: 20,
        Op.CREATE2: 8,
        Op.CREATE_CONTAINER: 3,
        Op.CREATE_TTL: 3,
        Op.DELETE: 14,
        Op.EXISTS: 9,
        Op.GET_DATA: 9,
        Op.SET_DATA: 14,
        Op.GET_ACL: 4,
        Op.SET_ACL: 4,
        Op.GET_CHILDREN: 5,
        Op.GET_CHILDREN2: 6,
        Op.SYNC: 1,
        Op.CHECK: 1,
        Op.MULTI: 12,
        Op.MULTI_READ: 4,
        Op.ADD_WATCH: 3,
        Op.CHECK_WATCHES: 2,
        Op.REMOVE_WATCHES: 3,
        Op.SET_WATCHES: 1,
        Op.SET_WATCHES2: 2,
        Op.GET_EPHEMERALS: 2,
        Op.GET_ALL_CHILDREN_NUMBER: 2,
        Op.WHO_AM_I: 1,
        Op.AUTH: 1,
        Op.RECONFIG: 0.2,
    }

    # Operations that ZooKeeper answers out of order, before earlier requests.
    ALONE = {Op.AUTH, Op.CHECK}

    def request(self):
        """Returns a function from a zxid that the session has seen to (op, body, xid), and whether the request must be sent
        alone, because its reply may be reordered."""
        op = self.random.choices(list(self.OPS), list(self.OPS.values()))[0]
        odd = self.random.random()
        unknown = self.random.randrange(200, 1000)
        if op == Op.AUTH:
            user = self.random.choice(USERS).encode()
            data = wire.integer(0) + wire.string("digest") + wire.buffer(user)
            return (lambda zxid: (op, data, wire.AUTH_XID)), True
        data = self.body(op)
        if op in (Op.SET_WATCHES, Op.SET_WATCHES2):
            return (lambda zxid: (op, wire.long(zxid) + data[8:], wire.SET_WATCHES_XID)), False
        # A truncated write blocks a ZooKeeper follower.
        if odd < 0.004 and op in READS:
            return (lambda zxid: (op, data[:-1], None)), True
        if odd < 0.002:
            return (lambda zxid: (unknown, data, None)), True
        return (lambda zxid: (op, data, None)), op in self.ALONE
