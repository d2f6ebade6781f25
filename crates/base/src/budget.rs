//! Accounting of the memory that clients use on a node.
//!
//! A [`ByteBudget`] has a limit, and may have children with a share each: a node's budget has a child for each protocol
//! ([`ClientBudgets`]), and that one a child for each connection. A reservation from a child also counts against its
//! parent. The root's limit always holds. A child's share is enforced while more than half of each budget above it is in
//! use: one busy connection may use half of a node's memory, and none exceeds its share once memory is short.
//!
//! A [`Reservation`] releases its bytes when it is dropped. If there is no room, a caller either fails
//! ([`ByteBudget::try_reserve`]) or waits for a release ([`ByteBudget::poll_reserve`]). A reservation takes one atomic
//! operation for each level, and a lock only if there are waiters.

use std::mem;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

/// A budget of bytes. Clones share the same budget.
#[derive(Clone, Debug)]
pub struct ByteBudget(Arc<Account>);

#[derive(Debug, Default)]
struct Account {
    limit: usize,
    used: AtomicUsize,
    parent: Option<ByteBudget>,
    /// Waiters of the root and of all its children are registered with the root.
    wakers: Mutex<Vec<Waker>>,
    waiting: AtomicUsize,
}

/// Bytes of a budget, released on drop.
#[derive(Debug)]
pub struct Reservation {
    budget: ByteBudget,
    bytes: usize,
}

/// The budgets of a node's protocols. The shares are half of the memory, and the other half is open to all of them,
/// so that no protocol can take them from another one.
#[derive(Clone, Debug)]
pub struct ClientBudgets {
    /// Requests of gRPC clients, from their first byte until they are answered.
    pub grpc_requests: ByteBudget,
    /// Responses to them, from their creation until they are written to the socket. While clients do not read
    /// them, requests are still accepted.
    pub grpc_responses: ByteBudget,
    /// Messages and results of SQL sessions, and what queries sort, group and join.
    pub sql: ByteBudget,
    /// Incomplete requests and unread replies of ZooKeeper clients.
    pub zookeeper: ByteBudget,
    /// The same of NBD clients.
    pub nbd: ByteBudget,
    /// Data of their requests in progress.
    pub nbd_requests: ByteBudget,
}

impl ClientBudgets {
    /// Divides `bytes`.
    #[must_use]
    pub fn new(bytes: usize) -> Self {
        let node = ByteBudget::new(bytes);
        let part = |sixteenths| node.child(bytes / 16 * sixteenths);
        Self {
            grpc_requests: part(1),
            grpc_responses: part(2),
            sql: part(2),
            zookeeper: part(1),
            nbd: part(1),
            nbd_requests: part(1),
        }
    }
}

