//! The encodings of messages do not change, and arbitrary bytes never make the decoder panic.

use base::codec::Wire as _;
use base::codec::testing::check_golden;
use base::{
    Boot, CohortId, Duration, Entry, Epoch, Interval, KeyRange, Lsn, Monotonic, NodeId, Sequence, SplitMix64, Timestamp,
};
use bytes::Bytes;
use catalog::{
    CatalogCommand, CatalogRequest, CatalogResponse, NodeDescription, NodeRecord, RangeDescription, Standing,
    TableDescription, TableOptions,
};
use sharedlog::client::Suspect;
use sharedlog::controller::{CopierId, Requester};
use sharedlog::request::LogResponse;
use sharedlog::{AskId, LogId, ProjectionEpoch, RequestSource, SequencerId, UnitId, sequencer, unit};
use state_machine::{
    AsOf, ClientSessionId, Consistency, Failure, LockOwner, LogPlace, SessionStamp, StateMachine as _,
};
use store::sstable::{SstableId, SstableRef};
use tablets::request::TableRequest;
use tablets::request::{Cell, Columns, Mutation, Part, Rest, Row, Scan, Write};
use tablets::transaction::{
    Commit, Coordinator, Participant, Prepare, ReadSpan, RowChange, TransactionId, TransactionOutcome, TransactionPart,
};
use tablets::{TableResponse, Tablet};

use super::{Beaten, ListId, Message, Query, ReplicaGeneration, StateId, StatePart};
use crate::request::Response;

