//! Access control lists: the permissions of clients on a node.
//!
//! A connection has identities: its address from the beginning, others by `auth` requests. A node's ACL grants
//! permissions to identities; it is not inherited. The tree decides which permission an operation
//! needs on which node.

use core::net::IpAddr;
use std::collections::BTreeSet;
use std::sync::Arc;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;

use crate::ErrorCode;
use crate::jute::{AclRecord, IdRecord, Sequence};
use crate::limits::ACL_BYTES_MAX;

mod ip;
mod sha1;
#[cfg(test)]
mod tests;

/// Permissions, as bits.
#[expect(missing_docs, reason = "ZooKeeper's own names")]
pub mod perms {
    pub const READ: i32 = 1;
    pub const WRITE: i32 = 2;
    pub const CREATE: i32 = 4;
    pub const DELETE: i32 = 8;
    pub const ADMIN: i32 = 16;
    pub const ALL: i32 = 31;
}

/// An identity within an authentication scheme.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Id {
    /// `world`, `digest`, `ip` or `super`.
    pub scheme: Box<str>,
    /// The identity; its format depends on the scheme.
    pub id: Box<str>,
}

/// Permissions of an identity.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Acl {
    /// Bits of [`perms`]. ZooKeeper keeps other bits as well.
    pub perms: i32,
    /// The identity that has them.
    pub id: Id,
}

/// A node's ACL, shared by all nodes that have the same.
pub type AclList = Arc<[Acl]>;

impl Id {
    #[must_use]
    pub fn new(scheme: &str, id: &str) -> Self {
        Self { scheme: scheme.into(), id: id.into() }
    }

    /// The identity of every connection from an address, written as in Java: IPv6 addresses without compression.
    #[must_use]
    pub fn of_address(address: IpAddr) -> Self {
        let id = match address.to_canonical() {
            IpAddr::V4(address) => address.to_string(),
            IpAddr::V6(address) => address.segments().map(|segment| format!("{segment:x}")).join(":"),
        };
        Self::new("ip", &id)
    }

    /// The user name that `whoAmI` returns: for a digest the part before the colon, otherwise the whole identity.
    #[must_use]
    pub fn user(&self) -> &str {
        match &*self.scheme {
            "digest" => self.id.split(':').next().unwrap_or_default(),
            "super" => "",
            _ => &self.id,
        }
    }

    #[must_use]
    pub fn record(&self) -> IdRecord<'_> {
        IdRecord { scheme: Some(&self.scheme), id: Some(&self.id) }
    }

    /// Whether an ACL entry for `granted` applies to this identity.
    fn is_meant_by(&self, granted: &Self) -> bool {
        self.scheme == granted.scheme
            && match &*self.scheme {
                "digest" => self.id == granted.id,
                "ip" => ip::matches(&self.id, &granted.id),
                _ => false,
            }
    }
}

impl Acl {
    /// All permissions for all clients.
    #[must_use]
    pub fn world(perms: i32) -> Self {
        Self { perms, id: Id::new("world", "anyone") }
    }

    /// Approximate size in memory, in bytes.
    fn size(&self) -> usize {
        size_of::<Self>() + self.id.scheme.len() + self.id.id.len()
    }

    #[must_use]
    pub fn record(&self) -> AclRecord<'_> {
        AclRecord { perms: self.perms, id: self.id.record() }
    }
}

/// Whether `ids` have one of the permissions `perm`. An empty ACL permits everything.
#[must_use]
pub fn permits(acl: &[Acl], perm: i32, ids: &[Id]) -> bool {
    let is_super = || ids.iter().any(|id| &*id.scheme == "super");
    let is_granted = |granted: &Acl| {
        granted.perms & perm != 0
            && (granted.id == Id::new("world", "anyone") || ids.iter().any(|id| id.is_meant_by(&granted.id)))
    };
    acl.is_empty() || acl.iter().any(is_granted) || is_super()
}

