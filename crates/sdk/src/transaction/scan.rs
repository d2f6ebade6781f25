//! Scans of transactions: pages of strong reads, each of which is added to the transaction's read set.

use std::vec;

use api::columns as message;
use base::KeyRange;
use bytes::Bytes;

use super::Transaction;
use crate::Error;
use crate::client_api::unexpected;
use crate::request::{ApiRequest, ApiResponse};
use crate::scan::Scan;
use crate::types::Row;

/// The rows that a transaction reads, and their order. [`TransactionScan::rows`] and [`TransactionScan::all`] begin the
/// scan. A change of any key that the scan has passed is a conflict, also if the key had no row.
pub type TransactionScan = Scan<TransactionSource>;

/// The source of a [`TransactionScan`]: a table, read by a transaction.
#[derive(Clone, Debug)]
pub struct TransactionSource {
    pub(super) transaction: Transaction,
    pub(super) table: String,
}

/// The rows of a [`TransactionScan`]. It reads the next page when the rows of the last one were taken.
#[derive(Debug)]
#[must_use = "it reads only when it is asked for rows"]
pub struct TransactionRows {
    scan: TransactionScan,
    /// The remaining keys; none after the end, or after an error.
    keys: Option<KeyRange>,
    rows: vec::IntoIter<Row>,
}

impl TransactionScan {
    /// The rows, one after the other. It holds at most one page in memory.
    pub fn rows(self) -> TransactionRows {
        let range = KeyRange { start: self.keys.start.clone(), end: self.keys.end.clone() };
        let keys = range.intersection(&KeyRange::of_prefix(&self.prefix)).filter(|_| self.limit != Some(0));
        TransactionRows { scan: self, keys, rows: Vec::new().into_iter() }
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
}

/// Divides the remaining keys by a page: into those that it shows, which end at its continuation, and within the range
/// that responded; and those that remain after it, if any.
fn divide(
    keys: KeyRange,
    reverse: bool,
    continuation: Option<Bytes>,
    as_of: &message::AsOf,
) -> (KeyRange, Option<KeyRange>) {
    let KeyRange { start, end } = keys;
    if reverse {
        let from = continuation.unwrap_or_default().max(as_of.start.clone()).max(start.clone());
        let rest = (from > start).then(|| KeyRange { start, end: Some(from.clone()) });
        (KeyRange { start: from, end }, rest)
    } else {
        let to = [&continuation, &end, &as_of.end].into_iter().flatten().min().cloned();
        let rest = to.clone().filter(|to| Some(to) != end.as_ref()).map(|to| KeyRange { start: to, end });
        (KeyRange { start, end: to }, rest)
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
        let keys = self.keys.clone()?;
        let page = self.page(keys).await;
        if page.is_err() {
            self.keys = None;
        }
        Some(page)
    }

    async fn page(&mut self, keys: KeyRange) -> Result<Vec<Row>, Error> {
        let TransactionSource { transaction, table } = &self.scan.source;
        let request = message::ScanRequest {
            start: keys.start.clone(),
            end: keys.end.clone(),
            prefix: Bytes::new(),
            options: Some(transaction.options()),
            ..self.scan.page_request(table)
        };
        // A reverse page may begin in another range. Without an answer, its locks there expire.
        let place = (table.clone(), keys.start.clone());
        let message::ScanResponse { rows, continuation, as_of, .. } =
            match transaction.ask(ApiRequest::Scan(request), place, false).await? {
                ApiResponse::Rows(response) => response,
                other => return Err(unexpected(&other)),
            };
        let as_of = as_of.ok_or_else(super::unstated)?;
        let (shown, rest) = divide(keys, self.scan.reverse, continuation, &as_of);
        transaction.has_read(table, &shown, &as_of)?;
        let mut page: Vec<Row> = rows.into_iter().map(Row::from).collect();
        if self.scan.reverse {
            page.reverse();
        }
        let mut page = transaction.state().merged(table, &shown.start, shown.end.as_ref(), page);
        if self.scan.reverse {
            page.reverse();
        }
        if let Some(limit) = &mut self.scan.limit {
            page.truncate(usize::try_from(*limit).unwrap_or(usize::MAX));
            *limit -= page.len() as u64;
        }
        self.keys = rest.filter(|_| self.scan.limit != Some(0));
        Ok(page)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Client;

    fn range(start: &'static str, end: Option<&'static str>) -> KeyRange {
        KeyRange { start: start.into(), end: end.map(Into::into) }
    }

    fn of_range(start: &'static str, end: Option<&'static str>) -> message::AsOf {
        message::AsOf { start: start.into(), end: end.map(Into::into), ..Default::default() }
    }

    #[test]
    fn page_shows_keys_to_its_continuation() {
        let page = |start, next: Option<&'static str>, as_of| {
            divide(range(start, Some("x")), false, next.map(Into::into), &as_of)
        };
        let rest = |start| Some(range(start, Some("x")));
        assert_eq!(page("b", Some("d"), of_range("", Some("m"))), (range("b", Some("d")), rest("d")));
        assert_eq!(page("d", Some("m"), of_range("", Some("m"))), (range("d", Some("m")), rest("m")));
        assert_eq!(page("m", None, of_range("m", None)), (range("m", Some("x")), None));
    }

    #[test]
    fn reverse_page_shows_keys_from_its_continuation() {
        let page = |end, next: Option<&'static str>, as_of| divide(range("b", end), true, next.map(Into::into), &as_of);
        let rest = |end| Some(range("b", Some(end)));
        assert_eq!(page(None, Some("s"), of_range("m", None)), (range("s", None), rest("s")));
        assert_eq!(page(Some("s"), Some("m"), of_range("m", None)), (range("m", Some("s")), rest("m")));
        assert_eq!(page(Some("m"), None, of_range("", Some("m"))), (range("b", Some("m")), None));
    }

    /// A page without a continuation says nothing about other ranges.
    #[test]
    fn page_shows_keys_of_one_range() {
        let page = |keys, reverse, as_of| divide(keys, reverse, None, &as_of);
        let (low, high) = (range("", Some("m")), range("m", None));
        assert_eq!(page(KeyRange::all(), false, of_range("", Some("m"))), (low.clone(), Some(high.clone())));
        assert_eq!(page(high.clone(), false, of_range("m", None)), (high.clone(), None));
        assert_eq!(page(KeyRange::all(), true, of_range("m", None)), (high, Some(low.clone())));
        assert_eq!(page(low.clone(), true, of_range("", Some("m"))), (low, None));
    }

    #[test]
    fn prefix_restricts_range() {
        let scan = || Client::connect(["127.0.0.1:1"]).expect("an address").begin_transaction().scan("t");
        assert_eq!(scan().prefix("ab").rows().keys, Some(range("ab", Some("ac"))));
        assert_eq!(scan().prefix("ab").range("abc"..).rows().keys, Some(range("abc", Some("ac"))));
        assert_eq!(scan().prefix("ab").range("b"..).rows().keys, None);
        assert_eq!(scan().limit(0).rows().keys, None);
    }
}
