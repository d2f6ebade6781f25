//! The client's API for the cluster: its tables, nodes and status.

use std::sync::Arc;
use std::time::Duration;

use api::admin::admin_client::AdminClient;
use api::admin::{
    AddNodeRequest, DeclareLossRequest, LeadRangeRequest, ListNodesRequest, MoveRangeRequest, RemoveNodeRequest,
    RosterNode, StatusRequest, StatusResponse,
};
use base::limits::DEADLINE_DEFAULT;
use client::Fault;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::call::ANSWER_BYTES_MAX;
use crate::driver::Driver;
use crate::endpoints::Endpoints;
use crate::logs::Stamps;
use crate::request::{ApiRequest, ApiResponse};
use crate::{Error, Version, fault};

/// Timeout of a node's status.
const STATUS_TIME_MAX: Duration = Duration::from_secs(2);

/// A client of one cluster. Clones share its connections and sessions.
#[derive(Clone, Debug)]
pub struct Client {
    pub(crate) driver: Arc<Driver>,
    pub(crate) deadline: Duration,
    pub(crate) stamps: Arc<Stamps>,
}

impl Client {
    /// A client with these endpoints, each `HOST:PORT`. Connections are opened on first use. Any node serves any
    /// request, so one endpoint is sufficient; more endpoints allow failover.
    ///
    /// # Errors
    /// [`Error::Invalid`] if an endpoint is not a valid address, or if there is none.
    pub fn connect<S: AsRef<str>>(endpoints: impl IntoIterator<Item = S>) -> Result<Self, Error> {
        Self::new(endpoints, false, None)
    }

    /// A client for programs with many concurrent calls. Calls share a stream for each node and are sent in batches,
    /// which takes a fraction of the CPU time of single calls. Large or infrequent requests are still sent as single
    /// calls.
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub fn streaming<S: AsRef<str>>(endpoints: impl IntoIterator<Item = S>) -> Result<Self, Error> {
        Self::new(endpoints, true, None)
    }

    /// A client within the process of a node, which is the first endpoint: requests to it need no connection. Otherwise
    /// as [`Client::streaming`].
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub fn within_node<S: AsRef<str>>(
        endpoints: impl IntoIterator<Item = S>,
        node: Arc<dyn api::local::Columns>,
    ) -> Result<Self, Error> {
        Self::new(endpoints, true, Some(node))
    }

    fn new<S: AsRef<str>>(
        endpoints: impl IntoIterator<Item = S>,
        streams: bool,
        local_node: Option<Arc<dyn api::local::Columns>>,
    ) -> Result<Self, Error> {
        let driver = Driver::new(Endpoints::parse(endpoints)?, streams, local_node);
        Ok(Self { driver, deadline: Duration::from_nanos(DEADLINE_DEFAULT.0), stamps: Arc::default() })
    }

