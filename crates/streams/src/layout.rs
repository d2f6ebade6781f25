//! How the bytes of a disk are divided into stripes and blocks.
//!
//! A disk has 1 to [`STRIPES_MAX`] stripes. Consecutive *units* of [`UNIT_BYTES`] are assigned to the stripes in turn,
//! and the units of a stripe are adjacent in its own address space. A stripe is a range of the disk's table: its key is
//! the number of the stripe, two bytes, big-endian. The number of stripes and the unit never change. A disk grows at its
//! end, so the address of a byte in its stripe never changes either.
//!
//! *The unit* is 256 KiB. A request that spans two units needs an entry in two logs, so the unit should exceed most
//! random requests (4 to 128 KiB). A sequential read or write of 1 MiB should still involve all stripes of a small
//! disk, so the unit should not be larger.

use base::KeyRange;
use base::limits::{DISK_BLOCK_BYTES, DISK_BYTES_MAX, DISK_STRIPES_MAX};
use bytes::Bytes;

/// Bytes of a block: the unit of allocation and of atomic writes.
pub const BLOCK_BYTES: u64 = DISK_BLOCK_BYTES;
/// Bytes of a unit, the adjacent bytes of a disk that are in one stripe.
pub const UNIT_BYTES: u64 = 256 << 10;
/// Maximum stripes of a disk.
pub const STRIPES_MAX: u16 = DISK_STRIPES_MAX;
/// The number of blocks above which a stripe has none.
pub const STRIPE_BLOCKS_MAX: u64 = DISK_BYTES_MAX / BLOCK_BYTES;

/// A stripe of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StripeId(pub u16);

impl StripeId {
    /// Its key in the disk's table.
    #[must_use]
    pub fn key(self) -> Bytes {
        Bytes::copy_from_slice(&self.0.to_be_bytes())
    }

    /// The stripe with this range. That of the first one begins with the empty key.
    pub(crate) fn of_range(range: &KeyRange) -> Option<Self> {
        match &range.start[..] {
            [] => Some(Self(0)),
            [high, low] => Some(Self(u16::from_be_bytes([*high, *low]))),
            _ => None,
        }
    }

    /// Its range of the disk's table: the key, and all keys that begin with it.
    #[must_use]
    pub fn range(self) -> KeyRange {
        let end = self.0.checked_add(1).map(|next| Self(next).key());
        KeyRange { start: self.key(), end }
    }
}

/// The division of a disk into stripes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    stripes: u16,
}

/// Adjacent bytes of a disk within one stripe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fragment {
    pub stripe: StripeId,
    /// The first byte in the address space of the stripe.
    pub local: u64,
    /// The first byte on the disk.
    pub offset: u64,
    /// The number of bytes, at most [`UNIT_BYTES`], or the whole length on a disk with one stripe.
    pub length: u64,
}

impl Layout {
    /// The layout of a disk with that many stripes; none if there may not be so many.
    #[must_use]
    pub fn new(stripes: u16) -> Option<Self> {
        (1..=STRIPES_MAX).contains(&stripes).then_some(Self { stripes })
    }

    /// The number of stripes of a new disk if the user names none: one below 1 GiB, four below 1 TiB, and eight for
    /// larger ones.
    #[must_use]
    pub fn default_stripes(size: u64) -> u16 {
        match size {
            0..0x4000_0000 => 1,
            0x4000_0000..0x100_0000_0000 => 4,
            _ => 8,
        }
    }

    /// The number of stripes.
    #[must_use]
    pub fn stripes(&self) -> u16 {
        self.stripes
    }

    /// The keys at which the disk's table is divided when it is created: those of all stripes but the first.
    #[must_use]
    pub fn split_keys(&self) -> Vec<Bytes> {
        (1..self.stripes).map(|stripe| StripeId(stripe).key()).collect()
    }

    /// The stripe and the local address of a byte.
    #[must_use]
    pub fn locate(&self, offset: u64) -> (StripeId, u64) {
        let (unit, within) = (offset / UNIT_BYTES, offset % UNIT_BYTES);
        let stripes = u64::from(self.stripes);
        (StripeId((unit % stripes) as u16), unit / stripes * UNIT_BYTES + within)
    }

    /// The byte of the disk at a local address of a stripe: the inverse of [`Layout::locate`].
    #[must_use]
    pub fn offset(&self, stripe: StripeId, local: u64) -> u64 {
        (local / UNIT_BYTES * u64::from(self.stripes) + u64::from(stripe.0)) * UNIT_BYTES + local % UNIT_BYTES
    }

