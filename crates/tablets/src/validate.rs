//! What a request must keep to, checked at the door and again before a proposal: a request that fails here has done
//! nothing. Every refusal names what was wrong, its size and the limit.
//!
//! Applying an entry doesn't check any of this again: limits may change between versions, and what is in the log must
//! come to the same on every replica.

use std::collections::BTreeSet;
use std::fmt::Display;

use base::limits::{
    COLUMN_BYTES_MAX, KEY_BYTES_MAX, RANGES_MAX, REPLICAS_MAX, RETENTION_MAX, SESSION_WINDOW, SPLIT_BYTES_MAX,
    TABLE_NAME_BYTES_MAX, VALUE_BYTES_MAX, WRITE_BYTES_MAX, WRITE_COLUMNS_MAX,
};
use base::{Duration, NodeId, shown};
use bytes::Bytes;

mod logs;

pub use logs::new_log_name;

use crate::catalogue::NodeRecord;
use crate::request::{Failure, Mutation, Request, Scan, SessionStamp, TableRequest, Write};

/// Columns that one read may name, at most: as many as a write.
const READ_COLUMNS_MAX: usize = WRITE_COLUMNS_MAX;

/// Bytes of an address and port.
const ADDRESS_BYTES_MAX: usize = 64;
/// The highest number that a node can have.
const NODE_MAX: u32 = 65_535;

/// Replicas that a range may be moved to, at most.
const MOVED_MAX: usize = REPLICAS_MAX as usize;

/// Checks a request's form and limits.
///
/// # Errors
/// [`Failure::Invalid`], saying what is wrong.
pub fn validate(request: &Request) -> Result<(), Failure> {
    match request {
        Request::CreateTable { name, split_at, replicas, retention, durability: _ } => {
            check_table_name(name)?;
            check_split(split_at)?;
            check_replicas(*replicas)?;
            check_retention(*retention)
        }
        Request::DescribeTable { name } | Request::DropTable { name } => check_table_name(name),
        Request::SplitRange { name, key } => {
            check_table_name(name)?;
            check_split(std::slice::from_ref(key))
        }
        Request::ListTables | Request::ListNodes | Request::RemoveNode { .. } | Request::Status => Ok(()),
        Request::AddNode(node) => check_node(node),
        Request::Log(request) => logs::check(request),
        Request::MoveRange { nodes, .. } => check_nodes(nodes),
        Request::Table { table, request } => {
            check_table_name(table)?;
            match request {
                TableRequest::OpenSession { key } => check_size("the session's key", key.len(), KEY_BYTES_MAX),
                TableRequest::Write(write) => check_write(write),
                TableRequest::DeleteRow { stamp, key } => {
                    stamp.as_ref().map_or(Ok(()), check_stamp)?;
                    check_key(key)
                }
                TableRequest::Get { key, columns, .. } => check_get(key, columns.as_deref()),
                TableRequest::Scan { scan, .. } => check_scan(scan),
            }
        }
    }
}

fn check_node(node: &NodeRecord) -> Result<(), Failure> {
    if !(1..=NODE_MAX).contains(&node.member.node.0) {
        return refuse(format!("node {}: a node's number is 1 to {NODE_MAX}", node.member.node));
    }
    for address in [&node.peer, &node.grpc] {
        if address.is_empty() {
            return refuse(format!("node {} has an address that is empty", node.member.node));
        }
        check_size("a node's address", address.len(), ADDRESS_BYTES_MAX)?;
    }
    Ok(())
}

fn check_nodes(nodes: &[NodeId]) -> Result<(), Failure> {
    let distinct: BTreeSet<NodeId> = nodes.iter().copied().collect();
    if distinct.len() != nodes.len() {
        return refuse("a node is named twice");
    }
    match nodes.len() {
        1..=MOVED_MAX => Ok(()),
        other => refuse(format!("{other} nodes are named: a range has 1 to {MOVED_MAX} replicas")),
    }
}

fn check_table_name(name: &str) -> Result<(), Failure> {
    check_name("table", name)
}

