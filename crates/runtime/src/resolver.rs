//! Resolves host names of peers at each connection attempt. Therefore a node can start while a name does not resolve, and
//! it reconnects to a peer after a change of its address.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};
use std::sync::Arc;

use base::{HostPort, NodeId};

/// The result of a lookup.
#[derive(Debug)]
pub(crate) struct Resolved {
    pub(crate) node: NodeId,
    /// At least one address.
    pub(crate) addresses: io::Result<Vec<SocketAddr>>,
}

type Lookup = dyn Fn(&HostPort) -> io::Result<Vec<SocketAddr>> + Send + Sync;

/// Starts lookups, each in its own thread, because the system's resolver blocks. The caller limits them to one for each
/// peer.
#[derive(Clone)]
pub(crate) struct Resolver {
    lookup: Arc<Lookup>,
    report: Arc<dyn Fn(Resolved) + Send + Sync>,
}

impl Resolver {
    pub(crate) fn new(
        lookup: impl Fn(&HostPort) -> io::Result<Vec<SocketAddr>> + Send + Sync + 'static,
        report: impl Fn(Resolved) + Send + Sync + 'static,
    ) -> Self {
        Self { lookup: Arc::new(lookup), report: Arc::new(report) }
    }

    /// Starts a lookup. The callback receives its result.
    pub(crate) fn begin(&self, node: NodeId, name: HostPort) -> io::Result<()> {
        let resolver = self.clone();
        super::spawn("resolver", move || {
            let found = (resolver.lookup)(&name);
            let addresses = found.and_then(|addresses| if addresses.is_empty() { Err(none()) } else { Ok(addresses) });
            (resolver.report)(Resolved { node, addresses });
        })?;
        Ok(())
    }
}

impl fmt::Debug for Resolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Resolver").finish_non_exhaustive()
    }
}

/// Resolves an address; IPv4 addresses come first, as in Java. Blocks.
pub(crate) fn lookup(address: &HostPort) -> io::Result<Vec<SocketAddr>> {
    let mut found: Vec<SocketAddr> = (address.host(), address.port()).to_socket_addrs()?.collect();
    found.sort_by_key(|address| !address.is_ipv4());
    Ok(found)
}

/// The first address. Blocks.
pub(crate) fn first(address: &HostPort) -> io::Result<SocketAddr> {
    lookup(address)?.first().copied().ok_or_else(none)
}

/// Resolves a name. Blocks.
pub(crate) fn resolve(host: &str) -> Option<IpAddr> {
    let found: Vec<IpAddr> = (host, 0).to_socket_addrs().ok()?.map(|address| address.ip()).collect();
    found.iter().find(|address| address.is_ipv4()).or_else(|| found.first()).copied()
}

fn none() -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, "the host name has no usable address")
}
