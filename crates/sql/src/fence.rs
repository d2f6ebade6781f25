//! The version of the schema in the store, and the check that a transaction uses the current one.
//!
//! The schema is in a reserved row that sorts before all data. Every transaction reads the token in this row, so a
//! change of the schema conflicts with the transactions that run meanwhile, and a transaction that began with an older
//! version ([`Catalog::is_current`]) begins again with the current one.

use base::canary::{Bug, planted};
use bytes::Bytes;

use crate::error::{SqlError, sqlstate};
use crate::rows::Write;
use crate::schema::Schema;

/// The row of the schema. The keys of data begin with a higher byte.
pub const SCHEMA_ROW: Bytes = Bytes::from_static(b"\0schema");
/// The cell that identifies the version of the schema: its number, and a random number, because a database of the same
/// name may have been dropped.
pub const TOKEN: Bytes = Bytes::from_static(b"token");
/// The cell of the schema.
pub const SCHEMA: Bytes = Bytes::from_static(b"schema");

/// A version of a schema, and its token in the store.
#[derive(Clone, Debug, Default)]
pub struct Catalog {
    /// Identifies the version; empty in a new database.
    pub token: Bytes,
    pub schema: Schema,
}

impl Catalog {
    /// The next version, with a random number.
    #[must_use]
    pub fn next(schema: Schema, random: u64) -> Self {
        let token = [schema.version().to_le_bytes(), random.to_le_bytes()].concat().into();
        Self { token, schema }
    }

    /// The version in these cells of [`SCHEMA_ROW`].
    ///
    /// # Errors
    /// XX001: the schema is damaged.
    pub fn decode(token: Option<Bytes>, schema: Option<Bytes>) -> Result<Self, SqlError> {
        let schema = schema.map(Schema::decode).transpose()?.unwrap_or_default();
        Ok(Self { token: token.unwrap_or_default(), schema })
    }

    /// Whether it is the current version, by the token that a transaction has read.
    #[must_use]
    pub fn is_current(&self, token: Option<&Bytes>) -> bool {
        planted(Bug::SchemaFenceIgnored) || token.map_or(&[][..], |token| token) == self.token
    }

    /// The write that makes it the current version.
    ///
    /// # Errors
    /// 54000: the schema is too large.
    pub fn write(&self) -> Result<Write, SqlError> {
        let schema = self.schema.encode();
        if schema.len() > base::limits::VALUE_BYTES_MAX {
            return Err(SqlError::new(sqlstate::PROGRAM_LIMIT_EXCEEDED, "the schema is too large"));
        }
        let cells = vec![(TOKEN, Some(self.token.clone())), (SCHEMA, Some(schema))];
        Ok(Write::Put { key: SCHEMA_ROW, cells })
    }
}
