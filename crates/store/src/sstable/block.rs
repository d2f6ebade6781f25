//! The content of a block: entries in order, each a version, in *runs* of sixteen (restart intervals).
//!
//! An entry consists of [`varint`]s: the length of the prefix that its key shares with the previous key, the length of
//! the rest, the value's length plus one (zero for a tombstone), and the difference of its timestamp from that of the
//! previous entry. The rest of the key and the value follow. The first entry of a run has no predecessor: its key is
//! complete, so a search can start there. After the entries come the offset of every run, four bytes each, and the
//! number of runs.

use base::Timestamp;
use bytes::Bytes;

use super::{Malformed, varint};

mod search;
pub(super) use search::BlockCursor;

/// Entries per run: a larger number makes blocks smaller and searches slower.
const RUN_ENTRIES: usize = 16;

/// Bytes per number in the list of runs.
const WORD: usize = 4;

#[derive(Default)]
pub(super) struct BlockBuilder {
    content: Vec<u8>,
    runs: Vec<u32>,
    entries: usize,
    /// Key and timestamp of the last entry.
    key: Vec<u8>,
    timestamp: Timestamp,
}

impl BlockBuilder {
    /// Appends an entry, in order.
    pub(super) fn add(&mut self, key: &[u8], timestamp: Timestamp, value: Option<&[u8]>) {
        if self.entries.is_multiple_of(RUN_ENTRIES) {
            self.runs.push(u32::try_from(self.content.len()).expect("the limits keep a block far below 4 GiB"));
            self.key.clear();
            self.timestamp = Timestamp(0);
        }
        let shared = shared_bytes(&self.key, key);
        let out = &mut self.content;
        varint::put(out, shared as u64);
        varint::put(out, (key.len() - shared) as u64);
        varint::put(out, value.map_or(0, |value| value.len() as u64 + 1));
        varint::put(out, varint::difference(self.timestamp.0 as u64, timestamp.0 as u64));
        out.extend_from_slice(&key[shared..]);
        out.extend_from_slice(value.unwrap_or_default());
        self.key.truncate(shared);
        self.key.extend_from_slice(&key[shared..]);
        self.timestamp = timestamp;
        self.entries += 1;
    }

    pub(super) fn entries(&self) -> usize {
        self.entries
    }

    /// Size of the block so far.
    pub(super) fn bytes(&self) -> usize {
        self.content.len() + (self.runs.len() + 1) * WORD
    }

    /// The key and the timestamp of the last entry.
    pub(super) fn last(&self) -> (&[u8], Timestamp) {
        (&self.key, self.timestamp)
    }

    /// Finishes the block; [`Self::clear`] starts the next one.
    pub(super) fn finish(&mut self) -> &[u8] {
        for run in &self.runs {
            self.content.extend_from_slice(&run.to_le_bytes());
        }
        self.content.extend_from_slice(&(self.runs.len() as u32).to_le_bytes());
        &self.content
    }

    pub(super) fn clear(&mut self) {
        self.content.clear();
        self.runs.clear();
        self.entries = 0;
    }
}

/// Length of the common prefix of two keys.
pub(super) fn shared_bytes(left: &[u8], right: &[u8]) -> usize {
    left.iter().zip(right).take_while(|(left, right)| left == right).count()
}

/// A block in memory. Clones share its bytes.
#[derive(Clone, Debug)]
pub(super) struct Block {
    content: Bytes,
    /// Offset of the end of the entries and start of the list of runs.
    entries_end: usize,
    runs: usize,
}

impl Block {
    pub(super) fn empty() -> Self {
        Self { content: Bytes::new(), entries_end: 0, runs: 0 }
    }

    /// Parses a block. Entries are checked when they are read.
    pub(super) fn parse(content: Bytes) -> Result<Self, Malformed> {
        let words_end = content.len().checked_sub(WORD).ok_or(Malformed)?;
        let runs = word(&content, words_end).ok_or(Malformed)?;
        let entries_end = runs.checked_mul(WORD).and_then(|words| words_end.checked_sub(words)).ok_or(Malformed)?;
        // There are entries exactly if there are runs, and the first run starts at offset 0.
        let block = Self { content, entries_end, runs };
        let is_whole = if runs == 0 { entries_end == 0 } else { entries_end > 0 && block.run_start(0) == 0 };
        if is_whole { Ok(block) } else { Err(Malformed) }
    }

    pub(super) fn bytes(&self) -> usize {
        self.content.len()
    }

    /// Offset of a run; the end of the entries if there is no such run.
    #[inline]
    fn run_start(&self, run: usize) -> usize {
        let start = if run < self.runs { word(&self.content, self.entries_end + run * WORD) } else { None };
        start.unwrap_or(self.entries_end)
    }

    /// The first key and timestamp of a run.
    #[inline]
    fn run_head(&self, run: usize) -> Result<(&[u8], Timestamp), Malformed> {
        let entry = self.entry(self.run_start(run), Timestamp(0))?;
        if entry.shared != 0 {
            return Err(Malformed);
        }
        Ok((&self.content[entry.key_at..entry.value_at], entry.timestamp))
    }

    /// Parses the entry at `start`, whose predecessor in its run has the timestamp `previous`. Its parts are within the
    /// entries.
    #[inline]
    fn entry(&self, start: usize, previous: Timestamp) -> Result<Entry, Malformed> {
        self.try_entry(start, previous).ok_or(Malformed)
    }

    #[inline]
    fn try_entry(&self, start: usize, previous: Timestamp) -> Option<Entry> {
        let bytes = &self.content[..self.entries_end];
        let mut at = start;
        let shared = usize::try_from(varint::take(bytes, &mut at)?).ok()?;
        let unshared = usize::try_from(varint::take(bytes, &mut at)?).ok()?;
        let value = usize::try_from(varint::take(bytes, &mut at)?).ok()?;
        let timestamp = varint::apply(previous.0 as u64, varint::take(bytes, &mut at)?);
        let value_at = at.checked_add(unshared)?;
        let end = value_at.checked_add(value.saturating_sub(1))?;
        (end <= self.entries_end).then_some(Entry {
            start,
            shared,
            key_at: at,
            value_at,
            end,
            is_tombstone: value == 0,
            timestamp: Timestamp(timestamp as i64),
        })
    }
}

#[inline]
fn word(bytes: &[u8], at: usize) -> Option<usize> {
    let word = bytes.get(at..)?.first_chunk::<WORD>()?;
    usize::try_from(u32::from_le_bytes(*word)).ok()
}

/// Offsets of the parts of an entry.
#[derive(Clone, Copy)]
struct Entry {
    start: usize,
    /// Bytes shared with the previous key.
    shared: usize,
    /// Offset of the rest of the key, which ends where the value starts.
    key_at: usize,
    value_at: usize,
    end: usize,
    is_tombstone: bool,
    timestamp: Timestamp,
}

#[cfg(test)]
mod tests;
