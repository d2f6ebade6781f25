use base::SplitMix64;
use bytes::BytesMut;

use super::*;
use crate::layout::UNIT_BYTES;
use crate::nbd::{BlockState, Connection, Export, Exports, Refusal, Request, Step};
use crate::stripe::request::StripeWrite;
use crate::stripe::tests::Replica;

const BLOCK: usize = BLOCK_BYTES as usize;

fn milliseconds(count: u64) -> Duration {
    Duration::from_millis(count)
}

/// A gateway with the stripes of its disk, and calls in progress.
struct Disk {
    stripes: Vec<Replica>,
    gateways: Vec<Gateway>,
    now: Monotonic,
    /// Calls in progress, with the gateway that made them.
    calls: Vec<(usize, CallId, StripeRequest)>,
    replies: Vec<(usize, Reply)>,
}

impl Disk {
    fn new(stripes: u16, gateways: usize, settings: Settings) -> Self {
        let layout = Layout::new(stripes).expect("a valid number");
        Self {
            stripes: (0..stripes).map(|stripe| Replica::new(StripeId(stripe))).collect(),
            gateways: (0..gateways).map(|_| Gateway::new(layout, settings)).collect(),
            now: Monotonic(1),
            calls: Vec::new(),
            replies: Vec::new(),
        }
    }

    fn collect(&mut self) {
        for (number, gateway) in self.gateways.iter_mut().enumerate() {
            gateway.invariants();
            for action in gateway.take_actions() {
                match action {
                    Action::Call { call, request } => {
                        assert_eq!(state_machine::Request::validate(&request), Ok(()), "{request:?}");
                        self.calls.push((number, call, request));
                    }
                    Action::Reply(reply) => self.replies.push((number, reply)),
                }
            }
        }
    }

    fn submit(&mut self, gateway: usize, cookie: u64, offset: u64, length: usize, command: Command) {
        let request = Request { cookie, offset, length: length as u32, command };
        self.gateways[gateway].submit(self.now, request);
        self.collect();
    }

    fn write(&mut self, gateway: usize, cookie: u64, offset: u64, data: Vec<u8>) {
        self.submit(gateway, cookie, offset, data.len(), Command::Write(data.into()));
    }

    fn execute(&mut self, request: &StripeRequest) -> Outcome {
        let stripe = match request {
            StripeRequest::OpenSession { stripe, .. }
            | StripeRequest::EndSession { stripe, .. }
            | StripeRequest::Release { stripe }
            | StripeRequest::Heal { stripe, .. }
            | StripeRequest::Holder { stripe }
            | StripeRequest::Check { stripe, .. } => *stripe,
            StripeRequest::Write(write) => write.stripe,
            StripeRequest::Read { blocks, .. } | StripeRequest::Status { blocks, .. } => blocks.stripe,
            StripeRequest::Drop => panic!("no gateway drops a disk"),
        };
        self.stripes[usize::from(stripe.0)].request(request)
    }

    fn answer(&mut self, gateway: usize, call: CallId, outcome: Outcome) {
        self.gateways[gateway].answered(self.now, call, outcome);
        self.collect();
    }

    /// Executes a call in progress, and answers it.
    fn proceed(&mut self, at: usize) {
        let (gateway, call, request) = self.calls.remove(at);
        let outcome = self.execute(&request);
        self.answer(gateway, call, outcome);
    }

    fn wait(&mut self, duration: Duration) {
        self.now = self.now + duration;
        self.gateways.iter_mut().for_each(|gateway| gateway.timer(self.now));
        self.collect();
    }

    /// Executes and answers all calls, until none is left.
    fn settle(&mut self) {
        while !self.gateways.iter().all(Gateway::is_idle) || !self.calls.is_empty() {
            while !self.calls.is_empty() {
                self.proceed(0);
            }
            self.wait(milliseconds(1_000));
        }
    }

    /// Executes and answers all calls in progress.
    fn settle_calls(&mut self) {
        self.collect();
        while !self.calls.is_empty() {
            self.proceed(0);
        }
    }

    fn result(&mut self) -> RequestResult {
        assert_eq!(self.replies.len(), 1, "{:?}", self.replies);
        self.replies.remove(0).1.result
    }

