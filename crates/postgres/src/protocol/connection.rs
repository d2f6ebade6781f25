//! A connection: reads messages, executes them in its session, and sends the results.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use base::budget::{ByteBudget, Reservation};
use bytes::{Buf as _, BytesMut};
use sql::statement::Statement;
use sql::{SqlError, Value, direct, sqlstate};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::Shared;
use super::cursor::is_of_cursor;
use super::message::{self, Message};
use super::outgoing::{Outgoing, Severity};
use super::portal::{PORTALS_MAX, Portal, Progress};
use super::startup::{STARTUP_MAX, Startup};
use crate::activity::{Begun, Entered, Kind, logged};
use crate::limits::out_of_memory;
use crate::session::{Response, RowStream, Session, Status};
use crate::statement::Prepared;

/// Timeout for the first messages.
const STARTUP_PATIENCE: Duration = Duration::from_secs(30);
/// A client that sends nothing more of a large message for this time is disconnected.
const READ_PATIENCE: Duration = Duration::from_secs(60);
/// A client that takes nothing for this time is disconnected.
const WRITE_PATIENCE: Duration = Duration::from_secs(60);
/// Bytes of results that are collected before they are sent.
const OUTGOING_BYTES: usize = 64 << 10;
/// Maximum bytes of the messages that are inspected before a statement is executed.
const LOOKAHEAD_BYTES: usize = 1 << 10;
/// Smaller messages and results do not count towards the memory of large ones.
const LARGE_BYTES: usize = 64 << 10;
/// Bytes of a large message that are read at once.
const STEP_BYTES: usize = 256 << 10;

/// Why a connection ends.
#[derive(Debug, thiserror::Error)]
pub(super) enum Ended {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("the client takes no data")]
    Stalled,
    #[error("{0}")]
    Protocol(SqlError),
    #[error("the client has left")]
    Left,
}

/// The socket, with input that is not decoded and output that is not sent.
pub(super) struct Socket {
    stream: TcpStream,
    input: BytesMut,
    pub(super) out: Outgoing,
    shared: Arc<Shared>,
    memory: ByteBudget,
    /// The memory of the large message that is being handled.
    held: Option<Reservation>,
}

impl Socket {
    /// Reads until the input has this many bytes.
    async fn fill(&mut self, bytes: usize) -> Result<(), Ended> {
        while self.input.len() < bytes {
            if self.stream.read_buf(&mut self.input).await? == 0 {
                return Err(Ended::Left);
            }
        }
        Ok(())
    }

    /// The next message: its type and body, or that there is no memory for it.
    async fn next(&mut self) -> Result<(u8, Result<BytesMut, SqlError>), Ended> {
        self.held = None;
        self.fill(5).await?;
        let mut header = [0; 5];
        header.copy_from_slice(&self.input[..5]);
        let length = match message::length(header) {
            Ok(length) => length,
            Err(error) => {
                self.report(Severity::Fatal, &error);
                self.flush().await?;
                return Err(Ended::Protocol(error));
            }
        };
        if length > LARGE_BYTES && !self.fill_large(5 + length).await? {
            return Ok((header[0], Err(out_of_memory())));
        }
        self.fill(5 + length).await?;
        let mut message = self.input.split_to(5 + length);
        // Small messages do not need a large buffer.
        if self.input.is_empty() && length > LARGE_BYTES {
            self.input = BytesMut::new();
        }
        Ok((header[0], Ok(message.split_off(5))))
    }

    /// Reads a large message of this many bytes. Its memory is counted as the bytes arrive, so that a client which
    /// announces a message and does not send it uses none. Returns false if there is no room: the message is then read
    /// and discarded.
    async fn fill_large(&mut self, bytes: usize) -> Result<bool, Ended> {
        let mut held = self.memory.charge(0);
        while self.input.len() < bytes {
            let step = bytes.min(self.input.len() + STEP_BYTES);
            if !held.try_grow(step.saturating_sub(held.bytes())) {
                drop(held);
                self.discard(bytes).await?;
                return Ok(false);
            }
            while self.input.len() < step {
                self.fill_more().await?;
            }
        }
        self.held = Some(held);
        Ok(true)
    }

    /// Reads at least one more byte of a message that has begun.
    async fn fill_more(&mut self) -> Result<(), Ended> {
        timeout(READ_PATIENCE, self.fill(self.input.len() + 1)).await.map_err(|_| Ended::Stalled)?
    }

