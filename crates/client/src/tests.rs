//! The client state machine with endpoints simulated by the test.

use base::{CohortId, Duration, KeyRange, Lsn, Monotonic, SplitMix64};
use bytes::Bytes;

use crate::{
    Action, Ask, AttemptId, CallId, Client, CohortLsn, Effect, Error, Fault, Link, NodeResponse, Pace, ScanStart, Sent,
    Shown, Stamp, TimelineToken, TransactionId,
};

const DEADLINE: Duration = Duration::from_millis(10_000);

#[derive(Clone, Debug, PartialEq, Eq)]
struct SentRequest {
    link: Link,
    attempt: AttemptId,
    /// `None` if it opens a session.
    request: Option<u32>,
    stamp: Option<Stamp>,
}

/// The outcome of a call, and whether it is in doubt.
type Ended = (CallId, Result<u32, Error>, bool);

/// A client with its clock and its sent requests. Connections succeed immediately, unless the test handles them.
struct Harness {
    client: Client<u32, u32>,
    now: Monotonic,
    timer: Monotonic,
    connects: bool,
    connecting: Vec<Link>,
    disconnected: Vec<Link>,
    left: Vec<SentRequest>,
    /// The seen states that requests carried.
    seen: Vec<Option<CohortLsn>>,
    /// The doubt flags that requests carried.
    in_doubt: Vec<bool>,
    ended: Vec<Ended>,
    /// Sessions that were opened for their callers.
    opened: Vec<(CallId, u64)>,
}

impl Harness {
    fn new(endpoints: usize) -> Self {
        Self {
            client: Client::new(endpoints, 1),
            now: Monotonic(1),
            timer: Monotonic::NEVER,
            connects: true,
            connecting: Vec::new(),
            disconnected: Vec::new(),
            left: Vec::new(),
            seen: Vec::new(),
            in_doubt: Vec::new(),
            ended: Vec::new(),
            opened: Vec::new(),
        }
    }

    fn carry_out(&mut self) {
        loop {
            self.client.invariants();
            let actions = self.client.take_actions();
            if actions.is_empty() {
                return;
            }
            for action in actions {
                match action {
                    Action::Connect(link) if self.connects => self.client.connected(link, self.now),
                    Action::Connect(link) => self.connecting.push(link),
                    Action::Disconnect(link) => self.disconnected.push(link),
                    Action::Send { link, attempt, sent, .. } => {
                        let (request, stamp) = match sent {
                            Sent::OpenSession { .. } => (None, None),
                            Sent::Request { request, stamp, seen, in_doubt } => {
                                self.seen.push(seen);
                                self.in_doubt.push(in_doubt);
                                (Some(request), stamp)
                            }
                        };
                        self.left.push(SentRequest { link, attempt, request, stamp });
                    }
                    Action::Done { call, outcome, in_doubt, .. } => self.ended.push((call, outcome, in_doubt)),
                    Action::Opened { call, session } => self.opened.push((call, session)),
                    Action::SetTimer(at) => self.timer = at,
                }
            }
        }
    }

    fn ask(&mut self, effect: Effect, key: &'static str, request: u32) -> CallId {
        let (table, key) = ("t".to_owned(), key.into());
        let ask = Ask { table, key, effect, pace: Pace::Prompt, bytes: 100, anywhere: None, stamp: None, request };
        self.begin(ask)
    }

    /// Begins a read that any replica may answer.
    fn ask_any(&mut self, key: &'static str, request: u32) -> CallId {
        let (table, key) = ("t".to_owned(), Bytes::from(key));
        let anywhere = Some(ScanStart::At(key.clone()));
        let ask =
            Ask { table, key, effect: Effect::Reads, pace: Pace::Prompt, bytes: 100, anywhere, stamp: None, request };
        self.begin(ask)
    }

    fn begin(&mut self, ask: Ask<u32>) -> CallId {
        let id = self.client.begin(ask, self.now + DEADLINE, self.now);
        self.carry_out();
        id
    }

