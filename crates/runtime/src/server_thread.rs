//! The thread of the protocol servers: a single-threaded tokio runtime for all of them. It accesses the machine only
//! through the gateway.

use base::budget::ClientBudgets;
use std::future::Future;
use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use endpoints::node::LocalMachine as _;
use node::request::{Outcome, Request};
use server::{Founded, Gateway, Held, Observer, Replies, Ticketed, console};
use state_machine::Failure;
use tokio::sync::watch;

use super::clock;
use super::cluster_view::ClusterView;
use super::gateway::{MachineGateway, Responses};

#[derive(Debug)]
pub(crate) struct Server {
    close: watch::Sender<()>,
    closed: Receiver<()>,
}

#[derive(Debug)]
pub(crate) struct Listeners {
    pub(crate) grpc: TcpListener,
    /// The console's, if enabled.
    pub(crate) http: Option<TcpListener>,
    /// The memory for clients.
    pub(crate) memory: ClientBudgets,
}

impl Server {
    pub(crate) fn start(
        listeners: Listeners,
        gateway: MachineGateway,
        responses: Arc<Responses>,
        founded: Founded,
        observer: Observer,
        cluster_view: ClusterView,
    ) -> io::Result<Self> {
        listeners.grpc.set_nonblocking(true)?;
        listeners.http.as_ref().map_or(Ok(()), |http| http.set_nonblocking(true))?;
        let (close, closing) = watch::channel(());
        let (done, closed) = mpsc::channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        super::spawn("server", move || {
            if let Err(error) =
                runtime.block_on(serve(listeners, gateway, responses, founded, observer, cluster_view, closing))
            {
                super::die(&format!("gRPC or HTTP server failed: {error}"));
            }
            let _ = done.send(());
        })?;
        Ok(Self { close, closed })
    }

    /// Shuts the servers down; waits for calls in progress, for at most `patience`.
    pub(crate) fn close(self, patience: Duration) {
        let _ = self.close.send(());
        let _ = self.closed.recv_timeout(patience);
    }
}

async fn serve(
    listeners: Listeners,
    gateway: MachineGateway,
    responses: Arc<Responses>,
    founded: Founded,
    observer: Observer,
    cluster_view: ClusterView,
    closing: watch::Receiver<()>,
) -> Result<(), Box<dyn std::error::Error>> {
    tokio::spawn(responses.deliver());
    let (gateway, observer) = (Arc::new(gateway), Arc::new(observer));
    let places = super::descriptors::for_endpoints();
    let shutdown = |mut closing: watch::Receiver<()>| async move {
        let _ = closing.changed().await;
    };
    let http = async {
        if let Some(listener) = listeners.http {
            let listener = tokio::net::TcpListener::from_std(listener)?;
            let (gateway, observer) = (Arc::clone(&gateway), Arc::clone(&observer));
            console::serve(listener, places.http, gateway, observer, cluster_view, shutdown(closing.clone())).await;
        }
        Ok(())
    };
    let grpc = async {
        let listener = tokio::net::TcpListener::from_std(listeners.grpc)?;
        let (gateway, observer) = (Arc::clone(&gateway), Arc::clone(&observer));
        let founded = Arc::new(founded);
        let (memory, end) = (listeners.memory, shutdown(closing.clone()));
        Ok(server::serve(listener, places.grpc, memory, gateway, founded, observer, end).await?)
    };
    tokio::try_join!(http, grpc).map(|_| ())
}

impl Gateway for MachineGateway {
    fn submit(&self, request: Request, deadline: Duration, held: Held) -> impl Future<Output = Outcome> + Send {
        let changes = request.changes();
        // Most reads are served immediately from the published views.
        let begun = match self.read(&request) {
            Some(outcome) => Ok(outcome),
            None => Err(self.enqueue(request, clock::monotonic() + clock::duration(deadline), held)),
        };
        async move {
            let answer = match begun {
                Ok(outcome) => return outcome,
                Err(answer) => answer?,
            };
            // No response means that the process is ending: whether a write took effect is unknown.
            answer.await.unwrap_or_else(|_| {
                let ending = "the node is stopping".to_owned();
                Err(if changes { Failure::Unknown(ending) } else { Failure::Unavailable(ending) })
            })
        }
    }

    fn submit_all(&self, batch: Vec<Ticketed>, replies: &Arc<Replies>) {
        self.enqueue_all(batch, replies, clock::monotonic());
    }
}
