//! `loggos bench disk`: reads and writes of virtual disks, over the Network Block Device protocol.
//!
//! The client is a part of this program, so that Loggos and other NBD servers are measured alike. Every write carries the
//! flag FUA: the answer says that it is durable.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::str::FromStr;
use std::time::{Duration, Instant};

use base::SplitMix64;
use bytes::{BufMut as _, Bytes, BytesMut};
use clap::{Args, ValueEnum};
use hdrhistogram::Histogram;
use serde::Serialize;
use terminal::{Stop, unless_interrupted};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;

use super::meter::{Latencies, Meter, per_operation};
use super::progress::Progress;
use super::report::{FiguresArguments, Report, or_dash, tenths};
use super::servers::{Servers, load_average};
use super::workload::value;
use super::{SEED, parse};

const GREETING_BYTES: usize = 18;
const OPTION: &[u8; 8] = b"IHAVEOPT";
const EXPORT_NAME: u32 = 1;
/// Fixed newstyle, no zeroes after the export.
const CLIENT_FLAGS: u32 = 3;
const REQUEST: u32 = 0x2560_9513;
const REPLY: u32 = 0x6744_6698;
const FUA: u16 = 1;
const READ: u16 = 0;
const WRITE: u16 = 1;
/// Size of the writes that fill the disk before it is read.
const FILL_BYTES: u32 = 1 << 20;
const PORT: u16 = 10_809;

/// A disk of a server: `nbd://HOST[:PORT]/NAME`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Uri {
    address: String,
    export: String,
}

impl FromStr for Uri {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let rest = text.strip_prefix("nbd://").ok_or("an address of a disk is nbd://HOST[:PORT]/NAME")?;
        let (host, export) = rest.split_once('/').unwrap_or((rest, ""));
        let address = if host.contains(':') { host.to_owned() } else { format!("{host}:{PORT}") };
        Ok(Self { address, export: export.to_owned() })
    }
}

/// The requests to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Operation {
    Read,
    Write,
    /// Reads and writes in equal numbers.
    Mixed,
}

impl Operation {
    fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Mixed => "mixed",
        }
    }
}

/// Measures reads and writes of virtual disks, or of any NBD server. The content of the disks is overwritten.
#[derive(Clone, Debug, Args)]
pub(crate) struct Arguments {
    /// The disks, measured in turn: nbd://HOST[:PORT]/NAME.
    #[arg(value_name = "URI", required = true)]
    disks: Vec<Uri>,
    /// The requests.
    #[arg(long, value_enum, value_name = "OPERATION,...", value_delimiter = ',', default_value = "write,read")]
    operation: Vec<Operation>,
    /// Bytes of a request.
    #[arg(long, value_name = "BYTES,...", value_delimiter = ',', default_value = "8192", value_parser = parse::positive)]
    bytes: Vec<usize>,
    /// Requests in progress.
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "1,32", value_parser = parse::positive)]
    depth: Vec<usize>,
    /// Consecutive addresses instead of random ones.
    #[arg(long)]
    sequential: bool,
    /// Bytes at the beginning of the disk that are used.
    #[arg(long, value_name = "BYTES", default_value_t = 256 << 20, value_parser = parse::positive)]
    span: usize,
    /// How often all measurements are repeated, interleaved.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = parse::positive)]
    rounds: usize,
    /// Warm-up before each measurement.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse::time)]
    warmup: Duration,
    /// Duration of each measurement.
    #[arg(long, alias = "seconds", value_name = "TIME", default_value = "5s", value_parser = parse::time)]
    duration: Duration,
    /// Process ids of the first disk's servers, to measure their CPU time.
    #[arg(long, value_name = "PID,...", value_delimiter = ',')]
    server_pids: Vec<u32>,
    /// Data directory of `loggos dev`, which holds the process ids of the first disk's servers.
    #[arg(long, value_name = "DIR", conflicts_with = "server_pids")]
    server_data: Option<std::path::PathBuf>,
    #[command(flatten)]
    figures: FiguresArguments,
}

/// The results of one measurement as JSON. Scripts depend on the fields.
#[derive(Debug, Serialize)]
struct Figures {
    bench: &'static str,
    disk: String,
    operation: &'static str,
    bytes: usize,
    depth: usize,
    sequential: bool,
    operations_per_second: f64,
    megabytes_per_second: f64,
    #[serde(flatten)]
    latencies: Latencies,
    server_cpu_us_per_operation: Option<f64>,
    load_average: Option<f64>,
}

const HEADING: &str =
    "DISK                           OPERATION    BYTES DEPTH      OP/S      MB/S    P50 US    P99 US  CPU US/OP  LOAD";