    /// The requests sent since the last call.
    fn sent(&mut self) -> Vec<SentRequest> {
        std::mem::take(&mut self.left)
    }

    #[track_caller]
    fn one_sent(&mut self) -> SentRequest {
        let sent = self.sent();
        assert_eq!(sent.len(), 1, "{sent:?}");
        sent[0].clone()
    }

    fn ended(&mut self) -> Vec<Ended> {
        std::mem::take(&mut self.ended)
    }

    fn answer(&mut self, attempt: AttemptId, result: Result<NodeResponse<u32>, Fault>) {
        self.client.answered(attempt, result, self.now);
        self.carry_out();
    }

    fn opened(&mut self, attempt: AttemptId, session: u64) {
        self.answer(attempt, Ok(NodeResponse::Session { session, range: KeyRange::all() }));
    }

    fn breaks(&mut self, link: Link) {
        self.client.broken(link, "reset", self.now);
        self.carry_out();
    }

    /// Advances the clock, and fires the timer when it is due.
    fn pass(&mut self, milliseconds: u64) {
        let end = self.now + Duration::from_millis(milliseconds);
        while self.timer <= end {
            self.now = self.timer.max(self.now);
            self.timer = Monotonic::NEVER;
            self.client.timer(self.now);
            self.carry_out();
        }
        self.now = end;
    }

    /// A write in progress, in a session that was opened for it.
    fn write(&mut self) -> (CallId, SentRequest) {
        let call = self.ask(Effect::Writes, "k", 7);
        let opening = self.one_sent();
        assert_eq!(opening.request, None);
        self.opened(opening.attempt, 5);
        (call, self.one_sent())
    }
}

/// A later write of the session would acknowledge the commit, and its range would forget the outcome.
#[test]
fn unknown_commit_ends_use_of_its_session() {
    let mut harness = Harness::new(1);
    let (_, first) = harness.write();
    harness.ask(Effect::Commits, "k", 8);
    let commit = harness.one_sent();
    assert_eq!(commit.stamp.map(|stamp| stamp.sequence), Some(2));
    harness.answer(first.attempt, Ok(NodeResponse::Of(0)));
    harness.answer(commit.attempt, Err(Fault::UnknownSession));
    let opening = harness.one_sent();
    assert_eq!(opening.request, None, "nothing was executed: it is sent again in a new session");
    harness.opened(opening.attempt, 6);
    let commit = harness.one_sent();
    harness.ask(Effect::Writes, "k", 9);
    let during = harness.one_sent();
    assert_eq!(during.stamp, Some(Stamp { session: 6, sequence: 2, first_incomplete: 1 }));
    let ended = |harness: &mut Harness| harness.ended().pop().map(|(_, outcome, _)| outcome);
    ended(&mut harness);
    harness.answer(commit.attempt, Err(Fault::Unknown("the leader changed".into())));
    harness.answer(during.attempt, Ok(NodeResponse::Of(0)));
    ended(&mut harness);
    harness.pass(DEADLINE.as_millis());
    assert!(matches!(ended(&mut harness), Some(Err(Error::OutcomeUnknown(_)))));
    harness.sent();
    harness.ask(Effect::Writes, "k", 10);
    assert_eq!(harness.one_sent().request, None, "a session is opened");
}

#[test]
fn concurrent_writes_share_one_session() {
    let mut harness = Harness::new(3);
    for request in 0..4 {
        harness.ask(Effect::Writes, "k", request);
    }
    let opening = harness.one_sent();
    harness.opened(opening.attempt, 5);
    let sent = harness.sent();
    let stamps: Vec<_> = sent.iter().map(|sent_request| sent_request.stamp.expect("a stamp")).collect();
    assert_eq!(stamps.iter().map(|stamp| stamp.sequence).collect::<Vec<_>>(), [1, 2, 3, 4]);
    assert!(stamps.iter().all(|stamp| stamp.session == 5 && stamp.first_incomplete == 1));
    harness.answer(sent[0].attempt, Ok(NodeResponse::Of(1)));
    harness.answer(sent[1].attempt, Ok(NodeResponse::Of(2)));
    harness.ask(Effect::Writes, "k", 4);
    assert_eq!(harness.one_sent().stamp, Some(Stamp { session: 5, sequence: 5, first_incomplete: 3 }));
}

