//! Room for what subscriptions have read whose clients were not seen to take anything.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::limits::STRANGERS_READ_BYTES_MAX;

/// What subscriptions of all connections together may have read, or be reading, that has not begun to leave, where
/// their client was not seen to take what comes: however many they are, there is something for others.
#[derive(Clone, Debug)]
pub(crate) struct Strangers(Arc<Semaphore>);

/// Bytes are counted in these.
const UNIT_BYTES: usize = 4 << 10;

impl Default for Strangers {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(STRANGERS_READ_BYTES_MAX / UNIT_BYTES)))
    }
}

impl Strangers {
    /// So many bytes until this is dropped, if there are as many.
    pub(crate) fn take(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.0).try_acquire_many_owned(bytes.div_ceil(UNIT_BYTES) as u32).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strangers_have_so_much_together() {
        let strangers = Strangers::default();
        let first = strangers.take(STRANGERS_READ_BYTES_MAX - 1).expect("there is nobody else");
        assert!(strangers.clone().take(1).is_none());
        drop(first);
        assert!(strangers.take(STRANGERS_READ_BYTES_MAX + 1).is_none() && strangers.take(1).is_some());
    }
}
