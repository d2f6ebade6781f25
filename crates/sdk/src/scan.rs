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
use crate::{Client, Error, Reads};

/// The rows to read, and their order. [`Scan::rows`] and [`Scan::pages`] begin the scan.
#[derive(Clone, Debug)]
#[must_use = "a scan is begun by `rows` or `pages`"]
pub struct Scan {
    table: Table,
    keys: KeyRange,
    prefix: Bytes,
    reverse: bool,
    limit: Option<u64>,
    page_rows: u32,
    consistency: Reads,
    continuation: Option<Bytes>,
}

impl Scan {
    pub(crate) fn new(table: Table) -> Self {
        let (keys, prefix, consistency) = (KeyRange::default(), Bytes::new(), Reads::default());
        Self { table, keys, prefix, reverse: false, limit: None, page_rows: 0, consistency, continuation: None }
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

    /// The consistency level. The default is [`Reads::Strong`]. Each page is a separate read: rows of one page are of
    /// one state, and later pages may be of a later state. [`Reads::At`] reads all pages as of one timestamp.
    pub fn consistency(mut self, consistency: Reads) -> Self {
        self.consistency = consistency;
        self
    }

    /// Continues after a page: with its unchanged [continuation](Page::continuation), in a scan with the same keys and
    /// order, possibly in another process.
    pub fn resume(mut self, continuation: impl Into<Bytes>) -> Self {
        self.continuation = Some(continuation.into());
        self
    }

    /// The rows, as a stream. It holds at most one page in memory.
    pub fn rows(self) -> Rows {
        Rows { pages: self.pages(), rows: Vec::new().into_iter() }
    }

    /// The rows in pages, as a stream, each page with the state that it was read from.
    pub fn pages(self) -> Pages {
        let is_over = self.limit == Some(0);
        Pages { scan: self, fetch: None, is_over }
    }

    /// The request for the next page.
    fn request(&self) -> message::ScanRequest {
        let Self { table, keys, prefix, reverse, limit, page_rows, consistency, continuation } = self;
        let page_rows = if *page_rows == 0 { SCAN_ROWS_MAX as u64 } else { u64::from(*page_rows) };
        let rows = limit.map_or(page_rows, |limit| limit.min(page_rows));
        message::ScanRequest {
            table: table.name.to_string(),
            start: keys.start.clone(),
            end: keys.end.clone(),
            prefix: prefix.clone(),
            reverse: *reverse,
            limit: u32::try_from(rows).unwrap_or(u32::MAX),
            continuation: continuation.clone(),
            options: consistency.options(),
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
}

type Fetch = Pin<Box<dyn Future<Output = Result<Page, Error>> + Send>>;

/// A stream of the pages of a [`Scan`]. It reads the next page when it is polled. It ends after an error.
#[must_use = "a stream reads only when it is polled"]
pub struct Pages {
    /// What remains to be read.
    scan: Scan,
    fetch: Option<Fetch>,
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

    fn took(&mut self, page: &Page) {
        let left = self.scan.limit.map(|limit| limit.saturating_sub(page.rows.len() as u64));
        self.is_over = left == Some(0) || page.continuation.is_none();
        self.scan.limit = left;
        self.scan.continuation.clone_from(&page.continuation);
    }
}

impl Stream for Pages {
    type Item = Result<Page, Error>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        if this.is_over {
            return Poll::Ready(None);
        }
        let scan = &this.scan;
        let fetch = this.fetch.get_or_insert_with(|| Box::pin(page(scan.table.client.clone(), scan.request())));
        let Poll::Ready(outcome) = fetch.as_mut().poll(context) else { return Poll::Pending };
        this.fetch = None;
        match &outcome {
            Ok(page) => this.took(page),
            Err(_) => this.is_over = true,
        }
        Poll::Ready(Some(outcome))
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
        ApiResponse::Rows(message::ScanResponse { rows, continuation, as_of }) => {
            let rows = rows.into_iter().map(Into::into).collect();
            Ok(Page { rows, continuation, as_of: as_of.map(Into::into) })
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
        Page { rows, continuation: continuation.map(Into::into), as_of: None }
    }

    #[test]
    fn limit_counts_rows_of_all_pages() {
        let mut pages = scan().limit(2_500).pages();
        assert_eq!(pages.scan.request().limit, SCAN_ROWS_MAX as u32);
        pages.took(&page(1_000, Some("m")));
        pages.took(&page(1_000, Some("s")));
        assert_eq!((pages.scan.request().limit, pages.is_over), (500, false));
        assert_eq!(pages.scan.request().continuation, Some("s".into()));
        pages.took(&page(500, Some("z")));
        assert!(pages.is_over);
        assert!(scan().limit(0).pages().is_over);
    }

    #[test]
    fn empty_page_does_not_end_scan() {
        let mut pages = scan().page_rows(7).pages();
        pages.took(&page(0, Some("m")));
        assert_eq!((pages.is_over, pages.scan.request().limit), (false, 7));
        pages.took(&page(3, None));
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
