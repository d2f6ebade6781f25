//! Writes of `loggos columns`: put, delete, and their conditional forms.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

use base::limits::{SQL_PREFIX, VALUE_BYTES_MAX};
use base::shown;
use bytes::Bytes;
use clap::Args;
use sdk::{Cell, Client, Table, Version};
use terminal::{Output, Stop};

use super::output::{CellObject, Encoding, EncodingArguments};

/// Protects the tables of SQL databases from commands on rows.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct Guard {
    /// Change the table although it belongs to a SQL database, which the change may damage.
    #[arg(long)]
    force: bool,
}

impl Guard {
    /// Refuses a change of a table that belongs to a SQL database.
    pub(super) fn check(self, table: &str) -> Result<(), Stop> {
        if self.force || !table.starts_with(SQL_PREFIX) {
            return Ok(());
        }
        Err(Stop::Refused(format!("table {table} belongs to a SQL database: use SQL; --force changes it nevertheless")))
    }
}

#[derive(Debug, Args)]
pub struct Put {
    pub(super) table: String,
    key: OsString,
    /// The column, followed by its value; or `COLUMN=VALUE`, which may be repeated and is split at the first `=`. Two
    /// arguments are a column and its value if the first one contains no `=`.
    #[arg(value_name = "COLUMN|COLUMN=VALUE")]
    first: OsString,
    #[arg(value_name = "VALUE|COLUMN=VALUE", allow_hyphen_values = true)]
    second: Option<OsString>,
    #[arg(value_name = "COLUMN=VALUE")]
    more: Vec<OsString>,
    /// Write nothing unless the column, which must be one of those written, has this version; 0: unless it is absent.
    #[arg(long = "if", value_name = "COLUMN@VERSION")]
    conditions: Vec<OsString>,
    /// Read the value of a single column from this file, unchanged; `-` is standard input.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["second", "more"])]
    value_file: Option<PathBuf>,
    #[command(flatten)]
    pub(super) guard: Guard,
    #[command(flatten)]
    encoding: EncodingArguments,
}

#[derive(Debug, Args)]
pub struct Delete {
    pub(super) table: String,
    key: OsString,
    column: Option<OsString>,
    #[command(flatten)]
    pub(super) guard: Guard,
    #[command(flatten)]
    encoding: EncodingArguments,
}

#[derive(Debug, Args)]
pub struct ConditionalPut {
    pub(super) table: String,
    key: OsString,
    column: OsString,
    #[arg(allow_hyphen_values = true, required_unless_present = "value_file")]
    value: Option<OsString>,
    /// Expected version; 0 if the column must not exist.
    #[arg(long)]
    version: Version,
    /// Read the value from this file, unchanged; `-` is standard input.
    #[arg(long, value_name = "FILE", conflicts_with = "value")]
    value_file: Option<PathBuf>,
    #[command(flatten)]
    pub(super) guard: Guard,
    #[command(flatten)]
    encoding: EncodingArguments,
}

#[derive(Debug, Args)]
pub struct ConditionalDelete {
    pub(super) table: String,
    key: OsString,
    column: OsString,
    /// Expected version; 0 if the column must not exist.
    #[arg(long)]
    version: Version,
    #[command(flatten)]
    pub(super) guard: Guard,
    #[command(flatten)]
    encoding: EncodingArguments,
}

impl Put {
    pub(super) async fn run(self, client: &Client, output: Output) -> Result<(), Stop> {
        let encoding = self.encoding.encoding();
        let (table, key) = (self.table.clone(), encoding.bytes(self.key.clone())?);
        let columns = self.columns()?;
        let handle = client.table(&*table);
        let write = columns.iter().cloned().fold(handle.write(key.clone()), |write, column| match column.condition {
            Some(version) => write.put_if(column.name, column.value, version),
            None => write.put(column.name, column.value),
        });
        let version = write.send().await?;
        if !output.is_json() {
            output.acknowledge(&(), || version.to_string());
            return Ok(());
        }
        for Column { name, value, .. } in columns {
            let cell = Cell::new(name, value, version);
            output.acknowledge(&CellObject::of(encoding, &table, &key, &cell), String::new);
        }
        Ok(())
    }

