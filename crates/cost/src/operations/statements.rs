//! SQL statements that name their rows by key, as a session executes them: a plan by the text of the statement, its
//! reads and writes as requests of a client in the node's process, and the check of the schema's version. Without the
//! PostgreSQL protocol.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use api::columns::read_options::Consistency;
use api::columns::{
    Cell, CommitTransactionRequest, GetRequest, Mutation, ReadOptions, TransactionOwner, TransactionRead,
    TransactionWrite,
};
use api::local::{self, Answer, Columns as _};
use bytes::Bytes;
use server::LocalNode;
use sql::ddl;
use sql::direct::{self, Command, Outcome, Page, Plan, Read, Step};
use sql::fence::{Catalog, SCHEMA_ROW, TOKEN};
use sql::ids::SequenceId;
use sql::parse::parse_one;
use sql::rows::{StoredRow, Write};
use sql::schema::Schema;
use sql::statement::Statement;
use sql::{Environment, SqlError, Supply, Value};

use super::Run;
use super::columns::{TABLE, Table};
use super::grpc::{InProcess, stamp};

const CREATE: &str = "CREATE TABLE accounts (id bigint PRIMARY KEY, owner text NOT NULL, balance bigint NOT NULL)";
const INSERT: &str = "INSERT INTO accounts VALUES ($1, $2, $3)";
const SELECT: &str = "SELECT owner, balance FROM accounts WHERE id = $1";
const UPDATE: &str = "UPDATE accounts SET balance = balance + $2 WHERE id = $1";
const ROWS: i64 = 100;
const TIMEOUT: Duration = Duration::from_secs(10);

/// Values that no statement here uses.
struct NoSupply;

impl Supply for NoSupply {
    fn next_value(&mut self, _: SequenceId) -> Result<i64, SqlError> {
        Err(SqlError::unsupported("a sequence"))
    }

    fn random_uuid(&mut self) -> [u8; 16] {
        [0; 16]
    }
}

struct Session {
    node: LocalNode<InProcess>,
    table: Arc<Mutex<Table>>,
    catalog: Catalog,
    plans: BTreeMap<&'static str, Plan>,
    next: i64,
}

/// A transaction that reads with locks.
struct Transaction {
    owner: TransactionOwner,
    reads: Vec<TransactionRead>,
}

impl Session {
    fn new() -> Self {
        let table = Arc::new(Mutex::new(Table::empty()));
        let Ok(Statement::Definition(definition)) = parse_one(CREATE) else { panic!("no definition") };
        let change = ddl::apply(&Schema::default(), &definition).expect("a valid definition");
        let catalog = Catalog::next(change.schema, 1);
        let node = LocalNode::new(InProcess(Arc::clone(&table)));
        let mut session = Self { node, table, catalog, plans: BTreeMap::new(), next: 0 };
        let transaction = session.begin();
        let write = session.catalog.write().expect("a small schema");
        session.commit(transaction, vec![write]);
        for text in [INSERT, SELECT, UPDATE] {
            let statement = parse_one(text).expect("a valid statement");
            let plan = direct::prepare(&session.catalog.schema, &statement, text, &[]).expect("a valid statement");
            session.plans.insert(text, plan.expect("it needs no planner"));
        }
        for id in 0..ROWS {
            let parameters = [Value::Int8(id), Value::Text(format!("owner {id}")), Value::Int8(1_000)];
            session.execute(INSERT, &parameters);
        }
        session
    }

    fn id(&mut self) -> Value {
        self.next = (self.next + 1) % ROWS;
        Value::Int8(self.next)
    }

