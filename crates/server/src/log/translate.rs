//! Converts between messages of the log service and the node's requests and responses, for unary calls, streams and
//! subscriptions alike.

use api::log::{self as message, log_entry};
use bytes::Bytes;
use node::request::{Request, Response};
use sharedlog::limits::{BATCH_BYTES_MAX, RECORDS_MAX};
use sharedlog::request::{Content, ExtentDescription, LogDescription, LogEntry, LogRequest, LogResponse};
use sharedlog::{Batch, ClientId, Data, Position, Stamp};
use state_machine::Failure;

use crate::limits::{READ_ANSWER_BYTES, READ_BYTES_MAX};

/// Bytes of a batch in addition to its records: the record count ...
const BATCH_FRAMING_BYTES: usize = 4;
/// ... and the length of each.
const RECORD_FRAMING_BYTES: usize = 4;

/// An append request, if its records fit in a batch.
pub(crate) fn append(message: message::AppendRequest) -> Result<Request, Failure> {
    let message::AppendRequest { log, records, stamp } = message;
    let batch = Batch::of(&records).map_err(|_| too_large(&records))?;
    let stamp = stamp.map(|message::Stamp { client, sequence }| Stamp { client: ClientId(client), sequence });
    Ok(Request::Log(LogRequest::Append { log, batch, stamp }))
}

/// Why records do not fit in a batch: too many, or too large with their framing.
fn too_large(records: &[Bytes]) -> Failure {
    let count = records.len();
    if count > RECORDS_MAX {
        return Failure::Invalid(format!("{count} records exceed the limit of {RECORDS_MAX} records per append"));
    }
    let bytes = records.iter().fold(0usize, |sum, record| sum.saturating_add(record.len()));
    let most = (BATCH_BYTES_MAX - BATCH_FRAMING_BYTES).saturating_sub(count * RECORD_FRAMING_BYTES);
    Failure::Invalid(match records {
        [_] => format!("a record of {bytes} bytes exceeds the limit of {most} bytes"),
        _ => format!("{count} records with {bytes} bytes in total exceed the limit of {most} bytes per append"),
    })
}

pub(crate) fn read(message: message::ReadRequest) -> Request {
    let message::ReadRequest { log, start, count, wait_ms } = message;
    let (from, count, wait) = (Position(start), count.max(1), base::Duration::from_millis(wait_ms.into()));
    Request::Log(LogRequest::Read { log, from, count, wait, bytes: READ_BYTES_MAX })
}

/// The response to an append, if it is one.
pub(crate) fn appended(response: &Response) -> Option<message::AppendResponse> {
    match response {
        Response::Log(LogResponse::Appended(position)) => Some(message::AppendResponse { position: position.0 }),
        _ => None,
    }
}

/// The response to a read, if it is one: as many entries as fit in a response, and at least one.
pub(crate) fn entries(response: Response) -> Result<message::ReadResponse, Box<Response>> {
    let Response::Log(LogResponse::Entries(entries)) = response else { return Err(Box::new(response)) };
    let (mut bytes, mut kept) = (0, Vec::with_capacity(entries.len()));
    let mut next = Position(0);
    for next_entry in entries {
        if next_entry.position < next {
            continue;
        }
        if bytes >= READ_ANSWER_BYTES {
            break;
        }
        next = after(&next_entry);
        bytes += entry_bytes(&next_entry);
        kept.push(entry(next_entry));
    }
    Ok(message::ReadResponse { entries: kept })
}

/// The first position after those that an entry represents. A trimmed entry represents the whole trimmed range.
pub(crate) fn after(entry: &LogEntry) -> Position {
    match entry.content {
        Content::Trimmed { mark } => entry.position.next().max(mark),
        Content::Data(_) | Content::Junk | Content::Lost => entry.position.next(),
    }
}

pub(crate) fn entry(LogEntry { position, content }: LogEntry) -> message::LogEntry {
    let content = match content {
        Content::Data(data) => log_entry::Content::Data(content_of(&data)),
        Content::Junk => log_entry::Content::Junk(message::Junk {}),
        Content::Lost => log_entry::Content::Lost(message::Lost {}),
        Content::Trimmed { mark } => log_entry::Content::Trimmed(message::Trimmed { before: mark.0 }),
    };
    message::LogEntry { position: position.0, content: Some(content) }
}

/// A repeated entry of a stamp, in a subscription.
pub(crate) fn repeated(position: Position) -> message::LogEntry {
    let content = log_entry::Content::Repeated(message::Repeated {});
    message::LogEntry { position: position.0, content: Some(content) }
}

fn content_of(data: &Data) -> message::Data {
    let Data { stamp: Stamp { client, sequence }, batch } = data;
    // Batches decoded from a disk or a peer were validated.
    let records = batch.records().unwrap_or_default();
    message::Data { records, stamp: Some(message::Stamp { client: client.0, sequence: *sequence }) }
}