    fn columns(self) -> Result<Vec<Column>, Stop> {
        let encoding = self.encoding.encoding();
        let Self { first, second, more, conditions, value_file, .. } = self;
        let mut columns = match (value_file, second) {
            (Some(file), _) => vec![put(encoding.bytes(first)?, of_file(&file)?)],
            (None, Some(value)) if more.is_empty() && !has_separator(&first, encoding) => {
                vec![put(encoding.bytes(first)?, encoding.bytes(value)?)]
            }
            (None, second) => {
                let pairs = [Some(first), second].into_iter().flatten().chain(more);
                pairs.map(|pair| pair_of(pair, encoding)).collect::<Result<_, _>>()?
            }
        };
        for condition in conditions {
            let (column, version) = condition_of(condition, encoding)?;
            let written = columns.iter_mut().find(|written| written.name == column);
            let name = encoding.shown(&column);
            let written =
                written.ok_or_else(|| Stop::invalid(format!("--if names column {name}, which is not written")))?;
            if written.condition.replace(version).is_some() {
                return Err(Stop::invalid(format!("--if names column {name} twice")));
            }
        }
        Ok(columns)
    }
}

impl ConditionalPut {
    pub(super) async fn run(self, client: &Client, output: Output) -> Result<(), Stop> {
        let encoding = self.encoding.encoding();
        let (key, column) = (encoding.bytes(self.key)?, encoding.bytes(self.column)?);
        let value = match self.value_file {
            Some(file) => of_file(&file)?,
            None => encoding.bytes(self.value.unwrap_or_default())?,
        };
        let table = client.table(&*self.table);
        let version = table.write(key.clone()).put_if(column.clone(), value.clone(), self.version).send().await?;
        let cell = Cell::new(column, value, version);
        output.acknowledge(&CellObject::of(encoding, &self.table, &key, &cell), || cell.version.to_string());
        Ok(())
    }
}

impl ConditionalDelete {
    pub(super) async fn run(self, client: &Client, output: Output) -> Result<(), Stop> {
        let encoding = self.encoding.encoding();
        let (key, column) = (encoding.bytes(self.key)?, encoding.bytes(self.column)?);
        client.table(&*self.table).write(key.clone()).delete_if(column.clone(), self.version).send().await?;
        print_deleted(output, encoding, &self.table, &key, &column);
        Ok(())
    }
}

impl Delete {
    /// Reads first, since the response to a deletion does not tell whether anything was deleted.
    pub(super) async fn run(self, client: &Client, output: Output) -> Result<(), Stop> {
        let (table, encoding) = (self.table, self.encoding.encoding());
        let key = encoding.bytes(self.key)?;
        let column = self.column.map(|column| encoding.bytes(column)).transpose()?;
        let handle = client.table(&*table);
        let exists = match &column {
            Some(column) => handle
                .read(key.clone())
                .column(column.clone())
                .names_only()
                .send()
                .await
                .map(|read| !read.cells.is_empty()),
            None => row_exists(&handle, &key).await,
        };
        match exists {
            Ok(true) => {}
            Ok(false) => {
                let absent = absent(encoding, &table, &key, column.as_deref());
                return Err(Stop::NotFound(format!("nothing to delete: {absent}")));
            }
            Err(sdk::Error::Unavailable(why)) => {
                return Err(sdk::Error::Unavailable(format!("nothing was written: {why}")).into());
            }
            Err(error) => return Err(error.into()),
        }
        if let Some(column) = column {
            handle.write(key.clone()).delete(column.clone()).send().await?;
            print_deleted(output, encoding, &table, &key, &column);
            return Ok(());
        }
        handle.delete_row(key.clone()).await?;
        let people = || format!("deleted row {}", encoding.shown(&key));
        output.acknowledge(&CellObject::deleted_row(encoding, &table, &key), people);
        Ok(())
    }
}

/// Whether a row has a column. Reads at most one part of a large row with columns.
async fn row_exists(table: &Table, key: &Bytes) -> Result<bool, sdk::Error> {
    let after = Bytes::from([&key[..], &[0]].concat());
    let mut rows = table.scan().range(key.clone()..after).names_only().in_parts().rows();
    Ok(rows.next().await.transpose()?.is_some())
}

fn print_deleted(output: Output, encoding: Encoding, table: &str, key: &[u8], column: &[u8]) {
    let people = || format!("deleted {}", encoding.shown(column));
    output.acknowledge(&CellObject::deleted(encoding, table, key, column), people);
}

/// Says that a row or one of its columns does not exist.
pub(super) fn absent(encoding: Encoding, table: &str, key: &[u8], column: Option<&[u8]>) -> String {
    let what = column.map_or_else(String::new, |column| format!("column {} in ", encoding.shown(column)));
    format!("there is no {what}row {} in table {table}", encoding.shown(key))
}

/// A column to write.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Column {
    name: Bytes,
    value: Bytes,
    condition: Option<Version>,
}

fn put(name: Bytes, value: Bytes) -> Column {
    Column { name, value, condition: None }
}

/// Whether an argument is `COLUMN=VALUE`. In base64, `=` at the end is padding.
fn has_separator(argument: &OsString, encoding: Encoding) -> bool {
    let text = argument.as_bytes();
    let padding = text.iter().rev().take_while(|byte| **byte == b'=').count();
    let text = if encoding == Encoding::Base64 { &text[..text.len() - padding] } else { text };
    text.contains(&b'=')
}

