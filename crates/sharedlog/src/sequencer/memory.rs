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
use crate::unit::{Range, known_from, rest_after};
use crate::{AskId, Extent, Position, Projection, Stamp, UnitId};

/// A head that doesn't answer is asked again after so long, and after twice as long each time ...
const AGAIN: Duration = Duration::from_millis(50);
/// ... until it is so long.
const AGAIN_MAX: Duration = Duration::from_millis(1_600);
/// One that every append needs, and that has answered none of so many askings, is suspected.
const SUSPECT_AFTER: u32 = 2;
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
    heads: BTreeMap<UnitId, Head>,
    /// Those of them that every append needs.
    needed: BTreeSet<UnitId>,
    asked: BTreeMap<AskId, UnitId>,
    began: Monotonic,
}

/// One that is asked.
#[derive(Clone, Debug)]
struct Head {
    /// Where it tells of all appends, once it has told all.
    told: Option<(Position, Vec<Range>)>,
    /// From here on it has yet to tell.
    next: Position,
    /// Askings in a row that had no answer, with the last one.
    askings: u32,
    again_at: Monotonic,
}

/// Somebody is asked.
pub(super) struct Asking {
    pub(super) head: UnitId,
    /// What it has taken from there on.
    pub(super) from: Position,
    /// It should have answered by now.
    pub(super) is_suspect: bool,
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
        let head = |head| (head, Head { told: None, next: first, askings: 0, again_at: now });
        let heads: BTreeMap<_, _> = chains.filter_map(|chain| asks(chain)).map(head).collect();
        let needed = projection.last().units().filter(|unit| heads.contains_key(unit)).collect();
        Self { heads, needed, asked: BTreeMap::new(), began: now }
    }

    /// When to ask those that haven't answered; none, if all have.
    pub(super) fn again_at(&self) -> Option<Monotonic> {
        self.heads.values().filter(|head| head.told.is_none()).map(|head| head.again_at).min()
    }

    /// Who is asked now; each asking is to be noted.
    pub(super) fn ask(&mut self, now: Monotonic) -> Vec<Asking> {
        let due = self.heads.iter_mut().filter(|(_, head)| head.told.is_none() && head.again_at <= now);
        let ask = |(unit, head): (&UnitId, &mut Head)| {
            let is_suspect = head.askings >= SUSPECT_AFTER && self.needed.contains(unit);
            head.again_at = now + Duration(AGAIN.0 << head.askings.min(16)).min(AGAIN_MAX);
            head.askings += 1;
            Asking { head: *unit, from: head.next, is_suspect }
        };
        due.map(ask).collect()
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

    /// A head tells of all that lies from there on, or in these ranges, and of these appends; which one is it? What lies
    /// at the epoch's start or after it is not asked for.
    pub(super) fn told(
        &mut self,
        ask: AskId,
        known: (Position, &[Range]),
        appends: &[(Position, Stamp)],
        start: Position,
        now: Monotonic,
    ) -> Option<UnitId> {
        let unit = self.asked.remove(&ask)?;
        self.asked.retain(|_, asked| *asked != unit);
        let head = self.heads.get_mut(&unit)?;
        match rest_after(appends).filter(|rest| *rest < start) {
            Some(rest) => (head.next, head.askings, head.again_at) = (rest, 0, now),
            None => head.told = Some((known.0, known.1.to_vec())),
        }
        Some(unit)
    }

    /// Whether nobody is waited for any more.
    pub(super) fn has_ended(&self, now: Monotonic) -> bool {
        let has_told = |head: &UnitId| self.heads.get(head).is_some_and(|head| head.told.is_some());
        match now.since(self.began) {
            waited if waited >= PATIENCE_NEEDED => true,
            waited if waited >= PATIENCE => self.needed.iter().all(has_told),
            _ => self.heads.keys().all(has_told),
        }
    }

    /// When fewer are waited for than now.
    pub(super) fn ends_at(&self, now: Monotonic) -> Monotonic {
        if now.since(self.began) < PATIENCE { self.began + PATIENCE } else { self.began + PATIENCE_NEEDED }
    }

    /// From where on every append is known that lies below the epoch's start.
    pub(super) fn known_from(&self, projection: &Projection) -> Position {
        let mut from = first(projection).max(projection.first());
        for (extent, end) in projection.bounded() {
            let end = end.unwrap_or(projection.start).max(extent.from);
            for (index, chain) in extent.chains.iter().enumerate() {
                // Of a chain that was given up nothing can be known, nor is anything promised.
                let Some(head) = asks(chain) else { continue };
                let told = self.heads.get(&head).and_then(|head| head.told.as_ref());
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
