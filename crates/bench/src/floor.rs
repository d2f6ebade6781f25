//! `loggos bench floor`: measures the hardware floor of this machine: the latency of a disk sync of the log, and of a
//! round trip between two processes. No design can avoid either, so all other results should be compared with them.
//!
//! The sync is done like that of the log: in a file filled with zeros in advance, with O_DIRECT if the file system
//! supports it, by a thread with real-time priority if permitted. Three concurrent ones represent a cluster of three
//! nodes on one disk.
//!
//! A round trip is measured twice: with both ends on one processor, and with each end on a separate processor. Waking an
//! idle processor can dominate the latency, particularly in a virtual machine. Unless the ends are bound to processors,
//! the scheduler decides which of the two is measured.
//!
//! [`ChainFloor`] combines both for `loggos bench log`: the minimum that an append to a chain with a given number of
//! copies waits for.

use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde::Serialize;
use store::files::FileError;
use store::{AlignedBuffer, BLOCK_BYTES};
use tempfile::TempDir;
use terminal::{Stop, to_json};

use crate::{LogFile, Platform, scratch};

/// Duration of each measurement and its warm-up.
const MEASURE: Duration = Duration::from_secs(3);
const WARM_UP: Duration = Duration::from_millis(300);
/// Maximum distinguishable latency: longer than any measurement.
const SAMPLE_NS_MAX: u64 = 60_000_000_000;
/// Size of the file that is forced, as long as a log segment, and overwritten cyclically.
const FILE_BYTES: u64 = 64 << 20;
/// Size of a response from a unit of a chain or a sequencer: a position and its framing.
const CHAIN_ANSWER_BYTES: usize = 64;
/// Bytes per write when the file is filled.
const FILL_BYTES: usize = 1 << 20;

/// One line of the table.
#[derive(Debug, Serialize)]
struct Line {
    bench: &'static str,
    operation: &'static str,
    at_once: usize,
    bytes: usize,
    operations_per_second: f64,
    p50_us: f64,
    p99_us: f64,
    /// Whether the forcing threads had real-time priority; absent for round trips.
    #[serde(skip_serializing_if = "Option::is_none")]
    real_time: Option<bool>,
}

