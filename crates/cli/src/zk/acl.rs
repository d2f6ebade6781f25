//! ACLs as text, in the notation of ZooKeeper's shell: `scheme:id:perms`, separated by commas.

use coordination::acl::perms;
use coordination::jute::{AclRecord, IdRecord};

/// The permissions in the order in which they are printed.
const PERMISSIONS: [(char, i32); 5] =
    [('c', perms::CREATE), ('d', perms::DELETE), ('r', perms::READ), ('w', perms::WRITE), ('a', perms::ADMIN)];

/// An entry of an ACL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    scheme: String,
    id: String,
    perms: i32,
}

/// An ACL as an argument of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AclText(Vec<Entry>);

impl AclText {
    /// The entries as records of a request.
    pub(super) fn records(&self) -> Vec<AclRecord<'_>> {
        let records = self.0.iter().map(|entry| AclRecord {
            perms: entry.perms,
            id: IdRecord { scheme: Some(&entry.scheme), id: Some(&entry.id) },
        });
        records.collect()
    }
}

impl std::str::FromStr for AclText {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text.split(',').map(|entry| parse(entry.trim())).collect::<Result<_, _>>().map(Self)
    }
}

/// The id is between the first colon and the last one: that of scheme `digest` contains a colon.
fn parse(text: &str) -> Result<Entry, String> {
    let parts = text.split_once(':').and_then(|(scheme, rest)| Some((scheme, rest.rsplit_once(':')?)));
    let (scheme, (id, letters)) =
        parts.ok_or_else(|| format!("{text:?}: an entry is SCHEME:ID:PERMS, such as world:anyone:cdrwa"))?;
    let mut perms = 0;
    for letter in letters.chars() {
        let known = PERMISSIONS.iter().find(|(name, _)| *name == letter);
        perms |= known.ok_or_else(|| format!("{text:?}: permissions are letters of cdrwa"))?.1;
    }
    if scheme.is_empty() || perms == 0 {
        return Err(format!("{text:?}: the scheme and the permissions must not be empty"));
    }
    Ok(Entry { scheme: scheme.to_owned(), id: id.to_owned(), perms })
}

/// An entry of a reply as text.
pub(super) fn shown(entry: &AclRecord<'_>) -> String {
    let letters: String =
        PERMISSIONS.iter().filter(|(_, bit)| entry.perms & bit != 0).map(|(letter, _)| *letter).collect();
    format!("{}:{}:{letters}", entry.id.scheme.unwrap_or_default(), entry.id.id.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acl_text_round_trip() {
        let text = "world:anyone:r,digest:ann:aGFzaA==:cdrwa,ip:10.0.0.0/8:rw,auth::a,ip:::1:d";
        let acl: AclText = text.parse().unwrap();
        assert_eq!(acl.records().iter().map(shown).collect::<Vec<_>>().join(","), text);
        assert_eq!("world:anyone:awrdc".parse::<AclText>().unwrap().records()[0].perms, 31);
        for text in ["", "world", "world:anyone", "world:anyone:", "world:anyone:x", ":a:r", "world:anyone:r,"] {
            assert!(text.parse::<AclText>().is_err(), "{text}");
        }
    }
}
