//! Accounting of the memory that clients use on a node.
//!
//! Half of a node's memory for clients is open to all protocols, and the other half is divided into reserves, one for each
//! ([`ClientBudgets`]). A connection has a share of its protocol's reserve. What fits into its share is taken from the
//! reserve, and everything else from the open half. So whatever others use, a connection has its share, as long as the
//! reserve is enough for the shares in use; and one busy connection may use the open half.
//!
//! A [`Reservation`] releases its bytes when it is dropped. If there is no room, a caller either fails
//! ([`ByteBudget::try_reserve`]) or waits for a release ([`ByteBudget::poll_reserve`]). A reservation takes two atomic
//! operations, and a lock only if there are waiters.

use std::mem;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

/// A budget of bytes. Clones share the same budget.
#[derive(Clone, Debug)]
pub struct ByteBudget {
    pools: Arc<Pools>,
    /// The share of the reserve; none if this is the budget of all connections.
    share: Option<Arc<Pool>>,
}

/// The budgets of a node's protocols.
#[derive(Clone, Debug)]
pub struct ClientBudgets {
    /// Requests of gRPC clients, from their first byte until they are answered.
    pub grpc_requests: ByteBudget,
    /// Responses to them, from their creation until they are written to the socket. While clients do not read them,
    /// requests are still accepted.
    pub grpc_responses: ByteBudget,
    /// Messages and results of SQL sessions, and the data that queries sort, group and join.
    pub sql: ByteBudget,
    /// Incomplete requests and unread replies of ZooKeeper clients.
    pub zookeeper: ByteBudget,
    /// The same of NBD clients.
    pub nbd: ByteBudget,
    /// Data of their requests in progress.
    pub nbd_requests: ByteBudget,
}

/// The reserve of a protocol, and the part that is open to all.
#[derive(Debug)]
struct Pools {
    reserve: Pool,
    open: Arc<Open>,
    /// Bytes that this protocol has of the open part.
    opened: AtomicUsize,
}

#[derive(Debug)]
struct Open {
    pool: Pool,
    /// Waiters of all protocols.
    wakers: Mutex<Vec<Waker>>,
    waiting: AtomicUsize,
}

#[derive(Debug)]
struct Pool {
    limit: usize,
    used: AtomicUsize,
}

/// Bytes of a budget, released on drop.
#[derive(Debug)]
pub struct Reservation {
    budget: ByteBudget,
    reserved: usize,
    open: usize,
}

impl ClientBudgets {
    /// Divides `bytes`.
    #[must_use]
    pub fn new(bytes: usize) -> Self {
        let open = Arc::new(Open::new(bytes / 2));
        let part = |sixteenths| ByteBudget::of(bytes / 16 * sixteenths, &open);
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
    /// A budget of `limit` bytes by itself.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self::of(limit, &Arc::new(Open::new(0)))
    }

    fn of(reserve: usize, open: &Arc<Open>) -> Self {
        let pools = Pools { reserve: Pool::new(reserve), open: Arc::clone(open), opened: AtomicUsize::default() };
        Self { pools: Arc::new(pools), share: None }
    }

    /// The budget of a connection, with `share` bytes of the reserve.
    #[must_use]
    pub fn child(&self, share: usize) -> Self {
        Self { pools: Arc::clone(&self.pools), share: Some(Arc::new(Pool::new(share))) }
    }

    /// Bytes of the reserve.
    #[must_use]
    pub fn limit(&self) -> usize {
        self.pools.reserve.limit
    }

    /// Bytes in use by all connections.
    #[must_use]
    pub fn used(&self) -> usize {
        self.pools.reserve.used() + self.pools.opened.load(Ordering::SeqCst)
    }

    /// Whether more than a quarter is in use of the part that is open to all; of a budget by itself, of the whole.
    #[must_use]
    pub fn is_short(&self) -> bool {
        let pool = self.forced_pool();
        pool.used() > pool.limit / 4
    }

