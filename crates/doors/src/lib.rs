//! The doors: the servers through which the world reaches a node. So far two: gRPC, with the columns service
//! (Spinnaker, section 3), the log service (CORFU), the admin service, reflection and health; and the [`console`], HTTP
//! for browsers and Prometheus.
//!
//! A door is a translator. It turns bytes into a [`Request`], refuses what breaks a limit, hands the rest to the node
//! through the [`Gateway`], and turns the [`Outcome`] back into bytes. It decides nothing about data.
//!
//! What it owes its clients:
//! * *An answer by the deadline*: definite, or the statement that the outcome is unknown (`deadline`).
//! * *An error that says what may be done next*, for machines as well as for people (`refusal`).
//! * *That clients stop neither the node nor each other*: connections, their time to say something sensible, the calls
//!   on each and the memory of all of them are bounded (`limits`, `admission`, `flow_control`).
//!
//! What goes on is counted (`calls`) and sampled (`activity`) by an [`Observer`] that all doors of a node share, and
//! told as metrics (`metrics`).
//!
//! **Architecture invariant:** a door never waits without a bound, and nothing that arrives on one connection ends
//! another.

mod activity;
mod admin;
mod admission;
mod calls;
mod columns;
pub mod console;
mod deadline;
mod flow_control;
mod formation;
mod limits;
mod log;
mod metrics;
mod observer;
mod process;
mod reads;
mod refusal;
mod server;
mod stream;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use node::request::{Outcome, Request};

pub use flow_control::Held;
pub use flow_control::replies::Replies;
pub use formation::{Founded, Founding, Genesis, Invitation, Own};
pub use limits::{CONSOLE_CONNECTIONS_MAX, REPLY_BYTES_MAX, REQUEST_BYTES_MAX};
pub use observer::Observer;
pub use server::{ServeError, serve};

/// The way from the doors to the node behind them.
pub trait Gateway: Send + Sync + 'static {
    /// Hands in a request that keeps the limits. The node answers within `deadline`, if only to say that it doesn't
    /// know; to drop the future abandons the answer, and before long a request that reads. One that changes something
    /// goes on. `held` is dropped once the node has answered, and not before.
    fn submit(&self, request: Request, deadline: Duration, held: Held) -> impl Future<Output = Outcome> + Send;

    /// Hands in what a message of a stream brought, all at once. Each outcome is given to `replies` under its request's
    /// ticket, in any order; of a request that is too much for the node, at once.
    fn submit_all(&self, batch: Vec<Ticketed>, replies: &Arc<Replies>);
}

/// A request of a stream.
#[derive(Debug)]
pub struct Ticketed {
    /// Names it among the requests of its stream.
    pub ticket: u64,
    /// The request, which keeps the limits.
    pub request: Request,
    /// The node answers within this.
    pub deadline: Duration,
    /// Dropped once it is answered.
    pub held: Held,
}
