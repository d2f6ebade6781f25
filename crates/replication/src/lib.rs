//! A cohort: replicas that agree on one log (Spinnaker 5 to 7, Gaios 2 and 3.1).
//!
//! A [`Cohort`] is one replica of one cohort as a pure state machine. Its inputs are messages, completed forces and
//! times; its outputs are records to append, messages to send and committed entries, in one ordered list ([`Output`]).
//! It has no clock, no randomness and no file access, so that the exhaustive search and the simulator run the same code
//! as the server.
//!
//! The protocol is Multi-Paxos over a contiguous log:
//! * **Election** (`election`): prepare and promise, promises durable in two places, the log with the highest last LSN
//!   wins. A round of pre-votes comes first, so that a replica that cannot win disrupts no one.
//! * **Replication** (`leader`, `follower`): an entry keeps its LSN, bytes and timestamp permanently and names its
//!   predecessor. Any majority commits, with or without the leader (Gaios 3.1). A new leader re-proposes the entries
//!   that it holds unchanged, and counts nothing as committed before a barrier of its own epoch is. Missing entries are
//!   retransmitted, and later ones wait in a reorder buffer (`reorder_buffer`). Large proposals may travel from
//!   follower to follower (`chain`).
//! * **Appointment** (`managed`): instead of an election, for cohorts under primary/backup replication. The catalog
//!   records configurations, and all members commit (PacificA, section 2).
//! * **Leases** (`lease`): votes are piggybacked on acknowledgements; a leader serves reads alone while a quorum of
//!   votes is valid. An idle leader renews its votes through batched heartbeats of its node (`quiescence`).
//! * **Staleness** (`staleness`): a bound on the age of a follower's state, from times that leaders report within their
//!   leases.
//! * **Main-memory logs** (`main_memory`, `data_loss`): entries that count before they are on disk, and the
//!   consequences.
//! * **Read index** (`read_index`): linearizable reads at any replica, confirmed by a majority and independent of
//!   clocks.
//! * **Membership** (`membership`): the voters are part of the log; one member at a time is added or removed.
//! * **Replay** (`replay`): the meaning of the shared write-ahead log's records after a restart.
//!
//! The guarantees named in the code are those of `docs/guarantees.md`.

mod cohort;
mod commit_wait;
mod config;
mod data_loss;
mod election;
mod follower;
mod invariants;
mod leader;
mod lease;
mod log;
mod main_memory;
mod managed;
mod membership;
mod message;
mod outbox;
mod quiescence;
mod read_index;
mod reorder_buffer;
mod replay;
mod staleness;
mod symmetry;
#[cfg(test)]
mod tests;

pub use cohort::{Cohort, ReplicaView, SplitOff, Start};
pub use commit_wait::COMMIT_WAIT_MAX;
pub use config::{Authority, CommitRule, Config, Limits, Regime, Timing};
pub use data_loss::LogIntegrity;
pub use invariants::{commit_invariant, primary_invariant, reconfiguration_invariant};
pub use leader::CatchUp;
pub use lease::grace;
pub use main_memory::{UNFORCED_BYTES_MAX, UNFORCED_MAX};
pub use membership::ChangeRefused;
pub use message::{Gap, Message, Reply};
pub use outbox::{Durable, ManifestId, Outbox, Output, WriteId};
pub use quiescence::Quiescence;
pub use read_index::{CheckId, Checked};
pub use replay::{Replay, Replayed};
pub use staleness::Freshness;
pub use symmetry::renamed_promise;
