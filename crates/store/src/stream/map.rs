//! The map of a stream as of a checkpoint: slots and checksums. Map files are written once.
//!
//! ```text
//! header   magic, version, kind (whole or changes), cluster, node, incarnation, cohort, number of the file
//! whole    the entry that completes the stream; the number of groups; per group: number, slot, GROUP_BLOCKS sums
//! changes  ranges of holes; groups with slots; ranges of zeros; runs of sums: first block, count, sums
//! trailer  CRC-32C of all before it
//! ```

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use base::codec::{DecodeError, Reader, Wire as _, Writer};
use base::{CohortId, Sequence};
use bytes::Bytes;

use super::layer::{Empty, Layer};
use super::{CHANGES, DATA, GROUP_BLOCKS, StreamError, WHOLE, at, invalid};
use crate::erased::{DynFiles, ErasedFiles};
use crate::files::read_whole as read_file;
use crate::identity::Owner;
use crate::sstable::{SstableId, SstableRef};
use crate::tree::Site;

/// The sum of a hole.
pub(super) const HOLE: u32 = 0;
/// The sum of a block that is zero.
pub(super) const ZERO: u32 = 1;

/// The sums of the blocks of a group.
pub(super) type Sums = [u32; GROUP_BLOCKS as usize];

const MAGIC: u64 = u64::from_le_bytes(*b"loggos-b");
const VERSION: u32 = 1;
const HEADER_BYTES: u64 = 8 + 4 + 1 + Owner::BYTES as u64 + 4 + 8;
/// The numbers of blocks are below this, so that calculations cannot overflow.
const BLOCKS_MAX: u64 = 1 << 40;
const TRAILER_BYTES: u64 = 4;
/// Bytes of a group in a whole map.
const GROUP_RECORD_BYTES: u64 = 8 + 4 + 4 * GROUP_BLOCKS;

static NO_SUMS: LazyLock<Arc<Sums>> = LazyLock::new(|| Arc::new([HOLE; GROUP_BLOCKS as usize]));

/// The sums of a group of holes.
pub(super) fn no_sums() -> Arc<Sums> {
    Arc::clone(&NO_SUMS)
}

/// A group in a map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Placed {
    pub(super) slot: u32,
    pub(super) sums: Arc<Sums>,
}

/// Slots and checksums as of a checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Map {
    pub(super) groups: BTreeMap<u64, Placed>,
}

/// The changes of a flush in a map.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Changes {
    holes: Vec<(u64, u64)>,
    /// The slots of the groups with other changes.
    slots: Vec<(u64, u32)>,
    zeroes: Vec<(u64, u64)>,
    sums: Vec<(u64, u32)>,
}

impl Changes {
    /// The changes of a layer, with the checksums of its data, and the slots of the groups that it has more than holes in.
    pub(super) fn of(layer: &Layer, sums: Vec<(u64, u32)>, slots: &BTreeMap<u64, u32>) -> Self {
        let (mut holes, mut zeroes) = (Vec::new(), Vec::new());
        for (range, to) in layer.ranges() {
            match to {
                Empty::Hole => holes.push((range.start, range.end)),
                Empty::Zero => zeroes.push((range.start, range.end)),
            }
        }
        Self { holes, slots: slots.iter().map(|(number, slot)| (*number, *slot)).collect(), zeroes, sums }
    }

    /// Applies the changes to a map. Returns the groups that they concern.
    pub(super) fn apply(&self, map: &mut Map) -> Vec<u64> {
        let mut touched = Vec::new();
        for (start, end) in &self.holes {
            let numbers = start / GROUP_BLOCKS..end.div_ceil(GROUP_BLOCKS);
            for (number, placed) in map.groups.range_mut(numbers) {
                fill(&mut placed.sums, *number, *start, *end, HOLE);
                touched.push(*number);
            }
        }
        for (number, slot) in &self.slots {
            let placed = map.groups.entry(*number).or_insert_with(|| Placed { slot: *slot, sums: no_sums() });
            placed.slot = *slot;
            touched.push(*number);
        }
        for (start, end) in &self.zeroes {
            for (number, placed) in map.groups.range_mut(start / GROUP_BLOCKS..end.div_ceil(GROUP_BLOCKS)) {
                fill(&mut placed.sums, *number, *start, *end, ZERO);
            }
        }
        for (block, sum) in &self.sums {
            if let Some(placed) = map.groups.get_mut(&(block / GROUP_BLOCKS)) {
                Arc::make_mut(&mut placed.sums)[at(*block)] = *sum;
            }
        }
        touched.sort_unstable();
        touched.dedup();
        for number in &touched {
            let is_empty = map.groups.get(number).is_some_and(|placed| placed.sums.iter().all(|sum| *sum == HOLE));
            if is_empty {
                map.groups.remove(number);
            }
        }
        touched
    }

