//! What to do after an attempt failed: the whole of the client's judgement, as a pure machine.
//!
//! The one question that matters is whether the request may have reached a table. As long as it surely hasn't, anything
//! may be tried; once it may have, what changes anything is *in doubt*: a write's outcome only the same stamp, in the same
//! session, can tell. If the session has expired by then, nobody can (guarantee 10).

use std::time::Duration;

use base::SplitMix64;

use crate::Error;

/// How long the first attempt may take; each further one gets twice as long as the one before. Short enough that a node
/// which is silent (stopped, or its machine gone) doesn't use up the call's deadline.
const FIRST_ATTEMPT: Duration = Duration::from_secs(1);
/// The pause after every endpoint has failed once ...
const FIRST_PAUSE: Duration = Duration::from_millis(5);
/// ... doubles with each further round, up to this.
const PAUSE_MAX: Duration = Duration::from_millis(200);
/// Sessions that one write may open: each was unknown as soon as it was used, so that something is badly wrong.
const SESSIONS_MAX: u32 = 3;

/// How an attempt failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// No connection: the request never left.
    NotSent(String),
    /// The request left and no answer came.
    Lost(String),
    /// A node says that nothing was done, because too much is under way.
    Overloaded(String),
    /// A node says that nothing was done, because it found no leader.
    Unavailable(String),
    /// A node says that it doesn't know what the request came to.
    Unknown(String),
    /// The session is unknown, so that *this* attempt was not executed.
    UnknownSession,
    /// A definite answer that no further attempt changes.
    Definite(Error),
}

impl Fault {
    /// Why, in words.
    #[must_use]
    pub fn reason(self) -> String {
        match self {
            Self::NotSent(reason)
            | Self::Lost(reason)
            | Self::Overloaded(reason)
            | Self::Unavailable(reason)
            | Self::Unknown(reason) => reason,
            Self::UnknownSession => "the session is unknown".to_owned(),
            Self::Definite(error) => error.to_string(),
        }
    }
}

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// Tell the caller.
    GiveUp(Error),
    /// Send the same again after a pause.
    Retry {
        /// How long to wait first.
        pause: Duration,
        /// To the next endpoint.
        elsewhere: bool,
    },
    /// Nothing was done and the session is gone: begin again in a new one.
    NewSession,
}

/// The attempts of one call.
#[derive(Clone, Debug)]
pub struct Attempts {
    endpoints: u32,
    failures: u32,
    sessions: u32,
    /// Whether the request changes anything.
    changes: bool,
    in_doubt: bool,
    jitter: SplitMix64,
}

impl Attempts {
    /// A call that changes nothing that anybody could tell: a read, or the opening of a session.
    #[must_use]
    pub fn reading(endpoints: u32, seed: u64) -> Self {
        let jitter = SplitMix64::new(seed);
        Self { endpoints: endpoints.max(1), failures: 0, sessions: 0, changes: false, in_doubt: false, jitter }
    }

    /// A call that changes something once however often it is tried: a write that carries a session's stamp, or the making
    /// of what may be there already.
    #[must_use]
    pub fn changing(endpoints: u32, seed: u64) -> Self {
        Self { changes: true, ..Self::reading(endpoints, seed) }
    }

    /// How long the next attempt may take when the call has `left`.
    #[must_use]
    pub fn attempt_time(&self, left: Duration) -> Duration {
        left.min(FIRST_ATTEMPT * 2_u32.pow(self.failures.min(10)))
    }

    /// What follows from a failed attempt when the call has `left`.
    pub fn after(&mut self, fault: Fault, left: Duration) -> Next {
        self.in_doubt |= self.changes && matches!(fault, Fault::Lost(_) | Fault::Unknown(_));
        match fault {
            Fault::Definite(error) => Next::GiveUp(error),
            Fault::UnknownSession => self.after_unknown_session(left),
            Fault::NotSent(reason) | Fault::Lost(reason) | Fault::Unavailable(reason) => self.retry(reason, true, left),
            // The node that says so is alive, and knows the most about what happened.
            Fault::Overloaded(reason) | Fault::Unknown(reason) => self.retry(reason, false, left),
        }
    }

    fn after_unknown_session(&mut self, left: Duration) -> Next {
        let reason = "the session expired before the outcome was known";
        if self.in_doubt {
            return Next::GiveUp(Error::OutcomeUnknown(reason.into()));
        }
        self.sessions += 1;
        if self.sessions >= SESSIONS_MAX || left.is_zero() {
            return Next::GiveUp(Error::Unavailable("sessions are unknown as soon as they are opened".into()));
        }
        Next::NewSession
    }

    fn retry(&mut self, reason: String, elsewhere: bool, left: Duration) -> Next {
        let pause = self.pause(elsewhere);
        self.failures += 1;
        if pause < left { Next::Retry { pause, elsewhere } } else { Next::GiveUp(self.out_of_time(reason)) }
    }

    /// Whether an attempt may have been carried out that nobody told of.
    #[must_use]
    pub fn is_in_doubt(&self) -> bool {
        self.in_doubt
    }

    /// The error of a call that has run out of time: is it in doubt?
    #[must_use]
    pub fn out_of_time(&self, reason: String) -> Error {
        if self.in_doubt { Error::OutcomeUnknown(reason) } else { Error::Unavailable(reason) }
    }

