//! Consistency levels of reads, and the state that a read reflects.

use std::io::{self, Write};
use std::time::Duration;

use bytes::Bytes;
use clap::Args;
use sdk::{AsOf, Client, Reads, SnapshotHold, Staleness, Version};
use serde_json::json;
use terminal::{Output, ReadKind, Stop, positive_duration, timestamp_ns};
use tokio::task::JoinHandle;

/// Consistency of a read.
#[derive(Clone, Debug, Default, Args)]
pub struct ReadArguments {
    /// Consistency of the read.
    #[arg(long, value_enum, value_name = "KIND", default_value = "strong")]
    reads: ReadKind,
    /// Same as --reads timeline.
    #[arg(long, conflicts_with = "reads")]
    timeline: bool,
    /// With --timeline: accept a response from any live replica, even without a leader.
    #[arg(long)]
    stale_ok: bool,
    /// Read the state at this time: a version, nanoseconds since 1970, or RFC 3339 such as 2026-11-25T16:30:00Z.
    #[arg(long, value_name = "TIME", value_parser = timestamp_ns, conflicts_with_all = ["reads", "timeline", "stale_ok"])]
    as_of: Option<i64>,
    /// Read the state of exactly this long ago, such as 10s, by the clock of a node, from any replica.
    #[arg(long, value_name = "TIME", value_parser = positive_duration)]
    #[arg(conflicts_with_all = ["reads", "timeline", "stale_ok", "as_of"])]
    exact_staleness: Option<Duration>,
    /// Read a state that is at most this old, from any replica: the newest one that it has, if that is new enough.
    #[arg(long, value_name = "TIME", value_parser = positive_duration)]
    #[arg(conflicts_with_all = ["reads", "timeline", "stale_ok", "as_of", "exact_staleness"])]
    max_staleness: Option<Duration>,
}

impl ReadArguments {
    /// The consistency level of a read of a table that begins at a key. A staleness is converted to a moment, which all
    /// pages of a scan share.
    ///
    /// # Errors
    /// If the arguments contradict each other, or the cluster does not tell the time.
    pub(crate) async fn reads(&self, client: &Client, table: &str, key: &Bytes) -> Result<Reads, Stop> {
        let exact = self.exact_staleness.map(Staleness::Exact);
        if let Some(staleness) = exact.or_else(|| self.max_staleness.map(Staleness::Max)) {
            let snapshot = client.table(table).snapshot_of(key.clone(), staleness).await?;
            return Ok(Reads::At(snapshot.timestamp()));
        }
        let is_timeline = self.timeline || self.reads == ReadKind::Timeline;
        if self.stale_ok && !is_timeline {
            return Err(Stop::invalid("--stale-ok requires --timeline"));
        }
        Ok(match self.as_of {
            Some(timestamp) => Reads::At(Version::from_nanos(timestamp)),
            None if is_timeline => Reads::Timeline { stale_ok: self.stale_ok },
            None => self.reads.reads(),
        })
    }
}

/// Keeps a table readable as of the moment of a long scan. The attempt runs in the background, and its failure is ignored:
/// the scan itself fails if its versions are gone.
#[derive(Debug, Default)]
pub(crate) struct ScanHold(Option<JoinHandle<Result<SnapshotHold, sdk::Error>>>);

impl ScanHold {
    /// Begins the hold, unless it has begun, if the scan is of a moment.
    pub(crate) fn begin(&mut self, client: &Client, table: &str, reads: Reads) {
        if let (Reads::At(moment), None) = (reads, &self.0) {
            let (snapshot, table) = (client.snapshot_at(moment), table.to_owned());
            self.0 = Some(tokio::spawn(async move { snapshot.hold(table).await }));
        }
    }

    /// Ends it.
    pub(crate) async fn end(self) {
        let Some(attempt) = self.0 else { return };
        if !attempt.is_finished() {
            attempt.abort();
        }
        if let Ok(Ok(hold)) = attempt.await {
            hold.release().await;
        }
    }
}

/// The error of a failed read, with advice if a weaker read may succeed.
pub(crate) fn failed(reads: Reads, error: sdk::Error) -> Stop {
    match error {
        sdk::Error::Unavailable(reason) if reads == (Reads::Timeline { stale_ok: false }) => {
            sdk::Error::Unavailable(format!("{reason}; with --stale-ok any live replica can respond")).into()
        }
        error => error.into(),
    }
}

/// Prints to standard error which state a timeline read reflects.
pub(crate) fn print_as_of(output: Output, reads: Reads, as_of: Option<&AsOf>) {
    let Some(as_of) = as_of else { return };
    let lsn = format!("{}.{}", as_of.epoch, as_of.sequence);
    // The age is that of the replica. The state at a requested time is as old as that time.
    let is_past = matches!(reads, Reads::At(_));
    let age_ms = as_of.age.filter(|_| !is_past).map(|age| age.as_millis() as u64);
    let line = if output.is_json() {
        let state = json!({
            "cohort": as_of.cohort, "lsn": lsn, "timestamp": as_of.timestamp.to_string(), "age_ms": age_ms,
        });
        json!({ "as_of": state }).to_string()
    } else {
        let age = match age_ms {
            _ if is_past => String::new(),
            Some(age) => format!(", at most {age} ms old"),
            None => ", of unknown age".to_owned(),
        };
        format!("as of {lsn} of cohort {}, timestamp {}{age}", as_of.cohort, as_of.timestamp)
    };
    // A closed standard error is ignored.
    let _ = writeln!(io::stderr().lock(), "{line}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unavailable_read_suggests_stale_ok() {
        let says = |reads| failed(reads, sdk::Error::Unavailable("no leader".into())).to_string();
        assert!(says(Reads::Timeline { stale_ok: false }).starts_with("no leader; with --stale-ok"));
        assert_eq!(says(Reads::Timeline { stale_ok: true }), "no leader");
        assert_eq!(says(Reads::Strong), "no leader");
    }
}
