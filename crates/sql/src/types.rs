//! The SQL types, with PostgreSQL's names and object identifiers.

use std::fmt;

pub(crate) use base::limits::sql::CHAR_LENGTH_MAX;
pub use base::limits::sql::{LENGTH_MAX, PRECISION_MAX};

/// The type of a column, a parameter or a value.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum SqlType {
    /// `boolean`
    Bool,
    /// `smallint`
    Int2,
    /// `integer`
    Int4,
    /// `bigint`
    Int8,
    /// `real`
    Float4,
    /// `double precision`
    Float8,
    /// `numeric`, with precision and scale if they are declared.
    Numeric(Option<(u16, u16)>),
    /// `text`
    Text,
    /// `character varying`, with the maximum length in characters if it is declared.
    Varchar(Option<u32>),
    /// `character(n)`: padded with spaces to its length in characters.
    Char(u32),
    /// `bytea`
    Bytea,
    /// `date`
    Date,
    /// `timestamp without time zone`
    Timestamp,
    /// `timestamp with time zone`
    Timestamptz,
    /// `interval`; values only, no columns.
    Interval,
    /// `uuid`
    Uuid,
    /// `jsonb`
    Jsonb,
    /// An array of a type that is not an array; values only, no columns.
    Array(Box<Self>),
}

impl SqlType {
    /// All types but arrays, without lengths.
    pub const SCALARS: [Self; 17] = [
        Self::Bool,
        Self::Int2,
        Self::Int4,
        Self::Int8,
        Self::Float4,
        Self::Float8,
        Self::Numeric(None),
        Self::Text,
        Self::Varchar(None),
        Self::Char(1),
        Self::Bytea,
        Self::Date,
        Self::Timestamp,
        Self::Timestamptz,
        Self::Interval,
        Self::Uuid,
        Self::Jsonb,
    ];

    /// PostgreSQL's object identifiers of the type and of arrays of it.
    const fn oids(&self) -> (u32, u32) {
        match self {
            Self::Bool => (16, 1000),
            Self::Bytea => (17, 1001),
            Self::Int8 => (20, 1016),
            Self::Int2 => (21, 1005),
            Self::Int4 => (23, 1007),
            Self::Text => (25, 1009),
            Self::Float4 => (700, 1021),
            Self::Float8 => (701, 1022),
            Self::Char(_) => (1042, 1014),
            Self::Varchar(_) => (1043, 1015),
            Self::Date => (1082, 1182),
            Self::Timestamp => (1114, 1115),
            Self::Timestamptz => (1184, 1185),
            Self::Interval => (1186, 1187),
            Self::Numeric(_) => (1700, 1231),
            Self::Uuid => (2950, 2951),
            Self::Jsonb => (3802, 3807),
            // An array of arrays has the type of the outer one.
            Self::Array(_) => (0, 0),
        }
    }

    /// PostgreSQL's object identifier (`pg_type.oid`).
    #[must_use]
    pub fn oid(&self) -> u32 {
        match self {
            Self::Array(item) => item.oids().1,
            _ => self.oids().0,
        }
    }

    /// The type with an object identifier, without a declared length.
    #[must_use]
    pub fn from_oid(oid: u32) -> Option<Self> {
        // `unknown`, `name` and `json` have the format of `text`.
        if matches!(oid, 705 | 19 | 114) {
            return Some(Self::Text);
        }
        let of_scalar = |scalar: Self| match scalar.oids() {
            (own, _) if own == oid => Some(scalar),
            (_, array) if array == oid => Some(Self::Array(Box::new(scalar))),
            _ => None,
        };
        Self::SCALARS.into_iter().find_map(of_scalar)
    }

    /// PostgreSQL's type modifier (`pg_attribute.atttypmod`): -1 if there is none.
    #[must_use]
    pub fn modifier(&self) -> i32 {
        match self {
            Self::Varchar(Some(length)) | Self::Char(length) => i32::try_from(*length).map_or(-1, |length| length + 4),
            Self::Numeric(Some((precision, scale))) => ((i32::from(*precision) << 16) | i32::from(*scale)) + 4,
            Self::Array(item) => item.modifier(),
            _ => -1,
        }
    }

