//! Read locks of transactions at a leader. They prevent wasted work, and no guarantee depends on them, because a commit
//! validates its reads. So they are kept in memory only. They may be lost or revoked, or outlive their client.
//!
//! A younger transaction does not change keys that an older one has read. An older one revokes the locks of a younger one
//! (wound-wait), whose validation then fails if the keys have changed. Writes without a transaction have priority over
//! all transactions. A retried transaction keeps its age, so it eventually becomes the oldest, which no other delays.
//!
//! A transaction that reads a key in order to change it *claims* it. Otherwise all transactions that change one key read
//! it at the same time, and all but one of them fail. One transaction has the claim, and others that want it wait. If it
//! had read the key before, and is older than the one with the claim, that one cannot commit first, and loses its locks.
//! Transactions whose claims wait for each other are in a deadlock, and the youngest one loses its locks. Between ranges
//! they may wait for each other, too: so if an older one has waited for long, the younger one loses its locks.
//!
//! The next claim of a transaction that has *lost* its locks fails: it cannot be committed any more, or would hold up
//! older ones. So its client learns it before the commit.
//!
//! Locks belong to the node that forwarded the read, or to the leader if the client has sent it there: while that node is not
//! alive, they do not count.
//!
//! A client that gets no answer retries a read, and one of the copies may arrive, or be granted, after the transaction
//! has released its locks. So the leader stores, for 10 s, which owners have released their locks: their reads do not
//! wait, and acquire no locks. A retry of a transaction that has released its locks has another owner.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use base::{Duration, Monotonic, NodeId};
use bytes::Bytes;
use state_machine::{LockKeys, LockOwner, Locks};

/// How long an older transaction waits for the claims of a younger one.
const CLAIM_PATIENCE: Duration = Duration::from_millis(1_000);
/// Locks that were not used for this time are removed: their client may have died.
const UNUSED: Duration = Duration::from_millis(10_000);
/// Maximum ranges of keys that one transaction locks here. Further reads are not protected.
const SPANS_MAX: usize = 1_000;
/// Maximum transactions with read locks at one leader. Further ones get none.
const OWNERS_MAX: usize = 10_000;
/// Maximum ranges of keys that all transactions lock at one leader, because each change is compared with them. Further
/// reads are not protected.
const SPANS_IN_ALL_MAX: usize = 10_000;
/// A claim that was refused within this time still waits: it is tried again more often.
const WAITS: Duration = Duration::from_millis(200);
/// Maximum number of owners that are stored because they have released or lost their locks. The oldest are removed.
const ENDED_MAX: usize = 10_000;
/// Maximum bytes of the keys of all locks at one leader. Further reads are not protected.
const BYTES_MAX: usize = 4 << 20;

/// The read locks at one leader.
#[derive(Clone, Debug, Default)]
pub(crate) struct ReadLocks {
    by_owner: BTreeMap<LockOwner, Held>,
    /// The transactions that are about to change these keys. Each has locks.
    claims: BTreeMap<Bytes, LockOwner>,
    /// Those that have released their locks.
    ended: Marks<()>,
    /// Those that have lost their locks, and have not learned it.
    lost: Marks<Loss>,
    /// The number of ranges of keys.
    spans: usize,
    /// The bytes of their keys.
    bytes: usize,
}

#[derive(Clone, Debug, Default)]
struct Held {
    /// The node that sent the last read.
    node: NodeId,
    spans: Vec<LockKeys>,
    used: Monotonic,
    /// Since when an older transaction waits for one of its claims.
    awaited: Option<Monotonic>,
    /// The transaction with the claim that one of its own waits for, and when it was refused last.
    waits_for: Option<(LockOwner, Monotonic)>,
}

/// Why a transaction has lost its locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Loss {
    /// Another one has changed a row that it had read, or has priority.
    Conflict,
    /// They waited for each other.
    Deadlock,
}

/// The answer to a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Claim {
    Granted,
    /// Another transaction has it.
    Waits,
    /// The transaction has lost its locks, and must be tried again.
    Lost(Loss),
}

/// Owners that were marked within the last [`UNUSED`].
#[derive(Clone, Debug)]
struct Marks<T> {
    owners: BTreeMap<LockOwner, T>,
    /// In order of time.
    times: VecDeque<(Monotonic, LockOwner)>,
}

