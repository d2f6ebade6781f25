use std::collections::VecDeque;
use std::error::Error;
use std::mem;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Wake, Waker};
use std::time::Duration;

use tonic::codegen::http::HeaderMap;

use super::*;
use crate::limits::{
    ANSWER_IDLE_MAX, ANSWER_UNSEEN_IDLE_MAX, ANSWERS_OF_CALLS_AT_ONCE_BYTES_MAX, ANSWERS_SEEN_BYTES_MAX,
    ANSWERS_UNSEEN_BYTES_MAX, CLEARING_PAUSE, SEEN_BYTES,
};

/// A body of these messages.
struct Messages(VecDeque<Bytes>);

impl http_body::Body for Messages {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        Poll::Ready(self.0.pop_front().map(|message| Ok(Frame::data(message))))
    }
}

/// A connection whose client takes what comes.
fn seen() -> Taking {
    let taking = Taking::default();
    taking.took(SEEN_BYTES);
    taking
}

/// Bytes of all kinds.
fn left(portions: &Portions) -> usize {
    let left = portions.left();
    left.of_calls.bytes + left.of_streams()
}

fn body<const N: usize>(portions: &Portions, messages: [Bytes; N]) -> Portioned {
    Portioned::new(Body::new(Messages(messages.into())), Some(seen()), portions.clone(), None)
}

fn message(bytes: usize, seed: u8) -> Bytes {
    (0..bytes).map(|place| (place % 251) as u8 ^ seed).collect()
}

fn poll(body: &mut Portioned) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
    Pin::new(body).poll_frame(&mut Context::from_waker(Waker::noop()))
}

/// A portion, if there is one now.
fn portion(body: &mut Portioned) -> Option<Bytes> {
    match poll(body) {
        Poll::Ready(Some(frame)) => Some(frame.expect("it goes on").into_data().expect("data")),
        Poll::Ready(None) | Poll::Pending => None,
    }
}

#[test]
fn an_answer_leaves_whole_and_in_order() {
    let portions = Portions::default();
    for bytes in [0, 1, PORTION_BYTES, PORTION_BYTES + 1, 10 * PORTION_BYTES + 7] {
        let messages = [message(bytes, 1), message(100, 2), message(bytes, 3)];
        let whole: Vec<u8> = messages.iter().flatten().copied().collect();
        let mut body = body(&portions, messages);
        let mut came = Vec::new();
        while let Some(portion) = portion(&mut body) {
            assert!(portion.len() <= PORTION_BYTES);
            came.extend_from_slice(&portion);
        }
        assert!(came == whole, "{bytes} bytes");
        assert_eq!(left(&portions), 0);
    }
}

/// A message, and how it ended. As long as it is there, it has the message's memory.
struct Unary {
    message: Option<Bytes>,
    _memory: Arc<()>,
}

impl http_body::Body for Unary {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let message = self.message.take().map(Frame::data);
        Poll::Ready(Some(Ok(message.unwrap_or_else(|| Frame::trailers(HeaderMap::new())))))
    }
}

#[test]
fn what_made_the_only_message_goes_before_it_has_left() {
    let (portions, there) = (Portions::default(), Arc::new(()));
    let unary = Unary { message: Some(message(3 * PORTION_BYTES, 0)), _memory: Arc::clone(&there) };
    let mut body = Portioned::new(Body::new(unary), None, portions, None);
    for is_last in [false, false, true] {
        assert_eq!(portion(&mut body).map(|portion| portion.len()), Some(PORTION_BYTES));
        assert!(Arc::strong_count(&there) == 1 && !body.is_end_stream());
        assert_eq!(body.rest.is_none(), is_last);
    }
    assert!(matches!(poll(&mut body), Poll::Ready(Some(Ok(last))) if last.is_trailers()));
    assert!(body.is_end_stream());
}

#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// HTTP/2 has two portions of an answer at most, however much its client says that it takes.
#[test]
fn what_has_not_left_keeps_the_next_waiting() {
    let portions = Portions::default();
    let mut body = body(&portions, [message(9 * PORTION_BYTES, 0)]);
    let first = portion(&mut body).expect("nothing is on its way");
    let second = portion(&mut body).expect("little is on its way");
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(Arc::clone(&woken));
    assert!(Pin::new(&mut body).poll_frame(&mut Context::from_waker(&waker)).is_pending());
    assert!(!woken.0.load(Ordering::Relaxed));
    drop(second);
    assert!(woken.0.load(Ordering::Relaxed));
    assert!(portion(&mut body).is_some_and(|third| third.len() == first.len()));
}

