//! Strip plots: each measurement is a dot, in a column for each kind, which shows the distribution without a model. A
//! bar marks the median.

use plotters::prelude::*;

use super::super::statistics::Spread;
use super::{Canvas, Drawn, FONT, SIZE, colour, on_axis, svg};

/// Width of the dots and of the bar, as fractions of a column.
const DOTS_WIDTH: f64 = 0.5;
const BAR_WIDTH: f64 = 0.7;
/// Horizontal positions of dots before they repeat.
const DOTS_BESIDE: usize = 8;
/// Pixels to the left and right of all columns.
const MARGINS: u32 = 112;

/// The measurements of one kind.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Strip {
    pub(crate) name: String,
    pub(crate) measurements: Vec<f64>,
}

pub(crate) fn strip(title: &str, unit: &str, strips: &[Strip]) -> String {
    svg(|canvas| draw(canvas, title, unit, strips))
}

fn draw<'a>(canvas: &Canvas<'a>, title: &str, unit: &str, strips: &[Strip]) -> Drawn<'a> {
    let highest = strips.iter().flat_map(|strip| &strip.measurements).copied().fold(0.0, f64::max);
    let highest = if highest > 0.0 { highest * 1.1 } else { 1.0 };
    let last = strips.len().saturating_sub(1);
    let mut chart = ChartBuilder::on(canvas)
        .margin(16)
        .caption(title, (FONT, 20))
        .x_label_area_size(48)
        .y_label_area_size(64)
        .build_cartesian_2d((0..last).into_segmented(), 0.0..highest)?;
    let name = |column: &SegmentValue<usize>| match column {
        SegmentValue::CenterOf(column) => strips.get(*column).map_or_else(String::new, |strip| strip.name.clone()),
        _ => String::new(),
    };
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(BLACK.mix(0.04))
        .x_labels(strips.len() + 1)
        .x_label_formatter(&name)
        .y_label_formatter(&|number| on_axis(*number))
        .y_desc(unit)
        .label_style((FONT, 13))
        .draw()?;
    let width = f64::from(SIZE.0 - MARGINS) / (last + 1) as f64;
    let pixels = |part: f64| (part * width).round() as i32;
    for (number, strip) in strips.iter().enumerate() {
        let at = |measurement: f64| EmptyElement::at((SegmentValue::CenterOf(number), measurement));
        let style = colour(number).mix(0.6).filled();
        chart.draw_series(strip.measurements.iter().enumerate().map(|(run, measurement)| {
            let beside = (run % DOTS_BESIDE) as f64 / (DOTS_BESIDE - 1) as f64 - 0.5;
            at(*measurement) + Circle::new((pixels(beside * DOTS_WIDTH), 0), 4, style)
        }))?;
        if let Some(Spread { median, .. }) = Spread::of(&strip.measurements) {
            let half = pixels(BAR_WIDTH / 2.0);
            let bar = PathElement::new(vec![(-half, 0), (half, 0)], BLACK.stroke_width(2));
            let text = Text::new(format!("{median:.1}"), (half - 28, -16), (FONT, 13));
            chart.draw_series([at(median) + bar + text])?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strip_plot_is_deterministic() {
        let strips = ["kill: gap", "kill: detect"]
            .map(|name| Strip { name: name.into(), measurements: vec![400.0, 450.0, 470.0] });
        let first = strip("Failover", "milliseconds", &strips);
        assert!(first.starts_with("<svg") && first.contains("kill: detect") && first.contains("450"));
        assert_eq!(strip("Failover", "milliseconds", &strips), first);
        assert_ne!(strip("Failover", "milliseconds", &strips[..1]), first);
        assert!(strip("Failover", "milliseconds", &[]).starts_with("<svg"));
    }
}
