//! Execution of plans: performs their reads and writes in a transaction.

use std::collections::{HashMap, VecDeque};

use base::budget::{ByteBudget, Reservation};
use sql::direct::{Outcome, Page, Plan, Read, Step};
use sql::ids::SequenceId;
use sql::{Environment, SqlError, Supply, Value, sqlstate};

use crate::failure::Failure;
use crate::limits::out_of_memory;
use crate::transaction::Tx;

/// Values of sequences that a session has taken, and random numbers.
#[derive(Debug, Default)]
pub(crate) struct Values {
    sequences: HashMap<SequenceId, VecDeque<i64>>,
    /// The last values that were used, and the sequence of the very last one.
    current: HashMap<SequenceId, i64>,
    last: Option<SequenceId>,
    /// The id of the transaction, if it has one.
    transaction: Option<i64>,
    /// The statuses of transactions that the statement has asked for.
    statuses: HashMap<String, Option<&'static str>>,
    /// Values that the last evaluated statement needs.
    wanted: Option<Wanted>,
}

/// Something about a transaction that a statement needs before it is evaluated again.
#[derive(Debug)]
enum Wanted {
    /// An id of its own transaction.
    Id,
    /// The status of the transaction with this id.
    Status(String),
}

impl Values {
    /// Takes values for a statement.
    pub(crate) async fn prepare(&mut self, tx: &mut Tx, wanted: &[(SequenceId, usize)]) -> Result<(), Failure> {
        for (id, count) in wanted {
            let sequence = tx.schema().sequence(*id).cloned();
            let sequence =
                sequence.ok_or_else(|| SqlError::new(sqlstate::UNDEFINED_OBJECT, "the sequence was dropped"))?;
            let cache = usize::try_from(sequence.cache).unwrap_or(1).min(1_000);
            let queue = self.sequences.entry(*id).or_default();
            if queue.len() < *count {
                let missing = (*count - queue.len()).max(cache);
                if tx.is_fresh(id.0) {
                    tx.has_unseen(id.0).await?;
                }
                queue.extend(tx.database.take_values(&sequence, missing).await?);
            }
        }
        Ok(())
    }

    pub(crate) fn forget(&mut self) {
        *self = Self::default();
    }

    /// Fetches these values. Returns false if there are none to fetch.
    async fn fetch(&mut self, tx: &mut Tx) -> Result<bool, Failure> {
        match self.wanted.take() {
            Some(Wanted::Id) => self.transaction = Some(tx.assign_id().await?),
            Some(Wanted::Status(id)) => {
                let status = tx.interrupt.clone().run(tx.database.transaction_status(&id)).await??;
                self.statuses.insert(id, status);
            }
            None => return Ok(false),
        }
        Ok(true)
    }
}

/// Ends an evaluation that needs something first.
fn not_yet() -> SqlError {
    SqlError::new(sqlstate::INTERNAL_ERROR, "the id or status of a transaction is used where it is not supported")
}

impl Supply for Values {
    fn next_value(&mut self, sequence: SequenceId) -> Result<i64, SqlError> {
        let next = self.sequences.get_mut(&sequence).and_then(VecDeque::pop_front);
        let next = next.ok_or_else(|| {
            let message = "the sequence has no further value, or is used where it is not supported";
            SqlError::new(sqlstate::SEQUENCE_GENERATOR_LIMIT_EXCEEDED, message)
        })?;
        self.current.insert(sequence, next);
        self.last = Some(sequence);
        Ok(next)
    }

    fn current_value(&mut self, sequence: SequenceId) -> Option<i64> {
        self.current.get(&sequence).copied()
    }

    fn last_value(&mut self) -> Option<i64> {
        self.current.get(&self.last?).copied()
    }

    fn transaction_id(&mut self, assigns: bool) -> Result<Option<i64>, SqlError> {
        if self.transaction.is_none() && assigns {
            self.wanted = Some(Wanted::Id);
            return Err(not_yet());
        }
        Ok(self.transaction)
    }

    fn transaction_status(&mut self, id: &str) -> Result<Option<&'static str>, SqlError> {
        self.statuses.get(id).copied().ok_or_else(|| {
            self.wanted = Some(Wanted::Status(id.to_owned()));
            not_yet()
        })
    }

    fn random_uuid(&mut self) -> [u8; 16] {
        let mut uuid = [0; 16];
        let (high, low) = uuid.split_at_mut(8);
        high.copy_from_slice(&crate::random().to_be_bytes());
        low.copy_from_slice(&crate::random().to_be_bytes());
        uuid[6] = uuid[6] & 0x0f | 0x40;
        uuid[8] = uuid[8] & 0x3f | 0x80;
        uuid
    }
}

