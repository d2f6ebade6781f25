//! Reads of shared logs for this node's clients. The server bounds the bytes in flight: each read asks for no more
//! bytes than the server has reserved for it.

use base::{Duration, Monotonic, Now};
use sharedlog::client::{ReadMany, Wait};
use sharedlog::request::{Content, LogRequest, LogResponse};
use sharedlog::{LogId, Position};

use crate::logs::calls::Call;
use crate::message::Query;
use crate::node::Node;
use crate::registry::Response;
use crate::request::Outcome;
use crate::request_table::PendingId;

/// Typical time to fill a hole. A read does not fill the hole if less time than this remains between the end of its
/// wait and its deadline, because other readers may wait longer.
const FILLING: Duration = Duration::from_millis(50);
/// A read that does not fill the hole is answered this long before its deadline.
const SAYING: Duration = Duration::from_millis(100);

impl Node {
    /// Starts a read of a shared log.
    pub(super) fn begin_shared_log_read(
        &mut self,
        log: LogId,
        id: PendingId,
        wanted: ReadMany,
        deadline: Monotonic,
        now: Now,
    ) {
        let Some(known) = self.touch_log(log) else { return };
        known.last_token.0 += 1;
        let token = known.last_token;
        known.calls.insert(token, Call::Read(id, wanted.run.from));
        if !known.follower.read(token, wanted, deadline, now.monotonic) {
            known.client.read_many(token, wanted, deadline, now.monotonic);
        }
    }

    /// Follows the log if a waiting read has reached its end, because the next read probably continues there.
    pub(super) fn follow_if_at_end(&mut self, log: LogId, query: &Query, outcome: &Outcome, now: Now) {
        let Query::Log(LogRequest::Read { from, count, wait, .. }) = query else { return };
        let Ok(Response::Log(LogResponse::Entries(entries))) = outcome else { return };
        let next = Position(from.0 + entries.len() as u64);
        let is_end = *wait > Duration::ZERO && entries.len() < *count as usize;
        let is_trimmed = entries.iter().any(|entry| matches!(entry.content, Content::Trimmed { .. }));
        if is_end
            && !is_trimmed
            && let Some(known) = self.touch_log(log)
        {
            known.follower.caught_up(next, now.monotonic);
        }
    }
}

/// How a read waits for an entry that a client awaits for `wait`, if `left` remains until the deadline.
pub(super) fn wait_within(wait: Duration, left: Duration) -> Wait {
    let of_left = |time: Duration| time.0.min(left.0 / 4);
    match () {
        () if wait == Duration::ZERO => Wait::No,
        () if wait.0.saturating_add(of_left(FILLING)) <= left.0 => Wait::First(wait),
        () => Wait::Watch(Duration(left.0 - of_left(SAYING))),
    }
}