    async fn discard(&mut self, bytes: usize) -> Result<(), Ended> {
        let mut rest = bytes;
        loop {
            let there = rest.min(self.input.len());
            self.input.advance(there);
            rest -= there;
            if rest == 0 {
                return Ok(());
            }
            self.input = BytesMut::with_capacity(LARGE_BYTES);
            self.fill_more().await?;
        }
    }

    /// Whether the next messages end the transaction, so that no other statement is part of it. It waits for them: a
    /// client that has sent neither Sync nor Flush expects no response yet.
    async fn ends_transaction(&mut self) -> Result<bool, Ended> {
        let mut at = 0;
        while at < LOOKAHEAD_BYTES {
            self.fill(at + 5).await?;
            let mut header = [0; 5];
            header.copy_from_slice(&self.input[at..at + 5]);
            match (header[0], message::length(header)) {
                (b'S', Ok(_)) => return Ok(true),
                // It cannot fail.
                (b'C', Ok(length)) => at += 5 + length,
                _ => return Ok(false),
            }
        }
        Ok(false)
    }

    /// Counts the memory of a result. A statement that has changed rows can no longer be refused.
    pub(super) fn hold(&self, rows: &[Vec<Value>], may_refuse: bool) -> Result<Option<Reservation>, SqlError> {
        let bytes: usize = rows.iter().map(|row| direct::row_bytes(row)).sum();
        if bytes <= LARGE_BYTES {
            return Ok(None);
        }
        if may_refuse {
            self.memory.try_reserve(bytes).map(Some).ok_or_else(out_of_memory)
        } else {
            Ok(Some(self.memory.charge(bytes)))
        }
    }

    /// Counts the memory of rows for which there are no small exceptions.
    pub(super) fn reserve(&self, rows: &[Vec<Value>]) -> Result<Option<Reservation>, SqlError> {
        let bytes: usize = rows.iter().map(|row| direct::row_bytes(row)).sum();
        self.memory.try_reserve(bytes).map(Some).ok_or_else(out_of_memory)
    }

    async fn flush(&mut self) -> Result<(), Ended> {
        let mut rest = &self.out.0[..];
        while !rest.is_empty() {
            let written = timeout(WRITE_PATIENCE, self.stream.write(rest)).await.map_err(|_| Ended::Stalled)??;
            rest = &rest[written..];
        }
        self.out.0.clear();
        Ok(())
    }

    /// Sends an error to the client, with the other output.
    pub(super) fn report(&mut self, severity: Severity, error: &SqlError) {
        self.shared.databases.activity().failed(error);
        self.out.report(severity, error);
    }

    /// Sends the collected output, if it is large.
    async fn flush_some(&mut self) -> Result<(), Ended> {
        if self.out.0.len() >= OUTGOING_BYTES { self.flush().await } else { Ok(()) }
    }
}

pub(super) struct Connection {
    pub(super) socket: Socket,
    pub(super) session: Session,
    entered: Entered,
    pub(super) portals: HashMap<String, Portal>,
    /// After an error in the extended protocol, messages are ignored until Sync.
    is_skipping: bool,
}

/// Serves a connection until it ends.
pub(super) async fn run(stream: TcpStream, shared: Arc<Shared>, is_refused: bool) -> Result<(), Ended> {
    let (input, out) = (BytesMut::with_capacity(8 << 10), Outgoing::default());
    let memory = shared.databases.session_memory();
    let mut socket = Socket { stream, input, out, shared: Arc::clone(&shared), memory, held: None };
    let started = timeout(STARTUP_PATIENCE, start(&mut socket)).await.map_err(|_| Ended::Stalled)?;
    let Some((parameters, unknown)) = started? else { return Ok(()) };
    if is_refused {
        let error = SqlError::new("53300", "sorry, too many clients already");
        socket.report(Severity::Fatal, &error);
        return socket.flush().await;
    }
    let mut session = match Session::begin(Arc::clone(&shared.databases), parameters).await {
        Ok(session) => session,
        Err(error) => {
            socket.report(Severity::Fatal, &error);
            return socket.flush().await;
        }
    };
    socket.memory = session.memory().clone();
    let registered = shared.register(session.cancel_handle());
    session.set_process(registered.key.0);
    let client = socket.stream.peer_addr().ok();
    let entered = shared.databases.activity().enter(session.activity(client));
    if let Some(unknown) = unknown {
        socket.out.negotiate_version(&unknown);
    }
    socket.out.authenticated();
    for (name, value) in session.reported_settings() {
        socket.out.setting(&name, &value);
    }
    socket.out.key(registered.key.0, registered.key.1);
    socket.out.ready(Status::Idle);
    socket.flush().await?;
    let mut connection = Connection { socket, session, entered, portals: HashMap::new(), is_skipping: false };
    let ended = connection.serve().await;
    connection.session.close().await;
    ended
}

