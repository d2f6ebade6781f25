//! Errors of commands, with the exit status and kind that scripts use.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// The exit statuses of commands, for their help.
pub const EXIT_STATUSES: &str = "\
Exit status:
  0  success
  1  missing, or not permitted by the current state, such as a version mismatch
  2  wrong use: invalid arguments or input
  3  unavailable: nothing was written, except what the message says
  4  outcome unknown: the write may have been executed or may yet be, or a part of it was";

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum Stop {
    /// A table, row or column does not exist.
    #[error("{0}")]
    NotFound(String),
    /// A server refused the request.
    #[error("{0}")]
    Refused(String),
    /// The command line or its input is invalid.
    #[error("{message}")]
    Invalid {
        message: String,
        /// For a load: the invalid line of its file, and the progress so far.
        at: Option<LoadedUntil>,
    },
    /// A load stopped early, although its file is valid.
    #[error("{error}; {} loaded{}", base::counted(*rows, "row"), advice(error))]
    LoadCutShort {
        /// The error that stopped it.
        error: sdk::Error,
        /// The number of rows loaded.
        rows: u64,
    },
    /// Only a part of the lines was appended to a log.
    #[error("{error}; {} before", appended.summary())]
    AppendCutShort {
        /// The error that stopped it.
        error: Box<Self>,
        appended: Appended,
    },
    /// The cluster returned an error, or did not respond.
    #[error(transparent)]
    Cluster(#[from] sdk::Error),
    /// The same, and the output of the command has named the error already.
    #[error(transparent)]
    Named(sdk::Error),
    /// No operation of a benchmark succeeded, so there are no results.
    #[error("{run}: no operation succeeded{}", error.as_ref().map_or_else(String::new, |error| format!("; {error}")))]
    NothingDone {
        /// The name of the benchmark.
        run: String,
        /// The error of the last operation, if any completed.
        error: Option<sdk::Error>,
    },
    /// A signal ended the command before it was complete.
    #[error("interrupted")]
    Interrupted,
    /// A signal ended a load or an export.
    #[error("stopped; {} {done}", base::counted(*rows, "row"))]
    Stopped {
        /// The rows that were acknowledged or written.
        rows: u64,
        /// What was done with them.
        done: String,
    },
    /// A local file or device failed.
    #[error("can't {what}: {error}")]
    Io {
        what: String,
        /// The error of the operating system.
        error: io::Error,
    },
    /// Writing to standard output failed; the reader may have closed it.
    #[error("can't print: {0}")]
    Print(#[from] io::Error),
}

/// The progress of a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadedUntil {
    /// The line of the row that stopped it, from 1.
    pub line: u64,
    /// The number of rows loaded.
    pub rows: u64,
}

/// The records that an interrupted or failed command appended to a log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Appended {
    /// The number of records.
    pub records: u64,
    /// The positions of the first and the last entry.
    pub positions: Option<(u64, u64)>,
}

impl Appended {
    /// Adds records appended at a position.
    pub fn note(&mut self, records: u64, position: u64) {
        self.records += records;
        self.positions = Some((self.positions.map_or(position, |(first, _)| first), position));
    }

    /// The number of records and their positions, as text.
    pub fn summary(self) -> String {
        let place = self.place().map_or_else(String::new, |place| format!(" {place}"));
        format!("{} appended{place}", base::counted(self.records, "record"))
    }

    /// The positions as text, if any.
    pub fn place(self) -> Option<String> {
        self.positions.map(|(first, last)| match last == first {
            true => format!("at position {first}"),
            false => format!("at positions {first} to {last}"),
        })
    }
}

