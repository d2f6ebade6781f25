//! Transactions: rows of any tables, read and changed atomically.

use std::collections::BTreeMap;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use api::columns as message;
use api::columns::read_options::Consistency;
use api::columns::resolve_transaction_response::Outcome;
use base::limits::{SCAN_ROWS_MAX, TRANSACTION_READS_MAX, TRANSACTION_WRITES_MAX};
use bytes::Bytes;

use crate::client_api::unexpected;
use crate::driver::Ended;
use crate::request::{ApiRequest, ApiResponse, session_stamp};
use crate::types::{Cell, KeyRange, Row};
use crate::{Client, Error, Version};

/// The first pause before a transaction is tried again. It doubles with each attempt, up to the second, and is drawn at
/// random from its upper half.
const BACKOFF: Duration = Duration::from_millis(1);
const BACKOFF_MAX: Duration = Duration::from_millis(100);

/// A transaction in progress. Reads see the transaction's own writes, and other rows as they are now; writes are kept
/// here until the commit, which fails if anything that was read has changed. Clones are the same transaction.
#[derive(Clone, Debug)]
pub struct Transaction {
    client: Client,
    owner: message::TransactionOwner,
    /// When the commit must be complete.
    until: Instant,
    state: Arc<Mutex<State>>,
}

/// What a transaction has read, and what it will change.
#[derive(Debug, Default)]
struct State {
    reads: Vec<message::TransactionRead>,
    writes: BTreeMap<(String, Bytes), RowWrite>,
}

/// The changes of one row.
#[derive(Clone, Debug, Default)]
struct RowWrite {
    /// Delete the row, with all its columns.
    deletes_row: bool,
    /// The columns, each with its new value; none deletes the column.
    columns: BTreeMap<Bytes, Option<Bytes>>,
}

/// A committed transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Committed<T> {
    /// What the transaction returned.
    pub value: T,
    /// The version of everything that it has put. [`Version::ABSENT`] if it changed nothing and needed no commit.
    pub timestamp: Version,
    /// The uncertainty of the clock of the node that committed it.
    pub uncertainty: Duration,
    /// How long the commit waited for the timestamp to pass, beyond the time that its replication took.
    pub commit_wait: Duration,
    /// How often the transaction was tried.
    pub attempts: u32,
}

/// Identifies a transaction whose commit has an unknown outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransactionId {
    table: String,
    key: Bytes,
    stamp: message::SessionStamp,
}

/// What became of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TransactionOutcome {
    /// It is committed, with this timestamp.
    Committed(Version),
    /// It will never be committed.
    Aborted,
    /// The cluster does not know it any more.
    Forgotten,
}

