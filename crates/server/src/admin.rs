//! The admin service: this node's status, and cluster operations.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::admin::roster_node::Standing as RosterStanding;
use api::admin::{
    self as message, AddNodeRequest, DeclareLossRequest, DeclareLossResponse, LeadRangeRequest, LeadRangeResponse,
    ListNodesRequest, MoveRangeRequest, MoveRangeResponse, NodesResponse, RemoveNodeRequest, RemoveNodeResponse,
    SplitRangeRequest, SplitRangeResponse, StatusRequest, StatusResponse,
};
use api::servers::admin_server::Admin;
use base::{CohortId, Durability, HostPort, Incarnation, KeyRange, Lsn, Member, NodeId};
use catalog::{Catalog, CatalogCommand, CatalogRequest, CatalogResponse, NodeDescription, NodeRecord, Standing};
use node::request::{
    AppliedCatalog, ClockStatus, CohortStatus, ConfigurationStatus, Counters, NodeStatus, ReplicaStatus, Request,
    Response, Status as NodeReport, TransactionCounts, VerificationStatus,
};
use state_machine::Failure;
use tonic::Status;

use crate::activity::Rates;
use crate::columns::{ask, unexpected};
use crate::nbd::Attachment;
use crate::zookeeper::Report;
use crate::{Gateway, Observer, map, refusal};

pub(crate) struct Handler<G> {
    gateway: Arc<G>,
    observer: Arc<Observer>,
}

impl<G> Handler<G> {
    pub(crate) fn new(gateway: Arc<G>, observer: Arc<Observer>) -> Self {
        Self { gateway, observer }
    }
}

#[tonic::async_trait]
impl<G: Gateway> Admin for Handler<G> {
    async fn status(&self, call: tonic::Request<StatusRequest>) -> Result<tonic::Response<StatusResponse>, Status> {
        match ask(&*self.gateway, &call, Request::Status).await? {
            Response::Status(report) => {
                let whole_map = call.get_ref().whole_map;
                Ok(tonic::Response::new(node(*report, &self.observer, whole_map)))
            }
            other => Err(unexpected(&other)),
        }
    }

    async fn split_range(
        &self,
        mut call: tonic::Request<SplitRangeRequest>,
    ) -> Result<tonic::Response<SplitRangeResponse>, Status> {
        let SplitRangeRequest { table: name, key } = std::mem::take(call.get_mut());
        match ask(
            &*self.gateway,
            &call,
            Request::Catalog(CatalogRequest::Change(CatalogCommand::BeginSplit { name, key })),
        )
        .await?
        {
            Response::Catalog(CatalogResponse::RangeSplit { cohort }) => {
                Ok(tonic::Response::new(SplitRangeResponse { cohort }))
            }
            other => Err(unexpected(&other)),
        }
    }

    async fn move_range(
        &self,
        call: tonic::Request<MoveRangeRequest>,
    ) -> Result<tonic::Response<MoveRangeResponse>, Status> {
        let MoveRangeRequest { cohort, nodes, force } = call.get_ref();
        let (cohort, nodes) = (CohortId(*cohort), nodes.iter().copied().map(NodeId).collect());
        match ask(
            &*self.gateway,
            &call,
            Request::Catalog(CatalogRequest::Change(CatalogCommand::BeginMove { cohort, nodes, force: *force })),
        )
        .await?
        {
            Response::Catalog(CatalogResponse::MoveBegun) => Ok(tonic::Response::new(MoveRangeResponse {})),
            other => Err(unexpected(&other)),
        }
    }

    async fn lead_range(
        &self,
        call: tonic::Request<LeadRangeRequest>,
    ) -> Result<tonic::Response<LeadRangeResponse>, Status> {
        let LeadRangeRequest { cohort, node } = *call.get_ref();
        let request = Request::Lead { cohort: CohortId(cohort), node: NodeId(node) };
        match ask(&*self.gateway, &call, request).await? {
            Response::PlanDone => Ok(tonic::Response::new(LeadRangeResponse {})),
            other => Err(unexpected(&other)),
        }
    }

    async fn declare_loss(
        &self,
        mut call: tonic::Request<DeclareLossRequest>,
    ) -> Result<tonic::Response<DeclareLossResponse>, Status> {
        let DeclareLossRequest { cohort, node, table } = std::mem::take(call.get_mut());
        let command = CatalogCommand::DeclareLoss { table, cohort: CohortId(cohort), node: NodeId(node) };
        match ask(&*self.gateway, &call, Request::Catalog(CatalogRequest::Change(command))).await? {
            Response::Catalog(CatalogResponse::MoveBegun) => Ok(tonic::Response::new(DeclareLossResponse {})),
            other => Err(unexpected(&other)),
        }
    }