type Parameters = (Vec<(String, String)>, Option<Vec<String>>);

/// The first messages. `None` for a connection that is no session.
async fn start(socket: &mut Socket) -> Result<Option<Parameters>, Ended> {
    loop {
        socket.fill(4).await?;
        let mut length = [0; 4];
        length.copy_from_slice(&socket.input[..4]);
        let length = usize::try_from(i32::from_be_bytes(length)).ok();
        let Some(length) = length.filter(|length| (8..=STARTUP_MAX).contains(length)) else {
            return Err(Ended::Protocol(SqlError::new(
                sqlstate::PROTOCOL_VIOLATION,
                "invalid length of startup packet",
            )));
        };
        socket.fill(length).await?;
        let body = socket.input.split_to(length).split_off(4);
        match Startup::decode(body) {
            Ok(Startup::Encryption) => {
                socket.out.0.extend_from_slice(b"N");
                socket.flush().await?;
            }
            Ok(Startup::Cancel { process, secret }) => {
                socket.shared.cancel(process, secret);
                return Ok(None);
            }
            Ok(Startup::Session { parameters, unknown, is_newer }) => {
                let is_negotiated = is_newer || !unknown.is_empty();
                return Ok(Some((parameters, is_negotiated.then_some(unknown))));
            }
            Err(error) => {
                socket.report(Severity::Fatal, &error);
                socket.flush().await?;
                return Err(Ended::Protocol(error));
            }
        }
    }
}

impl Connection {
    async fn serve(&mut self) -> Result<(), Ended> {
        loop {
            let (kind, body) = self.socket.next().await?;
            let message = match body.and_then(|body| Message::decode(kind, body)) {
                Ok(Message::Terminate) => return Ok(()),
                Ok(message) => message,
                Err(error) => {
                    // The end of the message is known, so the connection can continue.
                    if kind == b'Q' {
                        self.socket.report(Severity::Error, &error);
                        self.ready().await?;
                    } else if !self.is_skipping {
                        self.failed(&error).await;
                    }
                    continue;
                }
            };
            if self.is_skipping && !matches!(message, Message::Sync | Message::Query(_)) {
                continue;
            }
            match message {
                Message::Query(text) => {
                    self.is_skipping = false;
                    self.query(&text).await?;
                }
                Message::Sync => {
                    self.is_skipping = false;
                    // Ends the transaction of the statements since the last Sync.
                    if let Err(error) = self.session.end_implicit().await {
                        self.socket.report(Severity::Error, &error);
                    }
                    self.ready().await?;
                }
                Message::Flush => self.socket.flush().await?,
                // The rest of a COPY that has failed.
                Message::CopyData(_) | Message::CopyDone | Message::CopyFail(_) => {}
                message => {
                    if let Err(error) = self.extended(message).await? {
                        self.failed(&error).await;
                    }
                    self.socket.flush_some().await?;
                }
            }
        }
    }

    /// Records the start of a statement for the sessions' view and the metrics.
    fn begun(&self, prepared: &Prepared) -> Begun {
        self.entered.session().begin(Kind::of(prepared.statement.as_ref()), &prepared.text)
    }

    /// It has ended, or a part of its result was sent. Logs changes of the schema and slow statements, without the values
    /// of parameters.
    fn ended(&self, begun: Begun, prepared: &Prepared, is_done: bool) {
        let status = self.session.status();
        let after = self.entered.session().end(begun, status, self.socket.shared.databases.activity());
        let (database, statement) = (self.session.database_name(), logged(&prepared.text));
        if is_done && begun.is_definition() {
            let in_transaction = status != Status::Idle;
            tracing::info!(database, statement, in_transaction, "schema changed");
        }
        if self.session.log_min_duration().is_some_and(|from| after >= from) {
            let milliseconds = after.as_millis();
            tracing::info!(database, statement, milliseconds, "slow statement");
        }
    }

