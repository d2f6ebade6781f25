//! Decides how a call proceeds after a failed attempt.
//!
//! The deciding fact is whether the request may have reached a range. As long as it certainly has not, everything can
//! be retried. Once it may have, the outcome of a change is *in doubt*, and only a retry with the same stamp in the
//! same session can determine it. After the session has expired, it cannot be determined (guarantee 10).

use base::canary::{Bug, planted};
use base::{Duration, SplitMix64};

use crate::{Effect, Error};

/// The pause after each endpoint has failed once ...
const FIRST_PAUSE: Duration = Duration::from_millis(5);
/// ... doubles with each further round, up to this.
const PAUSE_MAX: Duration = Duration::from_millis(200);
/// Maximum sessions that one write opens. If each of them is unknown at its first use, there is a persistent fault.
const SESSIONS_MAX: u32 = 3;
/// Maximum doublings of an attempt's timeout.
const DOUBLINGS_MAX: u32 = 6;
/// The share of a change's time, at its end, in which no further attempt begins: the node could not respond in time, and
/// the change would end in doubt ...
const LAST_SHARE: u64 = 5;
/// ... up to this.
const LAST_MAX: Duration = Duration::from_millis(300);
/// How long a request is retried at a leader with a full disk, which hands the range to a replica with space.
const HAND_OVER_MAX: Duration = Duration::from_millis(1_000);
/// Advice about a row write that may have been executed.
const ADVICE: &str = "read the row before a retry";

/// The reason of an attempt to which the node gave none.
const NODE_SILENT: &str = "the node did not respond";

/// Why an attempt failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// There was no connection: the request was not sent.
    NotSent(String),
    /// The request was sent, and no response can arrive any more.
    Lost(String),
    /// The request was sent, no response arrived before the attempt's timeout, and none can arrive any more.
    Silent,
    /// The request was sent, and no response has arrived for long. It may still arrive.
    Outstanding,
    /// A server reports that its node did not respond. The request may have been executed, or may yet be.
    NodeSilent,
    /// A node reports that nothing was done because it is overloaded.
    Overloaded(String),
    /// A node reports that nothing was done because its disk is full.
    NoSpace(String),
    /// A node reports that nothing was done because it found no leader.
    Unavailable(String),
    /// A node reports that the outcome is unknown.
    Unknown(String),
    /// The session is unknown, so *this* attempt was not executed.
    UnknownSession,
    /// An error that a retry cannot change.
    Definite(Error),
}

impl Fault {
    /// The reason as text.
    #[must_use]
    pub fn reason(self) -> String {
        match self {
            Self::NotSent(reason)
            | Self::Lost(reason)
            | Self::Overloaded(reason)
            | Self::NoSpace(reason)
            | Self::Unavailable(reason)
            | Self::Unknown(reason) => reason,
            Self::Silent | Self::Outstanding => "no response".to_owned(),
            Self::NodeSilent => NODE_SILENT.to_owned(),
            Self::UnknownSession => "unknown session".to_owned(),
            Self::Definite(error) => error.to_string(),
        }
    }
}

/// The next step of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// Return this error to the caller.
    GiveUp(Error),
    /// Retry the same request after a pause.
    Retry {
        /// The pause before the retry.
        pause: Duration,
        /// Whether to retry at another endpoint.
        elsewhere: bool,
    },
    /// Nothing was done and the session has expired: retry in a new session.
    NewSession,
    /// No time is left for another attempt. An outstanding attempt may still be answered. If there is none, or none is
    /// answered by the deadline, the call fails ([`Attempts::out_of_time`]).
    OutOfTime,
}

/// The origin of a reason. A later one is more informative: a refusal names the cause, the others only a symptom.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Origin {
    Connection,
    NodeSilent,
    Refusal,
}

/// The reason of a failure.
#[derive(Clone, Debug)]
struct Cause {
    origin: Origin,
    reason: String,
}

/// The attempts of one call.
#[derive(Clone, Debug)]
pub struct Attempts {
    endpoints: u32,
    /// The total time of the call.
    time: Duration,
    failures: u32,
    sessions: u32,
    effect: Effect,
    in_doubt: bool,
    /// The last refusal of a node, or the last symptom if no node has refused it.
    cause: Option<Cause>,
}

