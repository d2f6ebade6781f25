//! A tablet is one range of a table: rows, versions and sessions, as the state machine that a cohort replicates. The
//! data model is that of Spinnaker, section 3.
//!
//! * [`request`]: client requests and responses. [`mod@validate`]: limits and format checks for requests.
//! * [`command`]: the commands in the log. [`tablet`]: the rows and sessions of a range.
//! * [`transaction`]: the protocol of transactions. [`two_phase`]: its driver, and the recovery after failures.
//! * [`evaluation`]: reads and decisions that may have to wait for the disk. [`checkpoint`]: the state as chunks.
//!
//! **Architecture invariant:** this crate does no IO, reads no clock, draws no randomness, and iterates over no hash
//! map.
//!
//! # A transaction
//!
//! A client reads two rows of different ranges and changes both. Its library keeps the writes until the commit.
//!
//! 1. **Reads.** A read with `Consistency::Locking` goes to the range's leader. `node/src/reads.rs`: `read_and_lock`
//!    waits for changes in progress of the keys, notes a read lock (`read_locks.rs`), and answers with the timestamp of
//!    the state.
//! 2. **Commit.** The request names reads and writes, and a stamp in a session of the coordinator's range. The node
//!    that was asked drives it: a pure machine (`tablets/src/two_phase/driver.rs`: `start`), whose requests the node
//!    routes (`node/src/transactions.rs`), divides the transaction by range. If there is one range, its commit is a
//!    change like a conditional write: validated under latches (`tablets/src/tablet/reads.rs`: `conflict`), one entry.
//! 3. **Prepare.** Otherwise all ranges but the coordinator's get `TableRequest::Prepare`, in parallel. A range
//!    validates its part and proposes the prepare; once applied (`tablets/src/tablet/transactions.rs`), the state holds
//!    the locks.
//! 4. **Decision.** The coordinator's range validates its own part and proposes the commit. Its timestamp is the commit
//!    timestamp. The client has its answer when it is applied. If any step fails, the driver proposes an abort instead,
//!    and reports what the log says.
//! 5. **Resolution** (`tablets/src/two_phase/resolution.rs`). The coordinator's leader sends `TableRequest::Resolve` to
//!    the participants, which write their parts. When all have replied, it proposes to forget the decision. A new
//!    leader begins again; a participant without news asks after 2 s.

pub mod checkpoint;
pub mod command;
pub mod evaluation;
pub mod request;
pub mod tablet;
#[cfg(test)]
mod testing;
pub mod transaction;
pub mod two_phase;
pub mod validate;

pub use checkpoint::TabletSnapshot;
pub use command::Command;
pub use evaluation::{Evaluation, Question};
pub use request::{TableRequest, TableResponse};
pub use tablet::{Tablet, TabletView};
pub use validate::validate;
