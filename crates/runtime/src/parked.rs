//! Messages that wait for the disk. Each message names what must be forced before it is sent, and waits for nothing
//! else: a message that needs the log may overtake an earlier one that needs a manifest.

use std::collections::BTreeMap;

use base::{Monotonic, NodeId};
use node::contract::{Durable, ManifestId, WriteId};
use node::message::Message;

/// A message to send.
#[derive(Debug)]
pub(crate) struct Parcel {
    pub(crate) to: NodeId,
    pub(crate) message: Message,
    pub(crate) valid_until: Option<Monotonic>,
}

/// The parked messages, and the durable part of log and manifest.
#[derive(Debug, Default)]
pub(crate) struct Parked {
    forced: Durable,
    /// Messages that wait only for the log, by record and arrival number.
    by_record: BTreeMap<(WriteId, u64), Parcel>,
    /// Messages that wait for a manifest, and possibly for the log too: promises, which are few.
    by_manifest: BTreeMap<(ManifestId, u64), (WriteId, Parcel)>,
    count: u64,
}

impl Parked {
    /// Returns the parcel if it need not wait, and parks it otherwise.
    pub(crate) fn park(&mut self, parcel: Parcel, after: Durable) -> Option<Parcel> {
        self.count += 1;
        if after.manifest > self.forced.manifest {
            self.by_manifest.insert((after.manifest, self.count), (after.log, parcel));
        } else if after.log > self.forced.log {
            self.by_record.insert((after.log, self.count), parcel);
        } else {
            return Some(parcel);
        }
        None
    }

    /// The log is forced through this record: returns the messages that waited only for that, in order.
    pub(crate) fn log_forced(&mut self, through: WriteId) -> impl Iterator<Item = Parcel> + use<> {
        self.forced.log = self.forced.log.max(through);
        let later = self.by_record.split_off(&(WriteId(self.forced.log.0 + 1), 0));
        std::mem::replace(&mut self.by_record, later).into_values()
    }

    /// The manifest is forced through this one: returns the messages that no longer wait, in order.
    pub(crate) fn manifest_forced(&mut self, through: ManifestId) -> Vec<Parcel> {
        self.forced.manifest = self.forced.manifest.max(through);
        let later = self.by_manifest.split_off(&(ManifestId(self.forced.manifest.0 + 1), 0));
        let ready = std::mem::replace(&mut self.by_manifest, later);
        let mut leaving = Vec::new();
        for ((_, number), (log, parcel)) in ready {
            if log > self.forced.log {
                self.by_record.insert((log, number), parcel);
            } else {
                leaving.push(parcel);
            }
        }
        leaving
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parcel(to: u32) -> Parcel {
        let (request, cohort) = (0, base::CohortId::CATALOG);
        Parcel { to: NodeId(to), message: Message::NotLeader { request, cohort, leader: None }, valid_until: None }
    }

    fn after(log: u64, manifest: u64) -> Durable {
        Durable { log: WriteId(log), manifest: ManifestId(manifest) }
    }

    fn receivers(parcels: impl IntoIterator<Item = Parcel>) -> Vec<u32> {
        parcels.into_iter().map(|parcel| parcel.to.0).collect()
    }

    #[test]
    fn parcels_wait_for_their_durability() {
        let mut parked = Parked::default();
        assert!(parked.park(parcel(1), after(0, 0)).is_some());
        assert!(parked.park(parcel(2), after(5, 0)).is_none());
        assert!(parked.park(parcel(3), after(3, 0)).is_none());
        assert!(parked.park(parcel(4), after(9, 1)).is_none());
        assert!(parked.park(parcel(5), after(0, 1)).is_none());
        assert_eq!(receivers(parked.log_forced(WriteId(4))), [3]);
        assert_eq!(receivers(parked.log_forced(WriteId(5))), [2]);
        assert_eq!(receivers(parked.manifest_forced(ManifestId(1))), [5]);
        assert_eq!(receivers(parked.log_forced(WriteId(8))), [] as [u32; 0]);
        assert_eq!(receivers(parked.log_forced(WriteId(9))), [4]);
        assert!(parked.park(parcel(6), after(9, 1)).is_some());
    }
}
