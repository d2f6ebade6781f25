//! The client state machine with endpoints simulated by the test.

use base::{CohortId, Duration, KeyRange, Lsn, Monotonic, SplitMix64};
use bytes::Bytes;

use crate::{
    Action, Answer, Ask, AttemptId, CallId, Client, Effect, Error, Fault, Link, Pace, Place, Position, Sent, Shown,
    Stamp,
};

const DEADLINE: Duration = Duration::from_millis(10_000);

/// A sent request.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Left {
    link: Link,
    attempt: AttemptId,
    /// None: a session is to be opened.
    request: Option<u32>,
    stamp: Option<Stamp>,
}

/// The outcome of a call, and whether it is in doubt.
type Ended = (CallId, Result<u32, Error>, bool);

/// A client with its clock and its sent requests. Connections succeed immediately, unless the test handles them.
struct Bed {
    client: Client<u32, u32>,
    now: Monotonic,
    timer: Monotonic,
    connects: bool,
    connecting: Vec<Link>,
    disconnected: Vec<Link>,
    left: Vec<Left>,
    /// The seen states that requests carried.
    seen: Vec<Option<Place>>,
    /// The doubt flags that requests carried.
    in_doubt: Vec<bool>,
    ended: Vec<Ended>,
}

impl Bed {
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
                        self.left.push(Left { link, attempt, request, stamp });
                    }
                    Action::Done { call, outcome, in_doubt } => self.ended.push((call, outcome, in_doubt)),
                    Action::SetTimer(at) => self.timer = at,
                }
            }
        }
    }

    fn ask(&mut self, effect: Effect, key: &'static str, request: u32) -> CallId {
        let (table, key) = ("t".to_owned(), key.into());
        let ask = Ask { table, key, effect, pace: Pace::Prompt, bytes: 100, anywhere: None, request };
        self.begin(ask)
    }

    /// Begins a read that any replica may answer.
    fn ask_any(&mut self, key: &'static str, request: u32) -> CallId {
        let (table, key) = ("t".to_owned(), Bytes::from(key));
        let anywhere = Some(Position::At(key.clone()));
        let ask = Ask { table, key, effect: Effect::Reads, pace: Pace::Prompt, bytes: 100, anywhere, request };
        self.begin(ask)
    }

    fn begin(&mut self, ask: Ask<u32>) -> CallId {
        let id = self.client.begin(ask, self.now + DEADLINE, self.now);
        self.carry_out();
        id
    }

    /// The requests sent since the last call.
    fn sent(&mut self) -> Vec<Left> {
        std::mem::take(&mut self.left)
    }

    #[track_caller]
    fn one_sent(&mut self) -> Left {
        let sent = self.sent();
        assert_eq!(sent.len(), 1, "{sent:?}");
        sent[0].clone()
    }

    fn ended(&mut self) -> Vec<Ended> {
        std::mem::take(&mut self.ended)
    }

    fn answer(&mut self, attempt: AttemptId, told: Result<Answer<u32>, Fault>) {
        self.client.answered(attempt, told, self.now);
        self.carry_out();
    }

    fn opened(&mut self, attempt: AttemptId, session: u64) {
        self.answer(attempt, Ok(Answer::Session { session, range: KeyRange::all() }));
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
    fn write(&mut self) -> (CallId, Left) {
        let call = self.ask(Effect::Writes, "k", 7);
        let opening = self.one_sent();
        assert_eq!(opening.request, None);
        self.opened(opening.attempt, 5);
        (call, self.one_sent())
    }
}

#[test]
fn concurrent_writes_share_one_session() {
    let mut bed = Bed::new(3);
    for request in 0..4 {
        bed.ask(Effect::Writes, "k", request);
    }
    let opening = bed.one_sent();
    bed.opened(opening.attempt, 5);
    let sent = bed.sent();
    let stamps: Vec<_> = sent.iter().map(|left| left.stamp.expect("a stamp")).collect();
    assert_eq!(stamps.iter().map(|stamp| stamp.sequence).collect::<Vec<_>>(), [1, 2, 3, 4]);
    assert!(stamps.iter().all(|stamp| stamp.session == 5 && stamp.first_incomplete == 1));
    bed.answer(sent[0].attempt, Ok(Answer::Of(1)));
    bed.answer(sent[1].attempt, Ok(Answer::Of(2)));
    bed.ask(Effect::Writes, "k", 4);
    assert_eq!(bed.one_sent().stamp, Some(Stamp { session: 5, sequence: 5, first_incomplete: 3 }));
}

