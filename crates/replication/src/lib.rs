//! The cohort: a few replicas that agree on one log (Spinnaker 5 to 7, Gaios 2 and 3.1).
//!
//! A [`Cohort`] is one replica of one cohort as a pure machine: messages, completed forces and moments in time go in;
//! records to append, messages to send and committed entries come out, in one ordered list ([`Output`]). It reads no
//! clock, draws no randomness and touches no file, so that the exhaustive search and the simulator run the very code
//! that the server runs.
//!
//! The protocol is Multi-Paxos over a contiguous log:
//! * **Election** (`election`): prepare and promise, promises durable in two places, the log with the highest last LSN
//!   wins; before it a round of pre-votes, so that a replica that can't win disturbs nobody.
//! * **Replication** (`leader`, `follower`): an entry keeps its LSN, bytes and timestamp for ever and names its
//!   predecessor. Any majority commits, the leader among it or not (Gaios 3.1). A new leader re-proposes what it holds
//!   as it is, and counts nothing as committed before a barrier of its own epoch is. What a follower lacks in the middle is
//!   sent anew, and what came after it waits there (`early`).
//!   Large proposals may travel from follower to follower (`chain`).
//! * **Leases** (`lease`): votes ride on acknowledgements; a leader reads alone while a quorum of votes lives. Who has
//!   nothing else to say has others ask for its votes (`rest`).
//! * **Staleness** (`staleness`): how old a follower's state may be, told from what leaders stamped inside their leases.
//! * **Main-memory logs** (`main_memory`, `loss`): entries that count before disks have them, and what follows from that.
//! * **View checks** (`view`): a strong read at any replica, by a majority's word and no clock.
//! * **Membership** (`membership`): who votes is part of the log; one member at a time comes or goes.
//! * **Replay** (`replay`): what the records of the shared write-ahead log mean after a restart.
//!
//! The guarantees named in the code are those of `docs/guarantees.md`.

mod chain;
mod cohort;
mod config;
mod early;
mod election;
mod follower;
mod invariants;
mod leader;
mod lease;
mod log;
mod loss;
mod main_memory;
mod membership;
mod message;
mod outbox;
mod renamed;
mod replay;
mod rest;
mod staleness;
#[cfg(test)]
mod tests;
mod view;

pub use cohort::{Cohort, ReplicaView, SplitOff, Start};
pub use config::{Config, Limits, Timing};
pub use leader::CatchUp;
pub use lease::grace;
pub use loss::Worth;
pub use main_memory::{UNFORCED_BYTES_MAX, UNFORCED_MAX};
pub use membership::ChangeRefused;
pub use message::{Gap, Message, Relay, Reply};
pub use outbox::{Durable, ManifestId, Outbox, Output, WriteId};
pub use renamed::renamed_promise;
pub use replay::{Replay, Replayed};
pub use rest::Rest;
pub use staleness::Freshness;
pub use view::{CheckId, Checked};
