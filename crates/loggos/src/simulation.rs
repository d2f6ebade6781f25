//! `loggos sim`: runs the simulator and the exhaustive search.

use std::io::Write;
use std::ops::Range;
use std::process::ExitCode;
use std::time::Duration;

use base::canary::{self, Bug};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use sim::campaign::{Campaign, campaign_with, catch_bug};
use sim::search::{Forces, Report, Scope, search};
use sim::world::Options;

/// Prints a line, ignoring a closed pipe.
macro_rules! say {
    ($($part:tt)*) => {{
        let _ = writeln!(std::io::stdout(), $($part)*);
    }};
}

const WRONG_USE: u8 = 2;
/// A planted bug must be found within this time on one core.
const CATCH_LIMIT: Duration = Duration::from_secs(60);

#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("what").required(true))]
pub(crate) struct Simulate {
    /// Run one seed and print its trace hash.
    #[arg(long, value_name = "N", group = "what")]
    seed: Option<u64>,
    /// Run the seeds from A to B, excluding B.
    #[arg(long, value_name = "A..B", value_parser = seeds, group = "what")]
    seeds: Option<Range<u64>>,
    /// Run random seeds for this many minutes.
    #[arg(long, value_name = "M", group = "what")]
    minutes: Option<u64>,
    /// Plant one bug after the other and run seeds until each is found.
    #[arg(long, group = "what")]
    canary: bool,
    /// Search all event orders of one cohort exhaustively: epochs x entries x crashes, optionally x membership changes.
    #[arg(long, value_name = "ExNxC[xM]", value_parser = scope, group = "what")]
    search: Option<Scope>,
    /// With --seed, --seeds or --minutes: more clients, which start over a hundred operations per simulated second.
    #[arg(long)]
    busy: bool,
    /// With --canary: plant only this bug. With --seed, --seeds or --minutes: plant this bug.
    #[arg(long, value_name = "NAME", value_parser = bug)]
    bug: Option<Bug>,
    /// With --search: time limit in minutes.
    #[arg(long, value_name = "M", default_value_t = 60)]
    search_minutes: u64,
    /// With --search: allow a force to complete at any time, not only after messages of the same step were sent.
    #[arg(long)]
    any_force: bool,
    /// With --search: number of clock advances, each longer than a lease.
    #[arg(long, value_name = "T", default_value_t = 1)]
    ticks: u64,
    /// With --search: initial number of voters.
    #[arg(long, default_value_t = 3, value_name = "N")]
    voters: u64,
    /// With --search: initial number of learners; at most four.
    #[arg(long, default_value_t = 0, value_name = "N")]
    learners: u64,
}

fn seeds(text: &str) -> Result<Range<u64>, String> {
    let (first, end) = text.split_once("..").ok_or("a range is written A..B")?;
    let number = |text: &str| text.parse().map_err(|_| format!("{text:?} is not a seed"));
    let seeds = number(first)?..number(end)?;
    if seeds.is_empty() {
        return Err(format!("the range {text} is empty: its end is excluded"));
    }
    Ok(seeds)
}

fn scope(text: &str) -> Result<Scope, String> {
    let numbers: Vec<u64> = text.split('x').filter_map(|number| number.parse().ok()).collect();
    let (epochs, entries, crashes, changes) = match *numbers.as_slice() {
        [epochs, entries, crashes] => (epochs, entries, crashes, 0),
        [epochs, entries, crashes, changes] => (epochs, entries, crashes, changes),
        _ => {
            let written = "a scope is ExNxC or ExNxCxM, such as 2x3x1: epochs, entries, crashes, membership changes";
            return Err(written.to_owned());
        }
    };
    let forces = Forces::Eager;
    Ok(Scope {
        voters: 3,
        learners: 0,
        changes,
        epochs,
        entries,
        crashes,
        ticks: 1,
        checkpoints: 0,
        releases: 0,
        forces,
    })
}

fn bug(text: &str) -> Result<Bug, String> {
    Bug::from_name(text).ok_or_else(|| format!("no bug named {text}"))
}

/// Runs the command.
pub(crate) fn run(what: &Simulate) -> ExitCode {
    if (what.canary || what.bug.is_some()) && !canary::COMPILED_IN {
        eprintln!("loggos: built without planted bugs; build with `cargo build --release --features canary`");
        return ExitCode::from(WRONG_USE);
    }
    if what.canary {
        return catch_all(what.bug);
    }
    plant(what.bug);
    if let Some(scope) = what.search {
        let forces = if what.any_force { Forces::AnyTime } else { Forces::Eager };
        let scope = Scope { ticks: what.ticks, voters: what.voters, learners: what.learners, forces, ..scope };
        return searched(&search(scope, Duration::from_secs(60 * what.search_minutes)));
    }
    if let Some(seed) = what.seed {
        return one(seed, what.busy);
    }
    let for_ever = Duration::from_secs(u64::MAX / 2);
    match (&what.seeds, what.minutes) {
        (Some(seeds), _) => many(seeds.clone(), Some(seeds.end - seeds.start), what.busy, for_ever),
        (None, minutes) => {
            let limit = Duration::from_secs(60 * minutes.unwrap_or(1));
            let fresh = u64::from(std::process::id());
            let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
            let first = base::SplitMix64::new(now.as_secs() ^ fresh).draw() >> 16;
            say!("seeds from {first} on");
            let code = many(first.., None, what.busy, limit);
            say!("(a one-hour campaign has failed if a counter is missing)");
            code
        }
    }
}

