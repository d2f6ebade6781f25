//! Transactions: rows of any tables, read and changed atomically.

mod scan;
mod state;

use std::collections::BTreeSet;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use api::columns as message;
use api::columns::read_options::Consistency;
use api::columns::resolve_transaction_response::Outcome;
use base::{KeyRange, UNREACHABLE};
use bytes::Bytes;
use client::TransactionId;
use tokio::task::JoinSet;

pub use self::scan::{TransactionRows, TransactionScan};
use self::state::State;
use crate::client_api::unexpected;
use crate::driver::Ended;
use crate::request::{ApiRequest, ApiResponse, session_stamp};
use crate::types::{Cell, Row};
use crate::{Client, Error, Version};

/// The first and the longest pause before a retry of a transaction. It doubles with each attempt, and is a random time
/// in its upper half.
const BACKOFF: Duration = Duration::from_millis(1);
const BACKOFF_MAX: Duration = Duration::from_millis(100);
/// The share of the remaining time of a commit that is reserved for a query of its outcome, if it is unknown ...
const RESOLVE_SHARE: u32 = 5;
/// ... at most this time.
const RESOLVE_MAX: Duration = Duration::from_secs(2);
/// Timeout of the release of read locks, which also expire.
const UNLOCK_MAX: Duration = Duration::from_secs(1);
/// A read for update that takes this time may have been sent several times: another copy may lock the row after the
/// transaction has ended. It is at most the time after which a client sends a request again.
const SENT_AGAIN: Duration = Duration::from_millis(400);
/// Why a transaction is aborted that reads a row again.
const CHANGED: &str = "another transaction has changed a row that this one has read";
/// Maximum ranges in which read locks are released. Locks in further ranges expire.
const UNLOCKED_MAX: usize = 32;

/// A transaction in progress. Reads return the transaction's own writes, and the current state of other rows. Writes
/// are buffered until the commit, which fails if anything that was read has changed. Clones share the transaction.
///
/// Until the commit succeeds, results of reads may be of different moments. Act on them only afterwards.
#[derive(Clone, Debug)]
pub struct Transaction {
    client: Client,
    owner: message::TransactionOwner,
    /// The deadline of the commit.
    until: Instant,
    /// The timeout of a single call.
    call_max: Duration,
    state: Arc<Mutex<State>>,
}

/// A savepoint: the writes of a transaction at one point, to which [`Transaction::restore`] returns.
#[derive(Clone, Debug)]
pub struct Savepoint(client::PendingWrites);

/// A committed transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Committed<T> {
    /// The result of the transaction's function.
    pub value: T,
    /// The commit timestamp: the version of all columns that it has put. [`Version::ABSENT`] if it changed nothing and
    /// needed no commit.
    pub timestamp: Version,
    /// The uncertainty of the clock of the node that committed it. Zero if the outcome was first unknown.
    pub uncertainty: Duration,
    /// The commit wait: the time that the commit waited for its timestamp to pass, after its replication.
    pub commit_wait: Duration,
    /// The number of attempts.
    pub attempts: u32,
}

/// The outcome of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TransactionOutcome {
    /// It is committed, with this timestamp.
    Committed(Version),
    /// It will never be committed.
    Aborted,
    /// The cluster no longer stores the outcome: it does so for 10 minutes after the last use of the client's session.
    Forgotten,
}

