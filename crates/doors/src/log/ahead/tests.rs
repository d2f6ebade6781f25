use super::*;
use base::SplitMix64;
use bytes::Bytes;
use sharedlog::{Batch, ClientId, Data, Stamp};
use tablets::request::Content;

use crate::limits::GUESS_BLIND_LEAST_BYTES;

fn entries(positions: std::ops::Range<u64>) -> Vec<LogEntry> {
    positions.map(|position| LogEntry { position: Position(position), content: Content::Junk }).collect()
}

fn trimmed(positions: std::ops::Range<u64>, mark: u64) -> Vec<LogEntry> {
    let content = Content::Trimmed { mark: Position(mark) };
    positions.map(|position| LogEntry { position: Position(position), content: content.clone() }).collect()
}

fn asked(ahead: &mut Ahead) -> Vec<(u64, Wanted)> {
    std::iter::from_fn(|| ahead.ask(|wish| Some(wish.bytes))).collect()
}

/// The tickets of reads, with the positions that they are of.
fn reads(asked: &[(u64, Wanted)]) -> Vec<(u64, u64, u64)> {
    let read = |(ticket, wanted): &(u64, Wanted)| match wanted {
        Wanted::Read { from, count, .. } => Some((*ticket, from.0, from.0 + u64::from(*count))),
        Wanted::Tail => None,
    };
    asked.iter().filter_map(read).collect()
}

fn taken(ahead: &mut Ahead) -> Vec<u64> {
    std::iter::from_fn(|| ahead.take()).map(|entry| entry.position.0).collect()
}

#[test]
fn at_the_tail_one_read_waits() {
    let mut ahead = Ahead::new(Position(7));
    let first = asked(&mut ahead);
    assert_eq!((first.len(), first[0].1), (2, Wanted::Tail));
    ahead.told_tail(first[0].0, Position(7));
    let [(ticket, 7, _)] = reads(&first)[..] else { panic!("{first:?}") };
    assert_eq!(asked(&mut ahead), []);
    ahead.told(ticket, entries(7..9));
    assert_eq!(taken(&mut ahead), [7, 8]);
    let next = asked(&mut ahead);
    let [(ticket, 9, 11)] = reads(&next)[..] else { panic!("{next:?}") };
    assert_eq!(next.len(), 1, "the tail isn't asked for: the read was not full");
    ahead.told(ticket, vec![]);
    assert!(matches!(reads(&asked(&mut ahead))[..], [(_, 9, _)]));
}

/// A subscription whose client has taken something.
fn begun() -> Ahead {
    Ahead { stretches_max: SUBSCRIPTION_STRETCHES_MAX, ..Ahead::new(Position(0)) }
}

fn data(positions: std::ops::Range<u64>, bytes: usize) -> Vec<LogEntry> {
    let batch = Batch::of(&[Bytes::from(vec![7; bytes])]).expect("it is small");
    let stamp = Stamp { client: ClientId(3), sequence: 4 };
    let content = Content::Data(Data { stamp, oldest_open: 4, batch });
    positions.map(|position| LogEntry { position: Position(position), content: content.clone() }).collect()
}

#[test]
fn a_subscription_begins_with_a_little_and_reads_more_as_it_is_taken() {
    let mut ahead = Ahead::new(Position(0));
    let first = asked(&mut ahead);
    ahead.told_tail(first[0].0, Position(1 << 20));
    let [(_, Wanted::Tail), (ticket, Wanted::Read { count, bytes, .. })] = first[..] else { panic!("{first:?}") };
    assert_eq!((count as usize, bytes), (SUBSCRIPTION_FIRST, GUESS_BLIND_LEAST_BYTES));
    assert_eq!(asked(&mut ahead), [], "nothing is known of its entries");
    ahead.told(ticket, data(0..4, 1_000));
    let mut asked_at_once = vec![];
    loop {
        let under_way = asked(&mut ahead);
        if asked_at_once.last() == Some(&under_way.len()) {
            break;
        }
        asked_at_once.push(under_way.len());
        for (ticket, from, end) in reads(&under_way) {
            assert!((400..512).contains(&(end - from)), "half a MiB of them");
            ahead.told(ticket, data(from..end, 1_000));
        }
        assert_eq!(asked(&mut ahead), [], "nothing was taken");
        while ahead.take().is_some() {}
    }
    assert_eq!(asked_at_once.last(), Some(&SUBSCRIPTION_STRETCHES_MAX));
    ahead.retreat();
    assert_eq!(ahead.stretches_max, 1, "it begins anew");
}

#[test]
fn what_is_larger_than_was_guessed_is_read_by_itself() {
    let mut ahead = Ahead::new(Position(0));
    let first = asked(&mut ahead);
    ahead.told_tail(first[0].0, Position(1 << 20));
    ahead.told_larger(first[1].0);
    let [(ticket, Wanted::Read { from: Position(0), count: 1, bytes: READ_BYTES_MAX })] = asked(&mut ahead)[..1] else {
        panic!("it has all the room that one may need")
    };
    ahead.told(ticket, data(0..1, 1 << 20));
    assert_eq!(taken(&mut ahead), [0]);
    ahead.stretches_max = SUBSCRIPTION_STRETCHES_MAX;
    let more = asked(&mut ahead);
    assert!((2..SUBSCRIPTION_STRETCHES_MAX).contains(&ahead.stretches.len()), "{} stretches", ahead.stretches.len());
    for (_, wanted) in more {
        let Wanted::Read { count: 1, bytes, .. } = wanted else { panic!("{wanted:?}") };
        assert!((1 << 20..2 << 20).contains(&bytes), "{bytes}");
    }
}

