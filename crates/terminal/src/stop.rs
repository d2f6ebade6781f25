//! Why a command did not do what it was asked, and the exit status and kind that scripts know it by.

use std::io;

use tokio::signal::unix::{SignalKind, signal};

/// Why a command stopped short.
#[derive(Debug, thiserror::Error)]
pub enum Stop {
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
    #[error("{error}; {} loaded{}", base::counted(*rows, "row"), advice(error))]
    LoadCutShort {
        /// What came between.
        error: sdk::Error,
        /// The rows that are done.
        rows: u64,
    },
    /// Lines were appended to a log, and not all of them.
    #[error("{error}; {} before", appended.told())]
    AppendCutShort {
        /// What came between.
        error: sdk::Error,
        /// What is done.
        appended: Appended,
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
pub struct LoadedUntil {
    /// The line of the row that stopped it, from 1.
    pub line: u64,
    /// The rows that are done.
    pub rows: u64,
}

/// What was appended to a log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Appended {
    /// How many entries.
    pub records: u64,
    /// Where the first of them lie, and the last.
    pub positions: Option<(u64, u64)>,
}

impl Appended {
    /// So many more, at that position.
    pub fn note(&mut self, records: u64, position: u64) {
        self.records += records;
        self.positions = Some((self.positions.map_or(position, |(first, _)| first), position));
    }

    /// How much, and where.
    pub fn told(self) -> String {
        let place = self.place().map_or_else(String::new, |place| format!(" {place}"));
        format!("{} appended{place}", base::counted(self.records, "record"))
    }

    /// Where that lies, if anything does.
    pub fn place(self) -> Option<String> {
        self.positions.map(|(first, last)| match last == first {
            true => format!("at position {first}"),
            false => format!("at positions {first} to {last}"),
        })
    }
}

impl Stop {
    /// Wrong use.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::Invalid { message: message.into(), at: None }
    }

    /// A local failure of something named.
    pub fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        move |error| Self::Io { what: what.into(), error }
    }

    /// 1 refused, 2 wrong use, 3 unavailable or outcome unknown.
    pub fn exit_status(&self) -> u8 {
        match self {
            Self::NotFound(_)
            | Self::LoadCutShort { error: sdk::Error::NotFound(_), .. }
            | Self::AppendCutShort { error: sdk::Error::NotFound(_), .. }
            | Self::Universe(sdk::Error::Refused { .. } | sdk::Error::NotFound(_) | sdk::Error::Exists(_)) => 1,
            Self::Invalid { .. } | Self::Universe(sdk::Error::Invalid(_)) => 2,
            // A file that can't be opened is a wrong argument more often than not.
            Self::Io { error, .. } if is_of_the_name(error) => 2,
            Self::AppendCutShort { error: sdk::Error::Invalid(_), .. } => 2,
            Self::LoadCutShort { .. }
            | Self::AppendCutShort { .. }
            | Self::NothingDone { .. }
            | Self::Interrupted
            | Self::Universe(_)
            | Self::Io { .. }
            | Self::Print(_) => 3,
        }
    }

    /// The word for it in JSON.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::NotFound(_) => "not found",
            Self::Invalid { .. } => "invalid",
            Self::NothingDone { error: None, .. } => "unavailable",
            Self::Interrupted => "interrupted",
            Self::LoadCutShort { error, .. }
            | Self::AppendCutShort { error, .. }
            | Self::NothingDone { error: Some(error), .. }
            | Self::Universe(error) => match error {
                sdk::Error::Refused { .. } => "refused",
                sdk::Error::NotFound(_) => "not found",
                sdk::Error::Exists(_) => "exists",
                sdk::Error::Invalid(_) => "invalid",
                sdk::Error::Unavailable(_) => "unavailable",
                sdk::Error::OutcomeUnknown(_) => "unknown",
            },
            Self::Io { .. } | Self::Print(_) => "io",
        }
    }
}

/// What may be done about a load that was cut short.
fn advice(error: &sdk::Error) -> &'static str {
    match error {
        // Another load would create the table that somebody has dropped.
        sdk::Error::NotFound(_) => "",
        _ => ", run it again to load the rest",
    }
}

/// Runs what leaves nothing half-done behind when it is dropped, until SIGINT or SIGTERM asks for the end.
pub async fn unless_interrupted<T>(work: impl Future<Output = Result<T, Stop>>) -> Result<T, Stop> {
    let waiting = Stop::io("wait for signals");
    let (mut interrupt, mut terminate) = match (signal(SignalKind::interrupt()), signal(SignalKind::terminate())) {
        (Ok(interrupt), Ok(terminate)) => (interrupt, terminate),
        (Err(error), _) | (_, Err(error)) => return Err(waiting(error)),
    };
    tokio::select! {
        done = work => done,
        _ = interrupt.recv() => Err(Stop::Interrupted),
        _ = terminate.recv() => Err(Stop::Interrupted),
    }
}

fn is_of_the_name(error: &io::Error) -> bool {
    use io::ErrorKind::{InvalidInput, IsADirectory, NotADirectory, NotFound, PermissionDenied};
    matches!(error.kind(), NotFound | PermissionDenied | IsADirectory | NotADirectory | InvalidInput)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_into_a_table_that_is_gone_is_not_to_be_run_again() {
        let stopped = |error| Stop::LoadCutShort { error, rows: 2 };
        let gone = stopped(sdk::Error::NotFound("no table named \"t\"".into()));
        assert_eq!((gone.exit_status(), gone.kind()), (1, "not found"));
        assert_eq!(gone.to_string(), "no table named \"t\"; 2 rows loaded");
        let alone = stopped(sdk::Error::Unavailable("no leader".into()));
        assert_eq!(alone.exit_status(), 3);
        assert!(alone.to_string().ends_with("; 2 rows loaded, run it again to load the rest"));
    }
}
