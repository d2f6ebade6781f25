"""Measures the latencies of recipes (ZooKeeper-SL, table 1) with three kazoo clients.

  python recipes.py HOST:PORT,... [ROUNDS]

Prints a line for each recipe: median and 99th percentile in milliseconds.
"""

import sys
import threading
import time

from kazoo.client import KazooClient

hosts, rounds = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 100
base = f"/recipes-{time.time_ns()}"
servers = hosts.split(",")
# Each client connects to a different server, so that recipes depend on the propagation between servers.
clients = [KazooClient(",".join(servers[i % len(servers):] + servers[: i % len(servers)]), randomize_hosts=False) for i in range(3)]
for client in clients:
    client.start()
clients[0].ensure_path(base)
clients[0].create(f"{base}/node", bytes(512))


def report(name, times):
    times.sort()
    print(f"{name:<28} p50 {times[len(times) // 2] * 1000:8.2f} ms   p99 {times[len(times) * 99 // 100] * 1000:8.2f} ms", flush=True)


def timed(name, action, count=rounds):
    times = []
    for i in range(count):
        start = time.perf_counter()
        action(i)
        times.append(time.perf_counter() - start)
    report(name, times)


def together(action):
    threads = [threading.Thread(target=action, args=(client,)) for client in clients]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]


def enter(client, path, name, count):
    """Enters ZooKeeper's double barrier. Unlike kazoo's recipe, it keeps the node `ready`: if that is removed, a client waits
    forever if its server applies the creation and the removal of `ready` together."""
    ready = threading.Event()
    client.create(f"{path}/members/{name}", ephemeral=True)
    if client.exists(f"{path}/ready", watch=lambda event: ready.set()):
        return
    if len(client.get_children(f"{path}/members")) < count:
        ready.wait()
    else:
        client.ensure_path(f"{path}/ready")


def leave(client, path, name):
    client.delete(f"{path}/members/{name}")
    while True:
        changed = threading.Event()
        if not client.get_children(f"{path}/members", watch=lambda event: changed.set()):
            return
        changed.wait()


def barrier(i):
    path = f"{base}/barrier-{i}"

    def enter_and_leave(client):
        name = clients.index(client)
        client.ensure_path(f"{path}/members")
        enter(client, path, name, 3)
        leave(client, path, name)

    together(enter_and_leave)


def contended_lock():
    times, last = [], [time.perf_counter()]

    def work(client):
        lock = client.Lock(f"{base}/lock")
        for _ in range(rounds // 3):
            with lock:
                now = time.perf_counter()
                times.append(now - last[0])
                last[0] = now

    together(work)
    report("lock, grant to grant", times)


def queue():
    put, get = clients[0].Queue(f"{base}/queue"), clients[1].Queue(f"{base}/queue")

    def pass_on(_):
        put.put(bytes(100))
        while get.get() is None:
            pass

    timed("queue, put to get elsewhere", pass_on)


def released(i):
    path = f"{base}/simple-{i}"
    clients[0].Barrier(path).create()
    clients[1].sync(path)
    waiter = threading.Thread(target=clients[1].Barrier(path).wait)
    waiter.start()
    time.sleep(0.02)
    start = time.perf_counter()
    clients[0].Barrier(path).remove()
    waiter.join()
    return time.perf_counter() - start


timed("double barrier, 3 clients", barrier, max(rounds // 5, 5))
report("barrier, removed to released", [released(i) for i in range(max(rounds // 5, 5))])
contended_lock()
queue()
timed("query (get)", lambda _: clients[2].get(f"{base}/node"))
timed("set", lambda _: clients[2].set(f"{base}/node", bytes(512)))
clients[0].delete(base, recursive=True)
for client in clients:
    client.stop()
