//! ZooKeeper clients, with the client of `loggos zk`.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::Stdio;
use std::time::Duration;

use bytes::Bytes;
use coordination::ErrorCode;
use coordination::jute::{
    AclRecord, Create, CreateKind, DataReply, EventType, IdRecord, PathAndWatch, Reader, Record as _, Request,
    Sequence, SetData, Sync,
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::client::{Change, Client, Fault};
use crate::console;
use crate::harness::{COMMAND_PATIENCE, Cluster, Done, loggos, wait_for};

const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) fn servers(cluster: &Cluster, first: u32) -> Vec<String> {
    let others = cluster.nodes().cycle().skip(first as usize - 1).take(cluster.nodes().count());
    others.map(|node| format!("127.0.0.1:{}", cluster.zookeeper_port(node))).collect()
}

pub(crate) fn client(cluster: &Cluster, first: u32) -> Client {
    session(&servers(cluster, first))
}

/// Opens a session, also at servers that have just been started and refuse connections.
pub(crate) fn session(endpoints: &[String]) -> Client {
    wait_for("a session", PATIENCE, || Client::connect(endpoints.to_vec(), PATIENCE, None).ok())
}

pub(crate) fn create(client: &mut Client, path: &str, data: &[u8], flags: i32) -> Result<Bytes, Fault> {
    let everybody = [AclRecord { perms: 31, id: IdRecord { scheme: Some("world"), id: Some("anyone") } }];
    let acl = Sequence::of(&everybody);
    client.call(&Request::Create(Create { kind: CreateKind::Create, path, data: Some(data), acl, flags, ttl_ms: None }))
}

pub(crate) fn set(client: &mut Client, path: &str, data: &[u8]) -> Result<Bytes, Fault> {
    client.call(&Request::SetData(SetData { path, data: Some(data), version: -1 }))
}

pub(crate) fn get(client: &mut Client, path: &str, watch: bool) -> Result<Vec<u8>, Fault> {
    let reply = client.call(&Request::GetData(PathAndWatch { path, watch }))?;
    let reply = DataReply::decode(&mut Reader::new(&reply)).expect("a reply");
    Ok(reply.data.unwrap_or_default().to_vec())
}

pub(crate) fn exists(client: &mut Client, path: &str) -> bool {
    client.call(&Request::Sync(Sync { path })).expect("a tail");
    match client.call(&Request::Exists(PathAndWatch { path, watch: false })) {
        Ok(_) => true,
        Err(Fault::Refused(ErrorCode::NoNode)) => false,
        Err(fault) => panic!("{fault}"),
    }
}

/// A write on one node is read on another after a sync; watches fire; the death of the node that a client is connected
/// to moves its session, with its ephemeral nodes; a restart of all nodes loses nothing.
#[test]
fn session_survives_server_failure() {
    let mut cluster = Cluster::of(3);
    let (mut first, mut second) = (client(&cluster, 1), client(&cluster, 2));
    create(&mut first, "/a", b"1", 0).expect("created");
    second.call(&Request::Sync(Sync { path: "/" })).expect("a tail");
    assert_eq!(get(&mut second, "/a", true).expect("it exists"), b"1");
    set(&mut first, "/a", b"2").expect("set");
    let changed = Change { kind: EventType::DataChanged, path: "/a".into() };
    assert_eq!(second.change(PATIENCE).expect("connected"), Some(changed));
    assert_eq!(get(&mut second, "/a", false).expect("it exists"), b"2", "the event precedes the state");

    create(&mut first, "/e", b"", 1).expect("created");
    let session = first.session;
    cluster.signal(1, Signal::KILL);
    wait_for("a write after the crash", PATIENCE, || match set(&mut first, "/a", b"3") {
        Ok(_) => Some(()),
        Err(Fault::Unknown(_)) => None,
        Err(fault) => panic!("{fault}"),
    });
    assert_eq!(first.session, session, "the session has moved");
    assert!(exists(&mut second, "/e"));
    assert_eq!(get(&mut second, "/a", false).expect("it exists"), b"3");
    cluster.restart(1).ok();
    let mut third = client(&cluster, 1);
    assert!(exists(&mut third, "/e") && exists(&mut third, "/a"));
    first.close();
    assert!(!exists(&mut third, "/e"), "ephemeral nodes end with their session");

    cluster.stop();
    cluster.start();
    let mut again = client(&cluster, 3);
    again.call(&Request::Sync(Sync { path: "/" })).expect("a tail");
    assert_eq!(get(&mut again, "/a", false).expect("it exists"), b"3");
}

