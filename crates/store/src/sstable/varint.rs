//! Variable-length integers: seven bits per byte, lowest first, with the top bit set on all but the last byte.

const BYTES_MAX: u32 = 10;

#[inline]
pub(super) fn put(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Reads the number at `at` and advances past it. `None` if the bytes end early or it exceeds 64 bits.
///
/// Every entry starts with four of them, nearly all of one byte: without inlining, the calls take a tenth of the time of
/// a read.
#[inline(always)]
pub(super) fn take(bytes: &[u8], at: &mut usize) -> Option<u64> {
    let first = *bytes.get(*at)?;
    *at += 1;
    if first < 0x80 { Some(u64::from(first)) } else { take_rest(bytes, at, first) }
}

#[inline(never)]
fn take_rest(bytes: &[u8], at: &mut usize, first: u8) -> Option<u64> {
    let mut number = u64::from(first & 0x7f);
    for place in 1..BYTES_MAX {
        let byte = *bytes.get(*at)?;
        *at += 1;
        if place == BYTES_MAX - 1 && byte > 1 {
            return None;
        }
        number |= u64::from(byte & 0x7f) << (7 * place);
        if byte < 0x80 {
            return Some(number);
        }
    }
    None
}

/// The difference between two numbers as a number that is small if they are close, in either direction (zigzag
/// encoding).
#[inline]
pub(super) fn difference(from: u64, to: u64) -> u64 {
    let difference = to.wrapping_sub(from) as i64;
    ((difference << 1) ^ (difference >> 63)) as u64
}

/// The inverse of [`difference`].
#[inline]
pub(super) fn apply(from: u64, difference: u64) -> u64 {
    from.wrapping_add((difference >> 1) ^ (difference & 1).wrapping_neg())
}

#[cfg(test)]
mod tests {
    use super::*;

    const NUMBERS: [u64; 9] = [0, 1, 127, 128, 300, u64::MAX / 2, u64::MAX / 2 + 1, u64::MAX - 1, u64::MAX];

    #[test]
    fn varint_and_delta_round_trip() {
        for from in NUMBERS {
            for to in NUMBERS {
                let mut bytes = Vec::new();
                put(&mut bytes, difference(from, to));
                let mut at = 0;
                assert_eq!(take(&bytes, &mut at).map(|difference| apply(from, difference)), Some(to));
                assert_eq!(at, bytes.len());
                assert_eq!(take(&bytes[..at - 1], &mut 0), None, "its end is missing");
            }
        }
        assert_eq!(difference(1000, 999), 1);
    }

    #[test]
    fn rejects_varint_above_64_bits() {
        assert_eq!(take(&[0xff; 20], &mut 0), None);
        assert_eq!(take(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2], &mut 0), None);
    }
}