impl ByteBudget {
    /// A root budget of `limit` bytes.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self(Arc::new(Account { limit, ..Account::default() }))
    }

    /// A child budget. It is limited to `share` bytes while this budget is short.
    #[must_use]
    pub fn child(&self, share: usize) -> Self {
        Self(Arc::new(Account { limit: share, parent: Some(self.clone()), ..Account::default() }))
    }

    /// Its limit or, of a child, its share, in bytes.
    #[must_use]
    pub fn limit(&self) -> usize {
        self.0.limit
    }

    #[must_use]
    pub fn used(&self) -> usize {
        self.0.used.load(Ordering::SeqCst)
    }

    /// Whether more than half of it is in use, and of each budget above it, so that the shares of its children are
    /// enforced.
    #[must_use]
    pub fn is_short(&self) -> bool {
        !self.is_open(0)
    }

    /// Whether more is in use than its share while that is enforced, because of [`ByteBudget::charge`].
    #[must_use]
    pub fn is_exceeded(&self) -> bool {
        self.used() > self.0.limit && self.0.parent.as_ref().is_none_or(Self::is_short)
    }

    /// Reserves bytes; none if there is no room.
    #[must_use]
    pub fn try_reserve(&self, bytes: usize) -> Option<Reservation> {
        self.take(bytes).then(|| Reservation { budget: self.clone(), bytes })
    }

    /// [`ByteBudget::try_reserve`]; if there is no room, `waker` is woken by the next release.
    #[must_use]
    pub fn poll_reserve(&self, bytes: usize, waker: &Waker) -> Option<Reservation> {
        self.try_reserve(bytes).or_else(|| {
            let root = self.root();
            let mut wakers = root.wakers();
            wakers.push(waker.clone());
            root.waiting.store(wakers.len(), Ordering::SeqCst);
            drop(wakers);
            // Bytes may have been released just before.
            self.try_reserve(bytes)
        })
    }

    /// Reserves bytes even if there is no room, for data that is already in memory.
    #[must_use]
    pub fn charge(&self, bytes: usize) -> Reservation {
        self.add(bytes);
        Reservation { budget: self.clone(), bytes }
    }

    fn root(&self) -> &Account {
        self.0.parent.as_ref().map_or(&self.0, Self::root)
    }

    /// Whether its children may use `bytes` more than their shares.
    fn is_open(&self, bytes: usize) -> bool {
        let parent = self.0.parent.as_ref();
        sum(self.used(), bytes, self.0.limit / 2).is_some() || parent.is_some_and(|parent| parent.is_open(bytes))
    }

    fn take(&self, bytes: usize) -> bool {
        let Some(parent) = &self.0.parent else {
            let add = |used| sum(used, bytes, self.0.limit);
            return self.0.used.fetch_update(Ordering::SeqCst, Ordering::SeqCst, add).is_ok();
        };
        let has_share = || sum(self.used(), bytes, self.0.limit).is_some();
        let taken = (has_share() || parent.is_open(bytes)) && parent.take(bytes);
        if taken {
            self.0.used.fetch_add(bytes, Ordering::SeqCst);
        }
        taken
    }

    fn add(&self, bytes: usize) {
        self.0.used.fetch_add(bytes, Ordering::SeqCst);
        self.0.parent.iter().for_each(|parent| parent.add(bytes));
    }

    fn give_back(&self, bytes: usize) {
        self.0.used.fetch_sub(bytes, Ordering::SeqCst);
        match &self.0.parent {
            Some(parent) => parent.give_back(bytes),
            None => self.0.wake(),
        }
    }
}

/// The sum of `used` and `bytes` if it is at most `limit`.
fn sum(used: usize, bytes: usize, limit: usize) -> Option<usize> {
    used.checked_add(bytes).filter(|sum| *sum <= limit)
}

impl Account {
    fn wake(&self) {
        if self.waiting.load(Ordering::SeqCst) > 0 {
            let mut wakers = self.wakers();
            self.waiting.store(0, Ordering::SeqCst);
            let woken = mem::take(&mut *wakers);
            drop(wakers);
            woken.into_iter().for_each(Waker::wake);
        }
    }

