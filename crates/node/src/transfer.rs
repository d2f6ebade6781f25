//! Catch-up from the log on the disk, and by whole state: for a replica that lacks what the log holds no more (guarantee 9).
//!
//! The leader sends the checkpoint that its manifest names: first its state in chunks, then the files of its storage,
//! as they lie on its disk (Spinnaker, section 6.1), all of them: compactions may have dropped what the follower would
//! have to be told. Its log goes on where the checkpoint ends. Each part is made, or read, when the one before is
//! acknowledged, and no more leave in a second than the configuration allows.
//!
//! The follower writes the files as they come, looks through them when all are here, and writes a checkpoint; the
//! manifest names it with the files, in one go; only then is the log cut and the state its own. A connection that
//! breaks, or a leader that starts again with the same state, goes on where it was; the same entry in other files is
//! another state.

use std::collections::BTreeMap;
use std::sync::Arc;

use base::{CohortId, Duration, Entry, Epoch, Lsn, Monotonic, NodeId, Now, Sequence, SharedMembership, Timestamp};
use bytes::Bytes;
use machine::Chunks;
use machine::storage::StoredFile;
use store::shipping::PART_BYTES;

use crate::contract::{Action, ReadId};
use crate::message::{Message, StateId, StatePart};
use crate::node::{AT_ONCE, Node};
use crate::registry::Snapshot;
use crate::replica::{ShippedFiles, WholeState};

mod arrival;

pub(crate) use arrival::{Arrived, Incoming};

/// After so long without an acknowledgement a part is sent again.
const RESEND: Duration = Duration::from_millis(500);
/// After so many sendings of one part without any answer the transfer is given up; the follower's answers to proposals
/// start another.
const SENDINGS_MAX: u32 = 60;

/// A part of a whole state.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    pub(crate) epoch: Epoch,
    pub(crate) state: StateId,
    pub(crate) timestamp: Timestamp,
    pub(crate) index: u32,
    pub(crate) last: bool,
    pub(crate) content: StatePart,
}

/// What this node's leaders have under way to bring followers up to date, and what has arrived.
#[derive(Debug, Default)]
pub(crate) struct Transfers {
    under_way: BTreeMap<(CohortId, NodeId), Transfer>,
    last_read: u64,
    /// The reads of the log that are under way.
    log_reads: BTreeMap<ReadId, LogRead>,
    /// The parts of files that are being read, and for whom.
    file_reads: BTreeMap<ReadId, (CohortId, NodeId, u32)>,
    /// How many whole states have begun to arrive.
    arrivals: u64,
}

/// A read of the log for a follower.
#[derive(Clone, Copy, Debug)]
struct LogRead {
    cohort: CohortId,
    peer: NodeId,
    from: Sequence,
}

#[derive(Debug)]
struct Transfer {
    id: StateId,
    state: Snapshot,
    files: ShippedFiles,
    membership: SharedMembership,
    next: Next,
    /// The part under way; none while it is read from the disk. The last one stays until the state is installed.
    part: Option<StatePart>,
    /// Its number.
    index: u32,
    resend_at: Monotonic,
    sendings: u32,
}

/// What follows the part under way.
#[derive(Debug)]
enum Next {
    Chunks(Box<Chunks<Snapshot>>),
    Files,
    Piece { file: usize, offset: u64 },
    Nothing,
}

/// What the next part is, or where it is to be read.
enum Step {
    Here(StatePart),
    OnDisk(Arc<dyn StoredFile>, u64, usize),
    AtEnd,
}

impl Transfer {
    fn new(whole: WholeState) -> Self {
        let WholeState { state, files, membership } = whole;
        let next = Next::Chunks(Box::new(state.chunks()));
        let id = StateId::new(state.last_applied(), files.iter().map(|(named, _)| named));
        Self { id, state, files, membership, next, part: None, index: 0, resend_at: Monotonic(0), sendings: 0 }
    }