    /// The only call in progress, which is a write.
    fn written(&self) -> StripeWrite {
        match &self.calls[..] {
            [(_, _, StripeRequest::Write(write))] => write.clone(),
            other => panic!("{other:?}"),
        }
    }

    fn read(&mut self, offset: u64, length: usize) -> Vec<u8> {
        self.submit(0, 0, offset, length, Command::Read { is_whole: false });
        self.settle();
        content(self.result())
    }
}

fn content(result: RequestResult) -> Vec<u8> {
    let RequestResult::Read { runs, .. } = result else { panic!("{result:?}") };
    let bytes = |run| match run {
        Run::Data(data) => data.to_vec(),
        Run::Zeroes(count) => vec![0; count as usize],
    };
    runs.into_iter().flat_map(bytes).collect()
}

fn unknown() -> Outcome {
    Err(Failure::Unknown("the leader is gone".to_owned()))
}

fn unavailable() -> Outcome {
    Err(Failure::Unavailable("no leader".to_owned()))
}

#[test]
fn requests_are_divided_among_stripes() {
    let mut disk = Disk::new(4, 1, Settings::default());
    let data: Vec<u8> = (0..3 << 20).map(|at: u32| (at / 1_000) as u8).collect();
    disk.write(0, 1, 4_000, data.clone());
    assert_eq!(disk.calls.len(), 4, "a session of each stripe");
    disk.settle();
    assert_eq!(disk.result(), RequestResult::Done);
    assert_eq!(disk.read(4_000, data.len()), data);
    assert_eq!(disk.read(3_999, 2), [0, data[0]]);
    // The blocks of a unit are in one stripe.
    disk.submit(0, 2, UNIT_BYTES, UNIT_BYTES as usize, Command::Read { is_whole: true });
    assert_eq!(disk.calls.len(), 1);
    disk.settle();
    assert_eq!(content(disk.result()), data[UNIT_BYTES as usize - 4_000..][..UNIT_BYTES as usize]);
}

#[test]
fn large_writes_are_cut_and_small_ones_combined() {
    let mut disk = Disk::new(1, 1, Settings::default());
    disk.write(0, 1, 0, vec![1; 5 << 20]);
    disk.proceed(0);
    let bytes: Vec<usize> = disk
        .calls
        .iter()
        .map(|(.., request)| if let StripeRequest::Write(write) = request { write.data_bytes() } else { 0 })
        .collect();
    assert_eq!(bytes, [1 << 20; 5]);
    for cookie in 0..20 {
        disk.write(0, 100 + cookie, (8 << 20) + cookie * 8_192, vec![2; 8_192]);
    }
    assert_eq!(disk.calls.len(), 8, "the others wait");
    disk.proceed(0);
    let Some((.., StripeRequest::Write(combined))) = disk.calls.last() else { panic!("a proposal") };
    assert_eq!(combined.changes.len(), 17);
    disk.settle();
    assert_eq!(disk.replies.len(), 21);
}

#[test]
fn overlapping_changes_are_executed_in_order() {
    let mut disk = Disk::new(1, 1, Settings::default());
    disk.write(0, 1, 0, vec![1; 3 * BLOCK]);
    disk.proceed(0);
    disk.write(0, 2, BLOCK_BYTES, vec![2; 3 * BLOCK]);
    disk.write(0, 3, 2 * BLOCK_BYTES, vec![3; BLOCK]);
    disk.write(0, 4, 9 * BLOCK_BYTES, vec![4; BLOCK]);
    let firsts: Vec<u64> = disk
        .calls
        .iter()
        .map(|(.., request)| if let StripeRequest::Write(write) = request { write.changes[0].span().0 } else { 99 })
        .collect();
    assert_eq!(firsts, [0, 9], "the second write waits for the first, and the third for the second");
    disk.settle();
    disk.replies.clear();
    let content = disk.read(0, 5 * BLOCK);
    let of_blocks: Vec<u8> = content.chunks(BLOCK).map(|block| block[0]).collect();
    assert_eq!(of_blocks, [1, 2, 3, 2, 0]);
}

