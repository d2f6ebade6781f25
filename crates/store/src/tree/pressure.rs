//! Tracks whether any tree of a node has so many SSTables that its writers will soon stall unless a compaction
//! completes. Any running compaction is then urgent: that tree's own, or one ahead of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Number of trees of a node with urgent compactions.
#[derive(Debug, Default)]
pub struct Pressure(AtomicUsize);

/// Registers one tree while it exists.
#[derive(Debug)]
pub(super) struct Pressing(Arc<Pressure>);

impl Pressure {
    /// Whether any tree is registered.
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
    fn pressure_lasts_until_last_holder() {
        let pressure = Arc::new(Pressure::default());
        let (one, two) = (pressure.begin(), pressure.begin());
        drop(one);
        assert!(pressure.is_any());
        drop(two);
        assert!(!pressure.is_any());
    }
}
