"""Measures the longest gap between a client's writes while nodes other than its server are killed with SIGKILL.

  python failover.py BINARY DIRECTORY OFFSET [RUNS]

DIRECTORY and OFFSET are those of a running `loggos dev --nodes 3 --data DIRECTORY --port-offset OFFSET`. Each run kills the
node with the sequencer of the coordination log, restarts it, and prints the gap in milliseconds; then median and maximum.
"""

import os
import re
import signal
import socket
import subprocess
import sys
import time

from kazoo.client import KazooClient

binary, directory, offset = sys.argv[1], sys.argv[2], int(sys.argv[3])
runs = int(sys.argv[4]) if len(sys.argv) > 4 else 20


def mode(node):
    try:
        with socket.create_connection(("127.0.0.1", 2180 + node + offset), 1) as connection:
            connection.sendall(b"srvr")
            answer = b""
            while part := connection.recv(4096):
                answer += part
        return re.search(rb"Mode: (\w+)", answer)[1].decode()
    except (OSError, TypeError):
        return "down"


def leader():
    while True:
        modes = {node: mode(node) for node in (1, 2, 3)}
        if "leader" in modes.values() and "down" not in modes.values():
            return next(node for node, is_mode in modes.items() if is_mode == "leader")
        time.sleep(0.2)


gaps = []
for run in range(runs):
    victim = leader()
    time.sleep(1)
    writer = KazooClient(f"127.0.0.1:{2180 + victim % 3 + 1 + offset}", timeout=10)
    writer.start()
    writer.ensure_path("/failover")
    killed = False
    begin = last = time.monotonic()
    gap = 0.0
    while last - begin < 4:
        if not killed and last - begin > 1:
            with open(os.path.join(directory, f"node-{victim}", "pid")) as pid:
                os.kill(int(pid.read()), signal.SIGKILL)
            killed = True
        writer.set("/failover", b"%d" % run)
        now = time.monotonic()
        gap = max(gap, now - last) if killed else 0.0
        last = now
    writer.stop()
    gaps.append(gap * 1000)
    print(f"run {run + 1}: node {victim} killed, {gap * 1000:.0f} ms", flush=True)
    subprocess.run([binary, "dev", "restart", str(victim), "--data", directory], check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
gaps.sort()
print(f"median {gaps[len(gaps) // 2]:.0f} ms, worst {gaps[-1]:.0f} ms, {runs} runs")
