//! Blocks of data that a disk has damaged are mended by the log, while the replica runs.
//!
//! A replica that meets a damaged block, in a read or in the background, reads it at the other members of its cohort, one
//! after another, by read index. What it receives is proposed as a change that writes the block again, on every replica
//! that still has this content. So a block is mended on all replicas, and a change that overtakes that is not lost.
//!
//! The leader does not resign: its reads and changes of the block wait. Once all other members have answered that the block
//! is damaged there too, they fail: no replica has it.
//!
//! In the background, each replica of a kind that can mend blocks is read and verified at a bounded rate.

use std::collections::{BTreeMap, BTreeSet};

use base::{CohortId, Duration, Monotonic, NodeId, Now, Timestamp};
use state_machine::{Failure, ReadError};

use crate::contract::Action;
use crate::message::Query;
use crate::node::Node;
use crate::registry::AnyMachine;
use crate::request::{Outcome, Response, VerificationStatus};
use crate::request_table::{Pending, PendingId, ReplyTo, RequestState, Target};

/// Deadline of a read of a block at another member.
const READ_DEADLINE: Duration = Duration::from_millis(2_000);
/// Deadline of the change that mends a block.
const HEAL_DEADLINE: Duration = Duration::from_millis(10_000);
/// Pause before another round of reads, if members did not answer.
const AGAIN: Duration = Duration::from_millis(500);
/// How long a block of which no replica has the content is not asked for again.
const LOST_FOR: Duration = Duration::from_millis(10_000);
/// Blocks of a node that are mended at once. Others are when they are met again.
const AT_ONCE_MAX: usize = 64;
/// Blocks of a node that are known to be damaged. Beyond, a whole disk may be: reads of further ones fail at once.
const KNOWN_MAX: usize = 10_000;
/// Pause between two steps of the background verification, which read up to 16 MiB each.
const VERIFY_EVERY: Duration = Duration::from_millis(2_000);
/// Deadline of such a step.
const VERIFY_DEADLINE: Duration = Duration::from_millis(10_000);

/// A block of a cohort's data.
pub(crate) type BlockId = (CohortId, u64);

/// The blocks that are mended, and the verification in the background.
#[derive(Debug, Default)]
pub(crate) struct Mending {
    blocks: BTreeMap<BlockId, Mended>,
    /// Outcomes to be processed.
    answers: Vec<(Step, Outcome)>,
    verification: Verification,
}

/// The request that an outcome answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// The read of a block at a member.
    Read(BlockId, NodeId),
    /// The change that mends it.
    Heal(BlockId),
    /// A step of the verification of a cohort's replica.
    Verify(CohortId),
}

#[derive(Debug, Default)]
struct Mended {
    stage: Stage,
    /// The members that were asked.
    asked: BTreeSet<NodeId>,
    /// Those that answered that the block is damaged.
    damaged: BTreeSet<NodeId>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    #[default]
    InProgress,
    /// Not everyone has answered: begun again from then on.
    Paused(Monotonic),
    /// No replica has the block: begun again from then on.
    Lost(Monotonic),
}

/// The verification of this node's replicas in the background.
#[derive(Debug)]
struct Verification {
    /// The next step, or the one in progress: a cohort, and its first block.
    cohort: CohortId,
    first: u64,
    is_in_progress: bool,
    /// When the last pass over all replicas ended, by the wall clock.
    completed: Option<Timestamp>,
    /// When the next step is taken; never while there is nothing to verify.
    at: Monotonic,
}

impl Default for Verification {
    fn default() -> Self {
        Self { cohort: CohortId::default(), first: 0, is_in_progress: false, completed: None, at: Monotonic::NEVER }
    }
}

impl Mending {
    /// When [`Node::verify_in_background`] must be called next.
    pub(crate) fn next_timer(&self) -> Option<Monotonic> {
        let Verification { is_in_progress, at, .. } = self.verification;
        (!is_in_progress && at != Monotonic::NEVER).then_some(at)
    }

    /// A replica is there: it is verified in the background, if its kind can mend blocks.
    pub(crate) fn begin_verification(&mut self, machine: &AnyMachine, now: Now) {
        if self.verification.at == Monotonic::NEVER && machine.verify(0).is_some() {
            self.verification.at = now.monotonic + VERIFY_EVERY;
        }
    }

