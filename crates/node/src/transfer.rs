//! Catch-up of lagging replicas from the log on disk, or by a state snapshot if the log has been truncated (guarantee
//! 9).
//!
//! The leader sends the checkpoint that its manifest names: first the state in chunks, then all files of its storage as
//! stored on disk (Spinnaker, section 6.1). A subset of the files is not enough, because compactions may have dropped
//! data that the follower needs to see deleted. Log replication continues where the checkpoint ends. Each part is
//! produced or read when the previous one is acknowledged, subject to a rate limit from the configuration.
//!
//! The follower writes the files as they arrive, verifies them when complete, and writes a checkpoint. One manifest
//! names the checkpoint and the files. Only then is the log truncated and the state installed. After a broken
//! connection, or if the leader restarts with the same snapshot, the transfer resumes. The same entry in different
//! files is a different snapshot.

use std::collections::BTreeMap;
use std::sync::Arc;

use base::{CohortId, Duration, Entry, Epoch, Lsn, Monotonic, NodeId, Now, Sequence, SharedMembership, Timestamp};
use bytes::Bytes;
use state_machine::Chunks;
use state_machine::storage::{ReadError, StoredFile};
use store::shipping::PART_BYTES;

use crate::contract::{Action, ReadId};
use crate::message::{Message, StateId, StatePart};
use crate::node::{AT_ONCE, Node};
use crate::registry::Snapshot;
use crate::replica::{ShippedFiles, WholeState};

mod arrival;

pub(crate) use arrival::{Arrived, Incoming};

/// A part without an acknowledgement is retransmitted after this time.
const RESEND: Duration = Duration::from_millis(500);
/// A transfer is aborted after this many transmissions of one part without a reply. The follower's replies to proposals
/// start another transfer.
const SENDINGS_MAX: u32 = 60;

/// A part of a state snapshot.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    pub(crate) epoch: Epoch,
    pub(crate) state: StateId,
    pub(crate) timestamp: Timestamp,
    pub(crate) index: u32,
    pub(crate) last: bool,
    pub(crate) content: StatePart,
}

/// The log is kept for the copy of a state that changes while it is sent, unless it grows beyond this multiple of the size
/// that a checkpoint allows. After that, the transfer may have to begin again.
const KEPT_LOG_CHECKPOINTS: u64 = 64;

/// The log from a checkpoint on, kept for a replica that receives it (guarantee 29).
#[derive(Clone, Copy, Debug)]
struct KeptLog {
    /// The last entry in the checkpoint.
    from: Sequence,
    /// Once the checkpoint has arrived: the last entry that the copy may contain. The log is kept until the receiver has it.
    until: Option<Sequence>,
    /// Bytes appended by the whole node when the transfer began.
    mark: u64,
}

/// Outgoing transfers of the leaders on this node, and counters of incoming ones.
#[derive(Debug, Default)]
pub(crate) struct Transfers {
    under_way: BTreeMap<(CohortId, NodeId), Transfer>,
    last_read: u64,
    /// Log reads in progress.
    log_reads: BTreeMap<ReadId, LogRead>,
    /// Reads of file parts in progress, with their destinations.
    file_reads: BTreeMap<ReadId, (CohortId, NodeId, u32)>,
    /// Number of incoming snapshots so far.
    arrivals: u64,
    /// The logs kept for transfers.
    kept: BTreeMap<(CohortId, NodeId), KeptLog>,
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
    /// The part in transit; `None` while it is read from disk. The last part stays until the snapshot is installed.
    part: Option<StatePart>,
    /// The number of that part.
    index: u32,
    resend_at: Monotonic,
    sendings: u32,
    /// The follower has found the files invalid: the fault may be in the files on this disk.
    is_suspect: bool,
}

/// The part after the one in transit.
#[derive(Debug)]
enum Next {
    Chunks(Box<Chunks<Snapshot>>),
    Files,
    Piece { file: usize, offset: u64 },
    Nothing,
}

