//! How much of logs one connection may read ahead of what its client takes, by calls of their own.
//!
//! Such a call's answer is made whether its client takes it or not. So each takes a part of what its connection may have,
//! as much as the one before it came to, and keeps it until its answer has left. Those that find none wait here, where
//! they cost nothing and hold up nobody but each other, and not in the node, where all connections' reads wait in turn.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::limits::{READ_AHEAD_BYTES_MAX, READ_AHEAD_FIRST_BYTES};

/// Bytes are counted in these.
const UNIT_BYTES: usize = 4 << 10;

/// What one connection may have.
#[derive(Clone, Debug)]
pub(crate) struct Allowance(Arc<Account>);

#[derive(Debug)]
struct Account {
    units: Arc<Semaphore>,
    /// What an answer came to last.
    expected: AtomicU32,
}

/// The part of one call.
#[derive(Debug)]
pub(crate) struct Share {
    account: Arc<Account>,
    units: OwnedSemaphorePermit,
}

impl Default for Allowance {
    fn default() -> Self {
        let all = Arc::new(Semaphore::new(units(READ_AHEAD_BYTES_MAX) as usize));
        Self(Arc::new(Account { units: all, expected: AtomicU32::new(units(READ_AHEAD_FIRST_BYTES)) }))
    }
}

impl Allowance {
    /// A share, in turn.
    pub(crate) async fn share(&self) -> Share {
        let expected = self.0.expected.load(Ordering::Relaxed);
        let units = Arc::clone(&self.0.units).acquire_many_owned(expected).await.expect("it is never closed");
        Share { account: Arc::clone(&self.0), units }
    }
}

impl Share {
    /// The answer has so many bytes. Where that is more than was expected, what is there of the rest is taken.
    pub(crate) fn is_of(&mut self, bytes: usize) {
        let wanted = units(bytes);
        self.account.expected.store(wanted, Ordering::Relaxed);
        let taken = u32::try_from(self.units.num_permits()).unwrap_or(u32::MAX);
        if let Some(more) = wanted.checked_sub(taken) {
            let there = u32::try_from(self.account.units.available_permits()).unwrap_or(u32::MAX);
            if let Ok(more) = Arc::clone(&self.account.units).try_acquire_many_owned(more.min(there)) {
                self.units.merge(more);
            }
        } else {
            drop(self.units.split((taken - wanted) as usize));
        }
    }
}

/// An answer has one unit at least, and no more than there are.
fn units(bytes: usize) -> u32 {
    let units = bytes.min(READ_AHEAD_BYTES_MAX).div_ceil(UNIT_BYTES).max(1);
    u32::try_from(units).unwrap_or(u32::MAX)
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
            let mut next = pin!(tokio::task::unconstrained(allowance.share()));
            match poll_fn(|context| Poll::Ready(next.as_mut().poll(context))).await {
                Poll::Ready(share) => shares.push(share),
                Poll::Pending => return shares,
            }
        }
    }

    #[tokio::test]
    async fn so_many_are_read_ahead_as_their_size_allows() {
        let allowance = Allowance::default();
        for (bytes, count) in [(READ_AHEAD_FIRST_BYTES, 8), (4 << 20, 2), (100, 2_048), (99 << 20, 1)] {
            let mut first = allowance.share().await;
            first.is_of(bytes);
            drop(first);
            assert_eq!(all(&allowance).await.len(), count, "{bytes} bytes each");
        }
    }

    #[tokio::test]
    async fn what_is_larger_than_expected_leaves_less_for_others() {
        let allowance = Allowance::default();
        let mut shares = all(&allowance).await;
        for share in &mut shares {
            share.is_of(4 << 20);
        }
        shares.truncate(1);
        assert_eq!(all(&allowance).await.len(), 1, "seven parts of a mebibyte came back");
        drop(shares);
        let mut small = allowance.share().await;
        small.is_of(1);
        assert_eq!(allowance.0.units.available_permits(), 2_047);
    }
}
