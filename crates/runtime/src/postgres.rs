//! The PostgreSQL endpoint: a runtime of its own for all sessions. They reach the data as clients do:
//! at this node without a connection, and at other nodes if they lead a range, or while this one cannot serve them.

use std::io;
use std::net::TcpListener;
use std::sync::Arc;

use base::budget::ByteBudget;
use postgres::Databases;

use super::config::Config;
use super::gateway::MachineGateway;

/// The addresses at which sessions reach the cluster.
pub(crate) fn endpoints(config: &Config) -> Vec<String> {
    let others = config.peers.iter().filter(|peer| peer.node != config.node).map(|peer| &peer.grpc);
    std::iter::once(config.own_addresses().1).chain(others).map(ToString::to_string).collect()
}

pub(crate) fn start(
    listener: TcpListener,
    endpoints: Vec<String>,
    gateway: MachineGateway,
    (memory, connections): (ByteBudget, usize),
) -> io::Result<()> {
    let node = Arc::new(server::LocalNode::new(gateway));
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).thread_name("postgres").enable_all().build()?;
    super::spawn("postgres", move || {
        let ended = runtime.block_on(async {
            let client = sdk::Client::within_node(endpoints, node).map_err(io::Error::other)?;
            if let Ok(address) = listener.local_addr() {
                tracing::info!(%address, "serving PostgreSQL clients");
            }
            postgres::serve(listener, Databases::new(client, memory), connections).await
        });
        if let Err(error) = ended {
            super::die(&format!("PostgreSQL endpoint: {error}"));
        }
    })?;
    Ok(())
}
