//! The loops in which clients work, whatever it is that they do.
//!
//! In a *closed loop* each client begins its next operation when the last is answered, as in the papers' own
//! measurements. In an *open loop* operations come by a [`schedule`](super::schedule), and a client is what carries one
//! out: there are as many operations under way as clients at most, and those that find no client idle wait for one.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::recorder::Recorder;
use super::schedule::{Arrivals, Schedule};

/// A client of a closed loop whose operation failed waits so long before the next: a refused one fails at once, and
/// would fail a million times.
const PAUSE_AFTER_ERROR: Duration = Duration::from_millis(5);
/// Operations that are under way at the end of a run are given up after this.
const SETTLE_PATIENCE: Duration = Duration::from_secs(1);

/// One client: it does one operation at a time.
pub(crate) trait Operate: 'static {
    /// Does the next operation.
    async fn operate(&mut self) -> Result<(), sdk::Error>;
}

/// Clients at work, on one thread: this wants a [`LocalSet`](tokio::task::LocalSet). They end when it is dropped.
#[derive(Default)]
pub(crate) struct Crew {
    over: Rc<Over>,
    clients: JoinSet<()>,
}

/// Whether clients should end.
#[derive(Default)]
struct Over {
    is_over: Cell<bool>,
    /// For those that wait for an operation.
    told: Notify,
}

impl Crew {
    /// Sets a client to work in a closed loop.
    pub(crate) fn closed_loop(&mut self, client: impl Operate, recorder: &Rc<Recorder>) {
        self.clients.spawn_local(closed_loop(client, Rc::clone(recorder), Rc::clone(&self.over)));
    }

    /// Sets the client of this number to work in an open loop.
    pub(crate) fn open_loop(
        &mut self,
        client: impl Operate,
        recorder: &Rc<Recorder>,
        open: &Rc<OpenLoop>,
        number: usize,
    ) {
        self.clients.spawn_local(open_loop(
            client,
            Rc::clone(recorder),
            Rc::clone(&self.over),
            Rc::clone(open),
            number,
        ));
    }

    /// Lets what is under way come to its end, within limits: a put whose answer nobody waited for is a version that no
    /// client knows, and would be a conflict in the next run.
    pub(crate) async fn settle(mut self) {
        self.over.is_over.set(true);
        self.over.told.notify_waiters();
        let all = async {
            while let Some(client) = self.clients.join_next().await {
                client.expect("no client panics");
            }
        };
        let _ = timeout(SETTLE_PATIENCE, all).await;
    }
}

/// What the clients of an open loop share.
pub(crate) struct OpenLoop {
    arrivals: Arrivals,
    /// Of each client, when the operation that it carries out was to begin.
    under_way: RefCell<Vec<Option<Instant>>>,
}

impl OpenLoop {
    /// Begins the schedule, for so many clients.
    pub(crate) fn begin(schedule: Schedule, clients: usize) -> Self {
        Self { arrivals: Arrivals::begin(schedule), under_way: RefCell::new(vec![None; clients]) }
    }

    /// How many operations were to begin so far.
    pub(crate) fn offered(&self) -> u64 {
        self.arrivals.offered()
    }

    /// When those that have not ended were to begin.
    pub(crate) fn unfinished(&self) -> Vec<Instant> {
        let mut unfinished = self.arrivals.left();
        unfinished.extend(self.under_way.borrow().iter().flatten());
        unfinished
    }
}

/// One client: the next operation begins when the last is answered.
async fn closed_loop(mut client: impl Operate, recorder: Rc<Recorder>, over: Rc<Over>) {
    while !over.is_over.get() {
        let began = Instant::now();
        let done = client.operate().await;
        // A refusal is an answer.
        let has_failed = !matches!(done, Ok(()) | Err(sdk::Error::Refused { .. }));
        recorder.ended(began, done);
        if has_failed {
            sleep(PAUSE_AFTER_ERROR).await;
        }
    }
}

/// One client: the next operation begins when it is due and the client idle.
async fn open_loop(
    mut client: impl Operate,
    recorder: Rc<Recorder>,
    over: Rc<Over>,
    open: Rc<OpenLoop>,
    number: usize,
) {
    while !over.is_over.get() {
        let arrival = tokio::select! {
            arrival = open.arrivals.next() => arrival,
            () = over.told.notified() => None,
        };
        let Some(arrival) = arrival else { return };
        if arrival.was_held_back {
            recorder.was_held_back();
        }
        open.under_way.borrow_mut()[number] = Some(arrival.intended);
        let done = client.operate().await;
        open.under_way.borrow_mut()[number] = None;
        recorder.ended(arrival.intended, done);
    }
}
