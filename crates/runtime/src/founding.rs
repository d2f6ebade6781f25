//! Forming and joining a cluster. A node with a blank disk serves only the formation requests over gRPC until it is a
//! member. It never forms a cluster by itself, because a blank disk may be a lost one (guarantee 6).

use std::fs::{self, File};
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use base::{Incarnation, Member, NodeId};
use node::request::{Outcome, Request};
use server::{Founded, Founding, Gateway, Genesis, Held, Invitation, Observer, Own, Replies, Ticketed};
use state_machine::Failure;
use store::identity::{Host, Identity};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use super::config::Config;
use super::directory_lock::DirectoryLock;
use super::files::{OsFiles, STORE};
use super::frames::PROTOCOL_VERSION;
use super::start_error::{StartError, listen};
use super::{descriptors, random};

/// Why a blank node stopped waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waited {
    /// Its disk now belongs to a cluster.
    Formed,
    /// It was asked to stop.
    Stopped,
}

/// How a node with a blank disk becomes a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Formation {
    /// An operator forms a cluster, or adds the node to one.
    ByOperator,
    /// The nodes form a cluster by themselves.
    Automatic,
}

/// Serves the gRPC endpoint of a node with a blank disk until it is formed or stopped.
pub(crate) fn wait(config: &Config, formation: Formation) -> Result<Waited, StartError> {
    let prepare = || {
        fs::create_dir_all(config.data.join(STORE))?;
        File::open(&config.data)?.sync_all()
    };
    prepare().map_err(|error| StartError::Directory { directory: config.data.clone(), error })?;
    let _claim = DirectoryLock::take(&config.data)?;
    let listener = listen("gRPC", &config.listen.grpc)?;
    listener.set_nonblocking(true)?;
    let (formed, is_formed) = watch::channel(false);
    let newcomer = Newcomer::new(config, formed)?;
    let (own, address) = (newcomer.own.member, &newcomer.own.peer);
    let waits = match formation {
        Formation::ByOperator => {
            "waiting to form a cluster (`loggos admin form --at HOST:PORT,...` with the gRPC addresses of all nodes) or to \
             join one (`loggos admin join HOST:PORT --at ...` with this node's gRPC address, and those of the cluster)"
        }
        Formation::Automatic => "waiting to form a cluster with the other servers, once all of them run",
    };
    tracing::info!(
        node = %own.node, disk = format_args!("{:x}", own.incarnation.0), peers = address, grpc = %config.listen.grpc,
        "blank disk: {waits}. If this disk held a node's data before, that data is lost, and the node must join with a new \
         number"
    );
    let registry = prometheus::Registry::new();
    let observer = Arc::new(Observer::new(registry, None).map_err(io::Error::other)?);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let (places, memory) = (descriptors::for_endpoints().grpc, config.tuning.client_budgets());
        let (mut terminated, mut interrupted) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        let mut seen = is_formed.clone();
        let end = async move {
            tokio::select! {
                _ = seen.wait_for(|formed| *formed) => {}
                _ = terminated.recv() => {}
                _ = interrupted.recv() => {}
            }
        };
        server::serve(listener, places, memory, Arc::new(NoCluster), Arc::new(newcomer), observer, end)
            .await
            .map_err(io::Error::other)
    })?;
    // An interrupted formation is completed by the next one.
    runtime.shutdown_timeout(Duration::from_secs(60));
    Ok(if *is_formed.borrow() { Waited::Formed } else { Waited::Stopped })
}

/// Forms a cluster of this node alone. Its disk must be blank.
pub(crate) fn form_alone(config: &Config) -> Result<(), StartError> {
    let _claim = DirectoryLock::take(&config.data)?;
    let newcomer = Newcomer::new(config, watch::channel(false).0)?;
    let own = newcomer.own.member;
    newcomer.form(vec![own]).map_err(|failure| StartError::Machine(failure.to_string()))?;
    Ok(())
}

/// A node with a blank disk.
struct Newcomer {
    own: Own,
    config: Config,
    /// Locked while the disk is formatted, so that there is one formation at a time.
    genesis: Mutex<Option<Genesis>>,
    formed: watch::Sender<bool>,
}

impl Newcomer {
    fn new(config: &Config, formed: watch::Sender<bool>) -> Result<Self, StartError> {
        let drawn = random::bytes(8)?.into_iter().fold(0, |number, byte| number << 8 | u64::from(byte));
        let files = OsFiles::new(&config.data.join(STORE));
        let own = store::blank::claim(&files, NodeId(config.node), Incarnation(drawn));
        let own = own.map_err(|error| StartError::Store { directory: config.data.clone(), error })?;
        let own = of_itself(config, own);
        Ok(Self { own, config: config.clone(), genesis: Mutex::default(), formed })
    }

