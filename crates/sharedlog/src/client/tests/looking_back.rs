//! Who reads one entry that may be a duplicate looks for an earlier copy.

use super::*;
use crate::limits::STAMPS_KEPT;

/// Asks which appends lie before such an entry.
pub(super) fn looks_back(epoch: u64, from: u64, count: usize) -> Request {
    Request::Stamps { epoch: ProjectionEpoch(epoch), run: Run::of(Position(from), count) }
}

/// These do, and what lies below the mark was given up.
pub(super) fn stamps(mark: u64, sequences: &[Option<u64>]) -> Reply {
    Reply::Stamps { mark: Position(mark), stamps: sequences.iter().map(|sequence| sequence.map(stamp)).collect() }
}

/// An entry that may lie from position 2 on, too.
fn candidate(sequence: u64) -> Reply {
    Reply::Value(Entry::Data(data(sequence, Some(2))))
}

fn is_of(sequence: u64) -> Result<Answer, Error> {
    Ok(Answer::Entry(data(sequence, Some(2))))
}

#[test]
fn a_reader_of_one_entry_looks_back_for_the_first() {
    let mut bed = Bed::new();
    let token = bed.read(5, None);
    bed.step(2, &read(1, 5), candidate(1));
    bed.step(2, &looks_back(1, 2, 3), stamps(0, &[Some(7), None, Some(1)]));
    bed.step(2, &read(1, 4), Reply::Value(entry(1)));
    assert_eq!(bed.ended(token), Ok(Answer::Duplicate { of: Position(4) }));
    // It is known where it lies, and that no other does.
    let token = bed.read(5, None);
    bed.step(2, &read(1, 5), candidate(1));
    bed.step(2, &read(1, 4), Reply::Trimmed { mark: Position(5) });
    assert_eq!(bed.ended(token), is_of(1));
    let token = bed.read(6, None);
    bed.step(2, &read(1, 6), candidate(3));
    bed.step(2, &looks_back(1, 5, 1), stamps(0, &[Some(1)]));
    assert_eq!(bed.ended(token), is_of(3));
    let token = bed.read(6, None);
    bed.step(2, &read(1, 6), candidate(3));
    assert_eq!(bed.ended(token), is_of(3));
    // For so long.
    let forgotten_at = bed.now + STAMPS_KEPT;
    while bed.now < forgotten_at {
        bed.wake();
    }
    let token = bed.read(6, None);
    bed.step(2, &read(1, 6), candidate(3));
    bed.step(2, &looks_back(1, 2, 3), stamps(0, &[Some(7), None, Some(3)]));
    bed.step(2, &read(1, 4), Reply::Value(entry(3)));
    assert_eq!(bed.ended(token), Ok(Answer::Duplicate { of: Position(4) }));
}

/// What a unit doesn't tell is looked at by itself; a hole is filled, and what a tail has lost is mended.
#[test]
fn a_reader_that_looks_back_decides_what_lies_before() {
    let mut bed = Bed::new();
    let token = bed.read(5, None);
    bed.step(2, &read(1, 5), candidate(1));
    bed.step(2, &looks_back(1, 2, 3), stamps(0, &[Some(7)]));
    bed.step(2, &looks_back(1, 3, 2), stamps(0, &[]));
    // It has some time, and is filled.
    while !matches!(bed.units[..], [(_, _, Request::Command(_))]) {
        match bed.units.pop() {
            Some((ask, ..)) => bed.client.unit_answered(ask, Reply::Unwritten, bed.now),
            None if bed.sequencer.is_empty() => bed.wake(),
            None => bed.sequenced(sequencer::Reply::Tail(Position(6))),
        }
        bed.carry_out();
    }
    bed.step(1, &write(1, 3, Entry::Junk), Reply::Written);
    bed.step(2, &write(1, 3, Entry::Junk), Reply::Written);
    bed.step(2, &looks_back(1, 4, 1), stamps(0, &[]));
    bed.step(2, &read(1, 4), Reply::Damaged);
    bed.step(1, &read(1, 4), Reply::Value(entry(8)));
    let kept = Kept::Entry(entry(8));
    bed.step(2, &Request::Command(Command::Mend { position: Position(4), kept }), Reply::Written);
    assert_eq!(bed.ended(token), is_of(1));
    let token = bed.read(5, None);
    bed.step(2, &read(1, 5), candidate(1));
    assert_eq!(bed.ended(token), is_of(1));
}

