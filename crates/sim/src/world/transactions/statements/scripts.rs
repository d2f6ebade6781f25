//! The transactions of the workloads.

use std::sync::Arc;

use bytes::Bytes;
use sql::cells;
use sql::ddl;
use sql::direct::Read;
use sql::ids::IndexId;
use sql::keys::{self, KeyRange};
use sql::rows::{StoredRow, TableRows, Write, fill_index};
use sql::schema::{Builder, Garbage, Index, IndexState, Table};
use sql::{SqlError, Value};

use super::check::{self, TOTAL};
use super::tx::{Stop, Tx};
use crate::list_append::Operation;

/// Accounts that may exist; the first of them exist at the beginning.
const ACCOUNTS: u64 = 8;
const ACCOUNTS_FIRST: i64 = 5;
/// Codes of accounts: with so few, new ones are often in use.
const CODES: u64 = 12;
const REGIONS: u64 = 3;
const LISTS: u64 = 4;
const PARENTS: u64 = 4;
const CHILDREN: u64 = 3;
/// Rows that one transaction adds to an index.
const FILLED_ROWS: usize = 2;
/// Keys of dropped objects that one transaction deletes.
const COLLECTED_ROWS: usize = 10;

/// What a transaction does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Script {
    /// Creates the tables, and inserts the first rows.
    Create,
    /// Checks the whole database.
    Audit,
    /// Transfers between accounts, and changes of accounts.
    Bank,
    /// Reads of lists, and appends of values from this one on.
    Lists(u64),
    /// Rows in interleaved tables.
    Families,
    /// A step of a change of the schema.
    Alter,
}

/// How far an index is filled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Progress {
    index: IndexId,
    /// Where its table continues; none once all rows are added.
    rest: Option<KeyRange>,
}

const TABLES: [&str; 7] = [
    "CREATE TABLE accounts (id bigint PRIMARY KEY, code text NOT NULL, balance bigint NOT NULL, region text)",
    "CREATE UNIQUE INDEX by_code ON accounts (code)",
    "CREATE TABLE lists (id bigint PRIMARY KEY, items text NOT NULL)",
    "CREATE TABLE parents (id bigint PRIMARY KEY, note text)",
    "CREATE TABLE children (id bigint, no bigint, name text, PRIMARY KEY (id, no)) INTERLEAVE IN PARENT parents ON DELETE CASCADE",
    "CREATE TABLE toys (id bigint, no bigint, toy bigint, PRIMARY KEY (id, no, toy)) INTERLEAVE IN PARENT children ON DELETE CASCADE",
    "CREATE INDEX by_name ON children (name)",
];

/// Changes of the schema, with the relation whose existence decides whether it is created or dropped.
const INDEXES: [(&str, &str, &str); 3] = [
    ("by_region", "CREATE INDEX by_region ON accounts (region) STORING (balance)", "DROP INDEX by_region"),
    ("by_balance", "CREATE INDEX by_balance ON accounts (balance DESC, code)", "DROP INDEX by_balance"),
    ("by_code_too", "CREATE UNIQUE INDEX by_code_too ON accounts (code)", "DROP INDEX by_code_too"),
];
const ADD_COLUMN: &str = "ALTER TABLE accounts ADD COLUMN grade bigint NOT NULL DEFAULT 7";
const DROP_COLUMN: &str = "ALTER TABLE accounts DROP COLUMN grade";

fn wrong<T>(what: String) -> Result<T, Stop> {
    Err(Stop::Wrong(what))
}

#[expect(clippy::needless_pass_by_value, reason = "the function of map_err")]
fn failed(error: SqlError) -> Stop {
    Stop::Wrong(format!("{error:?}"))
}

/// The identifier of a row from 1 to `count`.
fn any(tx: &mut Tx, count: u64) -> Value {
    Value::Int8(1 + tx.random.below(count).cast_signed())
}

fn text(prefix: &str, number: u64) -> Value {
    Value::Text(format!("{prefix}{number}"))
}

/// Runs a script. Returns the progress of an index, if it has changed.
pub(super) fn run(script: Script, tx: &mut Tx, progress: Option<&Progress>) -> Result<Option<Progress>, Stop> {
    match script {
        Script::Create => create(tx)?,
        Script::Audit => audit(tx)?,
        Script::Bank => bank(tx)?,
        Script::Lists(first) => lists(tx, first)?,
        Script::Families => families(tx)?,
        Script::Alter => return alter(tx, progress),
    }
    Ok(None)
}

