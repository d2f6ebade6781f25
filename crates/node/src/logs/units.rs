//! Log units: what they are asked, and how they begin.

use base::{CohortId, Duration, Now};
use bytes::Bytes;
use catalog::cohort_of;
use sharedlog::log_unit::Answer;
use sharedlog::unit::{Command, Reply, Request};
use sharedlog::{Position, Projection, ProjectionEpoch, UnitId};

use crate::message::Query;
use crate::node::Node;
use crate::pending::{PendingId, Place};
use crate::reads::Grounds;
use crate::registry::{AnyMachine, Ask, Read, Response};
use crate::request::Outcome;

impl Node {
    /// A unit here is asked, and our log is its log. It answers from what is applied, once all is that the log held
    /// when this process began.
    pub(crate) fn unit_asked(&mut self, id: PendingId, cohort: CohortId, now: Now) {
        let Some(replica) = self.replicas.get(&cohort) else { return };
        let Some(pending) = self.pendings.get(id) else { return };
        let (AnyMachine::Unit(unit), Query::Machine(Ask::Unit(request))) = (&replica.state, &pending.query) else {
            return;
        };
        if !replica.cohort.is_open() {
            return self.pendings.place(id, Place::Waiting);
        }
        if let Request::Command(Command::Damaged { .. }) = request {
            // A node says that of its own units alone.
            return self.unit_replies(id, Reply::Unknown);
        }
        let wait = request.wait();
        let needs_room = matches!(request, Request::Command(Command::Write { .. } | Command::CopyMany { .. }));
        match unit.meet(request.clone()) {
            Answer::Reply(reply) if wait > Duration::ZERO && reply.each() == [Reply::Unwritten] => {
                let Some(position) = request.positions().first().copied() else { return };
                self.await_position(id, cohort, position, now.monotonic + wait);
            }
            Answer::Reply(reply) => self.unit_replies(id, reply),
            Answer::Lookup(lookup) => self.evaluate(id, cohort, Read::Unit(lookup), Grounds::Unit, now),
            Answer::Log(payload) => {
                if !needs_room || !self.held_up(id, cohort, now) {
                    self.propose_for(id, cohort, payload, None, now);
                }
            }
        }
    }

    /// What lies at a position was looked up. What can't be read is noted in the unit's own log: the other units of the
    /// chain have it, and whoever finds that out puts it back.
    pub(crate) fn looked_up_in(&mut self, id: PendingId, cohort: CohortId, outcome: Outcome, now: Now) {
        let replies = if let Ok(Response::Unit(reply)) = &outcome { reply.each() } else { &[] };
        if replies.contains(&Reply::Damaged)
            && let Some(Query::Machine(Ask::Unit(request))) = self.pendings.get(id).map(|pending| &pending.query)
            && let Some(replica) = self.replicas.get_mut(&cohort)
        {
            let each = request.positions().into_iter().zip(replies);
            let is_noted = |position| replica.state.as_unit().is_some_and(|unit| unit.knows_damaged(position));
            let news: Vec<Position> =
                each.filter(|(at, reply)| **reply == Reply::Damaged && !is_noted(*at)).map(|(at, _)| at).collect();
            for position in news {
                let noted = Command::Damaged { position }.encode();
                replica.cohort.propose(noted, now, &mut self.outgoing.outbox);
            }
            self.drain(cohort, now);
        }
        self.complete(id, outcome, None);
    }

    pub(crate) fn unit_replies(&mut self, id: PendingId, reply: Reply) {
        self.complete(id, Ok(Response::Unit(Box::new(reply))), None);
    }

    /// The first units of a log begin with it, in the epoch before its first projection. Others have begun.
    pub(crate) fn found_unit(&mut self, id: CohortId, now: Now) {
        let Some(replica) = self.replicas.get(&id).filter(|replica| replica.cohort.is_open()) else { return };
        let Some(unit) = replica.state.as_unit() else { return };
        if !unit.is_blank() {
            // While it wasn't open it may have been given stripes.
            self.logs.changed = true;
            return;
        }
        let Some(payload) = self.beginning_of(UnitId(u64::from(id.0))) else { return };
        if let Some(replica) = self.replicas.get_mut(&id) {
            replica.cohort.propose(payload, now, &mut self.outgoing.outbox);
        }
    }

    /// Has the units of this node know the stripes that the newest projections give them. A position that lies in none
    /// which a unit was told of takes memory by itself.
    pub(super) fn tell_own_units(&mut self, now: Now) {
        let Some(catalogue) = self.catalogue() else { return };
        let mut news: Vec<(CohortId, Bytes)> = Vec::new();
        for (_, log) in catalogue.logs() {
            for (unit, _) in log.units.iter().filter(|(_, member)| *member == self.cluster.me) {
                let replica = cohort_of(*unit).and_then(|cohort| Some((cohort, self.replicas.get(&cohort)?)));
                let Some((cohort, replica)) = replica.filter(|(_, replica)| replica.cohort.is_open()) else { continue };
                let Some(state) = replica.state.as_unit().filter(|state| !state.is_blank()) else { continue };
                let mut stripes = log.projection.stripes_of(*unit);
                stripes.retain(|stripe| state.told().all(|told| told != *stripe));
                if !stripes.is_empty() {
                    news.push((cohort, Command::Tell { stripes }.encode()));
                }
            }
        }
        for (cohort, payload) in news {
            if let Some(replica) = self.replicas.get_mut(&cohort) {
                replica.cohort.propose(payload, now, &mut self.outgoing.outbox);
            }
            self.drain(cohort, now);
        }
    }

    /// What a unit begins with that the log's first projection names; none if it is one that recoveries begin.
    fn beginning_of(&self, unit: UnitId) -> Option<Bytes> {
        let mut logs = self.catalogue()?.logs().map(|(_, log)| &log.projection);
        let is_its = |projection: &&Projection| projection.units().contains(&unit);
        let projection = logs.find(is_its).filter(|projection| projection.epoch == ProjectionEpoch(1))?;
        let extent = projection.last();
        let own = extent.chains.iter().enumerate().filter(|(_, chain)| chain.contains(&unit));
        let stripes = own.map(|(index, _)| extent.stripe(index)).collect();
        let (log, epoch, trimmed) = (projection.log, ProjectionEpoch(0), Position(0));
        Some(Command::Begin { disk: self.cluster.me.incarnation, log, epoch, trimmed, stripes }.encode())
    }
}
