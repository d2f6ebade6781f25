//! The thread that forces the log, and does nothing else: batches come encoded, summed and padded, and go back as they
//! came. So it can be given real-time priority without keeping others from their work: it sleeps in the disk.
//!
//! Why real time: on busy processors a thread of normal priority waits for a scheduler tick (4 ms) after each force,
//! and a force itself takes a tenth of a millisecond.
//!
//! One batch is under way at a time. What gathers meanwhile is the next one, so the disk's own speed sets the size of a
//! group, and no timer does.
//!
//! After an error nothing is published and nothing is tried again: the process ends (guarantee 25). A page that could
//! not be written may be gone from the cache while a second `fdatasync` reports success.

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

/// The way to the thread.
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
                    super::die(&format!("the log can't be forced: {error}"));
                }
                let (took, bytes) = (began.elapsed(), batch.bytes.len());
                inbox.post(Input::BatchForced(batch));
                // Counted once the batch is handed on: a few atomics, and nobody waits for them.
                metrics.force_seconds.observe(took.as_secs_f64());
                metrics.batches.inc();
                metrics.written_bytes.inc_by(bytes as u64);
            }
        })?;
        Ok(Self { slot })
    }

    /// Hands the next batch over. The caller waits for the last one to come back first, so there is always room.
    pub(crate) fn force(&self, batch: Batch, segment: OsFile) {
        if self.slot.try_send((batch, segment)).is_err() {
            super::die("the log thread is gone, or was handed a second batch");
        }
    }
}

/// Asks for the lowest real-time priority, for this thread: any is above all normal ones. Says so when it can't be had.
pub(crate) fn ask_for_real_time() -> bool {
    let fifo = ThreadSchedulePolicy::Realtime(RealtimeThreadSchedulePolicy::Fifo);
    match set_thread_priority_and_policy(thread_native_id(), ThreadPriority::Min, fifo) {
        Ok(()) => {
            tracing::info!("the log thread has real-time priority");
            true
        }
        Err(error) => {
            tracing::warn!(
                ?error,
                "the log thread has no real-time priority: forces may each wait for a scheduler tick when processors are \
                 busy (give the process CAP_SYS_NICE or a limit RLIMIT_RTPRIO of at least 1)"
            );
            false
        }
    }
}