/// The next part, or where to read it.
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
        let (part, index, resend_at, sendings, is_suspect) = (None, 0, Monotonic(0), 0, false);
        Self { id, state, files, membership, next, part, index, resend_at, sendings, is_suspect }
    }

    /// Moves to the next part.
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

    /// The data at that position of the file, or the start of the next non-empty file.
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

    /// Handles an acknowledgement of `received` parts. Returns the next part if this is news. A restarted follower has
    /// nothing and receives everything again; so does one that found the files invalid. A follower that knows the
    /// snapshot from before may be ahead of this leader.
    fn acknowledged(&mut self, received: u32) -> Option<Step> {
        self.sendings = 0;
        if received == 0 && self.index > 0 {
            self.is_suspect = self.is_last();
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

    /// The lead is lost. The log may be truncated before the next epoch, so pending log reads are invalid.
    pub(crate) fn forget_cohort(&mut self, cohort: CohortId) {
        self.log_reads.retain(|_, read| read.cohort != cohort);
        self.under_way.retain(|(of, _), _| *of != cohort);
        self.kept.retain(|(of, _), _| *of != cohort);
    }

    pub(crate) fn forget_peer(&mut self, peer: NodeId) {
        self.under_way.retain(|(_, to), _| *to != peer);
        self.kept.retain(|(_, to), _| *to != peer);
    }
}

impl Node {
    pub(crate) fn begin_catch_up_read(&mut self, cohort: CohortId, peer: NodeId, from: Sequence) {
        let id = self.transfers.number_read();
        self.counters.log_catch_ups += 1;
        self.transfers.log_reads.insert(id, LogRead { cohort, peer, from });
        let bytes = self.config.limits.propose_bytes;
        self.actions.push(Action::ReadLog { id, cohort, from, bytes });
    }

    pub(crate) fn catch_up_read_done(&mut self, id: ReadId, entries: Option<Vec<Entry>>, now: Now) {
        // `None` if the lead was lost meanwhile.
        let Some(LogRead { cohort, peer, from }) = self.transfers.log_reads.remove(&id) else { return };
        self.with_cohort(cohort, now, |cohort, out| cohort.log_read(peer, from, entries, now, out));
    }

    pub(crate) fn begin_transfer(&mut self, cohort: CohortId, peer: NodeId, now: Now) {
        let replica = expected!(self.replicas.get_mut(&cohort), "only a local replica has followers");
        // Request a newer checkpoint, which the next transfer will use.
        replica.on_disk.is_wanted = true;
        let Some(whole) = replica.whole_state() else {
            return self.end_transfer(cohort, peer, None, now);
        };
        self.counters.state_catch_ups += 1;
        if replica.state.storage().is_in_place() {
            let kept =
                KeptLog { from: whole.state.last_applied().sequence, until: None, mark: self.outgoing.appended_bytes };
            self.transfers.kept.insert((cohort, peer), kept);
        }
        let mut transfer = Transfer::new(whole);
        let step = transfer.step();
        self.transfers.under_way.insert((cohort, peer), transfer);
        self.take_step(cohort, peer, step, now);
    }

    /// Sends the next part, or starts its read.
    fn take_step(&mut self, cohort: CohortId, peer: NodeId, step: Step, now: Now) {
        let transfer = expected!(self.transfers.under_way.get_mut(&(cohort, peer)), "the transfer exists");
        match step {
            Step::Here(part) => {
                transfer.part = Some(part);
                self.pace_part(cohort, peer, now);
            }
            Step::OnDisk(file, offset, bytes) => {
                transfer.part = None;
                let index = transfer.index;
                let verify = transfer.is_suspect && offset == 0;
                let id = self.transfers.number_read();
                self.transfers.file_reads.insert(id, (cohort, peer, index));
                self.actions.push(Action::ReadFile { id, file, offset, bytes, verify });
            }
            Step::AtEnd => {}
        }
    }

    /// The logs to keep, each from the entry after this one on.
    pub(crate) fn kept_logs(&mut self, now: Now) -> BTreeMap<CohortId, Sequence> {
        let is_full = self.checkpoints.full_until > now.monotonic;
        let most = self.config.checkpoint_log_bytes.saturating_mul(KEPT_LOG_CHECKPOINTS);
        let appended = self.outgoing.appended_bytes;
        let replicas = &self.replicas;
        self.transfers.kept.retain(|(cohort, peer), kept| {
            let matched = replicas.get(cohort).and_then(|replica| replica.cohort.matched(*peer));
            let is_done = kept.until.is_some_and(|until| matched >= Some(until));
            matched.is_some() && !is_done && !is_full && appended - kept.mark <= most
        });
        let mut logs = BTreeMap::new();
        for ((cohort, _), kept) in &self.transfers.kept {
            let from = logs.entry(*cohort).or_insert(kept.from);
            *from = kept.from.min(*from);
        }
        logs
    }

    /// A part of a file was read for a transfer.
    pub(crate) fn file_read(&mut self, id: ReadId, bytes: Result<Bytes, ReadError>, now: Now) {
        let (cohort, peer, index) = expected!(self.transfers.file_reads.remove(&id), "each read completes once");
        // The lead may have been lost meanwhile.
        let Some(transfer) = self.transfers.under_way.get_mut(&(cohort, peer)) else { return };
        if transfer.index != index || transfer.part.is_some() {
            return;
        }
        match bytes {
            Ok(bytes) => {
                transfer.part = Some(StatePart::Piece(bytes));
                self.pace_part(cohort, peer, now);
            }
            Err(error) => {
                self.end_transfer(cohort, peer, None, now);
                self.read_failed(cohort, &error, now);
            }
        }
    }

    /// Sends a part when the rate limit allows it: immediately or by timer.
    fn pace_part(&mut self, cohort: CohortId, peer: NodeId, now: Now) {
        let transfer = expected!(self.transfers.under_way.get_mut(&(cohort, peer)), "the transfer has a part");
        if transfer.resend_at <= now.monotonic || transfer.sendings > 0 {
            self.send_part(cohort, peer, now);
        }
    }

    fn send_part(&mut self, cohort: CohortId, peer: NodeId, now: Now) {
        let transfer = expected!(self.transfers.under_way.get_mut(&(cohort, peer)), "the transfer has a part");
        let replica = expected!(self.replicas.get(&cohort), "transfers end when the replica loses its lead");
        let part = expected!(transfer.part.clone(), "the transfer has a part");
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
        let applied = self.replicas.get(&id).map(|replica| replica.state.last_applied().sequence);
        match (lsn.and(applied), self.transfers.kept.get_mut(&(id, peer))) {
            (Some(applied), Some(kept)) => kept.until = Some(applied),
            _ => _ = self.transfers.kept.remove(&(id, peer)),
        }
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
            // Possibly an earlier leader's snapshot. The follower's next reply shows its missing entries.
            return self.end_transfer(cohort, from, Some(state.lsn), now);
        }
        let rate = self.config.transfer_bytes_per_second.max(1);
        // An acknowledgement may arrive after the end of the transfer.
        let Some(transfer) = self.transfers.under_way.get_mut(&(cohort, from)) else { return };
        if transfer.id != state {
            return;
        }
        let sent = transfer.part.as_ref().map_or(0, StatePart::bytes) as u64;
        let sent_at = transfer.resend_at;
        let Some(step) = transfer.acknowledged(received) else { return };
        // The previous part was sent one retransmission interval before `sent_at`.
        let span = Duration(sent.saturating_mul(1_000_000_000) / rate);
        let free_at = Monotonic((sent_at.0 + span.0).saturating_sub(RESEND.0));
        transfer.resend_at = free_at;
        self.take_step(cohort, from, step, now);
    }
}

#[cfg(test)]
mod tests;
