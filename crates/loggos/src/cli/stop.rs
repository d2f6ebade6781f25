//! Why a command did not do what it was asked, and the exit status and kind that scripts know it by.

use std::io;

/// Why a command stopped short.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Stop {
    /// A table, row or column isn't there.
    #[error("{0}")]
    NotFound(String),
    /// The command is used wrongly, or its input breaks a rule.
    #[error("{message}")]
    Invalid {
        /// What is wrong.
        message: String,
        /// Of a load: the line of its file that is wrong, and the rows that are done.
        at: Option<LoadedUntil>,
    },
    /// A load ended before its file did, through no fault of the file's.
    #[error("{error}; {} loaded, run it again to load the rest", super::output::counted(*rows, "row"))]
    LoadCutShort {
        /// What came between.
        error: sdk::Error,
        /// The rows that are done.
        rows: u64,
    },
    /// A universe refused, or didn't answer.
    #[error(transparent)]
    Universe(#[from] sdk::Error),
    /// A benchmark in which not one operation succeeded: its figures mean nothing.
    #[error("{run}: no operation succeeded{}", error.as_ref().map_or_else(String::new, |error| format!("; {error}")))]
    NothingDone {
        /// What was measured.
        run: String,
        /// How the last operation failed, if any ended.
        error: Option<sdk::Error>,
    },
    /// A signal asked for the end before there was one.
    #[error("interrupted")]
    Interrupted,
    /// A local file or device failed.
    #[error("can't {what}: {error}")]
    Io {
        /// What was tried.
        what: String,
        /// What came of it.
        error: io::Error,
    },
    /// Standard output failed; its reader may just have seen enough.
    #[error("can't print: {0}")]
    Print(#[from] io::Error),
}

/// How far a load came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LoadedUntil {
    /// The line of the row that stopped it, from 1.
    pub(crate) line: u64,
    /// The rows that are done.
    pub(crate) rows: u64,
}

impl Stop {
    /// Wrong use.
    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::Invalid { message: message.into(), at: None }
    }

    /// A local failure of something named.
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        move |error| Self::Io { what: what.into(), error }
    }

    /// 1 refused, 2 wrong use, 3 unavailable or outcome unknown.
    pub(crate) fn exit_status(&self) -> u8 {
        match self {
            Self::NotFound(_)
            | Self::Universe(sdk::Error::Refused { .. } | sdk::Error::NotFound(_) | sdk::Error::Exists(_)) => 1,
            Self::Invalid { .. } | Self::Universe(sdk::Error::Invalid(_)) => 2,
            // A file that can't be opened is a wrong argument more often than not.
            Self::Io { error, .. } if is_of_the_name(error) => 2,
            Self::LoadCutShort { .. }
            | Self::NothingDone { .. }
            | Self::Interrupted
            | Self::Universe(_)
            | Self::Io { .. }
            | Self::Print(_) => 3,
        }
    }

    /// The word for it in JSON.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::NotFound(_) => "not found",
            Self::Invalid { .. } => "invalid",
            Self::NothingDone { error: None, .. } => "unavailable",
            Self::Interrupted => "interrupted",
            Self::LoadCutShort { error, .. } | Self::NothingDone { error: Some(error), .. } | Self::Universe(error) => {
                match error {
                    sdk::Error::Refused { .. } => "refused",
                    sdk::Error::NotFound(_) => "not found",
                    sdk::Error::Exists(_) => "exists",
                    sdk::Error::Invalid(_) => "invalid",
                    sdk::Error::Unavailable(_) => "unavailable",
                    sdk::Error::OutcomeUnknown(_) => "unknown",
                }
            }
            Self::Io { .. } | Self::Print(_) => "io",
        }
    }
}

fn is_of_the_name(error: &io::Error) -> bool {
    use io::ErrorKind::{InvalidInput, IsADirectory, NotADirectory, NotFound, PermissionDenied};
    matches!(error.kind(), NotFound | PermissionDenied | IsADirectory | NotADirectory | InvalidInput)
}