impl Attempts {
    /// Starts a call with this effect and total time, for a client with this number of endpoints.
    #[must_use]
    pub fn new(effect: Effect, endpoints: u32, time: Duration) -> Self {
        Self { endpoints: endpoints.max(1), time, failures: 0, sessions: 0, effect, in_doubt: false, cause: None }
    }

    /// The timeout of the next attempt: `first`, doubled after each failure.
    #[must_use]
    pub fn attempt_time(&self, first: Duration) -> Duration {
        Duration(first.0 << self.failures.min(DOUBLINGS_MAX))
    }

    /// Records that a request was sent and that its outcome may remain unknown.
    pub fn doubt(&mut self) {
        if !planted(Bug::DoubtForgotten) {
            self.in_doubt |= self.effect != Effect::Reads;
        }
    }

    /// Decides how to proceed after a failed attempt, with `left` until the deadline.
    pub fn after(&mut self, fault: Fault, left: Duration, jitter: &mut SplitMix64) -> Next {
        self.note(&fault);
        let is_once = self.effect == Effect::AppendsOnce;
        if is_once && fault == Fault::Outstanding {
            self.doubt();
        }
        if self.in_doubt && is_once {
            return Next::GiveUp(Error::OutcomeUnknown(fault.reason()));
        }
        match fault {
            Fault::Definite(error) => Next::GiveUp(self.definite(error)),
            Fault::UnknownSession => self.after_unknown_session(left),
            // The outcome of a transaction is kept: a repetition would return that it was aborted, without the reason.
            Fault::NoSpace(reason)
                if self.effect == Effect::Commits || self.time.0.saturating_sub(left.0) >= HAND_OVER_MAX.0 =>
            {
                Next::GiveUp(self.definite(Error::NoSpace(reason)))
            }
            Fault::NotSent(_)
            | Fault::Lost(_)
            | Fault::Silent
            | Fault::Outstanding
            | Fault::NoSpace(_)
            | Fault::Unavailable(_) => self.retry(true, left, jitter),
            // The responding node is alive, and has the best information about the request.
            Fault::Overloaded(_) | Fault::Unknown(_) | Fault::NodeSilent => self.retry(false, left, jitter),
        }
    }

    /// Records the cause of an attempt's failure, for the error message at the deadline, and whether the attempt may
    /// have been executed.
    pub fn note(&mut self, fault: &Fault) {
        if matches!(fault, Fault::Lost(_) | Fault::Silent | Fault::NodeSilent | Fault::Unknown(_)) {
            self.doubt();
        }
        let (origin, reason) = match fault {
            Fault::Overloaded(reason)
            | Fault::NoSpace(reason)
            | Fault::Unavailable(reason)
            | Fault::Unknown(reason) => (Origin::Refusal, reason.clone()),
            Fault::NodeSilent => (Origin::NodeSilent, NODE_SILENT.to_owned()),
            Fault::NotSent(reason) | Fault::Lost(reason) => (Origin::Connection, reason.clone()),
            Fault::Silent | Fault::Outstanding | Fault::UnknownSession | Fault::Definite(_) => return,
        };
        self.keep(&Cause { origin, reason });
    }

    /// Records the cause from another call on which this call waited.
    pub fn note_of(&mut self, other: &Self) {
        if let Some(cause) = &other.cause {
            self.keep(cause);
        }
    }

    fn keep(&mut self, cause: &Cause) {
        if self.cause.as_ref().is_none_or(|known| known.origin <= cause.origin) {
            self.cause = Some(cause.clone());
        }
    }

    /// A refusal is stored in the session, so it is the outcome of every attempt with the stamp. Any other error
    /// applies to one attempt only, and an earlier one may have been executed.
    fn definite(&self, error: Error) -> Error {
        match error {
            Error::NotFound(reason)
            | Error::Exists(reason)
            | Error::NoSpace(reason)
            | Error::Precondition(reason)
            | Error::Invalid(reason)
                if self.in_doubt && matches!(self.effect, Effect::Writes | Effect::Commits | Effect::Appends) =>
            {
                Error::OutcomeUnknown(reason)
            }
            error => error,
        }
    }