/// A message that tells as long as anybody has its memory.
struct Watched {
    message: Vec<u8>,
    _there: Arc<()>,
}

impl AsRef<[u8]> for Watched {
    fn as_ref(&self) -> &[u8] {
        &self.message
    }
}

#[test]
fn no_portion_keeps_the_message() {
    let (portions, there) = (Portions::default(), Arc::new(()));
    let whole = Bytes::from_owner(Watched { message: vec![7; 2 * PORTION_BYTES + 9], _there: Arc::clone(&there) });
    let mut body = body(&portions, [whole]);
    assert!(portion(&mut body).is_some() && portion(&mut body).is_some());
    assert_eq!((left(&portions), Arc::strong_count(&there)), (2 * PORTION_BYTES + 9, 2));
    let last = portion(&mut body).expect("there is more");
    assert_eq!((last.len(), left(&portions), Arc::strong_count(&there)), (9, 0, 1));
}

/// As if nobody had taken anything for long.
fn let_time_pass(portions: &Portions) {
    for rest in portions.left().of_seen.rests.values_mut() {
        rest.touched = rest.touched.checked_sub(2 * ANSWER_IDLE_MAX).expect("the machine runs for longer");
    }
}

/// As long as its clients take something, no answer is given up: others wait.
#[test]
fn who_takes_nothing_for_long_loses_its_message_when_others_wait() {
    const BYTES: usize = 4 << 20;
    let portions = Portions::default();
    let (mut stuck, mut room) = (Vec::new(), Room::new(portions.clone(), seen()));
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(Arc::clone(&woken));
    let context = Context::from_waker(&waker);
    while room.is_there(&context) {
        let mut begun = body(&portions, [message(BYTES, 1)]);
        // What HTTP/2 has stays with it.
        mem::forget(portion(&mut begun).expect("it has begun"));
        stuck.push(begun);
    }
    assert_eq!(stuck.len(), 1 + ANSWERS_SEEN_BYTES_MAX / BYTES);
    assert!(!room.is_there(&context) && portions.left().of_seen.waiting.len() == 1);

    // One more ends, or goes: there is room for one.
    assert!(!woken.0.load(Ordering::Relaxed));
    stuck.pop();
    assert!(woken.0.load(Ordering::Relaxed));
    assert!(room.is_there(&context) && portions.left().of_seen.waiting.is_empty());
    let mut taking = body(&portions, [message(BYTES, 2)]);
    let mut taken = portion(&mut taking).expect("it has begun").len();
    assert!(!room.is_there(&context));

    let_time_pass(&portions);
    taken += portion(&mut taking).expect("it is there").len();
    assert!(room.is_there(&context), "one was given up, which is enough");
    while let Some(portion) = portion(&mut taking) {
        taken += portion.len();
    }
    assert_eq!(taken, BYTES);
    let Poll::Ready(Some(Err(status))) = poll(&mut stuck[0]) else { panic!("its message is gone") };
    let source = status.source().and_then(|source| source.downcast_ref::<h2::Error>());
    assert_eq!(source.and_then(h2::Error::reason), Some(h2::Reason::ENHANCE_YOUR_CALM));
    assert_eq!(portion(&mut stuck[1]).map(|portion| portion.len()), Some(PORTION_BYTES), "it is still there");
    drop(stuck);
    assert_eq!(left(&portions), 0);
}

/// What was given up ends at once, though HTTP/2 takes nothing more: what waits behind it goes with it.
#[test]
fn strangers_leave_room_for_those_who_take() {
    const BYTES: usize = 4 << 20;
    let portions = Portions::default();
    let context = Context::from_waker(Waker::noop());
    let (strange, woken) = (Taking::default(), Arc::new(Woken::default()));
    let mut stranger = Room::new(portions.clone(), strange.clone());
    let mut stuck = Vec::new();
    while stranger.is_there(&context) {
        let messages = Messages([message(BYTES, 1)].into());
        let mut begun = Portioned::new(Body::new(messages), Some(strange.clone()), portions.clone(), None);
        mem::forget((portion(&mut begun), portion(&mut begun)));
        assert!(Pin::new(&mut begun).poll_frame(&mut Context::from_waker(&Arc::clone(&woken).into())).is_pending());
        stuck.push(begun);
    }
    assert_eq!(stuck.len(), 1 + ANSWERS_UNSEEN_BYTES_MAX / BYTES);
    assert!(strange.has_much() && stranger.is_crowded());
    let mut known = Room::new(portions.clone(), seen());
    assert!(known.is_there(&context), "a part is for others");

    for rest in portions.left().of_unseen.rests.values_mut() {
        rest.touched = rest.touched.checked_sub(2 * ANSWER_UNSEEN_IDLE_MAX).expect("the machine runs for longer");
    }
    assert!(!woken.0.load(Ordering::Relaxed) && stranger.is_there(&context));
    assert!(woken.0.load(Ordering::Relaxed));
    assert!(matches!(poll(&mut stuck[0]), Poll::Ready(Some(Err(_)))));
    assert!(poll(&mut stuck[1]).is_pending());
    drop(stuck);
    assert!(!strange.has_much());
}

