//! A stripe of a disk: blocks of 4 KiB, and the sessions of their writers, as the state machine that a cohort
//! replicates (Gaios, sections 3.1 and 3.3).
//!
//! * [`request`]: requests and responses, with their limits. [`command`]: the commands in the log.
//! * `blocks`: the blocks in an in-place store. [`query`]: reads. [`checkpoint`]: the state as chunks.
//!
//! Invariants:
//! * A command contains whole blocks only, and applying it reads nothing. So replay heals a block that is only partly on
//!   disk, and a slow disk does not delay replication. A write of a part of a block is completed by the leader, on the
//!   applied state, while it holds the block's latch exclusively: no other write of the block, through any node, can be
//!   between the read and the write.
//! * The changes of a command are disjoint, so their order does not matter.
//! * While a stripe has a holder, only its sessions are open. All sessions from before it became the holder, and from before
//!   its last attachment, have ended.
//! * A write with a given session and number is executed at most once, and a retry returns the outcome of the first
//!   attempt. So a retry never overwrites a later write.
//! * Replicas that applied the same entries return the same content and the same allocation.

use base::canary::{Bug, planted};
use base::codec::{DecodeError, Reader, Writer};
use base::{CohortId, Entry, Incarnation, KeyRange, Timestamp};
use bytes::Bytes;
use state_machine::failure::precondition;
use state_machine::interface::{Applied, Effect, Housekeeping, Kind, Past, Payload, ReadStep, StateMachine, Wire};
use state_machine::sessions::{Admission, Remembered};
use state_machine::{
    ApplyError, ClientSessionId, Consistency, Failure, KeyPosition, LogicalHash, Ownership, Progress, ReadError,
    SessionStamp, owned,
};
use store::stream::StreamStore;

mod blocks;
pub mod checkpoint;
pub mod command;
pub mod query;
pub mod request;
#[cfg(test)]
pub(crate) mod tests;

use crate::layout::{BLOCK_BYTES, StripeId};
use checkpoint::StripeSnapshot;
use command::Command;
use query::{Query, StripeView};
use request::{BlockChange, BlockRun, BlockSpan, Claim, Holder, Outcome, StripeRequest, StripeResponse};

/// The sessions of a stripe.
pub type ClientSessions = state_machine::sessions::ClientSessions<Written>;

/// The state of a stripe.
#[derive(Debug)]
pub struct Stripe {
    progress: Progress,
    ownership: Ownership,
    sessions: ClientSessions,
    /// The client that alone may open sessions.
    holder: Option<Holder>,
    store: StreamStore,
}

impl Stripe {
    fn execute(&mut self, command: Command, entry: &Entry) -> Applied<StripeResponse, std::convert::Infallible> {
        let holds = |stripe: StripeId| self.ownership.holds(&KeyPosition::At(stripe.key()));
        if !command.stripe().is_none_or(holds) {
            // The disk was dropped after the proposal.
            return Applied::effect(Effect::Elsewhere);
        }
        match command {
            Command::AssignRange { range } => match self.ownership.assign_range(&range) {
                true => Applied::effect(Effect::RangeFounded),
                false => Applied::NOTHING,
            },
            Command::Drop => {
                let is_news = self.ownership != Ownership::Dropped;
                if is_news {
                    self.ownership = Ownership::Dropped;
                    self.sessions = ClientSessions::default();
                    self.holder = None;
                    self.store.reset();
                }
                Applied { outcome: Some(Ok(StripeResponse::Dropped)), effect: is_news.then_some(Effect::RangeDropped) }
            }
            Command::DeclareLoss => {
                self.progress.losses += 1;
                Applied::effect(Effect::LossDeclared)
            }
            Command::OpenSession { claim, .. } => Applied::outcome(self.open_session(claim, entry)),
            Command::EndSession { session, .. } => {
                self.sessions.expire(&[(session, Timestamp(i64::MAX))]);
                Applied::outcome(Ok(StripeResponse::SessionEnded))
            }
            Command::Release { .. } => {
                if self.holder.take().is_some() {
                    self.sessions = ClientSessions::default();
                }
                Applied::outcome(Ok(StripeResponse::Released))
            }
            Command::Heal { block, content, .. } => {
                // The rest of the entry is small.
                self.store.edit(entry.lsn.sequence).heal(block, owned(&content, entry.payload.len()));
                Applied::outcome(Ok(StripeResponse::Healed))
            }
            Command::Write { stamp, changes, .. } => Applied::outcome(self.write(&stamp, &changes, entry)),
            Command::ExpireSessions { sessions } => {
                self.sessions.expire(&sessions);
                Applied::NOTHING
            }
        }
    }