#[test]
fn full_window_admits_after_oldest_ends() {
    let mut harness = Harness::new(1);
    let (_, first) = harness.write();
    for request in 1..base::limits::SESSION_WINDOW as u32 {
        harness.ask(Effect::Writes, "k", request);
    }
    let sent = harness.sent();
    assert_eq!(sent.len() as u64, base::limits::SESSION_WINDOW - 1);
    harness.ask(Effect::Writes, "k", 9_999);
    harness.answer(sent[0].attempt, Ok(NodeResponse::Of(1)));
    assert_eq!(harness.sent(), []);
    harness.answer(first.attempt, Ok(NodeResponse::Of(0)));
    assert_eq!(harness.one_sent().request, Some(9_999));
}

#[test]
fn hedges_past_silent_endpoint() {
    let mut harness = Harness::new(3);
    let (call, first) = harness.write();
    harness.pass(399);
    assert_eq!(harness.sent(), []);
    harness.pass(60);
    let second = harness.one_sent();
    assert_ne!(second.link.endpoint, first.link.endpoint);
    assert_eq!((second.stamp, second.request), (first.stamp, first.request));
    harness.answer(first.attempt, Ok(NodeResponse::Of(3)));
    assert_eq!(harness.ended(), [(call, Ok(3), true)]);
    // Later calls avoid the silent endpoint.
    harness.ask(Effect::Reads, "k", 8);
    assert_eq!(harness.one_sent().link.endpoint, second.link.endpoint);
    harness.answer(second.attempt, Ok(NodeResponse::Of(3)));
    assert_eq!(harness.ended(), []);
}

#[test]
fn responsive_endpoint_gets_longer_timeout() {
    let mut harness = Harness::new(3);
    let (_, _slow) = harness.write();
    for _ in 0..9 {
        harness.pass(100);
        harness.ask(Effect::Reads, "k", 1);
        let quick = harness.one_sent();
        harness.answer(quick.attempt, Ok(NodeResponse::Of(1)));
    }
    assert_eq!(harness.sent(), []);
    harness.pass(110);
    let second = harness.one_sent();
    assert_ne!(second.link.endpoint, 0);
    // Other calls still use it.
    harness.ask(Effect::Reads, "k", 1);
    assert_eq!(harness.one_sent().link.endpoint, 0);
}

#[test]
fn slow_answers_extend_timeout() {
    let mut harness = Harness::new(3);
    for _ in 0..20 {
        harness.ask(Effect::Reads, "k", 1);
        let request = harness.one_sent();
        harness.pass(300);
        harness.answer(request.attempt, Ok(NodeResponse::Of(1)));
    }
    harness.ask(Effect::Reads, "k", 1);
    harness.sent();
    harness.pass(1_000);
    assert_eq!(harness.sent(), []);
    harness.pass(400);
    harness.one_sent();
}

/// A call never waits for a silent endpoint until its deadline, however slow earlier responses were.
#[test]
fn call_is_not_bound_to_one_endpoint() {
    let mut harness = Harness::new(3);
    for _ in 0..40 {
        harness.ask(Effect::Reads, "k", 1);
        let request = harness.sent();
        harness.pass(3_000);
        harness.sent();
        harness.answer(request[0].attempt, Ok(NodeResponse::Of(1)));
    }
    harness.ask(Effect::Reads, "k", 1);
    let request = harness.one_sent();
    harness.pass(3_000);
    assert_ne!(harness.one_sent().link.endpoint, request.link.endpoint);
}

