//! The follower's side: receives the parts in order and writes the files.

use std::sync::Arc;

use base::{CohortId, Epoch, NodeId, SharedMembership, Timestamp};
use bytes::Bytes;
use state_machine::storage::{FileId, FileRef, Storage};
use store::manifest::CheckpointRef;

use super::Part;
use crate::contract::{Action, ArrivalId, CheckpointId};
use crate::message::{Message, StateId, StatePart};
use crate::node::{AT_ONCE, Node};
use crate::registry::{Loader, Snapshot};
use crate::replica::Replica;

/// A partially received state snapshot.
#[derive(Debug)]
pub(crate) struct Incoming {
    number: ArrivalId,
    from: NodeId,
    /// The sender's epoch when the last part arrived.
    epoch: Epoch,
    state: StateId,
    timestamp: Timestamp,
    /// Number of parts received, in order.
    parts: u32,
    /// The state assembled from the chunks.
    loader: Loader,
    /// The files, by their names on this disk.
    files: Vec<FileRef>,
    membership: SharedMembership,
    /// The file and offset of the next piece.
    file: usize,
    offset: u64,
    /// A piece is being written. It is acknowledged afterwards.
    is_writing: bool,
    /// All parts have arrived and are being verified.
    is_adopting: bool,
}

/// A completely received state snapshot.
#[derive(Debug)]
pub(crate) struct Arrived {
    pub(crate) from: NodeId,
    pub(crate) epoch: Epoch,
    pub(crate) id: StateId,
    pub(crate) timestamp: Timestamp,
    pub(crate) parts: u32,
    pub(crate) state: Snapshot,
    pub(crate) storage: Box<dyn Storage>,
    pub(crate) membership: SharedMembership,
    /// The checkpoint of the snapshot that is being written.
    pub(crate) being_written: Option<CheckpointId>,
    /// The checkpoint of the snapshot, once it is on disk.
    pub(crate) written: Option<CheckpointRef>,
}

impl Arrived {
    pub(crate) fn files(&self) -> Arc<[FileRef]> {
        self.storage.files().into()
    }
}

/// The result of accepting a part.
enum Taken {
    /// The number of parts received.
    Parts(u32),
    /// A piece is to be written.
    Write(FileId, u64, Bytes),
    /// All files have arrived.
    Adopt,
    /// The data is invalid, so the leader must start over.
    Refused,
}

impl Incoming {
    fn new(number: ArrivalId, loader: Loader, from: NodeId, part: &Part) -> Self {
        Self {
            number,
            from,
            epoch: part.epoch,
            state: part.state,
            timestamp: part.timestamp,
            parts: 0,
            loader,
            files: Vec::new(),
            membership: SharedMembership::default(),
            file: 0,
            offset: 0,
            is_writing: false,
            is_adopting: false,
        }
    }

    /// Accepts a part if it is the next one.
    fn take(&mut self, part: Part, storage: &dyn Storage) -> Taken {
        if part.index != self.parts || self.is_writing || self.is_adopting {
            return Taken::Parts(self.parts);
        }
        match part.content {
            StatePart::Chunk(chunk) => {
                if self.loader.push(&chunk).is_err() {
                    return Taken::Refused;
                }
                self.parts += 1;
                Taken::Parts(self.parts)
            }
            StatePart::Files { files, membership } => {
                self.membership = membership;
                self.files = storage.rename(&files);
                self.parts += 1;
                self.skip_empty();
                if part.last { self.adopt() } else { Taken::Parts(self.parts) }
            }
            StatePart::Piece(bytes) => {
                let Some(file) = self.files.get(self.file) else { return Taken::Refused };
                if bytes.is_empty() || self.offset + bytes.len() as u64 > file.bytes {
                    return Taken::Refused;
                }
                self.is_writing = true;
                Taken::Write(file.id, self.offset, bytes)
            }
        }
    }

    fn skip_empty(&mut self) {
        while self.files.get(self.file).is_some_and(|file| self.offset >= file.bytes) {
            (self.file, self.offset) = (self.file + 1, 0);
        }
    }

    fn written(&mut self, bytes: u64) -> Taken {
        self.is_writing = false;
        self.parts += 1;
        self.offset += bytes;
        self.skip_empty();
        if self.file >= self.files.len() { self.adopt() } else { Taken::Parts(self.parts) }
    }

    fn adopt(&mut self) -> Taken {
        self.is_adopting = true;
        Taken::Adopt
    }
}

impl Replica {
    fn take_part(&mut self, from: NodeId, part: Part, arrivals: &mut u64) -> (Taken, Vec<FileRef>) {
        let mut unused = Vec::new();
        if let Some(other) = self.incoming.take_if(|incoming| incoming.state != part.state || incoming.from != from) {
            unused = other.files;
        }
        let incoming = self.incoming.get_or_insert_with(|| {
            *arrivals += 1;
            let loader = Loader::new(self.state.cohort(), self.state.kind());
            Incoming::new(ArrivalId(*arrivals), loader, from, &part)
        });
        incoming.epoch = part.epoch;
        let taken = incoming.take(part, self.state.storage());
        if matches!(taken, Taken::Refused) {
            unused.extend(self.incoming.take().into_iter().flat_map(|incoming| incoming.files));
        }
        (taken, unused)
    }

    /// Aborts the incoming snapshot. Returns the files received so far.
    pub(crate) fn end_arrival(&mut self) -> Vec<FileRef> {
        self.incoming.take().map(|incoming| incoming.files).unwrap_or_default()
    }
}

