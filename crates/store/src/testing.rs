//! Helpers for the tests of this crate.

use base::{ClusterId, CohortId, Entry, Incarnation, LogRecord, Lsn, Member, NodeId, Record, Sequence, Timestamp};

use crate::files::FileError;
use crate::identity::Identity;
use crate::log::Batch;
use crate::memory::MemoryDisk;
use crate::{Config, Store};

pub(crate) const CONFIG: Config = Config {
    segment_bytes: 16 << 10,
    keep_bytes: 32 << 10,
    segments_ahead: 1,
    tree: crate::tree::Config::DEFAULT,
    cache_bytes: 1 << 20,
    recent_bytes: 0,
};

pub(crate) fn identity() -> Identity {
    let members = (1..=3).map(|node| Member { node: NodeId(node), incarnation: Incarnation(u64::from(node) * 100) });
    Identity {
        cluster: ClusterId(7),
        node: NodeId(2),
        incarnation: Incarnation(200),
        members: members.collect(),
        hosts: Vec::new(),
    }
}

pub(crate) fn entry(cohort: u32, sequence: u64, payload: &[u8]) -> Record {
    let body = LogRecord::Entry(Entry {
        lsn: Lsn::new(1, sequence),
        previous: Lsn::new(1, sequence.saturating_sub(1)),
        timestamp: Timestamp(sequence as i64),
        payload: payload.to_vec().into(),
        members: None,
    });
    Record { cohort: CohortId(cohort), body }
}

pub(crate) fn truncation(cohort: u32, from: u64) -> Record {
    Record { cohort: CohortId(cohort), body: LogRecord::Truncation { from: Sequence(from) } }
}

pub(crate) fn formatted() -> MemoryDisk {
    let disk = MemoryDisk::new();
    crate::format(&disk, &identity(), &CONFIG).unwrap();
    disk
}

/// Executes a batch as a driver does.
pub(crate) fn execute(store: &mut Store<MemoryDisk>, batch: &Batch) -> Result<u64, FileError> {
    let file = store.batch_file(batch.segment)?;
    batch.execute(&file)?;
    Ok(store.forced())
}

pub(crate) fn prepare(store: &mut Store<MemoryDisk>) -> Result<(), FileError> {
    while let Some(job) = store.segment_job() {
        job.execute(store.files())?;
        store.segment_done(job);
    }
    Ok(())
}

/// Appends one record and forces it in its own batch.
pub(crate) fn write(store: &mut Store<MemoryDisk>, number: u64, record: Record) -> Result<Batch, FileError> {
    store.append(number, record, base::Force::Now).unwrap();
    let batch = store.next_batch().expect("its segment is prepared");
    execute(store, &batch)?;
    prepare(store)?;
    Ok(batch)
}

/// Runs `attempt` on disks made by `fresh`, crashing at each modifying operation in turn until it completes; `after`
/// checks each crashed disk.
pub(crate) fn crash_everywhere<E: std::fmt::Debug>(
    fresh: impl Fn() -> MemoryDisk,
    attempt: impl Fn(&MemoryDisk) -> Result<(), E>,
    after: impl Fn(&MemoryDisk),
) {
    let mut random = base::SplitMix64::new(1);
    for operation in 1.. {
        let mut is_through = false;
        for _ in 0..8 {
            let disk = fresh();
            disk.crash_after_operations(operation);
            is_through = attempt(&disk).is_ok();
            disk.crash(&mut random);
            after(&disk);
        }
        if is_through {
            assert!(operation > 1, "at least one operation was executed");
            return;
        }
    }
}
