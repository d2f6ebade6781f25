//! How much of logs one connection may read ahead of what its client takes, by calls of their own and in streams.
//!
//! Such a read's answer is made whether its client takes it or not. So each takes a share of what its connection may
//! have, asks the node for no more than that, and keeps it until its answer has left; if its client goes, until the
//! node has answered. Those that find none wait here, where they cost nothing and hold up nobody but each other, and
//! not in the node, where all connections' reads wait in turn.
//!
//! How much an answer needs is guessed from those before it, of the same log. Who is told that the first entry is
//! larger asks again, with as much as any may need.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tablets::request::LogEntry;
use tokio::sync::{Mutex as Turn, OwnedSemaphorePermit, Semaphore};

use crate::Held;
use crate::guess::Guess;
use crate::limits::{
    GUESSES_MAX, READ_AHEAD_BYTES_MAX, READ_BYTES_MAX, SMALL_READ_BYTES, STREAM_READS_BYTES_MAX,
    WAITING_READS_OF_ONE_MAX,
};
use crate::log::translate::entry_bytes;
use crate::reading::{Reading, Wants};
use crate::taking::Taking;

/// Bytes are counted in these.
const UNIT_BYTES: usize = 4 << 10;

/// Who has taken what a read would need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Short {
    /// Its own connection.
    OfOne,
    /// All of them together.
    OfAll,
}

/// What one connection may have.
#[derive(Clone, Debug)]
pub(crate) struct Allowance(Arc<Account>);

#[derive(Debug)]
struct Account {
    free: Arc<Semaphore>,
    /// Whoever has it is the next to take a share: by then the answers before tell how large its own may be.
    turn: Turn<()>,
    /// For reads that wait for something to come.
    waits: Arc<Semaphore>,
    /// Of its streams.
    taking: Taking,
    /// By log.
    guesses: Mutex<HashMap<String, Arc<Mutex<Guess>>>>,
}

/// What reads in streams may read ahead, of all connections together.
#[derive(Clone, Debug)]
pub(crate) struct Common(Arc<Semaphore>);

/// What the answer to one call may have. It is given back when the last who holds it has gone.
#[derive(Clone, Debug)]
pub(crate) struct Share(Arc<Part>);

#[derive(Debug)]
struct Part {
    /// Of its log's entries.
    guess: Arc<Mutex<Guess>>,
    units: Mutex<Units>,
}

#[derive(Debug)]
struct Units {
    of_one: OwnedSemaphorePermit,
    /// The same of all connections', of a read in a stream that is not a small one.
    of_all: Option<OwnedSemaphorePermit>,
}

impl Default for Common {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(units(STREAM_READS_BYTES_MAX) as usize)))
    }
}

impl Default for Allowance {
    fn default() -> Self {
        let free = Arc::new(Semaphore::new(units(READ_AHEAD_BYTES_MAX) as usize));
        let waits = Arc::new(Semaphore::new(WAITING_READS_OF_ONE_MAX));
        let (turn, taking, guesses) = Default::default();
        Self(Arc::new(Account { free, turn, waits, taking, guesses }))
    }
}

impl Allowance {
    /// What a read needs for what it asks next, in turn: as much as its entries are likely to have, or any may have.
    pub(crate) async fn take(&self, reading: &Reading) -> Share {
        let _turn = self.0.turn.lock().await;
        let guess = self.0.guess_of(reading.log());
        let units = units_for(reading, &guess);
        let units = Arc::clone(&self.0.free).acquire_many_owned(units).await.expect("it is never closed");
        Share::new(guess, Units { of_one: units, of_all: None })
    }

    /// The same for one in a stream, if it is there.
    pub(crate) fn take_at_once(&self, reading: &Reading, common: &Common) -> Result<Share, Short> {
        let guess = self.0.guess_of(reading.log());
        let units = units_for(reading, &guess);
        let take = |of: &Arc<Semaphore>| Arc::clone(of).try_acquire_many_owned(units);
        let of_one = take(&self.0.free).map_err(|_| Short::OfOne)?;
        let is_small = units <= self::units(SMALL_READ_BYTES);
        let of_all = (!is_small).then(|| take(&common.0).map_err(|_| Short::OfAll)).transpose()?;
        Ok(Share::new(guess, Units { of_one, of_all }))
    }

