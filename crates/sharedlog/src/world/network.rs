//! The event queue and the simulated network.

use std::collections::{BTreeMap, BTreeSet};

use base::{Member, NodeId};

use super::{MICROSECOND, Time, World};
use crate::client::Suspect;
use crate::controller::{ClusterState, Requester};
use crate::recovery::ProposalOutcome;
use crate::{AskId, Projection, ProjectionEpoch, SequencerId, UnitId, sequencer, unit};

/// Where an event happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum SimProcess {
    Node(u32),
    Client(u32),
    Registry,
}

/// A machine within a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum SimMachine {
    Client,
    Player,
    Sequencer(ProjectionEpoch),
    Controller,
    ControllerPart(Requester),
    HoleFill(ProjectionEpoch),
}

/// The destination of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Return {
    pub(super) place: SimProcess,
    /// The process. Another process at the same place does not receive the reply.
    pub(super) life: u64,
    pub(super) machine: SimMachine,
    pub(super) ask: AskId,
}

#[derive(Clone, Debug)]
pub(super) enum Message {
    ToUnit {
        unit: UnitId,
        request: unit::Request,
        back: Return,
    },
    OfUnit {
        reply: unit::Reply,
        back: Return,
    },
    ToSequencer {
        sequencer: SequencerId,
        request: sequencer::Request,
        back: Return,
    },
    OfSequencer {
        reply: sequencer::Reply,
        back: Return,
    },
    Fetch {
        back: Return,
    },
    /// Includes the registry's state for the leading controller.
    Fetched {
        projection: Projection,
        cluster: Option<Box<ClusterState>>,
    },
    Propose {
        projection: Projection,
        back: Return,
    },
    ProposalOutcome {
        verdict: ProposalOutcome,
        back: Return,
    },
    Heartbeat {
        process: SequencerId,
    },
    Suspected {
        epoch: ProjectionEpoch,
        suspect: Suspect,
    },
    UnitsInDoubt {
        member: Member,
        units: Vec<UnitId>,
    },
    AddUnits {
        nodes: Vec<NodeId>,
    },
    ForgetSpares {
        units: Vec<UnitId>,
    },
}

#[derive(Clone, Debug)]
pub(super) enum Event {
    Deliver {
        from: SimProcess,
        to: SimProcess,
        life: Option<u64>,
        message: Message,
    },
    Timer {
        place: SimProcess,
        life: u64,
        machine: SimMachine,
    },
    /// The first `count` commands of a node's log are forced.
    Forced {
        node: u32,
        life: u64,
        count: usize,
    },
    /// A node sends heartbeats and queries the newest projection.
    Tick {
        node: u32,
        life: u64,
    },
    /// A client starts a call.
    Work,
    /// Another controller may become the leader and receive wrong reports.
    Operate,
    Fault,
    Restart(SimProcess),
    Rejoin(SimProcess, SimProcess),
}

impl Event {
    /// The place of the event, if that can be paused.
    pub(super) fn place(&self) -> Option<SimProcess> {
        match self {
            Self::Deliver { to, .. } => Some(*to),
            Self::Timer { place, .. } => Some(*place),
            Self::Forced { node, .. } | Self::Tick { node, .. } => Some(SimProcess::Node(*node)),
            _ => None,
        }
    }

