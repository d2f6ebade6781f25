//! Operations, their errors in order, and snapshots of a tree that changes.

use base::SplitMix64;
use base::codec::{Reader, Writer};

use super::*;
use crate::ErrorCode;
use crate::acl::AclList;
use crate::jute::{
    AclRecord, CheckVersion, Create, CreateKind, Delete, IdRecord, Operation, Operations, Sequence, SetAcl, SetData,
    Stat,
};

const OPEN: &[AclRecord<'static>] = &[record(31, "world", "anyone")];
const SESSION: i64 = 0x0100_0000_0000_0001;

const fn record(perms: i32, scheme: &'static str, id: &'static str) -> AclRecord<'static> {
    AclRecord { perms, id: IdRecord { scheme: Some(scheme), id: Some(id) } }
}

/// A tree with its zxid.
struct Bench {
    tree: Tree,
    zxid: i64,
    ids: Vec<Id>,
    events: Vec<(EventType, String)>,
}

type Outcome = Result<OperationResult, ErrorCode>;

impl Bench {
    fn new() -> Self {
        Self { tree: Tree::new(), zxid: 0, ids: vec![Id::new("ip", "10.0.0.1")], events: Vec::new() }
    }

    fn txn(&mut self) -> Txn {
        self.zxid += 1;
        Txn { zxid: self.zxid, time_ms: 1_000 + self.zxid }
    }

    fn record(&mut self, (outcome, events): (Outcome, Vec<TreeEvent>)) -> Outcome {
        self.events.extend(events.into_iter().map(|event| (event.kind, event.path.into())));
        outcome
    }

    fn create_with(&mut self, create: Create<'_>) -> Outcome {
        let txn = self.txn();
        let done = self.tree.create(&create, Author { session: SESSION, ids: &self.ids }, txn);
        self.record(done)
    }

    fn create(&mut self, path: &str, flags: i32) -> Outcome {
        self.create_with(create(path, flags))
    }

    fn delete(&mut self, path: &str, version: i32) -> Outcome {
        let txn = self.txn();
        let author = Author { session: SESSION, ids: &self.ids };
        let done = self.tree.delete(&Delete { path, version }, author, txn);
        self.record(done)
    }

    fn set(&mut self, path: &str, data: Option<&[u8]>, version: i32) -> Outcome {
        let txn = self.txn();
        let author = Author { session: SESSION, ids: &self.ids };
        let done = self.tree.set_data(&SetData { path, data, version }, author, txn);
        self.record(done)
    }