#[test]
fn write_with_a_lost_answer_is_repeated_with_its_stamp() {
    let mut disk = Disk::new(1, 1, Settings::default());
    disk.write(0, 1, 0, vec![1; BLOCK]);
    disk.proceed(0);
    let first = disk.written();
    // Executed, but the answer is lost: the client is not answered.
    let (_, call, request) = disk.calls.remove(0);
    disk.execute(&request).expect("written");
    disk.wait(milliseconds(14_999));
    assert!(disk.calls.is_empty());
    disk.wait(milliseconds(1));
    assert!(disk.calls.is_empty(), "a pause");
    disk.wait(milliseconds(5));
    assert_eq!(disk.written(), first);
    disk.answer(0, call, Ok(StripeResponse::Written));
    assert!(disk.replies.is_empty(), "the call was given up");
    // Another failure, then the outcome.
    let (_, call, _) = disk.calls.remove(0);
    disk.answer(0, call, unknown());
    disk.answer(0, call, unknown());
    disk.settle();
    assert_eq!(disk.result(), RequestResult::Done);
}

#[test]
fn delayed_attempt_does_not_overwrite_a_later_write() {
    let mut disk = Disk::new(1, 1, Settings::default());
    disk.write(0, 1, 0, vec![1; BLOCK]);
    disk.proceed(0);
    let (_, call, delayed) = disk.calls.remove(0);
    disk.answer(0, call, unknown());
    disk.settle();
    disk.write(0, 2, 0, vec![2; BLOCK]);
    disk.settle();
    assert_eq!(disk.replies.len(), 2);
    disk.replies.clear();
    assert!(disk.execute(&delayed).is_err() || disk.read(0, 1) == [2], "it has an outcome already");
    assert_eq!(disk.read(0, BLOCK), vec![2; BLOCK]);
}

#[test]
fn expired_session_is_replaced_before_anything_is_executed() {
    let mut disk = Disk::new(1, 1, Settings::default());
    disk.write(0, 1, 0, vec![1; BLOCK]);
    disk.settle();
    disk.replies.clear();
    disk.stripes[0].expire_sessions();
    disk.write(0, 2, 0, vec![2; BLOCK]);
    disk.write(0, 3, BLOCK_BYTES, vec![3; BLOCK]);
    disk.settle();
    assert_eq!(disk.replies.iter().filter(|(_, reply)| reply.result == RequestResult::Done).count(), 2);
    disk.replies.clear();
    assert_eq!(disk.read(0, 2 * BLOCK), [vec![2; BLOCK], vec![3; BLOCK]].concat());
}

#[test]
fn unknown_outcome_of_an_expired_session_is_an_error() {
    let mut disk = Disk::new(1, 1, Settings::default());
    disk.write(0, 1, 0, vec![1; BLOCK]);
    disk.proceed(0);
    let (_, call, delayed) = disk.calls.remove(0);
    disk.answer(0, call, unknown());
    disk.stripes[0].expire_sessions();
    disk.settle();
    assert!(matches!(disk.result(), RequestResult::Failed { errno: Errno::Io, .. }));
    assert!(matches!(disk.execute(&delayed), Err(Failure::UnknownSession(_))), "it is never executed later");
    disk.write(0, 2, 0, vec![2; BLOCK]);
    disk.settle();
    assert_eq!(disk.result(), RequestResult::Done);
}

#[test]
fn requests_wait_while_a_majority_is_lost() {
    let mut disk = Disk::new(2, 1, Settings::default());
    disk.write(0, 1, 0, vec![1; BLOCK]);
    disk.submit(0, 2, UNIT_BYTES, BLOCK, Command::Read { is_whole: false });
    disk.submit(0, 3, UNIT_BYTES, BLOCK, Command::BlockStatus { is_single: false });
    for _ in 0..100 {
        for (gateway, call, _) in std::mem::take(&mut disk.calls) {
            disk.answer(gateway, call, unavailable());
        }
        disk.wait(milliseconds(700));
    }
    assert!(disk.replies.is_empty() && disk.calls.len() == 3);
    disk.settle();
    let mut cookies: Vec<u64> = disk.replies.iter().map(|(_, reply)| reply.cookie).collect();
    cookies.sort_unstable();
    assert_eq!(cookies, [1, 2, 3]);
    assert!(disk.replies.iter().all(|(_, reply)| !matches!(reply.result, RequestResult::Failed { .. })));
}