    /// Whether it has a part in [`ByteBudget::charge`]s beyond the limit.
    #[must_use]
    pub fn is_exceeded(&self) -> bool {
        let pool = self.forced_pool();
        pool.used() > pool.limit && (self.is_alone() || self.pools.opened.load(Ordering::SeqCst) > 0)
    }

    /// Reserves bytes; none if there is no room.
    #[must_use]
    pub fn try_reserve(&self, bytes: usize) -> Option<Reservation> {
        let mut reservation = self.charge(0);
        reservation.try_grow(bytes).then_some(reservation)
    }

    /// [`ByteBudget::try_reserve`]; if there is no room, `waker` is woken by the next release of any protocol.
    #[must_use]
    pub fn poll_reserve(&self, bytes: usize, waker: &Waker) -> Option<Reservation> {
        self.try_reserve(bytes).or_else(|| {
            let open = &self.pools.open;
            let mut wakers = open.wakers();
            if !wakers.iter().any(|waiting| waiting.will_wake(waker)) {
                wakers.push(waker.clone());
            }
            open.waiting.store(wakers.len(), Ordering::SeqCst);
            drop(wakers);
            // Bytes may have been released just before.
            self.try_reserve(bytes)
        })
    }

    /// Reserves bytes even if there is no room, for data that is already in memory.
    #[must_use]
    pub fn charge(&self, bytes: usize) -> Reservation {
        let mut reservation = Reservation { budget: self.clone(), reserved: 0, open: 0 };
        reservation.grow(bytes);
        reservation
    }

    fn is_alone(&self) -> bool {
        self.pools.open.pool.limit == 0
    }

    /// The pool that forced charges go to.
    fn forced_pool(&self) -> &Pool {
        if self.is_alone() { &self.pools.reserve } else { &self.pools.open.pool }
    }

    fn take_reserved(&self, bytes: usize) -> bool {
        if self.share.as_ref().is_some_and(|share| !share.take(bytes)) {
            return false;
        }
        let is_taken = self.pools.reserve.take(bytes);
        if !is_taken && let Some(share) = &self.share {
            share.give_back(bytes);
        }
        is_taken
    }

    fn take_open(&self, bytes: usize) -> bool {
        let is_taken = self.pools.open.pool.take(bytes);
        if is_taken {
            self.pools.opened.fetch_add(bytes, Ordering::SeqCst);
        }
        is_taken
    }
}

impl Pool {
    fn new(limit: usize) -> Self {
        Self { limit, used: AtomicUsize::default() }
    }

    fn used(&self) -> usize {
        self.used.load(Ordering::SeqCst)
    }

    fn take(&self, bytes: usize) -> bool {
        let sum = |used: usize| used.checked_add(bytes).filter(|sum| *sum <= self.limit);
        self.used.fetch_update(Ordering::SeqCst, Ordering::SeqCst, sum).is_ok()
    }

    fn force(&self, bytes: usize) {
        self.used.fetch_add(bytes, Ordering::SeqCst);
    }

    fn give_back(&self, bytes: usize) {
        self.used.fetch_sub(bytes, Ordering::SeqCst);
    }
}

