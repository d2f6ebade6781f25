//! The admin service: how this very node is, and what an operator has the universe do.

use std::sync::Arc;

use api::admin::{
    self as message, MoveRangeRequest, MoveRangeResponse, SplitRangeRequest, SplitRangeResponse, StatusRequest,
    StatusResponse,
};
use api::servers::admin_server::Admin;
use base::{CohortId, Durability, Lsn, NodeId};
use tablets::request::{CohortStatus, NodeStatus, ReplicaStatus, Request, Response, Status as NodeReport};
use tonic::Status;

use crate::activity::Rates;
use crate::columns::{ask, unexpected};
use crate::{Gateway, Observer};

pub(crate) struct Door<G> {
    gateway: Arc<G>,
    observer: Arc<Observer>,
}

impl<G> Door<G> {
    pub(crate) fn new(gateway: Arc<G>, observer: Arc<Observer>) -> Self {
        Self { gateway, observer }
    }
}

#[tonic::async_trait]
impl<G: Gateway> Admin for Door<G> {
    async fn status(&self, call: tonic::Request<StatusRequest>) -> Result<tonic::Response<StatusResponse>, Status> {
        match ask(&*self.gateway, &call, Request::Status).await? {
            Response::Status(report) => Ok(tonic::Response::new(node(*report, &self.observer))),
            other => Err(unexpected(&other)),
        }
    }

    async fn split_range(
        &self,
        mut call: tonic::Request<SplitRangeRequest>,
    ) -> Result<tonic::Response<SplitRangeResponse>, Status> {
        let SplitRangeRequest { table: name, key } = std::mem::take(call.get_mut());
        match ask(&*self.gateway, &call, Request::SplitRange { name, key }).await? {
            Response::RangeSplit { cohort } => Ok(tonic::Response::new(SplitRangeResponse { cohort })),
            other => Err(unexpected(&other)),
        }
    }

    async fn move_range(
        &self,
        call: tonic::Request<MoveRangeRequest>,
    ) -> Result<tonic::Response<MoveRangeResponse>, Status> {
        let MoveRangeRequest { cohort, nodes } = call.get_ref();
        let nodes = nodes.iter().copied().map(NodeId).collect();
        match ask(&*self.gateway, &call, Request::MoveRange { cohort: CohortId(*cohort), nodes }).await? {
            Response::MoveBegun => Ok(tonic::Response::new(MoveRangeResponse {})),
            other => Err(unexpected(&other)),
        }
    }
}

fn node(report: NodeReport, observer: &Observer) -> StatusResponse {
    let NodeReport { node, incarnation, boot, nodes, cohorts, counters: _ } = report;
    let nodes = nodes
        .into_iter()
        .map(|NodeStatus { node, incarnation, alive, grpc }| message::Node { node, incarnation, alive, grpc })
        .collect();
    StatusResponse {
        node,
        incarnation,
        boot,
        nodes,
        cohorts: cohorts.into_iter().map(|status| cohort(status, observer)).collect(),
        http: observer.console.clone(),
        activity: Some(observer.activity.message()),
    }
}

fn cohort(status: CohortStatus, observer: &Observer) -> message::Cohort {
    let CohortStatus { cohort, table, range, leader, epoch, replicas, durability, losses, .. } = status;
    let in_memory = durability == Durability::Memory;
    let Rates { writes_per_second, reads_per_second } = observer.activity.of_cohort(cohort);
    let replicas = replicas.iter().map(replica).collect();
    let (start, end) = (range.start, range.end);
    message::Cohort {
        cohort,
        table,
        leader,
        epoch,
        replicas,
        writes_per_second,
        reads_per_second,
        start,
        end,
        in_memory,
        losses,
    }
}

fn replica(status: &ReplicaStatus) -> message::Replica {
    let ReplicaStatus { node, last_lsn, committed_lsn, doubtful } = *status;
    message::Replica { node, last_lsn: Some(lsn(last_lsn)), committed_lsn: Some(lsn(committed_lsn)), doubtful }
}

fn lsn(lsn: Lsn) -> message::Lsn {
    message::Lsn { epoch: lsn.epoch.0, sequence: lsn.sequence.0 }
}
