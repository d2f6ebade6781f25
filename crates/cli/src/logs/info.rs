//! `loggos log info`: the location of a log's positions.

use sdk::Log;
use sdk::admin::{LogChain, LogUnit};
use serde_json::{Value, json};
use terminal::{Output, Stop, Table};

use super::trim::trimmed_before;
use crate::Cluster;

/// A log's units are waited for for `--timeout` divided by this.
const UNITS_TIME: u32 = 5;

/// The error of a query of the log's units, which is not given the whole `--timeout`.
fn of_units_failed(cluster: &Cluster, error: sdk::Error) -> sdk::Error {
    let time_ms = (cluster.deadline() / UNITS_TIME).as_millis();
    match error {
        sdk::Error::Unavailable(_) => {
            let why = format!("no reply from the log's units within {time_ms} ms, a fifth of --timeout");
            sdk::Error::Unavailable(why)
        }
        error => error,
    }
}

/// Prints the description of a log. Its tail and trim mark come from its units; if those do not respond, the rest is
/// printed without delay.
pub(super) async fn run(cluster: &Cluster, log: &Log, output: Output) -> Result<(), Stop> {
    let client = cluster.client()?;
    let of_units = client.with_deadline(cluster.deadline() / UNITS_TIME).log(log.name());
    let (known, tail, trimmed) = tokio::join!(log.describe(), of_units.tail(), trimmed_before(&of_units));
    let known = known?;
    let (tail, trimmed) = (
        tail.map_err(|error| of_units_failed(cluster, error)),
        trimmed.map_err(|error| of_units_failed(cluster, error)),
    );
    let extents = known.extents.iter().map(|extent| {
        let unit = |unit: &LogUnit| json!({ "unit": unit.unit, "node": unit.node });
        let chain = |chain: &LogChain| chain.units.iter().map(unit).collect::<Value>();
        json!({ "from": extent.start, "chains": extent.chains.iter().map(chain).collect::<Value>() })
    });
    let object = json!({
        "log": log.name(),
        "id": known.id,
        "epoch": known.epoch,
        "sequencer": known.sequencer,
        "stripes": known.stripes,
        "copies": known.copies,
        "tail": tail.as_ref().ok(),
        "trimmed_before": trimmed.as_ref().ok(),
        "extents": extents.collect::<Value>(),
    });
    output.print(&object, || {
        let mut lines = Table::new(["FROM", "CHAIN", "UNITS", "NODES"]);
        for extent in &known.extents {
            for (number, chain) in (1..).zip(&extent.chains) {
                let of_each = |each: fn(&LogUnit) -> String| chain.units.iter().map(each).collect::<Vec<_>>();
                let units = of_each(|unit| unit.unit.to_string()).join(",");
                let nodes = of_each(|unit| unit.node.to_string()).join(",");
                lines.add([extent.start.to_string(), number.to_string(), units, nodes]);
            }
        }
        let tail = match &tail {
            Ok(tail) => format!("tail: {tail}"),
            Err(error) => format!("tail: unknown: {error}"),
        };
        let trimmed = match &trimmed {
            Ok(0) => "not trimmed".to_owned(),
            Ok(mark) => format!("trimmed below {mark}"),
            Err(error) => format!("trim point: unknown: {error}"),
        };
        let sequencer = format!("epoch {}, sequencer on node {}", known.epoch, known.sequencer);
        format!("{lines}{sequencer}\n{tail}\n{trimmed}")
    })?;
    // A failed query is reported as an error as well.
    tail?;
    trimmed?;
    Ok(())
}
