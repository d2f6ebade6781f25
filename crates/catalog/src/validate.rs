//! Validation of client requests to the catalog, at the endpoint and again before a proposal.
//!
//! Applying an entry repeats none of these checks: limits may change between versions, and a committed entry must have
//! the same effect on every replica.

use std::collections::BTreeSet;

use base::limits::{
    DISK_BLOCK_BYTES, DISK_BYTES_MAX, DISK_STRIPES_MAX, KEY_BYTES_MAX, RANGES_MAX, REPLICAS_MAX, RETENTION_MAX,
    SPLIT_BYTES_MAX,
};
use base::{Durability, Duration, NodeId, shown};
use bytes::Bytes;
use state_machine::Failure;
use state_machine::limits::{check_count, check_name, check_size, refuse};

use crate::catalog::NodeRecord;
use crate::command::CatalogCommand;
use crate::options::{Replication, TableOptions};
use crate::request::CatalogRequest;

/// Maximum bytes of an `address:port`.
const ADDRESS_BYTES_MAX: usize = 260;
/// The highest node number.
const NODE_MAX: u32 = 65_535;

/// Maximum replicas of a range that is moved.
const MOVED_MAX: usize = REPLICAS_MAX as usize;

/// Checks a request's format and limits. Commands that only nodes propose pass unchecked.
///
/// # Errors
/// [`Failure::Invalid`] with the reason.
pub fn validate(request: &CatalogRequest) -> Result<(), Failure> {
    match request {
        CatalogRequest::Change(CatalogCommand::CreateTable { name, split_at, options }) => {
            check_name(if options.is_disk() { "disk" } else { "table" }, name)?;
            check_split(split_at)?;
            check_replicas(options.replicas)?;
            check_retention(options.retention)?;
            check_transactions(options)?;
            check_replication(options)?;
            check_disk(split_at, options)
        }
        CatalogRequest::DescribeTable(name)
        | CatalogRequest::FindTable(name)
        | CatalogRequest::FindRemnant(name)
        | CatalogRequest::Change(CatalogCommand::DeclareLoss { table: name, .. })
        | CatalogRequest::Change(CatalogCommand::BeginDrop { name, .. }) => check_table_name(name),
        CatalogRequest::Change(CatalogCommand::BeginSplit { name, key }) => {
            check_table_name(name)?;
            check_split(std::slice::from_ref(key))
        }
        CatalogRequest::Change(CatalogCommand::ResizeDisk { name, bytes }) => {
            check_name("disk", name)?;
            check_disk_bytes(*bytes)
        }
        CatalogRequest::Change(CatalogCommand::AddNode { node }) => check_node(node),
        CatalogRequest::Change(CatalogCommand::BeginMove { nodes, .. }) => check_nodes(nodes),
        CatalogRequest::Change(_)
        | CatalogRequest::ListTables
        | CatalogRequest::ListDisks
        | CatalogRequest::ListNodes
        | CatalogRequest::ListLogs
        | CatalogRequest::DescribeLog(_) => Ok(()),
    }
}

fn check_node(node: &NodeRecord) -> Result<(), Failure> {
    if !(1..=NODE_MAX).contains(&node.member.node.0) {
        return refuse(format!("node {}: node numbers are 1 to {NODE_MAX}", node.member.node));
    }
    for address in [&node.peer, &node.grpc] {
        if address.is_empty() {
            return refuse(format!("node {} has an empty address", node.member.node));
        }
        check_size("a node's address", address.len(), ADDRESS_BYTES_MAX)?;
    }
    Ok(())
}

fn check_nodes(nodes: &[NodeId]) -> Result<(), Failure> {
    let distinct: BTreeSet<NodeId> = nodes.iter().copied().collect();
    if distinct.len() != nodes.len() {
        return refuse("a node is given twice");
    }
    match nodes.len() {
        1..=MOVED_MAX => Ok(()),
        other => refuse(format!("{other} nodes given: a range has 1 to {MOVED_MAX} replicas")),
    }
}

/// Checks a table name.
///
/// # Errors
/// [`Failure::Invalid`] if it is empty, too long, or contains invalid characters.
pub fn check_table_name(name: &str) -> Result<(), Failure> {
    check_name("table", name)
}

/// Checks the split keys of a table: in any order, without duplicates.
fn check_split(split_at: &[Bytes]) -> Result<(), Failure> {
    check_count("ranges of the table", split_at.len() + 1, RANGES_MAX)?;
    let mut keys = BTreeSet::new();
    for key in split_at {
        if key.is_empty() {
            return refuse("a split key is empty: the first range begins there");
        }
        check_size("a split key", key.len(), KEY_BYTES_MAX)?;
        if !keys.insert(key) {
            return refuse(format!("the split key \"{}\" is given twice", shown(key)));
        }
    }
    check_size("the split keys together", split_at.iter().map(Bytes::len).sum(), SPLIT_BYTES_MAX)
}

/// Only odd numbers are allowed: an even number tolerates no more failures than the odd number below it and needs a
/// larger majority.
fn check_replicas(replicas: u32) -> Result<(), Failure> {
    if replicas == 0 || (replicas <= REPLICAS_MAX && replicas % 2 == 1) {
        return Ok(());
    }
    refuse(format!("{replicas} replicas requested: a range has 1, 3 or 5"))
}

fn check_retention(retention: Duration) -> Result<(), Failure> {
    if retention > RETENTION_MAX {
        return refuse(format!("a retention of {retention} is over the limit of {RETENTION_MAX}"));
    }
    Ok(())
}

/// Under primary/backup replication, the primary commits what all members have forced.
fn check_replication(options: &TableOptions) -> Result<(), Failure> {
    match options.replication() {
        Replication::Paxos => Ok(()),
        Replication::PrimaryBackup if options.durability() == Durability::Memory => {
            refuse("replication \"primary-backup\" cannot be combined with durability \"memory\"")
        }
        Replication::PrimaryBackup => Ok(()),
    }
}

/// A disk has a limited number of stripes, and takes part in no transactions.
fn check_disk(split_at: &[Bytes], options: &TableOptions) -> Result<(), Failure> {
    if !options.is_disk() {
        return if options.is_exclusive { refuse("only a disk can be exclusive") } else { Ok(()) };
    }
    check_count("stripes of the disk", split_at.len() + 1, usize::from(DISK_STRIPES_MAX))?;
    if options.transactions == Some(true) {
        return refuse("a disk cannot take part in transactions");
    }
    check_disk_bytes(options.disk_bytes)
}

fn check_disk_bytes(bytes: u64) -> Result<(), Failure> {
    if bytes == 0 || bytes > DISK_BYTES_MAX || !bytes.is_multiple_of(DISK_BLOCK_BYTES) {
        return refuse(format!(
            "{bytes} bytes requested: the size of a disk is a multiple of {DISK_BLOCK_BYTES}, up to {DISK_BYTES_MAX}"
        ));
    }
    Ok(())
}

/// A loss of acknowledged writes could undo one part of a transaction and leave the others.
fn check_transactions(options: &TableOptions) -> Result<(), Failure> {
    if options.durability() == Durability::Memory && options.transactions == Some(true) {
        return refuse("a table with durability \"memory\" cannot take part in transactions");
    }
    Ok(())
}