    fn wakers(&self) -> MutexGuard<'_, Vec<Waker>> {
        self.wakers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Reservation {
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Reserves additional bytes; false if there is no room.
    #[must_use]
    pub fn try_grow(&mut self, bytes: usize) -> bool {
        let fits = self.budget.take(bytes);
        self.bytes += if fits { bytes } else { 0 };
        fits
    }

    /// Reserves additional bytes even if there is no room.
    pub fn grow(&mut self, bytes: usize) {
        if bytes > 0 {
            self.budget.add(bytes);
            self.bytes += bytes;
        }
    }

    /// Holds `bytes`, even if there is no room.
    pub fn set_to(&mut self, bytes: usize) {
        self.grow(bytes.saturating_sub(self.bytes));
        self.shrink_to(bytes);
    }

    /// Whether its budget holds more than its share while shares are enforced.
    #[must_use]
    pub fn is_exceeded(&self) -> bool {
        self.budget.is_exceeded()
    }

    /// Releases all but `bytes`.
    pub fn shrink_to(&mut self, bytes: usize) {
        let unneeded = self.bytes.saturating_sub(bytes);
        if unneeded > 0 {
            self.bytes -= unneeded;
            self.budget.give_back(unneeded);
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.shrink_to(0);
    }
}

#[cfg(test)]
mod tests {
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn enforces_limit_and_releases_on_drop() {
        let budget = ByteBudget::new(100);
        let mut first = budget.try_reserve(60).expect("there is room");
        assert!(budget.try_reserve(41).is_none());
        assert!(!first.try_grow(41) && first.try_grow(40));
        first.shrink_to(10);
        assert_eq!((first.bytes(), budget.used()), (10, 10));
        let forced = budget.charge(200);
        assert!(budget.try_reserve(1).is_none());
        drop((first, forced));
        assert_eq!(budget.used(), 0);
        assert!(budget.try_reserve(usize::MAX).is_none(), "no overflow");
    }

    #[test]
    fn share_enforced_under_parent_pressure() {
        let node = ByteBudget::new(100);
        let (busy, other) = (node.child(10), node.child(10));
        let half = busy.try_reserve(50).expect("the parent has free memory");
        assert!(busy.try_reserve(1).is_none(), "the share is enforced once half of the parent is in use");
        let share = other.try_reserve(10).expect("the share is available");
        assert!(other.try_reserve(1).is_none());
        assert_eq!((busy.used(), other.used(), node.used()), (50, 10, 60));
        drop(half);
        assert!(other.try_reserve(40).is_some());
        drop(share);
        assert_eq!((busy.used(), other.used(), node.used()), (0, 0, 0));
    }

    #[test]
    fn share_of_a_share() {
        let node = ByteBudget::new(160);
        let [protocol, other] = [node.child(40), node.child(40)];
        let [connection, second] = [protocol.child(10), protocol.child(10)];
        let most = connection.try_reserve(80).expect("the node has free memory");
        assert!(connection.try_reserve(1).is_none(), "half of the node is in use");
        let [first, rest] = [15, 5].map(|bytes| other.child(1).try_reserve(bytes));
        assert!(first.is_some() && rest.is_some(), "the other protocol is within half of its share");
        assert!(second.try_reserve(5).is_none(), "the protocol is beyond its share");
        let late = protocol.charge(1);
        assert!(protocol.is_exceeded() && !other.is_exceeded());
        drop(most);
        assert!(!protocol.is_exceeded() && second.try_reserve(10).is_some());
        drop(late);
    }

    #[test]
    fn shares_of_protocols_are_half_of_the_memory() {
        let budgets = ClientBudgets::new(1_600);
        let whole = budgets.sql.try_reserve(800).expect("half of it");
        assert!(budgets.sql.try_reserve(1).is_none());
        let ClientBudgets { grpc_requests, grpc_responses, zookeeper, nbd, nbd_requests, .. } = &budgets;
        let shares = [(grpc_requests, 100), (grpc_responses, 200), (zookeeper, 100), (nbd, 100), (nbd_requests, 100)];
        let held = shares.map(|(budget, share)| budget.try_reserve(share).expect("its share"));
        assert!(shares.iter().all(|(budget, _)| budget.try_reserve(1).is_none()));
        let late = budgets.sql.charge(1);
        assert!(budgets.sql.is_exceeded() && !budgets.nbd.is_exceeded());
        drop((whole, held, late));
    }

    #[test]
    fn root_limit_applies_to_children() {
        let node = ByteBudget::new(30);
        let children: Vec<_> = (0..4).map(|_| node.child(10)).collect();
        let all: Vec<_> = children.iter().filter_map(|child| child.try_reserve(10)).collect();
        assert_eq!((all.len(), node.used()), (3, 30));
        assert_eq!(children[3].used(), 0, "a failed reservation changes nothing");
    }

    #[test]
    fn release_wakes_waiters() {
        let node = ByteBudget::new(100);
        let (connection, other) = (node.child(10), node.child(10));
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(Arc::clone(&woken));
        let count = || woken.0.swap(0, Ordering::SeqCst);
        let (own, mut of_other) = (connection.charge(10), other.charge(50));
        assert!(connection.poll_reserve(5, &waker).is_none());
        assert_eq!(count(), 0);
        of_other.shrink_to(49);
        assert_eq!(count(), 1);
        of_other.shrink_to(48);
        assert_eq!(count(), 0, "its waker was removed");
        assert!(connection.poll_reserve(5, &waker).is_none());
        drop(own);
        assert_eq!(count(), 1);
        assert!(connection.poll_reserve(5, &waker).is_some());
        assert_eq!((connection.used(), node.used()), (0, 48));
    }

    #[test]
    fn concurrent_wakeups_are_not_lost() {
        struct Unpark(std::thread::Thread);
        impl Wake for Unpark {
            fn wake(self: Arc<Self>) {
                self.0.unpark();
            }
        }
        let node = ByteBudget::new(12);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                let budget = node.child(10);
                scope.spawn(move || {
                    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
                    for bytes in (0..2_000).map(|round| 1 + round % 10) {
                        while budget.poll_reserve(bytes, &waker).is_none() {
                            std::thread::park();
                        }
                    }
                });
            }
        });
        assert_eq!(node.used(), 0);
    }
}
