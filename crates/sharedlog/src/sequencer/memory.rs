//! What the units remember of the appends before an epoch (guarantee 20).
//!
//! An append that is tried again in a newer epoch may lie in the log already. What lies below the epoch's start is
//! decided by the heads of its chains: what a head doesn't hold there nobody writes any more but junk, and what it
//! holds is completed. So the sequencer asks each head which appends it has taken last before it places an append that
//! has a stamp.

use std::collections::{BTreeMap, BTreeSet};

use base::canary::{Bug, planted};
use base::{Duration, Monotonic};

use crate::limits::PLACES_MAX;
use crate::unit::{Range, known_from};
use crate::{AskId, Extent, Position, Projection, UnitId};

/// Heads that don't answer are asked again after so long ...
const AGAIN: Duration = Duration::from_millis(50);
/// ... and after so long once nobody waits for them.
const AGAIN_LATER: Duration = Duration::from_millis(1_000);
/// Heads of extents that have ended are waited for so long: what they alone know isn't known until they answer.
const PATIENCE: Duration = Duration::from_millis(200);
/// Those that stand in the last extent are waited for longer: every append waits for them. Where one doesn't answer by
/// then, whoever writes to it is to find that out.
const PATIENCE_NEEDED: Duration = Duration::from_millis(2_000);

/// Askings that may still be answered, at most.
const ASKED_MAX: usize = 4 * crate::limits::EXTENTS_MAX * crate::limits::STRIPES_MAX;

/// The heads that are asked what they remember.
#[derive(Clone, Debug)]
pub(super) struct Gathering {
    /// Where each of them, once it has said so, tells of all appends.
    heads: BTreeMap<UnitId, Option<(Position, Vec<Range>)>>,
    /// Those of them that every append needs.
    needed: BTreeSet<UnitId>,
    asked: BTreeMap<AskId, UnitId>,
    began: Monotonic,
    again_at: Monotonic,
}

impl Gathering {
    pub(super) fn begin(projection: &Projection, now: Monotonic) -> Self {
        let first = first(projection);
        // Of extents that were trimmed whole, the units of the last one may know.
        let is_last_meant = first < projection.first();
        let is_meant = |extent: &Extent, end: Option<Position>| match end {
            Some(end) => end > first,
            None => extent.from < projection.start || is_last_meant,
        };
        let before = projection.bounded().filter(|(extent, end)| is_meant(extent, *end));
        let chains = before.flat_map(|(extent, _)| &extent.chains);
        let heads: BTreeMap<_, _> = chains.filter_map(|chain| asks(chain)).map(|head| (head, None)).collect();
        let needed = projection.last().units().filter(|unit| heads.contains_key(unit)).collect();
        Self { heads, needed, asked: BTreeMap::new(), began: now, again_at: now }
    }

    /// When to ask those that haven't answered; none, if all have.
    pub(super) fn again_at(&self) -> Option<Monotonic> {
        self.heads.values().any(Option::is_none).then_some(self.again_at)
    }

    /// The heads that are asked now; each asking is to be noted.
    pub(super) fn ask(&mut self, now: Monotonic) -> BTreeSet<UnitId> {
        self.again_at = if self.has_ended(now) { now + AGAIN_LATER } else { now + AGAIN };
        self.heads.iter().filter(|(_, told)| told.is_none()).map(|(head, _)| *head).collect()
    }

    pub(super) fn asked(&mut self, ask: AskId, head: UnitId) {
        // An answer may take longer than the next asking.
        while self.asked.len() >= ASKED_MAX {
            self.asked.pop_first();
        }
        self.asked.insert(ask, head);
    }

    /// Whether that was asked for this.
    pub(super) fn has_asked(&self, ask: AskId) -> bool {
        self.asked.contains_key(&ask)
    }

    /// A head tells of all that lies from there on, or in these ranges; which one is it?
    pub(super) fn told(&mut self, ask: AskId, from: Position, told_of: Vec<Range>) -> Option<UnitId> {
        let head = self.asked.remove(&ask)?;
        self.asked.retain(|_, asked| *asked != head);
        self.heads.insert(head, Some((from, told_of)));
        Some(head)
    }

    /// Whether nobody is waited for any more.
    pub(super) fn has_ended(&self, now: Monotonic) -> bool {
        let has_told = |head: &UnitId| self.heads.get(head).is_some_and(Option::is_some);
        match now.since(self.began) {
            waited if waited >= PATIENCE_NEEDED => true,
            waited if waited >= PATIENCE => self.needed.iter().all(has_told),
            _ => self.heads.keys().all(has_told),
        }
    }

    /// From where on every append is known that lies below the epoch's start.
    pub(super) fn known_from(&self, projection: &Projection) -> Position {
        let mut from = first(projection).max(projection.first());
        for (extent, end) in projection.bounded() {
            let end = end.unwrap_or(projection.start).max(extent.from);
            for (index, chain) in extent.chains.iter().enumerate() {
                // Of a chain that was given up nothing can be known, nor is anything promised.
                let Some(head) = asks(chain) else { continue };
                let told = self.heads.get(&head).and_then(Option::as_ref);
                let of = (extent.stripe(index), extent.from, end);
                let known = told.map_or(end, |(from, told_of)| known_from(*from, told_of, of));
                if known > extent.from {
                    from = from.max(known);
                }
            }
        }
        from
    }
}

/// What lies below isn't asked for: there is no room for more.
pub(super) fn first(projection: &Projection) -> Position {
    Position(projection.start.0.saturating_sub(PLACES_MAX as u64))
}

/// Whether a unit is the head of a position's chain. One that was left out of that chain may have taken what the chain
/// never agreed on, though it stands in another.
///
/// Where the whole extent was trimmed, a unit of the last extent counts: it was left out of no chain ever, or it would
/// stand in none. So what it took there its chain agreed on, or would have.
pub(super) fn decides(projection: &Projection, unit: UnitId, position: Position) -> bool {
    let decides = match projection.chain_of(position) {
        Some(chain) => asks(chain) == Some(unit),
        None => projection.last().units().any(|of_last| of_last == unit),
    };
    decides || planted(Bug::MemoryOfFormerHead)
}

/// Whom of a chain is asked: the head, which has taken what may yet be completed.
fn asks(chain: &[UnitId]) -> Option<UnitId> {
    if planted(Bug::MemoryOfTail) { chain.last().copied() } else { chain.first().copied() }
}
