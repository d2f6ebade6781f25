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
    Locks::One(LockSpan { keys, mode: LockMode::Blind })
}

fn exclusive(keys: LockKeys) -> Locks {
    Locks::One(LockSpan { keys, mode: LockMode::Exclusive })
}

fn several(keys: &[&LockKeys]) -> Locks {
    Locks::Several(keys.iter().map(|keys| LockSpan { keys: (*keys).clone(), mode: LockMode::Exclusive }).collect())
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
    let meets = |one: &LockKeys, other: &LockKeys| match (one, other) {
        (LockKeys::Key(one), LockKeys::Key(other)) => one == other,
        (LockKeys::Range(range), keys) | (keys, LockKeys::Range(range)) => keys.overlaps(range),
    };
    one.spans().iter().any(|one| other.spans().iter().any(|other| meets(&one.keys, &other.keys)))
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
        LockSpan { keys, mode: [LockMode::Blind, LockMode::Exclusive][random.below(2) as usize] }
    });
    Locks::Several(spans.collect())
}

/// Whether an exclusive span of one overlaps the other.
fn rules_out(one: &Locks, other: &Locks) -> bool {
    let is_exclusive = |span: &&LockSpan| span.mode == LockMode::Exclusive;
    let exclusive = one.spans().iter().filter(is_exclusive).cloned().collect();
    overlap(&Locks::Several(exclusive), other)
}

/// Random changes: an exclusive one overlaps no other when it enters, and none until it is decided; none overtakes an
/// earlier one that overlaps it; and none waits for ever, although some end while they wait.
#[test]
fn random_changes_neither_overtake_nor_starve() {
    for seed in 0..200 {
        let mut random = SplitMix64::new(seed);
        let mut latches = Latches::default();
        let (mut decided, mut undecided) = (Vec::<Locks>::new(), Vec::<Locks>::new());
        let mut waiting = BTreeMap::<PendingId, Locks>::new();
        let mut arriving = 0;
        while arriving < 200 || !decided.is_empty() || !undecided.is_empty() {
            let mut ready = VecDeque::new();
            let from = if random.below(2) == 0 { &mut decided } else { &mut undecided };
            if !from.is_empty() {
                let locks = from.swap_remove(random.below(from.len() as u64) as usize);
                let woken = if random.below(2) == 0 { latches.decided(&locks) } else { VecDeque::new() };
                let is_left = woken.is_empty();
                ready.extend(if is_left { latches.leave(&locks) } else { woken });
                if !is_left {
                    decided.push(locks);
                }
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
                assert!(!decided.iter().chain(&undecided).any(|other| rules_out(&locks, other)));
                assert!(!undecided.iter().any(|other| rules_out(other, &locks)));
                let held = if locks.is_exclusive() { &mut undecided } else { &mut decided };
                held.push(locks);
            }
            // A change that waits may be answered, when its deadline passes.
            if random.below(20) == 0 {
                waiting.pop_first();
            }
        }
        assert!(latches.is_empty() && waiting.is_empty(), "seed {seed}: {waiting:?}");
    }
}
