//! Tests that the simulated disk loses exactly the data that a real one may lose.

use super::*;

fn content(disk: &MemoryDisk, path: &str) -> Vec<u8> {
    crate::files::read_whole(disk, path, u64::MAX).unwrap().unwrap_or_default().to_vec()
}

fn disk_with(path: &str, content: &[u8]) -> (MemoryDisk, MemoryFile) {
    let disk = MemoryDisk::new();
    let file = disk.create(path, OpenOptions::BUFFERED).unwrap();
    file.write_at(0, content).unwrap();
    file.sync().unwrap();
    disk.sync_dir("").unwrap();
    (disk, file)
}

#[test]
fn power_loss_tears_unsynced_sectors() {
    let mut outcomes = BTreeSet::new();
    for seed in 0..64 {
        let (disk, file) = disk_with("file", &[1; 4 * SECTOR_BYTES]);
        file.write_at(SECTOR_BYTES as u64, &[2; 2 * SECTOR_BYTES]).unwrap();
        disk.crash(&mut SplitMix64::new(seed));
        assert_eq!(file.len().unwrap_err().kind, FileErrorKind::Crashed, "handles die");
        let content = content(&disk, "file");
        assert!(content[..SECTOR_BYTES].iter().chain(&content[3 * SECTOR_BYTES..]).all(|byte| *byte == 1));
        outcomes.insert((content[SECTOR_BYTES], content[2 * SECTOR_BYTES]));
    }
    assert_eq!(outcomes.len(), 4, "all four outcomes happen");
}

#[test]
fn process_kill_keeps_writes() {
    let (disk, file) = disk_with("file", b"old");
    file.write_at(0, b"new").unwrap();
    disk.kill();
    assert_eq!(content(&disk, "file"), b"new");
}

#[test]
fn directory_operations_persist_in_order() {
    let mut outcomes = BTreeSet::new();
    for seed in 0..64 {
        let (disk, _) = disk_with("a", b"a");
        disk.rename("a", "b").unwrap();
        disk.create("c", OpenOptions::BUFFERED).unwrap();
        disk.remove("b").unwrap();
        disk.crash(&mut SplitMix64::new(seed));
        outcomes.insert(disk.paths().concat());
    }
    assert_eq!(outcomes, ["a", "b", "bc", "c"].map(String::from).into());
}

#[test]
fn failed_fsync_drops_writes_and_next_succeeds() {
    let mut random = SplitMix64::new(5);
    let mut losses = 0;
    for _ in 0..32 {
        let (disk, file) = disk_with("file", b"old");
        file.write_at(0, b"new").unwrap();
        disk.fail_syncs(1, &mut random);
        assert_eq!(file.sync().unwrap_err().kind, FileErrorKind::Other);
        file.sync().unwrap();
        disk.crash(&mut random);
        losses += u32::from(content(&disk, "file") == b"old");
    }
    assert!((1..32).contains(&losses));
}

#[test]
fn injected_crash_stops_all_operations() {
    let (disk, file) = disk_with("file", b"old");
    disk.crash_after_operations(2);
    file.write_at(0, b"new").unwrap();
    assert_eq!(file.write_at(0, b"odd").unwrap_err().kind, FileErrorKind::Crashed);
    assert_eq!(file.sync().unwrap_err().kind, FileErrorKind::Crashed);
    disk.kill();
    assert_eq!(content(&disk, "file"), b"new");
}

#[test]
fn full_disk_rejects_growth() {
    let (disk, file) = disk_with("file", b"1234");
    disk.set_capacity(Some(6));
    file.write_at(2, b"3456").unwrap();
    assert_eq!(file.write_at(6, b"7").unwrap_err().kind, FileErrorKind::NoSpace);
    file.write_at(0, b"123456").unwrap();
    assert_eq!(disk.bytes_used(), 6);
}
