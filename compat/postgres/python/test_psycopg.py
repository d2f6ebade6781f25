"""psycopg 3: hosts, types in both formats, prepared statements, transactions, errors, COPY, cancellation, pipelines."""

import datetime
import decimal
import os
import threading
import time
import uuid

import psycopg
import pytest
from psycopg import errors, pq
from psycopg.types.json import Jsonb

UTC = datetime.timezone.utc
LONG = "SELECT count(*) FROM thousand a, thousand b, thousand c WHERE a.id + b.id + c.id < 0"


@pytest.fixture
def table(connection):
    connection.execute("DROP TABLE IF EXISTS py")
    connection.execute("CREATE TABLE py (id int PRIMARY KEY, name text UNIQUE, n numeric(8, 2) CHECK (n >= 0))")
    return connection


def rows(connection, text, parameters=None, **options):
    return connection.execute(text, parameters, **options).fetchall()


def test_dead_host_is_skipped():
    ports = "1," + os.environ["PGPORT"]
    hosts = ",".join(["127.0.0.1"] * len(ports.split(",")))
    with psycopg.connect(host=hosts, port=ports) as connection:
        assert rows(connection, "SELECT 1") == [(1,)]


def test_each_host():
    for port in os.environ["PGPORT"].split(","):
        with psycopg.connect(host="127.0.0.1", port=port) as connection:
            assert rows(connection, "SELECT current_database()") == [(os.environ["PGDATABASE"],)]


def test_reported_settings(connection):
    status = connection.info.parameter_status
    assert status("server_encoding") == status("client_encoding") == "UTF8"
    assert status("standard_conforming_strings") == "on" and status("integer_datetimes") == "on"
    assert connection.info.server_version >= 150000
    connection.execute("SET TIME ZONE 'UTC'")
    connection.execute("SET application_name = 'psycopg'")
    assert rows(connection, "SHOW application_name") == [("psycopg",)]


INTERVAL = datetime.timedelta(days=400, hours=5, microseconds=7)
VALUES = {
    "boolean": [True, False],
    "smallint": [0, -(2**15), 2**15 - 1],
    "integer": [0, -(2**31), 2**31 - 1],
    "bigint": [0, -(2**63), 2**63 - 1],
    "real": [0.0, -1.5, 2.0**24, float("inf")],
    "double precision": [0.0, 0.1, -1.7976931348623157e308, 5e-324, float("-inf")],
    "numeric": [decimal.Decimal(text) for text in ["0", "-1.50", "1e-20", "12345678901234567890123456789.0000001"]],
    "numeric(12, 3)": [decimal.Decimal("-123456789.125")],
    "text": ["", "a'b\"c\\d", "\u00e9\u4e16\U0001f600", "x" * 100_000],
    "varchar(5)": ["", "\u00e9\u4e16\U0001f600ab"],
    "bytea": [b"", bytes(range(256)), b"\\x00"],
    "date": [datetime.date(1, 1, 1), datetime.date(2000, 2, 29), datetime.date(9999, 12, 31)],
    "timestamp": [datetime.datetime(1969, 12, 31, 23, 59, 59, 999999), datetime.datetime(9999, 12, 31, 23, 59, 59)],
    "timestamptz": [datetime.datetime(1582, 10, 4, tzinfo=UTC), datetime.datetime(2026, 11, 27, 1, 2, 3, 456789, UTC)],
    "uuid": [uuid.UUID(int=0), uuid.UUID("123e4567-e89b-12d3-a456-426614174000")],
}


@pytest.mark.parametrize("binary", [False, True], ids=["text", "binary"])
@pytest.mark.parametrize("name", VALUES)
def test_column_round_trip(connection, name, binary):
    connection.execute("SET TIME ZONE 'UTC'")
    connection.execute("DROP TABLE IF EXISTS py_types")
    connection.execute(f"CREATE TABLE py_types (id int PRIMARY KEY, v {name})")
    parameter = "%b" if binary else "%t"
    values = [*VALUES[name], None]
    for number, value in enumerate(values):
        connection.execute(f"INSERT INTO py_types VALUES (%s, {parameter})", (number, value))
    found = rows(connection, "SELECT v FROM py_types ORDER BY id", binary=binary)
    assert [value for (value,) in found] == values
    for number, value in enumerate(values[:-1]):
        found = rows(connection, f"SELECT id FROM py_types WHERE v = {parameter}::{name} AND id = %s", (value, number))
        assert found == [(number,)], value


