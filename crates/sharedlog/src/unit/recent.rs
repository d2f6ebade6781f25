//! Which appends a unit has taken last, and where (guarantee 20).
//!
//! A sequencer asks the head of each chain for it when its epoch begins, so that an append that is tried again then has
//! the place that it had before. What was trimmed meanwhile stays known. Of what lies before a unit came it knows what
//! it was copied: what had been trimmed by then it does not.

use std::collections::BTreeMap;

use base::canary::{Bug, planted};
use base::codec::{DecodeError, Reader, Writer};

use crate::limits::RECENT_MAX;
use crate::{Position, Stamp};

/// The appends that a unit has taken last.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Recent {
    /// Of every append that it has taken at this position or after it is known.
    from: Position,
    stamps: BTreeMap<Position, Stamp>,
}

impl Recent {
    pub(super) fn begin(from: Position) -> Self {
        Self { from, stamps: BTreeMap::new() }
    }

    pub(super) fn from(&self) -> Position {
        self.from
    }

    /// An append lies there.
    pub(super) fn note(&mut self, position: Position, stamp: Stamp) {
        self.stamps.insert(position, stamp);
        if self.stamps.len() > RECENT_MAX
            && let Some((first, _)) = self.stamps.pop_first()
        {
            self.from = self.from.max(first.next());
        }
    }

    /// What lies below is trimmed. It stays known, but for a planted bug.
    pub(super) fn trim(&mut self, before: Position) {
        if planted(Bug::TrimmedUnknown) {
            self.stamps = self.stamps.split_off(&before);
        }
    }

    /// From where on all is known, and the appends from a position on.
    pub(super) fn told(&self, from: Position) -> (Position, Vec<(Position, Stamp)>) {
        (self.from, self.stamps.range(from..).map(|(position, stamp)| (*position, *stamp)).collect())
    }

    pub(super) fn len(&self) -> usize {
        self.stamps.len()
    }

    pub(super) fn encode(&self, writer: &mut Writer) {
        writer.u64(self.from.0);
        writer.u32(self.stamps.len() as u32);
        for (position, stamp) in &self.stamps {
            writer.u64(position.0);
            stamp.encode(writer);
        }
    }

    pub(super) fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        let mut recent = Self::begin(Position::decode(reader)?);
        let count = reader.count(24)?;
        if count > RECENT_MAX {
            return Err(DecodeError::Invalid { what: "number of appends" });
        }
        for _ in 0..count {
            let (position, stamp) = (Position::decode(reader)?, Stamp::decode(reader)?);
            if recent.stamps.last_key_value().is_some_and(|(last, _)| *last >= position) {
                return Err(DecodeError::Invalid { what: "position of an append" });
            }
            recent.stamps.insert(position, stamp);
        }
        Ok(recent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ClientId;

    fn stamp(sequence: u64) -> Stamp {
        Stamp { client: ClientId(1), sequence }
    }

    #[test]
    fn so_many_are_known_and_from_where_on() {
        let mut recent = Recent::begin(Position(10));
        recent.note(Position(9), stamp(9));
        assert_eq!(recent.told(Position(0)), (Position(10), vec![(Position(9), stamp(9))]));
        let max = RECENT_MAX as u64;
        // Not in their order, and with gaps.
        for position in (0..max).map(|number| 10 + 2 * (number ^ 1)) {
            recent.note(Position(position), stamp(position));
        }
        assert_eq!(recent.told(Position(0)).0, Position(10), "what was copied is forgotten first");
        assert_eq!(recent.len(), RECENT_MAX);
        recent.note(Position(10 + 2 * max), stamp(1));
        recent.trim(Position(10 + max));
        let (from, told) = recent.told(Position(0));
        assert_eq!((from, told.len()), (Position(11), RECENT_MAX));
        assert_eq!(told[0], (Position(12), stamp(12)));
        assert_eq!(recent.told(Position(10 + 2 * max)).1, [(Position(10 + 2 * max), stamp(1))]);

        let mut writer = Writer::new();
        recent.encode(&mut writer);
        let bytes = writer.finish();
        assert_eq!(Recent::decode(&mut Reader::new(bytes.clone())), Ok(recent));
        for at in 0..bytes.len() {
            assert!(Recent::decode(&mut Reader::new(bytes.slice(..at))).is_err(), "cut at {at}");
        }
    }
}
