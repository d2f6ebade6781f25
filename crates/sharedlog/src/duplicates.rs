//! Which appends a reader has seen already (guarantee 20).
//!
//! An append that stalled, was tried again by another process, and was then completed by a reader lies in the log twice. Every
//! reader delivers only the first. Whoever plays a log from its beginning remembers, of each client, the sequences that
//! came: all up to a floor, and those above it one by one. Clients have fewer than [`DUPLICATES_WINDOW`] appends under way at
//! one time, so what lies below the floor has come, or never will.
//!
//! The table is a function of what was played, and nothing else: whoever begins with a snapshot begins with its table, and
//! decides as those before it did.

use std::collections::{BTreeMap, BTreeSet};

use base::canary::{Bug, planted};
use base::codec::{DecodeError, Reader, Writer};
use bytes::Bytes;

use crate::limits::{DUPLICATES_CLIENTS_MAX, DUPLICATES_WINDOW};
use crate::{ClientId, Position, Stamp};

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
    pub fn is_first(&mut self, stamp: Stamp, position: Position) -> bool {
        let seen = self.clients.entry(stamp.client).or_default();
        self.oldest.remove(&(seen.last, stamp.client));
        seen.last = position;
        self.oldest.insert((position, stamp.client));
        let is_first = seen.note(stamp.sequence) || planted(Bug::DuplicateDelivered);
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
    /// Notes a sequence, and says whether it is new.
    fn note(&mut self, sequence: u64) -> bool {
        if sequence <= self.floor || !self.above.insert(sequence) {
            return false;
        }
        while self.floor.checked_add(1).is_some_and(|next| self.above.remove(&next)) {
            self.floor += 1;
        }
        if self.above.len() > DUPLICATES_WINDOW {
            self.floor = self.above.pop_first().unwrap_or(self.floor);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamp(client: u64, sequence: u64) -> Stamp {
        Stamp { client: ClientId(client), sequence }
    }

    #[test]
    fn the_first_of_a_stamp_is_told_from_those_after_it() {
        let mut table = Duplicates::default();
        let firsts = [(1, 2), (1, 1), (2, 1), (1, 2), (1, 1), (1, 9), (2, 1), (1, 3), (1, 9)];
        let told: Vec<bool> = (0..)
            .zip(firsts)
            .map(|(at, (client, sequence))| table.is_first(stamp(client, sequence), Position(at)))
            .collect();
        assert_eq!(told, [true, true, true, false, false, true, false, true, false]);
        let mut copy = Duplicates::decode(table.encode()).expect("it was written");
        assert_eq!(copy, table);
        assert!(!copy.is_first(stamp(1, 9), Position(20)));
        assert!(copy.is_first(stamp(1, 4), Position(21)));
    }

    #[test]
    fn a_client_takes_bounded_memory() {
        let mut table = Duplicates::default();
        // Never the one in front.
        for sequence in 2..3 * DUPLICATES_WINDOW as u64 {
            assert!(table.is_first(stamp(1, sequence), Position(sequence)));
        }
        assert!(table.clients.values().all(|seen| seen.above.len() <= DUPLICATES_WINDOW));
        assert!(!table.is_first(stamp(1, 1), Position(9_999)), "too late by more than a window");
        let bytes = table.encode();
        for at in 0..bytes.len() {
            let mut damaged = bytes.to_vec();
            damaged[at] ^= 0x41;
            let _ = Duplicates::decode(damaged.into());
        }
    }
}