/// Why a measurement failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FloorError {
    /// A file operation failed.
    #[error("{0}")]
    File(#[from] FileError),
    /// A directory, a socket or binding to a processor failed.
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// Measures in a temporary directory under `data`, which is removed afterwards.
pub(crate) fn run(platform: Platform, data: &Path, json: bool) -> Result<(), Stop> {
    measure(platform, data, json).map_err(|error| sdk::Error::Unavailable(error.to_string()).into())
}

fn measure(platform: Platform, data: &Path, json: bool) -> Result<(), FloorError> {
    let is_new = !data.exists();
    std::fs::create_dir_all(data)?;
    let measured = measure_in(platform, scratch(data)?.path(), json);
    if is_new {
        let _ = std::fs::remove_dir(data);
    }
    measured
}

fn measure_in(platform: Platform, directory: &Path, json: bool) -> Result<(), FloorError> {
    if !json {
        println!("load average {}", load_average());
        println!(
            "{:<27} {:>7} {:>6}  {:>10}  {:>9}  {:>9}",
            "operation", "threads", "bytes", "per second", "p50 us", "p99 us"
        );
    }
    for at_once in [1, 3] {
        forces(platform, directory, at_once)?.print(json);
    }
    for (operation, processors) in pairs_of_processors()? {
        for bytes in [512, 4096] {
            round_trips(operation, processors, bytes)?.print(json);
        }
    }
    Ok(())
}

impl Line {
    fn of(operation: &'static str, at_once: usize, bytes: usize, samples: &Samples) -> Self {
        Self {
            bench: "floor",
            operation,
            at_once,
            bytes,
            operations_per_second: samples.per_second,
            p50_us: samples.percentile_us(50.0),
            p99_us: samples.percentile_us(99.0),
            real_time: None,
        }
    }

    fn print(&self, json: bool) {
        if json {
            println!("{}", to_json(self));
            return;
        }
        let priority = match self.real_time {
            Some(false) => "  (normal priority: real-time priority was denied)",
            _ => "",
        };
        println!(
            "{:<27} {:>7} {:>6}  {:>10.0}  {:>9.1}  {:>9.1}{priority}",
            self.operation, self.at_once, self.bytes, self.operations_per_second, self.p50_us, self.p99_us
        );
    }
}

/// Latencies of one kind of operation.
#[derive(Debug)]
pub(crate) struct Samples {
    pub(crate) nanoseconds: Histogram<u64>,
    pub(crate) per_second: f64,
}

impl Samples {
    fn empty() -> Self {
        let nanoseconds = Histogram::new_with_bounds(1, SAMPLE_NS_MAX, 3).expect("these bounds are valid");
        Self { nanoseconds, per_second: 0.0 }
    }

    /// Repeats `operation` for [`MEASURE`].
    fn take<E>(operation: impl FnMut() -> Result<(), E>) -> Result<Self, E> {
        Self::take_for(WARM_UP, MEASURE, operation)
    }

    /// Repeats `operation` for a warm-up and the measurement.
    fn take_for<E>(
        warm_up: Duration,
        measure: Duration,
        mut operation: impl FnMut() -> Result<(), E>,
    ) -> Result<Self, E> {
        let mut samples = Self::empty();
        let began = Instant::now();
        while began.elapsed() < warm_up {
            operation()?;
        }
        let began = Instant::now();
        let mut last = began;
        while last - began < measure {
            operation()?;
            let now = Instant::now();
            let nanoseconds = u64::try_from((now - last).as_nanos()).unwrap_or(u64::MAX);
            samples.nanoseconds.saturating_record(nanoseconds);
            last = now;
        }
        samples.per_second = count(samples.nanoseconds.len()) / (last - began).as_secs_f64();
        Ok(samples)
    }

    /// Adds the samples of a concurrent measurement.
    fn add(&mut self, other: &Self) {
        self.nanoseconds.add(&other.nanoseconds).expect("all have the same bounds");
        self.per_second += other.per_second;
    }

    fn percentile_us(&self, percentile: f64) -> f64 {
        count(self.nanoseconds.value_at_percentile(percentile)) / 1_000.0
    }
}

/// Converts to a float for display, where precision beyond 53 bits does not matter.
#[expect(clippy::cast_precision_loss, reason = "displayed figures")]
fn count(number: u64) -> f64 {
    number as f64
}

fn forces(platform: Platform, directory: &Path, at_once: usize) -> Result<Line, FloorError> {
    let logs: Result<Vec<_>, FileError> =
        (0..at_once).map(|file| zero_filled(platform, directory, &format!("log-{at_once}-{file}"))).collect();
    let logs = logs?;
    let start = Barrier::new(at_once);
    let outcomes: Vec<Result<(bool, Samples), FileError>> = thread::scope(|scope| {
        let threads: Vec<_> =
            logs.iter().map(|log| scope.spawn(|| force_again_and_again(platform, &**log, &start))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a measuring thread doesn't panic")).collect()
    });
    let (mut all, mut all_real_time) = (Samples::empty(), true);
    for outcome in outcomes {
        let (real_time, samples) = outcome?;
        all.add(&samples);
        all_real_time &= real_time;
    }
    Ok(Line { real_time: Some(all_real_time), ..Line::of("force", at_once, BLOCK_BYTES, &all) })
}

fn zero_filled(platform: Platform, directory: &Path, name: &str) -> Result<Box<dyn LogFile>, FileError> {
    let file = (platform.create_log)(directory, name)?;
    let zeros = AlignedBuffer::zeroed(FILL_BYTES);
    for offset in (0..FILE_BYTES).step_by(FILL_BYTES) {
        file.write_at(offset, &zeros)?;
    }
    file.sync()?;
    Ok(file)
}

fn force_again_and_again(platform: Platform, log: &dyn LogFile, start: &Barrier) -> Result<(bool, Samples), FileError> {
    let real_time = (platform.ask_for_real_time)();
    let mut forcing = Forcing::of(log, BLOCK_BYTES);
    start.wait();
    let samples = Samples::take(|| forcing.force())?;
    Ok((real_time, samples))
}

/// A file that is overwritten cyclically, with a force after each write.
struct Forcing<'a> {
    log: &'a dyn LogFile,
    blocks: AlignedBuffer,
    offset: u64,
}

impl<'a> Forcing<'a> {
    /// With writes of `bytes`, rounded up to whole blocks.
    fn of(log: &'a dyn LogFile, bytes: usize) -> Self {
        let mut blocks = AlignedBuffer::zeroed(bytes.next_multiple_of(BLOCK_BYTES));
        blocks.fill(0x5a);
        Self { log, blocks, offset: 0 }
    }

    fn force(&mut self) -> Result<(), FileError> {
        let bytes = self.blocks.len() as u64;
        if self.offset + bytes > FILE_BYTES {
            self.offset = 0;
        }
        self.log.write_at(self.offset, &self.blocks)?;
        self.offset += bytes;
        self.log.sync()
    }
}

/// The minimum latency of an append to a chain: for each copy, in sequence, a round trip between two processes with the
/// entry and a response, and a disk sync of the entry.
pub(crate) struct ChainFloor {
    platform: Platform,
    _scratch: TempDir,
    log: Box<dyn LogFile>,
}

impl ChainFloor {
    /// In a temporary directory under `data`, removed when this is dropped.
    pub(crate) fn prepare(platform: Platform, data: &Path) -> Result<Self, FloorError> {
        let scratch = scratch(data)?;
        let log = zero_filled(platform, scratch.path(), "log")?;
        Ok(Self { platform, _scratch: scratch, log })
    }

    /// Measures for `time`, with the ends of the round trips on one processor; on two if `on_two` and this process may
    /// use two.
    pub(crate) fn measure(
        &self,
        on_two: bool,
        copies: usize,
        bytes: usize,
        time: Duration,
    ) -> Result<Samples, FloorError> {
        let pairs = pairs_of_processors()?;
        let (_, processors) = pairs.get(usize::from(on_two)).unwrap_or(&pairs[0]);
        let mut forcing = Forcing::of(&*self.log, bytes);
        against_echo(*processors, bytes, CHAIN_ANSWER_BYTES, |near| {
            (self.platform.ask_for_real_time)();
            let (request, mut answer) = (vec![7; bytes], [0; CHAIN_ANSWER_BYTES]);
            Samples::take_for(time / 10, time, || -> Result<(), FloorError> {
                for _ in 0..copies {
                    near.write_all(&request)?;
                    near.read_exact(&mut answer)?;
                    forcing.force()?;
                }
                Ok(())
            })
        })
    }
}

/// Processors of the two ends: one processor, and two if this process may use that many.
fn pairs_of_processors() -> io::Result<Vec<(&'static str, [usize; 2])>> {
    let allowed = sched_getaffinity(None)?;
    let mut allowed = (0..CpuSet::MAX_CPU).filter(|processor| allowed.is_set(*processor));
    let first = allowed.next().ok_or_else(|| io::Error::other("no processor"))?;
    let mut pairs = vec![("round trip, one processor", [first, first])];
    pairs.extend(allowed.next().map(|second| ("round trip, two processors", [first, second])));
    Ok(pairs)
}

/// Binds this thread to a processor.
fn bind(processor: usize) -> io::Result<()> {
    let mut set = CpuSet::new();
    set.set(processor);
    Ok(sched_setaffinity(None, &set)?)
}

fn round_trips(operation: &'static str, processors: [usize; 2], bytes: usize) -> Result<Line, FloorError> {
    let samples: Result<Samples, FloorError> = against_echo(processors, bytes, bytes, |near| {
        let mut buffer = vec![7; bytes];
        Ok(Samples::take(|| near.write_all(&buffer).and_then(|()| near.read_exact(&mut buffer)))?)
    });
    Ok(Line::of(operation, 1, bytes, &samples?))
}

/// Runs `measure` with one end of a connection. The other end answers each `request_bytes` with `answer_bytes`. Each
/// end is bound to its processor.
fn against_echo<T: Send>(
    processors: [usize; 2],
    request_bytes: usize,
    answer_bytes: usize,
    measure: impl FnOnce(&mut TcpStream) -> Result<T, FloorError> + Send,
) -> Result<T, FloorError> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let mut near = TcpStream::connect(listener.local_addr()?)?;
    let (mut far, _) = listener.accept()?;
    near.set_nodelay(true)?;
    far.set_nodelay(true)?;
    thread::scope(|scope| {
        scope.spawn(move || {
            let (mut request, answer) = (vec![0; request_bytes], vec![7; answer_bytes]);
            // If binding fails, the near end finds the connection closed and reports it.
            if bind(processors[1]).is_ok() {
                while far.read_exact(&mut request).and_then(|()| far.write_all(&answer)).is_ok() {}
            }
        });
        let measuring = scope.spawn(move || {
            bind(processors[0])?;
            measure(&mut near)
        });
        measuring.join().expect("a measuring thread doesn't panic")
    })
}

fn load_average() -> String {
    let loads = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    loads.split_whitespace().take(3).collect::<Vec<_>>().join(" ")
}
