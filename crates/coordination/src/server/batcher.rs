//! Group commit: items accumulate while batches are in flight, and form the next batch.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use base::{Monotonic, Now};
use bytes::Bytes;

use super::{AppendId, ConnectionId, OwnBatch};
use crate::acl::Id;
use crate::entry::{Batch, Item, ServerId, identities_len};
use crate::limits::{BATCH_BYTES, BATCH_ITEMS_MAX, ENTRY_BYTES_MAX};

/// The source of an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// A connection's first frame.
    Connect(ConnectionId),
    Request(ConnectionId),
    Touch(ConnectionId),
    None,
}

#[derive(Debug)]
struct Gathered {
    item: Item,
    ids: Option<Arc<[Id]>>,
    origin: Origin,
}

/// A batch that is not applied yet.
#[derive(Debug)]
pub(super) struct UnderWay {
    append: AppendId,
    entry: Bytes,
    batch: Arc<Batch>,
    /// The origin of each item.
    pub(super) origins: Vec<Origin>,
    /// When the batch was created.
    pub(super) made: Monotonic,
    has_failed: bool,
}

#[derive(Debug, Default)]
pub(super) struct Batcher {
    gathered: VecDeque<Gathered>,
    gathered_bytes: usize,
    under_way: BTreeMap<u64, UnderWay>,
    /// Number of batches created.
    made: u64,
    /// Whether to append a batch even if it is empty.
    wants_empty: bool,
    joining: Option<Joining>,
}

#[derive(Debug)]
struct Joining {
    append: AppendId,
    entry: Bytes,
    since: Monotonic,
    has_failed: bool,
}

impl Batcher {
    pub(super) fn gather(&mut self, item: Item, ids: Option<Arc<[Id]>>, origin: Origin) {
        self.gathered_bytes += item.encoded_len();
        self.gathered.push_back(Gathered { item, ids, origin });
    }

    /// Requests an empty batch, unless another one is pending or in flight.
    pub(super) fn prove_liveness(&mut self) {
        self.wants_empty = self.gathered.is_empty() && self.under_way.is_empty();
    }

    pub(super) const fn gathered_bytes(&self) -> usize {
        self.gathered_bytes
    }

    pub(super) fn can_append(&self, in_flight_max: usize) -> bool {
        (self.wants_empty || !self.gathered.is_empty()) && self.under_way.len() < in_flight_max
    }

    /// Creates a batch of the accumulated items. Returns its entry, and the number of items.
    pub(super) fn append(&mut self, append: AppendId, server: ServerId, now: Now) -> (Bytes, usize) {
        self.made += 1;
        self.wants_empty = false;
        let mut batch = Batch {
            server,
            number: self.made,
            time_ms: Batch::time_of(now.wall),
            identities: Vec::new(),
            items: Vec::new(),
        };
        let (mut origins, mut bytes, mut identity_bytes) = (Vec::new(), 0, 0);
        let mut known: BTreeMap<Arc<[Id]>, u32> = BTreeMap::new();
        while bytes + identity_bytes < BATCH_BYTES
            && origins.len() < BATCH_ITEMS_MAX
            && let Some(Gathered { mut item, ids, origin }) = self.gathered.pop_front()
        {
            bytes += item.encoded_len();
            if let (Item::Request { identities, .. }, Some(ids)) = (&mut item, ids) {
                let next = u32::try_from(batch.identities.len()).unwrap_or(u32::MAX);
                *identities = *known.entry(ids.clone()).or_insert(next);
                if *identities == next {
                    identity_bytes += identities_len(&ids);
                    batch.identities.push(ids.to_vec());
                }
            }
            batch.items.push(item);
            origins.push(origin);
        }
        self.gathered_bytes -= bytes;
        let entry = batch.encode();
        debug_assert!(entry.len() <= ENTRY_BYTES_MAX, "requests and identities are limited on arrival");
        let batch = Arc::new(batch);
        let (made, items) = (now.monotonic, origins.len());
        self.under_way
            .insert(self.made, UnderWay { append, entry: entry.clone(), batch, origins, made, has_failed: false });
        (entry, items)
    }

    /// The batch of a completed append; none if it was applied already. A join entry is applied when it is played.
    pub(super) fn appended(&self, append: AppendId) -> Option<OwnBatch> {
        let batch = self.under_way.values().find(|under_way| under_way.append == append)?;
        Some((batch.batch.clone(), batch.entry.len()))
    }

    /// Whether this batch was not applied yet.
    pub(super) fn is_in_flight(&self, number: u64) -> bool {
        self.under_way.contains_key(&number)
    }

    pub(super) fn failed(&mut self, append: AppendId) {
        if let Some(failed) = self.under_way.values_mut().find(|under_way| under_way.append == append) {
            failed.has_failed = true;
        }
        if let Some(joining) = self.joining.as_mut().filter(|joining| joining.append == append) {
            joining.has_failed = true;
        }
    }

    /// The failed appends, to be retried unchanged: duplicates in the log are applied once.
    pub(super) fn retry(&mut self) -> Vec<(AppendId, Bytes)> {
        let mut again = Vec::new();
        if let Some(joining) = self.joining.as_mut().filter(|joining| joining.has_failed) {
            joining.has_failed = false;
            again.push((joining.append, joining.entry.clone()));
        }
        for failed in self.under_way.values_mut().filter(|under_way| under_way.has_failed) {
            failed.has_failed = false;
            again.push((failed.append, failed.entry.clone()));
        }
        again
    }

    /// Removes a batch that was applied.
    pub(super) fn applied(&mut self, number: u64) -> Option<UnderWay> {
        self.under_way.remove(&number)
    }

    pub(super) fn join(&mut self, append: AppendId, entry: Bytes, since: Monotonic) {
        self.joining = Some(Joining { append, entry, since, has_failed: false });
    }

    pub(super) fn joined(&mut self) {
        self.joining = None;
    }

    /// When the oldest append in flight was created.
    pub(super) fn oldest(&self) -> Option<Monotonic> {
        let joining = self.joining.as_ref().map(|joining| joining.since);
        joining.or_else(|| self.under_way.values().next().map(|under_way| under_way.made))
    }
}
