//! Codec of beats and their replies.

use std::sync::Arc;

use base::codec::{DecodeError, Reader, Writer};
use base::{CohortId, Epoch, Monotonic};
use replication::Quiescence;

/// Minimum size of an encoded idle cohort in bytes: its number, an epoch and an LSN.
const REST_BYTES: usize = 28;

/// The number of a list. Numbers grow from 1 within a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ListId(pub u64);

/// Idle cohorts, in the order of their numbers.
pub type List = Arc<[(CohortId, Quiescence)]>;

/// The sender's knowledge at the time of the last reply for the same list (guarantee 15).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerClock {
    /// The receiver's clock as shown by that reply. Everything committed anywhere before that time is within the LSNs
    /// of the list.
    pub at: Monotonic,
    /// The cohorts for which this does not hold, in order: the sender held no lease, or had committed more.
    pub except: Vec<CohortId>,
}

/// The result of a beat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Beaten {
    /// The receiver does not have the named list.
    UnknownList,
    /// A lease vote for every cohort of the list except these.
    Vouched {
        /// The cohorts with a state that differs from the list.
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

pub(super) fn encode_peer_clock(peer_clock: Option<&PeerClock>, out: &mut Writer) {
    out.bool(peer_clock.is_some());
    if let Some(PeerClock { at, except }) = peer_clock {
        out.u64(at.0);
        encode_cohorts(except, out);
    }
}

pub(super) fn decode_peer_clock(input: &mut Reader) -> Result<Option<PeerClock>, DecodeError> {
    if !input.bool()? {
        return Ok(None);
    }
    Ok(Some(PeerClock { at: Monotonic(input.u64()?), except: decode_cohorts(input)? }))
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
        .map(|_| Ok((CohortId(input.u32()?), Quiescence { epoch: Epoch(input.u64()?), last: input.lsn()? })))
        .collect::<Result<List, DecodeError>>()?;
    Ok(Some(list))
}
