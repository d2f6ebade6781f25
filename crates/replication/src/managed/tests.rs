//! Scenes of primary/backup replication, played message by message. The catalog is a list of configurations.

use base::{Configuration, Duration, Epoch, MembershipChange};

use crate::config::{Regime, Timing};
use crate::membership::ChangeRefused;
use crate::tests::{Scene, member, node};
use crate::{Limits, Message, commit_invariant, primary_invariant, reconfiguration_invariant};

/// Replicas, and the configurations that the catalog has recorded.
struct Managed {
    scene: Scene,
    catalog: Vec<Configuration>,
}

fn lease() -> Duration {
    Timing::default().lease
}

impl Managed {
    /// The first configuration has these members; the first of them is the primary and serves.
    fn new(members: usize, outsiders: usize) -> Self {
        let mut scene = Scene::with(members, outsiders, Limits::default(), Timing::default());
        scene.replicas.iter_mut().for_each(|(cohort, _)| cohort.config.regime = Regime::Managed);
        let all = (0..members).map(|index| member(node(index))).collect();
        let first = Configuration::new(Epoch(1), all, member(node(0)));
        let mut managed = Self { scene, catalog: vec![first] };
        managed.tell_all();
        managed.scene.deliver_all();
        managed
    }

    fn current(&self) -> &Configuration {
        self.catalog.last().expect("there is a first configuration")
    }

    fn tell(&mut self, index: usize) {
        let current = self.current().clone();
        self.scene.at(index, |cohort, now, out| cohort.appointed(current, now, out));
    }

    fn tell_all(&mut self) {
        (0..self.scene.replicas.len()).for_each(|index| self.tell(index));
    }

    /// Records the first valid petition, and returns whether there was one.
    fn record(&mut self) -> bool {
        let petitions = std::mem::take(&mut self.scene.petitions);
        let valid = petitions.into_iter().find(|wanted| wanted.may_follow(self.current()).is_ok());
        let is_valid = valid.is_some();
        self.catalog.extend(valid);
        is_valid
    }

    fn timer(&mut self, index: usize) {
        self.scene.at(index, |cohort, now, out| {
            cohort.timer(now, out);
            cohort.settle(now, out);
        });
    }

    fn serves(&self, index: usize) -> bool {
        self.scene.replicas[index].0.lease_end(self.scene.now.monotonic).is_some()
    }

    fn committed(&self, index: usize) -> u64 {
        self.scene.replicas[index].0.committed().0
    }

    fn check(&self, primary: usize) {
        let cohort = |index: usize| &self.scene.replicas[index].0;
        let now = self.scene.now.monotonic;
        let all = self.scene.replicas.iter().map(|(cohort, _)| (cohort, now));
        assert_eq!(primary_invariant(all), Ok(()));
        for index in 0..self.scene.replicas.len() {
            assert_eq!(reconfiguration_invariant(cohort(primary), cohort(index)), Ok(()));
            if self.current().has(cohort(index).me()) {
                assert_eq!(commit_invariant(cohort(primary), cohort(index)), Ok(()));
            }
        }
    }
}

#[test]
fn update_commits_on_all_members() {
    let mut managed = Managed::new(3, 0);
    assert!(managed.serves(0) && managed.committed(0) == 1);
    managed.scene.propose(0);
    managed.scene.deliver(|_, to, _| to == node(1));
    managed.scene.deliver(|from, _, _| from == node(1));
    assert_eq!(managed.committed(0), 1, "one member has not acknowledged it");
    managed.scene.deliver_all();
    assert_eq!(managed.committed(0), 2);
    managed.check(0);
}