fn samples() -> Vec<Message> {
    let cohort = CohortId(7);
    let entry = |sequence, previous| Entry {
        lsn: Lsn::new(3, sequence),
        previous,
        timestamp: Timestamp(9),
        payload: Bytes::from_static(b"payload"),
        members: None,
    };
    let entries = vec![entry(5, Lsn::new(2, 4)), entry(6, Lsn::new(3, 5))];
    let propose = replication::Message::Propose {
        epoch: Epoch(3),
        previous: Lsn::new(2, 4),
        entries,
        commit: Sequence(4),
        sent: Monotonic(11),
        heard: Some(Monotonic(9)),
    };
    let (epoch, sent) = (Epoch(3), Monotonic(11));
    let reply = replication::Reply::Missing(replication::Gap { after: Sequence(4), through: Sequence(7) });
    let (committed, doubtful) = (Sequence(3), true);
    let at = Monotonic(12);
    let lacking = replication::Message::ProposeReply { epoch, sent, voted: false, reply, committed, doubtful, at };
    let mutation = Mutation { column: "c".into(), value: Some("v".into()), condition: Some(Timestamp(4)) };
    let write = Write { stamp: None, key: "k".into(), mutations: vec![mutation] };
    let place = LogPlace { cohort, lsn: Lsn::new(2, 4) };
    let scan = Scan { from: "a".into(), to: Some("b".into()), limit: 9, ..Scan::default() };
    let member = base::Member { node: NodeId(6), incarnation: base::Incarnation(60) };
    let node = NodeRecord { member, peer: "p".into(), grpc: "g".into(), standing: Standing::Leaving };
    let change = |command| Query::Machine(CatalogRequest::Change(command).into());
    let part = Part { after: Some("b".into()), names_only: true };
    let named = Columns { named: Some(vec!["c".into()]), part };
    let get = |columns, consistency| Query::Machine(TableRequest::Get { key: "k".into(), columns, consistency }.into());
    let queries = [
        Query::Machine(TableRequest::Write(write).into()),
        Query::Machine(TableRequest::DeleteRow { stamp: None, key: "k".into() }.into()),
        Query::Machine(TableRequest::Drop.into()),
        Query::Machine(
            TableRequest::Split { key: "k".into(), child: CohortId(9), members: base::Membership::of(vec![member]) }
                .into(),
        ),
        Query::Machine(CatalogRequest::ListLogs.into()),
        Query::Machine(CatalogRequest::DescribeLog("l".into()).into()),
        get(Columns::default(), Consistency::Anywhere),
        change(CatalogCommand::CreateTable {
            name: "t".into(),
            split_at: vec!["k".into()],
            options: TableOptions { replicas: 3, retention: base::Duration(5), ..TableOptions::of(Tablet::KIND) },
        }),
        get(named, Consistency::Strong),
        get(Columns::default(), Consistency::At(Timestamp(7))),
        Query::Machine(
            TableRequest::Scan { scan, consistency: Consistency::Timeline { at_least: Some(place), stale_ok: true } }
                .into(),
        ),
        Query::Machine(CatalogRequest::ListTables.into()),
        Query::Machine(CatalogRequest::ListNodes.into()),
        change(CatalogCommand::AddNode { node: node.clone() }),
        Query::Machine(CatalogRequest::FindTable("t".into()).into()),
        Query::Machine(CatalogRequest::DescribeTable("t".into()).into()),
        Query::Plan(
            base::Membership::of(vec![base::Member { node: base::NodeId(1), incarnation: base::Incarnation(1) }])
                .by_plan(3),
        ),
        Query::Machine(TableRequest::OpenSession { key: "k".into() }.into()),
    ];
    let cell = Cell { column: "c".into(), value: "v".into(), version: Timestamp(8) };
    let row = Row { key: "k".into(), cells: vec![cell] };
    let range = KeyRange { start: "a".into(), end: Some("b".into()) };
    let ranges = vec![RangeDescription {
        range: range.clone(),
        cohort: 2,
        members: vec![1, 2, 3],
        is_moving: true,
        configuration: None,
    }];
    let as_of = AsOf { place, timestamp: Timestamp(9), age: Some(Duration(1)), range: range.clone() };
    let own = Box::new(Response::Tablet(TableResponse::row(row.cells.clone())));
    let outcomes = [
        Ok(Response::Dated { response: own, as_of: Box::new(as_of) }),
        Ok(Response::Tablet(TableResponse::Rows {
            rows: vec![row],
            continuation: Some("k".into()),
            rest: Some(Rest { after: "c".into(), at: Timestamp(7) }),
        })),
        Ok(Response::Catalog(CatalogResponse::Tables(vec!["t".into()]))),
        Ok(Response::Catalog(CatalogResponse::TableDropped)),
        Ok(Response::Log(LogResponse::UnitsGone(vec![UnitId(9), UnitId(11)]))),
        Ok(Response::Catalog(CatalogResponse::MoveBegun)),
        Ok(Response::PlanDone),
        Ok(Response::Catalog(CatalogResponse::LeaveBegun)),
        Ok(Response::Catalog(CatalogResponse::Nodes(vec![NodeDescription { record: node, ranges: 4 }]))),
        Ok(Response::Tablet(TableResponse::SessionOpened { session: ClientSessionId(7), range: range.clone() })),
        Ok(Response::Catalog(CatalogResponse::Table(TableDescription {
            ranges,
            created: Timestamp(6),
            replicas: 3,
            retention: base::Duration(8),
            durability: base::Durability::Memory,
            transactions: false,
            replication: catalog::Replication::Paxos,
            disk_bytes: 0,
        }))),
        Ok(Response::Tablet(TableResponse::Written { version: Timestamp(8) })),
        Ok(Response::Tablet(TableResponse::Split)),
        Ok(Response::Tablet(TableResponse::Dropped)),
        Ok(Response::Catalog(CatalogResponse::TableCreated { existed: true })),
        Ok(Response::Catalog(CatalogResponse::RangeSplit { cohort: 7 })),
        Err(Failure::UnknownTable("t".into())),
        Err(Failure::UnknownLog("l".into())),
        Err(Failure::Precondition("no".into())),
        Err(Failure::UnknownSession(ClientSessionId(7))),
        Err(Failure::Invalid("bad".into())),
        Err(Failure::Overloaded("full".into())),
        Err(Failure::Unavailable("none".into())),
        Err(Failure::MayLie { position: 9 }),
        Err(Failure::Exists("it is there".into())),
        Err(Failure::VersionMismatch { column: "c".into(), expected: Timestamp(1), actual: Timestamp(2) }),
        Err(Failure::Unknown("lost the lead".into())),
    ];
    let spoken = [propose, lacking];
    let mut samples: Vec<Message> = spoken.map(|message| Message::Cohort { cohort, message }).into();
    let rest = replication::Quiescence { epoch: Epoch(3), last: Lsn::new(2, 9) };
    let (list, sent) = (ListId(6), Monotonic(12));
    samples.push(Message::Beat { list, cohorts: None, sent, peer_clock: None });
    let peer_clock = Some(super::PeerClock { at: Monotonic(7), except: vec![cohort] });
    samples.push(Message::Beat { list, cohorts: Some([(cohort, rest), (CohortId(8), rest)].into()), sent, peer_clock });
    samples.push(Message::BeatAnswer { list, sent, at: sent, beaten: Beaten::UnknownList });
    samples.push(Message::BeatAnswer { list, sent, at: sent, beaten: Beaten::Vouched { refused: vec![cohort] } });
    let interval = Interval { earliest: Timestamp(20), latest: Timestamp(30) };
    samples.push(Message::CompareClocks { sent, interval });
    samples.push(Message::ClockReply { sent, asked: interval, interval: None });
    samples.push(Message::ClockReply { sent, asked: interval, interval: Some(interval) });
    let patience = Duration::from_millis(5);
    samples.extend(queries.map(|query| Message::Forward { cohort, request: 3, patience, query }));
    samples.extend(outcomes.map(|outcome| Message::Answer { request: 3, outcome }));
    let (epoch, timestamp) = (Epoch(3), Timestamp(9));
    let table = SstableRef { id: SstableId { cohort: CohortId(3), number: 7 }, level: 1, bytes: 4_096, checksum: 9 };
    let bytes = Bytes::from_static(b"part");
    let parts = [
        StatePart::Chunk(bytes.clone()),
        StatePart::Files { files: vec![table, table], membership: base::Membership::default().into() },
        StatePart::Piece(bytes),
    ];
    let state = StateId::new(Lsn::new(3, 5), [table].iter());
    let chunk = |part| Message::StateChunk { cohort, epoch, state, timestamp, index: 2, last: true, part };
    samples.extend(parts.map(chunk));
    samples.push(Message::ElsewhereNow { request: 3 });
    let (log, unit) = (LogId(4), UnitId(7));
    let askers = [
        RequestSource::Client(AskId(3)),
        RequestSource::Sequencer(ProjectionEpoch(2), AskId(3)),
        RequestSource::Controller(Requester::Recovery(ProjectionEpoch(2)), AskId(3)),
        RequestSource::Controller(Requester::Copier(CopierId(9)), AskId(3)),
        RequestSource::HoleFill(ProjectionEpoch(2), AskId(3)),
        RequestSource::Follower(AskId(3)),
    ];
    let command = unit::Command::Seal { epoch: ProjectionEpoch(5) };
    samples.extend(askers.map(|source| {
        let request = unit::Request::Command(command.clone().into());
        Message::ToUnit { log, unit, source, request }
    }));
    let reply = unit::Reply::Many(vec![unit::Reply::Written, unit::Reply::Unwritten]);
    samples.push(Message::FromUnit { log, to: Boot(8), source: askers[0], reply });
    samples.push(Message::UnitsInDoubt { units: vec![UnitId(7), UnitId(1 << 40)] });
    let reply = Box::new(Message::StateReply { cohort, state, received: 3, installed: false });
    samples.push(Message::OfGenerations { from: ReplicaGeneration(1), to: ReplicaGeneration::FIRST, message: reply });
    let (sequencer, epoch) = (SequencerId { node: NodeId(2), boot: Boot(8) }, ProjectionEpoch(5));
    let request = sequencer::Request::Tail { epoch };
    samples.push(Message::ToSequencer { log, sequencer, ask: AskId(3), request });
    let reply = sequencer::Reply::Refused { newest: epoch };
    samples.push(Message::FromSequencer { log, to: Boot(8), ask: AskId(3), reply });
    samples.push(Message::Suspected { log, epoch, suspect: Suspect::Unit(unit) });
    samples.push(Message::NotLeader { request: 3, cohort, leader: None });
    samples.push(Message::NotLeader { request: 3, cohort, leader: Some(NodeId(2)) });
    samples.push(Message::Generation { cohort, generation: ReplicaGeneration(2) });
    samples.push(Message::StateReply { cohort, state, received: 3, installed: true });
    samples
}

