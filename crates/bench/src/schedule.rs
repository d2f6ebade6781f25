//! The intended starts of an open loop's operations, independent of earlier ones.
//!
//! A closed loop hides delays: while a server hangs, its clients wait too, and the requests that would have arrived
//! meanwhile are never sent and never counted (*coordinated omission*). Here arrivals are independent of the server,
//! and an operation's latency counts from its intended start, even if all clients were busy then.
//!
//! Arrivals are grouped into ticks of one millisecond: all operations of a tick are intended to start at its end. A
//! separate thread sleeps from tick to tick; nothing spins, since the servers may share the few processors. The
//! overhead of this pacing is included in every latency; `--operation nothing` measures it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use base::SplitMix64;
use clap::ValueEnum;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{Mutex, MutexGuard};

/// Ticks in a second.
const TICKS_PER_SECOND: f64 = 1_000.0;
const TICK: Duration = Duration::from_millis(1);

/// The distribution of arrivals in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Pacing {
    /// Independent of each other, as those of many users: exponential gaps, with clusters and pauses.
    Poisson,
    /// The same gap between any two.
    Fixed,
}

impl Pacing {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Poisson => "poisson",
            Self::Fixed => "fixed",
        }
    }
}

/// Operations with the same intended start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tick {
    /// Since the start of the schedule.
    at: Duration,
    operations: u32,
}

/// An endless sequence of arrivals, determined by the seed.
#[derive(Clone, Debug)]
pub(crate) struct Schedule {
    rate: f64,
    pacing: Pacing,
    draw: SplitMix64,
    /// The time in ticks, and the number, of the next arrival.
    next: f64,
    number: u64,
}

impl Schedule {
    /// A schedule with `rate` operations per second.
    pub(crate) fn new(rate: f64, pacing: Pacing, seed: u64) -> Self {
        let mut schedule = Self { rate, pacing, draw: SplitMix64::new(seed), next: 0.0, number: 0 };
        schedule.advance();
        schedule
    }

    fn advance(&mut self) {
        self.number += 1;
        match self.pacing {
            // Computed from the start each time, so that errors do not accumulate.
            Pacing::Fixed => self.next = self.number as f64 * TICKS_PER_SECOND / self.rate,
            Pacing::Poisson => self.next -= (1.0 - unit(&mut self.draw)).ln() * TICKS_PER_SECOND / self.rate,
        }
    }

    fn tick_of_next(&self) -> u64 {
        self.next.ceil() as u64
    }
}

/// A uniformly distributed number in [0, 1), with full precision.
fn unit(draw: &mut SplitMix64) -> f64 {
    (draw.draw() >> 11) as f64 / (1_u64 << 53) as f64
}

impl Iterator for Schedule {
    type Item = Tick;

    fn next(&mut self) -> Option<Tick> {
        let tick = self.tick_of_next();
        let mut operations = 0;
        while self.tick_of_next() == tick {
            operations += 1;
            self.advance();
        }
        Some(Tick { at: Duration::from_nanos(tick * TICK.as_nanos() as u64), operations })
    }
}

/// Operations that are due and were not taken by a client.
#[derive(Clone, Copy, Debug)]
struct Due {
    intended: Instant,
    operations: u32,
}

/// The arrivals of a running schedule, taken by clients in turn.
pub(crate) struct Arrivals {
    queue: Mutex<Queue>,
    offered: Arc<AtomicU64>,
}

struct Queue {
    /// At most one entry per tick: bounded by the duration of the run.
    ticks: UnboundedReceiver<Due>,
    /// The remainder of the last tick received.
    due: Option<Due>,
}

/// An operation that is due.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrival {
    /// Its intended start.
    pub(crate) intended: Instant,
    /// No client was idle then: the limit of operations in flight was reached.
    pub(crate) was_held_back: bool,
}

impl Arrivals {
    /// Starts a schedule now. Its thread ends after this is dropped.
    pub(crate) fn begin(schedule: Schedule) -> Self {
        let (tell, ticks) = unbounded_channel();
        let offered = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&offered);
        thread::spawn(move || pace(schedule, &tell, &count));
        Self { queue: Mutex::new(Queue { ticks, due: None }), offered }
    }

    /// Operations with an intended start so far.
    pub(crate) fn offered(&self) -> u64 {
        self.offered.load(Ordering::Relaxed)
    }

    /// Waits for the next operation. Idle clients wait in a fair queue, so that all clients and connections are used
    /// equally at any rate. `None`: the schedule's thread has ended.
    pub(crate) async fn next(&self) -> Option<Arrival> {
        // No client waits and an operation is due: it arrived while all clients were busy.
        if let Ok(mut queue) = self.queue.try_lock()
            && let Some(intended) = queue.take_due()
        {
            return Some(Arrival { intended, was_held_back: true });
        }
        let intended = Queue::next(self.queue.lock().await).await?;
        Some(Arrival { intended, was_held_back: false })
    }

    /// The intended starts of due operations not taken by a client.
    pub(crate) fn left(&self) -> Vec<Instant> {
        // An idle client holds the lock: then no operation is due.
        let Ok(mut queue) = self.queue.try_lock() else { return Vec::new() };
        std::iter::from_fn(|| queue.take_due()).collect()
    }
}

