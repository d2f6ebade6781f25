//! The deadline of a call: the client's `grpc-timeout`, or the default.
//!
//! A response that arrives after the client's timeout is useless. So the node must respond a margin before the client's
//! deadline. If it does not, the server responds half that margin later: "unavailable" for a read, and "outcome unknown"
//! for a request that may have had an effect. The node always responds; this guard covers bugs.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::{Duration, Instant};

use api::details::NO_RESPONSE;
use base::limits::{DEADLINE_DEFAULT, DEADLINE_MAX};
use node::request::Outcome;
use state_machine::Failure;
use tonic::metadata::MetadataMap;

/// Deadline of a call that specifies none.
const DEFAULT: Duration = Duration::from_nanos(DEADLINE_DEFAULT.0);
/// Maximum deadline of a call.
const MAX: Duration = Duration::from_nanos(DEADLINE_MAX.0);
/// The share of a deadline reserved for the response ...
const MARGIN_SHARE: u32 = 10;
/// ... up to this.
const MARGIN_MAX: Duration = Duration::from_millis(100);

/// When the first bytes of a call arrived. Its deadline counts from there, not from the end of a long message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrival(pub(crate) Instant);

/// The time remaining for the node and for the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Deadline {
    /// The node responds within this.
    pub(crate) node: Duration,
    /// The server responds in the node's place after this.
    pub(crate) guard: Duration,
}

impl Deadline {
    /// The deadline of a call with these headers, of which `elapsed` has passed.
    pub(crate) fn of(headers: &MetadataMap, elapsed: Duration) -> Self {
        let requested = headers.get("grpc-timeout").and_then(|text| parse(text.to_str().ok()?));
        Self::within(requested, elapsed)
    }

    /// The deadline of a request that just arrived in a stream; 0 milliseconds means the default.
    pub(crate) fn of_streamed(milliseconds: u32) -> Self {
        let requested = Duration::from_millis(milliseconds.into());
        Self::within(Some(requested).filter(|requested| !requested.is_zero()), Duration::ZERO)
    }

    /// The deadline of a request from within the process.
    pub(crate) fn of_local(requested: Duration) -> Self {
        Self::within(Some(requested), Duration::ZERO)
    }

    fn within(requested: Option<Duration>, elapsed: Duration) -> Self {
        let whole = requested.unwrap_or(DEFAULT).min(MAX);
        let margin = (whole / MARGIN_SHARE).min(MARGIN_MAX);
        let left = whole.saturating_sub(elapsed);
        Self { node: left.saturating_sub(margin), guard: left.saturating_sub(margin / 2) }
    }

    /// The outcome of `answer`, or [`no_answer`] once the guard's time has passed.
    pub(crate) async fn guard(self, changes: bool, answer: impl Future<Output = Outcome>) -> Outcome {
        let mut answer = pin!(answer);
        // Most reads are answered immediately and need no timer.
        if let Poll::Ready(outcome) = poll_fn(|context| Poll::Ready(answer.as_mut().poll(context))).await {
            return outcome;
        }
        tokio::time::timeout(self.guard, answer).await.unwrap_or_else(|_| Err(no_answer(changes)))
    }
}

/// The outcome if the node has not responded.
pub(crate) fn no_answer(changes: bool) -> Failure {
    let silent = NO_RESPONSE.to_owned();
    if changes { Failure::Unknown(silent) } else { Failure::Unavailable(silent) }
}

/// Parses a gRPC timeout: at most eight digits and a unit.
fn parse(text: &str) -> Option<Duration> {
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.is_empty() || digits.len() > 8 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let count: u64 = digits.parse().ok()?;
    match unit {
        "H" => Some(Duration::from_secs(count * 3_600)),
        "M" => Some(Duration::from_secs(count * 60)),
        "S" => Some(Duration::from_secs(count)),
        "m" => Some(Duration::from_millis(count)),
        "u" => Some(Duration::from_micros(count)),
        "n" => Some(Duration::from_nanos(count)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_grpc_timeouts() {
        assert_eq!(parse("250m"), Some(Duration::from_millis(250)));
        assert_eq!(parse("99999999H"), Some(Duration::from_secs(99_999_999 * 3_600)));
        for wrong in ["", "m", "1", "-1S", "+1S", "123456789S", "1s", "1é"] {
            assert_eq!(parse(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn nested_deadlines_precede_client_deadline() {
        let mut headers = MetadataMap::new();
        headers.insert("grpc-timeout", "500m".parse().expect("a header"));
        let deadline = Deadline::of(&headers, Duration::from_millis(100));
        assert_eq!(deadline.node, Duration::from_millis(350));
        assert_eq!(deadline.guard, Duration::from_millis(375));
    }

    #[test]
    fn deadline_limit() {
        let mut headers = MetadataMap::new();
        headers.insert("grpc-timeout", "9000H".parse().expect("a header"));
        assert!(Deadline::of(&headers, Duration::ZERO).node < MAX);
    }

    #[tokio::test]
    async fn silent_call_times_out() {
        let deadline = Deadline { node: Duration::ZERO, guard: Duration::from_millis(1) };
        let write = deadline.guard(true, std::future::pending()).await;
        assert!(matches!(write, Err(Failure::Unknown(_))));
        let read = deadline.guard(false, std::future::pending()).await;
        assert!(matches!(read, Err(Failure::Unavailable(_))));
    }
}