#[test]
fn silent_secondary_is_removed_before_commit() {
    let mut managed = Managed::new(3, 0);
    managed.scene.propose(0);
    for _ in 0..12 {
        managed.scene.deliver(|from, to, _| from != node(2) && to != node(2));
        managed.scene.wait(Timing::default().heartbeat);
        managed.timer(0);
        if !managed.scene.petitions.is_empty() {
            break;
        }
    }
    assert_eq!(managed.scene.petitions[0].members, [member(node(0)), member(node(1))]);
    assert!(!managed.serves(0), "reads stop before the petition");
    managed.scene.deliver(|from, to, _| from != node(2) && to != node(2));
    assert_eq!(managed.committed(0), 1, "nothing commits before the removal is recorded");
    assert!(managed.record());
    managed.tell(0);
    managed.tell(1);
    managed.scene.deliver(|from, to, _| from != node(2) && to != node(2));
    managed.scene.deliver(|from, to, _| from != node(2) && to != node(2));
    assert_eq!((managed.committed(0), managed.serves(0)), (3, true), "entry and barrier");
    // The removed member returns and is a candidate.
    managed.tell(2);
    managed.scene.deliver_all();
    managed.scene.heartbeat(0);
    managed.scene.deliver_all();
    assert_eq!(managed.scene.replicas[0].0.candidates(), [(member(node(2)), base::Sequence(3))]);
    managed.check(0);
    managed.scene.wait(lease());
    managed.scene.heartbeat(0);
    managed.scene.deliver_all();
    managed.scene.at(0, |cohort, now, out| {
        cohort.change_membership(MembershipChange::Promote(member(node(2))), 0, now, out).expect("it holds everything");
    });
    assert!(managed.record());
    assert_eq!((managed.current().version, managed.current().members.len()), (Epoch(3), 3));
    managed.tell_all();
    managed.scene.deliver_all();
    assert!(managed.serves(0));
    managed.check(0);
}

#[test]
fn secondary_takes_over_after_grace() {
    let mut managed = Managed::new(3, 0);
    managed.scene.propose(0);
    managed.scene.deliver(|_, to, _| to != node(0));
    // Prepared on all, and not known to be committed. The primary fails.
    managed.scene.under_way.clear();
    managed.scene.wait(lease());
    managed.timer(1);
    assert!(managed.scene.petitions.is_empty(), "the grace period has not ended");
    assert!(!managed.serves(0), "the lease has");
    managed.scene.wait(lease());
    managed.timer(1);
    managed.timer(2);
    assert_eq!(managed.scene.petitions.len(), 2);
    assert!(managed.record());
    assert_eq!((managed.current().primary, managed.current().members.len()), (member(node(1)), 2));
    managed.tell(1);
    managed.tell(2);
    managed.scene.deliver(|_, to, _| to != node(0));
    assert!(!managed.serves(1), "its prepared updates are not committed yet");
    managed.scene.deliver(|_, to, _| to != node(0));
    assert_eq!((managed.committed(1), managed.serves(1)), (3, true));
    // The former primary is refused, and becomes a candidate.
    managed.scene.heartbeat(0);
    managed.scene.deliver_all();
    assert!(!managed.scene.replicas[0].0.leads());
    managed.tell(0);
    managed.scene.heartbeat(1);
    managed.scene.deliver_all();
    managed.check(1);
}

#[test]
fn restarted_primary_is_appointed_again() {
    let mut managed = Managed::new(3, 0);
    managed.scene.restart(0, |config| config.regime = Regime::Managed);
    managed.tell(0);
    assert!(!managed.scene.replicas[0].0.leads(), "its version has ended");
    managed.timer(0);
    assert!(managed.record());
    assert_eq!((managed.current().primary, managed.current().members.len()), (member(node(0)), 3));
    managed.tell(0);
    managed.scene.deliver_all();
    assert!(!managed.serves(0), "the secondaries do not know the version yet");
    managed.tell_all();
    managed.scene.heartbeat(0);
    managed.scene.deliver_all();
    assert!(managed.serves(0));
    managed.check(0);
}

