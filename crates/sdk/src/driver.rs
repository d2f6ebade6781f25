//! The async driver of the client state machine: opens connections, sends requests as calls or in streams, runs the
//! timer, and returns outcomes to the callers.
//!
//! A lock protects the state machine. It is held only for single steps, never across an await. Tasks run on the
//! caller's runtime. They hold a strong reference only while they report an event, so they end with the last client. If
//! a task ends with its runtime, the next call starts it again and finds its connection closed.

use std::collections::HashMap;
use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use api::columns::StreamResponse;
use api::local::{self, Answer};
use base::{DEADLOCK, KeyRange, Monotonic, OVERTAKEN};
use client::{Action, AttemptId, CallId, Error, Fault, Link, NodeResponse, Sent, Stamp, TimelineToken};
use tokio::runtime::Handle;
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinHandle;
use tokio::time::{sleep_until, timeout};
use tonic::Streaming;

use crate::call::call;
use crate::endpoints::{Connection, Endpoints};
use crate::fault::{self, with_causes};
use crate::request::{ApiRequest, ApiResponse, for_local_node, local_read, of_local_node, of_stream, streamed};
use crate::stream::Outgoing;

/// Timeout for opening a connection and its stream.
const LINK_TIME_MAX: Duration = Duration::from_secs(2);
/// Timeout of a read at the node of this process. The read is then sent as a call.
const LOCAL_READ_TIME_MAX: Duration = Duration::from_secs(1);

/// The result of a call.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) outcome: Result<ApiResponse, Error>,
    /// Whether an earlier attempt with unknown outcome may have been executed.
    pub(crate) in_doubt: bool,
    /// The stamp of a write.
    pub(crate) stamp: Option<Stamp>,
}

/// The state shared by all clones of a client.
#[derive(Debug)]
pub(crate) struct Driver {
    pub(crate) endpoints: Endpoints,
    /// Whether requests are sent in streams.
    streams: bool,
    /// The node of this process, which is the first endpoint. Most of its requests need no connection.
    local_node: Option<Arc<dyn local::Columns>>,
    began: Instant,
    core: Mutex<Core>,
    /// Notified when the timer is set, and when the driver is dropped.
    timer_set: Arc<Notify>,
    this: Weak<Self>,
}

#[derive(Debug)]
struct Core {
    machine: client::Client<ApiRequest, ApiResponse>,
    callers: HashMap<CallId, oneshot::Sender<Ended>>,
    /// Indexed by endpoint.
    lines: Vec<Option<Line>>,
    timer: Option<Monotonic>,
    timekeeper: Option<JoinHandle<()>>,
    /// Requests to the node of this process. They are submitted without the lock.
    for_local_node: Vec<LocalCall>,
}

#[derive(Debug)]
struct LocalCall {
    attempt: AttemptId,
    request: local::Request,
    time: Duration,
}

#[derive(Debug)]
struct Line {
    link: Link,
    connection: Connection,
    stream: Option<Arc<Outgoing>>,
}

impl Drop for Line {
    fn drop(&mut self) {
        self.stream.iter().for_each(|stream| stream.close());
    }
}

impl Driver {
    pub(crate) fn new(endpoints: Endpoints, streams: bool, local_node: Option<Arc<dyn local::Columns>>) -> Arc<Self> {
        static CLIENTS: AtomicU64 = AtomicU64::new(0);
        let seed = u64::from(std::process::id()) << 32 | CLIENTS.fetch_add(1, Ordering::Relaxed);
        let count = endpoints.count();
        let mut machine = client::Client::new(count, seed);
        if local_node.is_some() {
            machine.set_nearest(0);
        }
        let core = Core {
            machine,
            callers: HashMap::new(),
            lines: (0..count).map(|_| None).collect(),
            timer: None,
            timekeeper: None,
            for_local_node: Vec::new(),
        };
        Arc::new_cyclic(|this| Self {
            endpoints,
            streams,
            local_node,
            began: Instant::now(),
            core: Mutex::new(core),
            timer_set: Arc::default(),
            this: Weak::clone(this),
        })
    }