@pytest.mark.parametrize("binary", [False, True], ids=["text", "binary"])
def test_nan(connection, binary):
    for name in ["real", "double precision"]:
        ((value,),) = rows(connection, f"SELECT %s::{name}", (float("nan"),), binary=binary)
        assert value != value


@pytest.mark.parametrize("binary", [False, True], ids=["text", "binary"])
def test_values_without_columns(connection, binary):
    assert rows(connection, "SELECT %s::interval", (INTERVAL,), binary=binary) == [(INTERVAL,)]
    for name, array in [
        ("int[]", [1, None, -3]),
        ("bigint[]", [2**40]),
        ("text[]", ["", "a,b", '"{}\\', None, "NULL"]),
        ("boolean[]", [True, False]),
        ("double precision[]", [0.5, -1e300]),
        ("numeric[]", [decimal.Decimal("1.50")]),
        ("uuid[]", [uuid.UUID(int=7)]),
        ("date[]", [datetime.date(2026, 11, 27)]),
        ("int[]", []),
    ]:
        assert rows(connection, f"SELECT %s::{name}", (array,), binary=binary) == [(array,)], name


@pytest.mark.parametrize("binary", [False, True], ids=["text", "binary"])
def test_char_is_padded(connection, binary):
    connection.execute("DROP TABLE IF EXISTS py_types")
    connection.execute("CREATE TABLE py_types (id int PRIMARY KEY, v char(4))")
    connection.execute("INSERT INTO py_types VALUES (1, 'ab')")
    assert rows(connection, "SELECT v FROM py_types WHERE v = 'ab'", binary=binary) == [("ab  ",)]


@pytest.mark.parametrize("binary", [False, True], ids=["text", "binary"])
def test_jsonb(connection, binary):
    connection.execute("DROP TABLE IF EXISTS py_types")
    connection.execute("CREATE TABLE py_types (id int PRIMARY KEY, v jsonb)")
    value = {"a": [1, 2.5, None, True], "b": {"c": "\u00e9"}}
    connection.execute("INSERT INTO py_types VALUES (1, %s)", (Jsonb(value),))
    found = rows(connection, "SELECT v, v -> 'a', v ->> 'b', v -> 'b' ->> 'c' FROM py_types", binary=binary)
    assert found == [(value, value["a"], '{"c": "\u00e9"}', "\u00e9")]


def test_array_parameter(table):
    table.execute("INSERT INTO py VALUES (1, 'a', 1), (2, 'b', 2), (3, 'c', 3)")
    found = rows(table, "SELECT name FROM py WHERE id = ANY(%s) ORDER BY id", ([1, 3, 9],))
    assert found == [("a",), ("c",)]


def test_rows_and_counts(table):
    cursor = table.execute("INSERT INTO py VALUES (1, 'a', 1), (2, 'b', 2) RETURNING id, name")
    assert cursor.fetchall() == [(1, "a"), (2, "b")] and cursor.rowcount == 2
    assert cursor.statusmessage == "INSERT 0 2"
    assert [column.name for column in cursor.description] == ["id", "name"]
    assert [column.type_code for column in cursor.description] == [23, 25]
    assert table.execute("UPDATE py SET n = n + 1").rowcount == 2
    assert table.execute("DELETE FROM py WHERE id = 7").rowcount == 0
    assert rows(table, "SELECT n FROM py ORDER BY id") == [(decimal.Decimal("2.00"),), (decimal.Decimal("3.00"),)]


def test_prepared(table):
    table.execute("INSERT INTO py VALUES (1, 'a', 1), (2, 'b', 2)")
    for _ in range(8):
        assert rows(table, "SELECT name FROM py WHERE id = %s", (2,), prepare=True) == [("b",)]
    # The plan must follow the schema.
    table.execute("ALTER TABLE py ADD COLUMN more int DEFAULT 7")
    assert rows(table, "SELECT name FROM py WHERE id = %s", (1,), prepare=True) == [("a",)]
    assert rows(table, "SELECT more FROM py WHERE id = %s", (1,), prepare=True) == [(7,)]
    for number in range(10, 150):
        # More than psycopg keeps: it deallocates the oldest.
        rows(table, f"SELECT id + {number} FROM py WHERE id = %s", (1,), prepare=True)
    table.execute("DEALLOCATE ALL")
    table.execute("PREPARE p (int) AS SELECT name FROM py WHERE id = $1")
    assert rows(table, "EXECUTE p (2)") == [("b",)]
    table.execute("DEALLOCATE p")
    with pytest.raises(errors.InvalidSqlStatementName):
        table.execute("EXECUTE p (2)")


