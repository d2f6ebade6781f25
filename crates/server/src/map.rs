//! The catalog's map as rows, for the status and the metrics of a node.

use base::{Durability, KeyRange};
use catalog::Catalog;

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
}

/// All ranges of tables, and then all log units. Tables that are being dropped are left out, and a range that is being
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
            nodes: record.members.iter().map(|member| member.node.0).collect(),
            replicas: if is_alone { 1 } else { table.options.replicas },
            durability: table.options.durability(),
        })
    });
    let units = catalog.logs().flat_map(|(name, log)| {
        log.units.iter().filter_map(move |(unit, member)| {
            let cohort = catalog::cohort_of(*unit)?.0;
            let (range, nodes) = (KeyRange::all(), vec![member.node.0]);
            Some(Row { cohort, table: "", log: Some(name), range, nodes, replicas: 1, durability: Durability::Forced })
        })
    });
    ranges.chain(units)
}