    /// Executes a call. Dropping the future abandons it.
    pub(crate) async fn call(&self, request: ApiRequest, deadline: Duration) -> Ended {
        self.call_with(request, None, deadline).await
    }

    /// As [`Driver::call`], with the stamp of a commit in a session that the caller has opened.
    pub(crate) async fn call_with(&self, request: ApiRequest, stamp: Option<Stamp>, deadline: Duration) -> Ended {
        let began = Instant::now();
        if let Some(outcome) = self.read_locally(&request, deadline).await {
            return Ended { outcome, in_doubt: false, stamp: None };
        }
        let deadline = deadline.saturating_sub(began.elapsed());
        let (sender, receiver) = oneshot::channel();
        let mut caller = self.step(|core, now| {
            let deadline = now + base::Duration(u64::try_from(deadline.as_nanos()).unwrap_or(u64::MAX));
            let id = core.machine.begin(request.ask(stamp), deadline, now);
            core.callers.insert(id, sender);
            Caller { driver: self, id, has_ended: false }
        });
        let ended = receiver.await;
        caller.has_ended = true;
        // The state machine ends every call, so the sender is dropped only with the client itself.
        ended.unwrap_or_else(|_| Ended {
            outcome: Err(Error::OutcomeUnknown("the client was closed".to_owned())),
            in_doubt: true,
            stamp: None,
        })
    }

    /// Reads at the node of this process. `None` if it does not lead the range, or does not answer: the request is then
    /// sent as usual.
    async fn read_locally(&self, request: &ApiRequest, deadline: Duration) -> Option<Result<ApiResponse, Error>> {
        let node = self.local_node.as_ref()?;
        let (table, key, read) = local_read(request)?;
        if self.lock().machine.endpoint_of(table, key) != 0 {
            return None;
        }
        let time = deadline.min(LOCAL_READ_TIME_MAX);
        let outcome = match node.ask(read, time) {
            Answer::Now(outcome) => outcome,
            Answer::Later(outcome) => timeout(time, outcome).await.ok()?,
        };
        match of_local_node(outcome) {
            Ok(NodeResponse::Of(response)) => Some(Ok(response)),
            Ok(NodeResponse::Shown { answer, shown }) => {
                self.lock().machine.has_seen(table, shown);
                Some(Ok(answer))
            }
            // The transaction has lost its locks: asking again would only wait.
            Err(Fault::Definite(Error::Aborted(reason))) if reason == OVERTAKEN || reason.starts_with(DEADLOCK) => {
                Some(Err(Error::Aborted(reason)))
            }
            Ok(NodeResponse::Session { .. }) | Err(_) => None,
        }
    }

    /// The preferred endpoint, for callers that send requests themselves.
    pub(crate) fn preferred(&self) -> usize {
        self.step(|core, _| core.machine.preferred())
    }