#[test]
fn a_read_that_waits_makes_do_with_less_room() {
    let mut ahead = Ahead::new(Position(0));
    assert_eq!(ahead.ask(|_| None).map(|(_, wanted)| wanted), Some(Wanted::Tail));
    assert_eq!(ahead.ask(|_| None), None, "there is no room");
    let mut wished = None;
    let (ticket, wanted) = ahead.ask(|wish| wished.insert(wish).waits.then_some(10)).expect("it waits");
    assert_eq!(wished, Some(Wish { bytes: GUESS_BLIND_LEAST_BYTES, waits: true }));
    assert!(matches!(wanted, Wanted::Read { bytes: 10, .. }));
    ahead.told_larger(ticket);
    let wish = |ahead: &mut Ahead| {
        let mut wished = None;
        assert_eq!(
            ahead.ask(|wish| {
                wished = Some(wish);
                None
            }),
            None
        );
        wished
    };
    let usual = Wish { bytes: GUESS_BLIND_LEAST_BYTES, waits: false };
    assert_eq!(wish(&mut ahead), Some(usual), "something is there, of the usual size perhaps");
    let (ticket, _) = ahead.ask(|wish| Some(wish.bytes)).expect("there is room");
    ahead.told_larger(ticket);
    assert_eq!(wish(&mut ahead), Some(Wish { bytes: READ_BYTES_MAX, waits: false }));
}

#[test]
fn behind_the_tail_reads_go_ahead_and_come_in_order() {
    let mut ahead = begun();
    let first = asked(&mut ahead);
    ahead.told_tail(first[0].0, Position(1 << 20));
    let [(one, 0, end_of_one)] = reads(&first)[..] else { panic!("{first:?}") };
    let more = reads(&asked(&mut ahead));
    assert_eq!(more.len() + 1, SUBSCRIPTION_STRETCHES_MAX);
    let (two, from_of_two, end_of_two) = more[0];
    assert_eq!(from_of_two, end_of_one);
    ahead.told(two, entries(from_of_two..end_of_two));
    assert_eq!(taken(&mut ahead), [0; 0], "the first is missing");
    ahead.told(one, entries(0..3));
    assert_eq!(taken(&mut ahead), [0, 1, 2]);
    let [(rest, 3, end)] = reads(&asked(&mut ahead))[..] else { panic!("what is missing is asked for") };
    assert_eq!(end, end_of_one);
    ahead.told(rest, entries(3..end));
    assert_eq!(taken(&mut ahead), Vec::from_iter(3..end_of_two));
}

#[test]
fn what_was_trimmed_is_passed_at_once() {
    let mut ahead = begun();
    let first = asked(&mut ahead);
    ahead.told_tail(first[0].0, Position(2_000_000));
    let more = reads(&asked(&mut ahead));
    let (later, from, _) = more[0];
    ahead.told(later, trimmed(from..from + 2, 1_500_000));
    let [(ticket, 0, end)] = reads(&first)[..] else { panic!("{first:?}") };
    ahead.told(ticket, trimmed(0..end, 1_000_000));
    assert_eq!(taken(&mut ahead), [0, 1_000_000], "from there on the later mark counts");
    assert_eq!(ahead.next(), Position(1_500_000));
    let next = reads(&asked(&mut ahead));
    assert_eq!(next[0].1, 1_500_000);
    for (ticket, from, end) in &more[1..] {
        ahead.told(*ticket, trimmed(*from..*end, 1_000_000));
    }
    assert_eq!(taken(&mut ahead), [0; 0]);
    assert!(ahead.take_dropped() > 0);
}

/// A log of holes of all kinds, answered in pieces and out of order: every position is told once, in order.
#[test]
fn every_position_is_told_once_and_in_order() {
    for seed in 0..200 {
        let mut random = SplitMix64::new(seed);
        let (mut tail, mut mark) = (random.below(3_000), 0);
        let mut ahead = Ahead::new(Position(random.below(tail + 20)));
        let mut told = ahead.next();
        let mut under_way = Vec::new();
        for _ in 0..2_000 {
            tail += random.below(4);
            if random.below(100) == 0 {
                mark = mark.max(random.below(tail + 1));
            }
            under_way.append(&mut asked(&mut ahead));
            if !under_way.is_empty() {
                let at = random.below(under_way.len() as u64) as usize;
                match under_way.swap_remove(at) {
                    (ticket, _) if random.below(10) == 0 => ahead.failed(ticket),
                    (ticket, _) if random.below(20) == 0 => {
                        ahead.failed(ticket);
                        ahead.retreat();
                    }
                    (ticket, Wanted::Tail) => ahead.told_tail(ticket, Position(tail)),
                    (ticket, Wanted::Read { .. }) if random.below(20) == 0 => ahead.told_larger(ticket),
                    (ticket, Wanted::Read { from, count, .. }) => {
                        let end = (from.0 + random.below(u64::from(count) + 1)).min(tail).max(from.0);
                        let at = mark.clamp(from.0, end);
                        ahead.told(ticket, [trimmed(from.0..at, mark), entries(at..end)].concat());
                    }
                }
            }
            while random.below(3) > 0
                && let Some(entry) = ahead.take()
            {
                assert_eq!(entry.position, told, "seed {seed}");
                told = after(&entry);
                assert_eq!(ahead.next(), told);
            }
        }
        assert!(told.0 > 0, "seed {seed}");
    }
}
