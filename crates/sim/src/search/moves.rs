//! The moves of one replica, given the messages in flight to it.
//!
//! Some events are *quiet*: a follower learns a commit point or votes again, a leader counts a vote. Few other events
//! of the same replica, those that are not *blind* to it, and the checks read this state. A quiet event can be delayed
//! until just before one of these: all other events of the replica, and all events of other replicas, have the same
//! result before and after it, and the messages that it sends can be delayed too. So with eager forces, the search
//! executes each event that is not blind also directly after any of the quiet ones. Otherwise it only checks whether a
//! quiet event breaks an invariant, and does not continue from there.

use std::rc::Rc;

use base::canary::{Bug, planted};
use base::{Entry, Lsn, MembershipChange, Monotonic, Sequence};
use replication::Message;

use super::Forces;
use super::event::{Disk, Event, Outcome, carry_out};
use super::message::{Envelope, commit_point, is_vote, with_commit_point};
use super::reached::{self, Marks};
use super::replica::Replica;
use super::world::{Number, World, tick};

/// The effect of an event on a cell and on others.
pub(super) struct Move {
    pub(super) event: Event,
    /// Quiet events executed just before it.
    pub(super) after: Box<[Event]>,
    pub(super) next: Number,
    /// Messages sent, by receiving replica.
    pub(super) sent: Vec<(usize, Number)>,
    pub(super) applied: Vec<Entry>,
    pub(super) is_quiet: bool,
    /// The effect of the event itself on the replica.
    pub(super) step: Rc<Step>,
}

/// The effect of an event on a replica and on others, independent of other messages in flight to it.
pub(super) struct Step {
    next: Number,
    sent: Vec<(usize, Number)>,
    applied: Vec<Entry>,
    pub(super) appended: Vec<Entry>,
    /// Whether the appended entries were proposed by this replica.
    pub(super) leads: bool,
    /// Whether some of the writes may be lost from now on.
    pub(super) sticks: bool,
    /// Whether the replica became a candidate.
    pub(super) stands: bool,
    pub(super) marks: Marks,
}

impl World {
    /// The moves of a cell, ignoring the remaining scope.
    pub(super) fn moves(&mut self, cell: Number) -> Rc<[Move]> {
        if let Some(moves) = &self.get(cell).moves {
            return Rc::clone(moves);
        }
        let moves: Rc<[Move]> =
            if self.puts_off { self.moves_with_quiet_ones(cell) } else { self.loud_moves(cell) }.into();
        self.cells[cell as usize].moves = Some(Rc::clone(&moves));
        moves
    }

    fn loud_moves(&mut self, cell: Number) -> Vec<Move> {
        let events = self.events(cell);
        events.into_iter().flat_map(|event| self.ways(cell, event)).collect()
    }

    fn moves_with_quiet_ones(&mut self, cell: Number) -> Vec<Move> {
        let states = self.quiet_states(cell);
        let mut moves: Vec<Move> = Vec::new();
        for (place, (at, path)) in states.iter().enumerate() {
            for event in self.events(*at) {
                let is_quiet = self.is_quiet(*at, event);
                if place > 0 && (is_quiet || self.is_blind(*at, event)) {
                    continue;
                }
                let is_followed = self.is_followed(*at, event);
                for made in self.ways(*at, event) {
                    let made = made.preceded(path, is_quiet);
                    // A repeated proposal only yields a vote, and was answered.
                    let again = is_followed && !is_quiet && states.iter().any(|(state, _)| *state == made.next);
                    if !again && !moves.iter().any(|other| other.does_the_same(&made)) {
                        moves.push(made);
                    }
                }
            }
        }
        moves
    }

    /// The cells reachable by quiet events, starting with the cell itself, each with its path.
    fn quiet_states(&mut self, cell: Number) -> Vec<(Number, Vec<Move>)> {
        let mut states: Vec<(Number, Vec<Event>)> = vec![(cell, Vec::new())];
        let mut next = 0;
        while let Some((at, path)) = states.get(next).cloned() {
            next += 1;
            for event in self.events(at) {
                if !self.is_quiet(at, event) {
                    continue;
                }
                let Some(made) = self.make(at, event, Disk::Forced) else { continue };
                if states.iter().all(|(state, _)| *state != made.next) {
                    let mut path = path.clone();
                    path.push(event);
                    states.push((made.next, path));
                }
            }
        }
        let whole = |(at, path): (Number, Vec<Event>)| (at, self.run(cell, &path));
        states.into_iter().map(whole).collect()
    }