impl Client {
    /// Runs a transaction, and commits it. If another one interferes, it is run again, until the deadline of this client.
    /// An error of the function ends the transaction without any change, and is returned.
    ///
    /// ```no_run
    /// # async fn example(client: loggos_client::Client) -> Result<(), loggos_client::Error> {
    /// let done = client
    ///     .transaction(|tx| async move {
    ///         let row = tx.row("accounts", "alice").await?;
    ///         let balance = row.cell("balance").map_or(0, |cell| cell.value.len());
    ///         tx.put("accounts", "alice", "balance", vec![b'I'; balance + 1])?;
    ///         tx.put("audit", "alice", "paid", "yes")
    ///     })
    ///     .await?;
    /// println!("committed at {}", done.timestamp);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The function's error, or [`Error`]. [`Error::Aborted`] if the deadline passed before an attempt was committed;
    /// then nothing was written. [`Error::OutcomeUnknown`] if no node could tell the outcome in time.
    pub async fn transaction<T, F>(&self, mut run: impl FnMut(Transaction) -> F) -> Result<Committed<T>, Error>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let first = self.begin_transaction();
        let mut pause = BACKOFF;
        for attempts in 1.. {
            let transaction = Transaction { state: Arc::default(), ..first.clone() };
            let outcome = match run(transaction.clone()).await {
                Ok(value) => transaction.commit().await.map(|done| Committed {
                    value,
                    timestamp: done.timestamp,
                    uncertainty: done.uncertainty,
                    commit_wait: done.commit_wait,
                    attempts,
                }),
                Err(error) => {
                    transaction.rollback().await;
                    Err(error)
                }
            };
            match outcome {
                Err(Error::Aborted(_)) if Instant::now() + pause < first.until => {
                    tokio::time::sleep(jittered(pause)).await;
                    pause = (pause * 2).min(BACKOFF_MAX);
                }
                outcome => return outcome,
            }
        }
        unreachable!("the loop ends with an outcome")
    }

    /// Begins a transaction that the caller commits. It is not run again if it is aborted. Its deadline is that of this
    /// client, from now on.
    #[must_use]
    pub fn begin_transaction(&self) -> Transaction {
        let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let started_ns = i64::try_from(since_1970.as_nanos()).unwrap_or(i64::MAX);
        let owner = message::TransactionOwner { started_ns, id: random() };
        Transaction { client: self.clone(), owner, until: Instant::now() + self.deadline, state: Arc::default() }
    }

    /// What became of a transaction, which is aborted if it has no outcome yet. For a commit that ended with
    /// [`Error::OutcomeUnknown`].
    ///
    /// # Errors
    /// [`Error`].
    pub async fn resolve_transaction(&self, id: &TransactionId) -> Result<TransactionOutcome, Error> {
        let TransactionId { table, key, stamp } = id.clone();
        let request = message::ResolveTransactionRequest { table, key, stamp: Some(stamp) };
        match self.ask(ApiRequest::ResolveTransaction(request)).await? {
            ApiResponse::TransactionOutcome(answer) => Ok(match answer.outcome() {
                Outcome::Committed => TransactionOutcome::Committed(Version::from_nanos(answer.timestamp_ns)),
                Outcome::Aborted => TransactionOutcome::Aborted,
                Outcome::Forgotten | Outcome::Unspecified => TransactionOutcome::Forgotten,
            }),
            other => Err(unexpected(&other)),
        }
    }
}

impl Transaction {
    /// Reads a row. Columns that the transaction itself has put have the version [`Version::ABSENT`].
    ///
    /// # Errors
    /// [`Error`]. [`Error::Invalid`] also for a row that does not fit into one response (16 MiB), and if the transaction
    /// has read too much.
    pub async fn row(&self, table: impl Into<String>, key: impl Into<Bytes>) -> Result<Row, Error> {
        let (table, key) = (table.into(), key.into());
        let cells = self.read(&table, &key, Vec::new()).await?;
        let own = self.state().writes.get(&(table, key.clone())).cloned();
        Ok(overlaid(Row::new(key, cells), own.as_ref()))
    }

    /// Reads a column of a row; none if it does not exist.
    ///
    /// # Errors
    /// As [`Transaction::row`].
    pub async fn get(
        &self,
        table: impl Into<String>,
        key: impl Into<Bytes>,
        column: impl Into<Bytes>,
    ) -> Result<Option<Cell>, Error> {
        let (table, key, column) = (table.into(), key.into(), column.into());
        let own = self.state().writes.get(&(table.clone(), key.clone())).cloned().unwrap_or_default();
        match own.columns.get(&column) {
            Some(value) => return Ok(value.clone().map(|value| Cell::new(column, value, Version::ABSENT))),
            None if own.deletes_row => return Ok(None),
            None => {}
        }
        Ok(self.read(&table, &key, vec![column]).await?.pop())
    }

    /// Reads the rows in a range of keys, in order: all, or as many as the limit.
    ///
    /// # Errors
    /// As [`Transaction::row`].
    pub async fn scan(
        &self,
        table: impl Into<String>,
        keys: impl Into<KeyRange>,
        limit: Option<usize>,
    ) -> Result<Vec<Row>, Error> {
        let (table, KeyRange { mut start, end }) = (table.into(), keys.into());
        let limit = limit.unwrap_or(usize::MAX);
        let mut rows = Vec::new();
        while rows.len() < limit && end.as_ref().is_none_or(|end| start < *end) {
            let page_rows = (limit - rows.len()).min(SCAN_ROWS_MAX);
            let request = message::ScanRequest {
                table: table.clone(),
                start: start.clone(),
                end: end.clone(),
                limit: u32::try_from(page_rows).unwrap_or(u32::MAX),
                options: Some(self.options()),
                ..Default::default()
            };
            let message::ScanResponse { rows: page, continuation, as_of, .. } =
                match self.ask(ApiRequest::Scan(request)).await?.outcome? {
                    ApiResponse::Rows(response) => response,
                    other => return Err(unexpected(&other)),
                };
            let through = continuation.clone().or_else(|| end.clone());
            self.has_read(&table, start.clone(), through.clone(), as_of)?;
            let page = page.into_iter().map(Row::from);
            rows.extend(self.merged(&table, &start, through.as_ref(), page));
            match continuation {
                Some(next) => start = next,
                None => break,
            }
        }
        rows.truncate(limit);
        Ok(rows)
    }

