//! Primary/backup replication with a configuration manager (PacificA, section 2; guarantees 26 and 27).
//!
//! The catalog records the configuration of each cohort: a version, the members and the primary. It replaces a
//! configuration only with one of the next version, so of several petitions against one version the first wins. This
//! module takes the place of elections. Everything else is shared: a primary is a leader, its secondaries are the
//! voters, candidates are learners, and reconciliation is the takeover in `leader`.
//!
//! **Versions are epochs.** The primary of version v proposes in epoch v. Its barrier carries the members of v as the
//! membership, so the log, checkpoints, snapshots and replay handle configurations like any membership. The promise in
//! the manifest is the highest known version with its primary. It is forced before the primary of that version leads
//! and before any reply to it, and messages of older versions are refused.
//!
//! **Commit.** An entry commits once all members have forced it. A member that is to be removed counts until the next
//! version is known. A candidate counts from the moment at which the primary asks for its addition (`joining`), because
//! the catalog may record the addition long before the primary learns of it.
//!
//! **Two configurations cannot both commit different histories.** Claim: each member of version v + 1 holds everything
//! committed in versions up to v. A change of primary adds no member (the catalog checks this), so the members of v + 1
//! are members of v, each of which had to force the entry. A change by the primary itself may add candidates. At that
//! moment these hold everything committed, and everything committed later in v needs them, too. By induction the
//! primary of v + 1, a member of v, holds everything committed before. It commits its whole log together with its
//! barrier before it serves. That log already contains every entry that the primary of v commits late.
//!
//! **Two primaries cannot both serve reads.** A primary serves only while the votes of all members, and of all `joining`
//! candidates, are valid. A new primary leads only after its own vote for the former one has ended, or was released, and
//! a restarted one after a whole grace period. The new primary was a member of the former one's version, or of a version
//! reached from there by removals and by the former primary's own additions. So its vote was needed. The order of the
//! steps matters once: with a petition to add a candidate the primary withdraws its published view, which was published
//! without that candidate's vote.
//!
//! | failure | effect |
//! |---|---|
//! | a secondary is silent for one lease | its vote has ended, so reads have stopped; the primary petitions to remove it, and commits again in the next version |
//! | the primary is silent for one grace period | each secondary petitions to become the primary without it; the first petition wins |
//! | the catalog is unreachable | nothing changes while all members are alive; otherwise writes wait and petitions are repeated |
//! | the primary restarts | it never continues in its version: it petitions to be appointed again |
//! | all members restart | the primary is appointed again, or a secondary after a grace period |
//! | the new primary fails before its barrier commits | another member of its version petitions, and holds everything committed |
//! | a candidate fails before the petition to add it | it counts nowhere, and is not added |
//! | a candidate fails after it | the primary petitions for its members without it; if the addition won, it then removes it |
//! | a member is in doubt | it follows and acknowledges, but neither petitions nor leads |
//! | the only member is in doubt | the cohort stops ([`Cohort::is_stranded`]) until an operator decides |
//! | an operator declares a loss | the survivor leads, without learners; the other replicas begin again, also those that return later |

use base::canary::{Bug, planted};
use base::{
    Configuration, Epoch, Lsn, Member, MembershipChange, Monotonic, NodeId, Now, Promise, Sequence, SharedMembership,
};

use crate::cohort::{Cohort, Role};
use crate::config::Authority;
use crate::leader::Peer;
use crate::lease::grace;
use crate::membership::ChangeRefused;
use crate::message::Message;
use crate::outbox::{Durable, ManifestId, Outbox, Output};

/// State specific to replicas under the authority of the catalog.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Managed {
    /// The newest configuration that the catalog is known to have recorded.
    configuration: Option<Configuration>,
    /// As a primary: the candidates whose addition was requested in this version. They count like members.
    pub(crate) joining: Vec<Member>,
    /// No petition before this time.
    petition_at: Monotonic,
}

