//! Holds: a table stays readable as of a snapshot's moment for longer than its retention (guarantee 16).

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use api::columns::{HoldVersionsRequest, HoldVersionsResponse};
use base::KeyRange;
use base::limits::HOLD_LIFETIME;
use bytes::Bytes;
use tokio::runtime::Handle;
use tokio::task::{JoinHandle, JoinSet};

use crate::client_api::unexpected;
use crate::request::{ApiRequest, ApiResponse};
use crate::transaction::random;
use crate::types::{Cell, Row};
use crate::{Client, Error, Scan, TableSnapshot, Version};

/// How often a hold is renewed, and the maximum time that a range has to do so: a third of its lifetime.
const RENEWAL: Duration = Duration::from_nanos(HOLD_LIFETIME.0 / 3);
/// The pause before a failed renewal is tried again.
const RETRY: Duration = Duration::from_secs(1);
/// How long the release in one range may take. Holds also expire.
const RELEASE_MAX: Duration = Duration::from_secs(1);
/// Maximum ranges that are asked at a time.
const CONCURRENT_MAX: usize = 32;

/// Keeps a table readable as of a snapshot's moment, until it is dropped. It renews the hold in the background.
///
/// The hold is lost after 24 hours, and in a range that no renewal has reached for half a minute. Reads then fail; they
/// never return the state of another moment.
#[derive(Debug)]
#[must_use = "the hold ends when this is dropped"]
pub struct SnapshotHold {
    snapshot: TableSnapshot,
    holder: Holder,
    state: Arc<Mutex<State>>,
    runtime: Handle,
    renewal: Option<JoinHandle<()>>,
}

#[derive(Clone, Debug)]
struct Holder {
    client: Client,
    table: String,
    timestamp: Version,
    owner: u64,
}

#[derive(Debug, Default)]
struct State {
    /// The first keys of the ranges that have the hold.
    starts: Vec<Bytes>,
    /// Why it was lost.
    lost: Option<Error>,
}

impl TableSnapshot {
    /// Keeps a table readable as of this moment beyond its retention, until the result is dropped. Each range of the
    /// table has room for 1,000 holds.
    ///
    /// ```no_run
    /// # async fn example(client: loggos_client::Client) -> Result<(), loggos_client::Error> {
    /// let hold = client.snapshot().await?.hold("accounts").await?;
    /// let mut accounts = hold.scan()?.rows();
    /// while let Some(account) = accounts.next().await {
    ///     // This may take hours.
    ///     println!("{:?}", account?);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Precondition`] if the moment is before the table's retention already, or in the future.
    /// [`Error::NotFound`] if the table does not exist. Otherwise [`Error`].
    pub async fn hold(&self, table: impl AsRef<str>) -> Result<SnapshotHold, Error> {
        let (client, table) = (self.client.clone(), table.as_ref().to_owned());
        let ranges = client.table(&*table).describe().await?.ranges;
        let starts: Vec<Bytes> = ranges.into_iter().map(|range| range.start).collect();
        let holder = Holder { client, table, timestamp: self.timestamp(), owner: random() };
        let state = Arc::new(Mutex::new(State { starts: starts.clone(), lost: None }));
        let (snapshot, runtime) = (self.clone(), Handle::current());
        // If a range refuses it, the others release it.
        let mut hold = SnapshotHold { snapshot, holder: holder.clone(), state, runtime, renewal: None };
        let starts = holder.hold(starts).await?;
        hold.state().starts = starts;
        hold.renewal = Some(hold.runtime.spawn(holder.keep(Arc::clone(&hold.state))));
        Ok(hold)
    }
}

impl SnapshotHold {
    /// The moment.
    #[must_use]
    pub fn timestamp(&self) -> Version {
        self.snapshot.timestamp()
    }

    /// Whether the hold was lost, as far as its renewals tell.
    ///
    /// # Errors
    /// The refusal of a renewal.
    pub fn check(&self) -> Result<(), Error> {
        self.state().lost.clone().map_or(Ok(()), Err)
    }

    /// Reads a row of the table.
    ///
    /// # Errors
    /// As [`TableSnapshot::row`], and [`SnapshotHold::check`].
    pub async fn row(&self, key: impl Into<Bytes>) -> Result<Row, Error> {
        self.check()?;
        self.snapshot.row(&self.holder.table, key).await
    }

    /// Reads a column of a row; none if it does not exist.
    ///
    /// # Errors
    /// As [`SnapshotHold::row`].
    pub async fn get(&self, key: impl Into<Bytes>, column: impl Into<Bytes>) -> Result<Option<Cell>, Error> {
        self.check()?;
        self.snapshot.get(&self.holder.table, key, column).await
    }

    /// A scan of the table. It does not keep the hold alive.
    ///
    /// # Errors
    /// As [`SnapshotHold::check`].
    pub fn scan(&self) -> Result<Scan, Error> {
        self.check()?;
        Ok(self.snapshot.scan(&self.holder.table))
    }

