use sharedlog::limits::BATCH_BYTES_MAX;
use sharedlog::request::LogEntry;
use sharedlog::{ClientId, Data, Stamp};

use super::following::{FOLLOW_BYTES, FOLLOW_WAIT};
use super::*;

const NEVER: Monotonic = Monotonic::NEVER;

/// A log in memory, with one port.
struct Bench {
    port: LogPort,
    now: Monotonic,
    exists: bool,
    mark: u64,
    contents: Vec<Content>,
    asked: Vec<(u64, LogRequest)>,
    events: Vec<Event>,
    opened: Option<State>,
    trimmed: Option<Position>,
    warnings: usize,
}

impl Bench {
    fn new(exists: bool) -> Self {
        Self::with(exists, Playback::Push)
    }

    fn with(exists: bool, playback: Playback) -> Self {
        let mut bench = Self {
            port: LogPort::new(3, playback, Monotonic(0)),
            now: Monotonic(0),
            exists,
            mark: 0,
            contents: Vec::new(),
            asked: Vec::new(),
            events: Vec::new(),
            opened: None,
            trimmed: None,
            warnings: 0,
        };
        bench.hear();
        bench
    }

    /// A port with an open log.
    fn open() -> Self {
        Self::open_with(Playback::Push)
    }

    fn open_with(playback: Playback) -> Self {
        let mut bench = Self::with(true, playback);
        bench.answer_all();
        assert!(bench.opened.take().is_some());
        bench
    }

    fn hear(&mut self) {
        for output in self.port.take_outputs() {
            match output {
                Output::Request { number, request, .. } => self.asked.push((number, request)),
                Output::Opened(state) => self.opened = Some(*state),
                Output::Event(event) => self.events.push(event),
                Output::Trimmed(mark) => self.trimmed = Some(mark),
                Output::NotOpened(_) | Output::SnapshotFailed(_) => self.warnings += 1,
            }
        }
    }

    fn answer(&mut self, answer: LogOutcome) {
        let (number, _) = self.asked.remove(0);
        self.port.answered(number, answer, self.now);
        self.hear();
    }

    /// Answers requests as the log does until there are none.
    fn answer_all(&mut self) {
        while let Some((_, request)) = self.asked.first().cloned() {
            let answer = self.log(request);
            self.answer(answer);
        }
    }

    fn log(&mut self, request: LogRequest) -> LogOutcome {
        let at = |position: u64| sharedlog::Position(position);
        match request {
            LogRequest::Create { copies: 3, .. } => {
                self.exists = true;
                Ok(LogResponse::Created { existed: false })
            }
            _ if !self.exists => Err(Failure::UnknownLog("zookeeper".into())),
            LogRequest::Append { batch, .. } => Ok(LogResponse::Appended(at(self.push(batch)))),
            LogRequest::Tail { .. } => Ok(LogResponse::Tail(at(self.contents.len() as u64))),
            LogRequest::Trim { before, .. } => {
                self.mark = before.0;
                Ok(LogResponse::Trimmed)
            }
            LogRequest::Read { from, count, .. } => {
                let end = (from.0 + u64::from(count)).min(self.contents.len() as u64);
                let content = |position: u64| match self.contents[position as usize].clone() {
                    _ if position < self.mark => Content::Trimmed { mark: at(self.mark) },
                    content => content,
                };
                let entry = |position| LogEntry { position: at(position), content: content(position) };
                Ok(LogResponse::Entries((from.0..end).map(entry).collect()))
            }
            other => panic!("{other:?}"),
        }
    }

    fn push(&mut self, batch: Batch) -> u64 {
        self.contents.push(Content::Data(Data { stamp: Stamp { client: ClientId(1), sequence: 1 }, batch }));
        self.contents.len() as u64 - 1
    }

    fn push_text(&mut self, text: &'static str) {
        self.push(Batch::of(&[Bytes::from_static(text.as_bytes())]).unwrap());
    }

    fn wait(&mut self) {
        self.now = self.port.next_timer();
        assert_ne!(self.now, NEVER);
        self.port.timer(self.now);
        self.hear();
    }

    fn follow(&mut self, next: u64) {
        self.follow_awaited(next, false);
    }

    fn follow_awaited(&mut self, next: u64, is_awaited: bool) {
        self.port.follow(Position(next), is_awaited, self.now);
        self.hear();
    }

    /// How long the read in flight waits at the tail.
    fn wait_of_read(&self) -> Duration {
        match self.asked[..] {
            [(_, LogRequest::Read { wait, .. })] => wait,
            ref other => panic!("{other:?}"),
        }
    }

    /// The positions and entries played since the last call.
    fn played(&mut self) -> Vec<(u64, Option<Bytes>)> {
        let played = |event| match event {
            Event::Played { position, entry } => (position.0, entry),
            other => panic!("{other:?}"),
        };
        std::mem::take(&mut self.events).into_iter().map(played).collect()
    }