impl Managed {
    pub(crate) fn forget_times(&mut self) {
        self.petition_at = Monotonic(0);
    }

    pub(crate) fn rename(&mut self, rename: impl Fn(NodeId) -> NodeId + Copy) {
        self.configuration = self.configuration.as_ref().map(|configuration| configuration.renamed(rename));
        self.joining.iter_mut().for_each(|member| member.node = rename(member.node));
        self.joining.sort_unstable();
    }
}

impl Cohort {
    /// Whether the catalog decides which replica leads.
    #[must_use]
    pub fn is_managed(&self) -> bool {
        self.config.regime.authority() == Authority::Manager
    }

    /// The newest configuration that the catalog is known to have recorded.
    #[must_use]
    pub fn configuration(&self) -> Option<&Configuration> {
        self.managed.configuration.as_ref()
    }

    /// The catalog has recorded this configuration. May be called in any order and repeatedly: older versions have no
    /// effect. No effect without [`crate::Regime::Managed`].
    pub fn appointed(&mut self, configuration: Configuration, now: Now, out: &mut Outbox) {
        if !self.is_managed() || self.knows(configuration.version) || self.must_begin_again(&configuration) {
            return;
        }
        let Configuration { version, primary, loss, .. } = configuration;
        self.managed.configuration = Some(configuration);
        if primary == self.config.me && self.survives_loss() && self.promised.epoch < loss {
            // An operator has decided to continue with its state. A later doubt is not covered by that decision.
            self.end_all_doubt(out);
        }
        if version <= self.promised.epoch {
            self.restarted_in(version, now, out);
            return;
        }
        self.managed.joining.clear();
        if primary == self.config.me {
            let led = self.keeps_proposals();
            if self.leads() {
                self.note_end_of_lease(now.monotonic);
                out.push(Output::LeadRenewed);
            }
            self.promise(Promise { epoch: version, candidate: Some(primary) }, out);
            self.role = Role::Appointed { led, is_forced: false, lead_at: now.monotonic };
            return;
        }
        let led = if let Role::Leader(leader) = &self.role { Some(leader.epoch) } else { None };
        // The read view is withdrawn before the former secondaries' votes are released.
        self.step_down(now, out);
        self.promise(Promise { epoch: version, candidate: Some(primary) }, out);
        if let Some(epoch) = led {
            out.send(primary.node, Message::Release { epoch, successor: None }, Durable::default());
        }
        self.await_appointed(now);
    }

    /// Whether this version, or a later one, is known to be recorded. A replica follows no primary before: otherwise it
    /// could take a primary's updates in addition to updates that a declared loss has removed.
    pub(crate) fn knows(&self, version: Epoch) -> bool {
        self.managed.configuration.as_ref().is_some_and(|known| known.version >= version)
    }

    /// Whether this replica must be deleted and created again before it can take part in this configuration: its state
    /// is of a time before a declared loss, and may include updates that are lost.
    #[must_use]
    pub fn must_begin_again(&self, configuration: &Configuration) -> bool {
        let is_older = self.promised.epoch < configuration.loss && self.last() != Lsn::ZERO;
        self.is_managed() && is_older && configuration.primary != self.config.me
    }

    /// The version is not new to this replica. If it was the primary of it in an earlier process, it petitions to be
    /// appointed again at once.
    fn restarted_in(&mut self, version: Epoch, now: Now, out: &mut Outbox) {
        let mine = Promise { epoch: version, candidate: Some(self.config.me) };
        if self.promised != mine || !matches!(self.role, Role::Follower { .. }) {
            return;
        }
        if planted(Bug::PrimaryGoesOn) {
            self.lead(version, false, now, out);
        } else {
            self.follow(None, now.monotonic);
        }
    }

    /// Gives an appointed primary time to end its own waits and to send its first message.
    fn await_appointed(&mut self, now: Now) {
        let lease = self.config.timing.lease;
        self.follow(None, now.monotonic + grace(lease) + lease);
    }

