//! A progress bar with rate and remaining time, if standard error is a terminal.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use super::source::Source;

const TICK: Duration = Duration::from_millis(200);

/// Measures progress in bytes of the file: the number of rows is not known until its end.
pub(crate) struct Progress {
    bar: ProgressBar,
}

impl Progress {
    pub(crate) fn of(source: &Source) -> Self {
        // indicatif draws nothing unless standard error is a terminal.
        let (bar, template) = match source.length {
            Some(bytes) => (ProgressBar::new(bytes), "{bar:32} {percent:>3}%  {msg}  {eta} left"),
            None => (ProgressBar::new_spinner(), "{spinner} {bytes}  {msg}  {elapsed}"),
        };
        bar.set_style(ProgressStyle::with_template(template).expect("the template is a constant"));
        bar.enable_steady_tick(TICK);
        Self { bar }
    }

    /// Sets the number of bytes read.
    pub(crate) fn read(&self, bytes: u64) {
        self.bar.set_position(bytes);
    }

    /// Sets the number of rows loaded.
    pub(crate) fn loaded(&self, rows: u64) {
        let seconds = self.bar.elapsed().as_secs_f64().max(0.001);
        self.bar.set_message(format!("{rows} rows, {:.0} rows/s", rows as f64 / seconds));
    }

    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}
