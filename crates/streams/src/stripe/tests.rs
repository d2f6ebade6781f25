use base::{ClusterId, Lsn, NodeId, SplitMix64};
use state_machine::checkpoint::{Chunks, load};
use state_machine::interface::{Evaluated, Read as _, Request as _};
use state_machine::{Consistency, LockKeys, LockMode};
use store::identity::Owner;
use store::memory::MemoryDisk;
use store::sstable::{DIRECTORY, Io};
use store::stream::StreamStep;
use store::tree::{Config, Tablespace};

use super::request::{
    BlockExtent, BlockRun, BlockSpan, BlockState, HOLE_BLOCKS_MAX, PartialBlock, READ_BLOCKS_MAX, StripeWrite,
    WRITE_CHANGES_MAX, WRITE_DATA_BYTES_MAX, ZERO_BLOCKS_MAX,
};
use super::*;
use crate::layout::{BLOCK_BYTES, STRIPE_BLOCKS_MAX};

const STRIPE: StripeId = StripeId(3);
const BLOCK: usize = BLOCK_BYTES as usize;

/// A stripe with the log that it applies.
pub(crate) struct Replica {
    pub(crate) machine: Stripe,
    last: Lsn,
    timestamp: Timestamp,
}

fn stream(cohort: CohortId) -> StreamStore {
    let (cluster, node, incarnation) = (ClusterId(1), NodeId(1), Incarnation(1));
    let owner = Owner { cluster, node, incarnation };
    StreamStore::new(Tablespace::new(owner, Config::DEFAULT, 1 << 20, 1 << 20).site(cohort))
}

impl Replica {
    /// A stripe that owns its range.
    pub(crate) fn new(stripe: StripeId) -> Self {
        Self::of_cohort(stripe, CohortId(7 + u32::from(stripe.0)))
    }

    /// The same, of a certain cohort.
    pub(crate) fn of_cohort(stripe: StripeId, cohort: CohortId) -> Self {
        let machine = Stripe::new(cohort, Incarnation(1), stream(cohort));
        let mut replica = Self { machine, last: Lsn::ZERO, timestamp: Timestamp(0) };
        let applied = replica.apply(Stripe::assign_range(&stripe.range()).expect("a stripe has a range"));
        assert_eq!(applied.effect, Some(Effect::RangeFounded));
        replica
    }

    pub(crate) fn apply(&mut self, payload: Bytes) -> Applied<StripeResponse, std::convert::Infallible> {
        let lsn = Lsn::new(1, self.last.sequence.0 + 1);
        self.timestamp = Timestamp(self.timestamp.0 + 10);
        let entry = Entry { lsn, previous: self.last, timestamp: self.timestamp, payload, members: None };
        self.last = lsn;
        let applied = self.machine.apply(&entry).expect("the next entry");
        self.machine.invariants();
        applied
    }

    /// The outcome of a request, as a leader computes it.
    pub(crate) fn request(&mut self, request: &StripeRequest) -> Outcome {
        request.validate()?;
        let evaluated = if request.reads() {
            match StateMachine::read(&self.machine, request) {
                ReadStep::Answer(outcome) => return outcome,
                ReadStep::Evaluate(query) => query.answer(Io::Allowed).expect("the disk can be read"),
            }
        } else {
            match self.machine.propose(request) {
                Payload::Command(command) => return self.outcome(command),
                Payload::Refuse(failure) => return Err(failure),
                Payload::Decide(query) => query.answer(Io::Allowed).expect("the disk can be read"),
            }
        };
        match evaluated {
            Evaluated::Outcome(outcome) => outcome,
            Evaluated::Decided(decision) => self.outcome(decision.command),
            Evaluated::Elsewhere | Evaluated::Unresolved(_) => Err(Failure::Unavailable("elsewhere".to_owned())),
        }
    }

    pub(crate) fn expire_sessions(&mut self) {
        let past = Past { session_lifetime: Some(self.timestamp), retention: None };
        self.machine.housekeeping(past).commands.into_iter().for_each(|command| {
            self.apply(command);
        });
        assert_eq!(self.machine.sessions_open(), 0);
    }

    fn outcome(&mut self, command: Bytes) -> Outcome {
        self.apply(command).outcome.unwrap_or_else(|| Err(Failure::Unavailable("elsewhere".to_owned())))
    }

    fn open(&mut self) -> ClientSessionId {
        match self.request(&StripeRequest::OpenSession { stripe: STRIPE, claim: Claim::Shared }) {
            Ok(StripeResponse::SessionOpened { session, generation: 0 }) => session,
            other => panic!("{other:?}"),
        }
    }

