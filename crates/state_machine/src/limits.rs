//! Checks of size, count and name for the validation of all kinds of requests. Each error names the field, its size and
//! the limit.

use std::fmt::Display;

use base::limits::TABLE_NAME_BYTES_MAX;

use crate::failure::Failure;

/// Checks the name of a table or a log.
///
/// # Errors
/// [`Failure::Invalid`] if it is empty, too long, or has characters other than letters, digits, `_`, `-` and `.`.
pub fn check_name(of: &str, name: &str) -> Result<(), Failure> {
    if name.is_empty() {
        return refuse(format!("the {of}'s name is empty"));
    }
    check_size(format_args!("the {of}'s name"), name.len(), TABLE_NAME_BYTES_MAX)?;
    match name.chars().find(|c| !(c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.'))) {
        Some(c) => refuse(format!(
            "the {of}'s name {name:?} contains {c:?}: only letters, digits, '_', '-' and '.' are allowed"
        )),
        None => Ok(()),
    }
}

/// Checks a size in bytes.
///
/// # Errors
/// [`Failure::Invalid`] if it is above the limit.
pub fn check_size(what: impl Display, bytes: usize, limit: usize) -> Result<(), Failure> {
    if bytes > limit {
        return refuse(format!("{what} has {bytes} bytes, over the limit of {limit}"));
    }
    Ok(())
}

/// Checks a number of items.
///
/// # Errors
/// [`Failure::Invalid`] if it is above the limit.
pub fn check_count(what: &str, count: usize, limit: usize) -> Result<(), Failure> {
    if count > limit {
        return refuse(format!("{count} {what}, over the limit of {limit}"));
    }
    Ok(())
}

/// Rejects a request.
///
/// # Errors
/// Always [`Failure::Invalid`], with the reason.
pub fn refuse(why: impl Into<String>) -> Result<(), Failure> {
    Err(Failure::Invalid(why.into()))
}