    pub(super) fn tag(&self) -> u64 {
        match self {
            Self::Deliver { message, .. } => match message {
                Message::ToUnit { unit, .. } => 1 + (unit.0 << 8),
                Message::OfUnit { back, .. } => 2 + (back.ask.0 << 8),
                Message::ToSequencer { back, .. } => 3 + (back.ask.0 << 8),
                Message::OfSequencer { back, .. } => 4 + (back.ask.0 << 8),
                Message::Fetch { .. } => 5,
                Message::Fetched { projection, .. } => 6 + (projection.epoch.0 << 8),
                Message::Propose { projection, .. } => 7 + (projection.epoch.0 << 8),
                Message::ProposalOutcome { .. } => 8,
                Message::Heartbeat { process } => 17 + (u64::from(process.node.0) << 8),
                Message::Suspected { epoch, .. } => 18 + (epoch.0 << 8),
                Message::UnitsInDoubt { .. } => 19,
                Message::AddUnits { .. } => 20,
                Message::ForgetSpares { .. } => 21,
            },
            Self::Timer { .. } => 9,
            Self::Forced { node, count, .. } => 10 + (u64::from(*node) << 8) + ((*count as u64) << 16),
            Self::Tick { node, .. } => 11 + (u64::from(*node) << 8),
            Self::Work => 12,
            Self::Operate => 13,
            Self::Fault => 14,
            Self::Restart(_) => 15,
            Self::Rejoin(..) => 16,
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Network {
    queue: BTreeMap<(Time, u64), Event>,
    last: u64,
    /// Ordered pairs without a connection.
    cut: BTreeSet<(SimProcess, SimProcess)>,
    timers: BTreeMap<(SimProcess, u64, SimMachine), Time>,
}

impl Network {
    pub(super) fn put(&mut self, time: Time, event: Event) {
        self.last += 1;
        self.queue.insert((time, self.last), event);
    }

    pub(super) fn take(&mut self) -> Option<(Time, Event)> {
        let ((time, _), event) = self.queue.pop_first()?;
        if let Event::Timer { place, life, machine } = &event {
            self.timers.remove(&(*place, *life, *machine));
        }
        Some((time, event))
    }

    pub(super) fn next_time(&self) -> Option<Time> {
        self.queue.first_key_value().map(|((time, _), _)| *time)
    }

    /// Sets a timer for a machine, unless an earlier one is set.
    pub(super) fn set_timer(&mut self, at: Time, place: SimProcess, life: u64, machine: SimMachine) {
        let timer = self.timers.entry((place, life, machine)).or_insert(Time::MAX);
        if at < *timer {
            *timer = at;
            self.put(at, Event::Timer { place, life, machine });
        }
    }

    pub(super) fn part(&mut self, from: SimProcess, to: SimProcess) {
        self.cut.insert((from, to));
    }

    pub(super) fn rejoin(&mut self, from: SimProcess, to: SimProcess) {
        self.cut.remove(&(from, to));
    }

    pub(super) fn rejoin_all(&mut self) {
        self.cut.clear();
    }

    fn is_cut(&self, from: SimProcess, to: SimProcess) -> bool {
        self.cut.contains(&(from, to))
    }

    pub(super) fn proposals(&self) -> impl Iterator<Item = &Projection> {
        self.queue.values().filter_map(|event| match event {
            Event::Deliver { message: Message::Propose { projection, .. }, .. } => Some(projection),
            _ => None,
        })
    }
}

impl World {
    /// Sends a message, which may be lost, duplicated or delayed.
    pub(super) fn send(&mut self, from: SimProcess, to: SimProcess, life: Option<u64>, message: Message) {
        let faulty = !self.is_healed;
        if faulty && (self.network.is_cut(from, to) || self.random.chance(self.options.loss)) {
            return;
        }
        let twice = faulty && self.random.chance(self.options.duplication);
        if twice {
            self.put_message(from, to, life, message.clone());
        }
        self.put_message(from, to, life, message);
    }

    fn put_message(&mut self, from: SimProcess, to: SimProcess, life: Option<u64>, message: Message) {
        let mut delay = match self.options.speed {
            Some(speed) => speed.message,
            None => 100 * MICROSECOND + self.random.below(1_000) * MICROSECOND,
        };
        if !self.is_healed && self.random.chance(self.options.lateness) {
            delay += self.random.below(self.options.late);
        }
        self.network.put(self.now + delay, Event::Deliver { from, to, life, message });
    }

    pub(super) fn deliver(&mut self, from: SimProcess, to: SimProcess, life: Option<u64>, message: Message) {
        match to {
            SimProcess::Registry => self.registry_receives(from, message),
            SimProcess::Node(node) => self.node_receives(node, life, message),
            SimProcess::Client(client) => self.client_receives(client, life, message),
        }
    }

    pub(super) fn timer(&mut self, place: SimProcess, life: u64, machine: SimMachine) {
        match place {
            SimProcess::Node(node) => self.node_timer(node, life, machine),
            SimProcess::Client(client) => self.client_timer(client, life, machine),
            SimProcess::Registry => {}
        }
    }
}
