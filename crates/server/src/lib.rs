//! The protocol servers of a node. There are two: gRPC, with the columns service (Spinnaker, section 3), the log
//! service (CORFU), the admin service, reflection and health; and the [`console`], HTTP for browsers and Prometheus.
//!
//! A server only translates. It decodes a [`Request`], rejects it if it exceeds a limit, passes it to the node through the
//! [`Gateway`], and encodes the [`Outcome`]. It makes no decisions about data.
//!
//! It guarantees to clients:
//! * *A response by the deadline*: the outcome, or that the outcome is unknown (`deadline`).
//! * *Actionable errors*, for programs and for users: how to proceed (`refusal`).
//! * *Isolation*: no client can stop the node or another client. The number of connections, the time to send a request,
//!   the concurrent calls of a connection and the total memory are bounded (`limits`, `admission`, `flow_control`).
//!
//! An [`Observer`], shared by all servers of a node, counts calls (`calls`), samples activity (`activity`), and exports
//! metrics (`metrics`).
//!
//! **Architecture invariant:** a server never waits without a bound, and nothing that arrives on one connection
//! terminates another.

mod activity;
mod admin;
mod admission;
mod calls;
mod columns;
pub mod console;
mod deadline;
mod disks;
mod flow_control;
mod formation;
mod limits;
mod local;
mod log;
mod map;
mod metrics;
pub mod nbd;
mod observer;
mod process;
mod reads;
mod refusal;
mod server;
mod stream;
pub mod zookeeper;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use node::request::{Outcome, Request};

pub use flow_control::Held;
pub use flow_control::replies::Replies;
pub use formation::{Founded, Founding, Genesis, Invitation, Own};
pub use limits::{CONSOLE_CONNECTIONS_MAX, REPLY_BYTES_MAX, REQUEST_BYTES_MAX};
pub use local::LocalNode;
pub use observer::Observer;
pub use server::{ServeError, serve, service};

/// The interface from the servers to the node.
pub trait Gateway: Send + Sync + 'static {
    /// Submits a request that satisfies the limits. The node responds within `deadline`, possibly with an unknown
    /// outcome. Dropping the future discards the response; a read is then abandoned soon, and a write continues. `held`
    /// is dropped once the node has responded, and not before.
    fn submit(&self, request: Request, deadline: Duration, held: Held) -> impl Future<Output = Outcome> + Send;

    /// Submits all requests of one stream message. Each outcome is passed to `replies` with its request's ticket, in
    /// any order; requests that exceed the node's capacity are refused immediately.
    fn submit_all(&self, batch: Vec<Ticketed>, replies: &Arc<Replies>);
}

/// A request of a stream.
#[derive(Debug)]
pub struct Ticketed {
    /// Identifies it among the requests of its stream.
    pub ticket: u64,
    /// The request, which satisfies the limits.
    pub request: Request,
    /// The node responds within this.
    pub deadline: Duration,
    /// Dropped once the request is answered.
    pub held: Held,
}
