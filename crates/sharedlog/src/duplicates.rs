//! Recognises appends that a reader has already delivered (guarantee 20).
//!
//! A retried append may be in the log twice, if the node that made the first attempt crashed or timed out before it
//! replied. Units and sequencers do not deduplicate: readers deliver the first entry of each stamp and skip the others.
//! For each client, [`Duplicates`] holds the delivered sequences as intervals. A client numbers its appends
//! consecutively, so its appends form one interval, plus one for each missing append.
//!
//! *Limit.* It holds [`DUPLICATES_MAX`] intervals. Beyond that it evicts the lowest sequences of the client that
//! appended least recently. An evicted stamp counts as new: its entry may be delivered twice, but no entry is ever
//! skipped without having been delivered.
//!
//! An append without a caller's stamp has a stamp of the node that appended it ([`ClientId::FIRST_OF_NODES`]). A node
//! never repeats such an append before it has resolved the first position, so these stamps are not recorded.
//!
//! The state is a function of the entries played: a reader that starts from a snapshot restores the deduplication state
//! of that snapshot, and makes the same decisions as the readers before it.

use std::collections::{BTreeMap, BTreeSet};

use base::canary::{Bug, planted};
use base::codec::{DecodeError, Reader, Wire as _, Writer};
use bytes::Bytes;

use crate::limits::DUPLICATES_MAX;
use crate::{ClientId, Position, Stamp};

/// Memory of an interval: a key and a value of a B-tree whose nodes are half full.
const INTERVAL_BYTES: usize = 48;
/// Memory of a client, in two such trees.
const CLIENT_BYTES: usize = 64;

/// The stamps delivered so far.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Duplicates {
    /// The first stamp of each interval, and its last sequence. Intervals of a client neither overlap nor touch.
    seen: BTreeMap<Stamp, u64>,
    /// Position of each client's last entry.
    clients: BTreeMap<ClientId, Position>,
    /// The same, ordered by position: the least recent client is first.
    by_age: BTreeSet<(Position, ClientId)>,
}

impl Duplicates {
    /// Records an append, in the order of the log. Returns whether it is the first with its stamp.
    pub fn is_first(&mut self, stamp: Stamp, position: Position) -> bool {
        if stamp.client >= ClientId::FIRST_OF_NODES {
            return true;
        }
        if let Some(before) = self.clients.insert(stamp.client, position) {
            self.by_age.remove(&(before, stamp.client));
        }
        self.by_age.insert((position, stamp.client));
        let is_first = self.insert(stamp);
        while self.seen.len() > DUPLICATES_MAX {
            self.forget_one();
        }
        is_first || planted(Bug::DuplicateDelivered)
    }

    /// Adds a sequence to its client's intervals. Returns whether it is new.
    fn insert(&mut self, stamp: Stamp) -> bool {
        let of = |sequence| Stamp { sequence, ..stamp };
        let below = self.seen.range_mut(of(0)..=stamp).next_back();
        let touches = match below {
            Some((_, last)) if *last >= stamp.sequence => return false,
            Some((first, last)) if *last + 1 == stamp.sequence => {
                *last = stamp.sequence;
                Some(*first)
            }
            _ => None,
        };
        let above = stamp.sequence.checked_add(1).and_then(|next| self.seen.remove(&of(next)));
        let first = touches.unwrap_or(stamp);
        if touches.is_none() || above.is_some() {
            self.seen.insert(first, above.unwrap_or(stamp.sequence));
        }
        true
    }

    /// Evicts the lowest interval of the client that appended least recently, and the client with its last interval.
    fn forget_one(&mut self) {
        let Some((position, client)) = self.by_age.first().copied() else { return };
        let of_client = Stamp { client, sequence: 0 }..=Stamp { client, sequence: u64::MAX };
        let mut intervals = self.seen.range(of_client).map(|(first, _)| *first);
        let (lowest, is_last) = (intervals.next(), intervals.next().is_none());
        lowest.map(|lowest| self.seen.remove(&lowest));
        if is_last {
            self.by_age.remove(&(position, client));
            self.clients.remove(&client);
        }
    }

    #[must_use]
    pub fn clients(&self) -> usize {
        self.clients.len()
    }

