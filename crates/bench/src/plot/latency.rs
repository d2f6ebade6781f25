//! Latency against load, as in the paper's figures: a point for each number of clients or rate, and for each target and
//! operation a curve for the mean and one for the 99th percentile.
//!
//! Repeated measurements form one point with their medians. Latencies are on a logarithmic axis, since a mean and a
//! 99th percentile would not fit on a linear one.

use std::collections::BTreeMap;

use plotters::prelude::*;
use plotters::series::DashedLineSeries;
use serde::Deserialize;

use super::super::report::Figures;
use super::super::statistics::Spread;
use super::{Canvas, Drawn, FONT, OfBench, colour, on_axis, svg};

/// The fields of a measurement that a plot needs.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub(crate) struct Measured {
    target: String,
    operation: String,
    #[serde(default)]
    side: Option<String>,
    /// Absent in files written before open loops existed.
    #[serde(default = "closed")]
    mode: String,
    #[serde(default)]
    write_percent: Option<u8>,
    value_bytes: usize,
    clients: usize,
    #[serde(default)]
    rate: Option<f64>,
    operations_per_second: f64,
    mean_us: f64,
    p99_us: u64,
    #[serde(default)]
    saturated: bool,
}

fn closed() -> String {
    "closed".to_owned()
}

impl OfBench for Measured {
    const BENCH: &'static str = "columns";
}

impl Measured {
    pub(crate) fn of(figures: &Figures) -> Self {
        let object = serde_json::to_value(figures).expect("numbers and names");
        serde_json::from_value(object).expect("the figures contain these fields")
    }

    /// Its point in a plot.
    pub(crate) fn plot_point(&self) -> PlotPoint {
        PlotPoint {
            curve: self.curve(),
            requested: self.requested(),
            load: self.operations_per_second,
            mean_ms: self.mean_us / 1_000.0,
            p99_ms: self.p99_us as f64 / 1_000.0,
            is_saturated: self.saturated,
        }
    }

    /// The name of its curve.
    fn curve(&self) -> String {
        let side = self.side.as_ref().map_or_else(String::new, |side| format!("{side}: "));
        let percent = match self.write_percent {
            Some(percent) if self.operation == "mixed" => format!(" {percent}% writes"),
            _ => String::new(),
        };
        let Self { target, operation, value_bytes, mode, .. } = self;
        format!("{side}{target} {operation}{percent}, {value_bytes} B, {mode} loop")
    }

    /// The requested load, which identifies repetitions and orders points: clients, or thousandths of a rate.
    fn requested(&self) -> u64 {
        self.rate.map_or(self.clients as u64, |rate| (rate * 1_000.0).round() as u64)
    }
}

/// A measurement's point in a plot.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PlotPoint {
    pub(crate) curve: String,
    /// The requested load: identifies repetitions and orders points.
    pub(crate) requested: u64,
    /// Operations or entries per second.
    pub(crate) load: f64,
    /// 0 if no operation succeeded.
    pub(crate) mean_ms: f64,
    pub(crate) p99_ms: f64,
    /// The offered load exceeded the capacity.
    pub(crate) is_saturated: bool,
}

/// A point of a curve: load per second, and latencies in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Dot {
    load: f64,
    mean_ms: f64,
    p99_ms: f64,
    is_saturated: bool,
}

impl Dot {
    fn of(repetitions: &[&PlotPoint]) -> Option<Self> {
        let median = |figure: fn(&PlotPoint) -> f64| {
            let figures: Vec<f64> = repetitions.iter().map(|point| figure(point)).collect();
            Some(Spread::of(&figures)?.median)
        };
        Some(Self {
            load: median(|point| point.load)?,
            mean_ms: median(|point| point.mean_ms)?,
            p99_ms: median(|point| point.p99_ms)?,
            is_saturated: repetitions.iter().any(|point| point.is_saturated),
        })
    }
}

/// The curves by name, each with its points in order.
fn curves(points: &[PlotPoint]) -> BTreeMap<String, Vec<Dot>> {
    let mut by_curve: BTreeMap<String, BTreeMap<u64, Vec<&PlotPoint>>> = BTreeMap::new();
    // Without a successful operation there is no latency.
    for point in points.iter().filter(|point| point.mean_ms > 0.0) {
        by_curve.entry(point.curve.clone()).or_default().entry(point.requested).or_default().push(point);
    }
    let dots = |by_load: BTreeMap<u64, Vec<&PlotPoint>>| by_load.values().filter_map(|point| Dot::of(point)).collect();
    by_curve.into_iter().map(|(name, points)| (name, dots(points))).collect()
}