#[test]
fn broken_link_retries_with_same_stamps() {
    let mut harness = Harness::new(3);
    let (_, first) = harness.write();
    for request in 0..10 {
        harness.ask(Effect::Writes, "k", request);
    }
    let mut before: Vec<_> = harness.sent();
    before.insert(0, first.clone());
    harness.breaks(first.link);
    let after = harness.sent();
    let content = |sent: &[SentRequest]| {
        sent.iter().map(|sent_request| (sent_request.request, sent_request.stamp)).collect::<Vec<_>>()
    };
    assert_eq!(content(&after), content(&before));
    assert!(after.iter().all(|sent_request| sent_request.link.endpoint == 1));
    // A late response over the old connection is ignored.
    harness.answer(before[0].attempt, Ok(NodeResponse::Of(1)));
    assert_eq!(harness.ended(), []);
}

#[test]
fn known_leader_is_used_until_failure() {
    let mut harness = Harness::new(3);
    harness.client.leads(2, "t", KeyRange { start: "m".into(), end: None });
    harness.ask(Effect::Reads, "z", 1);
    let request = harness.one_sent();
    assert_eq!(request.link.endpoint, 2);
    harness.ask(Effect::Reads, "a", 1);
    assert_eq!(harness.one_sent().link.endpoint, 0);
    harness.breaks(request.link);
    assert_eq!(harness.one_sent().link.endpoint, 0);
}

#[test]
fn expired_session_keeps_doubtful_write_unknown() {
    let mut harness = Harness::new(3);
    let (_, first) = harness.write();
    harness.answer(first.attempt, Err(Fault::UnknownSession));
    let opening = harness.one_sent();
    harness.opened(opening.attempt, 6);
    let again = harness.one_sent();
    assert_eq!(again.stamp, Some(Stamp { session: 6, sequence: 1, first_incomplete: 1 }));
    harness.breaks(again.link);
    let elsewhere = harness.one_sent();
    harness.answer(elsewhere.attempt, Err(Fault::UnknownSession));
    assert!(matches!(harness.ended()[..], [(_, Err(Error::OutcomeUnknown(_)), true)]));
}

#[test]
fn missing_table_fails_session_waiters() {
    let mut harness = Harness::new(3);
    harness.ask(Effect::Writes, "a", 1);
    harness.ask(Effect::Writes, "b", 2);
    let opening = harness.one_sent();
    harness.answer(opening.attempt, Err(Fault::Definite(Error::NotFound("no table".into()))));
    assert!(harness.ended().iter().all(|(_, outcome, _)| matches!(outcome, Err(Error::NotFound(_)))));
}

#[test]
fn deadline_reports_if_call_was_sent() {
    let mut harness = Harness::new(3);
    let (write, _) = harness.write();
    let read = harness.ask(Effect::Reads, "k", 1);
    harness.pass(10_001);
    let ended: std::collections::BTreeMap<_, _> =
        harness.ended().into_iter().map(|(call, outcome, _)| (call, outcome)).collect();
    assert!(matches!(ended[&write], Err(Error::OutcomeUnknown(_))));
    assert!(matches!(ended[&read], Err(Error::Unavailable(_))));

    let mut harness = Harness::new(3);
    harness.connects = false;
    harness.ask(Effect::Writes, "k", 1);
    harness.pass(10_001);
    assert!(matches!(harness.ended()[..], [(_, Err(Error::Unavailable(_)), false)]));
    assert!(harness.connecting.len() > 1, "every endpoint is tried");
}

#[test]
fn silent_connection_is_replaced() {
    let mut harness = Harness::new(1);
    harness.ask(Effect::Reads, "k", 1);
    let request = harness.one_sent();
    harness.pass(4_000);
    assert_eq!(harness.disconnected, [request.link]);
    assert!(
        harness.sent().iter().any(|sent_request| sent_request.link != request.link),
        "no other connection is opened"
    );
}

#[test]
fn abandoned_call_frees_its_slot() {
    let mut harness = Harness::new(3);
    let (call, sent) = harness.write();
    harness.client.abandon(call, harness.now);
    harness.carry_out();
    harness.answer(sent.attempt, Ok(NodeResponse::Of(1)));
    harness.pass(20_000);
    assert_eq!(harness.ended(), []);
    assert_eq!(harness.sent(), []);
    harness.ask(Effect::Writes, "k", 2);
    assert_eq!(harness.one_sent().stamp, Some(Stamp { session: 5, sequence: 2, first_incomplete: 2 }));
}

