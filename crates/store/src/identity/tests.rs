//! Tests that one intact copy is enough, and that a lost disk is recognised reliably.

use base::codec::testing::check_golden;

use super::*;
use crate::memory::MemoryDisk;
use crate::testing::{crash_everywhere, identity};

#[test]
fn intact_copy_repairs_other() {
    for place in PLACES {
        let disk = MemoryDisk::new();
        write(&disk, &identity()).unwrap();
        assert!(disk.flip_bit(place, 30, 1));
        assert_eq!(open(&disk).unwrap(), (identity(), true));
        assert_eq!(open(&disk).unwrap(), (identity(), false), "the copy was repaired");
        disk.remove(place).unwrap();
        assert_eq!(open(&disk).unwrap(), (identity(), true));
    }
}

#[test]
fn distinguishes_missing_and_damaged() {
    let disk = MemoryDisk::new();
    assert_eq!(open(&disk), Err(StoreError::NotFormatted));
    write(&disk, &identity()).unwrap();
    for place in PLACES {
        disk.flip_bit(place, 30, 1);
    }
    assert_eq!(open(&disk), Err(StoreError::Lost { what: WHAT }));
    disk.remove(PLACES[0]).unwrap();
    assert_eq!(open(&disk), Err(StoreError::Lost { what: WHAT }), "damage is not a blank disk");
}

#[test]
fn identity_write_is_atomic() {
    crash_everywhere(
        MemoryDisk::new,
        |disk| write(disk, &identity()),
        |disk| assert!(matches!(open(disk), Err(StoreError::NotFormatted)) || open(disk).unwrap().0 == identity()),
    );
}

#[test]
fn golden_identities() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/identity/golden.txt");
    let hosts = vec![Host { member: identity().members[0], peer: "host:1".into() }];
    let joined = Identity { members: Vec::new(), hosts, ..identity() };
    let content = |identity: &Identity| unseal(MAGIC, &identity.encode().into()).unwrap();
    check_golden(path, &[identity(), joined], content, Identity::decode);
}