    /// The promise of an appointed primary is durable.
    pub(crate) fn appointment_forced(&mut self, manifest: ManifestId, now: Now, out: &mut Outbox) {
        let is_durable = manifest >= self.promise_manifest;
        if let Role::Appointed { is_forced, .. } = &mut self.role {
            *is_forced |= is_durable;
            self.take_office(now, out);
        }
    }

    /// Leads in the version of the appointment once no former primary can serve any more.
    pub(crate) fn take_office(&mut self, now: Now, out: &mut Outbox) {
        let Role::Appointed { led, is_forced, .. } = self.role else { return };
        let me = self.config.me;
        let vote_ends = self.vote.filter(|vote| vote.leader != me).map_or(Monotonic(0), |vote| vote.until);
        let mut free_at = vote_ends.max(self.voteless_until);
        if planted(Bug::AppointedBeforeGrace) {
            free_at = Monotonic(0);
        }
        if !self.may_be_primary() {
            // Another member petitions.
            self.step_down(now, out);
            self.await_appointed(now);
        } else if is_forced && now.monotonic >= free_at {
            self.lead(self.promised.epoch, self.survives_loss(), now, out);
        } else {
            self.role = Role::Appointed { led, is_forced, lead_at: free_at };
        }
    }

    /// Whether this replica holds everything that it has acknowledged.
    fn may_be_primary(&self) -> bool {
        let is_whole = !self.is_in_doubt() || planted(Bug::DoubtfulAppointed);
        is_whole && self.installing.is_none() && self.last() >= self.config.origin
    }

    /// The membership that the barrier of a new primary carries; none for an elected leader.
    pub(crate) fn configured(&self) -> Option<SharedMembership> {
        if !self.is_managed() {
            return None;
        }
        let configuration = self.managed.configuration.as_ref()?;
        let next = self.membership().configured(&configuration.members);
        // The other replicas may have applied updates that are lost here: they begin again, as new replicas.
        let next = if self.survives_loss() { next.without_learners() } else { next };
        Some(SharedMembership::new(next))
    }

    /// Whether a loss was declared that this log does not contain yet.
    fn survives_loss(&self) -> bool {
        self.managed.configuration.as_ref().is_some_and(|known| self.last().epoch < known.loss)
    }

    /// A planted bug: a new primary drops its prepared entries.
    pub(crate) fn drop_prepared(&mut self, out: &mut Outbox) {
        if self.is_managed() && planted(Bug::NewPrimaryTruncates) && self.last().sequence > self.committed {
            let from = self.committed.next();
            self.cut(from);
            out.append(base::LogRecord::Truncation { from }, base::Force::Now);
        }
    }

    /// As a secondary without a primary: petitions to become the primary, without the silent one. A former process of
    /// this replica may have been the primary itself, which then stays a member.
    pub(crate) fn petition_to_lead(&mut self, now: Now, out: &mut Outbox) {
        let lease = self.config.timing.lease;
        let me = self.config.me;
        let current = self.managed.configuration.clone();
        let current = current.filter(|known| known.version == self.promised.epoch && known.has(me));
        self.role = Role::Follower { leader: None, stand_at: now.monotonic + lease + self.jitter() };
        let Some(current) = current else { return };
        let was_primary = current.primary == me;
        let is_over = was_primary || (now.monotonic >= self.voteless_until && !self.vote_forbids(me, now.monotonic));
        if !is_over || !self.may_be_primary() || self.is_aside(now) {
            return;
        }
        let stays = |member: &Member| was_primary || *member != current.primary;
        let members = current.members.iter().copied().filter(stays).collect();
        self.petition(members, me, now, out);
    }