#[test]
fn requests_fail_after_their_patience_unless_executed() {
    let patience = Some(milliseconds(2_000));
    let mut disk = Disk::new(1, 1, Settings { patience, ..Settings::default() });
    disk.write(0, 1, 0, vec![1; BLOCK]);
    disk.settle();
    disk.replies.clear();
    disk.write(0, 2, 0, vec![2; BLOCK]);
    disk.write(0, 3, BLOCK_BYTES, vec![3; BLOCK]);
    disk.submit(0, 4, 0, BLOCK, Command::Read { is_whole: false });
    // The second write may be executed.
    let (gateway, call, _) = disk.calls.remove(0);
    disk.answer(gateway, call, unknown());
    for _ in 0..10 {
        for (gateway, call, _) in std::mem::take(&mut disk.calls) {
            disk.answer(gateway, call, unavailable());
        }
        disk.wait(milliseconds(600));
    }
    let failed: Vec<u64> = disk.replies.drain(..).map(|(_, reply)| reply.cookie).collect();
    assert_eq!(failed, [3, 4]);
    disk.settle();
    assert_eq!(disk.result(), RequestResult::Done);
    // A change that waits behind one that may be executed.
    disk.write(0, 5, 0, vec![5; BLOCK]);
    disk.write(0, 6, 0, vec![6; BLOCK]);
    for _ in 0..10 {
        let (gateway, call, _) = disk.calls.remove(0);
        disk.answer(gateway, call, unknown());
        disk.wait(milliseconds(600));
    }
    let failed = disk.replies.remove(0).1;
    assert!(failed.cookie == 6 && matches!(failed.result, RequestResult::Failed { errno: Errno::Io, .. }));
    disk.settle();
    assert_eq!(disk.result(), RequestResult::Done);
    // A session that cannot be opened.
    let mut disk = Disk::new(1, 1, Settings { patience, ..Settings::default() });
    disk.write(0, 1, 0, vec![1; BLOCK]);
    for _ in 0..10 {
        for (gateway, call, _) in std::mem::take(&mut disk.calls) {
            disk.answer(gateway, call, unavailable());
        }
        disk.wait(milliseconds(600));
    }
    assert!(matches!(disk.result(), RequestResult::Failed { errno: Errno::Io, .. }));
}

#[test]
fn full_disk_fails_changes_that_are_not_executed() {
    let mut disk = Disk::new(1, 1, Settings::default());
    disk.write(0, 1, 0, vec![1; BLOCK]);
    disk.settle();
    disk.replies.clear();
    let full = || Err(Failure::NoSpace("the disk of node 1 is full".to_owned()));
    disk.write(0, 2, 0, vec![2; BLOCK]);
    let (gateway, call, _) = disk.calls.remove(0);
    disk.answer(gateway, call, full());
    assert!(matches!(disk.result(), RequestResult::Failed { errno: Errno::NoSpace, .. }));
    // The first attempt of this one may have been executed.
    disk.write(0, 3, 0, vec![3; BLOCK]);
    let (gateway, call, _) = disk.calls.remove(0);
    disk.answer(gateway, call, unknown());
    for _ in 0..3 {
        disk.wait(milliseconds(600));
        let (gateway, call, _) = disk.calls.remove(0);
        disk.answer(gateway, call, full());
    }
    assert_eq!(disk.replies, []);
    disk.settle();
    assert_eq!(disk.result(), RequestResult::Done);
}

#[test]
fn repeated_read_goes_to_leader() {
    let mut disk = Disk::new(1, 1, Settings { reads: Consistency::Anywhere, ..Settings::default() });
    disk.submit(0, 1, 0, BLOCK, Command::Read { is_whole: false });
    disk.submit(0, 2, 0, BLOCK, Command::BlockStatus { is_single: false });
    let levels = |disk: &Disk| -> Vec<Consistency> {
        disk.calls.iter().map(|(_, _, request)| state_machine::Request::consistency(request)).collect()
    };
    assert_eq!(levels(&disk), [Consistency::Anywhere; 2]);
    for (gateway, call, _) in std::mem::take(&mut disk.calls) {
        disk.answer(gateway, call, unavailable());
    }
    disk.wait(milliseconds(600));
    assert_eq!(levels(&disk), [Consistency::Strong; 2]);
    disk.settle();
    assert_eq!(disk.replies.len(), 2);
}