    /// The failure of a statement after its execution.
    async fn fail(&mut self, error: SqlError) -> SqlError {
        self.session.fail().await;
        error
    }

    /// An error in the extended protocol.
    async fn failed(&mut self, error: &SqlError) {
        self.session.fail().await;
        self.notices();
        self.socket.report(Severity::Error, error);
        self.is_skipping = true;
    }

    fn notices(&mut self) {
        for notice in self.session.take_notices() {
            self.socket.out.notice(&notice);
        }
        for (name, value) in self.session.take_reports() {
            if name == "application_name" {
                self.entered.session().rename(&value);
            }
            self.socket.out.setting(&name, &value);
        }
    }

    async fn ready(&mut self) -> Result<(), Ended> {
        let status = self.session.status();
        if status == Status::Idle {
            // Portals end with their transaction.
            self.portals.clear();
        }
        self.notices();
        self.socket.out.ready(status);
        self.socket.flush().await
    }

    async fn query(&mut self, text: &str) -> Result<(), Ended> {
        self.session.forget("");
        self.portals.remove("");
        let outcome = match self.session.parse(text) {
            Ok(statements) if statements.is_empty() => {
                self.socket.out.empty_query();
                Ok(())
            }
            Ok(statements) => self.statements(&statements).await?,
            Err(error) => {
                self.session.fail().await;
                Err(error)
            }
        };
        if let Err(error) = outcome {
            self.notices();
            self.socket.report(Severity::Error, &error);
        }
        self.ready().await
    }

    /// Several statements of one message are one transaction, unless they say otherwise.
    async fn statements(&mut self, statements: &[Arc<Prepared>]) -> Result<Result<(), SqlError>, Ended> {
        for prepared in statements {
            if statements.len() > 1 && prepared.can_be_implicit() {
                self.session.begin_implicit();
            }
            let begun = self.begun(prepared);
            let outcome = self.statement(prepared).await?;
            self.ended(begun, prepared, outcome.is_ok());
            if let Err(error) = outcome {
                return Ok(Err(error));
            }
        }
        Ok(self.session.end_implicit().await)
    }

    /// One statement of the simple protocol, with its result.
    async fn statement(&mut self, prepared: &Prepared) -> Result<Result<(), SqlError>, Ended> {
        if is_of_cursor(prepared) {
            if let Err(error) = self.cursor(prepared, &[], None).await? {
                return Ok(Err(self.fail(error).await));
            }
            return Ok(Ok(()));
        }
        if let Err(error) = self.settle(prepared).await {
            return Ok(Err(self.fail(error).await));
        }
        let response = match self.session.execute(prepared, &[]).await {
            Ok(response) => response,
            Err(error) => return Ok(Err(error)),
        };
        self.notices();
        self.after(prepared);
        Ok(match response {
            Response::Rows { columns, rows, tag } => {
                let _held = match self.socket.hold(&rows, prepared.is_query()) {
                    Ok(held) => held,
                    Err(error) => return Ok(Err(self.fail(error).await)),
                };
                self.socket.out.columns(&columns, &[]);
                self.rows(&mut rows.into_iter(), usize::MAX, &[]).await?;
                self.socket.out.complete(&tag);
                Ok(())
            }
            Response::Stream { columns, mut stream } => {
                self.socket.out.columns(&columns, &[]);
                self.stream(&mut Vec::new().into_iter(), &mut stream, usize::MAX, &[]).await?.map(|_| ())
            }
            response => self.other(response).await?,
        })
    }

    /// A result without rows, or of COPY.
    async fn other(&mut self, response: Response) -> Result<Result<(), SqlError>, Ended> {
        match response {
            Response::Empty => self.socket.out.empty_query(),
            Response::Done { tag } => self.socket.out.complete(&tag),
            Response::Rows { .. } | Response::Stream { .. } => {}
            Response::CopyIn { columns } => return self.copy_in(columns).await,
            Response::CopyOut { columns } => {
                self.socket.out.copy(false, columns);
                loop {
                    match self.session.copy_next().await {
                        Ok(Some(lines)) => {
                            for line in lines.split_inclusive(|byte| *byte == b'\n') {
                                self.socket.out.copy_data(line);
                                self.socket.flush_some().await?;
                            }
                        }
                        Ok(None) => break,
                        Err(error) => return Ok(Err(error)),
                    }
                }
                self.socket.out.copy_done();
                let tag = self.session.copy_end();
                self.socket.out.complete(&tag);
            }
        }
        Ok(Ok(()))
    }

