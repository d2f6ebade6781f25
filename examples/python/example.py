"""A tour of the columns service of a running cluster, such as `loggos dev`: `python3 example.py [HOST:PORT]`."""

import sys
import time

import grpc

from columns import Columns

TABLE = "python-example"
ROWS = 2_000
BATCH = 500


def one_by_one(columns):
    """Puts, gets and a version mismatch, with unary calls."""
    written = columns.Put(table=TABLE, key=b"JFK", column=b"city", value=b"New York")
    row = columns.Get(table=TABLE, key=b"JFK")
    print("got", [(cell.column, cell.value) for cell in row.cells])
    assert row.cells[0].value == b"New York" and row.cells[0].version == written.version

    queens = {"table": TABLE, "key": b"JFK", "column": b"city", "value": b"Queens"}
    columns.ConditionalPut(**queens, version=written.version)
    try:
        columns.ConditionalPut(**queens, version=written.version)
        raise AssertionError("the version is an old one")
    except grpc.RpcError as error:
        assert columns.kind_of(error) == "KIND_VERSION_MISMATCH", error
        print("refused:", error.details())


def applied_once(columns):
    """A write that carries a stamp of a session applies once, even if it is sent several times."""
    session = columns.OpenSession(table=TABLE, key=b"LHR").session
    stamp = {"session": session, "sequence": 1, "first_incomplete": 1}
    put = {"table": TABLE, "key": b"LHR", "column": b"city", "value": b"London", "stamp": stamp}
    first, again = columns.Put(**put), columns.Put(**put)
    assert first.version == again.version
    print("sent twice, applied once: version", first.version)


def streamed(columns):
    """Many requests in one streaming call. Answers arrive in any order and carry the number of their request."""
    message = columns.message("StreamRequest")

    def batches():
        for first in range(0, ROWS, BATCH):
            batch = message()
            for number in range(first, first + BATCH):
                request = batch.requests.add(number=number, deadline_ms=10_000)
                request.put.table = TABLE
                request.put.key = b"row-%06d" % number
                request.put.column = b"number"
                request.put.value = b"%d" % number
            yield batch

    began = time.monotonic()
    done = set()
    for answers in columns.Stream(batches(), timeout=60):
        for answer in answers.answers:
            assert answer.WhichOneof("answer") == "write", answer
            done.add(answer.number)
    assert done == set(range(ROWS))
    print(f"{ROWS} puts over one stream in {time.monotonic() - began:.2f} s")


def scanned(columns):
    """Scans all rows with a prefix, page by page."""
    rows, page = [], columns.Scan(table=TABLE, prefix=b"row-")
    rows.extend(page.rows)
    while page.HasField("continuation"):
        page = columns.Scan(table=TABLE, prefix=b"row-", continuation=page.continuation)
        rows.extend(page.rows)
    assert [int(row.cells[0].value) for row in rows] == list(range(ROWS))
    print(f"{len(rows)} rows scanned, from {rows[0].key} to {rows[-1].key}")


def main():
    address = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:7201"
    columns = Columns(address)
    columns.CreateTable(table=TABLE)
    one_by_one(columns)
    applied_once(columns)
    streamed(columns)
    scanned(columns)
    columns.DropTable(table=TABLE)
    print("all well")


if __name__ == "__main__":
    main()