/// However much those who take have under way.
#[test]
fn a_newcomer_waits_for_no_one_that_takes() {
    let portions = Portions::default();
    let context = Context::from_waker(Waker::noop());
    let mut known = Room::new(portions.clone(), seen());
    let mut leaving = Vec::new();
    while known.is_there(&context) {
        let mut begun = body(&portions, [message(4 << 20, 1)]);
        assert!(portion(&mut begun).is_some());
        leaving.push(begun);
    }
    assert!(Room::new(portions.clone(), Taking::default()).is_there(&context));
}

/// Who waits for room goes on waiting where others of its standing do.
#[test]
fn standing_may_change_while_a_stream_waits() {
    let portions = Portions::default();
    let (taking, strange) = (seen(), Taking::default());
    let begin = |taking: &Taking, bytes: usize| {
        let messages = Messages([message(bytes, 1)].into());
        let mut begun = Portioned::new(Body::new(messages), Some(taking.clone()), portions.clone(), None);
        assert!(portion(&mut begun).is_some());
        begun
    };
    let of_others = begin(&strange, ANSWERS_UNSEEN_BYTES_MAX + 1);
    let its_own = begin(&taking, ANSWERS_SEEN_BYTES_MAX + 1);
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(Arc::clone(&woken));
    let mut room = Room::new(portions.clone(), taking.clone());
    assert!(!room.is_there(&Context::from_waker(&waker)));
    taking.lost(taking.taken());
    assert!(!room.is_there(&Context::from_waker(&waker)));
    assert!(!woken.0.load(Ordering::Relaxed), "it is not woken for nothing");
    assert!(portions.left().of_seen.waiting.is_empty() && portions.left().of_unseen.waiting.len() == 1);
    drop(its_own);
    assert!(!woken.0.load(Ordering::Relaxed) && !room.is_there(&Context::from_waker(&waker)));
    drop(of_others);
    assert!(woken.0.load(Ordering::Relaxed) && room.is_there(&Context::from_waker(&waker)));
    assert!(portions.left().of_unseen.waiting.is_empty());
}

/// As if nobody had taken anything of this for long.
fn let_lie(body: &Portioned) {
    let_lie_for(body, 2 * ANSWER_IDLE_MAX);
}

fn let_lie_for(body: &Portioned, time: Duration) {
    let touched = &mut *body.making.on_its_way.touched();
    let (at, _) = touched.as_mut().expect("something was given");
    *at = at.checked_sub(time).expect("the machine runs for longer");
}

/// What a client leaves lying keeps others, of its connection or of any, from nothing: with it goes all that waits
/// behind it, whether or not HTTP/2 asks for more.
#[test]
fn what_is_left_lying_goes_for_the_sake_of_others() {
    let portions = Portions::default();
    let there = Arc::new(());
    let begun = |taking: &Taking| {
        let unary = Unary { message: Some(message(3 * PORTION_BYTES, 0)), _memory: Arc::clone(&there) };
        let mut begun = Portioned::new(Body::new(unary), Some(taking.clone()), portions.clone(), None);
        let first = portion(&mut begun).expect("it begins");
        (begun, first)
    };
    let (taking, other) = (Taking::default(), seen());
    let (mut lying, _first) = begun(&taking);
    let (of_other, first_of_other) = begun(&other);
    let (quiet, first_of_quiet) = begun(&other);
    drop(first_of_quiet);
    let room = Room::new(portions.clone(), taking);
    room.clear_own();
    room.clear_all(Duration::ZERO);
    assert_eq!(Arc::strong_count(&there), 4, "they have time");
    for body in [&lying, &of_other, &quiet] {
        let_lie(body);
    }
    // They are looked for now and then.
    std::thread::sleep(CLEARING_PAUSE);
    room.clear_own();
    assert_eq!(Arc::strong_count(&there), 3);
    assert!(matches!(poll(&mut lying), Poll::Ready(Some(Err(_)))));
    room.clear_all(Duration::ZERO);
    assert_eq!(Arc::strong_count(&there), 2, "all of the last one was taken");
    drop((lying, of_other, first_of_other, quiet));
    assert!(portions.left().open.is_empty() && left(&portions) == 0);
}

