//! Names of types in statements.

use sqlparser::ast::{ArrayElemTypeDef, CharacterLength, DataType, ExactNumberInfo, ObjectName, TimezoneInfo};

use crate::error::{SqlError, sqlstate};
use crate::schema::GeneratedKind;
use crate::types::{CHAR_LENGTH_MAX, LENGTH_MAX, PRECISION_MAX, SqlType};

fn length(name: &str, most: u32, length: &Option<CharacterLength>) -> Result<Option<u32>, SqlError> {
    let Some(length) = length else { return Ok(None) };
    let CharacterLength::IntegerLength { length, .. } = length else {
        return Err(SqlError::new(sqlstate::SYNTAX_ERROR, "syntax error at or near \"max\""));
    };
    let bad = |message: String| SqlError::new(sqlstate::INVALID_PARAMETER_VALUE, message);
    match u32::try_from(*length) {
        Ok(0) => Err(bad(format!("length for type {name} must be at least 1"))),
        Ok(length) if length <= most => Ok(Some(length)),
        _ => Err(bad(format!("length for type {name} cannot exceed {most}"))),
    }
}

fn numeric(info: &ExactNumberInfo) -> Result<SqlType, SqlError> {
    let (precision, scale) = match info {
        ExactNumberInfo::None => return Ok(SqlType::Numeric(None)),
        ExactNumberInfo::Precision(precision) => (*precision, 0),
        ExactNumberInfo::PrecisionAndScale(precision, scale) => (*precision, *scale),
    };
    let bad = |message: String| SqlError::new(sqlstate::INVALID_PARAMETER_VALUE, message);
    let limit = u64::from(PRECISION_MAX);
    let precision = u16::try_from(precision).ok().filter(|precision| (1..=PRECISION_MAX).contains(precision));
    let precision = precision.ok_or_else(|| bad(format!("NUMERIC precision must be between 1 and {limit}")))?;
    let scale = u16::try_from(scale).ok().filter(|scale| *scale <= precision);
    let scale = scale.ok_or_else(|| bad(format!("NUMERIC scale must be between 0 and precision {precision}")))?;
    Ok(SqlType::Numeric(Some((precision, scale))))
}

/// The type that a name refers to.
///
/// # Errors
/// 42704: there is no such type; 0A000: PostgreSQL has it, Loggos does not.
pub fn sql_type(name: &DataType) -> Result<SqlType, SqlError> {
    Ok(match name {
        DataType::Bool | DataType::Boolean => SqlType::Bool,
        DataType::Int2(None) | DataType::SmallInt(None) => SqlType::Int2,
        DataType::Int(None) | DataType::Int4(None) | DataType::Integer(None) => SqlType::Int4,
        DataType::Int8(None) | DataType::BigInt(None) => SqlType::Int8,
        DataType::Real | DataType::Float4 | DataType::Float(ExactNumberInfo::Precision(1..=24)) => SqlType::Float4,
        DataType::Float8
        | DataType::DoublePrecision
        | DataType::Double(ExactNumberInfo::None)
        | DataType::Float(ExactNumberInfo::None | ExactNumberInfo::Precision(25..=53)) => SqlType::Float8,
        DataType::Numeric(info) | DataType::Decimal(info) | DataType::Dec(info) => numeric(info)?,
        DataType::Text => SqlType::Text,
        DataType::Varchar(declared) | DataType::CharacterVarying(declared) | DataType::CharVarying(declared) => {
            SqlType::Varchar(length("varchar", LENGTH_MAX, declared)?)
        }
        DataType::Char(declared) | DataType::Character(declared) => {
            SqlType::Char(length("char", CHAR_LENGTH_MAX, declared)?.unwrap_or(1))
        }
        DataType::Bytea => SqlType::Bytea,
        DataType::Date => SqlType::Date,
        DataType::Timestamp(_, TimezoneInfo::None | TimezoneInfo::WithoutTimeZone) => SqlType::Timestamp,
        DataType::Timestamp(_, TimezoneInfo::WithTimeZone | TimezoneInfo::Tz) => SqlType::Timestamptz,
        DataType::Interval { .. } => SqlType::Interval,
        DataType::Uuid => SqlType::Uuid,
        DataType::JSONB => SqlType::Jsonb,
        DataType::Array(ArrayElemTypeDef::SquareBracket(item, _)) => match sql_type(item)? {
            // The number of dimensions is not part of the type.
            array @ SqlType::Array(_) => array,
            scalar => SqlType::Array(Box::new(scalar)),
        },
        DataType::Custom(name, modifiers) if modifiers.is_empty() => match plain_name(name).as_str() {
            "name" => SqlType::Text,
            "bpchar" => SqlType::Text,
            // Ids of transactions are positive.
            "xid8" => SqlType::Int8,
            other => return Err(undefined(other)),
        },
        other => return Err(undefined(&other.to_string().to_lowercase())),
    })
}

fn undefined(name: &str) -> SqlError {
    let known =
        ["json", "time", "xml", "money", "bit", "inet", "cidr", "macaddr", "point", "tsvector", "oid", "regclass"];
    if known.iter().any(|known| name.starts_with(known)) {
        return SqlError::unsupported(format!("type {name}"));
    }
    SqlError::new(sqlstate::UNDEFINED_OBJECT, format!("type \"{name}\" does not exist"))
}

fn plain_name(name: &ObjectName) -> String {
    let last = name.0.last().and_then(|part| part.as_ident());
    last.map(super::fold).unwrap_or_default()
}

/// `serial` and its variants: an integer type with a sequence.
pub(super) fn serial(name: &DataType) -> Option<(SqlType, GeneratedKind)> {
    let DataType::Custom(name, modifiers) = name else { return None };
    let sql_type = match plain_name(name).as_str() {
        "serial" | "serial4" => SqlType::Int4,
        "bigserial" | "serial8" => SqlType::Int8,
        "smallserial" | "serial2" => SqlType::Int2,
        _ => return None,
    };
    modifiers.is_empty().then_some((sql_type, GeneratedKind::Serial))
}
