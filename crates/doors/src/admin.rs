//! The admin service: how this very node is.

use std::sync::Arc;

use api::admin::{self as message, StatusRequest, StatusResponse};
use api::servers::admin_server::Admin;
use base::Lsn;
use tablets::request::{CohortStatus, NodeStatus, ReplicaStatus, Request, Response, Status as NodeReport};
use tonic::Status;

use crate::Gateway;
use crate::columns::{ask, unexpected};

pub(crate) struct Door<G> {
    gateway: Arc<G>,
}

impl<G> Door<G> {
    pub(crate) fn new(gateway: Arc<G>) -> Self {
        Self { gateway }
    }
}

#[tonic::async_trait]
impl<G: Gateway> Admin for Door<G> {
    async fn status(&self, call: tonic::Request<StatusRequest>) -> Result<tonic::Response<StatusResponse>, Status> {
        match ask(&*self.gateway, &call, Request::Status).await? {
            Response::Status(report) => Ok(tonic::Response::new(node(report))),
            other => Err(unexpected(&other)),
        }
    }
}

fn node(report: NodeReport) -> StatusResponse {
    let NodeReport { node, incarnation, boot, nodes, cohorts } = report;
    let nodes = nodes
        .into_iter()
        .map(|NodeStatus { node, incarnation, alive, grpc }| message::Node { node, incarnation, alive, grpc })
        .collect();
    StatusResponse { node, incarnation, boot, nodes, cohorts: cohorts.into_iter().map(cohort).collect() }
}

fn cohort(status: CohortStatus) -> message::Cohort {
    let CohortStatus { cohort, table, leader, epoch, replicas } = status;
    message::Cohort { cohort, table, leader, epoch, replicas: replicas.iter().map(replica).collect() }
}

fn replica(status: &ReplicaStatus) -> message::Replica {
    let ReplicaStatus { node, last_lsn, committed_lsn, doubtful } = *status;
    message::Replica { node, last_lsn: Some(lsn(last_lsn)), committed_lsn: Some(lsn(committed_lsn)), doubtful }
}

fn lsn(lsn: Lsn) -> message::Lsn {
    message::Lsn { epoch: lsn.epoch.0, sequence: lsn.sequence.0 }
}