    /// Puts a column of a row when the transaction is committed.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the transaction has deleted the row, or changes too many rows.
    pub fn put(
        &self,
        table: impl Into<String>,
        key: impl Into<Bytes>,
        column: impl Into<Bytes>,
        value: impl Into<Bytes>,
    ) -> Result<(), Error> {
        self.change(table.into(), key.into(), column.into(), Some(value.into()))
    }

    /// Deletes a column of a row when the transaction is committed, whether it exists or not.
    ///
    /// # Errors
    /// As [`Transaction::put`].
    pub fn delete(
        &self,
        table: impl Into<String>,
        key: impl Into<Bytes>,
        column: impl Into<Bytes>,
    ) -> Result<(), Error> {
        self.change(table.into(), key.into(), column.into(), None)
    }

    /// Deletes a row, with all its columns, when the transaction is committed.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the transaction changes too many rows.
    pub fn delete_row(&self, table: impl Into<String>, key: impl Into<Bytes>) -> Result<(), Error> {
        let mut state = self.state();
        state.check_writes()?;
        let row = RowWrite { deletes_row: true, columns: BTreeMap::new() };
        state.writes.insert((table.into(), key.into()), row);
        Ok(())
    }

    /// Whether nothing was changed so far.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.state().writes.is_empty()
    }

    /// Commits the transaction: all changes, or none.
    ///
    /// # Errors
    /// [`Error::Aborted`] if something that it has read was changed meanwhile, or an older transaction has priority.
    /// [`Error::OutcomeUnknown`] if no node could tell the outcome by the deadline. Otherwise [`Error`]. After any error
    /// but an unknown outcome, nothing was written.
    pub async fn commit(self) -> Result<Committed<()>, Error> {
        let State { reads, writes } = std::mem::take(&mut *self.state());
        let nothing = Committed {
            value: (),
            timestamp: Version::ABSENT,
            uncertainty: Duration::ZERO,
            commit_wait: Duration::ZERO,
            attempts: 1,
        };
        // A single strong read is as of one moment between its begin and its end: there is nothing to validate.
        if writes.is_empty() && reads.len() <= 1 {
            self.unlock(&reads).await;
            return Ok(nothing);
        }
        let first_write = writes.keys().next().cloned();
        let first_read = || reads.first().map(|read| (read.table.clone(), read.start.clone()));
        let (table, key) = first_write.or_else(first_read).unwrap_or_default();
        let request = message::CommitTransactionRequest {
            table: table.clone(),
            key: key.clone(),
            stamp: None,
            owner: Some(self.owner),
            reads,
            writes: writes.into_iter().map(|((table, key), row)| row.into_message(table, key)).collect(),
        };
        let Ended { outcome, stamp, .. } = self.ask(ApiRequest::CommitTransaction(request)).await?;
        match outcome {
            Ok(ApiResponse::TransactionCommitted(answer)) => Ok(Committed {
                timestamp: Version::from_nanos(answer.timestamp_ns),
                uncertainty: Duration::from_nanos(answer.uncertainty_ns),
                commit_wait: Duration::from_nanos(answer.commit_wait_ns),
                ..nothing
            }),
            Ok(other) => Err(Error::OutcomeUnknown(format!("unexpected response: {other:?}"))),
            Err(Error::OutcomeUnknown(reason)) => {
                let Some(stamp) = stamp else { return Err(Error::OutcomeUnknown(reason)) };
                let id = TransactionId { table, key, stamp: session_stamp(stamp) };
                match self.client.resolve_transaction(&id).await {
                    Ok(TransactionOutcome::Committed(timestamp)) => Ok(Committed { timestamp, ..nothing }),
                    Ok(TransactionOutcome::Aborted) => Err(Error::Aborted(reason)),
                    Ok(TransactionOutcome::Forgotten) | Err(_) => Err(Error::OutcomeUnknown(reason)),
                }
            }
            Err(error) => Err(error),
        }
    }

    /// Ends the transaction without any change, and gives up its read locks, so that others need not wait for them. They
    /// also expire by themselves, after 10 s without use.
    pub async fn rollback(self) {
        let State { reads, .. } = std::mem::take(&mut *self.state());
        self.unlock(&reads).await;
    }

    async fn unlock(&self, reads: &[message::TransactionRead]) {
        /// Further locks expire.
        const KEYS_MAX: usize = 32;
        for read in reads.iter().take(KEYS_MAX) {
            let (table, key) = (read.table.clone(), read.start.clone());
            let request = message::UnlockTransactionRequest { table, key, owner: Some(self.owner) };
            // Nothing depends on it.
            if !matches!(self.ask(ApiRequest::UnlockTransaction(request)).await, Ok(Ended { outcome: Ok(_), .. })) {
                return;
            }
        }
    }

    async fn read(&self, table: &str, key: &Bytes, columns: Vec<Bytes>) -> Result<Vec<Cell>, Error> {
        let request = message::GetRequest {
            table: table.to_owned(),
            key: key.clone(),
            columns,
            options: Some(self.options()),
            ..Default::default()
        };
        match self.ask(ApiRequest::Get(request)).await?.outcome? {
            ApiResponse::Row(message::GetResponse { cells, as_of, .. }) => {
                let after = [&key[..], &[0]].concat().into();
                self.has_read(table, key.clone(), Some(after), as_of)?;
                Ok(cells.into_iter().map(Into::into).collect())
            }
            other => Err(unexpected(&other)),
        }
    }

    /// Notes what a response has shown.
    fn has_read(
        &self,
        table: &str,
        start: Bytes,
        end: Option<Bytes>,
        as_of: Option<message::AsOf>,
    ) -> Result<(), Error> {
        let Some(seen_ns) = as_of.map(|as_of| as_of.timestamp_ns) else {
            return Err(Error::Unavailable("the response does not state what was read".to_owned()));
        };
        let reads = &mut self.state().reads;
        if let Some(last) = reads.last_mut()
            && (&*last.table, last.seen_ns, last.end.as_ref()) == (table, seen_ns, Some(&start))
        {
            last.end = end;
            return Ok(());
        }
        if reads.len() >= TRANSACTION_READS_MAX {
            return Err(Error::Invalid(format!(
                "the transaction has read more than {TRANSACTION_READS_MAX} rows or pages"
            )));
        }
        reads.push(message::TransactionRead { table: table.to_owned(), start, end, seen_ns });
        Ok(())
    }

    /// The rows of a page that covers these keys, with the transaction's own changes.
    fn merged(
        &self,
        table: &str,
        start: &Bytes,
        end: Option<&Bytes>,
        page: impl Iterator<Item = Row>,
    ) -> impl Iterator<Item = Row> {
        let mut rows: BTreeMap<Bytes, Row> = page.map(|row| (row.key.clone(), row)).collect();
        let state = self.state();
        let own = state.writes.range((table.to_owned(), start.clone())..);
        let own = own.take_while(|((of, key), _)| of == table && end.is_none_or(|end| key < end));
        for ((_, key), write) in own {
            let row = rows.remove(key).unwrap_or_else(|| Row::new(key.clone(), Vec::new()));
            let row = overlaid(row, Some(write));
            if !row.cells.is_empty() {
                rows.insert(key.clone(), row);
            }
        }
        rows.into_values()
    }

    fn change(&self, table: String, key: Bytes, column: Bytes, value: Option<Bytes>) -> Result<(), Error> {
        let mut state = self.state();
        state.check_writes()?;
        let row = state.writes.entry((table, key)).or_default();
        if row.deletes_row {
            return Err(Error::Invalid("a transaction cannot change columns of a row that it has deleted".to_owned()));
        }
        row.columns.insert(column, value);
        Ok(())
    }

    fn options(&self) -> message::ReadOptions {
        message::ReadOptions { consistency: Some(Consistency::Transaction(self.owner)) }
    }

    /// Sends a request, with the rest of the transaction's time.
    async fn ask(&self, request: ApiRequest) -> Result<Ended, Error> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Error::Aborted("the transaction's deadline has passed".to_owned()));
        }
        Ok(self.client.driver.call(request, left).await)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn check_writes(&self) -> Result<(), Error> {
        if self.writes.len() < TRANSACTION_WRITES_MAX {
            return Ok(());
        }
        Err(Error::Invalid(format!("the transaction changes more than {TRANSACTION_WRITES_MAX} rows")))
    }
}

