//! Which logs lack copies, and of which parts none is within reach, in words for people.

use base::{Now, counted};
use sharedlog::UnitId;
use tablets::LogRecord;

use crate::logs::repairs::GONE;
use crate::node::Node;

/// Logs of which something is said one by one.
const TOLD_MAX: usize = 8;

impl Node {
    /// What whoever leads the catalogue says of logs that lack copies, as far as the universe has nodes for them.
    pub(crate) fn thin_logs(&self) -> Vec<String> {
        let lacking = |name: &str, log: &LogRecord| {
            let copies = self.copies(log);
            let least = least(log, |unit| self.is_copy(log, *unit)).filter(|least| *least < copies)?;
            Some(format!(
                "log {name} has {} of some positions, and should have {copies}",
                counted(least as u64, "copy")
            ))
        };
        self.told_of_logs(lacking, "with fewer copies than they should have")
    }

    /// What it says of logs that nobody can read or write as a whole.
    pub(crate) fn logs_out_of_reach(&self, now: Now) -> Vec<String> {
        let missing = |name: &str, log: &LogRecord| {
            let is_reached = |unit: &UnitId| !self.is_out(log, *unit, GONE, now);
            (least(log, is_reached)? == 0).then(|| format!("log {name} has no copy of some positions within reach"))
        };
        self.told_of_logs(missing, "with no copy of some positions within reach")
    }

    fn told_of_logs(&self, tell: impl Fn(&str, &LogRecord) -> Option<String>, what: &str) -> Vec<String> {
        let catalogue = self.catalogue().filter(|_| self.leads_catalogue());
        let logs = catalogue.into_iter().flat_map(|catalogue| catalogue.logs());
        let mut told: Vec<String> = logs.filter_map(|(name, log)| tell(name, log)).collect();
        let more = told.len().saturating_sub(TOLD_MAX);
        if more > 0 {
            told.truncate(TOLD_MAX);
            told.push(format!("{} more {what}", counted(more as u64, "log")));
        }
        told
    }
}

/// How many units of a kind a log's chains have where they have fewest. What was given up has none, and can have none
/// again.
fn least(log: &LogRecord, is_kind: impl Fn(&UnitId) -> bool) -> Option<usize> {
    let chains = log.projection.extents.iter().flat_map(|extent| &extent.chains);
    chains.filter(|chain| !chain.is_empty()).map(|chain| chain.iter().filter(|unit| is_kind(unit)).count()).min()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::logs::tests::alone;

    #[test]
    fn a_log_that_lacks_copies_is_told() {
        let bench = alone();
        assert!(bench.node.thin_logs().is_empty(), "there is one node");
        assert!(bench.node.logs_out_of_reach(bench.now).is_empty());
        let log = bench.node.catalogue().and_then(|catalogue| catalogue.log("l")).expect("it was created");
        assert_eq!((least(log, |_| true), least(log, |_| false)), (Some(1), Some(0)));
        let mut given_up = log.clone();
        given_up.projection.extents[0].chains = vec![Vec::new()];
        assert_eq!(least(&given_up, |_| false), None);
        let told = bench.node.told_of_logs(|name, _| Some(format!("log {name}")), "like it");
        assert_eq!(told, ["log l"]);
    }
}
