//! Schemas: immutable versions of the definitions in a database.
//!
//! A [`Schema`] is cheap to clone. A change creates the next version ([`Builder`]), which shares all unchanged tables.
//! Tables, indexes, views and sequences share one namespace, as PostgreSQL's relations do.
//!
//! * *Identifiers are not reused*, so the keys of a dropped object never belong to a later one. Its data is deleted in
//!   the background ([`Garbage`]).
//! * *The identifier of a table's keys* ([`Table::storage`]) is that of the table until it gets another primary key.
//! * *A new column needs no rewriting of rows.* The marker cell of a row stores the highest column in the schema of its
//!   writer; later columns have their initial value ([`Column::initial`]).
//! * *A new index or primary key is write-only first*: writes maintain it, and no statement reads it before it is
//!   filled. A new constraint is first enforced for new rows only. The schema lists this unfinished work by statement
//!   ([`Job`]).

mod builder;
mod codec;
mod lookup;

use std::collections::BTreeMap;
use std::sync::Arc;

pub use builder::Builder;
pub use lookup::{similar, undefined_column};

use crate::ids::{ColumnId, IndexId, SequenceId, TableId, ViewId};
use crate::keys::{Direction, IndexLayout, KeyColumn, KeyReader, RowLayout};
use crate::types::SqlType;

pub use base::limits::sql::{COLUMNS_MAX, INDEXES_MAX, KEY_COLUMNS_MAX, LEVELS_MAX, NAME_BYTES_MAX, RELATIONS_MAX};

/// A version of a database's schema.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Schema(Arc<Contents>);

#[derive(Clone, Debug, Default, PartialEq)]
struct Contents {
    version: u64,
    /// The greatest identifier in use so far.
    last_id: u32,
    tables: BTreeMap<TableId, Arc<Table>>,
    views: BTreeMap<ViewId, Arc<View>>,
    sequences: BTreeMap<SequenceId, Arc<Sequence>>,
    garbage: Vec<Garbage>,
    /// Derived from the other fields.
    names: BTreeMap<String, Relation>,
}

/// The object that a name of the schema refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Relation {
    Table(TableId),
    View(ViewId),
    Sequence(SequenceId),
    /// An index of a table; the one of a primary key has no identifier.
    Index(TableId, Option<IndexId>),
}

#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    pub id: TableId,
    pub name: String,
    /// Its columns in order.
    pub columns: Vec<Column>,
    /// The greatest column identifier ever used.
    pub last_column: ColumnId,
    pub primary_key: PrimaryKey,
    /// A primary key that is being added: writes store rows under both.
    pub pending_key: Option<PrimaryKey>,
    /// The table that contains its rows.
    pub interleave: Option<Interleave>,
    /// Conditions that every row satisfies.
    pub checks: Vec<Check>,
    pub indexes: Vec<Index>,
    /// Statements in progress that work on existing rows.
    pub jobs: Vec<Job>,
}

/// A statement that works on the rows of a table in many transactions. Its new objects become public when it is done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// The identifier of the statement, a random number.
    pub id: u64,
    pub work: Vec<Work>,
}

/// Work on existing rows when a key, an index or a constraint is added.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Work {
    /// Add them to an index.
    FillIndex(TableId, IndexId),
    /// Store them under the new primary key.
    FillPrimaryKey(TableId),
    /// Check that a column has no NULL. If one does, drop the condition.
    CheckNotNull(TableId, ColumnId),
    /// Check a `CHECK` constraint. If a row violates it, drop the constraint.
    CheckConstraint(TableId, String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrimaryKey {
    /// The identifier at the start of the keys of the rows.
    pub storage: TableId,
    /// The name of the constraint. Empty if the table was declared without a primary key, and has a hidden column.
    pub name: String,
    pub columns: Vec<KeyPart>,
}

/// A column of a key or index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyPart {
    pub column: ColumnId,
    pub direction: Direction,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Column {
    /// Its identifier, never reused in the table.
    pub id: ColumnId,
    pub name: String,
    pub sql_type: SqlType,
    /// NULL is not valid.
    pub not_null: bool,
    /// The SQL text of its default expression.
    pub default: Option<String>,
    /// The sequence of its default values.
    pub generated: Option<Generated>,
    /// The value, in text format, in rows that were written before the column was added.
    pub initial: Option<String>,
    /// The key of a table without a primary key: a generated UUID, which `*` does not include.
    pub is_hidden: bool,
}

/// A column with values from a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Generated {
    /// The sequence, which the column owns.
    pub sequence: SequenceId,
    /// How it was declared.
    pub kind: GeneratedKind,
}

