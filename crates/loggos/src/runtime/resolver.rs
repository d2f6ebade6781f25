//! Resolves the host names of peers periodically, so that a node can start while a name does not resolve, and follows
//! changes of addresses.

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};
use std::sync::Arc;
use std::time::Duration;

use base::NodeId;

use super::inbox::{Inbox, Input};
use super::peers::PeerAddress;

pub(crate) const RESOLVE_EVERY: Duration = Duration::from_secs(10);

/// A peer configured by host name.
#[derive(Clone, Debug)]
pub(crate) struct NamedPeer {
    pub(crate) node: NodeId,
    pub(crate) host: String,
    pub(crate) port: u16,
}

/// Resolves a name; prefers IPv4, as Java does.
pub(crate) fn resolve(host: &str) -> Option<IpAddr> {
    let found: Vec<IpAddr> = (host, 0).to_socket_addrs().ok()?.map(|address| address.ip()).collect();
    found.iter().find(|address| address.is_ipv4()).or_else(|| found.first()).copied()
}

/// Starts the thread, unless all peers are configured by IP address. `allows` decides which addresses may be used.
pub(crate) fn start(
    mut peers: Vec<NamedPeer>,
    allows: impl Fn(SocketAddr) -> bool + Send + 'static,
    inbox: Arc<Inbox>,
) -> io::Result<()> {
    peers.retain(|peer| peer.host.parse::<IpAddr>().is_err());
    if peers.is_empty() {
        return Ok(());
    }
    let mut known = vec![None; peers.len()];
    super::spawn("resolver", move || {
        loop {
            for (NamedPeer { node, host, port }, known) in peers.iter().zip(&mut known) {
                let found = resolve(host).map(|address| SocketAddr::from((address, *port)));
                if let Some(address) = found.filter(|address| Some(*address) != *known && allows(*address)) {
                    *known = Some(address);
                    inbox.post(Input::PeerAddress(PeerAddress { node: *node, address }));
                }
            }
            std::thread::sleep(RESOLVE_EVERY);
        }
    })?;
    Ok(())
}
