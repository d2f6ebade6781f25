//! Compares two sides that are measured alternately (A B A B ...), so that other activity on the machine affects both
//! equally.

use std::fmt;

use serde::Serialize;
use terminal::Table;

use super::statistics::{Spread, lower_bound_of_median, upper_bound_of_median};

/// The results of a turn that can be compared.
pub(crate) trait Compared: Sized + 'static {
    /// The load applied to both sides.
    type Point: fmt::Display + Serialize;
    /// The figures to compare, with the digits to display.
    const FIGURES: &'static [(&'static str, Figure<Self>, usize)];

    /// Whether no operation succeeded, which makes the figures meaningless.
    fn has_done_nothing(&self) -> bool;
    /// The machine's load average during the turn.
    fn load_average(&self) -> Option<f64>;
}

/// Extracts a figure from a turn.
pub(crate) type Figure<T> = fn(&T) -> Option<f64>;

/// The pairs of one point.
pub(crate) struct Pairs<T: Compared> {
    titles: [String; 2],
    point: T::Point,
    count: usize,
    /// For each figure, the pairs in which both sides have it.
    measured: Vec<Vec<[f64; 2]>>,
    load_averages: Vec<f64>,
}

impl<T: Compared> Pairs<T> {
    pub(crate) fn new(titles: [String; 2], point: T::Point) -> Self {
        Self { titles, point, count: 0, measured: vec![Vec::new(); T::FIGURES.len()], load_averages: Vec::new() }
    }

    pub(crate) fn add(&mut self, a: &T, b: &T) {
        self.count += 1;
        self.load_averages.extend(a.load_average().into_iter().chain(b.load_average()));
        if a.has_done_nothing() || b.has_done_nothing() {
            return;
        }
        for ((_, figure, _), measured) in T::FIGURES.iter().zip(&mut self.measured) {
            measured.extend(figure(a).zip(figure(b)).map(|(a, b)| [a, b]));
        }
    }

    pub(crate) fn summary(self) -> Summary<T::Point> {
        let compared = T::FIGURES.iter().zip(&self.measured);
        let figures = compared.filter_map(|((name, _, digits), pairs)| Comparison::of(name, *digits, pairs)).collect();
        let [a, b] = self.titles;
        Summary {
            bench: "pairs",
            a,
            b,
            point: self.point,
            pairs: self.count,
            load_average: Spread::of(&self.load_averages),
            figures,
        }
    }
}

/// The comparison at one point as JSON.
#[derive(Debug, Serialize)]
pub(crate) struct Summary<P> {
    bench: &'static str,
    a: String,
    b: String,
    #[serde(flatten)]
    point: P,
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
    /// A divided by B, within each pair.
    ratio: Spread,
    /// Bounds of the median ratio, each with a confidence of 95 %; `None` with fewer than five pairs.
    ratio_lower_95: Option<f64>,
    ratio_upper_95: Option<f64>,
    #[serde(skip)]
    digits: usize,
}

impl Comparison {
    /// `None` if no pair has the figure on both sides.
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

impl<P: fmt::Display> fmt::Display for Summary<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\n{}, {} pairs; median (lowest to highest)", self.point, self.pairs)?;
        if let Some(Spread { lowest, highest, .. }) = self.load_average {
            write!(f, "; load average {lowest} to {highest}")?;
        }
        let mut table = Table::new(["", &self.a, &self.b, "A / B", "95% BOUNDS OF THE RATIO"]);
        for line in &self.figures {
            let bounds = line.ratio_lower_95.zip(line.ratio_upper_95);
            table.add([
                line.figure.to_owned(),
                people(line.a, line.digits),
                people(line.b, line.digits),
                people(line.ratio, 2),
                bounds.map_or_else(|| "-".into(), |(lower, upper)| format!(">= {lower:.2}, <= {upper:.2}")),
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
    use super::super::measure::Point;
    use super::super::report::Figures;
    use super::*;

    #[test]
    fn ratios_are_computed_per_pair() {
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
    fn pair_summary_format() {
        let (titles, point) =
            (["A loggos write", "B etcd write"].map(str::to_owned), Point { clients: 64, offer: None });
        let mut pairs = Pairs::<Figures>::new(titles, point);
        pairs.count = 5;
        pairs.load_averages = vec![2.5, 1.0];
        pairs.measured[0] = vec![[8_000.0, 4_000.0]; 5];
        let summary = pairs.summary();
        let json = serde_json::to_string(&summary).expect("numbers and names");
        let point = r#""a":"A loggos write","b":"B etcd write","clients":64,"rate":null,"pairs":5"#;
        assert!(json.contains(point), "{json}");
        let text = summary.to_string();
        let expected = "\n64 clients, 5 pairs; median (lowest to highest); load average 1 to 2.5\n                       \
                        A loggos write       B etcd write         A / B                95% BOUNDS OF THE RATIO\n\
                        operations_per_second  8000 (8000 to 8000)  4000 (4000 to 4000)  2.00 (2.00 to 2.00)  \
                        >= 2.00, <= 2.00\n";
        assert_eq!(text, expected);
    }
}