#[test]
fn deleted_disk_fails_requests() {
    let mut disk = Disk::new(1, 1, Settings::default());
    disk.write(0, 1, 0, vec![1; BLOCK]);
    disk.submit(0, 2, 0, BLOCK, Command::Read { is_whole: false });
    for (gateway, call, _) in std::mem::take(&mut disk.calls) {
        disk.answer(gateway, call, Err(Failure::UnknownTable("data".to_owned())));
    }
    assert!(disk.gateways[0].is_idle());
    assert_eq!(disk.replies.len(), 2);
    assert!(
        disk.replies.iter().all(|(_, reply)| matches!(reply.result, RequestResult::Failed { errno: Errno::Io, .. }))
    );
}

/// The disk was deleted, and another one has its name: an attachment of the first one writes nothing to the second one.
#[test]
fn replaced_disk_is_not_written() {
    let mut disk = Disk::new(1, 1, Settings::default());
    disk.write(0, 1, 0, vec![1; BLOCK]);
    disk.settle();
    assert_eq!(disk.result(), RequestResult::Done);
    disk.stripes[0] = Replica::of_cohort(StripeId(0), base::CohortId(99));
    for cookie in 2..5 {
        disk.write(0, cookie, 0, vec![2; BLOCK]);
        disk.settle();
        assert!(matches!(disk.result(), RequestResult::Failed { errno: Errno::Io, .. }));
    }
    assert_eq!(disk.read(0, BLOCK), [0; BLOCK]);
}

#[test]
fn flush_and_unaligned_trim_need_no_call() {
    let mut disk = Disk::new(2, 1, Settings::default());
    for (cookie, command) in [(1, Command::Flush), (2, Command::Cache), (3, Command::Trim)] {
        disk.submit(0, cookie, 100, BLOCK, command);
    }
    assert_eq!((disk.replies.len(), disk.calls.len()), (3, 0));
}

#[test]
fn zeroes_and_holes() {
    let mut disk = Disk::new(2, 1, Settings::default());
    let length = 3 * UNIT_BYTES as usize;
    disk.write(0, 1, 0, vec![1; length]);
    disk.settle();
    disk.result();
    let zeroes = |keeps_allocated| Command::WriteZeroes { keeps_allocated, must_be_fast: true };
    disk.submit(0, 2, 100, BLOCK, zeroes(false));
    disk.submit(0, 3, UNIT_BYTES, BLOCK, zeroes(true));
    disk.submit(0, 4, 2 * UNIT_BYTES - 100, 2 * BLOCK + 100, Command::Trim);
    disk.settle();
    disk.replies.clear();
    let mut expected = vec![1; length];
    expected[100..100 + BLOCK].fill(0);
    expected[UNIT_BYTES as usize..][..BLOCK].fill(0);
    expected[2 * UNIT_BYTES as usize..][..2 * BLOCK].fill(0);
    assert!(disk.read(0, length) == expected);
    disk.submit(0, 5, 100, length - 100, Command::BlockStatus { is_single: false });
    disk.settle();
    let RequestResult::Status(extents) = disk.result() else { panic!("extents") };
    let found: Vec<_> = extents.iter().map(|extent| (extent.length, extent.state)).collect();
    let (unit, block) = (UNIT_BYTES as u32, BLOCK as u32);
    let data = |length| (length, BlockState::Data);
    assert_eq!(
        found,
        [
            data(unit - 100),
            (block, BlockState::Zero),
            data(unit - block),
            (2 * block, BlockState::Hole),
            data(unit - 2 * block)
        ]
    );
    disk.submit(0, 6, UNIT_BYTES + 1, length / 2, Command::BlockStatus { is_single: true });
    disk.settle();
    let extents = RequestResult::Status(vec![Extent { length: block - 1, state: BlockState::Zero }]);
    assert_eq!(disk.result(), extents);
}

