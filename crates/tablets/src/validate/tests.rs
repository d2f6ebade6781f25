use super::*;
use crate::testing::bytes;

/// A tablet itself rejects reversed ends, independent of the validation at the endpoint.
#[test]
fn rejects_reversed_scan_bounds() {
    let scan = Scan { from: bytes("b"), to: Some(bytes("a")), ..Scan::default() };
    let state = crate::testing::fresh(base::CohortId(2));
    let view = state.view_now();
    assert!(matches!(view.scan(&scan, store::sstable::Io::Allowed), Ok(Err(Failure::Invalid(_)))));
}
