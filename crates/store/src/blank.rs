//! A blank disk, which belongs to no cluster yet. Its incarnation is stored before it is announced.
//!
//! An interrupted formation may have announced this disk to some nodes without formatting it. The formation may
//! continue only with the same disk: without a stored number, a disk that took part and was lost could be replaced by
//! an empty one that has forgotten its promises (guarantee 6).

use base::codec::Wire;
use base::{ClusterId, Incarnation, Member, NodeId};
use xxhash_rust::xxh3::xxh3_128;

use crate::FORMAT;
use crate::error::StoreError;
use crate::files::{FileError, Files, read_whole, remove_if_exists, replace};
use crate::sealed::{Broken, SEALED_BYTES_MAX, seal, unseal};

const MAGIC: [u8; 8] = *b"loggosBL";
const PLACE: &str = "blank";

/// The identity of a blank disk: the stored one, or `drawn`, which is forced before this returns. A damaged number is
/// drawn again, so nodes that know the old one see a different disk.
///
/// # Errors
/// When the disk has another node's number or another format, or a file operation fails.
pub fn claim<F: Files>(files: &F, node: NodeId, drawn: Incarnation) -> Result<Member, StoreError> {
    let found = match read_whole(files, PLACE, SEALED_BYTES_MAX)?.map(|sealed| unseal(MAGIC, &sealed)) {
        Some(Ok(content)) => Member::from_bytes(content).ok(),
        Some(Err(Broken::OtherFormat(found))) => {
            return Err(StoreError::OtherFormat { what: "the number of a blank disk", found, known: FORMAT });
        }
        Some(Err(Broken::Damaged)) | None => None,
    };
    match found {
        Some(found) if found.node == node => Ok(found),
        Some(found) => Err(StoreError::OtherIdentity { node: found.node }),
        None => {
            let member = Member { node, incarnation: drawn };
            replace(files, "", PLACE, &seal(MAGIC, &member.to_bytes()))?;
            Ok(member)
        }
    }
}

/// Removes the stored number, because the disk now belongs to a cluster.
///
/// # Errors
/// When a file operation fails.
pub fn forget<F: Files>(files: &F) -> Result<(), FileError> {
    remove_if_exists(files, PLACE).map(|_| ())
}

/// The cluster formed of these disks, independent of their order. It is a hash of their random numbers, so concurrent
/// or repeated formations with the same disks produce the same cluster.
#[must_use]
pub fn cluster_of(members: &[Member]) -> ClusterId {
    let mut members = members.to_vec();
    members.sort_unstable();
    let disks: Vec<u8> = members.iter().flat_map(Wire::to_bytes).collect();
    ClusterId(xxh3_128(&disks))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::MemoryDisk;
    use crate::testing::crash_everywhere;

    const NODE: NodeId = NodeId(2);

    fn member(incarnation: u64) -> Member {
        Member { node: NODE, incarnation: Incarnation(incarnation) }
    }

    #[test]
    fn incarnation_is_claimed_once() {
        let disk = MemoryDisk::new();
        assert_eq!(claim(&disk, NODE, Incarnation(7)), Ok(member(7)));
        assert_eq!(claim(&disk, NODE, Incarnation(8)), Ok(member(7)));
        assert_eq!(claim(&disk, NodeId(3), Incarnation(8)), Err(StoreError::OtherIdentity { node: NODE }));
        disk.flip_bit(PLACE, 24, 1);
        assert_eq!(claim(&disk, NODE, Incarnation(9)), Ok(member(9)));
        forget(&disk).unwrap();
        forget(&disk).unwrap();
        assert_eq!(claim(&disk, NODE, Incarnation(10)), Ok(member(10)));
    }

    /// A number announced before a crash is found after it.
    #[test]
    fn claimed_incarnation_survives_crash() {
        crash_everywhere(
            MemoryDisk::new,
            |disk| claim(disk, NODE, Incarnation(7)).map(|_| ()),
            |disk| assert!(matches!(claim(disk, NODE, Incarnation(8)).unwrap().incarnation.0, 7 | 8)),
        );
    }

    #[test]
    fn cluster_id_derives_from_members() {
        let [one, two] = [Member { node: NodeId(1), incarnation: Incarnation(5) }, member(6)];
        assert_eq!(cluster_of(&[one, two]), cluster_of(&[two, one]));
        assert_ne!(cluster_of(&[one, two]), cluster_of(&[one, member(7)]));
        assert_ne!(cluster_of(&[one, two]), cluster_of(&[one]));
    }
}
