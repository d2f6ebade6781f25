//! Which units hold which positions (CORFU, section 2.2), as of one epoch.
//!
//! A projection is kept by the catalogue and changed by compare-and-set on its epoch, so there is one of each epoch. A
//! position lies in the last extent that begins at or before it, and there in the chain of its turn. Writes go down a
//! chain in its order; its last unit, the *tail*, answers reads.
//!
//! What may follow a projection ([`Projection::may_follow`]) keeps guarantee 20 as far as it can be told from the two
//! alone:
//! * Below the start, where something may be written, a chain keeps its order, loses units but not all, and gains only such as
//!   stood in the last extent before, at its end. That those are whole, and that those who stay are sealed, is the
//!   recovery's business.
//! * A unit that loses a place which it may have been written for stands in the last extent no more. It may hold what its
//!   chain never agreed on, and would disagree if it came back: and only units of the last extent join older chains.
//! * A unit that comes has a higher number than any before it.
//! * A chain that is given up has no unit, and never has one again.

use std::collections::BTreeSet;

use base::canary::{Bug, planted};
use base::codec::{DecodeError, Reader, Writer};
use base::{Boot, NodeId};
use bytes::Bytes;

use crate::limits::{COPIES_MAX, EXTENTS_MAX, POSITION_MAX, STRIPE_WIDTH_MAX, STRIPES_MAX};
use crate::{LogId, Position, ProjectionEpoch, SequencerId, Stripe, UnitId, stripe};

/// Positions that are spread over the same chains.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Extent {
    /// Its first position. It ends where the next extent begins.
    pub from: Position,
    /// How many positions in a row are of one chain, before the next one's come.
    pub width: u64,
    /// Its chains, each from head to tail. No unit stands in it twice. One without a unit was given up, with all that
    /// it held.
    pub chains: Vec<Vec<UnitId>>,
}

/// Which units hold which positions.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Projection {
    /// The log.
    pub log: LogId,
    /// Counts the log's projections, from 1.
    pub epoch: ProjectionEpoch,
    /// Who hands out positions.
    pub sequencer: SequencerId,
    /// The first position that it hands out. There and above nothing was written when the projection was made.
    pub start: Position,
    /// The highest number of a unit that has stood in a projection of the log. A unit that comes has a higher one: so
    /// none comes back that was left out.
    pub newest_unit: UnitId,
    /// The extents, by their first positions. What lies before the first one was trimmed.
    pub extents: Vec<Extent>,
}

