//! The map from positions to units (CORFU, section 2.2) at one epoch.
//!
//! The catalog stores the projection and replaces it by compare-and-set on the epoch, so each epoch has exactly one
//! projection. A position belongs to the last extent that begins at or before it, and within the extent to a chain
//! chosen round-robin. Writes go down the chain in order; its last unit, the *tail*, serves reads.
//!
//! The rules for a successor ([`Projection::may_follow`]) preserve guarantee 20 as far as the two projections alone can
//! show:
//! * Below the start, where entries may exist, a chain keeps its order. It may lose units, but not all of them. It may
//!   gain units at its end, and only units of the previous last extent. Recovery ensures that the new units are
//!   complete and that the remaining ones are sealed.
//! * A unit that leaves a chain to which it may have been written leaves the last extent too. It may hold entries that
//!   its chain never agreed on, and only units of the last extent join older chains, so it can never return with them.
//! * A new unit has a higher number than any earlier unit.
//! * An abandoned chain has no unit and never gets one again.

use std::collections::BTreeSet;

use base::canary::{Bug, planted};
use base::codec::{DecodeError, Reader, Wire, Writer};
use bytes::Bytes;

use crate::limits::{COPIES_MAX, EXTENTS_MAX, POSITION_MAX, STRIPE_WIDTH_MAX, STRIPES_MAX};
use crate::{LogId, Position, ProjectionEpoch, SequencerId, Stripe, UnitId, stripe};

/// A range of positions that are striped over the same chains.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Extent {
    /// Its first position. It ends where the next extent begins.
    pub from: Position,
    /// Stripe width: consecutive positions in one chain.
    pub width: u64,
    /// The chains, each from head to tail. A unit occurs at most once in an extent. An empty chain was abandoned, and
    /// its entries are lost.
    pub chains: Vec<Vec<UnitId>>,
}

/// The map from positions to units at one epoch.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Projection {
    /// The log that it describes.
    pub log: LogId,
    /// Counts the log's projections, from 1.
    pub epoch: ProjectionEpoch,
    /// The process that hands out positions in this epoch.
    pub sequencer: SequencerId,
    /// The first position that the sequencer hands out. No position from here on was written when the projection was
    /// made.
    pub start: Position,
    /// The highest unit number in any projection of the log so far. New units get higher numbers, so a removed unit
    /// cannot return.
    pub newest_unit: UnitId,
    /// The extents in ascending order. Positions below the first extent are trimmed.
    pub extents: Vec<Extent>,
}

