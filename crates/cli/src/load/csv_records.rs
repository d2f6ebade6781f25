//! Records of a CSV file (RFC 4180, parsed leniently by the crate `csv`), with their text.
//!
//! A bad row is kept exactly as in the file, and identified by its line. Quoted cells may contain line ends, so both
//! are derived from the bytes that the parser consumed rather than from a count of rows. Cells need not be UTF-8.

use std::io::{self, BufRead, Read};

use csv::{ByteRecord, ErrorKind, Reader, ReaderBuilder};
use terminal::Stop;

use super::row::{TEXT_BYTES_MAX, UTF16, is_utf16, wrong};

const OPEN_QUOTE: &str = "the file ends inside a quoted cell; check for a missing quote";

/// The records of a file, including its header.
pub(super) struct Records<R> {
    reader: Reader<Kept<R>>,
    /// Line ends before the next record.
    line_ends: u64,
}

/// A record and its text as in the file.
pub(super) struct Record {
    /// The first line, from 1.
    pub(super) line: u64,
    pub(super) cells: ByteRecord,
    pub(super) text: Vec<u8>,
    /// File offset of its end.
    pub(super) bytes_read: u64,
    /// The file ends inside a quoted cell of this record.
    is_open: bool,
}

impl<R: BufRead> Records<R> {
    pub(super) fn new(input: R) -> Self {
        // The header is read like any record, and so are rows with too few or too many cells.
        let reader = ReaderBuilder::new().has_headers(false).flexible(true).from_reader(Kept::new(input));
        Self { reader, line_ends: 0 }
    }

    /// The next record, or `None` at the end.
    pub(super) fn next(&mut self) -> Result<Option<Record>, Stop> {
        let mut cells = ByteRecord::new();
        let more = self.reader.read_byte_record(&mut cells).map_err(|error| self.unreadable(error))?;
        if !more {
            return Ok(None);
        }
        let bytes_read = self.reader.position().byte();
        let bytes = self.reader.get_mut().take_until(bytes_read);
        // Empty lines before a record are not part of it.
        let blank = bytes.iter().take_while(|byte| matches!(byte, b'\n' | b'\r')).count();
        let line = self.line_ends + line_ends(&bytes[..blank]) + 1;
        self.line_ends += line_ends(&bytes);
        let text = bytes[blank..].to_vec();
        let is_open = self.reader.get_ref().has_ended && ends_in_quotes(&cells, &text);
        Ok(Some(Record { line, cells, text, bytes_read, is_open }))
    }

    /// The header, which is the first record.
    pub(super) fn header(&mut self) -> Result<Record, Stop> {
        let Some(header) = self.next()? else { return Err(wrong(1, "the file has no header")) };
        if is_utf16(&header.text) {
            return Err(wrong(1, UTF16));
        }
        header.check_closed().map_err(|reason| wrong(header.line, &reason))?;
        Ok(header)
    }

    fn unreadable(&self, error: csv::Error) -> Stop {
        match error.into_kind() {
            ErrorKind::Io(error) if error.kind() == io::ErrorKind::FileTooLarge => {
                let line = self.line_ends + 1;
                let most = TEXT_BYTES_MAX >> 20;
                wrong(
                    line,
                    &format!(
                        "the row that starts here exceeds {most} MiB; check for a missing quote, or load larger rows with --format cells"
                    ),
                )
            }
            ErrorKind::Io(error) => Stop::Io { what: "read the file".into(), error },
            kind => wrong(self.line_ends + 1, &format!("{kind:?}")),
        }
    }
}

impl Record {
    /// Fails if the record did not end with its line or with the file.
    fn check_closed(&self) -> Result<(), String> {
        if self.is_open { Err(OPEN_QUOTE.to_owned()) } else { Ok(()) }
    }

