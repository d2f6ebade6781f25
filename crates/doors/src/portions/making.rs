//! One answer on its way: what makes it, and what HTTP/2 has of it.

use std::mem;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body::{Body as _, Frame};
use tonic::body::Body;
use tonic::{Code, Status};

use super::kind::Kind;
use crate::limits::{ANSWER_IDLE_MAX, PORTION_BYTES};
use crate::taking::{Taken, Taking};

/// What makes an answer. It must go where nothing is locked, as HTTP/2 may be when it lets go of what it has.
#[derive(Debug)]
pub(super) struct Making {
    body: Mutex<Body>,
    pub(super) on_its_way: Arc<OnItsWay>,
}

impl Making {
    pub(super) fn new(body: Body, stream: Option<Taking>) -> Self {
        let on_its_way = Arc::new(OnItsWay { stream, ..OnItsWay::default() });
        Self { body: Mutex::new(body), on_its_way }
    }

    /// What comes next. Whoever asks is woken when this is ended, too: what it waits for goes then, or has gone already,
    /// which is no end as it should be.
    pub(super) fn poll_frame(&self, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        self.on_its_way.note(context);
        let frame = Pin::new(&mut *self.body()).poll_frame(context);
        if !matches!(frame, Poll::Ready(Some(_))) && self.on_its_way.has_ended() {
            return Poll::Ready(Some(Err(given_up())));
        }
        frame
    }

    /// Nobody waits for this lock: it is polled by one task.
    pub(super) fn body(&self) -> MutexGuard<'_, Body> {
        self.body.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Nothing comes any more: what makes it goes at once, with all that it has, and whoever waits for HTTP/2 to have
    /// less is to know. That may not look for anything more as long as its client's window is used up.
    pub(super) fn end(&self) {
        self.on_its_way.end();
        let body = self.body.try_lock().ok().map(|mut body| mem::take(&mut *body));
        // Not while it is locked.
        drop(body);
        self.on_its_way.wake();
    }
}

/// What HTTP/2 has of one answer, and has not written to the connection.
#[derive(Debug, Default)]
pub(super) struct OnItsWay {
    bytes: AtomicUsize,
    /// When it had some of that last, and took more or wrote some; and what its connection had taken then.
    touched: Mutex<Option<(Instant, Option<Taken>)>>,
    /// What was to come after it has been given up.
    has_ended: AtomicBool,
    /// Whose it is, if it is a stream: that asks for more only as its client takes what there is. None: it is the
    /// answer to a call of its own.
    pub(super) stream: Option<Taking>,
    /// Who is to be woken when there is less, or when it is given up.
    waker: Mutex<Option<Waker>>,
}

impl OnItsWay {
    /// These bytes, counted as long as somebody has them.
    pub(super) fn given(self: &Arc<Self>, bytes: Bytes) -> Bytes {
        self.bytes.fetch_add(bytes.len(), Ordering::AcqRel);
        self.touch();
        Bytes::from_owner(Given { bytes, of: Arc::clone(self) })
    }

    fn touch(&self) {
        let taken = self.stream.as_ref().map(Taking::taken);
        *self.touched() = Some((Instant::now(), taken));
    }

    pub(super) fn touched(&self) -> MutexGuard<'_, Option<(Instant, Option<Taken>)>> {
        self.touched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// HTTP/2 has something of this stream, and nothing of it was taken for long, and for so long at least.
    pub(super) fn is_lying(&self, least: Duration) -> bool {
        let most = self.stream.as_ref().map_or(ANSWER_IDLE_MAX, |taking| Kind::of(taking).idle_max()).max(least);
        let is_old = || self.touched().is_some_and(|(at, _)| at.elapsed() > most);
        self.bytes.load(Ordering::Acquire) > 0 && !self.has_ended() && is_old()
    }

    /// What was to come is given up.
    fn end(&self) {
        self.has_ended.store(true, Ordering::Release);
        let since = self.touched().and_then(|(_, taken)| taken);
        self.stream.iter().zip(since).for_each(|(taking, since)| taking.lost(since));
    }

    /// What HTTP/2 drops of it from now on need not have been taken.
    pub(super) fn dropped(&self) {
        self.has_ended.store(true, Ordering::Release);
    }

    pub(super) fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Acquire)
    }

    fn wake(&self) {
        let waker = mem::take(&mut *self.waker());
        waker.into_iter().for_each(Waker::wake);
    }

    /// Whether it has so much that nothing more is to be given to it now. Then who asks is woken when it has less.
    pub(super) fn is_much(&self, context: &Context<'_>) -> bool {
        let is_much = || self.bytes.load(Ordering::Acquire) > PORTION_BYTES && !self.has_ended();
        if !is_much() {
            return false;
        }
        self.note(context);
        // It may have gone meanwhile.
        is_much()
    }

    fn note(&self, context: &Context<'_>) {
        let mut waker = self.waker();
        if !waker.as_ref().is_some_and(|known| known.will_wake(context.waker())) {
            *waker = Some(context.waker().clone());
        }
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

/// The stream can't go on. REFUSED_STREAM would say that the call was never begun, and clients would make it again.
pub(super) fn given_up() -> Status {
    let mut status = Status::new(Code::ResourceExhausted, "the client took nothing of the answer while others waited");
    status.set_source(Arc::new(h2::Error::from(h2::Reason::ENHANCE_YOUR_CALM)));
    status
}