/// How a generated column was declared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GeneratedKind {
    /// `SERIAL`
    Serial,
    /// `GENERATED BY DEFAULT AS IDENTITY`
    ByDefault,
    /// `GENERATED ALWAYS AS IDENTITY`: statements cannot give values.
    Always,
}

/// The storage of a table's rows inside those of a parent table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interleave {
    /// The parent. Its primary key is the start of the child's.
    pub parent: TableId,
    /// Deleting a row of the parent deletes its children. Otherwise it fails if there are any.
    pub on_delete_cascade: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    pub name: String,
    /// The SQL text of the condition.
    pub expression: String,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Index {
    pub id: IndexId,
    pub name: String,
    pub columns: Vec<KeyPart>,
    /// No two rows have equal values; NULLs are distinct.
    pub is_unique: bool,
    /// It was declared as a `UNIQUE` constraint.
    pub is_constraint: bool,
    /// Further columns, of which the entries contain the values. Queries do not use them yet.
    pub storing: Vec<ColumnId>,
    /// Whether it is complete.
    pub state: IndexState,
}

/// The state of an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IndexState {
    /// Writes maintain it, while earlier rows are being added.
    WriteOnly,
    Public,
    /// It could not be completed, or is being removed: neither read nor written.
    Dropping,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    pub id: ViewId,
    pub name: String,
    /// Names for the columns of the query, or none.
    pub columns: Vec<String>,
    /// The SQL text of the query.
    pub query: String,
    /// The names of the relations in the query.
    pub relations: Vec<String>,
}

/// A sequence. The last value is data: a row with the sequence's identifier as key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sequence {
    pub id: SequenceId,
    pub name: String,
    /// `smallint`, `integer` or `bigint`.
    pub sql_type: SqlType,
    pub start: i64,
    /// The difference of successive values, not 0.
    pub increment: i64,
    pub min: i64,
    pub max: i64,
    /// After the last value it starts again.
    pub is_cyclic: bool,
    /// Values that a session may take at once.
    pub cache: i64,
    /// The column that it belongs to, and is dropped with.
    pub owner: Option<(TableId, ColumnId)>,
}

/// Data of dropped objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Garbage {
    /// All keys that start with this identifier: of a root table, an index or a sequence.
    Prefix(u32),
    /// The rows with the table's identifier inside the rows of a root table.
    Interleaved {
        /// The identifier of the root table's keys.
        root: TableId,
        /// The identifier of the dropped table.
        table: TableId,
    },
}

impl Work {
    #[must_use]
    pub const fn table(&self) -> TableId {
        let (Self::FillIndex(table, _)
        | Self::FillPrimaryKey(table)
        | Self::CheckNotNull(table, _)
        | Self::CheckConstraint(table, _)) = self;
        *table
    }
}

impl PrimaryKey {
    /// Whether a column is part of it.
    #[must_use]
    pub fn has(&self, id: ColumnId) -> bool {
        self.columns.iter().any(|part| part.column == id)
    }
}

impl Table {
    /// The identifier at the start of the keys of its rows.
    #[must_use]
    pub const fn storage(&self) -> TableId {
        self.primary_key.storage
    }