/// Rows that a bulk load need not read, because they cannot exist: those above the greatest one that it wrote, if the
/// table was empty.
#[derive(Debug, Default)]
pub(crate) struct Unseen {
    greatest: HashMap<u32, bytes::Bytes>,
}

impl Unseen {
    /// Rows with these identifiers exist.
    pub(crate) fn after(ids: impl Iterator<Item = u32>) -> Self {
        // Greater than all keys of the identifier.
        let end = |id| (id, sql::keys::prefix_range(&sql::keys::of_id(id)).end);
        Self { greatest: ids.map(end).collect() }
    }

    fn is_absent(&self, read: &Read) -> bool {
        let (Read::Row(key) | Read::Locked(key) | Read::Entry(key)) = read else { return false };
        let id = sql::keys::KeyReader::new(key).id();
        id.is_ok_and(|id| self.greatest.get(&id).is_none_or(|greatest| key > greatest))
    }

    pub(crate) fn wrote(&mut self, writes: &[sql::rows::Write]) {
        for write in writes {
            let (sql::rows::Write::Put { key, .. } | sql::rows::Write::Delete { key }) = write;
            let Ok(id) = sql::keys::KeyReader::new(key).id() else { continue };
            let greatest = self.greatest.entry(id).or_default();
            if key > greatest {
                greatest.clone_from(key);
            }
        }
    }
}

/// Executes a plan. The writes are not added to the transaction yet.
pub(crate) async fn run(
    tx: &mut Tx,
    plan: &Plan,
    parameters: &[Value],
    values: &mut Values,
    unseen: Option<&Unseen>,
    memory: &ByteBudget,
) -> Result<Outcome, Failure> {
    values.transaction = tx.id();
    values.statuses.clear();
    loop {
        match attempt(tx, plan, parameters, values, unseen, memory).await {
            Err(failure) => {
                if !values.fetch(tx).await? {
                    return Err(failure);
                }
            }
            outcome => return outcome,
        }
    }
}

async fn attempt(
    tx: &mut Tx,
    plan: &Plan,
    parameters: &[Value],
    values: &mut Values,
    unseen: Option<&Unseen>,
    memory: &ByteBudget,
) -> Result<Outcome, Failure> {
    values.prepare(tx, &plan.sequences()).await?;
    let now = tx.now;
    let mut held = memory.charge(0);
    let (mut execution, mut step) = plan.start(&mut Environment { parameters, now, supply: values })?;
    loop {
        match step {
            Step::Done(outcome) => return Ok(outcome),
            Step::DoneIfOneMoment(_) if tx.is_single_read() => return Err(Failure::NeedsSnapshot),
            Step::DoneIfOneMoment(outcome) => return Ok(outcome),
            Step::NeedsPlanner => return Err(Failure::NeedsPlanner),
            Step::Read(reads) => {
                let pages = match unseen {
                    Some(unseen) => read_unseen(tx, unseen, reads).await?,
                    None => tx.read(reads).await?,
                };
                step = execution.advance(pages, &mut Environment { parameters, now, supply: values })?;
                let more = execution.bytes().saturating_sub(held.bytes());
                if more > 0 && !held.try_grow(more) {
                    return Err(out_of_memory().into());
                }
            }
        }
    }
}

/// Counts the memory of rows.
pub(crate) fn hold(memory: &ByteBudget, rows: &[Vec<Value>]) -> Result<Reservation, SqlError> {
    let bytes = rows.iter().map(|row| sql::direct::row_bytes(row)).sum();
    memory.try_reserve(bytes).ok_or_else(out_of_memory)
}

/// Skips the reads of rows that cannot exist.
async fn read_unseen(tx: &mut Tx, unseen: &Unseen, reads: Vec<Read>) -> Result<Vec<Page>, Failure> {
    let is_absent: Vec<bool> = reads.iter().map(|read| unseen.is_absent(read)).collect();
    let wanted = reads.into_iter().zip(&is_absent).filter(|(_, is_absent)| !**is_absent).map(|(read, _)| read);
    let mut found = tx.read(wanted.collect()).await?.into_iter();
    Ok(is_absent
        .into_iter()
        .map(|is_absent| if is_absent { Page::default() } else { found.next().unwrap_or_default() })
        .collect())
}
