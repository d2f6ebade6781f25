//! The machines of a node's process and their actions.

use std::collections::{BTreeMap, BTreeSet};

use base::{Boot, NodeId};

use super::network::{Event, Message, Return, SimMachine, SimProcess};
use super::node::Units;
use super::{CONTROLLER, LOG, MILLISECOND, World};
use crate::client::{self, Client, ReadMany, Token, Wait};
use crate::controller::{self, ClusterState, Controller, CopierId, Counters};
use crate::hole_fill::{self, HoleFill};
use crate::limits::BATCH_BYTES_MAX;
use crate::recovery::ProposalOutcome;
use crate::sequencer::{self, Sequencer};
use crate::{AskId, ClientId, Position, PositionRun, Projection, ProjectionEpoch, SequencerId, UnitId, unit};

#[derive(Debug)]
pub(super) struct Process {
    pub(super) life: u64,
    pub(super) me: SequencerId,
    pub(super) units: Units,
    /// Epochs in which it was the sequencer.
    begun: BTreeSet<ProjectionEpoch>,
    pub(super) sequencer: Option<Sequencer<Return>>,
    pub(super) controller: Controller,
    /// The controller's counters at the last update.
    counted: Counters,
    /// Reads for the controller.
    reads: BTreeMap<Token, (CopierId, PositionRun)>,
    hole_fill: Option<HoleFill>,
    /// Calls of the hole fill; `None` is a tail query.
    fills: BTreeMap<Token, (ProjectionEpoch, Option<Position>)>,
    pub(super) client: Client,
    pub(super) known: Option<Projection>,
}

/// An action of a machine.
enum Wanted {
    Client(client::Action),
    Sequencer(ProjectionEpoch, sequencer::Action<Return>),
    Controller(controller::Action),
    HoleFill(ProjectionEpoch, hole_fill::Action),
}