    /// A column by its identifier.
    #[must_use]
    pub fn column(&self, id: ColumnId) -> Option<&Column> {
        self.columns.iter().find(|column| column.id == id)
    }

    /// A column by its name.
    #[must_use]
    pub fn column_named(&self, name: &str) -> Option<&Column> {
        self.columns.iter().find(|column| column.name == name)
    }

    /// The columns that `*` includes.
    pub fn visible_columns(&self) -> impl Iterator<Item = &Column> {
        self.columns.iter().filter(|column| !column.is_hidden)
    }

    /// Whether a column is part of the primary key.
    #[must_use]
    pub fn is_in_key(&self, id: ColumnId) -> bool {
        self.primary_key.has(id)
    }

    /// Whether new rows must have a value for a column. With `NOT NULL` that is being added, older rows may have none.
    #[must_use]
    pub fn is_required(&self, column: &Column) -> bool {
        let is_checked = |work: &Work| matches!(work, Work::CheckNotNull(_, id) if *id == column.id);
        column.not_null || self.jobs.iter().flat_map(|job| &job.work).any(is_checked)
    }

    /// Whether all rows satisfy a condition. While it is being added, older rows may violate it.
    #[must_use]
    pub fn is_validated(&self, check: &Check) -> bool {
        let is_checked = |work: &Work| matches!(work, Work::CheckConstraint(_, name) if *name == check.name);
        !self.jobs.iter().flat_map(|job| &job.work).any(is_checked)
    }

    /// The indexes that queries can use.
    pub fn public_indexes(&self) -> impl Iterator<Item = &Index> {
        self.indexes.iter().filter(|index| index.state == IndexState::Public)
    }

    /// Removes work on objects that the table no longer has.
    pub(crate) fn prune_jobs(&mut self) {
        let mut jobs = std::mem::take(&mut self.jobs);
        for job in &mut jobs {
            job.work.retain(|work| match work {
                Work::FillIndex(_, id) => self.indexes.iter().any(|index| index.id == *id),
                Work::FillPrimaryKey(_) => self.pending_key.is_some(),
                Work::CheckNotNull(_, id) => self.column(*id).is_some(),
                Work::CheckConstraint(_, name) => self.checks.iter().any(|check| check.name == *name),
            });
        }
        jobs.retain(|job| !job.work.is_empty());
        self.jobs = jobs;
    }

    fn key_column(&self, part: &KeyPart) -> KeyColumn {
        // The schema is valid: its keys have only columns of the table.
        let sql_type = self.column(part.column).map_or(SqlType::Bytea, |column| column.sql_type.clone());
        KeyColumn { sql_type, direction: part.direction }
    }

    fn key_columns(&self, parts: &[KeyPart]) -> Vec<KeyColumn> {
        parts.iter().map(|part| self.key_column(part)).collect()
    }

    /// The keys of an index of this table.
    #[must_use]
    pub fn index_layout(&self, index: &Index) -> IndexLayout {
        IndexLayout {
            index: index.id,
            columns: self.key_columns(&index.columns),
            primary_key: self.key_columns(&self.primary_key.columns),
            is_unique: index.is_unique,
        }
    }

    /// The keys of the rows under a primary key that is being added.
    #[must_use]
    pub fn pending_layout(&self) -> Option<RowLayout> {
        let key = self.pending_key.as_ref()?;
        Some(RowLayout { levels: vec![(key.storage, self.key_columns(&key.columns))] })
    }
}

