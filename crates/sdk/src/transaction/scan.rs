//! Scans of transactions: pages of strong reads, each of which the transaction notes as what it has read.

use std::vec;

use api::columns as message;
use base::limits::SCAN_ROWS_MAX;
use bytes::Bytes;

use super::Transaction;
use crate::Error;
use crate::client_api::unexpected;
use crate::request::{ApiRequest, ApiResponse};
use crate::types::{KeyRange, Row};

/// The rows that a transaction reads, and their order. [`TransactionScan::rows`] and [`TransactionScan::all`] begin the
/// scan. What it has passed, other transactions cannot change without a conflict: also keys that have no row.
#[derive(Clone, Debug)]
#[must_use = "a scan is begun by `rows` or `all`"]
pub struct TransactionScan {
    transaction: Transaction,
    table: String,
    /// What remains to be read.
    keys: KeyRange,
    reverse: bool,
    limit: Option<u64>,
    page_rows: u32,
}

/// The rows of a [`TransactionScan`]. It reads the next page when the rows of the last one were taken.
#[derive(Debug)]
#[must_use = "it reads only when it is asked for rows"]
pub struct TransactionRows {
    scan: TransactionScan,
    rows: vec::IntoIter<Row>,
    is_over: bool,
}

impl TransactionScan {
    pub(super) fn new(transaction: Transaction, table: String) -> Self {
        Self { transaction, table, keys: KeyRange::default(), reverse: false, limit: None, page_rows: 0 }
    }

    /// Only keys in this range, such as `"a".."c"` or `"a"..`.
    pub fn range(mut self, keys: impl Into<KeyRange>) -> Self {
        self.keys = keys.into();
        self
    }

    /// Only keys with this prefix. It replaces [`TransactionScan::range`].
    pub fn prefix(mut self, prefix: impl Into<Bytes>) -> Self {
        let start = prefix.into();
        self.keys = KeyRange { end: after_prefix(&start), start };
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

    /// The rows, one after the other. It holds at most one page in memory.
    pub fn rows(self) -> TransactionRows {
        TransactionRows { is_over: self.limit == Some(0), scan: self, rows: Vec::new().into_iter() }
    }

    /// All rows, in memory.
    ///
    /// # Errors
    /// As [`TransactionRows::next`].
    pub async fn all(self) -> Result<Vec<Row>, Error> {
        let (mut pages, mut all) = (self.rows(), Vec::new());
        while let Some(page) = pages.next_page().await {
            all.append(&mut page?);
        }
        Ok(all)
    }

    /// The request for the next page.
    fn request(&self) -> message::ScanRequest {
        let page_rows = if self.page_rows == 0 { SCAN_ROWS_MAX as u64 } else { u64::from(self.page_rows) };
        let rows = self.limit.map_or(page_rows, |limit| limit.min(page_rows));
        message::ScanRequest {
            table: self.table.clone(),
            start: self.keys.start.clone(),
            end: self.keys.end.clone(),
            reverse: self.reverse,
            limit: u32::try_from(rows).unwrap_or(u32::MAX),
            options: Some(self.transaction.options()),
            ..Default::default()
        }
    }

    /// The keys that a page shows, of those that remain: as far as its continuation, or to the end, but only within the
    /// range that answered. Removes them from those that remain. Returns them, and whether none remain.
    fn take(&mut self, continuation: Option<Bytes>, as_of: &message::AsOf) -> (KeyRange, bool) {
        let KeyRange { start, end } = &mut self.keys;
        if self.reverse {
            let from = continuation.map_or_else(|| start.clone(), |next| next.max(start.clone()));
            let from = from.max(as_of.start.clone());
            let shown = KeyRange { start: from.clone(), end: end.replace(from.clone()) };
            (shown, from == *start)
        } else {
            let to = [continuation.as_ref(), end.as_ref(), as_of.end.as_ref()].into_iter().flatten().min().cloned();
            let is_over = to == *end;
            let shown = KeyRange { start: start.clone(), end: to.clone() };
            if let Some(to) = to {
                *start = to;
            }
            (shown, is_over)
        }
    }
}

impl TransactionRows {
    /// The next row; none after the end.
    ///
    /// # Errors
    /// As [`Transaction::row`]. There are no further rows after an error.
    pub async fn next(&mut self) -> Option<Result<Row, Error>> {
        loop {
            if let Some(row) = self.rows.next() {
                return Some(Ok(row));
            }
            match self.next_page().await? {
                Ok(rows) => self.rows = rows.into_iter(),
                Err(error) => return Some(Err(error)),
            }
        }
    }