impl<T> Default for Marks<T> {
    fn default() -> Self {
        Self { owners: BTreeMap::new(), times: VecDeque::new() }
    }
}

impl<T> Marks<T> {
    /// Returns false if it is marked already.
    fn add(&mut self, owner: LockOwner, mark: T, now: Monotonic) -> bool {
        let is_new = self.owners.insert(owner, mark).is_none();
        if is_new {
            self.times.push_back((now, owner));
        }
        self.forget(now);
        is_new
    }

    fn forget(&mut self, now: Monotonic) {
        let is_over = |(at, _): &(Monotonic, LockOwner)| now.since(*at) >= UNUSED;
        while self.times.len() > ENDED_MAX || self.times.front().is_some_and(is_over) {
            let Some((_, owner)) = self.times.pop_front() else { return };
            self.owners.remove(&owner);
        }
    }
}

impl ReadLocks {
    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.by_owner.is_empty()
    }

    /// The number of transactions that have some.
    pub(crate) fn owners(&self) -> usize {
        self.by_owner.len()
    }

    /// A transaction that this node drives reads these keys.
    pub(crate) fn add(&mut self, owner: LockOwner, node: NodeId, locks: &Locks, now: Monotonic) {
        if self.ended.owners.contains_key(&owner) {
            return;
        }
        let is_full = |locks: &Self| {
            locks.by_owner.len() >= OWNERS_MAX && !locks.by_owner.contains_key(&owner)
                || locks.spans >= SPANS_IN_ALL_MAX
                || locks.bytes >= BYTES_MAX
        };
        if is_full(self) {
            self.expire(now);
            if is_full(self) {
                return;
            }
        }
        let held = self.by_owner.entry(owner).or_default();
        (held.node, held.used) = (node, now);
        for span in locks.spans() {
            if held.spans.len() < SPANS_MAX && !held.spans.contains(&span.keys) {
                held.spans.push(span.keys.clone());
                self.spans += 1;
                self.bytes += bytes(&span.keys);
            }
        }
    }

    /// A transaction is about to change the keys that it reads. If another one is, the read must wait. A read of an owner
    /// that has released its locks does not wait: its transaction has ended.
    pub(crate) fn claim(&mut self, owner: LockOwner, node: NodeId, locks: &Locks, now: Monotonic) -> Claim {
        self.expire(now);
        if self.ended.owners.contains_key(&owner) {
            return Claim::Granted;
        }
        if !self.lost.owners.is_empty()
            && let Some(loss) = self.lost.owners.remove(&owner)
        {
            self.retain(|other, _| *other != owner);
            return Claim::Lost(loss);
        }
        let keys = || {
            locks.spans().iter().filter_map(|span| match &span.keys {
                LockKeys::Key(key) => Some(key),
                LockKeys::Range(_) => None,
            })
        };
        let others: BTreeSet<LockOwner> =
            keys().filter_map(|key| self.claims.get(key)).filter(|other| **other != owner).copied().collect();
        for other in others {
            if let Some(victim) = self.youngest_in_deadlock(owner, other, now) {
                self.lose(victim, Loss::Deadlock, now);
                if victim == owner {
                    self.lost.owners.remove(&owner);
                    return Claim::Lost(Loss::Deadlock);
                }
                if victim == other {
                    continue;
                }
            }
            let has_read =
                |held: &Held| held.spans.iter().any(|span| locks.spans().iter().any(|of| of.keys.meets(span)));
            if owner < other && self.by_owner.get(&owner).is_some_and(has_read) {
                self.lose(other, Loss::Conflict, now);
                continue;
            }
            let is_patient =
                |held: &mut Held| other < owner || now.since(*held.awaited.get_or_insert(now)) < CLAIM_PATIENCE;
            if self.by_owner.get_mut(&other).is_some_and(is_patient) {
                if let Some(held) = self.by_owner.get_mut(&owner) {
                    (held.used, held.waits_for) = (now, Some((other, now)));
                }
                return Claim::Waits;
            }
            self.lose(other, Loss::Conflict, now);
        }
        // Claims are limited as the locks that come with them.
        self.add(owner, node, locks, now);
        if let Some(held) = self.by_owner.get_mut(&owner)
            && self.claims.len() < SPANS_IN_ALL_MAX
        {
            held.waits_for = None;
            let keys: Vec<Bytes> = keys().cloned().collect();
            self.claims.extend(keys.into_iter().map(|key| (key, owner)));
        }
        Claim::Granted
    }

    /// The youngest of the transactions whose claims wait for each other in a circle, if one of `owner` waits for
    /// `other`.
    fn youngest_in_deadlock(&self, owner: LockOwner, other: LockOwner, now: Monotonic) -> Option<LockOwner> {
        let (mut youngest, mut next) = (owner, other);
        // A circle without `owner` ends the search, too.
        for _ in 0..=self.by_owner.len() {
            youngest = youngest.max(next);
            let (awaited, refused) = self.by_owner.get(&next)?.waits_for?;
            if now.since(refused) >= WAITS {
                return None;
            }
            if awaited == owner {
                return Some(youngest);
            }
            next = awaited;
        }
        None
    }

    /// Revokes the locks of a transaction, which learns it with its next claim.
    fn lose(&mut self, owner: LockOwner, loss: Loss, now: Monotonic) {
        self.retain(|other, _| *other != owner);
        self.lost.add(owner, loss, now);
    }

    /// Whether another transaction is about to change keys that this one reads.
    pub(crate) fn is_claimed(&self, owner: LockOwner, locks: &Locks) -> bool {
        let is_claimed = |keys: &LockKeys| match keys {
            LockKeys::Key(key) => self.claims.get(key).is_some_and(|other| *other != owner),
            LockKeys::Range(_) => false,
        };
        locks.spans().iter().any(|span| is_claimed(&span.keys))
    }

    /// Revokes the locks of younger transactions on the keys that a change of `owner` changes, and the owner's own locks.
    /// Returns false if an older transaction has locks on them; the change must then wait or be retried. A change without
    /// an owner counts as the oldest.
    pub(crate) fn give_way(&mut self, locks: &Locks, owner: Option<LockOwner>, now: Monotonic) -> bool {
        self.expire(now);
        let meets = |held: &Held| held.spans.iter().any(|span| locks.changed().any(|changed| changed.meets(span)));
        let is_older = |other: &LockOwner| owner.is_some_and(|owner| *other < owner);
        if self.by_owner.iter().any(|(other, held)| is_older(other) && meets(held)) {
            return false;
        }
        let mut lost = Vec::new();
        self.retain(|other, held| {
            let is_own = Some(*other) == owner;
            let loses = !is_own && meets(held);
            if loses {
                lost.push(*other);
            }
            !is_own && !loses
        });
        for other in lost {
            self.lost.add(other, Loss::Conflict, now);
        }
        // Another attempt may have the same owner.
        if !self.lost.owners.is_empty()
            && let Some(owner) = owner
        {
            self.lost.owners.remove(&owner);
        }
        true
    }

    /// A transaction has ended. Returns false if it had ended before. Otherwise reads that wait, also its own, are tried
    /// again.
    pub(crate) fn release(&mut self, owner: LockOwner, now: Monotonic) -> bool {
        self.retain(|other, _| *other != owner);
        self.lost.owners.remove(&owner);
        self.ended.add(owner, (), now)
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Removes the locks of nodes that are not alive.
    pub(crate) fn forget_dead(&mut self, is_alive: impl Fn(NodeId) -> bool) {
        self.retain(|_, held| is_alive(held.node));
    }

    fn expire(&mut self, now: Monotonic) {
        self.ended.forget(now);
        self.lost.forget(now);
        self.retain(|_, held| now.since(held.used) < UNUSED);
    }

    fn retain(&mut self, mut keeps: impl FnMut(&LockOwner, &Held) -> bool) {
        let before = self.by_owner.len();
        let (spans_now, bytes_now) = (&mut self.spans, &mut self.bytes);
        self.by_owner.retain(|owner, held| {
            let is_kept = keeps(owner, held);
            if !is_kept {
                *spans_now -= held.spans.len();
                *bytes_now -= held.spans.iter().map(bytes).sum::<usize>();
            }
            is_kept
        });
        if self.by_owner.len() < before {
            let by_owner = &self.by_owner;
            self.claims.retain(|_, owner| by_owner.contains_key(owner));
        }
    }
}

