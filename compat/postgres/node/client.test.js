// node-postgres: hosts, types, prepared statements, transactions, errors, COPY, cancellation, cursors, pools.
// The servers come from libpq's variables; PGHOST and PGPORT are lists. node-postgres takes one host at a time.
import assert from 'node:assert/strict';
import { pipeline } from 'node:stream/promises';
import { Readable } from 'node:stream';
import { after, before, test } from 'node:test';
import pg from 'pg';
import copyStreams from 'pg-copy-streams';
import Cursor from 'pg-cursor';

const ports = process.env.PGPORT.split(',').map(Number);
const settings = (port) => ({ host: '127.0.0.1', port, user: process.env.PGUSER, database: process.env.PGDATABASE });

// Connects to the first host that serves.
async function connect(of = ports) {
  let failure;
  for (const port of of) {
    const client = new pg.Client(settings(port));
    try {
      await client.connect();
      return client;
    } catch (error) {
      failure = error;
    }
  }
  throw failure;
}

let client;
before(async () => {
  client = await connect();
});
after(() => client.end());

const rows = async (text, values, on = client) => (await on.query({ text, values, rowMode: 'array' })).rows;

async function table() {
  await client.query('DROP TABLE IF EXISTS js');
  await client.query('CREATE TABLE js (id int PRIMARY KEY, name text UNIQUE, n int)');
}

async function fails(text, values, on = client) {
  try {
    await on.query(text, values);
  } catch (error) {
    return error.code;
  }
  throw new Error(`${text} succeeded`);
}

test('dead host is skipped', async () => {
  const other = await connect([1, ...ports]);
  assert.deepEqual(await rows('SELECT 1', [], other), [[1]]);
  await other.end();
});

test('each host', async () => {
  for (const port of ports) {
    const other = await connect([port]);
    assert.deepEqual(await rows('SELECT current_database()', [], other), [[process.env.PGDATABASE]]);
    await other.end();
  }
});

const TYPES = {
  boolean: [true, false],
  smallint: [-32768, 32767],
  integer: [-(2 ** 31), 2 ** 31 - 1],
  bigint: ['-9223372036854775808', '9223372036854775807'],
  real: [1.5, -Infinity],
  'double precision': [0.1, 5e-324, 1.7976931348623157e308],
  numeric: ['0.00001', '-12345678901234567890.5'],
  'numeric(9, 2)': ['-1234567.89'],
  text: ['', 'a\tb\'"\\', '\u4e16\u{1f600}'],
  'varchar(10)': ['abc'],
  'char(4)': ['ab  '],
  bytea: [Buffer.alloc(0), Buffer.from([0, 255, 92])],
  date: ['2026-11-27', '0001-01-01'],
  timestamp: ['2026-11-27 01:02:03.456789'],
  timestamptz: [new Date('1969-07-20T20:17:40.123Z')],
  uuid: ['123e4567-e89b-12d3-a456-426614174000'],
  jsonb: [{ a: [1.5, null, true, 'x'] }],
};
// Those that the client would convert to its own types, with loss.
for (const oid of [1082, 1114]) pg.types.setTypeParser(oid, (text) => text);

for (const [name, values] of Object.entries(TYPES)) {
  test(`column of ${name}`, async () => {
    await client.query('DROP TABLE IF EXISTS js_types');
    await client.query(`CREATE TABLE js_types (id int PRIMARY KEY, v ${name})`);
    for (const [id, value] of [...values, null].entries()) {
      await client.query('INSERT INTO js_types VALUES ($1, $2)', [id, value]);
    }
    const found = await rows('SELECT v FROM js_types ORDER BY id');
    assert.deepEqual(found.map(([value]) => value), [...values, null]);
  });
}

test('binary results', async () => {
  // The client decodes integers, floats and text only.
  const text = "SELECT 7::int, -8::bigint, 1.5::real, 0.1::float8, true, 'x'::text";
  const { rows: found } = await client.query({ text, values: [], rowMode: 'array', binary: true });
  assert.deepEqual(found, [[7, '-8', 1.5, 0.1, true, 'x']]);
});

test('arrays and intervals', async () => {
  assert.deepEqual(await rows('SELECT $1::int[], $2::text[]', [[1, null, -3], ['a,b', '"{}\\']]), [
    [[1, null, -3], ['a,b', '"{}\\']],
  ]);
  const [[interval]] = await rows("SELECT '1 year 2 days 03:04:05.006'::interval");
  assert.deepEqual({ ...interval }, { years: 1, days: 2, hours: 3, minutes: 4, seconds: 5, milliseconds: 6 });
});

test('prepared statements', async () => {
  await table();
  await client.query("INSERT INTO js VALUES (1, 'a', 1), (2, 'b', 2)");
  for (const [id, name] of [[1, 'a'], [2, 'b'], [1, 'a']]) {
    const result = await client.query({ name: 'by-id', text: 'SELECT name FROM js WHERE id = $1', values: [id] });
    assert.deepEqual(result.rows, [{ name }]);
  }
  const result = await client.query('UPDATE js SET n = n + $1 RETURNING id, n', [10]);
  assert.equal(result.rowCount, 2);
  assert.equal(result.command, 'UPDATE');
  assert.deepEqual(result.fields.map((field) => [field.name, field.dataTypeID]), [['id', 23], ['n', 23]]);
});

