//! The machines of a node's process, and what they ask for.

use std::collections::{BTreeMap, BTreeSet};

use base::{Boot, NodeId};

use super::network::{Asker, Event, Message, Place, Return};
use super::node::Units;
use super::{MILLISECOND, World};
use crate::client::{self, Client, ReadMany, Token, Wait};
use crate::copier::{self, Copier};
use crate::janitor::{self, Janitor};
use crate::limits::BATCH_BYTES_MAX;
use crate::recovery::{self, Ended, Recovery};
use crate::sequencer::{self, Sequencer};
use crate::{AskId, ClientId, Position, Projection, ProjectionEpoch, Run, SequencerId, UnitId, unit};

#[derive(Debug)]
pub(super) struct Process {
    pub(super) life: u64,
    pub(super) me: SequencerId,
    pub(super) units: Units,
    /// The epochs whose sequencer it has been.
    begun: BTreeSet<ProjectionEpoch>,
    pub(super) sequencer: Option<Sequencer<Return>>,
    pub(super) recoveries: BTreeMap<u64, Recovery>,
    pub(super) copier: Option<(u64, Copier)>,
    reads: BTreeMap<Token, (u64, Run)>,
    /// It fills what its node's clients, and others, leave.
    janitor: Option<Janitor>,
    /// What its janitor has asked the client for; with no position: the tail.
    tidied: BTreeMap<Token, Option<Position>>,
    pub(super) client: Client,
    pub(super) known: Option<Projection>,
}

/// What a machine of a process wants.
enum Wanted {
    Client(client::Action),
    Sequencer(ProjectionEpoch, sequencer::Action<Return>),
    Recovery(u64, recovery::Action),
    Copier(u64, copier::Action),
    Janitor(janitor::Action),
}

impl World {
    /// A process starts on what its disk holds.
    pub(super) fn start_node(&mut self, id: u32) {
        let (life, timing) = (self.life(), self.options.client());
        let Some(node) = self.nodes.get_mut(&id) else { return };
        node.boot = Boot(node.boot.0 + 1);
        let me = SequencerId { node: NodeId(id), boot: node.boot };
        node.process = Some(Process {
            life,
            me,
            units: node.disk.replay(),
            begun: BTreeSet::new(),
            sequencer: None,
            recoveries: BTreeMap::new(),
            copier: None,
            reads: BTreeMap::new(),
            janitor: None,
            tidied: BTreeMap::new(),
            client: Client::new(ClientId(1_000_000 + life), timing, life),
            known: None,
        });
        self.network.put(self.now, Event::Tick { node: id, life });
    }

    fn process(&mut self, id: u32, life: Option<u64>) -> Option<&mut Process> {
        let process = self.nodes.get_mut(&id)?.process.as_mut()?;
        life.is_none_or(|life| life == process.life).then_some(process)
    }

    /// A node asks for the newest projection every now and then.
    pub(super) fn tick(&mut self, id: u32, life: u64) {
        if self.process(id, Some(life)).is_none() {
            return;
        }
        let back = Return { place: Place::Node(id), life, asker: Asker::Client, ask: AskId(0) };
        self.send(Place::Node(id), Place::Registry, None, Message::Fetch { back });
        let pause = 5 * MILLISECOND + self.random.below(5 * MILLISECOND);
        self.network.put(self.now + pause, Event::Tick { node: id, life });
    }

