//! A small client of the Network Block Device protocol, so that Loggos and other servers are measured alike.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::str::FromStr;
use std::time::{Duration, Instant};

use base::SplitMix64;
use bytes::{BufMut as _, Bytes, BytesMut};
use terminal::Stop;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;

use super::super::SEED;
use super::super::workload::value;
use super::figures::{Operation, Shape};

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
const DISCONNECT: u16 = 2;
/// Size of the writes that fill the disk before it is read.
const FILL_BYTES: u32 = 1 << 20;
const PORT: u16 = 10_809;

/// A disk of a server: `nbd://HOST[:PORT]/NAME`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Uri {
    pub(super) address: String,
    pub(super) export: String,
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

impl Uri {
    /// Why a benchmark ends after an error of the disk.
    pub(super) fn failed(&self) -> impl FnOnce(io::Error) -> Stop + use<> {
        Stop::io(format!("use the disk {:?} at {}", self.export, self.address))
    }
}

/// Writes the used part of a disk once, so that reads find data.
pub(super) async fn fill(disk: &Uri, span: u64) -> Result<(), Stop> {
    let mut client = Client::attach(disk).await.map_err(disk.failed())?;
    if client.size < span {
        return Err(Stop::invalid(format!("disk {} has {} bytes, fewer than --span", disk.export, client.size)));
    }
    let data = value(FILL_BYTES as usize);
    let mut offset = 0;
    while offset < span {
        let length = u64::from(FILL_BYTES).min(span - offset) as u32;
        client.send(WRITE, 0, offset, length, &data[..length as usize]).await.map_err(disk.failed())?;
        client.reply(|_| 0).await.map_err(disk.failed())?;
        offset += u64::from(length);
    }
    Ok(())
}

pub(super) struct Load {
    client: Client,
    shape: Shape,
    value: Bytes,
    /// The number of addresses.
    places: u64,
    /// The next address in order.
    next: u64,
    draw: SplitMix64,
    /// When each request began, and the bytes of its answer.
    in_progress: BTreeMap<u64, (Instant, usize)>,
    cookie: u64,
}

impl Load {
    /// Attaches a disk, of which `span` bytes are used.
    pub(super) async fn attach(disk: &Uri, shape: Shape, span: usize) -> io::Result<Self> {
        Ok(Self {
            client: Client::attach(disk).await?,
            shape,
            value: value(shape.bytes),
            places: (span / shape.bytes).max(1) as u64,
            next: 0,
            draw: SplitMix64::new(SEED),
            in_progress: BTreeMap::new(),
            cookie: 0,
        })
    }

    /// Keeps requests in progress until then. Passes to `each` when an answered request began, and when it ended.
    pub(super) async fn run(&mut self, until: Instant, mut each: impl FnMut(Instant, Instant)) -> io::Result<()> {
        for _ in 0..self.shape.depth {
            self.send().await?;
        }
        while Instant::now() < until {
            let began = self.receive().await?;
            each(began, Instant::now());
            self.send().await?;
        }
        Ok(())
    }

    /// Ends the connection once everything is answered: some servers do not survive an end in the middle of replies.
    pub(super) async fn finish(mut self) -> io::Result<()> {
        while !self.in_progress.is_empty() {
            self.receive().await?;
        }
        self.client.send(DISCONNECT, 0, 0, 0, &[]).await
    }

    /// The age of the oldest request in progress.
    pub(super) fn oldest(&self) -> Duration {
        let ages = self.in_progress.values().map(|(began, _)| began.elapsed());
        ages.max().unwrap_or_default()
    }

    async fn send(&mut self) -> io::Result<()> {
        let place = if self.shape.sequential { self.next } else { self.draw.below(self.places) };
        self.next = (place + 1) % self.places;
        let reads = match self.shape.operation {
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