/// The random options of a seed's run.
fn drawn(seed: u64, busy: bool) -> Options {
    if busy { Options::draw(seed).busy() } else { Options::draw(seed) }
}

#[cfg(feature = "canary")]
fn plant(bug: Option<Bug>) {
    canary::plant(bug);
}

#[cfg(not(feature = "canary"))]
fn plant(_bug: Option<Bug>) {}

fn one(seed: u64, busy: bool) -> ExitCode {
    let outcome = sim::campaign::run_with(seed, drawn(seed, busy));
    say!(
        "seed {seed}: trace {:016x}, {} operations in {:.3} s simulated",
        outcome.trace,
        outcome.operations,
        seconds(outcome.simulated)
    );
    for (what, times) in &outcome.counters {
        say!("{times:>9} {what}");
    }
    match outcome.violation {
        None => ExitCode::SUCCESS,
        Some(violation) => failed(seed, &violation),
    }
}

fn failed(seed: u64, violation: &str) -> ExitCode {
    eprintln!("seed {seed} failed: {violation}");
    eprintln!("reproduce with: loggos sim --seed {seed} (add --busy if it was set)");
    ExitCode::FAILURE
}

fn many(seeds: impl Iterator<Item = u64>, count: Option<u64>, busy: bool, limit: Duration) -> ExitCode {
    let bar = count.map_or_else(ProgressBar::new_spinner, ProgressBar::new);
    let template = "{elapsed_precise} {bar:30} {pos} seeds {msg}";
    bar.set_style(ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()));
    let campaign = campaign_with(
        seeds,
        |seed| drawn(seed, busy),
        limit,
        |so_far| {
            bar.set_position(so_far.runs);
            bar.set_message(format!("{} operations, {:.0} x real time", so_far.operations, speed(so_far)));
        },
    );
    bar.finish_and_clear();
    report(&campaign)
}

fn report(campaign: &Campaign) -> ExitCode {
    say!(
        "{} seeds, {} operations ({:.0}/s), {:.0} s simulated in {:.1} s: {:.0} x real time",
        campaign.runs,
        campaign.operations,
        rate(campaign),
        seconds(campaign.simulated),
        campaign.elapsed.as_secs_f64(),
        speed(campaign)
    );
    for (what, times) in &campaign.counters {
        say!("{times:>9} {what}");
    }
    let missing = campaign.missing();
    if !missing.is_empty() {
        say!("never happened: {}", missing.join(", "));
    }
    match &campaign.failure {
        None => ExitCode::SUCCESS,
        Some((seed, violation)) => failed(*seed, violation),
    }
}

#[expect(clippy::cast_precision_loss, reason = "for people to read")]
fn rate(campaign: &Campaign) -> f64 {
    campaign.operations as f64 / seconds(campaign.simulated).max(0.001)
}

fn speed(campaign: &Campaign) -> f64 {
    seconds(campaign.simulated) / campaign.elapsed.as_secs_f64().max(0.001)
}

#[expect(clippy::cast_precision_loss, reason = "for people to read")]
fn seconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e9
}

fn searched(report: &Report) -> ExitCode {
    say!(
        "{} states, {} transitions in {:.1} s: {}",
        report.states,
        report.transitions,
        report.elapsed.as_secs_f64(),
        if report.exhausted { "exhausted" } else { "not exhausted" }
    );
    for (what, times) in &report.reached {
        say!("{times:>12} {what}");
    }
    let Some(violation) = &report.violation else { return ExitCode::SUCCESS };
    eprintln!("violation: {}", violation.what);
    violation.trace.iter().for_each(|event| eprintln!("  {event}"));
    ExitCode::FAILURE
}

/// Plants each bug and runs seeds until it is found. The command fails if a bug is not found in time.
fn catch_all(only: Option<Bug>) -> ExitCode {
    // A failed assertion counts as finding the bug, and its message is printed with the result.
    std::panic::set_hook(Box::new(|_| {}));
    let mut escaped = 0;
    say!("{:<28} {:>9} {:>7} {:>10} {:>8}  found as", "bug", "guarantee", "seeds", "seed", "seconds");
    for bug in Bug::ALL.iter().copied().filter(|bug| only.is_none_or(|only| only == *bug)) {
        let catch = catch_bug(bug, CATCH_LIMIT);
        let (seed, how) = match (catch.found, catch.by_test) {
            (Some((seed, violation)), _) => (seed.to_string(), violation.lines().next().unwrap_or_default().to_owned()),
            (None, Some(test)) => ("-".to_owned(), format!("not run: found by the test {test}")),
            (None, None) => {
                escaped += 1;
                ("-".to_owned(), "NOT FOUND".to_owned())
            }
        };
        let how: String = how.chars().take(100).collect();
        let elapsed = catch.elapsed.as_secs_f64();
        say!("{:<28} {:>9} {:>7} {seed:>10} {elapsed:>8.1}  {how}", bug.name(), bug.guarantee(), catch.seeds);
    }
    if escaped > 0 {
        return ExitCode::FAILURE;
    }
    say!("every bug was found{}", if only.is_none() { ", or is found by a test" } else { "" });
    ExitCode::SUCCESS
}
