//! `cargo xtask check`: the checks to run before a commit. `.ci/run` runs the same, and also planted bugs, real nodes
//! and third-party clients.
//!
//! `cargo xtask cost`: the instructions that each operation takes, compared with the recorded ones (crate `cost`).

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

/// Builds and runs the crate `cost`. The release profile, because that is what users run.
const COST: &str = "run --quiet --locked --release --package cost --";

const USAGE: &str = "usage: cargo xtask check
       cargo xtask cost [--check] [--record]

cost counts instructions with valgrind.
  --check   fail if an operation takes over 3 % more than recorded
  --record  record the counts";

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let is_done = match arguments[..] {
        ["check"] => check(),
        ["cost", ref options @ ..] if options.iter().all(|option| ["--check", "--record"].contains(option)) => {
            cargo(&[COST, &options.join(" ")].join(" "))
        }
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    if is_done { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn check() -> bool {
    let started = Instant::now();
    for (name, arguments) in STEPS {
        println!("\n== {name} ({} s)", started.elapsed().as_secs());
        if !cargo(arguments) {
            return false;
        }
    }
    println!("\n== done ({} s)", started.elapsed().as_secs());
    true
}

/// Runs cargo with these arguments, separated by spaces. Returns whether it has succeeded.
fn cargo(arguments: &str) -> bool {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(arguments.split_ascii_whitespace()).env("RUSTDOCFLAGS", "-D warnings");
    match cargo.status() {
        Ok(status) if status.success() => true,
        Ok(_) => {
            eprintln!("xtask: failed: cargo {arguments}");
            false
        }
        Err(error) => {
            eprintln!("xtask: can't run cargo: {error}");
            false
        }
    }
}