def test_parameter_types_are_inferred(table):
    pgconn = table.pgconn
    prepared = pgconn.prepare(b"s", b"INSERT INTO py VALUES ($1, $2, $3) RETURNING n")
    assert prepared.status == pq.ExecStatus.COMMAND_OK
    described = pgconn.describe_prepared(b"s")
    assert [described.param_type(i) for i in range(described.nparams)] == [23, 25, 1700]
    assert described.nfields == 1 and described.fname(0) == b"n" and described.ftype(0) == 1700
    done = pgconn.exec_prepared(b"s", [b"1", None, b"2.5"])
    assert done.status == pq.ExecStatus.TUPLES_OK and done.get_value(0, 0) == b"2.50"


def test_rollback_and_savepoints(table):
    with pytest.raises(ZeroDivisionError):
        with table.transaction():
            table.execute("INSERT INTO py VALUES (1, 'a', 1)")
            raise ZeroDivisionError
    assert rows(table, "SELECT count(*) FROM py") == [(0,)]
    with table.transaction():
        table.execute("INSERT INTO py VALUES (1, 'a', 1)")
        with pytest.raises(errors.UniqueViolation):
            with table.transaction():
                table.execute("INSERT INTO py VALUES (2, 'b', 1)")
                table.execute("INSERT INTO py VALUES (1, 'c', 1)")
        with table.transaction():
            table.execute("INSERT INTO py VALUES (3, 'c', 1)")
            with table.transaction(force_rollback=True):
                table.execute("DELETE FROM py")
        # It reads its own writes.
        assert rows(table, "SELECT id FROM py ORDER BY id") == [(1,), (3,)]
    assert rows(table, "SELECT id FROM py ORDER BY id") == [(1,), (3,)]


def test_isolation_and_read_only(table):
    table.autocommit = False
    for level in psycopg.IsolationLevel:
        table.isolation_level = level
        assert rows(table, "SELECT count(*) FROM py") == [(0,)]
        table.commit()
    table.read_only = True
    with pytest.raises(errors.ReadOnlySqlTransaction):
        table.execute("DELETE FROM py")


ERRORS = [
    ("INSERT INTO py VALUES (1, 'z', 1)", "23505"),
    ("INSERT INTO py VALUES (2, 'a', 1)", "23505"),
    ("INSERT INTO py VALUES (NULL, 'z', 1)", "23502"),
    ("INSERT INTO py VALUES (3, 'c', -1)", "23514"),
    ("INSERT INTO py VALUES (3, 'c', 1000000)", "22003"),
    ("INSERT INTO py VALUES ('x', 'c', 1)", "22P02"),
    ("SELECT * FROM nosuch", "42P01"),
    ("SELECT nosuch FROM py", "42703"),
    ("SELECT nosuch(1)", "42883"),
    ("SELEC 1", "42601"),
    ("SELECT id / 0 FROM py", "22012"),
    ("SELECT id + 2147483647 FROM py", "22003"),
    ("SELECT 'x'::date", "22007"),
    ("SELECT '2026-02-30'::date", "22008"),
    ("CREATE TABLE py (id int PRIMARY KEY)", "42P07"),
    ("CREATE TABLE py_b (id int PRIMARY KEY, id text)", "42701"),
    ("ALTER TABLE py DROP COLUMN nosuch", "42703"),
    ("DROP TABLE nosuch", "42P01"),
    ("DROP INDEX nosuch", "42704"),
    ("SELECT 1 FROM py WHERE id = 'x'", "22P02"),
    ("SELECT count(*) FROM py WHERE count(*) > 1", "42803"),
    ("SELECT id, count(*) FROM py", "42803"),
    ("INSERT INTO py (id, id) VALUES (5, 6)", "42701"),
    ("INSERT INTO py VALUES (5, 'e', 1, 2)", "42601"),
    ("COMMIT AND NOSUCH", "42601"),
    ("SAVEPOINT s", "25P01"),
    ("SET nosuch = 1", "42704"),
    ("SET statement_timeout = 'x'", "22023"),
]