    /// Whether no further block can be mended now.
    fn is_busy(&self) -> bool {
        let in_progress = self.blocks.values().filter(|it| it.stage == Stage::InProgress);
        self.blocks.len() >= AT_ONCE_MAX && in_progress.count() >= AT_ONCE_MAX
    }

    pub(crate) fn answered(&mut self, step: Step, outcome: Outcome) {
        self.answers.push((step, outcome));
    }

    /// Whether it is known that no replica has the block, or too many are damaged to know.
    fn is_lost(&self, block: BlockId, now: Now) -> bool {
        match self.blocks.get(&block) {
            Some(it) => matches!(it.stage, Stage::Lost(until) if until > now.monotonic),
            None => self.blocks.len() >= KNOWN_MAX,
        }
    }

    /// How far the verification in the background is.
    pub(crate) fn verification_status(&self) -> Option<VerificationStatus> {
        let Verification { cohort, first, completed, at, .. } = self.verification;
        (at != Monotonic::NEVER).then_some(VerificationStatus { cohort: cohort.0, block: first, completed })
    }

    /// The number of damaged blocks that no replica had, when they were last asked for.
    pub(crate) fn lost(&self) -> usize {
        self.blocks.values().filter(|it| matches!(it.stage, Stage::Lost(_))).count()
    }
}

impl Node {
    /// A request has met a damaged block.
    pub(crate) fn block_damaged(&mut self, pending: Pending, block: BlockId, is_of_leader: bool, why: &str, now: Now) {
        self.mend(block, now);
        if is_of_leader && !self.mending.is_lost(block, now) {
            return self.pending_requests.place(pending, RequestState::Waiting);
        }
        self.respond(pending, Err(Failure::Damaged(why.to_owned())), None);
    }

    /// Begins to mend a block, unless that is in progress.
    pub(crate) fn mend(&mut self, block: BlockId, now: Now) {
        let begun = self.mending.blocks.get(&block).map(|it| it.stage);
        match begun {
            Some(Stage::InProgress) => return,
            Some(Stage::Paused(until) | Stage::Lost(until)) if until > now.monotonic => return,
            Some(_) => {}
            None if self.mending.is_busy() || self.mending.blocks.len() >= KNOWN_MAX => return,
            None => {
                self.counters.blocks_damaged += 1;
                self.actions.push(Action::Warn { what: format!("block {} of cohort {} is damaged", block.1, block.0) });
            }
        }
        self.mending.blocks.insert(block, Mended::default());
        self.ask_for_block(block, now);
    }

    /// Reads a block at the next member.
    fn ask_for_block(&mut self, block: BlockId, now: Now) {
        let (id, number) = block;
        let Some(replica) = self.replicas.get(&id) else { return self.end_mending(block) };
        let Some(ask) = replica.state.reread(number) else { return self.end_mending(block) };
        let me = self.cluster.me.node;
        let members = replica.cohort.membership().everyone().map(|member| member.node);
        let others: Vec<NodeId> = members.filter(|node| *node != me).collect();
        let Some(mended) = self.mending.blocks.get_mut(&block) else { return };
        let next = others.iter().copied().find(|node| !mended.asked.contains(node) && self.cluster.is_connected(*node));
        let Some(node) = next else {
            let is_lost = others.iter().all(|node| mended.damaged.contains(node));
            mended.stage = match is_lost {
                true => Stage::Lost(now.monotonic + LOST_FOR),
                false => Stage::Paused(now.monotonic + AGAIN),
            };
            if is_lost {
                let what = format!("block {number} of cohort {id} is damaged, and no replica has its content");
                self.actions.push(Action::Warn { what });
            }
            return self.pending_requests.wake();
        };
        mended.asked.insert(node);
        let (deadline, query) = (now.monotonic + READ_DEADLINE, Query::Machine(ask));
        let number = PendingId(self.pending_requests.number());
        let origin = ReplyTo::Mending(Step::Read(block, node));
        let mut pending = Pending::new(number, origin, (now.monotonic, deadline), Target::Cohort(id), query);
        pending.cohort = Some(id);
        self.forward(pending, id, node, now);
    }