#[test]
fn parts_of_a_block_are_written_through_two_gateways() {
    let mut disk = Disk::new(1, 2, Settings::default());
    for round in 0..40_u8 {
        for gateway in 0..2 {
            let at = 16 * u64::from(round) + 8 * gateway as u64;
            disk.write(gateway, u64::from(round), at, vec![round + 100 * gateway as u8 + 1; 8]);
        }
        while !disk.calls.is_empty() {
            disk.proceed(usize::from(round) % disk.calls.len());
        }
    }
    disk.settle();
    disk.replies.clear();
    let expected: Vec<u8> = (0..40_u8).flat_map(|round| [[round + 1; 8], [round + 101; 8]].concat()).collect();
    assert_eq!(disk.read(0, expected.len()), expected);
}

#[test]
fn holder_excludes_others_and_its_earlier_requests() {
    let mut disk = Disk::new(1, 4, Settings::default());
    let not_permitted = |result| matches!(result, RequestResult::Failed { errno: Errno::NotPermitted, message } if message.contains("held"));
    disk.write(0, 1, 0, vec![1; BLOCK]);
    disk.settle();
    disk.write(0, 2, 0, vec![2; BLOCK]);
    let (_, shared, late) = disk.calls.remove(0);
    for gateway in [1, 2] {
        disk.gateways[gateway].attach(disk.now, "a".to_owned());
        assert_eq!(disk.gateways[gateway].attachment(), Attachment::InProgress);
        disk.settle_calls();
        assert_eq!(disk.gateways[gateway].attachment(), Attachment::Attached);
    }
    // A change that was sent before has no effect, and its gateway cannot open another session.
    let outcome = disk.execute(&late);
    assert!(matches!(outcome, Err(Failure::UnknownSession(_))));
    disk.replies.clear();
    disk.answer(0, shared, outcome);
    disk.settle();
    assert!(not_permitted(disk.result()));
    // Both connections of the holder can change the disk.
    for gateway in [1, 2] {
        disk.write(gateway, 3, 0, vec![gateway as u8; BLOCK]);
        disk.settle();
        assert_eq!(disk.result(), RequestResult::Done);
    }
    // Another holder, and the first one again: nothing of before is executed.
    disk.write(1, 4, 0, vec![4; BLOCK]);
    let (_, before, late) = disk.calls.remove(0);
    disk.gateways[3].attach(disk.now, "b".to_owned());
    disk.settle_calls();
    let mut again = Gateway::new(Layout::new(1).expect("valid"), Settings::default());
    again.attach(disk.now, "a".to_owned());
    disk.gateways[0] = again;
    disk.settle_calls();
    let outcome = disk.execute(&late);
    disk.answer(1, before, outcome);
    disk.settle();
    assert!(not_permitted(disk.result()));
    assert_eq!(disk.read(0, 1), [2]);
    assert_eq!(disk.execute(&StripeRequest::Release { stripe: StripeId(0) }), Ok(StripeResponse::Released));
    disk.write(0, 5, 0, vec![5; BLOCK]);
    disk.settle();
    assert!(matches!(disk.result(), RequestResult::Failed { errno: Errno::NotPermitted, .. }));
}

#[test]
fn closed_gateway_stops_what_it_proposed() {
    let mut disk = Disk::new(1, 1, Settings::default());
    disk.write(0, 1, 0, vec![1; BLOCK]);
    disk.proceed(0);
    disk.write(0, 2, 0, vec![2; BLOCK]);
    disk.submit(0, 3, 0, BLOCK, Command::Read { is_whole: false });
    let (gateway, call, late) = disk.calls.remove(0);
    disk.calls.clear();
    disk.answer(gateway, call, unknown());
    disk.gateways[0].close(disk.now);
    disk.collect();
    let [(_, _, StripeRequest::EndSession { .. })] = disk.calls[..] else { panic!("{:?}", disk.calls) };
    assert!(!disk.gateways[0].is_idle());
    let (gateway, call, end) = disk.calls.remove(0);
    disk.answer(gateway, call, unavailable());
    assert!(!disk.gateways[0].is_idle());
    assert_eq!(disk.execute(&end), Ok(StripeResponse::SessionEnded));
    disk.settle();
    assert!(disk.replies.is_empty());
    let mut other = Gateway::new(Layout::new(1).expect("valid"), Settings::default());
    std::mem::swap(&mut disk.gateways[0], &mut other);
    assert!(matches!(disk.execute(&late), Err(Failure::UnknownSession(_))));
    assert_eq!(disk.read(0, 1), [0]);
}

