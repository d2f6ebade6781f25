//! `loggos zk ...`: reads and changes znodes. Works with any ZooKeeper server.

mod acl;
mod client;

use std::collections::BTreeSet;
use std::io::{self, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use base::shown;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use clap::{Args, Subcommand};
use coordination::ErrorCode;
use coordination::jute::{
    AclRecord, AclReply, AddWatch, ChildrenReply, Create, CreateKind, DataReply, Delete, EventType, GetAcl, IdRecord,
    PathAndWatch, PathReply, Reader, Record, Request, Sequence, SetAcl, SetData, Stat, StatReply, Sync,
};
use serde_json::{Map, Value, json};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use terminal::{Output, Stop, ZOOKEEPER, positive_duration};

use self::acl::AclText;
use self::client::{Client, Fault, PAUSE};

/// Maximum time of one wait for changes.
const WATCH_PATIENCE: Duration = Duration::from_secs(3_600);
/// The ACL permission bits of all operations.
const ALL: i32 = 31;

/// The servers' addresses, and options of every command.
#[derive(Clone, Debug, Args)]
pub struct Servers {
    /// Addresses of one or more servers [env: LOGGOS_ZK_AT] [default: 127.0.0.1:2181,127.0.0.1:2182,127.0.0.1:2183].
    #[arg(long, global = true, value_name = "HOST:PORT,...", value_delimiter = ',')]
    at: Vec<String>,
    /// Offset added to the default ports, as in `loggos dev --port-offset`. Takes precedence over LOGGOS_ZK_AT.
    #[arg(long, global = true, value_name = "K", conflicts_with = "at")]
    port_offset: Option<u16>,
    /// Authenticate with scheme `digest`.
    #[arg(long, global = true, value_name = "USER:PASSWORD", value_parser = credentials)]
    auth: Option<String>,
    /// Print one JSON object per line, and errors as JSON on standard error.
    #[arg(long, global = true)]
    pub(super) json: bool,
    /// Timeout of a request including retries, such as 500ms or 10s.
    #[arg(long, global = true, value_name = "TIME", default_value = "10s", value_parser = positive_duration)]
    timeout: Duration,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// List a znode's children.
    Ls {
        /// The node's path.
        path: String,
    },
    /// Print a znode's data.
    Get {
        /// The node's path.
        path: String,
        /// Print the data unchanged, without a line end.
        #[arg(long)]
        raw: bool,
    },
    /// Create a znode that every client may access (ACL `world:anyone:cdrwa`).
    Create {
        /// The node's path.
        path: String,
        /// Data of the znode [default: none].
        #[arg(allow_hyphen_values = true)]
        data: Option<String>,
        /// Append a sequence number, unique among the parent's children.
        #[arg(long, short)]
        sequential: bool,
        /// Delete the znode when this command ends: it holds the session until Ctrl-C or SIGTERM.
        #[arg(long, short)]
        ephemeral: bool,
    },
    /// Set a znode's data.
    Set {
        /// The node's path.
        path: String,
        /// New data.
        #[arg(allow_hyphen_values = true)]
        data: String,
        /// Only if the node has this version.
        #[arg(long, value_name = "V", value_parser = clap::value_parser!(i32).range(0..))]
        version: Option<i32>,
    },
    /// Delete a znode that has no children.
    Delete {
        /// The node's path.
        path: String,
        /// Only if the node has this version.
        #[arg(long, value_name = "V", value_parser = clap::value_parser!(i32).range(0..))]
        version: Option<i32>,
    },
    /// Print a znode's metadata.
    Stat {
        /// The node's path.
        path: String,
    },
    /// Print a znode's access control list.
    Getacl {
        /// The node's path.
        path: String,
    },
    /// Set a znode's access control list.
    Setacl {
        /// The node's path.
        path: String,
        /// The entries as SCHEME:ID:PERMS,..., where PERMS are letters of cdrwa (create, delete, read, write, admin), such
        /// as world:anyone:r,auth::cdrwa.
        acl: AclText,
        /// Only if the list has this version (`aversion` of `stat`).
        #[arg(long, value_name = "V", value_parser = clap::value_parser!(i32).range(0..))]
        version: Option<i32>,
    },
    /// Print changes of a znode and its children until Ctrl-C. The znode need not exist. A child that
    /// exists only for a moment may go unnoticed; --recursive reports each event.
    Watch {
        /// The node's path.
        path: String,
        /// Also watch all descendants.
        #[arg(long, short)]
        recursive: bool,
    },
}

impl Command {
    fn path(&self) -> &str {
        match self {
            Self::Ls { path }
            | Self::Get { path, .. }
            | Self::Create { path, .. }
            | Self::Set { path, .. }
            | Self::Delete { path, .. }
            | Self::Stat { path }
            | Self::Getacl { path }
            | Self::Setacl { path, .. }
            | Self::Watch { path, .. } => path,
        }
    }
}

impl Servers {
    fn endpoints(&self) -> Result<Vec<String>, Stop> {
        ZOOKEEPER.endpoints(&self.at, self.port_offset)
    }
}

/// Runs a command.
pub(super) fn run(servers: &Servers, output: Output, command: &Command) -> Result<(), Stop> {
    let stop = |fault| match (fault, command) {
        (Fault::Refused(ErrorCode::NoNode), Command::Create { path, .. }) => {
            Stop::NotFound(format!("{path}: the parent {} does not exist", parent(path)))
        }
        (fault, command) => stop(fault, command.path()),
    };
    coordination::path::validate(command.path()).map_err(|code| stop(Fault::Refused(code)))?;
    if matches!(command, Command::Delete { path, .. } if path == "/") {
        return Err(Stop::invalid("/ is the root of the znodes and cannot be deleted"));
    }
    let is_ephemeral = matches!(command, Command::Create { ephemeral: true, .. });
    // Before the node is created, so that no signal leaves it behind.
    let is_stopped = is_ephemeral.then(catch_signals).transpose()?;
    let mut client = Client::connect(servers.endpoints()?, servers.timeout, servers.auth.clone()).map_err(stop)?;
    let done = match command {
        Command::Watch { path, recursive } => watch(&mut client, output, path, *recursive),
        _ => once(&mut client, output, command),
    };
    let done = match (done, is_stopped) {
        (Ok(()), Some(is_stopped)) => return hold(&mut client, &is_stopped),
        (done, _) => done,
    };
    client.close();
    match done {
        Ok(()) => Ok(()),
        Err(Failed::Fault(fault)) => Err(stop(fault)),
        Err(Failed::Stop(stopped)) => Err(stopped),
    }
}

/// Sets the flag on the first SIGINT or SIGTERM. The second one ends the process with exit status 3.
fn catch_signals() -> Result<Arc<AtomicBool>, Stop> {
    let is_stopped = Arc::new(AtomicBool::new(false));
    for number in [SIGINT, SIGTERM] {
        let second = flag::register_conditional_shutdown(number, 3, Arc::clone(&is_stopped));
        let both = second.and_then(|_| flag::register(number, Arc::clone(&is_stopped)));
        both.map_err(Stop::io("wait for signals"))?;
    }
    Ok(is_stopped)
}

/// Holds the session of an ephemeral node until a signal, then closes it.
fn hold(client: &mut Client, is_stopped: &AtomicBool) -> Result<(), Stop> {
    let held = client.hold(|| is_stopped.load(Ordering::Relaxed));
    match held.and_then(|()| client.end()) {
        Ok(()) => Ok(()),
        Err(Fault::Expired) => {
            let why = "the session has expired, and its ephemeral nodes are deleted";
            Err(sdk::Error::Unavailable(why.to_owned()).into())
        }
        Err(fault) => {
            let why = format!("the session is lost, and its ephemeral nodes are deleted when it expires: {fault}");
            Err(sdk::Error::OutcomeUnknown(why).into())
        }
    }
}

/// Why a command failed.
enum Failed {
    Fault(Fault),
    Stop(Stop),
}

impl From<Fault> for Failed {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

impl From<Stop> for Failed {
    fn from(stop: Stop) -> Self {
        Self::Stop(stop)
    }
}

fn stop(fault: Fault, path: &str) -> Stop {
    match fault {
        Fault::Refused(ErrorCode::NoNode) => Stop::NotFound(format!("{path}: {}", ErrorCode::NoNode)),
        Fault::Refused(ErrorCode::NodeExists) => sdk::Error::Exists(format!("{path}: the node exists")).into(),
        Fault::Refused(ErrorCode::BadArguments) => Stop::invalid(format!("{path:?}: not a valid path")),
        Fault::Refused(code) => Stop::Refused(format!("{path}: {code}")),
        Fault::Address(why) => Stop::invalid(why),
        Fault::Unavailable(why) => sdk::Error::Unavailable(why).into(),
        Fault::Unknown(why) => sdk::Error::OutcomeUnknown(why).into(),
        Fault::Expired => sdk::Error::Unavailable("the session has expired".into()).into(),
    }
}

/// The path of a znode's parent.
fn parent(path: &str) -> &str {
    match path.rsplit_once('/') {
        Some((parent, _)) if !parent.is_empty() => parent,
        _ => "/",
    }
}

/// Checks the credentials of scheme `digest`.
fn credentials(text: &str) -> Result<String, String> {
    match text.split_once(':') {
        Some((user, _)) if !user.is_empty() => Ok(text.to_owned()),
        _ => Err("credentials of scheme digest are USER:PASSWORD".to_owned()),
    }
}

/// Sends a request and decodes the reply with `decode`.
fn ask<T>(
    client: &mut Client,
    request: &Request<'_>,
    decode: impl FnOnce(&Bytes) -> Result<T, coordination::jute::DecodeError>,
) -> Result<T, Fault> {
    let reply = client.call(request)?;
    decode(&reply).map_err(|error| Fault::Unavailable(format!("can't decode the reply: {error}")))
}

fn of<'a, T: Record<'a>>(reply: &'a Bytes) -> Result<T, coordination::jute::DecodeError> {
    T::decode(&mut Reader::new(reply))
}

fn once(client: &mut Client, output: Output, command: &Command) -> Result<(), Failed> {
    match command {
        Command::Ls { path } => {
            // After a sync, the read reflects all writes that completed before it.
            client.call(&Request::Sync(Sync { path }))?;
            for name in children(client, path)? {
                let below = if path == "/" { "" } else { path };
                output.print(&json!({ "path": format!("{below}/{name}") }), || name.clone())?;
            }
        }
        Command::Get { raw: true, .. } if output.is_json() => {
            return Err(Stop::invalid("--raw prints the bytes of a znode and excludes --json").into());
        }
        Command::Get { path, raw } => {
            client.call(&Request::Sync(Sync { path }))?;
            let request = Request::GetData(PathAndWatch { path, watch: false });
            let (data, stat) = ask(client, &request, |reply| {
                of::<DataReply<'_>>(reply).map(|reply| (reply.data.map(<[u8]>::to_vec), reply.stat))
            })?;
            if *raw {
                let mut out = io::stdout().lock();
                out.write_all(data.as_deref().unwrap_or_default()).and_then(|()| out.flush()).map_err(Stop::Print)?;
                return Ok(());
            }
            let mut object = Map::new();
            object.insert("path".into(), path.as_str().into());
            match data.as_deref().map(std::str::from_utf8) {
                None => object.insert("data".into(), Value::Null),
                Some(Ok(text)) => object.insert("data".into(), text.into()),
                Some(Err(_)) => {
                    let encoded = data.as_deref().map(|data| BASE64_STANDARD.encode(data));
                    object.insert("data_base64".into(), encoded.into())
                }
            };
            object.insert("version".into(), stat.version.into());
            output.print(&object, || shown(data.as_deref().unwrap_or_default()))?;
        }
        Command::Create { path, data, sequential, ephemeral } => {
            let everybody = [AclRecord { perms: ALL, id: IdRecord { scheme: Some("world"), id: Some("anyone") } }];
            let request = Request::Create(Create {
                kind: CreateKind::Create,
                path,
                data: data.as_ref().map(String::as_bytes),
                acl: Sequence::of(&everybody),
                flags: i32::from(*ephemeral) | i32::from(*sequential) << 1,
                ttl_ms: None,
            });
            let created = ask(client, &request, |reply| of::<PathReply<'_>>(reply).map(|reply| reply.path.to_owned()))?;
            output.acknowledge(&json!({ "path": created }), || created.clone());
        }
        Command::Set { path, data, version } => {
            let data = Some(data.as_bytes());
            let request = Request::SetData(SetData { path, data, version: version.unwrap_or(-1) });
            let stat = ask(client, &request, |reply| of::<StatReply>(reply).map(|reply| reply.stat))?;
            let object = json!({ "path": path, "version": stat.version });
            output.acknowledge(&object, || format!("version {}", stat.version));
        }
        Command::Delete { path, version } => {
            client.call(&Request::Delete(Delete { path, version: version.unwrap_or(-1) }))?;
            output.acknowledge(&json!({ "path": path, "deleted": true }), || format!("{path} deleted"));
        }
        Command::Stat { path } => {
            client.call(&Request::Sync(Sync { path }))?;
            let request = Request::Exists(PathAndWatch { path, watch: false });
            let stat = ask(client, &request, |reply| of::<StatReply>(reply).map(|reply| reply.stat))?;
            let fields = stat_fields(&stat);
            let mut object = Map::new();
            object.insert("path".into(), path.as_str().into());
            // These are 64-bit identifiers, which exceed 2^53.
            let is_identifier = |name| matches!(name, "czxid" | "mzxid" | "pzxid" | "ephemeral_owner");
            object.extend(fields.iter().map(|(name, value)| {
                let field = if is_identifier(*name) { value.to_string().into() } else { (*value).into() };
                ((*name).to_owned(), field)
            }));
            output.print(&object, || {
                fields.iter().map(|(name, value)| format!("{name} = {value}")).collect::<Vec<_>>().join("\n")
            })?;
        }
        Command::Getacl { path } => {
            client.call(&Request::Sync(Sync { path }))?;
            let request = Request::GetAcl(GetAcl { path });
            let (acl, version) = ask(client, &request, |reply| {
                let reply: AclReply<'_> = of(reply)?;
                Ok((reply.acl.iter().map(|entry| acl::shown(&entry)).collect::<Vec<_>>(), reply.stat.aversion))
            })?;
            output.print(&json!({ "path": path, "acl": acl, "aversion": version }), || acl.join(","))?;
        }
        Command::Setacl { path, acl, version } => {
            let records = acl.records();
            let acl = Sequence::of(&records);
            let request = Request::SetAcl(SetAcl { path, acl, version: version.unwrap_or(-1) });
            let version = ask(client, &request, |reply| of::<StatReply>(reply).map(|reply| reply.stat.aversion))?;
            let object = json!({ "path": path, "aversion": version });
            output.acknowledge(&object, || format!("ACL version {version}"));
        }
        Command::Watch { .. } => {}
    }
    Ok(())
}

/// The names of a znode's children.
fn children(client: &mut Client, path: &str) -> Result<BTreeSet<String>, Fault> {
    let request = Request::GetChildren(PathAndWatch { path, watch: false });
    ask(client, &request, |reply| {
        of::<ChildrenReply<'_>>(reply).map(|reply| reply.children.iter().map(str::to_owned).collect())
    })
}

/// The children of a watched znode, to tell which of them a change has created or deleted.
#[derive(Default)]
struct Children {
    known: BTreeSet<String>,
}

impl Children {
    /// Lists them again, and returns those created and those deleted since; none if the znode is missing.
    fn differences(&mut self, client: &mut Client, path: &str) -> Result<[Vec<String>; 2], Fault> {
        let now = match children(client, path) {
            Err(Fault::Refused(ErrorCode::NoNode)) => BTreeSet::new(),
            listed => listed?,
        };
        let was = std::mem::replace(&mut self.known, now);
        let created = self.known.difference(&was).cloned().collect();
        Ok([created, was.difference(&self.known).cloned().collect()])
    }
}

fn stat_fields(stat: &Stat) -> [(&'static str, i64); 11] {
    [
        ("czxid", stat.czxid),
        ("mzxid", stat.mzxid),
        ("pzxid", stat.pzxid),
        ("ctime", stat.ctime),
        ("mtime", stat.mtime),
        ("version", stat.version.into()),
        ("cversion", stat.cversion.into()),
        ("aversion", stat.aversion.into()),
        ("ephemeral_owner", stat.ephemeral_owner),
        ("data_length", stat.data_length.into()),
        ("num_children", stat.num_children.into()),
    ]
}

/// Prints changes indefinitely. Changes while disconnected are missed; each disconnection is reported.
fn watch(client: &mut Client, output: Output, path: &str, is_recursive: bool) -> Result<(), Failed> {
    let request = Request::AddWatch(AddWatch { path, mode: i32::from(is_recursive) });
    client.call(&request)?;
    let mut children = Children::default();
    if !is_recursive {
        children.differences(client, path)?;
    }
    loop {
        let changed = client.change(WATCH_PATIENCE).and_then(|change| {
            // The recursive mode reports each child by itself.
            let lists = change.as_ref().is_some_and(|change| change.kind == EventType::ChildrenChanged);
            let differences = if lists { children.differences(client, path)? } else { Default::default() };
            Ok(change.map(|change| (change, differences)))
        });
        match changed {
            Ok(None) => {}
            Ok(Some((change, [created, deleted]))) => {
                let what = match change.kind {
                    EventType::Created => "created",
                    EventType::Deleted => "deleted",
                    EventType::DataChanged => "changed",
                    EventType::ChildrenChanged => "children",
                };
                let mut object = json!({ "path": change.path, "event": what });
                if change.kind == EventType::ChildrenChanged {
                    object["created"] = json!(created);
                    object["deleted"] = json!(deleted);
                }
                let names = |what: &str, names: &[String]| match names {
                    [] => String::new(),
                    names => format!(", {what} {}", names.join(" ")),
                };
                output.print(&object, || {
                    format!("{what} {}{}{}", change.path, names("created", &created), names("deleted", &deleted))
                })?;
            }
            Err(Fault::Unavailable(why)) => {
                // A closed standard error is ignored.
                let _ = writeln!(io::stderr(), "loggos: connection lost, changes may be missed: {why}");
                while let Err(fault) = client.call(&request) {
                    match fault {
                        Fault::Unavailable(_) => std::thread::sleep(PAUSE),
                        // A new session is opened.
                        Fault::Expired => client.session = 0,
                        fault => return Err(fault.into()),
                    }
                }
            }
            Err(fault) => return Err(fault.into()),
        }
    }
}
