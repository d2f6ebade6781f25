//! `cargo xtask check`: the checks to run before a commit. `.ci/run` runs the same, and also planted bugs, real nodes
//! and third-party clients.

use std::env;
use std::process::{Command, ExitCode};
use std::time::Instant;

/// Names of the steps with cargo's arguments. The other tests start real nodes: they take minutes, and need an idle
/// machine.
const STEPS: [(&str, &str); 4] = [
    ("format", "fmt --all -- --check"),
    ("lints", "clippy --locked --workspace --all-targets -- -D warnings"),
    ("documentation", "doc --locked --workspace --no-deps"),
    ("unit tests, the simulator and the search", "test --locked --workspace --lib --bins"),
];

fn main() -> ExitCode {
    if env::args().skip(1).ne(["check".to_owned()]) {
        eprintln!("usage: cargo xtask check");
        return ExitCode::from(2);
    }
    let started = Instant::now();
    for (name, arguments) in STEPS {
        println!("\n== {name} ({} s)", started.elapsed().as_secs());
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(arguments.split(' ')).env("RUSTDOCFLAGS", "-D warnings");
        match cargo.status() {
            Ok(status) if status.success() => {}
            Ok(_) => {
                eprintln!("xtask: failed: cargo {arguments}");
                return ExitCode::FAILURE;
            }
            Err(error) => {
                eprintln!("xtask: can't run cargo: {error}");
                return ExitCode::FAILURE;
            }
        }
    }
    println!("\n== done ({} s)", started.elapsed().as_secs());
    ExitCode::SUCCESS
}
