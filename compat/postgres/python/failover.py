"""A client with several hosts, while the node that it is connected to is killed: no acknowledged change is lost, none is
applied twice.

    failover.py BINARY DATA

DATA is the directory of `loggos dev`. Each change adds a row and increments a counter in one transaction. After an error
that leaves the outcome open (a lost connection, 40003) the row tells whether it was committed.
"""

import os
import pathlib
import signal
import subprocess
import sys
import time

import psycopg

BINARY, DATA = sys.argv[1], pathlib.Path(sys.argv[2])
CHANGES = 150
PATIENCE = 30


def connect():
    """A session at any node that serves. libpq tries the hosts in turn."""
    until = time.monotonic() + PATIENCE
    while True:
        try:
            return psycopg.connect(connect_timeout=2, autocommit=True)
        except psycopg.OperationalError:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)


def change(connection, number):
    """False if it must be tried again. Raises if the outcome is open."""
    try:
        with connection.transaction():
            connection.execute("INSERT INTO failover VALUES (%s)", (number,))
            connection.execute("UPDATE failover_count SET n = n + 1 WHERE id = 1")
        return True
    except psycopg.errors.SerializationFailure:
        return False


def main():
    connection = connect()
    connection.execute("DROP TABLE IF EXISTS failover, failover_count")
    connection.execute("CREATE TABLE failover (id int PRIMARY KEY)")
    connection.execute("CREATE TABLE failover_count (id int PRIMARY KEY, n int NOT NULL)")
    connection.execute("INSERT INTO failover_count VALUES (1, 0)")
    nodes = {int(port): node for node, port in enumerate(os.environ["PGPORT"].split(","), 1)}
    killed, errors, longest = [], [], 0.0
    for number in range(CHANGES):
        if number in (CHANGES // 3, 2 * CHANGES // 3):
            if killed:
                subprocess.run([BINARY, "dev", "restart", str(killed[-1]), "--data", str(DATA)], check=True)
            killed.append(nodes[connection.info.port])
            os.kill(int((DATA / f"node-{killed[-1]}" / "pid").read_text()), signal.SIGKILL)
        began = time.monotonic()
        while True:
            try:
                if change(connection, number):
                    break
            except (psycopg.OperationalError, psycopg.errors.StatementCompletionUnknown) as error:
                errors.append(error.sqlstate or "connection lost")
                if time.monotonic() - began > PATIENCE:
                    raise
                connection.close()
                connection = connect()
                try:
                    if connection.execute("SELECT 1 FROM failover WHERE id = %s", (number,)).fetchone():
                        break
                except psycopg.Error as error:
                    errors.append(error.sqlstate or "connection lost")
        longest = max(longest, time.monotonic() - began)
    rows, (count,) = (connection.execute(text).fetchone() for text in
                      ["SELECT count(*), min(id), max(id) FROM failover", "SELECT n FROM failover_count"])
    print(f"nodes killed: {killed}; errors: {errors}; longest change: {longest:.2f} s")
    assert rows == (CHANGES, 0, CHANGES - 1) and count == CHANGES, (rows, count)
    assert nodes[connection.info.port] != killed[-1]
    subprocess.run([BINARY, "dev", "restart", str(killed[-1]), "--data", str(DATA)], check=True)


main()
