use base::SplitMix64;

use super::*;
use crate::jute::op;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn batch() -> Batch {
    let stamp = Stamp { session: SessionId(0x0100_0000_0000_0001), epoch: MoveEpoch(2), sequence: 3 };
    Batch {
        server: ServerId(4),
        number: 5,
        time_ms: 6,
        identities: vec![vec![Id::new("ip", "::1")]],
        items: vec![
            Item::Open { timeout_ms: 10_000, password: [7; 16] },
            Item::Move { session: SessionId(8), password: [9; 16], timeout_ms: 10 },
            Item::Request { stamp, identities: 0, op: op::CLOSE_SESSION, body: Bytes::from_static(b"ab") },
            Item::Touch { session: SessionId(11), epoch: MoveEpoch(12) },
            Item::Expire { session: SessionId(13), last_touch: Position(14) },
            Item::Collect { path: "/c".into(), mzxid: 15, pzxid: 16 },
            Item::SnapshotKept { next: Position(17) },
        ],
    }
}

#[test]
fn entry_encoding_is_stable() {
    let join = Entry::Join { nonce: 0x0102 };
    assert_eq!(hex(&join.encode()), "0101 02010000000000000000000000000000".replace(' ', ""));
    let expected = "0102 0400000000000000 0500000000000000 0600000000000000
        01000000 01000000 02000000 6970 03000000 3a3a31 07000000
        01 10270000 07070707070707070707070707070707
        02 0800000000000000 09090909090909090909090909090909 0a000000
        03 0100000000000001 02000000 0300000000000000 00000000 f5ffffff 02000000 6162
        04 0b00000000000000 0c000000
        05 0d00000000000000 0e00000000000000
        06 02000000 2f63 0f00000000000000 1000000000000000
        07 1100000000000000";
    let entry = Entry::Batch(Arc::new(batch()));
    assert_eq!(hex(&entry.encode()), expected.split_whitespace().collect::<String>());
    for entry in [join, entry] {
        assert_eq!(Entry::decode(entry.encode()), Ok(entry));
    }
}

#[test]
fn entry_sizes_are_upper_bounds() {
    let whole = batch();
    for item in &whole.items {
        let mut out = Writer::new();
        item.write(&mut out);
        assert!(out.finish().len() <= item.encoded_len(), "{item:?}");
    }
    let empty = Batch { identities: Vec::new(), items: Vec::new(), ..whole.clone() };
    let identities = Batch { items: Vec::new(), ..whole.clone() };
    assert_eq!(identities.encode().len(), empty.encode().len() + identities_len(&whole.identities[0]));
}

#[test]
fn fuzz_damaged_entries() {
    let whole = batch().encode();
    for length in 0..whole.len() {
        assert!(Entry::decode(whole.slice(..length)).is_err());
    }
    let mut random = SplitMix64::new(2);
    for _ in 0..20_000 {
        let mut bytes = whole.to_vec();
        bytes[random.below(whole.len() as u64) as usize] = random.draw() as u8;
        let _ = Entry::decode(bytes.into());
    }
    assert!(Entry::decode(Bytes::from_static(b"\x02\x01")).is_err());
}

#[test]
fn timestamps_are_milliseconds() {
    assert_eq!(Batch::time_of(Timestamp(1_999_999)), 1);
    assert_eq!(Batch::time_of(Timestamp(-1)), -1);
}
