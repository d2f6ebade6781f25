//! The first messages of a connection, which have no type byte.

use bytes::{Buf as _, BytesMut};
use sql::{SqlError, sqlstate};

/// Maximum bytes of a first message, as in PostgreSQL.
pub const STARTUP_MAX: usize = 10_000;

pub const SSL_REQUEST: u32 = 80_877_103;
const GSS_REQUEST: u32 = 80_877_104;
const CANCEL_REQUEST: u32 = 80_877_102;
const MAJOR_VERSION: u32 = 3;

/// The first message of a connection.
#[derive(Debug, PartialEq, Eq)]
pub enum Startup {
    /// A request for encryption, which is refused; another first message follows.
    Encryption,
    Cancel {
        process: i32,
        secret: i32,
    },
    /// A session, with the options of the protocol that are unknown, and whether the minor version is.
    Session {
        parameters: Vec<(String, String)>,
        unknown: Vec<String>,
        is_newer: bool,
    },
}

fn invalid() -> SqlError {
    SqlError::new(sqlstate::PROTOCOL_VIOLATION, "invalid startup packet layout")
}

impl Startup {
    /// Decodes a message without its length.
    ///
    /// # Errors
    /// 08P01 and 0A000.
    pub fn decode(body: BytesMut) -> Result<Self, SqlError> {
        let mut body = body.freeze();
        let code = body.try_get_u32().map_err(|_| invalid())?;
        match code {
            SSL_REQUEST | GSS_REQUEST => return Ok(Self::Encryption),
            CANCEL_REQUEST => {
                let process = body.try_get_i32().map_err(|_| invalid())?;
                let secret = body.try_get_i32().map_err(|_| invalid())?;
                return Ok(Self::Cancel { process, secret });
            }
            _ if code >> 16 != MAJOR_VERSION => {
                let message = format!("unsupported frontend protocol {}.{}", code >> 16, code & 0xffff);
                let error = SqlError::new(sqlstate::FEATURE_NOT_SUPPORTED, message);
                return Err(error.with_detail("The server supports 3.0."));
            }
            _ => {}
        }
        let mut texts =
            body.split(|byte| *byte == 0).map(|text| String::from_utf8(text.to_vec()).map_err(|_| invalid()));
        let (mut parameters, mut unknown) = (Vec::new(), Vec::new());
        loop {
            let name = texts.next().ok_or_else(invalid)??;
            if name.is_empty() {
                break;
            }
            let value = texts.next().ok_or_else(invalid)??;
            match name.as_str() {
                name if name.starts_with("_pq_.") => unknown.push(name.to_owned()),
                "options" => options(&value, &mut parameters),
                _ => parameters.push((name, value)),
            }
        }
        Ok(Self::Session { parameters, unknown, is_newer: code & 0xffff != 0 })
    }
}

/// `-c name=value` and `--name=value`, as in `PGOPTIONS`.
fn options(text: &str, parameters: &mut Vec<(String, String)>) {
    let mut words = text.split_whitespace();
    while let Some(word) = words.next() {
        let option = match word {
            "-c" => words.next(),
            word => word.strip_prefix("--").or_else(|| word.strip_prefix("-c")),
        };
        if let Some((name, value)) = option.and_then(|option| option.split_once('=')) {
            parameters.push((name.replace('-', "_"), value.to_owned()));
        }
    }
}
