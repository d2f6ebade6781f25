//! Scans: streams of rows, which read page by page, so that memory use does not depend on the size of the table.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::vec;

use api::columns as message;
use base::limits::SCAN_ROWS_MAX;
use bytes::Bytes;
use tokio_stream::Stream;

use crate::client_api::unexpected;
use crate::request::{ApiRequest, ApiResponse};
use crate::table::Table;
use crate::types::{AsOf, KeyRange, Row};
use crate::{Client, Error, Reads, Version};

/// The rows to read, and their order. [`Scan::rows`] begins the scan.
#[derive(Clone, Debug)]
#[must_use = "a scan is begun by `rows`"]
pub struct Scan<S = TableSource> {
    pub(crate) source: S,
    pub(crate) keys: KeyRange,
    pub(crate) prefix: Bytes,
    pub(crate) reverse: bool,
    pub(crate) limit: Option<u64>,
    page_rows: u32,
}

/// The source of a [`Scan`] outside of a transaction: a table, with the options of its reads.
#[derive(Clone, Debug)]
pub struct TableSource {
    table: Table,
    consistency: Reads,
    columns: Vec<Bytes>,
    names_only: bool,
    in_parts: bool,
    continuation: Option<Bytes>,
    /// The rest of the row in which the last page ended.
    rest: Option<message::Rest>,
}

impl<S> Scan<S> {
    pub(crate) fn of(source: S) -> Self {
        Self { source, keys: KeyRange::default(), prefix: Bytes::new(), reverse: false, limit: None, page_rows: 0 }
    }

    /// Only keys in this range, such as `"a".."c"` or `"a"..`.
    pub fn range(mut self, keys: impl Into<KeyRange>) -> Self {
        self.keys = keys.into();
        self
    }

    /// Only keys with this prefix.
    pub fn prefix(mut self, prefix: impl Into<Bytes>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// Reads from the last key to the first.
    pub fn reverse(mut self) -> Self {
        self.reverse = true;
        self
    }

    /// Maximum rows of the whole scan. Unlimited by default.
    pub fn limit(mut self, rows: u64) -> Self {
        self.limit = Some(rows);
        self
    }

    /// Maximum rows of a page, at most 1,000. By default a page has as many rows as fit: about 2 MiB.
    pub fn page_rows(mut self, rows: u32) -> Self {
        self.page_rows = rows;
        self
    }

    /// The options of the next page's request that do not depend on the source.
    pub(crate) fn page_request(&self, table: &str) -> message::ScanRequest {
        let page_rows = if self.page_rows == 0 { SCAN_ROWS_MAX as u64 } else { u64::from(self.page_rows) };
        // The last row of the scan may still have a rest.
        let rows = self.limit.map_or(page_rows, |limit| limit.clamp(1, page_rows));
        message::ScanRequest {
            table: table.to_owned(),
            start: self.keys.start.clone(),
            end: self.keys.end.clone(),
            prefix: self.prefix.clone(),
            reverse: self.reverse,
            limit: u32::try_from(rows).unwrap_or(u32::MAX),
            ..Default::default()
        }
    }
}

impl Scan {
    pub(crate) fn new(table: Table) -> Self {
        Self::of(TableSource {
            table,
            consistency: Reads::default(),
            columns: Vec::new(),
            names_only: false,
            in_parts: false,
            continuation: None,
            rest: None,
        })
    }

    /// The consistency level. The default is [`Reads::Strong`]. Each page is a separate read: rows of one page are of
    /// one state, and later pages may be of a later state. [`Reads::At`] reads all pages as of one timestamp.
    pub fn consistency(mut self, consistency: Reads) -> Self {
        self.source.consistency = consistency;
        self
    }

    /// Reads these columns, each named once. Rows without any of them are left out. By default all columns are read.
    pub fn columns<C: Into<Bytes>>(mut self, columns: impl IntoIterator<Item = C>) -> Self {
        self.source.columns = columns.into_iter().map(Into::into).collect();
        self
    }

