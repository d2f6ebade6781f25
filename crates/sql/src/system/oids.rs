//! Object identifiers: the same on all nodes, and in all versions of the schema in which the object exists. (TRUNCATE
//! replaces the indexes of a table.)
//!
//! The identifiers above PostgreSQL's own ones are divided into parts of 2^27. They are below 2^31, because some clients
//! read them as signed numbers. Tables, views, sequences and indexes share one sequence of numbers, and so one part. An
//! object that is identified by its name has a hash of it as its number; if two names have the same hash, clients show
//! wrong details of one of the objects.

use crate::ids::{ColumnId, IndexId, SequenceId, TableId, ViewId};
use crate::schema::{Check, Index, Table};

/// `pg_catalog`
pub const PG_CATALOG: u32 = 11;
/// `public`
pub const PUBLIC: u32 = 2200;
/// `information_schema`
pub const INFORMATION_SCHEMA: u32 = 13_000;
pub const ROLE: u32 = 10;
/// `pg_class`, as the class of an object.
pub const PG_CLASS: u32 = 1259;
/// `pg_constraint`
pub const PG_CONSTRAINT: u32 = 2606;
/// `pg_attrdef`
pub const PG_ATTRDEF: u32 = 2604;
/// `pg_rewrite`
pub const PG_REWRITE: u32 = 2618;

/// The least identifier of an object that is not PostgreSQL's.
const FIRST: u32 = 16_384;
const PART: u32 = 1 << 27;
/// Parts with numbers of objects, and then those with hashes.
const PRIMARY_INDEXES: u32 = PART;
const PRIMARY_KEYS: u32 = 2 * PART;
const UNIQUE_CONSTRAINTS: u32 = 3 * PART;
const RULES: u32 = 4 * PART;
const CHECKS: u32 = 8 * PART;
const DEFAULTS: u32 = 12 * PART;
const DATABASES: u32 = 14 * PART;

const fn numbered(start: u32, id: u32) -> u32 {
    // More than 2^27 definitions in the life of a database would repeat identifiers.
    start + FIRST + id % (PART - FIRST)
}

/// The numbered object that an identifier belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Number {
    /// A table, a view, a sequence or a secondary index.
    Relation(u32),
    /// The index of the primary key of a table.
    PrimaryIndex(TableId),
    Other,
}

pub(super) const fn number(oid: u32) -> Number {
    let start = oid - oid % PART;
    match (start, (oid % PART).checked_sub(FIRST)) {
        (0, Some(id)) => Number::Relation(id),
        (PRIMARY_INDEXES, Some(id)) => Number::PrimaryIndex(TableId(id)),
        _ => Number::Other,
    }
}

/// FNV-1a.
fn hashed(start: u32, parts: u32, id: u32, name: &[u8]) -> u32 {
    let bytes = id.to_be_bytes().into_iter().chain(name.iter().copied());
    let hash =
        bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    let number = (hash ^ (hash >> 32)) % u64::from(parts * PART);
    start + u32::try_from(number).unwrap_or(0)
}

#[must_use]
pub const fn table(id: TableId) -> u32 {
    numbered(0, id.0)
}

#[must_use]
pub const fn view(id: ViewId) -> u32 {
    numbered(0, id.0)
}

#[must_use]
pub const fn sequence(id: SequenceId) -> u32 {
    numbered(0, id.0)
}

#[must_use]
pub const fn index(id: IndexId) -> u32 {
    numbered(0, id.0)
}

/// The index of a table's primary key.
#[must_use]
pub const fn primary_index(table: TableId) -> u32 {
    numbered(PRIMARY_INDEXES, table.0)
}

pub(super) const fn primary_key(table: &Table) -> u32 {
    numbered(PRIMARY_KEYS, table.id.0)
}

pub(super) const fn unique_constraint(index: &Index) -> u32 {
    numbered(UNIQUE_CONSTRAINTS, index.id.0)
}

pub(super) const fn rule(view: ViewId) -> u32 {
    numbered(RULES, view.0)
}

pub(super) fn check(table: &Table, check: &Check) -> u32 {
    hashed(CHECKS, 4, table.id.0, check.name.as_bytes())
}

pub(super) fn default(table: &Table, column: ColumnId) -> u32 {
    hashed(DEFAULTS, 2, table.id.0, &column.0.to_be_bytes())
}

pub(super) fn database(name: &str) -> u32 {
    hashed(DATABASES, 2, 0, name.as_bytes())
}