fn bytes(keys: &LockKeys) -> usize {
    match keys {
        LockKeys::Key(key) => key.len(),
        LockKeys::Range(range) => range.start.len() + range.end.as_ref().map_or(0, bytes::Bytes::len),
    }
}

#[cfg(test)]
mod tests {
    use state_machine::LockMode;

    use super::*;

    const ME: NodeId = NodeId(1);

    fn owner(started: i64) -> LockOwner {
        LockOwner { started: base::Timestamp(started), id: 1 }
    }

    fn on(key: &'static str) -> Locks {
        Locks::key(key.into(), LockMode::Blind)
    }

    impl ReadLocks {
        fn claims_now(&mut self, owner: LockOwner, node: NodeId, locks: &Locks, now: Monotonic) -> bool {
            self.claim(owner, node, locks, now) == Claim::Granted
        }
    }

    #[test]
    fn youngest_in_a_circle_of_claims_loses() {
        let (mut locks, now) = (ReadLocks::default(), Monotonic(1));
        for (started, key) in [(1, "a"), (2, "b"), (3, "c")] {
            assert!(locks.claims_now(owner(started), ME, &on(key), now));
        }
        let mut claims = |started, key, now| locks.claim(owner(started), ME, &on(key), now);
        assert_eq!(claims(1, "b", now), Claim::Waits);
        assert_eq!(claims(3, "a", now), Claim::Waits);
        let later = now + WAITS;
        assert_eq!(claims(2, "c", later), Claim::Waits, "the others wait no longer");
        assert_eq!(claims(1, "b", later), Claim::Waits);
        assert_eq!(claims(3, "a", later), Claim::Lost(Loss::Deadlock), "it closes the circle itself");
        assert_eq!(claims(2, "c", later), Claim::Granted);
        assert_eq!(claims(3, "a", later), Claim::Waits, "another attempt");
        assert!(claims(3, "d", later) == Claim::Granted && claims(2, "d", later) == Claim::Waits);
        assert_eq!(claims(3, "b", later), Claim::Lost(Loss::Deadlock));
        assert_eq!(claims(2, "d", later), Claim::Granted);
    }