impl std::fmt::Display for Figures {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { disk, operation, bytes, depth, operations_per_second, megabytes_per_second, latencies, .. } = self;
        write!(
            f,
            "{disk:<30} {operation:<9} {bytes:>8} {depth:>5} {operations_per_second:>9} {megabytes_per_second:>9} \
             {:>9} {:>9} {:>10} {:>5}",
            latencies.p50_us,
            latencies.p99_us,
            or_dash(self.server_cpu_us_per_operation),
            or_dash(self.load_average)
        )
    }
}

/// Runs the measurements.
pub(crate) async fn run(arguments: Arguments) -> Result<(), Stop> {
    unless_interrupted(measure_all(&arguments)).await
}

async fn measure_all(arguments: &Arguments) -> Result<(), Stop> {
    let mut report = Report::open(&arguments.figures)?;
    let servers = Servers::of(&arguments.server_pids, arguments.server_data.as_deref())?;
    let measurements = arguments.operation.len() * arguments.bytes.len() * arguments.depth.len();
    let progress = Progress::of((measurements * arguments.disks.len() * arguments.rounds) as u64, "measurements");
    for disk in &arguments.disks {
        progress.now(format!("filling {}", disk.export));
        fill(disk, arguments.span as u64).await?;
    }
    report.add_text(HEADING, &progress)?;
    for _ in 0..arguments.rounds {
        for &operation in &arguments.operation {
            for &bytes in &arguments.bytes {
                for &depth in &arguments.depth {
                    for (place, disk) in arguments.disks.iter().enumerate() {
                        progress.now(operation.name().to_owned());
                        let servers = if place == 0 { servers.clone() } else { Servers::of(&[], None)? };
                        let figures = measure(arguments, disk, operation, (bytes, depth), servers).await?;
                        report.add_json(&figures)?;
                        report.add_text(&figures.to_string(), &progress)?;
                        progress.done(1);
                    }
                }
            }
        }
    }
    Ok(())
}

/// Writes the used part of a disk once, so that reads find data.
async fn fill(disk: &Uri, span: u64) -> Result<(), Stop> {
    let mut client = Client::attach(disk).await.map_err(of_disk(disk))?;
    if client.size < span {
        return Err(Stop::invalid(format!("disk {} has {} bytes, fewer than --span", disk.export, client.size)));
    }
    let data = value(FILL_BYTES as usize);
    let mut offset = 0;
    while offset < span {
        let length = u64::from(FILL_BYTES).min(span - offset) as u32;
        client.send(WRITE, 0, offset, length, &data[..length as usize]).await.map_err(of_disk(disk))?;
        client.reply(|_| 0).await.map_err(of_disk(disk))?;
        offset += u64::from(length);
    }
    Ok(())
}

async fn measure(
    arguments: &Arguments,
    disk: &Uri,
    operation: Operation,
    (bytes, depth): (usize, usize),
    servers: Servers,
) -> Result<Figures, Stop> {
    let mut load = Load {
        client: Client::attach(disk).await.map_err(of_disk(disk))?,
        operation,
        value: value(bytes),
        places: (arguments.span / bytes).max(1) as u64,
        next: arguments.sequential.then_some(0),
        draw: SplitMix64::new(SEED),
        in_progress: BTreeMap::new(),
        cookie: 0,
    };
    let counting = Instant::now() + arguments.warmup;
    let until = counting + arguments.duration;
    let mut latencies = Histogram::<u64>::new_with_max(60_000_000_000, 3).expect("valid bounds");
    for _ in 0..depth {
        load.send().await.map_err(of_disk(disk))?;
    }
    let mut meter = None;
    while Instant::now() < until {
        let began = load.receive().await.map_err(of_disk(disk))?;
        let now = Instant::now();
        if now >= counting {
            if meter.is_none() {
                meter = Some(Meter::begin(servers.clone())?);
            }
            latencies.saturating_record(u64::try_from((now - began).as_nanos()).unwrap_or(u64::MAX));
        }
        load.send().await.map_err(of_disk(disk))?;
    }
    let cpu = match meter {
        Some(meter) => meter.used()?.servers,
        None => return Err(Stop::NothingDone { run: format!("{} of {}", operation.name(), disk.export), error: None }),
    };
    let per_second = latencies.len() as f64 / arguments.duration.as_secs_f64();
    Ok(Figures {
        bench: "disk",
        disk: format!("{}/{}", disk.address, disk.export),
        operation: operation.name(),
        bytes,
        depth,
        sequential: arguments.sequential,
        operations_per_second: tenths(per_second),
        megabytes_per_second: tenths(per_second * bytes as f64 / 1e6),
        latencies: Latencies::of(&latencies, 1_000.0),
        server_cpu_us_per_operation: per_operation(cpu, latencies.len()),
        load_average: load_average(),
    })
}