    async fn add_node(
        &self,
        mut call: tonic::Request<AddNodeRequest>,
    ) -> Result<tonic::Response<NodesResponse>, Status> {
        let AddNodeRequest { node, incarnation, peer, grpc } = std::mem::take(call.get_mut());
        let member = Member { node: NodeId(node), incarnation: Incarnation(incarnation) };
        for address in [&peer, &grpc] {
            check_address(address).map_err(|failure| refusal::status(&failure))?;
        }
        let node = NodeRecord { member, peer, grpc, standing: Standing::Stays };
        roster(
            ask(&*self.gateway, &call, Request::Catalog(CatalogRequest::Change(CatalogCommand::AddNode { node })))
                .await?,
        )
    }

    async fn remove_node(
        &self,
        call: tonic::Request<RemoveNodeRequest>,
    ) -> Result<tonic::Response<RemoveNodeResponse>, Status> {
        let node = NodeId(call.get_ref().node);
        match ask(&*self.gateway, &call, Request::Catalog(CatalogRequest::Change(CatalogCommand::BeginLeave { node })))
            .await?
        {
            Response::Catalog(CatalogResponse::LeaveBegun) => Ok(tonic::Response::new(RemoveNodeResponse {})),
            other => Err(unexpected(&other)),
        }
    }

    async fn list_nodes(
        &self,
        call: tonic::Request<ListNodesRequest>,
    ) -> Result<tonic::Response<NodesResponse>, Status> {
        roster(ask(&*self.gateway, &call, Request::Catalog(CatalogRequest::ListNodes)).await?)
    }
}

/// Checks that the address may be reachable from other nodes.
fn check_address(address: &str) -> Result<(), Failure> {
    match address.parse::<HostPort>() {
        Ok(known) if known.is_specific() => Ok(()),
        Ok(_) => Err(Failure::Invalid(format!(
            "{address:?} is not an address that other nodes can reach; set `advertise` in the node's configuration"
        ))),
        Err(error) => Err(Failure::Invalid(error.to_string())),
    }
}

fn roster(response: Response) -> Result<tonic::Response<NodesResponse>, Status> {
    match response {
        Response::Catalog(CatalogResponse::Nodes(nodes)) => {
            Ok(tonic::Response::new(NodesResponse { nodes: nodes.into_iter().map(roster_node).collect() }))
        }
        other => Err(unexpected(&other)),
    }
}

fn roster_node(NodeDescription { record, ranges }: NodeDescription) -> message::RosterNode {
    let NodeRecord { member: Member { node, incarnation }, peer, grpc, standing } = record;
    let standing = match standing {
        Standing::Stays => RosterStanding::Stays,
        Standing::Leaving => RosterStanding::Leaving,
        Standing::Left => RosterStanding::Left,
    };
    message::RosterNode { node: node.0, incarnation: incarnation.0, peer, grpc, standing: standing.into(), ranges }
}

fn node(report: NodeReport, observer: &Observer, whole_map: bool) -> StatusResponse {
    let NodeReport {
        node,
        incarnation,
        boot,
        clock,
        nodes,
        cohorts,
        catalog: AppliedCatalog(catalog),
        counters,
        transactions,
        members_removed: _,
        verification,
        troubles,
        cluster_troubles,
        cluster_failures,
    } = report;
    let led = cohorts.iter().filter(|cohort| cohort.leader == Some(node));
    let prepared = led.map(|cohort| cohort.prepared as u64).sum();
    let nodes = nodes
        .into_iter()
        .map(|status| {
            let NodeStatus { node, incarnation, alive, leaving, rolled_back, grpc } = status;
            message::Node { node, incarnation, alive, grpc, leaving, rolled_back }
        })
        .collect();
    let mut cohorts: Vec<message::Cohort> = cohorts.into_iter().map(|status| cohort(status, observer)).collect();
    if whole_map {
        add_map(&mut cohorts, &catalog);
    }
    let (logs, drops) = if whole_map { (map::logs(&catalog), map::drops(&catalog)) } else { Default::default() };
    StatusResponse {
        node,
        incarnation,
        boot,
        nodes,
        cohorts,
        logs,
        drops,
        http: observer.console.clone(),
        activity: Some(observer.activity.message()),
        troubles,
        cluster_troubles,
        cluster_failures,
        zookeeper: observer.zookeeper.as_ref().and_then(|endpoint| endpoint.report()).as_deref().map(zookeeper),
        catalog_lsn: Some(lsn(catalog.last_applied())),
        clock: Some(wall_clock(clock)),
        disk_attachments: observer.nbd.attachments().iter().map(attachment).collect(),
        transactions: Some(transaction_counts(transactions, prepared)),
        verification: verification.map(|status| verification_message(status, &counters)),
    }
}

