use base::{CohortId, Membership};
use bytes::Bytes;

use super::response::{DATED, LOG, PLAN_DONE};
use super::*;

/// The catalog begins a split, or refuses it, according to the properties alone.
#[test]
fn kind_properties_match_split_support() {
    for kind in KINDS {
        let request = split_request(*kind, Bytes::from_static(b"m"), CohortId(9), Membership::default());
        assert_eq!(request.is_some(), kind.properties().can_split, "{kind:?}");
    }
}

#[test]
fn kind_numbers_are_unique_and_no_response_tags() {
    assert!(KINDS.is_sorted_by(|one, next| one < next), "{KINDS:?}");
    assert!(KINDS.iter().all(|kind| ![PLAN_DONE, LOG, DATED].contains(&kind.0)));
}