#[test]
fn full_window_admits_after_oldest_ends() {
    let mut bed = Bed::new(1);
    let (_, first) = bed.write();
    for request in 1..base::limits::SESSION_WINDOW as u32 {
        bed.ask(Effect::Writes, "k", request);
    }
    let sent = bed.sent();
    assert_eq!(sent.len() as u64, base::limits::SESSION_WINDOW - 1);
    bed.ask(Effect::Writes, "k", 9_999);
    bed.answer(sent[0].attempt, Ok(Answer::Of(1)));
    assert_eq!(bed.sent(), []);
    bed.answer(first.attempt, Ok(Answer::Of(0)));
    assert_eq!(bed.one_sent().request, Some(9_999));
}

#[test]
fn hedges_past_silent_endpoint() {
    let mut bed = Bed::new(3);
    let (call, first) = bed.write();
    bed.pass(399);
    assert_eq!(bed.sent(), []);
    bed.pass(60);
    let second = bed.one_sent();
    assert_ne!(second.link.endpoint, first.link.endpoint);
    assert_eq!((second.stamp, second.request), (first.stamp, first.request));
    bed.answer(first.attempt, Ok(Answer::Of(3)));
    assert_eq!(bed.ended(), [(call, Ok(3), true)]);
    // Later calls avoid the silent endpoint.
    bed.ask(Effect::Reads, "k", 8);
    assert_eq!(bed.one_sent().link.endpoint, second.link.endpoint);
    bed.answer(second.attempt, Ok(Answer::Of(3)));
    assert_eq!(bed.ended(), []);
}

#[test]
fn responsive_endpoint_gets_longer_timeout() {
    let mut bed = Bed::new(3);
    let (_, _slow) = bed.write();
    for _ in 0..9 {
        bed.pass(100);
        bed.ask(Effect::Reads, "k", 1);
        let quick = bed.one_sent();
        bed.answer(quick.attempt, Ok(Answer::Of(1)));
    }
    assert_eq!(bed.sent(), []);
    bed.pass(110);
    let second = bed.one_sent();
    assert_ne!(second.link.endpoint, 0);
    // Other calls still use it.
    bed.ask(Effect::Reads, "k", 1);
    assert_eq!(bed.one_sent().link.endpoint, 0);
}

#[test]
fn slow_answers_extend_timeout() {
    let mut bed = Bed::new(3);
    for _ in 0..20 {
        bed.ask(Effect::Reads, "k", 1);
        let asked = bed.one_sent();
        bed.pass(300);
        bed.answer(asked.attempt, Ok(Answer::Of(1)));
    }
    bed.ask(Effect::Reads, "k", 1);
    bed.sent();
    bed.pass(1_000);
    assert_eq!(bed.sent(), []);
    bed.pass(400);
    bed.one_sent();
}

/// A call never waits for a silent endpoint until its deadline, however slow earlier responses were.
#[test]
fn call_is_not_bound_to_one_endpoint() {
    let mut bed = Bed::new(3);
    for _ in 0..40 {
        bed.ask(Effect::Reads, "k", 1);
        let asked = bed.sent();
        bed.pass(3_000);
        bed.sent();
        bed.answer(asked[0].attempt, Ok(Answer::Of(1)));
    }
    bed.ask(Effect::Reads, "k", 1);
    let asked = bed.one_sent();
    bed.pass(3_000);
    assert_ne!(bed.one_sent().link.endpoint, asked.link.endpoint);
}

#[test]
fn broken_link_retries_with_same_stamps() {
    let mut bed = Bed::new(3);
    let (_, first) = bed.write();
    for request in 0..10 {
        bed.ask(Effect::Writes, "k", request);
    }
    let mut before: Vec<_> = bed.sent();
    before.insert(0, first.clone());
    bed.breaks(first.link);
    let after = bed.sent();
    let told = |sent: &[Left]| sent.iter().map(|left| (left.request, left.stamp)).collect::<Vec<_>>();
    assert_eq!(told(&after), told(&before));
    assert!(after.iter().all(|left| left.link.endpoint == 1));
    // A late response over the old connection is ignored.
    bed.answer(before[0].attempt, Ok(Answer::Of(1)));
    assert_eq!(bed.ended(), []);
}