@pytest.mark.parametrize("text, sqlstate", ERRORS)
def test_sqlstate(table, text, sqlstate):
    table.execute("INSERT INTO py VALUES (1, 'a', 1)")
    with pytest.raises(psycopg.Error) as caught:
        table.execute(text)
    assert caught.value.sqlstate == sqlstate, caught.value
    # It concerns that statement alone.
    assert rows(table, "SELECT id, name FROM py") == [(1, "a")]


def test_error_fields(table):
    with pytest.raises(errors.UndefinedColumn) as caught:
        table.execute("SELECT naem FROM py")
    diag = caught.value.diag
    assert diag.severity == "ERROR" and diag.statement_position == "8" and "name" in diag.message_hint
    table.execute("INSERT INTO py VALUES (1, 'a', 1)")
    with pytest.raises(errors.UniqueViolation) as caught:
        table.execute("INSERT INTO py VALUES (2, 'a', 1)")
    diag = caught.value.diag
    assert diag.message_detail == "Key (name)=(a) already exists."
    assert (diag.table_name, diag.constraint_name) == ("py", "py_name_key")


def test_failed_block(table):
    table.autocommit = False
    with pytest.raises(errors.UndefinedTable):
        table.execute("SELECT * FROM nosuch")
    with pytest.raises(errors.InFailedSqlTransaction):
        table.execute("SELECT 1")
    table.rollback()
    assert rows(table, "SELECT count(*) FROM py") == [(0,)]


def test_conflict(table):
    table.execute("INSERT INTO py VALUES (1, 'a', 1), (2, 'b', 2)")
    outcomes = []
    level = psycopg.IsolationLevel.SERIALIZABLE
    with psycopg.connect() as one, psycopg.connect() as two:
        one.isolation_level = two.isolation_level = level
        # Write skew: each changes what the other has read.
        one.execute("SELECT n FROM py WHERE id = 1")
        two.execute("SELECT n FROM py WHERE id = 2")
        for connection, changed in [(one, 2), (two, 1)]:
            try:
                connection.execute("UPDATE py SET n = 0 WHERE id = %s", (changed,))
                connection.commit()
                outcomes.append(None)
            except psycopg.Error as error:
                outcomes.append(error.sqlstate)
                connection.rollback()
    assert sorted(outcomes, key=str) == ["40001", None]
    assert rows(table, "SELECT count(*) FROM py WHERE n = 0") == [(1,)]


@pytest.mark.parametrize("options", ["", " (FORMAT csv)", " (FORMAT csv, HEADER, NULL '-', DELIMITER ';')"])
def test_copy(table, options):
    table.execute("INSERT INTO py VALUES (1, 'a', 1), (2, NULL, 2), (3, 'tab\there, \"quoted\" \\ ; x', NULL), (4, E'two\nlines', 0)")
    before = rows(table, "SELECT * FROM py ORDER BY id")
    with table.cursor() as cursor:
        with cursor.copy(f"COPY py TO STDOUT{options and ' WITH' + options}") as copy:
            data = b"".join(bytes(block) for block in copy)
        assert cursor.rowcount == 4
        table.execute("TRUNCATE py")
        with cursor.copy(f"COPY py FROM STDIN{options and ' WITH' + options}") as copy:
            for start in range(0, len(data), 7):
                copy.write(data[start : start + 7])
        assert cursor.rowcount == 4
    assert rows(table, "SELECT * FROM py ORDER BY id") == before