    /// Of a call's connection.
    pub(crate) fn of<T>(call: &tonic::Request<T>) -> Self {
        call.extensions().get().cloned().unwrap_or_default()
    }

    /// What is known of the connection's client.
    pub(crate) fn taking(&self) -> &Taking {
        &self.0.taking
    }

    /// Its places for reads that wait.
    pub(crate) fn waits(&self) -> &Arc<Semaphore> {
        &self.0.waits
    }
}

impl Account {
    fn guess_of(&self, log: &str) -> Arc<Mutex<Guess>> {
        let mut guesses = lock(&self.guesses);
        if let Some(guess) = guesses.get(log) {
            return Arc::clone(guess);
        }
        if guesses.len() >= GUESSES_MAX {
            // A guess too few costs a read or two.
            guesses.clear();
        }
        Arc::clone(guesses.entry(log.to_owned()).or_default())
    }
}

fn units_for(reading: &Reading, guess: &Mutex<Guess>) -> u32 {
    units(match reading.wants() {
        Wants::Likely { count } => lock(guess).bytes_of(count),
        Wants::Something | Wants::Most => READ_BYTES_MAX,
    })
}

impl Share {
    fn new(guess: Arc<Mutex<Guess>>, units: Units) -> Self {
        Self(Arc::new(Part { guess, units: Mutex::new(units) }))
    }

    /// The same, for whoever is to hold it until the node has answered.
    pub(crate) fn held(&self) -> Held {
        Some(Arc::<Part>::clone(&self.0))
    }

    /// Bytes that may be asked for.
    pub(crate) fn bytes(&self) -> usize {
        lock(&self.0.units).of_one.num_permits() * UNIT_BYTES
    }

    /// These are the answer: what it doesn't need is given back.
    pub(crate) fn came_to(&self, entries: &[LogEntry]) {
        let mut guess = lock(&self.0.guess);
        let bytes = entries.iter().map(entry_bytes).inspect(|bytes| guess.saw(*bytes)).sum::<usize>();
        drop(guess);
        let mut units = lock(&self.0.units);
        let unneeded = units.of_one.num_permits().saturating_sub(self::units(bytes.min(READ_BYTES_MAX)) as usize);
        drop(units.of_one.split(unneeded));
        drop(units.of_all.as_mut().and_then(|of_all| of_all.split(unneeded)));
    }
}

/// Nothing that holds such a lock panics half-way.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

const fn units(bytes: usize) -> u32 {
    bytes.div_ceil(UNIT_BYTES) as u32
}

#[cfg(test)]
mod tests {
    use std::future::{Future, poll_fn};
    use std::pin::pin;
    use std::task::Poll;

    use sharedlog::{Batch, ClientId, Data, Position, Stamp};
    use tablets::request::Content;

    use super::*;
    use crate::reading::tests::{most, read_of};

    /// Entries of so many bytes.
    fn entries(bytes: &[usize]) -> Vec<LogEntry> {
        let entry = |bytes: &usize| {
            let batch = Batch::of(&[vec![7; *bytes].into()]).expect("it is small");
            let stamp = Stamp { client: ClientId(3), sequence: 4 };
            let data = Data { stamp, oldest_open: 4, batch };
            LogEntry { position: Position(1), content: Content::Data(data) }
        };
        bytes.iter().map(entry).collect()
    }

    /// As many shares as there are at once.
    async fn all(allowance: &Allowance) -> Vec<Share> {
        let mut shares = Vec::new();
        let small = read_of("l", 1, 0);
        loop {
            // Tokio would have us wait for the sake of other tasks.
            let mut next = pin!(tokio::task::unconstrained(allowance.take(&small)));
            match poll_fn(|context| Poll::Ready(next.as_mut().poll(context))).await {
                Poll::Ready(share) => shares.push(share),
                Poll::Pending => return shares,
            }
        }
    }

    #[tokio::test]
    async fn so_many_are_read_ahead_as_their_size_allows() {
        for (bytes, count) in [(4_000_000, 2), (200_000, 33), (100, 2_048), (0, 2_048)] {
            let allowance = Allowance::default();
            let first = allowance.take(&most("l")).await;
            first.came_to(&entries(&[bytes]));
            drop(first);
            let shares = all(&allowance).await;
            assert_eq!(shares.len(), count, "{bytes} bytes each");
            assert!(shares.iter().map(Share::bytes).sum::<usize>() <= READ_AHEAD_BYTES_MAX);
        }
    }