    /// Reads the names and versions of columns with empty values.
    pub fn names_only(mut self) -> Self {
        self.source.names_only = true;
        self
    }

    /// Returns a row that does not fit into one response (16 MiB) in parts, instead of collecting it in memory: rows with
    /// the same key that follow each other, each with some of the columns. All parts are of one state of the row. In
    /// reverse the part with the last columns comes first.
    pub fn in_parts(mut self) -> Self {
        self.source.in_parts = true;
        self
    }

    /// Continues after a page: with its unchanged [continuation](Page::continuation), in a scan with the same keys and
    /// order, possibly in another process. After a page that ended within a row ([`Scan::in_parts`]), that row is read
    /// from its beginning.
    pub fn resume(mut self, continuation: impl Into<Bytes>) -> Self {
        self.source.continuation = Some(continuation.into());
        self
    }

    /// The rows, as a stream. It holds at most one page in memory.
    pub fn rows(self) -> Rows {
        Rows { pages: self.pages(), rows: Vec::new().into_iter() }
    }

    /// The rows in pages, as a stream, each page with the state that it was read from.
    pub fn pages(self) -> Pages {
        let is_over = self.limit == Some(0);
        Pages { scan: self, fetch: None, open_row: None, incomplete: None, is_over }
    }

    /// The request for the next page.
    fn request(&self) -> message::ScanRequest {
        let TableSource { table, consistency, columns, names_only, continuation, rest, .. } = &self.source;
        let (columns_after, consistency) = match rest {
            Some(rest) => (rest.columns_after.clone(), Reads::At(Version::from_nanos(rest.at_ns))),
            None => (Bytes::new(), *consistency),
        };
        message::ScanRequest {
            continuation: continuation.clone(),
            options: consistency.options(),
            columns_after: Some(columns_after),
            names_only: *names_only,
            columns: columns.clone(),
            ..self.page_request(table.name())
        }
    }
}

/// A page of rows.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Page {
    /// The rows, in the order of the scan. At the end of a range a page may be empty, although others follow.
    pub rows: Vec<Row>,
    /// Where the next page continues ([`Scan::resume`]); none: the scan is complete.
    pub continuation: Option<Bytes>,
    /// The state that was read; none for [`Reads::Strong`] and [`Reads::Anywhere`].
    pub as_of: Option<AsOf>,
    /// The rest of the row in which the page ends.
    rest: Option<message::Rest>,
}

type Fetch = Pin<Box<dyn Future<Output = Result<Page, Error>> + Send>>;

/// A stream of the pages of a [`Scan`]. It reads the next page when it is polled. It ends after an error.
#[must_use = "a stream reads only when it is polled"]
pub struct Pages {
    /// What remains to be read.
    scan: Scan,
    fetch: Option<Fetch>,
    /// The key of the row in which the last page ended.
    open_row: Option<Bytes>,
    /// A page that ended within a row, unless parts are returned as they are.
    incomplete: Option<Page>,
    is_over: bool,
}

impl Pages {
    /// The next page; none after the end.
    ///
    /// # Errors
    /// The error that ends the stream.
    pub async fn next(&mut self) -> Option<Result<Page, Error>> {
        std::future::poll_fn(|context| Pin::new(&mut *self).poll_next(context)).await
    }

