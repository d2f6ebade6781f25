"""Runs SQL logic tests through the PostgreSQL protocol.

    runner.py [--label L] [--extended] [--write] [--failures N] FILE...

The servers come from libpq's variables. Each file has a database of its own. Two dialects of the format are known by the
names of the files:

- `.slt`: that of the sqllogictest crate. A line is a row, its values as PostgreSQL prints them. `statement error` may be
  followed by a SQLSTATE in parentheses, or by a regular expression.
- `.test`: that of SQLite's files. A line is a value, converted by the letters of the query (I, R, T); labels of `skipif`
  and `onlyif` may be followed by comments, which the crate does not accept. That is why this is not the crate's runner.

`--write` replaces the expected results of `.slt` files by the actual ones.
"""

import argparse
import hashlib
import pathlib
import re
import sys
import time

import psycopg
from psycopg import pq

BOOLEAN = 16  # pg_type.oid
HASHED = re.compile(r"(\d+) values hashing to ([0-9a-f]{32})")


class Record:
    """A statement or query, with its place in the file."""

    def __init__(self, line, words):
        self.line, self.words = line, words
        self.sql, self.expected, self.is_skipped = "", None, False
        # The lines of the expected result, to replace them.
        self.start = self.end = 0


def parse(path, labels):
    """The records of a file, and its lines."""
    lines = path.read_text().splitlines()
    records, at, is_skipped = [], 0, False
    while at < len(lines):
        words = lines[at].split("#")[0].split() if lines[at].startswith(("skipif", "onlyif")) else lines[at].split()
        at += 1
        if not words or words[0].startswith("#") or words[0] == "hash-threshold":
            continue
        if words[0] in ("skipif", "onlyif"):
            is_skipped |= (words[1] in labels) == (words[0] == "skipif")
            continue
        if words[0] == "halt":
            if not is_skipped:
                break
            is_skipped = False
            continue
        if words[0] not in ("statement", "query"):
            raise ValueError(f"{path}:{at}: unknown record {words[0]}")
        record = Record(at, words)
        record.is_skipped, is_skipped = is_skipped, False
        sql = []
        while at < len(lines) and lines[at] and lines[at] != "----":
            sql.append(lines[at])
            at += 1
        record.sql = "\n".join(sql)
        record.start = at
        if at < len(lines) and lines[at] == "----":
            at += 1
            start = at
            while at < len(lines) and lines[at]:
                at += 1
            record.expected = lines[start:at]
        record.end = at
        records.append(record)
    return records, lines


def of_sqlite(value, letter):
    """A value as SQLite's runner prints it."""
    if value is None:
        return "NULL"
    if letter == "I":
        return str(int(float(value))) if re.fullmatch(r"-?[0-9.]+(e[+-]?\d+)?", value) else "0"
    if letter == "R":
        try:
            return f"{float(value):.3f}"
        except ValueError:
            return "0.000"
    shown = "".join(char if " " <= char <= "~" else "@" for char in value)
    return shown or "(empty)"


def of_postgres(value):
    return "NULL" if value is None else value.replace("\n", "\\n") or "(empty)"


class Failure(Exception):
    """What differs."""