/// With random events in any order, each call ends once and the invariants hold.
#[test]
fn fuzz_each_call_ends_once() {
    for seed in 0..300 {
        let mut random = SplitMix64::new(seed);
        let mut harness = Harness::new(1 + random.below(3) as usize);
        harness.connects = random.below(2) == 0;
        let (mut begun, mut sent, mut links) = (0, Vec::new(), Vec::new());
        for step in 0..400_u32 {
            match random.below(10) {
                0..3 => {
                    let effect = [Effect::Reads, Effect::Repeatable, Effect::Writes, Effect::AppendsOnce]
                        [random.below(4) as usize];
                    harness.ask(effect, ["a", "m", "z"][random.below(3) as usize], step);
                    begun += 1;
                }
                3..7 if !sent.is_empty() => {
                    let SentRequest { attempt, request, .. } =
                        sent.swap_remove(random.below(sent.len() as u64) as usize);
                    let result = match (request, random.below(8)) {
                        (_, 0) => Err(Fault::Unavailable("no leader".into())),
                        (_, 1) => Err(Fault::Unknown("leader lost".into())),
                        (_, 2) => Err(Fault::Lost("reset".into())),
                        (Some(_), 3) => Err(Fault::UnknownSession),
                        (Some(request), _) => Ok(NodeResponse::Of(request)),
                        (None, _) => Ok(NodeResponse::Session { session: u64::from(step) + 1, range: KeyRange::all() }),
                    };
                    harness.answer(attempt, result);
                }
                7 if !links.is_empty() => {
                    let link = links.swap_remove(random.below(links.len() as u64) as usize);
                    if random.below(2) == 0 {
                        harness.client.connected(link, harness.now);
                        harness.carry_out();
                    } else {
                        harness.breaks(link);
                    }
                }
                _ => harness.pass(random.below(700)),
            }
            sent.append(&mut harness.sent());
            links.append(&mut harness.connecting);
            links.extend(sent.iter().map(|sent_request| sent_request.link).take(1));
        }
        harness.pass(30_000);
        let mut calls: Vec<_> = harness.ended().into_iter().map(|(call, ..)| call).collect();
        assert_eq!(calls.len(), begun, "seed {seed}");
        calls.sort_unstable();
        calls.dedup();
        assert_eq!(calls.len(), begun, "seed {seed}: a call ended twice");
    }
}

/// A timer that fires late, just before the deadline, leaves time for one or two attempts, not for ever shorter ones.
#[test]
fn late_timer_bounds_attempts() {
    let mut harness = Harness::new(3);
    harness.write();
    harness.now = Monotonic(DEADLINE.0);
    harness.client.timer(harness.now);
    harness.carry_out();
    assert!(harness.sent().len() <= 3);
    harness.pass(1);
    assert!(matches!(&harness.ended()[..], [(_, Err(Error::OutcomeUnknown(_)), true)]));
}

