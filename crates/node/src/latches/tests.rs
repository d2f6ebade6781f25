use base::SplitMix64;
use state_machine::LockSpan;

use super::*;

fn key(key: &'static str) -> LockKeys {
    LockKeys::Key(key.into())
}

fn range(start: &'static str, end: &'static str) -> LockKeys {
    LockKeys::Range(KeyRange { start: start.into(), end: Some(end.into()) })
}

fn blind(keys: LockKeys) -> Locks {
    Locks::one(LockSpan { keys, mode: LockMode::Blind })
}

fn exclusive(keys: LockKeys) -> Locks {
    Locks::one(LockSpan { keys, mode: LockMode::Exclusive })
}

fn several(keys: &[&LockKeys]) -> Locks {
    Locks::several(keys.iter().map(|keys| LockSpan { keys: (*keys).clone(), mode: LockMode::Exclusive }).collect())
}

/// A conditional write waits for the writes in progress on its row, and later writes wait for it.
#[test]
fn latches_are_fifo() {
    let mut latches = Latches::default();
    let (row, decided) = (blind(key("k")), exclusive(key("k")));
    assert!(latches.enter(&row, PendingId(1)));
    assert!(latches.enter(&row, PendingId(2)), "unconditional writes do not block each other");
    assert!(!latches.enter(&decided, PendingId(3)));
    assert!(!latches.enter(&row, PendingId(4)), "later writes must not starve the third one");
    assert!(latches.enter(&exclusive(key("l")), PendingId(5)));
    assert!(latches.leave(&row).is_empty());
    assert_eq!(latches.leave(&row), [PendingId(3), PendingId(4)]);
    assert!(latches.enter(&decided, PendingId(3)));
    assert!(!latches.enter(&row, PendingId(6)), "the third write is being decided");
    assert_eq!(latches.decided(&decided), [PendingId(6)]);
    assert!(latches.enter(&row, PendingId(6)));
    assert!(!latches.enter(&decided, PendingId(7)));
    assert_eq!(latches.clear().collect::<Vec<_>>(), [PendingId(7)]);
    assert!(latches.is_empty());
}

#[test]
fn several_keys_are_latched_at_once() {
    let mut latches = Latches::default();
    let [a, b, c] = ["a", "b", "c"].map(key);
    let (first, second) = (several(&[&a, &b]), several(&[&b, &a]));
    assert!(latches.enter(&exclusive(b.clone()), PendingId(1)));
    assert!(!latches.enter(&first, PendingId(2)));
    assert!(!latches.enter(&second, PendingId(3)));
    assert!(!latches.enter(&blind(a.clone()), PendingId(4)), "it must not overtake the second one");
    assert!(latches.enter(&blind(c.clone()), PendingId(5)));
    assert_eq!(latches.leave(&exclusive(b)), [PendingId(2), PendingId(3), PendingId(4)]);
    assert!(latches.enter(&first, PendingId(2)));
    assert!(!latches.enter(&second, PendingId(3)));
    assert!(latches.decided(&first) == [PendingId(3)]);
    assert!(!latches.enter(&second, PendingId(3)), "the entry of the first one is not applied");
    assert_eq!(latches.leave(&first), [PendingId(3)]);
    assert!(latches.enter(&second, PendingId(3)) && latches.leave(&second).is_empty());
    assert!(latches.leave(&blind(c)).is_empty());
    assert!(latches.is_empty());
}

/// A change may name a key twice, and a range that contains it.
#[test]
fn spans_of_one_change_may_overlap() {
    let mut latches = Latches::default();
    let all = several(&[&key("b"), &key("b"), &range("a", "c"), &range("b", "d")]);
    assert!(latches.enter(&all, PendingId(1)));
    assert!(!latches.enter(&all, PendingId(2)));
    assert_eq!(latches.leave(&all), [PendingId(2)]);
    assert!(latches.is_empty());
}