    /// Sets the deadline of each call.
    #[must_use]
    pub fn with_deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Begins to move the replicas of a range to these nodes, while it is read and written. The move continues in the
    /// background; [`Table::describe`](crate::Table::describe) shows whether it is in progress. With `force`, the range
    /// may lose replicas although it then has fewer than its table should have.
    ///
    /// # Errors
    /// [`Error::Precondition`] if the cohort or a node does not exist, or if only `force` allows the move.
    pub async fn move_range(&self, cohort: u32, nodes: &[u32], force: bool) -> Result<(), Error> {
        let request = MoveRangeRequest { cohort, nodes: nodes.to_vec(), force };
        match self.ask(ApiRequest::MoveRange(request)).await? {
            ApiResponse::MoveBegun => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    /// Hands the leadership of a range over to another node with a replica of it. Requests wait for milliseconds meanwhile.
    ///
    /// # Errors
    /// [`Error::Precondition`] if the node has no replica of the range that votes, [`Error::Unavailable`] if it cannot take
    /// over in time.
    pub async fn lead_range(&self, cohort: u32, node: u32) -> Result<(), Error> {
        match self.ask(ApiRequest::LeadRange(LeadRangeRequest { cohort, node })).await? {
            ApiResponse::Leads => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    /// Continues a range with [primary/backup replication](crate::Replication::PrimaryBackup) with the replica of one
    /// node alone, after its other members are lost for good. Acknowledged writes that only they hold are lost.
    ///
    /// # Errors
    /// [`Error::Precondition`] if the cohort is not a range of this table, or the node has no replica of it.
    pub async fn declare_loss(&self, table: &str, cohort: u32, node: u32) -> Result<(), Error> {
        let request = DeclareLossRequest { cohort, node, table: table.to_owned() };
        match self.ask(ApiRequest::DeclareLoss(request)).await? {
            ApiResponse::MoveBegun => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    /// Adds a node with a blank disk to the cluster's roster, and returns all nodes that ever existed. Idempotent. The
    /// disk must be formatted next: [`crate::formation::join`] does both.
    ///
    /// # Errors
    /// [`Error::Exists`] if the number or an address is taken, or the node has left.
    pub(crate) async fn add_node(&self, node: AddNodeRequest) -> Result<Vec<RosterNode>, Error> {
        match self.ask(ApiRequest::AddNode(node)).await? {
            ApiResponse::Nodes(answer) => Ok(answer.nodes),
            other => Err(unexpected(&other)),
        }
    }

    /// Begins to remove a node, whether it is alive or not. The removal continues in the background; [`Client::nodes`]
    /// shows when the node has left.
    ///
    /// # Errors
    /// [`Error::Precondition`] if the node does not exist, or too few nodes would remain.
    pub async fn remove_node(&self, node: u32) -> Result<(), Error> {
        match self.ask(ApiRequest::RemoveNode(RemoveNodeRequest { node })).await? {
            ApiResponse::LeaveBegun => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    /// Lists all nodes that ever existed, in order of node number.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn nodes(&self) -> Result<Vec<RosterNode>, Error> {
        match self.ask(ApiRequest::ListNodes(ListNodesRequest {})).await? {
            ApiResponse::Nodes(answer) => Ok(answer.nodes),
            other => Err(unexpected(&other)),
        }
    }

    /// Lists the names of the tables, sorted.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn list_tables(&self) -> Result<Vec<String>, Error> {
        match self.ask(ApiRequest::ListTables).await? {
            ApiResponse::Tables(answer) => Ok(answer.tables),
            other => Err(unexpected(&other)),
        }
    }

    /// The status of the cluster, according to the first node that responds.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn status(&self) -> Result<StatusResponse, Error> {
        match self.ask(ApiRequest::Status(StatusRequest::default())).await? {
            ApiResponse::Status(status) => Ok(*status),
            other => Err(unexpected(&other)),
        }
    }

    /// The status of each endpoint's node, in order of endpoint.
    pub async fn status_of_each(&self) -> Vec<Result<StatusResponse, Error>> {
        self.look_at_each(StatusRequest::default()).await
    }

    /// The same, each with all ranges and log units of the cluster.
    pub async fn status_of_each_with_map(&self) -> Vec<Result<StatusResponse, Error>> {
        self.look_at_each(StatusRequest { whole_map: true }).await
    }

    async fn look_at_each(&self, request: StatusRequest) -> Vec<Result<StatusResponse, Error>> {
        let mut asking = JoinSet::new();
        for endpoint in 0..self.driver.endpoints.count() {
            let client = self.clone();
            asking.spawn(
                async move { (endpoint, client.status_of(endpoint, request).await.map_err(Error::Unavailable)) },
            );
        }
        let mut all = asking.join_all().await;
        all.sort_by_key(|(endpoint, _)| *endpoint);
        all.into_iter().map(|(_, status)| status).collect()
    }

    async fn status_of(&self, endpoint: usize, request: StatusRequest) -> Result<StatusResponse, String> {
        let connection = self.driver.endpoints.connection(endpoint).await?;
        let mut request = tonic::Request::new(request);
        let time = self.deadline.min(STATUS_TIME_MAX);
        request.set_timeout(time);
        let mut client = AdminClient::new(connection.channel.clone()).max_decoding_message_size(ANSWER_BYTES_MAX);
        let result = match timeout(time, client.status(request)).await {
            Ok(answer) => {
                let result = answer.map_err(|status| fault::of(&status));
                self.driver.endpoints.judged(endpoint, result).map_err(Fault::reason)
            }
            Err(_) => Err(format!("timed out after {time:?}")),
        };
        if result.is_err() {
            self.driver.endpoints.drop_connection(&connection).await;
        }
        result.map(tonic::Response::into_inner)
    }

    /// A write with a stamp, which is executed at most once.
    pub(crate) async fn once(&self, request: ApiRequest) -> Result<Version, Error> {
        match self.ask(request).await? {
            ApiResponse::Written(answer) => Ok(Version::from_nanos(answer.version)),
            other => Err(Error::OutcomeUnknown(format!("unexpected response: {other:?}"))),
        }
    }

    pub(crate) async fn ask(&self, request: ApiRequest) -> Result<ApiResponse, Error> {
        self.driver.call(request, self.deadline).await.outcome
    }
}

/// The error for a response that does not match the request.
pub(crate) fn unexpected(response: &ApiResponse) -> Error {
    Error::Unavailable(format!("unexpected response: {response:?}"))
}