    fn run(&mut self, cell: Number, path: &[Event]) -> Vec<Move> {
        let mut at = cell;
        let mut moves = Vec::new();
        for event in path {
            moves.extend(self.make(at, *event, Disk::Forced));
            at = moves.last().map_or(cell, |made: &Move| made.next);
        }
        moves
    }

    /// The outcomes of an event, with its records forced or lost.
    fn ways(&mut self, cell: Number, event: Event) -> Vec<Move> {
        let may_lose = self.scope.crashes > 0;
        let lost = may_lose.then(|| self.make(cell, event, Disk::Lost)).flatten().filter(|lost| lost.step.sticks);
        let forced = self.make(cell, event, Disk::Forced);
        lost.into_iter().chain(forced).collect()
    }

    /// The effect of an event; `None` if it has none.
    fn make(&mut self, cell: Number, event: Event, disk: Disk) -> Option<Move> {
        let now = self.get(cell).local.now;
        let made = self.make_at(cell, event, disk, now);
        (made.next != cell || !made.sent.is_empty()).then_some(made)
    }

    /// The effect of a step of time on a cell.
    pub(super) fn tick(&mut self, cell: Number) -> Rc<Move> {
        if let Some(made) = self.ticks.get(&cell) {
            return Rc::clone(made);
        }
        let now = self.get(cell).local.now + tick();
        let made = Rc::new(self.make_at(cell, Event::Tick, Disk::Lost, now));
        self.ticks.insert(cell, Rc::clone(&made));
        made
    }

    fn make_at(&mut self, cell: Number, event: Event, disk: Disk, now: Monotonic) -> Move {
        let step = self.step(self.get(cell).number, event, disk, now);
        let inbox = self.get(cell).inbox.clone();
        let next = self.cell(step.next, &inbox);
        let (sent, applied) = (step.sent.clone(), step.applied.clone());
        Move { event, after: [].into(), next, sent, applied, is_quiet: false, step }
    }

    fn step(&mut self, number: Number, event: Event, disk: Disk, now: Monotonic) -> Rc<Step> {
        let key = (number, event, disk);
        if let Some(step) = self.steps.get(&key) {
            return Rc::clone(step);
        }
        let local = Rc::clone(self.local_at(number));
        let delivered = if let Event::Deliver(number) = event { Some(self.envelope(number)) } else { None };
        let outcome = carry_out(&local.replica, event, delivered, disk, now);
        let marks = reached::marks(&local.replica, event, &outcome);
        let Outcome { replica, sent, applied, appended, sticks, stands } = outcome;
        let leads = replica.cohort.leads();
        let next = self.local(local.index, replica, now);
        let sent = self.bundled(&sent);
        let step = Rc::new(Step { next, sent, applied, appended, leads, sticks, stands, marks });
        self.steps.insert(key, Rc::clone(&step));
        step
    }

    fn bundled(&mut self, sent: &[Envelope]) -> Vec<(usize, Number)> {
        let mut sent = sent.to_vec();
        sent.sort_unstable_by(|one, other| (one.to, one).cmp(&(other.to, other)));
        let mut bundles = Vec::new();
        for sent in sent.chunk_by(|one, other| one.to == other.to) {
            let numbers: Vec<Number> = sent.iter().map(|envelope| self.messages.number(envelope.clone())).collect();
            bundles.push((sent[0].to.0 as usize - 1, self.bundles.number(numbers.into())));
        }
        bundles
    }

