//! Client processes: their calls, and the checks of the answers.

use std::collections::{BTreeMap, BTreeSet};

use base::{Duration, Monotonic};

use super::jobs::Job;
use super::network::{Event, Message, SimMachine, SimProcess};
use super::throughput::Appends;
use super::{MILLISECOND, PLAYER, Time, World, snapshots};
use crate::client::{Client, Error, LogReply, ReadMany, Token, Wait};
use crate::duplicates::Duplicates;
use crate::limits::BATCH_BYTES_MAX;
use crate::player::{self, Delivery, Player};
use crate::snapshot::{Finder, Keeper};
use crate::{ClientId, Position, PositionRun};

#[derive(Clone, Debug)]
pub(super) enum Call {
    /// `floor`: the highest position of an append that had completed before.
    Append {
        job: usize,
        floor: Option<Position>,
    },
    AppendOn,
    Read {
        position: Position,
        was_there: bool,
    },
    ReadMany {
        run: PositionRun,
        was_there: bool,
    },
    Tail {
        floor: Option<Position>,
    },
    Trim,
    Fill(Position),
    PlayerRead(PositionRun),
    PlayerTail,
    /// An append for a snapshot.
    Keep {
        keeper: Token,
        number: usize,
    },
    Find(PositionRun),
    FindTail,
    Final(Position),
    FinalTail,
}

#[derive(Debug)]
pub(super) struct Process {
    life: u64,
    pub(super) client: Client,
    pub(super) calls: BTreeMap<Token, Call>,
    pub(super) player: Player,
    pub(super) checked_to: Position,
    /// The application state: a hash of the deliveries.
    pub(super) state: u64,
    /// The keeper of a snapshot, with its number.
    pub(super) keeper: Option<(Token, Keeper)>,
    /// The search for a snapshot to start with; until it ends the player delivers nothing.
    pub(super) finder: Option<Finder>,
}

#[derive(Debug, Default)]
pub(super) struct Clients {
    pub(super) processes: BTreeMap<u32, Process>,
    paused_until: BTreeMap<u32, Time>,
    pub(super) jobs: Vec<Job>,
    pub(super) waiting: Vec<usize>,
    calls_left: u32,
    /// The end of the final read, and the number of its reads in progress.
    final_tail: Option<Position>,
    final_left: usize,
    pub(super) appends: Appends,
}

impl Clients {
    pub(super) fn paused_until(&self, client: u32) -> Option<Time> {
        self.paused_until.get(&client).copied()
    }

    pub(super) fn why_stuck(&self) -> String {
        let calls: Vec<_> = self.processes.values().map(|process| (process.player.next(), &process.calls)).collect();
        format!("waiting {:?}, final {:?} {}, calls {calls:?}", self.waiting, self.final_tail, self.final_left)
    }
}

impl World {
    pub(super) fn begin_clients(&mut self) {
        self.clients.calls_left = self.options.calls;
        for client in 1..=self.options.clients {
            self.start_client(client);
        }
        self.network.put(self.now, Event::Work);
    }

    pub(super) fn start_client(&mut self, id: u32) {
        if self.clients.processes.contains_key(&id) {
            return;
        }
        let life = self.life();
        let client = Client::new(ClientId(life), self.options.client(), life);
        let player = Player::new(PLAYER, Position(0), Duplicates::default());
        let (calls, checked_to) = (BTreeMap::new(), player.next());
        let process = Process { life, client, calls, player, checked_to, state: 0, keeper: None, finder: None };
        self.clients.processes.insert(id, process);
        if self.options.players {
            if self.random.chance(500_000) {
                self.find(id, Position(0));
            } else if let (now, Some(process)) = (self.clock(), self.clients.processes.get_mut(&id)) {
                process.player.nudge(now);
            }
        }
        self.settle_client(id);
    }

    pub(super) fn kill_client(&mut self, id: u32) {
        let Some(process) = self.clients.processes.remove(&id) else { return };
        self.count("clients killed");
        for call in process.calls.into_values() {
            match call {
                Call::Append { job, .. } => {
                    let of = &mut self.clients.jobs[job];
                    of.under_way -= 1;
                    of.unreported += 1;
                    self.retry_in_doubt(job);
                }
                Call::Final(_) | Call::FinalTail => self.violate("a client crashed after the faults ended"),
                _ => {}
            }
        }
        let back = self.now + MILLISECOND + self.random.below(50 * MILLISECOND);
        self.network.put(back, Event::Restart(SimProcess::Client(id)));
    }

