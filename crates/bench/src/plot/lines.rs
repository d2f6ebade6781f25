//! Lines through points: one number against another, a line for each name.

use std::collections::BTreeMap;

use plotters::prelude::*;

use super::{Canvas, Drawn, FONT, colour, on_axis, svg};

/// Points in order, by the name of their line.
type Curves = BTreeMap<String, Vec<(f64, f64)>>;

/// The figure, with the labels of the horizontal and the vertical axis.
pub(crate) fn lines(title: &str, axes: [&str; 2], curves: &Curves) -> String {
    svg(|canvas| draw(canvas, title, axes, curves))
}

fn draw<'a>(canvas: &Canvas<'a>, title: &str, [across, up]: [&str; 2], curves: &Curves) -> Drawn<'a> {
    let points = || curves.values().flatten();
    let right = points().map(|point| point.0).fold(1.0, f64::max);
    // Space above for the names of the lines.
    let top = points().map(|point| point.1).fold(1.0, f64::max) * (1.1 + 0.08 * curves.len() as f64);
    let mut chart = ChartBuilder::on(canvas)
        .margin(16)
        .caption(title, (FONT, 20))
        .x_label_area_size(48)
        .y_label_area_size(64)
        .build_cartesian_2d(0.0..right, 0.0..top)?;
    chart
        .configure_mesh()
        .light_line_style(BLACK.mix(0.04))
        .x_label_formatter(&|number| on_axis(*number))
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
    }
}