/// After enough writes a snapshot is in the log and the prefix is trimmed; a node starts from there.
#[test]
fn snapshot_trims_log() {
    const SETS: usize = 140;
    let cluster = Cluster::of(1);
    let mut writer = client(&cluster, 1);
    create(&mut writer, "/large", b"", 0).expect("created");
    create(&mut writer, "/small", b"kept", 0).expect("created");
    let data = vec![7; 1_000_000];
    for _ in 0..SETS {
        set(&mut writer, "/large", &data).expect("set");
    }
    wait_for("the log is trimmed", PATIENCE, || {
        let read = cluster.log(&["read", "zookeeper", "0"]);
        read.err.contains("is trimmed below").then_some(())
    });
    cluster.signal(1, Signal::KILL);
    cluster.restart(1).ok();
    assert_eq!(get(&mut writer, "/small", false).expect("it exists"), b"kept");
    assert_eq!(get(&mut writer, "/large", false).expect("it exists").len(), data.len());
    cluster.log(&["append", "zookeeper", "x"]).failed(2, &["reserved"]);
    cluster.log(&["trim", "zookeeper", "1"]).failed(2, &["reserved"]);
}

/// The answer to a four-letter command.
fn command(cluster: &Cluster, node: u32, word: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", cluster.zookeeper_port(node))).expect("it listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout can be set");
    stream.write_all(word.as_bytes()).expect("it is read");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("text");
    answer
}

fn mode_of(cluster: &Cluster, node: u32) -> String {
    let answer = command(cluster, node, "srvr");
    answer.lines().find_map(|line| line.strip_prefix("Mode: ")).expect("a mode").to_owned()
}

/// Monitoring tools find one leader, latencies, metrics and the state of each node's endpoint.
#[test]
fn monitoring_commands_and_metrics() {
    let cluster = Cluster::of(3);
    let mut session = client(&cluster, 1);
    create(&mut session, "/a", b"1", 0).expect("created");
    get(&mut session, "/a", true).expect("read");
    let with_mode = |mode: &str| cluster.nodes().filter(|node| mode_of(&cluster, *node) == mode).count();
    // The first lookup of the role may be under way.
    wait_for("one leader", Duration::from_millis(500), || (with_mode("leader") == 1).then_some(()));
    assert_eq!(with_mode("follower"), 2);

    let monitor = command(&cluster, 1, "mntr");
    let value = |key: &str| monitor.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('\t'));
    assert_eq!((value("zk_watch_count"), value("zk_num_alive_connections")), (Some("1"), Some("1")));
    assert_eq!((value("zk_cnt_readlatency"), value("zk_cnt_updatelatency")), (Some("1"), Some("2")));
    assert!(command(&cluster, 1, "cons").contains("lop=GETD"));
    let text = wait_for("metrics", PATIENCE, || {
        let (_, text) = console::get(&cluster, 1, "/metrics");
        text.contains("\nupdatelatency_count 2\n").then_some(text)
    });
    for (name, count) in
        [("znode_count ", 5.0), ("global_sessions ", 1.0), ("quorum_size ", 3.0), ("watch_count ", 1.0)]
    {
        assert_eq!(console::metric(&text, name), count, "{name}");
    }
    assert!(text.contains("# TYPE znode_count gauge") && text.contains("# HELP loggos_zookeeper_playback_lag_seconds"));
    let (_, status) = console::get(&cluster, 2, "/api/status");
    let status: Value = serde_json::from_str(&status).expect("JSON");
    assert_eq!(status["nodes"][0]["zookeeper"]["connections"], json!(1), "{status}");

    assert_eq!(command(&cluster, 1, "crst"), "Connection stats reset.\n");
    assert_eq!(command(&cluster, 1, "srst"), "Server stats reset.\n");
    assert!(command(&cluster, 1, "srvr").contains("Latency min/avg/max: 0/0.0/0\n"));

    // Without a majority the node says that it is read-only; clients that don't accept that are refused.
    cluster.signal(2, Signal::KILL);
    cluster.signal(3, Signal::KILL);
    wait_for("read-only mode", PATIENCE, || (command(&cluster, 1, "isro") == "ro").then_some(()));
    assert_eq!(mode_of(&cluster, 1), "read-only");
}

