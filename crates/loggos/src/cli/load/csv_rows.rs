//! Rows of a CSV file with a header (RFC 4180, parsed leniently by the crate `csv`).
//!
//! A bad row is kept exactly as in the file, and identified by its line. Quoted cells may contain line ends, so both
//! are derived from the bytes that the parser consumed rather than from a count of rows. Cells need not be UTF-8.

use std::collections::BTreeSet;
use std::io::{self, BufRead, Read};

use bytes::Bytes;
use csv::{ByteRecord, ErrorKind, Reader, ReaderBuilder};
use terminal::{LoadedUntil, Stop};

use super::row::{Item, Row, TEXT_BYTES_MAX};

/// The rows after the header.
pub(crate) struct CsvRows<R> {
    reader: Reader<Kept<R>>,
    header: Vec<Bytes>,
    key_column: String,
    /// Line ends before the next record.
    line_ends: u64,
    ended: bool,
}

const OPEN_QUOTE: &str = "the file ends inside a quoted cell; check for a missing quote";

/// A record as it appears in the file.
struct Text {
    line: u64,
    bytes: Vec<u8>,
}

impl<R: BufRead> CsvRows<R> {
    pub(crate) fn new(input: R, key_column: &str) -> Result<Self, Stop> {
        // The header is read like any record, and so are rows with too few or too many cells.
        let reader = ReaderBuilder::new().has_headers(false).flexible(true).from_reader(Kept::new(input));
        let mut rows =
            Self { reader, header: Vec::new(), key_column: key_column.to_owned(), line_ends: 0, ended: false };
        let Some((record, text)) = rows.record()? else { return Err(wrong(1, "the file has no header")) };
        if rows.reader.get_ref().has_ended && ends_in_quotes(&record, &text.bytes) {
            return Err(wrong(text.line, OPEN_QUOTE));
        }
        rows.header = record.iter().map(Bytes::copy_from_slice).collect();
        check_header(&rows.header, key_column).map_err(|reason| wrong(text.line, &reason))?;
        Ok(rows)
    }

    /// The next record and its text, or `None` at the end.
    fn record(&mut self) -> Result<Option<(ByteRecord, Text)>, Stop> {
        let mut record = ByteRecord::new();
        let more = self.reader.read_byte_record(&mut record).map_err(|error| self.unreadable(error))?;
        if !more {
            return Ok(None);
        }
        let end = self.reader.position().byte();
        let bytes = self.reader.get_mut().take_until(end);
        // Empty lines before a record are not part of it.
        let blank = bytes.iter().take_while(|byte| matches!(byte, b'\n' | b'\r')).count();
        let line = self.line_ends + line_ends(&bytes[..blank]) + 1;
        self.line_ends += line_ends(&bytes);
        Ok(Some((record, Text { line, bytes: bytes[blank..].to_vec() })))
    }

    fn unreadable(&self, error: csv::Error) -> Stop {
        match error.into_kind() {
            ErrorKind::Io(error) if error.kind() == io::ErrorKind::FileTooLarge => {
                let line = self.line_ends + 1;
                let most = TEXT_BYTES_MAX >> 20;
                wrong(line, &format!("the row that starts here exceeds {most} MiB; check for a missing quote"))
            }
            ErrorKind::Io(error) => Stop::Io { what: "read the file".into(), error },
            kind => wrong(self.line_ends + 1, &format!("{kind:?}")),
        }
    }

    /// Converts a record that ended with its line or with the file.
    fn row(&self, record: &ByteRecord, text: &[u8]) -> Result<Row, String> {
        if self.reader.get_ref().has_ended && ends_in_quotes(record, text) {
            return Err(OPEN_QUOTE.to_owned());
        }
        if record.len() != self.header.len() {
            return Err(format!("the row has {} cells, the header has {}", record.len(), self.header.len()));
        }
        let cells = self.header.iter().zip(record).filter(|(_, cell)| !cell.is_empty());
        Row::of(&self.key_column, cells.map(|(name, cell)| (name.clone(), Bytes::copy_from_slice(cell))).collect())
    }
}

impl<R: BufRead> Iterator for CsvRows<R> {
    type Item = Result<Item, Stop>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let item = match self.record() {
            Err(stop) => Some(Err(stop)),
            Ok(None) => None,
            Ok(Some((record, text))) => {
                let bytes_read = self.reader.position().byte();
                Some(Ok(Item { line: text.line, row: self.row(&record, &text.bytes), text: text.bytes, bytes_read }))
            }
        };
        self.ended = !matches!(item, Some(Ok(_)));
        item
    }
}

/// Whether a quoted cell is still open at the end of the text: appending a cell would then extend it.
fn ends_in_quotes(record: &ByteRecord, text: &[u8]) -> bool {
    let longer = io::Read::chain(text.trim_ascii_end(), &b",x"[..]);
    let mut reader = ReaderBuilder::new().has_headers(false).flexible(true).from_reader(longer);
    let mut with_one_more = ByteRecord::new();
    let is_read = reader.read_byte_record(&mut with_one_more).unwrap_or(false);
    is_read && with_one_more.len() <= record.len()
}

fn check_header(header: &[Bytes], key_column: &str) -> Result<(), String> {
    if let Some(position) = header.iter().position(Bytes::is_empty) {
        return Err(format!("column {} of the header has no name", position + 1));
    }
    let mut names = BTreeSet::new();
    if let Some(twice) = header.iter().find(|name| !names.insert(*name)) {
        return Err(format!("the header has duplicate column {:?}", String::from_utf8_lossy(twice)));
    }
    if names.contains(&Bytes::copy_from_slice(key_column.as_bytes())) {
        Ok(())
    } else {
        Err(format!("the header has no column {key_column:?}"))
    }
}

