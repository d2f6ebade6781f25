//! The load of a measurement: each session keeps a fixed number of requests outstanding.

use std::cell::Cell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::{Duration, Instant};

use base::SplitMix64;
use bytes::Bytes;
use coordination::jute::{
    AclRecord, Create, CreateKind, Delete, IdRecord, PathAndWatch, Request, Sequence, SetData, Sync,
};
use terminal::Stop;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::Write;
use super::figures::Shape;
use super::session::Session;
use crate::SEED;
use crate::recorder::Recorder;
use crate::workload::value;

/// The parent of all nodes of benchmarks.
const ROOT: &str = "/loggos-bench";
/// Outstanding requests while nodes are created or deleted.
const PREPARING: usize = 256;
/// Delay before a session that lost its connection is replaced by one at the next server.
const PAUSE_AFTER_LOSS: Duration = Duration::from_millis(20);
/// Timeout of outstanding requests at the end of a measurement.
const SETTLE_PATIENCE: Duration = Duration::from_secs(10);

const EVERYONE: AclRecord<'static> =
    AclRecord { perms: 31, id: IdRecord { scheme: Some("world"), id: Some("anyone") } };

/// The sessions of a measurement, on one thread: requires a [`LocalSet`](tokio::task::LocalSet).
pub(super) struct Sessions {
    is_over: Rc<Cell<bool>>,
    sessions: JoinSet<Worker>,
}

impl Sessions {
    /// Opens all sessions, spread over the servers, and starts them.
    pub(super) async fn begin(endpoints: &[String], shape: Shape, recorder: &Rc<Recorder>) -> Result<Self, Stop> {
        let (is_over, data) = (Rc::new(Cell::new(false)), value(shape.value_bytes));
        let mut workers = Vec::with_capacity(shape.connections);
        for number in 0..shape.connections {
            let mut endpoints = endpoints.to_vec();
            let first = number % endpoints.len();
            endpoints.rotate_left(first);
            let mut session = Session::open(&endpoints[0]).await?;
            // A sync: the nodes that other sessions created are visible after it.
            session.call(&Request::Sync(Sync { path: ROOT })).await?;
            let parent = format!("{ROOT}/created-{number}");
            if shape.write == Write::Create {
                exists(session.call(&create(&parent, b"")).await)?;
            }
            let draw = SplitMix64::new(SEED + number as u64);
            workers.push(Worker {
                endpoints,
                session: Some(session),
                parent,
                created: 0,
                shape,
                data: data.clone(),
                draw,
            });
        }
        let mut sessions = JoinSet::new();
        for worker in workers {
            sessions.spawn_local(worker.work(Rc::clone(recorder), Rc::clone(&is_over)));
        }
        Ok(Self { is_over, sessions })
    }

    /// Waits for the outstanding requests, and deletes the created nodes unless they are kept.
    pub(super) async fn end(mut self, keep: bool) -> Result<(), Stop> {
        self.is_over.set(true);
        let mut workers = Vec::new();
        let all = async {
            while let Some(worker) = self.sessions.join_next().await {
                workers.push(worker.expect("no session panics"));
            }
        };
        let _ = timeout(SETTLE_PATIENCE, all).await;
        for mut worker in workers {
            if let Some(session) = &mut worker.session {
                if !keep {
                    let created = (0..worker.created).map(|number| format!("{}/{number}", worker.parent));
                    pipeline(session, created, |session, path| session.push(&remove(path)), absent).await?;
                    if worker.shape.write == Write::Create {
                        absent(session.call(&remove(&worker.parent)).await)?;
                    }
                }
                session.call(&Request::CloseSession).await?;
            }
        }
        Ok(())
    }
}

/// Creates the nodes that are read and set, with values of the configured size.
pub(super) async fn prepare(endpoint: &str, nodes: usize, value_bytes: usize) -> Result<(), Stop> {
    let mut session = Session::open(endpoint).await?;
    exists(session.call(&create(ROOT, b"")).await)?;
    let data = value(value_bytes);
    let paths = || (0..nodes).map(node);
    pipeline(&mut session, paths(), |session, path| session.push(&create(path, &data)), exists).await?;
    pipeline(&mut session, paths(), |session, path| session.push(&set(path, &data)), |outcome| outcome).await?;
    session.call(&Request::CloseSession).await?;
    Ok(())
}