/// Why a projection can't be, or can't follow another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    /// There is no extent, chain or unit in a place, or there are too many.
    #[error("{0} are missing or too many")]
    Count(&'static str),
    /// The extents are not in their order, or begin too far up.
    #[error("the extents are out of order")]
    Order,
    /// A unit stands twice in one extent.
    #[error("unit {0} stands twice in one extent")]
    Twice(UnitId),
    /// The log is another, the epoch is not the next, or the start goes back.
    #[error("it does not follow: {0}")]
    Succession(&'static str),
    /// Positions are spread in another way than they were written.
    #[error("position {0} lies in another place than before")]
    Moved(Position),
    /// A chain has lost its order or all of its units.
    #[error("the chain of position {0} keeps none of its units, or not their order")]
    Chain(Position),
    /// A unit that didn't stand in the last extent takes part in a chain that was written.
    #[error("unit {0} stands in a chain that was written before it came")]
    Stranger(UnitId),
    /// A unit's number is not new, or is higher than the highest.
    #[error("unit {0} has a number that was used before, or is not noted")]
    Number(UnitId),
    /// A unit that lost one of its places stands in the last extent.
    #[error("unit {0} was left out of one chain, and stands in the last extent")]
    HalfLeftOut(UnitId),
}

impl Extent {
    /// An extent. Where there is one chain it has all positions in a row.
    #[must_use]
    pub fn new(from: Position, width: u64, chains: Vec<Vec<UnitId>>) -> Self {
        let width = if chains.len() > 1 { width } else { 1 };
        Self { from, width, chains }
    }

    /// Whether an extent that begins at or after it spreads its positions as this one would if it went on.
    pub(crate) fn goes_on_in(&self, next: &Self) -> bool {
        let is_alike = (self.width, self.chains.len()) == (next.width, next.chains.len());
        let turned = self.chains.iter().cycle().skip(self.turn(next.from) as usize);
        is_alike && turned.zip(&next.chains).all(|(chain, next)| chain == next)
    }

    /// The chain of a position at or after its first.
    fn chain_of(&self, position: Position) -> &[UnitId] {
        let index = self.turn(position);
        self.chains.get(index as usize).map_or(&[], Vec::as_slice)
    }

    /// Whose turn a position is.
    pub(crate) fn turn(&self, position: Position) -> u64 {
        stripe::turn(self.from, self.width.max(1), self.chains.len().max(1) as u64, position)
    }

    /// The positions of one of its chains, as if it had no end.
    #[must_use]
    pub fn stripe(&self, chain: usize) -> Stripe {
        let (count, width) = (self.chains.len().max(1) as u64, self.width.max(1));
        Stripe { from: self.from, count, index: chain as u64, width }
    }

    /// Its units, chain by chain.
    pub fn units(&self) -> impl Iterator<Item = UnitId> {
        self.chains.iter().flatten().copied()
    }
}

impl Projection {
    /// The chain that holds a position; none if it lies before the first extent, and so was trimmed. It is empty if
    /// what it held was given up.
    #[must_use]
    pub fn chain_of(&self, position: Position) -> Option<&[UnitId]> {
        let extent = self.extents.iter().rev().find(|extent| extent.from <= position)?;
        Some(extent.chain_of(position))
    }

    /// Which of the extents, and which of its chains, a position lies in.
    pub(crate) fn place_of(&self, position: Position) -> Option<(usize, u64)> {
        let index = self.extents.iter().rposition(|extent| extent.from <= position)?;
        let extent = self.extents.get(index)?;
        Some((index, extent.turn(position)))
    }

    /// The first position that was not trimmed with its whole extent.
    #[must_use]
    pub fn first(&self) -> Position {
        self.extents.first().map_or(Position(0), |extent| extent.from)
    }

    /// The extent that new entries go to, once positions have come so far.
    #[must_use]
    pub fn last(&self) -> &Extent {
        const NONE: &Extent = &Extent { from: Position(0), width: 1, chains: Vec::new() };
        self.extents.last().unwrap_or(NONE)
    }

    /// Each extent with its end; the last one has none.
    pub fn bounded(&self) -> impl Iterator<Item = (&Extent, Option<Position>)> {
        let ends = self.extents.iter().skip(1).map(|next| Some(next.from)).chain([None]);
        self.extents.iter().zip(ends)
    }

    /// Every unit once, heads before those who come after them in the first chain that both stand in.
    #[must_use]
    pub fn units(&self) -> Vec<UnitId> {
        let mut seen = BTreeSet::new();
        self.extents.iter().flat_map(Extent::units).filter(|unit| seen.insert(*unit)).collect()
    }

    /// The stripes that a unit holds. Its node has it know them ([`Command::Tell`](crate::unit::Command::Tell)) when it
    /// learns of the projection.
    #[must_use]
    pub fn stripes_of(&self, unit: UnitId) -> Vec<Stripe> {
        let of_extent = |extent: &Extent| {
            let chains = extent.chains.iter().enumerate().filter(|(_, chain)| chain.contains(&unit));
            chains.map(|(index, _)| extent.stripe(index)).collect::<Vec<_>>()
        };
        self.extents.iter().flat_map(of_extent).collect()
    }

    /// Whether a projection can be such.
    ///
    /// # Errors
    /// The first thing that is wrong with it.
    pub fn check(&self) -> Result<(), Unfit> {
        let is_within = |count: usize, max: usize| (1..=max).contains(&count);
        if !is_within(self.extents.len(), EXTENTS_MAX) {
            return Err(Unfit::Count("extents"));
        }
        if self.epoch.0 == 0 {
            return Err(Unfit::Succession("epochs begin with 1"));
        }
        if let Some(unit) = self.units().into_iter().find(|unit| *unit > self.newest_unit) {
            return Err(Unfit::Number(unit));
        }
        let is_beyond = |position: Position| position.0 > POSITION_MAX;
        if self.extents.is_sorted_by(|a, b| a.from < b.from) && !is_beyond(self.start) && !is_beyond(self.last().from) {
            self.extents.iter().try_for_each(|extent| {
                if !is_within(extent.chains.len(), STRIPES_MAX) {
                    return Err(Unfit::Count("chains"));
                }
                if !(1..=STRIPE_WIDTH_MAX).contains(&extent.width) {
                    return Err(Unfit::Count("positions in a row"));
                }
                // What was given up is not written any more.
                let least = if std::ptr::eq(extent, self.last()) { 1 } else { 0 };
                if !extent.chains.iter().all(|chain| (least..=COPIES_MAX).contains(&chain.len())) {
                    return Err(Unfit::Count("units"));
                }
                let mut seen = BTreeSet::new();
                extent.units().try_for_each(|unit| if seen.insert(unit) { Ok(()) } else { Err(Unfit::Twice(unit)) })
            })
        } else {
            Err(Unfit::Order)
        }
    }

    /// Whether this projection may take the place of another.
    ///
    /// # Errors
    /// The first thing that is wrong with it, by itself or as a successor.
    pub fn may_follow(&self, old: &Self) -> Result<(), Unfit> {
        self.check()?;
        if self.log != old.log {
            return Err(Unfit::Succession("it is of another log"));
        }
        if self.epoch != old.epoch.next() {
            return Err(Unfit::Succession("its epoch is not the next"));
        }
        if self.start < old.start {
            return Err(Unfit::Succession("its start goes back"));
        }
        let known = BTreeSet::from_iter(old.units());
        let is_used = |unit: &UnitId| *unit <= old.newest_unit && !known.contains(unit);
        if let Some(unit) = self.units().into_iter().find(is_used)
            && !planted(Bug::OldValuesReturn)
        {
            return Err(Unfit::Number(unit));
        }
        if self.newest_unit < old.newest_unit {
            return Err(Unfit::Number(old.newest_unit));
        }
        // Whole extents may have been trimmed away.
        if !old.extents.iter().any(|extent| extent.from == self.first()) {
            return Err(Unfit::Moved(self.first()));
        }
        let known = old.last().units().collect();
        let mut left_out = BTreeSet::new();
        let froms = self.extents.iter().chain(&old.extents).map(|extent| extent.from);
        let froms: BTreeSet<Position> = froms.filter(|from| (self.first()..self.start).contains(from)).collect();
        let ends = froms.iter().copied().skip(1).chain([self.start]);
        for (from, end) in froms.iter().copied().zip(ends) {
            self.keeps(old, from, end, &known, &mut left_out)?;
        }
        self.last().units().find(|unit| left_out.contains(unit)).map_or(Ok(()), |unit| Err(Unfit::HalfLeftOut(unit)))
    }

    /// Whether positions from `from` to `end`, in one extent of each, are where they were.
    fn keeps(
        &self,
        old: &Self,
        from: Position,
        end: Position,
        known: &BTreeSet<UnitId>,
        left_out: &mut BTreeSet<UnitId>,
    ) -> Result<(), Unfit> {
        let of = |projection: &Self| projection.extents.iter().rev().find(|extent| extent.from <= from).cloned();
        let (Some(old), Some(new)) = (of(old), of(self)) else { return Err(Unfit::Moved(from)) };
        if (old.chains.len(), old.width) != (new.chains.len(), new.width) {
            return Err(Unfit::Moved(from));
        }
        let turns = (0..old.chains.len()).map(|chain| old.stripe(chain));
        let turns = turns.map(|stripe| stripe.position(stripe.before(from)));
        for position in turns.filter(|position| *position < end) {
            let (was, is) = (old.chain_of(position), new.chain_of(position));
            if was.is_empty() && !is.is_empty() {
                return Err(Unfit::Chain(position));
            }
            let kept = was.iter().filter(|unit| is.contains(unit));
            let count = kept.clone().count();
            let is_given_up = is.is_empty();
            if count == 0 && !is_given_up || !kept.eq(&is[..count]) {
                return Err(Unfit::Chain(position));
            }
            if let Some(stranger) = is[count..].iter().find(|unit| !known.contains(unit)) {
                return Err(Unfit::Stranger(*stranger));
            }
            left_out.extend(was.iter().filter(|unit| !is.contains(unit)));
        }
        Ok(())
    }

    /// Writes it.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut writer = Writer::new();
        writer.u64(self.log.0);
        writer.u64(self.epoch.0);
        writer.u32(self.sequencer.node.0);
        writer.u64(self.sequencer.boot.0);
        writer.u64(self.start.0);
        writer.u64(self.newest_unit.0);
        writer.u32(self.extents.len() as u32);
        for extent in &self.extents {
            writer.u64(extent.from.0);
            stripe::encode_count(&mut writer, extent.chains.len() as u64, extent.width);
            for chain in &extent.chains {
                writer.u32(chain.len() as u32);
                chain.iter().for_each(|unit| writer.u64(unit.0));
            }
        }
        writer.finish()
    }

    /// Reads one that passes its check.
    ///
    /// # Errors
    /// When the bytes are not one, or it can't be.
    pub fn decode(bytes: Bytes) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(bytes);
        let (log, epoch) = (LogId(reader.u64()?), ProjectionEpoch(reader.u64()?));
        let sequencer = SequencerId { node: NodeId(reader.u32()?), boot: Boot(reader.u64()?) };
        let (start, newest_unit) = (Position(reader.u64()?), UnitId(reader.u64()?));
        let extents = many(&mut reader, 12, |reader| {
            let from = Position(reader.u64()?);
            let (count, width) = stripe::decode_count(reader)?;
            let chain = |reader: &mut Reader| many(reader, 8, |reader| Ok(UnitId(reader.u64()?)));
            let chains = (0..count).map(|_| chain(reader)).collect::<Result<_, _>>()?;
            Ok(Extent { from, width, chains })
        })?;
        reader.end()?;
        let projection = Self { log, epoch, sequencer, start, newest_unit, extents };
        projection.check().map_err(|_| DecodeError::Invalid { what: "projection" })?;
        Ok(projection)
    }
}

/// A number of items, each of so many bytes at least.
fn many<T>(
    reader: &mut Reader,
    bytes: usize,
    read: impl Fn(&mut Reader) -> Result<T, DecodeError>,
) -> Result<Vec<T>, DecodeError> {
    let count = reader.count(bytes)?;
    (0..count).map(|_| read(reader)).collect()
}

#[cfg(test)]
mod tests;
