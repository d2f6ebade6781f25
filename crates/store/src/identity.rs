//! The identity of a disk: written once at formatting and read first at every start, to detect an empty or foreign disk
//! of a known node (guarantee 6).
//!
//! There are two copies, each replaced atomically. One intact copy is enough and repairs the other.

use base::codec::{DecodeError, Reader, Text, Wire, Writer};
use base::{ClusterId, Incarnation, Member, NodeId};
use bytes::Bytes;

use crate::FORMAT;
use crate::error::StoreError;
use crate::files::{FileError, Files, read_whole, replace};
use crate::sealed::{Broken, SEALED_BYTES_MAX, seal, unseal};

const MAGIC: [u8; 8] = *b"loggosID";
const WHAT: &str = "identity";

/// The files of the two copies. The first one to be read is written last.
pub const PLACES: [&str; 2] = ["identity", "identity.copy"];

/// The identity of a data directory.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    pub cluster: ClusterId,
    pub node: NodeId,
    /// The disk's number, drawn at formatting.
    pub incarnation: Incarnation,
    /// All nodes of the cluster at its formation, including this one; empty if this one joined later.
    pub members: Vec<Member>,
    /// The nodes of the cluster when this one joined, including itself; empty if it was there from the formation.
    pub hosts: Vec<Host>,
}

/// A member of an existing cluster, as known to a joining node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Host {
    /// The node and its disk.
    pub member: Member,
    /// The address for other nodes, as `address:port`.
    pub peer: String,
}

/// The part of an identity in every frame and file, to detect data of other nodes and earlier incarnations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Owner {
    pub cluster: ClusterId,
    pub node: NodeId,
    pub incarnation: Incarnation,
}

impl Owner {
    /// Length of the encoding in bytes.
    pub(crate) const BYTES: usize = 28;

    pub(crate) fn encode(&self, out: &mut Writer) {
        out.u128(self.cluster.0);
        out.u32(self.node.0);
        out.u64(self.incarnation.0);
    }

    pub(crate) fn decode(input: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Self {
            cluster: ClusterId(input.u128()?),
            node: NodeId(input.u32()?),
            incarnation: Incarnation(input.u64()?),
        })
    }
}

impl Identity {
    /// The owner recorded in every frame and file of this disk.
    #[must_use]
    pub fn owner(&self) -> Owner {
        Owner { cluster: self.cluster, node: self.node, incarnation: self.incarnation }
    }

    fn encode(&self) -> Vec<u8> {
        let mut out = Writer::new();
        self.owner().encode(&mut out);
        self.members.encode(&mut out);
        self.hosts.encode(&mut out);
        seal(MAGIC, out.as_slice())
    }

    fn decode(content: Bytes) -> Result<Self, DecodeError> {
        let mut input = Reader::new(content);
        let Owner { cluster, node, incarnation } = Owner::decode(&mut input)?;
        let (members, hosts) = (Wire::decode(&mut input)?, Wire::decode(&mut input)?);
        input.end()?;
        Ok(Self { cluster, node, incarnation, members, hosts })
    }

    /// Every node known when the disk joined the cluster.
    pub fn known(&self) -> impl Iterator<Item = Member> + '_ {
        self.members.iter().copied().chain(self.hosts.iter().map(|host| host.member))
    }
}

base::wire! { struct Host { member, peer as Text("address") } }

/// The state of one copy.
enum Copy {
    Missing,
    Damaged,
    Whole(Identity),
}

/// Reads the identity without changing anything; `None` if neither copy exists.
///
/// # Errors
/// When copies exist and none is intact, one has another format, or two intact ones differ.
pub fn read<F: Files>(files: &F) -> Result<Option<Identity>, StoreError> {
    match read_copies(files)? {
        [Copy::Whole(first), Copy::Whole(second)] if first != second => {
            Err(StoreError::OtherIdentity { node: second.node })
        }
        [Copy::Whole(identity), _] | [_, Copy::Whole(identity)] => Ok(Some(identity)),
        [Copy::Missing, Copy::Missing] => Ok(None),
        _ => Err(StoreError::Lost { what: WHAT }),
    }
}

/// Reads the identity and rewrites a missing or damaged copy. Returns whether it did.
///
/// # Errors
/// As for [`read`], and [`StoreError::NotFormatted`] when neither copy exists.
pub fn open<F: Files>(files: &F) -> Result<(Identity, bool), StoreError> {
    let identity = read(files)?.ok_or(StoreError::NotFormatted)?;
    let mut mended = false;
    for (place, copy) in PLACES.iter().zip(read_copies(files)?) {
        if !matches!(copy, Copy::Whole(_)) {
            replace(files, "", place, &identity.encode())?;
            mended = true;
        }
    }
    Ok((identity, mended))
}

/// Writes and forces both copies.
///
/// # Errors
/// When a file operation fails.
pub(crate) fn write<F: Files>(files: &F, identity: &Identity) -> Result<(), FileError> {
    for place in PLACES.iter().rev() {
        replace(files, "", place, &identity.encode())?;
    }
    Ok(())
}

fn read_copies<F: Files>(files: &F) -> Result<[Copy; 2], StoreError> {
    Ok([read_copy(files, PLACES[0])?, read_copy(files, PLACES[1])?])
}

fn read_copy<F: Files>(files: &F, place: &str) -> Result<Copy, StoreError> {
    let Some(sealed) = read_whole(files, place, SEALED_BYTES_MAX)? else { return Ok(Copy::Missing) };
    match unseal(MAGIC, &sealed).map(Identity::decode) {
        Ok(Ok(identity)) => Ok(Copy::Whole(identity)),
        Ok(Err(_)) | Err(Broken::Damaged) => Ok(Copy::Damaged),
        Err(Broken::OtherFormat(found)) => Err(StoreError::OtherFormat { what: WHAT, found, known: FORMAT }),
    }
}

#[cfg(test)]
mod tests;
