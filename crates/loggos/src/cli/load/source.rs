//! The input of a load, and its format.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;
use std::thread;

use terminal::Stop;
use tokio::sync::mpsc;

use super::Format;
use super::cell_rows::CellRows;
use super::csv_rows::CsvRows;
use super::json_rows::JsonRows;
use super::row::Item;

/// Buffer size of reads.
const BUFFER_BYTES: usize = 256 << 10;

/// Rows that are read before they are written.
const ROWS_AHEAD: usize = 64;

/// A file of rows.
pub(crate) struct Source {
    input: Box<dyn BufRead + Send>,
    format: Format,
    /// Its size in bytes, if known.
    pub(crate) length: Option<u64>,
}

impl Source {
    /// Opens a file, or standard input for `-`.
    pub(crate) fn open(path: &Path, format: Option<Format>) -> Result<Self, Stop> {
        let reading = format!("read {}", path.display());
        let (input, length): (Box<dyn Read + Send>, _) = if path == Path::new("-") {
            (Box::new(io::stdin()), None)
        } else {
            let file = File::open(path).map_err(Stop::io(reading.clone()))?;
            let metadata = file.metadata().map_err(Stop::io(reading.clone()))?;
            (Box::new(file), metadata.is_file().then_some(metadata.len()))
        };
        let mut input: Box<dyn BufRead + Send> = Box::new(BufReader::with_capacity(BUFFER_BYTES, input));
        let format = match format.or_else(|| by_name(path)) {
            Some(format) => format,
            None => by_beginning(input.fill_buf().map_err(Stop::io(reading))?),
        };
        Ok(Self { input, format, length })
    }

    /// Its rows, in order, read ahead by a separate thread, since a pipe may block.
    pub(crate) fn rows(self, key_column: Option<&str>) -> Result<Rows, Stop> {
        let named = || key_column.ok_or_else(|| Stop::invalid("--key is required for this format"));
        Ok(match self.format {
            Format::Csv => ahead(CsvRows::new(self.input, named()?)?)?,
            Format::Jsonl => ahead(JsonRows::new(self.input, named()?))?,
            Format::Cells => ahead(CellRows::new(self.input))?,
        })
    }
}

/// The rows of a file.
pub(crate) type Rows = mpsc::Receiver<Result<Item, Stop>>;

fn ahead(rows: impl Iterator<Item = Result<Item, Stop>> + Send + 'static) -> Result<Rows, Stop> {
    let (send, ahead) = mpsc::channel(ROWS_AHEAD);
    let read = move || {
        for row in rows {
            // The receiver may have stopped.
            if send.blocking_send(row).is_err() {
                return;
            }
        }
    };
    thread::Builder::new().name("rows".into()).spawn(read).map_err(Stop::io("start a thread"))?;
    Ok(ahead)
}

fn by_name(path: &Path) -> Option<Format> {
    match path.extension()?.to_str()? {
        "csv" => Some(Format::Csv),
        "jsonl" | "ndjson" => Some(Format::Jsonl),
        _ => None,
    }
}

/// Guesses the format: an object starts with a brace, and headers rarely do.
fn by_beginning(bytes: &[u8]) -> Format {
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    if bytes.trim_ascii_start().starts_with(b"{") { Format::Jsonl } else { Format::Csv }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn detects_format_by_extension_or_content() {
        assert_eq!(by_name(Path::new("a/airports.csv")), Some(Format::Csv));
        assert_eq!(by_name(Path::new("x.jsonl")), Some(Format::Jsonl));
        assert_eq!(by_name(Path::new("airports")), None);
        assert_eq!(by_beginning(b"\n  {\"a\":1}"), Format::Jsonl);
        assert_eq!(by_beginning(b"iata,name\n"), Format::Csv);
        assert_eq!(by_beginning(b""), Format::Csv);
    }
}