impl Client {
    /// Runs a transaction, and commits it. If another one interferes, it is retried until the deadline of this client.
    /// An error of the function ends the transaction without changes, and is returned, except that [`Error::Aborted`]
    /// also causes a retry.
    ///
    /// ```no_run
    /// # async fn example(client: loggos_client::Client) -> Result<(), loggos_client::Error> {
    /// let done = client
    ///     .transaction(|tx| async move {
    ///         let balance = tx.get("accounts", "alice", "balance").await?;
    ///         let balance: i64 = balance.map_or(0, |cell| String::from_utf8_lossy(&cell.value).parse().unwrap_or(0));
    ///         tx.put("accounts", "alice", "balance", (balance - 10).to_string())?;
    ///         tx.put("payments", "alice-7", "amount", "10")?;
    ///         Ok(balance - 10)
    ///     })
    ///     .await?;
    /// println!("committed at {}, after {} attempts: {}", done.timestamp, done.attempts, done.value);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The function's error, or [`Error`]. [`Error::Aborted`] if the deadline passed before an attempt was committed;
    /// then nothing was written. [`Error::CommitUnknown`] if no node could report the outcome in time.
    pub async fn transaction<T, F>(&self, mut run: impl FnMut(Transaction) -> F) -> Result<Committed<T>, Error>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let mut transaction = self.begin_transaction();
        let mut pause = BACKOFF;
        for attempts in 1.. {
            let outcome = match run(transaction.clone()).await {
                Ok(value) => transaction.try_commit().await.map(|done| Committed {
                    value,
                    timestamp: done.timestamp,
                    uncertainty: done.uncertainty,
                    commit_wait: done.commit_wait,
                    attempts,
                }),
                Err(error) => Err(error),
            };
            match outcome {
                Err(Error::Aborted(_)) if Instant::now() + pause < transaction.until => {
                    tokio::time::sleep(jittered(pause)).await;
                    pause = (pause * 2).min(BACKOFF_MAX);
                    // The retry keeps the age, which determines its priority, and the locks.
                    transaction = transaction.again();
                }
                Err(error) => {
                    transaction.unlock_after(&error).await;
                    return Err(error);
                }
                outcome => return outcome,
            }
        }
        unreachable!("the loop ends with an outcome")
    }

    /// Begins a transaction that the caller commits. It is not retried if it is aborted. It has the timeout of this
    /// client, from now on.
    #[must_use]
    pub fn begin_transaction(&self) -> Transaction {
        self.begin_transaction_within(self.deadline)
    }

    /// As [`Client::begin_transaction`], for a transaction that may take longer, such as an interactive one. Each of
    /// its calls has the timeout of this client.
    #[must_use]
    pub fn begin_transaction_within(&self, limit: Duration) -> Transaction {
        let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let started_ns = i64::try_from(since_1970.as_nanos()).unwrap_or(i64::MAX);
        let owner = message::TransactionOwner { started_ns, id: random() };
        let (until, call_max) = (Instant::now() + limit, self.deadline);
        Transaction { client: self.clone(), owner, until, call_max, state: Arc::default() }
    }

    /// Determines the outcome of a transaction after [`Error::CommitUnknown`]. If it has none yet, it is aborted.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn resolve_transaction(&self, transaction: &TransactionId) -> Result<TransactionOutcome, Error> {
        self.resolve_within(transaction, self.deadline).await
    }

    async fn resolve_within(&self, id: &TransactionId, time: Duration) -> Result<TransactionOutcome, Error> {
        let TransactionId { table, key, stamp } = id.clone();
        let request = message::ResolveTransactionRequest { table, key, stamp: Some(session_stamp(stamp)) };
        match self.driver.call(ApiRequest::ResolveTransaction(request), time).await.outcome? {
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
    /// The id of the transaction, with which any client can ask for its outcome ([`Client::resolve_transaction`]), also
    /// if this program ends during the commit. The range that holds `key` in `table` decides about the transaction: a
    /// row that it changes or reads costs least. Every call returns the id of the first one. Costs one write; the id is
    /// valid for 10 minutes, and a later commit fails with [`Error::Aborted`].
    ///
    /// # Errors
    /// [`Error`]. [`Error::Invalid`] if the transaction has ended.
    pub async fn id(&self, table: impl Into<String>, key: impl Into<Bytes>) -> Result<TransactionId, Error> {
        self.state().check_open()?;
        if let Some(id) = self.assigned_id() {
            return Ok(id);
        }
        let (table, key) = (table.into(), key.into());
        let request = message::OpenSessionRequest { table: table.clone(), key: key.clone() };
        let opened = self.client.driver.call(ApiRequest::OpenSession(request), self.left()?).await;
        let session = match opened.outcome {
            Ok(ApiResponse::SessionOpened(session)) => session,
            Ok(other) => return Err(unexpected(&other)),
            // An unused session expires.
            Err(Error::OutcomeUnknown(reason)) => return Err(Error::Unavailable(reason)),
            Err(error) => return Err(error),
        };
        let stamp = client::Stamp { session, sequence: 1, first_incomplete: 1 };
        let mut state = self.state();
        state.check_open()?;
        Ok(state.id.get_or_insert(TransactionId { table, key, stamp }).clone())
    }

    /// The id, if [`Transaction::id`] has assigned one.
    #[must_use]
    pub fn assigned_id(&self) -> Option<TransactionId> {
        self.state().id.clone()
    }

    /// Reads a row. Columns that the transaction itself has put have the version [`Version::ABSENT`].
    ///
    /// # Errors
    /// [`Error`]. [`Error::Aborted`] once the deadline has passed. [`Error::Invalid`] also for a row that does not fit
    /// into one response (16 MiB), if the transaction has read too much (10,000 rows or pages, or 12 MiB of keys), and
    /// if it has ended.
    pub async fn row(&self, table: impl Into<String>, key: impl Into<Bytes>) -> Result<Row, Error> {
        self.row_with(table.into(), key.into(), false).await
    }

    /// As [`Transaction::row`], for a row that the transaction is about to change. Other transactions that read it with
    /// this method wait until this one has ended, instead of failing at their commit. If an older one waits for more
    /// than one second, this one loses its lock, because the two could be in a deadlock.
    ///
    /// # Errors
    /// As [`Transaction::row`]. [`Error::Aborted`] if it waited until the deadline.
    pub async fn row_for_update(&self, table: impl Into<String>, key: impl Into<Bytes>) -> Result<Row, Error> {
        self.row_with(table.into(), key.into(), true).await
    }

    async fn row_with(&self, table: String, key: Bytes, for_update: bool) -> Result<Row, Error> {
        let cells = self.read(&table, &key, Vec::new(), for_update).await?;
        Ok(self.state().over(&table, Row::new(key, cells)))
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
        let own = self.state().write(&table, &key).map(|own| (own.columns.get(&column).cloned(), own.deletes_row));
        match own {
            Some((Some(value), _)) => Ok(value.map(|value| Cell::new(column, value, Version::ABSENT))),
            Some((None, true)) => Ok(None),
            _ => Ok(self.read(&table, &key, vec![column], false).await?.pop()),
        }
    }

    /// Adds a row to the reads of the transaction, without reading it: the commit fails if the row was changed after a
    /// version, such as that of an earlier transaction. With a version at which the row did not exist, a put becomes an
    /// insertion that replaces nothing.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the transaction has read too much ([`Transaction::row`]), or has ended. The commit also
    /// fails if the version is before the table's retention.
    pub fn expect_unchanged(&self, table: impl AsRef<str>, key: impl Into<Bytes>, since: Version) -> Result<(), Error> {
        let key = key.into();
        let end = Bytes::from([&key[..], &[0]].concat());
        self.state().has_read(table.as_ref(), key, Some(end), since.as_nanos())
    }

    /// A scan of a table: its rows, with the transaction's own changes.
    ///
    /// ```no_run
    /// # async fn example(tx: loggos_client::Transaction) -> Result<(), loggos_client::Error> {
    /// let mut rows = tx.scan("accounts").range("a".."m").limit(100).rows();
    /// while let Some(row) = rows.next().await {
    ///     tx.put("seen", row?.key, "yes", "")?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn scan(&self, table: impl Into<String>) -> TransactionScan {
        TransactionScan::of(scan::TransactionSource { transaction: self.clone(), table: table.into() })
    }

    /// A row that was read outside of the transaction, with the transaction's own changes.
    ///
    /// The commit does not check that the row is unchanged: no other transaction or write may change it.
    #[must_use]
    pub fn over_row(&self, table: &str, key: impl Into<Bytes>, row: Option<Row>) -> Row {
        let row = row.unwrap_or_else(|| Row::new(key, Vec::new()));
        match self.state().write(table, &row.key) {
            Some(own) => Row { cells: own.over(row.cells), key: row.key },
            None => row,
        }
    }

    /// The rows from `start` to before `end` that were read outside of the transaction, in order of key, with the
    /// transaction's own changes, as [`Transaction::over_row`].
    #[must_use]
    pub fn over_rows(&self, table: &str, start: &Bytes, end: &Bytes, rows: Vec<Row>) -> Vec<Row> {
        self.state().merged(table, start, Some(end), rows)
    }

    /// Puts a column of a row when the transaction is committed.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the transaction changes too much (10,000 rows, 1,024 columns of a row, or 12 MiB of keys,
    /// names and values together with the keys that it has read), or has ended.
    pub fn put(
        &self,
        table: impl Into<String>,
        key: impl Into<Bytes>,
        column: impl Into<Bytes>,
        value: impl Into<Bytes>,
    ) -> Result<(), Error> {
        self.state().change(table.into(), key.into(), column.into(), Some(value.into()))
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
        self.state().change(table.into(), key.into(), column.into(), None)
    }

    /// Deletes a row, with all its columns, when the transaction is committed. Columns that are put afterwards are then
    /// its only ones.
    ///
    /// # Errors
    /// As [`Transaction::put`].
    pub fn delete_row(&self, table: impl Into<String>, key: impl Into<Bytes>) -> Result<(), Error> {
        self.state().delete_row(table.into(), key.into())
    }

    /// Whether the transaction has no writes yet.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.state().is_read_only()
    }

    /// A savepoint with the current writes.
    #[must_use]
    pub fn savepoint(&self) -> Savepoint {
        Savepoint(self.state().savepoint())
    }

    /// Discards the writes since a savepoint of this transaction. All reads remain part of it.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the transaction has ended.
    pub fn restore(&self, savepoint: &Savepoint) -> Result<(), Error> {
        self.state().restore(&savepoint.0)
    }

    /// Commits the transaction: all changes, or none.
    ///
    /// # Errors
    /// [`Error::Aborted`] if something that it has read was changed meanwhile, or an older transaction has priority.
    /// [`Error::CommitUnknown`] if no node could report the outcome by the deadline. Otherwise [`Error`]. After any
    /// error but an unknown outcome, nothing was written.
    pub async fn commit(self) -> Result<Committed<()>, Error> {
        let outcome = self.try_commit().await;
        if let Err(error) = &outcome {
            self.unlock_after(error).await;
        }
        outcome
    }

    /// Ends the transaction without changes, and releases its read locks, so that others need not wait for them. Reads
    /// whose futures were dropped get none afterwards. The locks of a transaction that is dropped expire after 10 s
    /// without use.
    pub async fn rollback(self) {
        self.state().end();
        self.unlock(&BTreeSet::new()).await;
    }

    /// Commits it, and keeps its read locks after an error.
    async fn try_commit(&self) -> Result<Committed<()>, Error> {
        let parts = {
            let mut state = self.state();
            state.check_open()?;
            state.end()
        };
        let nothing = Committed {
            value: (),
            timestamp: Version::ABSENT,
            uncertainty: Duration::ZERO,
            commit_wait: Duration::ZERO,
            attempts: 1,
        };
        if !parts.needs_commit {
            self.unlock(&BTreeSet::new()).await;
            return Ok(nothing);
        }
        let committed = self.send_commit(parts, nothing).await?;
        // The commit has released the locks of the ranges that it names. Earlier attempts may have read in others.
        let current = self.state().read_now.clone();
        self.unlock(&current).await;
        Ok(committed)
    }

    async fn send_commit(&self, parts: state::Parts, nothing: Committed<()>) -> Result<Committed<()>, Error> {
        let id = self.state().id.clone();
        let first_write = parts.writes.first().map(|write| (write.table.clone(), write.key.clone()));
        let first_read = || parts.reads.first().map(|read| (read.table.clone(), read.start.clone()));
        let (own, (table, key)) = match id {
            Some(TransactionId { table, key, stamp }) => (Some(stamp), (table, key)),
            None => (None, first_write.or_else(first_read).unwrap_or_default()),
        };
        let request = message::CommitTransactionRequest {
            table: table.clone(),
            key: key.clone(),
            stamp: None,
            owner: Some(self.owner),
            reads: parts.reads,
            writes: parts.writes,
        };
        let left = self.left()?;
        let time = left - (left / RESOLVE_SHARE).min(RESOLVE_MAX);
        let request = ApiRequest::CommitTransaction(request);
        let Ended { outcome, stamp, .. } = self.client.driver.call_with(request, own, time).await;
        let reason = match outcome {
            Ok(ApiResponse::TransactionCommitted(answer)) => {
                return Ok(Committed {
                    timestamp: Version::from_nanos(answer.timestamp_ns),
                    uncertainty: Duration::from_nanos(answer.uncertainty_ns),
                    commit_wait: Duration::from_nanos(answer.commit_wait_ns),
                    ..nothing
                });
            }
            Ok(other) => format!("unexpected response: {other:?}"),
            Err(Error::OutcomeUnknown(reason)) => reason,
            Err(error) => return Err(error),
        };
        // A write without a stamp was not sent, because the client was closed.
        let Some(stamp) = stamp else { return Err(Error::OutcomeUnknown(reason)) };
        let id = TransactionId { table, key, stamp };
        let outcome = match self.left() {
            Ok(left) => self.client.resolve_within(&id, left).await,
            Err(error) => Err(error),
        };
        match outcome {
            Ok(TransactionOutcome::Committed(timestamp)) => Ok(Committed { timestamp, ..nothing }),
            Ok(TransactionOutcome::Aborted) => {
                Err(Error::Aborted(format!("{UNREACHABLE}, and the commit was given up: {reason}")))
            }
            Ok(TransactionOutcome::Forgotten) | Err(_) => {
                Err(Error::CommitUnknown { reason, transaction: Box::new(id) })
            }
        }
    }

    /// The same transaction without its reads and writes, for a retry after [`Error::Aborted`]. It keeps its age, which
    /// determines its priority, so that it succeeds sooner than a new one.
    #[must_use]
    pub fn again(&self) -> Self {
        let mut state = self.state();
        let mut owner = self.owner;
        if state.has_unlocked {
            // Reads of an owner that has released its locks acquire none. The next lower number has priority over it, so
            // the retry does not wait for a lock that was not released.
            owner.id = owner.id.wrapping_sub(1);
        }
        Self { owner, state: Arc::new(Mutex::new(state.again())), ..self.clone() }
    }

    /// As [`Transaction::again`], for a transaction that may take longer: `limit` from now on.
    #[must_use]
    pub fn again_within(&self, limit: Duration) -> Self {
        Self { until: Instant::now() + limit, ..self.again() }
    }

    /// Releases the read locks after an error, unless the transaction can still be committed.
    async fn unlock_after(&self, error: &Error) {
        self.state().end();
        if !error.is_outcome_unknown() {
            self.unlock(&BTreeSet::new()).await;
        }
    }

    /// Releases the read locks, except in some ranges. Correctness does not depend on it. Reads in flight acquire no
    /// locks afterwards, also in these ranges.
    async fn unlock(&self, except: &BTreeSet<(String, Bytes)>) {
        let (locked, unanswered) = {
            let mut state = self.state();
            let (locked, unanswered) = (state.locked_but(except), state.unanswered(UNLOCKED_MAX));
            state.has_unlocked |= !locked.is_empty() || !unanswered.is_empty();
            (locked, unanswered)
        };
        // In the background: these nodes did not answer before, and may not answer now.
        for place in unanswered {
            tokio::spawn(self.unlocking(place));
        }
        let unlocking: JoinSet<()> = locked.into_iter().take(UNLOCKED_MAX).map(|place| self.unlocking(place)).collect();
        unlocking.join_all().await;
    }

    fn unlocking(&self, (table, key): (String, Bytes)) -> impl Future<Output = ()> + Send + use<> {
        let request = message::UnlockTransactionRequest { table, key, owner: Some(self.owner) };
        let client = self.client.clone();
        async move {
            _ = client.driver.call(ApiRequest::UnlockTransaction(request), UNLOCK_MAX).await;
        }
    }

    async fn read(&self, table: &str, key: &Bytes, columns: Vec<Bytes>, for_update: bool) -> Result<Vec<Cell>, Error> {
        self.state().check_open()?;
        let consistency = match for_update {
            true => Consistency::TransactionForUpdate(self.owner),
            false => Consistency::Transaction(self.owner),
        };
        let request = message::GetRequest {
            table: table.to_owned(),
            key: key.clone(),
            columns,
            options: Some(message::ReadOptions { consistency: Some(consistency) }),
            ..Default::default()
        };
        match self.ask(ApiRequest::Get(request), (table.to_owned(), key.clone()), for_update).await? {
            ApiResponse::Row(message::GetResponse { cells, as_of, .. }) => {
                let keys = KeyRange { start: key.clone(), end: Some([&key[..], &[0]].concat().into()) };
                let cells: Vec<Cell> = cells.into_iter().map(Into::into).collect();
                let newest = cells.iter().map(|cell| cell.version.as_nanos()).max();
                if newest.is_some_and(|newest| self.state().is_outdated(table, key, newest)) {
                    return Err(Error::Aborted(CHANGED.to_owned()));
                }
                self.has_read(table, &keys, &as_of.ok_or_else(unstated)?)?;
                Ok(cells)
            }
            other => Err(unexpected(&other)),
        }
    }

    /// Records the keys that a response covers, and the state that was read.
    fn has_read(&self, table: &str, keys: &KeyRange, as_of: &message::AsOf) -> Result<(), Error> {
        let mut state = self.state();
        let range = (table.to_owned(), as_of.start.clone());
        state.has_locked(range, keys.start.clone());
        state.has_read(table, keys.start.clone(), keys.end.clone(), as_of.timestamp_ns)
    }

    fn options(&self) -> message::ReadOptions {
        message::ReadOptions { consistency: Some(Consistency::Transaction(self.owner)) }
    }

    /// Sends a read of a key, or from it on, with the remaining time of the transaction as timeout.
    async fn ask(&self, read: ApiRequest, place: (String, Bytes), for_update: bool) -> Result<ApiResponse, Error> {
        let left = self.left()?;
        let began = Instant::now();
        // If this future is dropped, the read remains noted: a node may still lock its keys.
        self.state().asks(place.clone());
        let answer = self.client.driver.call(read, left).await.outcome?;
        if !for_update || began.elapsed() < SENT_AGAIN {
            self.state().is_answered(&place);
        }
        Ok(answer)
    }

    /// The remaining time of the transaction.
    fn left(&self) -> Result<Duration, Error> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Error::Aborted("the transaction's deadline has passed".to_owned()));
        }
        Ok(left.min(self.call_max))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The error for a response to a transaction's read without the state that was read.