    /// Passes in the pieces of a snapshot of this state.
    fn keep(&mut self, mut state: State) {
        state.begin_snapshot();
        let next = state.next();
        let mut index = 0;
        while let Some(piece) = state.next_piece() {
            let is_last = !state.has_piece();
            self.port.act(Action::KeepPiece { next, index, piece, is_last }, self.now);
            self.hear();
            self.answer_all();
            if !is_last {
                assert!(matches!(self.events.pop(), Some(Event::PieceKept { index: kept, .. }) if kept == index));
            }
            index += 1;
        }
    }
}

#[test]
fn creates_missing_log() {
    let mut bench = Bench::new(false);
    bench.answer_all();
    assert!(bench.exists && bench.opened.is_none());
    bench.wait();
    // The log is not available yet.
    bench.answer(Err(Failure::Unavailable(String::new())));
    assert!(bench.opened.is_none() && bench.asked.is_empty());
    bench.wait();
    bench.answer_all();
    assert_eq!(bench.opened.unwrap().next(), Position(0));
    assert_eq!(bench.warnings, 0);
}

#[test]
fn reports_unavailable_log() {
    let mut bench = Bench::new(true);
    while bench.warnings < 2 {
        bench.answer(Err(Failure::Unavailable(String::new())));
        bench.wait();
    }
    assert!((20_000..21_000).contains(&(bench.now.0 / 1_000_000)), "{:?}", bench.now);
}

#[test]
fn restores_snapshot() {
    let mut bench = Bench::open();
    (0..4).for_each(|_| bench.push_text("x"));
    let mut state = State::default();
    (0..3).for_each(|_| drop(state.admit(None, 0)));
    bench.keep(state);
    assert!(matches!(bench.events.pop(), Some(Event::SnapshotKept { next: Position(3) })));
    bench.port.act(Action::Trim { below: Position(3) }, bench.now);
    bench.hear();
    bench.answer_all();
    assert_eq!(bench.mark, 3);
    bench.port.open(bench.now);
    bench.hear();
    bench.answer_all();
    assert_eq!(bench.opened.as_ref().unwrap().next(), Position(3));
    // The log's own records are not delivered to the server.
    let mut played = Vec::new();
    while played.len() < bench.contents.len() - 3 {
        bench.follow(3 + played.len() as u64);
        bench.answer_all();
        played.extend(bench.played());
    }
    assert_eq!(played[0], (3, Some(Bytes::from_static(b"x"))));
    assert!(played[1..].iter().zip(4..).all(|(played, position)| *played == (position, None)));
}

/// Outputs and late answers for an earlier server do not reach the next one.
#[test]
fn reopen_drops_earlier_requests() {
    let mut bench = Bench::open();
    bench.push_text("x");
    bench.port.act(Action::RequestTail { request: TailId(1) }, bench.now);
    bench.follow(0);
    bench.port.open(bench.now);
    bench.hear();
    bench.answer_all();
    assert!(bench.opened.is_some() && bench.events.is_empty());
    bench.follow(0);
    bench.answer_all();
    assert_eq!(bench.played().len(), 1);
}

#[test]
fn retries_failed_read() {
    let mut bench = Bench::open();
    (0..3).for_each(|_| bench.push_text("x"));
    bench.follow(0);
    // One read at a time.
    bench.follow(0);
    assert_eq!(bench.asked.len(), 1);
    bench.answer(Err(Failure::Unavailable(String::new())));
    bench.follow(0);
    assert!(bench.asked.is_empty() && bench.events.is_empty());
    bench.wait();
    bench.follow(0);
    bench.answer_all();
    assert_eq!(bench.played(), [(0, Some(Bytes::from_static(b"x")))]);
    // Further reads are larger, and continue from the server's position.
    bench.follow(2);
    bench.answer_all();
    assert_eq!(bench.played(), [(2, Some(Bytes::from_static(b"x")))]);
    bench.follow(3);
    assert!(matches!(&bench.asked[0].1, LogRequest::Read { wait, .. } if *wait == FOLLOW_WAIT));
}

#[test]
fn reads_large_entry_alone() {
    let mut bench = Bench::open();
    bench.push_text("x");
    bench.follow(0);
    bench.answer(Ok(LogResponse::Larger));
    bench.follow(0);
    assert!(matches!(bench.asked[0].1, LogRequest::Read { bytes: BATCH_BYTES_MAX, .. }));
    bench.answer_all();
    bench.follow(1);
    assert!(matches!(bench.asked[0].1, LogRequest::Read { bytes: FOLLOW_BYTES, .. }));
}

#[test]
fn reports_trim_past_server() {
    let mut bench = Bench::open();
    (0..3).for_each(|_| bench.push_text("x"));
    bench.mark = 2;
    bench.follow(1);
    bench.answer_all();
    assert_eq!(bench.trimmed, Some(Position(2)));
    assert!(bench.events.is_empty());
}