    fn read(&mut self, first: u64, count: u64) -> Vec<BlockRun> {
        let blocks = BlockSpan { stripe: STRIPE, first, count };
        match self.request(&StripeRequest::Read { consistency: Consistency::Strong, blocks }) {
            Ok(StripeResponse::Runs(runs)) => runs,
            other => panic!("{other:?}"),
        }
    }

    fn content(&mut self, first: u64, count: u64) -> Vec<u8> {
        let runs = self.read(first, count);
        let bytes = |run| match run {
            BlockRun::Data(data) => data.to_vec(),
            BlockRun::Zeroes(count) => vec![0; count as usize * BLOCK],
        };
        runs.into_iter().flat_map(bytes).collect()
    }

    fn status(&mut self, first: u64, count: u64) -> Vec<(u64, BlockState)> {
        let blocks = BlockSpan { stripe: STRIPE, first, count };
        match self.request(&StripeRequest::Status { consistency: Consistency::Anywhere, blocks }) {
            Ok(StripeResponse::Extents(extents)) => {
                extents.into_iter().map(|BlockExtent { count, state }| (count, state)).collect()
            }
            other => panic!("{other:?}"),
        }
    }

    fn hash(&self) -> u64 {
        let mut hash = LogicalHash::new();
        StateMachine::hash(&self.machine, &mut hash).expect("the disk can be read");
        hash.finish()
    }

    /// Writes the blocks in memory to their places, as for a checkpoint.
    fn flush(&mut self, disk: &MemoryDisk) {
        let store = self.machine.storage_mut();
        let Some(mut job) = store.flush() else { return };
        loop {
            if let StreamStep::Done(done) = job.step(disk).expect("a disk with room") {
                return store.flushed(&done);
            }
        }
    }
}

fn disk() -> MemoryDisk {
    let disk = MemoryDisk::new();
    store::files::Files::create_dir(&disk, DIRECTORY).expect("an empty disk");
    disk
}

fn stamp(session: ClientSessionId, sequence: u64) -> SessionStamp {
    SessionStamp { session, sequence, first_incomplete: sequence }
}

fn data(first: u64, blocks: usize, byte: u8) -> BlockChange {
    BlockChange::Data { first, data: vec![byte; blocks * BLOCK].into() }
}

fn zero(first: u64, count: u64, keeps_allocated: bool) -> BlockChange {
    BlockChange::Zero { first, count, keeps_allocated }
}

fn write(
    stamp: SessionStamp,
    changes: impl Into<Vec<BlockChange>>,
    parts: impl Into<Vec<PartialBlock>>,
) -> StripeRequest {
    StripeRequest::Write(StripeWrite { stamp, stripe: STRIPE, changes: changes.into(), parts: parts.into() })
}

#[test]
fn blocks_are_zero_until_written() {
    let mut replica = Replica::new(STRIPE);
    let session = replica.open();
    assert_eq!(replica.read(0, 256), [BlockRun::Zeroes(256)]);
    assert_eq!(replica.status(5, 1 << 30), [(1 << 30, BlockState::Hole)]);
    let changes = [data(1, 2, 7), zero(4, 1, true), data(300, 1, 0)];
    assert_eq!(replica.request(&write(stamp(session, 1), changes, [])), Ok(StripeResponse::Written));
    let written = BlockRun::Data(vec![7; 2 * BLOCK].into());
    assert_eq!(replica.read(0, 8), [BlockRun::Zeroes(1), written.clone(), BlockRun::Zeroes(5)]);
    assert_eq!(replica.read(1, 2), [written], "only these");
    let (hole, zero, data) = (BlockState::Hole, BlockState::Zero, BlockState::Data);
    let all = [(1, hole), (2, data), (1, hole), (1, zero), (295, hole), (1, zero), (699, hole)];
    assert_eq!(replica.status(0, 1_000), all);
    assert_eq!(replica.status(2, 3), [(1, data), (1, hole), (1, zero)]);
}

