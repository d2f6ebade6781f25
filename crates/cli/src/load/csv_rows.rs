//! Rows of a CSV file with a header: one record per row.
//!
//! A cell without text is an absent column, and a quoted one (`""`) an empty value, as `export` writes them.

use std::collections::BTreeSet;
use std::io::BufRead;

use bytes::Bytes;
use terminal::Stop;

use super::csv_records::{Record, Records};
use super::row::{Item, Row, wrong};

/// The first column of a file that `export` has written: the row's key, which is not stored as a column.
pub(crate) const KEY_COLUMN: &str = "key";

/// The rows after the header.
pub(crate) struct CsvRows<R> {
    records: Records<R>,
    header: Vec<Bytes>,
    /// The column of the row's key, which is stored as well; `None`: the first cell is the key.
    key_column: Option<String>,
    ended: bool,
}

impl<R: BufRead> CsvRows<R> {
    /// The records after this header.
    pub(super) fn new(header: &Record, records: Records<R>, key_column: Option<&str>) -> Result<Self, Stop> {
        let line = header.line;
        let header: Vec<_> = header.cells.iter().map(Bytes::copy_from_slice).collect();
        check_header(&header, key_column).map_err(|reason| wrong(line, &reason))?;
        Ok(Self { records, header, key_column: key_column.map(str::to_owned), ended: false })
    }

    fn row(&self, record: &Record) -> Result<Row, String> {
        record.check(self.header.len())?;
        let cells = self.header.iter().zip(record.cells());
        let present = |(name, cell): (&Bytes, Option<&[u8]>)| Some((name.clone(), Bytes::copy_from_slice(cell?)));
        match &self.key_column {
            Some(key_column) => Row::of(key_column, cells.filter_map(present).collect()),
            None => {
                let key = Bytes::copy_from_slice(record.cells.get(0).unwrap_or_default());
                Row::with_key(key, cells.skip(1).filter_map(present).collect())
            }
        }
    }
}

impl<R: BufRead> Iterator for CsvRows<R> {
    type Item = Result<Item, Stop>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let record = self.records.next().transpose();
        self.ended = !matches!(record, Some(Ok(_)));
        let item = |record: Record| {
            let row = self.row(&record);
            Item { line: record.line, row, text: record.text, bytes_read: record.bytes_read }
        };
        record.map(|record| record.map(item))
    }
}

fn check_header(header: &[Bytes], key_column: Option<&str>) -> Result<(), String> {
    if let Some(position) = header.iter().position(Bytes::is_empty) {
        return Err(format!("column {} of the header has no name", position + 1));
    }
    let is_key_first = key_column.is_none() && header.first().is_some_and(|name| name == KEY_COLUMN);
    // The table may have a column of that name, too.
    let columns = &header[usize::from(is_key_first)..];
    let mut names = BTreeSet::new();
    if let Some(twice) = columns.iter().find(|name| !names.insert(*name)) {
        return Err(format!("the header has duplicate column {:?}", String::from_utf8_lossy(twice)));
    }
    match key_column {
        Some(name) if !names.contains(&Bytes::copy_from_slice(name.as_bytes())) => {
            Err(format!("the header has no column {name:?}"))
        }
        None if !is_key_first => Err(format!("--key is required unless the first column is named {KEY_COLUMN:?}")),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::super::row::UTF16;
    use super::*;

    fn csv<R: BufRead>(file: R, key_column: Option<&str>) -> Result<CsvRows<R>, Stop> {
        let mut records = Records::new(file);
        let header = records.header()?;
        CsvRows::new(&header, records, key_column)
    }

    fn rows(file: &'static [u8], key_column: Option<&str>) -> Vec<Item> {
        let rows = csv(file, key_column).expect("a good header");
        rows.collect::<Result<_, _>>().expect("a readable file")
    }

    #[test]
    fn bad_row_keeps_raw_text() {
        let items = rows(b"k,v\n\n \"b\" ,x,\"y\nz\"\nc,3\n", Some("k"));
        assert_eq!(items[0].text, b" \"b\" ,x,\"y\nz\"\n");
        assert_eq!(items[0].row, Err("the row has 3 cells, the header has 2".into()));
        assert_eq!(items[1].text, b"c,3\n");
    }

    #[test]
    fn empty_csv_cells_are_absent_columns() {
        let items = rows(b"k,v,w,x\na,,\xff,\"\"\n", Some("k"));
        let (w, x) = (("w".into(), Bytes::from_static(b"\xff")), ("x".into(), Bytes::new()));
        let columns = vec![("k".into(), "a".into()), w, x];
        assert_eq!(items[0].row, Ok(Row { key: "a".into(), columns }));
    }

    #[test]
    fn first_column_of_exported_file_is_key() {
        let items = rows(b"key,a,key\nx,1,2\n,3,4\n", None);
        let columns = vec![("a".into(), "1".into()), ("key".into(), "2".into())];
        assert_eq!(items[0].row, Ok(Row { key: "x".into(), columns }));
        assert!(items[1].row.is_err(), "an empty key");
    }

    #[test]
    fn rejects_invalid_header() {
        for (file, key, reason) in [
            (&b""[..], Some("k"), "line 1: the file has no header"),
            (b"a,b\n", Some("k"), "line 1: the header has no column \"k\""),
            (b"k,b,b\n", Some("k"), "line 1: the header has duplicate column \"b\""),
            (b"\nk,,b\n", Some("k"), "line 2: column 2 of the header has no name"),
            (b"k,\"v\na,1\n", Some("k"), "line 1: the file ends inside a quoted cell; check for a missing quote"),
            (b"a,key\n", None, "line 1: --key is required unless the first column is named \"key\""),
            (b"\xff\xfek\0,\0v\0\n\0", Some("k"), &format!("line 1: {UTF16}")),
        ] {
            let stop = csv(file, key).err().expect("a bad header");
            assert_eq!(stop.to_string(), reason);
            assert_eq!(stop.exit_status(), 2);
        }
    }

    #[test]
    fn unterminated_quote_bounds_memory() {
        let endless = io::Read::chain(&b"k,v\na,1\nb,\""[..], io::repeat(b'x'));
        let mut rows = csv(io::BufReader::new(endless), Some("k")).expect("a good header");
        assert!(rows.next().expect("a row").is_ok());
        let stop = rows.next().expect("an error").expect_err("an endless row");
        assert!(stop.to_string().starts_with("line 3: "), "{stop}");
        assert!(rows.next().is_none());
    }
}