class Runner:
    def __init__(self, arguments):
        self.arguments = arguments

    def connect(self, database):
        return psycopg.connect(dbname=database, autocommit=True).pgconn

    def execute(self, pgconn, sql):
        run = (lambda text: pgconn.exec_params(text, None)) if self.arguments.extended else pgconn.exec_
        done = run(sql.encode())
        if done.status == pq.ExecStatus.FATAL_ERROR:
            field = lambda code: (done.error_field(code) or b"").decode()
            return None, field(pq.DiagnosticField.SQLSTATE), field(pq.DiagnosticField.MESSAGE_PRIMARY)
        return done, None, None

    def rows(self, done, is_sqlite):
        def value(row, column):
            found = done.get_value(row, column)
            return None if found is None else bytes(found).decode()

        if is_sqlite:
            # SQLite has numbers instead of booleans.
            booleans = {column for column in range(done.nfields) if done.ftype(column) == BOOLEAN}
            numbers = {"t": "1", "f": "0", None: None}
            cell = lambda row, column: numbers[value(row, column)] if column in booleans else value(row, column)
        else:
            cell = value
        return [[cell(row, column) for column in range(done.nfields)] for row in range(done.ntuples)]

    def run(self, pgconn, record, is_sqlite):
        """The lines of the actual result, or None for a statement."""
        kind, *more = record.words
        done, state, message = self.execute(pgconn, record.sql)
        if more and more[0] == "error":
            if done:
                raise Failure("it succeeded, an error was expected")
            wanted = " ".join(more[1:])
            if re.fullmatch(r"\([0-9A-Z]{5}\)", wanted):
                if wanted != f"({state})":
                    raise Failure(f"{state}: {message}; expected {wanted}")
            elif not re.search(wanted, message):
                raise Failure(f"{message}; expected {wanted}")
            return None
        if not done:
            raise Failure(f"{state}: {message}")
        if kind == "statement":
            if more[:1] == ["count"] and (done.command_tuples or 0) != int(more[1]):
                raise Failure(f"{done.command_tuples} rows, expected {more[1]}")
            return None
        letters, sort = more[0] if more else "", (more[1] if len(more) > 1 else "nosort")
        rows = self.rows(done, is_sqlite)
        if is_sqlite:
            if done.nfields != len(letters):
                raise Failure(f"{done.nfields} columns, expected {len(letters)}")
            rows = [[of_sqlite(value, letter) for value, letter in zip(row, letters)] for row in rows]
        else:
            rows = [[of_postgres(value) for value in row] for row in rows]
        if sort == "rowsort":
            rows.sort()
        values = [value for row in rows for value in row]
        if sort == "valuesort":
            values.sort()
        lines = values if is_sqlite else [" ".join(row) for row in rows]
        expected = record.expected or []
        hashed = HASHED.fullmatch(expected[0]) if expected else None
        if hashed:
            digest = hashlib.md5("".join(value + "\n" for value in values).encode()).hexdigest()
            lines = [f"{len(values)} values hashing to {digest}"]
        if not is_sqlite:
            # As in the crate, the number of blanks between values does not matter.
            expected, lines = [" ".join(line.split()) for line in expected], [" ".join(line.split()) for line in lines]
        if lines != expected and not self.arguments.write:
            raise Failure(f"got {lines[:8]}, expected {expected[:8]}")
        return lines

    def file(self, path):
        is_sqlite = path.suffix == ".test"
        records, lines = parse(path, {"postgresql", *self.arguments.label})
        database = "slt_" + re.sub("[^a-z0-9]", "_", path.stem.lower())
        self.admin(f"DROP DATABASE IF EXISTS {database}", f"CREATE DATABASE {database}")
        began, passed, failures, skipped, replaced = time.monotonic(), 0, [], 0, []
        pgconn = self.connect(database)
        for record in records:
            if record.is_skipped:
                skipped += 1
                continue
            if pgconn.status != pq.ConnStatus.OK:
                pgconn = self.connect(database)
            try:
                actual = self.run(pgconn, record, is_sqlite)
                passed += 1
                if actual is not None:
                    replaced.append((record, actual))
            except Failure as failure:
                failures.append(f"{path.name}:{record.line}: {record.sql}\n    {failure}")
        pgconn.finish()
        if self.arguments.write and not is_sqlite:
            for record, actual in reversed(replaced):
                lines[record.start : record.end] = ["----", *actual]
            path.write_text("\n".join(lines) + "\n")
        for failure in failures[: self.arguments.failures]:
            print(failure)
        seconds = time.monotonic() - began
        print(f"{path.name}: {passed} passed, {len(failures)} failed, {skipped} skipped ({seconds:.1f} s)", flush=True)
        return not failures

    def admin(self, *statements):
        pgconn = self.connect("postgres")
        for statement in statements:
            _, state, message = self.execute(pgconn, statement)
            if state:
                sys.exit(f"{statement}: {message}")
        pgconn.finish()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--label", action="append", default=[], help="a label of the server, beside `postgresql`")
    parser.add_argument("--extended", action="store_true", help="use the extended protocol")
    parser.add_argument("--write", action="store_true", help="replace the expected results of .slt files")
    parser.add_argument("--failures", type=int, default=10, help="failures of a file that are printed")
    parser.add_argument("files", nargs="+", type=pathlib.Path)
    arguments = parser.parse_args()
    runner = Runner(arguments)
    passed = [runner.file(path) for path in arguments.files]
    if not all(passed):
        sys.exit(f"{passed.count(False)} of {len(passed)} files failed")


main()
