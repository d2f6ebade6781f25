//! Which appends a reader has seen already (guarantee 20).
//!
//! An append lies in the log once, but for one whose caller named nothing that no attempt lies below, and tried it again
//! later than the log remembers: that may lie there twice. Players deliver only the first. Whoever plays a log from its beginning remembers, of each client, the
//! sequences that came: all up to a floor, and those above it one by one. Every entry says which append of its client's
//! was the oldest open one when it began: what came before that is decided, so whatever of it lies further up is a
//! duplicate. The floor rises by that, and by nothing else but sequences that came. No entry is [`DUPLICATES_WINDOW`]
//! above the oldest open append that it names: the client refuses to make it, and it isn't decoded. So the sequences
//! above a floor are bounded.
//!
//! The table is a function of what was played, and nothing else: whoever begins with a snapshot begins with its table,
//! and decides as those before it did.

use std::collections::{BTreeMap, BTreeSet};

use base::canary::{Bug, planted};
use base::codec::{DecodeError, Reader, Writer};
use bytes::Bytes;

use crate::limits::{DUPLICATES_CLIENTS_MAX, DUPLICATES_WINDOW};
use crate::{ClientId, Data, Position};

/// The appends that were seen.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Duplicates {
    clients: BTreeMap<ClientId, Seen>,
    /// The clients by where they appended last.
    oldest: BTreeSet<(Position, ClientId)>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Seen {
    /// Where the client's last entry lies.
    last: Position,
    /// Every sequence up to this one counts as seen.
    floor: u64,
    above: BTreeSet<u64>,
}

impl Duplicates {
    /// Notes an append at a position, in the log's order, and says whether it is the first of its stamp.
    pub fn is_first(&mut self, data: &Data, position: Position) -> bool {
        let stamp = data.stamp;
        let seen = self.clients.entry(stamp.client).or_default();
        self.oldest.remove(&(seen.last, stamp.client));
        seen.last = position;
        self.oldest.insert((position, stamp.client));
        let is_first = seen.note(stamp.sequence, data.oldest_open) || planted(Bug::DuplicateDelivered);
        if self.clients.len() > DUPLICATES_CLIENTS_MAX
            && let Some((_, client)) = self.oldest.pop_first()
        {
            self.clients.remove(&client);
        }
        is_first
    }

    /// Clients that are remembered.
    #[must_use]
    pub fn clients(&self) -> usize {
        self.clients.len()
    }

    /// Writes the table, for a snapshot.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut writer = Writer::new();
        writer.u32(self.clients.len() as u32);
        for (client, seen) in &self.clients {
            writer.u64(client.0);
            writer.u64(seen.last.0);
            writer.u64(seen.floor);
            writer.u32(seen.above.len() as u32);
            seen.above.iter().for_each(|sequence| writer.u64(*sequence));
        }
        writer.finish()
    }

    /// Reads a table.
    ///
    /// # Errors
    /// When the bytes are none.
    pub fn decode(bytes: Bytes) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(bytes);
        let mut table = Self::default();
        let count = reader.count(28)?;
        if count > DUPLICATES_CLIENTS_MAX {
            return Err(DecodeError::Invalid { what: "number of clients" });
        }
        for _ in 0..count {
            let (client, last, floor) = (ClientId(reader.u64()?), Position::decode(&mut reader)?, reader.u64()?);
            let above = (0..reader.count(8)?).map(|_| reader.u64()).collect::<Result<BTreeSet<_>, _>>()?;
            let is_bounded = above.len() <= DUPLICATES_WINDOW && above.first().is_none_or(|least| *least > floor);
            if !is_bounded || table.clients.insert(client, Seen { last, floor, above }).is_some() {
                return Err(DecodeError::Invalid { what: "sequences of a client" });
            }
            table.oldest.insert((last, client));
        }
        reader.end()?;
        Ok(table)
    }
}

impl Seen {
    /// Notes a sequence, and that all below another are decided, and says whether it is new.
    fn note(&mut self, sequence: u64, oldest_open: u64) -> bool {
        let is_new = sequence > self.floor && self.above.insert(sequence);
        if oldest_open > self.floor {
            self.floor = oldest_open - 1;
            self.above = self.above.split_off(&oldest_open);
        }
        while self.floor.checked_add(1).is_some_and(|next| self.above.remove(&next)) {
            self.floor += 1;
        }
        is_new
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Batch, Stamp};

    const WINDOW: u64 = DUPLICATES_WINDOW as u64;

    fn data(client: u64, sequence: u64, oldest_open: u64) -> Data {
        let stamp = Stamp { client: ClientId(client), sequence };
        assert!(stamp.is_in_window(oldest_open));
        Data { stamp, oldest_open, batch: Batch::of(&[]).expect("it is empty") }
    }

    #[test]
    fn the_first_of_a_stamp_is_told_from_those_after_it() {
        let mut table = Duplicates::default();
        let firsts = [(1, 2), (1, 1), (2, 1), (1, 2), (1, 1), (1, 7), (2, 1), (1, 3), (1, 7)];
        let told: Vec<bool> = (0..)
            .zip(firsts)
            .map(|(at, (client, sequence))| table.is_first(&data(client, sequence, 1), Position(at)))
            .collect();
        assert_eq!(told, [true, true, true, false, false, true, false, true, false]);
        let mut copy = Duplicates::decode(table.encode()).expect("it was written");
        assert_eq!(copy, table);
        assert!(!copy.is_first(&data(1, 7, 1), Position(20)));
        assert!(copy.is_first(&data(1, 4, 1), Position(21)));
    }

    /// What is open is remembered, however far its client has come otherwise; what is decided is not.
    #[test]
    fn only_what_is_decided_is_forgotten() {
        let mut table = Duplicates::default();
        for sequence in 2..=WINDOW {
            assert!(table.is_first(&data(1, sequence, 1), Position(sequence)));
        }
        assert!(table.is_first(&data(1, 1, 1), Position(20)), "it was open all the while");
        assert!(!table.is_first(&data(1, 1, 1), Position(21)));
        // Sequence 10 is given up, and so is whatever comes of it yet.
        assert!(table.is_first(&data(1, 14, 12), Position(22)));
        assert!(!table.is_first(&data(1, 10, 9), Position(23)));
        assert!(table.is_first(&data(1, 12, 12), Position(24)));
    }

    #[test]
    fn a_client_takes_bounded_memory() {
        let mut table = Duplicates::default();
        // Never the one in front: it is given up at last.
        for sequence in 2..40 * WINDOW {
            let oldest_open = (sequence + 1).saturating_sub(WINDOW).max(1);
            assert!(table.is_first(&data(1, sequence, oldest_open), Position(sequence)));
            assert!(table.clients.values().all(|seen| seen.above.len() <= DUPLICATES_WINDOW));
        }
        let bytes = table.encode();
        for at in 0..bytes.len() {
            let mut damaged = bytes.to_vec();
            damaged[at] ^= 0x41;
            let _ = Duplicates::decode(damaged.into());
        }
    }
}