#[test]
fn older_states_begin_again_after_declared_loss() {
    let mut managed = Managed::new(3, 0);
    managed.scene.propose(0);
    managed.scene.deliver_all();
    let alone = Configuration::new(Epoch(2), vec![member(node(0))], member(node(0)));
    managed.catalog.push(Configuration { loss: Epoch(2), ..alone });
    managed.tell_all();
    managed.scene.deliver_all();
    assert!(managed.serves(0), "the survivor continues");
    let cohort = |managed: &Managed, index: usize| managed.scene.replicas[index].0.clone();
    assert!(cohort(&managed, 0).declares_loss());
    assert_eq!(cohort(&managed, 0).membership().everyone().collect::<Vec<_>>(), [member(node(0))]);
    for index in [1, 2] {
        assert!(cohort(&managed, index).must_begin_again(managed.current()));
        assert_eq!(cohort(&managed, index).promised().epoch, Epoch(1), "it takes no part");
    }
}

#[test]
fn joining_candidate_counts_before_recorded() {
    let mut managed = Managed::new(2, 1);
    let candidate = member(node(2));
    let change = |managed: &mut Managed, change| {
        let mut result = Ok(());
        managed.scene.at(0, |cohort, now, out| {
            result = cohort.change_membership(change, 1, now, out);
            cohort.settle(now, out);
        });
        result
    };
    assert_eq!(change(&mut managed, MembershipChange::AddLearner(candidate)), Ok(()));
    managed.scene.deliver(|_, to, _| to != node(2));
    managed.scene.deliver(|from, to, _| to != node(2) && from != node(2));
    assert_eq!(managed.committed(0), 2, "a candidate does not delay commits");
    assert_eq!(change(&mut managed, MembershipChange::Promote(candidate)), Err(ChangeRefused::Behind));
    for _ in 0..2 {
        managed.scene.heartbeat(0);
        managed.scene.deliver_all();
    }
    assert_eq!(change(&mut managed, MembershipChange::Promote(candidate)), Ok(()));
    managed.scene.propose(0);
    managed.scene.deliver(|from, to, _| from != node(2) && to != node(2));
    managed.scene.deliver(|from, to, _| from != node(2) && to != node(2));
    assert_eq!(managed.committed(0), 2, "the candidate may be a member already");
    assert_eq!(change(&mut managed, MembershipChange::Remove(candidate)), Err(ChangeRefused::UnderWay));
    assert!(managed.record());
    managed.scene.deliver_all();
    assert_eq!(managed.committed(0), 3);
    managed.tell_all();
    managed.scene.deliver_all();
    managed.check(0);
}

#[test]
fn handover_releases_votes() {
    let mut managed = Managed::new(3, 0);
    managed.scene.at(0, |cohort, now, out| cohort.release(now, out));
    assert!(managed.record());
    let successor = managed.current().primary.node.0 as usize - 1;
    managed.tell(successor);
    assert!(!managed.scene.replicas[successor].0.leads(), "its vote for the former primary is valid");
    managed.tell(0);
    assert!(!managed.serves(0));
    managed.scene.deliver(|_, _, message| matches!(message, Message::Release { .. }));
    assert!(managed.scene.replicas[successor].0.leads());
    managed.tell_all();
    managed.scene.deliver_all();
    assert!(managed.serves(successor));
    managed.check(successor);
}

#[test]
fn doubtful_member_does_not_petition() {
    let mut managed = Managed::new(2, 0);
    managed.scene.replicas[1].0.doubtful = true;
    managed.scene.wait(lease());
    managed.scene.wait(lease());
    managed.timer(1);
    assert!(managed.scene.petitions.is_empty());
    assert!(!managed.scene.replicas[1].0.is_stranded());
    // Even if it is appointed, it does not lead.
    let alone = Configuration::new(Epoch(2), vec![member(node(1))], member(node(1)));
    managed.catalog.push(alone);
    managed.tell(1);
    managed.scene.wait(lease());
    managed.timer(1);
    assert!(!managed.scene.replicas[1].0.leads());
    assert!(managed.scene.replicas[1].0.is_stranded());
}