    /// Steps to the next part.
    fn step(&mut self) -> Step {
        match &mut self.next {
            Next::Chunks(chunks) => match chunks.next() {
                Some(chunk) => {
                    if chunks.is_at_end() {
                        self.next = Next::Files;
                    }
                    Step::Here(StatePart::Chunk(chunk))
                }
                None => Step::AtEnd,
            },
            Next::Files => {
                self.next = self.piece(0, 0);
                let files = self.files.iter().map(|(named, _)| *named).collect();
                Step::Here(StatePart::Files { files, membership: SharedMembership::clone(&self.membership) })
            }
            Next::Piece { file: index, offset } => {
                let (index, offset) = (*index, *offset);
                let (named, file) = &self.files[index];
                let (file, bytes) = (Arc::clone(file), (named.bytes - offset).min(PART_BYTES as u64));
                self.next = self.piece(index, offset + bytes);
                Step::OnDisk(file, offset, bytes as usize)
            }
            Next::Nothing => Step::AtEnd,
        }
    }

    /// What comes at that place: in that table, or in the next one that has anything.
    fn piece(&self, mut file: usize, mut offset: u64) -> Next {
        while let Some((named, _)) = self.files.get(file) {
            if offset < named.bytes {
                return Next::Piece { file, offset };
            }
            (file, offset) = (file + 1, 0);
        }
        Next::Nothing
    }

    fn is_last(&self) -> bool {
        matches!(self.next, Next::Nothing)
    }

    /// The follower has so many parts. Gives the next one for it, if that is news. A follower that restarted has
    /// nothing, and gets it all again; one that knows this state from before may be further than we are.
    fn acknowledged(&mut self, received: u32) -> Option<Step> {
        self.sendings = 0;
        if received == 0 && self.index > 0 {
            self.next = Next::Chunks(Box::new(self.state.chunks()));
            self.index = 0;
            return Some(self.step());
        }
        let mut step = None;
        while self.index < received && !self.is_last() {
            self.index += 1;
            step = Some(self.step());
        }
        step
    }
}

impl Transfers {
    pub(crate) fn next_timer(&self) -> Option<Monotonic> {
        self.under_way.values().filter(|transfer| transfer.part.is_some()).map(|transfer| transfer.resend_at).min()
    }

    fn number_read(&mut self) -> ReadId {
        self.last_read += 1;
        ReadId(self.last_read)
    }

    /// The lead is lost. What is read of the log now was planned from one that may be cut before the next reign.
    pub(crate) fn forget_cohort(&mut self, cohort: CohortId) {
        self.log_reads.retain(|_, read| read.cohort != cohort);
        self.under_way.retain(|(of, _), _| *of != cohort);
    }

    pub(crate) fn forget_peer(&mut self, peer: NodeId) {
        self.under_way.retain(|(_, to), _| *to != peer);
    }
}

impl Node {
    pub(crate) fn begin_log_read(&mut self, cohort: CohortId, peer: NodeId, from: Sequence) {
        let id = self.transfers.number_read();
        self.counters.log_catch_ups += 1;
        self.transfers.log_reads.insert(id, LogRead { cohort, peer, from });
        let bytes = self.config.limits.propose_bytes;
        self.actions.push(Action::ReadLog { id, cohort, from, bytes });
    }

    pub(crate) fn log_read(&mut self, id: ReadId, entries: Option<Vec<Entry>>, now: Now) {
        // None if the lead was lost meanwhile.
        let Some(LogRead { cohort, peer, from }) = self.transfers.log_reads.remove(&id) else { return };
        self.with_cohort(cohort, now, |cohort, out| cohort.log_read(peer, from, entries, now, out));
    }

    pub(crate) fn begin_transfer(&mut self, cohort: CohortId, peer: NodeId, now: Now) {
        let replica = expected!(self.replicas.get_mut(&cohort), "a replica has a follower far behind");
        // The newer the better: the next transfer, if one is needed, sends a newer checkpoint.
        replica.on_disk.is_wanted = true;
        let Some(whole) = replica.whole_state() else {
            return self.end_transfer(cohort, peer, None, now);
        };
        self.counters.state_catch_ups += 1;
        let mut transfer = Transfer::new(whole);
        let step = transfer.step();
        self.transfers.under_way.insert((cohort, peer), transfer);
        self.take_step(cohort, peer, step, now);
    }

    /// Sends the next part, or has it read first.
    fn take_step(&mut self, cohort: CohortId, peer: NodeId, step: Step, now: Now) {
        let transfer = expected!(self.transfers.under_way.get_mut(&(cohort, peer)), "its next step was made just now");
        match step {
            Step::Here(part) => {
                transfer.part = Some(part);
                self.pace_part(cohort, peer, now);
            }
            Step::OnDisk(file, offset, bytes) => {
                transfer.part = None;
                let index = transfer.index;
                let id = self.transfers.number_read();
                self.transfers.file_reads.insert(id, (cohort, peer, index));
                self.actions.push(Action::ReadFile { id, file, offset, bytes });
            }
            Step::AtEnd => {}
        }
    }

