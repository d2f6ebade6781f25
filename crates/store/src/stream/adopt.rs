//! Received files of a stream: verified, and made a stream with a map of its own.

use std::collections::BTreeSet;

use base::Sequence;
use base::canary::{Bug, planted};

use super::map::{self, Map};
use super::ship::{Page, received_sum};
use super::{DATA, GROUP_BLOCKS, GROUP_BYTES, StreamError, StreamStore, WHOLE, at, invalid, offset_of, open_data};
use crate::BLOCK_BYTES;
use crate::erased::{DynFiles, ErasedFile, ErasedFiles};
use crate::files::{File as _, FileErrorKind, OpenOptions, ReadAt as _, read_whole, remove_if_exists};
use crate::sstable::{DIRECTORY, SstableId, SstableRef};
use crate::tree::Site;

/// Builds a stream from the files that [`StreamStore::ship`] sends, by their names on this disk. No files: an empty one.
///
/// # Errors
/// A file operation fails, or a file is invalid.
pub fn adopt(files: &dyn DynFiles, site: Site, received: &[SstableRef]) -> Result<StreamStore, StreamError> {
    if received.is_empty() {
        return Ok(StreamStore::new(site));
    }
    let of = |kind: u8| received.iter().find(|named| named.level == kind);
    let (Some(of_map), Some(of_data)) = (of(WHOLE), of(DATA)) else {
        return Err(StreamError::Invalid { path: String::new(), reason: "a file of the stream was not received" });
    };
    let path = of_map.id.path();
    let content = read_whole(&ErasedFiles(files), &path, of_map.bytes)?;
    let content = content.ok_or_else(|| invalid(of_map.id, "it does not exist"))?;
    let (mut input, _) =
        map::opened(&content, None, site.cohort, WHOLE).map_err(|reason| invalid(of_map.id, reason))?;
    let (mut map, complete_from) =
        Map::decode(&mut input).map_err(|_| invalid(of_map.id, "its content is not a map"))?;
    if map.data_bytes() != of_data.bytes {
        return Err(invalid(of_data.id, "its length does not match the map"));
    }
    // Writes of received parts went through the page cache, and direct reads follow.
    if of_data.bytes > 0 {
        files.open(&of_data.id.path(), OpenOptions::BUFFERED)?.sync()?;
    } else {
        remove_if_exists(&ErasedFiles(files), &of_data.id.path())?;
        files.create(&of_data.id.path(), OpenOptions::DIRECT)?.sync()?;
    }
    let file = open_data(files, of_data.id)?;
    let last_change = verify(&file, of_data.id, &site, &mut map)?.max(complete_from);
    let id = SstableId { cohort: site.cohort, number: site.numbers.draw() };
    let content = map.encode(&site.owner, id, last_change);
    let write = || {
        let written = files.create(&id.path(), OpenOptions::BUFFERED)?;
        written.write_at(0, &content)?;
        written.sync()?;
        files.remove(&path)?;
        files.sync_dir(DIRECTORY)
    };
    if let Err(error) = write() {
        if error.kind == FileErrorKind::NoSpace {
            // The received files are removed by the caller. What cannot be removed is removed at the next start.
            let _ = files.remove(&id.path());
        }
        return Err(error.into());
    }
    let named = vec![map::data_reference(of_data.id), map::reference(id, WHOLE, &content)];
    Ok(StreamStore::of(site, map, named, Some(file), last_change))
}

/// Verifies the received blocks, and enters their checksums into the map. Returns the last entry that they may contain.
fn verify(file: &ErasedFile, data: SstableId, site: &Site, map: &mut Map) -> Result<Sequence, StreamError> {
    let mut last_change = Sequence(0);
    let mut buffer = crate::AlignedBuffer::zeroed(GROUP_BYTES as usize);
    let used: BTreeSet<u32> = map.groups.values().map(|placed| placed.slot).collect();
    let slots = (map.data_bytes() / GROUP_BYTES) as u32;
    let free = (0..slots).filter(|slot| !used.contains(slot));
    for slot in free {
        file.punch(u64::from(slot) * GROUP_BYTES, GROUP_BYTES)?;
    }
    for (number, placed) in &mut map.groups {
        let mut punched: Vec<(u64, u64)> = Vec::new();
        let read = file.read_at(u64::from(placed.slot) * GROUP_BYTES, &mut buffer)?;
        buffer[read..].fill(0);
        let (page, content) = buffer.split_at(BLOCK_BYTES);
        let page = Page::decode(page).map_err(|_| invalid(data, "the page of a slot is damaged"))?;
        if page.group != *number {
            return Err(invalid(data, "a slot has another group than the map says"));
        }
        last_change = last_change.max(page.last_change);
        punched.push((u64::from(placed.slot) * GROUP_BYTES, BLOCK_BYTES as u64));
        let sums = std::sync::Arc::make_mut(&mut placed.sums);
        for block in number * GROUP_BLOCKS..(number + 1) * GROUP_BLOCKS {
            let sum = &mut sums[at(block)];
            if *sum == map::HOLE || *sum == map::ZERO {
                punched.push((offset_of(placed.slot, block), BLOCK_BYTES as u64));
                continue;
            }
            let content = &content[at(block) * BLOCK_BYTES..][..BLOCK_BYTES];
            let received = received_sum(site.cohort, &page, block, content);
            *sum = received.ok_or_else(|| invalid(data, "a received block is damaged"))?;
        }
        // Blocks without content were received as zeros. They take no space again.
        for run in punched.chunk_by(|(start, length), (next, _)| start + length == *next) {
            if let (Some((start, _)), Some((last, length))) = (run.first(), run.last()) {
                file.punch(*start, last + length - start)?;
            }
        }
    }
    Ok(if planted(Bug::StreamIncompleteRead) { Sequence(0) } else { last_change })
}