    #[tokio::test]
    async fn each_log_has_entries_of_its_own() {
        let allowance = Allowance::default();
        allowance.take(&most("large")).await.came_to(&entries(&[3_000_000]));
        assert_eq!(allowance.take(&read_of("l", 1, 0)).await.bytes(), 64 << 10);
        allowance.take(&most("l")).await.came_to(&entries(&[1]));
        let common = Common::default();
        for (log, bytes) in [("l", 4 << 10), ("large", 3_751_936)] {
            assert_eq!(
                allowance.take_at_once(&read_of(log, 1, 0), &common).map(|share| share.bytes()),
                Ok(bytes),
                "{log}"
            );
        }
        for number in 0..2 * GUESSES_MAX {
            allowance.take(&most(&format!("l{number}"))).await.came_to(&entries(&[1]));
        }
        assert!(lock(&allowance.0.guesses).len() <= GUESSES_MAX);
    }

    #[tokio::test]
    async fn what_an_answer_does_not_need_is_given_back() {
        let allowance = Allowance::default();
        let share = allowance.take(&most("l")).await;
        assert_eq!(share.bytes(), READ_BYTES_MAX);
        share.came_to(&entries(&[1, 1]));
        assert_eq!((share.bytes(), allowance.0.free.available_permits()), (UNIT_BYTES, 2_047));
        share.came_to(&[]);
        assert_eq!(allowance.0.free.available_permits(), 2_048);
        let other = share.clone();
        drop(share);
        assert_eq!(other.bytes(), 0);
    }

    #[tokio::test]
    async fn who_waits_takes_what_is_likely_when_its_turn_has_come() {
        let allowance = Allowance::default();
        let (one, two) = (allowance.take(&most("l")).await, allowance.take(&most("l")).await);
        one.came_to(&entries(&[4_000_000]));
        let small = read_of("l", 1, 0);
        let mut waits = pin!(tokio::task::unconstrained(allowance.take(&small)));
        let mut later = pin!(tokio::task::unconstrained(allowance.take(&small)));
        poll_fn(|context| {
            assert!(waits.as_mut().poll(context).is_pending());
            assert!(later.as_mut().poll(context).is_pending());
            Poll::Ready(())
        })
        .await;
        one.came_to(&entries(&[1; 200]));
        drop((one, two));
        assert_eq!(waits.await.bytes(), READ_BYTES_MAX, "as was likely when it was the first");
        assert_eq!(later.await.bytes(), UNIT_BYTES);
    }

    #[test]
    fn streams_of_all_connections_read_so_much_ahead() {
        let common = Common::default();
        let connections: Vec<_> =
            (0..STREAM_READS_BYTES_MAX / READ_AHEAD_BYTES_MAX).map(|_| Allowance::default()).collect();
        let take = |allowance: &Allowance| allowance.take_at_once(&most("l"), &common);
        let shares: Vec<_> = connections.iter().flat_map(|one| [take(one), take(one)]).collect();
        assert!(shares.iter().all(Result::is_ok));
        assert_eq!(take(&connections[0]).err(), Some(Short::OfOne));
        let other = Allowance::default();
        assert_eq!(take(&other).err(), Some(Short::OfAll));
        assert_eq!(other.0.free.available_permits(), 2_048, "what it has of its own is given back");
        // What is small waits for nobody.
        lock(&other.0.guess_of("s")).saw(100);
        assert!(other.take_at_once(&read_of("s", 1, 0), &common).is_ok());
        shares[0].as_ref().expect("it is there").came_to(&entries(&[1]));
        assert!(take(&other).is_err() && other.take_at_once(&read_of("l", 1, 0), &common).is_ok());
    }

    #[tokio::test]
    async fn who_no_longer_waits_holds_up_nobody() {
        let allowance = Allowance::default();
        let shares = (allowance.take(&most("l")).await, allowance.take(&most("l")).await);
        {
            let large = most("l");
            let mut waits = pin!(tokio::task::unconstrained(allowance.take(&large)));
            let is_pending = poll_fn(|context| Poll::Ready(waits.as_mut().poll(context).is_pending())).await;
            assert!(is_pending);
        }
        drop(shares);
        assert_eq!(all(&allowance).await.len(), 128);
        assert_eq!(allowance.0.free.available_permits(), 2_048);
    }
}