    /// The rows of the next page, perhaps none; none after the end.
    async fn next_page(&mut self) -> Option<Result<Vec<Row>, Error>> {
        let is_empty = self.scan.keys.end.as_ref().is_some_and(|end| *end <= self.scan.keys.start);
        if self.is_over || is_empty {
            return None;
        }
        let page = self.page().await;
        self.is_over |= page.is_err();
        Some(page)
    }

    async fn page(&mut self) -> Result<Vec<Row>, Error> {
        let scan = &mut self.scan;
        let answer = scan.transaction.ask(ApiRequest::Scan(scan.request())).await?;
        let message::ScanResponse { rows, continuation, as_of, .. } = match answer.outcome? {
            ApiResponse::Rows(response) => response,
            other => return Err(unexpected(&other)),
        };
        let as_of = as_of.ok_or_else(super::unstated)?;
        let (shown, is_over) = scan.take(continuation, &as_of);
        scan.transaction.has_read(&scan.table, &shown, &as_of)?;
        self.is_over = is_over;
        let mut page: Vec<Row> = rows.into_iter().map(Row::from).collect();
        if scan.reverse {
            page.reverse();
        }
        let mut page = scan.transaction.state().merged(&scan.table, &shown.start, shown.end.as_ref(), page);
        if scan.reverse {
            page.reverse();
        }
        if let Some(limit) = &mut scan.limit {
            page.truncate(usize::try_from(*limit).unwrap_or(usize::MAX));
            *limit -= page.len() as u64;
            self.is_over |= *limit == 0;
        }
        Ok(page)
    }
}

/// The least key above all keys with the prefix; none if there is no such key.
fn after_prefix(prefix: &[u8]) -> Option<Bytes> {
    let last = prefix.iter().rposition(|byte| *byte != u8::MAX)?;
    let mut next = prefix[..=last].to_vec();
    next[last] += 1;
    Some(next.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Client;

    fn scan() -> TransactionScan {
        Client::connect(["127.0.0.1:1"]).expect("an address").begin_transaction().scan("t")
    }

    fn range(start: &'static str, end: Option<&'static str>) -> KeyRange {
        KeyRange { start: start.into(), end: end.map(Into::into) }
    }

    fn of_range(start: &'static str, end: Option<&'static str>) -> message::AsOf {
        message::AsOf { start: start.into(), end: end.map(Into::into), ..Default::default() }
    }

    #[test]
    fn page_shows_keys_to_its_continuation() {
        let mut scan = scan().range("b".."x");
        assert_eq!(scan.take(Some("d".into()), &of_range("", Some("m"))), (range("b", Some("d")), false));
        assert_eq!(scan.request().start, "d");
        assert_eq!(scan.take(Some("m".into()), &of_range("", Some("m"))), (range("d", Some("m")), false));
        assert_eq!(scan.take(None, &of_range("m", None)), (range("m", Some("x")), true));
    }

    #[test]
    fn reverse_page_shows_keys_from_its_continuation() {
        let mut scan = scan().range("b"..).reverse();
        assert_eq!(scan.take(Some("s".into()), &of_range("m", None)), (range("s", None), false));
        assert_eq!(scan.request().end, Some("s".into()));
        assert_eq!(scan.take(Some("m".into()), &of_range("m", None)), (range("m", Some("s")), false));
        assert_eq!(scan.take(None, &of_range("", Some("m"))), (range("b", Some("m")), true));
    }

    /// A page without a continuation says nothing about other ranges.
    #[test]
    fn page_shows_keys_of_one_range() {
        let mut forwards = scan();
        assert_eq!(forwards.take(None, &of_range("", Some("m"))), (range("", Some("m")), false));
        assert_eq!(forwards.take(None, &of_range("m", None)), (range("m", None), true));
        let mut backwards = scan().reverse();
        assert_eq!(backwards.take(None, &of_range("m", None)), (range("m", None), false));
        assert_eq!(backwards.take(None, &of_range("", Some("m"))), (range("", Some("m")), true));
    }

    #[test]
    fn prefix_is_a_range() {
        assert_eq!(scan().prefix("ab").keys, range("ab", Some("ac")));
        assert_eq!(scan().prefix("").keys, range("", None));
        let last = scan().prefix(vec![b'a', 0xff]).keys;
        assert_eq!(last.end, Some("b".into()));
        assert_eq!(scan().prefix(vec![0xff]).keys.end, None);
    }
}