#[test]
fn bad_input_closes_only_its_connection() {
    let cluster = Cluster::of(1);
    let mut good = client(&cluster, 1);
    create(&mut good, "/a", b"1", 0).expect("created");
    let connect = || {
        let stream = TcpStream::connect(("127.0.0.1", cluster.zookeeper_port(1))).expect("it listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout can be set");
        stream
    };
    let talk = |bytes: &[u8]| {
        let mut stream = connect();
        stream.write_all(bytes).expect("it is read");
        let mut answer = Vec::new();
        // Either way of closing will do.
        let _ = stream.read_to_end(&mut answer);
        answer
    };
    let none: &[u8] = b"";
    for frame in [&[0xff; 8][..], &[0x7f, 0xff, 0xff, 0xff], &[0, 0, 0, 0], &[0, 0, 0, 3, 1, 2, 3]] {
        assert_eq!(talk(frame), none, "{frame:?}");
    }
    let mut wrong_version = vec![0; 4 + 44];
    (wrong_version[3], wrong_version[7]) = (44, 9);
    assert_eq!(talk(&wrong_version), none);
    assert_eq!(talk(b"ruok"), b"imok");
    assert!(talk(b"srvr\n").starts_with(b"Zookeeper version: 3.9"));
    assert!(talk(b"mntr").windows(14).any(|window| window == b"zk_znode_count"));
    assert!(String::from_utf8_lossy(&talk(b"what")).contains("not executed"));

    // Many connections at once, and one that never reads its replies.
    let idle: Vec<TcpStream> = (0..300).map(|_| connect()).collect();
    let too_large = vec![0; 0x10_0000];
    match set(&mut good, "/a", &too_large) {
        Err(Fault::Unknown(why)) => assert!(why.contains("jute.maxbuffer"), "{why}"),
        other => panic!("{other:?}"),
    }
    assert!(matches!(create(&mut good, "/..", b"", 0), Err(Fault::Refused(ErrorCode::BadArguments))));
    assert_eq!(get(&mut good, "/a", false).expect("it exists"), b"1");
    drop(idle);
}

