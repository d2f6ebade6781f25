//! Builds the successor of a projection from the reports of its sealed units.

use std::collections::BTreeSet;

use base::canary::{Bug, planted};

use crate::recovery::{Homes, Recovery};
use crate::{Extent, Position, Projection, Stripe, UnitId};

/// A copy to make: a unit that should join a chain with too few units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Healing {
    /// The unit. It is in the last extent and not in this one.
    pub unit: UnitId,
    /// The positions to copy.
    pub stripe: Stripe,
    /// End of the positions.
    pub to: Position,
}

/// The copies needed so that every chain has `copies` units on different nodes, not counting leaving units. Covers only
/// closed extents: the last extent has all of its units from the start.
#[must_use]
pub fn healings(projection: &Projection, copies: usize, homes: &Homes, leaving: &BTreeSet<UnitId>) -> Vec<Healing> {
    let mut healings = Vec::new();
    for (extent, end) in projection.bounded() {
        let Some(to) = end else { continue };
        let mut free = candidates(projection, extent);
        free.retain(|(_, unit)| !leaving.contains(unit));
        let mut chains = extent.chains.clone();
        let mut taken: Vec<(usize, UnitId)> = Vec::new();
        // An abandoned chain has nothing to copy.
        let lacks = |chain: &Vec<UnitId>| !chain.is_empty() && is_short(chain, copies, |unit| leaving.contains(&unit));
        // Each chain first takes the units with its own index, so that adjacent extents become equal and can be joined.
        // Otherwise a chain could take the only unit that may join another one.
        for is_of_turn in [true, false] {
            for (index, chain) in chains.iter_mut().enumerate() {
                while lacks(chain)
                    && let Some(at) =
                        free.iter().position(|(of, unit)| (*of == index) >= is_of_turn && homes.may_join(*unit, chain))
                {
                    let (_, unit) = free.remove(at);
                    chain.push(unit);
                    taken.push((index, unit));
                }
            }
        }
        // Swap: take a unit from a chain that can use another one instead.
        for index in 0..chains.len() {
            let swap = |(at, (other, unit)): (usize, &(usize, UnitId))| {
                let rest: Vec<UnitId> = chains[*other].iter().copied().filter(|kept| kept != unit).collect();
                let instead = free.iter().position(|(_, free)| homes.may_join(*free, &rest))?;
                homes.may_join(*unit, &chains[index]).then_some((at, instead))
            };
            if lacks(&chains[index])
                && let Some((at, instead)) = taken.iter().enumerate().find_map(swap)
            {
                let ((other, unit), (_, instead)) = (taken[at], free.remove(instead));
                taken[at] = (index, unit);
                taken.push((other, instead));
                chains[index].push(unit);
                chains[other].retain(|kept| *kept != unit);
                chains[other].push(instead);
            }
        }
        healings.extend(taken.into_iter().map(|(index, unit)| Healing { unit, stripe: extent.stripe(index), to }));
    }
    healings
}

/// Whether a chain has too few units, not counting those that leave.
fn is_short(chain: &[UnitId], copies: usize, goes: impl Fn(UnitId) -> bool) -> bool {
    chain.iter().filter(|unit| !goes(**unit)).count() < copies
}

/// Units of the last extent that are not in this one, each with the index of the chain here that corresponds to its
/// chain there.
fn candidates(projection: &Projection, extent: &Extent) -> Vec<(usize, UnitId)> {
    let last = projection.last();
    let (first, count) = (extent.turn(last.from) as usize, extent.chains.len().max(1));
    let turns = last.chains.iter().enumerate().map(|(index, chain)| ((first + index) % count, chain));
    let all = turns.flat_map(|(index, chain)| chain.iter().map(move |unit| (index, *unit)));
    all.filter(|(_, unit)| !extent.units().any(|other| other == *unit)).collect()
}

