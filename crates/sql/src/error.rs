//! The error of all statements, with the fields of PostgreSQL's protocol.

use std::fmt;

/// The SQLSTATE codes in use, named as in PostgreSQL's appendix of error codes.
pub mod sqlstate {
    #![allow(missing_docs, reason = "the names are PostgreSQL's")]
    pub const FEATURE_NOT_SUPPORTED: &str = "0A000";
    pub const PROTOCOL_VIOLATION: &str = "08P01";
    pub const CARDINALITY_VIOLATION: &str = "21000";
    pub const STRING_DATA_RIGHT_TRUNCATION: &str = "22001";
    pub const NUMERIC_VALUE_OUT_OF_RANGE: &str = "22003";
    pub const NULL_VALUE_NOT_ALLOWED: &str = "22004";
    pub const INVALID_DATETIME_FORMAT: &str = "22007";
    pub const DATETIME_FIELD_OVERFLOW: &str = "22008";
    pub const DIVISION_BY_ZERO: &str = "22012";
    pub const INVALID_PARAMETER_VALUE: &str = "22023";
    pub const CHARACTER_NOT_IN_REPERTOIRE: &str = "22021";
    pub const INVALID_ROW_COUNT_IN_LIMIT: &str = "2201W";
    pub const INVALID_TEXT_REPRESENTATION: &str = "22P02";
    pub const INVALID_BINARY_REPRESENTATION: &str = "22P03";
    pub const NOT_NULL_VIOLATION: &str = "23502";
    pub const UNIQUE_VIOLATION: &str = "23505";
    pub const CHECK_VIOLATION: &str = "23514";
    pub const FOREIGN_KEY_VIOLATION: &str = "23503";
    pub const DEPENDENT_OBJECTS_STILL_EXIST: &str = "2BP01";
    pub const SYNTAX_ERROR: &str = "42601";
    pub const INVALID_COLUMN_REFERENCE: &str = "42P10";
    pub const DUPLICATE_COLUMN: &str = "42701";
    pub const AMBIGUOUS_COLUMN: &str = "42702";
    pub const UNDEFINED_COLUMN: &str = "42703";
    pub const UNDEFINED_OBJECT: &str = "42704";
    pub const DUPLICATE_OBJECT: &str = "42710";
    pub const GROUPING_ERROR: &str = "42803";
    pub const DATATYPE_MISMATCH: &str = "42804";
    pub const WRONG_OBJECT_TYPE: &str = "42809";
    pub const CANNOT_COERCE: &str = "42846";
    pub const UNDEFINED_FUNCTION: &str = "42883";
    pub const GENERATED_ALWAYS: &str = "428C9";
    pub const INVALID_NAME: &str = "42602";
    pub const NAME_TOO_LONG: &str = "42622";
    pub const UNDEFINED_TABLE: &str = "42P01";
    pub const UNDEFINED_PARAMETER: &str = "42P02";
    pub const DUPLICATE_TABLE: &str = "42P07";
    pub const INVALID_TABLE_DEFINITION: &str = "42P16";
    pub const INVALID_OBJECT_DEFINITION: &str = "42P17";
    pub const INDETERMINATE_DATATYPE: &str = "42P18";
    pub const INVALID_SCHEMA_NAME: &str = "3F000";
    pub const SERIALIZATION_FAILURE: &str = "40001";
    pub const OUT_OF_MEMORY: &str = "53200";
    pub const PROGRAM_LIMIT_EXCEEDED: &str = "54000";
    pub const STATEMENT_TOO_COMPLEX: &str = "54001";
    pub const TOO_MANY_COLUMNS: &str = "54011";
    pub const OBJECT_NOT_IN_PREREQUISITE_STATE: &str = "55000";
    pub const SEQUENCE_GENERATOR_LIMIT_EXCEEDED: &str = "2200H";
    pub const INTERNAL_ERROR: &str = "XX000";
    pub const DATA_CORRUPTED: &str = "XX001";
}

/// An error of a statement, as clients of PostgreSQL see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SqlError {
    /// The code, one of [`sqlstate`].
    pub sqlstate: &'static str,
    /// The primary message, in one line.
    pub message: String,
    pub detail: Option<String>,
    /// A suggestion for the user.
    pub hint: Option<String>,
    /// The context, such as a line of `COPY`.
    pub context: Option<Box<str>>,
    /// The position in the statement's text, in characters from 1.
    pub position: Option<u32>,
    /// The table, column or constraint of a violation.
    pub object: Option<Box<ErrorObject>>,
}

/// The object that an error is about.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ErrorObject {
    pub table: String,
    pub column: Option<String>,
    /// The constraint or index.
    pub constraint: Option<String>,
}

impl SqlError {
    /// An error with a code of [`sqlstate`].
    #[must_use]
    pub fn new(sqlstate: &'static str, message: impl Into<String>) -> Self {
        Self {
            sqlstate,
            message: message.into(),
            detail: None,
            hint: None,
            context: None,
            position: None,
            object: None,
        }
    }

    #[must_use]
    pub fn with_detail(mut self, detail: impl Into<String>) -> Self {
        self.detail = Some(detail.into());
        self
    }

    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Adds the column of a table, or one of its constraints, that a row violates.
    #[must_use]
    pub fn about(mut self, table: &str, column: Option<&str>, constraint: Option<&str>) -> Self {
        let (column, constraint) = (column.map(str::to_owned), constraint.map(str::to_owned));
        self.object = Some(Box::new(ErrorObject { table: table.to_owned(), column, constraint }));
        self
    }

    /// Adds a position in characters from 1.
    #[must_use]
    pub fn at(mut self, position: u32) -> Self {
        self.position = Some(position);
        self
    }

    /// A feature of PostgreSQL that Loggos does not have.
    #[must_use]
    pub fn unsupported(what: impl fmt::Display) -> Self {
        Self::new(sqlstate::FEATURE_NOT_SUPPORTED, format!("{what} is not supported"))
    }

    /// Bytes of the store or the schema that cannot be decoded.
    #[must_use]
    pub fn corrupt(what: impl fmt::Display) -> Self {
        Self::new(sqlstate::DATA_CORRUPTED, format!("invalid encoding of {what}"))
    }
}

impl fmt::Display for SqlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.message, self.sqlstate)
    }
}

impl std::error::Error for SqlError {}