    /// Approximate size in memory, in bytes.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.seen.len() * INTERVAL_BYTES + self.clients.len() * CLIENT_BYTES
    }

    /// The encoding for a snapshot.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut writer = Writer::new();
        writer.u32(self.clients.len() as u32);
        for (client, position) in &self.clients {
            writer.u64(client.0);
            writer.u64(position.0);
        }
        writer.u32(self.seen.len() as u32);
        for (first, last) in &self.seen {
            first.encode(&mut writer);
            writer.u64(*last);
        }
        writer.finish()
    }

    /// Decodes the deduplication state.
    ///
    /// # Errors
    /// When the bytes are malformed or exceed a limit.
    pub fn decode(bytes: Bytes) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(bytes);
        let mut table = Self::default();
        for _ in 0..reader.count(16)? {
            let (client, position) = (ClientId(reader.u64()?), Position::decode(&mut reader)?);
            table.clients.insert(client, position);
            table.by_age.insert((position, client));
        }
        let mut below: Option<(Stamp, u64)> = None;
        for _ in 0..reader.count(24)? {
            let (first, last) = (Stamp::decode(&mut reader)?, reader.u64()?);
            let is_apart = |(before, end): (Stamp, u64)| {
                before.client < first.client || before.client == first.client && end < first.sequence.saturating_sub(1)
            };
            if last < first.sequence || !below.is_none_or(is_apart) || !table.clients.contains_key(&first.client) {
                return Err(DecodeError::Invalid { what: "interval of sequences" });
            }
            below = Some((first, last));
            table.seen.insert(first, last);
        }
        if table.seen.len() > DUPLICATES_MAX || table.clients.len() > table.seen.len() {
            return Err(DecodeError::Invalid { what: "number of intervals" });
        }
        reader.end()?;
        Ok(table)
    }
}

#[cfg(test)]
mod tests {
    use base::SplitMix64;

    use super::*;

    fn stamp(client: u64, sequence: u64) -> Stamp {
        Stamp { client: ClientId(client), sequence }
    }

    /// Compares with a plain set while nothing is evicted.
    #[test]
    fn reports_first_of_each_stamp() {
        let mut random = SplitMix64::new(5);
        for _ in 0..200 {
            let (mut table, mut plain) = (Duplicates::default(), BTreeSet::new());
            for position in 0..80 {
                let stamp = stamp(1 + random.below(2), 1 + random.below(DUPLICATES_MAX as u64));
                assert_eq!(table.is_first(stamp, Position(position)), plain.insert(stamp), "{stamp:?}");
                if position % 20 == 0 {
                    table = Duplicates::decode(table.encode()).expect("own encoding");
                }
            }
        }
    }

    #[test]
    fn consecutive_sequences_form_one_interval() {
        let mut table = Duplicates::default();
        for sequence in 2..10_000 {
            assert!(table.is_first(stamp(1, sequence ^ 1), Position(sequence)));
        }
        assert!(table.seen.len() <= 2);
        assert!(!table.is_first(stamp(1, 77), Position(10_000)));
        assert!(table.is_first(stamp(1, u64::MAX), Position(10_001)));
        assert!(!table.is_first(stamp(1, u64::MAX), Position(10_002)));
    }

    #[test]
    fn evicts_lowest_of_oldest_client() {
        let mut table = Duplicates::default();
        let max = DUPLICATES_MAX as u64;
        assert!(table.is_first(stamp(9, 1), Position(0)));
        assert!(table.is_first(stamp(9, 3), Position(1)));
        for number in 2..max {
            assert!(table.is_first(stamp(1, 2 * number), Position(number)));
        }
        assert!(table.is_first(stamp(2, 7), Position(max)));
        assert_eq!((table.seen.len(), table.clients()), (DUPLICATES_MAX, 3));
        assert!(!table.seen.contains_key(&stamp(9, 1)) && table.seen.contains_key(&stamp(9, 3)));
        assert!(table.is_first(stamp(2, 9), Position(max + 1)));
        assert_eq!(table.clients(), 2, "client 9 is evicted");
        assert!(!table.is_first(stamp(1, 4), Position(max + 2)));
        // With a single client it evicts that client's lowest interval.
        let mut table = Duplicates::default();
        for sequence in (1..=max + 1).map(|number| 2 * number) {
            assert!(table.is_first(stamp(1, sequence), Position(sequence)));
        }
        assert_eq!(table.seen.len(), DUPLICATES_MAX);
        assert!(!table.is_first(stamp(1, 4), Position(3 * max)) && table.is_first(stamp(1, 2), Position(3 * max + 1)));
    }

    #[test]
    fn ignores_node_stamps() {
        let mut table = Duplicates::default();
        let of_node = Stamp { client: ClientId::FIRST_OF_NODES, sequence: 1 };
        assert!(table.is_first(of_node, Position(1)));
        assert_eq!(table, Duplicates::default());
    }

    #[test]
    fn duplicates_decoder_rejects_garbage() {
        let mut table = Duplicates::default();
        for (position, sequence) in (0..).zip([1, 2, 7, 9, 30]) {
            table.is_first(stamp(1 + position % 2, sequence), Position(position));
        }
        let bytes = table.encode();
        assert_eq!(Duplicates::decode(bytes.clone()), Ok(table));
        for at in 0..bytes.len() {
            assert!(Duplicates::decode(bytes.slice(..at)).is_err(), "cut at {at}");
            let mut damaged = bytes.to_vec();
            damaged[at] ^= 0x41;
            let _ = Duplicates::decode(damaged.into());
        }
    }
}
