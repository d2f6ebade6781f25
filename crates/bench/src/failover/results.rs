//! The results of each run, and their summary.

use std::fmt;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::super::cluster::NodeFault;
use super::super::plot::{OfBench, Strip};
use super::super::recorder::Gap;
use super::super::report::or_dash;
use super::super::statistics::Spread;
use super::watch::Marks;

pub(crate) const HEADING: &str =
    "RUN  SIGNAL  LEADER   GAP MS  DETECT MS  ELECT MS  TAKE OVER MS  BARRIER MS  WRITES  ERRORS  LOAD";

/// One run as JSON. Scripts depend on the fields. The parts are absent if the election did not cause the longest gap, or
/// was not observed to its end.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "bench", rename = "failover")]
pub(crate) struct Run {
    pub(crate) signal: NodeFault,
    pub(crate) run: usize,
    pub(crate) clients: usize,
    pub(crate) rate: Option<f64>,
    pub(crate) value_bytes: usize,
    /// The node that was killed or paused, and its successor as leader.
    pub(crate) leader_before: u32,
    pub(crate) leader: Option<u32>,
    pub(crate) longest_gap_us: u64,
    /// The gap was ended by the end of the run, not by a write.
    pub(crate) gap_is_open: bool,
    pub(crate) detect_us: Option<u64>,
    pub(crate) elect_us: Option<u64>,
    pub(crate) take_over_us: Option<u64>,
    pub(crate) barrier_us: Option<u64>,
    pub(crate) operations: u64,
    pub(crate) errors: u64,
    pub(crate) load_average: Option<f64>,
}

impl OfBench for Run {
    const BENCH: &'static str = "failover";
}

impl Run {
    /// The longest gap, divided into its parts.
    pub(crate) fn of(gap: &Gap, marks: &Marks) -> Self {
        let parts = parts(gap, marks);
        let part = |number: usize| parts.map(|parts| micros(parts[number]));
        Self {
            signal: NodeFault::Kill,
            run: 0,
            clients: 0,
            rate: None,
            value_bytes: 0,
            leader_before: marks.before.leader,
            leader: marks.leader,
            longest_gap_us: micros(gap.length()),
            gap_is_open: gap.is_open,
            detect_us: part(0),
            elect_us: part(1),
            take_over_us: part(2),
            barrier_us: part(3),
            operations: 0,
            errors: 0,
            load_average: None,
        }
    }
}

/// Detect, elect, take over, and barrier, which is part of take over. Polling may observe an event only after the gap
/// has ended; it then counts as having happened at the end, since a leader that acknowledged a write was elected and
/// serving.
fn parts(gap: &Gap, marks: &Marks) -> Option<[Duration; 4]> {
    let in_gap = |seen: Instant| seen.min(gap.ended);
    let stood = marks.stood.filter(|stood| *stood >= gap.began).map(in_gap)?;
    let elected = in_gap(marks.elected?);
    let open = in_gap(marks.open?);
    Some([stood - gap.began, elected - stood, gap.ended - elected, open - elected])
}

fn micros(time: Duration) -> u64 {
    time.as_micros() as u64
}

fn milliseconds(micros: u64) -> f64 {
    micros as f64 / 1_000.0
}

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let part = |part: Option<u64>| part.map_or_else(|| "-".to_owned(), |us| format!("{:.1}", milliseconds(us)));
        let leaders = format!("{} > {}", self.leader_before, or_dash(self.leader));
        write!(
            f,
            "{:>3}  {:6}  {leaders:6}  {:>7.1}  {:>9}  {:>8}  {:>12}  {:>10}  {:>6}  {:>6}  {:>4}",
            self.run,
            self.signal.name(),
            milliseconds(self.longest_gap_us),
            part(self.detect_us),
            part(self.elect_us),
            part(self.take_over_us),
            part(self.barrier_us),
            self.operations,
            self.errors,
            or_dash(self.load_average),
        )?;
        if self.gap_is_open { write!(f, "  no write ended the gap") } else { Ok(()) }
    }
}

/// The figures of a run, with their names in JSON and in text.
const FIGURES: [(&str, &str, Figure); 5] = [
    ("longest_gap_us", "gap", |run| Some(run.longest_gap_us)),
    ("detect_us", "detect", |run| run.detect_us),
    ("elect_us", "elect", |run| run.elect_us),
    ("take_over_us", "take over", |run| run.take_over_us),
    ("barrier_us", "barrier", |run| run.barrier_us),
];

type Figure = fn(&Run) -> Option<u64>;

/// Medians and ranges over all runs, in microseconds.
#[derive(Debug, Serialize)]
pub(crate) struct Summary {
    bench: &'static str,
    signal: NodeFault,
    runs: usize,
    open_gaps: usize,
    longest_gap_us: Option<Spread>,
    detect_us: Option<Spread>,
    elect_us: Option<Spread>,
    take_over_us: Option<Spread>,
    barrier_us: Option<Spread>,
}