#[test]
fn known_leader_is_used_until_failure() {
    let mut bed = Bed::new(3);
    bed.client.leads(2, "t", KeyRange { start: "m".into(), end: None });
    bed.ask(Effect::Reads, "z", 1);
    let asked = bed.one_sent();
    assert_eq!(asked.link.endpoint, 2);
    bed.ask(Effect::Reads, "a", 1);
    assert_eq!(bed.one_sent().link.endpoint, 0);
    bed.breaks(asked.link);
    assert_eq!(bed.one_sent().link.endpoint, 0);
}

#[test]
fn expired_session_keeps_doubtful_write_unknown() {
    let mut bed = Bed::new(3);
    let (_, first) = bed.write();
    bed.answer(first.attempt, Err(Fault::UnknownSession));
    let opening = bed.one_sent();
    bed.opened(opening.attempt, 6);
    let again = bed.one_sent();
    assert_eq!(again.stamp, Some(Stamp { session: 6, sequence: 1, first_incomplete: 1 }));
    bed.breaks(again.link);
    let elsewhere = bed.one_sent();
    bed.answer(elsewhere.attempt, Err(Fault::UnknownSession));
    assert!(matches!(bed.ended()[..], [(_, Err(Error::OutcomeUnknown(_)), true)]));
}

#[test]
fn missing_table_fails_session_waiters() {
    let mut bed = Bed::new(3);
    bed.ask(Effect::Writes, "a", 1);
    bed.ask(Effect::Writes, "b", 2);
    let opening = bed.one_sent();
    bed.answer(opening.attempt, Err(Fault::Definite(Error::NotFound("no table".into()))));
    assert!(bed.ended().iter().all(|(_, outcome, _)| matches!(outcome, Err(Error::NotFound(_)))));
}

#[test]
fn deadline_reports_if_call_was_sent() {
    let mut bed = Bed::new(3);
    let (write, _) = bed.write();
    let read = bed.ask(Effect::Reads, "k", 1);
    bed.pass(10_001);
    let ended: std::collections::BTreeMap<_, _> =
        bed.ended().into_iter().map(|(call, outcome, _)| (call, outcome)).collect();
    assert!(matches!(ended[&write], Err(Error::OutcomeUnknown(_))));
    assert!(matches!(ended[&read], Err(Error::Unavailable(_))));

    let mut bed = Bed::new(3);
    bed.connects = false;
    bed.ask(Effect::Writes, "k", 1);
    bed.pass(10_001);
    assert!(matches!(bed.ended()[..], [(_, Err(Error::Unavailable(_)), false)]));
    assert!(bed.connecting.len() > 1, "every endpoint is tried");
}

#[test]
fn silent_connection_is_replaced() {
    let mut bed = Bed::new(1);
    bed.ask(Effect::Reads, "k", 1);
    let asked = bed.one_sent();
    bed.pass(4_000);
    assert_eq!(bed.disconnected, [asked.link]);
    assert!(bed.sent().iter().any(|left| left.link != asked.link), "another is made");
}

#[test]
fn abandoned_call_frees_its_slot() {
    let mut bed = Bed::new(3);
    let (call, sent) = bed.write();
    bed.client.abandon(call, bed.now);
    bed.carry_out();
    bed.answer(sent.attempt, Ok(Answer::Of(1)));
    bed.pass(20_000);
    assert_eq!(bed.ended(), []);
    assert_eq!(bed.sent(), []);
    bed.ask(Effect::Writes, "k", 2);
    assert_eq!(bed.one_sent().stamp, Some(Stamp { session: 5, sequence: 2, first_incomplete: 2 }));
}