/// The name of a table or of a log.
fn check_name(of: &str, name: &str) -> Result<(), Failure> {
    if name.is_empty() {
        return refuse(format!("the {of}'s name is empty"));
    }
    check_size(format_args!("the {of}'s name"), name.len(), TABLE_NAME_BYTES_MAX)?;
    match name.chars().find(|c| !(c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.'))) {
        Some(c) => refuse(format!("the {of}'s name {name:?} holds {c:?}: letters, digits, '_', '-' and '.' only")),
        None => Ok(()),
    }
}

/// The keys that a table is split at, in any order, each once.
fn check_split(split_at: &[Bytes]) -> Result<(), Failure> {
    check_count("the table's ranges", split_at.len() + 1, RANGES_MAX)?;
    let mut keys = BTreeSet::new();
    for key in split_at {
        if key.is_empty() {
            return refuse("a key to split at is empty: the first range begins there");
        }
        check_size("a key to split at", key.len(), KEY_BYTES_MAX)?;
        if !keys.insert(key) {
            return refuse(format!("the table is to be split at \"{}\" twice", shown(key)));
        }
    }
    check_size("the keys to split at, together", split_at.iter().map(Bytes::len).sum(), SPLIT_BYTES_MAX)
}

/// An even number survives no more failures than the odd one below, and needs one more to agree.
fn check_replicas(replicas: u32) -> Result<(), Failure> {
    if replicas == 0 || (replicas <= REPLICAS_MAX && replicas % 2 == 1) {
        return Ok(());
    }
    refuse(format!("{replicas} replicas are asked for: a range has 1, 3 or 5"))
}

fn check_retention(retention: Duration) -> Result<(), Failure> {
    if retention > RETENTION_MAX {
        return refuse(format!("old versions are to be kept for {retention}, over the limit of {RETENTION_MAX}"));
    }
    Ok(())
}

fn check_write(write: &Write) -> Result<(), Failure> {
    write.stamp.as_ref().map_or(Ok(()), check_stamp)?;
    check_key(&write.key)?;
    if write.mutations.is_empty() {
        return refuse("the write has no mutation");
    }
    check_count("the write's columns", write.mutations.len(), WRITE_COLUMNS_MAX)?;
    let mut columns = BTreeSet::new();
    for mutation in &write.mutations {
        check_mutation(mutation)?;
        if !columns.insert(&mutation.column) {
            return refuse(format!("the write names column \"{}\" twice", shown(&mutation.column)));
        }
    }
    let bytes = |mutation: &Mutation| mutation.column.len() + mutation.value.as_ref().map_or(0, Bytes::len);
    let total = write.key.len() + write.mutations.iter().map(bytes).sum::<usize>();
    check_size("the write (key, columns and values together)", total, WRITE_BYTES_MAX)
}

fn check_stamp(stamp: &SessionStamp) -> Result<(), Failure> {
    let SessionStamp { sequence, first_incomplete, .. } = *stamp;
    if sequence == 0 || first_incomplete == 0 {
        return refuse(format!("writes of a session are numbered from 1: write {sequence}, first {first_incomplete}"));
    }
    if first_incomplete > sequence {
        return refuse(format!(
            "write {sequence} is below {first_incomplete}, the first that is said to be incomplete"
        ));
    }
    if sequence - first_incomplete >= SESSION_WINDOW {
        return refuse(format!(
            "write {sequence} is out of its session's window: from {first_incomplete}, the first incomplete one, \
             {SESSION_WINDOW} writes may be under way"
        ));
    }
    Ok(())
}

fn check_mutation(mutation: &Mutation) -> Result<(), Failure> {
    check_column(&mutation.column)?;
    if let Some(value) = &mutation.value {
        check_size(format_args!("the value of column \"{}\"", shown(&mutation.column)), value.len(), VALUE_BYTES_MAX)?;
    }
    match mutation.condition {
        Some(version) if version.0 < 0 => refuse(format!("no version is negative: {version}")),
        _ => Ok(()),
    }
}

fn check_get(key: &Bytes, columns: Option<&[Bytes]>) -> Result<(), Failure> {
    check_key(key)?;
    let columns = columns.unwrap_or_default();
    check_count("the columns asked for", columns.len(), READ_COLUMNS_MAX)?;
    columns.iter().try_for_each(check_column)
}

/// An end of a scan may be any byte string as long as a key, the empty one too. A continuation may be one byte longer:
/// so long is what comes right after the longest key.
fn check_scan(scan: &Scan) -> Result<(), Failure> {
    check_size("the scan's first key", scan.from.len(), KEY_BYTES_MAX)?;
    check_size("the scan's prefix", scan.prefix.len(), KEY_BYTES_MAX)?;
    check_size("the scan's last key", scan.to.as_ref().map_or(0, Bytes::len), KEY_BYTES_MAX)?;
    check_size("the scan's continuation", scan.continuation.as_ref().map_or(0, Bytes::len), KEY_BYTES_MAX + 1)?;
    check_ends(scan)
}

/// A scan goes from the lesser end to the greater, in either direction.
pub(crate) fn check_ends(scan: &Scan) -> Result<(), Failure> {
    match &scan.to {
        Some(to) if scan.from > *to => refuse(format!(
            "the scan's ends are reversed: from \"{}\" comes after to \"{}\" (a scan in reverse has the lesser end first, too)",
            shown(&scan.from),
            shown(to)
        )),
        _ => Ok(()),
    }
}

fn check_key(key: &Bytes) -> Result<(), Failure> {
    if key.is_empty() {
        return refuse("the row's key is empty");
    }
    check_size("the row's key", key.len(), KEY_BYTES_MAX)
}

fn check_column(column: &Bytes) -> Result<(), Failure> {
    if column.is_empty() {
        return refuse("a column's name is empty");
    }
    check_size("a column's name", column.len(), COLUMN_BYTES_MAX)
}

fn check_size(what: impl Display, bytes: usize, limit: usize) -> Result<(), Failure> {
    if bytes > limit {
        return refuse(format!("{what} has {bytes} bytes, over the limit of {limit}"));
    }
    Ok(())
}

fn check_count(what: &str, count: usize, limit: usize) -> Result<(), Failure> {
    if count > limit {
        return refuse(format!("{what} are {count}, over the limit of {limit}"));
    }
    Ok(())
}

fn refuse(why: impl Into<String>) -> Result<(), Failure> {
    Err(Failure::Invalid(why.into()))
}

#[cfg(test)]
mod tests;
