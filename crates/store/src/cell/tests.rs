//! Tests that keys sort like rows and columns, and can be decoded.

use base::SplitMix64;

use super::*;

fn random_bytes(random: &mut SplitMix64) -> Vec<u8> {
    (0..random.below(5)).map(|_| b"\0\x01\x02a\xfe\xff"[random.below(6) as usize]).collect()
}

#[test]
fn key_encoding_keeps_order_and_round_trips() {
    let mut random = SplitMix64::new(1);
    let mut cells: Vec<_> = (0..2_000).map(|_| (random_bytes(&mut random), random_bytes(&mut random))).collect();
    cells.sort();
    cells.dedup();
    let keys: Vec<_> = cells.iter().map(|(row, column)| encode(row, column)).collect();
    assert!(keys.is_sorted_by(|left, right| left < right));
    for ((row, column), key) in cells.iter().zip(&keys) {
        assert_eq!(decode(key), Ok((Cow::Borrowed(&row[..]), &column[..])));
        assert_eq!(row_prefix_bytes(key), encode(row, b"").len());
    }
}

#[test]
fn head_order_matches_key_order() {
    let mut random = SplitMix64::new(3);
    let mut bytes =
        |most| (0..random.below(most)).map(|_| b"\0\x01\x02\xff"[random.below(4) as usize]).collect::<Vec<_>>();
    // A search key need not be a complete cell key.
    let mut keys: Vec<_> = (0..5_000).flat_map(|_| [encode(&bytes(12), &bytes(3)), bytes(20)]).collect();
    keys.sort();
    assert!(keys.is_sorted_by_key(|key| row_head(key)));
    let heads = [1, 255, 256, 1 << 24, u64::MAX].map(|position: u64| row_head(&encode(&position.to_be_bytes(), b"c")));
    assert_eq!(heads, [1, 255, 256, 1 << 24, u64::MAX]);
}

#[test]
fn range_membership() {
    let mut random = SplitMix64::new(2);
    for _ in 0..20_000 {
        let [row, column, from, to] = [(); 4].map(|()| random_bytes(&mut random));
        let key = encode(&row, &column);
        let holds = |range: &Range| range.start <= key && range.ends_after(&key);
        assert!(holds(&Range::all()));
        assert_eq!(holds(&Range::row(&from)), row == from);
        assert_eq!(holds(&Range::rows(&from, Some(&to))), from <= row && row < to);
        assert_eq!(holds(&Range::rows(&from, None)), from <= row);
        assert_eq!(holds(&Range::rows_with_prefix(&from)), row.starts_with(&from), "{row:?} {from:?}");
        if let Some(prefix) = Range::rows(&from, Some(&to)).single_row() {
            assert_eq!(prefix, encode(&from, b""));
            assert!(!(from <= row && row < to) || row == from);
        }
        let next = [&row[..], &[0]].concat();
        let beyond = [&next[..], &[0]].concat();
        assert_eq!(Range::rows(&row, Some(&next)).single_row(), Some(&encode(&row, b"")[..]), "{row:?}");
        assert_eq!(Range::rows(&row, Some(&beyond)).single_row(), None, "{row:?}");
        assert_eq!(Range::row(&row).single_row(), Some(&encode(&row, b"")[..]));
        assert_eq!(Range::row(&row).after(&row, &column).single_row(), None, "without the row's tombstones");
        let of_row = Range::row(&row);
        assert_eq!(holds(&of_row.after(&row, &from)), column > from);
        assert_eq!(holds(&of_row.before(&row, &from)), column < from);
        assert!(!holds(&Range::row(&from).before(&row, b"")) && !holds(&Range::rows(&to, None).before(&row, &column)));
    }
}

#[test]
fn rejects_invalid_keys() {
    for bytes in [&b""[..], b"row", b"row\0", b"row\0\x02", b"\0\xff", b"\0\xff\0"] {
        assert_eq!(decode(bytes), Err(NotACell));
        assert_eq!(row_prefix_bytes(bytes), bytes.len());
    }
    let longest = encode(&[0; KEY_BYTES_MAX], &[b'c'; COLUMN_BYTES_MAX]);
    assert_eq!(longest.len(), BYTES_MAX);
}
