//! `cargo xtask cost` runs this program; see the crate's documentation.

use std::env;
use std::process::ExitCode;

use cost::count::{self, TOLERANCE};
use cost::operations::{OPERATIONS, Operation};

/// That of `loggos`, because its instructions count.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const USAGE: &str = "usage: cost [--check] [--record]\n       cost run OPERATION";

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["run", name] => match Operation::named(name) {
            Some(operation) => count::execute(operation),
            None => return misused(),
        },
        _ if arguments.iter().all(|argument| ["--check", "--record"].contains(argument)) => {
            let [checks, records] = ["--check", "--record"].map(|flag| arguments.contains(&flag));
            match compare(checks, records) {
                Ok(true) => {}
                Ok(false) => return ExitCode::FAILURE,
                Err(error) => {
                    eprintln!("cost: {error}");
                    return ExitCode::FAILURE;
                }
            }
        }
        _ => return misused(),
    }
    ExitCode::SUCCESS
}

fn misused() -> ExitCode {
    eprintln!("{USAGE}");
    ExitCode::from(2)
}

/// Counts, and prints the table. Returns whether the check, if there is one, has succeeded.
fn compare(checks: bool, records: bool) -> Result<bool, Box<dyn std::error::Error + Send + Sync>> {
    let program = env::current_exe()?;
    let profiles = program.with_file_name("cost-profiles");
    let (recorded, counts) = (count::recorded()?, count::count(&program, &profiles)?);
    println!("{:<20} {:>9} {:>9}  change", "operation", "recorded", "now");
    let (mut worse, mut is_better) = (Vec::new(), false);
    for (operation, now) in OPERATIONS.iter().zip(&counts) {
        let Some(before) = recorded.get(operation.name) else {
            println!("{:<20} {:>9} {now:>9}  new", operation.name, "-");
            continue;
        };
        let change = count::change(*before, *now);
        println!("{:<20} {before:>9} {now:>9}  {change:+.2} %", operation.name);
        is_better |= change < -TOLERANCE;
        if change > TOLERANCE {
            worse.push(operation);
        }
    }
    if records {
        count::record(&counts)?;
        return Ok(true);
    }
    if is_better {
        println!("\nSome operations take fewer instructions. Record that: cargo xtask cost --record");
    }
    if !worse.is_empty() {
        println!("\nSome operations take more instructions. To see where:");
        for operation in &worse {
            println!("  callgrind_annotate --inclusive=yes {}", count::profile(operation, &profiles).display());
        }
        println!("If this is intended, record it in a commit that says why: cargo xtask cost --record");
    }
    Ok(!checks || worse.is_empty())
}