#[test]
fn doubtful_append_has_failed() {
    let mut bench = Bench::open();
    let append = AppendId(7);
    for (answer, position) in [
        (Ok(LogResponse::Appended(sharedlog::Position(5))), Some(Position(5))),
        (Err(Failure::MayLie { position: 5 }), None),
        (Err(Failure::Unavailable(String::new())), None),
    ] {
        bench.port.act(Action::Append { append, entry: Bytes::from_static(b"x") }, bench.now);
        bench.hear();
        bench.answer(answer);
        let reported = match bench.events.pop() {
            Some(Event::Appended { append: AppendId(7), position }) => Some(position),
            Some(Event::AppendFailed { append: AppendId(7) }) => None,
            other => panic!("{other:?}"),
        };
        assert_eq!(reported, position);
    }
}

/// A snapshot is not referenced before all of its parts are known to be in the log.
#[test]
fn failed_part_ends_snapshot() {
    let mut bench = Bench::open();
    for answer in [Err(Failure::MayLie { position: 9 }), Err(Failure::Unavailable(String::new()))] {
        let next = Position(1);
        let piece = Bytes::from_static(b"piece");
        bench.port.act(Action::KeepPiece { next, index: 0, piece: piece.clone(), is_last: true }, bench.now);
        bench.hear();
        bench.answer(answer);
        assert!(matches!(bench.events.pop(), Some(Event::SnapshotFailed { next: Position(1) })));
        assert!(bench.asked.is_empty());
        // A piece that the server made meanwhile.
        bench.port.act(Action::KeepPiece { next, index: 1, piece, is_last: true }, bench.now);
        bench.hear();
        assert!(matches!(bench.events.pop(), Some(Event::SnapshotFailed { .. })));
    }
    assert_eq!(bench.warnings, 2);
}

#[test]
fn parses_playback() {
    for text in ["push", "adaptive", "1ms", "10ms", "100ms", "1s"] {
        assert_eq!(text.parse::<Playback>().unwrap().to_string(), text);
    }
    assert_eq!("1000ms".parse::<Playback>().unwrap(), "1s".parse().unwrap());
    for text in ["", "0ms", "1001ms", "2s", "1", "-1ms", "10us", "Push", "5000000000ms"] {
        assert_eq!(text.parse::<Playback>(), Err(ParsePlaybackError), "{text}");
    }
}

#[test]
fn interval_playback_drains_log() {
    let mut bench = Bench::open_with(Playback::Interval(Duration::from_millis(10)));
    (0..50).for_each(|_| bench.push_text("x"));
    let mut next = 0;
    // Reads that end at their limit follow each other at once.
    while next < 50 {
        bench.follow_awaited(next, true);
        assert_eq!((bench.wait_of_read(), bench.now), (Duration::ZERO, Monotonic(0)));
        bench.answer_all();
        next += bench.played().len() as u64;
    }
    bench.follow_awaited(next, true);
    bench.answer_all();
    bench.follow_awaited(next, true);
    assert!(bench.asked.is_empty());
    bench.wait();
    assert_eq!(bench.now, Monotonic(10_000_000));
}

/// Only a read that waits fills a hole left by a crashed writer.
#[test]
fn waits_at_persistent_hole() {
    for playback in [Playback::Interval(Duration::from_millis(10)), Playback::Adaptive] {
        let mut bench = Bench::open_with(playback);
        let mut reads = 0;
        bench.follow(0);
        while bench.wait_of_read() == Duration::ZERO {
            bench.answer_all();
            bench.wait();
            bench.follow(0);
            reads += 1;
        }
        assert_eq!(bench.wait_of_read(), FOLLOW_WAIT);
        assert!(bench.now >= Monotonic(0) + FOLLOW_WAIT && bench.now < Monotonic(0) + Duration::from_millis(650));
        assert!(if playback == Playback::Adaptive { (8..20).contains(&reads) } else { reads == 50 }, "{reads}");
        bench.push_text("x");
        bench.answer_all();
        assert_eq!(bench.played().len(), 1);
        bench.follow(1);
        assert_eq!(bench.wait_of_read(), Duration::ZERO);
    }
}

/// If clients wait for the log, it is read before the interval ends.
#[test]
fn adaptive_playback_serves_waiting_clients() {
    let mut bench = Bench::open_with(Playback::Adaptive);
    for _ in 0..10 {
        bench.follow(0);
        bench.answer_all();
        bench.wait();
    }
    bench.follow(0);
    bench.answer_all();
    assert_eq!(bench.port.next_timer(), bench.now + Duration::from_millis(100));
    bench.follow_awaited(0, true);
    assert_eq!(bench.wait_of_read(), FOLLOW_WAIT);
    // A failed read is still retried only after the delay.
    bench.answer(Err(Failure::Unavailable(String::new())));
    bench.follow_awaited(0, true);
    assert!(bench.asked.is_empty());
    // Many entries shorten the interval.
    let mut next = 0;
    for _ in 0..10 {
        (0..5).for_each(|_| bench.push_text("x"));
        bench.wait();
        while bench.port.next_timer() == NEVER || bench.port.next_timer() <= bench.now {
            bench.follow(next);
            bench.answer_all();
            next += bench.played().len() as u64;
        }
    }
    assert_eq!(bench.port.next_timer(), bench.now + Duration::from_millis(1));
}
