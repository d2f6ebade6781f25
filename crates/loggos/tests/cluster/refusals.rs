//! Refusals and their messages: requests over a limit, directories of other nodes, configurations that would expose the
//! cluster to untrusted clients. Every refusal names the problem and changes nothing.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use base::limits::{KEY_BYTES_MAX, VALUE_BYTES_MAX};
use base::{checksum, checksum_append};
use sdk::{Client, Error, Version};

use crate::harness::{COMMAND_PATIENCE, Cluster, Done, loggos, runtime, wait_for};

/// Forwards connections to an endpoint and counts them.
fn counting_proxy(port: u16) -> (String, Arc<AtomicU32>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let address = listener.local_addr().expect("it listens").to_string();
    let connections = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&connections);
    thread::spawn(move || {
        for near in listener.incoming().map_while(Result::ok) {
            count.fetch_add(1, Ordering::Relaxed);
            let far = TcpStream::connect(("127.0.0.1", port)).expect("the endpoint is open");
            for (mut from, mut to) in [(&near, &far), (&far, &near)].map(|(from, to)| (copy_of(from), copy_of(to))) {
                thread::spawn(move || std::io::copy(&mut from, &mut to));
            }
        }
    });
    (address, connections)
}

fn copy_of(stream: &TcpStream) -> TcpStream {
    stream.set_nodelay(true).and_then(|()| stream.try_clone()).expect("a second handle")
}

#[track_caller]
fn invalid<T: std::fmt::Debug>(answer: Result<T, Error>, says: &[&str]) {
    match answer {
        Err(Error::Invalid(message)) => says.iter().for_each(|part| assert!(message.contains(part), "{message}")),
        other => panic!("not refused as invalid: {other:?}"),
    }
}

#[test]
fn limit_refusal_keeps_connection() {
    let cluster = Cluster::of(1);
    let (endpoint, connections) = counting_proxy(cluster.grpc_port(1));
    let client = Client::connect([endpoint]).expect("an address");
    runtime().block_on(refused_requests(&client));
    assert_eq!(connections.load(Ordering::Relaxed), 1, "a refusal ended the connection");

    cluster.columns(&["put", "t", "", "c", "v"]).failed(2, &["the row's key is empty"]);
    cluster.columns(&["get", "nowhere", "k"]).failed(1, &["nowhere"]);
    cluster.columns(&["scan", "t", "--from", "z", "--to", "a"]).failed(2, &["reversed"]);
    let key = "k".repeat(KEY_BYTES_MAX + 1);
    cluster.columns(&["put", "t", &key, "c", "v"]).failed(2, &["key", "8193", "8192"]);
}

async fn refused_requests(client: &Client) {
    let t = client.table("t");
    t.create().send().await.expect("a good request");
    t.write("k").put("c", "before").send().await.expect("a good request");
    let long = vec![b'k'; KEY_BYTES_MAX + 1];
    invalid(t.write(long.clone()).put("c", "v").send().await, &["key", "8193", "8192"]);
    invalid(t.get(long.clone(), "c").await, &["key", "8193", "8192"]);
    invalid(t.write("k").put(long, "v").send().await, &["column", "8193", "8192"]);
    let large = vec![0; VALUE_BYTES_MAX + 1];
    invalid(t.write("k").put("c", large.clone()).send().await, &["value", "8388609", "8388608"]);
    // The valid half of the write is not applied either.
    invalid(t.write("k").put("c", "half").put("d", large).send().await, &["value"]);
    let three = ["x", "y", "z"].into_iter().fold(t.write("k"), |write, name| write.put(name, vec![0; VALUE_BYTES_MAX]));
    invalid(three.send().await, &[]);
    invalid(t.write("k").send().await, &[]);
    invalid(t.write("").put("c", "v").send().await, &["key is empty"]);
    invalid(t.write("k").put("", "v").send().await, &["column"]);
    invalid(client.table("no blanks").create().send().await, &["no blanks"]);
    invalid(t.write("k").put_if("c", "v", Version::from_nanos(-1)).send().await, &["-1"]);
    let nowhere = client.table("nowhere").write("k").put("c", "v").send().await;
    assert_eq!(nowhere, Err(Error::NotFound("no table named \"nowhere\"".into())));
    let mut reversed = t.scan().range("z".."a").rows();
    invalid(reversed.next().await.expect("an error"), &["reversed", "\"z\"", "\"a\""]);

    let row = t.row("k").await.expect("a good request").expect("it was written");
    assert_eq!(
        row.cells.iter().map(|cell| (&cell.column[..], &cell.value[..])).collect::<Vec<_>>(),
        [(&b"c"[..], &b"before"[..])]
    );
    let largest = t.write(vec![b'k'; KEY_BYTES_MAX]).put("c", vec![1; VALUE_BYTES_MAX]).send().await;
    largest.expect("the limits themselves are allowed");
}