    fn format(&self, identity: &Identity) -> Result<(), Failure> {
        let node = self.own.member.node;
        if let Some(unknown) = without_address(&self.config, identity).first() {
            return Err(Failure::Invalid(format!("node {node}: no address configured for node {unknown}")));
        }
        let files = OsFiles::new(&self.config.data.join(STORE));
        let failed = |error: &dyn std::fmt::Display| Failure::Unavailable(format!("node {node}: {error}"));
        store::format(&files, identity, &store::Config::default()).map_err(|error| failed(&error))?;
        store::blank::forget(&files).map_err(|error| failed(&error))
    }

    /// Formats the disk for the cluster. If it already belongs to one, returns the result of `again`.
    fn found(
        &self,
        identity: &Identity,
        again: impl FnOnce(Founded) -> Result<Genesis, Failure>,
    ) -> Result<Genesis, Failure> {
        let mut formed = self.genesis.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(genesis) = &*formed {
            return again(Founded::new(self.own.clone(), genesis.clone()));
        }
        self.format(identity)?;
        let genesis = genesis_of(identity);
        tracing::info!(cluster = %identity.cluster, joined = !identity.hosts.is_empty(), "formed");
        *formed = Some(genesis.clone());
        self.formed.send_replace(true);
        Ok(genesis)
    }
}

impl Founding for Newcomer {
    fn own(&self) -> &Own {
        &self.own
    }

    fn genesis(&self) -> Option<Genesis> {
        // The lock is held while the disk is formatted: until then it is blank.
        self.genesis.try_lock().ok()?.clone()
    }

    fn form(&self, members: Vec<Member>) -> Result<Genesis, Failure> {
        let (cluster, Member { node, incarnation }) = (store::blank::cluster_of(&members), self.own.member);
        let identity = Identity { cluster, node, incarnation, members: members.clone(), hosts: Vec::new() };
        self.found(&identity, |founded| founded.form(members))
    }

    fn join(&self, invitation: Invitation) -> Result<Genesis, Failure> {
        let Member { node, incarnation } = self.own.member;
        let hosts = invitation.hosts.iter().map(|(member, peer)| Host { member: *member, peer: peer.clone() });
        let (cluster, hosts) = (invitation.cluster, hosts.collect());
        let identity = Identity { cluster, node, incarnation, members: Vec::new(), hosts };
        self.found(&identity, |founded| founded.join(invitation))
    }
}

/// Founding members for which a node has no address. They may have left since; current members are found through the
/// catalog, or introduce themselves.
pub(crate) fn without_address(config: &Config, identity: &Identity) -> Vec<NodeId> {
    let is_named = |node: &NodeId| node.0 == config.node || config.peers.iter().any(|peer| peer.node == node.0);
    identity.members.iter().map(|member| member.node).filter(|node| !is_named(node)).collect()
}

/// The description of a formed node.
pub(crate) fn founded(config: &Config, identity: &Identity) -> Founded {
    let own = Member { node: identity.node, incarnation: identity.incarnation };
    Founded::new(of_itself(config, own), genesis_of(identity))
}

fn genesis_of(identity: &Identity) -> Genesis {
    Genesis { cluster: identity.cluster, members: identity.known().collect() }
}

fn of_itself(config: &Config, member: Member) -> Own {
    let (peer, grpc) = config.own_addresses();
    let (format, protocol) = (store::FORMAT, PROTOCOL_VERSION);
    let peers = config.peers.iter().map(|peer| NodeId(peer.node)).filter(|node| *node != member.node).collect();
    Own { member, format, protocol, peer: peer.to_string(), grpc: grpc.to_string(), peers }
}

/// The backend of the other services of a node with a blank disk.
struct NoCluster;

impl Gateway for NoCluster {
    async fn submit(&self, _: Request, _: Duration, _: Held) -> Outcome {
        Err(blank())
    }

    fn submit_all(&self, batch: Vec<Ticketed>, replies: &Arc<Replies>) {
        batch.into_iter().for_each(|Ticketed { ticket, .. }| replies.give(ticket, Err(blank())));
    }
}

fn blank() -> Failure {
    Failure::Unavailable("blank disk: this node does not belong to a cluster yet".to_owned())
}