    fn after_unknown_session(&mut self, left: Duration) -> Next {
        let reason = "the session expired before the outcome was known";
        if self.in_doubt && !planted(Bug::ExpiredRetryExecuted) {
            return Next::GiveUp(Error::OutcomeUnknown(reason.into()));
        }
        self.sessions += 1;
        if self.sessions >= SESSIONS_MAX || left == Duration::ZERO {
            return Next::GiveUp(Error::Unavailable("newly opened sessions are unknown".into()));
        }
        Next::NewSession
    }

    fn retry(&mut self, elsewhere: bool, left: Duration, jitter: &mut SplitMix64) -> Next {
        let pause = self.pause(elsewhere, jitter);
        self.failures += 1;
        let last = if self.effect == Effect::Reads { 0 } else { (self.time.0 / LAST_SHARE).min(LAST_MAX.0) };
        if pause.0 + last < left.0 { Next::Retry { pause, elsewhere } } else { Next::OutOfTime }
    }

    /// Whether an attempt that ended without an outcome may have been executed. Outstanding attempts may have been, too.
    #[must_use]
    pub fn is_in_doubt(&self) -> bool {
        self.in_doubt
    }

    /// Whether an attempt has failed.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.failures > 0
    }

    /// The error of a call at its deadline: unknown if it is in doubt, otherwise unavailable. The message contains the
    /// last refusal of a node, and the time waited, with `left` until the deadline.
    #[must_use]
    pub fn out_of_time(&self, left: Duration) -> Error {
        let waited = Duration(self.time.0.saturating_sub(left.0));
        let timeout = format!("timed out after {} ms", waited.as_millis());
        let reason = match &self.cause {
            Some(Cause { reason, .. }) => format!("{timeout}: {reason}"),
            None => timeout,
        };
        if self.in_doubt {
            let advice = if self.effect == Effect::Writes { format!("; {ADVICE}") } else { String::new() };
            return Error::OutcomeUnknown(format!("{reason}{advice}"));
        }
        Error::Unavailable(match self.effect {
            Effect::Reads => reason,
            Effect::Repeatable | Effect::OpensSession => format!("nothing was done: {reason}"),
            Effect::Writes | Effect::Commits => format!("nothing was written: {reason}"),
            Effect::Appends | Effect::AppendsOnce => format!("nothing was appended: {reason}"),
        })
    }

    /// The pause before a retry: zero until all endpoints were tried, then increasing with each round. Jitter separates
    /// clients that failed at the same time.
    fn pause(&self, elsewhere: bool, jitter: &mut SplitMix64) -> Duration {
        let round = if elsewhere { (self.failures + 1) / self.endpoints } else { self.failures + 1 };
        if round == 0 {
            return Duration::ZERO;
        }
        let longest = (FIRST_PAUSE.0 << (round - 1).min(10)).min(PAUSE_MAX.0);
        Duration(longest / 2 + jitter.below(longest / 2))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Version;

    const PLENTY: Duration = Duration::from_millis(10_000);

    fn attempts(effect: Effect, endpoints: u32) -> Attempts {
        Attempts::new(effect, endpoints, PLENTY)
    }

    /// The error if this is the last failure.
    fn end(attempts: &mut Attempts, fault: Fault) -> Error {
        assert_eq!(after(attempts, fault, Duration::ZERO), Next::OutOfTime);
        attempts.out_of_time(Duration::ZERO)
    }

    fn after(attempts: &mut Attempts, fault: Fault, left: Duration) -> Next {
        attempts.after(fault, left, &mut SplitMix64::new(1))
    }

    fn lost() -> Fault {
        Fault::Lost("the connection broke".into())
    }

    fn not_sent() -> Fault {
        Fault::NotSent("connection refused".into())
    }

    #[test]
    fn tries_all_endpoints_before_backoff() {
        let mut attempts = attempts(Effect::Reads, 3);
        for _ in 0..2 {
            let next = after(&mut attempts, not_sent(), PLENTY);
            assert_eq!(next, Next::Retry { pause: Duration::ZERO, elsewhere: true });
        }
        let Next::Retry { pause, elsewhere: true } = after(&mut attempts, not_sent(), PLENTY) else {
            panic!("no retry")
        };
        assert!(pause.0 >= FIRST_PAUSE.0 / 2 && pause <= FIRST_PAUSE, "{pause:?}");
    }

    #[test]
    fn backoff_grows_to_limit() {
        let mut attempts = attempts(Effect::Reads, 1);
        let mut last = Duration::ZERO;
        for _ in 0..20 {
            let Next::Retry { pause, .. } = after(&mut attempts, not_sent(), PLENTY) else { panic!("no retry") };
            last = pause;
        }
        assert!(last.0 >= PAUSE_MAX.0 / 2 && last <= PAUSE_MAX, "{last:?}");
    }

    #[test]
    fn unsent_write_times_out_unavailable() {
        let mut attempts = attempts(Effect::Writes, 1);
        let reason = "nothing was written: timed out after 10000 ms: connection refused";
        assert_eq!(end(&mut attempts, not_sent()), Error::Unavailable(reason.into()));
    }

    #[test]
    fn sent_write_times_out_unknown() {
        for doubt in [lost(), Fault::NodeSilent, Fault::Unknown("the leader changed".into())] {
            let mut attempts = attempts(Effect::Writes, 2);
            assert!(matches!(after(&mut attempts, doubt, PLENTY), Next::Retry { .. }));
            let reason = "timed out after 10000 ms: no leader; read the row before a retry";
            let unknown = end(&mut attempts, Fault::Unavailable("no leader".into()));
            assert_eq!(unknown, Error::OutcomeUnknown(reason.into()));
        }
    }

    #[test]
    fn sent_create_times_out_unknown() {
        let mut attempts = attempts(Effect::Writes, 3);
        assert!(matches!(after(&mut attempts, lost(), PLENTY), Next::Retry { .. }));
        assert!(matches!(after(&mut attempts, not_sent(), PLENTY), Next::Retry { .. }));
        assert!(matches!(end(&mut attempts, not_sent()), Error::OutcomeUnknown(_)));
    }

    /// The owner of the attempts knows which of them are outstanding, and records a doubt at the end of the call.
    #[test]
    fn outstanding_attempt_is_no_doubt_yet() {
        let mut attempts = attempts(Effect::Writes, 2);
        assert!(matches!(after(&mut attempts, Fault::Outstanding, PLENTY), Next::Retry { .. }));
        assert!(!attempts.is_in_doubt());
        let down = "2 of 3 replicas are down";
        let written = end(&mut attempts, Fault::Unavailable(down.into()));
        assert_eq!(written, Error::Unavailable(format!("nothing was written: timed out after 10000 ms: {down}")));
        attempts.note(&lost());
        let unknown = attempts.out_of_time(Duration::ZERO);
        let reason = format!("timed out after 10000 ms: {down}; read the row before a retry");
        assert_eq!(unknown, Error::OutcomeUnknown(reason));
    }

    #[test]
    fn last_moments_have_no_attempt() {
        for (left, is_retried) in [(300, false), (301, true)] {
            let next = after(&mut attempts(Effect::Writes, 2), not_sent(), Duration::from_millis(left));
            assert_eq!(matches!(next, Next::Retry { .. }), is_retried, "{left} ms left");
        }
    }

    #[test]
    fn read_is_never_in_doubt() {
        let mut attempts = attempts(Effect::Reads, 1);
        assert!(matches!(after(&mut attempts, lost(), PLENTY), Next::Retry { .. }));
        assert!(matches!(end(&mut attempts, lost()), Error::Unavailable(_)));
    }

    #[test]
    fn reports_node_error_over_transport_error() {
        let mut attempts = attempts(Effect::Reads, 3);
        let said = |attempts: &Attempts| attempts.out_of_time(Duration::ZERO).to_string();
        assert_eq!(said(&attempts), "timed out after 10000 ms");
        assert_eq!(attempts.out_of_time(Duration::from_millis(300)).to_string(), "timed out after 9700 ms");
        after(&mut attempts, Fault::Silent, PLENTY);
        after(&mut attempts, not_sent(), PLENTY);
        assert!(said(&attempts).ends_with(": connection refused"));
        after(&mut attempts, Fault::NodeSilent, PLENTY);
        after(&mut attempts, not_sent(), PLENTY);
        assert!(said(&attempts).ends_with(": the node did not respond"));
        after(&mut attempts, Fault::Overloaded("the disk is full".into()), PLENTY);
        after(&mut attempts, Fault::Unavailable("no leader".into()), PLENTY);
        after(&mut attempts, not_sent(), PLENTY);
        after(&mut attempts, Fault::NodeSilent, PLENTY);
        assert!(end(&mut attempts, Fault::Silent).to_string().ends_with(": no leader"));
    }

    /// A leader with a full disk has a second to hand the range over; a transaction ends at once.
    #[test]
    fn full_disk_ends_call_after_hand_over() {
        let full = || Fault::NoSpace("full".into());
        let is_over = |next| matches!(next, Next::GiveUp(Error::NoSpace(_)));
        let mut write = attempts(Effect::Writes, 3);
        assert!(matches!(after(&mut write, full(), PLENTY), Next::Retry { elsewhere: true, .. }));
        assert!(is_over(after(&mut write, full(), Duration(PLENTY.0 / 2))));
        assert!(is_over(after(&mut attempts(Effect::Commits, 3), full(), PLENTY)));
        let mut doubtful = attempts(Effect::Commits, 3);
        after(&mut doubtful, lost(), PLENTY);
        assert!(matches!(after(&mut doubtful, full(), PLENTY), Next::GiveUp(Error::OutcomeUnknown(_))));
    }

    #[test]
    fn replaces_expired_session() {
        let mut attempts = attempts(Effect::Writes, 1);
        assert_eq!(after(&mut attempts, Fault::UnknownSession, PLENTY), Next::NewSession);
        assert!(matches!(after(&mut attempts, not_sent(), PLENTY), Next::Retry { .. }));
        assert!(matches!(after(&mut attempts, Fault::Unavailable("no leader".into()), PLENTY), Next::Retry { .. }));
        assert_eq!(after(&mut attempts, Fault::UnknownSession, PLENTY), Next::NewSession);
        assert!(matches!(after(&mut attempts, Fault::UnknownSession, PLENTY), Next::GiveUp(Error::Unavailable(_))));
    }

    #[test]
    fn session_expiry_leaves_doubtful_write_unknown() {
        let mut attempts = attempts(Effect::Writes, 1);
        assert!(matches!(after(&mut attempts, lost(), PLENTY), Next::Retry { .. }));
        assert!(matches!(after(&mut attempts, Fault::UnknownSession, PLENTY), Next::GiveUp(Error::OutcomeUnknown(_))));
    }

    #[test]
    fn append_once_retries_only_unexecuted() {
        for doubt in
            [lost(), Fault::Silent, Fault::NodeSilent, Fault::Outstanding, Fault::Unknown("the leader changed".into())]
        {
            let mut attempts = attempts(Effect::AppendsOnce, 3);
            assert!(matches!(after(&mut attempts, not_sent(), PLENTY), Next::Retry { .. }));
            assert!(matches!(after(&mut attempts, Fault::Overloaded("full".into()), PLENTY), Next::Retry { .. }));
            assert!(matches!(after(&mut attempts, doubt, PLENTY), Next::GiveUp(Error::OutcomeUnknown(_))));
        }
    }

    #[test]
    fn definite_error_ends_call() {
        let refused = Error::Refused { column: "c".into(), expected: Version::from_nanos(7), actual: Version::ABSENT };
        let mut attempts = attempts(Effect::Writes, 3);
        assert!(matches!(after(&mut attempts, lost(), PLENTY), Next::Retry { .. }));
        assert_eq!(after(&mut attempts, Fault::Definite(refused.clone()), PLENTY), Next::GiveUp(refused));
    }

    #[test]
    fn attempt_timeout_grows() {
        let first = Duration::from_millis(400);
        let mut attempts = attempts(Effect::Reads, 3);
        assert_eq!(attempts.attempt_time(first), first);
        after(&mut attempts, lost(), PLENTY);
        assert_eq!(attempts.attempt_time(first), Duration::from_millis(800));
    }

    #[test]
    fn definite_error_after_loss_is_unknown() {
        let mut attempts = attempts(Effect::Writes, 3);
        assert!(matches!(after(&mut attempts, lost(), PLENTY), Next::Retry { .. }));
        let dropped = Fault::Definite(Error::NotFound("no such table".into()));
        assert!(matches!(after(&mut attempts, dropped, PLENTY), Next::GiveUp(Error::OutcomeUnknown(_))));
    }
}