fn of_disk(disk: &Uri) -> impl FnOnce(io::Error) -> Stop {
    Stop::io(format!("use the disk {:?} at {}", disk.export, disk.address))
}

/// Requests in progress.
struct Load {
    client: Client,
    operation: Operation,
    value: Bytes,
    /// The number of addresses.
    places: u64,
    /// The next address, if they are used in order.
    next: Option<u64>,
    draw: SplitMix64,
    /// When each request began, and the bytes of its answer.
    in_progress: BTreeMap<u64, (Instant, usize)>,
    cookie: u64,
}

impl Load {
    async fn send(&mut self) -> io::Result<()> {
        let place = match &mut self.next {
            None => self.draw.below(self.places),
            Some(next) => std::mem::replace(next, (*next + 1) % self.places),
        };
        let reads = match self.operation {
            Operation::Read => true,
            Operation::Write => false,
            Operation::Mixed => self.draw.below(2) == 0,
        };
        self.cookie += 1;
        let (length, offset) = (self.value.len(), place * self.value.len() as u64);
        self.in_progress.insert(self.cookie, (Instant::now(), if reads { length } else { 0 }));
        let (command, data) = if reads { (READ, &[][..]) } else { (WRITE, &self.value[..]) };
        self.client.send(command, self.cookie, offset, length as u32, data).await
    }

    /// Receives an answer; returns when its request began.
    async fn receive(&mut self) -> io::Result<Instant> {
        let in_progress = &self.in_progress;
        let cookie = self.client.reply(|cookie| in_progress.get(&cookie).map_or(0, |(_, bytes)| *bytes)).await?;
        let unknown = || io::Error::new(ErrorKind::InvalidData, "an answer to no request");
        self.in_progress.remove(&cookie).map(|(began, _)| began).ok_or_else(unknown)
    }
}

/// A connection with simple replies.
struct Client {
    stream: BufReader<TcpStream>,
    size: u64,
    buffer: Vec<u8>,
}

impl Client {
    async fn attach(disk: &Uri) -> io::Result<Self> {
        let mut stream = BufReader::with_capacity(256 << 10, TcpStream::connect(&disk.address).await?);
        stream.get_ref().set_nodelay(true)?;
        let mut greeting = [0; GREETING_BYTES];
        stream.read_exact(&mut greeting).await?;
        if &greeting[8..16] != OPTION {
            return Err(io::Error::new(ErrorKind::InvalidData, "it is not a server of the newstyle protocol"));
        }
        let mut option = BytesMut::new();
        option.put_u32(CLIENT_FLAGS);
        option.put_slice(OPTION);
        option.put_u32(EXPORT_NAME);
        option.put_u32(disk.export.len() as u32);
        option.put_slice(disk.export.as_bytes());
        stream.write_all(&option).await?;
        let size = stream.read_u64().await.map_err(|error| match error.kind() {
            ErrorKind::UnexpectedEof => io::Error::new(ErrorKind::NotFound, "the server has no such disk"),
            _ => error,
        })?;
        stream.read_u16().await?;
        Ok(Self { stream, size, buffer: Vec::new() })
    }

    async fn send(&mut self, command: u16, cookie: u64, offset: u64, length: u32, data: &[u8]) -> io::Result<()> {
        let mut request = BytesMut::with_capacity(28 + data.len());
        request.put_u32(REQUEST);
        request.put_u16(if command == WRITE { FUA } else { 0 });
        request.put_u16(command);
        request.put_u64(cookie);
        request.put_u64(offset);
        request.put_u32(length);
        request.put_slice(data);
        self.stream.write_all(&request).await
    }

    /// Reads a reply with the data that its request asked for; returns its cookie.
    async fn reply(&mut self, bytes: impl FnOnce(u64) -> usize) -> io::Result<u64> {
        let (magic, error, cookie) =
            (self.stream.read_u32().await?, self.stream.read_u32().await?, self.stream.read_u64().await?);
        if magic != REPLY || error != 0 {
            return Err(io::Error::other(format!("error {error} of the server")));
        }
        self.buffer.resize(bytes(cookie), 0);
        self.stream.read_exact(&mut self.buffer).await?;
        Ok(cookie)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disk_addresses() {
        let uri = |address: &str, export: &str| Uri { address: address.to_owned(), export: export.to_owned() };
        assert_eq!("nbd://127.0.0.1/a".parse(), Ok(uri("127.0.0.1:10809", "a")));
        assert_eq!("nbd://host:1/".parse(), Ok(uri("host:1", "")));
        assert!("host:1/a".parse::<Uri>().is_err());
    }
}