test('transactions', async () => {
  await table();
  await client.query('BEGIN');
  await client.query('INSERT INTO js VALUES (1)');
  await client.query('ROLLBACK');
  assert.deepEqual(await rows('SELECT count(*) FROM js'), [['0']]);
  await client.query('BEGIN ISOLATION LEVEL SERIALIZABLE');
  await client.query('INSERT INTO js VALUES (1)');
  await client.query('SAVEPOINT s');
  assert.equal(await fails('INSERT INTO js VALUES (1)'), '23505');
  assert.equal(await fails('SELECT 1'), '25P02');
  await client.query('ROLLBACK TO SAVEPOINT s');
  await client.query('INSERT INTO js VALUES (2)');
  await client.query('RELEASE s');
  await client.query('COMMIT');
  assert.deepEqual(await rows('SELECT id FROM js ORDER BY id'), [[1], [2]]);
});

test('conflict', async () => {
  await table();
  await client.query("INSERT INTO js VALUES (1, 'a', 0), (2, 'b', 0)");
  const other = await connect();
  for (const of of [client, other]) await of.query('BEGIN ISOLATION LEVEL SERIALIZABLE');
  await client.query('SELECT n FROM js WHERE id = 1');
  await other.query('SELECT n FROM js WHERE id = 2');
  const finish = async (of, id) => {
    await of.query('UPDATE js SET n = 1 WHERE id = $1', [id]);
    await of.query('COMMIT');
  };
  const outcomes = [await finish(client, 2).catch((error) => error.code), await finish(other, 1).catch((error) => error.code)];
  for (const of of [client, other]) await of.query('ROLLBACK');
  await other.end();
  assert.deepEqual(outcomes.sort(), ['40001', undefined]);
});

test('errors', async () => {
  await table();
  await client.query("INSERT INTO js VALUES (1, 'a', 1)");
  for (const [text, code] of [
    ["INSERT INTO js VALUES (2, 'a', 1)", '23505'],
    ['INSERT INTO js VALUES (NULL)', '23502'],
    ['SELECT * FROM nosuch', '42P01'],
    ['SELECT nosuch FROM js', '42703'],
    ['SELEC', '42601'],
    ['SELECT n / 0 FROM js', '22012'],
  ]) {
    assert.equal(await fails(text), code, text);
    assert.equal(await fails({ text, values: [], name: `e${code}` }), code, text);
  }
  assert.equal(await fails('SELECT $1::int', ['x']), '22P02');
  try {
    await client.query('SELECT nam FROM js');
  } catch (error) {
    assert.equal(error.position, '8');
    assert.match(error.hint, /name/);
  }
});

test('copy', async () => {
  await table();
  const text = '1\ta\t1\n2\t\\N\t2\n3\ttab\\there\t\\N\n';
  await pipeline(Readable.from([text.slice(0, 9), text.slice(9)]), client.query(copyStreams.from('COPY js FROM STDIN')));
  let copied = '';
  for await (const chunk of client.query(copyStreams.to('COPY js TO STDOUT'))) copied += chunk;
  assert.equal(copied, text);
  const twice = pipeline(Readable.from(['9\tx\t9\n1\ty\t1\n']), client.query(copyStreams.from('COPY js FROM STDIN')));
  await assert.rejects(twice, { code: '23505' });
  assert.deepEqual(await rows('SELECT count(*) FROM js'), [['3']]);
});

test('cursor', async () => {
  await table();
  const text = Array.from({ length: 1_000 }, (_, id) => `${id}\t\\N\t1\n`).join('');
  await pipeline(Readable.from([text]), client.query(copyStreams.from('COPY js FROM STDIN')));
  const cursor = client.query(new Cursor('SELECT id FROM js ORDER BY id'));
  let expected = 0;
  for (let page = await cursor.read(130); page.length > 0; page = await cursor.read(130)) {
    for (const { id } of page) assert.equal(id, expected++);
  }
  assert.equal(expected, 1_000);
  await cursor.close();
  // One that is closed early.
  const second = client.query(new Cursor('SELECT id FROM js ORDER BY id'));
  assert.equal((await second.read(5)).length, 5);
  await second.close();
  assert.deepEqual(await rows('SELECT 1'), [[1]]);
});

test('cancel', async () => {
  await client.query('DROP TABLE IF EXISTS js_long');
  await client.query('CREATE TABLE js_long (id int PRIMARY KEY)');
  const text = Array.from({ length: 1_000 }, (_, id) => `${id}\n`).join('');
  await pipeline(Readable.from([text]), client.query(copyStreams.from('COPY js_long FROM STDIN')));
  const long = 'SELECT count(*) FROM js_long a, js_long b, js_long c WHERE a.id + b.id + c.id < 0';
  const running = fails(long);
  setTimeout(() => {
    // node-postgres has no public method for it; this is what its pool's users do.
    const connection = new pg.Connection();
    connection.connect(client.port, client.host);
    connection.once('connect', () => connection.cancel(client.processID, client.secretKey));
    connection.on('error', () => {});
  }, 1_000);
  const began = Date.now();
  assert.equal(await running, '57014');
  assert.ok(Date.now() - began < 5_000);
  assert.deepEqual(await rows('SELECT 1'), [[1]]);
});

test('pool', async () => {
  const pool = new pg.Pool({ ...settings(ports.at(-1)), max: 4 });
  const asked = Array.from({ length: 50 }, (_, n) => pool.query('SELECT $1::int AS n', [n]));
  assert.deepEqual((await Promise.all(asked)).map((result) => result.rows[0].n), [...asked.keys()]);
  await pool.end();
});