impl Open {
    fn new(limit: usize) -> Self {
        Self { pool: Pool::new(limit), wakers: Mutex::default(), waiting: AtomicUsize::default() }
    }

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
        self.reserved + self.open
    }

    /// Reserves additional bytes; false if there is no room.
    #[must_use]
    pub fn try_grow(&mut self, bytes: usize) -> bool {
        if self.budget.take_reserved(bytes) {
            self.reserved += bytes;
            true
        } else if self.budget.take_open(bytes) {
            self.open += bytes;
            true
        } else {
            false
        }
    }

    /// Reserves additional bytes even if there is no room.
    pub fn grow(&mut self, bytes: usize) {
        if bytes == 0 || self.try_grow(bytes) {
            return;
        }
        self.budget.forced_pool().force(bytes);
        if self.budget.is_alone() {
            self.reserved += bytes;
            if let Some(share) = &self.budget.share {
                share.force(bytes);
            }
        } else {
            self.open += bytes;
            self.budget.pools.opened.fetch_add(bytes, Ordering::SeqCst);
        }
    }

    /// Holds `bytes`, even if there is no room.
    pub fn set_to(&mut self, bytes: usize) {
        self.grow(bytes.saturating_sub(self.bytes()));
        self.shrink_to(bytes);
    }

    /// Releases all but `bytes`, first those of the open part.
    pub fn shrink_to(&mut self, bytes: usize) {
        let unneeded = self.bytes().saturating_sub(bytes);
        if unneeded == 0 {
            return;
        }
        let pools = &self.budget.pools;
        let open = unneeded.min(self.open);
        if open > 0 {
            self.open -= open;
            pools.opened.fetch_sub(open, Ordering::SeqCst);
            pools.open.pool.give_back(open);
        }
        let reserved = unneeded - open;
        if reserved > 0 {
            self.reserved -= reserved;
            pools.reserve.give_back(reserved);
            if let Some(share) = &self.budget.share {
                share.give_back(reserved);
            }
        }
        pools.open.wake();
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
    fn connection_has_its_share_beside_a_busy_one() {
        let budgets = ClientBudgets::new(1_600);
        let [busy, other] = [budgets.sql.child(20), budgets.sql.child(20)];
        let most = busy.try_reserve(800).expect("the open half");
        let own = busy.try_reserve(20).expect("its share");
        assert!(busy.try_reserve(1).is_none());
        let mut of_other = other.try_reserve(15).expect("a part of its share");
        assert!(!of_other.try_grow(6) && of_other.try_grow(5) && !of_other.try_grow(1));
        assert_eq!((of_other.bytes(), budgets.sql.used()), (20, 840));
        drop(most);
        assert!(of_other.try_grow(800));
        of_other.shrink_to(20);
        assert!(busy.try_reserve(800).is_some(), "open bytes are released first");
        drop((own, of_other));
        assert_eq!(budgets.sql.used(), 0);
    }

    #[test]
    fn reserves_of_protocols_are_half_of_the_memory() {
        let budgets = ClientBudgets::new(1_600);
        let mut whole = budgets.sql.try_reserve(200).expect("its reserve");
        assert!(whole.try_grow(800) && !whole.try_grow(1) && !budgets.sql.is_exceeded());
        let ClientBudgets { grpc_requests, grpc_responses, zookeeper, nbd, nbd_requests, .. } = &budgets;
        let shares = [(grpc_requests, 100), (grpc_responses, 200), (zookeeper, 100), (nbd, 100), (nbd_requests, 100)];
        let held = shares.map(|(budget, share)| budget.try_reserve(share).expect("its reserve"));
        assert!(shares.iter().all(|(budget, _)| budget.try_reserve(1).is_none()));
        let late = zookeeper.charge(1);
        assert!(zookeeper.is_exceeded() && budgets.sql.is_exceeded() && !nbd.is_exceeded());
        drop(whole);
        assert!(!zookeeper.is_exceeded() && nbd.try_reserve(799).is_some());
        drop((late, held));
        assert!(shares.iter().all(|(budget, _)| budget.used() == 0));
    }

    #[test]
    fn shares_beyond_the_reserve() {
        let alone = ByteBudget::new(30);
        let children: Vec<_> = (0..4).map(|_| alone.child(10)).collect();
        let all: Vec<_> = children.iter().filter_map(|child| child.try_reserve(10)).collect();
        assert_eq!((all.len(), alone.used()), (3, 30));
        drop(all);
        let last = children[3].try_reserve(10).expect("a failed reservation changes nothing");
        assert!(children[3].try_reserve(1).is_none());
        drop(last);
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
        assert_eq!(node.used(), 48);
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
