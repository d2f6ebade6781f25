//! COPY of tables, from and to the client.

use base::budget::Reservation;
use bytes::{Bytes, BytesMut};
use sql::direct::{self, Read};
use sql::keys::{KeyRange, prefix_range};
use sql::rows::TableRows;
use sql::statement::{Copy, CopySource, Statement};
use sql::{SqlError, Value};

use super::{Response, RowStream, Session, TRANSACTION_TIME};
use crate::copy::{Format, Parser};
use crate::definition;
use crate::execute::{self, Unseen};
use crate::failure::{Failure, of_client};
use crate::limits::out_of_memory;
use crate::statement::{Prepared, copy_columns};
use crate::transaction::{Source, Tx, read_only};

/// Rows, and about their bytes in memory, that are inserted at once.
const BATCH_ROWS: usize = 1_000;
const BATCH_BYTES: usize = 4 << 20;
/// Bytes of data that are divided into rows at once: rows take many times the memory of their text.
const PIECE_BYTES: usize = 16 << 10;
/// Rows that are read at once.
const PAGE_ROWS: usize = base::limits::SCAN_ROWS_MAX;

/// COPY FROM in progress.
#[derive(Debug)]
pub(crate) struct CopyIn {
    table: String,
    columns: Vec<usize>,
    parser: Parser,
    rows: Vec<Vec<Value>>,
    /// About the memory of the rows, in bytes.
    bytes: usize,
    /// The memory of the rows, and of data without the end of its row.
    held: Reservation,
    count: u64,
    /// A separate transaction, if there is no block.
    tx: Option<Tx>,
    /// The table was created or truncated in this transaction, and is written without the limits of a transaction.
    unseen: Option<Unseen>,
}

impl CopyIn {
    /// Divides data into rows.
    fn push(&mut self, data: &[u8]) -> Result<(), SqlError> {
        let rows = self.parser.push(data)?;
        self.add(rows);
        let wanted = self.bytes + self.parser.buffered();
        self.held.shrink_to(wanted);
        let more = wanted.saturating_sub(self.held.bytes());
        if more == 0 || self.held.try_grow(more) { Ok(()) } else { Err(out_of_memory()) }
    }

    fn add(&mut self, rows: Vec<Vec<Value>>) {
        self.bytes += rows.iter().map(|row| direct::row_bytes(row)).sum::<usize>();
        self.rows.extend(rows);
    }

    /// Whether the rows fill a batch.
    fn is_full(&self) -> bool {
        self.rows.len() >= BATCH_ROWS || self.bytes >= BATCH_BYTES
    }

    pub(super) fn into_tx(self) -> Option<Tx> {
        self.tx
    }
}

/// COPY TO in progress.
#[derive(Debug)]
pub(crate) struct CopyOut {
    from: CopyRows,
    format: Format,
    header: Option<Bytes>,
    count: u64,
    tx: Option<Tx>,
}

/// The source of the rows of COPY TO.
#[derive(Debug)]
enum CopyRows {
    /// Columns of a table, and the rest of its range.
    Table(TableRows, Vec<usize>, Option<KeyRange>),
    /// Rows that a query has returned, and the rest of it.
    Query(Vec<Vec<Value>>, Option<RowStream>),
}

impl Session {
    pub(super) async fn begin_copy_in(&mut self, copy: &Copy) -> Result<Response, SqlError> {
        let format = Format::of(&copy.options)?;
        let in_block = self.block.is_some();
        self.refresh_before_block().await?;
        let mut tx = if in_block {
            self.take_tx().await?
        } else if self.settings.is_read_only_by_default() {
            return Err(read_only("COPY FROM"));
        } else {
            let client = &self.database.client;
            let source = Source::ReadWrite(client.begin_transaction_within(TRANSACTION_TIME));
            Tx::new(&self.database, source, self.interrupt())
        };
        let begun = Self::copy_in(&mut tx, copy, format, self.memory.charge(0)).await;
        let tx = if in_block {
            self.return_tx(tx);
            None
        } else {
            Some(tx)
        };
        let begun = begun?;
        let columns = begun.columns.len();
        self.copy_in = Some(CopyIn { tx, ..begun });
        Ok(Response::CopyIn { columns })
    }