    pub(super) fn pause_client(&mut self, id: u32, until: Time) {
        self.clients.paused_until.insert(id, until);
        let Some(process) = self.clients.processes.get(&id).filter(|_| until > self.now) else { return };
        let jobs = process.calls.values().filter_map(|call| match call {
            Call::Append { job, .. } => Some(*job),
            _ => None,
        });
        // Another process may take over, believing that this one is dead.
        for job in jobs.collect::<Vec<_>>() {
            if self.random.chance(500_000) {
                self.retry_in_doubt(job);
            }
        }
    }

    /// A client starts a call.
    pub(super) fn work(&mut self) {
        let pause = if self.is_healed {
            2 * MILLISECOND
        } else {
            self.random.below(2 * self.options.fault_time / u64::from(self.options.calls))
        };
        self.network.put(self.now + pause, Event::Work);
        let running: Vec<u32> = self.clients.processes.keys().copied().collect();
        let Some(id) = running.get(self.random.below(running.len() as u64) as usize).copied() else { return };
        if !self.clients.waiting.is_empty() {
            let job = self.clients.waiting.remove(0);
            return self.attempt(id, job);
        }
        if self.is_healed || self.clients.calls_left == 0 {
            return;
        }
        self.clients.calls_left -= 1;
        let now = self.clock();
        let token = self.token();
        if token.0.is_multiple_of(16) {
            self.give_up_reads(id);
        }
        let deadline = now + Duration(20 * MILLISECOND + self.random.below(150 * MILLISECOND));
        let floor = self.checks.highest_complete();
        let any = Position(self.random.below(floor.map_or(0, |floor| floor.0) + 6));
        type Begin = Box<dyn FnOnce(&mut Client)>;
        let (call, begin): (Call, Begin) = match self.random.below(20) {
            0..10 => return self.new_append(id),
            10..12 => {
                let patience = Duration::from_millis(self.random.below(25));
                let waits = [Wait::No, Wait::First(patience), Wait::Each(patience), Wait::Watch(patience)];
                let wait = waits[self.random.below(4) as usize];
                let run = PositionRun {
                    from: any,
                    step: 1 + self.random.below(2),
                    count: 1 + self.random.below(12) as usize,
                };
                let was_there = self.checks.was_seen(any);
                // A limit for all entries, for a few, or below the size of any entry.
                let bytes = [BATCH_BYTES_MAX, 40, 4][(token.0 % 3) as usize];
                let wanted = ReadMany { run, wait, bytes };
                (
                    Call::ReadMany { run, was_there },
                    Box::new(move |client| client.read_many(token, wanted, deadline, now)),
                )
            }
            12..14 => {
                let wait = self.random.chance(600_000).then_some(Duration::from_millis(self.random.below(25)));
                let was_there = self.checks.was_seen(any);
                (
                    Call::Read { position: any, was_there },
                    Box::new(move |client| client.read(token, any, wait, deadline, now)),
                )
            }
            14..17 => (Call::Tail { floor }, Box::new(move |client| client.tail(token, deadline, now))),
            17 | 18 if self.options.trims => {
                let newest = self.checks.kept.last().map_or(0, |next| next.0);
                // Exactly at a snapshot, or at any lower position.
                let less = if self.random.chance(500_000) { 0 } else { self.random.below(newest + 1) };
                let before = Position(newest.saturating_sub(less));
                self.checks.trimmed = self.checks.trimmed.max(before);
                (Call::Trim, Box::new(move |client| client.trim(token, before, deadline, now)))
            }
            19 if self.options.single_trims => {
                self.checks.trimmed_singly.insert(any);
                (Call::Trim, Box::new(move |client| client.trim_one(token, any, deadline, now)))
            }
            _ => (Call::Fill(any), Box::new(move |client| client.fill(token, any, deadline, now))),
        };
        let Some(process) = self.clients.processes.get_mut(&id) else { return };
        process.calls.insert(token, call);
        begin(&mut process.client);
        self.settle_client(id);
    }

    /// The callers of this client's reads have disconnected.
    fn give_up_reads(&mut self, id: u32) {
        let now = self.clock();
        let Some(process) = self.clients.processes.get_mut(&id) else { return };
        let reads = |call: &Call| matches!(call, Call::Read { .. } | Call::ReadMany { .. } | Call::Tail { .. });
        let tokens: BTreeSet<Token> =
            process.calls.iter().filter(|(_, call)| reads(call)).map(|(token, _)| *token).collect();
        process.client.give_up(&tokens, now);
        if !tokens.is_empty() {
            self.count("reads cancelled");
        }
        self.settle_client(id);
        let Some(process) = self.clients.processes.get(&id) else { return };
        if process.calls.keys().any(|token| tokens.contains(token)) {
            self.violate("a cancelled read has not ended");
        }
    }