/// [`permits`] as a result.
pub(crate) fn check(acl: &[Acl], perm: i32, ids: &[Id]) -> Result<(), ErrorCode> {
    if permits(acl, perm, ids) { Ok(()) } else { Err(ErrorCode::NoAuth) }
}

/// Resolves the ACL of a request: removes duplicates and replaces `auth` by the client's authenticated identities.
///
/// # Errors
/// When it is empty or exceeds [`ACL_BYTES_MAX`], or an identity is not one of its scheme.
pub fn resolve(requested: Sequence<'_, AclRecord<'_>>, ids: &[Id]) -> Result<Vec<Acl>, ErrorCode> {
    let mut seen = BTreeSet::new();
    let (mut resolved, mut bytes) = (Vec::new(), 0);
    for record in requested.iter() {
        let (Some(scheme), id) = (record.id.scheme, record.id.id.unwrap_or_default()) else {
            return Err(ErrorCode::InvalidAcl);
        };
        if !seen.insert((record.perms, scheme, id)) {
            continue;
        }
        let before = resolved.len();
        let mut grant = |id| resolved.push(Acl { perms: record.perms, id });
        if scheme == "auth" {
            ids.iter().filter(|id| is_proven(id)).cloned().for_each(grant);
        } else {
            let id = Id::new(scheme, id);
            if is_valid(&id) {
                grant(id);
            }
        }
        bytes += resolved[before..].iter().map(Acl::size).sum::<usize>();
        if resolved.len() == before || bytes > ACL_BYTES_MAX {
            return Err(ErrorCode::InvalidAcl);
        }
    }
    if resolved.is_empty() { Err(ErrorCode::InvalidAcl) } else { Ok(resolved) }
}

/// Whether this identity was authenticated, so that `auth` expands to it. An address is not; `super` comes with a
/// digest.
fn is_proven(id: &Id) -> bool {
    &*id.scheme == "digest"
}

/// Like ZooKeeper without `sasl` and `x509` providers: no client can have such an identity.
fn is_valid(id: &Id) -> bool {
    match &*id.scheme {
        "world" => &*id.id == "anyone",
        "digest" => has_two_parts(&id.id),
        "ip" => ip::is_valid(&id.id),
        _ => false,
    }
}

/// Splits like Java: trailing empty parts do not count.
fn has_two_parts(digest: &str) -> bool {
    digest.trim_end_matches(':').split(':').count() == 2
}

/// The ACL as shown to a client without the admin permission: password digests are masked.
#[must_use]
pub fn masked(acl: &Acl) -> Acl {
    let mut masked = acl.clone();
    if &*acl.id.scheme == "digest" {
        let user = acl.id.id.split(':').next().unwrap_or_default();
        if user.len() < acl.id.id.len() {
            masked.id.id = format!("{user}:x").into();
        }
    }
    masked
}

/// The identities that an `auth` request adds to a connection; none if it is refused. `super_digest` is the digest of
/// the administrator's name and password.
#[must_use]
pub fn authenticate(scheme: &str, auth: &[u8], address: IpAddr, super_digest: Option<&str>) -> Option<Vec<Id>> {
    match scheme {
        "digest" => {
            let digest = digest(&String::from_utf8_lossy(auth));
            let is_super = super_digest == Some(digest.as_str());
            let ids = is_super.then(|| Id::new("super", "")).into_iter();
            Some(ids.chain([Id::new("digest", &digest)]).collect())
        }
        "ip" => Some(vec![Id::of_address(address)]),
        _ => None,
    }
}

/// The identity in scheme `digest` of `user:password`: `user:` and the SHA-1 of the whole input, in base64.
#[must_use]
pub fn digest(user_and_password: &str) -> String {
    let user = user_and_password.split(':').next().unwrap_or_default();
    format!("{user}:{}", BASE64_STANDARD.encode(sha1::sha1(user_and_password.as_bytes())))
}
