//! Threads of normal priority for disk work other than log writes. Each kind of work has its own lane, to avoid
//! head-of-line blocking: manifests gate promises, segments gate appends, reads serve lagging followers, and a
//! checkpoint may take minutes.

use std::io;
use std::sync::mpsc::{self, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use node::contract::Event;
use store::files::{FileError, FileErrorKind};

use super::inbox::{Inbox, Input};

/// Delay before a write that failed for lack of space is retried.
const NO_SPACE_PAUSE: Duration = Duration::from_secs(5);

/// A thread that executes jobs of one kind in order.
#[derive(Debug)]
pub(crate) struct JobThread<Job> {
    /// `None` only while it is dropped.
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
}

impl<Job: Send + 'static> JobThread<Job> {
    /// Starts a thread that executes each job with `work`. The machine bounds the number of jobs: one manifest, a few
    /// segments, one checkpoint per cohort, one read per peer.
    pub(crate) fn start(name: &str, work: impl FnMut(Job) + Send + 'static) -> io::Result<Self> {
        let (jobs, queue) = mpsc::channel();
        let thread = super::spawn(name, move || queue.into_iter().for_each(work))?;
        Ok(Self { jobs: Some(jobs), thread: Some(thread) })
    }

    pub(crate) fn put(&self, job: Job) {
        if self.jobs.as_ref().is_none_or(|jobs| jobs.send(job).is_err()) {
            super::die("a background thread has exited");
        }
    }
}

/// In tests the threads must end before their directory is removed. In a node the process just ends: the next start
/// continues unfinished jobs.
impl<Job> Drop for JobThread<Job> {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take().filter(|_| cfg!(test)) {
            let _ = thread.join();
        }
    }
}

/// Retries a write until there is space on the disk; any other error ends the process.
pub(super) fn retry_while_disk_full<T>(what: &str, inbox: &Inbox, mut work: impl FnMut() -> Result<T, FileError>) -> T {
    let mut is_reported = false;
    loop {
        match work() {
            Ok(done) => {
                if is_reported {
                    tracing::info!(what, "written: disk space is available again");
                }
                return done;
            }
            Err(error) if error.kind == FileErrorKind::NoSpace => {
                if !is_reported {
                    tracing::error!(what, %error, "disk full: retrying until space is available");
                }
                is_reported = true;
                inbox.post(Input::Done(Event::DiskFull));
                std::thread::sleep(NO_SPACE_PAUSE);
            }
            Err(error) => super::die(&format!("can't write {what}: {error}")),
        }
    }
}
