//! A stable 64-bit hash of a state's logical content. Unlike the standard library's hash it is the same on every
//! machine and in every build. The simulator and scrubs use it to detect diverging replicas. It is not cryptographic.

/// Hashes a sequence of words and byte strings. For a given word each step is a bijection of the hash state.
#[derive(Clone, Debug)]
pub struct LogicalHash(u64);

impl LogicalHash {
    /// The hash of an empty sequence.
    #[must_use]
    pub fn new() -> Self {
        Self(0x9e37_79b9_7f4a_7c15)
    }

    pub fn word(&mut self, word: u64) {
        let mixed = (self.0 ^ word).wrapping_mul(0xff51_afd7_ed55_8ccd);
        self.0 = mixed ^ (mixed >> 32);
    }

    /// Adds a signed word.
    pub fn signed(&mut self, number: i64) {
        self.word(number.cast_unsigned());
    }

    /// Adds a byte string, preceded by its length, so that different lists of strings have different input.
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.word(bytes.len() as u64);
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            self.word(u64::from_le_bytes(*word));
        }
        if !rest.is_empty() {
            let mut last = [0; 8];
            last[..rest.len()].copy_from_slice(rest);
            self.word(u64::from_le_bytes(last));
        }
    }

    /// Returns the hash of everything added.
    #[must_use]
    pub fn finish(mut self) -> u64 {
        self.word(0);
        self.0
    }
}

impl Default for LogicalHash {
    fn default() -> Self {
        Self::new()
    }
}