fn create(tx: &mut Tx) -> Result<(), Stop> {
    tx.read(Vec::new())?;
    if tx.schema().tables().next().is_some() {
        return Ok(());
    }
    for definition in TABLES {
        let work = tx.define(definition)?;
        tx.complete(&work)?;
    }
    for id in 1..=ACCOUNTS_FIRST {
        let region = text("r", id.cast_unsigned() % REGIONS);
        let account = [Value::Int8(id), text("c", id.cast_unsigned()), Value::Int8(TOTAL / ACCOUNTS_FIRST), region];
        tx.run("INSERT INTO accounts (id, code, balance, region) VALUES ($1, $2, $3, $4)", &account)?;
    }
    Ok(())
}

fn audit(tx: &mut Tx) -> Result<(), Stop> {
    let stored = tx.read_all(check::everything())?;
    check::check(&stored).map_err(Stop::Wrong)
}

fn balance(tx: &mut Tx, id: &Value) -> Result<Option<i64>, Stop> {
    let found = tx.run("SELECT balance FROM accounts WHERE id = $1", std::slice::from_ref(id))?;
    Ok(found.rows.first().and_then(|row| row.first()?.as_integer()))
}

fn add(tx: &mut Tx, amount: i64, id: &Value) -> Result<u64, Stop> {
    let parameters = [Value::Int8(amount), id.clone()];
    Ok(tx.run("UPDATE accounts SET balance = balance + $1 WHERE id = $2", &parameters)?.affected)
}

fn bank(tx: &mut Tx) -> Result<(), Stop> {
    let (from, to) = (any(tx, ACCOUNTS), any(tx, ACCOUNTS));
    let (code, region) = (tx.random.below(CODES), tx.random.below(REGIONS));
    let (code, region) = (text("c", code), text("r", region));
    let amount = tx.random.below(30).cast_signed();
    match tx.random.below(16) {
        _ if from == to => {
            let recoded = [code, from];
            tx.run("UPDATE accounts SET code = $1 WHERE id = $2", &recoded)?;
        }
        0..3 => {
            // Another account pays for the new one.
            let account = [to, code, Value::Int8(amount), region];
            tx.run("INSERT INTO accounts (id, code, balance, region) VALUES ($1, $2, $3, $4)", &account)?;
            if add(tx, -amount, &from)? == 0 {
                return Err(Stop::RolledBack);
            }
        }
        3 | 4 => {
            let Some(rest) = balance(tx, &from)? else { return Ok(()) };
            tx.run("DELETE FROM accounts WHERE id = $1", &[from])?;
            if add(tx, rest, &to)? == 0 {
                return Err(Stop::RolledBack);
            }
        }
        5 => {
            let account = [to, code, region];
            let upsert = "INSERT INTO accounts (id, code, balance, region) VALUES ($1, $2, 0, $3)
                ON CONFLICT (code) DO UPDATE SET region = excluded.region";
            tx.run(upsert, &account)?;
        }
        6 => by_region(tx, &region)?,
        7 => {
            let sums = tx.run("SELECT sum(balance) FROM accounts", &[])?;
            let sum = sums.rows.first().and_then(|row| row.first()).and_then(Value::to_text);
            if sum != Some(TOTAL.to_string()) {
                return wrong(format!("the sum of the balances is {sum:?}"));
            }
        }
        8 => {
            // The same account deleted and inserted again.
            let Some(rest) = balance(tx, &from)? else { return Ok(()) };
            tx.run("DELETE FROM accounts WHERE id = $1", std::slice::from_ref(&from))?;
            let account = [from, code, Value::Int8(rest), region];
            tx.run("INSERT INTO accounts (id, code, balance, region) VALUES ($1, $2, $3, $4)", &account)?;
        }
        _ => transfer(tx, &from, &to, amount, region)?,
    }
    Ok(())
}

fn transfer(tx: &mut Tx, from: &Value, to: &Value, amount: i64, region: Value) -> Result<(), Stop> {
    let (Some(first), Some(second)) = (balance(tx, from)?, balance(tx, to)?) else { return Ok(()) };
    let parameters = [Value::Int8(amount), region, from.clone()];
    tx.run("UPDATE accounts SET balance = balance - $1, region = $2 WHERE id = $3", &parameters)?;
    add(tx, amount, to)?;
    if tx.random.below(2) == 0 {
        // Another one, which must not undo the first.
        add(tx, -1, from)?;
        add(tx, 1, to)?;
        let (after, expected) = ((balance(tx, from)?, balance(tx, to)?), (first - amount - 1, second + amount + 1));
        if after != (Some(expected.0), Some(expected.1)) {
            return wrong(format!("a transaction reads the balances {after:?} instead of {expected:?}"));
        }
    }
    Ok(())
}

