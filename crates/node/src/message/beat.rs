//! Beats and their answers, as bytes.

use std::sync::Arc;

use base::codec::{DecodeError, Reader, Writer};
use base::{CohortId, Epoch};
use replication::Rest;

/// The least that an encoded cohort at rest takes: its number, an epoch and an LSN.
const REST_BYTES: usize = 28;

/// The number of a list: those of one process grow from 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ListId(pub u64);

/// Cohorts at rest, in the order of their numbers.
pub type List = Arc<[(CohortId, Rest)]>;

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
                out.u32(u32::try_from(refused.len()).unwrap_or(u32::MAX));
                refused.iter().for_each(|cohort| out.u32(cohort.0));
            }
        }
    }

    pub(super) fn decode(input: &mut Reader) -> Result<Self, DecodeError> {
        Ok(match input.u8()? {
            1 => Self::UnknownList,
            2 => {
                let count = input.count(4)?;
                let refused = (0..count).map(|_| Ok(CohortId(input.u32()?)));
                Self::Vouched { refused: refused.collect::<Result<_, DecodeError>>()? }
            }
            tag => return Err(DecodeError::UnknownTag { what: "answer to a beat", tag: u64::from(tag) }),
        })
    }
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
