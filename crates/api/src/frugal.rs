//! The codec of the servers: protobuf, with a bound on the memory that a request of a given size can take.
//!
//! An empty submessage takes two bytes on the wire and dozens of bytes in memory: 12 MB of them would become half a
//! gigabyte. So a request's fields are counted before it is decoded, and the limits are higher than any valid request
//! needs. A batch in a stream is counted together with its requests.

use std::any::TypeId;
use std::marker::PhantomData;

use prost::Message;
use prost::bytes::Buf;
use tonic::codec::{BufferSettings, Codec, DecodeBuf, Decoder};
use tonic::{Code, Status};
use tonic_prost::{ProstCodec, ProstEncoder};

use crate::columns::{CommitTransactionRequest, StreamRequest};
use crate::common::{Error, error::Kind};
use crate::details;
use crate::log::{AppendRequest, AppendStreamRequest, ReadStreamRequest};

pub use base::limits::grpc::STREAM_BATCH_MAX;

/// Maximum fields of a request, without fields in submessages: twice as many as the largest write, which has a field
/// for each column. A write between the two limits is rejected with the name of its limit.
pub const REQUEST_FIELDS_MAX: usize = 2_048;

/// Maximum fields of one message of a stream, including the fields of its requests but not of their submessages. A full
/// batch of puts has nine fields for each request. No field takes more than the 200 bytes of a request.
pub const STREAM_FIELDS_MAX: usize = 16 * STREAM_BATCH_MAX;

/// Maximum records of one append to a shared log, or of all appends in one message of a stream. Each takes some 32
/// bytes of memory in addition to its message.
pub const APPEND_RECORDS_MAX: usize = 65_536;

/// Maximum fields of an append in addition to its records.
const APPEND_FIELDS_BESIDE: usize = 16;

/// Maximum fields of a commit of a transaction: the rows that it may read and change, and a few others.
pub const COMMIT_FIELDS_MAX: usize = 20_064;

/// Maximum fields of a commit of a transaction, including those of its reads and rows, of which a row has one for each
/// column. Each takes some 100 bytes of memory in addition to its message.
pub const COMMIT_NESTED_FIELDS_MAX: usize = 262_144;

/// Nesting depth to which the fields of a stream's message are counted: fields of the batch, of its items, and of their
/// requests.
const STREAM_LEVELS: u32 = 2;

/// Limits on the content of a message.
#[derive(Clone, Copy, Debug)]
enum Bounds {
    /// A request with at most this many fields.
    Request(usize),
    /// A commit of a transaction, with at most [`COMMIT_FIELDS_MAX`] fields, and [`COMMIT_NESTED_FIELDS_MAX`] with those
    /// in its submessages.
    Commit,
    /// A batch with at most [`STREAM_BATCH_MAX`] requests and at most this many fields in total.
    Batch(usize),
}

impl Bounds {
    /// The limits for a message type.
    fn of<U: 'static>() -> Self {
        let is = |other: TypeId| TypeId::of::<U>() == other;
        if is(TypeId::of::<StreamRequest>()) || is(TypeId::of::<ReadStreamRequest>()) {
            Self::Batch(STREAM_FIELDS_MAX)
        } else if is(TypeId::of::<AppendStreamRequest>()) {
            Self::Batch(STREAM_FIELDS_MAX + APPEND_RECORDS_MAX)
        } else if is(TypeId::of::<AppendRequest>()) {
            Self::Request(APPEND_RECORDS_MAX + APPEND_FIELDS_BESIDE)
        } else if is(TypeId::of::<CommitTransactionRequest>()) {
            Self::Commit
        } else {
            Self::Request(REQUEST_FIELDS_MAX)
        }
    }

    /// The reason for rejecting a message, if it exceeds the limits. A message that is not contiguous in memory cannot
    /// be counted, and is rejected.
    fn refuse(self, message: &[u8], is_whole: bool) -> Option<String> {
        match self {
            Self::Request(fields) => {
                let has_too_many = !is_whole || has_more_fields(message, fields, 0);
                has_too_many.then(|| format!("the request has more than {fields} fields"))
            }
            Self::Commit if !is_whole || has_more_fields(message, COMMIT_FIELDS_MAX, 0) => {
                Some("the transaction has more than 10,000 rows changed, or more than 10,000 reads".to_owned())
            }
            Self::Commit => has_more_fields(message, COMMIT_NESTED_FIELDS_MAX, 1)
                .then(|| format!("the transaction has more than {COMMIT_NESTED_FIELDS_MAX} fields")),
            Self::Batch(_) if !is_whole || has_more_fields(message, STREAM_BATCH_MAX, 0) => {
                Some(format!("a message of the stream has more than {STREAM_BATCH_MAX} requests"))
            }
            Self::Batch(fields) => has_more_fields(message, fields, STREAM_LEVELS)
                .then(|| format!("the requests in a message of the stream have more than {fields} fields")),
        }
    }
}