/// Reads the accounts of a region by the index.
fn by_region(tx: &mut Tx, region: &Value) -> Result<(), Stop> {
    tx.read(Vec::new())?;
    let schema = tx.schema().clone();
    let Ok(table) = schema.table_named("accounts") else { return Ok(()) };
    let Some(index) = table.indexes.iter().find(|index| index.name == "by_region") else { return Ok(()) };
    if index.state != IndexState::Public {
        return Ok(());
    }
    let (rows, layout) = (TableRows::new(&schema, table).map_err(failed)?, table.index_layout(index));
    let prefix = layout.prefix(std::slice::from_ref(region)).map_err(failed)?;
    let entries = tx.read_all(keys::prefix_range(&prefix))?;
    for entry in &entries {
        let reference = reference(entry).map_or(&[][..], |value| value);
        let (values, key) = layout.decode(&entry.key, reference).map_err(failed)?;
        let key = rows.layout().key(&key).map_err(failed)?;
        let page = tx.read(vec![Read::Row(key.into())])?.pop().unwrap_or_default();
        let row = page.rows.first().map(|row| rows.decode(row)).transpose().map_err(failed)?.flatten();
        if !row.as_ref().is_some_and(|row| row.contains(region)) {
            return wrong(format!("index by_region has {values:?}, but the row is {row:?}"));
        }
    }
    let scanned = tx.run("SELECT id FROM accounts WHERE region = $1", std::slice::from_ref(region))?;
    if scanned.rows.len() != entries.len() {
        return wrong(format!("{} accounts are in {region:?}, {} by the index", scanned.rows.len(), entries.len()));
    }
    Ok(())
}

fn lists(tx: &mut Tx, first: u64) -> Result<(), Stop> {
    for value in first..=first + tx.random.below(super::VALUES) {
        let id = 1 + tx.random.below(LISTS);
        let key = Value::Int8(id.cast_signed());
        match tx.random.below(4) {
            0 => {
                let found = tx.run("SELECT items FROM lists WHERE id = $1", &[key])?;
                let Some(items) = found.rows.first().and_then(|row| row.first()).map(Value::to_text) else {
                    tx.operations.push(Operation::Read(id, Vec::new()));
                    continue;
                };
                let items = items.unwrap_or_default();
                let values = items.split(',').filter(|item| !item.is_empty()).map(str::parse);
                let Ok(values) = values.collect::<Result<_, _>>() else {
                    return wrong(format!("list {id} is {items}"));
                };
                tx.operations.push(Operation::Read(id, values));
            }
            1 => {
                let item = [Value::Text(format!(",{value}")), key];
                if tx.run("UPDATE lists SET items = items || $1 WHERE id = $2", &item)?.affected > 0 {
                    tx.operations.push(Operation::Append(id, value));
                }
            }
            _ => {
                let item = [key, Value::Text(format!(",{value}"))];
                let upsert = "INSERT INTO lists (id, items) VALUES ($1, $2)
                    ON CONFLICT (id) DO UPDATE SET items = lists.items || excluded.items";
                tx.run(upsert, &item)?;
                tx.operations.push(Operation::Append(id, value));
            }
        }
    }
    Ok(())
}

fn families(tx: &mut Tx) -> Result<(), Stop> {
    let (id, no, toy) = (any(tx, PARENTS), any(tx, CHILDREN), any(tx, 2));
    match tx.random.below(12) {
        0..3 => {
            tx.run(
                "INSERT INTO parents (id, note) VALUES ($1, 'new') ON CONFLICT DO NOTHING",
                std::slice::from_ref(&id),
            )?;
            if tx.random.below(2) == 0 {
                let child = [id, no];
                tx.run("INSERT INTO children (id, no, name) VALUES ($1, $2, 'a') ON CONFLICT DO NOTHING", &child)?;
            }
        }
        3..6 => {
            let name = text("n", tx.random.below(3));
            let child = [id, no, name];
            let upsert = "INSERT INTO children (id, no, name) VALUES ($1, $2, $3)
                ON CONFLICT (id, no) DO UPDATE SET name = excluded.name";
            tx.run(upsert, &child)?;
        }
        6..9 => {
            tx.run("INSERT INTO toys (id, no, toy) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING", &[id, no, toy])?;
        }
        9 => {
            tx.run("DELETE FROM children WHERE id = $1 AND no = $2", &[id, no])?;
        }
        _ => {
            tx.run("DELETE FROM parents WHERE id = $1", std::slice::from_ref(&id))?;
            let left = tx.run("SELECT count(*) FROM children WHERE id = $1", &[id])?;
            let count = left.rows.first().and_then(|row| row.first()?.as_integer());
            if count != Some(0) {
                return wrong(format!("a deleted parent has {count:?} children"));
            }
        }
    }
    Ok(())
}