fn transaction_counts(counts: TransactionCounts, prepared: u64) -> message::Transactions {
    let TransactionCounts {
        committed,
        aborted_by_conflict,
        aborted_by_priority,
        aborted,
        refused,
        unknown,
        lock_waits,
    } = counts;
    let aborted = aborted_by_conflict + aborted_by_priority + aborted + refused + unknown;
    message::Transactions { committed, aborted, lock_waits, prepared }
}

fn verification_message(status: VerificationStatus, counters: &Counters) -> message::Verification {
    let VerificationStatus { cohort, block, completed } = status;
    let completed_ns = completed.map(|completed| completed.0);
    let (damaged, mended) = (counters.blocks_damaged, counters.blocks_mended);
    message::Verification { cohort, block, completed_ns, damaged, mended }
}

/// Adds the map to the cohorts of the node.
fn add_map(cohorts: &mut Vec<message::Cohort>, catalog: &Catalog) {
    let hosted: BTreeMap<u32, usize> = cohorts.iter().enumerate().map(|(at, cohort)| (cohort.cohort, at)).collect();
    for row in map::rows(catalog) {
        let at = hosted.get(&row.cohort).copied().unwrap_or_else(|| {
            let KeyRange { start, end } = row.range;
            let (table, log) = (row.table.to_owned(), row.log.map(str::to_owned));
            let in_memory = row.durability == Durability::Memory;
            let cohort = row.cohort;
            cohorts.push(message::Cohort { cohort, table, log, start, end, in_memory, ..message::Cohort::default() });
            cohorts.len() - 1
        });
        cohorts[at].planned_nodes = row.nodes;
        cohorts[at].replica_count = row.replicas;
        cohorts[at].moving = row.leaving.is_some();
        cohorts[at].leaving_nodes = row.leaving.unwrap_or_default();
    }
}

fn wall_clock(status: ClockStatus) -> message::Clock {
    let ClockStatus { source, uncertainty, is_outlier, refusal } = status;
    let uncertainty_ns = uncertainty.map(|uncertainty| uncertainty.0);
    message::Clock { source: source.name().to_owned(), uncertainty_ns, outlier: is_outlier, refusal }
}

fn attachment(attachment: &Attachment) -> message::DiskAttachment {
    let Attachment { disk, client, holder, since } = attachment;
    let holder = holder.clone().unwrap_or_default();
    message::DiskAttachment { disk: disk.clone(), client: client.to_string(), holder, since_ns: since.0 }
}

fn zookeeper(report: &Report) -> message::ZooKeeper {
    message::ZooKeeper {
        mode: report.mode.to_owned(),
        sessions: report.sessions,
        znodes: report.znodes,
        watches: report.watches,
        connections: report.connections,
        outstanding_requests: report.outstanding_requests,
        mean_latency_ms: report.mean_latency_ms,
        playback_lag: report.lag.positions,
        playback_lag_seconds: report.lag.seconds,
    }
}

fn cohort(status: CohortStatus, observer: &Observer) -> message::Cohort {
    let CohortStatus { cohort, table, log, range, leader, epoch, replicas, .. } = status;
    let CohortStatus { durability, losses, configuration, bytes, .. } = status;
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
        log,
        planned_nodes: Vec::new(),
        replica_count: 0,
        moving: false,
        leaving_nodes: Vec::new(),
        configuration: configuration.map(configuration_message),
        bytes,
    }
}

fn configuration_message(status: ConfigurationStatus) -> message::CohortConfiguration {
    let ConfigurationStatus { version, primary, members, candidates, is_stranded: stranded } = status;
    message::CohortConfiguration { version, primary, members, candidates, stranded }
}

fn replica(status: &ReplicaStatus) -> message::Replica {
    let ReplicaStatus { node, last_lsn, committed_lsn, doubtful } = *status;
    message::Replica { node, last_lsn: Some(lsn(last_lsn)), committed_lsn: Some(lsn(committed_lsn)), doubtful }
}

fn lsn(lsn: Lsn) -> message::Lsn {
    message::Lsn { epoch: lsn.epoch.0, sequence: lsn.sequence.0 }
}
