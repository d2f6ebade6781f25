import java.math.BigDecimal;
import java.io.StringReader;
import java.io.StringWriter;
import java.sql.*;
import java.time.*;
import java.util.*;
import java.util.concurrent.*;
import org.postgresql.PGConnection;
import org.postgresql.util.PGInterval;
import org.postgresql.util.PGobject;
import org.postgresql.util.PSQLException;

/**
 * The JDBC driver: hosts, types in both formats, prepared statements, transactions, errors, COPY, cancellation, batches,
 * cursors and metadata. The servers come from libpq's variables: PGHOST and PGPORT are lists. ONLY=TEXT runs the checks
 * with that text in their names.
 */
public final class Client {
  interface Check { void run() throws Exception; }

  static final Map<String, Check> CHECKS = new LinkedHashMap<>();

  static String url(String ports, String more) {
    List<String> hosts = new ArrayList<>();
    for (String port : ports.split(",")) hosts.add("127.0.0.1:" + port);
    return "jdbc:postgresql://" + String.join(",", hosts) + "/" + System.getenv("PGDATABASE") + "?user="
        + System.getenv("PGUSER") + more;
  }

  static Connection connect(String more) throws SQLException {
    return DriverManager.getConnection(url(System.getenv("PGPORT"), more));
  }

  static void execute(Connection connection, String... texts) throws SQLException {
    try (Statement statement = connection.createStatement()) {
      for (String text : texts) statement.execute(text);
    }
  }

  static List<List<Object>> rows(Connection connection, String text, Object... parameters) throws SQLException {
    try (PreparedStatement statement = connection.prepareStatement(text)) {
      for (int i = 0; i < parameters.length; i++) statement.setObject(i + 1, parameters[i]);
      return rows(statement.executeQuery());
    }
  }

  static List<List<Object>> rows(ResultSet results) throws SQLException {
    List<List<Object>> found = new ArrayList<>();
    while (results.next()) {
      List<Object> row = new ArrayList<>();
      for (int i = 1; i <= results.getMetaData().getColumnCount(); i++) row.add(results.getObject(i));
      found.add(row);
    }
    return found;
  }

  static void expect(Object got, Object wanted) {
    if (!Objects.deepEquals(got, wanted)) throw new AssertionError("got " + got + ", expected " + wanted);
  }

  static String fails(Check check) throws Exception {
    try {
      check.run();
      return "success";
    } catch (SQLException error) {
      return error.getSQLState();
    }
  }

  static void table(Connection connection) throws SQLException {
    execute(connection, "DROP TABLE IF EXISTS java_t",
        "CREATE TABLE java_t (id int PRIMARY KEY, name text UNIQUE, n int)");
  }

  static void thousand(Connection connection) throws Exception {
    execute(connection, "DROP TABLE IF EXISTS java_thousand", "CREATE TABLE java_thousand (id int PRIMARY KEY)");
    StringBuilder lines = new StringBuilder();
    for (int i = 0; i < 1_000; i++) lines.append(i).append('\n');
    connection.unwrap(PGConnection.class).getCopyAPI()
        .copyIn("COPY java_thousand FROM STDIN", new StringReader(lines.toString()));
  }

  static void roundTrip(Connection connection, String type, Class<?> as, Object... values) throws SQLException {
    execute(connection, "DROP TABLE IF EXISTS java_types", "CREATE TABLE java_types (id int PRIMARY KEY, v " + type + ")");
    try (PreparedStatement insert = connection.prepareStatement("INSERT INTO java_types VALUES (?, ?)")) {
      for (int i = 0; i < values.length; i++) {
        insert.setInt(1, i);
        insert.setObject(2, values[i]);
        expect(insert.executeUpdate(), 1);
      }
    }
    try (PreparedStatement select = connection.prepareStatement("SELECT v FROM java_types ORDER BY id")) {
      // The driver asks for binary results from the fifth execution on.
      for (int round = 0; round < 7; round++) {
        ResultSet results = select.executeQuery();
        for (Object value : values) {
          results.next();
          Object got = results.getObject(1, as);
          if (!Objects.deepEquals(got, value)) throw new AssertionError(type + ": got " + got + ", expected " + value);
        }
      }
    }
  }

  static PGobject json(String text) throws SQLException {
    PGobject object = new PGobject();
    object.setType("jsonb");
    object.setValue(text);
    return object;
  }