    pub(super) fn encode(&self, site: &Site, id: SstableId) -> Vec<u8> {
        let mut out = Writer::new();
        header(&mut out, &site.owner, id, CHANGES);
        let ranges = |out: &mut Writer, ranges: &[(u64, u64)]| {
            out.u64(ranges.len() as u64);
            for (start, end) in ranges {
                out.u64(*start);
                out.u64(*end);
            }
        };
        ranges(&mut out, &self.holes);
        out.u64(self.slots.len() as u64);
        for (number, slot) in &self.slots {
            out.u64(*number);
            out.u32(*slot);
        }
        ranges(&mut out, &self.zeroes);
        let runs: Vec<&[(u64, u32)]> = self.sums.chunk_by(|left, right| left.0 + 1 == right.0).collect();
        out.u64(runs.len() as u64);
        for run in runs {
            out.u64(run[0].0);
            out.u64(run.len() as u64);
            run.iter().for_each(|(_, sum)| out.u32(*sum));
        }
        sealed(out)
    }

    fn decode(input: &mut Reader) -> Result<Self, DecodeError> {
        let ranges = |input: &mut Reader| -> Result<Vec<(u64, u64)>, DecodeError> {
            (0..count(input, 16)?).map(|_| Ok((block(input)?, block(input)?))).collect()
        };
        let holes = ranges(input)?;
        let slots = (0..count(input, 12)?).map(|_| Ok((block(input)?, input.u32()?)));
        let slots = slots.collect::<Result<_, DecodeError>>()?;
        let zeroes = ranges(input)?;
        let mut sums = Vec::new();
        for _ in 0..count(input, 16)? {
            let first = block(input)?;
            for number in 0..count(input, 4)? as u64 {
                sums.push((first + number, input.u32()?));
            }
        }
        Ok(Self { holes, slots, zeroes, sums })
    }
}

impl Map {
    /// Bytes of a file with the whole map.
    pub(super) fn whole_bytes(&self) -> u64 {
        HEADER_BYTES + 16 + self.groups.len() as u64 * GROUP_RECORD_BYTES + TRAILER_BYTES
    }

    /// The bytes of the data file up to the end of the last slot.
    pub(super) fn data_bytes(&self) -> u64 {
        let slots = self.groups.values().map(|placed| u64::from(placed.slot) + 1).max().unwrap_or(0);
        slots * super::GROUP_BYTES
    }

    pub(super) fn encode(&self, owner: &Owner, id: SstableId, complete_from: Sequence) -> Vec<u8> {
        let mut out = Writer::with_capacity(usize::try_from(self.whole_bytes()).unwrap_or(0));
        header(&mut out, owner, id, WHOLE);
        out.u64(complete_from.0);
        out.u64(self.groups.len() as u64);
        for (number, placed) in &self.groups {
            out.u64(*number);
            out.u32(placed.slot);
            placed.sums.iter().for_each(|sum| out.u32(*sum));
        }
        sealed(out)
    }

    /// Decodes a whole map. The slots must differ.
    pub(super) fn decode(input: &mut Reader) -> Result<(Self, Sequence), DecodeError> {
        let complete_from = Sequence(input.u64()?);
        let mut groups = BTreeMap::new();
        let mut slots = std::collections::BTreeSet::new();
        for _ in 0..count(input, GROUP_RECORD_BYTES as usize)? {
            let (number, slot) = (block(input)?, input.u32()?);
            let mut sums = [HOLE; GROUP_BLOCKS as usize];
            for sum in &mut sums {
                *sum = input.u32()?;
            }
            if !slots.insert(slot) || groups.insert(number, Placed { slot, sums: Arc::new(sums) }).is_some() {
                return Err(DecodeError::Invalid { what: "map: a slot or a group appears twice" });
            }
        }
        Ok((Self { groups }, complete_from))
    }
}

