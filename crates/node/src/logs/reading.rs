//! What this node's doors read of shared logs. How many bytes such reads may bring is for the doors to bound: each asks
//! for no more than there is room for.

use base::{Duration, Now};
use sharedlog::client::{ReadMany, Wait};
use sharedlog::request::LogRequest;
use sharedlog::{LogId, Run};

use crate::logs::calls::Call;
use crate::message::Query;
use crate::node::Node;
use crate::pending::PendingId;

/// What it takes to fill a position, as a rule. A read whose deadline leaves no time for that after its wait only
/// watches: others may want to wait for longer.
const FILLING: Duration = Duration::from_millis(50);
/// It is told so long before its deadline that nothing has come.
const SAYING: Duration = Duration::from_millis(100);

impl Node {
    /// Begins a read of a log.
    pub(super) fn read_log(&mut self, log: LogId, id: PendingId, now: Now) {
        let Some(pending) = self.pendings.get(id) else { return };
        let Query::Log(LogRequest::Read { from, count, wait, bytes, .. }) = &pending.query else { return };
        let (from, count, wait, bytes) = (*from, *count as usize, *wait, *bytes);
        let deadline = pending.log_deadline();
        let left = deadline.since(now.monotonic);
        let of_left = |time: Duration| time.0.min(left.0 / 4);
        let wait = match () {
            () if wait == Duration::ZERO => Wait::No,
            () if wait.0.saturating_add(of_left(FILLING)) <= left.0 => Wait::First(wait),
            () => Wait::Watch(Duration(left.0 - of_left(SAYING))),
        };
        let wanted = ReadMany { run: Run::of(from, count), wait, bytes };
        self.call(log, Call::Read(id, from), |client, token| {
            client.read_many(token, wanted, deadline, now.monotonic);
        });
    }
}