    /// Ends the hold, and waits until the ranges know. Otherwise the end of a program may come first, and the hold ends
    /// when it expires.
    pub async fn release(mut self) {
        self.end().await;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the renewals; returns the release.
    fn end(&mut self) -> impl Future<Output = ()> + Send + 'static {
        if let Some(renewal) = self.renewal.take() {
            renewal.abort();
        }
        let (holder, starts) = (self.holder.clone(), std::mem::take(&mut self.state().starts));
        async move { _ = holder.ask_each(starts, true, RELEASE_MAX).await }
    }
}

impl Drop for SnapshotHold {
    fn drop(&mut self) {
        let release = self.end();
        self.runtime.spawn(release);
    }
}

impl Holder {
    /// Renews the hold until it is lost.
    async fn keep(self, state: Arc<Mutex<State>>) {
        let lock = || state.lock().unwrap_or_else(PoisonError::into_inner);
        let mut pause = RENEWAL;
        loop {
            tokio::time::sleep(pause).await;
            let starts = lock().starts.clone();
            match self.hold(starts).await {
                Ok(starts) => {
                    lock().starts = starts;
                    pause = RENEWAL;
                }
                Err(error) if error.is_retryable() => pause = RETRY,
                Err(error) => {
                    lock().lost = Some(error);
                    return;
                }
            }
        }
    }

    /// Makes or renews the hold in all ranges. They are expected to start at these keys; each response names the keys of
    /// its range, so that others are found. Returns the keys at which the ranges start.
    async fn hold(&self, starts: Vec<Bytes>) -> Result<Vec<Bytes>, Error> {
        let mut held = self.ask_each(starts, false, RENEWAL).await?;
        let mut key = Bytes::new();
        loop {
            let range = match at(&held, &key) {
                Some(range) => range,
                None => self.clone().ask(key.clone(), false, RENEWAL).await?,
            };
            if range.end.as_ref().is_some_and(|end| *end <= key) {
                return Err(Error::Unavailable("a range does not contain the key that it was asked about".to_owned()));
            }
            held.insert(range.start, range.end.clone());
            match range.end {
                Some(end) => key = end,
                None => return Ok(held.into_keys().collect()),
            }
        }
    }

    /// Asks the ranges that contain these keys, all of them even if some fail. Returns the ranges, by their first keys.
    async fn ask_each(
        &self,
        keys: Vec<Bytes>,
        release: bool,
        time: Duration,
    ) -> Result<BTreeMap<Bytes, Option<Bytes>>, Error> {
        let (mut keys, mut asking) = (keys.into_iter(), JoinSet::new());
        let (mut held, mut failure) = (BTreeMap::new(), None);
        loop {
            while asking.len() < CONCURRENT_MAX
                && let Some(key) = keys.next()
            {
                asking.spawn(self.clone().ask(key, release, time));
            }
            match asking.join_next().await {
                None => return failure.map_or(Ok(held), Err),
                Some(Ok(Ok(range))) => _ = held.insert(range.start, range.end),
                Some(Ok(Err(error))) if error.is_retryable() => _ = failure.get_or_insert(error),
                Some(Ok(Err(error))) => failure = Some(error),
                // The runtime ends.
                Some(Err(error)) => failure = Some(Error::Unavailable(error.to_string())),
            }
        }
    }

    async fn ask(self, key: Bytes, release: bool, time: Duration) -> Result<KeyRange, Error> {
        let Self { client, table, timestamp, owner } = self;
        let request = HoldVersionsRequest { table, key, timestamp_ns: timestamp.as_nanos(), owner, release };
        match client.driver.call(ApiRequest::HoldVersions(request), time.min(client.deadline)).await.outcome? {
            ApiResponse::VersionsHeld(HoldVersionsResponse { start, end }) => Ok(KeyRange { start, end }),
            other => Err(unexpected(&other)),
        }
    }
}

/// The range that contains a key.
fn at(ranges: &BTreeMap<Bytes, Option<Bytes>>, key: &Bytes) -> Option<KeyRange> {
    let (start, end) = ranges.range::<Bytes, _>(..=key).next_back()?;
    let range = KeyRange { start: start.clone(), end: end.clone() };
    range.end.as_ref().is_none_or(|end| key < end).then_some(range)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_between_ranges_are_found() {
        let range = |start: &'static str, end: Option<&'static str>| (Bytes::from(start), end.map(Bytes::from));
        let held = BTreeMap::from([range("", Some("c")), range("m", None)]);
        let start = |key: &'static str| at(&held, &key.into()).map(|range| range.start);
        assert_eq!((start(""), start("b")), (Some("".into()), Some("".into())));
        assert_eq!((start("c"), start("l")), (None, None));
        assert_eq!((start("m"), start("z")), (Some("m".into()), Some("m".into())));
    }
}
