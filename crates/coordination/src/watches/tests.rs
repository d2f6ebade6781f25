use super::*;
use EventType::{ChildrenChanged, Created, DataChanged, Deleted};

fn notified(watches: &mut Watches<u32>, kind: EventType, path: &str) -> Vec<u32> {
    watches.trigger(kind, path).into_iter().collect()
}

#[test]
fn standard_watch_fires_once() {
    let mut watches = Watches::default();
    watches.add(WatchTarget::Data, "/a", 1);
    watches.add(WatchTarget::Data, "/a", 1);
    watches.add(WatchTarget::Data, "/a", 2);
    watches.add(WatchTarget::Child, "/a", 3);
    assert_eq!(watches.count(), 3);
    assert_eq!(notified(&mut watches, ChildrenChanged, "/a"), [3]);
    assert_eq!(notified(&mut watches, Created, "/a"), [1, 2]);
    assert_eq!(notified(&mut watches, DataChanged, "/a"), [0; 0]);
    assert_eq!(watches.count() + watches.by_connection().count(), 0);
}

/// A connection with both a data watch and a child watch gets one event.
#[test]
fn deletion_fires_both_tables_once() {
    let mut watches = Watches::default();
    watches.add(WatchTarget::Data, "/a", 1);
    watches.add(WatchTarget::Child, "/a", 1);
    watches.add(WatchTarget::Child, "/a", 2);
    watches.add(WatchTarget::Child, "/", 3);
    assert_eq!(notified(&mut watches, Deleted, "/a"), [1, 2]);
    assert_eq!(notified(&mut watches, ChildrenChanged, "/"), [3]);
    assert_eq!(watches.count(), 0);
}

#[test]
fn persistent_watch_stays() {
    let mut watches = Watches::default();
    watches.add_persistent("/a", 1, false);
    watches.add(WatchTarget::Data, "/a", 1);
    for kind in [Created, DataChanged, ChildrenChanged, Deleted, Created] {
        assert_eq!(notified(&mut watches, kind, "/a"), [1]);
        assert_eq!(notified(&mut watches, kind, "/a/b"), [0; 0]);
    }
    assert!(!watches.contains("/a", WatcherType::Data, 1));
    assert!(watches.contains("/a", WatcherType::Persistent, 1));
}

#[test]
fn recursive_watch_omits_child_events() {
    let mut watches = Watches::default();
    watches.add_persistent("/a", 1, true);
    watches.add_persistent("/", 2, true);
    for (path, expected) in [("/a", &[1, 2][..]), ("/a/b/c", &[1, 2]), ("/ab", &[2]), ("/", &[2])] {
        for kind in [Created, DataChanged, Deleted] {
            assert_eq!(notified(&mut watches, kind, path), expected, "{path}");
        }
        assert_eq!(notified(&mut watches, ChildrenChanged, path), [0; 0]);
    }
    assert!(watches.remove("/", WatcherType::PersistentRecursive, 2));
    assert!(watches.remove("/a", WatcherType::Any, 1));
    assert_eq!((watches.data.recursive, watches.count()), (0, 0));
}

#[test]
fn checks_and_removes_watches_by_type() {
    let mut watches = Watches::default();
    watches.add(WatchTarget::Data, "/a", 1);
    watches.add(WatchTarget::Child, "/a", 1);
    watches.add_persistent("/a", 1, false);
    for kind in [WatcherType::Data, WatcherType::Children, WatcherType::Persistent] {
        assert!(watches.contains("/a", kind, 1));
        assert!(!watches.contains("/a", kind, 2) && !watches.contains("/b", kind, 1));
        assert!(watches.remove("/a", kind, 1));
        assert!(!watches.contains("/a", kind, 1));
        assert!(!watches.remove("/a", kind, 1));
    }
    assert!(!watches.contains("/a", WatcherType::Any, 1));
    assert!(!watches.remove("/a", WatcherType::Any, 1));
    assert_eq!(watches.by_connection().count(), 0);
}

#[test]
fn disconnect_removes_watches() {
    let mut watches = Watches::default();
    for connection in [1, 2] {
        watches.add(WatchTarget::Data, "/a", connection);
        watches.add(WatchTarget::Child, "/b", connection);
        watches.add_persistent("/c", connection, true);
    }
    assert_eq!(watches.count(), 6);
    watches.remove_connection(1);
    assert_eq!(watches.count(), 3);
    assert_eq!(watches.data.recursive, 1);
    let left: Vec<(u32, Vec<&str>)> =
        watches.by_connection().map(|(watcher, paths)| (watcher, paths.collect())).collect();
    assert_eq!(left, [(2, vec!["/a", "/b", "/c"])]);
}

#[test]
fn path_bytes_counted_once_per_connection() {
    let mut watches = Watches::default();
    for connection in [1, 2] {
        watches.add(WatchTarget::Data, "/1234567", connection);
        watches.add(WatchTarget::Child, "/1234567", connection);
        watches.add_persistent("/1234567", connection, true);
    }
    watches.add(WatchTarget::Data, "/2", 1);
    assert_eq!(watches.path_bytes(), 18);
    watches.trigger(EventType::Deleted, "/2");
    assert!(!watches.remove("/none", WatcherType::Any, 1));
    assert_eq!(watches.path_bytes(), 16);
    assert!(watches.remove("/1234567", WatcherType::Any, 1));
    assert_eq!(watches.path_bytes(), 8);
    watches.trigger(EventType::Deleted, "/1234567");
    assert_eq!(watches.path_bytes(), 8);
    watches.remove_connection(2);
    assert_eq!((watches.path_bytes(), watches.count()), (0, 0));
}
