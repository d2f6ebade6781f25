//! `loggos zk serve --at HOST:PORT,...`: a translation server without a node and without a disk (ZooKeeper-SL, section
//! 4, "Disk-less operation").
//!
//! The same thread as in a node serves ZooKeeper clients from a tree in memory. It accesses the log through the nodes'
//! gRPC endpoints. All state is soft: such servers can be started and stopped at any time, and when one stops, its
//! sessions move to another server.

use std::io::{self, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::ExitCode;

use endpoints::listener;
use endpoints::zookeeper::{self, RemoteTransport};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::config::{Config, Tuning, ZooKeeper};
use super::start::zookeeper_settings;
use super::start_error::StartError;
use super::{descriptors, say};

/// The default listen address: any free port on loopback.
const ANY_PORT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// Serves ZooKeeper clients from the log of the cluster of `nodes` until it is stopped.
pub(crate) fn run(
    nodes: &[String],
    listen: Option<SocketAddr>,
    insecure_plaintext: bool,
    zookeeper: &ZooKeeper,
) -> ExitCode {
    match serve(nodes, listen.unwrap_or(ANY_PORT), insecure_plaintext, zookeeper) {
        Ok(()) => {
            tracing::info!("stopped");
            ExitCode::SUCCESS
        }
        Err(error) => {
            say(&error.to_string());
            ExitCode::from(error.exit_status())
        }
    }
}

/// Why a translation server can't be started.
#[derive(Debug, thiserror::Error)]
enum ServeError {
    #[error("--at: {0}")]
    Nodes(sdk::Error),
    #[error("{0}")]
    Start(#[from] StartError),
}

impl ServeError {
    fn exit_status(&self) -> u8 {
        match self {
            Self::Nodes(_) => 2,
            Self::Start(error) => error.exit_status(),
        }
    }
}

fn serve(nodes: &[String], listen: SocketAddr, insecure_plaintext: bool, config: &ZooKeeper) -> Result<(), ServeError> {
    let client = sdk::Client::connect(nodes).map_err(ServeError::Nodes)?;
    Config::check_listen("--listen", &listen.into(), insecure_plaintext).map_err(StartError::Config)?;
    config.check().map_err(StartError::Config)?;
    // Before the thread starts, so that no signal is missed.
    let mut signals = Signals::new([SIGTERM, SIGINT]).map_err(StartError::Io)?;
    descriptors::raise();
    let failed = |error| StartError::Listen { what: "ZooKeeper clients", address: listen.into(), error };
    let socket = listener::bind(listen).map_err(failed)?;
    let address = listener::address(&socket).map_err(failed)?;
    let settings = zookeeper_settings(config, None, address, &Tuning::default().client_budgets());
    tracing::info!(%address, nodes = nodes.join(","), "reading the coordination log");
    let connect = |completions| RemoteTransport::start(client, completions);
    zookeeper::start(socket, settings, connect, move || ready(address)).map_err(StartError::Io)?;
    // Disconnected clients continue their sessions at another server.
    signals.forever().next();
    Ok(())
}

/// Prints the address once clients can connect.
pub(super) fn ready(address: SocketAddr) {
    let mut out = io::stdout().lock();
    // Standard output may be closed.
    let _ = writeln!(out, "ready {address}").and_then(|()| out.flush());
}
