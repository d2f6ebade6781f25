//! Options of the benchmarks that measure a running cluster: its addresses, and the processes of its nodes.

use std::path::PathBuf;

use clap::Args;
use terminal::{GRPC, Stop};

use super::servers::Servers;

/// The cluster to measure, and its processes.
#[derive(Clone, Debug, Args)]
pub(crate) struct ClusterArguments {
    /// gRPC addresses of one or more nodes [env: LOGGOS_AT] [default: 127.0.0.1:7201,127.0.0.1:7202,127.0.0.1:7203].
    #[arg(long, value_name = "HOST:PORT,...", value_delimiter = ',')]
    at: Vec<String>,
    /// Offset added to the default ports, as in `loggos dev --port-offset`. Takes precedence over LOGGOS_AT.
    #[arg(long, value_name = "K", conflicts_with = "at")]
    pub(crate) port_offset: Option<u16>,
    /// Data directory of `loggos dev`, which holds the process ids of the servers.
    #[arg(long, value_name = "DIR", conflicts_with = "server_pids")]
    server_data: Option<PathBuf>,
    /// Process ids of the servers, to measure their CPU time and memory.
    #[arg(long, value_name = "PID,...", value_delimiter = ',')]
    server_pids: Vec<u32>,
}

impl ClusterArguments {
    /// The gRPC addresses.
    pub(crate) fn endpoints(&self) -> Result<Vec<String>, Stop> {
        GRPC.endpoints(&self.at, self.port_offset)
    }

    /// The processes of the nodes; none if they are not given.
    pub(crate) fn servers(&self) -> Result<Servers, Stop> {
        Servers::of(&self.server_pids, self.server_data.as_deref())
    }
}
