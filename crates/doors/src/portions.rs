//! Hands answers on to HTTP/2 in portions, and bounds what clients that take nothing hold of this node's memory, over
//! all connections together.
//!
//! HTTP/2 is given a message without a question of how much its client takes, and keeps it until the client has taken
//! it all: one of megabytes as well. So every answer's body goes through here. It gives out a portion at a time, in
//! memory of its own, and the next once most of what it gave out before has gone to the connection. What is left is
//! counted. When much is left, streams wait with their next large message ([`Room`]); and whatever of nothing has been
//! taken for a while is given up. Streams whose client was not seen to take what comes ([`Taking`]) have room of their
//! own, and less time, so that those who take wait for none of them, nor they for these. Calls of their own can't wait:
//! their answers are there. Where they have left very much, those go that were touched longest ago. An answer of which
//! something was given up is reset, with ENHANCE_YOUR_CALM: to gRPC's clients that is `RESOURCE_EXHAUSTED`, and nothing
//! that they would try again unasked.

use std::collections::BTreeMap;
use std::mem;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker, ready};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body::{Body as _, Frame, SizeHint};
use tonic::body::Body;
use tonic::codegen::http::Response;
use tonic::{Code, Status};

use crate::allowance::Share;
use crate::frames::IsStream;
use crate::limits::{
    ANSWER_IDLE_MAX, ANSWER_UNSEEN_IDLE_MAX, ANSWERS_OF_CALLS_AT_ONCE_BYTES_MAX, ANSWERS_OF_CALLS_BYTES_MAX,
    ANSWERS_SEEN_BYTES_MAX, ANSWERS_UNSEEN_BYTES_MAX, CLEARING_PAUSE, LEAVING_CROWDED_BYTES, PORTION_BYTES,
};
use crate::taking::{Standing, Taken, Taking};

/// What is left of answers that have begun to leave, shared by all connections.
#[derive(Clone, Debug, Default)]
pub(crate) struct Portions(Arc<Mutex<Left>>);

/// Each kind has room of its own, so that none waits for another.
#[derive(Debug, Default)]
struct Left {
    of_calls: Pool,
    of_seen: Pool,
    of_unseen: Pool,
    last: u64,
    /// The streams' answers that are open.
    open: BTreeMap<u64, Weak<Making>>,
    /// When they were last looked through for the sake of all.
    looked_at: Option<Instant>,
}

/// What is left of one kind.
#[derive(Debug, Default)]
struct Pool {
    /// In memory for all of them.
    bytes: usize,
    /// By turn: the first was touched before all others.
    rests: BTreeMap<u64, Rest>,
    /// Streams that wait with a large message.
    waiting: BTreeMap<u64, Waker>,
}

/// What an answer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Call,
    Stream(Standing),
}

/// The rest of a message.
#[derive(Debug)]
struct Rest {
    bytes: Bytes,
    /// As large as it was when it was whole, it stays in memory.
    whole: usize,
    touched: Instant,
    /// Whose it is, if it is of a stream.
    stream: Option<Taking>,
    making: Weak<Making>,
}

/// Who came later has a greater number.
#[derive(Clone, Copy, Debug)]
struct Turn {
    of: Kind,
    number: u64,
}

impl Portions {
    /// The same answer, in portions.
    pub(crate) fn of(&self, mut answer: Response<Body>) -> Response<Body> {
        let stream = answer.extensions_mut().remove().map(|IsStream(taking)| taking);
        let share = answer.extensions_mut().remove::<Share>();
        answer.map(|inner| Body::new(Portioned::new(inner, stream, self.clone(), share)))
    }

    /// Keeps the rest of a message.
    fn keep(&self, bytes: Bytes, whole: usize, making: &Arc<Making>) -> Turn {
        let stream = making.on_its_way.stream.clone();
        stream.iter().for_each(|taking| taking.charge(whole));
        let of = stream.as_ref().map_or(Kind::Call, Kind::of);
        let rest = Rest { bytes, whole, touched: Instant::now(), stream, making: Arc::downgrade(making) };
        let mut left = self.left();
        let turn = left.turn(of);
        let pool = left.pool(of);
        pool.bytes += whole;
        pool.rests.insert(turn.number, rest);
        let given_up = pool.give_up(of);
        drop(left);
        end(given_up);
        turn
    }

    /// The rest that was kept, unless it has been given up.
    fn take(&self, turn: Turn) -> Option<Rest> {
        let mut left = self.left();
        let pool = left.pool(turn.of);
        let rest = pool.remove(turn.number)?;
        let next = pool.next_waiting(turn.of);
        drop(left);
        next.into_iter().for_each(Waker::wake);
        Some(rest)
    }