    async fn copy_in(&mut self, columns: usize) -> Result<Result<(), SqlError>, Ended> {
        self.socket.out.copy(true, columns);
        self.socket.flush().await?;
        loop {
            let (kind, body) = self.socket.next().await?;
            let outcome = match body.and_then(|body| Message::decode(kind, body)) {
                Ok(Message::CopyData(data)) => self.session.copy_data(&data).await,
                Ok(Message::CopyDone) => match self.session.copy_done().await {
                    Ok(tag) => {
                        self.socket.out.complete(&tag);
                        return Ok(Ok(()));
                    }
                    Err(error) => Err(error),
                },
                Ok(Message::CopyFail(reason)) => Err(self.session.copy_fail(&reason).await),
                // Clients may send them right after the message that begins COPY.
                Ok(Message::Flush | Message::Sync) => Ok(()),
                Ok(Message::Terminate) => return Err(Ended::Left),
                Ok(_) => Err(self.session.copy_fail("unexpected message type during COPY from stdin").await),
                Err(error) => Err(self.session.copy_fail(&error.message).await),
            };
            if let Err(error) = outcome {
                return Ok(Err(error));
            }
        }
    }

    /// Sends at most this many rows.
    pub(super) async fn rows(
        &mut self,
        rows: &mut std::vec::IntoIter<Vec<Value>>,
        max: usize,
        formats: &[i16],
    ) -> Result<(), Ended> {
        for row in rows.take(max) {
            self.socket.out.row(&row, formats);
            self.socket.flush_some().await?;
        }
        Ok(())
    }

    /// Sends at most this many rows of a query. Returns whether these were all.
    async fn stream(
        &mut self,
        rows: &mut std::vec::IntoIter<Vec<Value>>,
        stream: &mut RowStream,
        max: usize,
        formats: &[i16],
    ) -> Result<Result<bool, SqlError>, Ended> {
        let mut left = max;
        loop {
            let before = rows.len();
            self.rows(rows, left, formats).await?;
            left = left.saturating_sub(before - rows.len());
            if left == 0 {
                return Ok(Ok(false));
            }
            // Sends the collected rows before a long wait.
            match self.session.next_rows(stream).await {
                Ok(Some(page)) => *rows = page.into_iter(),
                Ok(None) => {
                    self.socket.out.complete(&stream.tag());
                    return Ok(Ok(true));
                }
                Err(error) => return Ok(Err(error)),
            }
        }
    }

    /// A message of the extended protocol.
    async fn extended(&mut self, message: Message) -> Result<Result<(), SqlError>, Ended> {
        Ok(match message {
            Message::Parse { name, text, types } => self.parse(&name, &text, &types).await,
            Message::Bind(bind) => self.bind(bind).await,
            Message::Describe { is_portal, name } => self.describe(is_portal, &name).await,
            Message::Execute { portal, rows } => {
                let Some(prepared) = self.portals.get(&portal).map(|portal| Arc::clone(&portal.prepared)) else {
                    return Ok(Err(no_portal(&portal)));
                };
                let begun = self.begun(&prepared);
                let outcome = self.execute(&portal, rows).await?;
                self.ended(begun, &prepared, outcome.is_ok());
                return Ok(outcome);
            }
            Message::Close { is_portal, name } => {
                if is_portal {
                    self.portals.remove(&name);
                } else {
                    self.session.forget(&name);
                }
                self.socket.out.close_complete();
                Ok(())
            }
            _ => Ok(()),
        })
    }

    async fn parse(&mut self, name: &str, text: &str, types: &[u32]) -> Result<(), SqlError> {
        let prepared = self.session.prepare(text, types).await?;
        self.session.store(name, prepared)?;
        self.socket.out.parse_complete();
        Ok(())
    }

    async fn bind(&mut self, bind: message::Bind) -> Result<(), SqlError> {
        let prepared = self.session.stored(&bind.statement)?;
        let name = bind.portal.clone();
        if !name.is_empty() && self.portals.contains_key(&name) {
            return Err(SqlError::new("42P03", format!("cursor \"{name}\" already exists")));
        }
        if self.portals.len() >= PORTALS_MAX {
            let message = format!("a connection can have at most {PORTALS_MAX} portals");
            return Err(SqlError::new(sqlstate::PROGRAM_LIMIT_EXCEEDED, message));
        }
        let (types, _) = self.session.describe(&prepared).await?;
        self.portals.insert(name, Portal::new(prepared, bind, &types)?);
        self.socket.out.bind_complete();
        Ok(())
    }

