// pgx: hosts, types in both formats, prepared statements, transactions, errors, COPY, cancellation, batches.
// The servers come from libpq's variables: PGHOST and PGPORT are lists.
package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"
)

var background = context.Background()

func connect(t *testing.T, change func(*pgx.ConnConfig)) *pgx.Conn {
	t.Helper()
	config, err := pgx.ParseConfig("")
	must(t, err)
	if change != nil {
		change(config)
	}
	conn, err := pgx.ConnectConfig(background, config)
	must(t, err)
	t.Cleanup(func() { conn.Close(background) })
	return conn
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func run(t *testing.T, conn *pgx.Conn, text string, arguments ...any) int64 {
	t.Helper()
	tag, err := conn.Exec(background, text, arguments...)
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return tag.RowsAffected()
}

func state(err error) string {
	var failed *pgconn.PgError
	if errors.As(err, &failed) {
		return failed.Code
	}
	return fmt.Sprint(err)
}

func expect(t *testing.T, got, wanted any) {
	t.Helper()
	if !reflect.DeepEqual(got, wanted) {
		t.Fatalf("got %v, expected %v", got, wanted)
	}
}

func one[T any](t *testing.T, conn *pgx.Conn, text string, arguments ...any) T {
	t.Helper()
	rows, err := conn.Query(background, text, arguments...)
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	value, err := pgx.CollectExactlyOneRow(rows, pgx.RowTo[T])
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return value
}

func table(t *testing.T, conn *pgx.Conn) {
	t.Helper()
	run(t, conn, "DROP TABLE IF EXISTS go_t")
	run(t, conn, "CREATE TABLE go_t (id bigint PRIMARY KEY, name text UNIQUE, n int)")
}

func TestDeadHostIsSkipped(t *testing.T) {
	ports := "1," + os.Getenv("PGPORT")
	hosts := strings.Repeat("127.0.0.1,", strings.Count(ports, ",")) + "127.0.0.1"
	conn, err := pgx.Connect(background, fmt.Sprintf("host=%s port=%s", hosts, ports))
	must(t, err)
	defer conn.Close(background)
	expect(t, one[int32](t, conn, "SELECT 1"), int32(1))
}

var modes = map[string]pgx.QueryExecMode{
	"cache_statement": pgx.QueryExecModeCacheStatement,
	"cache_describe":  pgx.QueryExecModeCacheDescribe,
	"describe_exec":   pgx.QueryExecModeDescribeExec,
	"exec":            pgx.QueryExecModeExec,
	"simple_protocol": pgx.QueryExecModeSimpleProtocol,
}

func TestModes(t *testing.T) {
	for name, mode := range modes {
		t.Run(name, func(t *testing.T) {
			conn := connect(t, func(config *pgx.ConnConfig) { config.DefaultQueryExecMode = mode })
			table(t, conn)
			for id := range 20 {
				expect(t, run(t, conn, "INSERT INTO go_t VALUES ($1, $2, $3)", int64(id), fmt.Sprint(id), id), int64(1))
			}
			expect(t, one[string](t, conn, "SELECT name FROM go_t WHERE id = $1", int64(7)), "7")
			expect(t, one[int64](t, conn, "SELECT sum(n) FROM go_t WHERE n < $1", 5), int64(10))
			expect(t, run(t, conn, "UPDATE go_t SET n = n + $1 WHERE id = $2", 5, int64(1)), int64(1))
			expect(t, one[*int32](t, conn, "SELECT n FROM go_t WHERE name = $1", "1"), ptr(int32(6)))
		})
	}
}

func ptr[T any](value T) *T { return &value }

func numeric(text string) pgtype.Numeric {
	var value pgtype.Numeric
	if err := value.Scan(text); err != nil {
		panic(err)
	}
	return value
}

// Writes a value into a column and reads it again, in one format each way.
func roundTrip[T any](t *testing.T, conn *pgx.Conn, name string, format int16, values ...T) {
	t.Helper()
	// The client does not notice that a table has been replaced.
	must(t, conn.DeallocateAll(background))
	run(t, conn, "DROP TABLE IF EXISTS go_types")
	run(t, conn, "CREATE TABLE go_types (id int PRIMARY KEY, v "+name+")")
	for id, value := range values {
		run(t, conn, "INSERT INTO go_types VALUES ($1, $2)", id, value)
	}
	rows, err := conn.Query(background, "SELECT v FROM go_types ORDER BY id", pgx.QueryResultFormats{format})
	must(t, err)
	found, err := pgx.CollectRows(rows, pgx.RowTo[T])
	must(t, err)
	if name == "timestamptz" {
		for i, value := range found {
			found[i] = any(any(value).(time.Time).UTC()).(T)
		}
	}
	if !reflect.DeepEqual(found, values) {
		t.Fatalf("%s: got %v, expected %v", name, found, values)
	}
}

func TestTypes(t *testing.T) {
	for format, title := range []string{"text", "binary"} {
		t.Run(title, func(t *testing.T) {
			conn, format := connect(t, nil), int16(format)
			roundTrip(t, conn, "boolean", format, true, false)
			roundTrip(t, conn, "smallint", format, int16(math.MinInt16), math.MaxInt16)
			roundTrip(t, conn, "integer", format, int32(math.MinInt32), math.MaxInt32)
			roundTrip(t, conn, "bigint", format, int64(math.MinInt64), math.MaxInt64)
			roundTrip(t, conn, "real", format, float32(1.5), math.MaxFloat32, float32(math.Inf(-1)))
			roundTrip(t, conn, "double precision", format, 0.1, math.MaxFloat64, math.SmallestNonzeroFloat64)
			roundTrip(t, conn, "numeric", format, numeric("0.00001"), numeric("-12345678901234567890.5"))
			roundTrip(t, conn, "numeric(9, 2)", format, numeric("-1234567.89"))
			roundTrip(t, conn, "text", format, "", "a\tb'\"\\", "\u4e16\U0001f600")
			roundTrip(t, conn, "varchar(10)", format, "abc")
			roundTrip(t, conn, "char(4)", format, "ab  ")
			roundTrip(t, conn, "bytea", format, []byte{}, []byte{0, 255, '\\'})
			roundTrip(t, conn, "date", format, time.Date(2026, 11, 27, 0, 0, 0, 0, time.UTC), time.Date(1, 1, 1, 0, 0, 0, 0, time.UTC))
			roundTrip(t, conn, "timestamp", format, time.Date(2026, 11, 27, 1, 2, 3, 456789000, time.UTC))
			roundTrip(t, conn, "timestamptz", format, time.Date(1969, 7, 20, 20, 17, 40, 1000, time.UTC))
			roundTrip(t, conn, "uuid", format, pgtype.UUID{Bytes: [16]byte{1, 2, 15: 255}, Valid: true})
			roundTrip(t, conn, "jsonb", format, map[string]any{"a": []any{1.5, nil, true, "x"}})
			roundTrip(t, conn, "text", format, ptr("x"), nil)
			results := pgx.QueryResultFormats{format}
			interval := pgtype.Interval{Months: 14, Days: 3, Microseconds: 4_000_005, Valid: true}
			expect(t, one[pgtype.Interval](t, conn, "SELECT $1::interval", results, interval), interval)
			expect(t, one[[]int32](t, conn, "SELECT $1::int[]", results, []int32{1, -2}), []int32{1, -2})
			expect(t, one[[]*string](t, conn, "SELECT $1::text[]", results, []*string{ptr("a,b"), nil}), []*string{ptr("a,b"), nil})
		})
	}
}

func TestTransactions(t *testing.T) {
	conn := connect(t, nil)
	table(t, conn)
	failed := errors.New("the client gives up")
	err := pgx.BeginFunc(background, conn, func(tx pgx.Tx) error {
		_, err := tx.Exec(background, "INSERT INTO go_t VALUES (1)")
		must(t, err)
		return failed
	})
	expect(t, err, failed)
	expect(t, one[int64](t, conn, "SELECT count(*) FROM go_t"), int64(0))
	err = pgx.BeginTxFunc(background, conn, pgx.TxOptions{IsoLevel: pgx.Serializable}, func(tx pgx.Tx) error {
		_, err := tx.Exec(background, "INSERT INTO go_t VALUES (1)")
		must(t, err)
		// A nested transaction is a savepoint.
		err = pgx.BeginFunc(background, tx, func(tx pgx.Tx) error {
			_, err := tx.Exec(background, "INSERT INTO go_t VALUES (2)")
			must(t, err)
			_, err = tx.Exec(background, "INSERT INTO go_t VALUES (1)")
			return err
		})
		expect(t, state(err), "23505")
		_, err = tx.Exec(background, "INSERT INTO go_t VALUES (3)")
		return err
	})
	must(t, err)
	expect(t, one[int64](t, conn, "SELECT sum(id)::bigint FROM go_t"), int64(4))
	err = pgx.BeginTxFunc(background, conn, pgx.TxOptions{AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		_, err := tx.Exec(background, "DELETE FROM go_t")
		return err
	})
	expect(t, state(err), "25006")
}

func TestErrors(t *testing.T) {
	conn := connect(t, nil)
	table(t, conn)
	run(t, conn, "INSERT INTO go_t VALUES (1, 'a', 1)")
	for text, code := range map[string]string{
		"INSERT INTO go_t VALUES (1, 'b', 1)":    "23505",
		"INSERT INTO go_t VALUES (2, 'a', 1)":    "23505",
		"INSERT INTO go_t (name) VALUES ('b')":   "23502",
		"SELECT * FROM nosuch":                   "42P01",
		"SELECT nosuch FROM go_t":                "42703",
		"SELEC":                                  "42601",
		"SELECT n / 0 FROM go_t":                 "22012",
		"SELECT 1::bigint << 2 FROM nosuch":      "42P01",
		"INSERT INTO go_t VALUES (3, 'c', 3e10)": "22003",
	} {
		_, err := conn.Exec(background, text)
		expect(t, text+": "+state(err), text+": "+code)
	}
	var failed *pgconn.PgError
	_, err := conn.Exec(background, "INSERT INTO go_t VALUES (2, 'a', 1)")
	if !errors.As(err, &failed) || failed.ConstraintName != "go_t_name_key" || failed.TableName != "go_t" {
		t.Fatalf("%#v", failed)
	}
	_, err = conn.Exec(background, "SELECT count(*) FROM go_t WHERE id = $1", "x")
	if err == nil {
		t.Fatal("an invalid parameter was accepted")
	}
	expect(t, one[int64](t, conn, "SELECT count(*) FROM go_t"), int64(1))
}

// Transactions in conflict: each is tried again after 40001, and none is lost.
func TestConflicts(t *testing.T) {
	conn := connect(t, nil)
	table(t, conn)
	run(t, conn, "INSERT INTO go_t VALUES (1, 'counter', 0)")
	pool, err := pgxpool.New(background, "pool_max_conns=4")
	must(t, err)
	defer pool.Close()
	var clients sync.WaitGroup
	for range 4 {
		clients.Go(func() {
			for done := 0; done < 10; {
				err := pgx.BeginTxFunc(background, pool, pgx.TxOptions{IsoLevel: pgx.Serializable}, func(tx pgx.Tx) error {
					var n int
					if err := tx.QueryRow(background, "SELECT n FROM go_t WHERE id = 1").Scan(&n); err != nil {
						return err
					}
					_, err := tx.Exec(background, "UPDATE go_t SET n = $1 WHERE id = 1", n+1)
					return err
				})
				if err == nil {
					done++
				} else if state(err) != "40001" {
					t.Error(err)
					return
				}
			}
		})
	}
	clients.Wait()
	expect(t, one[int32](t, conn, "SELECT n FROM go_t WHERE id = 1"), int32(40))
}

func TestCopy(t *testing.T) {
	conn := connect(t, nil)
	table(t, conn)
	in := "1\ta\t1\n2\t\\N\t2\n3\ttab\\there\t\\N\n"
	tag, err := conn.PgConn().CopyFrom(background, strings.NewReader(in), "COPY go_t FROM STDIN")
	must(t, err)
	expect(t, tag.RowsAffected(), int64(3))
	var out bytes.Buffer
	tag, err = conn.PgConn().CopyTo(background, &out, "COPY go_t TO STDOUT")
	must(t, err)
	expect(t, [2]any{tag.RowsAffected(), out.String()}, [2]any{int64(3), in})
	_, err = conn.PgConn().CopyFrom(background, strings.NewReader("9\tx\t9\n1\ty\t1\n"), "COPY go_t FROM STDIN")
	expect(t, state(err), "23505")
	expect(t, one[int64](t, conn, "SELECT count(*) FROM go_t"), int64(3))
}

func TestCancel(t *testing.T) {
	conn := connect(t, nil)
	run(t, conn, "DROP TABLE IF EXISTS go_long")
	run(t, conn, "CREATE TABLE go_long (id int PRIMARY KEY)")
	var lines strings.Builder
	for id := range 1_000 {
		fmt.Fprintln(&lines, id)
	}
	_, err := conn.PgConn().CopyFrom(background, strings.NewReader(lines.String()), "COPY go_long FROM STDIN")
	must(t, err)
	time.AfterFunc(time.Second, func() {
		within, cancel := context.WithTimeout(background, 5*time.Second)
		defer cancel()
		if err := conn.PgConn().CancelRequest(within); err != nil {
			t.Error(err)
		}
	})
	_, err = conn.Exec(background, "SELECT count(*) FROM go_long a, go_long b, go_long c WHERE a.id + b.id + c.id < 0")
	expect(t, state(err), "57014")
	expect(t, one[int32](t, conn, "SELECT 1"), int32(1))
}

func TestBatch(t *testing.T) {
	conn := connect(t, nil)
	table(t, conn)
	var batch pgx.Batch
	for id := range 100 {
		batch.Queue("INSERT INTO go_t VALUES ($1, $2, $3)", id, fmt.Sprint(id), id)
	}
	var sum int64
	batch.Queue("SELECT sum(n) FROM go_t").QueryRow(func(row pgx.Row) error { return row.Scan(&sum) })
	must(t, conn.SendBatch(background, &batch).Close())
	expect(t, sum, int64(4950))
	// The statements of a batch are one transaction.
	var failing pgx.Batch
	failing.Queue("INSERT INTO go_t (id) VALUES (1000)")
	failing.Queue("INSERT INTO go_t (id) VALUES (1)")
	expect(t, state(conn.SendBatch(background, &failing).Close()), "23505")
	expect(t, one[int64](t, conn, "SELECT count(*) FROM go_t"), int64(100))
}

func TestPool(t *testing.T) {
	pool, err := pgxpool.New(background, "pool_max_conns=4")
	must(t, err)
	defer pool.Close()
	var clients sync.WaitGroup
	for client := range 8 {
		clients.Go(func() {
			for range 25 {
				var got int
				if err := pool.QueryRow(background, "SELECT $1::int", client).Scan(&got); err != nil || got != client {
					t.Error(got, err)
				}
			}
		})
	}
	clients.Wait()
}
