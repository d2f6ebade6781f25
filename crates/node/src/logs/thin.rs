//! Which logs lack copies, in words for people.

use base::counted;
use sharedlog::UnitId;
use tablets::LogRecord;

use crate::node::Node;

/// Logs of which that is said one by one.
const TOLD_MAX: usize = 8;

impl Node {
    /// What whoever leads the catalogue says of logs that lack copies, as far as the universe has nodes for them.
    pub(crate) fn thin_logs(&self) -> Vec<String> {
        let catalogue = self.catalogue().filter(|_| self.leads_catalogue());
        let logs = catalogue.into_iter().flat_map(|catalogue| catalogue.logs());
        let lacking = |(name, log): (&str, &LogRecord)| {
            let lives = |unit: &UnitId| self.is_copy(log, *unit);
            lacking(name, log, self.copies(log), lives)
        };
        let mut thin: Vec<String> = logs.filter_map(lacking).collect();
        let more = thin.len().saturating_sub(TOLD_MAX);
        if more > 0 {
            thin.truncate(TOLD_MAX);
            thin.push(format!("{} more with fewer copies than they should have", counted(more as u64, "log")));
        }
        thin
    }
}

/// Says how many copies a log has where it has fewest. What was given up has none, and can have none again.
fn lacking(name: &str, log: &LogRecord, copies: usize, lives: impl Fn(&UnitId) -> bool) -> Option<String> {
    let chains = log.projection.extents.iter().flat_map(|extent| &extent.chains);
    let of_chain = |chain: &Vec<UnitId>| chain.iter().filter(|unit| lives(unit)).count();
    let least = chains.filter(|chain| !chain.is_empty()).map(of_chain).min().filter(|least| *least < copies)?;
    Some(format!("log {name} has {} of some positions, and should have {copies}", counted(least as u64, "copy")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::logs::tests::alone;

    #[test]
    fn a_log_that_lacks_copies_is_told() {
        let bench = alone();
        assert!(bench.node.thin_logs().is_empty(), "there is one node");
        let log = bench.node.catalogue().and_then(|catalogue| catalogue.log("l")).expect("it was created");
        let told = lacking("l", log, 3, |_| true);
        assert_eq!(told.as_deref(), Some("log l has 1 copy of some positions, and should have 3"));
        assert_eq!(lacking("l", log, 1, |_| true), None);
        let told = lacking("l", log, 1, |_| false);
        assert_eq!(told.as_deref(), Some("log l has 0 copies of some positions, and should have 1"));
        let mut given_up = log.clone();
        given_up.projection.extents[0].chains = vec![Vec::new()];
        assert_eq!(lacking("l", &given_up, 3, |_| false), None);
    }
}
