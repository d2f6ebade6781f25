//! The real world around the node machine: sockets, files, clocks, threads. The machine itself (`node`) decides
//! everything and touches nothing; what is here carries out what it asks, in the order it asks, and hands back what
//! happens (`node::contract`).
//!
//! Threads of a node, and what each waits for:
//!
//! | thread | does | waits for |
//! |---|---|---|
//! | the main one ([`machine`]) | the machine, the peers' sockets ([`peers`]), framing, timers | sockets, timers, the inbox |
//! | `log` ([`log_thread`]) | writes and forces batches, at real-time priority | the disk |
//! | `manifests`, `segments`, `checkpoints`, `reads` ([`disk`]) | the rest of the disk's work, a lane each | the disk |
//! | `doors` ([`doors_thread`]) | one tokio runtime for all doors | sockets |
//! | `signals` | SIGTERM and SIGINT | signals |
//!
//! A write's way has four hand-overs between threads: door to machine, machine to log, log to machine, machine to door.
//!
//! **Architecture invariants:**
//! * The machine's thread never waits for a disk or a lock that is held during IO.
//! * The log's thread does nothing but write and force; its first error ends the process with nothing published after
//!   it (guarantee 25).
//! * Only this module reads a clock ([`clock`]).
//! * Whatever other threads have for the machine goes through [`inbox`]. It has no bound of its own: what fills it has,
//!   requests by what may be under way ([`gateway`]), the rest by what the machine has under way at the disk.

mod budget;
mod claim;
mod clock;
mod config;
mod descriptors;
pub(crate) mod dev;
mod disk;
mod disk_metrics;
mod doors_thread;
mod files;
mod founding;
mod frames;
mod gateway;
mod held;
mod inbox;
mod lanes;
mod log_thread;
mod machine;
mod onlooker;
mod parked;
mod peers;
mod random;
pub(crate) mod start;
mod tables;
mod throttle;
mod views;

pub(crate) use config::memory_size;

use std::io::Write as _;
use std::{io, process, thread};

use store::files::{Files as _, OpenOptions};

/// Exit status of a node that can't go on: the log or another part of the disk failed, or the machine halted.
pub(crate) const EXIT_HALTED: i32 = 70;

/// What `loggos bench` measures as a node uses it.
pub(crate) const BENCH_PLATFORM: bench::Platform = bench::Platform {
    create_log: |directory, name| {
        let files = files::OsFiles::new(directory);
        let log = files.create(name, OpenOptions::DIRECT)?;
        files.sync_dir("")?;
        Ok(Box::new(log))
    },
    ask_for_real_time: log_thread::ask_for_real_time,
};

/// Starts a thread that the node can't do without: if it panics, the process ends, and doesn't live on in part.
fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<thread::JoinHandle<()>> {
    struct EndsTheProcess;
    impl Drop for EndsTheProcess {
        fn drop(&mut self) {
            if thread::panicking() {
                die("a thread panicked");
            }
        }
    }
    thread::Builder::new().name(name.to_owned()).spawn(move || {
        let _guard = EndsTheProcess;
        work();
    })
}

/// Ends the process at once, from any thread: what is not forced by now was never promised, and nothing more must be.
pub(crate) fn die(reason: &str) -> ! {
    tracing::error!(reason, "this node ends");
    // Not by the logger alone: it may be filtered, and this is the last word.
    say(&format!("this node ends: {reason}"));
    process::exit(EXIT_HALTED)
}

/// A line on standard error; where it can't be written there is nobody to tell, and `eprintln!` would panic.
fn say(what: &str) {
    let _ = writeln!(io::stderr(), "loggos: {what}");
}
