//! The table of operations. Each is prepared in a new cluster: its rows exist, and its leader is elected.
//!
//! A client's request is answered by the leader's node, except where noted. One request is in progress at a time, so
//! nothing is batched: group commit makes an operation cheaper under load.

mod columns;
mod disks;
mod grpc;
mod statements;
mod znodes;

use bytes::Bytes;

/// Executes an operation once, and panics if it fails.
pub type Run = Box<dyn FnMut()>;

/// An operation, the instructions of which are counted.
pub struct Operation {
    pub name: &'static str,
    /// How often it is executed while instructions are counted.
    pub times: u32,
    prepare: fn() -> Run,
}

impl Operation {
    /// The operation with this name.
    #[must_use]
    pub fn named(name: &str) -> Option<&'static Self> {
        OPERATIONS.iter().find(|operation| operation.name == name)
    }

    /// A cluster in which the operation can be executed.
    #[must_use]
    pub fn prepare(&self) -> Run {
        (self.prepare)()
    }
}

const fn operation(name: &'static str, times: u32, prepare: fn() -> Run) -> Operation {
    Operation { name, times, prepare }
}

/// Reads are executed more often than writes, so that a heartbeat of the idle cohorts, which may occur within the
/// count or after it, changes no row by more than a few thousandths.
pub const OPERATIONS: [Operation; 16] = [
    operation("put 4 KiB", WRITES, columns::put_4k),
    operation("put 100 B", WRITES, columns::put_100),
    operation("conditional put", WRITES, columns::conditional_put),
    operation("strong read", READS, columns::strong_read),
    operation("timeline read", READS, columns::timeline_read),
    operation("scan of 100 rows", SCANS, columns::scan),
    operation("commit of two rows", WRITES, columns::commit),
    operation("log append", WRITES, columns::append),
    operation("znode set", WRITES, znodes::set),
    operation("znode get", READS, znodes::get),
    operation("nbd write 8 KiB", WRITES, disks::write),
    operation("nbd read 8 KiB", READS, disks::read),
    operation("sql point read", READS, statements::point_read),
    operation("sql point update", WRITES, statements::point_update),
    operation("grpc put", WRITES, grpc::put),
    operation("grpc strong read", READS, grpc::strong_read),
];

const WRITES: u32 = 300;
const READS: u32 = 1_000;
const SCANS: u32 = 100;

/// A value of this length.
fn value(bytes: usize) -> Bytes {
    (0..bytes).map(|at| (at * 31 % 251) as u8).collect::<Vec<_>>().into()
}

#[cfg(test)]
mod tests {
    use super::OPERATIONS;

    #[test]
    fn operations_succeed() {
        for operation in &OPERATIONS {
            let mut run = operation.prepare();
            (0..3).for_each(|_| run());
        }
    }
}
