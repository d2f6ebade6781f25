//! How many bytes entries of a log are likely to have: as many as those that came before.

use crate::limits::{
    GUESS_BLIND_ENTRY_BYTES, GUESS_BLIND_LEAST_BYTES, GUESS_BLIND_MOST_BYTES, GUESS_LEAST_BYTES, READ_BYTES_MAX,
};

/// What those that came before had.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Guess {
    /// One of them lately, once one was seen.
    usual: Option<usize>,
}

impl Guess {
    /// An entry of so many bytes came.
    pub(crate) fn saw(&mut self, bytes: usize) {
        self.usual = Some(self.usual.map_or(bytes, |usual| bytes.max((usual * 7 + bytes) / 8)));
    }

    /// Bytes of an entry, if any came.
    pub(crate) fn usual(&self) -> Option<usize> {
        self.usual
    }

    /// Bytes that so many entries may have: a quarter more than is usual. A short answer costs another read.
    pub(crate) fn bytes_of(&self, count: usize) -> usize {
        match self.usual {
            Some(usual) => (usual.saturating_mul(count) / 4).saturating_mul(5).clamp(GUESS_LEAST_BYTES, READ_BYTES_MAX),
            None => {
                count.saturating_mul(GUESS_BLIND_ENTRY_BYTES).clamp(GUESS_BLIND_LEAST_BYTES, GUESS_BLIND_MOST_BYTES)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_grows_at_once_and_shrinks_slowly() {
        let mut guess = Guess::default();
        assert_eq!([1, 4, 1_000].map(|count| guess.bytes_of(count)), [64 << 10, 64 << 10, 1 << 20]);
        guess.saw(100);
        assert_eq!([1, 100, 1_000_000].map(|count| guess.bytes_of(count)), [4 << 10, 12_500, 4 << 20]);
        guess.saw(800_000);
        assert_eq!(guess.bytes_of(1), 1_000_000);
        guess.saw(0);
        assert_eq!(guess.usual(), Some(700_000));
        guess.saw(usize::MAX >> 4);
        assert_eq!(guess.bytes_of(usize::MAX), READ_BYTES_MAX);
    }
}