fn start(config: &Path) -> Command {
    let mut command = loggos();
    command.arg("start").arg("--config").arg(config);
    command
}

#[test]
fn directory_lock_excludes_second_process() {
    let cluster = Cluster::of(1);
    let node = cluster.pid(1).expect("the node runs").as_raw_pid().to_string();
    let directory = cluster.node_directory(1).display().to_string();
    let second = Done::of(&mut start(&cluster.config(1)), COMMAND_PATIENCE);
    second.failed(3, &[&directory, "in use", &node]);

    let data = cluster.data().display().to_string();
    let dev = fs::read_to_string(cluster.data().join("pid")).expect("dev says who it is");
    let second = Done::of(&mut cluster.dev_command(), COMMAND_PATIENCE);
    second.failed(3, &[&data, "in use", dev.trim()]);
    cluster.columns(&["create", "t"]).ok();
}

/// The cluster's identifier in its plan.
fn name(cluster: &Cluster) -> String {
    let plan = fs::read_to_string(cluster.data().join("cluster.toml")).expect("there is a plan");
    let plan: toml::Table = plan.parse().expect("it is TOML");
    plan["cluster"].as_str().expect("it has a name").to_owned()
}

#[test]
fn refuses_data_of_other_cluster() {
    let mut cluster = Cluster::of(1);
    cluster.stop();
    let mut other = Cluster::of(1);
    other.stop();
    let (own, strange) = (cluster.node_directory(1).join("store"), other.node_directory(1).join("store"));
    let aside = cluster.scratch().path().join("aside");
    fs::rename(&own, &aside).expect("on one file system");
    fs::rename(&strange, &own).expect("on one file system");
    let both = [name(&cluster), name(&other)];
    let both = [&both[0][..], &both[1][..]];

    Done::of(&mut start(&cluster.config(1)), COMMAND_PATIENCE).failed(3, &both);
    Done::of(&mut cluster.dev_command(), COMMAND_PATIENCE).failed(3, &both);

    fs::remove_dir_all(&own).expect("it is there");
    fs::rename(&aside, &own).expect("on one file system");
    cluster.start();
}

/// Changes the format version in a file's header and fixes the checksum: the file is valid, as if written by a later
/// version. The header: magic (8 bytes), format (4), length (4), checksum (4) of all that and the content.
fn change_format(file: &Path, format: u32) {
    let mut bytes = fs::read(file).expect("the file is there");
    bytes[8..12].copy_from_slice(&format.to_le_bytes());
    let length = u32::from_le_bytes(bytes[12..16].try_into().expect("four bytes")) as usize;
    let sum = checksum_append(checksum(&bytes[..16]), &bytes[20..20 + length]);
    bytes[16..20].copy_from_slice(&sum.to_le_bytes());
    fs::write(file, bytes).expect("the file can be written");
}

#[test]
fn refuses_other_format_version() {
    let mut cluster = Cluster::of(1);
    cluster.stop();
    let known = format!("format {}", store::FORMAT);
    let store = cluster.node_directory(1).join("store");
    for copies in [["identity", "identity.copy"], ["0/manifest.a", "0/manifest.b"]] {
        copies.iter().for_each(|copy| change_format(&store.join(copy), 77));
        let before = copies.map(|copy| fs::read(store.join(copy)).expect("the file is there"));
        Done::of(&mut start(&cluster.config(1)), COMMAND_PATIENCE).failed(3, &["format 77", &known]);
        assert_eq!(before, copies.map(|copy| fs::read(store.join(copy)).expect("the file is there")), "{copies:?}");
        copies.iter().for_each(|copy| change_format(&store.join(copy), store::FORMAT));
    }
    cluster.start();
}