/// The plot; `load` is the label of the load axis.
pub(crate) fn latency(points: &[PlotPoint], load: &str) -> String {
    let curves = curves(points);
    svg(|canvas| draw(canvas, load, &curves))
}

fn draw<'a>(canvas: &Canvas<'a>, load: &str, curves: &BTreeMap<String, Vec<Dot>>) -> Drawn<'a> {
    let dots = || curves.values().flatten();
    let most = dots().map(|dot| dot.load).fold(1.0, f64::max) * 1.05;
    let lowest = dots().map(|dot| dot.mean_ms.min(dot.p99_ms)).fold(f64::INFINITY, f64::min);
    let highest = dots().map(|dot| dot.mean_ms.max(dot.p99_ms)).fold(0.0, f64::max);
    // Space for the names of the curves.
    let room = 1.6_f64.powi(1 + curves.len() as i32);
    let range = if highest > 0.0 { lowest / 1.5..highest * room } else { 0.1..10.0 };
    let mut chart = ChartBuilder::on(canvas)
        .margin(16)
        .caption("Latency against load", (FONT, 20))
        .x_label_area_size(48)
        .y_label_area_size(64)
        .build_cartesian_2d(0.0..most, range.log_scale())?;
    chart
        .configure_mesh()
        .light_line_style(BLACK.mix(0.04))
        .x_label_formatter(&|load| on_axis(*load))
        .y_label_formatter(&|latency| on_axis(*latency))
        .x_desc(load)
        .y_desc("latency, milliseconds")
        .label_style((FONT, 13))
        .draw()?;
    for (number, (name, dots)) in curves.iter().enumerate() {
        let colour = colour(number);
        let line = |figure: fn(&Dot) -> f64| dots.iter().map(move |dot| (dot.load, figure(dot)));
        chart
            .draw_series(LineSeries::new(line(|dot| dot.mean_ms), colour.stroke_width(2)))?
            .label(format!("{name}: mean (line), p99 (dashes)"))
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2)));
        chart.draw_series(DashedLineSeries::new(line(|dot| dot.p99_ms), 6, 4, colour.stroke_width(1)))?;
        // A saturated point is hollow.
        for figure in [|dot: &Dot| dot.mean_ms, |dot: &Dot| dot.p99_ms] {
            chart.draw_series(dots.iter().map(|dot| {
                let style = if dot.is_saturated { colour.stroke_width(1) } else { colour.filled() };
                Circle::new((dot.load, figure(dot)), 3, style)
            }))?;
        }
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.85))
        .border_style(BLACK.mix(0.3))
        .label_font((FONT, 13))
        .draw()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(operation: &str, clients: usize, load: f64, mean_us: f64) -> PlotPoint {
        let measured: Measured = serde_json::from_value(serde_json::json!({
            "bench": "columns", "target": "loggos", "operation": operation, "value_bytes": 4_096, "clients": clients,
            "operations_per_second": load, "mean_us": mean_us, "p99_us": 3 * mean_us as u64,
        }))
        .expect("files from before open loops have only these fields");
        measured.plot_point()
    }

    fn figure(points: &[PlotPoint]) -> String {
        latency(points, "operations per second")
    }

    #[test]
    fn merges_repetitions_and_sorts_points() {
        let all = [
            measured("write", 16, 4_000.0, 4_000.0),
            measured("write", 1, 1_000.0, 900.0),
            measured("read", 1, 9_000.0, 100.0),
            measured("write", 1, 1_200.0, 1_100.0),
            measured("write", 1, 1_100.0, 1_000.0),
            measured("write", 64, 0.0, 0.0),
        ];
        let curves = curves(&all);
        assert_eq!(curves.len(), 2);
        let dots = &curves["loggos write, 4096 B, closed loop"];
        let expected = [(1_100.0, 1.0, 3.0), (4_000.0, 4.0, 12.0)];
        assert_eq!(dots.iter().map(|dot| (dot.load, dot.mean_ms, dot.p99_ms)).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn plot_is_independent_of_turn_order() {
        let mut all = [
            measured("write", 1, 1_000.0, 900.0),
            measured("write", 4, 3_000.0, 1_300.0),
            measured("read", 1, 9_000.0, 100.0),
        ];
        let first = figure(&all);
        assert!(
            first.starts_with("<svg")
                && first.contains("loggos read, 4096 B")
                && first.contains("operations per second")
        );
        assert_eq!(figure(&all), first);
        all.reverse();
        assert_eq!(figure(&all), first);
        assert_ne!(figure(&all[1..]), first);
    }

    #[test]
    fn empty_input_draws_no_plot() {
        assert!(figure(&[]).starts_with("<svg"));
    }
}