    async fn copy_in(tx: &mut Tx, copy: &Copy, format: Format, held: Reservation) -> Result<CopyIn, SqlError> {
        if tx.is_read_only() {
            return Err(read_only("COPY FROM"));
        }
        tx.verify_now().await?;
        let schema = tx.schema();
        let (table, columns, named) = copy_columns(schema, copy)?;
        let ids = definition::ids_of(schema, schema.table_named(&table)?.id);
        let unseen = tx.is_unseen(ids.into_iter()).then(|| tx.unseen_rows());
        let parser = Parser::new(format, &table, named);
        Ok(CopyIn { table, columns, parser, rows: Vec::new(), bytes: 0, held, count: 0, tx: None, unseen })
    }

    /// Data of COPY FROM.
    ///
    /// # Errors
    /// The data is not valid, or cannot be inserted. The rest of it is to be ignored.
    pub async fn copy_data(&mut self, data: &[u8]) -> Result<(), SqlError> {
        let Some(mut copying) = self.copy_in.take() else { return Ok(()) };
        let mut outcome = Ok(());
        for piece in data.chunks(PIECE_BYTES) {
            outcome = match copying.push(piece) {
                Ok(()) => self.insert_batches(&mut copying, false).await,
                Err(error) => Err(error),
            };
            if outcome.is_err() {
                break;
            }
        }
        self.continue_copy(copying, outcome).await
    }

    async fn continue_copy(&mut self, mut copying: CopyIn, outcome: Result<(), SqlError>) -> Result<(), SqlError> {
        match outcome {
            Ok(()) => self.copy_in = Some(copying),
            Err(_) => {
                if let Some(tx) = copying.tx.take() {
                    tx.rollback().await;
                }
                self.fail_block().await;
            }
        }
        outcome
    }

    /// The end of the data. Returns the command tag.
    ///
    /// # Errors
    /// As [`Session::copy_data`], and those of a commit.
    pub async fn copy_done(&mut self) -> Result<String, SqlError> {
        let Some(mut copying) = self.copy_in.take() else { return Ok("COPY 0".to_owned()) };
        let outcome = match copying.parser.finish() {
            Ok(rows) => {
                copying.add(rows);
                self.insert_batches(&mut copying, true).await
            }
            Err(error) => Err(error),
        };
        self.continue_copy(copying, outcome).await?;
        let Some(copying) = self.copy_in.take() else { return Ok("COPY 0".to_owned()) };
        if let Some(tx) = copying.tx {
            tx.commit().await?;
        }
        Ok(format!("COPY {}", copying.count))
    }

    /// The client has aborted COPY FROM.
    pub async fn copy_fail(&mut self, reason: &str) -> SqlError {
        if let Some(copying) = self.copy_in.take()
            && let Some(tx) = copying.tx
        {
            tx.rollback().await;
        }
        self.fail_block().await;
        SqlError::new("57014", format!("COPY from stdin failed: {reason}"))
    }

    async fn insert_batches(&mut self, copying: &mut CopyIn, all: bool) -> Result<(), SqlError> {
        while copying.is_full() || (all && !copying.rows.is_empty()) {
            let rest = copying.rows.split_off(copying.rows.len().min(BATCH_ROWS));
            let batch = std::mem::take(&mut copying.rows);
            copying.bytes = 0;
            copying.add(rest);
            let count = batch.len() as u64;
            let mut tx = match copying.tx.take() {
                Some(tx) => tx,
                None => self.take_tx().await?,
            };
            let inserted = self.insert_batch(&mut tx, copying, batch).await;
            if self.block.is_some() {
                self.return_tx(tx);
            } else {
                copying.tx = Some(tx);
            }
            inserted?;
            copying.count += count;
        }
        Ok(())
    }

    async fn insert_batch(&mut self, tx: &mut Tx, copying: &mut CopyIn, rows: Vec<Vec<Value>>) -> Result<(), Failure> {
        let plan = direct::insert_rows(tx.schema(), &copying.table, &copying.columns, rows)?;
        let outcome = execute::run(tx, &plan, &[], &mut self.values, copying.unseen.as_ref(), &self.memory).await?;
        match &mut copying.unseen {
            None => tx.write(&outcome.writes),
            Some(unseen) => {
                unseen.wrote(&outcome.writes);
                tx.write_unseen(outcome.writes).await
            }
        }
    }

