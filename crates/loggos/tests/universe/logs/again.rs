//! Appends that are tried again under their stamps.

use std::time::{Duration, Instant};

use api::log::log_client::LogClient;
use api::log::{AppendRequest, Stamp};
use bytes::Bytes;
use rustix::process::Signal;
use sdk::Log;
use tokio::time::sleep;
use tonic::transport::Channel;
use tonic::{Code, Status};

use super::input::door;
use crate::harness::{Universe, runtime};

const APPENDS: u64 = 40;
const PATIENCE: Duration = Duration::from_secs(60);

/// Until it is answered definitely: a node may still find out who leads.
async fn append(door: &mut LogClient<Channel>, sequence: u64, since: Option<u64>) -> Result<u64, Status> {
    let began = Instant::now();
    loop {
        let (records, stamp) = (vec![Bytes::from(format!("{sequence}"))], Some(Stamp { client: 7, sequence }));
        let append = AppendRequest { log: "l".into(), records, stamp, since, oldest_open: 1 };
        match door.append(append).await {
            Ok(answer) => return Ok(answer.into_inner().position),
            Err(status) if status.code() == Code::Unavailable && began.elapsed() < PATIENCE => {}
            Err(status) => return Err(status),
        }
    }
}

/// Until each chain has two units again: one more node may die then.
async fn whole(log: &Log) {
    let began = Instant::now();
    loop {
        if let Ok(known) = log.describe().await
            && known.extents.iter().flat_map(|extent| &extent.chains).all(|chain| chain.units.len() == 2)
        {
            return;
        }
        assert!(began.elapsed() < PATIENCE, "chains stay thin");
        sleep(Duration::from_millis(50)).await;
    }
}

/// Each node is killed in turn, the sequencer's with them. What was appended is tried again through every node, with
/// and without a word of where it may lie; first it is trimmed in part, from the beginning and by itself.
#[test]
fn an_append_that_is_tried_again_lies_where_it_did_whoever_dies_and_whatever_is_trimmed() {
    let universe = Universe::of(3);
    runtime().block_on(async {
        let log = universe.client(1).with_deadline(PATIENCE).log("l");
        log.create().await.expect("a log");
        let mut lies = Vec::new();
        for sequence in 1..=APPENDS {
            lies.push(append(&mut door(&universe, 1).await, sequence, None).await.expect("an append"));
        }
        log.trim(lies[6]).await.expect("a trim");
        log.trim_one(lies[20]).await.expect("a trim");
        let kept: Vec<usize> = (6..lies.len()).filter(|place| *place != 20).collect();
        for node in universe.nodes() {
            universe.signal(node, Signal::KILL);
            for other in universe.nodes().filter(|other| *other != node) {
                let mut door = door(&universe, other).await;
                for (place, lies) in lies.iter().enumerate() {
                    let since = [None, Some(*lies)][(place + other as usize) % 2];
                    let told = append(&mut door, place as u64 + 1, since).await;
                    assert_eq!(told.expect("again"), *lies, "place {place} through node {other}");
                }
            }
            universe.restart(node).ok();
            // The newer unit is told what the other remembers, also of what is trimmed.
            whole(&log).await;
        }
        let mut seen = Vec::new();
        for entry in log.read(0, 1_000).await.expect("all of it") {
            seen.extend(entry.records().first().map(|record| (entry.position, record.clone())));
        }
        let once: Vec<_> = kept.iter().map(|place| (lies[*place], Bytes::from(format!("{}", place + 1)))).collect();
        assert_eq!(seen, once);
    });
}
