//! Reads of shared logs for this node's clients. The server bounds the bytes in flight: each read asks for no more bytes
//! than the server has reserved for it.

use base::{Duration, Now};
use sharedlog::client::{ReadMany, Wait};
use sharedlog::request::LogRequest;
use sharedlog::{LogId, Run};

use crate::logs::calls::Call;
use crate::message::Query;
use crate::node::Node;
use crate::pending::PendingId;

/// Typical time to fill a hole. A read whose deadline leaves less time than this after its wait does not fill the hole,
/// because other readers may be willing to wait longer.
const FILLING: Duration = Duration::from_millis(50);
/// Such a read is answered this long before its deadline.
const SAYING: Duration = Duration::from_millis(100);

impl Node {
    /// Starts a read of a log.
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
