//! Whether some tree of a node has so many tables that its writers would soon have to wait for a compaction. Whatever
//! compaction runs then is to be done: its own, or another tree's that is before it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// How many of a node's trees press for a compaction.
#[derive(Debug, Default)]
pub struct Pressure(AtomicUsize);

/// One that does, for as long as this is kept.
#[derive(Debug)]
pub(super) struct Pressing(Arc<Pressure>);

impl Pressure {
    /// Whether any does.
    #[must_use]
    pub fn is_any(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 0
    }

    pub(super) fn begin(self: &Arc<Self>) -> Pressing {
        self.0.fetch_add(1, Ordering::Relaxed);
        Pressing(Arc::clone(self))
    }
}

impl Drop for Pressing {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_lasts_as_long_as_any_tree_presses() {
        let pressure = Arc::new(Pressure::default());
        let (one, two) = (pressure.begin(), pressure.begin());
        drop(one);
        assert!(pressure.is_any());
        drop(two);
        assert!(!pressure.is_any());
    }
}
