//! The codec of the servers: protobuf, but a request can't take much more memory than it has bytes.
//!
//! An empty submessage takes two bytes on the wire and dozens in memory, so that twelve megabytes of them would become
//! half a gigabyte. A request's fields are counted before it is decoded, and none that keeps the limits has so many. A
//! batch of a stream is counted together with the requests in it.

use std::any::TypeId;
use std::marker::PhantomData;

use prost::Message;
use prost::bytes::Buf;
use tonic::codec::{BufferSettings, Codec, DecodeBuf, Decoder};
use tonic::{Code, Status};
use tonic_prost::{ProstCodec, ProstEncoder};

use crate::columns::{Error, StreamRequest, error::Kind};
use crate::details;

/// Fields of a request, those in submessages not counted: twice what the largest write needs, which has a field for
/// each column. A write between is refused by name.
pub const REQUEST_FIELDS_MAX: usize = 2_048;

/// Requests in one message of a stream. Each is some 200 bytes in memory beside its message.
pub const STREAM_BATCH_MAX: usize = 1_024;

/// Fields of one message of a stream, those of the requests in it counted, and those in their submessages not: a full
/// batch of puts has nine a request. None takes more than the 200 bytes of a request.
pub const STREAM_FIELDS_MAX: usize = 16 * STREAM_BATCH_MAX;

/// How far down fields of a message of a stream are counted: those of the batch, of its items, of the requests in them.
const STREAM_LEVELS: u32 = 2;

/// Encodes answers `T` and decodes requests `U`.
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

/// Decodes requests that don't have too many fields.
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
        // A message lies in one piece; of any other no field is seen here, and it is as good as too many.
        let is_whole = buffer.chunk().len() == buffer.remaining();
        let refused = if TypeId::of::<U>() == TypeId::of::<StreamRequest>() {
            refused_batch(buffer.chunk(), is_whole)
        } else {
            refused_request(buffer.chunk(), is_whole)
        };
        match refused {
            None => self.0.decode(buffer),
            Some(message) => {
                let error = Error { kind: Kind::Invalid.into(), ..Error::default() };
                Err(details::status(Code::InvalidArgument, message, &error))
            }
        }
    }
}

fn refused_request(message: &[u8], is_whole: bool) -> Option<String> {
    let has_too_many = !is_whole || has_more_fields(message, REQUEST_FIELDS_MAX, 0);
    has_too_many.then(|| format!("the request has more than {REQUEST_FIELDS_MAX} fields"))
}

fn refused_batch(message: &[u8], is_whole: bool) -> Option<String> {
    if !is_whole || has_more_fields(message, STREAM_BATCH_MAX, 0) {
        return Some(format!("a message of the stream has more than {STREAM_BATCH_MAX} requests"));
    }
    let has_too_many = has_more_fields(message, STREAM_FIELDS_MAX, STREAM_LEVELS);
    has_too_many.then(|| format!("the requests in a message of the stream have more than {STREAM_FIELDS_MAX} fields"))
}

/// Whether a message has more than `most` fields before its end, or before it stops to be one: then the decoder says
/// so. Fields in submessages count so many levels down.
fn has_more_fields(message: &[u8], most: usize, levels: u32) -> bool {
    let mut left = most;
    !count_down(message, levels, &mut left)
}

/// Takes the fields from what is left; false if there are more.
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

/// What a message's first field holds, if it can be a submessage, and what follows it.
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
        // The beginnings and ends of groups have nothing of their own.
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
    use crate::columns::{Mutation, StreamedRequest, WriteRequest};

    fn fields(message: &[u8]) -> usize {
        (0..).find(|most| !has_more_fields(message, *most, 0)).expect("a message has an end")
    }

    fn batch_of(requests: Vec<StreamedRequest>) -> Option<String> {
        refused_batch(&StreamRequest { requests }.encode_to_vec(), true)
    }

    fn write_of(mutations: usize) -> StreamedRequest {
        let write = WriteRequest { mutations: vec![Mutation::default(); mutations], ..WriteRequest::default() };
        StreamedRequest { number: 1, deadline_ms: 1, request: Some(Request::Write(write)) }
    }

    #[test]
    fn a_batch_is_counted_with_the_requests_in_it() {
        assert_eq!(batch_of(vec![write_of(10); 1_024]), None);
        assert!(batch_of(vec![StreamedRequest::default(); 1_025]).expect("refused").contains("1024 requests"));
        assert!(batch_of(vec![write_of(13); 1_024]).expect("refused").contains("16384 fields"));
        assert!(batch_of(vec![write_of(20_000)]).expect("refused").contains("16384 fields"));
    }

    #[test]
    fn fields_are_counted_as_they_are_decoded() {
        let mutation = Mutation { column: "c".into(), value: Some(vec![0; 300].into()), condition: Some(-1) };
        let mutations = vec![mutation; 7];
        let request = WriteRequest { table: "t".into(), key: "k".into(), mutations, stamp: None };
        assert_eq!(fields(&request.encode_to_vec()), 9);
    }

    #[test]
    fn empty_submessages_count_in_full() {
        let request = WriteRequest { mutations: vec![Mutation::default(); 5_000], ..WriteRequest::default() };
        let encoded = request.encode_to_vec();
        assert_eq!(encoded.len(), 10_000);
        assert!(has_more_fields(&encoded, REQUEST_FIELDS_MAX, 0));
    }

    #[test]
    fn bytes_that_are_no_message_have_an_end() {
        for garbage in [&[0xff; 64][..], &[0x0a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f], &[7], &[]] {
            assert_eq!(fields(garbage), 0);
        }
        assert_eq!(fields(&[0x08, 0x01, 0x0d, 1, 2, 3, 4, 0x09, 1, 2, 3, 4, 5, 6, 7, 8, 0x08]), 3);
    }
}