    fn events(&mut self, cell: Number) -> Vec<Event> {
        let (local, inbox) = (Rc::clone(&self.get(cell).local), self.get(cell).inbox.clone());
        let replica = &local.replica;
        let scope = self.scope;
        let mut events = Vec::new();
        if replica.cohort.leads() {
            events.extend((scope.entries > 0).then_some(Event::Propose));
            events.extend((scope.releases > 0).then_some(Event::Release));
            if scope.changes > 0 {
                let membership = replica.cohort.membership();
                let promotions = membership.learners().iter().map(|learner| MembershipChange::Promote(*learner));
                let removals = membership.voters().iter().map(|voter| MembershipChange::Remove(*voter));
                events.extend(promotions.chain(removals).map(Event::Change));
            }
        } else {
            events.push(Event::Campaign);
        }
        events.extend((scope.checkpoints > 0).then_some(Event::Checkpoint));
        if scope.forces == Forces::AnyTime {
            events.extend((replica.log_pending() > 0).then_some(Event::ForceLog));
            events.extend((replica.manifests_pending() > 0).then_some(Event::ForceManifest));
        }
        if scope.crashes > 0 {
            self.crashes(replica, &mut events);
        }
        for number in inbox {
            events.push(Event::Deliver(number));
            self.commit_points(number, &mut events);
        }
        events
    }

    /// Adds the delivery of every lower commit point, in order.
    fn commit_points(&mut self, number: Number, events: &mut Vec<Event>) {
        let envelope = self.envelope(number).clone();
        let Some(last) = commit_point(&envelope.message) else { return };
        for commit in 1..last.0 {
            let message = with_commit_point(&envelope.message, Sequence(commit));
            events.push(Event::Deliver(self.messages.number(Envelope { message, ..envelope })));
        }
    }

    /// A crash keeps any prefix of the writes that were not forced. With eager forces, everything that could be kept is
    /// forced already.
    fn crashes(&self, replica: &Replica, events: &mut Vec<Event>) {
        let any = self.scope.forces == Forces::AnyTime;
        let (records, manifests) = if any { (replica.log_pending(), replica.manifests_pending()) } else { (0, 0) };
        for kept in 0..=records {
            for manifests_kept in 0..=manifests {
                events.push(Event::Crash { kept, manifests_kept, rots: false });
            }
            if !replica.places_agree() {
                events.push(Event::Crash { kept, manifests_kept: 0, rots: true });
            }
        }
    }

    /// Whether an event changes only a follower's known commit point, or the votes that the replica gave or received.
    fn is_quiet(&self, cell: Number, event: Event) -> bool {
        let Event::Deliver(number) = event else { return false };
        let envelope = self.envelope(number);
        let cohort = &self.get(cell).local.replica.cohort;
        match &envelope.message {
            Message::Propose { epoch, previous: Lsn::ZERO, entries, .. } => {
                entries.is_empty() && cohort.follows(*epoch)
            }
            _ => is_vote(envelope) && !planted(Bug::LeaseCheckedBefore),
        }
    }

    /// Whether an event does not read the state that quiet events change. A leader that counts acknowledgements or
    /// proposes reads no votes; a follower that accepts from its current leader reads neither commit point nor votes;
    /// and refusing an epoch older than the promised one reads only the promise.
    fn is_blind(&self, cell: Number, event: Event) -> bool {
        let cohort = &self.get(cell).local.replica.cohort;
        let promised = cohort.promised().epoch;
        match event {
            Event::Propose => true,
            Event::Deliver(number) => match &self.envelope(number).message {
                Message::ProposeReply { .. } => true,
                Message::Propose { epoch, .. } => *epoch < promised || cohort.follows(*epoch),
                Message::Prepare { epoch, .. } => *epoch <= promised,
                _ => false,
            },
            _ => false,
        }
    }

    /// Whether an event is a proposal from the leader that the replica follows.
    fn is_followed(&self, cell: Number, event: Event) -> bool {
        let Event::Deliver(number) = event else { return false };
        let Message::Propose { epoch, .. } = &self.envelope(number).message else { return false };
        self.get(cell).local.replica.cohort.follows(*epoch)
    }
}

impl Move {
    /// This move, preceded by others.
    fn preceded(mut self, path: &[Self], is_quiet: bool) -> Self {
        self.after = path.iter().map(|made| made.event).collect();
        self.is_quiet = is_quiet;
        for made in path.iter().rev() {
            self.sent.splice(0..0, made.sent.iter().copied());
            self.applied.splice(0..0, made.applied.iter().cloned());
        }
        self
    }

    /// Whether it is equivalent to another move. Entries that quiet events apply are checked only where those are moves
    /// themselves.
    fn does_the_same(&self, other: &Self) -> bool {
        let alike = self.next == other.next && self.event == other.event && self.step.applied == other.step.applied;
        alike && self.sent == other.sent
    }
}
