//! Sending a stream to another replica while it changes (Gaios, section 3.2.2; guarantee 29).
//!
//! Two files are sent: the map as of the checkpoint that the manifest names, and the data file, slot by slot. The first
//! page of a slot then contains the checksums of the blocks *as they were read*: a flush may have overwritten a block
//! since the checkpoint, and blocks may be newer than in the file. So the copy mixes moments. The log from the
//! checkpoint on contains everything that happened since, in whole blocks, and completes the copy.

use std::sync::{Arc, OnceLock};

use base::Sequence;
use base::codec::{DecodeError, Reader, Writer};
use bytes::Bytes;

use super::map::{self, Map};
use super::read::Piece;
use super::{GROUP_BLOCKS, GROUP_BYTES, Shared, StreamError, StreamStore, StreamView, at, invalid, sum_of};
use crate::BLOCK_BYTES;
use crate::identity::Owner;
use crate::sstable::{Io, SstableId, SstableRef};

/// The number of no group, in the page of a free slot.
const NO_GROUP: u64 = u64::MAX;

/// A file of a stream, as it is sent to another replica.
#[derive(Debug)]
pub struct Shipped {
    id: SstableId,
    owner: Owner,
    map: Arc<Map>,
    part: Part,
}

#[derive(Debug)]
enum Part {
    Map { complete_from: Sequence, content: OnceLock<Bytes> },
    Data { shared: Arc<Shared>, groups: Arc<[u64]> },
}

/// The page in front of the blocks of a slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Page {
    /// The group that had the slot.
    pub(super) group: u64,
    /// The last entry with a change when the blocks were read.
    pub(super) last_change: Sequence,
    /// The sums of the content that follows. Holes and zeros have no content.
    pub(super) sums: Vec<u32>,
}

impl Page {
    fn encode(&self) -> Bytes {
        let mut out = Writer::with_capacity(BLOCK_BYTES);
        out.u64(self.group);
        out.u64(self.last_change.0);
        self.sums.iter().for_each(|sum| out.u32(*sum));
        let sum = base::checksum(out.as_slice());
        out.u32(sum);
        out.finish()
    }

    pub(super) fn decode(page: &[u8]) -> Result<Self, DecodeError> {
        let mut input = Reader::new(Bytes::copy_from_slice(page));
        let (group, last_change) = (input.u64()?, Sequence(input.u64()?));
        let sums = (0..GROUP_BLOCKS).map(|_| input.u32()).collect::<Result<Vec<u32>, _>>()?;
        let end = page.len() - input.left();
        if input.u32()? != base::checksum(&page[..end]) {
            return Err(DecodeError::Invalid { what: "checksum of a page" });
        }
        Ok(Self { group, last_change, sums })
    }
}

impl StreamStore {
    /// The files to send, with their references.
    #[must_use]
    pub fn ship(&self) -> Vec<(SstableRef, Arc<Shipped>)> {
        if self.files.is_empty() {
            return Vec::new();
        }
        let (owner, map) = (self.site.owner, Arc::clone(&self.map));
        let newest = self.files.iter().map(|named| named.id).max_by_key(|id| id.number).unwrap_or(self.shared.data);
        let content = Part::Map { complete_from: self.shared.complete_from, content: OnceLock::new() };
        let of_map = SstableRef { id: newest, level: super::WHOLE, bytes: map.whole_bytes(), checksum: 0 };
        let groups = map.groups.iter().map(|(number, placed)| (placed.slot, *number));
        let by_slot: std::collections::BTreeMap<u32, u64> = groups.collect();
        let slots = (map.data_bytes() / GROUP_BYTES) as u32;
        let groups = (0..slots).map(|slot| by_slot.get(&slot).copied().unwrap_or(NO_GROUP)).collect();
        let data = Part::Data { shared: Arc::clone(&self.shared), groups };
        let of_data = SstableRef { bytes: map.data_bytes(), ..map::data_reference(self.shared.data) };
        let shipped = |named: &SstableRef, part| Arc::new(Shipped { id: named.id, owner, map: Arc::clone(&map), part });
        vec![(of_map, shipped(&of_map, content)), (of_data, shipped(&of_data, data))]
    }
}

