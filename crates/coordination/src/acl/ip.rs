//! The scheme `ip`: an address, or a range of addresses as `address/bits`.

use core::net::IpAddr;

/// Whether the range is valid in an ACL.
pub(super) fn is_valid(range: &str) -> bool {
    parse(range).is_some()
}

/// Whether the address `id` lies in `range`.
pub(super) fn matches(id: &str, range: &str) -> bool {
    let (Some((range, bits)), Ok(address)) = (parse(range), id.parse()) else { return false };
    match (range, address) {
        (IpAddr::V4(range), IpAddr::V4(address)) => {
            same_prefix(u128::from(range.to_bits()), u128::from(address.to_bits()), 32 - bits)
        }
        (IpAddr::V6(range), IpAddr::V6(address)) => same_prefix(range.to_bits(), address.to_bits(), 128 - bits),
        _ => false,
    }
}

fn same_prefix(one: u128, other: u128, low_bits: u32) -> bool {
    (one ^ other).checked_shr(low_bits).unwrap_or(0) == 0
}

/// The address, and the length of the prefix to compare.
fn parse(range: &str) -> Option<(IpAddr, u32)> {
    let (address, bits) = range.split_once('/').map_or((range, None), |(address, bits)| (address, Some(bits)));
    let address: IpAddr = address.parse().ok()?;
    let all = if address.is_ipv4() { 32 } else { 128 };
    let bits = bits.map_or(Some(all), |bits| bits.parse().ok())?;
    (bits <= all).then_some((address, bits))
}