/// Why a projection is invalid, or cannot follow another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    /// The number of extents, chains or units is out of range.
    #[error("the number of {0} is out of range")]
    Count(&'static str),
    /// The extents are not in ascending order, or a position is above the limit.
    #[error("the extents are not in ascending order")]
    Order,
    /// A unit occurs twice in one extent.
    #[error("unit {0} occurs twice in one extent")]
    Twice(UnitId),
    /// The log differs, the epoch is not the next, or the start moves back.
    #[error("not a valid successor: {0}")]
    Succession(&'static str),
    /// Written positions would be striped differently.
    #[error("position {0} would move to another chain")]
    Moved(Position),
    /// A chain lost all of its units, or changed their order.
    #[error("the chain of position {0} lost all of its units, or changed their order")]
    Chain(Position),
    /// A unit that was not in the last extent joins a chain that was already written.
    #[error("unit {0} joins a chain with entries that it may lack")]
    Stranger(UnitId),
    /// A unit's number was used before, or exceeds `newest_unit`.
    #[error("unit {0} reuses a number, or its number exceeds newest_unit")]
    Number(UnitId),
    /// A unit that was removed from one chain remains in the last extent.
    #[error("unit {0} was removed from one chain but remains in the last extent")]
    HalfLeftOut(UnitId),
}

impl Extent {
    /// Creates an extent. With one chain the width is irrelevant and set to 1.
    #[must_use]
    pub fn new(from: Position, width: u64, chains: Vec<Vec<UnitId>>) -> Self {
        let width = if chains.len() > 1 { width } else { 1 };
        Self { from, width, chains }
    }

    /// Whether `next`, which begins at or after this extent, stripes its positions as this extent would if it
    /// continued.
    pub(crate) fn goes_on_in(&self, next: &Self) -> bool {
        let is_alike = (self.width, self.chains.len()) == (next.width, next.chains.len());
        let turned = self.chains.iter().cycle().skip(self.turn(next.from) as usize);
        is_alike && turned.zip(&next.chains).all(|(chain, next)| chain == next)
    }

    /// The chain of a position in this extent.
    fn chain_of(&self, position: Position) -> &[UnitId] {
        let index = self.turn(position);
        self.chains.get(index as usize).map_or(&[], Vec::as_slice)
    }

    /// Index of the chain of a position.
    pub(crate) fn turn(&self, position: Position) -> u64 {
        stripe::turn(self.from, self.width.max(1), self.chains.len().max(1) as u64, position)
    }

    /// The positions of one chain, as if the extent had no end.
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
    /// The chain that holds a position. `None` if the position is below the first extent, and so is trimmed. Empty if
    /// the chain was abandoned.
    #[must_use]
    pub fn chain_of(&self, position: Position) -> Option<&[UnitId]> {
        let extent = self.extents.iter().rev().find(|extent| extent.from <= position)?;
        Some(extent.chain_of(position))
    }

    /// Index of the extent and of the chain that hold a position.
    pub(crate) fn place_of(&self, position: Position) -> Option<(usize, u64)> {
        let index = self.extents.iter().rposition(|extent| extent.from <= position)?;
        let extent = self.extents.get(index)?;
        Some((index, extent.turn(position)))
    }

    /// The first position of the first extent. Everything below is trimmed.
    #[must_use]
    pub fn first(&self) -> Position {
        self.extents.first().map_or(Position(0), |extent| extent.from)
    }

    /// The extent in which new entries are written.
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

    /// Every unit once, in the order of extents and chains.
    #[must_use]
    pub fn units(&self) -> Vec<UnitId> {
        let mut seen = BTreeSet::new();
        self.extents.iter().flat_map(Extent::units).filter(|unit| seen.insert(*unit)).collect()
    }

    /// The stripes assigned to a unit. Its node passes them to the unit
    /// ([`Command::AssignStripes`](crate::unit::Command::AssignStripes)) when it learns of the projection.
    #[must_use]
    pub fn stripes_of(&self, unit: UnitId) -> Vec<Stripe> {
        let of_extent = |extent: &Extent| {
            let chains = extent.chains.iter().enumerate().filter(|(_, chain)| chain.contains(&unit));
            chains.map(|(index, _)| extent.stripe(index)).collect::<Vec<_>>()
        };
        self.extents.iter().flat_map(of_extent).collect()
    }

    /// Checks that a projection is valid by itself.
    ///
    /// # Errors
    /// The first violation found.
    pub fn check(&self) -> Result<(), Unfit> {
        let is_within = |count: usize, max: usize| (1..=max).contains(&count);
        if !is_within(self.extents.len(), EXTENTS_MAX) {
            return Err(Unfit::Count("extents"));
        }
        if self.epoch.0 == 0 {
            return Err(Unfit::Succession("epochs start at 1"));
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
                    return Err(Unfit::Count("consecutive positions per chain"));
                }
                // Only earlier extents may have abandoned chains, because nothing is written there any more.
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

    /// Checks that this projection may replace `old`.
    ///
    /// # Errors
    /// The first violation found, in this projection alone or as a successor.
    pub fn may_follow(&self, old: &Self) -> Result<(), Unfit> {
        self.check()?;
        if self.log != old.log {
            return Err(Unfit::Succession("it describes another log"));
        }
        if self.epoch != old.epoch.next() {
            return Err(Unfit::Succession("its epoch is not the next one"));
        }
        if self.start < old.start {
            return Err(Unfit::Succession("its start moves back"));
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
        // Whole extents may have been trimmed.
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

    /// Checks that the positions from `from` to `end`, within one extent of each projection, keep their chains.
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

    /// The encoding, as the catalog stores it.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut writer = Writer::new();
        writer.u64(self.log.0);
        writer.u64(self.epoch.0);
        self.sequencer.encode(&mut writer);
        writer.u64(self.start.0);
        writer.u64(self.newest_unit.0);
        writer.u32(self.extents.len() as u32);
        for extent in &self.extents {
            writer.u64(extent.from.0);
            stripe::encode_count(&mut writer, extent.chains.len() as u64, extent.width);
            extent.chains.iter().for_each(|chain| chain.encode(&mut writer));
        }
        writer.finish()
    }

    /// Decodes and checks a projection.
    ///
    /// # Errors
    /// When the bytes are malformed or [`Projection::check`] fails.
    pub fn decode(bytes: Bytes) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(bytes);
        let (log, epoch) = (LogId(reader.u64()?), ProjectionEpoch(reader.u64()?));
        let sequencer = SequencerId::decode(&mut reader)?;
        let (start, newest_unit) = (Position(reader.u64()?), UnitId(reader.u64()?));
        let extent = |reader: &mut Reader| {
            let from = Position(reader.u64()?);
            let (count, width) = stripe::decode_count(reader)?;
            let chains = (0..count).map(|_| Vec::decode(reader)).collect::<Result<_, _>>()?;
            Ok(Extent { from, width, chains })
        };
        let extents = (0..reader.count(12)?).map(|_| extent(&mut reader)).collect::<Result<_, DecodeError>>()?;
        reader.end()?;
        let projection = Self { log, epoch, sequencer, start, newest_unit, extents };
        projection.check().map_err(|_| DecodeError::Invalid { what: "projection" })?;
        Ok(projection)
    }
}

/// The bytes of the catalog's record, after their length.
impl Wire for Projection {
    const BYTES_MIN: usize = 4;

    fn encode(&self, out: &mut Writer) {
        out.bytes(&self.encode());
    }

    fn decode(input: &mut Reader) -> Result<Self, DecodeError> {
        Self::decode(input.bytes()?)
    }
}

#[cfg(test)]
mod tests;