impl Schema {
    /// The version: each change adds 1.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.0.version
    }

    /// The greatest identifier in use so far.
    #[must_use]
    pub fn last_id(&self) -> u32 {
        self.0.last_id
    }

    /// The same version, of which the next one uses only identifiers above this one.
    #[must_use]
    pub fn reserve_ids(&self, last_id: u32) -> Self {
        let mut contents = (*self.0).clone();
        contents.last_id = contents.last_id.max(last_id);
        Self(Arc::new(contents))
    }

    /// The tables, in the order of their identifiers.
    pub fn tables(&self) -> impl Iterator<Item = &Arc<Table>> {
        self.0.tables.values()
    }

    pub fn views(&self) -> impl Iterator<Item = &Arc<View>> {
        self.0.views.values()
    }

    pub fn sequences(&self) -> impl Iterator<Item = &Arc<Sequence>> {
        self.0.sequences.values()
    }

    /// Data to which this version and later ones do not refer.
    #[must_use]
    pub fn garbage(&self) -> &[Garbage] {
        &self.0.garbage
    }

    /// The object that a name refers to.
    #[must_use]
    pub fn relation(&self, name: &str) -> Option<Relation> {
        self.0.names.get(name).copied()
    }

    /// A table by its identifier.
    #[must_use]
    pub fn table(&self, id: TableId) -> Option<&Arc<Table>> {
        self.0.tables.get(&id)
    }

    /// A view by its identifier.
    #[must_use]
    pub fn view(&self, id: ViewId) -> Option<&Arc<View>> {
        self.0.views.get(&id)
    }

    /// The statements that work on rows, with their tables.
    pub fn jobs(&self) -> impl Iterator<Item = (&Arc<Table>, &Job)> {
        self.tables().flat_map(|table| table.jobs.iter().map(move |job| (table, job)))
    }

    /// A sequence by its identifier.
    #[must_use]
    pub fn sequence(&self, id: SequenceId) -> Option<&Arc<Sequence>> {
        self.0.sequences.get(&id)
    }

    /// The tables that are interleaved in a table.
    pub fn children(&self, parent: TableId) -> impl Iterator<Item = &Arc<Table>> {
        self.tables().filter(move |table| table.interleave.is_some_and(|interleave| interleave.parent == parent))
    }

    /// The table and its ancestors, root first.
    #[must_use]
    pub fn ancestry<'a>(&'a self, table: &'a Table) -> Vec<&'a Table> {
        let mut line = vec![table];
        while let Some(interleave) = line[line.len() - 1].interleave {
            match self.table(interleave.parent) {
                // The schema is valid: there are no cycles.
                Some(parent) if line.len() < LEVELS_MAX => line.push(parent),
                _ => break,
            }
        }
        line.reverse();
        line
    }

    /// Whether a key is that of a row of an interleaved table, or of a row inside one: the table with the identifier
    /// `table` in the directories of `root`. The tables between the two must be part of this version.
    #[must_use]
    pub fn is_inside(&self, root: TableId, table: TableId, key: &[u8]) -> bool {
        let mut reader = KeyReader::new(key);
        let mut parent: Option<&Arc<Table>> = None;
        while let Ok(id) = reader.id() {
            if id == table.0 && parent.is_some() {
                return true;
            }
            let level = match parent {
                None => self.tables().find(|of| of.storage().0 == id && of.storage() == root),
                Some(parent) => self.children(parent.id).find(|child| child.storage().0 == id),
            };
            let Some(level) = level else { return false };
            let above = parent.map_or(0, |parent| parent.primary_key.columns.len());
            let columns = level.primary_key.columns.len().saturating_sub(above);
            if (0..columns).any(|_| reader.skip().is_err()) {
                return false;
            }
            parent = Some(level);
        }
        false
    }

    /// The keys of a table's rows.
    #[must_use]
    pub fn row_layout(&self, table: &Table) -> RowLayout {
        let mut done = 0;
        let level = |level: &Table| {
            // The types are those of the ancestors' columns, by validation.
            let parts = table.primary_key.columns.get(done..level.primary_key.columns.len()).unwrap_or_default();
            done = level.primary_key.columns.len();
            (level.storage(), table.key_columns(parts))
        };
        RowLayout { levels: self.ancestry(table).into_iter().map(level).collect() }
    }
}