/// The next step of a change of the schema, by the version in the store.
fn alter(tx: &mut Tx, progress: Option<&Progress>) -> Result<Option<Progress>, Stop> {
    tx.read(Vec::new())?;
    let schema = tx.schema().clone();
    let Ok(table) = schema.table_named("accounts") else { return Ok(None) };
    if let Some(index) = table.indexes.iter().find(|index| index.state == IndexState::WriteOnly) {
        return fill(tx, table, index, progress);
    }
    match tx.random.below(4) {
        0 => collect(tx)?,
        1 => {
            let has_column = table.column_named("grade").is_some();
            tx.define(if has_column { DROP_COLUMN } else { ADD_COLUMN })?;
        }
        _ => {
            let (name, create, drop) = INDEXES[tx.random.below(INDEXES.len() as u64) as usize];
            let work = tx.define(if schema.relation(name).is_some() { drop } else { create })?;
            if tx.random.below(4) == 0 {
                tx.complete(&work)?;
            }
        }
    }
    Ok(None)
}

/// Adds some rows to an index, or makes it public once all are added.
fn fill(tx: &mut Tx, table: &Arc<Table>, index: &Index, progress: Option<&Progress>) -> Result<Option<Progress>, Stop> {
    let range = match progress.filter(|progress| progress.index == index.id) {
        Some(Progress { rest: None, .. }) => {
            let schema = ddl::publish_index(tx.schema(), table.id, index.id).map_err(failed)?;
            tx.set_schema(schema);
            return Ok(None);
        }
        Some(Progress { rest: Some(rest), .. }) => rest.clone(),
        None => tx.range_of(table)?,
    };
    let rows = TableRows::new(tx.schema(), table).map_err(failed)?;
    let marker = cells::name(cells::MARKER);
    let page = tx.read(vec![Read::Range(range.clone(), FILLED_ROWS)])?.pop().unwrap_or_default();
    for stored in &page.rows {
        let Some(row) = rows.decode(stored).map_err(failed)? else { continue };
        let (write, absent) = fill_index(&rows, index.id, &row).map_err(failed)?;
        if let Some(absent) = absent {
            // It exists if a statement has changed the row since the index exists.
            let entry = tx.read(vec![Read::Row(absent.key)])?.pop().unwrap_or_default();
            let Write::Put { cells, .. } = &write else { continue };
            let own = cells.iter().find(|(name, _)| *name == marker).and_then(|(_, value)| value.as_ref());
            if let Some(entry) = entry.rows.first()
                && reference(entry) != own
            {
                return wrong(format!("{entry:?} and {stored:?} have one value in index {}", index.name));
            }
        }
        tx.write(vec![write]);
    }
    let rest = page.next.map(|next| KeyRange { start: next, end: range.end });
    Ok(Some(Progress { index: index.id, rest }))
}

/// The primary key in an entry of an index.
fn reference(entry: &StoredRow) -> Option<&Bytes> {
    let marker = cells::name(cells::MARKER);
    entry.cells.iter().find(|(name, _)| *name == marker).map(|(_, value)| value)
}

/// Deletes data of dropped objects.
fn collect(tx: &mut Tx) -> Result<(), Stop> {
    let schema = tx.schema().clone();
    let Some(garbage @ Garbage::Prefix(id)) = schema.garbage().first() else { return Ok(()) };
    let range = keys::prefix_range(&keys::of_id(*id));
    let page = tx.read(vec![Read::Range(range, COLLECTED_ROWS)])?.pop().unwrap_or_default();
    if page.rows.is_empty() && page.next.is_none() {
        let mut builder = Builder::new(&schema);
        builder.collected(&[*garbage]);
        tx.set_schema(builder.finish().map_err(failed)?);
        return Ok(());
    }
    let deletes = page.rows.into_iter().map(|row| Write::Delete { key: row.key });
    tx.write(deletes.collect());
    Ok(())
}
