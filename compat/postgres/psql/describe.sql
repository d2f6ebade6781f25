-- The commands of psql that read the catalogs.
CREATE TABLE parent (id int PRIMARY KEY, name varchar(20) NOT NULL DEFAULT 'x', n numeric(8, 2) CHECK (n > 0.5), at timestamptz);
CREATE UNIQUE INDEX parent_name ON parent (name);
CREATE INDEX parent_n_at ON parent (n, at DESC);
CREATE TABLE numbered (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, v text);
CREATE SEQUENCE counter;
CREATE VIEW names AS SELECT name FROM parent;
\dt
\di
\ds
\dv
\d parent
\d numbered
\d names
\d nosuch
\dt nosuch
SELECT table_name, table_type FROM information_schema.tables WHERE table_schema = 'public' ORDER BY 1;
SELECT column_name, data_type, is_nullable, column_default, character_maximum_length, numeric_precision
FROM information_schema.columns WHERE table_name = 'parent' ORDER BY ordinal_position;
DROP VIEW names;
DROP TABLE parent, numbered;
DROP SEQUENCE counter;
