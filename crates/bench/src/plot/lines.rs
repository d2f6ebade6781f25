//! Lines through points: one number against another, a line for each name.

use std::collections::BTreeMap;

use plotters::prelude::*;

use super::{Canvas, Drawn, FONT, colour, on_axis, svg};

/// Points in order, by the name of their line.
type Curves = BTreeMap<String, Vec<(f64, f64)>>;

/// The figure, with the labels of the horizontal and the vertical axis.
pub(crate) fn lines(title: &str, axes: [&str; 2], curves: &Curves) -> String {
    svg(|canvas| draw(canvas, title, axes, curves, (0.0, &on_axis)))
}

/// The same against sizes in bytes, on a logarithmic axis.
pub(crate) fn lines_by_size(title: &str, up: &str, curves: &Curves) -> String {
    let logarithmic = |points: &Vec<(f64, f64)>| points.iter().map(|(bytes, up)| (bytes.log2(), *up)).collect();
    let curves: Curves = curves.iter().map(|(name, points)| (name.clone(), logarithmic(points))).collect();
    let left = curves.values().flatten().map(|point| point.0.floor()).fold(f64::INFINITY, f64::min);
    let left = if left.is_finite() { left - 1.0 } else { 0.0 };
    svg(|canvas| draw(canvas, title, ["bytes", up], &curves, (left, &|power| on_axis(power.exp2()))))
}

fn draw<'a>(
    canvas: &Canvas<'a>,
    title: &str,
    [across, up]: [&str; 2],
    curves: &Curves,
    (left, label): (f64, &dyn Fn(f64) -> String),
) -> Drawn<'a> {
    let points = || curves.values().flatten();
    let right = points().map(|point| point.0).fold(1.0, f64::max);
    // Space above for the names of the lines.
    let top = points().map(|point| point.1).fold(1.0, f64::max) * (1.1 + 0.08 * curves.len() as f64);
    let mut chart = ChartBuilder::on(canvas)
        .margin(16)
        .caption(title, (FONT, 20))
        .x_label_area_size(48)
        .y_label_area_size(64)
        .build_cartesian_2d(left..right, 0.0..top)?;
    chart
        .configure_mesh()
        .light_line_style(BLACK.mix(0.04))
        .x_label_formatter(&|number| label(*number))
        .y_label_formatter(&|number| on_axis(*number))
        .x_desc(across)
        .y_desc(up)
        .label_style((FONT, 13))
        .draw()?;
    for (number, (name, points)) in curves.iter().enumerate() {
        let colour = colour(number);
        chart
            .draw_series(LineSeries::new(points.iter().copied(), colour.stroke_width(2)).point_size(3))?
            .label(name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2)));
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

    #[test]
    fn line_plot_is_deterministic() {
        let curves = BTreeMap::from([("A".to_owned(), vec![(0.0, 10.0), (100.0, 40.0)])]);
        let draw = |curves| lines("Throughput", ["reads", "operations"], curves);
        let first = draw(&curves);
        assert!(first.starts_with("<svg") && first.contains("reads") && first.contains("operations"));
        assert_eq!(draw(&curves), first);
        assert!(draw(&BTreeMap::new()).starts_with("<svg"));
        let by_size = |curves: &Curves| lines_by_size("Bandwidth", "MB per second", curves);
        let sizes = BTreeMap::from([("A".to_owned(), vec![(4_096.0, 10.0), (65_536.0, 40.0)])]);
        assert!(by_size(&sizes).contains("16384") && by_size(&BTreeMap::new()).starts_with("<svg"));
    }
}