    fn end_mending(&mut self, block: BlockId) {
        self.mending.blocks.remove(&block);
        self.pending_requests.wake();
    }

    /// Processes the outcomes that have arrived. Returns whether there were any.
    pub(crate) fn continue_mending(&mut self, now: Now) -> bool {
        let answers = std::mem::take(&mut self.mending.answers);
        let has_work = !answers.is_empty();
        for (step, outcome) in answers {
            match step {
                Step::Read(block, node) => self.block_read(block, node, outcome, now),
                Step::Heal(block) => {
                    self.counters.blocks_mended += u64::from(outcome.is_ok());
                    self.end_mending(block);
                }
                Step::Verify(cohort) => self.verified(cohort, &outcome, now),
            }
        }
        has_work
    }

    fn block_read(&mut self, block: BlockId, node: NodeId, outcome: Outcome, now: Now) {
        match outcome {
            Ok(found) => {
                let heal = self.replicas.get(&block.0).and_then(|replica| replica.state.heal(block.1, found));
                let Some(heal) = heal else { return self.end_mending(block) };
                let (deadline, origin) = (now.monotonic + HEAL_DEADLINE, ReplyTo::Mending(Step::Heal(block)));
                self.begin(origin, deadline, Target::Cohort(block.0), Query::Machine(heal), now);
            }
            Err(failure) => {
                if let (Failure::Damaged(_), Some(mended)) = (failure, self.mending.blocks.get_mut(&block)) {
                    mended.damaged.insert(node);
                }
                self.ask_for_block(block, now);
            }
        }
    }

    /// Takes the next step of the verification, if it is time.
    pub(crate) fn verify_in_background(&mut self, now: Now) {
        if self.mending.next_timer().is_none_or(|at| at > now.monotonic) {
            return;
        }
        let Verification { cohort, first, .. } = self.mending.verification;
        self.mending.verification.at = now.monotonic + VERIFY_EVERY;
        self.mending.blocks.retain(|(cohort, _), _| self.replicas.contains_key(cohort));
        let next = self.replicas.iter().filter(|(id, _)| **id >= cohort).find_map(|(id, replica)| {
            let first = if *id == cohort { first } else { 0 };
            Some((*id, replica.state.verify(first)?))
        });
        let verification = &mut self.mending.verification;
        let Some((id, ask)) = next else {
            if cohort == CohortId::default() {
                verification.at = Monotonic::NEVER;
            } else {
                verification.completed = Some(now.wall);
            }
            (verification.cohort, verification.first) = Default::default();
            return;
        };
        verification.first = if id == cohort { first } else { 0 };
        (verification.cohort, verification.is_in_progress) = (id, true);
        let (deadline, origin) = (now.monotonic + VERIFY_DEADLINE, ReplyTo::Mending(Step::Verify(id)));
        self.begin(origin, deadline, Target::Cohort(id), Query::Machine(ask), now);
    }

    fn verified(&mut self, cohort: CohortId, outcome: &Outcome, now: Now) {
        let verification = &mut self.mending.verification;
        verification.is_in_progress = false;
        verification.at = now.monotonic + VERIFY_EVERY;
        let checked = outcome.as_ref().ok().and_then(Response::checked);
        let next = checked.and_then(|checked| checked.next);
        if let Some(checked) = checked {
            // Others in these blocks were overwritten.
            let first = (cohort, verification.first);
            let end = next.map_or((CohortId(cohort.0 + 1), 0), |next| (cohort, next));
            let is_left = |block: &BlockId, it: &Mended| {
                let is_there = (first..end).contains(block) && !checked.damaged.contains(&block.1);
                is_there && it.stage != Stage::InProgress
            };
            self.mending.blocks.retain(|block, it| !is_left(block, it));
        }
        let verification = &mut self.mending.verification;
        // A replica that did not answer is met in the next pass.
        (verification.cohort, verification.first) = next.map_or((CohortId(cohort.0 + 1), 0), |next| (cohort, next));
    }
}

/// The damaged block that a read has met, if its kind can mend blocks.
pub(crate) fn damaged_block(error: &ReadError) -> Option<u64> {
    if let ReadError::DamagedBlock { block, .. } = error { Some(*block) } else { None }
}
