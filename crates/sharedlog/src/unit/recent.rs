//! Which appends a unit has taken last, and where (guarantee 20).
//!
//! A sequencer asks the head of each chain for it when its epoch begins, so that an append that is tried again then has
//! the place that it had before. What was trimmed meanwhile stays known. What lies before a unit came it is copied, and
//! then it is told what the head of that chain remembers: what had been trimmed by then, too.

use base::canary::{Bug, planted};
use base::codec::{DecodeError, Reader, Writer};
use imbl::OrdMap;

use crate::limits::{RECENT_MAX, RECENT_TOLD_MAX, UNIT_STRIPES_MAX};
use crate::unit::Reply;
use crate::{Position, Stamp, Stripe};

/// The positions of a stripe from the first on, up to before the second.
pub type Range = (Stripe, Position, Position);

/// From where on all is known of some positions, by who knows all from one position on, and some ranges.
#[must_use]
pub fn known_from(from: Position, told_of: &[Range], of: Range) -> Position {
    let (stripe, least, to) = of;
    let is_alike = |other: &Stripe| *other == stripe || other.count == 1 && stripe.count == 1;
    let mut known = from.min(to);
    while let Some((_, lower, _)) =
        told_of.iter().find(|(of, lower, end)| is_alike(of) && *lower < known && known <= *end)
    {
        known = *lower;
    }
    known.max(least)
}

/// Where those begin that a unit has yet to tell after these, if there may be some.
#[must_use]
pub fn rest_after(appends: &[(Position, Stamp)]) -> Option<Position> {
    let (last, _) = appends.last().filter(|_| appends.len() >= RECENT_TOLD_MAX)?;
    Some(last.next())
}

/// The appends that a unit has taken last.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Recent {
    /// Of every append that it has taken at this position or after it is known.
    from: Position,
    /// So it is of these positions, up to before the second of each: it was told.
    told_of: Vec<Range>,
    /// Checkpoints share what has not changed since.
    stamps: OrdMap<Position, Stamp>,
}

impl Recent {
    pub(super) fn begin(from: Position) -> Self {
        Self { from, ..Self::default() }
    }

    pub(super) fn from(&self) -> Position {
        self.from
    }

    /// An append lies there.
    pub(super) fn note(&mut self, position: Position, stamp: Stamp) {
        self.stamps.insert(position, stamp);
        while self.stamps.len() > RECENT_MAX
            && let Some(first) = self.stamps.get_min().map(|(first, _)| *first)
        {
            self.stamps.remove(&first);
            self.from = self.from.max(first.next());
            self.told_of.iter_mut().for_each(|(_, lower, _)| *lower = first.next().max(*lower));
            self.told_of.retain(|(_, lower, end)| lower < end);
        }
    }

    /// These are all that its chain has taken in a range.
    pub(super) fn remember(&mut self, range: Range, appends: &[(Position, Stamp)]) {
        if range.1 < range.2 && !self.told_of.contains(&range) {
            self.told_of.push(range);
            self.told_of.sort_unstable_by_key(|(_, lower, _)| *lower);
        }
        if self.told_of.len() > UNIT_STRIPES_MAX {
            self.told_of.remove(0);
        }
        appends.iter().for_each(|(position, stamp)| self.note(*position, *stamp));
    }

    /// Whether it took that append there.
    pub(super) fn took(&self, position: Position, stamp: Stamp) -> bool {
        self.stamps.get(&position) == Some(&stamp)
    }

    /// Whether it was told of a range.
    pub(super) fn was_told_of(&self, range: Range) -> bool {
        self.told_of.contains(&range)
    }

    /// What lies below is trimmed. It stays known, but for a planted bug.
    pub(super) fn trim(&mut self, before: Position) {
        if planted(Bug::TrimmedUnknown) {
            self.stamps = self.stamps.range(before..).map(|(position, stamp)| (*position, *stamp)).collect();
        }
    }

    /// What it knows, with the first appends from a position on.
    pub(super) fn told(&self, from: Position) -> Reply {
        let appends = self.stamps.range(from..).take(RECENT_TOLD_MAX);
        let appends = appends.map(|(position, stamp)| (*position, *stamp)).collect();
        Reply::Recent { from: self.from, told_of: self.told_of.clone(), appends }
    }

    pub(super) fn len(&self) -> usize {
        self.stamps.len()
    }

    pub(super) fn encode(&self, writer: &mut Writer) {
        writer.u64(self.from.0);
        encode_ranges(writer, &self.told_of);
        let appends: Vec<_> = self.stamps.iter().map(|(position, stamp)| (*position, *stamp)).collect();
        encode_appends(writer, &appends);
    }

    pub(super) fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        let mut recent = Self::begin(Position::decode(reader)?);
        recent.told_of = decode_ranges(reader)?;
        recent.stamps = decode_appends(reader)?.into_iter().collect();
        Ok(recent)
    }
}

/// Writes ranges.
pub fn encode_ranges(writer: &mut Writer, ranges: &[Range]) {
    writer.u32(ranges.len() as u32);
    for (stripe, lower, end) in ranges {
        stripe.encode(writer);
        writer.u64(lower.0);
        writer.u64(end.0);
    }
}

