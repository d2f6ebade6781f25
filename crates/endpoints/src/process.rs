//! The threads that a node requires, and its end.

use std::io::Write as _;
use std::{io, process, thread};

/// Exit status after a fatal error: a disk failure, or a halted machine.
pub const EXIT_HALTED: i32 = 70;

/// Starts a thread that the node requires: if it panics, the process ends.
pub fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<thread::JoinHandle<()>> {
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

/// Ends the process immediately, from any thread. This is safe: unforced data was never acknowledged.
pub fn die(reason: &str) -> ! {
    tracing::error!(reason, "fatal error, exiting");
    // Also without the logger, which may filter it.
    say(&format!("fatal: {reason}"));
    process::exit(EXIT_HALTED)
}

/// Prints a line to standard error, ignoring failures, on which `eprintln!` would panic.
pub fn say(what: &str) {
    let _ = writeln!(io::stderr(), "loggos: {what}");
}
