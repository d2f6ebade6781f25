//! Tables and shared logs, by the requests of the nodes' endpoints.

use base::{Duration, Timestamp};
use bytes::Bytes;
use catalog::TableOptions;
use node::request::{Request, Response, TransactionRequest};
use sharedlog::Batch;
use sharedlog::request::{LogRequest, LogResponse};
use state_machine::{Consistency, LockOwner, SessionStamp, StateMachine as _};
use tablets::request::{Columns, Mutation, Scan, TableRequest, Write};
use tablets::transaction::{RowChange, TransactionPart};
use tablets::{TableResponse, Tablet};

use super::{Run, value};
use crate::cluster::Cluster;

pub(super) const TABLE: &str = "rows";
/// Rows of a table; some of them are written and read in turn.
const ROWS: usize = 100;
pub(super) const COLUMN: Bytes = Bytes::from_static(b"c");
const LOG: &str = "log";

/// A table, and a client with a session in its only range.
pub(super) struct Table {
    pub(super) cluster: Cluster,
    pub(super) leader: usize,
    keys: Vec<Bytes>,
    stamp: SessionStamp,
    next: usize,
}

impl Table {
    /// A table with one column of this length in each row.
    pub(super) fn new(bytes: usize) -> Self {
        let mut table = Self::empty();
        let rows: Vec<_> = table.keys.iter().map(|key| change(key, value(bytes))).collect();
        table.commit(rows);
        // The followers learn that it is committed.
        table.cluster.pass(Duration::from_millis(200));
        table
    }

    pub(super) fn empty() -> Self {
        let mut cluster = Cluster::start();
        let leader = cluster.create_table(TABLE, Vec::new(), TableOptions::of(Tablet::KIND));
        let open = TableRequest::OpenSession { key: Bytes::new() };
        let Response::Tablet(TableResponse::SessionOpened { session, .. }) =
            cluster.must(leader, Request::table(TABLE, open))
        else {
            panic!("no session")
        };
        let keys = (0..ROWS).map(|row| Bytes::from(format!("row {row:09}"))).collect();
        let stamp = SessionStamp { session, sequence: 0, first_incomplete: 0 };
        Self { cluster, leader, keys, stamp, next: 0 }
    }

    /// The number of the next row, in turn.
    fn row(&mut self) -> usize {
        self.next = (self.next + 1) % ROWS;
        self.next
    }

    pub(super) fn key(&mut self) -> Bytes {
        let row = self.row();
        self.keys[row].clone()
    }

    /// The stamp of the next change.
    pub(super) fn stamp(&mut self) -> SessionStamp {
        self.stamp.sequence += 1;
        self.stamp.first_incomplete = self.stamp.sequence;
        self.stamp
    }

    fn must(&mut self, node: usize, request: TableRequest) -> TableResponse {
        match self.cluster.must(node, Request::table(TABLE, request)) {
            Response::Tablet(response) => response,
            Response::Dated { response, .. } => match *response {
                Response::Tablet(response) => response,
                other => panic!("unexpected {other:?}"),
            },
            other => panic!("unexpected {other:?}"),
        }
    }

    fn put(&mut self, row: usize, value: Bytes, condition: Option<Timestamp>) -> Timestamp {
        let mutations = vec![Mutation { column: COLUMN, value: Some(value), condition }];
        let write = Write { stamp: Some(self.stamp()), key: self.keys[row].clone(), mutations };
        match self.must(self.leader, TableRequest::Write(write)) {
            TableResponse::Written { version } => version,
            other => panic!("unexpected {other:?}"),
        }
    }

    /// Commits changes, without reads. Returns their version.
    pub(super) fn commit(&mut self, writes: Vec<RowChange>) -> Timestamp {
        let (stamp, table, key) = (self.stamp(), TABLE.to_owned(), writes[0].key.clone());
        let owner = LockOwner { started: self.cluster.now().wall, id: stamp.sequence };
        let parts = vec![(table.clone(), TransactionPart { reads: Vec::new(), writes })];
        let transaction = TransactionRequest { stamp, table, key, owner, parts };
        match self.cluster.must(self.leader, Request::Transaction(Box::new(transaction))) {
            Response::Tablet(TableResponse::Committed { timestamp, .. }) => timestamp,
            other => panic!("unexpected {other:?}"),
        }
    }

    fn read(&mut self, node: usize, consistency: Consistency) {
        let columns = Columns { named: Some(vec![COLUMN]), ..Columns::default() };
        let get = TableRequest::Get { key: self.key(), columns, consistency };
        let TableResponse::Row { cells, .. } = self.must(node, get) else { panic!("no row") };
        assert_eq!(cells.len(), 1);
    }
}

fn change(key: &Bytes, value: Bytes) -> RowChange {
    RowChange { key: key.clone(), deletes_row: false, columns: vec![(COLUMN, Some(value))] }
}

fn put(bytes: usize) -> Run {
    let (mut table, value) = (Table::new(bytes), value(bytes));
    Box::new(move || {
        let row = table.row();
        table.put(row, value.clone(), None);
    })
}

pub(super) fn put_4k() -> Run {
    put(4 << 10)
}

pub(super) fn put_100() -> Run {
    put(100)
}

pub(super) fn conditional_put() -> Run {
    let (mut table, value) = (Table::empty(), value(100));
    // 0: the column must be absent.
    let mut versions = [Timestamp(0); ROWS];
    Box::new(move || {
        let row = table.row();
        versions[row] = table.put(row, value.clone(), Some(versions[row]));
    })
}

pub(super) fn strong_read() -> Run {
    let mut table = Table::new(4 << 10);
    Box::new(move || table.read(table.leader, Consistency::Strong))
}

/// On a node that does not lead the range.
pub(super) fn timeline_read() -> Run {
    let mut table = Table::new(4 << 10);
    let follower = (table.leader + 1) % 3;
    Box::new(move || table.read(follower, Consistency::Timeline { at_least: None, stale_ok: false }))
}

pub(super) fn scan() -> Run {
    let mut table = Table::new(100);
    Box::new(move || {
        let scan = TableRequest::Scan { scan: Scan::default(), consistency: Consistency::Strong };
        let TableResponse::Rows { rows, .. } = table.must(table.leader, scan) else { panic!("no rows") };
        assert_eq!(rows.len(), ROWS);
    })
}

pub(super) fn commit() -> Run {
    let (mut table, value) = (Table::new(100), value(100));
    Box::new(move || {
        let rows = [table.key(), table.key()].map(|key| change(&key, value.clone()));
        table.commit(rows.into());
    })
}

/// A log with one chain of three units.
pub(super) fn append() -> Run {
    let (mut cluster, record) = (Cluster::start(), value(512));
    cluster.must(0, Request::Log(LogRequest::Create { name: LOG.to_owned(), stripes: 1, copies: 3 }));
    Box::new(move || {
        let batch = Batch::of(std::slice::from_ref(&record)).expect("a short record");
        let append = LogRequest::Append { log: LOG.to_owned(), batch, stamp: None };
        let response = cluster.must(0, Request::Log(append));
        assert!(matches!(response, Response::Log(LogResponse::Appended(_))), "{response:?}");
    })
}