/// Encodes responses `T` and decodes requests `U`.
#[derive(Clone, Debug)]
pub struct FrugalCodec<T, U>(PhantomData<(T, U)>);

impl<T, U> Default for FrugalCodec<T, U> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T, U> Codec for FrugalCodec<T, U>
where
    T: Message + Send + 'static,
    U: Message + Default + Send + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = ProstEncoder<T>;
    type Decoder = FrugalDecoder<U>;

    fn encoder(&mut self) -> Self::Encoder {
        ProstCodec::<T, U>::raw_encoder(BufferSettings::default())
    }

    fn decoder(&mut self) -> Self::Decoder {
        FrugalDecoder(ProstCodec::<T, U>::raw_decoder(BufferSettings::default()))
    }
}

/// Decodes requests, and rejects those with too many fields.
#[derive(Debug)]
pub struct FrugalDecoder<U>(<ProstCodec<U, U> as Codec>::Decoder)
where
    U: Message + Default + Send + 'static;

impl<U> Decoder for FrugalDecoder<U>
where
    U: Message + Default + Send + 'static,
{
    type Item = U;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<U>, Status> {
        // A message is normally contiguous. Otherwise its fields cannot be counted, and it is rejected.
        let is_whole = buffer.chunk().len() == buffer.remaining();
        let refused = Bounds::of::<U>().refuse(buffer.chunk(), is_whole);
        match refused {
            None => self.0.decode(buffer),
            Some(message) => {
                let error = Error { kind: Kind::Invalid.into(), ..Error::default() };
                Err(details::status(Code::InvalidArgument, message, &error))
            }
        }
    }
}

/// Whether a message has more than `most` fields. Counting stops at the end, or at malformed content, which the decoder
/// reports. Submessages are counted to a depth of `levels`.
fn has_more_fields(message: &[u8], most: usize, levels: u32) -> bool {
    let mut left = most;
    !count_down(message, levels, &mut left)
}

/// Subtracts the number of fields from `left`; false if it would become negative.
fn count_down(mut message: &[u8], levels: u32, left: &mut usize) -> bool {
    while let Some((content, rest)) = field(message) {
        message = rest;
        let Some(fewer) = left.checked_sub(1) else { return false };
        *left = fewer;
        if levels > 0 && !count_down(content, levels - 1, left) {
            return false;
        }
    }
    true
}

/// Splits off a message's first field. Returns its content, if it may be a submessage, and the rest of the message.
fn field(message: &[u8]) -> Option<(&[u8], &[u8])> {
    const NOTHING: &[u8] = &[];
    let (tag, rest) = varint(message)?;
    match tag & 7 {
        0 => varint(rest).map(|(_, rest)| (NOTHING, rest)),
        1 => rest.get(8..).map(|rest| (NOTHING, rest)),
        2 => {
            let (length, rest) = varint(rest)?;
            rest.split_at_checked(usize::try_from(length).ok()?)
        }
        // The start and end tags of groups have no content.
        3 | 4 => Some((NOTHING, rest)),
        5 => rest.get(4..).map(|rest| (NOTHING, rest)),
        _ => None,
    }
}

