//! Transaction blocks: from BEGIN to COMMIT, or the statements of one message.

use std::time::Duration;

use base::limits::sql::SAVEPOINTS_MAX;
use sql::statement::{Modes, Statement};
use sql::{SqlError, Value};
use tokio::time::Instant;

use super::{Response, Session, Status, TRANSACTION_TIME, done};
use crate::failure::{Failure, is_conflict, of_client};
use crate::settings::Settings;
use crate::statement::Prepared;
use crate::transaction::{Saved, Source, Tx};

/// How long after the end of a block the next one keeps its age.
const AGE_KEPT: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(crate) struct Block {
    /// It contains the statements of one message, and ends with them.
    pub(crate) is_implicit: bool,
    pub(crate) has_failed: bool,
    /// Present from the first statement on.
    pub(crate) tx: Option<Tx>,
    /// A statement was executed, so the transaction cannot be retried.
    has_results: bool,
    modes: Modes,
    savepoints: Vec<(String, Saved)>,
    /// The settings before the block, which a rollback restores.
    settings: Option<Settings>,
}

impl Block {
    /// Whether it was begun so.
    pub(super) fn is_read_only(&self) -> bool {
        self.modes.read_only == Some(true) || self.modes.as_of.is_some()
    }

    pub(crate) fn implicit() -> Self {
        Self::new(true, Modes::default(), None)
    }

    fn new(is_implicit: bool, modes: Modes, settings: Option<Settings>) -> Self {
        Self { is_implicit, has_failed: false, tx: None, has_results: false, modes, savepoints: Vec::new(), settings }
    }
}

fn no_savepoint(name: &str) -> SqlError {
    SqlError::new("3B001", format!("savepoint \"{name}\" does not exist"))
}

fn no_block(what: &str) -> SqlError {
    SqlError::new("25P01", format!("{what} can only be used in transaction blocks"))
}

impl Session {
    pub(super) fn begin_block(&mut self, modes: &Modes) -> Result<Response, SqlError> {
        match &mut self.block {
            Some(block) if !block.is_implicit => {
                self.notices.push(SqlError::new("25001", "there is already a transaction in progress"));
            }
            // The statements of the message before this one are part of the transaction.
            Some(block) if block.tx.is_some() => {
                block.is_implicit = false;
                block.settings = Some(self.settings.clone());
            }
            _ => self.block = Some(Block::new(false, modes.clone(), Some(self.settings.clone()))),
        }
        Ok(done("BEGIN"))
    }

    pub(super) async fn end_block(&mut self, commits: bool, chain: bool) -> Result<Response, SqlError> {
        let Some(block) = self.block.take() else {
            if chain {
                return Err(no_block(if commits { "COMMIT AND CHAIN" } else { "ROLLBACK AND CHAIN" }));
            }
            self.notices.push(SqlError::new("25P01", "there is no transaction in progress"));
            return Ok(done(if commits { "COMMIT" } else { "ROLLBACK" }));
        };
        let modes = block.modes.clone();
        let tag = if commits && !block.has_failed {
            self.commit_block(block).await?;
            "COMMIT"
        } else {
            self.roll_back(block).await;
            "ROLLBACK"
        };
        if chain {
            self.block = Some(Block::new(false, modes, Some(self.settings.clone())));
        }
        Ok(done(tag))
    }

    pub(super) async fn commit_block(&mut self, block: Block) -> Result<(), SqlError> {
        if block.has_failed {
            self.roll_back(block).await;
            return Ok(());
        }
        let Some(tx) = block.tx else { return Ok(()) };
        let store = tx.for_retry();
        let outcome = tx.commit().await.map_err(SqlError::from);
        if let (Err(error), Some(store)) = (&outcome, store)
            && is_conflict(error)
        {
            self.overtaken = Some((store, Instant::now()));
        }
        if outcome.is_err()
            && let Some(settings) = block.settings
        {
            self.settings = settings;
        }
        outcome.map(|_| ())
    }

    /// If others have ended the block, the next one keeps its age, and has priority over those that began after it.
    pub(super) fn keep_age(&mut self, error: &SqlError) {
        if is_conflict(error)
            && let Some(store) = self.block.as_ref().and_then(|block| block.tx.as_ref()?.for_retry())
        {
            self.overtaken = Some((store, Instant::now()));
        }
    }

    /// The store's transaction of a block that changes rows.
    fn begin_store(&mut self) -> sdk::Transaction {
        match self.overtaken.take() {
            Some((store, at)) if at.elapsed() < AGE_KEPT => store.again_within(TRANSACTION_TIME),
            _ => self.database.client.begin_transaction_within(TRANSACTION_TIME),
        }
    }

    pub(super) async fn roll_back(&mut self, block: Block) {
        if let Some(tx) = block.tx {
            tx.rollback().await;
        }
        if let Some(settings) = block.settings {
            self.settings = settings;
        }
    }

    /// After an error, the block only accepts its end, or the return to a savepoint.
    pub(super) async fn fail_block(&mut self) {
        let Some(block) = &mut self.block else { return };
        block.has_failed = true;
        if block.is_implicit {
            if let Some(block) = self.block.take() {
                self.roll_back(block).await;
            }
        } else if block.savepoints.is_empty()
            && let Some(tx) = block.tx.take()
        {
            // Others need not wait for its locks.
            tx.rollback().await;
        }
    }