/// More is told than was asked, and less: only what was asked counts.
#[test]
fn what_was_given_up_is_no_earlier_copy() {
    let mut bed = Bed::new();
    let token = bed.read(5, None);
    bed.step(2, &read(1, 5), candidate(1));
    bed.step(2, &looks_back(1, 2, 3), stamps(4, &[None, None, Some(8), Some(9), Some(9)]));
    assert_eq!(bed.ended(token), is_of(1));
    // The entry itself was given up before the answer.
    let token = bed.read(6, None);
    bed.step(2, &read(1, 6), candidate(9));
    bed.step(2, &looks_back(1, 5, 1), stamps(7, &[None]));
    assert_eq!(bed.ended(token), Ok(Answer::Trimmed { mark: Position(7) }));
    let token = bed.read(6, None);
    bed.step(2, &read(1, 6), candidate(8));
    bed.step(2, &read(1, 4), Reply::Trimmed { mark: Position(7) });
    assert_eq!(bed.ended(token), Ok(Answer::Trimmed { mark: Position(7) }));
}

/// Of many that may be duplicates each is looked for among the others, which are here.
#[test]
fn a_row_of_candidates_asks_for_what_lies_before_it_once() {
    let mut bed = Bed::new();
    let candidate = |sequence| Reply::Value(Entry::Data(data(sequence, Some(1))));
    bed.read_many(2, 3, Wait::No);
    bed.reply(2, &share(1, 2, 1, 3, 3), Reply::Many(vec![candidate(4), candidate(5), candidate(4)]));
    bed.reply(2, &looks_back(1, 1, 1), stamps(0, &[Some(3)]));
    bed.reply(2, &read(1, 2), candidate(4));
    let of = |sequence| Answer::Entry(data(sequence, Some(1)));
    assert_eq!(bed.done.pop().map(|done| done.1), Some(row([of(4), of(5), Answer::Duplicate { of: Position(2) }])));
}

/// Many read the same entry: one of them asks for what lies before, and when it gets no answer, the next one does.
#[test]
fn of_many_that_look_back_one_asks() {
    let mut bed = Bed::new();
    let tokens = [(); 5].map(|()| bed.read(5, None));
    for _ in tokens {
        bed.reply(2, &read(1, 5), candidate(1));
    }
    bed.wants(2, &looks_back(1, 2, 3));
    // Who asked is given up: another asks.
    bed.client.give_up(&[tokens[0]].into(), bed.now);
    bed.carry_out();
    bed.units.remove(0);
    bed.step(2, &looks_back(1, 2, 3), stamps(0, &[Some(7)]));
    // It gets no answer, and waits before it asks again.
    let (_, unit, request) = bed.units[0].clone();
    assert_eq!((unit, request), (UnitId(2), looks_back(1, 3, 2)));
    while bed.units.len() == 1 {
        bed.wake();
    }
    let asked = |bed: &Bed| bed.units.iter().map(|(.., request)| request.clone()).collect::<Vec<_>>();
    assert_eq!(asked(&bed), [looks_back(1, 3, 2), looks_back(1, 3, 2)], "the former is asked in vain");
    bed.units.remove(0);
    // A newer projection: what was asked in the old one says nothing, and one asks anew.
    bed.projected(projection(2, 6, &[1, 3]));
    bed.units.remove(0);
    bed.step(3, &looks_back(2, 3, 2), stamps(0, &[None, Some(1)]));
    for _ in &tokens[1..] {
        bed.reply(3, &read(2, 4), Reply::Value(entry(1)));
    }
    for token in &tokens[1..] {
        let of = bed.done.iter().find(|(done, _)| done == token).map(|(_, outcome)| outcome.clone());
        assert_eq!(of, Some(Ok(Answer::Duplicate { of: Position(4) })));
    }
    assert!(bed.units.is_empty());
}
