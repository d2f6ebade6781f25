//! The codec of the servers: protobuf, but a request can't take much more memory than it has bytes.
//!
//! An empty submessage takes two bytes on the wire and dozens in memory, so that twelve megabytes of them would become
//! half a gigabyte. A request's fields are counted before it is decoded, and none that keeps the limits has so many.

use std::marker::PhantomData;

use prost::Message;
use prost::bytes::Buf;
use tonic::codec::{BufferSettings, Codec, DecodeBuf, Decoder};
use tonic::{Code, Status};
use tonic_prost::{ProstCodec, ProstEncoder};

use crate::columns::{Error, error::Kind};
use crate::details;

/// Fields of a request, those in submessages not counted: twice what the largest write needs, which has a field for
/// each column. A write between is refused by name.
pub const REQUEST_FIELDS_MAX: usize = 2_048;

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
        if buffer.chunk().len() < buffer.remaining() || has_more_fields(buffer.chunk(), REQUEST_FIELDS_MAX) {
            let message = format!("the request has more than {REQUEST_FIELDS_MAX} fields");
            let error = Error { kind: Kind::Invalid.into(), ..Error::default() };
            return Err(details::status(Code::InvalidArgument, message, &error));
        }
        self.0.decode(buffer)
    }
}

/// Whether a message has more than `most` fields before its end, or before it stops to be one: then the decoder says
/// so.
fn has_more_fields(mut message: &[u8], most: usize) -> bool {
    let mut count = 0;
    while let Some(rest) = after_field(message) {
        message = rest;
        count += 1;
        if count > most {
            return true;
        }
    }
    false
}

/// What follows a message's first field.
fn after_field(message: &[u8]) -> Option<&[u8]> {
    let (tag, rest) = varint(message)?;
    match tag & 7 {
        0 => varint(rest).map(|(_, rest)| rest),
        1 => rest.get(8..),
        2 => {
            let (length, rest) = varint(rest)?;
            rest.get(usize::try_from(length).ok()?..)
        }
        // The beginnings and ends of groups have nothing of their own.
        3 | 4 => Some(rest),
        5 => rest.get(4..),
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
    use crate::columns::{Mutation, WriteRequest};

    fn fields(message: &[u8]) -> usize {
        (0..).find(|most| !has_more_fields(message, *most)).expect("a message has an end")
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
        assert!(has_more_fields(&encoded, REQUEST_FIELDS_MAX));
    }

    #[test]
    fn bytes_that_are_no_message_have_an_end() {
        for garbage in [&[0xff; 64][..], &[0x0a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f], &[7], &[]] {
            assert_eq!(fields(garbage), 0);
        }
        assert_eq!(fields(&[0x08, 0x01, 0x0d, 1, 2, 3, 4, 0x09, 1, 2, 3, 4, 5, 6, 7, 8, 0x08]), 3);
    }
}
