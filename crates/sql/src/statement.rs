//! Parsed statements. Definitions have their own types; queries and changes of rows remain syntax trees, for
//! [`crate::direct`] or for a planner.

use sqlparser::ast;

use crate::keys::Direction;
use crate::schema::GeneratedKind;
use crate::types::SqlType;

#[derive(Clone, Debug, PartialEq)]
pub enum Statement {
    /// `SELECT`, `VALUES`, `TABLE`, `WITH`.
    Query(Box<ast::Query>, Option<AsOf>),
    /// `INSERT`
    Insert(Box<ast::Insert>),
    /// `UPDATE`
    Update(Box<ast::Update>),
    /// `DELETE`
    Delete(Box<ast::Delete>),
    /// `TRUNCATE`
    Truncate {
        tables: Vec<String>,
        /// Sequences of their columns start again.
        restart_identity: bool,
        cascade: bool,
    },
    /// A change of the schema.
    Definition(Definition),
    /// `COPY`
    Copy(Box<Copy>),
    /// `EXPLAIN`
    Explain {
        /// Executes the statement too.
        analyze: bool,
        statement: Box<Self>,
    },
    /// `BEGIN`, `START TRANSACTION`
    Begin(Modes),
    /// `COMMIT`, `END`; `AND CHAIN` begins another transaction.
    Commit { chain: bool },
    /// `ROLLBACK`, `ABORT`
    Rollback { chain: bool },
    /// `SAVEPOINT`
    Savepoint(String),
    /// `RELEASE SAVEPOINT`
    Release(String),
    /// `ROLLBACK TO SAVEPOINT`
    RollbackTo(String),
    /// `SET TRANSACTION`, or `SET SESSION CHARACTERISTICS AS TRANSACTION`.
    SetTransaction {
        modes: Modes,
        /// For all later transactions of the session.
        session: bool,
    },
    /// `SET name = value`; without a value, the default.
    Set {
        name: String,
        /// The value; those of a list are separated by `, `.
        value: Option<String>,
        /// Only in this transaction.
        local: bool,
    },
    /// `RESET name`, or all settings.
    Reset(Option<String>),
    /// `SHOW name`
    Show(String),
    /// `PREPARE`
    Prepare {
        name: String,
        /// The types of the first parameters.
        types: Vec<SqlType>,
        statement: Box<Self>,
    },
    /// `EXECUTE`
    Execute {
        name: String,
        /// The values of the parameters.
        parameters: Vec<ast::Expr>,
    },
    /// `DEALLOCATE`, of all without a name.
    Deallocate(Option<String>),
    /// `DECLARE ... CURSOR FOR`
    Declare {
        /// The name of the cursor.
        name: String,
        /// Its rows have the binary format.
        is_binary: bool,
        query: Box<Self>,
    },
    /// `FETCH`, or `MOVE`
    Fetch {
        /// The name of the cursor.
        name: String,
        /// The number of rows, or all.
        count: Option<u64>,
        is_move: bool,
    },
    /// `CLOSE`, of all cursors without a name.
    Close(Option<String>),
    /// `DISCARD ALL` and others.
    Discard,
    /// `CREATE DATABASE`
    CreateDatabase {
        name: String,
        /// No error if it exists.
        if_not_exists: bool,
        /// Options of the Loggos table, such as `replication`.
        options: Vec<(String, String)>,
    },
    /// `DROP DATABASE`
    DropDatabase {
        name: String,
        /// No error if it does not exist.
        if_exists: bool,
    },
    /// A statement that has no effect here, such as `VACUUM`, and its command tag.
    NoEffect(&'static str),
}

impl Statement {
    /// Whether it reads the past: a query with `AS OF`, or its `EXPLAIN`.
    #[must_use]
    pub fn reads_past(&self) -> bool {
        match self {
            Self::Query(_, as_of) => as_of.is_some(),
            Self::Explain { statement, .. } => statement.reads_past(),
            _ => false,
        }
    }
}

/// When the data of a read is from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AsOf {
    /// At this timestamp: microseconds since 2000-01-01 UTC.
    Timestamp(i64),
    /// This many microseconds ago.
    Staleness(i64),
}

/// The modes of a transaction. Every isolation level gives serializable and externally consistent transactions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Modes {
    /// `READ ONLY` or `READ WRITE`, if given.
    pub read_only: Option<bool>,
    /// A read-only transaction in the past.
    pub as_of: Option<AsOf>,
}

