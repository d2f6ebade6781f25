//! The endpoints of a process: they serve reads from the state that the machine has published, on threads of their own.
//! So they continue while the machine's thread is paused and for a while after it has stopped, and they may pause
//! between the steps of a read.

use std::collections::BTreeMap;
use std::sync::Arc;

use base::{CohortId, Monotonic, NodeId};
use node::contract::RequestId;
use node::request::Request;
use node::{LocalRead, ReadView, Views};
use state_machine::Failure;

use super::events::{Generation, Happening};
use super::{MILLISECOND, TrueTime, World};

/// How long endpoints stay open after the machine has stopped cleanly.
const OPEN_AFTER_STOP: TrueTime = 500 * MILLISECOND;

/// The state that a process has published.
#[derive(Clone, Debug, Default)]
pub(crate) struct Published {
    views: BTreeMap<CohortId, Arc<ReadView>>,
    /// Set when the machine has stopped: when the endpoints close.
    pub(super) closing: Option<TrueTime>,
}

impl Views for Published {
    fn view(&self, cohort: CohortId) -> Option<Arc<ReadView>> {
        self.views.get(&cohort).cloned()
    }
}

impl Published {
    pub(super) fn publish(&mut self, cohort: CohortId, view: Option<Arc<ReadView>>) {
        match view {
            Some(view) => self.views.insert(cohort, view),
            None => self.views.remove(&cohort),
        };
    }
}

/// A read that an endpoint has begun.
pub(crate) struct PendingLocalRead {
    pub(super) id: RequestId,
    read: Box<LocalRead>,
    /// For the machine, if the endpoint cannot answer.
    deadline: Monotonic,
    request: Box<Request>,
}

impl World {
    /// The endpoints of a node begin a request if they can answer it, and otherwise pass it to the machine.
    pub(super) fn at_endpoint(&mut self, node: NodeId, id: RequestId, deadline: Monotonic, request: Box<Request>) {
        let Some(machine) = self.hosts.get(&node) else { return };
        let generation = machine.generation;
        let Some(read) = LocalRead::begin(&machine.published, &request) else {
            if machine.process.is_none() {
                return self.has_stopped(id);
            }
            return self.happen(Happening::Request { node, generation, id, deadline, request, is_at_endpoint: false });
        };
        let reading = Box::new(PendingLocalRead { id, read: Box::new(read), deadline, request });
        let longest = match self.random.below(8) {
            _ if self.healed => 0,
            0 => 1_000 * MILLISECOND,
            1 | 2 => 5 * MILLISECOND,
            _ => 0,
        };
        if longest == 0 {
            self.local_read_ends(node, *reading);
        } else {
            self.count("stalled local reads");
            let at = self.now + self.random.below(longest);
            self.queue.put(at, Happening::LocalRead { node, generation, reading });
        }
    }

    fn has_stopped(&mut self, id: RequestId) {
        self.request_answered(id, Err(Failure::Unavailable("the node has stopped".to_owned())));
    }

    /// An endpoint evaluates a read and either completes it or passes it to the machine.
    pub(super) fn local_read_ends(&mut self, node: NodeId, reading: PendingLocalRead) {
        let Some(machine) = self.hosts.get(&node) else { return };
        let PendingLocalRead { id, read, deadline, request } = reading;
        let (now, generation) = (machine.clocks.monotonic(self.now), machine.generation);
        let is_closed = machine.process.is_none() && !self.has_open_endpoint(node);
        let said =
            read.evaluate().filter(|_| !is_closed).and_then(|outcome| read.finish(outcome, &machine.published, now));
        if let Some(outcome) = said {
            self.count("local reads");
            return self.request_answered(id, outcome);
        }
        self.count("local reads passed to the machine");
        if self.process(node).is_none() {
            return self.has_stopped(id);
        }
        self.happen(Happening::Request { node, generation, id, deadline, request, is_at_endpoint: false });
    }

    /// Whether a node's endpoints are open although its machine has stopped.
    pub(super) fn has_open_endpoint(&self, node: NodeId) -> bool {
        let closing = self.hosts.get(&node).and_then(|machine| machine.published.closing);
        closing.is_some_and(|closing| self.now < closing)
    }

    /// The machine has stopped cleanly; the endpoints close a little later.
    pub(super) fn endpoint_closes(&mut self, node: NodeId, published: Published) {
        let at = self.now + OPEN_AFTER_STOP;
        let Some(machine) = self.hosts.get_mut(&node) else { return };
        machine.published = Published { closing: Some(at), ..published };
        let generation = machine.generation;
        self.queue.put(at, Happening::EndpointClosed { node, generation });
    }

    /// Closes the endpoints and their connections, if they are still open.
    pub(super) fn endpoint_closed(&mut self, node: NodeId, generation: Generation) {
        let Some(machine) = self.hosts.get_mut(&node) else { return };
        if machine.generation == generation && machine.published.closing.is_some() {
            machine.published = Published::default();
            self.clients_lose(node);
        }
    }
}