    /// The time since the driver was created, as passed to its state machines.
    pub(crate) fn now(&self) -> Monotonic {
        Monotonic(u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// Prefers an endpoint until it fails.
    pub(crate) fn prefer(&self, endpoint: usize) {
        self.step(|core, _| core.machine.prefer(endpoint));
    }

    /// Records that the node at an endpoint leads a range.
    pub(crate) fn leads(&self, endpoint: usize, table: &str, range: KeyRange) {
        self.step(|core, _| core.machine.leads(endpoint, table, range));
    }

    /// The states seen of one table, or of all.
    pub(crate) fn token(&self, table: Option<&str>) -> TimelineToken {
        self.lock().machine.token(table)
    }

    /// Records the states that another client has seen.
    pub(crate) fn observe(&self, token: &TimelineToken) {
        self.lock().machine.observe(token);
    }

    /// Runs a step of the state machine, and carries out the resulting actions.
    fn step<T>(&self, step: impl FnOnce(&mut Core, Monotonic) -> T) -> T {
        let (result, mut calls) = self.step_once(step);
        while !calls.is_empty() {
            for LocalCall { attempt, request, time } in std::mem::take(&mut calls) {
                calls.extend(self.ask_local_node(attempt, request, time));
            }
        }
        result
    }

    /// Returns the requests to the node of this process.
    fn step_once<T>(&self, step: impl FnOnce(&mut Core, Monotonic) -> T) -> (T, Vec<LocalCall>) {
        let mut core = self.lock();
        let now = self.now();
        let result = step(&mut core, now);
        loop {
            let actions = core.machine.take_actions();
            if actions.is_empty() {
                return (result, std::mem::take(&mut core.for_local_node));
            }
            for action in actions {
                self.carry_out(&mut core, action, now);
            }
        }
    }

    /// Submits a request to the node of this process. Returns further requests to it.
    fn ask_local_node(&self, attempt: AttemptId, request: local::Request, time: Duration) -> Vec<LocalCall> {
        let Some(node) = &self.local_node else { return Vec::new() };
        match node.ask(request, time) {
            Answer::Now(outcome) => {
                let result = of_local_node(outcome);
                self.step_once(|core, now| core.machine.answered(attempt, result, now)).1
            }
            Answer::Later(outcome) => {
                self.spawn(|driver| async move {
                    let result = timeout(time, outcome).await.map_or(Err(Fault::Silent), of_local_node);
                    driver.step(|core, now| core.machine.answered(attempt, result, now));
                });
                Vec::new()
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Core> {
        // A panic in a step is a bug of this crate. Another panic for the poisoned lock would only hide it.
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn carry_out(&self, core: &mut Core, action: Action<ApiRequest, ApiResponse>, now: Monotonic) {
        match action {
            Action::Connect(link) => {
                self.spawn(|driver| driver.connect(link));
            }
            Action::Disconnect(link) => self.disconnect(core, link),
            Action::Send { link, attempt, time, sent } => {
                if !self.send(core, link, attempt, Duration::from_nanos(time.0), sent) {
                    self.disconnect(core, link);
                    core.machine.broken(link, "the connection was closed", now);
                }
            }
            Action::Done { call, outcome, in_doubt, stamp } => {
                if let Some(caller) = core.callers.remove(&call) {
                    // The caller may have been dropped.
                    let _ = caller.send(Ended { outcome, in_doubt, stamp });
                }
            }
            Action::Opened { call, session } => {
                if let Some(caller) = core.callers.remove(&call) {
                    let outcome = Ok(ApiResponse::SessionOpened(session));
                    let _ = caller.send(Ended { outcome, in_doubt: false, stamp: None });
                }
            }
            Action::SetTimer(at) => self.set_timer(core, at),
        }
    }

    /// Spawns a task that holds a reference to the driver until it ends.
    fn spawn<F>(&self, run: impl FnOnce(Arc<Self>) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        if let Some(driver) = self.this.upgrade() {
            tokio::spawn(run(driver));
        }
    }

    /// Sends a request; false if the connection is closed.
    fn send(
        &self,
        core: &mut Core,
        link: Link,
        attempt: AttemptId,
        time: Duration,
        mut sent: Sent<ApiRequest>,
    ) -> bool {
        let Some(line) = core.lines[link.endpoint].as_ref().filter(|line| line.link == link) else { return false };
        if link.endpoint == 0 && self.local_node.is_some() {
            match for_local_node(sent) {
                Ok(request) => {
                    core.for_local_node.push(LocalCall { attempt, request, time });
                    return true;
                }
                Err(other) => sent = *other,
            }
        }
        let sent = match &line.stream {
            None => sent,
            Some(stream) => match streamed(sent, attempt.0, time) {
                Ok(request) => return stream.push(request),
                Err(sent) => *sent,
            },
        };
        let channel = line.connection.channel.clone();
        self.spawn(|driver| async move {
            let result = driver.endpoints.judged(link.endpoint, call(channel, sent, time).await);
            driver.step(|core, now| core.machine.answered(attempt, result, now));
        });
        true
    }

    async fn connect(self: Arc<Self>, link: Link) {
        let made = timeout(LINK_TIME_MAX, self.line(link)).await;
        let made = made.unwrap_or_else(|_| Err("no connection in time".to_owned()));
        self.step(|core, now| match made {
            Ok((line, answers)) => {
                if let Some(answers) = answers {
                    tokio::spawn(read(Weak::clone(&self.this), link, answers));
                }
                core.lines[link.endpoint] = Some(line);
                core.machine.connected(link, now);
            }
            Err(reason) => core.machine.broken(link, &reason, now),
        });
    }

    async fn line(&self, link: Link) -> Result<(Line, Option<Streaming<StreamResponse>>), String> {
        let connection = self.endpoints.connection(link.endpoint).await?;
        let is_local = link.endpoint == 0 && self.local_node.is_some();
        if !self.streams || is_local {
            return Ok((Line { link, connection, stream: None }, None));
        }
        let begun = Outgoing::begin(connection.channel.clone()).await.map_err(|status| fault::of(&status));
        match self.endpoints.judged(link.endpoint, begun) {
            Ok((stream, answers)) => Ok((Line { link, connection, stream: Some(stream) }, Some(answers))),
            Err(fault) => {
                self.endpoints.drop_connection(&connection).await;
                Err(fault.reason())
            }
        }
    }

    /// Closes a connection, so that the next use of the endpoint opens a new one.
    fn disconnect(&self, core: &mut Core, link: Link) {
        let Some(line) = core.lines[link.endpoint].take_if(|line| line.link == link) else { return };
        let connection = line.connection.clone();
        self.spawn(|driver| async move { driver.endpoints.drop_connection(&connection).await });
    }

    fn set_timer(&self, core: &mut Core, at: Monotonic) {
        core.timer = Some(at);
        if core.timekeeper.as_ref().is_none_or(JoinHandle::is_finished) {
            core.timekeeper = Some(tokio::spawn(keep_time(Weak::clone(&self.this), Arc::clone(&self.timer_set))));
        }
        self.timer_set.notify_one();
    }

    /// The time at which the timer fires.
    fn timer(&self) -> Option<Instant> {
        let at = self.lock().timer?;
        Some(self.began + Duration::from_nanos(at.0))
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.timer_set.notify_one();
    }
}

/// Passes the responses of a stream to the state machine, until the stream ends.
async fn read(driver: Weak<Driver>, link: Link, mut answers: Streaming<StreamResponse>) {
    let reason = loop {
        match answers.message().await {
            Ok(Some(StreamResponse { answers })) => {
                let Some(driver) = driver.upgrade() else { return };
                driver.step(|core, now| {
                    for answer in answers {
                        core.machine.answered(AttemptId(answer.number), of_stream(answer.answer), now);
                    }
                });
            }
            Ok(None) => break "the node ended the stream".to_owned(),
            Err(status) => break with_causes(&status),
        }
    };
    if let Some(driver) = driver.upgrade() {
        driver.step(|core, now| {
            driver.disconnect(core, link);
            core.machine.broken(link, &reason, now);
        });
    }
}

/// Fires the state machine's timer when it is due.
async fn keep_time(driver: Weak<Driver>, timer_set: Arc<Notify>) {
    loop {
        let Some(at) = driver.upgrade().map(|driver| driver.timer()) else { return };
        let Some(at) = at else {
            timer_set.notified().await;
            continue;
        };
        tokio::select! {
            () = sleep_until(at.into()) => {
                let Some(driver) = driver.upgrade() else { return };
                driver.step(|core, now| {
                    core.timer = None;
                    core.machine.timer(now);
                });
            }
            () = timer_set.notified() => {}
        }
    }
}

/// A caller that waits for its call. Dropping it earlier abandons the call.
struct Caller<'a> {
    driver: &'a Driver,
    id: CallId,
    has_ended: bool,
}

impl Drop for Caller<'_> {
    fn drop(&mut self) {
        // Nothing can be sent without a runtime. The next call wakes the calls that wait for this one.
        if self.has_ended || Handle::try_current().is_err() {
            return;
        }
        self.driver.step(|core, now| {
            core.callers.remove(&self.id);
            core.machine.abandon(self.id, now);
        });
    }
}