    /// Takes a page as it was read; returns it once it ends with a whole row, or is to be returned in parts.
    fn took(&mut self, mut page: Page) -> Option<Page> {
        let continues = page.rows.first().is_some_and(|row| Some(&row.key) == self.open_row.as_ref());
        if let Some(limit) = &mut self.scan.limit {
            let rows = usize::from(continues).saturating_add(usize::try_from(*limit).unwrap_or(usize::MAX));
            if page.rows.len() > rows {
                // The row in which the last page ended has no further columns, and the scan ends with it.
                page.rows.truncate(rows);
                page.rest = None;
                page.continuation = self.open_row.as_ref().map(|key| beyond(key, self.scan.reverse));
            }
            *limit -= (page.rows.len() - usize::from(continues)) as u64;
        }
        if self.scan.source.rest.is_some() && matches!(self.scan.source.consistency, Reads::Strong | Reads::Anywhere) {
            // The state of the row's first part was read. For the caller, that is a linearizable read.
            page.as_of = None;
        }
        match &page.rest {
            None => self.open_row = None,
            Some(_) => self.open_row = page.rows.last().map(|row| row.key.clone()).or_else(|| self.open_row.take()),
        }
        self.scan.source.continuation.clone_from(&page.continuation);
        self.scan.source.rest.clone_from(&page.rest);
        self.is_over = page.continuation.is_none() || page.rest.is_none() && self.scan.limit == Some(0);
        if self.scan.source.in_parts {
            return Some(page);
        }
        if let Some(mut before) = self.incomplete.take() {
            let mut rows = page.rows.into_iter();
            match before.rows.last_mut() {
                Some(row) if continues => append(row, rows.next(), self.scan.reverse),
                _ => {}
            }
            before.rows.extend(rows);
            page = Page { rows: before.rows, as_of: before.as_of, ..page };
        }
        if page.rest.is_none() {
            return Some(page);
        }
        self.incomplete = Some(page);
        None
    }
}

/// The continuation after a row.
fn beyond(key: &Bytes, reverse: bool) -> Bytes {
    if reverse { key.clone() } else { [&key[..], &[0]].concat().into() }
}

/// Adds the next part of a row.
fn append(row: &mut Row, part: Option<Row>, reverse: bool) {
    let Some(mut part) = part else { return };
    if reverse {
        std::mem::swap(&mut row.cells, &mut part.cells);
    }
    row.cells.append(&mut part.cells);
}

impl Stream for Pages {
    type Item = Result<Page, Error>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        loop {
            if this.is_over {
                return Poll::Ready(None);
            }
            let scan = &this.scan;
            let fetch =
                this.fetch.get_or_insert_with(|| Box::pin(page(scan.source.table.client.clone(), scan.request())));
            let Poll::Ready(outcome) = fetch.as_mut().poll(context) else { return Poll::Pending };
            this.fetch = None;
            match outcome {
                Ok(page) => {
                    if let Some(page) = this.took(page) {
                        return Poll::Ready(Some(Ok(page)));
                    }
                }
                Err(error) => {
                    this.is_over = true;
                    return Poll::Ready(Some(Err(error)));
                }
            }
        }
    }
}

impl fmt::Debug for Pages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pages").field("scan", &self.scan).field("is_over", &self.is_over).finish_non_exhaustive()
    }
}

/// A stream of the rows of a [`Scan`]. It reads the next page when the rows of the last one were taken. It ends after an
/// error.
#[derive(Debug)]
#[must_use = "a stream reads only when it is polled"]
pub struct Rows {
    pages: Pages,
    rows: vec::IntoIter<Row>,
}

impl Rows {
    /// The next row; none after the end.
    ///
    /// # Errors
    /// The error that ends the stream.
    pub async fn next(&mut self) -> Option<Result<Row, Error>> {
        std::future::poll_fn(|context| Pin::new(&mut *self).poll_next(context)).await
    }
}

impl Stream for Rows {
    type Item = Result<Row, Error>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(row) = self.rows.next() {
                return Poll::Ready(Some(Ok(row)));
            }
            match Pin::new(&mut self.pages).poll_next(context) {
                Poll::Ready(Some(Ok(page))) => self.rows = page.rows.into_iter(),
                Poll::Ready(Some(Err(error))) => return Poll::Ready(Some(Err(error))),
                Poll::Ready(None) => return Poll::Ready(None),
                Poll::Pending => return Poll::Pending,
            }
        }
    }
}