    /// Fails unless the record is complete and has as many cells as the header.
    pub(super) fn check(&self, header_cells: usize) -> Result<(), String> {
        self.check_closed()?;
        if self.cells.len() != header_cells {
            return Err(format!("the row has {} cells, the header has {header_cells}", self.cells.len()));
        }
        Ok(())
    }

    /// The cells in order; `None` for an empty cell without quotes. The parser does not distinguish `""` from it.
    pub(super) fn cells(&self) -> impl Iterator<Item = Option<&[u8]>> {
        let has_empty = self.cells.iter().any(<[u8]>::is_empty);
        let quoted = if has_empty { quoted(&self.text) } else { Vec::new() };
        let is_present = move |cell: &[u8], index: usize| !cell.is_empty() || quoted.get(index) == Some(&true);
        self.cells.iter().enumerate().map(move |(index, cell)| is_present(cell, index).then_some(cell))
    }
}

/// Which cells of a record begin with a quote. It follows the parser: a quote after the first byte of a cell without
/// quotes, or after the closing quote, is text.
fn quoted(text: &[u8]) -> Vec<bool> {
    enum State {
        Start,
        Plain,
        Quoted,
        /// After a quote in a quoted cell: it ends the cell, or it is the first of two.
        Quote,
    }
    let mut quoted = Vec::new();
    let mut state = State::Start;
    for byte in text {
        if matches!(state, State::Start) {
            quoted.push(*byte == b'"');
        }
        state = match (state, byte) {
            (State::Start, b'"') | (State::Quote, b'"') => State::Quoted,
            (State::Quoted, b'"') => State::Quote,
            (State::Quoted, _) => State::Quoted,
            (_, b',') => State::Start,
            _ => State::Plain,
        };
    }
    quoted
}

/// Whether a quoted cell is still open at the end of the text: appending a cell would then extend it.
fn ends_in_quotes(record: &ByteRecord, text: &[u8]) -> bool {
    let longer = io::Read::chain(text.trim_ascii_end(), &b",x"[..]);
    let mut reader = ReaderBuilder::new().has_headers(false).flexible(true).from_reader(longer);
    let mut with_one_more = ByteRecord::new();
    let is_read = reader.read_byte_record(&mut with_one_more).unwrap_or(false);
    is_read && with_one_more.len() <= record.len()
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

    fn lines(file: &'static [u8]) -> Vec<(u64, bool)> {
        let mut records = Records::new(file);
        let header = records.header().expect("a good header").cells.len();
        let next = || records.next().expect("a readable file");
        std::iter::from_fn(next).map(|record| (record.line, record.check(header).is_ok())).collect()
    }

    #[test]
    fn quoted_newlines_keep_line_numbers() {
        let file = b"k,v\na,\"one\ntwo\n\"\nb,x,y\n\nc,\"\"\"\n\"\n,x\n";
        assert_eq!(lines(file), [(2, true), (5, false), (7, true), (9, true)]);
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
    fn strips_byte_order_mark() {
        assert_eq!(lines(b"\xef\xbb\xbfk,v\na,1\n"), [(2, true)]);
    }

    #[test]
    fn empty_cells_with_and_without_quotes() {
        let present = |row: &'static [u8]| {
            let record = Records::new(row).next().expect("a readable file").expect("a record");
            record.cells().map(|cell| cell.map(<[u8]>::to_vec)).collect::<Vec<_>>()
        };
        let (none, empty, text) = (None, Some(Vec::new()), |text: &str| Some(text.into()));
        assert_eq!(present(b"a,,\"\"\r\n"), [text("a"), none.clone(), empty.clone()]);
        assert_eq!(
            present(b"\"\",\"x,\"\"y\nz\",\"\","),
            [empty.clone(), text("x,\"y\nz"), empty.clone(), none.clone()]
        );
        // Quotes that the parser takes as text.
        assert_eq!(present(b"a\"\",,\"b\"c\"\",\"\",\n"), [text("a\"\""), none.clone(), text("bc\"\""), empty, none]);
    }
}
