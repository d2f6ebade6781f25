//! Two sides measured in turn, A B A B ..., so that whatever else the machine does strikes both alike; and what the
//! pairs came to.

use std::fmt;

use serde::Serialize;

use super::measure::Point;
use super::report::Figures;
use super::statistics::{Spread, lower_bound_of_median, upper_bound_of_median};
use crate::cli::output::Table;

/// The figures that are compared, with their digits for people.
const COMPARED: [(&str, Compared, usize); 5] = [
    ("operations_per_second", |figures| Some(figures.operations_per_second), 0),
    ("mean_us", |figures| Some(figures.mean_us), 0),
    ("p50_us", |figures| Some(figures.p50_us as f64), 0),
    ("p99_us", |figures| Some(figures.p99_us as f64), 0),
    ("server_cpu_us_per_operation", |figures| figures.server_cpu_us_per_operation, 1),
];

type Compared = fn(&Figures) -> Option<f64>;

/// The pairs of one point.
pub(crate) struct Pairs {
    titles: [String; 2],
    point: Point,
    count: usize,
    /// Of each compared figure the pairs in which both sides have it.
    measured: [Vec<[f64; 2]>; COMPARED.len()],
    load_averages: Vec<f64>,
}

impl Pairs {
    pub(crate) fn new(titles: [String; 2], point: Point) -> Self {
        Self { titles, point, count: 0, measured: Default::default(), load_averages: Vec::new() }
    }

    /// A side in which nothing was done has figures that mean nothing.
    pub(crate) fn add(&mut self, a: &Figures, b: &Figures) {
        self.count += 1;
        self.load_averages.extend(a.load_average.iter().chain(&b.load_average));
        if a.operations == 0 || b.operations == 0 {
            return;
        }
        for ((_, figure, _), measured) in COMPARED.iter().zip(&mut self.measured) {
            measured.extend(figure(a).zip(figure(b)).map(|(a, b)| [a, b]));
        }
    }

    pub(crate) fn summary(&self) -> Summary {
        let compared = COMPARED.iter().zip(&self.measured);
        Summary {
            bench: "pairs",
            a: self.titles[0].clone(),
            b: self.titles[1].clone(),
            clients: self.point.clients,
            rate: self.point.offer.map(|offer| offer.rate),
            pairs: self.count,
            load_average: Spread::of(&self.load_averages),
            figures: compared.filter_map(|((name, _, digits), pairs)| Comparison::of(name, *digits, pairs)).collect(),
        }
    }
}

/// What the pairs of a point came to, as JSON has it.
#[derive(Debug, Serialize)]
pub(crate) struct Summary {
    bench: &'static str,
    a: String,
    b: String,
    clients: usize,
    rate: Option<f64>,
    pairs: usize,
    load_average: Option<Spread>,
    figures: Vec<Comparison>,
}

/// One figure of both sides.
#[derive(Debug, PartialEq, Serialize)]
struct Comparison {
    figure: &'static str,
    a: Spread,
    b: Spread,
    /// Of A to B, within each pair.
    ratio: Spread,
    /// What the median ratio is not below, and not above, each wrong one time in twenty at most; none with fewer than
    /// five pairs.
    ratio_lower_95: Option<f64>,
    ratio_upper_95: Option<f64>,
    #[serde(skip)]
    digits: usize,
}

impl Comparison {
    /// None if no pair has the figure on both sides.
    fn of(figure: &'static str, digits: usize, pairs: &[[f64; 2]]) -> Option<Self> {
        let side = |side: usize| Spread::of(&pairs.iter().map(|pair| pair[side]).collect::<Vec<_>>());
        let ratios: Vec<f64> = pairs.iter().map(|[a, b]| a / b).filter(|ratio| ratio.is_finite()).collect();
        Some(Self {
            figure,
            a: side(0)?,
            b: side(1)?,
            ratio: Spread::of(&ratios)?,
            ratio_lower_95: lower_bound_of_median(&ratios),
            ratio_upper_95: upper_bound_of_median(&ratios),
            digits,
        })
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let load = self.rate.map_or_else(|| format!("{} clients", self.clients), |rate| format!("{rate} operations/s"));
        write!(f, "\n{load}, {} pairs; median (lowest to highest)", self.pairs)?;
        if let Some(Spread { lowest, highest, .. }) = self.load_average {
            write!(f, "; load average {lowest} to {highest}")?;
        }
        let mut table = Table::new(["", &self.a, &self.b, "A / B", "95% OF THE MEDIAN RATIO"]);
        for line in &self.figures {
            let bounds = line.ratio_lower_95.zip(line.ratio_upper_95);
            table.add([
                line.figure.to_owned(),
                people(line.a, line.digits),
                people(line.b, line.digits),
                people(line.ratio, 2),
                bounds
                    .map_or_else(|| "-".into(), |(lower, upper)| format!("not below {lower:.2}, not above {upper:.2}")),
            ]);
        }
        write!(f, "\n{table}")
    }
}

fn people(Spread { median, lowest, highest }: Spread, digits: usize) -> String {
    format!("{median:.digits$} ({lowest:.digits$} to {highest:.digits$})")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_those_within_pairs() {
        let pairs = [[2.0, 1.0], [4.0, 4.0], [9.0, 3.0], [5.0, 4.0], [6.0, 4.0]];
        let compared = Comparison::of("p50_us", 0, &pairs).expect("five pairs");
        assert_eq!(compared.a, Spread { median: 5.0, lowest: 2.0, highest: 9.0 });
        assert_eq!(compared.b, Spread { median: 4.0, lowest: 1.0, highest: 4.0 });
        // Not the ratio of the medians.
        assert_eq!(compared.ratio, Spread { median: 1.5, lowest: 1.0, highest: 3.0 });
        assert_eq!((compared.ratio_lower_95, compared.ratio_upper_95), (Some(1.0), Some(3.0)));
        let few = Comparison::of("p50_us", 0, &pairs[..4]).expect("four pairs");
        assert_eq!((few.ratio_lower_95, few.ratio_upper_95), (None, None));
        assert_eq!(Comparison::of("server_cpu_us_per_operation", 1, &[]), None);
    }

    #[test]
    fn people_read_medians_ranges_and_bounds() {
        let mut pairs =
            Pairs::new(["A loggos write", "B etcd write"].map(str::to_owned), Point { clients: 64, offer: None });
        pairs.count = 5;
        pairs.load_averages = vec![2.5, 1.0];
        pairs.measured[0] = vec![[8_000.0, 4_000.0]; 5];
        let text = pairs.summary().to_string();
        let expected = "\n64 clients, 5 pairs; median (lowest to highest); load average 1 to 2.5\n                       \
                        A loggos write       B etcd write         A / B                95% OF THE MEDIAN RATIO\n\
                        operations_per_second  8000 (8000 to 8000)  4000 (4000 to 4000)  2.00 (2.00 to 2.00)  \
                        not below 2.00, not above 2.00\n";
        assert_eq!(text, expected);
    }
}