async fn page(client: Client, request: message::ScanRequest) -> Result<Page, Error> {
    match client.ask(ApiRequest::Scan(request)).await? {
        ApiResponse::Rows(message::ScanResponse { rows, continuation, as_of, rest }) => {
            let rows = rows.into_iter().map(Into::into).collect();
            Ok(Page { rows, continuation, as_of: as_of.map(Into::into), rest })
        }
        other => Err(unexpected(&other)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scan() -> Scan {
        Client::connect(["127.0.0.1:1"]).expect("an address").table("t").scan()
    }

    fn page(rows: usize, continuation: Option<&'static str>) -> Page {
        let rows = vec![Row::new("k", Vec::new()); rows];
        Page { rows, continuation: continuation.map(Into::into), as_of: None, rest: None }
    }

    /// A part of row `key`; more of it follows if `after` is given.
    fn part(key: &'static str, columns: &[&'static str], after: Option<&'static str>) -> Page {
        let cells = columns.iter().map(|column| crate::Cell::new(*column, "", Version::from_nanos(1))).collect();
        let rest = after.map(|after| message::Rest { columns_after: after.into(), at_ns: 7 });
        let continuation = Some(if rest.is_some() { key.into() } else { Bytes::from("z") });
        Page { rows: vec![Row::new(key, cells)], continuation, as_of: None, rest }
    }

    fn columns(page: &Page) -> Vec<(&[u8], Vec<&[u8]>)> {
        page.rows.iter().map(|row| (&row.key[..], row.cells.iter().map(|cell| &cell.column[..]).collect())).collect()
    }

    #[test]
    fn parts_of_a_row_are_joined_and_counted_once() {
        let mut pages = scan().limit(1).pages();
        assert_eq!(pages.took(part("k", &["a", "b"], Some("c"))), None);
        let request = pages.scan.request();
        assert_eq!((request.columns_after, request.limit), (Some("c".into()), 1));
        assert_eq!(request.options, Reads::At(Version::from_nanos(7)).options());
        assert_eq!(pages.took(Page { rows: vec![], ..part("k", &[], Some("d")) }), None);
        let page = pages.took(part("k", &["e"], None)).expect("the row is complete");
        assert_eq!(columns(&page), [(&b"k"[..], vec![&b"a"[..], b"b", b"e"])]);
        assert!(pages.is_over);

        let mut pages = scan().limit(1).reverse().pages();
        assert_eq!(pages.took(part("k", &["c", "d"], Some("c"))), None);
        let page = pages.took(part("k", &["a"], None)).expect("the row is complete");
        assert_eq!(columns(&page), [(&b"k"[..], vec![&b"a"[..], b"c", b"d"])]);
    }

    #[test]
    fn row_after_the_last_part_is_beyond_the_limit() {
        let mut pages = scan().limit(1).in_parts().pages();
        assert!(pages.took(part("k", &["a"], Some("b"))).is_some() && !pages.is_over);
        let page = pages.took(part("l", &["a"], Some("b"))).expect("a page");
        assert!(page.rows.is_empty() && pages.is_over);
    }

    #[test]
    fn limit_counts_rows_of_all_pages() {
        let mut pages = scan().limit(2_500).pages();
        assert_eq!(pages.scan.request().limit, SCAN_ROWS_MAX as u32);
        pages.took(page(1_000, Some("m")));
        pages.took(page(1_000, Some("s")));
        assert_eq!((pages.scan.request().limit, pages.is_over), (500, false));
        assert_eq!(pages.scan.request().continuation, Some("s".into()));
        pages.took(page(500, Some("z")));
        assert!(pages.is_over);
        assert!(scan().limit(0).pages().is_over);
    }

    #[test]
    fn empty_page_does_not_end_scan() {
        let mut pages = scan().page_rows(7).pages();
        pages.took(page(0, Some("m")));
        assert_eq!((pages.is_over, pages.scan.request().limit), (false, 7));
        pages.took(page(3, None));
        assert!(pages.is_over);
    }

    #[test]
    fn request_has_range_prefix_and_order() {
        let request = scan().range("a".."c").prefix("b").reverse().resume("bb").request();
        assert_eq!((&request.start[..], request.end.as_deref()), (&b"a"[..], Some(&b"c"[..])));
        assert_eq!((&request.prefix[..], request.reverse), (&b"b"[..], true));
        assert_eq!(request.continuation.as_deref(), Some(&b"bb"[..]));
        assert!(request.options.is_none(), "a strong read");
    }
}