#[test]
fn requests_in_progress_are_bounded() {
    let mut disk = Disk::new(1, 1, Settings::default());
    let mut cookie = 0;
    while !disk.gateways[0].is_full() {
        cookie += 1;
        disk.submit(0, cookie, cookie * BLOCK_BYTES, BLOCK, Command::Read { is_whole: false });
    }
    assert_eq!((cookie, disk.calls.len()), (REQUESTS_MAX as u64, READS_MAX));
    disk.settle();
    assert_eq!(disk.replies.len(), REQUESTS_MAX);
    assert!(!disk.gateways[0].is_full());
    disk.write(0, 1, 0, vec![1; 32 << 20]);
    disk.write(0, 2, 0, vec![1; 32 << 20]);
    assert!(disk.gateways[0].is_full());
}

/// Random requests, while calls fail before or after they are executed, are lost, or are executed long after they were
/// abandoned. In the end each block has the content of the last write in the client's order, and each read without a
/// concurrent change returned exactly the content at its time.
#[test]
fn random_failures_do_not_change_the_content() {
    const BYTES: usize = 1 << 20;
    let mut random = SplitMix64::new(39);
    for round in 0..30 {
        let mut disk = Disk::new(1 + round % 3, 1, Settings::default());
        let mut model = vec![0_u8; BYTES];
        // Reads in progress that no change overlaps: offset and expected content by cookie.
        let mut reads: BTreeMap<u64, (usize, Vec<u8>)> = BTreeMap::new();
        // Changes in progress: blocks by cookie.
        let mut changes: BTreeMap<u64, (usize, usize)> = BTreeMap::new();
        let mut late: Vec<StripeRequest> = Vec::new();
        for step in 0..400 {
            let cookie = step + 1;
            let offset = random.below(BYTES as u64) as usize;
            let limit = if random.below(4) == 0 { 1 << 19 } else { 10_000 };
            let length = 1 + random.below((BYTES - offset).min(limit) as u64) as usize;
            let blocks = (offset / BLOCK, (offset + length).div_ceil(BLOCK));
            let meets = |other: (usize, usize)| other.0 < blocks.1 && blocks.0 < other.1;
            let at = offset as u64;
            match random.below(5) {
                _ if disk.gateways[0].is_full() => {}
                0 | 1 => {
                    let byte = 1 + random.below(250) as u8;
                    model[offset..offset + length].fill(byte);
                    disk.write(0, cookie, at, vec![byte; length]);
                    changes.insert(cookie, blocks);
                }
                2 => {
                    let keeps_allocated = random.below(2) == 0;
                    model[offset..offset + length].fill(0);
                    let command = Command::WriteZeroes { keeps_allocated, must_be_fast: false };
                    disk.submit(0, cookie, at, length, command);
                    changes.insert(cookie, blocks);
                }
                3 => {
                    let (from, to) = (offset.next_multiple_of(BLOCK), (offset + length) / BLOCK * BLOCK);
                    if from < to {
                        model[from..to].fill(0);
                    }
                    disk.submit(0, cookie, at, length, Command::Trim);
                    changes.insert(cookie, blocks);
                }
                _ => {
                    if !changes.values().any(|other| meets(*other)) {
                        reads.insert(cookie, (offset, model[offset..offset + length].to_vec()));
                    }
                    disk.submit(0, cookie, at, length, Command::Read { is_whole: false });
                }
            }
            if changes.contains_key(&cookie) {
                reads.retain(|_, (from, expected)| !meets((*from / BLOCK, (*from + expected.len()).div_ceil(BLOCK))));
            }
            for _ in 0..random.below(8) {
                if disk.calls.is_empty() {
                    break;
                }
                let at = random.below(disk.calls.len() as u64) as usize;
                match random.below(12) {
                    0 => {
                        let (gateway, call, _) = disk.calls.remove(at);
                        disk.answer(gateway, call, unavailable());
                    }
                    1 => {
                        let (gateway, call, request) = disk.calls.remove(at);
                        let _ = disk.execute(&request);
                        disk.answer(gateway, call, unknown());
                    }
                    2 => {
                        let (gateway, call, request) = disk.calls.remove(at);
                        late.push(request);
                        disk.answer(gateway, call, unknown());
                    }
                    3 => {
                        let (.., request) = disk.calls.remove(at);
                        late.push(request);
                    }
                    _ => disk.proceed(at),
                }
            }
            if random.below(3) == 0 && !late.is_empty() {
                let request = late.swap_remove(random.below(late.len() as u64) as usize);
                let _ = disk.execute(&request);
            }
            let pause = if random.below(10) == 0 { 16_000 } else { random.below(20) };
            disk.wait(milliseconds(pause));
            check_replies(&mut disk, &mut reads, &mut changes);
        }
        disk.settle();
        check_replies(&mut disk, &mut reads, &mut changes);
        for request in late {
            let _ = disk.execute(&request);
        }
        assert!(changes.is_empty() && reads.is_empty(), "all requests are answered");
        assert!(disk.read(0, BYTES) == model, "round {round}");
    }
}

