//! The changes of one connection in one stripe: which wait, which are proposed, and with which stamps.
//!
//! Invariants:
//! * The blocks of different proposals in progress are disjoint. A change waits while one before it, in progress or
//!   waiting, has a block in common. So changes of a block are executed in the order of the client's requests, and the
//!   retry of one cannot follow the next one.
//! * A proposal keeps its stamp until its outcome is known. It gets another one only if no attempt can have been
//!   executed.
//! * The stamps in progress are within the session's window.

use std::collections::{BTreeMap, VecDeque};

use base::CohortId;
use base::canary::{Bug, planted};
use base::limits::SESSION_WINDOW;
use state_machine::{ClientSessionId, SessionStamp};

use super::RequestNumber;
use super::cut::Change;
use crate::layout::StripeId;
use crate::stripe::request::{StripeWrite, WRITE_CHANGES_MAX, WRITE_DATA_BYTES_MAX};

/// Waiting changes that are passed over, because they overlap others, before the rest wait behind them.
const PASSED_OVER_MAX: usize = 32;

/// Identifies a proposal of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ProposalNumber(u64);

/// A change that waits.
#[derive(Clone, Debug)]
pub(super) struct Waiting {
    pub(super) request: RequestNumber,
    pub(super) change: Change,
}

/// Changes that are proposed together.
#[derive(Clone, Debug)]
pub(super) struct Proposal {
    pub(super) changes: Vec<Waiting>,
    /// The session and the number; none if it must be sent with a new one.
    pub(super) stamp: Option<(ClientSessionId, u64)>,
    /// Whether an attempt with this stamp may have been executed, or may be yet.
    pub(super) may_be_executed: bool,
    /// Attempts that were answered by a failure, or not at all.
    pub(super) failures: u32,
}

/// The session of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Session {
    None,
    /// A request to open one is in progress, or to be repeated.
    Opening,
    Open(ClientSessionId),
}

/// The changes of a connection in a stripe.
#[derive(Clone, Debug)]
pub(super) struct Lane {
    pub(super) stripe: StripeId,
    pub(super) session: Session,
    /// The cohort of its sessions. A stripe has the same one as long as its disk exists.
    cohort: Option<CohortId>,
    /// The generation of the holder, once it has attached the stripe.
    pub(super) generation: Option<u64>,
    /// Whether it is decided if the holder has attached the stripe.
    pub(super) is_decided: bool,
    /// Failed attempts to open a session, since the last one that succeeded.
    pub(super) failures: u32,
    next_sequence: u64,
    next_proposal: u64,
    pub(super) waiting: VecDeque<Waiting>,
    pub(super) proposals: BTreeMap<ProposalNumber, Proposal>,
    /// The blocks of the proposals: the first of each span, and the one after its last.
    busy: BTreeMap<u64, u64>,
}

impl Lane {
    pub(super) fn new(stripe: StripeId) -> Self {
        Self {
            stripe,
            session: Session::None,
            cohort: None,
            generation: None,
            is_decided: true,
            failures: 0,
            next_sequence: 1,
            next_proposal: 0,
            waiting: VecDeque::new(),
            proposals: BTreeMap::new(),
            busy: BTreeMap::new(),
        }
    }

    /// Begins with the stamps of a new session. False if it is one of another disk: this one was deleted, and its name was
    /// given to a new one.
    pub(super) fn opened(&mut self, session: ClientSessionId, generation: u64) -> bool {
        if *self.cohort.get_or_insert_with(|| session.cohort()) != session.cohort() {
            self.session = Session::None;
            return false;
        }
        self.session = Session::Open(session);
        self.generation = Some(generation);
        self.failures = 0;
        self.next_sequence = 1;
        true
    }

