//! Ids of transactions, and their outcomes (guarantee 18).
//!
//! The id of a transaction on a database is the number of a session that it alone uses, and that is opened when its id is
//! asked for. The range with the row of the schema decides about such a transaction; every transaction has read this row.
//! So an id leads to the range that knows the outcome, from any node. A transaction without an id pays nothing.

use std::sync::Arc;

use sdk::{Error, Stamp, TransactionId, TransactionOutcome};
use sql::{SqlError, sqlstate};

use crate::database::{Database, SCHEMA_ROW, lock};
use crate::failure::{Failure, of_client};
use crate::transaction::{Source, Tx, read_only};

const IN_PROGRESS: &str = "in progress";
const COMMITTED: &str = "committed";
const ABORTED: &str = "aborted";

/// The id of a transaction that has not begun to commit.
#[derive(Debug)]
pub(crate) struct OpenId {
    database: Arc<Database>,
    id: u64,
}

impl OpenId {
    fn new(database: &Arc<Database>, id: u64) -> Self {
        lock(&database.open_ids).insert(id);
        Self { database: Arc::clone(database), id }
    }
}

impl Drop for OpenId {
    fn drop(&mut self) {
        lock(&self.database.open_ids).remove(&self.id);
    }
}

impl Tx {
    /// Its id, if it has one.
    pub(crate) fn id(&self) -> Option<i64> {
        match &self.source {
            Source::ReadWrite(tx) => tx.assigned_id().and_then(|id| i64::try_from(id.stamp.session).ok()),
            Source::Strong | Source::Snapshot(_) => None,
        }
    }

    /// Its id. The first call assigns one, with a write.
    pub(crate) async fn assign_id(&mut self) -> Result<i64, Failure> {
        let tx = match &self.source {
            Source::ReadWrite(tx) => tx.clone(),
            Source::Strong => return Err(Failure::NeedsId),
            Source::Snapshot(_) => return Err(read_only("pg_current_xact_id()").into()),
        };
        let id = tx.id(self.database.table(), SCHEMA_ROW).await?.stamp.session;
        self.open_id.get_or_insert_with(|| OpenId::new(&self.database, id));
        i64::try_from(id).map_err(|_| {
            let message = "the cluster has no further ids of transactions";
            SqlError::new(sqlstate::PROGRAM_LIMIT_EXCEEDED, message).into()
        })
    }
}

impl Database {
    /// The status of a transaction by its id, or by the text in the hint of an error 40003. A transaction without an
    /// outcome is aborted, unless its block is still open on this node. None: it is not known any more.
    ///
    /// # Errors
    /// 08006: the range that decides cannot be reached. 22P02: the text is no id. 22023: it is of another database.
    pub(crate) async fn transaction_status(&self, text: &str) -> Result<Option<&'static str>, Failure> {
        let id = match text.trim().parse::<i64>() {
            Ok(number) => {
                let Some(session) = u64::try_from(number).ok().filter(|session| *session > 0) else { return Ok(None) };
                let stamp = Stamp { session, sequence: 1, first_incomplete: 1 };
                TransactionId { table: self.table().to_owned(), key: SCHEMA_ROW, stamp }
            }
            Err(_) => text
                .parse::<TransactionId>()
                .map_err(|_| SqlError::new("22P02", format!("invalid input syntax for type xid8: \"{text}\"")))?,
        };
        if id.table != self.table() {
            let message = "the transaction is one of another database";
            return Err(SqlError::new(sqlstate::INVALID_PARAMETER_VALUE, message).into());
        }
        if lock(&self.open_ids).contains(&id.stamp.session) {
            return Ok(Some(IN_PROGRESS));
        }
        match self.client.resolve_transaction(&id).await {
            Ok(TransactionOutcome::Committed(_)) => Ok(Some(COMMITTED)),
            Ok(TransactionOutcome::Aborted) => Ok(Some(ABORTED)),
            Ok(_) => Ok(None),
            // Asking again is harmless.
            Err(Error::OutcomeUnknown(reason)) => Err(of_client(Error::Unavailable(reason)).into()),
            Err(error) => Err(error.into()),
        }
    }
}
