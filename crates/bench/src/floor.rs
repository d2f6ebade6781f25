//! `loggos bench floor`: what this machine charges for the two things that no design avoids: forcing a block to the
//! log, and a round trip between two processes. Every other figure is to be read beside these.
//!
//! The force is the log's own: a file filled with zeros before, O_DIRECT where the file system has it, one thread of
//! real-time priority where it may be had. Three at once stand for a universe of three nodes on one disk.
//!
//! A round trip is measured twice, with both ends bound to one processor and with each on its own: waking an idle
//! processor can cost many times the rest, most of all in a virtual machine, and where the scheduler puts two ends that
//! aren't bound is its own affair. One figure alone would be either of the two, by luck.
//!
//! [`ChainFloor`] is both together, for `loggos bench log`: what an append to a chain of so many copies has to wait
//! for.

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

/// Each measurement takes so long, after a tenth of it to warm up.
const MEASURE: Duration = Duration::from_secs(3);
const WARM_UP: Duration = Duration::from_millis(300);
/// The longest latency that is told from a longer one: more than any measurement lasts.
const SAMPLE_NS_MAX: u64 = 60_000_000_000;
/// Bytes of the file that is forced, as long as a log segment: written around and around.
const FILE_BYTES: u64 = 64 << 20;
/// Bytes of the answer that a chain's unit gives, or a sequencer: a position, and what frames it.
const CHAIN_ANSWER_BYTES: usize = 64;
/// Bytes written at once when the file is filled.
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

/// Why nothing could be measured.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FloorError {
    /// A file failed.
    #[error("{0}")]
    File(#[from] FileError),
    /// A directory, a socket or the binding to a processor failed.
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// Measures in a directory of its own under `data`, which is removed afterwards.
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
            "operation", "at once", "bytes", "per second", "p50 us", "p99 us"
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
            Some(false) => "  (normal priority: real time was refused)",
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

    /// Does `operation` again and again for [`MEASURE`].
    fn take<E>(operation: impl FnMut() -> Result<(), E>) -> Result<Self, E> {
        Self::take_for(WARM_UP, MEASURE, operation)
    }

    /// Does `operation` again and again.
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

    /// As if both had run as one: side by side.
    fn add(&mut self, other: &Self) {
        self.nanoseconds.add(&other.nanoseconds).expect("all have the same bounds");
        self.per_second += other.per_second;
    }

    fn percentile_us(&self, percentile: f64) -> f64 {
        count(self.nanoseconds.value_at_percentile(percentile)) / 1_000.0
    }
}

/// As a number for people: digits past the 53rd bit don't matter.
#[expect(clippy::cast_precision_loss, reason = "figures for people")]
fn count(number: u64) -> f64 {
    number as f64
}

fn forces(platform: Platform, directory: &Path, at_once: usize) -> Result<Line, FloorError> {
    let logs: Result<Vec<_>, FileError> =
        (0..at_once).map(|place| zero_filled(platform, directory, &format!("log-{at_once}-{place}"))).collect();
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

/// A file that is written around and around, each time forced.
struct Forcing<'a> {
    log: &'a dyn LogFile,
    blocks: AlignedBuffer,
    offset: u64,
}

impl<'a> Forcing<'a> {
    /// So many bytes at a time, in whole blocks.
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

/// What an append to a chain has to wait for, one after the other: for each copy a round trip between two processes,
/// which takes the entry there and an answer back, and a force of the entry.
pub(crate) struct ChainFloor {
    platform: Platform,
    _scratch: TempDir,
    log: Box<dyn LogFile>,
}

impl ChainFloor {
    /// In a directory of its own under `data`, which goes with this.
    pub(crate) fn prepare(platform: Platform, data: &Path) -> Result<Self, FloorError> {
        let scratch = scratch(data)?;
        let log = zero_filled(platform, scratch.path(), "log")?;
        Ok(Self { platform, _scratch: scratch, log })
    }

    /// Measures for so long, with the ends of the round trips on one processor; on two if this process may use so many,
    /// and that is asked for.
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

/// Where the two ends may be: on one processor, and on two if this process may use so many.
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

/// Runs what has an end of a connection whose other end answers each of so many bytes with so many, each end bound to
/// its processor.
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
            // Without it the near end finds the connection closed, and says so.
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
