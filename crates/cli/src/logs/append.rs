//! `loggos log append`: appends records from the command line, a file or a pipe.
//!
//! A batch is appended after the previous one is acknowledged, so the lines of a file keep their order. A batch
//! contains the lines available by then, up to `--batch`, so that no line of a pipe waits for later ones.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::thread;

use base::counted;
use base::limits::LOG_RECORD_BYTES_MAX;
use bytes::Bytes;
use clap::Args;
use sdk::{Client, Log};
use serde_json::json;
use terminal::{Appended, Output, Stop};
use tokio::sync::mpsc;

use crate::columns::bytes;

/// Default number of records per append.
const BATCH: u32 = 64;
/// A batch is not extended beyond this size. The limit of an append is 4 MiB.
const BATCH_BYTES: usize = 1 << 20;
/// Maximum number of bytes read of a line, to report its length.
const LINE_BYTES_MAX: u64 = 2 * LOG_RECORD_BYTES_MAX as u64;
/// Buffer size of reads.
const BUFFER_BYTES: usize = 256 << 10;

/// Append records to a log: the given ones in one append, or one record per line of a file or of standard input.
///
/// Prints the positions. A record is a line without its line end. Lines of a file are appended in order, several per
/// append. If the command fails, records appended before are kept, and their positions are printed.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Name of the log.
    pub(super) name: String,
    /// Records for one append; after `--` a record may start with a hyphen [default: the lines of standard input].
    #[arg(value_name = "LINE", allow_negative_numbers = true, conflicts_with_all = ["file", "batch"])]
    lines: Vec<OsString>,
    /// File with one record per line; `-` is standard input.
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Maximum number of records per append from a file or standard input, up to 65,536 [default: 64].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    batch: Option<u32>,
}

/// Runs the append.
pub(super) async fn run(client: &Client, output: Output, arguments: Arguments) -> Result<(), Stop> {
    let Arguments { name, lines, file, batch } = arguments;
    let log = client.log(name);
    if !lines.is_empty() {
        let records: Vec<Bytes> = lines.into_iter().map(bytes).collect();
        let count = records.len();
        let position = log.append(records).await?;
        let object = json!({ "log": log.name(), "records": count, "first": position, "last": position });
        output.acknowledge(&object, || position.to_string());
        return Ok(());
    }
    let batch = batch.unwrap_or(BATCH) as usize;
    let lines = lines_of(file.as_deref().unwrap_or_else(|| Path::new("-")), batch)?;
    let mut appending = Appending { log, appended: Appended::default() };
    let done = appending.all(lines, batch).await;
    let Appending { log, appended } = appending;
    done.map_err(|stop| match appended.records {
        0 => stop,
        _ => Stop::AppendCutShort { error: Box::new(stop), appended },
    })?;
    let Appended { records, positions } = appended;
    let (first, last) = (positions.map(|(first, _)| first), positions.map(|(_, last)| last));
    output.acknowledge(&json!({ "log": log.name(), "records": records, "first": first, "last": last }), || {
        let place = appended.place().map_or_else(String::new, |place| format!(", {place}"));
        format!("{} appended to {}{place}", counted(records, "record"), log.name())
    });
    Ok(())
}

struct Appending {
    log: Log,
    appended: Appended,
}

impl Appending {
    async fn all(&mut self, mut lines: mpsc::Receiver<Result<Bytes, Stop>>, batch: usize) -> Result<(), Stop> {
        let mut waiting = Vec::with_capacity(batch);
        while lines.recv_many(&mut waiting, batch).await > 0 {
            let (mut records, mut bytes) = (Vec::with_capacity(waiting.len()), 0);
            for line in waiting.drain(..) {
                match line {
                    Ok(line) => {
                        if bytes + line.len() > BATCH_BYTES && !records.is_empty() {
                            self.append(std::mem::take(&mut records)).await?;
                            bytes = 0;
                        }
                        bytes += line.len();
                        records.push(line);
                    }
                    Err(stop) => {
                        // Lines before the bad one are appended.
                        if !records.is_empty() {
                            self.append(records).await?;
                        }
                        return Err(stop);
                    }
                }
            }
            self.append(records).await?;
        }
        Ok(())
    }