    pub(super) fn set_transaction(&mut self, modes: &Modes, session: bool) -> Result<Response, SqlError> {
        if session {
            if let Some(read_only) = modes.read_only {
                let value = if read_only { "on" } else { "off" };
                self.settings.set("default_transaction_read_only", Some(value), false)?;
            }
            return Ok(done("SET"));
        }
        match &mut self.block {
            Some(block) if block.tx.is_some() => {
                if modes.read_only.is_some_and(|read_only| read_only != block.tx.as_ref().is_some_and(Tx::is_read_only))
                {
                    let message = "transaction mode must be set before any query";
                    return Err(SqlError::new("25001", message));
                }
            }
            Some(block) => {
                block.modes.read_only = modes.read_only.or(block.modes.read_only);
                block.modes.as_of = modes.as_of.clone().or_else(|| block.modes.as_of.take());
            }
            None => self.notices.push(no_block("SET TRANSACTION")),
        }
        Ok(done("SET"))
    }

    /// Begins the transaction of a block, unless it has begun.
    async fn open_block(&mut self) -> Result<(), SqlError> {
        let Some(block) = &self.block else { return Ok(()) };
        if block.tx.is_some() {
            return Ok(());
        }
        let read_only = block.modes.read_only.unwrap_or_else(|| self.settings.is_read_only_by_default());
        let begin = |source| Tx::new(&self.database, source, self.interrupt());
        let mut tx = match &block.modes.as_of {
            Some(as_of) => begin(self.snapshot_of(as_of).await?),
            None if read_only => Tx::at_present(&self.database, self.interrupt()).await.map_err(of_client)?,
            None => {
                let source = Source::ReadWrite(self.begin_store());
                Tx::new(&self.database, source, self.interrupt())
            }
        };
        tx.load_schema().await?;
        if let Some(block) = &mut self.block {
            block.tx = Some(tx);
        }
        Ok(())
    }

    /// Takes the transaction of the block, for one statement.
    pub(super) async fn take_tx(&mut self) -> Result<Tx, SqlError> {
        self.open_block().await?;
        let interrupt = self.interrupt();
        let tx = self.block.as_mut().and_then(|block| block.tx.take());
        let mut tx = tx.ok_or_else(|| no_block("this statement"))?;
        tx.interrupt = interrupt;
        Ok(tx)
    }

    /// Reads the newest schema, unless the transaction of the block has begun.
    pub(super) async fn refresh_before_block(&self) -> Result<(), SqlError> {
        match self.block.as_ref().and_then(|block| block.tx.as_ref()) {
            Some(_) => Ok(()),
            None => self.database.refresh().await.map_err(of_client),
        }
    }

    pub(super) fn return_tx(&mut self, tx: Tx) {
        if let Some(block) = &mut self.block {
            block.tx = Some(tx);
            block.has_results = true;
        }
    }

    pub(super) async fn in_block(
        &mut self,
        prepared: &Prepared,
        statement: &Statement,
        parameters: &[Value],
    ) -> Result<Response, SqlError> {
        if statement.reads_past() {
            let error = SqlError::unsupported("AS OF in a transaction block");
            return Err(error.with_hint("Use BEGIN READ ONLY AS OF ..."));
        }
        let mut has_refreshed = false;
        loop {
            let mut tx = self.take_tx().await?;
            let outcome = match self.run(&mut tx, prepared, statement, parameters).await {
                Err(failure) => Err(tx.checked(failure).await),
                outcome => outcome,
            };
            let is_first = self.block.as_ref().is_some_and(|block| !block.has_results && block.savepoints.is_empty());
            match outcome {
                Ok(response) => {
                    self.return_tx(tx);
                    return Ok(response);
                }
                // The client has no results of it yet.
                Err(Failure::Stale | Failure::Conflict(_)) if is_first && !has_refreshed => {
                    self.overtaken = tx.for_retry().map(|store| (store, Instant::now()));
                    tx.rollback().await;
                }
                Err(failure) => {
                    if let Some(block) = &mut self.block {
                        block.tx = Some(tx);
                    }
                    return Err(failure.into());
                }
            }
            has_refreshed = true;
            self.database.refresh().await.map_err(of_client)?;
        }
    }

    pub(super) async fn savepoint(&mut self, name: &str) -> Result<Response, SqlError> {
        if self.status() != Status::Block {
            return Err(no_block("SAVEPOINT"));
        }
        let mut tx = self.take_tx().await?;
        let saved = tx.savepoint();
        if let Some(block) = &mut self.block {
            block.tx = Some(tx);
            if block.savepoints.len() >= SAVEPOINTS_MAX {
                let message = format!("a transaction can have at most {SAVEPOINTS_MAX} savepoints");
                return Err(SqlError::new(sql::sqlstate::PROGRAM_LIMIT_EXCEEDED, message));
            }
            block.savepoints.push((name.to_owned(), saved));
        }
        Ok(done("SAVEPOINT"))
    }

    pub(super) fn release(&mut self, name: &str) -> Result<Response, SqlError> {
        let Some(block) = self.block.as_mut().filter(|block| !block.is_implicit) else {
            return Err(no_block("RELEASE SAVEPOINT"));
        };
        let found = block.savepoints.iter().rposition(|(saved, _)| saved == name);
        block.savepoints.truncate(found.ok_or_else(|| no_savepoint(name))?);
        Ok(done("RELEASE"))
    }

    pub(super) fn rollback_to(&mut self, name: &str) -> Result<Response, SqlError> {
        let Some(block) = self.block.as_mut().filter(|block| !block.is_implicit) else {
            return Err(no_block("ROLLBACK TO SAVEPOINT"));
        };
        let found = block.savepoints.iter().rposition(|(saved, _)| saved == name);
        let found = found.ok_or_else(|| no_savepoint(name))?;
        block.savepoints.truncate(found + 1);
        if let (Some(tx), Some((_, saved))) = (&mut block.tx, block.savepoints.get(found)) {
            tx.restore(saved)?;
        }
        block.has_failed = false;
        Ok(done("ROLLBACK"))
    }
}
