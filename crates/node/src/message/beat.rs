//! Beats and their answers, as bytes.

use std::sync::Arc;

use base::codec::{DecodeError, Reader, Writer};
use base::{CohortId, Epoch, Monotonic};
use replication::Rest;

/// The least that an encoded cohort at rest takes: its number, an epoch and an LSN.
const REST_BYTES: usize = 28;

/// The number of a list: those of one process grow from 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ListId(pub u64);

/// Cohorts at rest, in the order of their numbers.
pub type List = Arc<[(CohortId, Rest)]>;

/// What the sender of a beat knew when it was answered the last time, of the same list (guarantee 15).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heard {
    /// The receiver's clock, as that answer showed it: all that was committed anywhere before is within the list's last
    /// LSNs.
    pub at: Monotonic,
    /// The cohorts of which that is not so, in order: the sender held no lease, or had committed more.
    pub except: Vec<CohortId>,
}

/// What became of a beat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Beaten {
    /// The receiver doesn't hold the list that it names.
    UnknownList,
    /// A lease vote for every cohort of the list, but for these.
    Vouched {
        /// The cohorts that are not as the list says.
        refused: Vec<CohortId>,
    },
}

impl Beaten {
    pub(super) fn encode(&self, out: &mut Writer) {
        match self {
            Self::UnknownList => out.u8(1),
            Self::Vouched { refused } => {
                out.u8(2);
                encode_cohorts(refused, out);
            }
        }
    }

    pub(super) fn decode(input: &mut Reader) -> Result<Self, DecodeError> {
        Ok(match input.u8()? {
            1 => Self::UnknownList,
            2 => Self::Vouched { refused: decode_cohorts(input)? },
            tag => return Err(DecodeError::UnknownTag { what: "answer to a beat", tag: u64::from(tag) }),
        })
    }
}

fn encode_cohorts(cohorts: &[CohortId], out: &mut Writer) {
    out.u32(u32::try_from(cohorts.len()).unwrap_or(u32::MAX));
    cohorts.iter().for_each(|cohort| out.u32(cohort.0));
}

fn decode_cohorts(input: &mut Reader) -> Result<Vec<CohortId>, DecodeError> {
    let count = input.count(4)?;
    (0..count).map(|_| Ok(CohortId(input.u32()?))).collect()
}

pub(super) fn encode_heard(heard: Option<&Heard>, out: &mut Writer) {
    out.bool(heard.is_some());
    if let Some(Heard { at, except }) = heard {
        out.u64(at.0);
        encode_cohorts(except, out);
    }
}

pub(super) fn decode_heard(input: &mut Reader) -> Result<Option<Heard>, DecodeError> {
    if !input.bool()? {
        return Ok(None);
    }
    Ok(Some(Heard { at: Monotonic(input.u64()?), except: decode_cohorts(input)? }))
}

pub(super) fn encode_list(list: Option<&List>, out: &mut Writer) {
    out.bool(list.is_some());
    let Some(list) = list else { return };
    out.u32(u32::try_from(list.len()).unwrap_or(u32::MAX));
    for (cohort, rest) in list.iter() {
        out.u32(cohort.0);
        out.u64(rest.epoch.0);
        out.lsn(rest.last);
    }
}

pub(super) fn decode_list(input: &mut Reader) -> Result<Option<List>, DecodeError> {
    if !input.bool()? {
        return Ok(None);
    }
    let count = input.count(REST_BYTES)?;
    let list = (0..count)
        .map(|_| Ok((CohortId(input.u32()?), Rest { epoch: Epoch(input.u64()?), last: input.lsn()? })))
        .collect::<Result<List, DecodeError>>()?;
    Ok(Some(list))
}
