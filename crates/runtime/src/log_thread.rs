//! The thread that forces the log and does nothing else: batches arrive encoded, with checksums and padding, and are
//! returned unchanged. It sleeps while the disk works, so it can have real-time priority without starving other
//! threads.
//!
//! Real-time priority is needed because on busy processors a thread of normal priority waits for a scheduler tick (4
//! ms) after each force, and a force itself takes about 0.1 ms.
//!
//! One batch is in flight at a time. Records that arrive meanwhile form the next batch, so the disk's speed determines
//! the size of a group commit, without a timer.
//!
//! After an error nothing is acknowledged and nothing is retried: the process ends (guarantee 25). A page that could
//! not be written may have been dropped from the cache while a second `fdatasync` reports success.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, SyncSender};
use std::time::Instant;

use store::log::Batch;
use thread_priority::{
    RealtimeThreadSchedulePolicy, ThreadPriority, ThreadSchedulePolicy, set_thread_priority_and_policy,
    thread_native_id,
};

use super::disk_metrics::DiskMetrics;
use super::files::OsFile;
use super::inbox::{Inbox, Input};

/// The handle of the thread.
#[derive(Debug)]
pub(crate) struct LogThread {
    slot: SyncSender<(Batch, OsFile)>,
}

impl LogThread {
    /// Starts the thread; it posts each batch to `inbox` once it is forced.
    pub(crate) fn start(inbox: Arc<Inbox>, metrics: DiskMetrics) -> io::Result<Self> {
        let (slot, batches) = mpsc::sync_channel::<(Batch, OsFile)>(1);
        super::spawn("log", move || {
            ask_for_real_time();
            for (batch, segment) in batches {
                let began = Instant::now();
                if let Err(error) = batch.execute(&segment) {
                    super::die(&format!("can't force the log: {error}"));
                }
                let (took, bytes) = (began.elapsed(), batch.bytes.len());
                inbox.post(Input::BatchForced(batch));
                // Counted after the batch is posted, so that no one waits for it.
                metrics.force_seconds.observe(took.as_secs_f64());
                metrics.batches.inc();
                metrics.written_bytes.inc_by(bytes as u64);
            }
        })?;
        Ok(Self { slot })
    }

    /// Submits the next batch. The caller waits for the previous one, so the channel has space.
    pub(crate) fn force(&self, batch: Batch, segment: OsFile) {
        if self.slot.try_send((batch, segment)).is_err() {
            super::die("the log thread has exited, or a batch is already in flight");
        }
    }
}

/// Requests the lowest real-time priority for this thread, which is above all normal priorities. Logs whether it was
/// granted.
pub fn ask_for_real_time() -> bool {
    let fifo = ThreadSchedulePolicy::Realtime(RealtimeThreadSchedulePolicy::Fifo);
    match set_thread_priority_and_policy(thread_native_id(), ThreadPriority::Min, fifo) {
        Ok(()) => {
            tracing::info!("the log thread has real-time priority");
            true
        }
        Err(error) => {
            tracing::warn!(
                ?error,
                "the log thread has no real-time priority: on busy processors each force may wait for a scheduler tick \
                 (grant CAP_SYS_NICE, or set RLIMIT_RTPRIO to at least 1)"
            );
            false
        }
    }
}
