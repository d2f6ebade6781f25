//! A progress bar for a benchmark, if standard error is a terminal.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressFinish, ProgressStyle};

/// Refresh interval, long so that drawing does not disturb measurements.
const TICK: Duration = Duration::from_millis(500);

/// The bar. indicatif draws nothing unless standard error is a terminal. Clones share the bar, which is removed with
/// the last.
#[derive(Clone)]
pub(crate) struct Progress {
    bar: ProgressBar,
}

impl Progress {
    /// A bar for this number of steps. It is removed when dropped.
    pub(crate) fn of(steps: u64, what: &str) -> Self {
        let bar = ProgressBar::new(steps).with_finish(ProgressFinish::AndClear);
        let template = format!("{{bar:32}} {{pos}}/{{len}} {what}  {{msg}}  {{elapsed}}, {{eta}} left");
        bar.set_style(ProgressStyle::with_template(&template).expect("the templates are constants"));
        bar.enable_steady_tick(TICK);
        Self { bar }
    }

    /// Sets the current activity.
    pub(crate) fn now(&self, what: String) {
        self.bar.set_message(what);
    }

    pub(crate) fn done(&self, steps: u64) {
        self.bar.inc(steps);
    }

    /// Prints something while the bar is hidden.
    pub(crate) fn aside<T>(&self, print: impl FnOnce() -> T) -> T {
        self.bar.suspend(print)
    }
}
