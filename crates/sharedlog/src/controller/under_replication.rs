//! Reports on logs that lack copies, or of which some positions are out of reach.

use super::{Controller, LogState};
use crate::{LogId, UnitId};

/// A log with fewer copies of some positions than it should have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnderReplication {
    /// The log.
    pub log: LogId,
    /// Copies of those positions that have fewest.
    pub copies: usize,
    /// Copies that each should have, as far as there are nodes for them.
    pub wanted: usize,
}

impl Controller {
    /// Logs that lack copies; none while another controller leads.
    #[must_use]
    pub fn under_replicated(&self) -> Vec<UnderReplication> {
        let lacking = |log: &LogState| {
            let wanted = self.copies(log);
            let copies = fewest(log, |unit| self.is_copy(log, unit)).filter(|copies| *copies < wanted)?;
            Some(UnderReplication { log: log.id(), copies, wanted })
        };
        self.logs().filter_map(lacking).collect()
    }

    /// Logs of which some positions have no copy on a node that is heard of: they can't be read or written as a whole.
    #[must_use]
    pub fn out_of_reach(&self) -> Vec<LogId> {
        let is_reached = |log: &LogState, unit| !self.is_out(log, unit, self.config.gone);
        let logs = self.logs().filter(|log| fewest(log, |unit| is_reached(log, unit)) == Some(0));
        logs.map(LogState::id).collect()
    }

    fn logs(&self) -> impl Iterator<Item = &LogState> {
        self.cluster.iter().flat_map(|cluster| cluster.logs.values()).map(AsRef::as_ref)
    }
}

/// How many units of a kind a log's chains have where they have fewest. A chain that was given up has none, and can have
/// none again.
fn fewest(log: &LogState, is_kind: impl Fn(UnitId) -> bool) -> Option<usize> {
    let chains = log.chains().filter(|chain| !chain.is_empty());
    chains.map(|chain| chain.iter().filter(|unit| is_kind(**unit)).count()).min()
}