    /// The younger one could not commit before the older one has ended, and the older one could not change the key.
    #[test]
    fn older_reader_takes_the_claim() {
        let (mut locks, now) = (ReadLocks::default(), Monotonic(1));
        locks.add(owner(1), ME, &on("a"), now);
        assert!(locks.claims_now(owner(2), ME, &on("a"), now) && !locks.give_way(&on("a"), Some(owner(2)), now));
        locks.add(owner(3), ME, &on("a"), now);
        assert!(!locks.claims_now(owner(3), ME, &on("a"), now), "a younger reader waits");
        assert!(locks.claims_now(owner(1), ME, &on("a"), now));
        assert!(locks.give_way(&on("a"), Some(owner(1)), now));
        for loser in [2, 3] {
            assert_eq!(locks.claim(owner(loser), ME, &on("a"), now), Claim::Lost(Loss::Conflict));
        }
        assert!(locks.claims_now(owner(3), ME, &on("a"), now), "it has learned it");
        assert!(locks.lost.owners.is_empty());
    }

    #[test]
    fn older_transactions_wound_younger_ones() {
        let (mut locks, now) = (ReadLocks::default(), Monotonic(1));
        locks.add(owner(2), ME, &on("a"), now);
        assert!(locks.give_way(&on("b"), Some(owner(3)), now), "other keys");
        assert!(!locks.give_way(&on("a"), Some(owner(3)), now), "a younger one waits");
        locks.add(owner(4), ME, &on("a"), now);
        assert!(locks.give_way(&on("a"), Some(owner(1)), now), "an older one does not");
        assert!(locks.is_empty(), "both have lost their locks");
    }

    #[test]
    fn locks_of_dead_nodes_do_not_count() {
        let (mut locks, now) = (ReadLocks::default(), Monotonic(1));
        assert!(locks.claims_now(owner(1), NodeId(2), &on("a"), now));
        locks.add(owner(2), ME, &on("b"), now);
        locks.forget_dead(|node| node == ME);
        assert!(locks.claims_now(owner(3), ME, &on("a"), now) && locks.give_way(&on("a"), Some(owner(3)), now));
        assert!(!locks.give_way(&on("b"), Some(owner(3)), now));
    }