#[test]
fn ranges_exclude_their_keys() {
    let mut latches = Latches::default();
    let (inner, outer) = (range("b", "d"), range("a", "c"));
    assert!(latches.enter(&blind(key("b")), PendingId(1)));
    assert!(latches.enter(&blind(key("d")), PendingId(2)));
    assert!(!latches.enter(&exclusive(inner.clone()), PendingId(3)));
    assert!(!latches.enter(&blind(key("c")), PendingId(4)), "it must not overtake the third one");
    assert!(!latches.enter(&blind(outer.clone()), PendingId(5)), "nor does an overlapping range");
    assert!(latches.leave(&blind(key("d"))).is_empty(), "the end of a range is exclusive");
    assert_eq!(latches.leave(&blind(key("b"))), [PendingId(3), PendingId(4), PendingId(5)]);
    assert!(latches.enter(&exclusive(inner.clone()), PendingId(3)));
    assert!(!latches.enter(&blind(key("c")), PendingId(4)));
    assert!(!latches.enter(&blind(outer.clone()), PendingId(5)));
    assert_eq!(latches.decided(&exclusive(inner.clone())), [PendingId(4), PendingId(5)]);
    assert!(latches.enter(&blind(key("c")), PendingId(4)));
    assert!(latches.enter(&blind(outer.clone()), PendingId(5)));
    for locks in [blind(outer), blind(key("c")), exclusive(inner)] {
        assert!(latches.leave(&locks).is_empty());
    }
    assert!(latches.is_empty());
}

fn overlap(one: &Locks, other: &Locks) -> bool {
    one.spans().iter().any(|one| other.spans().iter().any(|other| one.keys.meets(&other.keys)))
}

fn random_locks(random: &mut SplitMix64) -> Locks {
    let spans = (0..=random.below(3)).map(|_| {
        let from = random.below(8) as u8;
        let keys = match random.below(4) {
            0 => {
                let end = Some(vec![from + 1 + random.below(3) as u8].into());
                LockKeys::Range(KeyRange { start: vec![from].into(), end })
            }
            _ => LockKeys::Key(vec![from].into()),
        };
        LockSpan { keys, mode: [LockMode::Shared, LockMode::Blind, LockMode::Exclusive][random.below(3) as usize] }
    });
    Locks::several(spans.collect())
}

/// Whether a change that holds its latches excludes another one. A decided one only has blind changes in the log.
fn excludes(held: &Locks, is_decided: bool, other: &Locks) -> bool {
    let conflict = |one: &LockSpan, other: &LockSpan| {
        let is_written = one.mode != LockMode::Shared;
        let modes = match other.mode {
            LockMode::Shared => is_written,
            LockMode::Blind => !is_decided && one.mode != LockMode::Blind,
            LockMode::Exclusive => is_written || !is_decided,
        };
        modes && one.keys.meets(&other.keys)
    };
    held.spans().iter().any(|one| other.spans().iter().any(|other| conflict(one, other)))
}

/// Random changes in all modes: one enters only if the holders allow it; none overtakes an earlier one that overlaps it;
/// and none waits for ever, although some end while they wait.
#[test]
fn random_changes_neither_overtake_nor_starve() {
    for seed in 0..400 {
        let mut random = SplitMix64::new(seed);
        let mut latches = Latches::default();
        let mut held = Vec::<(Locks, bool)>::new();
        let mut waiting = BTreeMap::<PendingId, Locks>::new();
        let mut arriving = 0;
        while arriving < 200 || !held.is_empty() {
            let mut ready = VecDeque::new();
            if !held.is_empty() {
                let (locks, is_decided) = held.swap_remove(random.below(held.len() as u64) as usize);
                ready = match (is_decided, random.below(3)) {
                    (true, _) => latches.leave(&locks),
                    (false, 0) => latches.abandon(&locks),
                    (false, _) => {
                        let woken = latches.decided(&locks);
                        held.push((locks, true));
                        woken
                    }
                };
            }
            // A change that waits may be answered, when its deadline passes.
            if random.below(20) == 0
                && let Some((id, _)) = waiting.pop_first()
            {
                ready.extend(latches.cancel(id));
            }
            let mut ready: Vec<_> = ready.into_iter().filter_map(|id| Some((id, waiting.remove(&id)?))).collect();
            if arriving < 200 && random.below(2) == 0 {
                arriving += 1;
                ready.push((PendingId(arriving), random_locks(&mut random)));
            }
            for (id, locks) in ready {
                if random.below(10) == 0 {
                    continue;
                }
                if !latches.enter(&locks, id) {
                    waiting.insert(id, locks);
                    continue;
                }
                assert!(!waiting.range(..id).any(|(_, earlier)| overlap(&locks, earlier)), "{id:?} overtook");
                let is_excluded = held.iter().any(|(other, is_decided)| excludes(other, *is_decided, &locks));
                assert!(!is_excluded, "seed {seed}: {id:?}");
                held.push((locks, false));
            }
        }
        assert!(latches.is_empty() && waiting.is_empty(), "seed {seed}: {waiting:?}");
    }
}