    /// None while there are endpoints that were not tried yet; then longer with each round, and never the same for two
    /// clients that failed together.
    fn pause(&mut self, elsewhere: bool) -> Duration {
        let round = if elsewhere { (self.failures + 1) / self.endpoints } else { self.failures + 1 };
        if round == 0 {
            return Duration::ZERO;
        }
        let longest = (FIRST_PAUSE * 2_u32.pow((round - 1).min(10))).min(PAUSE_MAX);
        let half = longest / 2;
        half + Duration::from_nanos(self.jitter.below(half.as_nanos() as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLENTY: Duration = Duration::from_secs(10);

    fn lost() -> Fault {
        Fault::Lost("the connection broke".into())
    }

    fn not_sent() -> Fault {
        Fault::NotSent("connection refused".into())
    }

    #[test]
    fn every_endpoint_is_tried_before_the_first_pause() {
        let mut attempts = Attempts::reading(3, 1);
        for _ in 0..2 {
            let next = attempts.after(not_sent(), PLENTY);
            assert_eq!(next, Next::Retry { pause: Duration::ZERO, elsewhere: true });
        }
        let Next::Retry { pause, elsewhere: true } = attempts.after(not_sent(), PLENTY) else { panic!("no retry") };
        assert!(pause >= FIRST_PAUSE / 2 && pause <= FIRST_PAUSE, "{pause:?}");
    }

    #[test]
    fn pauses_grow_up_to_their_bound() {
        let mut attempts = Attempts::reading(1, 1);
        let mut last = Duration::ZERO;
        for _ in 0..20 {
            let Next::Retry { pause, .. } = attempts.after(not_sent(), PLENTY) else { panic!("no retry") };
            last = pause;
        }
        assert!(last >= PAUSE_MAX / 2 && last <= PAUSE_MAX, "{last:?}");
    }

    #[test]
    fn a_write_that_never_left_is_unavailable_at_the_deadline() {
        let mut attempts = Attempts::changing(1, 1);
        let next = attempts.after(not_sent(), Duration::ZERO);
        assert_eq!(next, Next::GiveUp(Error::Unavailable("connection refused".into())));
    }

    #[test]
    fn a_write_that_may_have_arrived_is_unknown_at_the_deadline() {
        for doubt in [lost(), Fault::Unknown("the leader changed".into())] {
            let mut attempts = Attempts::changing(2, 1);
            assert!(matches!(attempts.after(doubt, PLENTY), Next::Retry { .. }));
            let next = attempts.after(Fault::Unavailable("no leader".into()), Duration::ZERO);
            assert_eq!(next, Next::GiveUp(Error::OutcomeUnknown("no leader".into())));
        }
    }

    #[test]
    fn a_table_that_may_have_been_made_is_unknown_at_the_deadline() {
        let mut attempts = Attempts::changing(3, 1);
        assert!(matches!(attempts.after(lost(), PLENTY), Next::Retry { .. }));
        assert!(matches!(attempts.after(not_sent(), PLENTY), Next::Retry { .. }));
        assert!(matches!(attempts.after(not_sent(), Duration::ZERO), Next::GiveUp(Error::OutcomeUnknown(_))));
    }

    #[test]
    fn a_read_is_never_in_doubt() {
        let mut attempts = Attempts::reading(1, 1);
        assert!(matches!(attempts.after(lost(), PLENTY), Next::Retry { .. }));
        assert!(matches!(attempts.after(lost(), Duration::ZERO), Next::GiveUp(Error::Unavailable(_))));
    }

    #[test]
    fn an_expired_session_is_replaced_while_nothing_is_in_doubt() {
        let mut attempts = Attempts::changing(1, 1);
        assert_eq!(attempts.after(Fault::UnknownSession, PLENTY), Next::NewSession);
        assert!(matches!(attempts.after(not_sent(), PLENTY), Next::Retry { .. }));
        assert!(matches!(attempts.after(Fault::Unavailable("no leader".into()), PLENTY), Next::Retry { .. }));
        assert_eq!(attempts.after(Fault::UnknownSession, PLENTY), Next::NewSession);
        assert!(matches!(attempts.after(Fault::UnknownSession, PLENTY), Next::GiveUp(Error::Unavailable(_))));
    }

    #[test]
    fn a_session_that_expires_under_a_doubtful_write_leaves_it_unknown() {
        let mut attempts = Attempts::changing(1, 1);
        assert!(matches!(attempts.after(lost(), PLENTY), Next::Retry { .. }));
        assert!(matches!(attempts.after(Fault::UnknownSession, PLENTY), Next::GiveUp(Error::OutcomeUnknown(_))));
    }

    #[test]
    fn a_definite_answer_ends_the_call() {
        let refused = Error::Refused { column: "c".into(), expected: 7, actual: 9 };
        let mut attempts = Attempts::changing(3, 1);
        assert!(matches!(attempts.after(lost(), PLENTY), Next::Retry { .. }));
        assert_eq!(attempts.after(Fault::Definite(refused.clone()), PLENTY), Next::GiveUp(refused));
    }

    #[test]
    fn attempts_get_longer_but_never_longer_than_what_is_left() {
        let mut attempts = Attempts::reading(3, 1);
        assert_eq!(attempts.attempt_time(PLENTY), FIRST_ATTEMPT);
        attempts.after(lost(), PLENTY);
        assert_eq!(attempts.attempt_time(PLENTY), FIRST_ATTEMPT * 2);
        assert_eq!(attempts.attempt_time(Duration::from_millis(3)), Duration::from_millis(3));
    }
}
