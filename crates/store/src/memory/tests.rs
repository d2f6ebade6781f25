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
fn power_loss_keeps_or_loses_each_sector_that_was_not_forced() {
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
fn a_killed_process_loses_nothing_that_it_wrote() {
    let (disk, file) = disk_with("file", b"old");
    file.write_at(0, b"new").unwrap();
    disk.kill();
    assert_eq!(content(&disk, "file"), b"new");
}

#[test]
fn directory_operations_are_kept_from_the_oldest_on() {
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
fn a_failed_force_loses_what_it_was_to_force_and_the_next_says_nothing() {
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
fn a_planted_crash_stops_everything_at_its_operation() {
    let (disk, file) = disk_with("file", b"old");
    disk.crash_after_operations(2);
    file.write_at(0, b"new").unwrap();
    assert_eq!(file.write_at(0, b"odd").unwrap_err().kind, FileErrorKind::Crashed);
    assert_eq!(file.sync().unwrap_err().kind, FileErrorKind::Crashed);
    disk.kill();
    assert_eq!(content(&disk, "file"), b"new");
}

#[test]
fn a_full_disk_refuses_to_grow() {
    let (disk, file) = disk_with("file", b"1234");
    disk.set_capacity(Some(6));
    file.write_at(2, b"3456").unwrap();
    assert_eq!(file.write_at(6, b"7").unwrap_err().kind, FileErrorKind::NoSpace);
    file.write_at(0, b"123456").unwrap();
    assert_eq!(disk.bytes_used(), 6);
}