/// Sets the sums of blocks `start..end` that are in a group.
fn fill(sums: &mut Arc<Sums>, number: u64, start: u64, end: u64, sum: u32) {
    let first = number * GROUP_BLOCKS;
    let (from, to) = (start.max(first) - first, end.min(first + GROUP_BLOCKS) - first);
    Arc::make_mut(sums)[from as usize..to as usize].fill(sum);
}

fn header(out: &mut Writer, owner: &Owner, id: SstableId, kind: u8) {
    out.u64(MAGIC);
    out.u32(VERSION);
    out.u8(kind);
    owner.encode(out);
    id.encode(out);
}

fn sealed(out: Writer) -> Vec<u8> {
    let mut bytes = Vec::from(out.finish());
    let sum = base::checksum(&bytes);
    bytes.extend_from_slice(&sum.to_le_bytes());
    bytes
}

fn block(input: &mut Reader) -> Result<u64, DecodeError> {
    let number = input.u64()?;
    if number > BLOCKS_MAX { Err(DecodeError::Invalid { what: "block number" }) } else { Ok(number) }
}

/// A count of items that have at least `bytes` each.
fn count(input: &mut Reader, bytes: usize) -> Result<usize, DecodeError> {
    let count = usize::try_from(input.u64()?).unwrap_or(usize::MAX);
    if count > input.left() / bytes { Err(DecodeError::Invalid { what: "count" }) } else { Ok(count) }
}

/// The content of a map file without header and trailer.
pub(super) fn opened(
    content: &Bytes,
    owner: Option<&Owner>,
    cohort: CohortId,
    kind: u8,
) -> Result<(Reader, u32), &'static str> {
    let Some(end) = content.len().checked_sub(TRAILER_BYTES as usize) else { return Err("it is too short") };
    let sum = base::checksum(&content[..end]);
    if content[end..] != sum.to_le_bytes() {
        return Err("its checksum is wrong");
    }
    let mut input = Reader::new(content.slice(..end));
    let mut check = || -> Result<bool, DecodeError> {
        let is_ours = input.u64()? == MAGIC && input.u32()? == VERSION && input.u8()? == kind;
        let of = Owner::decode(&mut input)?;
        let id = SstableId::decode(&mut input)?;
        Ok(is_ours && owner.is_none_or(|owner| *owner == of) && id.cohort == cohort)
    };
    match check() {
        Ok(true) => Ok((input, sum)),
        _ => Err("its header is not that of the file expected here"),
    }
}

fn load(files: &dyn DynFiles, site: &Site, named: &SstableRef) -> Result<Reader, StreamError> {
    let path = named.id.path();
    let content = read_file(&ErasedFiles(files), &path, named.bytes.saturating_add(1))?
        .ok_or_else(|| invalid(named.id, "it does not exist"))?;
    let (input, sum) =
        opened(&content, Some(&site.owner), site.cohort, named.level).map_err(|reason| invalid(named.id, reason))?;
    if sum != named.checksum || content.len() as u64 != named.bytes {
        return Err(invalid(named.id, "the manifest names another file"));
    }
    Ok(input)
}

/// Reads a file with the whole map.
pub(super) fn read_whole(
    files: &dyn DynFiles,
    site: &Site,
    named: &SstableRef,
) -> Result<(Map, Sequence), StreamError> {
    let mut input = load(files, site, named)?;
    let read = Map::decode(&mut input).and_then(|map| input.end().map(|()| map));
    read.map_err(|_| invalid(named.id, "its content is not a map"))
}

/// Reads a file with changes, and applies them.
pub(super) fn read_changes(
    files: &dyn DynFiles,
    site: &Site,
    named: &SstableRef,
    map: &mut Map,
) -> Result<(), StreamError> {
    let mut input = load(files, site, named)?;
    let read = Changes::decode(&mut input).and_then(|changes| input.end().map(|()| changes));
    read.map_err(|_| invalid(named.id, "its content is not a list of changes"))?.apply(map);
    Ok(())
}

/// The reference to a map file.
pub(super) fn reference(id: SstableId, kind: u8, content: &[u8]) -> SstableRef {
    let checksum = content.last_chunk().map_or(0, |sum| u32::from_le_bytes(*sum));
    SstableRef { id, level: kind, bytes: content.len() as u64, checksum }
}

/// The reference to the data file.
pub(super) fn data_reference(id: SstableId) -> SstableRef {
    SstableRef { id, level: DATA, bytes: 0, checksum: 0 }
}