/// Reads ranges.
///
/// # Errors
/// When they are none, or more than a unit has.
pub fn decode_ranges(reader: &mut Reader) -> Result<Vec<Range>, DecodeError> {
    let count = reader.count(Stripe::BYTES + 16)?;
    if count > UNIT_STRIPES_MAX {
        return Err(DecodeError::Invalid { what: "number of ranges" });
    }
    (0..count).map(|_| Ok((Stripe::decode(reader)?, Position::decode(reader)?, Position::decode(reader)?))).collect()
}

/// Writes appends with their positions.
pub fn encode_appends(writer: &mut Writer, appends: &[(Position, Stamp)]) {
    writer.u32(appends.len() as u32);
    for (position, stamp) in appends {
        writer.u64(position.0);
        stamp.encode(writer);
    }
}

/// Reads appends with their positions.
///
/// # Errors
/// When they are none, or more than a unit remembers.
pub fn decode_appends(reader: &mut Reader) -> Result<Vec<(Position, Stamp)>, DecodeError> {
    let count = reader.count(24)?;
    if count > RECENT_MAX {
        return Err(DecodeError::Invalid { what: "number of appends" });
    }
    (0..count).map(|_| Ok((Position::decode(reader)?, Stamp::decode(reader)?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ClientId;

    fn stamp(sequence: u64) -> Stamp {
        Stamp { client: ClientId(1), sequence }
    }

    fn told(recent: &Recent, from: u64) -> (u64, Vec<Range>, Vec<(Position, Stamp)>) {
        let Reply::Recent { from: known, told_of, mut appends } = recent.told(Position(from)) else {
            panic!("it tells what it knows");
        };
        while let Some(from) = rest_after(&appends)
            && let Reply::Recent { appends: rest, .. } = recent.told(from)
            && !rest.is_empty()
        {
            assert!(rest.len() <= RECENT_TOLD_MAX);
            appends.extend(rest);
        }
        (known.0, told_of, appends)
    }

    #[test]
    fn so_many_are_known_and_from_where_on() {
        let mut recent = Recent::begin(Position(10));
        recent.note(Position(9), stamp(9));
        assert_eq!(told(&recent, 0), (10, Vec::new(), vec![(Position(9), stamp(9))]));
        let range = |from, to| (Stripe::ALL, Position(from), Position(to));
        recent.remember(range(2, 10), &[(Position(3), stamp(3)), (Position(9), stamp(9))]);
        let max = RECENT_MAX as u64;
        // Not in their order, and with gaps.
        for position in (0..max - 2).map(|number| 10 + 2 * (number ^ 1)) {
            recent.note(Position(position), stamp(position));
        }
        assert_eq!((recent.len(), told(&recent, 0).1), (RECENT_MAX, vec![range(2, 10)]));
        let next = |number: u64| 10 + 2 * (max + number);
        recent.note(Position(next(1)), stamp(1));
        assert_eq!(
            (told(&recent, 0).0, told(&recent, 0).1),
            (10, vec![range(4, 10)]),
            "what lies first is forgotten first"
        );
        recent.note(Position(next(2)), stamp(2));
        recent.note(Position(next(3)), stamp(3));
        recent.trim(Position(10 + max));
        let (from, ranges, appends) = told(&recent, 0);
        assert_eq!((from, ranges, appends.len()), (11, Vec::new(), RECENT_MAX));
        assert_eq!(appends[0], (Position(12), stamp(12)));
        assert_eq!(told(&recent, next(3)).2, [(Position(next(3)), stamp(3))]);
        recent.remember(range(2, 10), &[]);

        let mut writer = Writer::new();
        recent.encode(&mut writer);
        let bytes = writer.finish();
        assert_eq!(Recent::decode(&mut Reader::new(bytes.clone())), Ok(recent));
        for at in 0..bytes.len() {
            assert!(Recent::decode(&mut Reader::new(bytes.slice(..at))).is_err(), "cut at {at}");
        }
    }

    #[test]
    fn what_is_known_of_a_range_may_be_known_in_parts() {
        let range = |stripe| move |of: &(u64, u64)| (stripe, Position(of.0), Position(of.1));
        let at = |from: u64, told_of: &[(u64, u64)], of: (u64, u64)| {
            let told_of: Vec<Range> = told_of.iter().map(range(Stripe::ALL)).collect();
            known_from(Position(from), &told_of, range(Stripe::ALL)(&of)).0
        };
        assert_eq!((at(0, &[], (5, 9)), at(7, &[], (5, 9)), at(12, &[], (5, 9))), (5, 7, 9));
        assert_eq!(at(12, &[(0, 9)], (5, 9)), 5);
        assert_eq!(at(12, &[(6, 12)], (5, 9)), 6);
        assert_eq!(at(12, &[(0, 7), (7, 12)], (5, 9)), 5);
        assert_eq!(at(12, &[(0, 7), (8, 12)], (5, 9)), 8);
        assert_eq!(at(7, &[(0, 7)], (5, 9)), 5);
        // What was told of one stripe says nothing of another.
        let [one, other] = [0, 1].map(|index| Stripe { from: Position(0), count: 2, index, width: 1 });
        let told_of = [range(one)(&(0, 9))];
        assert_eq!(known_from(Position(12), &told_of, range(one)(&(5, 9))), Position(5));
        assert_eq!(known_from(Position(12), &told_of, range(other)(&(5, 9))), Position(9));
    }
}