    /// Combines waiting changes to a proposal, if there are some that overlap no other.
    pub(super) fn combine(&mut self) -> Option<ProposalNumber> {
        let (mut changes, mut cost) = (Vec::new(), 0);
        let mut passed: Vec<(u64, u64)> = Vec::new();
        let mut at = 0;
        while at < self.waiting.len() && changes.len() < WRITE_CHANGES_MAX && passed.len() < PASSED_OVER_MAX {
            let change = &self.waiting[at].change;
            let (span, more) = (change.span(), change.cost());
            let overlaps = self.is_busy(span) || passed.iter().any(|other| span.0 < other.1 && other.0 < span.1);
            if overlaps {
                passed.push(span);
                at += 1;
                continue;
            }
            if !changes.is_empty() && cost + more > WRITE_DATA_BYTES_MAX {
                break;
            }
            cost += more;
            self.busy.insert(span.0, span.1);
            changes.extend(self.waiting.remove(at));
        }
        if changes.is_empty() {
            return None;
        }
        let number = ProposalNumber(self.next_proposal);
        self.next_proposal += 1;
        self.proposals.insert(number, Proposal { changes, stamp: None, may_be_executed: false, failures: 0 });
        Some(number)
    }

    fn is_busy(&self, (first, end): (u64, u64)) -> bool {
        self.busy.range(..end).next_back().is_some_and(|(_, other)| *other > first)
    }

    /// The write of a proposal, with its stamp or the next one. None if it must wait for a session, or until earlier
    /// proposals are done.
    pub(super) fn write(&mut self, number: ProposalNumber) -> Option<StripeWrite> {
        let stamp = self.proposals.get(&number)?.stamp.filter(|_| !planted(Bug::DiskRetryRestamped));
        let (session, sequence) = match (stamp, self.session) {
            (Some(stamp), _) => stamp,
            (None, Session::Open(session)) => {
                if self.next_sequence - self.first_incomplete(session, self.next_sequence) >= SESSION_WINDOW {
                    return None;
                }
                let sequence = self.next_sequence;
                self.next_sequence += 1;
                (session, sequence)
            }
            (None, Session::None | Session::Opening) => return None,
        };
        let first_incomplete = self.first_incomplete(session, sequence);
        let proposal = self.proposals.get_mut(&number)?;
        proposal.stamp = Some((session, sequence));
        let stamp = SessionStamp { session, sequence, first_incomplete };
        let mut write = StripeWrite { stamp, stripe: self.stripe, changes: Vec::new(), parts: Vec::new() };
        for Waiting { change, .. } in &proposal.changes {
            match change {
                Change::Whole(change) => write.changes.push(change.clone()),
                Change::Part(part) => write.parts.push(part.clone()),
            }
        }
        Some(write)
    }

    /// The lowest number of a session without a known outcome, at most `sequence`.
    fn first_incomplete(&self, session: ClientSessionId, sequence: u64) -> u64 {
        let stamps = self.proposals.values().filter_map(|proposal| proposal.stamp);
        let of_session = stamps.filter(|(of, _)| *of == session).map(|(_, sequence)| sequence);
        of_session.min().map_or(sequence, |first| first.min(sequence))
    }

    /// Removes a proposal with a known outcome.
    pub(super) fn finish(&mut self, number: ProposalNumber) -> Vec<Waiting> {
        let Some(proposal) = self.proposals.remove(&number) else { return Vec::new() };
        for Waiting { change, .. } in &proposal.changes {
            self.busy.remove(&change.span().0);
        }
        proposal.changes
    }

    /// Abandons all proposals: none can be executed any more.
    pub(super) fn give_up(&mut self) {
        self.proposals.clear();
        self.busy.clear();
    }

    pub(super) fn invariants(&self) {
        let mut end = 0;
        for (first, next) in &self.busy {
            assert!(end <= *first, "the blocks of proposals are disjoint");
            end = *next;
        }
        let spans = self.proposals.values().map(|proposal| proposal.changes.len()).sum::<usize>();
        assert_eq!(spans, self.busy.len(), "each change in progress has its blocks");
    }
}