    /// A part of a file was read for a transfer.
    pub(crate) fn file_read(&mut self, id: ReadId, bytes: Option<Bytes>, now: Now) {
        let (cohort, peer, index) = expected!(self.transfers.file_reads.remove(&id), "a part is read once");
        // The lead may have been lost meanwhile.
        let Some(transfer) = self.transfers.under_way.get_mut(&(cohort, peer)) else { return };
        if transfer.index != index || transfer.part.is_some() {
            return;
        }
        match bytes {
            Some(bytes) => {
                transfer.part = Some(StatePart::Piece(bytes));
                self.pace_part(cohort, peer, now);
            }
            None => self.end_transfer(cohort, peer, None, now),
        }
    }

    /// Sends a part when the rate allows it: at once, or when the timer strikes.
    fn pace_part(&mut self, cohort: CohortId, peer: NodeId, now: Now) {
        let transfer = expected!(self.transfers.under_way.get_mut(&(cohort, peer)), "it has a part to send");
        if transfer.resend_at <= now.monotonic || transfer.sendings > 0 {
            self.send_part(cohort, peer, now);
        }
    }

    fn send_part(&mut self, cohort: CohortId, peer: NodeId, now: Now) {
        let transfer = expected!(self.transfers.under_way.get_mut(&(cohort, peer)), "it has a part to send");
        let replica = expected!(self.replicas.get(&cohort), "transfers end with the lead of their replica");
        let part = expected!(transfer.part.clone(), "it has a part to send");
        transfer.resend_at = now.monotonic + RESEND;
        transfer.sendings += 1;
        let epoch = replica.cohort.promised().epoch;
        let (state, timestamp) = (transfer.id, transfer.state.last_timestamp());
        let (index, last) = (transfer.index, transfer.is_last());
        self.send(peer, Message::StateChunk { cohort, epoch, state, timestamp, index, last, part }, AT_ONCE, None);
    }

    pub(crate) fn on_transfer_timer(&mut self, now: Now) {
        let due = |transfer: &Transfer| transfer.part.is_some() && transfer.resend_at <= now.monotonic;
        let keys: Vec<(CohortId, NodeId)> =
            self.transfers.under_way.iter().filter(|(_, transfer)| due(transfer)).map(|(key, _)| *key).collect();
        for (cohort, peer) in keys {
            let spent = self.transfers.under_way.get(&(cohort, peer)).is_some_and(|t| t.sendings >= SENDINGS_MAX);
            if spent {
                self.end_transfer(cohort, peer, None, now);
            } else {
                self.send_part(cohort, peer, now);
            }
        }
    }

    fn end_transfer(&mut self, id: CohortId, peer: NodeId, lsn: Option<Lsn>, now: Now) {
        self.transfers.under_way.remove(&(id, peer));
        self.with_cohort(id, now, |cohort, out| cohort.state_sent(peer, lsn, now, out));
    }

    pub(crate) fn chunk_acknowledged(
        &mut self,
        from: NodeId,
        cohort: CohortId,
        state: StateId,
        received: u32,
        installed: bool,
        now: Now,
    ) {
        if installed {
            // Perhaps another state than the one being sent: an earlier leader's. What it lacks now is to be seen.
            return self.end_transfer(cohort, from, Some(state.lsn), now);
        }
        let rate = self.config.transfer_bytes_per_second.max(1);
        // An acknowledgement may come after the end.
        let Some(transfer) = self.transfers.under_way.get_mut(&(cohort, from)) else { return };
        if transfer.id != state {
            return;
        }
        let sent = transfer.part.as_ref().map_or(0, StatePart::bytes) as u64;
        let sent_at = transfer.resend_at;
        let Some(step) = transfer.acknowledged(received) else { return };
        // The part before was sent half a second before it would have been sent again.
        let span = Duration(sent.saturating_mul(1_000_000_000) / rate);
        let free_at = Monotonic((sent_at.0 + span.0).saturating_sub(RESEND.0));
        transfer.resend_at = free_at;
        self.take_step(cohort, from, step, now);
    }
}

#[cfg(test)]
mod tests;