impl RowWrite {
    fn into_message(self, table: String, key: Bytes) -> message::TransactionWrite {
        let mutation = |(column, value)| message::Mutation { column, value, condition: None };
        let mutations = self.columns.into_iter().map(mutation).collect();
        message::TransactionWrite { table, key, mutations, delete_row: self.deletes_row }
    }
}

/// A row with changes of the transaction that reads it.
fn overlaid(mut row: Row, own: Option<&RowWrite>) -> Row {
    let Some(own) = own else { return row };
    if own.deletes_row {
        row.cells.clear();
    }
    row.cells.retain(|cell| !own.columns.contains_key(&cell.column));
    let values = own.columns.iter().filter_map(|(column, value)| Some((column, value.clone()?)));
    row.cells.extend(values.map(|(column, value)| Cell::new(column.clone(), value, Version::ABSENT)));
    row.cells.sort_by(|one, other| one.column.cmp(&other.column));
    row
}

fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// A random time in the upper half of a pause.
fn jittered(pause: Duration) -> Duration {
    let half = pause / 2;
    let nanos = u64::try_from(half.as_nanos()).unwrap_or(u64::MAX).max(1);
    half + Duration::from_nanos(random() % nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn transaction() -> Transaction {
        Client::connect(["127.0.0.1:1"]).expect("an address").begin_transaction()
    }

    fn as_of(timestamp_ns: i64) -> Option<message::AsOf> {
        Some(message::AsOf { timestamp_ns, ..Default::default() })
    }

    fn shown(rows: impl Iterator<Item = Row>) -> Vec<(Bytes, Vec<Bytes>)> {
        rows.map(|row| (row.key, row.cells.into_iter().map(|cell| cell.value).collect())).collect()
    }

    #[test]
    fn transactions_are_send() {
        fn spawnable<T: Send>(_: &T) {}
        let client = Client::connect(["127.0.0.1:1"]).expect("an address");
        spawnable(&client.transaction(|tx| async move { tx.put("t", "k", "c", "v") }));
        spawnable(&transaction().commit());
    }

    #[test]
    fn reads_show_own_writes() {
        let tx = transaction();
        tx.put("t", "b", "c", "new").unwrap();
        tx.put("t", "c", "c", "own").unwrap();
        tx.put("u", "b", "c", "other table").unwrap();
        tx.delete_row("t", "d").unwrap();
        tx.put("t", "z", "c", "beyond").unwrap();
        let row = |key: &'static str| Row::new(key, vec![Cell::new("c", "old", Version::from_nanos(1))]);
        let page = ["a", "b", "d"].map(row).into_iter();
        let rows = shown(tx.merged("t", &"a".into(), Some(&"x".into()), page));
        let expected = [("a", "old"), ("b", "new"), ("c", "own")].map(|(key, value)| (key.into(), vec![value.into()]));
        assert_eq!(rows, expected);
        assert!(tx.put("t", "d", "c", "v").is_err(), "the row is deleted");
    }

    #[test]
    fn pages_of_one_state_are_one_read() {
        let tx = transaction();
        tx.has_read("t", "a".into(), Some("c".into()), as_of(5)).unwrap();
        tx.has_read("t", "c".into(), Some("e".into()), as_of(5)).unwrap();
        tx.has_read("t", "e".into(), None, as_of(6)).unwrap();
        tx.has_read("u", "e".into(), None, as_of(6)).unwrap();
        let ends: Vec<_> = tx.state().reads.iter().map(|read| (read.start.clone(), read.end.clone())).collect();
        assert_eq!(ends, [("a".into(), Some("e".into())), ("e".into(), None), ("e".into(), None)]);
        assert!(tx.has_read("t", "a".into(), None, None).is_err());
    }
}