  static void types(String more) throws Exception {
    try (Connection connection = connect(more)) {
      roundTrip(connection, "boolean", Boolean.class, true, false);
      roundTrip(connection, "smallint", Short.class, Short.MIN_VALUE, Short.MAX_VALUE);
      roundTrip(connection, "integer", Integer.class, Integer.MIN_VALUE, Integer.MAX_VALUE);
      roundTrip(connection, "bigint", Long.class, Long.MIN_VALUE, Long.MAX_VALUE);
      roundTrip(connection, "real", Float.class, 1.5f, Float.MAX_VALUE, Float.NEGATIVE_INFINITY);
      roundTrip(connection, "double precision", Double.class, 0.1, Double.MAX_VALUE, Double.MIN_VALUE);
      roundTrip(connection, "numeric", BigDecimal.class, new BigDecimal("0.00001"), new BigDecimal("-12345678901234567890.5"));
      roundTrip(connection, "numeric(9, 2)", BigDecimal.class, new BigDecimal("-1234567.89"));
      roundTrip(connection, "text", String.class, "", "a\tb'\"\\", "\u4e16\ud83d\ude00");
      roundTrip(connection, "varchar(10)", String.class, "abc", null);
      roundTrip(connection, "char(4)", String.class, "ab  ");
      roundTrip(connection, "bytea", byte[].class, new byte[0], new byte[] {0, -1, 92});
      roundTrip(connection, "date", LocalDate.class, LocalDate.of(2026, 11, 27), LocalDate.of(1, 1, 1));
      roundTrip(connection, "timestamp", LocalDateTime.class, LocalDateTime.parse("2026-11-27T01:02:03.456789"));
      roundTrip(connection, "timestamptz", OffsetDateTime.class, OffsetDateTime.parse("1969-07-20T20:17:40.000001Z"));
      roundTrip(connection, "uuid", UUID.class, UUID.fromString("123e4567-e89b-12d3-a456-426614174000"));
      roundTrip(connection, "jsonb", PGobject.class, json("{\"a\": [1.5, null]}"));
      PGInterval interval = new PGInterval(1, 2, 3, 4, 5, 6.5);
      expect(rows(connection, "SELECT ?::interval", interval), List.of(List.of(interval)));
      Array array = connection.createArrayOf("int", new Integer[] {1, null, -3});
      for (int round = 0; round < 7; round++) {
        Array got = (Array) rows(connection, "SELECT ?::int[]", array).get(0).get(0);
        expect(got.getArray(), new Integer[] {1, null, -3});
      }
    }
  }