    /// Nothing that holds this lock panics half-way.
    fn left(&self) -> MutexGuard<'_, Left> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Left {
    fn turn(&mut self, of: Kind) -> Turn {
        self.last += 1;
        Turn { of, number: self.last }
    }

    fn pool(&mut self, of: Kind) -> &mut Pool {
        match of {
            Kind::Call => &mut self.of_calls,
            Kind::Stream(Standing::Seen) => &mut self.of_seen,
            Kind::Stream(Standing::Unseen) => &mut self.of_unseen,
        }
    }

    fn of_streams(&self) -> usize {
        self.of_seen.bytes + self.of_unseen.bytes
    }

    /// The streams that are open. They are to be let go of when this is unlocked: whoever is the last takes it again.
    fn open(&self) -> Vec<Arc<Making>> {
        self.open.values().filter_map(Weak::upgrade).collect()
    }
}

impl Pool {
    fn remove(&mut self, number: u64) -> Option<Rest> {
        let rest = self.rests.remove(&number)?;
        self.bytes -= rest.whole;
        rest.stream.iter().for_each(|taking| taking.release(rest.whole));
        Some(rest)
    }

    fn is_full(&self, of: Kind) -> bool {
        self.bytes > of.bytes_max()
    }

    /// Gives up what has not been touched for long, as far as it is in the way.
    fn give_up(&mut self, of: Kind) -> Vec<Rest> {
        let mut given_up = Vec::new();
        while let Some((number, first)) = self.rests.first_key_value()
            && self.is_full(of)
            && (first.is_idle(of) || (of == Kind::Call && self.bytes > ANSWERS_OF_CALLS_AT_ONCE_BYTES_MAX))
        {
            let number = *number;
            given_up.extend(self.remove(number));
        }
        given_up
    }

    /// Who has waited longest, if it may look again.
    fn next_waiting(&mut self, of: Kind) -> Option<Waker> {
        if self.is_full(of) { None } else { self.waiting.pop_first().map(|(_, waker)| waker) }
    }
}

impl Kind {
    fn of(taking: &Taking) -> Self {
        Self::Stream(taking.standing())
    }

    fn bytes_max(self) -> usize {
        match self {
            Self::Call => ANSWERS_OF_CALLS_BYTES_MAX,
            Self::Stream(Standing::Seen) => ANSWERS_SEEN_BYTES_MAX,
            Self::Stream(Standing::Unseen) => ANSWERS_UNSEEN_BYTES_MAX,
        }
    }

    fn idle_max(self) -> Duration {
        match self {
            Self::Call | Self::Stream(Standing::Seen) => ANSWER_IDLE_MAX,
            Self::Stream(Standing::Unseen) => ANSWER_UNSEEN_IDLE_MAX,
        }
    }
}

impl Rest {
    /// Nothing of it was taken for long.
    fn is_idle(&self, of: Kind) -> bool {
        self.touched.elapsed() > of.idle_max()
    }
}

/// Ends the answers whose rests were given up, with all that waits behind these. Not while anything is locked.
fn end(given_up: Vec<Rest>) {
    if !given_up.is_empty() {
        tracing::debug!(answers = given_up.len(), "answers given up: their clients take nothing, and others wait");
    }
    for rest in given_up {
        rest.making.upgrade().iter().for_each(|making| making.end());
    }
}

/// Whether a stream may begin another large message.
#[derive(Debug)]
pub(crate) struct Room {
    portions: Portions,
    taking: Taking,
    waits: Option<Turn>,
}

impl Room {
    /// Of one stream, for a client of which that is known.
    pub(crate) fn new(portions: Portions, taking: Taking) -> Self {
        Self { portions, taking, waits: None }
    }

    /// Whether so much has begun to leave in streams that others may want room soon.
    pub(crate) fn is_crowded(&self) -> bool {
        self.portions.left().of_streams() >= LEAVING_CROWDED_BYTES
    }

    /// Ends the streams of its connection whose client has taken nothing for long: this one waits for room that they
    /// have.
    pub(crate) fn clear_own(&self) {
        if !self.taking.may_look() {
            return;
        }
        let open = self.portions.left().open();
        let is_its = |of: &Taking| of.is_same(&self.taking);
        let its = open.iter().filter(|making| making.on_its_way.stream.as_ref().is_some_and(is_its));
        its.filter(|making| making.on_its_way.is_lying()).for_each(|making| making.end());
    }

    /// The same of all connections.
    pub(crate) fn clear_all(&self) {
        let mut left = self.portions.left();
        if left.looked_at.is_some_and(|at| at.elapsed() < CLEARING_PAUSE) {
            return;
        }
        left.looked_at = Some(Instant::now());
        let open = left.open();
        drop(left);
        open.iter().filter(|making| making.on_its_way.is_lying()).for_each(|making| making.end());
    }