    async fn describe(&mut self, is_portal: bool, name: &str) -> Result<(), SqlError> {
        let (prepared, formats) = if is_portal {
            let portal = self.portals.get(name).ok_or_else(|| no_portal(name))?;
            (Arc::clone(&portal.prepared), portal.formats.clone())
        } else {
            (self.session.stored(name)?, Vec::new())
        };
        let (types, mut columns) = self.session.describe(&prepared).await?;
        if !is_portal {
            self.socket.out.parameters(&types);
        }
        let mut formats = formats;
        if let Some(Statement::Fetch { name, is_move: false, .. }) = &prepared.statement
            && let Some(cursor) = self.portals.get(name)
        {
            if cursor.formats == [1] {
                formats = vec![1];
            }
            let query = Arc::clone(&cursor.prepared);
            columns = self.session.describe(&query).await?.1;
        }
        if columns.is_empty() {
            self.socket.out.no_data();
        } else {
            self.socket.out.columns(&columns, &formats);
        }
        Ok(())
    }

    async fn execute(&mut self, name: &str, max: usize) -> Result<Result<(), SqlError>, Ended> {
        // It returns to its place unless it fails.
        let Some(mut portal) = self.portals.remove(name) else { return Ok(Err(no_portal(name))) };
        if is_of_cursor(&portal.prepared) && matches!(portal.progress, Progress::Bound) {
            portal.progress = Progress::Done;
            let (prepared, parameters) = (Arc::clone(&portal.prepared), portal.parameters.clone());
            let formats = portal.formats.clone();
            self.portals.insert(name.to_owned(), portal);
            return self.cursor(&prepared, &parameters, Some(&formats)).await;
        }
        if let Progress::Bound = portal.progress {
            if let Err(error) = self.settle(&portal.prepared).await {
                return Ok(Err(error));
            }
            // The statements up to Sync are one transaction. A single one needs no block, and can be retried.
            let may_begin = !self.session.has_block() && portal.prepared.can_be_implicit();
            if may_begin && !self.socket.ends_transaction().await? {
                self.session.begin_implicit();
            }
            let executed = self.session.execute(&portal.prepared, &portal.parameters).await;
            self.notices();
            self.after(&portal.prepared);
            match executed {
                Ok(Response::Rows { rows, tag, .. }) => match self.socket.hold(&rows, portal.prepared.is_query()) {
                    Ok(held) => {
                        portal.progress =
                            Progress::Rows { rows: rows.into_iter(), tag, _held: held.into_iter().collect() }
                    }
                    Err(error) => return Ok(Err(error)),
                },
                Ok(Response::Stream { stream, .. }) => {
                    let rows = Vec::new().into_iter();
                    portal.progress = Progress::Stream { rows, stream: Box::new(stream) };
                }
                Ok(response) => {
                    portal.progress = Progress::Done;
                    self.portals.insert(name.to_owned(), portal);
                    return self.other(response).await;
                }
                Err(error) => return Ok(Err(error)),
            }
        }
        match &mut portal.progress {
            Progress::Rows { rows, tag, .. } => {
                let max = if max == 0 { usize::MAX } else { max };
                self.rows(rows, max, &portal.formats).await?;
                if rows.as_slice().is_empty() {
                    self.socket.out.complete(tag);
                    portal.progress = Progress::Done;
                } else {
                    self.socket.out.suspended();
                }
            }
            Progress::Stream { rows, stream } => {
                let max = if max == 0 { usize::MAX } else { max };
                match self.stream(rows, stream, max, &portal.formats).await? {
                    Ok(true) => portal.progress = Progress::Done,
                    Ok(false) => self.socket.out.suspended(),
                    Err(error) => return Ok(Err(error)),
                }
            }
            Progress::Bound | Progress::Done => {
                let error = SqlError::new(sqlstate::OBJECT_NOT_IN_PREREQUISITE_STATE, "the portal cannot be run again");
                return Ok(Err(error));
            }
        }
        self.portals.insert(name.to_owned(), portal);
        Ok(Ok(()))
    }
}

fn no_portal(name: &str) -> SqlError {
    SqlError::new("34000", format!("portal \"{name}\" does not exist"))
}