#[test]
fn shared_latches_admit_readers_and_keep_writers_out() {
    let mut latches = Latches::default();
    let shared = |keys| Locks::one(LockSpan { keys, mode: LockMode::Shared });
    let (rows, row) = (shared(range("a", "c")), shared(key("b")));
    assert!(latches.enter(&rows, PendingId(1)) && latches.enter(&row, PendingId(2)));
    assert!(!latches.enter(&blind(key("b")), PendingId(3)));
    assert!(!latches.pass(&row, PendingId(4)), "it must not overtake the third one");
    assert!(latches.pass(&shared(key("a")), PendingId(5)), "which takes nothing");
    assert!(latches.leave(&rows).is_empty(), "only deciding needs shared latches");
    assert!(latches.decided(&row).len() == 2, "both may try again");
    assert!(!latches.enter(&blind(key("b")), PendingId(3)));
    assert_eq!(latches.abandon(&rows), [PendingId(3)]);
    assert!(latches.enter(&blind(key("b")), PendingId(3)));
    assert!(!latches.pass(&row, PendingId(4)), "the write is not applied");
    assert_eq!(latches.leave(&blind(key("b"))), [PendingId(4)]);
    assert!(latches.is_empty());
}

/// A transaction in several ranges does not wait for an older one, only for a younger one.
#[test]
fn older_transactions_are_recognized() {
    let mut latches = Latches::default();
    let of = |locks: Locks, started| locks.of(LockOwner { started: base::Timestamp(started), id: 1 });
    let prepared = of(exclusive(key("a")), 5);
    latches.hold(&prepared);
    assert!(latches.are_of_older(&of(blind(key("a")), 6)));
    assert!(!latches.are_of_older(&of(blind(key("a")), 4)), "a younger one");
    assert!(!latches.are_of_older(&of(blind(key("b")), 6)), "another key");
    assert!(!latches.are_of_older(&blind(key("a"))), "it holds nothing elsewhere");
    assert!(!latches.enter(&blind(key("a")), PendingId(1)));
    assert_eq!(latches.abandon(&prepared), [PendingId(1)]);
    assert!(!latches.are_of_older(&of(blind(key("a")), 6)) && latches.is_empty());
}

/// Nor does it queue behind changes that wait for an older one, or behind an older one that waits: the older one may wait
/// for it in another range.
#[test]
fn no_waiting_behind_older_transactions() {
    let of = |locks: Locks, started| locks.of(LockOwner { started: base::Timestamp(started), id: 1 });
    let [a, b, c] = ["a", "b", "c"].map(key);
    // A younger one holds, the oldest waits for it.
    let mut latches = Latches::default();
    let (held, oldest) = (of(exclusive(a.clone()), 6), of(several(&[&a, &b]), 1));
    latches.hold(&held);
    assert!(!latches.are_of_older(&oldest) && !latches.enter(&oldest, PendingId(1)));
    assert!(latches.are_of_older(&of(blind(b.clone()), 7)), "behind the oldest");
    assert!(!latches.are_of_older(&of(blind(c.clone()), 7)));
    assert!(!latches.are_of_older(&blind(b.clone())), "it holds nothing elsewhere");
    assert_eq!(latches.abandon(&held), [PendingId(1)]);
    assert!(latches.is_empty());
    // The oldest holds, a change without an owner waits for it.
    latches.hold(&oldest);
    assert!(!latches.enter(&several(&[&b, &c]), PendingId(2)));
    assert!(latches.are_of_older(&of(blind(c.clone()), 7)), "behind a change that waits for the oldest");
    assert!(!latches.are_of_older(&of(blind(c), 0)), "which is older itself");
    assert_eq!(latches.kept(&oldest), [PendingId(2)], "it may be the same transaction");
    assert!(latches.abandon(&oldest).is_empty() && latches.is_empty());
}

/// One change may read and change the same key.
#[test]
fn shared_and_exclusive_spans_of_one_key() {
    for mode in [LockMode::Blind, LockMode::Exclusive] {
        let span = |mode| LockSpan { keys: key("a"), mode };
        let both = Locks::several(vec![span(LockMode::Shared), span(mode)]);
        let mut latches = Latches::default();
        for ends_early in [false, true] {
            assert!(latches.enter(&both, PendingId(1)));
            assert!(!latches.enter(&blind(key("a")), PendingId(2)));
            let woken = if ends_early { latches.abandon(&both) } else { latches.decided(&both) };
            assert_eq!(woken, [PendingId(2)]);
            if !ends_early {
                assert!(latches.enter(&blind(key("a")), PendingId(2)), "it is decided");
                assert!(!latches.pass(&Locks::one(span(LockMode::Shared)), PendingId(3)), "neither is applied");
                assert!(latches.leave(&both).is_empty() || mode == LockMode::Exclusive);
                latches.leave(&blind(key("a")));
            }
            assert!(latches.is_empty());
        }
    }
}