/// A read returns each block as of some moment during the read: a flush may have overwritten the earlier content.
#[test]
fn views_are_as_new_as_their_moment() {
    let mut replica = Replica::new(STRIPE);
    let session = replica.open();
    replica.request(&write(stamp(session, 1), [data(0, 9, 1)], [])).expect("written");
    let view = replica.machine.view_now();
    replica.request(&write(stamp(session, 2), [data(0, 9, 2), zero(256, 256, true)], [])).expect("written");
    let blocks = BlockSpan { stripe: STRIPE, first: 0, count: 9 };
    let request = StripeRequest::Read { consistency: Consistency::Strong, blocks };
    let query = state_machine::View::read(&view, &request).expect("a read");
    let runs = vec![BlockRun::Data(vec![2; 9 * BLOCK].into())];
    assert_eq!(query.answer(Io::Allowed), Ok(Evaluated::Outcome(Ok(StripeResponse::Runs(runs)))));
    assert!(!state_machine::View::is_same(&view, &replica.machine.view_now()));
}

#[test]
fn partial_writes_are_completed_by_the_leader() {
    let mut replica = Replica::new(STRIPE);
    let session = replica.open();
    replica.request(&write(stamp(session, 1), [data(5, 1, 1)], [])).expect("written");
    let part = |block, start, text: &'static str| PartialBlock { block, start, data: text.into() };
    let request = write(stamp(session, 2), [data(9, 1, 9)], [part(5, 4, "abc"), part(6, 4093, "xyz")]);
    let Payload::Decide(query) = replica.machine.propose(&request) else { panic!("it depends on the content") };
    let Ok(Evaluated::Decided(decision)) = query.answer(Io::Allowed) else { panic!("a command") };
    let Ok(Command::Write { changes, .. }) = Command::decode(decision.command.clone()) else { panic!("a write") };
    assert!(changes.iter().all(|change| change.span().1 == 1), "whole blocks");
    replica.outcome(decision.command).expect("written");
    let content = replica.content(5, 2);
    assert_eq!(content[..8], [1, 1, 1, 1, b'a', b'b', b'c', 1]);
    assert!(content[8..2 * BLOCK - 3].iter().enumerate().all(|(at, byte)| *byte == u8::from(at + 8 < BLOCK)));
    assert!(content.ends_with(b"xyz"));

    let spans = request.locks();
    let modes: Vec<_> = spans.spans().iter().map(|span| span.mode).collect();
    assert_eq!(modes, [LockMode::Blind, LockMode::Exclusive, LockMode::Exclusive]);
    let LockKeys::Key(key) = &spans.spans()[1].keys else { panic!("one block") };
    assert_eq!(key[..], [0, 3, 0, 0, 0, 0, 0, 5]);
}

#[test]
fn retry_does_not_overwrite_a_later_write() {
    let mut replica = Replica::new(STRIPE);
    let (session, other) = (replica.open(), replica.open());
    let first = write(stamp(session, 1), [data(0, 1, 1)], []);
    replica.request(&first).expect("written");
    replica.request(&write(stamp(other, 1), [data(0, 1, 2)], [])).expect("written");
    assert_eq!(replica.request(&first), Ok(StripeResponse::Written));
    assert_eq!(replica.content(0, 1), [2; BLOCK]);
    // So does the retry of a part, and one after a checkpoint.
    let part = write(stamp(session, 2), [], [PartialBlock { block: 0, start: 0, data: "x".into() }]);
    replica.request(&part).expect("written");
    replica.request(&write(stamp(other, 2), [data(0, 1, 3)], [])).expect("written");
    let before = replica.hash();
    let chunks: Vec<Bytes> = Chunks::of(replica.machine.snapshot()).collect();
    let snapshot: StripeSnapshot = load(replica.machine.progress.cohort, &chunks).expect("its own chunks");
    let store = std::mem::replace(replica.machine.storage_mut(), stream(CohortId(1)));
    replica.machine = state_machine::Snapshot::into_machine(snapshot, store);
    assert_eq!(replica.hash(), before);
    assert_eq!(replica.request(&part), Ok(StripeResponse::Written));
    assert_eq!(replica.content(0, 1), [3; BLOCK]);
    let lost = ClientSessionId(session.0 + 99);
    let unknown = replica.request(&write(stamp(lost, 1), [data(0, 1, 9)], []));
    assert_eq!(unknown, Err(Failure::UnknownSession(lost)));
    assert_eq!(replica.content(0, 1), [3; BLOCK]);
}