fn unstated() -> Error {
    Error::Unavailable("the response does not state what was read".to_owned())
}

pub(crate) fn random() -> u64 {
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

    fn client() -> Client {
        Client::connect(["127.0.0.1:1"]).expect("an address")
    }

    #[test]
    fn transactions_are_send() {
        fn spawnable<T: Send>(_: &T) {}
        let client = client();
        spawnable(&client.transaction(|tx| async move { tx.put("t", "k", "c", "v") }));
        spawnable(&client.begin_transaction().commit());
        spawnable(&client.begin_transaction().scan("t").all());
    }

    #[tokio::test]
    async fn ended_transaction_takes_no_writes() {
        let tx = client().begin_transaction();
        let clone = tx.clone();
        assert_eq!(tx.commit().await.expect("there is nothing to do").timestamp, Version::ABSENT);
        assert!(matches!(clone.put("t", "k", "c", "v"), Err(Error::Invalid(_))));
        assert!(matches!(clone.row("t", "k").await, Err(Error::Invalid(_))));
        assert!(matches!(clone.commit().await, Err(Error::Invalid(_))));
    }

    /// A read that is dropped may lock later, so its locks are released. A retry is then another owner of the same age.
    #[tokio::test]
    async fn dropped_read_is_unlocked() {
        let tx = client().begin_transaction();
        assert_eq!(tx.again().owner, tx.owner, "nothing was released");
        let tx = client().begin_transaction();
        let read = tx.row_for_update("t", "k");
        assert!(tokio::time::timeout(Duration::from_millis(1), read).await.is_err());
        assert_eq!(tx.state().unanswered(9), [("t".to_owned(), Bytes::from("k"))]);
        tx.clone().rollback().await;
        let again = tx.again();
        assert_eq!(again.owner.started_ns, tx.owner.started_ns);
        assert_eq!(again.owner.id, tx.owner.id.wrapping_sub(1));
        assert_eq!(again.again().owner, again.owner);
    }

    #[tokio::test]
    async fn error_of_the_function_ends_the_transaction() {
        let mut runs = 0;
        let client = client();
        let failed = client.transaction(|_| {
            runs += 1;
            std::future::ready(Err::<(), _>(Error::NotFound("no such account".into())))
        });
        assert_eq!(failed.await, Err(Error::NotFound("no such account".into())));
        assert_eq!(runs, 1);
    }

    #[tokio::test]
    async fn aborted_transaction_runs_until_the_deadline() {
        let mut runs = 0;
        let client = client().with_deadline(Duration::from_millis(50));
        let failed = client.transaction(|_| {
            runs += 1;
            std::future::ready(Err::<(), _>(Error::Aborted("conflict".into())))
        });
        assert_eq!(failed.await, Err(Error::Aborted("conflict".into())));
        assert!((3..=8).contains(&runs), "{runs}");
    }
}