/// With random events in any order, each call ends once and the invariants hold.
#[test]
fn fuzz_each_call_ends_once() {
    for seed in 0..300 {
        let mut random = SplitMix64::new(seed);
        let mut bed = Bed::new(1 + random.below(3) as usize);
        bed.connects = random.below(2) == 0;
        let (mut begun, mut sent, mut links) = (0, Vec::new(), Vec::new());
        for step in 0..400_u32 {
            match random.below(10) {
                0..3 => {
                    let effect = [Effect::Reads, Effect::Repeatable, Effect::Writes, Effect::AppendsOnce]
                        [random.below(4) as usize];
                    bed.ask(effect, ["a", "m", "z"][random.below(3) as usize], step);
                    begun += 1;
                }
                3..7 if !sent.is_empty() => {
                    let Left { attempt, request, .. } = sent.swap_remove(random.below(sent.len() as u64) as usize);
                    let told = match (request, random.below(8)) {
                        (_, 0) => Err(Fault::Unavailable("no leader".into())),
                        (_, 1) => Err(Fault::Unknown("leader lost".into())),
                        (_, 2) => Err(Fault::Lost("reset".into())),
                        (Some(_), 3) => Err(Fault::UnknownSession),
                        (Some(request), _) => Ok(Answer::Of(request)),
                        (None, _) => Ok(Answer::Session { session: u64::from(step) + 1, range: KeyRange::all() }),
                    };
                    bed.answer(attempt, told);
                }
                7 if !links.is_empty() => {
                    let link = links.swap_remove(random.below(links.len() as u64) as usize);
                    if random.below(2) == 0 {
                        bed.client.connected(link, bed.now);
                        bed.carry_out();
                    } else {
                        bed.breaks(link);
                    }
                }
                _ => bed.pass(random.below(700)),
            }
            sent.append(&mut bed.sent());
            links.append(&mut bed.connecting);
            links.extend(sent.iter().map(|left| left.link).take(1));
        }
        bed.pass(30_000);
        let mut calls: Vec<_> = bed.ended().into_iter().map(|(call, ..)| call).collect();
        assert_eq!(calls.len(), begun, "seed {seed}");
        calls.sort_unstable();
        calls.dedup();
        assert_eq!(calls.len(), begun, "seed {seed}: a call ended twice");
    }
}

/// A timer that fires late, just before the deadline, leaves time for one or two attempts, not for ever shorter ones.
#[test]
fn late_timer_bounds_attempts() {
    let mut bed = Bed::new(3);
    bed.write();
    bed.now = Monotonic(DEADLINE.0);
    bed.client.timer(bed.now);
    bed.carry_out();
    assert!(bed.sent().len() <= 3);
    bed.pass(1);
    assert!(matches!(&bed.ended()[..], [(_, Err(Error::OutcomeUnknown(_)), true)]));
}

/// Reads that any replica may answer are distributed over all nodes except those that failed. Each attempt carries the
/// latest seen state of the range.
#[test]
fn any_replica_reads_rotate_with_seen_state() {
    let mut bed = Bed::new(3);
    let first: Vec<Left> = (1..=3).map(|request| (bed.ask_any("k", request), bed.one_sent()).1).collect();
    let endpoints: Vec<usize> = first.iter().map(|sent| sent.link.endpoint).collect();
    assert_eq!(endpoints, [1, 2, 0]);
    let place = Place { cohort: CohortId(2), lsn: Lsn::new(3, 9) };
    let shown = Shown { place, range: KeyRange { start: "a".into(), end: None } };
    bed.answer(first[0].attempt, Ok(Answer::Shown { answer: 1, shown }));
    bed.answer(first[2].attempt, Ok(Answer::Of(3)));
    assert_eq!(bed.seen, [None; 3]);

    bed.breaks(first[1].link);
    bed.pass(50);
    let again = bed.one_sent();
    assert_ne!(again.link.endpoint, 2, "it has failed");
    assert_eq!(bed.seen.pop(), Some(Some(place)), "more was seen by now");
    bed.answer(again.attempt, Ok(Answer::Of(2)));
    let ask = |bed: &mut Bed, request| {
        bed.ask_any("0", request);
        let sent = bed.one_sent();
        bed.answer(sent.attempt, Ok(Answer::Of(request)));
        assert_eq!(bed.seen.pop(), Some(None), "of that range nothing was seen");
        sent.link.endpoint
    };
    assert!((4..8).all(|request| ask(&mut bed, request) != 2));
    bed.pass(1_000);
    assert!((8..11).any(|request| ask(&mut bed, request) == 2), "it may be well again");
}

