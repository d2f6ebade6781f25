//! Counts instructions with valgrind's callgrind, and compares them with the recorded ones.
//!
//! Each operation runs in a process of its own, so that no row depends on another one. It executes the operation some
//! times before callgrind collects: within the function `measured` only. The count includes libc, where the
//! variant of `memcpy` depends on the processor; `TUNABLES` excludes the differences that valgrind does not hide.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{env, fs, io, thread};

use crate::operations::{OPERATIONS, Operation, Run};

/// A count that is this much higher fails the check, in percent.
pub const TOLERANCE: f64 = 3.0;
/// Executions before the count.
const WARM_UP: u32 = 100;
/// `rep movsb` counts as one instruction for each byte. Where a processor is fast at it, libc uses it for large copies.
const TUNABLES: (&str, &str) =
    ("GLIBC_TUNABLES", "glibc.cpu.x86_rep_movsb_threshold=16777216:glibc.cpu.x86_rep_stosb_threshold=16777216");

/// Why instructions are not counted, for people.
type Error = Box<dyn std::error::Error + Send + Sync>;

/// Executes an operation in this process, with the function that callgrind looks for.
pub fn execute(operation: &Operation) {
    let mut run = operation.prepare();
    (0..WARM_UP).for_each(|_| run());
    measured(&mut run, operation.times);
}

/// Callgrind collects within this function only.
#[inline(never)]
fn measured(run: &mut Run, times: u32) {
    (0..times).for_each(|_| run());
}

/// The recorded counts.
fn recorded_path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("recorded.txt")
}

/// The instructions of each operation by name.
///
/// # Errors
/// The file is malformed, or cannot be read.
pub fn recorded() -> Result<BTreeMap<String, u64>, Error> {
    let text = match fs::read_to_string(recorded_path()) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        text => text?,
    };
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let parsed = lines.map(|line| {
        let (name, count) =
            line.rsplit_once(' ').ok_or_else(|| format!("malformed line of recorded counts: {line}"))?;
        Ok((name.trim_end().to_owned(), count.parse()?))
    });
    parsed.collect()
}

/// Replaces the recorded counts.
///
/// # Errors
/// The file cannot be written.
pub fn record(counts: &[u64]) -> Result<(), Error> {
    let mut text = "# Instructions of each operation: `cargo xtask cost --record`.\n".to_owned();
    for (operation, count) in OPERATIONS.iter().zip(counts) {
        text += &format!("{:<20} {count:>9}\n", operation.name);
    }
    Ok(fs::write(recorded_path(), text)?)
}

/// The instructions of all operations, in their order. Profiles are kept in `profiles`.
///
/// # Errors
/// valgrind is missing, or an operation failed.
pub fn count(program: &Path, profiles: &Path) -> Result<Vec<u64>, Error> {
    fs::create_dir_all(profiles)?;
    let next = AtomicUsize::new(0);
    let counts: Mutex<BTreeMap<usize, Result<u64, Error>>> = Mutex::default();
    let work = || {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some(operation) = OPERATIONS.get(number) else { return };
            let counted = count_one(operation, program, profiles);
            counts.lock().expect("no holder panics").insert(number, counted);
        }
    };
    let workers = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| (0..workers).for_each(|_| drop(scope.spawn(work))));
    counts.into_inner().expect("no holder panics").into_values().collect()
}

/// The profile of an operation.
#[must_use]
pub fn profile(operation: &Operation, profiles: &Path) -> PathBuf {
    profiles.join(operation.name.replace(' ', "-"))
}

fn count_one(operation: &Operation, program: &Path, profiles: &Path) -> Result<u64, Error> {
    let path = profile(operation, profiles);
    let mut valgrind = Command::new("valgrind");
    valgrind.args(["--tool=callgrind", "--collect-atstart=no", "--toggle-collect=cost::count::measured"]);
    valgrind.arg(format!("--callgrind-out-file={}", path.display()));
    valgrind.arg(program).args(["run", operation.name]).stdin(Stdio::null());
    // The length of the environment changes the alignment of the stack.
    valgrind.env_clear().envs(env::var_os("PATH").map(|path| ("PATH", path))).env(TUNABLES.0, TUNABLES.1);
    let output = match valgrind.output() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err("valgrind is not installed: apt-get install valgrind".into());
        }
        output => output?,
    };
    if !output.status.success() {
        let output = String::from_utf8_lossy(&output.stderr);
        return Err(format!("the operation \"{}\" failed:\n{output}", operation.name).into());
    }
    let text = fs::read_to_string(&path)?;
    let total = text.lines().find_map(|line| line.strip_prefix("totals: ")?.trim().parse::<u64>().ok());
    // 0 if callgrind has not found the function.
    let total = total.filter(|total| *total > 0);
    let total = total.ok_or_else(|| format!("no count of instructions in {}", path.display()))?;
    Ok(total / u64::from(operation.times))
}

/// How much higher a count is than the recorded one, in percent.
#[must_use]
pub fn change(recorded: u64, now: u64) -> f64 {
    (now as f64 / recorded as f64 - 1.0) * 100.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recorded_counts_name_the_operations() {
        let recorded = recorded().expect("a valid file");
        let names: Vec<&str> = recorded.keys().map(String::as_str).collect();
        let mut operations: Vec<&str> = OPERATIONS.iter().map(|operation| operation.name).collect();
        operations.sort_unstable();
        assert_eq!(names, operations);
    }
}