impl Stop {
    /// Invalid use of a command.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::Invalid { message: message.into(), at: None }
    }

    /// A local failure of a named operation.
    pub fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        move |error| Self::Io { what: what.into(), error }
    }

    /// The exit status, one of [`EXIT_STATUSES`].
    pub fn exit_status(&self) -> u8 {
        match self {
            Self::NotFound(_) | Self::Refused(_) => 1,
            Self::Invalid { .. } => 2,
            // A file that cannot be opened is usually a wrong argument.
            Self::Io { error, .. } if is_of_the_name(error) => 2,
            // Repeating it would append some records twice.
            Self::AppendCutShort { error, .. } => match (&**error, error.exit_status()) {
                (Self::Io { .. }, _) | (_, 3) => 4,
                (_, status) => status,
            },
            Self::LoadCutShort { error, .. } | Self::Cluster(error) | Self::Named(error) => match error {
                sdk::Error::Refused { .. }
                | sdk::Error::NotFound(_)
                | sdk::Error::Exists(_)
                | sdk::Error::Precondition(_)
                | sdk::Error::Aborted(_) => 1,
                sdk::Error::Invalid(_) => 2,
                sdk::Error::Unavailable(_) | sdk::Error::NoSpace(_) => 3,
                // A kind of error that this version does not know counts as an unknown outcome.
                _ => 4,
            },
            Self::NothingDone { .. } | Self::Interrupted | Self::Stopped { .. } | Self::Io { .. } | Self::Print(_) => 3,
        }
    }

    /// The kind of error in JSON.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::NotFound(_) => "not found",
            Self::Refused(_) => "refused",
            Self::Invalid { .. } => "invalid",
            Self::NothingDone { error: None, .. } => "unavailable",
            Self::Interrupted | Self::Stopped { .. } => "interrupted",
            Self::AppendCutShort { error, .. } => error.kind(),
            Self::LoadCutShort { error, .. }
            | Self::NothingDone { error: Some(error), .. }
            | Self::Cluster(error)
            | Self::Named(error) => match error {
                sdk::Error::Refused { .. } => "refused",
                sdk::Error::NotFound(_) => "not found",
                sdk::Error::Exists(_) => "exists",
                sdk::Error::Precondition(_) => "precondition",
                sdk::Error::Aborted(_) => "aborted",
                sdk::Error::Invalid(_) => "invalid",
                sdk::Error::Unavailable(_) => "unavailable",
                sdk::Error::NoSpace(_) => "no space",
                _ => "unknown",
            },
            Self::Io { .. } | Self::Print(_) => "io",
        }
    }
}

/// Advice for a load that stopped early.
fn advice(error: &sdk::Error) -> &'static str {
    match error {
        // Repeating the load would re-create a table that was dropped.
        sdk::Error::NotFound(_) => "",
        _ => "; run it again to load the rest",
    }
}

/// SIGINT and SIGTERM. The first signal no longer ends the process; the second one does, with exit status 3, since the
/// process may wait for a pipe.
#[derive(Debug)]
pub struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    /// Starts to catch the signals.
    ///
    /// # Errors
    /// [`Stop::Io`] if the operating system refuses.
    pub fn catch() -> Result<Self, Stop> {
        let caught = Arc::new(AtomicBool::new(false));
        for number in [SIGINT, SIGTERM] {
            let second = flag::register_conditional_shutdown(number, 3, Arc::clone(&caught));
            let both = second.and_then(|_| flag::register(number, Arc::clone(&caught)));
            both.map_err(Stop::io("wait for signals"))?;
        }
        let catch = |kind| signal(kind).map_err(Stop::io("wait for signals"));
        Ok(Self { interrupt: catch(SignalKind::interrupt())?, terminate: catch(SignalKind::terminate())? })
    }

    /// Waits for the next signal.
    pub async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

/// Runs `work` until it is complete, or until SIGINT or SIGTERM. Dropping `work` must not leave partial effects.
pub async fn unless_interrupted<T>(work: impl Future<Output = Result<T, Stop>>) -> Result<T, Stop> {
    let mut signals = Signals::catch()?;
    tokio::select! {
        done = work => done,
        () = signals.next() => Err(Stop::Interrupted),
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
    fn load_into_dropped_table_is_not_retryable() {
        let stopped = |error| Stop::LoadCutShort { error, rows: 2 };
        let gone = stopped(sdk::Error::NotFound("no table named \"t\"".into()));
        assert_eq!((gone.exit_status(), gone.kind()), (1, "not found"));
        assert_eq!(gone.to_string(), "no table named \"t\"; 2 rows loaded");
        let alone = stopped(sdk::Error::Unavailable("no leader".into()));
        assert_eq!(alone.exit_status(), 3);
        assert!(alone.to_string().ends_with("; 2 rows loaded; run it again to load the rest"));
    }
}
