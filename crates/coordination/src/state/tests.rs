use super::*;
use crate::acl::Id;
use crate::jute::{AclRecord, Create, CreateKind, IdRecord, Sequence, Writer};
use crate::limits::INACTIVE_POSITIONS_MAX;

const PASSWORD: Password = [1; 16];

/// A log of one state.
struct Log {
    state: State,
    outcomes: Vec<Outcome>,
}

impl Log {
    /// Creates a log with a server that joined at position 0.
    fn new() -> Self {
        let mut log = Self { state: State::default(), outcomes: Vec::new() };
        assert_eq!(log.entry(&Entry::Join { nonce: 9 }).joined, Some((9, ServerId(0))));
        log
    }

    fn entry(&mut self, entry: &Entry) -> Admitted {
        let admitted = self.state.admit(Some(entry), 100);
        for batch in &admitted.batches {
            for item in &batch.items {
                self.outcomes.push(self.state.apply(batch, item).outcome);
            }
        }
        admitted
    }

    /// Appends a batch and returns the outcomes of its items.
    fn batch(&mut self, server: u64, number: u64, items: Vec<Item>) -> Vec<Outcome> {
        self.outcomes.clear();
        let identities = vec![vec![Id::new("ip", "::1")]];
        self.entry(&Entry::Batch(Arc::new(Batch { server: ServerId(server), number, time_ms: 7, identities, items })));
        std::mem::take(&mut self.outcomes)
    }

    fn hole(&mut self) -> Admitted {
        self.state.admit(None, 0)
    }
}

fn open() -> Item {
    Item::Open { timeout_ms: 1_000, password: PASSWORD }
}

fn moved(session: SessionId) -> Item {
    Item::Move { session, password: PASSWORD, timeout_ms: 2_000 }
}

fn create(session: SessionId, epoch: u32, sequence: u64, path: &str) -> Item {
    let acl = [AclRecord { perms: 31, id: IdRecord { scheme: Some("world"), id: Some("anyone") } }];
    let create = Create { kind: CreateKind::Create, path, data: None, acl: Sequence::of(&acl), flags: 1, ttl_ms: None };
    let mut writer = Writer::new();
    Request::Create(create).encode(&mut writer);
    let stamp = Stamp { session, epoch: MoveEpoch(epoch), sequence };
    Item::Request { stamp, identities: 0, op: op::CREATE, body: writer.take() }
}

fn is_done(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Written(Ok(_)))
}

const FIRST: SessionId = SessionId((1 << 56) + 1);

#[test]
fn session_open_move_and_close() {
    let mut log = Log::new();
    let connected = |epoch| Outcome::Connected { session: FIRST, epoch: MoveEpoch(epoch) };
    assert_eq!(log.batch(0, 1, vec![open()]), [connected(1)]);
    assert!(is_done(&log.batch(0, 2, vec![create(FIRST, 1, 1, "/a")])[0]));
    assert_eq!(log.state.zxid(), 2);
    log.entry(&Entry::Join { nonce: 10 });
    let wrong = Item::Move { session: FIRST, password: [2; 16], timeout_ms: 1 };
    let unknown = moved(SessionId(5));
    assert_eq!(log.batch(3, 1, vec![wrong, unknown, moved(FIRST)]), [Outcome::Refused, Outcome::Refused, connected(2)]);
    let session = log.state.session(FIRST).unwrap();
    assert_eq!((session.server, session.timeout_ms, session.sequence), (ServerId(3), 2_000, 0));
    // Neither a delayed append of the previous server nor a gap takes effect.
    assert_eq!(log.batch(0, 3, vec![create(FIRST, 1, 2, "/b")]), [Outcome::Stale]);
    assert_eq!(log.batch(3, 2, vec![create(FIRST, 2, 2, "/b")]), [Outcome::Stale]);
    let Item::Request { stamp, identities, body, .. } = create(FIRST, 2, 1, "/b") else { panic!() };
    let close = Item::Request { stamp, identities, op: op::CLOSE_SESSION, body };
    assert_eq!(log.batch(3, 3, vec![close]), [Outcome::Ended { session: FIRST, is_expired: false }]);
    assert_eq!((log.state.tree().get("/a").is_none(), log.state.sessions().len()), (true, 0));
    assert_eq!(log.batch(3, 4, vec![moved(FIRST)]), [Outcome::Refused]);
}