/// Reads that any replica may answer are distributed over all nodes except those that failed. Each attempt carries the
/// latest seen state of the range.
#[test]
fn any_replica_reads_rotate_with_seen_state() {
    let mut harness = Harness::new(3);
    let first: Vec<SentRequest> =
        (1..=3).map(|request| (harness.ask_any("k", request), harness.one_sent()).1).collect();
    let endpoints: Vec<usize> = first.iter().map(|sent| sent.link.endpoint).collect();
    assert_eq!(endpoints, [1, 2, 0]);
    let place = CohortLsn { cohort: CohortId(2), lsn: Lsn::new(3, 9) };
    let shown = Shown { place, range: KeyRange { start: "a".into(), end: None } };
    harness.answer(first[0].attempt, Ok(NodeResponse::Shown { answer: 1, shown }));
    harness.answer(first[2].attempt, Ok(NodeResponse::Of(3)));
    assert_eq!(harness.seen, [None; 3]);

    harness.breaks(first[1].link);
    harness.pass(50);
    let again = harness.one_sent();
    assert_ne!(again.link.endpoint, 2, "its endpoint has failed");
    assert_eq!(harness.seen.pop(), Some(Some(place)), "a newer state was seen");
    harness.answer(again.attempt, Ok(NodeResponse::Of(2)));
    let ask = |harness: &mut Harness, request| {
        harness.ask_any("0", request);
        let sent = harness.one_sent();
        harness.answer(sent.attempt, Ok(NodeResponse::Of(request)));
        assert_eq!(harness.seen.pop(), Some(None), "no state of that range was seen");
        sent.link.endpoint
    };
    assert!((4..8).all(|request| ask(&mut harness, request) != 2));
    harness.pass(1_000);
    assert!((8..11).any(|request| ask(&mut harness, request) == 2), "the endpoint is used again after a while");
}

/// A response as of before a split is rejected and requested again, with the newer state seen of that cohort.
#[test]
fn stale_answer_is_requested_again() {
    let mut harness = Harness::new(3);
    let place = |sequence| CohortLsn { cohort: CohortId(4), lsn: Lsn::new(1, sequence) };
    let shows = |sequence, end: Option<&'static str>| {
        let range = KeyRange { start: "".into(), end: end.map(Into::into) };
        Ok(NodeResponse::Shown { answer: 7, shown: Shown { place: place(sequence), range } })
    };
    let ask = |harness: &mut Harness, key| {
        harness.ask_any(key, 1);
        harness.one_sent().attempt
    };
    let first = ask(&mut harness, "a");
    harness.answer(first, shows(6, Some("m")));
    assert_eq!(harness.ended().len(), 1);

    let early = ask(&mut harness, "n");
    harness.pass(600);
    let [.., late] = &harness.sent()[..] else { panic!("no other endpoint was tried") };
    harness.answer(early, shows(2, Some("z")));
    assert_eq!(harness.sent().len(), 0, "another endpoint was tried already");
    harness.answer(late.attempt, shows(5, Some("z")));
    assert_eq!(harness.ended(), []);
    let again = harness.one_sent();
    assert_eq!(harness.seen.pop(), Some(Some(place(6))));
    harness.answer(again.attempt, shows(6, Some("z")));
    assert!(matches!(&harness.ended()[..], [(_, Ok(7), false)]));
    let next = ask(&mut harness, "n");
    assert_eq!(harness.seen.pop(), Some(Some(place(6))), "the state seen includes this cohort");
    harness.answer(next, shows(6, Some("z")));
}

/// After a token the reads of another client require the states that it contains, and a response as of before a split is
/// requested again, as if this client had seen them.
#[test]
fn token_carries_seen_states_to_another_client() {
    let place = |cohort, sequence| CohortLsn { cohort: CohortId(cohort), lsn: Lsn::new(1, sequence) };
    let shows = |place, end: Option<&'static str>| {
        let range = KeyRange { start: "".into(), end: end.map(Into::into) };
        Ok(NodeResponse::Shown { answer: 7, shown: Shown { place, range } })
    };
    let (mut one, mut other) = (Harness::new(3), Harness::new(3));
    one.ask_any("a", 1);
    let sent = one.one_sent();
    one.answer(sent.attempt, shows(place(4, 6), Some("m")));

    let token = one.client.token(None);
    assert_eq!(one.client.token(Some("another table")), TimelineToken::default());
    other.ask_any("a", 1);
    let early = other.one_sent();
    other.client.observe(&TimelineToken::decode(token.encode().unwrap()).unwrap());
    assert_eq!(other.client.token(None), token);
    other.answer(early.attempt, shows(place(4, 5), Some("m")));
    assert_eq!(other.ended().len(), 1, "it began before the token was observed");
    assert_eq!(other.client.token(None), token, "an older state does not replace a newer one");

    other.seen.clear();
    other.ask_any("a", 2);
    let required = other.one_sent();
    assert_eq!(other.seen.pop(), Some(Some(place(4, 6))));
    other.answer(required.attempt, shows(place(4, 8), Some("m")));
    assert_eq!(other.ended().len(), 1);
    one.client.observe(&other.client.token(None));
    other.ask_any("n", 3);
    let before_split = other.one_sent();
    other.answer(before_split.attempt, shows(place(4, 2), Some("z")));
    assert_eq!(other.ended(), [], "the range of n was split off in a state seen");
    assert_eq!(other.seen, [None, Some(place(4, 8))]);
    one.ask_any("a", 4);
    one.sent();
    assert_eq!(one.seen.pop(), Some(Some(place(4, 8))));
}