/// Requests of transactions, and their replies.
fn transaction_samples() -> Vec<Message> {
    let stamp = SessionStamp { session: ClientSessionId(7), sequence: 9, first_incomplete: 8 };
    let (owner, key) = (LockOwner { started: Timestamp(5), id: u64::MAX }, Bytes::from("k"));
    let write = |deletes_row| RowChange {
        key: "k".into(),
        deletes_row,
        columns: vec![("a".into(), Some("1".into())), ("b".into(), None)],
    };
    let part = TransactionPart {
        reads: vec![ReadSpan { range: KeyRange { start: "a".into(), end: Some("b".into()) }, seen: Timestamp(4) }],
        writes: vec![write(false), write(true), RowChange { key: "l".into(), deletes_row: true, columns: vec![] }],
    };
    let coordinator = Coordinator { table: "t".into(), key: key.clone(), stamp };
    let participant = Participant { cohort: CohortId(9), prepared: Timestamp(6) };
    let (transaction, prepared) = (TransactionId::from(&stamp), Timestamp(6));
    let commit = Commit { stamp, key: key.clone(), owner, part: part.clone(), participants: vec![participant; 2] };
    let alone = Commit { part: TransactionPart::default(), participants: vec![], ..commit.clone() };
    let consistency = Consistency::Locking(owner);
    let requests = [
        TableRequest::Commit(Box::new(commit)),
        TableRequest::Commit(Box::new(alone)),
        TableRequest::Prepare(Box::new(Prepare { coordinator, owner, part })),
        TableRequest::Resolve { transaction, prepared, committed: Some(Timestamp(7)) },
        TableRequest::Resolve { transaction, prepared, committed: None },
        TableRequest::Abort { key: key.clone(), stamp },
        TableRequest::Unlock { key: key.clone(), owner },
        TableRequest::Hold { key: key.clone(), owner: u64::MAX, timestamp: Timestamp(5), release: true },
        TableRequest::Get { key, columns: Columns::default(), consistency },
        TableRequest::Scan { scan: Scan::default(), consistency },
    ];
    let committed = |unresolved| TransactionOutcome::Committed { timestamp: Timestamp(7), unresolved };
    let (uncertainty, waited) = (Duration(3), Duration(u64::MAX));
    let outcomes = [
        Ok(TableResponse::Prepared { timestamp: prepared }),
        Ok(TableResponse::Resolved),
        Ok(TableResponse::Outcome(committed(vec![participant]))),
        Ok(TableResponse::Outcome(committed(vec![]))),
        Ok(TableResponse::Outcome(TransactionOutcome::Aborted)),
        Ok(TableResponse::Outcome(TransactionOutcome::Forgotten)),
        Ok(TableResponse::Committed { timestamp: prepared, uncertainty, waited }),
        Ok(TableResponse::Unlocked),
        Ok(TableResponse::Held { range: KeyRange { start: "a".into(), end: None } }),
        Err(Failure::Aborted("it has changed".into())),
        Err(Failure::NoSpace("full".into())),
    ];
    let patience = Duration::from_millis(5);
    let forward = |request: TableRequest| Message::Forward {
        cohort: CohortId(7),
        request: 3,
        patience,
        query: Query::Machine(request.into()),
    };
    let answer = |outcome: Result<TableResponse, Failure>| Message::Answer {
        request: 3,
        outcome: outcome.map(Response::Tablet),
    };
    requests.map(forward).into_iter().chain(outcomes.map(answer)).collect()
}

fn all_samples() -> Vec<Message> {
    samples().into_iter().chain(transaction_samples()).collect()
}

#[test]
fn golden_messages() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/message/golden.txt");
    check_golden(path, &all_samples(), Message::to_bytes, Message::from_bytes);
}

#[test]
fn fuzz_message_decoder() {
    let mut random = SplitMix64::new(1);
    for message in all_samples() {
        let good = message.to_bytes();
        for _ in 0..2_000 {
            let mut bytes = good.to_vec();
            let at = random.below(bytes.len() as u64) as usize;
            bytes[at] = random.draw() as u8;
            bytes.truncate(1 + random.below(bytes.len() as u64) as usize);
            let _ = Message::from_bytes(Bytes::from(bytes));
        }
    }
}
