//! How much of logs one connection may read ahead of what its client takes, by calls of their own.
//!
//! Such a call's answer is made whether its client takes it or not. So each takes a share of what its connection may
//! have, asks the node for no more than that, and keeps it until its answer has left. Those that find none wait here,
//! where they cost nothing and hold up nobody but each other, and not in the node, where all connections' reads wait in
//! turn.
//!
//! How much an answer needs is guessed from the one before it: twice that. Who is told that the first entry is larger
//! asks again, with as much as any may need.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore};

use crate::limits::{READ_AHEAD_BYTES_MAX, READ_AHEAD_FIRST_BYTES, READ_AHEAD_LEAST_BYTES, READ_BYTES_MAX};

/// Bytes are counted in these.
const UNIT_BYTES: usize = 4 << 10;
const ALL: u32 = units(READ_AHEAD_BYTES_MAX);
const MOST: u32 = units(READ_BYTES_MAX);
const LEAST: u32 = units(READ_AHEAD_LEAST_BYTES);

/// What one connection may have.
#[derive(Clone, Debug)]
pub(crate) struct Allowance(Arc<Account>);

#[derive(Debug)]
struct Account {
    free: Arc<Semaphore>,
    /// Whoever has it is the next to take a share: by then the answers before tell how large its own may be.
    turn: Mutex<()>,
    likely_units: AtomicU32,
}

/// What the answer to one call may have. It is given back when this is dropped.
#[derive(Debug)]
pub(crate) struct Share {
    account: Arc<Account>,
    units: OwnedSemaphorePermit,
}

impl Default for Allowance {
    fn default() -> Self {
        let free = Arc::new(Semaphore::new(ALL as usize));
        let likely_units = AtomicU32::new(units(READ_AHEAD_FIRST_BYTES));
        Self(Arc::new(Account { free, turn: Mutex::default(), likely_units }))
    }
}

impl Allowance {
    /// As much as an answer is likely to need, in turn.
    pub(crate) async fn likely(&self) -> Share {
        self.take(|| self.0.likely_units.load(Ordering::Relaxed)).await
    }

    /// As much as any answer may need, in turn.
    pub(crate) async fn most(&self) -> Share {
        self.take(|| MOST).await
    }

    async fn take(&self, wanted: impl FnOnce() -> u32) -> Share {
        let _turn = self.0.turn.lock().await;
        let units = Arc::clone(&self.0.free).acquire_many_owned(wanted()).await.expect("it is never closed");
        Share { account: Arc::clone(&self.0), units }
    }
}

impl Share {
    /// Bytes that may be asked for.
    pub(crate) fn bytes(&self) -> usize {
        self.units.num_permits() * UNIT_BYTES
    }

    /// The answer has come to so many bytes: what it doesn't need is given back.
    pub(crate) fn came_to(&mut self, bytes: usize) {
        let needed = units(bytes.min(READ_BYTES_MAX));
        self.account.likely_units.store((2 * needed).clamp(LEAST, MOST), Ordering::Relaxed);
        drop(self.units.split(self.units.num_permits().saturating_sub(needed as usize)));
    }
}

const fn units(bytes: usize) -> u32 {
    bytes.div_ceil(UNIT_BYTES) as u32
}

#[cfg(test)]
mod tests {
    use std::future::{Future, poll_fn};
    use std::pin::pin;
    use std::task::Poll;

    use super::*;

    /// As many shares as there are at once.
    async fn all(allowance: &Allowance) -> Vec<Share> {
        let mut shares = Vec::new();
        loop {
            // Tokio would have us wait for the sake of other tasks.
            let mut next = pin!(tokio::task::unconstrained(allowance.likely()));
            match poll_fn(|context| Poll::Ready(next.as_mut().poll(context))).await {
                Poll::Ready(share) => shares.push(share),
                Poll::Pending => return shares,
            }
        }
    }

    #[tokio::test]
    async fn so_many_are_read_ahead_as_their_size_allows() {
        let allowance = Allowance::default();
        assert_eq!(all(&allowance).await.len(), READ_AHEAD_BYTES_MAX / READ_AHEAD_FIRST_BYTES);
        for (bytes, count) in [(4 << 20, 2), (5 << 20, 2), (256 << 10, 16), (100, 128), (0, 128)] {
            let mut first = allowance.most().await;
            first.came_to(bytes);
            drop(first);
            let shares = all(&allowance).await;
            assert_eq!(shares.len(), count, "{bytes} bytes each");
            assert!(shares.iter().map(Share::bytes).sum::<usize>() <= READ_AHEAD_BYTES_MAX);
        }
    }

    #[tokio::test]
    async fn what_an_answer_does_not_need_is_given_back() {
        let allowance = Allowance::default();
        let mut share = allowance.most().await;
        assert_eq!(share.bytes(), READ_BYTES_MAX);
        share.came_to(1);
        assert_eq!((share.bytes(), allowance.0.free.available_permits()), (UNIT_BYTES, 2_047));
        share.came_to(0);
        assert_eq!(allowance.0.free.available_permits(), 2_048);
        drop(share);
        assert_eq!(allowance.0.free.available_permits(), 2_048);
    }

    #[tokio::test]
    async fn who_waits_takes_what_is_likely_when_its_turn_has_come() {
        let allowance = Allowance::default();
        let (mut one, two) = (allowance.most().await, allowance.most().await);
        one.came_to(4 << 20);
        let mut waits = pin!(tokio::task::unconstrained(allowance.likely()));
        let mut later = pin!(tokio::task::unconstrained(allowance.likely()));
        poll_fn(|context| {
            assert!(waits.as_mut().poll(context).is_pending());
            assert!(later.as_mut().poll(context).is_pending());
            Poll::Ready(())
        })
        .await;
        one.came_to(1);
        drop((one, two));
        assert_eq!(waits.await.bytes(), READ_BYTES_MAX, "as was likely when it was the first");
        assert_eq!(later.await.bytes(), READ_AHEAD_LEAST_BYTES);
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
        assert_eq!(all(&allowance).await.len(), 8);
        assert_eq!(allowance.0.free.available_permits(), 2_048);
    }
}
