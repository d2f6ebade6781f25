//! The division of a transaction by range.

use std::collections::BTreeMap;

use base::CohortId;
use state_machine::failure::precondition;
use state_machine::range_map::{RangeMap, TableRanges as _};
use state_machine::{Failure, KeyPosition, LockKeys};

use crate::transaction::{ReadSpan, TransactionPart, TransactionRequest};

/// A transaction by range.
type Parts = BTreeMap<CohortId, TransactionPart>;

/// Maximum reads of several keys of one transaction, counted in each range.
const SPANS_MAX: usize = 20_000;

/// Divides a transaction by range, according to the map. Returns the coordinator's cohort and the parts.
///
/// # Errors
/// A table does not exist, or takes no part in transactions.
pub(super) fn divide<M: RangeMap>(map: &M, request: &TransactionRequest) -> Result<(CohortId, Parts), Failure> {
    let find = |name: &str| {
        let table = map.table(name).ok_or_else(|| Failure::UnknownTable(name.to_owned()))?;
        if !table.takes_part() {
            return Err(precondition(format!("table {name} takes no part in transactions")));
        }
        Ok(table)
    };
    let mut spans = 0_usize;
    let coordinator = find(&request.table)?.cohort_at(&KeyPosition::At(request.key.clone()));
    let mut parts = Parts::new();
    for (name, part) in &request.parts {
        let table = find(name)?;
        // The rows that were read are gone.
        if part.reads.iter().any(|read| read.seen < table.created()) {
            return Err(Failure::Aborted(format!("table {name} was created after the transaction has read it")));
        }
        for change in &part.writes {
            let cohort = table.cohort_at(&KeyPosition::At(change.key.clone()));
            parts.entry(cohort).or_default().writes.push(change.clone());
        }
        for ReadSpan { range, seen } in &part.reads {
            if let LockKeys::Key(key) = LockKeys::of(range) {
                let cohort = table.cohort_at(&KeyPosition::At(key));
                parts.entry(cohort).or_default().reads.push(ReadSpan { range: range.clone(), seen: *seen });
                continue;
            }
            for (own, cohort) in table.cohorts() {
                if let Some(range) = own.intersection(range) {
                    spans += 1;
                    if spans > SPANS_MAX {
                        let what =
                            "the transaction has read too many keys in too many ranges: read them at once, or less";
                        return Err(Failure::Invalid(what.to_owned()));
                    }
                    parts.entry(cohort).or_default().reads.push(ReadSpan { range, seen: *seen });
                }
            }
        }
    }
    Ok((coordinator, parts))
}