/// A response as of before a split is rejected and requested again, with the newer state seen of that cohort.
#[test]
fn stale_answer_is_requested_again() {
    let mut bed = Bed::new(3);
    let place = |sequence| Place { cohort: CohortId(4), lsn: Lsn::new(1, sequence) };
    let shows = |sequence, end: Option<&'static str>| {
        let range = KeyRange { start: "".into(), end: end.map(Into::into) };
        Ok(Answer::Shown { answer: 7, shown: Shown { place: place(sequence), range } })
    };
    let ask = |bed: &mut Bed, key| {
        bed.ask_any(key, 1);
        bed.one_sent().attempt
    };
    let first = ask(&mut bed, "a");
    bed.answer(first, shows(6, Some("m")));
    assert_eq!(bed.ended().len(), 1);

    let early = ask(&mut bed, "n");
    bed.pass(600);
    let [.., late] = &bed.sent()[..] else { panic!("it asks another") };
    bed.answer(early, shows(2, Some("z")));
    assert_eq!(bed.sent().len(), 0, "another was asked already");
    bed.answer(late.attempt, shows(5, Some("z")));
    assert_eq!(bed.ended(), []);
    let again = bed.one_sent();
    assert_eq!(bed.seen.pop(), Some(Some(place(6))));
    bed.answer(again.attempt, shows(6, Some("z")));
    assert!(matches!(&bed.ended()[..], [(_, Ok(7), false)]));
    let next = ask(&mut bed, "n");
    assert_eq!(bed.seen.pop(), Some(Some(place(6))), "now it was seen there, too");
    bed.answer(next, shows(6, Some("z")));
}

/// The error at the deadline contains the total time and the cause that a node reported, even for an earlier attempt.
#[test]
fn timeout_error_reports_time_and_cause() {
    let mut bed = Bed::new(3);
    let says = |bed: &mut Bed, reason: &str| {
        let first = bed.sent()[0].attempt;
        bed.pass(100);
        bed.answer(first, Err(Fault::Unavailable(reason.into())));
        assert_eq!(bed.ended(), [], "others are under way until the deadline");
        bed.pass(1);
        bed.ended().remove(0).1
    };
    let unavailable = |reason: &str| Err(Error::Unavailable(reason.to_owned()));

    bed.ask(Effect::Reads, "k", 1);
    bed.pass(10_000);
    assert_eq!(bed.ended().remove(0).1, unavailable("no answer within 10000 ms"));
    bed.sent();
    for effect in [Effect::Reads, Effect::Writes] {
        bed.ask(effect, "k", 2);
        bed.pass(9_899);
        assert_eq!(says(&mut bed, "no leader"), unavailable("no answer within 10000 ms: no leader"), "{effect:?}");
        bed.sent();
    }
}

/// A retried append is marked as in doubt: its first attempt may have been executed.
#[test]
fn retried_append_is_marked_in_doubt() {
    let mut bed = Bed::new(3);
    let id = bed.ask(Effect::Appends, "", 7);
    let first = bed.one_sent();
    assert_eq!((first.request, first.stamp), (Some(7), None), "it needs no session");
    bed.answer(first.attempt, Err(Fault::Unavailable("no projection".into())));
    let second = bed.one_sent();
    bed.breaks(second.link);
    let third = bed.one_sent();
    assert_ne!(third.link.endpoint, second.link.endpoint);
    assert_eq!(bed.in_doubt, [false, false, true]);
    bed.answer(third.attempt, Err(Fault::Definite(Error::NotFound("no such log".into()))));
    assert_eq!(bed.ended(), [(id, Err(Error::OutcomeUnknown("no such log".into())), true)]);
}

/// It waits for an endpoint that answers other calls, and ends in doubt when the others go elsewhere.
#[test]
fn append_once_waits_for_busy_endpoint() {
    let mut bed = Bed::new(3);
    let id = bed.ask(Effect::AppendsOnce, "", 7);
    let once = bed.one_sent();
    for _ in 0..30 {
        bed.pass(100);
        bed.ask(Effect::Reads, "k", 1);
        let read = bed.one_sent();
        bed.answer(read.attempt, Ok(Answer::Of(1)));
        bed.ended();
    }
    bed.ask(Effect::Reads, "k", 1);
    assert_eq!(bed.one_sent().link, once.link);
    bed.pass(1_500);
    assert!(bed.sent().iter().all(|left| left.request == Some(1)), "only the read is repeated");
    assert!(matches!(&bed.ended()[..], [(ended, Err(Error::OutcomeUnknown(_)), true)] if *ended == id));
}

#[test]
fn append_once_fails_on_silent_endpoint() {
    let mut bed = Bed::new(3);
    bed.ask(Effect::AppendsOnce, "", 7);
    let first = bed.one_sent();
    bed.answer(first.attempt, Err(Fault::Unavailable("no projection".into())));
    assert_ne!(bed.one_sent().link.endpoint, first.link.endpoint, "nothing was done");
    bed.pass(1_000);
    assert_eq!(bed.sent(), []);
    assert!(matches!(&bed.ended()[..], [(_, Err(Error::OutcomeUnknown(_)), true)]));
}