    pub(super) fn node_hears(&mut self, id: u32, life: Option<u64>, message: Message) {
        let now = self.clock();
        let Some(process) = self.process(id, life) else { return };
        match message {
            Message::ToUnit { unit, request, back } => self.unit_asked(id, unit, request, back),
            Message::ToSequencer { sequencer, request, back } => {
                let mine = process.sequencer.as_mut().filter(|_| sequencer.node == process.me.node);
                match mine {
                    Some(machine) => machine.asked(back, request, now),
                    None => {
                        let newest = ProjectionEpoch(0);
                        let reply = sequencer::Reply::Refused { newest };
                        let reply = Message::OfSequencer { reply, back };
                        self.send(Place::Node(id), back.place, Some(back.life), reply);
                    }
                }
            }
            Message::OfUnit { reply, back } => match back.asker {
                Asker::Client => process.client.unit_answered(back.ask, reply, now),
                Asker::Sequencer(epoch) => {
                    if let Some(machine) = process.sequencer.as_mut().filter(|machine| machine.epoch() == epoch) {
                        machine.answered(back.ask, &reply, now);
                    }
                }
                Asker::Recovery(number) => {
                    if let Some(recovery) = process.recoveries.get_mut(&number) {
                        recovery.answered(back.ask, reply, now);
                    }
                }
                Asker::Copier(number) => {
                    if let Some((of, copier)) = &mut process.copier
                        && *of == number
                    {
                        copier.answered(back.ask, reply, now);
                    }
                }
                Asker::Janitor => {
                    if let Some(janitor) = &mut process.janitor {
                        janitor.answered(back.ask, reply, now);
                    }
                }
                Asker::Player => {}
            },
            Message::OfSequencer { reply, back } => process.client.sequencer_answered(back.ask, reply, now),
            Message::Fetched { projection } => self.node_learns(id, projection),
            Message::Verdict { verdict, back } => {
                if let Asker::Recovery(number) = back.asker
                    && let Some(recovery) = process.recoveries.get_mut(&number)
                {
                    recovery.verdict(verdict, now);
                }
            }
            Message::Fetch { .. } | Message::Propose { .. } => {}
        }
        self.settle_node(id);
    }

    pub(super) fn node_timer(&mut self, id: u32, life: u64, asker: Asker) {
        let now = self.clock();
        let Some(process) = self.process(id, Some(life)) else { return };
        match asker {
            Asker::Client => process.client.timer(now),
            Asker::Sequencer(epoch) => {
                if let Some(machine) = process.sequencer.as_mut().filter(|machine| machine.epoch() == epoch) {
                    machine.timer(now);
                }
            }
            Asker::Recovery(number) => {
                if let Some(recovery) = process.recoveries.get_mut(&number) {
                    recovery.timer(now);
                }
            }
            Asker::Copier(number) => {
                if let Some((of, copier)) = &mut process.copier
                    && *of == number
                {
                    copier.timer(now);
                }
            }
            Asker::Janitor => {
                if let Some(janitor) = &mut process.janitor {
                    janitor.timer(now);
                }
            }
            Asker::Player => {}
        }
        self.settle_node(id);
    }

    /// A node learns of a projection: it may be its sequencer, or not be it any more.
    pub(super) fn node_learns(&mut self, id: u32, projection: Projection) {
        let (now, janitor) = (self.clock(), self.options.janitor());
        let Some(process) = self.process(id, None) else { return };
        if process.known.as_ref().is_some_and(|known| known.epoch >= projection.epoch) {
            return;
        }
        if let Some(machine) = &mut process.sequencer {
            machine.superseded(projection.epoch);
        }
        let (begun, old) =
            match Sequencer::begin(&projection, process.me).filter(|_| process.begun.insert(projection.epoch)) {
                Some(machine) => (true, process.sequencer.replace(machine)),
                None => (false, None),
            };
        process.known = Some(projection.clone());
        // The sequencer's node looks after what it gives out.
        match &mut process.janitor {
            Some(machine) => machine.projected(projection.clone(), now),
            None if begun => {
                process.janitor = Some(Janitor::begin(projection.clone(), Position(0), janitor, now));
            }
            None => {}
        }
        process.client.projected(projection, now);
        if let Some(mut old) = old {
            let epoch = old.epoch();
            old.take_actions().into_iter().for_each(|action| self.carry_out(id, Wanted::Sequencer(epoch, action)));
        }
        if begun {
            self.count("sequencers");
        }
        self.tell_own_units(id);
    }

    /// Has the units of a node know the stripes that they hold by now.
    fn tell_own_units(&mut self, id: u32) {
        let Some(process) = self.process(id, None) else { return };
        let Some(known) = &process.known else { return };
        let back = Return { place: Place::Node(id), life: process.life, asker: Asker::Player, ask: AskId(0) };
        let stripes = |unit: &UnitId| known.stripes_of(*unit);
        let told: Vec<_> = process.units.units.keys().map(|unit| (*unit, stripes(unit))).collect();
        for (unit, stripes) in told.into_iter().filter(|(_, stripes)| !stripes.is_empty()) {
            self.unit_asked(id, unit, unit::Request::Command(unit::Command::Tell { stripes }), back);
        }
    }

