//! The model of the shared log: positions are allocated in order and resolved in any order, as entries or holes.

use bytes::Bytes;

use super::{Happening, MS, Process, Time, World};
use crate::entry::Position;
use crate::limits::ENTRY_BYTES_MAX;
use crate::server::{AppendId, Event};

#[derive(Debug, Default)]
pub(super) struct Log {
    slots: Vec<Slot>,
    /// All positions below are resolved.
    pub(super) settled: u64,
    pub(super) trimmed: u64,
    pub(super) stalled_until: Time,
}

#[derive(Debug)]
pub(super) struct Slot {
    /// The entry; none for a hole.
    pub(super) entry: Option<Bytes>,
    /// When the server made the entry.
    pub(super) made: Time,
    /// When it was resolved.
    pub(super) settled: Option<Time>,
    /// The append to complete.
    completion: Option<(usize, u64, AppendId)>,
}

impl Log {
    pub(super) fn len(&self) -> u64 {
        self.slots.len() as u64
    }

    pub(super) fn slot(&self, position: u64) -> &Slot {
        &self.slots[usize::try_from(position).unwrap_or(usize::MAX)]
    }
}

impl World {
    /// An append arrives. Most succeed. Some positions become holes and the append is retried at another one; some acks
    /// are lost, so that the entry appears twice.
    pub(super) fn append(&mut self, server: usize, boot: u64, append: AppendId, entry: &Bytes, made: Time) {
        if entry.len() > ENTRY_BYTES_MAX {
            return self.clients.checks.violated(format!("an entry of {} bytes exceeds the limit", entry.len()));
        }
        let completion = Some((server, boot, append));
        let quick = self.latency();
        let slow = 5 * MS + self.random.below(80 * MS);
        let again = Happening::Append { server, boot, append, entry: entry.clone(), made };
        match self.random.below(100) {
            0..90 => self.place(Some(entry), made, completion, quick),
            90..94 => self.place(Some(entry), made, completion, slow),
            94..96 => {
                self.place(None, made, None, slow);
                self.after(slow, again);
            }
            96..98 => {
                self.clients.checks.count("appends twice in the log");
                self.place(Some(entry), made, None, slow);
                self.after(quick, again);
            }
            _ => {
                self.clients.checks.count("appends failed");
                let is_there = self.random.chance(500_000);
                self.place(is_there.then_some(entry), made, None, slow);
                self.after(quick, Happening::Server { server, boot, event: Event::AppendFailed { append } });
            }
        }
    }

    pub(super) fn place(
        &mut self,
        entry: Option<&Bytes>,
        made: Time,
        completion: Option<(usize, u64, AppendId)>,
        delay: Time,
    ) {
        let position = self.log.len();
        self.log.slots.push(Slot { entry: entry.cloned(), made, settled: None, completion });
        let stall = self.log.stalled_until.saturating_sub(self.time);
        self.after(stall + delay, Happening::Resolve(position));
    }

    pub(super) fn resolve(&mut self, position: u64) {
        let stall = self.log.stalled_until.saturating_sub(self.time);
        if stall > 0 {
            return self.after(stall + 1, Happening::Resolve(position));
        }
        let time = self.time;
        let slot = &mut self.log.slots[usize::try_from(position).unwrap_or(usize::MAX)];
        slot.settled = Some(time);
        if let Some((server, boot, append)) = slot.completion {
            let delay = self.log_latency(server);
            let event = Event::Appended { append, position: Position(position) };
            self.after(delay, Happening::Server { server, boot, event });
        }
        while self.log.settled < self.log.len() && self.log.slot(self.log.settled).settled.is_some() {
            let slot = self.log.slot(self.log.settled);
            let (entry, made) = (slot.entry.clone(), slot.made);
            self.clients.settle(entry.as_ref(), Some(made));
            self.log.settled += 1;
        }
        for server in 0..self.servers.len() {
            self.feed_soon(server);
        }
    }

    pub(super) fn feed_soon(&mut self, server: usize) {
        let process = &mut self.servers[server];
        let Some(machine) = process.server.as_ref().filter(|_| !process.is_feed_due) else { return };
        if process.skips_applied {
            process.fed = process.fed.max(machine.state().next().0);
        }
        if process.fed < self.log.settled {
            process.is_feed_due = true;
            let (boot, due) = (process.boot, self.log.slot(process.fed).settled.unwrap_or(0) + process.lag);
            let delay = self.log_latency(server).max(due.saturating_sub(self.time));
            self.after(delay, Happening::Feed { server, boot });
        }
    }

    /// Delivers some or all of the next positions in one turn, also those that the server has applied from memory.
    pub(super) fn feed(&mut self, server: usize, boot: u64) {
        if self.servers[server].boot != boot {
            return;
        }
        let rest = self.servers[server].paused_until.max(self.servers[server].cut_until).saturating_sub(self.time);
        if rest > 0 {
            return self.after(rest, Happening::Feed { server, boot });
        }
        self.servers[server].is_feed_due = false;
        if self.servers[server].fed < self.log.trimmed {
            // The server fell behind a trim and restarts from a snapshot.
            self.clients.checks.count("servers that missed a trim");
            self.stop(server);
            return self.after(MS, Happening::Start(server));
        }
        let now = self.now(server);
        let Process { fed, lag, .. } = self.servers[server];
        let mut end = self.log.settled.min(fed + 1 + self.random.below(20));
        while end > fed && self.log.slot(end - 1).settled.is_some_and(|settled| settled + lag > self.time) {
            end -= 1;
        }
        for position in fed..end {
            let entry = self.log.slot(position).entry.clone();
            if let Some(machine) = &mut self.servers[server].server {
                machine.handle(Event::Played { position: Position(position), entry }, now);
            }
        }
        self.servers[server].fed = end;
        self.end_turn(server);
        self.feed_soon(server);
    }
}