/// The error for a file that is unusable before its first row.
fn wrong(line: u64, reason: &str) -> Stop {
    let at = Some(LoadedUntil { line, rows: 0 });
    Stop::Invalid { message: format!("line {line}: {reason}"), at }
}

fn line_ends(bytes: &[u8]) -> u64 {
    bytes.iter().filter(|byte| **byte == b'\n').count() as u64
}

/// A reader that retains the bytes read until [`Kept::take_until`]: the parser reads ahead, and bad rows are copied
/// verbatim.
struct Kept<R> {
    inner: R,
    kept: Vec<u8>,
    /// File offset of `kept`.
    from: u64,
    /// Bytes of `kept` that were taken; they are dropped on the next read.
    taken: usize,
    /// The end of the file was reached.
    has_ended: bool,
}

impl<R: BufRead> Kept<R> {
    fn new(inner: R) -> Self {
        Self { inner, kept: Vec::new(), from: 0, taken: 0, has_ended: false }
    }

    /// The bytes from the end of the last call to `end`, an offset in the file.
    fn take_until(&mut self, end: u64) -> Vec<u8> {
        let end = ((end - self.from) as usize).min(self.kept.len());
        let bytes = self.kept[self.taken..end].to_vec();
        self.taken = end;
        bytes
    }
}

impl<R: BufRead> Read for Kept<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.kept.drain(..self.taken);
        self.from += self.taken as u64;
        self.taken = 0;
        if self.kept.len() > TEXT_BYTES_MAX {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let count = self.inner.read(buffer)?;
        self.kept.extend_from_slice(&buffer[..count]);
        self.has_ended |= count == 0 && !buffer.is_empty();
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(file: &'static [u8]) -> Vec<Item> {
        let rows = CsvRows::new(file, "k").expect("a good header");
        rows.collect::<Result<_, _>>().expect("a readable file")
    }

    fn lines(file: &'static [u8]) -> Vec<(u64, bool)> {
        rows(file).into_iter().map(|item| (item.line, item.row.is_ok())).collect()
    }

    #[test]
    fn quoted_newlines_keep_line_numbers() {
        let file = b"k,v\na,\"one\ntwo\n\"\nb,x,y\n\nc,\"\"\"\n\"\n,x\n";
        assert_eq!(lines(file), [(2, true), (5, false), (7, true), (9, false)]);
    }

    #[test]
    fn counts_lf_and_crlf_lines() {
        let file = b"k,v\r\na,1\r\n\r\nb\r\nc,3\r\n";
        assert_eq!(lines(file), [(2, true), (4, false), (5, true)]);
    }

    #[test]
    fn final_newline_is_optional() {
        assert_eq!(lines(b"k,v\na,1"), [(2, true)]);
        assert_eq!(lines(b"k,v"), []);
    }

    #[test]
    fn unterminated_quote_is_bad_row() {
        assert_eq!(lines(b"k,v\na,1\nb,\"x"), [(2, true), (3, false)]);
        assert_eq!(lines(b"k,v\na,1\nb,\"x\n\n"), [(2, true), (3, false)]);
        assert_eq!(lines(b"k,v\na,1\nb,\"x\ny\"\n"), [(2, true), (3, true)]);
        assert_eq!(lines(b"k,v\na,1\nb,\"x\"\"\""), [(2, true), (3, true)]);
        assert_eq!(lines(b"k,v\na,1\nb,"), [(2, true), (3, true)]);
    }

    #[test]
    fn bad_row_keeps_raw_text() {
        let items = rows(b"k,v\n\n \"b\" ,x,\"y\nz\"\nc,3\n");
        assert_eq!(items[0].text, b" \"b\" ,x,\"y\nz\"\n");
        assert_eq!(items[0].row, Err("the row has 3 cells, the header has 2".into()));
        assert_eq!(items[1].text, b"c,3\n");
    }

    #[test]
    fn empty_csv_cells_are_absent_columns() {
        let items = rows(b"k,v,w\na,,\xff\n");
        let columns = vec![("k".into(), "a".into()), ("w".into(), Bytes::from_static(b"\xff"))];
        assert_eq!(items[0].row, Ok(Row { key: "a".into(), columns }));
    }

    #[test]
    fn strips_byte_order_mark() {
        assert_eq!(lines(b"\xef\xbb\xbfk,v\na,1\n"), [(2, true)]);
    }

    #[test]
    fn rejects_invalid_header() {
        for (file, reason) in [
            (&b""[..], "line 1: the file has no header"),
            (b"a,b\n", "line 1: the header has no column \"k\""),
            (b"k,b,b\n", "line 1: the header has duplicate column \"b\""),
            (b"\nk,,b\n", "line 2: column 2 of the header has no name"),
            (b"k,\"v\na,1\n", "line 1: the file ends inside a quoted cell; check for a missing quote"),
        ] {
            let stop = CsvRows::new(file, "k").err().expect("a bad header");
            assert_eq!(stop.to_string(), reason);
            assert_eq!(stop.exit_status(), 2);
        }
    }

    #[test]
    fn unterminated_quote_bounds_memory() {
        let endless = io::Read::chain(&b"k,v\na,1\nb,\""[..], io::repeat(b'x'));
        let mut rows = CsvRows::new(io::BufReader::new(endless), "k").expect("a good header");
        assert!(rows.next().expect("a row").is_ok());
        let stop = rows.next().expect("an error").expect_err("an endless row");
        assert!(stop.to_string().starts_with("line 3: "), "{stop}");
        assert!(rows.next().is_none());
    }
}