#[test]
fn batches_apply_once_in_order() {
    let mut log = Log::new();
    log.batch(0, 1, vec![open()]);
    assert_eq!(log.batch(0, 3, vec![create(FIRST, 1, 2, "/b")]), []);
    assert_eq!(log.batch(0, 1, vec![open()]), []);
    let done = log.batch(0, 2, vec![create(FIRST, 1, 1, "/a")]);
    assert!(done.len() == 2 && done.iter().all(is_done));
    assert_eq!(log.batch(0, 3, vec![create(FIRST, 1, 2, "/b")]), []);
    // Beyond the maximum number of batches in flight.
    assert_eq!(log.batch(0, 8, vec![open()]), []);
    assert_eq!(log.batch(77, 1, vec![open()]), []);
    assert_eq!(log.state.sessions().len(), 1);
}

#[test]
fn expiry_requires_last_touch() {
    let mut log = Log::new();
    log.batch(0, 1, vec![open()]);
    log.hole();
    log.batch(0, 2, vec![Item::Touch { session: FIRST, epoch: MoveEpoch(1) }]);
    let expire = |last_touch| Item::Expire { session: FIRST, last_touch: Position(last_touch) };
    assert_eq!(log.state.session(FIRST).unwrap().last_touch, Position(3));
    assert_eq!(log.batch(0, 3, vec![expire(1)]), [Outcome::Nothing]);
    // A touch of an old connection.
    log.batch(0, 4, vec![Item::Touch { session: FIRST, epoch: MoveEpoch(0) }]);
    assert!(is_done(&log.batch(0, 5, vec![create(FIRST, 1, 1, "/a")])[0]));
    assert_eq!(log.batch(0, 6, vec![expire(3)]), [Outcome::Nothing]);
    assert_eq!(log.batch(0, 7, vec![expire(6)]), [Outcome::Ended { session: FIRST, is_expired: true }]);
    assert!(log.state.tree().get("/a").is_none());
}

#[test]
fn removes_inactive_servers() {
    let mut log = Log::new();
    log.batch(0, 1, vec![open()]);
    log.batch(0, 3, vec![open()]);
    let removed: Vec<_> = (0..INACTIVE_POSITIONS_MAX).flat_map(|_| log.hole().removed).collect();
    assert_eq!(removed, [ServerId(0)]);
    assert!(!log.state.has_server(ServerId(0)));
    assert_eq!(log.batch(0, 2, vec![open()]), []);
    assert_eq!(log.state.sessions().len(), 1);
}

#[test]
fn non_request_entries_are_errors() {
    let mut log = Log::new();
    log.batch(0, 1, vec![open()]);
    let Item::Request { stamp, .. } = create(FIRST, 1, 1, "/a") else { panic!() };
    let read = Item::Request { stamp, identities: 9, op: op::GET_DATA, body: b"\0\0\0\x01/\0"[..].into() };
    assert_eq!(log.batch(0, 2, vec![read]), [Outcome::Written(Err(ErrorCode::Marshalling))]);
}

#[test]
fn snapshot_round_trip() {
    let mut log = Log::new();
    log.batch(0, 1, vec![open(), open()]);
    for number in 2..60 {
        log.batch(0, number, vec![create(FIRST, 1, number - 1, &format!("/node-{number}"))]);
    }
    // A batch waits for its predecessor.
    log.batch(0, 61, vec![create(FIRST, 1, 60, "/late")]);
    log.state.begin_snapshot();
    let mut restorer = Restorer::default();
    let (mut pieces, mut is_last) = (Vec::new(), false);
    while let Some(piece) = log.state.next_piece() {
        assert!(!is_last && piece.len() <= crate::limits::SNAPSHOT_PIECE_BYTES);
        is_last = !log.state.has_piece();
        restorer.push(&piece).unwrap();
        pieces.push(piece);
    }
    assert!(is_last && pieces.len() > 5);
    let mut restored = Log { state: restorer.finish().unwrap(), outcomes: Vec::new() };
    for log in [&mut log, &mut restored] {
        let done = log.batch(0, 60, vec![create(FIRST, 1, 59, "/sixty")]);
        assert!(done.len() == 2 && done.iter().all(is_done));
    }
    assert_eq!(restored.state.zxid(), log.state.zxid());
    assert!(restored.state.sessions().eq(log.state.sessions()));
    let whole = |state: &mut State| {
        state.begin_snapshot();
        std::iter::from_fn(|| state.next_piece()).collect::<Vec<_>>()
    };
    assert_eq!(whole(&mut restored.state), whole(&mut log.state));

    let mut part = Restorer::default();
    pieces[..pieces.len() - 1].iter().for_each(|piece| part.push(piece).unwrap());
    assert!(part.finish().is_err());
    let mut twice = Restorer::default();
    pieces.iter().for_each(|piece| twice.push(piece).unwrap());
    assert!(twice.push(&pieces[0]).is_err());
}
