//! The thread of the doors: one tokio runtime on one thread for all of them. It never touches the machine but through
//! the gateway.

use std::future::Future;
use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use doors::Gateway;
use tablets::request::{Failure, Outcome, Request};
use tokio::sync::oneshot;

use super::clock;
use super::gateway::{Answers, MachineGateway};

/// The running doors.
#[derive(Debug)]
pub(crate) struct Doors {
    close: oneshot::Sender<()>,
    closed: Receiver<()>,
}

impl Doors {
    /// Serves gRPC on `listener`.
    pub(crate) fn start(listener: TcpListener, gateway: MachineGateway, answers: Arc<Answers>) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        let (close, closing) = oneshot::channel::<()>();
        let (done, closed) = mpsc::channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        super::spawn("doors", move || {
            if let Err(error) = runtime.block_on(serve(listener, gateway, answers, closing)) {
                super::die(&format!("the doors can't be served: {error}"));
            }
            let _ = done.send(());
        })?;
        Ok(Self { close, closed })
    }

    /// Closes the doors; waits for the calls under way, but not for longer than `patience`.
    pub(crate) fn close(self, patience: Duration) {
        let _ = self.close.send(());
        let _ = self.closed.recv_timeout(patience);
    }
}

async fn serve(
    listener: TcpListener,
    gateway: MachineGateway,
    answers: Arc<Answers>,
    closing: oneshot::Receiver<()>,
) -> Result<(), Box<dyn std::error::Error>> {
    let listener = tokio::net::TcpListener::from_std(listener)?;
    tokio::spawn(answers.deliver());
    let shutdown = async {
        let _ = closing.await;
    };
    Ok(doors::serve(listener, super::descriptors::for_doors(), gateway, shutdown).await?)
}

impl Gateway for MachineGateway {
    fn submit(&self, request: Request, deadline: Duration) -> impl Future<Output = Outcome> + Send {
        let nanoseconds = u64::try_from(deadline.as_nanos()).unwrap_or(u64::MAX);
        let deadline = clock::monotonic() + base::Duration(nanoseconds);
        let changes = request.changes();
        let answer = self.hand_in(request, deadline);
        async move {
            // Without an answer the process is ending: what it did of a write, only the log knows.
            answer?.await.unwrap_or_else(|_| {
                let ending = "the node is stopping".to_owned();
                Err(if changes { Failure::Unknown(ending) } else { Failure::Unavailable(ending) })
            })
        }
    }
}
