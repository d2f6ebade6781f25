//! Runs the product's own state machines under a simulated network, disks, clocks and processes.

pub mod campaign;
pub mod history;
pub mod list_append;
pub mod register;
pub mod search;
pub mod world;

/// Maximum time of a search in a test. On any machine a search ends earlier, so its result does not depend on the speed of the
/// machine.
#[cfg(test)]
const SEARCH_LIMIT: std::time::Duration = std::time::Duration::from_secs(1_200);

/// Whether a long test runs whole: all of them do, unless `SIM_WHOLE` is a number, which selects one of eight. `.ci/run` derives
/// it from the commit, because the same seeds and scopes find little that they have not found before.
#[cfg(test)]
fn is_whole(number: usize) -> bool {
    let selected = std::env::var("SIM_WHOLE").ok().and_then(|number| number.parse::<usize>().ok());
    selected.is_none_or(|selected| selected % 8 == number)
}