    /// Whether a message may begin that has more than a portion. If not, the stream is woken when it may; it should
    /// look again now and then all the same: time makes room, too.
    pub(crate) fn is_there(&mut self, context: &Context<'_>) -> bool {
        let of = Kind::of(&self.taking);
        let mut left = self.portions.left();
        let before = self.waits.take();
        before.and_then(|turn| left.pool(turn.of).waiting.remove(&turn.number));
        let given_up = left.pool(of).give_up(of);
        let is_full = left.pool(of).is_full(of);
        if is_full {
            // It keeps its turn, also where its client's standing is another one by now.
            let turn = before.map_or_else(|| left.turn(of), |turn| Turn { of, ..turn });
            left.pool(of).waiting.insert(turn.number, context.waker().clone());
            self.waits = Some(turn);
        }
        // What came free may be enough for others, too.
        let next = left.pool(of).next_waiting(of);
        drop(left);
        end(given_up);
        next.into_iter().for_each(Waker::wake);
        !is_full
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        if let Some(turn) = self.waits {
            self.portions.left().pool(turn.of).waiting.remove(&turn.number);
        }
    }
}

/// An answer's body.
struct Portioned {
    portions: Portions,
    /// What is left of the message that leaves.
    rest: Option<Turn>,
    /// What comes after it, where that was looked for.
    next: Option<Result<Frame<Bytes>, Status>>,
    making: Arc<Making>,
    /// Among the streams that are open.
    number: Option<u64>,
    /// Of what its connection may read ahead: given back with this.
    _share: Option<Share>,
}

impl Portioned {
    fn new(inner: Body, stream: Option<Taking>, portions: Portions, share: Option<Share>) -> Self {
        let on_its_way = Arc::new(OnItsWay { stream, ..OnItsWay::default() });
        let making = Arc::new(Making { body: Mutex::new(inner), on_its_way });
        let number = making.on_its_way.stream.is_some().then(|| {
            let mut left = portions.left();
            left.last += 1;
            let number = left.last;
            left.open.insert(number, Arc::downgrade(&making));
            number
        });
        Self { portions, rest: None, next: None, making, number, _share: share }
    }

    /// The first bytes of what is left of a message that was as large. The others are kept.
    fn portion(&mut self, mut bytes: Bytes, whole: usize) -> Frame<Bytes> {
        if bytes.len() < whole || whole > PORTION_BYTES {
            // A slice would keep all of the message in memory.
            let first = Bytes::copy_from_slice(&bytes.split_to(PORTION_BYTES.min(bytes.len())));
            self.rest = (!bytes.is_empty()).then(|| self.portions.keep(bytes, whole, &self.making));
            bytes = first;
        }
        Frame::data(self.making.on_its_way.given(bytes))
    }

    /// The message of a call of its own begins to leave: what made it goes, with the memory that it shares with the
    /// message.
    fn finish_inner(&mut self, context: &mut Context<'_>) {
        let mut inner = self.making.body();
        if let Poll::Ready(Some(next)) = Pin::new(&mut *inner).poll_frame(context) {
            if next.as_ref().is_ok_and(Frame::is_trailers) {
                *inner = Body::empty();
            }
            drop(inner);
            self.next = Some(next);
        }
    }
}

impl http_body::Body for Portioned {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = &mut *self;
        if this.making.on_its_way.is_much(context) {
            return Poll::Pending;
        }
        let rest = this.rest.take().map(|turn| this.portions.take(turn));
        if this.making.on_its_way.has_ended() {
            return Poll::Ready(Some(Err(given_up())));
        }
        if let Some(rest) = rest {
            let rest = rest.ok_or_else(given_up);
            return Poll::Ready(Some(rest.map(|rest| this.portion(rest.bytes, rest.whole))));
        }
        let frame = match this.next.take() {
            Some(next) => next,
            None => match ready!(Pin::new(&mut *this.making.body()).poll_frame(context)) {
                Some(frame) => frame,
                None => return Poll::Ready(None),
            },
        };
        let frame = match frame?.into_data() {
            Ok(bytes) => {
                let whole = bytes.len();
                let portion = this.portion(bytes, whole);
                if this.rest.is_some() && this.making.on_its_way.stream.is_none() {
                    this.finish_inner(context);
                }
                portion
            }
            Err(frame) => frame,
        };
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        let is_over = self.rest.is_none() && self.next.is_none() && self.making.body().is_end_stream();
        // What was given up is to be reset, which takes another frame.
        is_over && !self.making.on_its_way.has_ended()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}

