//! A stripe's checkpoint: its whole state except the blocks, which are in the files of its store.

use base::codec::{Reader, Wire, Writer};
use bytes::Bytes;
use state_machine::checkpoint::{Chunked, Cursor, FIRST_PART, Keep, LoadError, Loader, Snapshot, unexpected};
use state_machine::interface::StateMachine as _;
use state_machine::sessions::{Open, load_sessions, pack_sessions};
use state_machine::{ClientSessionId, Kind, Ownership, Progress};
use store::stream::StreamStore;

use super::request::Holder;
use super::{ClientSessions, Stripe, Written};

const SESSIONS: u8 = FIRST_PART;

/// An immutable snapshot of a stripe, without its blocks.
#[derive(Clone, Debug)]
pub struct StripeSnapshot {
    progress: Progress,
    ownership: Ownership,
    sessions: Open<Written>,
    holder: Option<Holder>,
}

impl StripeSnapshot {
    pub(super) fn of(stripe: &Stripe) -> Self {
        let sessions = stripe.sessions.open_sessions().clone();
        let (ownership, holder) = (stripe.ownership.clone(), stripe.holder.clone());
        Self { progress: stripe.progress, ownership, sessions, holder }
    }
}

impl Chunked for StripeSnapshot {
    fn kind(&self) -> Kind {
        Stripe::KIND
    }

    fn progress(&self) -> &Progress {
        &self.progress
    }

    fn header(&self, out: &mut Writer) {
        self.ownership.encode(out);
        self.holder.encode(out);
        out.u64(self.sessions.len() as u64);
    }

    fn part(&self, after: &Cursor) -> Option<(Bytes, Cursor)> {
        let last = after.last[..].try_into().ok().map(|last| ClientSessionId(u64::from_be_bytes(last)));
        let (chunk, ClientSessionId(last)) = pack_sessions(SESSIONS, &self.sessions, last)?;
        Some((chunk, Cursor { tag: SESSIONS, last: Bytes::copy_from_slice(&last.to_be_bytes()) }))
    }
}

impl Snapshot for StripeSnapshot {
    type Machine = Stripe;
    type Loader = StripeLoader;

    /// Only the newest versions are read.
    fn keep(&self) -> Keep {
        Keep { watermark: self.progress.last_timestamp, cells: self.ownership.cells() }
    }

    fn is_dropped(&self) -> bool {
        self.ownership == Ownership::Dropped
    }

    fn into_machine(self, store: StreamStore) -> Stripe {
        let Self { progress, ownership, sessions, holder } = self;
        Stripe { progress, ownership, sessions: ClientSessions::of(sessions), holder, store }
    }
}

/// Restores a snapshot from its chunks.
#[derive(Clone, Debug)]
pub struct StripeLoader {
    progress: Progress,
    ownership: Ownership,
    sessions: ClientSessions,
    holder: Option<Holder>,
    /// The number of sessions according to the header.
    count: u64,
}

impl Loader for StripeLoader {
    type Snapshot = StripeSnapshot;

    fn begin(progress: Progress, mut header: Reader) -> Result<Self, LoadError> {
        let (ownership, holder) = (Ownership::decode(&mut header)?, Option::decode(&mut header)?);
        let count = header.u64()?;
        header.end()?;
        Ok(Self { progress, ownership, sessions: ClientSessions::default(), holder, count })
    }

    fn part(&mut self, tag: u8, mut input: Reader) -> Result<(), LoadError> {
        match tag {
            SESSIONS => load_sessions(&mut input, &self.progress, &mut self.sessions),
            _ => Err(unexpected(tag)),
        }
    }

    fn finish(self) -> Result<StripeSnapshot, LoadError> {
        let Self { progress, ownership, sessions, holder, count } = self;
        if sessions.len() as u64 != count {
            return Err(LoadError::Impossible("the count of sessions does not match the header"));
        }
        Ok(StripeSnapshot { progress, ownership, sessions: sessions.open_sessions().clone(), holder })
    }
}