    /// As a primary: petitions to continue without the members that have not answered for one lease. Their votes have
    /// ended, so no read is served any more.
    pub(crate) fn petition_to_remove_silent(&mut self, now: Now, out: &mut Outbox) {
        let Role::Leader(leader) = &self.role else { return };
        if !self.is_managed() {
            return;
        }
        let lease = self.config.timing.lease;
        let is_silent = |peer: &&Peer| {
            let first_answer_by = leader.since + lease + lease;
            now.monotonic >= first_answer_by && peer.heard_at + lease <= now.monotonic
        };
        let silent: Vec<Member> = self.voting(leader).filter(is_silent).map(|peer| peer.member).collect();
        if silent.is_empty() {
            return;
        }
        let members = self.membership().voters().iter().copied().filter(|voter| !silent.contains(voter)).collect();
        self.petition(members, self.config.me, now, out);
    }

    /// As a primary: petitions for a planned change of the members.
    pub(crate) fn petition_for(
        &mut self,
        change: MembershipChange,
        now: Now,
        out: &mut Outbox,
    ) -> Result<(), ChangeRefused> {
        if now.monotonic < self.managed.petition_at {
            return Err(ChangeRefused::UnderWay);
        }
        let mut members = self.membership().after(change)?.voters().to_vec();
        if let MembershipChange::Promote(member) = change {
            if !self.is_contiguous(member) && !planted(Bug::CandidateWithGap) {
                return Err(ChangeRefused::Behind);
            }
            if !self.managed.joining.contains(&member) && !planted(Bug::JoiningNotCounted) {
                self.managed.joining.push(member);
                self.managed.joining.sort_unstable();
            }
        }
        members.sort_unstable();
        self.petition(members, self.config.me, now, out);
        Ok(())
    }

    /// Whether a candidate holds everything committed, and is not in doubt.
    fn is_contiguous(&self, member: Member) -> bool {
        let Role::Leader(leader) = &self.role else { return false };
        let peer = leader.peers.get(&member.node).filter(|peer| peer.member == member);
        peer.is_some_and(|peer| peer.matched >= self.committed && !peer.doubtful)
    }

    /// As a primary: petitions to make the most advanced secondary the primary. This replica continues to lead until
    /// it learns of the new version, and then releases its votes.
    pub(crate) fn hand_over(&mut self, now: Now, out: &mut Outbox) {
        let Role::Leader(leader) = &self.role else { return };
        let successor = leader.successor(|member| self.is_voter(member));
        let mut members = self.membership().voters().iter().copied();
        if let Some(primary) = members.find(|member| Some(member.node) == successor) {
            self.propose_primary(primary, now, out);
        }
    }

    /// Petitions to make a member the primary.
    pub(crate) fn propose_primary(&mut self, primary: Member, now: Now, out: &mut Outbox) {
        self.petition(self.membership().voters().to_vec(), primary, now, out);
    }

    fn petition(&mut self, members: Vec<Member>, primary: Member, now: Now, out: &mut Outbox) {
        if now.monotonic < self.managed.petition_at {
            return;
        }
        self.managed.petition_at = now.monotonic + self.config.timing.lease;
        let version = self.promised.epoch.next();
        out.push(Output::Petition(Configuration::new(version, members, primary)));
    }

    /// Whether this replica is the only member of its configuration and may have lost acknowledged entries. The
    /// cohort then stops until an operator decides.
    #[must_use]
    pub fn is_stranded(&self) -> bool {
        let is_alone = |known: &Configuration| known.members == [self.config.me];
        self.is_managed() && self.is_in_doubt() && self.managed.configuration.as_ref().is_some_and(is_alone)
    }

    /// The candidates that receive the log, and how far each holds it, if this replica is the primary.
    #[must_use]
    pub fn candidates(&self) -> Vec<(Member, Sequence)> {
        let Role::Leader(leader) = &self.role else { return Vec::new() };
        let learners = leader.peers.values().filter(|peer| !self.is_voter(peer.member));
        learners.map(|peer| (peer.member, peer.matched)).collect()
    }
}

#[cfg(test)]
mod tests;