    /// The type with a declared length, from PostgreSQL's type modifier. `None` if the modifier is not valid.
    #[must_use]
    pub fn with_modifier(&self, modifier: i32) -> Option<Self> {
        let length = u32::try_from(modifier.saturating_sub(4)).ok().filter(|length| (1..=LENGTH_MAX).contains(length));
        Some(match self {
            Self::Array(item) => Self::Array(Box::new(item.with_modifier(modifier)?)),
            _ if modifier == -1 => self.clone(),
            Self::Varchar(_) => Self::Varchar(Some(length?)),
            Self::Char(_) => Self::Char(length?),
            Self::Numeric(_) => {
                let packed = u32::try_from(modifier.checked_sub(4)?).ok()?;
                let (precision, scale) = (u16::try_from(packed >> 16).ok()?, (packed & 0xffff) as u16);
                let is_valid = (1..=PRECISION_MAX).contains(&precision) && scale <= PRECISION_MAX;
                Self::Numeric(Some((precision, scale)).filter(|_| is_valid)?.into())
            }
            _ => return None,
        })
    }

    /// The bytes of a value in memory (`pg_type.typlen`): -1 if they vary.
    #[must_use]
    pub const fn length(&self) -> i16 {
        match self {
            Self::Bool => 1,
            Self::Int2 => 2,
            Self::Int4 | Self::Float4 | Self::Date => 4,
            Self::Int8 | Self::Float8 | Self::Timestamp | Self::Timestamptz => 8,
            Self::Interval | Self::Uuid => 16,
            _ => -1,
        }
    }

    /// PostgreSQL's internal name (`pg_type.typname`).
    #[must_use]
    pub fn internal_name(&self) -> String {
        let name = match self {
            Self::Bool => "bool",
            Self::Int2 => "int2",
            Self::Int4 => "int4",
            Self::Int8 => "int8",
            Self::Float4 => "float4",
            Self::Float8 => "float8",
            Self::Numeric(_) => "numeric",
            Self::Text => "text",
            Self::Varchar(_) => "varchar",
            Self::Char(_) => "bpchar",
            Self::Bytea => "bytea",
            Self::Date => "date",
            Self::Timestamp => "timestamp",
            Self::Timestamptz => "timestamptz",
            Self::Interval => "interval",
            Self::Uuid => "uuid",
            Self::Jsonb => "jsonb",
            Self::Array(item) => return format!("_{}", item.internal_name()),
        };
        name.to_owned()
    }

    /// The name without declared lengths, as error messages use it.
    #[must_use]
    pub fn base_name(&self) -> String {
        match self {
            Self::Numeric(_) => "numeric".to_owned(),
            Self::Varchar(_) => "character varying".to_owned(),
            Self::Char(_) => "character".to_owned(),
            Self::Array(item) => format!("{}[]", item.base_name()),
            _ => self.to_string(),
        }
    }

    #[must_use]
    pub const fn is_integer(&self) -> bool {
        matches!(self, Self::Int2 | Self::Int4 | Self::Int8)
    }

    /// A type of numbers.
    #[must_use]
    pub const fn is_number(&self) -> bool {
        self.is_integer() || matches!(self, Self::Float4 | Self::Float8 | Self::Numeric(_))
    }

    /// A type of character strings.
    #[must_use]
    pub const fn is_text(&self) -> bool {
        matches!(self, Self::Text | Self::Varchar(_) | Self::Char(_))
    }

    /// The place of a type of numbers among them: two are combined in the type of the higher one.
    pub(crate) const fn number_rank(&self) -> Option<u8> {
        Some(match self {
            Self::Int2 => 0,
            Self::Int4 => 1,
            Self::Int8 => 2,
            Self::Numeric(_) => 3,
            Self::Float4 => 4,
            Self::Float8 => 5,
            _ => return None,
        })
    }

    /// Equal, apart from declared lengths.
    #[must_use]
    pub fn is_same_base(&self, other: &Self) -> bool {
        self.oid() == other.oid()
    }
}

/// PostgreSQL's name (`format_type`).
impl fmt::Display for SqlType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            Self::Bool => "boolean",
            Self::Int2 => "smallint",
            Self::Int4 => "integer",
            Self::Int8 => "bigint",
            Self::Float4 => "real",
            Self::Float8 => "double precision",
            Self::Numeric(None) => "numeric",
            Self::Numeric(Some((precision, scale))) => return write!(f, "numeric({precision},{scale})"),
            Self::Text => "text",
            Self::Varchar(None) => "character varying",
            Self::Varchar(Some(length)) => return write!(f, "character varying({length})"),
            Self::Char(length) => return write!(f, "character({length})"),
            Self::Bytea => "bytea",
            Self::Date => "date",
            Self::Timestamp => "timestamp without time zone",
            Self::Timestamptz => "timestamp with time zone",
            Self::Interval => "interval",
            Self::Uuid => "uuid",
            Self::Jsonb => "jsonb",
            Self::Array(item) => return write!(f, "{item}[]"),
        };
        f.write_str(name)
    }
}