impl Drop for Portioned {
    fn drop(&mut self) {
        self.rest.take().and_then(|turn| self.portions.take(turn));
        self.number.and_then(|number| self.portions.left().open.remove(&number));
        // What HTTP/2 drops of it from now on need not have been taken.
        self.making.on_its_way.has_ended.store(true, Ordering::Release);
    }
}

/// The stream can't go on. REFUSED_STREAM would say that the call was never begun, and clients would make it again.
fn given_up() -> Status {
    let mut status = Status::new(Code::ResourceExhausted, "the client took nothing of the answer while others waited");
    status.set_source(Arc::new(h2::Error::from(h2::Reason::ENHANCE_YOUR_CALM)));
    status
}

/// What makes an answer. It must go where nothing is locked, as HTTP/2 may be when it lets go of what it has.
#[derive(Debug)]
struct Making {
    body: Mutex<Body>,
    on_its_way: Arc<OnItsWay>,
}

impl Making {
    /// Nobody waits for this lock: it is polled by one task.
    fn body(&self) -> MutexGuard<'_, Body> {
        self.body.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Nothing comes any more: what makes it goes at once, with all that it has, and whoever waits for HTTP/2 to have
    /// less is to know. That may not look for anything more as long as its client's window is used up.
    fn end(&self) {
        self.on_its_way.end();
        let body = self.body.try_lock().ok().map(|mut body| mem::take(&mut *body));
        // Not while it is locked.
        drop(body);
        self.on_its_way.wake();
    }
}

/// What HTTP/2 has of one answer, and has not written to the connection.
#[derive(Debug, Default)]
struct OnItsWay {
    bytes: AtomicUsize,
    /// When it had some of that last, and took more or wrote some; and what its connection had taken then.
    touched: Mutex<Option<(Instant, Option<Taken>)>>,
    /// What was to come after it has been given up.
    has_ended: AtomicBool,
    /// Whose it is, if it is a stream: that asks for more only as its client takes what there is. None: it is the
    /// answer to a call of its own.
    stream: Option<Taking>,
    /// Who is to be woken when there is less.
    waker: Mutex<Option<Waker>>,
}

impl OnItsWay {
    /// These bytes, counted as long as somebody has them.
    fn given(self: &Arc<Self>, bytes: Bytes) -> Bytes {
        self.bytes.fetch_add(bytes.len(), Ordering::AcqRel);
        self.touch();
        Bytes::from_owner(Given { bytes, of: Arc::clone(self) })
    }

    fn touch(&self) {
        let taken = self.stream.as_ref().map(Taking::taken);
        *self.touched() = Some((Instant::now(), taken));
    }

    fn touched(&self) -> MutexGuard<'_, Option<(Instant, Option<Taken>)>> {
        self.touched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// HTTP/2 has something of this stream, and nothing of it was taken for long.
    fn is_lying(&self) -> bool {
        let most = self.stream.as_ref().map_or(ANSWER_IDLE_MAX, |taking| Kind::of(taking).idle_max());
        let is_old = || self.touched().is_some_and(|(at, _)| at.elapsed() > most);
        self.bytes.load(Ordering::Acquire) > 0 && !self.has_ended() && is_old()
    }

    /// What was to come is given up.
    fn end(&self) {
        self.has_ended.store(true, Ordering::Release);
        let since = self.touched().and_then(|(_, taken)| taken);
        self.stream.iter().zip(since).for_each(|(taking, since)| taking.lost(since));
    }

    fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Acquire)
    }

    fn wake(&self) {
        let waker = mem::take(&mut *self.waker());
        waker.into_iter().for_each(Waker::wake);
    }

    /// Whether it has so much that nothing more is to be given to it now. Then who asks is woken when it has less.
    fn is_much(&self, context: &Context<'_>) -> bool {
        let is_much = || self.bytes.load(Ordering::Acquire) > PORTION_BYTES && !self.has_ended();
        if !is_much() {
            return false;
        }
        *self.waker() = Some(context.waker().clone());
        // It may have gone meanwhile.
        is_much()
    }

    fn waker(&self) -> MutexGuard<'_, Option<Waker>> {
        self.waker.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A portion that was given to HTTP/2.
struct Given {
    bytes: Bytes,
    of: Arc<OnItsWay>,
}

impl AsRef<[u8]> for Given {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Given {
    fn drop(&mut self) {
        let bytes = self.bytes.len();
        // What HTTP/2 drops with an answer that was given up has not been taken.
        if let Some(taking) = &self.of.stream
            && !self.of.has_ended()
        {
            taking.took(bytes);
            self.of.touch();
        }
        let before = self.of.bytes.fetch_sub(bytes, Ordering::AcqRel);
        if before > PORTION_BYTES {
            self.of.wake();
        }
    }
}

#[cfg(test)]
mod tests;