    #[test]
    fn writes_without_a_transaction_do_not_wait() {
        let (mut locks, now) = (ReadLocks::default(), Monotonic(1));
        locks.add(owner(2), ME, &on("a"), now);
        locks.add(owner(3), ME, &on("b"), now);
        assert!(locks.give_way(&on("a"), None, now));
        assert!(!locks.give_way(&on("b"), Some(owner(9)), now), "the other stays");
        assert!(locks.give_way(&on("b"), Some(owner(3)), now), "its own");
    }

    #[test]
    fn claims_wait_for_each_other() {
        let (mut locks, now) = (ReadLocks::default(), Monotonic(1));
        assert!(
            locks.claims_now(owner(2), ME, &on("a"), now) && locks.claims_now(owner(2), ME, &on("a"), now),
            "its own"
        );
        locks.add(owner(9), ME, &on("a"), now);
        assert!(!locks.claims_now(owner(3), ME, &on("a"), now), "a younger one waits");
        assert!(locks.claims_now(owner(3), ME, &on("b"), now), "other keys");
        assert!(locks.give_way(&on("a"), Some(owner(2)), now), "the end of the first one");
        assert!(locks.claims_now(owner(3), ME, &on("a"), now));
        // An older one waits too, but not for ever: it may hold what the younger one waits for.
        assert!(!locks.claims_now(owner(1), ME, &on("a"), now));
        assert!(!locks.claims_now(owner(1), ME, &on("a"), now + Duration::from_millis(999)));
        assert!(locks.claims_now(owner(1), ME, &on("a"), now + CLAIM_PATIENCE));
        assert!(
            !locks.claims_now(owner(4), ME, &on("a"), now + CLAIM_PATIENCE)
                && locks.claims_now(owner(4), ME, &on("b"), now)
        );
        assert!(locks.release(owner(1), now) && locks.release(owner(4), now));
        assert!(locks.is_empty() && locks.claims.is_empty());
    }

    /// A read that waits for a claim, and a copy of one that was granted, both of transactions that have ended.
    #[test]
    fn ended_transactions_take_no_locks() {
        let (mut locks, now) = (ReadLocks::default(), Monotonic(1));
        assert!(locks.claims_now(owner(2), ME, &on("a"), now) && !locks.claims_now(owner(3), ME, &on("a"), now));
        assert!(locks.release(owner(3), now), "it had no locks, but a read of it waits");
        assert!(!locks.release(owner(3), now), "the request was sent twice");
        assert!(locks.claims_now(owner(3), ME, &on("a"), now), "its read waits no longer");
        assert!(!locks.claims_now(owner(4), ME, &on("a"), now) && locks.release(owner(2), now));
        assert!(locks.claims_now(owner(2), ME, &on("a"), now + Duration::from_millis(9_999)));
        locks.add(owner(3), ME, &on("a"), now);
        assert!(locks.is_empty() && locks.claims.is_empty(), "neither has taken anything");
        assert!(locks.claims_now(owner(4), ME, &on("a"), now));
        locks.clear();
        assert!(locks.claims_now(owner(2), ME, &on("a"), now), "another leader does not know of it");
    }

    #[test]
    fn ended_transactions_are_forgotten() {
        let (mut locks, begin) = (ReadLocks::default(), Monotonic(0));
        locks.release(owner(1), begin);
        assert!(locks.give_way(&on("a"), None, begin + UNUSED));
        assert!(locks.ended.owners.is_empty() && locks.ended.times.is_empty());
        for started in 0..=10_000 {
            locks.release(owner(started), begin);
        }
        assert_eq!((locks.ended.owners.len(), locks.ended.times.len()), (ENDED_MAX, ENDED_MAX));
        locks.add(owner(10_000), ME, &on("a"), begin);
        assert!(locks.is_empty());
        locks.add(owner(0), ME, &on("a"), begin);
        assert!(!locks.is_empty(), "the earliest");
    }

    #[test]
    fn unused_locks_expire() {
        let mut locks = ReadLocks::default();
        locks.add(owner(2), ME, &on("a"), Monotonic(0));
        assert!(!locks.give_way(&on("a"), Some(owner(3)), Monotonic(0) + Duration::from_millis(9_999)));
        assert!(locks.give_way(&on("a"), Some(owner(3)), Monotonic(0) + UNUSED));
    }
}