fn check_replies(
    disk: &mut Disk,
    reads: &mut BTreeMap<u64, (usize, Vec<u8>)>,
    changes: &mut BTreeMap<u64, (usize, usize)>,
) {
    for (_, Reply { cookie, result, .. }) in std::mem::take(&mut disk.replies) {
        changes.remove(&cookie);
        match result {
            RequestResult::Done => {}
            RequestResult::Read { .. } => {
                let found = content(result);
                if let Some((_, expected)) = reads.remove(&cookie) {
                    assert!(found == expected, "read {cookie}");
                }
            }
            other => panic!("{other:?}"),
        }
    }
}

/// One export, "data".
struct One;

impl Exports for One {
    fn names(&self) -> Vec<String> {
        vec!["data".to_owned()]
    }

    fn find(&self, name: &str) -> Result<Export, Refusal> {
        let export = Export { size: 1 << 30, is_read_only: false, description: String::new() };
        (name == "data").then_some(export).ok_or(Refusal::Unknown)
    }
}

#[test]
fn client_writes_and_reads_through_the_protocol() {
    let hex = |text: &str| -> Vec<u8> {
        let digits: Vec<u32> = text.chars().filter_map(|c| c.to_digit(16)).collect();
        digits.chunks(2).map(|pair| (pair[0] << 4 | pair[1]) as u8).collect()
    };
    let client = "
        00000003
        49484156454f5054 00000008 00000000
        49484156454f5054 00000007 0000000a 00000004 64617461 0000
        25609513 0001 0001 0000000000000001 00000000000ffffe 00000004 61626364
        25609513 0000 0003 0000000000000002 0000000000000000 00000000
    ";
    let read = "25609513 0000 0000 0000000000000003 00000000000ffffd 00000006";
    let mut disk = Disk::new(4, 1, Settings::default());
    let (mut connection, _) = Connection::new();
    let mut sent = Vec::new();
    for text in [client, read] {
        let (mut input, mut out) = (BytesMut::from(&hex(text)[..]), Vec::new());
        loop {
            match connection.advance(&mut input, &One, &mut out).expect("a valid session") {
                Step::NeedsBytes(_) => break,
                Step::Request(request) => {
                    disk.gateways[0].submit(disk.now, request);
                    disk.collect();
                }
                Step::Continue | Step::Attached { .. } => {}
                Step::Disconnect => panic!("no"),
            }
        }
        disk.settle();
        out.clear();
        for (_, reply) in disk.replies.drain(..) {
            reply.encode(connection.replies(), &mut out);
        }
        sent.push(out.concat());
    }
    assert_eq!(sent[0], hex("67446698 00000000 0000000000000002 67446698 00000000 0000000000000001"));
    let chunks = hex("668e33ef 0000 0001 0000000000000003 0000000b 00000000000ffffd 006162
         668e33ef 0001 0001 0000000000000003 0000000b 0000000000100000 636400");
    assert_eq!(sent[1], chunks);
}
