//! Plots as SVG, without system fonts or libraries.
//!
//! Equal measurements give equal bytes, so that a plot in a repository changes only when its measurements do.

mod latency;
mod lines;
mod strip;

use std::fs;
use std::path::Path;

use plotters::coord::Shift;
use plotters::prelude::*;
use serde::de::DeserializeOwned;
use serde_json::Value;
use terminal::Stop;

pub(crate) use latency::{Measured, PlotPoint, latency};
pub(crate) use lines::{lines, lines_by_size};
pub(crate) use strip::{Strip, strip};

const SIZE: (u32, u32) = (960, 600);
const FONT: &str = "sans-serif";
/// Colors that are distinguishable with color vision deficiency (Okabe and Ito); a ninth curve reuses the first.
const COLOURS: [RGBColor; 8] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(0, 0, 0),
    RGBColor(148, 148, 148),
];

type Canvas<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn<'a> = Result<(), DrawingAreaErrorKind<<SVGBackend<'a> as DrawingBackend>::ErrorType>>;

fn colour(number: usize) -> RGBColor {
    COLOURS[number % COLOURS.len()]
}

/// Draws on a white canvas.
fn svg(draw: impl for<'a> FnOnce(&Canvas<'a>) -> Drawn<'a>) -> String {
    let mut svg = String::new();
    let canvas = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
    let drawn = canvas.fill(&WHITE).and_then(|()| draw(&canvas)).and_then(|()| canvas.present());
    drawn.expect("drawing to a string does not fail");
    drop(canvas);
    svg
}

/// Formats a number for an axis.
fn on_axis(number: f64) -> String {
    let text = if number.abs() >= 10.0 { format!("{number:.0}") } else { format!("{number:.3}") };
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

/// Reads the objects of one benchmark from a JSON lines file, which may contain several.
pub(crate) fn read<T: DeserializeOwned + OfBench>(path: &Path) -> Result<Vec<T>, Stop> {
    let text = fs::read_to_string(path).map_err(Stop::io(format!("read {}", path.display())))?;
    let mut measured = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let wrong = |error| Stop::invalid(format!("{}, line {number}: {error}", path.display()));
        let object: Value = serde_json::from_str(line).map_err(wrong)?;
        if object["bench"] == T::BENCH {
            measured.push(serde_json::from_value(object).map_err(wrong)?);
        }
    }
    Ok(measured)
}

/// Results of one benchmark.
pub(crate) trait OfBench {
    /// The value of their field `bench`.
    const BENCH: &'static str;
}

pub(crate) fn write(path: &Path, svg: &str) -> Result<(), Stop> {
    fs::write(path, svg).map_err(Stop::io(format!("write {}", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axis_label_format() {
        for (number, text) in
            [(0.0, "0"), (0.25, "0.25"), (0.3 - 0.1, "0.2"), (3.0, "3"), (10.0, "10"), (12_345.6, "12346")]
        {
            assert_eq!(on_axis(number), text);
        }
    }
}