fn varint(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let mut value = 0;
    for (index, byte) in bytes.iter().enumerate().take(10) {
        value |= u64::from(byte & 0x7f) << (7 * index);
        if byte & 0x80 == 0 {
            return Some((value, &bytes[index + 1..]));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::columns::streamed_request::Request;
    use crate::columns::{Mutation, StreamedRequest, TransactionWrite, WriteRequest};
    use crate::log::StreamedAppend;

    fn fields(message: &[u8]) -> usize {
        (0..).find(|most| !has_more_fields(message, *most, 0)).expect("a message has an end")
    }

    fn batch_of(requests: Vec<StreamedRequest>) -> Option<String> {
        Bounds::of::<StreamRequest>().refuse(&StreamRequest { requests }.encode_to_vec(), true)
    }

    fn appends_of(appends: usize, records: usize) -> Option<String> {
        let append = AppendRequest { log: "l".into(), records: vec!["".into(); records], ..AppendRequest::default() };
        let appends = vec![StreamedAppend { number: 1, deadline_ms: 1, append: Some(append) }; appends];
        Bounds::of::<AppendStreamRequest>().refuse(&AppendStreamRequest { appends }.encode_to_vec(), true)
    }

    fn write_of(mutations: usize) -> StreamedRequest {
        let write = WriteRequest { mutations: vec![Mutation::default(); mutations], ..WriteRequest::default() };
        StreamedRequest { number: 1, deadline_ms: 1, request: Some(Request::Write(write)) }
    }

    #[test]
    fn batch_counts_nested_requests() {
        assert_eq!(batch_of(vec![write_of(10); 1_024]), None);
        assert!(batch_of(vec![StreamedRequest::default(); 1_025]).expect("refused").contains("1024 requests"));
        assert!(batch_of(vec![write_of(13); 1_024]).expect("refused").contains("16384 fields"));
        assert!(batch_of(vec![write_of(20_000)]).expect("refused").contains("16384 fields"));
    }

    #[test]
    fn counts_records_across_appends() {
        let records = |count| AppendRequest { records: vec!["".into(); count], ..AppendRequest::default() };
        let refused = |count| Bounds::of::<AppendRequest>().refuse(&records(count).encode_to_vec(), true);
        assert_eq!(refused(APPEND_RECORDS_MAX), None);
        assert!(refused(APPEND_RECORDS_MAX + APPEND_FIELDS_BESIDE + 1).expect("refused").contains("65552 fields"));
        assert_eq!(appends_of(1, APPEND_RECORDS_MAX), None);
        assert_eq!(appends_of(1_024, 64), None);
        assert!(appends_of(1_024, 128).expect("refused").contains("81920 fields"));
        assert!(appends_of(1_025, 1).expect("refused").contains("1024 requests"));
    }

    #[test]
    fn commit_counts_rows_and_their_columns() {
        let refused = |rows: usize, columns: usize| {
            let row = TransactionWrite { mutations: vec![Mutation::default(); columns], ..TransactionWrite::default() };
            let request = CommitTransactionRequest { writes: vec![row; rows], ..CommitTransactionRequest::default() };
            Bounds::of::<CommitTransactionRequest>().refuse(&request.encode_to_vec(), true)
        };
        assert_eq!(refused(10_000, 20), None);
        assert!(refused(20_100, 0).expect("refused").contains("10,000 rows"));
        assert!(refused(10_000, 26).expect("refused").contains("262144 fields"));
    }

    #[test]
    fn counts_decoded_fields() {
        let mutation = Mutation { column: "c".into(), value: Some(vec![0; 300].into()), condition: Some(-1) };
        let mutations = vec![mutation; 7];
        let request = WriteRequest { table: "t".into(), key: "k".into(), mutations, stamp: None };
        assert_eq!(fields(&request.encode_to_vec()), 9);
    }

    #[test]
    fn counts_empty_submessages() {
        let request = WriteRequest { mutations: vec![Mutation::default(); 5_000], ..WriteRequest::default() };
        let encoded = request.encode_to_vec();
        assert_eq!(encoded.len(), 10_000);
        assert!(has_more_fields(&encoded, REQUEST_FIELDS_MAX, 0));
    }

    #[test]
    fn field_count_of_garbage_terminates() {
        for garbage in [&[0xff; 64][..], &[0x0a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f], &[7], &[]] {
            assert_eq!(fields(garbage), 0);
        }
        assert_eq!(fields(&[0x08, 0x01, 0x0d, 1, 2, 3, 4, 0x09, 1, 2, 3, 4, 5, 6, 7, 8, 0x08]), 3);
    }
}