def test_copy_rows_and_errors(table):
    with table.cursor() as cursor:
        with cursor.copy("COPY py (id, n) FROM STDIN") as copy:
            for number in range(3_000):
                copy.write_row((number, decimal.Decimal(number)))
        assert rows(table, "SELECT count(*), sum(n), count(name) FROM py") == [(3_000, 4_498_500, 0)]
        for line, sqlstate in [("3\t\\N\t1", "23505"), ("x\t\\N\t1", "22P02"), ("9999\t1", "22P04"), ("9999\ta\t-1", "23514")]:
            with pytest.raises(psycopg.Error) as caught:
                with cursor.copy("COPY py FROM STDIN") as copy:
                    copy.write(f"10000\tok\t1\n{line}\n")
            assert caught.value.sqlstate == sqlstate
        with pytest.raises(RuntimeError):
            with cursor.copy("COPY py FROM STDIN") as copy:
                copy.write("10000\tok\t1\n")
                raise RuntimeError("the client gives up")
    assert rows(table, "SELECT count(*) FROM py") == [(3_000,)]


def thousand(connection):
    connection.execute("DROP TABLE IF EXISTS thousand")
    connection.execute("CREATE TABLE thousand (id int PRIMARY KEY)")
    with connection.cursor() as cursor, cursor.copy("COPY thousand FROM STDIN") as copy:
        copy.write("".join(f"{number}\n" for number in range(1_000)))


def test_cancel(connection):
    thousand(connection)
    timer = threading.Timer(1.0, connection.cancel_safe)
    timer.start()
    began = time.monotonic()
    with pytest.raises(errors.QueryCanceled):
        connection.execute(LONG)
    timer.join()
    assert time.monotonic() - began < 5
    assert rows(connection, "SELECT 1") == [(1,)]


def test_statement_timeout(connection):
    thousand(connection)
    connection.execute("SET statement_timeout = '300ms'")
    began = time.monotonic()
    with pytest.raises(errors.QueryCanceled):
        connection.execute(LONG)
    assert time.monotonic() - began < 5
    assert rows(connection, "SELECT 1") == [(1,)]


def test_pipeline(table):
    with table.pipeline():
        cursors = [table.execute("INSERT INTO py VALUES (%s, %s, 1) RETURNING id", (n, str(n))) for n in range(100)]
        assert [cursor.fetchone() for cursor in cursors] == [(n,) for n in range(100)]
    with table.cursor() as cursor:
        cursor.executemany("UPDATE py SET n = %s WHERE id = %s", [(n, n) for n in range(100)])
        assert cursor.rowcount == 100
    assert rows(table, "SELECT sum(n) FROM py") == [(4_950,)]


def test_pipeline_error(table):
    """The statements of a pipeline up to a synchronization are one transaction."""
    with pytest.raises(errors.UniqueViolation):
        with table.pipeline():
            table.execute("INSERT INTO py VALUES (1, 'a', 1)")
            table.execute("INSERT INTO py VALUES (1, 'b', 1)")
            table.execute("INSERT INTO py VALUES (2, 'c', 1)")
    assert rows(table, "SELECT count(*) FROM py") == [(0,)]


def test_several_statements_in_one_message(table):
    cursor = table.execute("INSERT INTO py VALUES (1, 'a', 1); SELECT id FROM py; SELECT name FROM py")
    assert cursor.nextset() and cursor.fetchall() == [(1,)] and cursor.nextset() and cursor.fetchall() == [("a",)]
    with pytest.raises(errors.UniqueViolation):
        table.execute("INSERT INTO py VALUES (2, 'b', 1); INSERT INTO py VALUES (1, 'c', 1)")
    assert rows(table, "SELECT id FROM py") == [(1,)]


def test_stream_of_rows(table):
    with table.cursor() as cursor, cursor.copy("COPY py (id) FROM STDIN") as copy:
        copy.write("".join(f"{number}\n" for number in range(2_000)))
    with table.cursor() as cursor:
        assert sum(1 for _ in cursor.stream("SELECT id FROM py")) == 2_000


def test_null_bytes_and_invalid_text(connection):
    with pytest.raises(psycopg.DataError):
        connection.execute("SELECT %s", ("a\0b",))
    done = connection.pgconn.exec_params(b"SELECT $1::text", [b"\xff\xfe"], param_types=[25])
    assert done.error_field(pq.DiagnosticField.SQLSTATE) == b"22021"
    assert rows(connection, "SELECT 1") == [(1,)]


