//! Kinds of answers, and what bounds each.

use std::time::Duration;

use crate::limits::{
    ANSWER_IDLE_MAX, ANSWER_UNSEEN_IDLE_MAX, ANSWERS_OF_CALLS_BYTES_MAX, ANSWERS_SEEN_BYTES_MAX,
    ANSWERS_UNSEEN_BYTES_MAX,
};
use crate::taking::{Standing, Taking};

/// What an answer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Call,
    Stream(Standing),
}

impl Kind {
    pub(super) fn of(taking: &Taking) -> Self {
        Self::Stream(taking.standing())
    }

    pub(super) fn bytes_max(self) -> usize {
        match self {
            Self::Call => ANSWERS_OF_CALLS_BYTES_MAX,
            Self::Stream(Standing::Seen) => ANSWERS_SEEN_BYTES_MAX,
            Self::Stream(Standing::Unseen) => ANSWERS_UNSEEN_BYTES_MAX,
        }
    }

    pub(super) fn idle_max(self) -> Duration {
        match self {
            Self::Call | Self::Stream(Standing::Seen) => ANSWER_IDLE_MAX,
            Self::Stream(Standing::Unseen) => ANSWER_UNSEEN_IDLE_MAX,
        }
    }
}
