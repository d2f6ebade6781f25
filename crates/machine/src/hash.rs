//! A stable 64-bit hash of a state's logical content: the same on every machine and in every build, unlike the standard
//! library's. It tells states apart in simulation and at a scrub; it is no protection from a forger.

/// Takes words and byte strings in, one after the other. Each step is a bijection of the state for a given word.
#[derive(Clone, Debug)]
pub struct LogicalHash(u64);

impl LogicalHash {
    /// Of nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self(0x9e37_79b9_7f4a_7c15)
    }

    /// Takes in a word.
    pub fn word(&mut self, word: u64) {
        let mixed = (self.0 ^ word).wrapping_mul(0xff51_afd7_ed55_8ccd);
        self.0 = mixed ^ (mixed >> 32);
    }

    /// Takes in a signed word.
    pub fn signed(&mut self, number: i64) {
        self.word(number.cast_unsigned());
    }

    /// Takes in a byte string. The length goes first, so that no two lists of strings look alike.
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

    /// The hash of all that was taken in.
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
