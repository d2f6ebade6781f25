//! Reports logs that lack copies, and logs with unavailable positions.

use super::{Controller, LogState};
use crate::{LogId, UnitId};

/// A log with fewer copies of some positions than its target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnderReplication {
    pub log: LogId,
    /// Lowest number of copies over all positions.
    pub copies: usize,
    /// Target number of copies, limited by the number of nodes.
    pub wanted: usize,
}

impl Controller {
    /// Under-replicated logs; empty unless this controller leads.
    #[must_use]
    pub fn under_replicated(&self) -> Vec<UnderReplication> {
        let lacking = |log: &LogState| {
            let wanted = self.copies(log);
            let copies = fewest(log, |unit| self.is_copy(log, unit)).filter(|copies| *copies < wanted)?;
            Some(UnderReplication { log: log.id(), copies, wanted })
        };
        self.logs().filter_map(lacking).collect()
    }

    /// Logs with positions that have no copy on a live node, so that they cannot be read or written completely.
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

/// The lowest number of matching units over all chains. Skips abandoned chains, which can never have units again.
fn fewest(log: &LogState, is_kind: impl Fn(UnitId) -> bool) -> Option<usize> {
    let chains = log.chains().filter(|chain| !chain.is_empty());
    chains.map(|chain| chain.iter().filter(|unit| is_kind(**unit)).count()).min()
}