fn pair_of(pair: OsString, encoding: Encoding) -> Result<Column, Stop> {
    let text = pair.into_vec();
    let Some(at) = text.iter().position(|byte| *byte == b'=') else {
        let wanted = "COLUMN VALUE, COLUMN=VALUE ... or COLUMN --value-file FILE";
        return Err(Stop::invalid(format!("\"{}\" has no value: expected {wanted}", shown(&text))));
    };
    if text.starts_with(b"--") {
        let message = format!("\"{}\" is no option of put; write such a column as COLUMN VALUE", shown(&text));
        return Err(Stop::invalid(message));
    }
    let bytes = |part: &[u8]| encoding.bytes(OsString::from_vec(part.to_vec()));
    Ok(put(bytes(&text[..at])?, bytes(&text[at + 1..])?))
}

/// A column and its expected version, from `COLUMN@VERSION`.
fn condition_of(condition: OsString, encoding: Encoding) -> Result<(Bytes, Version), Stop> {
    let text = condition.into_vec();
    let at = text.iter().rposition(|byte| *byte == b'@');
    let parsed = at.and_then(|at| {
        let version =
            std::str::from_utf8(&text[at + 1..]).ok()?.parse().ok().filter(|version| *version >= Version::ABSENT)?;
        Some((at, version))
    });
    let Some((at, version)) = parsed else {
        let message = format!("--if \"{}\": expected COLUMN@VERSION; version 0 means absent", shown(&text));
        return Err(Stop::invalid(message));
    };
    Ok((encoding.bytes(OsString::from_vec(text[..at].to_vec()))?, version))
}

/// The content of a file, or of standard input for `-`, up to just above the limit of a value.
fn of_file(path: &Path) -> Result<Bytes, Stop> {
    let reading = || Stop::io(format!("read {}", path.display()));
    let input: Box<dyn Read> =
        if path == Path::new("-") { Box::new(io::stdin()) } else { Box::new(File::open(path).map_err(reading())?) };
    let mut value = Vec::new();
    input.take(VALUE_BYTES_MAX as u64 + 1).read_to_end(&mut value).map_err(reading())?;
    if value.len() > VALUE_BYTES_MAX {
        let path = path.display();
        return Err(Stop::invalid(format!("{path} exceeds the limit of a value, {VALUE_BYTES_MAX} bytes")));
    }
    Ok(value.into())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        put: Put,
    }

    fn columns(arguments: &[&str]) -> Result<Vec<Column>, Stop> {
        let words = ["put", "t", "k"].into_iter().chain(arguments.iter().copied());
        Line::try_parse_from(words).expect("arguments").put.columns()
    }

    fn of(column: &'static str, value: &'static str, condition: Option<i64>) -> Column {
        Column { condition: condition.map(Version::from_nanos), ..put(column.into(), value.into()) }
    }

    #[test]
    fn put_accepts_pair_or_assignments() {
        let put = |arguments: &[&str]| columns(arguments).expect("columns");
        assert_eq!(put(&["c", "v=w"]), [of("c", "v=w", None)]);
        assert_eq!(put(&["c", "-x"]), [of("c", "-x", None)]);
        assert_eq!(put(&["a=1=2"]), [of("a", "1=2", None)]);
        assert_eq!(put(&["a=", "b=2", "c=3"]), [of("a", "", None), of("b", "2", None), of("c", "3", None)]);
        let conditional = put(&["a=1", "b@x=2", "--if", "a@0", "--if", "b@x@7"]);
        assert_eq!(conditional, [of("a", "1", Some(0)), of("b@x", "2", Some(7))]);
        assert_eq!(put(&["c", "v", "--if", "c@7"]), [of("c", "v", Some(7))]);
        for padded in [&["Yw==", "dg=="][..], &["Yw", "dg"], &["Yw=dg=="], &["Yw=dg"]] {
            assert_eq!(put(&[padded, &["--base64"]].concat()), [of("c", "v", None)], "{padded:?}");
        }
    }

    #[test]
    fn put_rejects_incomplete_columns() {
        for wrong in [
            &["c"][..],
            &["a=1", "b"],
            &["c", "v", "w"],
            &["a=1", "--if", "b@0"],
            &["a=1", "--if", "a"],
            &["a=1", "--if", "a@-1"],
            &["a=1", "--if", "a@0", "--if", "a@0"],
            &["?", "dg==", "--base64"],
        ] {
            assert_eq!(columns(wrong).map_err(|stop| stop.exit_status()), Err(2), "{wrong:?}");
        }
    }
}
