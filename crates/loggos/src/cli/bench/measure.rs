//! One measurement: so many clients on a few connections, a warm-up that does not count, and the time that does.
//!
//! In a *closed loop* each client begins its next operation when the last is answered, as in the papers' own
//! measurements. In an *open loop* operations come by a [`schedule`](super::schedule), and a client is what carries one
//! out: there are as many operations under way as clients at most, and those that find no client idle wait for one.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::Notify;
use tokio::task::{JoinSet, LocalSet};
use tokio::time::{sleep, timeout};

use super::SEED;
use super::recorder::{Counted, Recorder};
use super::report::Figures;
use super::schedule::{Arrivals, Pacing, Schedule};
use super::servers::Servers;
use super::target::Target;
use super::workload::{Client, Versions, Workload, value};
use crate::cli::stop::Stop;

/// Connections of an open loop: its clients are a bound that is seldom reached, and idle for the most part.
const OPEN_CONNECTIONS_MAX: usize = 8;
/// A client of a closed loop whose operation failed waits so long before the next: a refused one fails at once, and
/// would fail a million times.
const PAUSE_AFTER_ERROR: Duration = Duration::from_millis(5);
/// Operations that are under way at the end of a run are given up after this.
const SETTLE_PATIENCE: Duration = Duration::from_secs(1);

/// Who is measured, doing what: one side of a comparison.
pub(crate) struct Side {
    /// What tells it from the other side; none if there is no other.
    pub(crate) name: Option<&'static str>,
    pub(crate) target: Target,
    pub(crate) workload: Rc<Workload>,
    pub(crate) servers: Servers,
    versions: Versions,
    value: Bytes,
}

impl Side {
    /// Puts in place what the workload wants to find.
    pub(crate) async fn prepare(
        name: Option<&'static str>,
        target: Target,
        workload: Workload,
        servers: Servers,
    ) -> Result<Self, Stop> {
        let versions = workload.prepare(&target).await?;
        let value = value(workload.value_bytes);
        Ok(Self { name, target, workload: Rc::new(workload), servers, versions, value })
    }

    /// For people: `A loggos write`.
    pub(crate) fn title(&self) -> String {
        let (target, operation) = (self.target.name(), self.workload.operation.name());
        self.name.map_or_else(|| format!("{target} {operation}"), |name| format!("{name} {target} {operation}"))
    }
}

/// How much is asked for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Point {
    pub(crate) clients: usize,
    /// None: a closed loop.
    pub(crate) offer: Option<Offer>,
}

/// What an open loop offers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Offer {
    /// Operations a second.
    pub(crate) rate: f64,
    pub(crate) pacing: Pacing,
}

impl std::fmt::Display for Point {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.offer {
            None => write!(f, "{} clients", self.clients),
            Some(Offer { rate, .. }) => write!(f, "{rate} operations/s"),
        }
    }
}

/// How long a measurement takes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    pub(crate) warmup: Duration,
    pub(crate) measured: Duration,
}

/// Measures one point.
pub(crate) async fn measure(side: &Side, point: Point, times: Times) -> Result<Figures, Stop> {
    LocalSet::new().run_until(measure_here(side, point, times)).await
}

async fn measure_here(side: &Side, point: Point, times: Times) -> Result<Figures, Stop> {
    let mut running = Running::begin(side, point).await?;
    sleep(times.warmup).await;
    let cpu_before = side.servers.cpu_time()?;
    running.start();
    sleep(times.measured).await;
    let (counted, offered) = running.stop();
    let cpu_after = side.servers.cpu_time()?;
    running.settle().await;
    let server_cpu = cpu_before.zip(cpu_after).map(|(before, after)| after.saturating_sub(before));
    Ok(Figures::of(side, point, counted, offered, server_cpu))
}

/// Clients at work. They share what they count, on one thread: this wants a [`LocalSet`].
pub(crate) struct Running {
    recorder: Rc<Recorder>,
    over: Rc<Over>,
    clients: JoinSet<()>,
    open: Option<Rc<OpenLoop>>,
    offered_before: u64,
}

/// Whether clients should end.
#[derive(Default)]
struct Over {
    is_over: Cell<bool>,
    /// For those that wait for an operation.
    told: Notify,
}

/// What the clients of an open loop share.
struct OpenLoop {
    arrivals: Arrivals,
    /// Of each client, when the operation that it carries out was to begin.
    under_way: RefCell<Vec<Option<Instant>>>,
}

impl Running {
    /// Connects all clients, and sets them to work.
    pub(crate) async fn begin(side: &Side, point: Point) -> Result<Self, Stop> {
        let connections = point.clients.div_ceil(side.target.clients_per_connection());
        let connections = connections.min(point.offer.map_or(usize::MAX, |_| OPEN_CONNECTIONS_MAX));
        let mut connected = Vec::with_capacity(connections);
        for _ in 0..connections {
            connected.push(side.target.connect().await?);
        }
        let (recorder, over) = (Rc::new(Recorder::default()), Rc::new(Over::default()));
        let open = point.offer.map(|Offer { rate, pacing }| {
            let arrivals = Arrivals::begin(Schedule::new(rate, pacing, SEED));
            Rc::new(OpenLoop { arrivals, under_way: RefCell::new(vec![None; point.clients]) })
        });
        let mut clients = JoinSet::new();
        for number in 0..point.clients {
            let connection = connected[number % connections].clone();
            let place = (number, point.clients);
            let client = Client::new(&side.workload, connection, &side.versions, &side.value, place);
            let (recorder, over) = (Rc::clone(&recorder), Rc::clone(&over));
            match &open {
                None => clients.spawn_local(closed_loop(client, recorder, over)),
                Some(open) => clients.spawn_local(open_loop(client, recorder, over, Rc::clone(open), number)),
            };
        }
        Ok(Self { recorder, over, clients, open, offered_before: 0 })
    }

    /// From now on everything counts.
    pub(crate) fn start(&mut self) {
        self.offered_before = self.open.as_ref().map_or(0, |open| open.arrivals.offered());
        self.recorder.start();
    }

    /// Ends the run; gives how many operations an open loop offered in it. What is under way counts no more.
    pub(crate) fn stop(&self) -> (Counted, Option<u64>) {
        let offered = self.open.as_ref().map(|open| open.arrivals.offered() - self.offered_before);
        let unfinished = self.open.as_ref().map_or_else(Vec::new, |open| open.unfinished());
        (self.recorder.stop(&unfinished), offered)
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

impl OpenLoop {
    fn unfinished(&self) -> Vec<Instant> {
        let mut unfinished = self.arrivals.left();
        unfinished.extend(self.under_way.borrow().iter().flatten());
        unfinished
    }
}

/// One client: the next operation begins when the last is answered.
async fn closed_loop(mut client: Client, recorder: Rc<Recorder>, over: Rc<Over>) {
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
async fn open_loop(mut client: Client, recorder: Rc<Recorder>, over: Rc<Over>, open: Rc<OpenLoop>, number: usize) {
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
