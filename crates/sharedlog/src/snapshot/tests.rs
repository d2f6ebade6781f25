use super::*;
use crate::{ClientId, Stamp};

/// A log in memory.
#[derive(Debug, Default)]
struct Log {
    mark: u64,
    entries: Vec<There>,
}

impl Log {
    fn append(&mut self, records: &[&[u8]]) -> Position {
        self.entries.push(There::Records(records.iter().map(|record| Bytes::copy_from_slice(record)).collect()));
        Position(self.entries.len() as u64 - 1)
    }

    /// Stores a snapshot, with other entries between its own. Every `fails`-th append fails, though it may have been
    /// made.
    fn keep(&mut self, snapshot: &Snapshot, fails: usize) -> Position {
        let mut keeper = Keeper::new(snapshot).expect("within the limits");
        let mut turn = 0;
        loop {
            let Some((number, batch)) = keeper.next_append() else {
                return keeper.kept_at().expect("the snapshot is stored");
            };
            assert_eq!(keeper.may_trim_below(), None, "an append is pending");
            self.append(&[b"another's"]);
            self.entries.push(There::Records(batch.records().expect("own encoding")));
            turn += 1;
            let lies = Position(self.entries.len() as u64 - 1);
            let outcome = match turn % fails {
                0 if turn % 2 == 0 => Appended::InDoubt(lies),
                0 => Appended::Failed,
                _ => Appended::At(lies),
            };
            keeper.appended(number, outcome);
        }
    }

    fn there(&self, position: Position) -> There {
        match self.entries.get(position.0 as usize) {
            _ if position.0 < self.mark => There::TrimmedBelow(Position(self.mark)),
            Some(there) => there.clone(),
            None => There::Nothing,
        }
    }

    fn find(&self, mark: u64) -> Found {
        let mut finder = Finder::new(Position(mark));
        for _ in 0..1_000 {
            finder.invariants();
            match finder.wants() {
                Wanted::Tail => finder.tail(Position(self.entries.len() as u64)),
                Wanted::Read(run) => finder.read(run.positions().map(|position| self.there(position))),
                Wanted::Nothing => return finder.found(),
            }
        }
        panic!("the search does not end")
    }
}

fn snapshot(next: u64, bytes: usize) -> Snapshot {
    let mut duplicates = Duplicates::default();
    for sequence in 1..=next {
        let stamp = Stamp { client: ClientId(7), sequence };
        duplicates.is_first(stamp, Position(sequence - 1));
    }
    Snapshot { next: Position(next), duplicates, state: vec![next as u8; bytes].into() }
}

fn log_of(entries: u64) -> Log {
    let mut log = Log::default();
    (0..entries).for_each(|number| {
        log.append(&[&number.to_be_bytes()]);
    });
    log
}

#[test]
fn finds_snapshots_of_any_size() {
    for bytes in [0, 1, SNAPSHOT_PART_BYTES, 10 * SNAPSHOT_PART_BYTES + 1] {
        for fails in [2, 3, 1_000] {
            let mut log = log_of(5);
            let kept = snapshot(3, bytes);
            log.keep(&kept, fails);
            log.append(&[b"later"]);
            log.mark = 3;
            assert_eq!(log.find(0), Found::Snapshot(kept.clone()), "{bytes} bytes, each {fails}th append fails");
            assert_eq!(log.find(3), Found::Snapshot(kept));
        }
    }
}

/// The finder takes the first snapshot at or above the mark: an older one may be partially trimmed.
#[test]
fn skips_older_snapshot() {
    let mut log = log_of(4);
    let (first, second) = (snapshot(2, 50), snapshot(9, 50));
    log.keep(&first, 9);
    assert_eq!(log.find(0), Found::Snapshot(first));
    let next = log.entries.len() as u64;
    let newest = Snapshot { next: Position(next), ..second };
    log.keep(&newest, 9);
    log.mark = next;
    assert_eq!(log.find(0), Found::Snapshot(newest));
    log.mark = log.entries.len() as u64;
    assert_eq!(log.find(0), Found::Nothing { mark: Position(log.mark) });
}

/// If parts of a snapshot are missing or different, the finder takes the next snapshot.
#[test]
fn skips_incomplete_snapshot() {
    let spoils: [fn(&mut There); 4] = [
        |there| *there = There::Nothing,
        |there| *there = There::Records(vec![Bytes::from_static(b"something else")]),
        |there| *there = There::Records(vec![Bytes::from_static(PART), Bytes::from_static(b"something else")]),
        |there| *there = There::Records(vec![Bytes::from_static(PART), vec![0; 1_000].into()]),
    ];
    for spoil in spoils {
        let mut log = log_of(2);
        log.keep(&snapshot(2, 40), 9);
        let part = log.entries.iter().position(|there| matches!(there, There::Records(records) if records[0] == PART));
        spoil(&mut log.entries[part.expect("the snapshot has parts")]);
        assert_eq!(log.find(0), Found::Nothing { mark: Position(0) });
        let second = snapshot(2, 41);
        log.keep(&second, 9);
        assert_eq!(log.find(0), Found::Snapshot(second));
    }
}