    pub(super) async fn begin_copy_out(&mut self, copy: &Copy) -> Result<Response, SqlError> {
        let format = Format::of(&copy.options)?;
        let in_block = self.block.is_some();
        self.refresh_before_block().await?;
        let mut tx = if in_block {
            self.take_tx().await?
        } else {
            Tx::at_present(&self.database, self.interrupt()).await.map_err(of_client)?
        };
        let begun = self.copy_source(&mut tx, copy);
        let begun = begun.await;
        let tx = if in_block {
            self.return_tx(tx);
            None
        } else {
            Some(tx)
        };
        let (from, names) = begun?;
        let header = format.header(&names);
        self.copy_out = Some(CopyOut { from, format, header, count: 0, tx });
        Ok(Response::CopyOut { columns: names.len() })
    }

    /// The source of COPY TO, and the names of its columns.
    async fn copy_source(&mut self, tx: &mut Tx, copy: &Copy) -> Result<(CopyRows, Vec<String>), SqlError> {
        tx.load_schema().await?;
        tx.verify_now().await?;
        if let CopySource::Query(query) = &copy.source {
            let statement = Statement::Query(query.clone(), None);
            let prepared = Prepared::of(statement, &"".into(), Vec::new());
            let planned = self.plan_for(&prepared, &std::sync::Arc::clone(&tx.catalog)).await?;
            let names = planned.columns().iter().map(|column| column.name.clone()).collect();
            let from = match self.run_planned(tx, &planned, &prepared, &[]).await? {
                Response::Stream { stream, .. } => CopyRows::Query(Vec::new(), Some(stream)),
                Response::Rows { rows, .. } => CopyRows::Query(rows, None),
                _ => CopyRows::Query(Vec::new(), None),
            };
            return Ok((from, names));
        }
        let (name, columns, named) = copy_columns(tx.schema(), copy)?;
        let rows = TableRows::new(tx.schema(), tx.schema().table_named(&name)?)?;
        let range = Some(prefix_range(&rows.layout().key(&[])?));
        Ok((CopyRows::Table(rows, columns, range), named.into_iter().map(|column| column.name).collect()))
    }

    /// The next lines of COPY TO; none after the last. Each chunk has whole lines.
    ///
    /// # Errors
    /// The rows cannot be read.
    pub async fn copy_next(&mut self) -> Result<Option<Bytes>, SqlError> {
        let Some(mut copying) = self.copy_out.take() else { return Ok(None) };
        if let Some(header) = copying.header.take() {
            self.copy_out = Some(copying);
            return Ok(Some(header));
        }
        let rows = self.copy_page(&mut copying).await;
        if rows.is_err() {
            self.fail_block().await;
        }
        let lines = rows.map(|rows| {
            rows.map(|rows| {
                copying.count += rows.len() as u64;
                let mut lines = BytesMut::new();
                rows.iter().for_each(|row| lines.extend_from_slice(&copying.format.row(row)));
                lines.freeze()
            })
        });
        self.copy_out = Some(copying);
        lines
    }

    /// The command tag of COPY TO.
    pub fn copy_end(&mut self) -> String {
        format!("COPY {}", self.copy_out.take().map_or(0, |copying| copying.count))
    }

    /// The next rows of COPY TO; none after the last.
    async fn copy_page(&mut self, copying: &mut CopyOut) -> Result<Option<Vec<Vec<Value>>>, SqlError> {
        let (rows, columns, rest) = match &mut copying.from {
            CopyRows::Table(rows, columns, rest) => (rows, columns, rest),
            CopyRows::Query(found, _) if !found.is_empty() => return Ok(Some(std::mem::take(found))),
            CopyRows::Query(_, Some(stream)) => return self.next_rows(stream).await,
            CopyRows::Query(_, None) => return Ok(None),
        };
        let Some(range) = rest.take() else { return Ok(None) };
        let mut tx = match copying.tx.take() {
            Some(tx) => tx,
            None => self.take_tx().await?,
        };
        let page = tx.read(vec![Read::Range(range.clone(), PAGE_ROWS)]).await;
        if self.block.is_some() {
            self.return_tx(tx);
        } else {
            copying.tx = Some(tx);
        }
        let page = page?.pop().unwrap_or_default();
        let mut found = Vec::with_capacity(page.rows.len());
        for stored in &page.rows {
            let Some(mut row) = rows.decode(stored)? else { continue };
            let picked = columns
                .iter()
                .map(|number| row.get_mut(*number).map_or(Value::Null, |value| std::mem::replace(value, Value::Null)));
            found.push(picked.collect());
        }
        *rest = page.next.map(|next| KeyRange { start: next, end: range.end });
        Ok(Some(found))
    }
}