#[test]
fn sessions_expire_and_disks_are_dropped() {
    let mut replica = Replica::new(STRIPE);
    let session = replica.open();
    let past = Past { session_lifetime: Some(replica.timestamp), retention: None };
    let housekeeping = replica.machine.housekeeping(past);
    assert_eq!((housekeeping.commands.len(), housekeeping.sessions_expired), (1, 1));
    replica.apply(housekeeping.commands[0].clone());
    assert_eq!(replica.machine.sessions_open(), 0);
    assert_eq!(replica.machine.housekeeping(past).commands.len(), 0);
    let expired = replica.request(&write(stamp(session, 1), [data(0, 1, 1)], []));
    assert_eq!(expired, Err(Failure::UnknownSession(session)));

    let session = replica.open();
    replica.request(&write(stamp(session, 1), [data(0, 1, 1)], [])).expect("written");
    let applied = replica.apply(Command::Drop.encode());
    assert_eq!(applied.effect, Some(Effect::RangeDropped));
    assert!(state_machine::Snapshot::is_dropped(&replica.machine.snapshot()));
    let late = replica.apply(Command::OpenSession { stripe: STRIPE, claim: Claim::Shared }.encode());
    assert_eq!(late, Applied::effect(Effect::Elsewhere));
    assert_eq!(replica.apply(Command::Drop.encode()).effect, None);
}

#[test]
fn requests_are_validated() {
    let mut replica = Replica::new(STRIPE);
    let session = replica.open();
    let at = stamp(session, 1);
    let part = |start, length| PartialBlock { block: 9, start, data: vec![1; length].into() };
    let late = SessionStamp { session, sequence: 1_025, first_incomplete: 1 };
    let many: Vec<_> = (0..=WRITE_CHANGES_MAX as u64).map(|block| zero(2 * block, 1, false)).collect();
    let invalid = [
        write(at, [], []),
        write(at, many, []),
        write(at, [data(0, 2, 1), data(1, 1, 1)], []),
        write(at, [zero(0, 20, false)], [part(0, 1)]),
        write(at, [data(0, WRITE_DATA_BYTES_MAX / BLOCK + 1, 1)], []),
        write(at, [BlockChange::Data { first: 0, data: vec![1; 100].into() }], []),
        write(at, [BlockChange::Data { first: 0, data: vec![1; BLOCK + 1].into() }], []),
        write(at, [zero(0, HOLE_BLOCKS_MAX + 1, false)], []),
        write(at, [zero(0, ZERO_BLOCKS_MAX + 1, true)], []),
        write(at, [zero(0, 0, true)], []),
        write(at, [zero(STRIPE_BLOCKS_MAX, 1, false)], []),
        write(at, [zero(u64::MAX, 2, false)], []),
        write(at, [], [part(0, 0)]),
        write(at, [], [part(0, BLOCK)]),
        write(at, [], [part(4000, 97)]),
        write(at, [], [part(u32::MAX, 1)]),
        write(late, [data(0, 1, 1)], []),
        write(SessionStamp { session, sequence: 0, first_incomplete: 0 }, [data(0, 1, 1)], []),
        StripeRequest::Read {
            consistency: Consistency::Strong,
            blocks: BlockSpan { stripe: STRIPE, first: 0, count: READ_BLOCKS_MAX + 1 },
        },
        StripeRequest::Status {
            consistency: Consistency::Strong,
            blocks: BlockSpan { stripe: STRIPE, first: 0, count: 0 },
        },
    ];
    for request in invalid {
        assert!(matches!(replica.request(&request), Err(Failure::Invalid(_))), "{request:?}");
    }
    let other = BlockSpan { stripe: StripeId(4), first: 0, count: 1 };
    let elsewhere = replica.request(&StripeRequest::Read { consistency: Consistency::Strong, blocks: other });
    assert!(matches!(elsewhere, Err(Failure::Unavailable(_))));
}