/// An ephemeral node exists as long as the command that created it.
#[test]
fn zk_ephemeral_node_and_acl() {
    let cluster = Cluster::of(1);
    let at = servers(&cluster, 1).join(",");
    let mut watcher = client(&cluster, 1);
    let create = |path: &str| {
        let mut command = loggos();
        command.args(["zk", "--at", &at, "create", path, "--ephemeral", "--json"]).stdin(Stdio::null());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it runs");
        let mut line = String::new();
        let out = child.stdout.as_mut().expect("a pipe");
        BufReader::new(out).read_line(&mut line).expect("the path");
        assert_eq!(line, format!("{{\"path\":\"{path}\"}}\n"));
        child
    };
    let child = create("/e");
    assert!(exists(&mut watcher, "/e"));
    kill_process(Pid::from_child(&child), Signal::TERM).expect("it runs");
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{output:?}");
    assert!(!exists(&mut watcher, "/e"), "the session was closed");

    let run = |arguments: &[&str]| {
        let mut command = loggos();
        command.args(["zk", "--at", &at]).args(arguments);
        Done::of(&mut command, COMMAND_PATIENCE)
    };
    run(&["create", "/a"]).ok();
    assert_eq!(run(&["getacl", "/a"]).ok(), "world:anyone:cdrwa\n");
    assert_eq!(run(&["setacl", "/a", "world:anyone:r,auth::cdrwa", "--auth", "ann:secret"]).ok(), "ACL version 1\n");
    let acl = run(&["getacl", "/a", "--auth", "ann:secret"]).ok();
    assert!(acl.starts_with("world:anyone:r,digest:ann:") && acl.ends_with("=:cdrwa\n"), "{acl}");
    run(&["setacl", "/a", acl.trim_end()]).failed(1, &["/a"]);
    run(&["setacl", "/a", acl.trim_end(), "--auth", "ann:secret", "--version", "0"]).failed(1, &["version"]);
    run(&["setacl", "/a", "world:anyone"]).failed(2, &["SCHEME:ID:PERMS"]);

    // The servers are gone: so is the session.
    let child = create("/lost");
    cluster.signal(1, Signal::KILL);
    let output = child.wait_with_output().expect("it ends");
    let why = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(4), "{why}");
    assert!(why.contains("session is lost") && why.contains("connection refused"), "{why}");
    run(&["ls", "/"]).failed(3, &["connection refused"]);
}

#[test]
fn zk_shell_commands() {
    let cluster = Cluster::of(1);
    let at = servers(&cluster, 1).join(",");
    let run = |arguments: &[&str]| {
        let mut command = loggos();
        command.args(["zk", "--at", &at]).args(arguments);
        Done::of(&mut command, COMMAND_PATIENCE)
    };
    let object = |done: Done| serde_json::from_str::<Value>(&done.ok()).expect("JSON");
    assert_eq!(run(&["create", "/a", "one"]).ok(), "/a\n");
    run(&["create", "/a"]).failed(1, &["/a: the node exists"]);
    assert_eq!(object(run(&["create", "/a/n-", "--sequential", "--json"])), json!({"path": "/a/n-0000000000"}));
    assert_eq!(run(&["ls", "/a"]).ok(), "n-0000000000\n");
    assert_eq!(object(run(&["ls", "/a", "--json"])), json!({"path": "/a/n-0000000000"}));
    assert_eq!(run(&["get", "/a"]).ok(), "one\n");
    assert_eq!(object(run(&["set", "/a", "two", "--version", "0", "--json"])), json!({"path": "/a", "version": 1}));
    run(&["set", "/a", "three", "--version", "0"]).failed(1, &["version does not match"]);
    assert_eq!(object(run(&["get", "/a", "--json"])), json!({"path": "/a", "data": "two", "version": 1}));
    assert_eq!(object(run(&["stat", "/a", "--json"]))["num_children"], 1);
    run(&["delete", "/a"]).failed(1, &["has children"]);
    run(&["delete", "/a/n-0000000000"]).ok();
    run(&["delete", "/a", "--version", "1"]).ok();
    run(&["get", "/a"]).failed(1, &["/a: no such node"]);
    run(&["ls", "a"]).failed(2, &["not a valid path"]);
    run(&["create", "/x/y"]).failed(1, &["/x/y: the parent /x does not exist"]);
    run(&["delete", "/"]).failed(2, &["cannot be deleted"]);
    run(&["get", "/", "--auth", "nocolon"]).failed(2, &["USER:PASSWORD"]);
    run(&["create", "/raw", "no line end"]).ok();
    assert_eq!(run(&["get", "/raw", "--raw"]).ok(), "no line end");
}