/// The snapshot is trimmed during the search, because a newer one exists.
#[test]
fn search_restarts_at_newer_mark() {
    let mut log = log_of(3);
    log.keep(&snapshot(3, 60), 9);
    let mut finder = Finder::new(Position(3));
    finder.tail(Position(log.entries.len() as u64));
    let Wanted::Read(run) = finder.wants() else { panic!("the log has entries") };
    finder.read(run.positions().map(|position| log.there(position)));
    let Wanted::Read(run) = finder.wants() else { panic!("the log has a pointer") };
    assert_eq!(run.count, 1);
    let next = log.entries.len() as u64;
    let newest = Snapshot { next: Position(next), ..snapshot(4, 10) };
    log.keep(&newest, 9);
    finder.read([There::TrimmedBelow(Position(next))]);
    assert_eq!(finder.wants(), Wanted::Tail, "the log may have grown since");
    finder.tail(Position(log.entries.len() as u64));
    log.mark = next;
    while let Wanted::Read(run) = finder.wants() {
        finder.read(run.positions().map(|position| log.there(position)));
    }
    assert_eq!(finder.found(), Found::Snapshot(newest));
}

#[test]
fn limits_parts_in_flight() {
    let mut keeper = Keeper::new(&snapshot(1, 100 * SNAPSHOT_PART_BYTES)).expect("within the limits");
    let first: Vec<usize> = std::iter::from_fn(|| keeper.next_append()).map(|(number, _)| number).collect();
    assert_eq!(first.len(), SNAPSHOT_PARTS_AT_ONCE);
    keeper.appended(first[1], Appended::At(Position(9)));
    assert!(keeper.next_append().is_some() && keeper.next_append().is_none());
}

/// A state that is passed in as it is produced leaves memory as it is appended.
#[test]
fn finds_streamed_snapshot() {
    let whole = snapshot(3, 10 * SNAPSHOT_PART_BYTES + 1);
    let mut log = log_of(5);
    let mut keeper = Keeper::begin(whole.next, &whole.duplicates);
    let mut pieces = whole.state.chunks(SNAPSHOT_PART_BYTES / 2 + 1);
    while keeper.kept_at().is_none() {
        while let Some((number, batch)) = keeper.next_append() {
            log.entries.push(There::Records(batch.records().expect("own encoding")));
            keeper.appended(number, Appended::At(Position(log.entries.len() as u64 - 1)));
        }
        assert!(!keeper.is_busy() && keeper.parts.iter().all(|(_, bytes)| bytes.is_empty()));
        match pieces.next() {
            Some(piece) => keeper.push(piece).expect("within the limits"),
            None if keeper.is_ended => {}
            None => keeper.end(),
        }
    }
    log.mark = 3;
    assert_eq!(log.find(3), Found::Snapshot(whole));
}

#[test]
fn recognizes_snapshot_entries() {
    let records = |texts: &[&'static [u8]]| texts.iter().copied().map(Bytes::from_static).collect::<Vec<_>>();
    assert!(is_of_snapshot(&records(&[PART, b"x"])) && is_of_snapshot(&records(&[POINTER, b"x"])));
    assert!(!is_of_snapshot(&records(&[PART])) && !is_of_snapshot(&records(&[b"x", PART])));
    assert!(!is_of_snapshot(&[]));
}

/// Any client may append such bytes.
#[test]
fn ignores_damaged_pointers() {
    let pointer = Pointer { next: Position(3), bytes: 40, checksum: 1, parts: vec![Position(1), Position(2)] };
    let bytes = pointer.encode();
    assert_eq!(Pointer::decode(bytes.clone()), Ok(pointer));
    for at in 0..bytes.len() {
        for bit in 0..8 {
            let mut damaged = bytes.to_vec();
            damaged[at] ^= 1 << bit;
            for mark in [0, 3] {
                let mut log = log_of(3);
                log.append(&[POINTER, &damaged]);
                log.mark = mark;
                assert_eq!(log.find(mark), Found::Nothing { mark: Position(mark) });
            }
        }
        assert!(Pointer::decode(bytes.slice(..at)).is_err(), "cut at {at}");
    }
}

/// The deduplication state counts toward the size, too.
#[test]
fn rejects_oversized_snapshot() {
    const ALL: usize = SNAPSHOT_PARTS_MAX * SNAPSHOT_PART_BYTES;
    let keeper = |bytes: usize| {
        let state = Bytes::from(vec![7; bytes]);
        Keeper::new(&Snapshot { next: Position(1), duplicates: Duplicates::default(), state }).map(|_| ())
    };
    assert!(matches!(keeper(ALL), Err(SnapshotTooLarge { bytes }) if bytes > ALL));
    assert!(matches!(keeper(ALL - 1), Err(SnapshotTooLarge { bytes }) if bytes > ALL));
    assert_eq!(keeper(ALL - 100), Ok(()));
}