    /// Carries out what the machines of a node want, until they want nothing.
    pub(super) fn settle_node(&mut self, id: u32) {
        loop {
            let Some(process) = self.process(id, None) else { return };
            process.client.invariants();
            let mut wanted: Vec<Wanted> = process.client.take_actions().into_iter().map(Wanted::Client).collect();
            if let Some(machine) = &mut process.sequencer {
                let epoch = machine.epoch();
                wanted.extend(machine.take_actions().into_iter().map(|action| Wanted::Sequencer(epoch, action)));
            }
            for (number, recovery) in &mut process.recoveries {
                wanted.extend(recovery.take_actions().into_iter().map(|action| Wanted::Recovery(*number, action)));
            }
            process.recoveries.retain(|_, recovery| !recovery.has_ended());
            if let Some((number, copier)) = &mut process.copier {
                wanted.extend(copier.take_actions().into_iter().map(|action| Wanted::Copier(*number, action)));
                if copier.has_ended() {
                    process.copier = None;
                }
            }
            if let Some(janitor) = &mut process.janitor {
                wanted.extend(janitor.take_actions().into_iter().map(Wanted::Janitor));
            }
            if wanted.is_empty() {
                return;
            }
            wanted.into_iter().for_each(|wanted| self.carry_out(id, wanted));
        }
    }

    fn carry_out(&mut self, id: u32, wanted: Wanted) {
        let place = Place::Node(id);
        let Some(life) = self.process(id, None).map(|process| process.life) else { return };
        match wanted {
            Wanted::Client(action) => self.carry_out_client(place, life, action),
            Wanted::Sequencer(epoch, action) => match action {
                sequencer::Action::Ask { ask, unit, request } => {
                    self.ask_unit(unit, request, Return { place, life, asker: Asker::Sequencer(epoch), ask });
                }
                sequencer::Action::Answer { asker, reply } => {
                    if let sequencer::Reply::Positions { first, count } = &reply {
                        let end = self.given_out.entry(epoch).or_default();
                        *end = Position(first.0 + count).max(*end);
                    }
                    let reply = Message::OfSequencer { reply, back: asker };
                    self.send(place, asker.place, Some(asker.life), reply);
                }
                sequencer::Action::SetTimer(at) => {
                    self.network.set_timer(at.0, place, life, Asker::Sequencer(epoch));
                }
            },
            Wanted::Recovery(number, action) => {
                let asker = Asker::Recovery(number);
                match action {
                    recovery::Action::Ask { ask, unit, request } => {
                        self.ask_unit(unit, request, Return { place, life, asker, ask });
                    }
                    recovery::Action::Propose(projection) => {
                        let back = Return { place, life, asker, ask: AskId(0) };
                        self.send(place, Place::Registry, None, Message::Propose { projection, back });
                    }
                    recovery::Action::SetTimer(at) => self.network.set_timer(at.0, place, life, asker),
                    recovery::Action::Done(ended) => self.recovered(id, ended),
                }
            }
            Wanted::Janitor(action) => {
                let back = Return { place, life, asker: Asker::Janitor, ask: AskId(0) };
                self.carry_out_janitor(id, back, action);
            }
            Wanted::Copier(number, action) => {
                let asker = Asker::Copier(number);
                match action {
                    copier::Action::Ask { ask, unit, request } => {
                        self.ask_unit(unit, request, Return { place, life, asker, ask });
                    }
                    copier::Action::Read(run) => self.copier_reads(id, number, run),
                    copier::Action::SetTimer(at) => self.network.set_timer(at.0, place, life, asker),
                    copier::Action::Done { is_whole } => self.copied(id, is_whole),
                }
            }
        }
    }