    fn set_acl(&mut self, path: &str, acl: &[AclRecord<'_>], version: i32) -> Result<Stat, ErrorCode> {
        let set = SetAcl { path, acl: Sequence::of(acl), version };
        self.tree.set_acl(&set, Author { session: SESSION, ids: &self.ids })
    }

    fn multi(&mut self, operations: &[Operation<'_>]) -> Vec<Result<OperationResult, MultiError>> {
        let txn = self.txn();
        let author = Author { session: SESSION, ids: &self.ids };
        let (results, events) = self.tree.multi(&Operations::of(operations), author, txn);
        self.events.extend(events.into_iter().map(|event| (event.kind, event.path.into())));
        results
    }

    fn stat(&self, path: &str) -> Stat {
        self.tree.get(path).unwrap().stat()
    }
}

fn create(path: &str, flags: i32) -> Create<'_> {
    Create { kind: CreateKind::Create, path, data: Some(b"d"), acl: Sequence::of(OPEN), flags, ttl_ms: None }
}

fn created(path: &str) -> Outcome {
    Ok(OperationResult::Create { path: path.into() })
}

/// The visible content of a node.
type NodeDump = (String, Option<Vec<u8>>, AclList, Stat, Kind);

/// The visible content of a tree.
fn dump(tree: &Tree) -> Vec<NodeDump> {
    let mut dump = Vec::new();
    let mut pending = vec!["/".to_owned()];
    while let Some(path) = pending.pop() {
        let node = tree.get(&path).unwrap();
        pending.extend(node.children().map(|name| path::join(&path, name)));
        dump.push((path, node.data().map(Into::into), node.acl().clone(), node.stat(), node.kind()));
    }
    dump
}

fn snapshot(tree: &mut Tree) -> Vec<u8> {
    let mut out = Writer::new();
    tree.begin_snapshot();
    while tree.write_next(&mut out) {}
    out.finish().to_vec()
}

fn restore(bytes: Vec<u8>) -> Tree {
    let (mut reader, mut builder) = (Reader::new(bytes.into()), TreeBuilder::default());
    while reader.left() > 0 {
        builder.read_next(&mut reader).unwrap();
    }
    builder.finish().unwrap()
}

/// Matches a new ZooKeeper ensemble.
#[test]
fn initial_nodes() {
    let bench = Bench::new();
    assert_eq!(bench.stat("/"), Stat { cversion: -1, num_children: 1, ..Stat::default() });
    assert_eq!(bench.stat("/zookeeper"), Stat { cversion: -2, num_children: 2, ..Stat::default() });
    assert_eq!(bench.stat("/zookeeper/quota"), Stat::default());
    assert_eq!(bench.stat("/zookeeper/config"), Stat { aversion: -1, ..Stat::default() });
    assert_eq!(bench.tree.get("").unwrap().children().collect::<Vec<_>>(), ["zookeeper"]);
    assert_eq!(bench.tree.descendants("/"), Some(3));
    assert_eq!(bench.tree.node_count(), 4);
}

#[test]
fn stat_tracks_changes() {
    let mut bench = Bench::new();
    assert_eq!(bench.create("/a", 0), created("/a"));
    let fresh = Stat { czxid: 1, mzxid: 1, ctime: 1_001, mtime: 1_001, data_length: 1, pzxid: 1, ..Stat::default() };
    assert_eq!(bench.stat("/a"), fresh);
    bench.create("/a/b", 0).unwrap();
    bench.create("/a/c", 0).unwrap();
    bench.delete("/a/b", 0).unwrap();
    assert_eq!(bench.stat("/a"), Stat { cversion: 3, num_children: 1, pzxid: 4, ..fresh });
    let set = bench.set("/a", Some(b"xyz"), 0);
    let stat = Stat { mzxid: 5, mtime: 1_005, version: 1, data_length: 3, ..bench.stat("/a") };
    assert_eq!(set, Ok(OperationResult::SetData(stat)));
    assert_eq!(bench.stat("/a"), stat);
    assert_eq!(bench.set_acl("/a", OPEN, 0), Ok(Stat { aversion: 1, ..stat }));
    let other = Create { kind: CreateKind::Create2, data: None, ..create("/n", 1) };
    let stat =
        Stat { czxid: 6, mzxid: 6, ctime: 1_006, mtime: 1_006, ephemeral_owner: SESSION, pzxid: 6, ..Stat::default() };
    assert_eq!(bench.create_with(other), Ok(OperationResult::Create2 { path: "/n".into(), stat }));
    assert_eq!(bench.tree.get("/n").unwrap().data(), None);
    bench.set("/n", Some(b""), -1).unwrap();
    assert_eq!(bench.tree.get("/n").unwrap().data(), Some(&b""[..]));
}

#[test]
fn create_error_precedence() {
    let mut bench = Bench::new();
    bench.create("/a", 0).unwrap();
    bench.create("/e", 1).unwrap();
    let none = Sequence::of(&[]);
    let with_ttl = |ttl| Create { kind: CreateKind::Ttl, ttl_ms: Some(ttl), ..create("/t", 5) };
    for (create, error) in [
        (Create { path: "relative", acl: none, ..create("", 9) }, ErrorCode::BadArguments),
        (create("/t", 5), ErrorCode::BadArguments),
        (with_ttl(0), ErrorCode::BadArguments),
        (with_ttl(TTL_MAX_MS + 1), ErrorCode::BadArguments),
        (Create { flags: 0, ..with_ttl(1) }, ErrorCode::BadArguments),
        (Create { acl: none, ..create("relative", 0) }, ErrorCode::BadArguments),
        (Create { acl: none, ..create("/none/b", 0) }, ErrorCode::InvalidAcl),
        (create("/none/b", 0), ErrorCode::NoNode),
        (create("/zookeeper/config/x/", 0), ErrorCode::NoNode),
        (create("/zookeeper/config/", 0), ErrorCode::NoAuth),
        (create("/zookeeper/config/x", 0), ErrorCode::NoAuth),
        (create("/a/", 0), ErrorCode::BadArguments),
        (create("/a/..", 0), ErrorCode::BadArguments),
        (create("/a", 0), ErrorCode::NodeExists),
        (create("/", 0), ErrorCode::NodeExists),
        (create("/e/f", 0), ErrorCode::NoChildrenForEphemerals),
    ] {
        assert_eq!(bench.create_with(create), Err(error), "{create:?}");
    }
}

#[test]
fn error_precedence_of_other_operations() {
    let mut bench = Bench::new();
    bench.create("/a", 0).unwrap();
    bench.create("/a/b", 0).unwrap();
    for special in path::SPECIAL {
        assert_eq!(bench.delete(special, 7), Err(ErrorCode::BadArguments));
    }
    assert_eq!(bench.delete("relative", -1), Err(ErrorCode::BadArguments));
    assert_eq!(bench.delete("/none/x", -1), Err(ErrorCode::NoNode));
    assert_eq!(bench.delete("/none", -1), Err(ErrorCode::NoNode));
    assert_eq!(bench.delete("/zookeeper/config/x", -1), Err(ErrorCode::NoAuth));
    assert_eq!(bench.delete("/a", 1), Err(ErrorCode::BadVersion));
    assert_eq!(bench.delete("/a", 0), Err(ErrorCode::NotEmpty));
    assert_eq!(bench.set("/a/", None, 7), Err(ErrorCode::BadArguments));
    assert_eq!(bench.set("/none", None, 7), Err(ErrorCode::NoNode));
    assert_eq!(bench.set("/zookeeper/config", None, 7), Err(ErrorCode::NoAuth));
    assert_eq!(bench.set("/a", None, 7), Err(ErrorCode::BadVersion));
    assert_eq!(bench.set_acl("/none/", &[], 7), Err(ErrorCode::BadArguments));
    assert_eq!(bench.set_acl("/none", &[], 7), Err(ErrorCode::InvalidAcl));
    assert_eq!(bench.set_acl("/none", OPEN, 7), Err(ErrorCode::NoNode));
    assert_eq!(bench.set_acl("/zookeeper/config", OPEN, 7), Err(ErrorCode::NoAuth));
    assert_eq!(bench.set_acl("/a", OPEN, 7), Err(ErrorCode::BadVersion));
}

#[test]
fn acl_enforcement() {
    let mut bench = Bench::new();
    let acl = [record(perms::READ, "world", "anyone"), record(perms::ALL, "digest", "joe:abc")];
    bench.create_with(Create { acl: Sequence::of(&acl), ..create("/a", 0) }).unwrap();
    assert_eq!(bench.set("/a", None, -1), Err(ErrorCode::NoAuth));
    assert_eq!(bench.create("/a/b", 0), Err(ErrorCode::NoAuth));
    bench.ids.push(Id::new("digest", "joe:abc"));
    bench.create("/a/b", 0).unwrap();
    bench.set("/a", None, -1).unwrap();
    bench.ids = vec![Id::new("super", "")];
    bench.delete("/a/b", -1).unwrap();
    // A deletion needs a permission on the parent.
    bench.ids.clear();
    bench.delete("/a", -1).unwrap();
}

#[test]
fn sequence_number_counts_creations() {
    let mut bench = Bench::new();
    assert_eq!(bench.create("/s-", 2), created("/s-0000000000"));
    bench.create("/x", 0).unwrap();
    assert_eq!(bench.create("/s-", 3), created("/s-0000000002"));
    bench.delete("/s-0000000002", -1).unwrap();
    assert_eq!(bench.create("/s-", 2), created("/s-0000000003"));
    assert_eq!(bench.create("/x/", 2), created("/x/0000000000"));
    bench.tree.nodes[0].created = i32::MAX;
    assert_eq!(bench.create("/s-", 2), created("/s-2147483647"));
    assert_eq!(bench.create("/s-", 2), created("/s--2147483648"));
}

#[test]
fn version_skips_minus_one() {
    assert_eq!(super::write::next_version(-2, -1), Ok(0));
    assert_eq!(super::write::next_version(i32::MAX, i32::MAX), Ok(i32::MIN));
    assert_eq!(super::write::next_version(3, 2), Err(ErrorCode::BadVersion));
}

#[test]
fn ephemerals_end_with_session() {
    let mut bench = Bench::new();
    bench.create("/a", 0).unwrap();
    bench.create("/a/e", 1).unwrap();
    bench.create("/e", 1).unwrap();
    bench.create("/f", 1).unwrap();
    bench.delete("/f", -1).unwrap();
    assert_eq!(bench.tree.ephemerals(SESSION).collect::<Vec<_>>(), ["/a/e", "/e"]);
    let txn = bench.txn();
    let paths: Vec<_> = bench.tree.close_session(SESSION, txn).into_iter().map(|event| event.path).collect();
    assert_eq!(paths, ["/a/e".into(), "/a".into(), "/e".into(), Box::from("/")]);
    assert_eq!(bench.tree.ephemeral_count() + bench.tree.owners().count(), 0);
    assert_eq!(bench.stat("/a").pzxid, txn.zxid);
    assert_eq!(bench.stat("/").pzxid, txn.zxid);
}

#[test]
fn collect_requires_unchanged_node() {
    let mut bench = Bench::new();
    bench.create_with(Create { kind: CreateKind::Container, ..create("/c", 4) }).unwrap();
    bench.create_with(Create { kind: CreateKind::Ttl, ttl_ms: Some(7), ..create("/t", 6) }).unwrap();
    bench.create("/p", 4).unwrap();
    assert_eq!(bench.tree.get("/c").unwrap().kind(), Kind::Container);
    assert_eq!(bench.tree.get("/t0000000001").unwrap().kind(), Kind::Ttl { ttl_ms: 7 });
    assert_eq!(bench.tree.get("/p").unwrap().kind(), Kind::Persistent);
    assert_eq!(bench.stat("/c").ephemeral_owner, 0);
    assert_eq!(bench.tree.collectable().collect::<Vec<_>>(), ["/c", "/t0000000001"]);
    bench.create("/c/x", 0).unwrap();
    let txn = bench.txn();
    assert_eq!(bench.tree.collect("/c", 1, bench.stat("/c").pzxid, txn), None);
    bench.delete("/c/x", -1).unwrap();
    assert_eq!(bench.tree.collect("/c", 1, 1, txn), None);
    assert_eq!(bench.tree.collect("/p", 3, 3, txn), None);
    assert_eq!(bench.tree.collect("/none", 3, 3, txn), None);
    assert!(bench.tree.collect("/c", 1, bench.stat("/c").pzxid, txn).is_some());
    assert!(bench.tree.get("/c").is_none());
    assert_eq!(bench.tree.collectable().count(), 1);
}

#[test]
fn event_order() {
    let mut bench = Bench::new();
    bench.create("/a", 0).unwrap();
    bench.create("/a/b", 0).unwrap();
    bench.set("/a/b", None, -1).unwrap();
    bench.delete("/a/b", -1).unwrap();
    bench.delete("/none", -1).unwrap_err();
    let events: Vec<_> = bench.events.iter().map(|(kind, path)| (*kind, path.as_str())).collect();
    use EventType::{ChildrenChanged, Created, DataChanged, Deleted};
    assert_eq!(
        events,
        [
            (Created, "/a"),
            (ChildrenChanged, "/"),
            (Created, "/a/b"),
            (ChildrenChanged, "/a"),
            (DataChanged, "/a/b"),
            (Deleted, "/a/b"),
            (ChildrenChanged, "/a"),
        ]
    );
}

#[test]
fn multi_is_atomic() {
    let mut bench = Bench::new();
    bench.create("/a", 0).unwrap();
    bench.create("/e", 1).unwrap();
    bench.events.clear();
    let before = dump(&bench.tree);
    let failing = [
        Operation::Create(create("/a/s-", 2)),
        Operation::Create(create("/a/s-", 3)),
        Operation::SetData(SetData { path: "/a", data: None, version: 0 }),
        Operation::Delete(Delete { path: "/e", version: 0 }),
        Operation::Create(create("/e", 0)),
        Operation::Check(CheckVersion { path: "/a", version: 0 }),
        Operation::Delete(Delete { path: "/a", version: -1 }),
    ];
    let mut expected = vec![Err(None); 5];
    expected.extend([Err(Some(ErrorCode::BadVersion)), Err(Some(ErrorCode::RuntimeInconsistency))]);
    assert_eq!(bench.multi(&failing), expected);
    assert_eq!(dump(&bench.tree), before);
    assert_eq!(bench.events, []);
    assert_eq!(bench.tree.ephemerals(SESSION).collect::<Vec<_>>(), ["/e"]);

    let results = bench.multi(&failing[..5]);
    assert_eq!(results[1], Ok(OperationResult::Create { path: "/a/s-0000000001".into() }));
    assert_eq!(results[3], Ok(OperationResult::Delete));
    assert_eq!((bench.stat("/a").version, bench.stat("/a").num_children, bench.stat("/e").ephemeral_owner), (1, 2, 0));
    assert_eq!(bench.multi(&[]), []);
}

/// A random change: any operation, on few paths, so that changes interact.
fn change(bench: &mut Bench, random: &mut SplitMix64) {
    let names = ["a", "b", "c", "a!", "ab"];
    let mut draw = |bound| random.below(bound);
    let path: String = (0..=draw(3)).map(|_| format!("/{}", names[draw(5) as usize])).collect();
    let flags = draw(4) as i32;
    match draw(10) {
        0..5 => drop(bench.create(&path, flags)),
        5 => drop(bench.set(&path, Some(&vec![7; draw(50) as usize]), -1)),
        6 => {
            let acls = [OPEN, &[record(draw(32) as i32 | 31, "ip", "10.0.0.1")]];
            let _ = bench.set_acl(&path, acls[draw(2) as usize], -1);
        }
        7 => drop(bench.multi(&[
            Operation::Create(create(&path, flags)),
            Operation::SetData(SetData { path: &path, data: None, version: 0 }),
            Operation::Delete(Delete { path: &path, version: 1 }),
            Operation::Check(CheckVersion { path: &path, version: draw(2) as i32 }),
        ])),
        8 if draw(5) == 0 => {
            let txn = bench.txn();
            bench.tree.close_session(SESSION, txn);
        }
        _ => drop(bench.delete(&path, -1)),
    }
}

#[test]
fn fuzz_multi_rollback() {
    let mut random = SplitMix64::new(5);
    let mut bench = Bench::new();
    for _ in 0..3_000 {
        change(&mut bench, &mut random);
        let before = dump(&bench.tree);
        let (bytes, count) = (bench.tree.data_bytes(), bench.tree.node_count());
        let path = ["/a", "/a/b", "/b"][random.below(3) as usize];
        let results = bench.multi(&[
            Operation::Create(create("/a/s", 3)),
            Operation::Delete(Delete { path, version: -1 }),
            Operation::Create(create(path, 1)),
            Operation::SetData(SetData { path, data: Some(b"long data"), version: -1 }),
            Operation::Check(CheckVersion { path: "/none", version: -1 }),
        ]);
        assert!(results.iter().all(Result::is_err));
        assert_eq!(dump(&bench.tree), before);
        assert_eq!((bytes, count), (bench.tree.data_bytes(), bench.tree.node_count()));
    }
}

/// A snapshot shows the tree at the moment it began.
#[test]
fn snapshot_of_changing_tree() {
    for seed in 0..150 {
        let mut random = SplitMix64::new(seed);
        let mut bench = Bench::new();
        for _ in 0..random.below(200) {
            change(&mut bench, &mut random);
        }
        let expected = snapshot(&mut bench.tree);
        let (before, bytes) = (dump(&bench.tree), bench.tree.data_bytes());
        let mut out = Writer::new();
        bench.tree.begin_snapshot();
        while bench.tree.write_next(&mut out) {
            for _ in 0..random.below(4) {
                change(&mut bench, &mut random);
            }
        }
        let written = out.finish().to_vec();
        let mut restored = restore(written.clone());
        assert_eq!(dump(&restored), before, "seed {seed}");
        assert_eq!(restored.data_bytes(), bytes);
        // A restored tree produces the same bytes as the original.
        assert_eq!(written, expected, "seed {seed}");
        assert_eq!(snapshot(&mut restored), expected, "seed {seed}");
        let ephemerals = |tree: &Tree| tree.ephemerals(SESSION).map(str::to_owned).collect::<Vec<_>>();
        let owned = before.iter().filter(|(.., kind)| matches!(kind, Kind::Ephemeral(_))).count();
        assert_eq!(ephemerals(&restored).len(), owned);
    }
}

#[test]
fn fuzz_damaged_snapshots() {
    let mut bench = Bench::new();
    bench.create("/a", 0).unwrap();
    let whole = snapshot(&mut bench.tree);
    let mut random = SplitMix64::new(1);
    for _ in 0..5_000 {
        let mut bytes = whole.clone();
        let at = random.below(bytes.len() as u64) as usize;
        bytes[at] = random.draw() as u8;
        let (mut reader, mut builder) = (Reader::new(bytes.into()), TreeBuilder::default());
        while reader.left() > 0 && builder.read_next(&mut reader).is_ok() {}
    }
    assert!(TreeBuilder::default().finish().is_err());
}

/// Deep trees do not overflow the stack, and wide trees are fast.
#[test]
fn deep_and_wide_trees() {
    let mut bench = Bench::new();
    let mut path = String::new();
    for _ in 0..3_000 {
        path.push_str("/d");
        bench.create(&path, 0).unwrap();
    }
    bench.create("/w", 0).unwrap();
    for _ in 0..20_000 {
        bench.create("/w/child-", 2).unwrap();
    }
    assert_eq!(bench.tree.get("/w").unwrap().children().len(), 20_000);
    assert_eq!(bench.tree.descendants("/d"), Some(2_999));
    let restored = restore(snapshot(&mut bench.tree));
    assert_eq!(restored.node_count(), bench.tree.node_count());
}