impl World {
    /// Starts a process on its disk.
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
            controller: Controller::new(me, CONTROLLER),
            counted: Counters::default(),
            reads: BTreeMap::new(),
            hole_fill: None,
            fills: BTreeMap::new(),
            client: Client::new(ClientId(1_000_000 + life), timing, life),
            known: None,
        });
        self.network.put(self.now, Event::Tick { node: id, life });
    }

    pub(super) fn process(&mut self, id: u32, life: Option<u64>) -> Option<&mut Process> {
        let process = self.nodes.get_mut(&id)?.process.as_mut()?;
        life.is_none_or(|life| life == process.life).then_some(process)
    }

    /// Periodically sends heartbeats and queries the newest projection.
    pub(super) fn tick(&mut self, id: u32, life: u64) {
        let now = self.clock();
        let Some(process) = self.process(id, Some(life)) else { return };
        process.controller.awake(now);
        let me = process.me;
        let back = Return { place: SimProcess::Node(id), life, machine: SimMachine::Client, ask: AskId(0) };
        self.send(SimProcess::Node(id), SimProcess::Registry, None, Message::Fetch { back });
        let is_other = |other: &u32| *other != id && self.options.speed.is_none();
        for other in self.nodes.keys().copied().filter(is_other).collect::<Vec<_>>() {
            self.send(SimProcess::Node(id), SimProcess::Node(other), None, Message::Heartbeat { process: me });
        }
        let pause = 5 * MILLISECOND + self.random.below(5 * MILLISECOND);
        self.network.put(self.now + pause, Event::Tick { node: id, life });
    }

    pub(super) fn node_receives(&mut self, id: u32, life: Option<u64>, message: Message) {
        let now = self.clock();
        let Some(process) = self.process(id, life) else { return };
        process.controller.awake(now);
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
                        self.send(SimProcess::Node(id), back.place, Some(back.life), reply);
                    }
                }
            }
            Message::OfUnit { reply, back } => match back.machine {
                SimMachine::Client => process.client.unit_answered(back.ask, reply, now),
                SimMachine::Sequencer(epoch) => {
                    if let Some(machine) = process.sequencer.as_mut().filter(|machine| machine.epoch() == epoch) {
                        machine.answered(back.ask, &reply, now);
                    }
                }
                SimMachine::ControllerPart(requester) => {
                    process.controller.answered(LOG, requester, back.ask, reply, now);
                }
                SimMachine::HoleFill(epoch) => {
                    if let Some(fill) = process.hole_fill.as_mut().filter(|fill| fill.epoch() == epoch) {
                        fill.answered(back.ask, reply, now);
                    }
                }
                SimMachine::Player | SimMachine::Controller => {}
            },
            Message::OfSequencer { reply, back } => process.client.sequencer_answered(back.ask, reply, now),
            Message::Fetched { projection, cluster } => {
                self.node_learns(id, projection);
                if let Some(cluster) = cluster {
                    self.controller_learns(id, *cluster);
                }
            }
            Message::ProposalOutcome { verdict, back } => {
                if let SimMachine::ControllerPart(controller::Requester::Recovery(epoch)) = back.machine {
                    process.controller.verdict(LOG, epoch.next(), verdict.clone(), now);
                }
                if let ProposalOutcome::Newest(newest) = verdict {
                    self.node_learns(id, newest);
                }
            }
            Message::Heartbeat { process: of } => process.controller.message_received(of.node, of.boot),
            Message::Suspected { epoch, suspect } => process.controller.suspected(LOG, epoch, suspect, now),
            Message::UnitsInDoubt { member, units } => {
                process.controller.units_in_doubt(member, &units);
            }
            Message::Fetch { .. } | Message::Propose { .. } => {}
            Message::AddUnits { .. } | Message::ForgetSpares { .. } => {}
        }
        self.settle_node(id);
    }

    pub(super) fn node_timer(&mut self, id: u32, life: u64, machine: SimMachine) {
        let now = self.clock();
        let Some(process) = self.process(id, Some(life)) else { return };
        process.controller.awake(now);
        match machine {
            SimMachine::Client => process.client.timer(now),
            SimMachine::Sequencer(epoch) => {
                if let Some(machine) = process.sequencer.as_mut().filter(|machine| machine.epoch() == epoch) {
                    machine.timer(now);
                }
            }
            SimMachine::Controller => process.controller.timer(now),
            SimMachine::HoleFill(epoch) => {
                if let Some(fill) = process.hole_fill.as_mut().filter(|fill| fill.epoch() == epoch) {
                    fill.timer(now);
                }
            }
            SimMachine::Player | SimMachine::ControllerPart(_) => {}
        }
        self.settle_node(id);
    }

    /// A node learns of a projection and becomes its sequencer, or stops being one.
    pub(super) fn node_learns(&mut self, id: u32, projection: Projection) {
        let (now, config) = (self.clock(), self.options.hole_fill());
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
        process.hole_fill = begun.then(|| HoleFill::begin(projection.clone(), config, now));
        process.client.projected(projection, now);
        if let Some(mut old) = old {
            let epoch = old.epoch();
            old.take_actions().into_iter().for_each(|action| self.carry_out(id, Wanted::Sequencer(epoch, action)));
        }
        if begun {
            self.count("sequencers");
        }
        self.assign_own_stripes(id);
    }

    /// Updates a leading controller with the registry's state, which may be slightly outdated.
    fn controller_learns(&mut self, id: u32, cluster: ClusterState) {
        let (now, Some(process)) = (self.clock(), self.process(id, None)) else { return };
        let life = process.life;
        // The leader's own catalog never goes back.
        let is_newest =
            cluster.logs.get(&LOG).map(|log| log.projection.epoch) >= process.known.as_ref().map(|known| known.epoch);
        if is_newest && self.leaders.contains(&(id, life)) {
            let Some(process) = self.process(id, None) else { return };
            process.controller.observe(cluster, now);
        }
    }

    /// Assigns the current stripes to the units of a node.
    fn assign_own_stripes(&mut self, id: u32) {
        let Some(process) = self.process(id, None) else { return };
        let Some(known) = &process.known else { return };
        let back =
            Return { place: SimProcess::Node(id), life: process.life, machine: SimMachine::Player, ask: AskId(0) };
        let stripes = |unit: &UnitId| known.stripes_of(*unit);
        let assigned: Vec<_> = process.units.units.keys().map(|unit| (*unit, stripes(unit))).collect();
        for (unit, stripes) in assigned.into_iter().filter(|(_, stripes)| !stripes.is_empty()) {
            self.unit_asked(id, unit, unit::Request::Command(unit::Command::AssignStripes { stripes }.into()), back);
        }
    }

    /// Carries out the actions of a node's machines until there are none.
    pub(super) fn settle_node(&mut self, id: u32) {
        let now = self.clock();
        loop {
            let Some(process) = self.process(id, None) else { return };
            process.client.invariants();
            let mut wanted: Vec<Wanted> = process.client.take_actions().into_iter().map(Wanted::Client).collect();
            if let Some(machine) = &mut process.sequencer {
                let epoch = machine.epoch();
                wanted.extend(machine.take_actions().into_iter().map(|action| Wanted::Sequencer(epoch, action)));
            }
            wanted.extend(process.controller.take_actions().into_iter().map(Wanted::Controller));
            if let (Some(fill), Some(sequencer)) = (&mut process.hole_fill, &process.sequencer) {
                fill.handed_out(sequencer.next(), now);
                let epoch = fill.epoch();
                wanted.extend(fill.take_actions().into_iter().map(|action| Wanted::HoleFill(epoch, action)));
            }
            if wanted.is_empty() {
                return self.controller_settled(id);
            }
            wanted.into_iter().for_each(|wanted| self.carry_out(id, wanted));
        }
    }

    fn carry_out(&mut self, id: u32, wanted: Wanted) {
        let place = SimProcess::Node(id);
        let Some(life) = self.process(id, None).map(|process| process.life) else { return };
        match wanted {
            Wanted::Client(action) => self.carry_out_client(place, life, action),
            Wanted::Sequencer(epoch, action) => match action {
                sequencer::Action::Ask { ask, unit, request } => {
                    self.ask_unit(unit, request, Return { place, life, machine: SimMachine::Sequencer(epoch), ask });
                }
                sequencer::Action::Reply { requester, reply } => {
                    if let sequencer::Reply::Positions { first, count } = &reply {
                        let end = self.handed_out.entry(epoch).or_default();
                        *end = Position(first.0 + count).max(*end);
                    }
                    let reply = Message::OfSequencer { reply, back: requester };
                    self.send(place, requester.place, Some(requester.life), reply);
                }
                sequencer::Action::SetTimer(at) => {
                    self.network.set_timer(at.0, place, life, SimMachine::Sequencer(epoch));
                }
            },
            Wanted::Controller(action) => self.carry_out_controller(id, life, action),
            Wanted::HoleFill(epoch, action) => {
                let back = Return { place, life, machine: SimMachine::HoleFill(epoch), ask: AskId(0) };
                self.carry_out_hole_fill(id, epoch, back, action);
            }
        }
    }

    fn carry_out_controller(&mut self, id: u32, life: u64, action: controller::Action) {
        let place = SimProcess::Node(id);
        match action {
            controller::Action::Ask { log: _, requester, ask, unit, request } => {
                self.ask_unit(
                    unit,
                    request,
                    Return { place, life, machine: SimMachine::ControllerPart(requester), ask },
                );
            }
            controller::Action::Read { log: _, copier, run } => self.copier_reads(id, copier, run),
            controller::Action::Propose(projection) => {
                let epoch = ProjectionEpoch(projection.epoch.0 - 1);
                let machine = SimMachine::ControllerPart(controller::Requester::Recovery(epoch));
                let back = Return { place, life, machine, ask: AskId(0) };
                self.send(place, SimProcess::Registry, None, Message::Propose { projection, back });
            }
            controller::Action::AddUnits { log: _, nodes } => {
                self.send(place, SimProcess::Registry, None, Message::AddUnits { nodes });
            }
            controller::Action::ForgetSpares { log: _, units } => {
                self.count("spares deleted");
                self.send(place, SimProcess::Registry, None, Message::ForgetSpares { units });
            }
        }
    }

    /// Sets the controller's timer and updates the counters.
    fn controller_settled(&mut self, id: u32) {
        let Some(process) = self.process(id, None) else { return };
        let (life, at) = (process.life, process.controller.next_timer());
        let new = process.controller.counters();
        let old = std::mem::replace(&mut process.counted, new);
        if let Some(at) = at {
            self.network.set_timer(at.0, SimProcess::Node(id), life, SimMachine::Controller);
        }
        for (what, times) in [
            ("recoveries started", new.reconfigurations - old.reconfigurations),
            ("recoveries", new.installed - old.installed),
            ("recoveries lost", new.superseded - old.superseded),
            ("recoveries out of time", new.timed_out - old.timed_out),
            ("recoveries without a successor", new.no_successor - old.no_successor),
            ("copiers", new.copiers - old.copiers),
            ("units fully copied", new.copied - old.copied),
            ("units reported in doubt", new.units_in_doubt - old.units_in_doubt),
        ] {
            (0..times).for_each(|_| self.count(what));
        }
        // After permanent losses there may be no unit for new entries.
        if new.no_successor > old.no_successor && !self.options.losses {
            self.violate("a recovery has no successor");
        }
    }

    fn carry_out_hole_fill(&mut self, id: u32, epoch: ProjectionEpoch, back: Return, action: hole_fill::Action) {
        let (now, token) = (self.clock(), self.token());
        let deadline = now + base::Duration::from_millis(100);
        match action {
            hole_fill::Action::Ask { ask, unit, request } => self.ask_unit(unit, request, Return { ask, ..back }),
            hole_fill::Action::SetTimer(at) => self.network.set_timer(at.0, back.place, back.life, back.machine),
            hole_fill::Action::Tail => {
                let Some(process) = self.process(id, None) else { return };
                process.fills.insert(token, (epoch, None));
                process.client.tail(token, deadline, now);
            }
            hole_fill::Action::Fill(position) => {
                self.count("holes found");
                let Some(process) = self.process(id, None) else { return };
                process.fills.insert(token, (epoch, Some(position)));
                process.client.fill(token, position, deadline, now);
            }
        }
    }

    fn copier_reads(&mut self, id: u32, copier: CopierId, run: PositionRun) {
        let (now, token) = (self.clock(), self.token());
        let Some(process) = self.process(id, None) else { return };
        process.reads.insert(token, (copier, run));
        let deadline = now + base::Duration::from_millis(100);
        let wait = Wait::Each(base::Duration::ZERO);
        let wanted = ReadMany { run, wait, bytes: BATCH_BYTES_MAX };
        process.client.read_many(token, wanted, deadline, now);
    }

    /// A call of the node's client has ended; it belongs to the controller or to the hole fill.
    pub(super) fn node_done(&mut self, id: u32, token: Token, outcome: &Result<client::LogReply, client::Error>) {
        let now = self.clock();
        let Some(process) = self.process(id, None) else { return };
        if let Some((epoch, asked)) = process.fills.remove(&token) {
            let fill = process.hole_fill.as_mut().filter(|fill| fill.epoch() == epoch);
            let Some(fill) = fill else { return };
            match (asked, outcome) {
                (Some(position), outcome) => fill.filled(position, outcome, now),
                (None, Ok(client::LogReply::Tail(tail))) => fill.tail(Ok(*tail), now),
                (None, _) => fill.tail(Err(client::Error::OutOfTime), now),
            }
            return;
        }
        let Some((copier, run)) = process.reads.remove(&token) else { return };
        process.controller.read(LOG, copier, run, outcome.clone(), now);
        if let Err(client::Error::Conflict { position }) = outcome {
            self.violate(&format!("units of one chain hold different entries at {position}"));
        }
    }

    /// Sends a request to a unit.
    pub(super) fn ask_unit(&mut self, unit: UnitId, request: unit::Request, back: Return) {
        let Some(node) = self.registry.units.get(&unit).copied() else { return };
        self.send(back.place, SimProcess::Node(node), None, Message::ToUnit { unit, request, back });
    }

    /// Carries out an action of any client machine.
    pub(super) fn carry_out_client(&mut self, place: SimProcess, life: u64, action: client::Action) {
        let back = |ask| Return { place, life, machine: SimMachine::Client, ask };
        match action {
            client::Action::AskUnit { ask, unit, request } => self.ask_unit(unit, request, back(ask)),
            client::Action::AskSequencer { ask, sequencer, request } => {
                let message = Message::ToSequencer { sequencer, request, back: back(ask) };
                self.send(place, SimProcess::Node(sequencer.node.0), None, message);
            }
            client::Action::Fetch => {
                self.send(place, SimProcess::Registry, None, Message::Fetch { back: back(AskId(0)) });
            }
            client::Action::Suspect { epoch, suspect } => self.report_suspect(place, epoch, suspect),
            client::Action::SetTimer(at) => self.network.set_timer(at.0, place, life, SimMachine::Client),
            client::Action::Done { token, outcome } => match place {
                SimProcess::Node(node) => self.node_done(node, token, &outcome),
                SimProcess::Client(client) => self.client_done(client, token, outcome),
                SimProcess::Registry => {}
            },
        }
    }
}