    /// Opens a session, if there is a right to do so. Since a new holder ends all earlier sessions, and no other client can open
    /// one, no command of another client or of an earlier holder changes a block from then on.
    fn open_session(&mut self, claim: Claim, entry: &Entry) -> Outcome {
        let name = self.progress.name_of(entry.lsn.sequence);
        let session = ClientSessionId::new(self.progress.cohort, name)
            .ok_or_else(|| Failure::Overloaded("session ids exhausted".to_owned()))?;
        match (claim, &self.holder) {
            (Claim::Attach(holder), current) => {
                if current.as_ref().is_none_or(|current| current.name != holder) {
                    self.holder = Some(Holder { name: holder, generation: name.0 });
                }
                if !planted(Bug::DiskAttachKeepsSessions) {
                    self.sessions = ClientSessions::default();
                }
            }
            (Claim::Shared, None) => {}
            (Claim::Hold(holder), Some(current))
                if holder == *current || planted(Bug::DiskGenerationUnchecked) && holder.name == current.name => {}
            (_, Some(current)) => return Err(precondition(format!("the disk is held by {:?}", current.name))),
            (Claim::Hold(_), None) => return Err(precondition("the disk was released")),
        }
        self.sessions.open(session, entry.timestamp);
        let generation = self.holder.as_ref().map_or(0, |holder| holder.generation);
        Ok(StripeResponse::SessionOpened { session, generation })
    }

    /// Executes a write, unless it was executed before (guarantee 10).
    fn write(&mut self, stamp: &SessionStamp, changes: &[BlockChange], entry: &Entry) -> Outcome {
        match self.sessions.admit(stamp, entry.timestamp) {
            Admission::Execute => {
                blocks::apply(&mut self.store, changes, entry);
                let outcome = Ok(StripeResponse::Written);
                self.sessions.record(stamp, &outcome);
                outcome
            }
            Admission::Answer(outcome) => {
                if planted(Bug::DiskStampIgnored) {
                    blocks::apply(&mut self.store, changes, entry);
                }
                outcome
            }
        }
    }

    /// The stripe that it owns; none before the first entry, and after the last one.
    fn stripe(&self) -> Option<StripeId> {
        self.ownership.range().and_then(StripeId::of_range)
    }

    /// A view of the current blocks, for any thread.
    #[must_use]
    pub fn view_now(&self) -> StripeView {
        let applied = self.progress.last_timestamp;
        let blocks = blocks::view(&self.store, self.progress.last_applied.sequence);
        StripeView { ownership: self.ownership.clone(), blocks, applied }
    }
}

impl StateMachine for Stripe {
    const KIND: Kind = Kind(5);

    type Request = StripeRequest;
    type Response = StripeResponse;
    type Event = std::convert::Infallible;
    type Read = Query;
    type View = StripeView;
    type Snapshot = StripeSnapshot;
    type Storage = StreamStore;

    fn new(cohort: CohortId, _: Incarnation, store: StreamStore) -> Self {
        let (ownership, sessions) = Default::default();
        Self { progress: Progress::new(cohort), ownership, sessions, holder: None, store }
    }

    fn progress(&self) -> &Progress {
        &self.progress
    }

    fn apply(&mut self, entry: &Entry) -> Result<Applied<StripeResponse, std::convert::Infallible>, ApplyError> {
        self.progress.check(entry)?;
        if entry.payload.is_empty() {
            self.progress.advance(entry);
            return Ok(Applied::NOTHING);
        }
        let command = Command::decode(entry.payload.clone()).map_err(|e| self.progress.undecodable(entry, e))?;
        self.progress.advance(entry);
        Ok(self.execute(command, entry))
    }

    fn read(&self, request: &StripeRequest) -> ReadStep<StripeResponse, Query> {
        if let StripeRequest::Holder { .. } = request {
            return ReadStep::Answer(Ok(StripeResponse::Holder(self.holder.clone())));
        }
        match Query::of(request, self.view_now()) {
            Some(query) => ReadStep::Evaluate(query),
            None => ReadStep::Answer(Err(Failure::Invalid("a change is not a read".to_owned()))),
        }
    }

    fn propose(&self, request: &StripeRequest) -> Payload<Query> {
        let command = match request {
            StripeRequest::Write(write) if write.parts.is_empty() => Command::write(write, []),
            StripeRequest::Write(write) => return Payload::Decide(Query::completing(write.clone(), self.view_now())),
            StripeRequest::OpenSession { stripe, claim } => {
                Command::OpenSession { stripe: *stripe, claim: claim.clone() }
            }
            StripeRequest::Release { stripe } => Command::Release { stripe: *stripe },
            StripeRequest::Heal { stripe, block, content } => {
                Command::Heal { stripe: *stripe, block: *block, content: content.clone() }
            }
            StripeRequest::EndSession { stripe, session } => Command::EndSession { stripe: *stripe, session: *session },
            StripeRequest::Drop => Command::Drop,
            StripeRequest::Read { .. }
            | StripeRequest::Status { .. }
            | StripeRequest::Check { .. }
            | StripeRequest::Holder { .. } => {
                return Payload::Refuse(Failure::Invalid("a read is not a change".to_owned()));
            }
        };
        Payload::Command(command.encode())
    }