impl Node {
    pub(crate) fn part_received(&mut self, from: NodeId, id: CohortId, part: Part) {
        // The replica may have been removed.
        let Some(replica) = self.replicas.get_mut(&id) else { return };
        let follows = replica.cohort.leader() == Some(from) && replica.cohort.promised().epoch == part.epoch;
        let state = part.state;
        if !replica.cohort.wants_state(state.lsn) {
            return self.reply_installed(id, from, state);
        }
        match &replica.arrived {
            // This snapshot is being installed, or another one is and this one follows: the leader must wait.
            Some(arrived) => {
                let received = if arrived.id == state { arrived.parts } else { 0 };
                self.reply_received(id, from, state, received);
            }
            None if follows => {
                let (taken, unused) = replica.take_part(from, part, &mut self.transfers.arrivals);
                self.abandon(&unused);
                self.taken(id, from, state, taken);
            }
            None => {}
        }
    }

    fn taken(&mut self, id: CohortId, from: NodeId, state: StateId, taken: Taken) {
        match taken {
            Taken::Parts(received) => self.reply_received(id, from, state, received),
            Taken::Refused => self.reply_received(id, from, state, 0),
            Taken::Write(file, offset, bytes) => self.actions.push(Action::WriteFile { file, offset, bytes }),
            Taken::Adopt => {
                let replica = expected!(self.replicas.get(&id), "a part was accepted");
                let incoming = expected!(&replica.incoming, "a part was accepted");
                let adoption = replica.state.storage().adoption(incoming.files.clone());
                self.actions.push(Action::AdoptFiles { cohort: id, arrival: incoming.number, adoption });
            }
        }
    }

    /// A piece of a file is written but not forced, or the disk was full and the leader will retransmit it.
    pub(crate) fn file_written(&mut self, file: FileId, bytes: Option<u64>) {
        // The replica may have been removed, or the transfer aborted.
        let Some(replica) = self.replicas.get_mut(&file.cohort) else { return };
        let Some(incoming) = &mut replica.incoming else { return };
        let is_awaited = incoming.files.get(incoming.file).is_some_and(|at| at.id == file);
        if !is_awaited || !incoming.is_writing {
            return;
        }
        let (from, state) = (incoming.from, incoming.state);
        match bytes {
            Some(bytes) => {
                let taken = incoming.written(bytes);
                self.taken(file.cohort, from, state, taken);
            }
            None => incoming.is_writing = false,
        }
    }

    /// The files are verified: the snapshot is complete.
    pub(crate) fn files_adopted(&mut self, id: CohortId, arrival: ArrivalId, storage: Option<Box<dyn Storage>>) {
        // The replica may have been removed, or the transfer aborted.
        let Some(replica) = self.replicas.get_mut(&id) else { return };
        let Some(incoming) = replica.incoming.take_if(|incoming| incoming.number == arrival) else { return };
        let Incoming { from, epoch, state: whole, timestamp, parts, loader, files, membership, .. } = incoming;
        let adopted = storage.as_ref().map(|storage| storage.files()).unwrap_or_default();
        if !replica.cohort.wants_state(whole.lsn) {
            // Meanwhile another leader replicated the same entries through its log.
            self.abandon(&files);
            self.abandon(&adopted);
            return self.reply_installed(id, from, whole);
        }
        match (loader.finish(), storage) {
            (Ok(state), Some(storage)) if state.last_applied() == whole.lsn => {
                let arrived = Arrived {
                    from,
                    epoch,
                    id: whole,
                    timestamp,
                    parts,
                    state,
                    storage,
                    membership,
                    being_written: None,
                    written: None,
                };
                replica.arrived = Some(Box::new(arrived));
                self.reply_received(id, from, whole, parts);
                self.write_arrived(id);
            }
            // The data is incomplete or differs from the announced snapshot: the leader will start over.
            _ => {
                self.abandon(&files);
                self.abandon(&adopted);
                self.reply_received(id, from, whole, 0);
            }
        }
    }

    /// Writes a checkpoint of the received snapshot.
    fn write_arrived(&mut self, id: CohortId) {
        let checkpoint = self.number_checkpoint();
        let replica = expected!(self.replicas.get_mut(&id), "the replica has received a snapshot");
        let arrived = expected!(replica.arrived.as_mut(), "the replica has received a snapshot");
        arrived.being_written = Some(checkpoint);
        let (lsn, timestamp, state) = (arrived.id.lsn, arrived.timestamp, Box::new(arrived.state.clone()));
        self.actions.push(Action::WriteCheckpoint { cohort: id, checkpoint, lsn, timestamp, state, flush: None });
    }

    /// Removes received files that are no longer needed.
    pub(crate) fn abandon(&mut self, files: &[FileRef]) {
        if !files.is_empty() {
            let files = files.iter().map(|file| file.id).collect();
            self.actions.push(Action::RemoveFiles { files });
        }
    }

    fn reply_received(&mut self, id: CohortId, to: NodeId, state: StateId, received: u32) {
        self.send(to, Message::StateReply { cohort: id, state, received, installed: false }, AT_ONCE, None);
    }

    pub(crate) fn reply_installed(&mut self, id: CohortId, to: NodeId, state: StateId) {
        let replica = expected!(self.replicas.get(&id), "the replica has received a snapshot");
        // The log is truncated only after the manifest that names the snapshot is forced.
        let received = u32::MAX;
        let installed = !replica.cohort.wants_state(state.lsn);
        self.send(to, Message::StateReply { cohort: id, state, received, installed }, AT_ONCE, None);
    }
}
