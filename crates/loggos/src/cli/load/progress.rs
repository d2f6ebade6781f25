//! A progress bar with rate and time left, where standard error is a terminal.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use super::source::Source;

/// How often the bar moves by itself.
const TICK: Duration = Duration::from_millis(200);

/// The bar, by bytes of the file: nobody knows its rows before its end.
pub(crate) struct Progress {
    bar: ProgressBar,
}

impl Progress {
    pub(crate) fn of(source: &Source) -> Self {
        // On anything but a terminal indicatif draws nothing.
        let (bar, template) = match source.length {
            Some(bytes) => (ProgressBar::new(bytes), "{bar:32} {percent:>3}%  {msg}  {eta} left"),
            None => (ProgressBar::new_spinner(), "{spinner} {bytes}  {msg}  {elapsed}"),
        };
        bar.set_style(ProgressStyle::with_template(template).expect("the template is a constant"));
        bar.enable_steady_tick(TICK);
        Self { bar }
    }

    /// So many bytes of the file were read.
    pub(crate) fn read(&self, bytes: u64) {
        self.bar.set_position(bytes);
    }

    /// So many rows are done.
    pub(crate) fn loaded(&self, rows: u64) {
        let seconds = self.bar.elapsed().as_secs_f64().max(0.001);
        self.bar.set_message(format!("{rows} rows, {:.0} rows/s", rows as f64 / seconds));
    }

    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}