    fn view(&self) -> Option<StripeView> {
        Some(self.view_now())
    }

    fn snapshot(&self) -> StripeSnapshot {
        StripeSnapshot::of(self)
    }

    fn snapshot_bytes(&self) -> usize {
        self.sessions.bytes()
    }

    fn storage(&self) -> &StreamStore {
        &self.store
    }

    fn storage_mut(&mut self) -> &mut StreamStore {
        &mut self.store
    }

    fn into_storage(self) -> StreamStore {
        self.store
    }

    fn hash(&self, hash: &mut LogicalHash) -> Result<(), ReadError> {
        self.progress.add_to(hash);
        self.ownership.add_to(hash);
        self.sessions.add_to(hash);
        let holder = self.holder.as_ref().map_or((0, ""), |holder| (holder.generation, &holder.name));
        hash.word(holder.0);
        hash.bytes(holder.1.as_bytes());
        Ok(blocks::hash(&self.view_now().blocks, hash)?)
    }

    fn invariants(&self) {
        self.store.invariants();
        let Progress { cohort, last_applied, last_timestamp, .. } = self.progress;
        self.sessions.invariants(cohort, last_timestamp, self.progress.name_of(last_applied.sequence));
    }

    /// Expires sessions that were unused for a lifetime.
    fn housekeeping(&self, past: Past) -> Housekeeping {
        let unused = |moment: Timestamp| self.sessions.unused_since(Timestamp(moment.0.saturating_add(1)));
        let sessions = past.session_lifetime.map(unused).unwrap_or_default();
        let sessions_expired = sessions.len() as u64;
        let expiry = (!sessions.is_empty()).then(|| Command::ExpireSessions { sessions }.encode());
        Housekeeping { commands: expiry.into_iter().collect(), sessions_expired }
    }

    fn ownership(&self) -> Option<&Ownership> {
        Some(&self.ownership)
    }

    fn sessions_open(&self) -> usize {
        self.sessions.len()
    }

    fn assign_range(range: &KeyRange) -> Option<Bytes> {
        Some(Command::AssignRange { range: range.clone() }.encode())
    }

    fn drop_request() -> Option<StripeRequest> {
        Some(StripeRequest::Drop)
    }

    fn verify(&self, first: u64) -> Option<StripeRequest> {
        Some(StripeRequest::Check { stripe: self.stripe()?, first })
    }

    fn reread(&self, block: u64) -> Option<StripeRequest> {
        let blocks = BlockSpan { stripe: self.stripe()?, first: block, count: 1 };
        Some(StripeRequest::Read { consistency: Consistency::Anywhere, blocks })
    }

    fn heal(&self, block: u64, found: StripeResponse) -> Option<StripeRequest> {
        let StripeResponse::Runs(runs) = found else { return None };
        match &runs[..] {
            [BlockRun::Data(content)] if content.len() as u64 == BLOCK_BYTES => {
                Some(StripeRequest::Heal { stripe: self.stripe()?, block, content: content.clone() })
            }
            // It was trimmed meanwhile.
            _ => None,
        }
    }

    fn declare_loss() -> Bytes {
        Command::DeclareLoss.encode()
    }
}

/// The outcome of an executed write, as a session stores it. An executed write has no other outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written;

const WRITTEN: u8 = 1;

impl Wire for Written {
    const BYTES_MIN: usize = 1;

    fn encode(&self, out: &mut Writer) {
        out.u8(WRITTEN);
    }

    fn decode(input: &mut Reader) -> Result<Self, DecodeError> {
        match input.u8()? {
            WRITTEN => Ok(Self),
            tag => Err(DecodeError::UnknownTag { what: "outcome", tag: u64::from(tag) }),
        }
    }
}

impl Remembered for Written {
    type Response = StripeResponse;

    fn of(outcome: &Outcome) -> Self {
        match outcome {
            Ok(StripeResponse::Written) => Self,
            other => unreachable!("an executed write has no outcome {other:?}"),
        }
    }

    fn outcome(&self) -> Outcome {
        Ok(StripeResponse::Written)
    }

    fn heap_bytes(&self) -> usize {
        0
    }

    fn encoded_bytes(&self) -> usize {
        1
    }
}
