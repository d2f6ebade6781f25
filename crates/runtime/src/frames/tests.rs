use std::io::{PipeReader, Write as _};

use base::SplitMix64;
use base::codec::Wire as _;
use rustix::buffer::spare_capacity;

use super::*;

fn hello() -> Hello {
    Hello {
        version: PROTOCOL_VERSION,
        cluster: ClusterId(7),
        node: NodeId(1),
        incarnation: Incarnation(11),
        to: NodeId(2),
        starts: {
            let mut starts = StartHistory::default();
            (0..40).for_each(|nonce| starts.add(nonce));
            starts
        },
        address: "10.0.0.1:7101".to_owned(),
    }
}

fn read(buffer: &mut FrameBuffer, reader: &PipeReader) -> usize {
    buffer.read_by(|buffer| Ok(rustix::io::read(reader, spare_capacity(buffer))?)).unwrap()
}

/// Feeds `bytes` through a pipe, in pieces of `piece` bytes, as a socket would.
fn feed(bytes: &[u8], piece: usize, trusted: bool) -> Result<Vec<Bytes>, FrameError> {
    let (reader, mut writer) = std::io::pipe().unwrap();
    let mut buffer = FrameBuffer::default();
    if trusted {
        buffer.trust();
    }
    let mut frames = Vec::new();
    for piece in bytes.chunks(piece) {
        writer.write_all(piece).unwrap();
        read(&mut buffer, &reader);
        buffer.take_frames(&mut frames)?;
    }
    drop(writer);
    while read(&mut buffer, &reader) > 0 {
        buffer.take_frames(&mut frames)?;
    }
    Ok(frames)
}

#[test]
fn hello_and_refusal_round_trip() {
    let refusal = Refusal {
        kind: RefusalKind::NotMember,
        cluster: ClusterId(7),
        node: NodeId(2),
        incarnation: Incarnation(5),
        reason: "no".to_owned(),
    };
    let mut out = Writer::new();
    hello().encode(&mut out);
    refusal.encode(&mut out);
    for piece in [1, 7, 4096] {
        let frames = feed(out.as_slice(), piece, false).unwrap();
        let decoded: Vec<_> = frames.into_iter().map(|frame| Frame::decode(frame).unwrap()).collect();
        assert_eq!(decoded, [Frame::Hello(hello()), Frame::Refusal(refusal.clone())]);
    }
}

fn message(out: &mut Writer, body: &[u8]) {
    framed(out, MESSAGE, |out| {
        out.u16(SHARD);
        out.raw(body);
    });
}

#[test]
fn messages_of_other_shards_are_refused() {
    let mut out = Writer::new();
    framed(&mut out, MESSAGE, |out| out.u16(1));
    let frame = feed(out.as_slice(), 4_096, true).unwrap().remove(0);
    assert!(matches!(
        Frame::decode(frame),
        Err(FrameError::Malformed(DecodeError::UnknownTag { what: "shard", tag: 1 }))
    ));
}

#[test]
fn frame_order_across_sizes() {
    let mut out = Writer::new();
    let lengths = [10, 33_000, 20, 3_000_000, 0];
    for (fill, length) in lengths.into_iter().enumerate() {
        message(&mut out, &vec![u8::try_from(fill).unwrap(); length]);
    }
    let frames = feed(out.as_slice(), 5_000, true).unwrap();
    assert_eq!(frames.len(), lengths.len());
    for (fill, (frame, length)) in frames.into_iter().zip(lengths).enumerate() {
        let Frame::Message(body) = Frame::decode(frame).unwrap() else { panic!("a message was sent") };
        assert_eq!(body, vec![u8::try_from(fill).unwrap(); length]);
    }
}

/// A response is charged for its size, so it must not retain more memory: 64 KiB rows once took two to three times
/// that.
#[test]
fn large_frame_retains_no_extra_memory() {
    let mut out = Writer::new();
    let length = 40_000;
    for _ in 0..20 {
        message(&mut out, &vec![7; length]);
        message(&mut out, &vec![7; length / 2]);
    }
    for piece in [5_000, 40_000, 60_000] {
        for frame in feed(out.as_slice(), piece, true).unwrap() {
            // The buffer is not shared, so this is all of its memory.
            let (frame, kept) = (frame.len(), Vec::from(frame).capacity());
            assert_eq!(kept, frame);
        }
    }
}

#[test]
fn unverified_peer_frame_limit() {
    let header = [&u32::to_le_bytes(1 << 20)[..], &[0; 4]].concat();
    assert!(matches!(feed(&header, 8, false), Err(FrameError::TooLong { .. })));
    assert!(feed(&header, 8, true).is_ok(), "a member may");
}

#[test]
fn frame_checksum_detects_bit_flip() {
    let mut out = Writer::new();
    hello().encode(&mut out);
    for bit in HEADER_BYTES * 8..out.len() * 8 {
        let mut bytes = out.as_slice().to_vec();
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert!(matches!(feed(&bytes, 4096, false), Err(FrameError::Checksum { .. })));
    }
}

#[test]
fn fuzz_frame_decoder() {
    let mut random = SplitMix64::new(1);
    for _ in 0..20_000 {
        let length = usize::try_from(random.below(200)).unwrap();
        let mut bytes: Vec<u8> = (0..length).map(|_| random.draw().to_le_bytes()[0]).collect();
        let _ = feed(&bytes, 64, random.chance(500_000));
        // To reach decoding: a plausible payload of each type.
        if let Some(kind) = bytes.first_mut() {
            *kind %= 5;
        }
        if random.chance(500_000) && bytes.len() > 9 {
            bytes[1..9].copy_from_slice(&MAGIC.to_le_bytes());
        } else if bytes.len() > 3 {
            bytes[1..3].copy_from_slice(&SHARD.to_le_bytes());
        }
        if let Ok(Frame::Message(body)) = Frame::decode(Bytes::from(bytes)) {
            let _ = Message::from_bytes(body);
        }
    }
}