    pub(super) fn client_receives(&mut self, id: u32, life: Option<u64>, message: Message) {
        let now = self.clock();
        let Some(process) = self.clients.processes.get_mut(&id) else { return };
        if life.is_some_and(|life| life != process.life) {
            return;
        }
        match message {
            Message::OfUnit { reply, back } => process.client.unit_answered(back.ask, reply, now),
            Message::OfSequencer { reply, back } => process.client.sequencer_answered(back.ask, reply, now),
            Message::Fetched { projection, .. } => process.client.projected(projection, now),
            _ => {}
        }
        self.settle_client(id);
    }

    pub(super) fn client_timer(&mut self, id: u32, life: u64, machine: SimMachine) {
        let now = self.clock();
        let Some(process) = self.clients.processes.get_mut(&id).filter(|process| process.life == life) else { return };
        match machine {
            SimMachine::Player => process.player.timer(now),
            _ => process.client.timer(now),
        }
        self.settle_client(id);
    }

    /// Carries out the actions of a client's machines until there are none.
    pub(super) fn settle_client(&mut self, id: u32) {
        let place = SimProcess::Client(id);
        loop {
            self.deliver_played(id);
            let Some(process) = self.clients.processes.get_mut(&id) else { return };
            process.client.invariants();
            process.player.invariants();
            let (life, of_client, of_player) =
                (process.life, process.client.take_actions(), process.player.take_actions());
            if of_client.is_empty() && of_player.is_empty() {
                return;
            }
            of_client.into_iter().for_each(|action| self.carry_out_client(place, life, action));
            of_player.into_iter().for_each(|action| self.carry_out_player(id, life, action));
        }
    }

    fn carry_out_player(&mut self, id: u32, life: u64, action: player::Action) {
        let (now, token) = (self.clock(), self.token());
        let Some(process) = self.clients.processes.get_mut(&id) else { return };
        let deadline = now + Duration::from_millis(200);
        match action {
            player::Action::Read { run, wait } => {
                process.calls.insert(token, Call::PlayerRead(run));
                let wait = Wait::Each(wait);
                let wanted = ReadMany { run, wait, bytes: BATCH_BYTES_MAX };
                process.client.read_many(token, wanted, deadline, now);
            }
            player::Action::Tail => {
                process.calls.insert(token, Call::PlayerTail);
                process.client.tail(token, deadline, now);
            }
            player::Action::SetTimer(at) => {
                self.network.set_timer(at.0, SimProcess::Client(id), life, SimMachine::Player);
            }
        }
    }

    /// Consumes the deliveries of a player.
    fn deliver_played(&mut self, id: u32) {
        if !self.options.players {
            return;
        }
        let now = self.clock();
        loop {
            let Some(process) = self.clients.processes.get_mut(&id).filter(|process| process.finder.is_none()) else {
                return;
            };
            let delivery = process.player.take(now);
            let (from, next) = (process.checked_to, process.player.next());
            process.checked_to = next;
            let delivered = match &delivery {
                Some(Delivery::Entry { position, data }) => Some((*position, data.clone())),
                _ => None,
            };
            if let Some(Delivery::Lost { position }) = delivery {
                self.count("lost positions reported");
                if let Err(what) = self.check_lost(position) {
                    return self.violate(&what);
                }
            }
            if let (Some(process), Some((position, data))) = (self.clients.processes.get_mut(&id), &delivered) {
                process.state = snapshots::played_on(process.state, *position, data.stamp);
            }
            let said = self.checks.played(from, next, delivered);
            if let Err(what) = said {
                return self.violate(&what);
            }
            if next > from && next.0.is_multiple_of(4) {
                self.note_state(id);
                self.keep(id);
            }
            match delivery {
                None => return,
                Some(Delivery::Entry { .. }) => self.count("entries delivered"),
                Some(Delivery::Lost { .. }) => {}
                Some(Delivery::Trimmed { mark }) => {
                    self.count("players notified of a trim");
                    if let Err(what) = self.checks.told_trimmed(mark) {
                        return self.violate(&what);
                    }
                    self.find(id, mark);
                }
            }
        }
    }

