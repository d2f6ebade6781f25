//! Measures a log's throughput on disks with a fixed speed: it must grow in proportion to the stripes, and so to the
//! disks (CORFU: a log is as fast as all its units together).
//!
//! The machines are the production code. Time passes only in messages and forces: processors and links have no limit,
//! so the sequencer is never the bottleneck. Its own limit is measured on real nodes.

use std::collections::BTreeSet;

use base::Monotonic;
use bytes::Bytes;

use super::clients::Call;
use super::{MILLISECOND, Options, Speed, Time, World};
use crate::client::{Error, LogReply};
use crate::limits::STRIPE_WIDTH;
use crate::{Batch, Position};

/// The load on a log.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Number of chains, each with its own units.
    pub stripes: usize,
    pub copies: usize,
    /// Number of clients. Each appends one batch at a time.
    pub appenders: u32,
    /// Size of a batch's single record.
    pub bytes: usize,
}

/// Appends that have completed.
#[derive(Debug, Default)]
pub(super) struct Appends {
    batch: Option<Batch>,
    ended: BTreeSet<Position>,
}

/// Time until every disk is fully loaded.
const WARM_UP: Time = 100 * MILLISECOND;
const MEASURED: Time = 200 * MILLISECOND;

/// Completed appends per second of simulated time.
///
/// # Panics
/// When an append fails, or two have the same position.
#[must_use]
pub fn appends_per_second(load: Load, speed: Speed) -> f64 {
    let mut world = World::new(0, Options::without_faults(load, speed));
    world.clients.appends.batch = Batch::of(&[Bytes::from(vec![0; load.bytes])]).ok();
    world.found();
    for id in 1..=load.appenders {
        world.start_client(id);
        world.append_on(id);
        world.settle_client(id);
    }
    world.play_until(WARM_UP);
    let before = world.clients.appends.ended.len();
    world.play_until(WARM_UP + MEASURED);
    assert_eq!(world.violation, None, "{load:?}, {speed:?}");
    let ended = world.clients.appends.ended.len() - before;
    ended as f64 / (MEASURED as f64 / 1e9)
}

impl Options {
    fn without_faults(load: Load, speed: Speed) -> Self {
        Self {
            nodes: (load.stripes * load.copies) as u32,
            clients: load.appenders,
            founded: load.stripes,
            stripes: load.stripes,
            width: STRIPE_WIDTH,
            copies: load.copies,
            calls: 0,
            fault_time: 0,
            loss: 0,
            duplication: 0,
            lateness: 0,
            late: 0,
            kills: false,
            pauses: false,
            partitions: false,
            disks: false,
            losses: false,
            damage: false,
            client_kills: false,
            restless: false,
            trims: false,
            single_trims: false,
            fault_every: 0,
            speed: Some(speed),
            players: false,
        }
    }
}

impl World {
    /// A client starts its next append.
    fn append_on(&mut self, id: u32) {
        let (now, token, batch) = (self.clock(), self.token(), self.clients.appends.batch.clone());
        let (Some(process), Some(batch)) = (self.clients.processes.get_mut(&id), batch) else { return };
        process.calls.insert(token, Call::AppendOn);
        process.client.append(token, batch, None, Monotonic::NEVER, now);
    }

    pub(super) fn appended(&mut self, id: u32, outcome: &Result<LogReply, Error>) -> Result<(), String> {
        let Ok(LogReply::Appended(position)) = outcome else { return Err(format!("an append returned {outcome:?}")) };
        if !self.clients.appends.ended.insert(*position) {
            return Err(format!("two appends have position {position}"));
        }
        self.append_on(id);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::unit::Command;
    use crate::world::MICROSECOND;
    use crate::{ClientId, Data, Entry, ProjectionEpoch, Stamp};

    const COPIES: usize = 2;
    const APPENDERS: u32 = 512;
    const BYTES: usize = 1_024;
    const SPEED: Speed = Speed { message: 100 * MICROSECOND, force: MILLISECOND, byte: 10, batch: 16 };

    /// Maximum appends per second on one disk.
    fn disk() -> f64 {
        let batch = Batch::of(&[Bytes::from(vec![0; BYTES])]).expect("within the limits");
        let stamp = Stamp { client: ClientId(1), sequence: 1 };
        let entry = Entry::Data(Data { stamp, batch });
        let command = Command::Write { epoch: ProjectionEpoch(1), position: Position(0), entry };
        let takes = SPEED.force_of(SPEED.batch * command.encode().len());
        SPEED.batch as f64 * 1e9 / takes as f64
    }

    /// Throughput grows in proportion to the stripes: the disks are the bottleneck.
    #[test]
    fn throughput_scales_with_stripes() {
        let disk = disk();
        let of =
            |stripes| appends_per_second(Load { stripes, copies: COPIES, appenders: APPENDERS, bytes: BYTES }, SPEED);
        let [one, two, four] = [1, 2, 4].map(of);
        println!("appends per second: {one} with 1 stripe, {two} with 2, {four} with 4; disk limit {disk:.0}");
        assert!(one > 0.97 * disk && one < 1.01 * disk, "{one} appends per second, disk limit {disk}");
        assert!(two > 1.95 * one, "{two} with 2 stripes, {one} with 1");
        assert!(four > 3.9 * one, "{four} with 4 stripes, {one} with 1");
    }
}
