//! The loops that drive clients, for any kind of operation.
//!
//! In a *closed loop* each client starts its next operation when the last one completes, as in the papers'
//! measurements. In an *open loop* operations arrive by a [`schedule`](super::schedule), and clients execute them: the
//! number of clients limits the operations in flight, and an operation that finds no idle client waits for one.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::recorder::Recorder;
use super::schedule::{Arrivals, Schedule};

/// Delay of a closed-loop client after an error. Without it, an operation that fails immediately would spin.
const PAUSE_AFTER_ERROR: Duration = Duration::from_millis(5);
/// Operations still in flight this long after the end of a run are abandoned.
const SETTLE_PATIENCE: Duration = Duration::from_secs(1);

/// A client that executes one operation at a time.
pub(crate) trait Operate: 'static {
    /// Executes the next operation.
    async fn operate(&mut self) -> Result<(), sdk::Error>;
}

/// Running clients, on one thread: requires a [`LocalSet`](tokio::task::LocalSet). They are aborted when it is dropped.
#[derive(Default)]
pub(crate) struct Crew {
    over: Rc<Over>,
    clients: JoinSet<()>,
}

/// Whether clients should stop.
#[derive(Default)]
struct Over {
    is_over: Cell<bool>,
    /// Wakes clients that wait for an operation.
    stop: Notify,
}

impl Crew {
    /// Starts a client in a closed loop.
    pub(crate) fn closed_loop(&mut self, client: impl Operate, recorder: &Rc<Recorder>) {
        self.clients.spawn_local(closed_loop(client, Rc::clone(recorder), Rc::clone(&self.over)));
    }

    /// Starts client `number` in an open loop.
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

    /// Waits for operations in flight, within limits: an abandoned put would leave a version that no client knows,
    /// which causes a conflict in the next run.
    pub(crate) async fn settle(mut self) {
        self.over.is_over.set(true);
        self.over.stop.notify_waiters();
        let all = async {
            while let Some(client) = self.clients.join_next().await {
                client.expect("no client panics");
            }
        };
        let _ = timeout(SETTLE_PATIENCE, all).await;
    }
}

/// The state shared by the clients of an open loop.
pub(crate) struct OpenLoop {
    arrivals: Arrivals,
    /// The intended start of each client's current operation.
    under_way: RefCell<Vec<Option<Instant>>>,
}

impl OpenLoop {
    /// Starts the schedule for this number of clients.
    pub(crate) fn begin(schedule: Schedule, clients: usize) -> Self {
        Self { arrivals: Arrivals::begin(schedule), under_way: RefCell::new(vec![None; clients]) }
    }

    /// Operations with an intended start so far.
    pub(crate) fn offered(&self) -> u64 {
        self.arrivals.offered()
    }

    /// The intended starts of operations that have not completed.
    pub(crate) fn unfinished(&self) -> Vec<Instant> {
        let mut unfinished = self.arrivals.left();
        unfinished.extend(self.under_way.borrow().iter().flatten());
        unfinished
    }
}

/// Runs a client that starts an operation when the last one completes.
async fn closed_loop(mut client: impl Operate, recorder: Rc<Recorder>, over: Rc<Over>) {
    while !over.is_over.get() {
        let began = Instant::now();
        let done = client.operate().await;
        // A refusal is a valid response.
        let has_failed = !matches!(done, Ok(()) | Err(sdk::Error::Refused { .. }));
        recorder.ended(began, done);
        if has_failed {
            sleep(PAUSE_AFTER_ERROR).await;
        }
    }
}

/// Runs a client that starts an operation when it is due and the client is idle.
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
            () = over.stop.notified() => None,
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
