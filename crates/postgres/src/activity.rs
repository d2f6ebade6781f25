//! What runs on this node: the sessions with their statements, and counts of both.
//!
//! Events are counted by atomics. A session publishes its state under a mutex of its own, which only readers of
//! `pg_stat_activity` contend for, and without an allocation.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use prometheus::{Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, Opts, Registry};
use sql::SqlError;
use sql::statement::Statement;

use crate::session::Status;
use crate::transaction::now;

/// Upper bounds of the histogram's buckets, in seconds.
const SECONDS: [f64; 14] =
    [0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 10.0, 60.0];

/// The SQLSTATEs that are counted by themselves, ...
const CODES: [&str; 7] = ["40001", "40003", "57014", "23505", "53200", "53300", "08006"];
/// ... and the classes of the others. All further ones are counted as `other`.
const CLASSES: [&str; 18] =
    ["08", "0A", "21", "22", "23", "25", "26", "28", "34", "3B", "3D", "40", "42", "53", "54", "55", "57", "XX"];
/// Bytes of a statement that others see.
const SHOWN_BYTES: usize = 8 << 10;
/// Bytes of a statement that are logged.
const LOGGED_BYTES: usize = 2_000;

/// The kind of a statement, for metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Select,
    Insert,
    Update,
    Delete,
    Copy,
    Definition,
    Transaction,
    Other,
}

impl Kind {
    const NAMES: [&str; 8] = ["select", "insert", "update", "delete", "copy", "ddl", "transaction", "other"];

    pub(crate) fn of(statement: Option<&Statement>) -> Self {
        match statement {
            Some(Statement::Query(..) | Statement::Declare { .. } | Statement::Fetch { .. }) => Self::Select,
            Some(Statement::Insert(_)) => Self::Insert,
            Some(Statement::Update(_)) => Self::Update,
            Some(Statement::Delete(_)) => Self::Delete,
            Some(Statement::Copy(_)) => Self::Copy,
            Some(
                Statement::Definition(_)
                | Statement::Truncate { .. }
                | Statement::CreateDatabase { .. }
                | Statement::DropDatabase { .. },
            ) => Self::Definition,
            Some(
                Statement::Begin(_)
                | Statement::Commit { .. }
                | Statement::Rollback { .. }
                | Statement::Savepoint(_)
                | Statement::Release(_)
                | Statement::RollbackTo(_)
                | Statement::SetTransaction { .. },
            ) => Self::Transaction,
            _ => Self::Other,
        }
    }
}

/// The sessions of this process, and the metrics of their statements.
#[derive(Debug)]
pub struct Activity {
    sessions: Mutex<BTreeMap<i32, Arc<SessionActivity>>>,
    open: IntGauge,
    /// Statements and their durations.
    statements: HistogramVec,
    by_kind: [Histogram; Kind::NAMES.len()],
    errors: IntCounterVec,
    /// In the order of [`CODES`], [`CLASSES`] and `other`.
    by_code: Vec<IntCounter>,
}

impl Activity {
    /// No sessions, and metrics that are in no registry.
    ///
    /// # Errors
    /// None in practice: the names of the metrics are constant.
    pub fn new() -> Result<Self, prometheus::Error> {
        let open = IntGauge::new("loggos_sql_sessions", "Sessions of PostgreSQL clients that are open.")?;
        let seconds = "Time to execute a statement of a PostgreSQL client and to send its result, in seconds.";
        let seconds = HistogramOpts::new("loggos_sql_statement_duration_seconds", seconds);
        let statements = HistogramVec::new(seconds.buckets(SECONDS.to_vec()), &["kind"])?;
        let errors = "Errors sent to PostgreSQL clients, by SQLSTATE: some codes, the classes of others, or other.";
        let errors = IntCounterVec::new(Opts::new("loggos_sql_errors_total", errors), &["sqlstate"])?;
        let by_kind = Kind::NAMES.map(|kind| statements.with_label_values(&[kind]));
        let labels = CODES.iter().chain(&CLASSES).chain(&["other"]);
        let by_code = labels.map(|label| errors.with_label_values(&[*label])).collect();
        Ok(Self { sessions: Mutex::default(), open, statements, by_kind, errors, by_code })
    }

    /// Adds the metrics to a registry.
    ///
    /// # Errors
    /// The registry has metrics with these names.
    pub fn register(&self, registry: &Registry) -> Result<(), prometheus::Error> {
        registry.register(Box::new(self.open.clone()))?;
        registry.register(Box::new(self.statements.clone()))?;
        registry.register(Box::new(self.errors.clone()))
    }

    /// Adds a session, until the result is dropped.
    pub(crate) fn enter(self: &Arc<Self>, session: SessionActivity) -> Entered {
        let session = Arc::new(session);
        self.lock().insert(session.process, Arc::clone(&session));
        self.open.inc();
        Entered { activity: Arc::clone(self), session }
    }