impl Summary {
    pub(crate) fn of(signal: NodeFault, runs: &[Run]) -> Self {
        let [longest_gap_us, detect_us, elect_us, take_over_us, barrier_us] = FIGURES.map(|(_, _, figure)| {
            let measured: Vec<f64> = runs.iter().filter_map(figure).map(|us| us as f64).collect();
            Spread::of(&measured)
        });
        let open_gaps = runs.iter().filter(|run| run.gap_is_open).count();
        Self {
            bench: "failover summary",
            signal,
            runs: runs.len(),
            open_gaps,
            longest_gap_us,
            detect_us,
            elect_us,
            take_over_us,
            barrier_us,
        }
    }

    fn spreads(&self) -> [Option<Spread>; FIGURES.len()] {
        [self.longest_gap_us, self.detect_us, self.elect_us, self.take_over_us, self.barrier_us]
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\n{} runs, signal {}; milliseconds: median (lowest to highest)", self.runs, self.signal.name())?;
        for ((_, name, _), spread) in FIGURES.iter().zip(self.spreads()) {
            let Some(Spread { median, lowest, highest }) = spread else { continue };
            let [median, lowest, highest] = [median, lowest, highest].map(|us| us / 1_000.0);
            write!(f, "\n{name:9}  {median:.1} ({lowest:.1} to {highest:.1})")?;
        }
        if self.open_gaps > 0 {
            write!(f, "\n{} gaps were still open at the end of their run", self.open_gaps)?;
        }
        Ok(())
    }
}

/// A column for each figure of each signal.
pub(crate) fn strips(runs: &[Run]) -> Vec<Strip> {
    let mut strips = Vec::new();
    for signal in [NodeFault::Kill, NodeFault::Stop] {
        for (_, name, figure) in FIGURES {
            let of_signal = runs.iter().filter(|run| run.signal == signal);
            let measurements: Vec<f64> = of_signal.filter_map(figure).map(milliseconds).collect();
            if !measurements.is_empty() {
                strips.push(Strip { name: format!("{}: {name}", signal.name()), measurements });
            }
        }
    }
    strips
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::Term;

    struct Clock(Instant);

    impl Clock {
        fn at(&self, milliseconds: u64) -> Instant {
            self.0 + Duration::from_millis(milliseconds)
        }

        fn marks(&self, stood: u64, elected: u64, open: u64) -> Marks {
            let [stood, elected, open] = [stood, elected, open].map(|seen| Some(self.at(seen)));
            Marks { stood, elected, open, leader: Some(3), ..Marks::new(Term { epoch: 4, leader: 1 }) }
        }
    }

    #[test]
    fn failover_parts_sum_to_gap() {
        let clock = Clock(Instant::now());
        let gap = Gap { began: clock.at(10), ended: clock.at(480), is_open: false };
        let run = Run::of(&gap, &clock.marks(440, 450, 460));
        assert_eq!(run.longest_gap_us, 470_000);
        let parts = (run.detect_us, run.elect_us, run.take_over_us, run.barrier_us);
        assert_eq!(parts, (Some(430_000), Some(10_000), Some(30_000), Some(10_000)));
        assert_eq!((run.leader_before, run.leader), (1, Some(3)));
        // A late poll: the first write was acknowledged before it.
        let late = Run::of(&gap, &clock.marks(470, 482, 482));
        assert_eq!((late.elect_us, late.take_over_us, late.barrier_us), (Some(10_000), Some(0), Some(0)));
    }

    #[test]
    fn unrelated_gap_has_no_parts() {
        let clock = Clock(Instant::now());
        let gap = Gap { began: clock.at(500), ended: clock.at(1_500), is_open: true };
        let run = Run::of(&gap, &clock.marks(440, 450, 460));
        assert_eq!((run.detect_us, run.take_over_us, run.gap_is_open), (None, None, true));
        let unobserved = Run::of(&gap, &Marks::new(Term { epoch: 4, leader: 1 }));
        assert_eq!((unobserved.detect_us, unobserved.leader), (None, None));
    }

    #[test]
    fn run_json_round_trip() {
        let clock = Clock(Instant::now());
        let gap = Gap { began: clock.at(10), ended: clock.at(480), is_open: false };
        let run = Run { signal: NodeFault::Stop, run: 2, ..Run::of(&gap, &clock.marks(440, 450, 460)) };
        let line = serde_json::to_string(&run).expect("numbers and names");
        assert!(line.starts_with("{\"bench\":\"failover\",\"signal\":\"stop\",\"run\":2,\"clients\":0,"), "{line}");
        assert_eq!(serde_json::from_str::<Run>(&line).expect("the same object"), run);
        assert_eq!(strips(&[run]).len(), 5);
    }
}