    /// Executes a statement that reads or changes one row.
    fn execute(&self, text: &str, parameters: &[Value]) {
        let plan = &self.plans[text];
        let mut transaction = (plan.command != Command::Select).then(|| self.begin());
        let mut supply = NoSupply;
        let mut environment = Environment { parameters, now: 0, supply: &mut supply };
        let (mut execution, mut step) = plan.start(&mut environment).expect("valid parameters");
        let Outcome { affected, writes, .. } = loop {
            match step {
                Step::Done(outcome) | Step::DoneIfOneMoment(outcome) => break outcome,
                Step::NeedsPlanner => panic!("{text} needs a planner"),
                Step::Read(reads) => {
                    let pages = reads.iter().map(|read| self.read(read, transaction.as_mut())).collect();
                    step = execution.advance(pages, &mut environment).expect("no conflict");
                }
            }
        };
        assert_eq!(affected, 1);
        let cells = self.get(SCHEMA_ROW, vec![TOKEN], transaction.as_mut(), false);
        assert!(self.catalog.is_current(cells.first().map(|cell| &cell.value)));
        if let Some(transaction) = transaction {
            self.commit(transaction, writes);
        }
    }

    fn ask(&self, request: local::Request) -> local::Response {
        match self.node.ask(request, TIMEOUT) {
            Answer::Now(outcome) => outcome.expect("the request succeeds"),
            Answer::Later(_) => panic!("the node answers at once"),
        }
    }

    fn read(&self, read: &Read, transaction: Option<&mut Transaction>) -> Page {
        let (Read::Row(key) | Read::Locked(key)) = read else { panic!("unexpected {read:?}") };
        let cells = self.get(key.clone(), Vec::new(), transaction, matches!(read, Read::Locked(_)));
        let cells: Vec<_> = cells.into_iter().map(|cell| (cell.column, cell.value)).collect();
        let rows = if cells.is_empty() { Vec::new() } else { vec![StoredRow { key: key.clone(), cells }] };
        Page { rows, next: None }
    }

    fn get(
        &self,
        key: Bytes,
        columns: Vec<Bytes>,
        transaction: Option<&mut Transaction>,
        is_for_update: bool,
    ) -> Vec<Cell> {
        let consistency = transaction.as_ref().map(|transaction| match is_for_update {
            true => Consistency::TransactionForUpdate(transaction.owner),
            false => Consistency::Transaction(transaction.owner),
        });
        let options = consistency.map(|consistency| ReadOptions { consistency: Some(consistency) });
        let get = GetRequest { table: TABLE.to_owned(), key: key.clone(), columns, options, ..GetRequest::default() };
        let local::Response::Row(response) = self.ask(local::Request::Get(get)) else { panic!("no row") };
        if let Some(transaction) = transaction {
            let seen_ns = response.as_of.expect("a read with locks states its moment").timestamp_ns;
            let end = Some([&key[..], &[0]].concat().into());
            transaction.reads.push(TransactionRead { table: TABLE.to_owned(), start: key, end, seen_ns });
        }
        response.cells
    }

    fn begin(&self) -> Transaction {
        let table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        let owner = TransactionOwner { started_ns: table.cluster.now().wall.0, id: 1 };
        Transaction { owner, reads: Vec::new() }
    }

    fn commit(&self, Transaction { owner, reads }: Transaction, writes: Vec<Write>) {
        let write = |write| {
            let (key, cells, delete_row) = match write {
                Write::Put { key, cells } => (key, cells, false),
                Write::Delete { key } => (key, Vec::new(), true),
            };
            let mutation = |(column, value)| Mutation { column, value, condition: None };
            let mutations = cells.into_iter().map(mutation).collect();
            TransactionWrite { table: TABLE.to_owned(), key, mutations, delete_row }
        };
        let writes: Vec<_> = writes.into_iter().map(write).collect();
        let stamp = stamp(self.table.lock().unwrap_or_else(PoisonError::into_inner).stamp());
        let (table, key) = (TABLE.to_owned(), writes[0].key.clone());
        let commit = CommitTransactionRequest { table, key, stamp: Some(stamp), owner: Some(owner), reads, writes };
        let response = self.ask(local::Request::CommitTransaction(commit));
        assert!(matches!(response, local::Response::TransactionCommitted(_)), "{response:?}");
    }
}

pub(super) fn point_read() -> Run {
    let mut session = Session::new();
    Box::new(move || {
        let id = session.id();
        session.execute(SELECT, &[id]);
    })
}

pub(super) fn point_update() -> Run {
    let mut session = Session::new();
    Box::new(move || {
        let id = session.id();
        session.execute(UPDATE, &[id, Value::Int8(1)]);
    })
}
