//! PostgreSQL on Loggos: databases, sessions, and the protocol in front of them.
//!
//! [`sql`] decides what statements mean; this crate executes them: it reads and writes rows in transactions of
//! `loggos-client`, keeps the state of sessions, and speaks PostgreSQL's protocol, version 3.0.
//!
//! **Architecture invariants:** the state of a database is in its Loggos table alone, so that any node serves any
//! session. Nothing that a client sends causes a panic, and the memory of each connection is limited.

mod activity;
#[doc(hidden)]
pub mod copy;
mod database;
mod definition;
mod execute;
mod failure;
mod fill;
mod jobs;
mod limits;
mod online;
#[doc(hidden)]
pub mod protocol;
mod session;
mod settings;
mod sizes;
mod statement;
mod transaction;
mod transaction_ids;
mod work;

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::time::Duration;

pub use activity::Activity;
pub use database::{DEFAULT_DATABASE, Databases};
pub use jobs::Progress;
pub use limits::Cancel;
pub use protocol::serve;
pub use session::{Response, RowStream, Session, Status};
pub use settings::SERVER_VERSION;
pub use sizes::Overview;
pub use sql::system::SessionRow;
pub use statement::Prepared;

/// A number that is different each time. The hasher's keys are random, and secret.
fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// A random time in the upper half of a pause, so that transactions in conflict do not meet again.
fn jittered(pause: Duration) -> Duration {
    let half = pause / 2;
    let nanos = u64::try_from(half.as_nanos()).unwrap_or(u64::MAX).max(1);
    half + Duration::from_nanos(random() % nanos)
}