/// Who reads in streams gives others more time than who waits with a subscription.
#[test]
fn what_lies_has_the_time_of_who_wants_room() {
    let portions = Portions::default();
    let body = Body::new(Waits(Some(message(9, 0))));
    let mut unseen = Portioned::new(body, Some(Taking::default()), portions.clone(), None);
    let _lies = portion(&mut unseen).expect("it begins");
    let_lie_for(&unseen, ANSWER_UNSEEN_IDLE_MAX);
    let room = Room::new(portions, seen());
    room.clear_all(ANSWER_IDLE_MAX);
    assert!(poll(&mut unseen).is_pending());
    std::thread::sleep(CLEARING_PAUSE);
    room.clear_all(Duration::ZERO);
    assert!(matches!(poll(&mut unseen), Poll::Ready(Some(Err(_)))));
}

/// HTTP/2 may have nothing to ask it for: what it waited for went with what makes it.
#[test]
fn a_stream_that_is_given_up_while_it_waits_is_woken() {
    let portions = Portions::default();
    let mut waits =
        Portioned::new(Body::new(Waits(Some(message(9, 0)))), Some(Taking::default()), portions.clone(), None);
    let _lies = portion(&mut waits).expect("it begins");
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(Arc::clone(&woken));
    let mut context = Context::from_waker(&waker);
    assert!(Pin::new(&mut waits).poll_frame(&mut context).is_pending());
    let_lie(&waits);
    assert!(!woken.0.load(Ordering::Relaxed));
    Room::new(portions, seen()).clear_all(Duration::ZERO);
    assert!(woken.0.load(Ordering::Relaxed));
    assert!(matches!(poll(&mut waits), Poll::Ready(Some(Err(_)))));
}

/// A body of one message, after which it waits for what never comes.
struct Waits(Option<Bytes>);

impl http_body::Body for Waits {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        self.0.take().map_or(Poll::Pending, |message| Poll::Ready(Some(Ok(Frame::data(message)))))
    }
}

/// Calls of their own can't wait; streams do, and lose nothing to them.
#[test]
fn answers_to_calls_are_bounded_however_fast_they_come() {
    const BYTES: usize = 4 << 20;
    let portions = Portions::default();
    let whole = message(BYTES, 1);
    let mut stream = body(&portions, [message(BYTES, 0)]);
    assert!(portion(&mut stream).is_some());
    let begin = |_| {
        let messages = Messages([whole.clone()].into());
        let mut begun = Portioned::new(Body::new(messages), None, portions.clone(), None);
        mem::forget(portion(&mut begun).expect("it has begun"));
        assert!(portions.left().of_calls.bytes <= ANSWERS_OF_CALLS_AT_ONCE_BYTES_MAX);
        begun
    };
    let mut calls: Vec<Portioned> = (0..ANSWERS_OF_CALLS_AT_ONCE_BYTES_MAX / BYTES + 9).map(begin).collect();
    assert!(portion(&mut stream).is_some());
    let is_given_up = |call: &mut Portioned| matches!(poll(call), Poll::Ready(Some(Err(_))));
    let given_up = calls.iter_mut().map(is_given_up).take_while(|is_so| *is_so).count();
    assert_eq!(given_up, 9, "those that began first");
    drop((calls, stream));
    assert_eq!(left(&portions), 0);
}

#[test]
fn who_waits_no_longer_is_not_woken() {
    let portions = Portions::default();
    let making = Arc::new(Making::new(Body::empty(), Some(seen())));
    let turn = portions.keep(message(9, 0), ANSWERS_SEEN_BYTES_MAX + 1, &making);
    let (mut first, mut second) = (Room::new(portions.clone(), seen()), Room::new(portions.clone(), seen()));
    let woken = [(); 2].map(|()| Arc::new(Woken::default()));
    let [one, other] = woken.each_ref().map(|woken| Waker::from(Arc::clone(woken)));
    assert!(!first.is_there(&Context::from_waker(&one)) && !second.is_there(&Context::from_waker(&other)));
    drop(first);
    portions.take(turn);
    assert_eq!(woken.map(|woken| woken.0.load(Ordering::Relaxed)), [false, true]);
}