impl Queue {
    fn take_due(&mut self) -> Option<Instant> {
        if self.due.is_none() {
            self.due = self.ticks.try_recv().ok();
        }
        self.take_one()
    }

    async fn next(mut queue: MutexGuard<'_, Self>) -> Option<Instant> {
        if queue.due.is_none() {
            queue.due = queue.ticks.recv().await;
        }
        queue.take_one()
    }

    fn take_one(&mut self) -> Option<Instant> {
        let Due { intended, operations } = self.due?;
        self.due = (operations > 1).then_some(Due { intended, operations: operations - 1 });
        Some(intended)
    }
}

/// Sends each tick when it is due, until the receiver is dropped.
fn pace(schedule: Schedule, tell: &UnboundedSender<Due>, offered: &AtomicU64) {
    let began = Instant::now();
    for Tick { at, operations } in schedule {
        let intended = began + at;
        thread::sleep(intended.saturating_duration_since(Instant::now()));
        if tell.send(Due { intended, operations }).is_err() {
            return;
        }
        offered.fetch_add(u64::from(operations), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Operations in each of the first milliseconds.
    fn by_millisecond(schedule: Schedule, milliseconds: usize) -> Vec<u32> {
        let mut counts = vec![0; milliseconds + 1];
        let in_time = |tick: &Tick| tick.at.as_millis() as usize <= milliseconds;
        for tick in schedule.take_while(in_time) {
            counts[tick.at.as_millis() as usize] += tick.operations;
        }
        counts
    }

    #[test]
    fn fixed_pacing_is_uniform() {
        let ticks: Vec<Tick> = Schedule::new(250.0, Pacing::Fixed, 1).take(1_000).collect();
        for (number, tick) in (1..).zip(&ticks) {
            assert_eq!((tick.at, tick.operations), (Duration::from_millis(4 * number), 1));
        }
        let counts = by_millisecond(Schedule::new(5_000.0, Pacing::Fixed, 1), 60_000);
        assert!(counts[1..].iter().all(|count| *count == 5));
    }

    #[test]
    fn arrivals_round_up_to_next_tick() {
        let counts = by_millisecond(Schedule::new(333.0, Pacing::Fixed, 1), 10_000);
        for (tick, _) in counts.iter().enumerate().filter(|(_, count)| **count > 0) {
            let arrival = (tick as f64 * 0.333).floor() / 0.333;
            assert!(arrival <= tick as f64 && arrival > tick as f64 - 1.0, "{tick} {arrival}");
        }
        assert_eq!(counts.iter().sum::<u32>(), 3_330);
    }

    #[test]
    fn poisson_arrival_rate_and_variance() {
        let counts = by_millisecond(Schedule::new(2_000.0, Pacing::Poisson, 7), 100_000);
        let samples: Vec<f64> = counts[1..].chunks(100).map(|chunk| f64::from(chunk.iter().sum::<u32>())).collect();
        let mean = samples.iter().sum::<f64>() / samples.len() as f64;
        let variance = samples.iter().map(|count| (count - mean).powi(2)).sum::<f64>() / samples.len() as f64;
        // 200 per tenth of a second with equal variance: within five standard errors of either.
        assert!((mean - 200.0).abs() < 5.0 * (200.0_f64 / 1_000.0).sqrt(), "{mean}");
        assert!((variance / 200.0 - 1.0).abs() < 5.0 * (2.0_f64 / 1_000.0).sqrt(), "{variance}");
    }

    #[test]
    fn seeded_arrivals_are_deterministic() {
        let arrivals = |seed| Schedule::new(700.0, Pacing::Poisson, seed).take(500).collect::<Vec<_>>();
        assert_eq!(arrivals(1), arrivals(1));
        assert_ne!(arrivals(1), arrivals(2));
    }

    #[tokio::test]
    async fn held_back_arrival_keeps_intended_time() {
        let began = Instant::now();
        let arrivals = Arrivals::begin(Schedule::new(1_000.0, Pacing::Fixed, 1));
        // The only client is busy until that many have arrived.
        let is_busy_until = |offered| {
            while arrivals.offered() < offered {
                thread::sleep(TICK);
            }
        };
        let first = arrivals.next().await.expect("the schedule runs");
        assert!(first.intended >= began + TICK);
        is_busy_until(10);
        let second = arrivals.next().await.expect("the schedule runs");
        assert_eq!((second.intended - first.intended, second.was_held_back), (TICK, true));
        is_busy_until(20);
        let left = arrivals.left();
        assert!(left.len() >= 18 && left[0] == second.intended + TICK, "{left:?}");
        let next = arrivals.next().await.expect("the schedule runs");
        assert!(next.intended > left[left.len() - 1]);
    }
}