    pub(super) fn client_done(&mut self, id: u32, token: Token, outcome: Result<LogReply, Error>) {
        let now = self.clock();
        let Some(process) = self.clients.processes.get_mut(&id) else { return };
        let Some(call) = process.calls.remove(&token) else { return };
        if let Err(Error::Conflict { position }) = outcome {
            return self.violate(&format!("units of one chain hold different entries at {position}"));
        }
        if let (Ok(LogReply::Range(answers)), Call::ReadMany { run, .. } | Call::Find(run)) = (&outcome, &call) {
            for (position, _) in run.positions().zip(answers).filter(|(_, answer)| **answer == LogReply::Lost) {
                if let Err(what) = self.check_lost(position) {
                    return self.violate(&what);
                }
            }
        }
        if let (Ok(LogReply::Lost), Call::Read { position, .. } | Call::Final(position) | Call::Fill(position)) =
            (&outcome, &call)
            && let Err(what) = self.check_lost(*position)
        {
            return self.violate(&what);
        }
        let Some(process) = self.clients.processes.get_mut(&id) else { return };
        let said = match call {
            Call::PlayerRead(run) => {
                process.player.read(run, outcome.clone(), now);
                self.checks.read_many(run, outcome, false)
            }
            Call::ReadMany { run, was_there } => {
                self.count(if outcome.is_ok() { "rows" } else { "rows that failed" });
                self.checks.read_many(run, outcome, was_there)
            }
            Call::PlayerTail => {
                let tail = match outcome {
                    Ok(LogReply::Tail(tail)) => Ok(tail),
                    Ok(_) => Err(Error::OutOfTime),
                    Err(error) => Err(error),
                };
                process.player.tail(tail, now);
                Ok(())
            }
            Call::Append { job, floor } => self.append_ended(job, floor, outcome),
            Call::AppendOn => self.appended(id, &outcome),
            Call::Read { position, was_there } => {
                self.count(if outcome.is_ok() { "reads" } else { "reads that failed" });
                self.checks.read(position, &outcome, was_there)
            }
            Call::Fill(position) => self.checks.read(position, &outcome, false),
            Call::Tail { floor } => {
                self.count(if outcome.is_ok() { "tails" } else { "tails that failed" });
                self.checks.tail(&outcome, floor)
            }
            Call::Trim => {
                self.count(if outcome.is_ok() { "trims" } else { "trims that failed" });
                Ok(())
            }
            Call::Keep { keeper, number } => {
                self.keeper_receives(id, keeper, number, &outcome);
                Ok(())
            }
            Call::Find(run) => {
                self.finder_receives(id, Some(run), &outcome);
                self.checks.read_many(run, outcome, false)
            }
            Call::FindTail => {
                self.finder_receives(id, None, &outcome);
                self.checks.tail(&outcome, None)
            }
            Call::FinalTail => self.final_tail(id, &outcome),
            Call::Final(position) => self.final_read(id, position, &outcome),
        };
        if let Err(what) = said {
            self.violate(&what);
        }
    }

    /// Reads the whole log after all other calls have ended.
    pub(super) fn read_all(&mut self) {
        let (now, token) = (self.clock(), self.token());
        let Some((id, process)) = self.clients.processes.iter_mut().next() else { return };
        let id = *id;
        self.clients.final_left = 1;
        process.calls.insert(token, Call::FinalTail);
        process.client.tail(token, Monotonic::NEVER, now);
        self.settle_client(id);
    }

    fn final_tail(&mut self, id: u32, outcome: &Result<LogReply, Error>) -> Result<(), String> {
        self.checks.tail(outcome, self.checks.highest_complete())?;
        let Ok(LogReply::Tail(tail)) = outcome else { return Err(format!("the tail query failed: {outcome:?}")) };
        let now = self.clock();
        self.clients.final_tail = Some(*tail);
        self.clients.final_left = tail.0 as usize;
        for position in (0..tail.0).map(Position) {
            let token = self.token();
            let Some(process) = self.clients.processes.get_mut(&id) else { continue };
            process.calls.insert(token, Call::Final(position));
            process.client.read(token, position, Some(Duration::ZERO), Monotonic::NEVER, now);
        }
        Ok(())
    }

    fn final_read(&mut self, _: u32, position: Position, outcome: &Result<LogReply, Error>) -> Result<(), String> {
        self.clients.final_left -= 1;
        self.checks.read(position, outcome, self.checks.was_seen(position))?;
        // A newer projection does not know positions that were handed out and never written.
        if let Err(Error::BeyondTail { tail }) = outcome {
            self.clients.final_tail = self.clients.final_tail.map(|of| of.min(*tail));
            return Ok(());
        }
        self.checks.finally(position, outcome)
    }

    pub(super) fn are_clients_done(&self) -> bool {
        let clients = &self.clients;
        let (is_own, plays) =
            (|call: &Call| matches!(call, Call::PlayerRead(_) | Call::PlayerTail), self.options.players);
        let mut processes = clients.processes.values();
        let is_at_end =
            |process: &Process| !plays || clients.final_tail.is_none_or(|tail| process.player.next() >= tail);
        let is_played = |process: &Process| process.finder.is_none() && process.keeper.is_none() && is_at_end(process);
        clients.waiting.is_empty()
            && clients.final_left == 0
            && clients.jobs.iter().all(|job| job.under_way == 0 && job.has_ended())
            && processes.all(|process| process.calls.values().all(is_own) && is_played(process))
    }
}