  public static void main(String[] arguments) throws Exception {
    CHECKS.put("dead host is skipped", () -> {
      try (Connection connection = DriverManager.getConnection(url("1," + System.getenv("PGPORT"), ""))) {
        expect(rows(connection, "SELECT 1"), List.of(List.of(1)));
      }
    });
    CHECKS.put("types", () -> types(""));
    CHECKS.put("types, simple protocol", () -> types("&preferQueryMode=simple"));
    CHECKS.put("types, text only", () -> types("&binaryTransfer=false"));
    CHECKS.put("types, binary at once", () -> types("&prepareThreshold=-1"));
    CHECKS.put("prepared statements", () -> {
      try (Connection connection = connect("")) {
        table(connection);
        execute(connection, "INSERT INTO java_t VALUES (1, 'a', 1), (2, 'b', 2)");
        try (PreparedStatement select = connection.prepareStatement("SELECT name FROM java_t WHERE id = ?")) {
          for (int round = 0; round < 10; round++) {
            select.setInt(1, 1 + round % 2);
            expect(rows(select.executeQuery()), List.of(List.of(round % 2 == 0 ? "a" : "b")));
          }
          execute(connection, "ALTER TABLE java_t ADD COLUMN more int DEFAULT 7");
          expect(rows(select.executeQuery()), List.of(List.of("b")));
          expect(select.getParameterMetaData().getParameterTypeName(1), "int4");
        }
        try (PreparedStatement insert = connection.prepareStatement("INSERT INTO java_t (id) VALUES (?)",
            Statement.RETURN_GENERATED_KEYS)) {
          insert.setInt(1, 3);
          expect(insert.executeUpdate(), 1);
          ResultSet keys = insert.getGeneratedKeys();
          keys.next();
          expect(keys.getInt("id"), 3);
          expect(keys.getInt("more"), 7);
        }
      }
    });
    CHECKS.put("transactions", () -> {
      try (Connection connection = connect("")) {
        table(connection);
        connection.setAutoCommit(false);
        execute(connection, "INSERT INTO java_t VALUES (1)");
        connection.rollback();
        connection.setTransactionIsolation(Connection.TRANSACTION_SERIALIZABLE);
        execute(connection, "INSERT INTO java_t VALUES (1)");
        Savepoint savepoint = connection.setSavepoint("s");
        execute(connection, "INSERT INTO java_t VALUES (2)");
        expect(fails(() -> execute(connection, "INSERT INTO java_t VALUES (1)")), "23505");
        expect(fails(() -> execute(connection, "SELECT 1")), "25P02");
        connection.rollback(savepoint);
        execute(connection, "INSERT INTO java_t VALUES (3)");
        connection.releaseSavepoint(savepoint);
        connection.commit();
        expect(rows(connection, "SELECT id FROM java_t ORDER BY id"), List.of(List.of(1), List.of(3)));
        connection.commit();
        connection.setReadOnly(true);
        expect(fails(() -> execute(connection, "DELETE FROM java_t")), "25006");
        connection.rollback();
      }
    });
    CHECKS.put("statements after an error, with autosave", () -> {
      try (Connection connection = connect("&autosave=always")) {
        table(connection);
        connection.setAutoCommit(false);
        execute(connection, "INSERT INTO java_t VALUES (1)");
        expect(fails(() -> execute(connection, "INSERT INTO java_t VALUES (1)")), "23505");
        execute(connection, "INSERT INTO java_t VALUES (2)");
        connection.commit();
        expect(rows(connection, "SELECT id FROM java_t ORDER BY id"), List.of(List.of(1), List.of(2)));
      }
    });
    CHECKS.put("conflict", () -> {
      try (Connection one = connect(""); Connection two = connect("")) {
        table(one);
        execute(one, "INSERT INTO java_t VALUES (1, 'a', 0), (2, 'b', 0)");
        for (Connection connection : List.of(one, two)) {
          connection.setAutoCommit(false);
          connection.setTransactionIsolation(Connection.TRANSACTION_SERIALIZABLE);
        }
        execute(one, "SELECT n FROM java_t WHERE id = 1");
        execute(two, "SELECT n FROM java_t WHERE id = 2");
        List<String> outcomes = new ArrayList<>();
        outcomes.add(fails(() -> { execute(one, "UPDATE java_t SET n = 1 WHERE id = 2"); one.commit(); }));
        outcomes.add(fails(() -> { execute(two, "UPDATE java_t SET n = 1 WHERE id = 1"); two.commit(); }));
        Collections.sort(outcomes);
        expect(outcomes, List.of("40001", "success"));
      }
    });
    CHECKS.put("errors", () -> {
      try (Connection connection = connect("")) {
        table(connection);
        execute(connection, "INSERT INTO java_t VALUES (1, 'a', 1)");
        String[][] statements = {
          {"INSERT INTO java_t VALUES (2, 'a', 1)", "23505"}, {"INSERT INTO java_t VALUES (NULL)", "23502"},
          {"SELECT * FROM nosuch", "42P01"}, {"SELECT nosuch FROM java_t", "42703"}, {"SELEC", "42601"},
          {"SELECT n / 0 FROM java_t", "22012"}, {"SELECT 'x'::int", "22P02"},
        };
        for (String[] statement : statements) {
          expect(statement[0] + " " + fails(() -> execute(connection, statement[0])), statement[0] + " " + statement[1]);
        }
        try {
          execute(connection, "INSERT INTO java_t VALUES (2, 'a', 1)");
        } catch (PSQLException error) {
          expect(error.getServerErrorMessage().getConstraint(), "java_t_name_key");
          expect(error.getServerErrorMessage().getDetail(), "Key (name)=(a) already exists.");
        }
      }
    });
    CHECKS.put("batches", () -> {
      for (String more : List.of("", "&reWriteBatchedInserts=true")) {
        try (Connection connection = connect(more)) {
          table(connection);
          connection.setAutoCommit(false);
          try (PreparedStatement insert = connection.prepareStatement("INSERT INTO java_t VALUES (?, ?, ?)")) {
            for (int i = 0; i < 500; i++) {
              insert.setInt(1, i);
              insert.setString(2, "name " + i);
              insert.setInt(3, i);
              insert.addBatch();
            }
            expect(insert.executeBatch().length, 500);
          }
          connection.commit();
          expect(rows(connection, "SELECT count(*), sum(n) FROM java_t"), List.of(List.of(500L, 124_750L)));
          connection.setAutoCommit(true);
          try (Statement statement = connection.createStatement()) {
            statement.addBatch("INSERT INTO java_t (id) VALUES (1000)");
            statement.addBatch("INSERT INTO java_t (id) VALUES (1)");
            expect(fails(statement::executeBatch), "23505");
          }
          // A batch outside of a transaction is one.
          expect(rows(connection, "SELECT count(*) FROM java_t"), List.of(List.of(500L)));
        }
      }
    });
    CHECKS.put("cursor", () -> {
      try (Connection connection = connect("")) {
        thousand(connection);
        connection.setAutoCommit(false);
        try (PreparedStatement select = connection.prepareStatement("SELECT id FROM java_thousand ORDER BY id")) {
          select.setFetchSize(130);
          ResultSet results = select.executeQuery();
          for (int i = 0; i < 1_000; i++) {
            expect(results.next(), true);
            expect(results.getInt(1), i);
          }
          expect(results.next(), false);
        }
        connection.commit();
      }
    });
    CHECKS.put("copy", () -> {
      try (Connection connection = connect("")) {
        table(connection);
        String text = "1\ta\t1\n2\t\\N\t2\n3\ttab\\there\t\\N\n";
        var copy = connection.unwrap(PGConnection.class).getCopyAPI();
        expect(copy.copyIn("COPY java_t FROM STDIN", new StringReader(text)), 3L);
        StringWriter out = new StringWriter();
        expect(copy.copyOut("COPY java_t TO STDOUT", out), 3L);
        expect(out.toString(), text);
        expect(fails(() -> copy.copyIn("COPY java_t FROM STDIN", new StringReader("9\tx\t9\n1\ty\t1\n"))), "23505");
        expect(rows(connection, "SELECT count(*) FROM java_t"), List.of(List.of(3L)));
      }
    });
    CHECKS.put("cancel and timeout", () -> {
      try (Connection connection = connect(""); Statement statement = connection.createStatement()) {
        thousand(connection);
        String text = "SELECT count(*) FROM java_thousand a, java_thousand b, java_thousand c WHERE a.id + b.id + c.id < 0";
        var timer = Executors.newSingleThreadScheduledExecutor();
        timer.schedule(() -> { statement.cancel(); return null; }, 1, TimeUnit.SECONDS);
        expect(fails(() -> statement.executeQuery(text)), "57014");
        timer.shutdown();
        statement.setQueryTimeout(1);
        expect(fails(() -> statement.executeQuery(text)), "57014");
        expect(rows(connection, "SELECT 1"), List.of(List.of(1)));
      }
    });
    CHECKS.put("metadata", () -> {
      try (Connection connection = connect("")) {
        table(connection);
        DatabaseMetaData metadata = connection.getMetaData();
        expect(metadata.getDatabaseProductName(), "PostgreSQL");
        ResultSet tables = metadata.getTables(null, "public", "java_t", new String[] {"TABLE"});
        expect(tables.next(), true);
        expect(tables.getString("TABLE_NAME"), "java_t");
        List<String> columns = new ArrayList<>();
        ResultSet found = metadata.getColumns(null, "public", "java_t", null);
        while (found.next()) {
          columns.add(found.getString("COLUMN_NAME") + " " + found.getString("TYPE_NAME") + " " + found.getString("IS_NULLABLE"));
        }
        expect(columns, List.of("id int4 NO", "name text YES", "n int4 YES"));
        ResultSet keys = metadata.getPrimaryKeys(null, "public", "java_t");
        expect(keys.next(), true);
        expect(keys.getString("COLUMN_NAME"), "id");
        Set<String> indexes = new TreeSet<>();
        ResultSet of = metadata.getIndexInfo(null, "public", "java_t", true, false);
        while (of.next()) indexes.add(of.getString("INDEX_NAME"));
        expect(indexes, Set.of("java_t_pkey", "java_t_name_key"));
        // It looks for the table of the column, to say whether it can be changed.
        try (Statement statement = connection.createStatement()) {
          ResultSetMetaData of2 = statement.executeQuery("SELECT id, n + 1 AS more FROM java_t").getMetaData();
          expect(of2.getColumnTypeName(1), "int4");
          expect(of2.isNullable(1), ResultSetMetaData.columnNoNulls);
          expect(of2.getColumnName(2), "more");
        }
      }
    });
    String only = System.getenv().getOrDefault("ONLY", "");
    int failed = 0, done = 0;
    for (var check : CHECKS.entrySet()) {
      if (!check.getKey().contains(only)) continue;
      done++;
      try {
        check.getValue().run();
      } catch (Throwable error) {
        failed++;
        System.out.println("FAILED " + check.getKey() + ": " + error);
        if (System.getenv("TRACE") != null) error.printStackTrace(System.out);
      }
    }
    System.out.println("JDBC: " + done + " checks, " + failed + " failed");
    System.exit(failed == 0 ? 0 : 1);
  }
}
