//! How much of logs one connection may read ahead of what its client takes, by calls of their own.
//!
//! Such a call's answer is made whether its client takes it or not. So each takes a share of what its connection may
//! have, asks the node for no more than that, and keeps it until its answer has left; if its client goes, until the
//! node has answered. Those that find none wait here, where they cost nothing and hold up nobody but each other, and
//! not in the node, where all connections' reads wait in turn.
//!
//! How much an answer needs is guessed from those before it. Who is told that the first entry is larger asks again,
//! with as much as any may need.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tablets::request::LogEntry;
use tokio::sync::{Mutex as Turn, OwnedSemaphorePermit, Semaphore};

use crate::guess::Guess;
use crate::limits::{READ_AHEAD_BYTES_MAX, READ_BYTES_MAX};
use crate::log::translate::entry_bytes;

/// Bytes are counted in these.
const UNIT_BYTES: usize = 4 << 10;

/// What one connection may have.
#[derive(Clone, Debug)]
pub(crate) struct Allowance(Arc<Account>);

#[derive(Debug)]
struct Account {
    free: Arc<Semaphore>,
    /// Whoever has it is the next to take a share: by then the answers before tell how large its own may be.
    turn: Turn<()>,
    guess: Mutex<Guess>,
}

/// What the answer to one call may have. It is given back when the last who holds it has gone.
#[derive(Clone, Debug)]
pub(crate) struct Share(Arc<Part>);

#[derive(Debug)]
struct Part {
    account: Arc<Account>,
    units: Mutex<OwnedSemaphorePermit>,
}

impl Default for Allowance {
    fn default() -> Self {
        let free = Arc::new(Semaphore::new(units(READ_AHEAD_BYTES_MAX) as usize));
        Self(Arc::new(Account { free, turn: Turn::default(), guess: Mutex::default() }))
    }
}

impl Allowance {
    /// As much as so many entries are likely to need, in turn.
    pub(crate) async fn likely(&self, count: usize) -> Share {
        self.take(|| lock(&self.0.guess).bytes_of(count)).await
    }

    /// As much as any answer may need, in turn.
    pub(crate) async fn most(&self) -> Share {
        self.take(|| READ_BYTES_MAX).await
    }

    async fn take(&self, bytes: impl FnOnce() -> usize) -> Share {
        let _turn = self.0.turn.lock().await;
        let wanted = units(bytes());
        let units = Arc::clone(&self.0.free).acquire_many_owned(wanted).await.expect("it is never closed");
        Share(Arc::new(Part { account: Arc::clone(&self.0), units: Mutex::new(units) }))
    }
}

impl Share {
    /// Bytes that may be asked for.
    pub(crate) fn bytes(&self) -> usize {
        lock(&self.0.units).num_permits() * UNIT_BYTES
    }

    /// These are the answer: what it doesn't need is given back.
    pub(crate) fn came_to(&self, entries: &[LogEntry]) {
        let mut guess = lock(&self.0.account.guess);
        let bytes = entries.iter().map(entry_bytes).inspect(|bytes| guess.saw(*bytes)).sum::<usize>();
        drop(guess);
        let mut units = lock(&self.0.units);
        let unneeded = units.num_permits().saturating_sub(self::units(bytes.min(READ_BYTES_MAX)) as usize);
        drop(units.split(unneeded));
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

    /// Entries of so many bytes.
    fn entries(bytes: &[usize]) -> Vec<LogEntry> {
        let entry = |bytes: &usize| {
            let batch = Batch::of(&[vec![7; *bytes].into()]).expect("it is small");
            let stamp = Stamp { client: ClientId(3), sequence: 4 };
            let data = Data { stamp, oldest_open: 4, since: None, batch };
            LogEntry { position: Position(1), content: Content::Data(data) }
        };
        bytes.iter().map(entry).collect()
    }

    /// As many shares as there are at once.
    async fn all(allowance: &Allowance) -> Vec<Share> {
        let mut shares = Vec::new();
        loop {
            // Tokio would have us wait for the sake of other tasks.
            let mut next = pin!(tokio::task::unconstrained(allowance.likely(1)));
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
            let first = allowance.most().await;
            first.came_to(&entries(&[bytes]));
            drop(first);
            let shares = all(&allowance).await;
            assert_eq!(shares.len(), count, "{bytes} bytes each");
            assert!(shares.iter().map(Share::bytes).sum::<usize>() <= READ_AHEAD_BYTES_MAX);
        }
    }

    #[tokio::test]
    async fn what_an_answer_does_not_need_is_given_back() {
        let allowance = Allowance::default();
        let share = allowance.most().await;
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
        let (one, two) = (allowance.most().await, allowance.most().await);
        one.came_to(&entries(&[4_000_000]));
        let mut waits = pin!(tokio::task::unconstrained(allowance.likely(1)));
        let mut later = pin!(tokio::task::unconstrained(allowance.likely(1)));
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

    #[tokio::test]
    async fn who_no_longer_waits_holds_up_nobody() {
        let allowance = Allowance::default();
        let shares = (allowance.most().await, allowance.most().await);
        {
            let mut waits = pin!(tokio::task::unconstrained(allowance.most()));
            let is_pending = poll_fn(|context| Poll::Ready(waits.as_mut().poll(context).is_pending())).await;
            assert!(is_pending);
        }
        drop(shares);
        assert_eq!(all(&allowance).await.len(), 128);
        assert_eq!(allowance.0.free.available_permits(), 2_048);
    }
}
