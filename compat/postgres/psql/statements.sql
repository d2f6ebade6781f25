-- Statements and their results as psql prints them.
\set SHOW_CONTEXT never
\pset null '(null)'
CREATE TABLE account (
    id int PRIMARY KEY,
    owner text NOT NULL,
    balance numeric(12, 2) DEFAULT 0 CHECK (balance >= 0),
    opened date DEFAULT '2026-11-27'
);
INSERT INTO account VALUES (1, 'Ada', 100), (2, 'Bob', DEFAULT) RETURNING *;
INSERT INTO account (id, owner) VALUES (2, 'Eve') ON CONFLICT DO NOTHING;
INSERT INTO account (id, owner) VALUES (2, 'Eve') ON CONFLICT (id) DO UPDATE SET owner = excluded.owner RETURNING id, owner;
INSERT INTO account VALUES (3, NULL);
INSERT INTO account VALUES (3, 'Cid', -1);
INSERT INTO account VALUES (1, 'Cid');
SELECT id, owner, balance FROM account WHERE balance < 50 ORDER BY id;
SELECT count(*), sum(balance), min(opened) FROM account;
UPDATE account SET balance = balance + 1.005 WHERE id = 1 RETURNING balance;
DELETE FROM account WHERE id = 9;
SELECT ownr FROM account;
SELECT * FROM absent_table;
BEGIN;
UPDATE account SET balance = 0;
SELECT sum(balance) FROM account;
ROLLBACK;
SELECT sum(balance) FROM account;
BEGIN;
INSERT INTO account VALUES (4, 'Dan');
SAVEPOINT s;
INSERT INTO account VALUES (4, 'Dan');
SELECT 1;
ROLLBACK TO s;
COMMIT;
SELECT id FROM account ORDER BY id DESC LIMIT 2;
COMMIT;
BEGIN READ ONLY;
DELETE FROM account;
ROLLBACK;
PREPARE by_id (int) AS SELECT owner FROM account WHERE id = $1;
EXECUTE by_id(1);
DEALLOCATE by_id;
EXECUTE by_id(1);
SELECT true AS b, 1::smallint AS s, 0.1::real AS r, 1e300::float8 AS d, '\x00ff'::bytea AS bytes, NULL AS n;
SELECT '2026-11-27 01:02:03.4'::timestamp AS t, '123e4567-e89b-12d3-a456-426614174000'::uuid AS u, '{"a":[1,2]}'::jsonb AS j;
SELECT 1 / 0;
SELECT 2147483647 + 1;
SELECT 7 AS seven \gset
SELECT :seven AS "a name";
SELECT id, owner FROM account WHERE id = 1 \gx
SELECT 1 AS a\; SELECT 2 AS b;
SET statement_timeout = '5s';
SHOW statement_timeout;
SET nosuch_setting = 1;
TRUNCATE account;
SELECT count(*) FROM account;
DROP TABLE account;
DROP TABLE account;
DROP TABLE IF EXISTS account;
CREATE TABLE copied (id int PRIMARY KEY, v text, n float8);
\copy copied (id, v) FROM STDIN WITH (FORMAT csv)
1,"with, comma"
2,""
3,
\.
COPY copied FROM STDIN;
7	tab\there	1.5
8	\\ and \n	\N
\.
COPY copied FROM STDIN;
10	a	x
\.
COPY copied FROM STDIN;
10	a
\.
SELECT * FROM copied ORDER BY id;
COPY copied TO STDOUT;
COPY copied (id, v) TO STDOUT WITH (FORMAT csv, HEADER);
COPY (SELECT v, count(*) FROM copied GROUP BY v HAVING v > '~') TO STDOUT;
COPY nosuch TO STDOUT;
DROP TABLE copied;
