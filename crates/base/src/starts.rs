//! The process starts of a node, by which its peers recognize a disk that was rolled back to an older copy
//! (guarantee 6).
//!
//! A rolled-back disk counts boots that it has already counted. Each start therefore also draws a random nonce. The disk
//! records the nonces of its last starts, and every peer records the newest start of the node that it has seen. If the
//! disk's history contradicts that start, the disk is an older copy: it may lack promises and acknowledged entries.

use crate::Boot;
use crate::canary::{Bug, planted};
use crate::codec::{DecodeError, Reader, Writer};

/// A start of a node's process on its disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ProcessStart {
    pub boot: Boot,
    /// Drawn at random by the process.
    pub nonce: u64,
}

impl ProcessStart {
    pub const ENCODED_BYTES: usize = 16;
}

crate::wire! { struct ProcessStart { boot, nonce } }

/// The last starts on one disk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct StartHistory {
    boot: Boot,
    /// The nonces of `boot` and of the boots before it, the newest first.
    nonces: Vec<u64>,
}

impl StartHistory {
    /// Number of starts that a disk records. A node that starts more often than this while a peer is away can pass for
    /// a disk that was not rolled back.
    pub const STARTS_MAX: usize = 32;

    pub fn add(&mut self, nonce: u64) {
        self.boot = Boot(self.boot.0 + 1);
        self.nonces.insert(0, nonce);
        self.nonces.truncate(Self::STARTS_MAX);
    }

    #[must_use]
    pub fn newest(&self) -> ProcessStart {
        ProcessStart { boot: self.boot, nonce: self.nonces.first().copied().unwrap_or_default() }
    }

    /// Whether a disk with this history was rolled back since the start `seen`: that start is not in the history,
    /// although its boot number is.
    #[must_use]
    pub fn contradicts(&self, seen: ProcessStart) -> bool {
        if planted(Bug::RolledBackDiskAccepted) {
            return false;
        }
        let Some(age) = self.boot.0.checked_sub(seen.boot.0) else { return true };
        let nonce = usize::try_from(age).ok().and_then(|age| self.nonces.get(age));
        nonce.is_some_and(|nonce| *nonce != seen.nonce)
    }

    /// Appends the encoding to `out`.
    pub fn encode(&self, out: &mut Writer) {
        out.u64(self.boot.0);
        out.u8(u8::try_from(self.nonces.len()).expect("at most STARTS_MAX"));
        self.nonces.iter().for_each(|nonce| out.u64(*nonce));
    }

    /// Decodes the output of [`StartHistory::encode`].
    ///
    /// # Errors
    /// The input is too short, or has too many starts.
    pub fn decode(input: &mut Reader) -> Result<Self, DecodeError> {
        let boot = Boot(input.u64()?);
        let starts = usize::from(input.u8()?);
        if starts > Self::STARTS_MAX {
            return Err(DecodeError::Invalid { what: "number of recorded starts" });
        }
        let nonces = (0..starts).map(|_| input.u64()).collect::<Result<_, _>>()?;
        Ok(Self { boot, nonces })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn history(nonces: &[u64]) -> StartHistory {
        let mut history = StartHistory::default();
        nonces.iter().for_each(|nonce| history.add(*nonce));
        history
    }

    fn start(boot: u64, nonce: u64) -> ProcessStart {
        ProcessStart { boot: Boot(boot), nonce }
    }

    #[test]
    fn later_starts_are_consistent() {
        assert_eq!(history(&[7, 8, 9]).newest(), start(3, 9));
        for seen in [start(3, 9), start(2, 8), start(1, 7), ProcessStart::default()] {
            assert!(!history(&[7, 8, 9]).contradicts(seen), "{seen:?}");
        }
    }

    /// Also if the disk has counted past the seen boot since it was rolled back.
    #[test]
    fn rolled_back_disk_contradicts_seen_start() {
        let seen = start(3, 9);
        for rolled_back in [history(&[7]), history(&[7, 8]), history(&[7, 8, 1]), history(&[7, 8, 1, 2, 3])] {
            assert!(rolled_back.contradicts(seen), "{rolled_back:?}");
        }
    }

    #[test]
    fn history_is_bounded() {
        let many: Vec<u64> = (1..=100).collect();
        let history = history(&many);
        let mut out = Writer::new();
        history.encode(&mut out);
        assert_eq!(out.len(), 9 + 8 * StartHistory::STARTS_MAX);
        assert_eq!(StartHistory::decode(&mut Reader::new(out.finish())), Ok(history.clone()));
        assert!(!history.contradicts(start(5, 0)) && !history.contradicts(start(69, 69)));
        assert!(history.contradicts(start(69, 0)));
        let mut out = Writer::new();
        out.u64(100);
        out.u8(StartHistory::STARTS_MAX as u8 + 1);
        assert!(StartHistory::decode(&mut Reader::new(out.finish())).is_err());
    }
}
