//! A progress bar over the points of a benchmark, where standard error is a terminal.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressFinish, ProgressStyle};

/// How often the bar moves by itself: seldom, since what moves it runs beside what is measured.
const TICK: Duration = Duration::from_millis(500);

/// The bar. On anything but a terminal indicatif draws nothing. Clones are the same bar; it goes with the last.
#[derive(Clone)]
pub(crate) struct Progress {
    bar: ProgressBar,
}

impl Progress {
    /// So many steps are ahead. The bar is gone when this is.
    pub(crate) fn of(steps: u64, what: &str) -> Self {
        let bar = ProgressBar::new(steps).with_finish(ProgressFinish::AndClear);
        let template = format!("{{bar:32}} {{pos}}/{{len}} {what}  {{msg}}  {{elapsed}}, {{eta}} left");
        bar.set_style(ProgressStyle::with_template(&template).expect("the templates are constants"));
        bar.enable_steady_tick(TICK);
        Self { bar }
    }

    /// What is done now.
    pub(crate) fn now(&self, what: String) {
        self.bar.set_message(what);
    }

    /// So many steps are done.
    pub(crate) fn done(&self, steps: u64) {
        self.bar.inc(steps);
    }

    /// Prints something while the bar is out of the way.
    pub(crate) fn aside<T>(&self, print: impl FnOnce() -> T) -> T {
        self.bar.suspend(print)
    }
}
