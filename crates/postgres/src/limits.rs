//! Interruption of statements: by a cancel request, or a timeout.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use sql::{SqlError, sqlstate};
use tokio::sync::Notify;
use tokio::time::Instant;

/// Lets other connections cancel the statement of a session.
#[derive(Clone, Debug, Default)]
pub struct Cancel(Arc<(AtomicBool, Notify)>);

impl Cancel {
    /// Cancels the statement in progress. It has no effect on a commit that was sent.
    pub fn cancel(&self) {
        self.0.0.store(true, Ordering::SeqCst);
        self.0.1.notify_waiters();
    }

    pub(crate) fn reset(&self) {
        self.0.0.store(false, Ordering::SeqCst);
    }

    async fn canceled(&self) {
        let notified = self.0.1.notified();
        tokio::pin!(notified);
        notified.as_mut().enable();
        if !self.0.0.load(Ordering::SeqCst) {
            notified.await;
        }
    }
}

/// The error if there is no memory for a message or a result.
pub(crate) fn out_of_memory() -> SqlError {
    let error = SqlError::new(sqlstate::OUT_OF_MEMORY, "out of memory");
    error.with_detail("The messages and results of all connections need more memory than this node has for them.")
}

/// What can interrupt a statement.
#[derive(Clone, Debug)]
pub(crate) struct Interrupt {
    pub(crate) cancel: Cancel,
    pub(crate) until: Option<Instant>,
}

impl Interrupt {
    pub(crate) fn never() -> Self {
        Self { cancel: Cancel::default(), until: None }
    }

    /// Runs a part of a statement that has a definite outcome even if it is interrupted.
    pub(crate) async fn run<T>(&self, part: impl Future<Output = T>) -> Result<T, SqlError> {
        let timeout = async {
            match self.until {
                Some(until) => tokio::time::sleep_until(until).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            done = part => Ok(done),
            () = self.cancel.canceled() => Err(SqlError::new("57014", "canceling statement due to user request")),
            () = timeout => Err(SqlError::new("57014", "canceling statement due to statement timeout")),
        }
    }
}
