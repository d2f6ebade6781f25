//! SQL cursors: portals that `DECLARE` opens, and `FETCH` reads.

use std::sync::Arc;

use sql::statement::Statement;
use sql::{SqlError, Value, sqlstate};

use super::connection::{Connection, Ended};
use super::portal::{PORTALS_MAX, Portal, Progress};
use crate::session::{Response, Status};
use crate::statement::Prepared;

/// Whether the connection executes a statement itself.
pub(super) fn is_of_cursor(prepared: &Prepared) -> bool {
    matches!(prepared.statement, Some(Statement::Declare { .. } | Statement::Fetch { .. } | Statement::Close(_)))
}

fn no_cursor(name: &str) -> SqlError {
    SqlError::new("34000", format!("cursor \"{name}\" does not exist"))
}

impl Connection {
    /// Executes `DECLARE`, `FETCH`, `MOVE` or `CLOSE`. Without `formats`, it sends the columns of the result too.
    pub(super) async fn cursor(
        &mut self,
        prepared: &Prepared,
        parameters: &[Value],
        formats: Option<&[i16]>,
    ) -> Result<Result<(), SqlError>, Ended> {
        if self.session.status() == Status::Failed {
            return Ok(Err(crate::session::failed_block()));
        }
        match &prepared.statement {
            Some(Statement::Declare { name, is_binary, query }) => {
                let query = Prepared::of((**query).clone(), &prepared.text, prepared.declared.clone());
                Ok(self.declare(name, *is_binary, query, parameters).await)
            }
            Some(Statement::Fetch { name, count, is_move }) => {
                // It returns to its place unless it fails.
                let Some(mut portal) = self.portals.remove(name) else { return Ok(Err(no_cursor(name))) };
                let outcome = self.fetch(&mut portal, *count, *is_move, formats).await?;
                if outcome.is_ok() {
                    self.portals.insert(name.clone(), portal);
                }
                Ok(outcome)
            }
            Some(Statement::Close(Some(name))) => {
                if self.portals.remove(name).is_none() {
                    return Ok(Err(no_cursor(name)));
                }
                self.socket.out.complete("CLOSE CURSOR");
                Ok(Ok(()))
            }
            Some(Statement::Close(None)) => {
                self.portals.clear();
                self.socket.out.complete("CLOSE CURSOR ALL");
                Ok(Ok(()))
            }
            _ => Ok(Ok(())),
        }
    }

    async fn declare(
        &mut self,
        name: &str,
        is_binary: bool,
        query: Prepared,
        parameters: &[Value],
    ) -> Result<(), SqlError> {
        if !self.session.has_block() {
            return Err(SqlError::new("25P01", "DECLARE CURSOR can only be used in transaction blocks"));
        }
        if self.portals.contains_key(name) {
            return Err(SqlError::new("42P03", format!("cursor \"{name}\" already exists")));
        }
        if self.portals.len() >= PORTALS_MAX {
            let message = format!("a connection can have at most {PORTALS_MAX} portals");
            return Err(SqlError::new(sqlstate::PROGRAM_LIMIT_EXCEEDED, message));
        }
        let progress = match self.session.execute(&query, parameters).await? {
            Response::Rows { rows, tag, .. } => {
                let held = self.socket.hold(&rows, true)?;
                Progress::Rows { rows: rows.into_iter(), tag, _held: held.into_iter().collect() }
            }
            Response::Stream { stream, .. } => {
                Progress::Stream { rows: Vec::new().into_iter(), stream: Box::new(stream) }
            }
            _ => return Err(SqlError::unsupported("a cursor of this statement")),
        };
        let formats = if is_binary { vec![1] } else { Vec::new() };
        let portal = Portal { prepared: Arc::new(query), parameters: parameters.to_vec(), formats, progress };
        self.portals.insert(name.to_owned(), portal);
        self.socket.out.complete("DECLARE CURSOR");
        Ok(())
    }

    async fn fetch(
        &mut self,
        portal: &mut Portal,
        count: Option<u64>,
        is_move: bool,
        formats: Option<&[i16]>,
    ) -> Result<Result<(), SqlError>, Ended> {
        if matches!(portal.progress, Progress::Bound) {
            return Ok(Err(SqlError::unsupported("FETCH from a portal that was not declared")));
        }
        let is_binary = portal.formats == [1];
        let shown = if is_binary { &portal.formats[..] } else { formats.unwrap_or_default() };
        if formats.is_none() && !is_move {
            match self.session.describe(&portal.prepared).await {
                Ok((_, columns)) => self.socket.out.columns(&columns, shown),
                Err(error) => return Ok(Err(error)),
            }
        }
        let wanted = count.and_then(|count| usize::try_from(count).ok()).unwrap_or(usize::MAX);
        let mut fetched = 0;
        while let Progress::Rows { rows, .. } | Progress::Stream { rows, .. } = &mut portal.progress {
            let before = rows.len();
            if is_move {
                rows.by_ref().take(wanted - fetched).for_each(drop);
            } else {
                self.rows(rows, wanted - fetched, shown).await?;
            }
            fetched += before - rows.len();
            if fetched == wanted {
                break;
            }
            match &mut portal.progress {
                Progress::Stream { rows, stream } => match self.session.next_rows(stream).await {
                    Ok(Some(page)) => *rows = page.into_iter(),
                    Ok(None) => portal.progress = Progress::Done,
                    Err(error) => return Ok(Err(error)),
                },
                progress => *progress = Progress::Done,
            }
        }
        self.socket.out.complete(&format!("{} {fetched}", if is_move { "MOVE" } else { "FETCH" }));
        Ok(Ok(()))
    }

    /// After a statement: portals end with their transaction.
    pub(super) fn after(&mut self, prepared: &Prepared) {
        if matches!(prepared.statement, Some(Statement::Commit { .. } | Statement::Rollback { .. })) {
            self.portals.clear();
        }
    }

    /// Before a statement that may change rows, takes all rows of the open queries, which do not see the change.
    pub(super) async fn settle(&mut self, prepared: &Prepared) -> Result<(), SqlError> {
        let is_return = matches!(prepared.statement, Some(Statement::RollbackTo(_)));
        let changes = is_return
            || matches!(
                prepared.statement,
                Some(
                    Statement::Insert(_)
                        | Statement::Update(_)
                        | Statement::Delete(_)
                        | Statement::Truncate { .. }
                        | Statement::Definition(_)
                        | Statement::Copy(_)
                        | Statement::Explain { .. }
                        | Statement::Execute { .. }
                )
            );
        if !changes || self.session.status() == Status::Failed && !is_return {
            return Ok(());
        }
        let mut lost = Vec::new();
        for (name, portal) in &mut self.portals {
            let Progress::Stream { rows, stream } = &mut portal.progress else { continue };
            let mut all: Vec<Vec<Value>> = rows.collect();
            let mut held: Vec<_> = self.socket.hold(&all, true)?.into_iter().collect();
            loop {
                match self.session.next_rows(stream).await {
                    Ok(Some(page)) => {
                        held.extend(self.socket.reserve(&page)?);
                        all.extend(page);
                    }
                    Ok(None) => {
                        portal.progress = Progress::Rows { rows: all.into_iter(), tag: stream.tag(), _held: held };
                        break;
                    }
                    Err(_) if is_return => {
                        lost.push(name.clone());
                        break;
                    }
                    Err(error) => return Err(error),
                }
            }
        }
        for name in lost {
            self.portals.remove(&name);
        }
        Ok(())
    }
}