#[test]
fn public_listen_requires_insecure_plaintext() {
    let mut cluster = Cluster::of(1);
    cluster.stop();
    let text = fs::read_to_string(cluster.config(1)).expect("there is a configuration");
    for endpoint in ["peers", "grpc", "http"] {
        let open = text.replacen(&format!("{endpoint} = \"127.0.0.1"), &format!("{endpoint} = \"0.0.0.0"), 1);
        assert_ne!(open, text);
        let config = cluster.scratch().file("open.toml", open);
        let says = ["0.0.0.0", endpoint, "insecure_plaintext = true"];
        Done::of(&mut start(Path::new(&config)), COMMAND_PATIENCE).failed(2, &says);
    }
    let unknown = cluster.scratch().file("unknown.toml", format!("insecure_plaintxt = true\n{text}"));
    Done::of(&mut start(Path::new(&unknown)), COMMAND_PATIENCE).failed(2, &["insecure_plaintxt"]);
}

#[test]
fn port_conflict_names_listener() {
    let mut cluster = Cluster::of(1);
    cluster.stop();
    let endpoints = [("peers", cluster.peers_port(1)), ("gRPC", cluster.grpc_port(1)), ("HTTP", cluster.http_port(1))];
    for (endpoint, port) in endpoints {
        let _taken = TcpListener::bind(("127.0.0.1", port)).expect("the node is stopped");
        let says = format!("can't listen on 127.0.0.1:{port} for {endpoint}");
        Done::of(&mut start(&cluster.config(1)), COMMAND_PATIENCE).failed(3, &[&says]);
        Done::of(&mut cluster.dev_command(), COMMAND_PATIENCE).failed(3, &[&port.to_string(), "--port-offset"]);
    }
}

#[test]
fn ports_checked_before_formation() {
    let cluster = Cluster::of(1);
    let other = cluster.scratch().path().join("other");
    let offset = (cluster.grpc_port(1) - 7_201).to_string();
    let mut dev = loggos();
    dev.args(["dev", "--nodes", "1", "--port-offset", &offset, "--data"]).arg(&other);
    Done::of(&mut dev, COMMAND_PATIENCE).failed(3, &[&cluster.peers_port(1).to_string(), "--port-offset"]);
    assert!(!other.exists(), "something was made for nodes that cannot run");
}

#[test]
fn wrong_port_kind_is_suggested() {
    let cluster = Cluster::of(1);
    for port in [cluster.peers_port(1), cluster.http_port(1)] {
        let endpoint = format!("127.0.0.1:{port}");
        let doubt = format!("is {endpoint} the gRPC address of a node?");
        for command in [&["columns", "list"][..], &["columns", "get", "t", "k"], &["status"]] {
            let mut asked = loggos();
            asked.args(command).args(["--timeout", "500ms", "--at", &endpoint]);
            Done::of(&mut asked, COMMAND_PATIENCE).failed(3, &[&doubt]);
        }
    }
}

#[test]
fn lost_disk_is_refused_and_others_continue() {
    let mut cluster = Cluster::of(3);
    cluster.columns(&["create", "t"]).ok();
    cluster.columns(&["put", "t", "k", "c", "v"]).ok();
    cluster.stop();
    fs::remove_dir_all(cluster.node_directory(3).join("store")).expect("it is there");
    cluster.start();
    assert!(cluster.pid(3).is_none(), "a node with a lost disk was started");
    cluster.restart(3).failed(1, &["node 3 is not started", "not formatted again"]);
    assert!(!cluster.node_directory(3).join("store/identity").exists());
    assert!(cluster.columns(&["get", "t", "k"]).ok().contains('v'));
}

/// A production binary contains no planted bugs, and says so.
#[test]
#[cfg(not(feature = "canary"))]
fn production_build_has_no_planted_bugs() {
    Done::of(loggos().args(["sim", "--canary"]), COMMAND_PATIENCE).failed(2, &["--features canary"]);
}

#[test]
fn nodes_exit_with_dev_process() {
    let mut cluster = Cluster::of(1);
    let node = cluster.pid(1).expect("the node runs");
    cluster.kill_dev();
    wait_for("the node ends", Duration::from_secs(10), || cluster.pid(1).is_none().then_some(()));
    cluster.start();
    assert_ne!(cluster.pid(1), Some(node));
}