/// The error at the deadline contains the total time and the cause that a node reported, even for an earlier attempt.
#[test]
fn timeout_error_reports_time_and_cause() {
    let mut harness = Harness::new(3);
    let says = |harness: &mut Harness, reason: &str| {
        let first = harness.sent()[0].attempt;
        harness.pass(100);
        harness.answer(first, Err(Fault::Unavailable(reason.into())));
        assert_eq!(harness.ended(), [], "other attempts are outstanding until the deadline");
        harness.pass(1);
        harness.ended().remove(0).1
    };
    let unavailable = |reason: &str| Err(Error::Unavailable(reason.to_owned()));

    harness.ask(Effect::Reads, "k", 1);
    harness.pass(10_000);
    assert_eq!(harness.ended().remove(0).1, unavailable("timed out after 10000 ms"));
    harness.sent();
    for (effect, done) in [(Effect::Reads, ""), (Effect::Writes, "nothing was written: ")] {
        harness.ask(effect, "k", 2);
        harness.pass(9_899);
        let expected = unavailable(&format!("{done}timed out after 10000 ms: no leader"));
        assert_eq!(says(&mut harness, "no leader"), expected, "{effect:?}");
        harness.sent();
    }
}

/// A retried append is marked as in doubt: its first attempt may have been executed.
#[test]
fn retried_append_is_marked_in_doubt() {
    let mut harness = Harness::new(3);
    let id = harness.ask(Effect::Appends, "", 7);
    let first = harness.one_sent();
    assert_eq!((first.request, first.stamp), (Some(7), None), "an append needs no session");
    harness.answer(first.attempt, Err(Fault::Unavailable("no projection".into())));
    let second = harness.one_sent();
    harness.breaks(second.link);
    let third = harness.one_sent();
    assert_ne!(third.link.endpoint, second.link.endpoint);
    assert_eq!(harness.in_doubt, [false, false, true]);
    harness.answer(third.attempt, Err(Fault::Definite(Error::NotFound("no such log".into()))));
    assert_eq!(harness.ended(), [(id, Err(Error::OutcomeUnknown("no such log".into())), true)]);
}

/// Such an append waits for an endpoint that answers other calls, and ends in doubt when the other calls move to another
/// endpoint.
#[test]
fn append_once_waits_for_busy_endpoint() {
    let mut harness = Harness::new(3);
    let id = harness.ask(Effect::AppendsOnce, "", 7);
    let once = harness.one_sent();
    for _ in 0..30 {
        harness.pass(100);
        harness.ask(Effect::Reads, "k", 1);
        let read = harness.one_sent();
        harness.answer(read.attempt, Ok(NodeResponse::Of(1)));
        harness.ended();
    }
    harness.ask(Effect::Reads, "k", 1);
    assert_eq!(harness.one_sent().link, once.link);
    harness.pass(1_500);
    assert!(harness.sent().iter().all(|sent_request| sent_request.request == Some(1)), "only the read is repeated");
    assert!(matches!(&harness.ended()[..], [(ended, Err(Error::OutcomeUnknown(_)), true)] if *ended == id));
}