/// Approximate bytes of an entry in a response.
pub(crate) fn entry_bytes(entry: &LogEntry) -> usize {
    /// Maximum overhead of an entry in addition to its records.
    const ENTRY_FRAMING_BYTES: usize = 48;
    let batch = match &entry.content {
        Content::Data(data) => data.batch.len(),
        Content::Junk | Content::Lost | Content::Trimmed { .. } => 0,
    };
    batch + ENTRY_FRAMING_BYTES
}

pub(crate) fn description(known: LogDescription) -> message::DescribeLogResponse {
    let LogDescription { id, epoch, sequencer, stripes, copies, extents } = known;
    let extents = extents.into_iter().map(extent).collect();
    message::DescribeLogResponse { id, epoch: epoch.0, sequencer: sequencer.0, stripes, copies, extents }
}

fn extent(ExtentDescription { from, width, chains }: ExtentDescription) -> message::Extent {
    let unit = |(unit, node): (u64, base::NodeId)| message::Unit { unit, node: node.0 };
    let chain = |units: Vec<_>| message::Chain { units: units.into_iter().map(unit).collect() };
    message::Extent { start: from.0, width, chains: chains.into_iter().map(chain).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(position: u64, bytes: usize) -> LogEntry {
        let batch = Batch::of(&[Bytes::from(vec![7; bytes])]).expect("it is small");
        let stamp = Stamp { client: ClientId(3), sequence: 4 };
        LogEntry { position: Position(position), content: Content::Data(Data { stamp, batch }) }
    }

    fn trimmed(position: u64, mark: u64) -> LogEntry {
        LogEntry { position: Position(position), content: Content::Trimmed { mark: Position(mark) } }
    }

    fn answer(entries: Vec<LogEntry>) -> Vec<message::LogEntry> {
        super::entries(Response::Log(LogResponse::Entries(entries))).expect("it answers a read").entries
    }

    #[test]
    fn batch_record_limit() {
        assert_eq!(api::frugal::APPEND_RECORDS_MAX, RECORDS_MAX);
        let records = vec![Bytes::new(); RECORDS_MAX];
        let message = message::AppendRequest { log: "l".into(), records, ..Default::default() };
        assert!(append(message.clone()).is_ok());
        let records = vec![Bytes::new(); RECORDS_MAX + 1];
        let refused = append(message::AppendRequest { records, ..message }).expect_err("one too many");
        let message = "65537 records exceed the limit of 65536 records per append";
        assert_eq!(refused, Failure::Invalid(message.to_owned()));
    }

    #[test]
    fn oversized_record_error_states_limit() {
        let append = |records: &[usize]| {
            let records = records.iter().map(|bytes| Bytes::from(vec![0; *bytes])).collect();
            super::append(message::AppendRequest { log: "l".into(), records, ..Default::default() })
        };
        assert_eq!(base::limits::LOG_RECORD_BYTES_MAX, 4_194_296);
        assert!(append(&[4_194_296]).is_ok(), "the largest record");
        let one = "a record of 4194304 bytes exceeds the limit of 4194296 bytes";
        assert_eq!(append(&[4 << 20]), Err(Failure::Invalid(one.to_owned())));
        assert!(append(&[4_194_292, 0]).is_ok());
        let two = "2 records with 4194293 bytes in total exceed the limit of 4194292 bytes per append";
        assert_eq!(append(&[4_194_292, 1]), Err(Failure::Invalid(two.to_owned())));
    }

    #[test]
    fn translates_append_request() {
        let records = vec![Bytes::from_static(b"a"), Bytes::new()];
        let stamp = Some(message::Stamp { client: 9, sequence: 2 });
        let asked = append(message::AppendRequest { log: "l".into(), records: records.clone(), stamp });
        let batch = Batch::of(&records).expect("it is small");
        let stamp = Some(Stamp { client: ClientId(9), sequence: 2 });
        assert_eq!(asked, Ok(Request::Log(LogRequest::Append { log: "l".into(), batch, stamp })));
    }

    #[test]
    fn merges_trimmed_positions() {
        let returned = answer(vec![trimmed(2, 4), trimmed(3, 4), data(4, 1), trimmed(5, 4), trimmed(6, 4)]);
        let positions: Vec<u64> = returned.iter().map(|entry| entry.position).collect();
        assert_eq!(positions, [2, 4, 5, 6], "5 and 6 were trimmed by themselves");
    }

    #[test]
    fn read_response_byte_limit() {
        let entries = |bytes| (0..8).map(|position| data(position, bytes)).collect();
        assert_eq!(answer(entries(1_000)).len(), 8);
        assert_eq!(answer(entries(1 << 20)).len(), 2);
        assert_eq!(answer(entries(3 << 20)).len(), 1);
        assert_eq!(answer(vec![]).len(), 0);
    }
}