    async fn append(&mut self, records: Vec<Bytes>) -> Result<(), Stop> {
        let count = records.len() as u64;
        let position = self.log.append(records).await?;
        self.appended.note(count, position);
        Ok(())
    }
}

/// The lines of a file, or of standard input for `-`, read ahead by a separate thread, since a pipe may block.
fn lines_of(path: &Path, ahead: usize) -> Result<mpsc::Receiver<Result<Bytes, Stop>>, Stop> {
    let reading = format!("read {}", path.display());
    let input: Box<dyn Read + Send> = if path == Path::new("-") {
        Box::new(io::stdin())
    } else {
        Box::new(File::open(path).map_err(Stop::io(reading.clone()))?)
    };
    let (send, lines) = mpsc::channel(ahead);
    let read = move || {
        let mut input = BufReader::with_capacity(BUFFER_BYTES, input);
        for number in 1.. {
            let line = match line(&mut input) {
                Ok(Some(line)) => Ok(line),
                Ok(None) => return,
                Err(LineFault::TooLong(bytes)) => Err(too_long(number, &bytes.to_string())),
                Err(LineFault::Endless) => Err(too_long(number, &format!("more than {LINE_BYTES_MAX}"))),
                Err(LineFault::Io(error)) => Err(Stop::io(reading.clone())(error)),
            };
            let is_last = line.is_err();
            // The receiver may have stopped.
            if send.blocking_send(line).is_err() || is_last {
                return;
            }
        }
    };
    thread::Builder::new().name("lines".into()).spawn(read).map_err(Stop::io("start a thread"))?;
    Ok(lines)
}

fn too_long(line: u64, bytes: &str) -> Stop {
    Stop::invalid(format!("line {line} has {bytes} bytes; the limit of a record is {LOG_RECORD_BYTES_MAX} bytes"))
}

#[derive(Debug)]
enum LineFault {
    /// The line's length in bytes.
    TooLong(usize),
    /// The line is longer than the read limit.
    Endless,
    Io(io::Error),
}

/// The next line, without its line end; `None` at the end of the input.
fn line(input: &mut impl BufRead) -> Result<Option<Bytes>, LineFault> {
    let mut line = Vec::new();
    input.take(LINE_BYTES_MAX + 1).read_until(b'\n', &mut line).map_err(LineFault::Io)?;
    if line.is_empty() {
        return Ok(None);
    }
    if line.ends_with(b"\n") {
        line.pop();
    } else if line.len() as u64 > LINE_BYTES_MAX {
        return Err(LineFault::Endless);
    }
    if line.len() > LOG_RECORD_BYTES_MAX {
        return Err(LineFault::TooLong(line.len()));
    }
    Ok(Some(line.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_taken_verbatim() {
        let mut input = &b"one\n\n \xff\r\nlast"[..];
        let mut next = || line(&mut input).expect("memory can be read").map(|line| line.to_vec());
        assert_eq!(next(), Some(b"one".to_vec()));
        assert_eq!(next(), Some(vec![]), "an empty line is an empty record");
        assert_eq!(next(), Some(b" \xff\r".to_vec()));
        assert_eq!(next(), Some(b"last".to_vec()));
        assert_eq!(next(), None);
    }

    #[test]
    fn endless_record_line_is_rejected() {
        let mut input = BufReader::new(io::repeat(b'x'));
        assert!(matches!(line(&mut input), Err(LineFault::Endless)));
    }

    #[test]
    fn line_length_limit() {
        let line_of = |bytes: usize, end: &str| {
            let text = "x".repeat(bytes) + end;
            line(&mut text.as_bytes()).map(|line| line.map_or(0, |line| line.len()))
        };
        for end in ["", "\n"] {
            assert!(matches!(line_of(LOG_RECORD_BYTES_MAX, end), Ok(LOG_RECORD_BYTES_MAX)));
            assert!(matches!(line_of(4 << 20, end), Err(LineFault::TooLong(4_194_304))));
        }
    }
}
