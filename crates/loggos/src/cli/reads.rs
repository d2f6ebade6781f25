//! The kinds of read of the commands, and the state that a read reflects.

use std::io::{self, Write};

use clap::Args;
use sdk::{AsOf, Reads};
use serde_json::json;
use terminal::{Output, ReadKind, Stop};

/// What a read may show.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct ReadArguments {
    /// What the read may show.
    #[arg(long, value_enum, value_name = "KIND", default_value = "strong")]
    reads: ReadKind,
    /// The same as --reads timeline.
    #[arg(long, conflicts_with = "reads")]
    timeline: bool,
    /// With --timeline: an answer will do though no leader can be had. One live replica gives it.
    #[arg(long)]
    stale_ok: bool,
    /// Show what was there at this timestamp: a version, or nanoseconds since 1970.
    #[arg(long, value_name = "TIMESTAMP", conflicts_with_all = ["reads", "timeline", "stale_ok"])]
    as_of: Option<i64>,
}

impl ReadArguments {
    /// The kind of read, if the arguments are consistent.
    pub(crate) fn reads(&self) -> Result<Reads, Stop> {
        let is_timeline = self.timeline || self.reads == ReadKind::Timeline;
        if self.stale_ok && !is_timeline {
            return Err(Stop::invalid("--stale-ok is for --timeline"));
        }
        Ok(match self.as_of {
            Some(timestamp) => Reads::At(timestamp),
            None if is_timeline => Reads::Timeline { stale_ok: self.stale_ok },
            None => self.reads.reads(),
        })
    }
}

/// The error of a failed read, with a suggestion if a weaker read may succeed.
pub(crate) fn failed(reads: Reads, error: sdk::Error) -> Stop {
    match error {
        sdk::Error::Unavailable(reason) if reads == (Reads::Timeline { stale_ok: false }) => {
            sdk::Error::Unavailable(format!("{reason}; with --stale-ok one live replica will do")).into()
        }
        error => error.into(),
    }
}

/// Prints on standard error which state the read reflects, if that is a replica's own.
pub(crate) fn tell(output: Output, as_of: Option<&AsOf>) {
    let Some(as_of) = as_of else { return };
    let place = as_of.place.unwrap_or_default();
    let lsn = format!("{}.{}", place.epoch, place.sequence);
    let line = if output.is_json() {
        let state = json!({
            "cohort": place.cohort, "lsn": lsn, "timestamp": as_of.timestamp, "age_ms": as_of.age_ms,
        });
        json!({ "as_of": state }).to_string()
    } else {
        let age = as_of.age_ms.map_or_else(|| "of unknown age".to_owned(), |age| format!("at most {age} ms old"));
        format!("as of {lsn} of cohort {}, timestamp {}, {age}", place.cohort, as_of.timestamp)
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
