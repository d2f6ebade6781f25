//! Threads of normal priority for the disk work that the log thread must not do. Each kind has a lane of its own, since
//! none may wait for the next: manifests gate promises, segments gate appends, reads feed a laggard, and a checkpoint
//! may take minutes.

use std::io;
use std::sync::mpsc::{self, Sender};
use std::thread::JoinHandle;

/// A thread that does jobs of one kind in order.
#[derive(Debug)]
pub(crate) struct Lane<Job> {
    /// None only while it is dropped.
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
}

impl<Job: Send + 'static> Lane<Job> {
    /// Starts a thread that does each job with `work`. The machine bounds how many it asks for: one manifest, a few
    /// segments, one checkpoint of a cohort, one read for a peer.
    pub(crate) fn start(name: &str, work: impl FnMut(Job) + Send + 'static) -> io::Result<Self> {
        let (jobs, queue) = mpsc::channel();
        let thread = super::spawn(name, move || queue.into_iter().for_each(work))?;
        Ok(Self { jobs: Some(jobs), thread: Some(thread) })
    }

    /// Puts a job at the end of the lane.
    pub(crate) fn put(&self, job: Job) {
        if self.jobs.as_ref().is_none_or(|jobs| jobs.send(job).is_err()) {
            super::die("a background thread is gone");
        }
    }
}

/// A test's directory goes with the test, so its threads end first. A node's process just ends: whatever a job leaves
/// unfinished, the next start carries on.
impl<Job> Drop for Lane<Job> {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take().filter(|_| cfg!(test)) {
            let _ = thread.join();
        }
    }
}
