//! The input of a load, and its format.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;
use std::thread;

use terminal::Stop;
use tokio::sync::mpsc;

use super::Format;
use super::cell_rows::{self, CellRows};
use super::csv_records::Records;
use super::csv_rows::CsvRows;
use super::json_rows::JsonRows;
use super::row::{Item, wrong};

/// The error for a file of cells that would be read as rows.
const CELLS: &str = "the header is that of a file of cells: load it with --format cells (or csv, if these are columns)";

/// Buffer size of reads.
const BUFFER_BYTES: usize = 256 << 10;

/// Rows that are read before they are written.
const ROWS_AHEAD: usize = 64;

/// A file of rows.
pub(crate) struct Source {
    input: Box<dyn BufRead + Send>,
    format: Format,
    /// The format was not named, but detected.
    is_detected: bool,
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
        let is_detected = format.is_none();
        let format = match format.or_else(|| by_name(path)) {
            Some(format) => format,
            None => by_beginning(input.fill_buf().map_err(Stop::io(reading))?),
        };
        Ok(Self { input, format, is_detected, length })
    }

    /// Its rows, in order, read ahead by a separate thread, since a pipe may block.
    pub(crate) fn rows(mut self, key_column: Option<&str>) -> Result<Rows, Stop> {
        match self.format {
            Format::Csv => {
                let mut records = Records::new(self.input);
                let header = records.header()?;
                if self.is_detected && cell_rows::is_header(&header) {
                    return Err(wrong(header.line, CELLS));
                }
                ahead(CsvRows::new(&header, records, key_column)?)
            }
            Format::Jsonl => {
                let key_column = key_column.ok_or_else(|| Stop::invalid("--key is required for this format"))?;
                ahead(JsonRows::new(self.input, key_column))
            }
            Format::Cells => {
                let beginning = self.input.fill_buf().map_err(Stop::io("read the file"))?;
                // The export of an empty table is empty.
                let is_json = beginning.is_empty() || is_json(beginning);
                if is_json { ahead(CellRows::json(self.input)) } else { ahead(CellRows::csv(self.input)?) }
            }
        }
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

/// Guesses the format: headers rarely begin as JSON.
fn by_beginning(bytes: &[u8]) -> Format {
    if is_json(bytes) { Format::Jsonl } else { Format::Csv }
}

/// Whether the file begins as an object, or as an array, which is then refused.
fn is_json(bytes: &[u8]) -> bool {
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes).trim_ascii_start();
    bytes.starts_with(b"{") || bytes.starts_with(b"[")
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
        assert_eq!(by_beginning(b"[\n{\"a\":1}]"), Format::Jsonl, "an array, which is refused as such");
        assert_eq!(by_beginning(b"iata,name\n"), Format::Csv);
        assert_eq!(by_beginning(b""), Format::Csv);
    }
}
