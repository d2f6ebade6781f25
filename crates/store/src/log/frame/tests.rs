//! Tests that any changed byte of a batch is detected, and that no input makes the parser panic.

use super::*;
use crate::AlignedBuffer;
use crate::testing::{entry, identity, truncation};
use base::SplitMix64;

fn place() -> BatchLocation {
    BatchLocation { owner: identity().owner(), position: LogPosition(3 * 65_536 + 4096), segment: 3 }
}

fn batch() -> (BatchIdentity, AlignedBuffer, Vec<Record>) {
    let records = vec![entry(1, 1, b"payload"), truncation(2, 9)];
    let previous = BatchIdentity { position: LogPosition(1), length: 2, checksum: 3 };
    let mut out = Writer::new();
    let identity = encode(&place(), &previous, records.iter(), &mut out);
    let bytes = AlignedBuffer::zeroed(0).refilled(out.as_slice(), padded(out.len()));
    (identity, bytes, records)
}

#[test]
fn batch_round_trip_checks_place() {
    let (identity, bytes, records) = batch();
    assert!(bytes.as_ptr().addr() % BLOCK_BYTES == 0 && bytes.len() == BLOCK_BYTES);
    let frame = parse(&bytes, &place()).unwrap();
    assert_eq!((frame.identity, frame.previous.length, frame.records().unwrap()), (identity, 2, records));
    assert!(!frame.is_echo());
    assert!(parse(&bytes, &BatchLocation { segment: 4, ..place() }).is_none(), "stale frame");
    assert!(parse(&bytes, &BatchLocation { position: LogPosition(0), ..place() }).is_none(), "misdirected frame");
    let owner = Owner { incarnation: base::Incarnation(9), ..place().owner };
    assert!(parse(&bytes, &BatchLocation { owner, ..place() }).is_none(), "foreign frame");
}

#[test]
fn frame_detects_every_bit_flip() {
    let (identity, bytes, _) = batch();
    for bit in 0..identity.length as usize * 8 {
        let mut damaged = bytes.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        assert!(parse(&damaged, &place()).is_none(), "bit {bit}");
    }
}

#[test]
fn record_size_bounds_encoding() {
    for record in [entry(1, 1, b""), entry(1, u64::MAX, &[1; 300]), truncation(1, 1)] {
        let mut out = Writer::new();
        record.encode(&mut out);
        assert!(out.len() <= record.size());
    }
}

#[test]
fn fuzz_frame_parser() {
    let (_, bytes, _) = batch();
    let mut random = SplitMix64::new(2);
    for _ in 0..50_000 {
        let mut random_bytes = bytes[..random.below(256) as usize].to_vec();
        for _ in 0..random.below(6) {
            if let Some(byte) = random_bytes.get_mut(random.below(200) as usize) {
                *byte = random.draw() as u8;
            }
        }
        if let Some(frame) = parse(&random_bytes, &place()) {
            frame.records().unwrap();
        }
        let payload = Bytes::from(random_bytes);
        let _ =
            Frame { identity: BatchIdentity::default(), previous: BatchIdentity::default(), count: u32::MAX, payload }
                .records();
    }
}