    /// The parts of `offset..offset + length` in the order of the disk, each within one stripe and adjacent there. On a
    /// disk with several stripes, a part ends with its unit.
    pub fn fragments(&self, offset: u64, length: u64) -> impl Iterator<Item = Fragment> + use<> {
        let layout = *self;
        let end = offset.saturating_add(length);
        let mut at = offset;
        std::iter::from_fn(move || {
            if at >= end {
                return None;
            }
            let (stripe, local) = layout.locate(at);
            let unit_end = (at / UNIT_BYTES + 1).saturating_mul(UNIT_BYTES);
            let next = if layout.stripes == 1 { end } else { unit_end.min(end) };
            let fragment = Fragment { stripe, local, offset: at, length: next - at };
            at = next;
            Some(fragment)
        })
    }

    /// The part of `offset..offset + length` in one stripe, as local addresses `start..end`: they are adjacent. Empty if
    /// there is none.
    #[must_use]
    pub fn local(&self, stripe: StripeId, offset: u64, length: u64) -> (u64, u64) {
        (self.bytes_below(stripe, offset), self.bytes_below(stripe, offset.saturating_add(length)))
    }

    /// The bytes of a stripe among the first `offset` bytes of the disk.
    fn bytes_below(&self, stripe: StripeId, offset: u64) -> u64 {
        let stripes = u64::from(self.stripes);
        let (round, within) = (offset / (UNIT_BYTES * stripes), offset % (UNIT_BYTES * stripes));
        round * UNIT_BYTES + within.saturating_sub(u64::from(stripe.0) * UNIT_BYTES).min(UNIT_BYTES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_has_one_place() {
        for stripes in 1..=STRIPES_MAX {
            let layout = Layout::new(stripes).expect("a valid number");
            let places: std::collections::BTreeSet<_> =
                (0..200).map(|step| layout.locate(step * UNIT_BYTES / 2)).collect();
            assert_eq!(places.len(), 200);
        }
        assert_eq!((Layout::new(0), Layout::new(17)), (None, None));
    }

    #[test]
    fn fragments_cover_a_request_in_order() {
        for (stripes, offset, length) in
            [(1, 5, 9 << 20), (2, UNIT_BYTES - 1, 2), (3, 7, 5 * UNIT_BYTES), (4, 0, 1), (16, UNIT_BYTES * 15, 8 << 20)]
        {
            let layout = Layout::new(stripes).expect("a valid number");
            let mut at = offset;
            for fragment in layout.fragments(offset, length) {
                assert_eq!((fragment.stripe, fragment.local), layout.locate(at));
                assert_eq!(layout.offset(fragment.stripe, fragment.local), at);
                assert_eq!(fragment.offset, at);
                let last = layout.locate(at + fragment.length - 1);
                assert_eq!(last, (fragment.stripe, fragment.local + fragment.length - 1), "adjacent in its stripe");
                at += fragment.length;
            }
            assert_eq!(at, offset + length);
            let of_stripes: u64 = (0..stripes)
                .map(StripeId)
                .map(|stripe| {
                    let (start, end) = layout.local(stripe, offset, length);
                    let fragments = layout.fragments(offset, length).filter(|fragment| fragment.stripe == stripe);
                    let fragments: Vec<_> = fragments.collect();
                    let lengths: u64 = fragments.iter().map(|fragment| fragment.length).sum();
                    assert_eq!(end - start, lengths);
                    assert!(fragments.first().is_none_or(|first| first.local == start));
                    lengths
                })
                .sum();
            assert_eq!(of_stripes, length);
        }
        assert_eq!(Layout { stripes: 4 }.fragments(9, 0).count(), 0);
    }

    #[test]
    fn stripes_are_ranges_of_the_table() {
        let layout = Layout::new(3).expect("a valid number");
        assert_eq!(layout.split_keys(), [Bytes::from_static(&[0, 1]), Bytes::from_static(&[0, 2])]);
        let range = StripeId(1).range();
        assert!(range.contains(&StripeId(1).key()) && !range.contains(&StripeId(2).key()));
        assert!(range.contains(&[0, 1, 255]) && !range.contains(&[0, 0, 255]));
        assert_eq!([1 << 20, 20 << 30, 2 << 40].map(Layout::default_stripes), [1, 4, 8]);
    }
}
