//! One measurement: a number of clients on a few connections, a warm-up that does not count, and the measured time.

use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use serde::{Serialize, Serializer};
use terminal::Stop;
use tokio::task::LocalSet;
use tokio::time::sleep;

use super::SEED;
use super::loops::{Crew, OpenLoop};
use super::recorder::{Counted, Recorder};
use super::report::Figures;
use super::schedule::{Pacing, Schedule};
use super::servers::Servers;
use super::target::Target;
use super::workload::{Client, Versions, Workload, value};

/// Maximum number of connections of an open loop. Most of its clients are idle, because their number is only a limit.
const OPEN_CONNECTIONS_MAX: usize = 8;

/// A target and its workload: one side of a comparison.
pub(crate) struct Side {
    /// Distinguishes it from the other side; `None` without a comparison.
    pub(crate) name: Option<&'static str>,
    pub(crate) target: Target,
    pub(crate) workload: Rc<Workload>,
    pub(crate) servers: Servers,
    versions: Versions,
    value: Bytes,
}

impl Side {
    /// Creates the data that the workload requires.
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

    /// For display, such as `A loggos write`.
    pub(crate) fn title(&self) -> String {
        let (target, operation) = (self.target.name(), self.workload.operation.name());
        self.name.map_or_else(|| format!("{target} {operation}"), |name| format!("{name} {target} {operation}"))
    }
}

/// The load to apply.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Point {
    pub(crate) clients: usize,
    /// `None` for a closed loop.
    #[serde(rename = "rate", serialize_with = "rate_of")]
    pub(crate) offer: Option<Offer>,
}

/// The load offered by an open loop.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Offer {
    pub(crate) rate: f64,
    pub(crate) pacing: Pacing,
}

fn rate_of<S: Serializer>(offer: &Option<Offer>, serializer: S) -> Result<S::Ok, S::Error> {
    offer.map(|offer| offer.rate).serialize(serializer)
}

impl std::fmt::Display for Point {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.offer {
            None => write!(f, "{} clients", self.clients),
            Some(Offer { rate, .. }) => write!(f, "{rate} operations/s"),
        }
    }
}

/// The duration of a measurement.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    pub(crate) warmup: Duration,
    pub(crate) measured: Duration,
}

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

/// Running clients with shared counters, on one thread: requires a [`LocalSet`].
pub(crate) struct Running {
    recorder: Rc<Recorder>,
    crew: Crew,
    open: Option<Rc<OpenLoop>>,
    offered_before: u64,
}

impl Running {
    /// Connects all clients and starts them.
    pub(crate) async fn begin(side: &Side, point: Point) -> Result<Self, Stop> {
        let connections = point.clients.div_ceil(side.target.clients_per_connection());
        let connections = connections.min(point.offer.map_or(usize::MAX, |_| OPEN_CONNECTIONS_MAX));
        let mut connected = Vec::with_capacity(connections);
        for _ in 0..connections {
            connected.push(side.target.connect().await?);
        }
        let (recorder, mut crew) = (Rc::new(Recorder::default()), Crew::default());
        let schedule = point.offer.map(|Offer { rate, pacing }| Schedule::new(rate, pacing, SEED));
        let open = schedule.map(|schedule| Rc::new(OpenLoop::begin(schedule, point.clients)));
        for number in 0..point.clients {
            let connection = connected[number % connections].clone();
            let client = Client::new(&side.workload, connection, &side.versions, &side.value, (number, point.clients));
            match &open {
                None => crew.closed_loop(client, &recorder),
                Some(open) => crew.open_loop(client, &recorder, open, number),
            }
        }
        Ok(Self { recorder, crew, open, offered_before: 0 })
    }

    pub(crate) fn start(&mut self) {
        self.offered_before = self.open.as_ref().map_or(0, |open| open.offered());
        self.recorder.start();
    }

    /// [`Running::start`], and keeps the time of each success.
    pub(crate) fn start_with_times(&self) {
        self.recorder.start_with_times();
    }

    /// Ends the measurement; returns the number of operations offered by an open loop. Operations in flight no longer
    /// count.
    pub(crate) fn stop(&self) -> (Counted, Option<u64>) {
        let offered = self.open.as_ref().map(|open| open.offered() - self.offered_before);
        let unfinished = self.open.as_ref().map_or_else(Vec::new, |open| open.unfinished());
        (self.recorder.stop(&unfinished), offered)
    }

    /// Waits for operations in flight, within limits.
    pub(crate) async fn settle(self) {
        self.crew.settle().await;
    }
}
