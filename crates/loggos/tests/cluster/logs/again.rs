//! Appends retried with the same stamp.

use std::time::{Duration, Instant};

use api::log::log_client::LogClient;
use api::log::{AppendRequest, Stamp};
use bytes::Bytes;
use rustix::process::Signal;
use sdk::Content;
use tokio::time::{sleep, timeout};
use tonic::transport::Channel;
use tonic::{Code, Status};

use super::input::log_client;
use crate::harness::{Cluster, runtime};

const APPENDS: u64 = 40;
const PATIENCE: Duration = Duration::from_secs(60);

/// Retries until there is a definite outcome, since an election may be in progress.
async fn append(client: &mut LogClient<Channel>, sequence: u64) -> Result<u64, Status> {
    let began = Instant::now();
    loop {
        let (records, stamp) = (vec![Bytes::from(format!("{sequence}"))], Some(Stamp { client: 7, sequence }));
        match client.append(AppendRequest { log: "l".into(), records, stamp }).await {
            Ok(answer) => return Ok(answer.into_inner().position),
            Err(status) if status.code() == Code::Unavailable && began.elapsed() < PATIENCE => {
                sleep(Duration::from_millis(20)).await;
            }
            Err(status) => return Err(status),
        }
    }
}

/// The node that accepted them and served the follower is killed in between.
#[test]
fn retried_appends_are_delivered_once() {
    let cluster = Cluster::of(3);
    runtime().block_on(async {
        let log = cluster.client(1).with_deadline(PATIENCE).log("l");
        log.create().send().await.expect("a log");
        let mut entries = log.subscribe(0);
        for sequence in 1..=APPENDS {
            let position = append(&mut log_client(&cluster, 1).await, sequence).await.expect("an append");
            let told = timeout(PATIENCE, entries.next()).await.expect("in time").expect("no end").expect("an entry");
            assert_eq!((told.position, told.records().len()), (position, 1));
        }
        cluster.signal(1, Signal::KILL);
        let mut again = Vec::new();
        for sequence in 1..=APPENDS {
            again.push(append(&mut log_client(&cluster, 2).await, sequence).await.expect("it is made again"));
        }
        let last = append(&mut log_client(&cluster, 3).await, APPENDS + 1).await.expect("an append");
        let told = loop {
            let told = timeout(PATIENCE, entries.next()).await.expect("in time").expect("no end").expect("an entry");
            if !matches!(told.content, Content::Junk | Content::Repeated) {
                break told;
            }
        };
        assert_eq!(told.position, last, "what was retried is told to be repeated");
        // Reads return the content of each position, including repetitions.
        for (sequence, position) in (1..).zip(again) {
            let entry = log.read(position, 1).await.expect("it is read").remove(0);
            assert_eq!(entry.records(), [Bytes::from(format!("{sequence}"))]);
        }
    });
}