    fn carry_out_janitor(&mut self, id: u32, back: Return, action: janitor::Action) {
        let (now, token) = (self.clock(), self.token());
        let deadline = now + base::Duration::from_millis(100);
        match action {
            janitor::Action::Ask { ask, unit, request } => self.ask_unit(unit, request, Return { ask, ..back }),
            janitor::Action::SetTimer(at) => self.network.set_timer(at.0, back.place, back.life, back.asker),
            janitor::Action::Tail => {
                let Some(process) = self.process(id, None) else { return };
                process.tidied.insert(token, None);
                process.client.tail(token, deadline, now);
            }
            janitor::Action::Fill(position) => {
                self.count("holes found by the janitor");
                let Some(process) = self.process(id, None) else { return };
                process.tidied.insert(token, Some(position));
                process.client.fill(token, position, deadline, now);
            }
        }
    }

    fn copier_reads(&mut self, id: u32, number: u64, run: Run) {
        let (now, token) = (self.clock(), self.token());
        let Some(process) = self.process(id, None) else { return };
        process.reads.insert(token, (number, run));
        let deadline = now + base::Duration::from_millis(100);
        let wait = Wait::Each(base::Duration::ZERO);
        let wanted = ReadMany { run, wait, bytes: BATCH_BYTES_MAX };
        process.client.read_many(token, wanted, deadline, now);
    }

    /// A call of a node's client has ended: they are its copier's and its janitor's.
    pub(super) fn node_done(&mut self, id: u32, token: Token, outcome: &Result<client::Answer, client::Error>) {
        let now = self.clock();
        let Some(process) = self.process(id, None) else { return };
        if let (Some(asked), Some(janitor)) = (process.tidied.remove(&token), &mut process.janitor) {
            match (asked, outcome) {
                (Some(position), outcome) => janitor.filled(position, outcome, now),
                (None, Ok(client::Answer::Tail(tail))) => janitor.tail(Ok(*tail), now),
                (None, _) => janitor.tail(Err(client::Error::OutOfTime), now),
            }
            return;
        }
        let Some((number, run)) = process.reads.remove(&token) else { return };
        if let Some((of, copier)) = &mut process.copier
            && *of == number
        {
            copier.read(run, outcome.clone(), now);
        }
        if let Err(client::Error::Conflict { position }) = outcome {
            self.violate(&format!("the units disagree about {position}"));
        }
    }

    fn recovered(&mut self, id: u32, ended: Ended) {
        match ended {
            Ended::Installed(projection) => {
                self.count("recoveries");
                self.node_learns(id, projection);
            }
            Ended::Lost => self.count("recoveries lost"),
            Ended::OutOfTime => self.count("recoveries out of time"),
            // Nothing is left that new entries could go to.
            Ended::NoSuccessor if self.options.losses => self.count("recoveries without a successor"),
            Ended::NoSuccessor => self.violate("a recovery has no successor"),
        }
    }

    /// A machine asks a unit.
    pub(super) fn ask_unit(&mut self, unit: UnitId, request: unit::Request, back: Return) {
        let Some(node) = self.registry.units.get(&unit).copied() else { return };
        self.send(back.place, Place::Node(node), None, Message::ToUnit { unit, request, back });
    }

    /// What every client wants, wherever it is.
    pub(super) fn carry_out_client(&mut self, place: Place, life: u64, action: client::Action) {
        let back = |ask| Return { place, life, asker: Asker::Client, ask };
        match action {
            client::Action::AskUnit { ask, unit, request } => self.ask_unit(unit, request, back(ask)),
            client::Action::AskSequencer { ask, sequencer, request } => {
                let message = Message::ToSequencer { sequencer, request, back: back(ask) };
                self.send(place, Place::Node(sequencer.node.0), None, message);
            }
            client::Action::Fetch => {
                self.send(place, Place::Registry, None, Message::Fetch { back: back(AskId(0)) });
            }
            client::Action::Suspect { .. } => self.suspected(),
            client::Action::SetTimer(at) => self.network.set_timer(at.0, place, life, Asker::Client),
            client::Action::Done { token, outcome } => match place {
                Place::Node(node) => self.node_done(node, token, &outcome),
                Place::Client(client) => self.client_done(client, token, outcome),
                Place::Registry => {}
            },
        }
    }
}