#[test]
fn messages_are_encoded() {
    let session = ClientSessionId(5);
    let blocks = BlockSpan { stripe: STRIPE, first: 1 << 37, count: 9 };
    let part = PartialBlock { block: 4, start: 5, data: "abc".into() };
    let requests = [
        write(stamp(session, 1), [data(0, 1, 1), zero(7, 2, true), zero(9, 1, false)], [part]),
        StripeRequest::OpenSession { stripe: STRIPE, claim: Claim::Shared },
        StripeRequest::OpenSession { stripe: STRIPE, claim: Claim::Attach("a".to_owned()) },
        StripeRequest::OpenSession {
            stripe: STRIPE,
            claim: Claim::Hold(Holder { name: "a".to_owned(), generation: 7 }),
        },
        StripeRequest::EndSession { stripe: STRIPE, session },
        StripeRequest::Release { stripe: STRIPE },
        StripeRequest::Heal { stripe: STRIPE, block: 7, content: vec![5; BLOCK].into() },
        StripeRequest::Holder { stripe: STRIPE },
        StripeRequest::Read { consistency: Consistency::Anywhere, blocks },
        StripeRequest::Status { consistency: Consistency::Strong, blocks },
        StripeRequest::Drop,
    ];
    for request in requests {
        assert_eq!(StripeRequest::from_bytes(request.to_bytes()), Ok(request));
    }
    let responses = [
        StripeResponse::SessionOpened { session, generation: 7 },
        StripeResponse::SessionEnded,
        StripeResponse::Released,
        StripeResponse::Healed,
        StripeResponse::Holder(Some(Holder { name: "a".to_owned(), generation: 7 })),
        StripeResponse::Written,
        StripeResponse::Runs(vec![BlockRun::Zeroes(3), BlockRun::Data("x".into())]),
        StripeResponse::Extents(vec![BlockExtent { count: 5, state: BlockState::Zero }]),
        StripeResponse::Dropped,
    ];
    for response in responses {
        assert_eq!(StripeResponse::from_bytes(response.to_bytes()), Ok(response));
    }
    let command = Command::Write { stamp: stamp(session, 2), stripe: STRIPE, changes: vec![zero(7, 2, true)] };
    let golden = "020500000000000000020000000000000002000000000000000300000001000000030700000000000000\
                  0200000000000000";
    assert_eq!(command.encode().iter().map(|byte| format!("{byte:02x}")).collect::<String>(), golden);
}

/// Random changes, compared with a list of blocks, on disk and in memory.
#[test]
fn content_and_allocation_match_a_model() {
    const BLOCKS: u64 = 1_200;
    let mut random = SplitMix64::new(39);
    for round in 0..6 {
        let (mut one, mut other) = (Replica::new(STRIPE), Replica::new(STRIPE));
        let disk = disk();
        let session = one.open();
        assert_eq!(other.open(), session);
        let mut model: Vec<Option<u8>> = vec![None; BLOCKS as usize];
        for step in 1..150 {
            let first = random.below(BLOCKS);
            let left = BLOCKS - first;
            let change = match random.below(4) {
                0 | 1 => data(first, (1 + random.below(left.min(8))) as usize, random.below(5) as u8),
                kind => {
                    let count =
                        if random.below(2) == 0 { 1 + random.below(left) } else { left.min(1 + random.below(9)) };
                    zero(first, count, kind == 2)
                }
            };
            let (first, count) = change.span();
            let value = match &change {
                BlockChange::Data { data, .. } => Some(data[0]),
                BlockChange::Zero { keeps_allocated, .. } => keeps_allocated.then_some(0),
            };
            model[first as usize..(first + count) as usize].fill(value);
            let request = write(stamp(session, step), [change], []);
            one.request(&request).expect("written");
            other.request(&request).expect("written");
            if random.below(10) == 0 {
                one.flush(&disk);
            }
            let first = random.below(BLOCKS - 256);
            let count = 1 + random.below(256);
            let expected: Vec<u8> = model[first as usize..(first + count) as usize]
                .iter()
                .flat_map(|block| [block.unwrap_or(0); BLOCK])
                .collect();
            assert!(one.content(first, count) == expected, "round {round}, step {step}: {count} from {first}");
            let state = |block: &Option<u8>| match block {
                None => BlockState::Hole,
                Some(0) => BlockState::Zero,
                Some(_) => BlockState::Data,
            };
            let found = one.status(first, count);
            let found: Vec<_> = found.into_iter().flat_map(|(count, state)| vec![state; count as usize]).collect();
            let expected: Vec<_> = model[first as usize..(first + count) as usize].iter().map(state).collect();
            assert!(found == expected, "round {round}, step {step}: {count} from {first}");
        }
        assert_eq!(one.hash(), other.hash(), "round {round}: replicas differ");
    }
}

#[test]
fn allocation_query_is_bounded() {
    let mut replica = Replica::new(STRIPE);
    let session = replica.open();
    for step in 0..80 {
        let request = write(stamp(session, step + 1), [zero(step * 512, 512, true)], []);
        replica.request(&request).expect("written");
    }
    let (mut next, mut queries) = (0, 0);
    while next < 80 * 512 + 1_000 {
        let found = replica.status(next, 80 * 512 + 1_000 - next);
        let covered: u64 = found.iter().map(|(count, _)| count).sum();
        assert!(covered > 0);
        next += covered;
        queries += 1;
    }
    assert!(queries > 1, "{queries}");
}