impl Shipped {
    /// Reads a part of the file. Parts of the data begin with a slot and contain whole slots.
    ///
    /// # Errors
    /// A block is damaged, or the disk fails.
    pub fn read_raw(&self, offset: u64, bytes_max: usize) -> Result<Bytes, StreamError> {
        match &self.part {
            Part::Map { complete_from, content } => {
                let content = content.get_or_init(|| self.map.encode(&self.owner, self.id, *complete_from).into());
                let from = usize::try_from(offset).unwrap_or(usize::MAX).min(content.len());
                Ok(content.slice(from..content.len().min(from.saturating_add(bytes_max))))
            }
            Part::Data { shared, groups } => {
                let slots = offset / GROUP_BYTES..(offset + bytes_max as u64) / GROUP_BYTES;
                if !offset.is_multiple_of(GROUP_BYTES) || slots.is_empty() {
                    return Err(invalid(self.id, "a part that is sent is not a whole slot"));
                }
                let mut out = Vec::with_capacity(bytes_max);
                for slot in slots {
                    let group = usize::try_from(slot).ok().and_then(|slot| groups.get(slot)).copied();
                    read_slot(shared, group.unwrap_or(NO_GROUP), &mut out)?;
                }
                Ok(out.into())
            }
        }
    }

    /// Reads the whole file.
    ///
    /// # Errors
    /// A block is damaged, or the disk fails.
    pub fn verify(&self) -> Result<(), StreamError> {
        let Part::Data { groups, .. } = &self.part else { return Ok(()) };
        (0..groups.len() as u64)
            .try_for_each(|slot| self.read_raw(slot * GROUP_BYTES, GROUP_BYTES as usize).map(|_| ()))
    }
}

/// Appends the current content of a group, which had a slot when the transfer began, and its checksums.
fn read_slot(shared: &Arc<Shared>, group: u64, out: &mut Vec<u8>) -> Result<(), StreamError> {
    let begin = out.len();
    out.resize(begin + GROUP_BYTES as usize, 0);
    let mut page = Page { group, last_change: Sequence(0), sums: vec![map::HOLE; GROUP_BLOCKS as usize] };
    if group != NO_GROUP {
        let blocks = group * GROUP_BLOCKS..(group + 1) * GROUP_BLOCKS;
        let view = StreamView::new(Arc::clone(shared)).as_of(Sequence(u64::MAX));
        let mut block = blocks.start;
        let content = &mut out[begin + BLOCK_BYTES..];
        for piece in view.read(blocks.clone(), Io::PassBy)? {
            match piece {
                Piece::Zeroes(count) => block += count,
                Piece::Data(data) => {
                    for data in data.chunks_exact(BLOCK_BYTES) {
                        let target = at(block) * BLOCK_BYTES;
                        content[target..target + BLOCK_BYTES].copy_from_slice(data);
                        page.sums[at(block)] = sum_of(shared.cohort, block, data);
                        block += 1;
                    }
                }
            }
        }
        // After the blocks were read: everything in them happened before.
        page.last_change = shared.read().last_change;
    }
    let encoded = page.encode();
    out[begin..begin + encoded.len()].copy_from_slice(&encoded);
    Ok(())
}

/// The sum of a received block that has content in the map. `None` if it is damaged.
pub(super) fn received_sum(cohort: base::CohortId, page: &Page, block: u64, content: &[u8]) -> Option<u32> {
    let sum = sum_of(cohort, block, content);
    let sent = page.sums[at(block)];
    // A block that has become empty since is sent as zeros. The log will say so, too.
    let is_empty = (sent == map::HOLE || sent == map::ZERO) && content.iter().all(|byte| *byte == 0);
    (sum == sent || is_empty).then_some(sum)
}
