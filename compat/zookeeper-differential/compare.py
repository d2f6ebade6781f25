#!/usr/bin/env python3
"""Sends the same random requests to two ensembles, and compares their replies.

    compare.py --a HOST:PORT,... --b HOST:PORT,... [--requests 10000] [--sessions 4] [--seed 1]

Both must be empty, because all paths are used, including the root. A session sends a burst of requests and waits for the
replies before the next session sends, so that the outcome is deterministic. Each burst begins with a sync, so that
earlier writes of other sessions, and their events, precede the sync's reply.

It compares replies, error codes, stats and events in the order of each session, but not times. A zxid is replaced by the
request that created it, and a session id by the number of the session. Names of children, entries of an ACL (`auth`
expands to several) and watches that fire together have no defined order, and are sorted.

Requests that crash or block a server of ZooKeeper 3.9.5 are not sent: a TTL out of range in a multi, createTTL of a node
without a TTL, a truncated write. After an unknown request ZooKeeper closes the connection, and Loggos keeps it; then the
session is moved on both sides.

Known differences, both with paths that no client library sends (seed 3 finds them): in ZooKeeper, getAllChildrenNumber of
the empty path also counts the root, and getEphemerals trims control characters from the ends of its prefix.
"""

import argparse
import collections
import random
import sys

import wire
from wire import Op
from workload import Workload

SESSION_TIMEOUT_MS = 30_000
BURST_MAX = 6
SHOWN_MAX = 100
UNIMPLEMENTED = -6
WRITES = {Op.CREATE, Op.CREATE2, Op.CREATE_CONTAINER, Op.CREATE_TTL, Op.DELETE, Op.SET_DATA, Op.SET_ACL, Op.MULTI}
DIFFERENCES_MAX = 10


class Side:
    def __init__(self, endpoints):
        self.endpoints, self.sessions, self.meaning, self.owners = endpoints, {}, {0: "0"}, {0: "0"}

    def open(self, number, server):
        session = wire.Session(SESSION_TIMEOUT_MS)
        timeout = session.connect(self.endpoints[server % len(self.endpoints)])
        self.sessions[number] = session
        self.owners[session.id] = f"session {number}"
        return {"timeout": timeout, "opened": session.id != 0}

    def move(self, number, server):
        session = self.sessions[number]
        old = session.id
        timeout = session.connect(self.endpoints[server % len(self.endpoints)])
        return {"timeout": timeout, "same session": session.id == old}

    def burst(self, number, names, requests):
        session = self.sessions[number]
        told, alive = session.exchange([request(session.zxid) for request in requests])
        replies = iter(names)
        for item in told:
            if "zxid" in item:
                name, zxid = next(replies), item.pop("zxid")
                if item["err"] == 0 and item["op"] in WRITES | {Op.CLOSE_SESSION}:
                    self.meaning[zxid] = name
        return [self.plain(item) for item in told], alive

    def plain(self, item):
        """Replaces zxids and session ids by the requests and sessions that they identify."""
        if isinstance(item, list):
            return [self.plain(part) for part in item]
        if not isinstance(item, dict):
            return item
        plain = {}
        for key, value in item.items():
            if key in ("czxid", "mzxid", "pzxid"):
                plain[key] = self.meaning.get(value, "another")
            elif key == "owner":
                plain[key] = self.owners.get(value, value)
            else:
                plain[key] = self.plain(value)
        return plain


def in_groups(told):
    """Sorts consecutive events, which have no defined order."""
    ordered, events = [], []
    for item in told:
        if "event" in item:
            events.append(item)
        else:
            ordered += sorted(events, key=str) + [item]
            events = []
    return ordered + sorted(events, key=str)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--a", required=True)
    parser.add_argument("--b", required=True)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--sessions", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    draw = random.Random(options.seed)
    workload = Workload(draw)
    sides = [Side(options.a.split(",")), Side(options.b.split(","))]
    numbers, next_session, sent, bursts = [], 0, 0, 0
    events, codes, differences = 0, collections.Counter(), 0

    def compare(what, a, b):
        nonlocal differences
        if a == b:
            return
        differences += 1
        print(f"DIFFERENCE {differences} after {sent} requests: {what}")
        if not (isinstance(a, list) and isinstance(b, list)):
            a, b = [a], [b]
        for place in range(max(len(a), len(b))):
            left, right = (side[place] if place < len(side) else None for side in (a, b))
            if left != right:
                print(f"  A: {left}\n  B: {right}")
        if differences >= DIFFERENCES_MAX:
            sys.exit("too many differences: aborting")

    while sent < options.requests:
        if len(numbers) < options.sessions:
            server = draw.randrange(100)
            compare(f"open session {next_session}", *(side.open(next_session, server) for side in sides))
            numbers.append(next_session)
            next_session += 1
            continue
        number = draw.choice(numbers)
        if draw.random() < 0.01:
            server = draw.randrange(100)
            compare(f"move session {number}", *(side.move(number, server) for side in sides))
            continue
        requests, kept = [lambda zxid: (Op.SYNC, wire.string("/"), None)], None
        for _ in range(draw.randint(1, BURST_MAX)):
            request, alone = workload.request()
            if alone:
                kept = request
                break
            requests.append(request)
        ends = draw.random() < 0.01
        if ends:
            requests.append(lambda zxid: (Op.CLOSE_SESSION, b"", None))
        for burst in [requests, [kept]] if kept and not ends else [requests]:
            bursts += 1
            names = [f"{bursts}.{place}" for place in range(len(burst))]
            (a, a_alive), (b, _) = (side.burst(number, names, burst) for side in sides)
            sent += len(burst)
            shown = ", ".join(describe(request(0)) for request in burst)
            compare(f"session {number}: {shown}", in_groups(a), in_groups(b))
            for item in a:
                if "event" in item:
                    events += 1
                elif "err" in item:
                    codes[item["err"]] += 1
            # ZooKeeper closes the connection after an unknown request; the session moves to another server.
            if not ends and (not a_alive or any(item.get("err") == UNIMPLEMENTED for item in a)):
                server = draw.randrange(100)
                compare(f"move session {number}", *(side.move(number, server) for side in sides))
                break
        if ends:
            numbers.remove(number)
    outcome = ", ".join(f"{code}: {count}" for code, count in sorted(codes.items(), reverse=True))
    print(f"seed {options.seed}: {sent} requests of {next_session} sessions, {events} events, {differences} differences")
    print(f"replies by error code: {outcome}")
    sys.exit(1 if differences else 0)


def describe(request):
    op, data, _ = request
    name = Op(op).name.lower() if op in Op._value2member_map_ else f"op {op}"
    return f"{name} {data!r}" if len(data) <= SHOWN_MAX else f"{name} {data[: SHOWN_MAX // 2]!r}...{data[-SHOWN_MAX // 2 :]!r}"


main()
