//! What follows a projection, from what its sealed units have said.

use base::canary::{Bug, planted};

use crate::recovery::Recovery;
use crate::{Extent, Position, Projection, Stripe, UnitId};

/// A unit that is to hold what a chain with too few units holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Healing {
    /// The unit. It stands in the last extent, and nowhere in this one.
    pub unit: UnitId,
    /// The positions.
    pub stripe: Stripe,
    /// Where they end.
    pub to: Position,
}

/// What is to be copied so that every chain has so many units. Only what lies in extents that have an end is copied: what new
/// units are told from their beginning need not be.
#[must_use]
pub fn healings(projection: &Projection, copies: usize) -> Vec<Healing> {
    let mut healings = Vec::new();
    for (extent, end) in projection.bounded() {
        let Some(to) = end else { continue };
        let mut free = candidates(projection, extent);
        for (index, chain) in extent.chains.iter().enumerate() {
            for _ in chain.len()..copies {
                let Some(unit) = take_for(&mut free, index) else { break };
                healings.push(Healing { unit, stripe: extent.stripe(index), to });
            }
        }
    }
    healings
}

/// Units of the last extent that don't stand in this one, with their chains there.
fn candidates(projection: &Projection, extent: &Extent) -> Vec<(usize, UnitId)> {
    let last = projection.last().chains.iter().enumerate();
    let all = last.flat_map(|(index, chain)| chain.iter().map(move |unit| (index, *unit)));
    all.filter(|(_, unit)| !extent.units().any(|other| other == *unit)).collect()
}

/// One for a chain: of the same turn if there is one, so that extents become alike.
fn take_for(free: &mut Vec<(usize, UnitId)>, index: usize) -> Option<UnitId> {
    let at = free.iter().position(|(of, _)| *of == index).or(if free.is_empty() { None } else { Some(0) })?;
    Some(free.remove(at).1)
}

impl Recovery {
    /// The projection that is to follow; none if there can't be one.
    pub(super) fn successor(&self) -> Option<Projection> {
        let start = self.tail();
        let mut extents: Vec<Extent> = self.old.extents.iter().map(|extent| self.kept(extent)).collect();
        self.add_whole(&mut extents);
        let mut successor = Projection {
            epoch: self.old.epoch.next(),
            sequencer: self.plan.sequencer,
            start,
            extents,
            ..self.old.clone()
        };
        drop_trimmed(&mut successor.extents, self.trimmed());
        let without_spares = successor.clone();
        self.add_spares(&mut successor);
        [successor, without_spares].into_iter().find_map(|mut successor| {
            join(&mut successor.extents);
            successor.may_follow(&self.old).is_ok().then_some(successor)
        })
    }

    fn kept(&self, extent: &Extent) -> Extent {
        let kept = |chain: &Vec<UnitId>| chain.iter().copied().filter(|unit| self.stays(*unit)).collect();
        Extent { from: extent.from, chains: extent.chains.iter().map(kept).collect() }
    }

    /// Has units join chains whose positions they hold to the last one, by their own word.
    fn add_whole(&self, extents: &mut [Extent]) {
        let old = &self.old;
        for (at, (extent, end)) in old.bounded().enumerate() {
            let Some(to) = end else { continue };
            for (index, unit) in candidates(old, extent) {
                let turns = std::iter::once(index).chain(0..extent.chains.len());
                let fits = |turn: &usize| {
                    let chain = extents[at].chains.get(*turn);
                    let has_room = chain.is_some_and(|chain| chain.len() < self.plan.copies);
                    has_room && self.is_whole(unit, extent.stripe(*turn), to)
                };
                if self.stays(unit)
                    && let Some(turn) = turns.into_iter().find(fits)
                {
                    extents[at].chains[turn].push(unit);
                }
            }
        }
    }

    /// Whether a unit has said that it holds all of a stripe below a position.
    fn is_whole(&self, unit: UnitId, stripe: Stripe, to: Position) -> bool {
        let Some(report) = self.reports.get(&unit) else { return false };
        let is_whole = |(told, missing): &(Stripe, Position)| *told == stripe && *missing >= to;
        report.whole.iter().any(is_whole) || planted(Bug::CopyNotWhole)
    }

    /// Has new units stand in for those that are missing, and makes new chains, in an extent of their own from the start on.
    fn add_spares(&self, successor: &mut Projection) {
        let last = successor.last().clone();
        let mut spares = self.plan.spares.iter().copied();
        let mut chains = last.chains.clone();
        for chain in &mut chains {
            let missing = self.plan.copies.saturating_sub(chain.len());
            chain.extend(spares.by_ref().take(missing));
        }
        while chains.len() < self.plan.stripes {
            let chain: Vec<UnitId> = spares.by_ref().take(self.plan.copies).collect();
            if chain.is_empty() {
                break;
            }
            chains.push(chain);
        }
        if chains == last.chains {
            return;
        }
        // Whole turns, so that the extents can be joined once the older one is healed. What is left of the last turn is below
        // the start: readers, or the copier, fill it.
        let count = last.chains.len() as u64;
        let turns = successor.start.0.saturating_sub(last.from.0).div_ceil(count);
        let from = Position(last.from.0.saturating_add(turns.saturating_mul(count)));
        successor.start = from.max(successor.start);
        match successor.extents.last_mut() {
            Some(extent) if extent.from == from => extent.chains = chains,
            _ => successor.extents.push(Extent { from, chains }),
        }
    }
}

/// Extents that lie below the mark with all their positions hold nothing any more.
fn drop_trimmed(extents: &mut Vec<Extent>, mark: Position) {
    let gone = extents.iter().skip(1).take_while(|next| next.from <= mark).count();
    extents.drain(..gone);
}

/// Joins extents that spread their positions alike.
fn join(extents: &mut Vec<Extent>) {
    extents.dedup_by(|next, extent| {
        let turns = (next.from.0 - extent.from.0) % extent.chains.len().max(1) as u64;
        next.chains == extent.chains && turns == 0
    });
}