#[test]
fn append_once_fails_on_silent_endpoint() {
    let mut harness = Harness::new(3);
    harness.ask(Effect::AppendsOnce, "", 7);
    let first = harness.one_sent();
    harness.answer(first.attempt, Err(Fault::Unavailable("no projection".into())));
    assert_ne!(harness.one_sent().link.endpoint, first.link.endpoint, "an unexecuted append is retried elsewhere");
    harness.pass(1_000);
    assert_eq!(harness.sent(), []);
    assert!(matches!(&harness.ended()[..], [(_, Err(Error::OutcomeUnknown(_)), true)]));
}

/// All attempts at a write were answered "nothing was done", also those that took longer than their timeouts. Without one
/// of the responses the outcome is unknown.
#[test]
fn slow_refusals_leave_no_doubt() {
    for is_answered in [true, false] {
        let mut harness = Harness::new(2);
        let (_, first) = harness.write();
        harness.pass(9_900);
        let later = harness.sent();
        assert!(!later.is_empty() && harness.in_doubt[1..].iter().all(|in_doubt| *in_doubt));
        for attempt in later.iter().chain(is_answered.then_some(&first)) {
            harness.answer(attempt.attempt, Err(Fault::Unavailable("no leader".into())));
        }
        assert_eq!(harness.sent(), [], "too late for another attempt");
        harness.pass(100);
        let ended = harness.ended().remove(0);
        match is_answered {
            true => assert_eq!(
                ended.1,
                Err(Error::Unavailable("nothing was written: timed out after 10000 ms: no leader".into()))
            ),
            false => assert!(matches!(ended.1, Err(Error::OutcomeUnknown(_))), "{ended:?}"),
        }
    }
}

/// A commit in a session of its caller: another session cannot replace it.
#[test]
fn commit_in_own_session_keeps_its_stamp() {
    let mut harness = Harness::new(1);
    let opening = harness.ask(Effect::OpensSession, "k", 0);
    let sent = harness.one_sent();
    assert_eq!(sent.request, None);
    harness.opened(sent.attempt, 7);
    assert_eq!((std::mem::take(&mut harness.opened), harness.ended().len()), (vec![(opening, 7)], 0));
    let stamp = Stamp { session: 7, sequence: 1, first_incomplete: 1 };
    let (table, key, effect) = ("t".to_owned(), "k".into(), Effect::Commits);
    let ask = Ask { table, key, effect, pace: Pace::Slow, bytes: 9, anywhere: None, stamp: Some(stamp), request: 5 };
    let expired = harness.begin(ask.clone());
    let sent = harness.one_sent();
    assert_eq!((sent.request, sent.stamp), (Some(5), Some(stamp)));
    harness.answer(sent.attempt, Err(Fault::UnknownSession));
    assert!(matches!(&harness.ended()[..], [(id, Err(Error::Aborted(_)), false)] if *id == expired));
    // It may have been committed before the session expired.
    harness.begin(ask);
    let sent = harness.one_sent();
    harness.answer(sent.attempt, Err(Fault::Lost("reset".into())));
    harness.pass(300);
    let again = harness.one_sent();
    assert_eq!(again.stamp, Some(stamp));
    harness.answer(again.attempt, Err(Fault::UnknownSession));
    assert!(matches!(&harness.ended()[..], [(_, Err(Error::OutcomeUnknown(_)), true)]));
}

#[test]
fn transaction_ids_are_text() {
    let stamp = Stamp { session: 1 << 60, sequence: 9, first_incomplete: 3 };
    let id = TransactionId { table: "sql.a/b".to_owned(), key: Bytes::from_static(b"\0k/"), stamp };
    assert_eq!(id.to_string(), "1152921504606846976/9/3/006b2f/sql.a/b");
    assert_eq!(id.to_string().parse(), Ok(id.clone()));
    let empty = TransactionId { key: Bytes::new(), ..id };
    assert_eq!(empty.to_string().parse(), Ok(empty));
    for text in ["", "12", "1/2/3/0", "1/2/3/0/t", "1/2/3/zz/t", "1/2/x/00/t", "-1/2/3/00/t", "1/2/3/é/t"] {
        assert!(text.parse::<TransactionId>().is_err(), "{text}");
    }
}
