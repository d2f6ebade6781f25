//! Appends that are tried again under their stamps.

use std::time::{Duration, Instant};

use api::log::log_client::LogClient;
use api::log::{AppendRequest, Stamp, TrimPositionRequest, TrimRequest};
use bytes::Bytes;
use rustix::process::Signal;
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

/// Each node is killed in turn, the sequencer's with them; what was appended is trimmed meanwhile, from the beginning
/// and by itself, and is tried again through every node, with and without a word of where it may lie.
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
        let mut trimmed = 0;
        for node in universe.nodes() {
            universe.signal(node, Signal::KILL);
            let other = universe.nodes().find(|other| *other != node).expect("there are others");
            let mut living = door(&universe, other).await;
            // Before and after what comes of it.
            for (number, since) in [(3, None), (11, Some(0)), (25, None), (39, Some(lies[39]))] {
                assert_eq!(append(&mut living, number + 1, since).await.expect("again"), lies[number as usize]);
            }
            trimmed += 6;
            let before = TrimRequest { log: "l".into(), before: lies[trimmed] };
            living.trim(before).await.expect("a trim");
            let one = TrimPositionRequest { log: "l".into(), position: lies[20 + trimmed / 6] };
            living.trim_position(one).await.expect("a trim");
            universe.restart(node).ok();
            for door_of in universe.nodes() {
                let mut door = door(&universe, door_of).await;
                for (sequence, lies) in (1..).zip(&lies) {
                    assert_eq!(append(&mut door, sequence, None).await.expect("again"), *lies, "{sequence}");
                }
            }
        }
        let mut seen = Vec::new();
        for entry in log.read(0, 1_000).await.expect("all of it") {
            seen.extend(entry.records().first().map(|record| (entry.position, record.clone())));
        }
        let kept = |place: &usize| *place >= trimmed && ![21, 22, 23].contains(place);
        let places = (0..lies.len()).filter(kept);
        let expected: Vec<_> = places.map(|place| (lies[place], Bytes::from(format!("{}", place + 1)))).collect();
        assert_eq!(seen, expected, "each once");
    });
}
