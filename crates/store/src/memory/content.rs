//! The durable and the written content of one file, which differ only in the dirty sectors.

use base::SplitMix64;

use super::SECTOR_BYTES;

#[derive(Clone, Debug, Default)]
pub(super) struct Content {
    durable: Vec<u8>,
    written: Vec<u8>,
    /// The dirty sectors, as a list and as flags.
    dirty: Vec<usize>,
    is_dirty: Vec<bool>,
}

fn index(offset: u64) -> usize {
    usize::try_from(offset).expect("a file in memory is far smaller than memory")
}

impl Content {
    pub(super) fn len(&self) -> u64 {
        self.written.len() as u64
    }

    pub(super) fn read_at(&self, offset: u64, buffer: &mut [u8]) -> usize {
        let from = index(offset).min(self.written.len());
        let read = buffer.len().min(self.written.len() - from);
        buffer[..read].copy_from_slice(&self.written[from..from + read]);
        read
    }

    pub(super) fn write_at(&mut self, offset: u64, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let (from, to) = (index(offset), index(offset) + bytes.len());
        let grown_from = self.written.len().min(from);
        if to > self.written.len() {
            self.written.resize(to, 0);
            self.is_dirty.resize(to.div_ceil(SECTOR_BYTES), false);
        }
        self.written[from..to].copy_from_slice(bytes);
        for sector in grown_from / SECTOR_BYTES..to.div_ceil(SECTOR_BYTES) {
            if !std::mem::replace(&mut self.is_dirty[sector], true) {
                self.dirty.push(sector);
            }
        }
    }

    pub(super) fn sync(&mut self) {
        self.durable.resize(self.written.len(), 0);
        for sector in std::mem::take(&mut self.dirty) {
            self.keep(sector);
            self.is_dirty[sector] = false;
        }
    }

    /// Keeps or loses each dirty sector; a few are torn: their start is new and their end is old.
    pub(super) fn crash(&mut self, random: &mut SplitMix64) {
        for sector in std::mem::take(&mut self.dirty) {
            match random.below(8) {
                0 => {
                    self.restore(sector, random.below(SECTOR_BYTES as u64) as usize);
                    self.keep(sector);
                }
                1..4 => self.keep(sector),
                _ => self.restore(sector, 0),
            }
            self.is_dirty[sector] = false;
        }
        self.written.truncate(self.durable.len());
        self.is_dirty.truncate(self.durable.len().div_ceil(SECTOR_BYTES));
    }

    fn keep(&mut self, sector: usize) {
        let from = sector * SECTOR_BYTES;
        let to = (from + SECTOR_BYTES).min(self.written.len());
        if self.durable.len() < to {
            self.durable.resize(to, 0);
        }
        self.durable[from..to].copy_from_slice(&self.written[from..to]);
    }

    /// Reverts a sector from its byte `cut` on.
    fn restore(&mut self, sector: usize, cut: usize) {
        let from = sector * SECTOR_BYTES;
        let to = (from + SECTOR_BYTES).min(self.written.len());
        for at in (from + cut).min(to)..to {
            self.written[at] = self.durable.get(at).copied().unwrap_or(0);
        }
    }

    pub(super) fn flip_bit(&mut self, offset: u64, bit: u8) -> bool {
        let (at, mask) = (index(offset), 1 << (bit % 8));
        if let Some(byte) = self.durable.get_mut(at) {
            *byte ^= mask;
        }
        self.written.get_mut(at).map(|byte| *byte ^= mask).is_some()
    }
}