def test_many_parameters(connection):
    numbers = list(range(5_000))
    text = "SELECT " + " + ".join(["%s::bigint"] * 50)
    assert rows(connection, text, numbers[:50]) == [(sum(numbers[:50]),)]
    connection.execute("DROP TABLE IF EXISTS py_types")
    connection.execute("CREATE TABLE py_types (id int PRIMARY KEY, v int)")
    places = ", ".join(["(%s, %s)"] * 5_000)
    parameters = [number for n in numbers for number in (n, -n)]
    connection.execute(f"INSERT INTO py_types VALUES {places}", parameters)
    assert rows(connection, "SELECT count(*), sum(v) FROM py_types") == [(5_000, -sum(numbers))]


def test_named_cursors(table):
    for first in range(1, 15_000, 3_000):
        series = f"generate_series({first}, {first + 2_999})"
        table.execute(f"INSERT INTO py (id, name) SELECT i, 'n' || i FROM {series} AS g (i)")
    with table.transaction():
        with table.cursor(name="few") as cursor:
            cursor.execute("SELECT id, name FROM py WHERE id <= %s ORDER BY id", [3])
            assert [column.name for column in cursor.description] == ["id", "name"]
            assert cursor.fetchone() == (1, "n1")
            assert cursor.fetchmany(5) == [(2, "n2"), (3, "n3")] and cursor.fetchone() is None
        with table.cursor(name="all") as cursor, table.cursor(name="binary", binary=True) as binary:
            cursor.itersize = 1000
            query = "SELECT id, n FROM py WHERE n IS NULL ORDER BY id"
            cursor.execute(query)
            binary.execute(query)
            binary.scroll(14_990)
            # A cursor does not see later changes.
            for number, (id, n) in enumerate(cursor, 1):
                assert (id, n) == (number, None)
                if number == 1:
                    table.execute("UPDATE py SET n = 1 WHERE id IN (2, 10000, 14999)")
                    table.execute("DELETE FROM py WHERE id = 15000")
            assert number == 15_000
            assert [id for id, _ in binary.fetchall()] == list(range(14_991, 15_001))
        table.execute("DECLARE c CURSOR FOR SELECT id FROM py ORDER BY id; FETCH 2 FROM c")
        assert table.execute("MOVE FORWARD 1 IN c").statusmessage == "MOVE 1"
        assert rows(table, "FETCH c") == [(4,)]
        table.execute("CLOSE ALL")
        with pytest.raises(errors.InvalidCursorName), table.transaction():
            table.execute("FETCH ALL FROM c")
        table.execute("DECLARE c CURSOR FOR SELECT 1")
        with pytest.raises(errors.DuplicateCursor), table.transaction():
            table.execute("DECLARE c CURSOR FOR SELECT 1")
    with pytest.raises(errors.InvalidCursorName):
        table.execute("FETCH ALL FROM c")
    with pytest.raises(errors.NoActiveSqlTransaction):
        table.execute("DECLARE c CURSOR FOR SELECT 1")


def test_parameters_in_groups_windows_and_lists(table):
    table.execute("INSERT INTO py VALUES (1, 'a', 10), (2, 'b', 20), (3, 'c', 30)")
    assert rows(table, "SELECT sum(n + %s) FROM py", [1]) == [(63,)]
    assert rows(table, "SELECT id %% %s, count(*) FROM py GROUP BY 1 ORDER BY 1", [2]) == [(0, 1), (1, 2)]
    frame = "SELECT sum(id) OVER (ORDER BY id ROWS BETWEEN %s PRECEDING AND %s FOLLOWING) FROM py ORDER BY id"
    assert rows(table, frame, [0, 1]) == [(3,), (5,), (3,)]
    # As SQLAlchemy inserts many rows.
    many = """INSERT INTO py (id, name, n)
        SELECT p0::INTEGER, p1::VARCHAR, p2::NUMERIC(8, 2) FROM (VALUES (%s, %s, %s, 0), (%s, %s, %s, 1)) AS s (p0, p1, p2, i)
        ORDER BY i RETURNING id, n"""
    assert rows(table, many, [4, "d", None, 5, None, decimal.Decimal("1.5")]) == [(4, None), (5, decimal.Decimal("1.50"))]
    values = "SELECT v, pg_typeof(v) FROM (VALUES (%s), (%s)) AS t (v)"
    assert rows(table, values, [1.5, None]) == [(1.5, "double precision"), (None, "double precision")]
    assert rows(table, values, ["a", None]) == [("a", "text"), (None, "text")]