/// `COPY`
#[derive(Clone, Debug, PartialEq)]
pub struct Copy {
    /// Reads from the client (`FROM STDIN`); otherwise writes to it (`TO STDOUT`).
    pub is_input: bool,
    /// The table and its columns, or a query.
    pub source: CopySource,
    /// Options as written, folded to lower case.
    pub options: Vec<(String, String)>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum CopySource {
    /// A table, and some of its columns or none for all.
    Table(String, Vec<String>),
    Query(Box<ast::Query>),
}

/// A change of the schema.
#[derive(Clone, Debug, PartialEq)]
pub enum Definition {
    /// `CREATE TABLE`
    CreateTable(CreateTable),
    /// `ALTER TABLE`
    AlterTable {
        name: String,
        /// No error if it does not exist.
        if_exists: bool,
        /// The changes in order.
        changes: Vec<AlterTable>,
    },
    /// `CREATE INDEX`
    CreateIndex(CreateIndex),
    /// `CREATE VIEW`
    CreateView {
        name: String,
        /// Replaces a view of this name.
        or_replace: bool,
        /// Names of the columns.
        columns: Vec<String>,
        /// The SQL text of the query.
        query: String,
        /// The relations in the query.
        relations: Vec<String>,
    },
    /// `CREATE SEQUENCE`
    CreateSequence {
        name: String,
        /// No error if it exists.
        if_not_exists: bool,
        options: SequenceOptions,
        /// The table and column that own it.
        owner: Option<(String, String)>,
    },
    /// `DROP TABLE`, `DROP INDEX`, `DROP VIEW`, `DROP SEQUENCE`
    Drop {
        kind: DropKind,
        names: Vec<String>,
        /// No error if one does not exist.
        if_exists: bool,
        /// What depends on it too.
        cascade: bool,
    },
}

/// The kind of a relation to drop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DropKind {
    Table,
    Index,
    View,
    Sequence,
}

/// `CREATE TABLE`
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CreateTable {
    pub name: String,
    /// No error if it exists.
    pub if_not_exists: bool,
    pub columns: Vec<ColumnDefinition>,
    /// The constraints, also those of columns.
    pub constraints: Vec<Constraint>,
    /// The parent's name, and whether rows are deleted with their parent.
    pub interleave: Option<(String, bool)>,
}

/// A column of `CREATE TABLE` or `ADD COLUMN`.
#[derive(Clone, Debug, PartialEq)]
pub struct ColumnDefinition {
    pub name: String,
    pub sql_type: SqlType,
    pub not_null: bool,
    /// The SQL text of the default expression.
    pub default: Option<String>,
    pub generated: Option<(GeneratedKind, SequenceOptions)>,
}

/// A constraint with its name, if it has one.
#[derive(Clone, Debug, PartialEq)]
pub enum Constraint {
    /// `PRIMARY KEY`
    PrimaryKey(Option<String>, Vec<(String, Direction)>),
    /// `UNIQUE`
    Unique(Option<String>, Vec<(String, Direction)>),
    /// `CHECK`: the SQL text of the condition.
    Check(Option<String>, String),
}

/// Options of a sequence.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SequenceOptions {
    /// `AS`
    pub sql_type: Option<SqlType>,
    /// `START WITH`
    pub start: Option<i64>,
    /// `INCREMENT BY`
    pub increment: Option<i64>,
    /// `MINVALUE`
    pub min: Option<i64>,
    /// `MAXVALUE`
    pub max: Option<i64>,
    /// `CACHE`
    pub cache: Option<i64>,
    /// `CYCLE`
    pub is_cyclic: bool,
}

/// `CREATE INDEX`
#[derive(Clone, Debug, PartialEq)]
pub struct CreateIndex {
    /// The name, or none to derive one.
    pub name: Option<String>,
    pub table: String,
    /// No error if it exists.
    pub if_not_exists: bool,
    pub columns: Vec<(String, Direction)>,
    pub is_unique: bool,
    /// The columns of `INCLUDE`, which Spanner calls `STORING`.
    pub storing: Vec<String>,
}

/// A change of a table.
#[derive(Clone, Debug, PartialEq)]
pub enum AlterTable {
    /// `ADD COLUMN`, with `IF NOT EXISTS`, and the column's constraints.
    AddColumn(ColumnDefinition, bool, Vec<Constraint>),
    /// `DROP COLUMN`, with `IF EXISTS`; the column's indexes and constraints too.
    DropColumn(String, bool),
    /// `RENAME COLUMN`
    RenameColumn(String, String),
    /// `RENAME TO`
    Rename(String),
    /// `ADD` of a constraint.
    AddConstraint(Constraint),
    /// `DROP CONSTRAINT`, with `IF EXISTS`.
    DropConstraint(String, bool),
    /// `ALTER COLUMN ... SET DEFAULT`, or without one `DROP DEFAULT`.
    SetDefault(String, Option<String>),
    /// `ALTER COLUMN ... SET NOT NULL` or `DROP NOT NULL`.
    SetNotNull(String, bool),
    /// `ALTER COLUMN ... TYPE`
    SetType(String, SqlType),
    /// `OWNER TO` and others that have no effect here.
    NoEffect,
}