/// Sends a request for each path, and checks each result.
async fn pipeline(
    session: &mut Session,
    paths: impl Iterator<Item = String>,
    push: impl Fn(&mut Session, &str),
    check: impl Fn(Result<(), sdk::Error>) -> Result<(), sdk::Error>,
) -> Result<(), Stop> {
    let mut paths = paths.fuse();
    loop {
        while session.under_way() < PREPARING {
            let Some(path) = paths.next() else { break };
            push(session, &path);
        }
        if session.under_way() == 0 {
            return Ok(());
        }
        session.transfer().await?;
        while let Some(outcome) = session.next_reply()? {
            check(outcome)?;
        }
    }
}

fn exists(outcome: Result<(), sdk::Error>) -> Result<(), sdk::Error> {
    if matches!(outcome, Err(sdk::Error::Exists(_))) { Ok(()) } else { outcome }
}

fn absent(outcome: Result<(), sdk::Error>) -> Result<(), sdk::Error> {
    if matches!(outcome, Err(sdk::Error::NotFound(_))) { Ok(()) } else { outcome }
}

fn node(number: usize) -> String {
    format!("{ROOT}/node-{number:06}")
}

fn create<'a>(path: &'a str, data: &'a [u8]) -> Request<'a> {
    let (kind, acl) = (CreateKind::Create, Sequence::of(&[EVERYONE]));
    Request::Create(Create { kind, path, data: Some(data), acl, flags: 0, ttl_ms: None })
}

const fn set<'a>(path: &'a str, data: &'a [u8]) -> Request<'a> {
    Request::SetData(SetData { path, data: Some(data), version: -1 })
}

const fn remove(path: &str) -> Request<'_> {
    Request::Delete(Delete { path, version: -1 })
}

struct Worker {
    /// Its server, then those to fail over to.
    endpoints: Vec<String>,
    session: Option<Session>,
    /// The parent of the nodes that it creates.
    parent: String,
    created: u64,
    shape: Shape,
    data: Bytes,
    draw: SplitMix64,
}

impl Worker {
    /// Runs until the end of the measurement; a lost session is replaced.
    async fn work(mut self, recorder: Rc<Recorder>, is_over: Rc<Cell<bool>>) -> Self {
        let mut began = VecDeque::with_capacity(self.shape.outstanding);
        while !is_over.get() {
            let failed = match self.session.take() {
                None => {
                    sleep(PAUSE_AFTER_LOSS).await;
                    self.endpoints.rotate_left(1);
                    match Session::open(&self.endpoints[0]).await {
                        Ok(session) => {
                            self.session = Some(session);
                            continue;
                        }
                        Err(error) => error,
                    }
                }
                Some(mut session) => match self.requests(&mut session, &mut began, &recorder, &is_over).await {
                    Ok(()) => {
                        self.session = Some(session);
                        continue;
                    }
                    Err(error) => error,
                },
            };
            for began in began.drain(..) {
                recorder.ended(began, Err(failed.clone()));
            }
        }
        self
    }

    /// Keeps requests outstanding until the measurement ends, then waits for all replies.
    async fn requests(
        &mut self,
        session: &mut Session,
        began: &mut VecDeque<Instant>,
        recorder: &Recorder,
        is_over: &Cell<bool>,
    ) -> Result<(), sdk::Error> {
        let mut now = Instant::now();
        loop {
            if !is_over.get() {
                while session.under_way() < self.shape.outstanding {
                    self.next(session);
                    began.push_back(now);
                }
            } else if session.under_way() == 0 {
                return Ok(());
            }
            session.transfer().await?;
            now = Instant::now();
            while let Some(outcome) = session.next_reply()? {
                if let Some(began) = began.pop_front() {
                    recorder.ended_at(began, now, outcome);
                }
            }
        }
    }

    /// Queues the next request.
    fn next(&mut self, session: &mut Session) {
        let Shape { read_percent, nodes, write, .. } = self.shape;
        if self.draw.below(100) < u64::from(read_percent) {
            let path = node(self.draw.below(nodes as u64) as usize);
            session.push(&Request::GetData(PathAndWatch { path: &path, watch: false }));
        } else if write == Write::Create {
            let path = format!("{}/{}", self.parent, self.created);
            self.created += 1;
            session.push(&create(&path, &self.data));
        } else {
            let path = node(self.draw.below(nodes as u64) as usize);
            session.push(&set(&path, &self.data));
        }
    }
}