impl Recovery {
    /// The successor; `None` if no valid one exists.
    pub(super) fn successor(&self) -> Option<Projection> {
        let start = self.tail();
        let mut extents: Vec<Extent> = self.old.bounded().map(|(extent, end)| self.kept(extent, end)).collect();
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
            successor.newest_unit = successor.units().into_iter().fold(self.old.newest_unit, UnitId::max);
            successor.may_follow(&self.old).is_ok().then_some(successor)
        })
    }

    /// The part of an extent that stays. An abandoned chain is empty.
    fn kept(&self, extent: &Extent, end: Option<Position>) -> Extent {
        let kept = |chain: &Vec<UnitId>| {
            let has_sound = chain.iter().any(|unit| self.is_sound(*unit));
            if self.is_closed(end) && !has_sound && !self.is_given_up(chain) {
                return chain.clone();
            }
            chain.iter().copied().filter(|unit| self.stays(*unit)).collect()
        };
        Extent { chains: extent.chains.iter().map(kept).collect(), ..*extent }
    }

    /// Adds units of the last extent to older chains, if the units report that they hold all of the chain's positions.
    fn add_whole(&self, extents: &mut [Extent]) {
        let old = &self.old;
        for (at, (extent, end)) in old.bounded().enumerate() {
            let Some(to) = end else { continue };
            for (index, unit) in candidates(old, extent) {
                let turns = std::iter::once(index).chain(0..extent.chains.len());
                let fits = |turn: &usize| {
                    let chain = extents[at].chains.get(*turn);
                    let may_join = |chain: &Vec<UnitId>| {
                        let is_short = is_short(chain, self.plan.copies, |unit| self.goes(unit));
                        !chain.is_empty() && is_short && self.plan.homes.may_join(unit, chain)
                    };
                    chain.is_some_and(may_join) && self.is_whole(unit, extent.stripe(*turn), to)
                };
                if self.stays(unit)
                    && let Some(turn) = turns.into_iter().find(fits)
                {
                    extents[at].chains[turn].push(unit);
                }
            }
        }
    }

    /// Whether a unit reported that it holds all of a stripe below a position.
    fn is_whole(&self, unit: UnitId, stripe: Stripe, to: Position) -> bool {
        let Some(report) = self.reports.get(&unit) else { return false };
        let is_whole = |(assigned, missing): &(Stripe, Position)| *assigned == stripe && *missing >= to;
        report.whole.iter().any(is_whole) || planted(Bug::CopyNotWhole)
    }

    /// Replaces units that should leave but hold the only copy of some entries: spares take over new entries, and the
    /// old units stay in the closed extent until it is copied.
    fn relieve(&self, chain: &mut Vec<UnitId>, spares: &mut Vec<UnitId>) {
        let (mut relieved, mut left) = (chain.clone(), spares.clone());
        relieved.retain(|unit| !self.goes(*unit));
        if relieved.len() < chain.len() {
            self.top_up(&mut relieved, &mut left);
            if relieved.len() >= chain.len() {
                (*chain, *spares) = (relieved, left);
            }
        }
    }

    /// Adds spares to a chain up to the target number, each on a different node.
    fn top_up(&self, chain: &mut Vec<UnitId>, spares: &mut Vec<UnitId>) {
        while chain.len() < self.plan.copies {
            let Some(at) = spares.iter().position(|spare| self.plan.homes.may_join(*spare, chain)) else { return };
            chain.push(spares.remove(at));
        }
    }

    /// Replaces missing units and adds missing chains, in a new extent that begins at the start.
    fn add_spares(&self, successor: &mut Projection) {
        let last = successor.last().clone();
        let mut spares = self.plan.spares.clone();
        let mut chains = last.chains.clone();
        chains.retain(|chain| !chain.is_empty());
        chains.iter_mut().for_each(|chain| self.relieve(chain, &mut spares));
        chains.iter_mut().for_each(|chain| self.top_up(chain, &mut spares));
        while chains.len() < self.plan.stripes {
            let mut chain = Vec::new();
            self.top_up(&mut chain, &mut spares);
            // An incomplete chain would store its entries with fewer copies than the full chains do.
            if chain.is_empty() || chain.len() < self.plan.copies {
                break;
            }
            chains.push(chain);
        }
        if chains == last.chains {
            return;
        }
        if chains.is_empty() {
            return;
        }
        let from = successor.start.max(last.from);
        successor.start = from;
        if chains.len() == last.chains.len() {
            // Keeps the round-robin order across the boundary, so that the extents can be joined once the older one is
            // re-replicated.
            chains.rotate_left(last.turn(from) as usize);
        }
        match successor.extents.last_mut() {
            Some(extent) if extent.from == from => *extent = Extent::new(from, self.plan.width, chains),
            _ => successor.extents.push(Extent::new(from, self.plan.width, chains)),
        }
    }
}

/// Drops extents that are completely below the trim mark.
fn drop_trimmed(extents: &mut Vec<Extent>, mark: Position) {
    let gone = extents.iter().skip(1).take_while(|next| next.from <= mark).count();
    extents.drain(..gone);
}

/// Joins adjacent extents that stripe their positions alike.
fn join(extents: &mut Vec<Extent>) {
    extents.dedup_by(|next, extent| extent.goes_on_in(next));
}
