//! The catalog's map as rows, for the status and the metrics of a node.

use std::collections::BTreeMap;

use base::{Durability, KeyRange, Member};
use catalog::{Catalog, LogRecord, cohort_of};
use sharedlog::UnitId;

use api::admin as message;

/// A range of a table, or a log unit, and the nodes that should have a replica.
#[derive(Debug)]
pub(crate) struct Row<'a> {
    pub(crate) cohort: u32,
    /// Empty for a log unit.
    pub(crate) table: &'a str,
    /// The log of a log unit.
    pub(crate) log: Option<&'a str>,
    pub(crate) range: KeyRange,
    /// In order of node number.
    pub(crate) nodes: Vec<u32>,
    /// The number of replicas that it should have: that of its table, or one in a cluster of one node.
    pub(crate) replicas: u32,
    pub(crate) durability: Durability,
    /// The node of its primary, under primary/backup replication.
    pub(crate) primary: Option<u32>,
    /// While its replicas are being moved: the nodes with replicas that the move removes.
    pub(crate) leaving: Option<Vec<u32>>,
}

/// All ranges of tables, and then all log units. Tables and logs that are being dropped are left out, and a range that is being
/// split counts as one.
pub(crate) fn rows(catalog: &Catalog) -> impl Iterator<Item = Row<'_>> {
    let is_alone = catalog.nodes().count() == 1;
    let tables = catalog.tables().filter(|(_, table)| !table.is_dropping);
    let ranges = tables.flat_map(move |(name, table)| {
        table.ranges().map(move |(range, record)| Row {
            cohort: record.cohort.0,
            table: name,
            log: None,
            range,
            nodes: numbers(&record.members),
            leaving: record.leaving.as_deref().map(numbers),
            replicas: if is_alone { 1 } else { table.options.replicas },
            durability: table.options.durability(),
            primary: record.configuration.as_ref().map(|configuration| configuration.primary.node.0),
        })
    });
    let logs = catalog.logs().filter(|(_, log)| !log.is_dropping);
    let units = logs.flat_map(|(name, log)| {
        log.units.iter().filter_map(move |(unit, member)| {
            let cohort = catalog::cohort_of(*unit)?.0;
            let (range, nodes) = (KeyRange::all(), vec![member.node.0]);
            let (durability, leaving) = (Durability::Forced, None);
            let (replicas, primary) = (1, None);
            Some(Row { cohort, table: "", log: Some(name), range, nodes, replicas, durability, primary, leaving })
        })
    });
    ranges.chain(units)
}

fn numbers(members: &[Member]) -> Vec<u32> {
    members.iter().map(|member| member.node.0).collect()
}

/// Where the copies of all logs are, except of those that are being dropped.
pub(crate) fn logs(catalog: &Catalog) -> Vec<message::LogPlacement> {
    let logs = catalog.logs().filter(|(_, log)| !log.is_dropping);
    logs.map(|(name, log)| message::LogPlacement {
        log: name.to_owned(),
        sequencer: log.projection.sequencer.node.0,
        chains: chains(log),
    })
    .collect()
}

fn chains(log: &LogRecord) -> Vec<message::ChainPlacement> {
    let mut takes_appends: BTreeMap<&[UnitId], bool> = BTreeMap::new();
    // A chain without units was abandoned.
    for chain in log.projection.extents.iter().flat_map(|extent| &extent.chains).filter(|chain| !chain.is_empty()) {
        takes_appends.insert(chain, false);
    }
    for chain in &log.projection.last().chains {
        takes_appends.insert(chain, true);
    }
    let unit = |unit: &UnitId| {
        Some(message::UnitPlacement { cohort: cohort_of(*unit)?.0, node: log.member_of(*unit)?.node.0 })
    };
    let chain = |(units, takes_appends): (&[UnitId], bool)| message::ChainPlacement {
        units: units.iter().filter_map(unit).collect(),
        takes_appends,
    };
    takes_appends.into_iter().map(chain).collect()
}

/// The tables and logs that are being dropped.
pub(crate) fn drops(catalog: &Catalog) -> Vec<message::Drop> {
    let tables = catalog.dropping().map(|(name, table)| {
        let cohorts = table.ranges.iter();
        let cohorts = cohorts
            .map(|range| message::DroppedCohort { cohort: range.cohort.0, nodes: numbers(&range.members) })
            .collect();
        message::Drop { table: name.to_owned(), log: String::new(), force: table.is_drop_forced, cohorts }
    });
    let logs = catalog.dropping_logs().map(|(name, log)| {
        let unit = |(unit, member): &(UnitId, Member)| {
            Some(message::DroppedCohort { cohort: cohort_of(*unit)?.0, nodes: vec![member.node.0] })
        };
        let cohorts = log.units.iter().filter_map(unit).collect();
        message::Drop { table: String::new(), log: name.to_owned(), force: log.is_drop_forced, cohorts }
    });
    tables.chain(logs).collect()
}
