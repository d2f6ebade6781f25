//! Whose disk this is: written once when the directory is formatted, read at every start before anything else, so that
//! an empty or foreign disk under a known name is known for what it is (guarantee 6).
//!
//! Two copies, each put in place whole; one whole copy is enough, and mends the other.

use base::codec::{DecodeError, Reader, Writer};
use base::{Incarnation, Member, NodeId, UniverseId};
use bytes::Bytes;

use crate::FORMAT;
use crate::error::StoreError;
use crate::files::{FileError, Files, read_whole, replace};
use crate::sealed::{Broken, SEALED_BYTES_MAX, seal, unseal};

const MAGIC: [u8; 8] = *b"loggosID";
const WHAT: &str = "identity";

/// The places of the two copies. The one that is looked for first is written last.
pub const PLACES: [&str; 2] = ["identity", "identity.copy"];

/// Whose data a directory holds.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    /// The universe.
    pub universe: UniverseId,
    /// The node.
    pub node: NodeId,
    /// The disk, drawn when it was formatted.
    pub incarnation: Incarnation,
    /// Every node of the universe at its formation, this one among them; nobody if this one joined later.
    pub members: Vec<Member>,
    /// The nodes of the universe when this one joined, itself among them; nobody if it was there from the beginning.
    pub hosts: Vec<Host>,
}

/// A node of the universe that another one joined.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Host {
    /// The node and its disk.
    pub member: Member,
    /// Where other nodes reach it, as `address:port`.
    pub peer: String,
}

/// The part of an identity that every frame and file carries, so that those of another node or of an earlier life of
/// this one are never taken for ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Owner {
    /// The universe.
    pub universe: UniverseId,
    /// The node.
    pub node: NodeId,
    /// The disk.
    pub incarnation: Incarnation,
}

impl Owner {
    /// Bytes of an encoded owner.
    pub(crate) const BYTES: usize = 28;

    pub(crate) fn encode(&self, out: &mut Writer) {
        out.u128(self.universe.0);
        out.u32(self.node.0);
        out.u64(self.incarnation.0);
    }

    pub(crate) fn decode(input: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Self {
            universe: UniverseId(input.u128()?),
            node: NodeId(input.u32()?),
            incarnation: Incarnation(input.u64()?),
        })
    }
}

impl Identity {
    /// What every frame and file of this disk carries.
    #[must_use]
    pub fn owner(&self) -> Owner {
        Owner { universe: self.universe, node: self.node, incarnation: self.incarnation }
    }

    fn encode(&self) -> Vec<u8> {
        let mut out = Writer::new();
        self.owner().encode(&mut out);
        out.u32(u32::try_from(self.members.len()).expect("a universe has few nodes"));
        self.members.iter().for_each(|member| encode_member(*member, &mut out));
        out.u32(u32::try_from(self.hosts.len()).expect("a universe has few nodes"));
        for Host { member, peer } in &self.hosts {
            encode_member(*member, &mut out);
            out.bytes(peer.as_bytes());
        }
        seal(MAGIC, out.as_slice())
    }

    fn decode(content: Bytes) -> Result<Self, DecodeError> {
        let mut input = Reader::new(content);
        let Owner { universe, node, incarnation } = Owner::decode(&mut input)?;
        let count = input.count(12)?;
        let mut members = Vec::with_capacity(count);
        for _ in 0..count {
            members.push(decode_member(&mut input)?);
        }
        let count = input.count(16)?;
        let mut hosts = Vec::with_capacity(count);
        for _ in 0..count {
            let (member, peer) = (decode_member(&mut input)?, input.bytes()?);
            let peer = String::from_utf8(peer.to_vec()).map_err(|_| DecodeError::Invalid { what: "address" })?;
            hosts.push(Host { member, peer });
        }
        input.end()?;
        Ok(Self { universe, node, incarnation, members, hosts })
    }

    /// Every node that this one knew when its disk became the universe's.
    pub fn known(&self) -> impl Iterator<Item = Member> + '_ {
        self.members.iter().copied().chain(self.hosts.iter().map(|host| host.member))
    }
}

fn encode_member(member: Member, out: &mut Writer) {
    out.u32(member.node.0);
    out.u64(member.incarnation.0);
}

fn decode_member(input: &mut Reader) -> Result<Member, DecodeError> {
    Ok(Member { node: NodeId(input.u32()?), incarnation: Incarnation(input.u64()?) })
}

/// One copy, as it was found.
enum Copy {
    Missing,
    Damaged,
    Whole(Identity),
}

/// Reads the identity, without changing anything; nothing when neither copy exists.
///
/// # Errors
/// When copies exist and none is whole, when one is of another format, or when two whole ones differ.
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

/// Reads the identity, and writes anew the copy that is missing or damaged. Says whether it had to.
///
/// # Errors
/// As [`read`], and [`StoreError::NotFormatted`] when neither copy exists.
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

/// Writes both copies, forced.
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
