//! Portals: statements with their parameters, and the rows of their results that the client has not fetched yet.

use std::sync::Arc;
use std::vec;

use base::budget::Reservation;
use sql::{SqlError, SqlType, Value, sqlstate};

use super::message::Bind;
use super::outgoing::format_of;
use crate::session::RowStream;
use crate::statement::Prepared;

pub(super) use base::limits::sql::PORTALS_MAX;

#[derive(Debug)]
pub(super) struct Portal {
    pub(super) prepared: Arc<Prepared>,
    pub(super) parameters: Vec<Value>,
    pub(super) formats: Vec<i16>,
    pub(super) progress: Progress,
}

/// The execution of a portal.
#[derive(Debug)]
pub(super) enum Progress {
    Bound,
    /// Rows remain, and then the command tag.
    Rows {
        rows: vec::IntoIter<Vec<Value>>,
        tag: String,
        _held: Vec<Reservation>,
    },
    /// Rows that were taken and not sent, and then those of a query.
    Stream {
        rows: vec::IntoIter<Vec<Value>>,
        stream: Box<RowStream>,
    },
    Done,
}

impl Portal {
    /// Decodes parameters.
    ///
    /// # Errors
    /// 08P01 for a wrong number; errors of values.
    pub(super) fn new(prepared: Arc<Prepared>, bind: Bind, types: &[SqlType]) -> Result<Self, SqlError> {
        let (given, wanted) = (bind.parameters.len(), types.len());
        if given != wanted {
            let message =
                format!("bind message supplies {given} parameters, but the prepared statement requires {wanted}");
            return Err(SqlError::new(sqlstate::PROTOCOL_VIOLATION, message));
        }
        if bind.formats.len() > 1 && bind.formats.len() != given {
            let message = format!("bind message has {} parameter formats but {given} parameters", bind.formats.len());
            return Err(SqlError::new(sqlstate::PROTOCOL_VIOLATION, message));
        }
        let mut parameters = Vec::with_capacity(given);
        for (number, (value, of)) in bind.parameters.into_iter().zip(types).enumerate() {
            parameters.push(match value {
                None => Value::Null,
                Some(bytes) if format_of(&bind.formats, number) == 1 => of.from_binary(bytes)?,
                Some(bytes) => {
                    let text = std::str::from_utf8(&bytes).map_err(|_| {
                        let message = "invalid byte sequence for encoding \"UTF8\"";
                        SqlError::new(sqlstate::CHARACTER_NOT_IN_REPERTOIRE, message)
                    })?;
                    of.parse(text)?
                }
            });
        }
        Ok(Self { prepared, parameters, formats: bind.results, progress: Progress::Bound })
    }
}
