//! One turn: measures the appends or reads of a log for a configured time, and the CPU time used.

use std::rc::Rc;
use std::time::{Duration, Instant};

use terminal::Stop;
use tokio::time::sleep;

use super::What;
use super::clients::{Harness, TestLog};
use super::figures::Figures;
use crate::floor::ChainFloor;
use crate::loops::{Crew, Operate};
use crate::measure::Times;
use crate::meter::{Cpu, Latencies, Meter};
use crate::recorder::Recorder;

pub(super) async fn appends(harness: &Harness, placed: &TestLog, times: Times) -> Result<Figures, Stop> {
    let appenders = harness.appenders(placed)?;
    closed_loops(What::Append, harness, placed, times, appenders).await
}

pub(super) async fn random_reads(harness: &Harness, placed: &TestLog, times: Times) -> Result<Figures, Stop> {
    let readers = harness.readers(placed).await?;
    closed_loops(What::Random, harness, placed, times, readers).await
}

async fn closed_loops(
    what: What,
    harness: &Harness,
    placed: &TestLog,
    times: Times,
    clients: Vec<impl Operate>,
) -> Result<Figures, Stop> {
    let (recorder, mut crew) = (Rc::new(Recorder::default()), Crew::default());
    for client in clients {
        crew.closed_loop(client, &recorder);
    }
    sleep(times.warmup).await;
    let meter = Meter::begin(harness.cluster.servers()?)?;
    recorder.start();
    sleep(times.measured).await;
    let counted = recorder.stop(&[]);
    let cpu = meter.used()?;
    crew.settle().await;
    let (operations, batch) = (counted.operations(), placed.shape.batch as u64);
    Ok(Figures {
        latencies: (operations > 0).then(|| Latencies::of(&counted.latencies_us, 1.0)),
        errors: counted.errors,
        longest_gap_us: Some(counted.longest_gap.length().as_micros() as u64),
        last_error: counted.last_error,
        ..Figures::of(what, placed, counted.elapsed, operations, operations * batch, cpu)
    })
}

/// Measures a subscription from the log's first entry to its last.
pub(super) async fn follow(harness: &Harness, placed: &TestLog) -> Result<Figures, Stop> {
    let log = harness.open(placed, 0)?;
    // Establishes the connection.
    log.tail().await?;
    let meter = Meter::begin(harness.cluster.servers()?)?;
    let began = Instant::now();
    let mut subscription = log.subscribe(placed.filled.start);
    let (mut operations, mut entries) = (0, 0);
    while subscription.position() < placed.filled.end {
        let batch = subscription.next_many().await;
        let batch = batch.unwrap_or_else(|| Err(sdk::Error::Unavailable("the subscription has ended".into())))?;
        operations += batch.len() as u64;
        entries += batch.iter().map(|entry| entry.records().len() as u64).sum::<u64>();
    }
    let time = began.elapsed();
    Ok(Figures::of(What::Follow, placed, time, operations, entries, meter.used()?))
}

/// Measures the minimum cost of an append.
pub(super) fn floor(floor: &ChainFloor, on_two: bool, placed: &TestLog, times: Times) -> Result<Figures, Stop> {
    let shape = placed.shape;
    let (copies, bytes) = (shape.copies as usize, shape.batch * shape.value_bytes);
    // No other task of this process is running.
    let samples = floor.measure(on_two, copies, bytes, times.measured);
    let samples = samples.map_err(|error| Stop::invalid(format!("cannot measure the floor: {error}")))?;
    let operations = samples.nanoseconds.len();
    let time = Duration::from_secs_f64(operations as f64 / samples.per_second);
    let entries = operations * shape.batch as u64;
    let figures = Figures::of(What::Floor { on_two }, placed, time, operations, entries, Cpu::default());
    Ok(Figures { latencies: Some(Latencies::of(&samples.nanoseconds, 1_000.0)), ..figures })
}