    /// An error that was sent to a client.
    pub(crate) fn failed(&self, error: &SqlError) {
        let state = error.sqlstate;
        let code = CODES.iter().position(|code| *code == state);
        let class = || CLASSES.iter().position(|class| state.starts_with(class)).map(|place| CODES.len() + place);
        let place = code.or_else(class).unwrap_or(CODES.len() + CLASSES.len());
        if let Some(count) = self.by_code.get(place) {
            count.inc();
        }
    }

    /// A statement has ended, or a part of its result was sent.
    pub(crate) fn ended(&self, kind: Kind, after: Duration) {
        if let Some(seconds) = self.by_kind.get(kind as usize) {
            seconds.observe(after.as_secs_f64());
        }
    }

    /// The sessions, by the number of their process.
    #[must_use]
    pub fn sessions(&self) -> Vec<sql::system::SessionRow> {
        let sessions: Vec<Arc<SessionActivity>> = self.lock().values().cloned().collect();
        sessions.iter().map(|session| session.row()).collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<i32, Arc<SessionActivity>>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A session among those of the process.
#[derive(Debug)]
pub(crate) struct Entered {
    activity: Arc<Activity>,
    session: Arc<SessionActivity>,
}

impl Entered {
    pub(crate) fn session(&self) -> &SessionActivity {
        &self.session
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        self.activity.lock().remove(&self.session.process);
        self.activity.open.dec();
    }
}

/// The published state of a session. Times are in microseconds since 2000-01-01.
#[derive(Debug)]
pub(crate) struct SessionActivity {
    process: i32,
    database: String,
    user: String,
    client: Option<SocketAddr>,
    started: i64,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    application: String,
    is_active: bool,
    status: Status,
    /// The last message with statements.
    text: Option<Arc<str>>,
    statement_started: i64,
    transaction_started: Option<i64>,
    changed: i64,
}

/// A statement in progress.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Begun {
    kind: Kind,
    at: Instant,
}

impl Begun {
    /// Whether it changes the schema.
    pub(crate) fn is_definition(&self) -> bool {
        self.kind == Kind::Definition
    }
}

impl SessionActivity {
    pub(crate) fn new(
        process: i32,
        database: &str,
        user: &str,
        application: String,
        client: Option<SocketAddr>,
    ) -> Self {
        let started = now();
        let state = State {
            application,
            is_active: false,
            status: Status::Idle,
            text: None,
            statement_started: started,
            transaction_started: None,
            changed: started,
        };
        let (database, user) = (database.to_owned(), user.to_owned());
        Self { process, database, user, client, started, state: Mutex::new(state) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The client has set its name.
    pub(crate) fn rename(&self, application: &str) {
        application.clone_into(&mut self.state().application);
    }

    /// A statement of this text begins.
    pub(crate) fn begin(&self, kind: Kind, text: &Arc<str>) -> Begun {
        // A session that is idle must not hold a large text.
        let shown = match text.len() {
            0..=SHOWN_BYTES => Arc::clone(text),
            _ => Arc::from(&text[..text.floor_char_boundary(SHOWN_BYTES)]),
        };
        let mut state = self.state();
        (state.is_active, state.text) = (true, Some(shown));
        state.statement_started = now();
        state.changed = state.statement_started;
        Begun { kind, at: Instant::now() }
    }

    /// The statement has ended. Returns the time since its begin.
    pub(crate) fn end(&self, begun: Begun, status: Status, activity: &Activity) -> Duration {
        let after = begun.at.elapsed();
        activity.ended(begun.kind, after);
        let mut state = self.state();
        (state.is_active, state.status) = (false, status);
        state.transaction_started = match status {
            Status::Idle => None,
            Status::Block | Status::Failed => state.transaction_started.or(Some(state.statement_started)),
        };
        state.changed = now();
        after
    }

    fn row(&self) -> sql::system::SessionRow {
        let state = self.state();
        let words = match (state.is_active, state.status) {
            (true, _) => "active",
            (false, Status::Idle) => "idle",
            (false, Status::Block) => "idle in transaction",
            (false, Status::Failed) => "idle in transaction (aborted)",
        };
        sql::system::SessionRow {
            process: self.process,
            database: self.database.clone(),
            user: self.user.clone(),
            application: state.application.clone(),
            client: self.client.map(|client| (client.ip().to_string(), client.port())),
            started: self.started,
            transaction_started: state
                .transaction_started
                .or_else(|| state.is_active.then_some(state.statement_started)),
            statement_started: state.text.as_ref().map(|_| state.statement_started),
            changed: state.changed,
            state: words,
            text: state.text.clone().unwrap_or_default(),
        }
    }
}

/// The beginning of a statement's text, for the log.
pub(crate) fn logged(text: &str) -> &str {
    &text[..text.floor_char_boundary(LOGGED_BYTES)]
}
