//! A snapshot's chunks, one at a time: what was given last is remembered by name, so that nothing is made before it is
//! asked for, and a transfer that takes minutes holds one chunk.

use base::NodeId;
use base::canary::{Bug, planted};
use bytes::Bytes;
use std::ops::Bound::{Excluded, Unbounded};

use super::pack::{Record, pack};
use super::{Content, Snapshot, format};
use crate::request::SessionId;

/// The chunks of a snapshot, from the header to the end that seals them.
#[derive(Clone, Debug)]
pub struct Chunks {
    pub(super) snapshot: Snapshot,
    pub(super) next: Place,
    /// Chunks given so far, and the checksum of them all.
    pub(super) count: u64,
    pub(super) checksum: u32,
}

/// What comes next: records of a kind, after the one that was given last.
#[derive(Clone, Debug)]
pub(super) enum Place {
    Header,
    Nodes(Option<NodeId>),
    Tables(Option<String>),
    Logs(Option<String>),
    Sessions(Option<SessionId>),
    End,
    Nothing,
}

impl Chunks {
    /// Whether all have been given.
    #[must_use]
    pub fn is_at_end(&self) -> bool {
        matches!(self.next, Place::Nothing)
    }

    /// The next chunk of a kind and the place behind it; none, and the next kind, if there is no more of it.
    fn advance(&self) -> (Option<Bytes>, Place) {
        let header = || Some(self.snapshot.header());
        match (&self.snapshot.content, &self.next) {
            (Content::Catalogue { .. }, Place::Header) => (header(), Place::Nodes(None)),
            (Content::Catalogue { nodes, .. }, Place::Nodes(last)) => {
                let rest = nodes.range((last.map_or(Unbounded, Excluded), Unbounded)).map(|(_, node)| node);
                packed(format::NODES, rest, |node| Place::Nodes(Some(node.member.node)), Place::Tables(None))
            }
            (Content::Catalogue { tables, .. }, Place::Tables(last)) => {
                let rest = tables.range((last.clone().map_or(Unbounded, Excluded), Unbounded));
                packed(format::TABLES, rest, |(name, _)| Place::Tables(Some(name.clone())), Place::Logs(None))
            }
            (Content::Catalogue { logs, .. }, Place::Logs(last)) => {
                let rest = logs.range((last.clone().map_or(Unbounded, Excluded), Unbounded));
                packed(format::LOGS, rest, |(name, _)| Place::Logs(Some(name.clone())), Place::End)
            }
            (Content::Unit(_), Place::Header) => (header(), Place::End),
            (Content::Tablet { .. }, Place::Header) => (header(), Place::Sessions(None)),
            (Content::Tablet { sessions, .. }, Place::Sessions(last)) => {
                let with_outcomes = !planted(Bug::DedupeNotInCheckpoint);
                let rest = sessions.range((last.map_or(Unbounded, Excluded), Unbounded));
                let rest = rest.map(move |(id, session)| (*id, &**session, with_outcomes));
                packed(format::SESSIONS, rest, |(id, ..)| Place::Sessions(Some(id)), Place::End)
            }
            (_, Place::End) => (Some(format::end(self.count, self.checksum)), Place::Nothing),
            _ => (None, Place::Nothing),
        }
    }
}

/// A chunk of the records at hand and the place after the last of them; or, if there are none, the next kind's.
fn packed<R: Record>(
    tag: u8,
    records: impl Iterator<Item = R>,
    after: impl Fn(R) -> Place,
    next_kind: Place,
) -> (Option<Bytes>, Place) {
    match pack(tag, records) {
        Some((chunk, last)) => (Some(chunk), after(last)),
        None => (None, next_kind),
    }
}

impl Iterator for Chunks {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        while !self.is_at_end() {
            let (chunk, next) = self.advance();
            self.next = next;
            if let Some(chunk) = chunk {
                self.count += 1;
                self.checksum = base::checksum_append(self.checksum, &chunk);
                return Some(chunk);
            }
        }
        None
    }
}
