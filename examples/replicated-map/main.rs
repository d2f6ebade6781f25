//! A replicated state machine on a shared log: a map with a replica in each of any number of processes, which all apply
//! the same log in the same order.
//!
//! A put appends to the log. A get first queries the tail of the log and applies all entries below it, so it sees every
//! put that completed before the get began, in any process: reads are linearizable. Processes do not communicate with
//! each other, and there is no leader. `compact` stores a snapshot of the map in the log and trims the entries that it
//! covers; later processes start from the snapshot.

use std::collections::BTreeMap;
use std::env;
use std::error::Error;
use std::io::{self, BufRead as _};

use loggos_client::{Client, Content, Cursor, Entry, Log};

const USAGE: &str =
    "usage: replicated-map HOST:PORT,... [put KEY VALUE | remove KEY | get KEY | list | watch | compact]
Without a command it takes commands from standard input, a line each, and keeps its map meanwhile.";

/// A change of one key: its new value, or `None` to remove it. A record contains the key and, after a NUL, the value.
type Change = (String, Option<String>);

fn encode((key, value): &Change) -> String {
    value.as_ref().map_or_else(|| key.clone(), |value| format!("{key}\0{value}"))
}

fn decode(record: &[u8]) -> Change {
    let text = String::from_utf8_lossy(record);
    text.split_once('\0').map_or_else(|| (text.to_string(), None), |(key, value)| (key.into(), Some(value.into())))
}

/// A replica of the map, at a position of the log.
struct Replica {
    log: Log,
    map: BTreeMap<String, String>,
    /// The entries applied so far.
    at: Cursor,
}

impl Replica {
    /// Loads the snapshot to start from, if the log was trimmed.
    async fn begin(&mut self) -> Result<(), Box<dyn Error>> {
        if let Some(kept) = self.log.snapshot().await? {
            let changes = kept.state.split(|byte| *byte == b'\n').filter(|change| !change.is_empty()).map(decode);
            self.map = changes.filter_map(|(key, value)| Some((key, value?))).collect();
            self.at = kept.at;
        }
        Ok(())
    }

    /// Stores a snapshot in the log, and trims the entries that it covers.
    async fn compact(&mut self) -> Result<(), Box<dyn Error>> {
        let changes = self.map.iter().map(|(key, value)| encode(&(key.clone(), Some(value.clone()))) + "\n");
        self.log.keep_snapshot(self.at.clone(), changes.collect::<String>()).await?;
        Ok(self.log.trim(self.at.position()).await?)
    }

    /// Appends a change. Each replica, including this one, has it once it has applied the entry.
    async fn change(&self, key: &str, value: Option<&str>) -> Result<u64, Box<dyn Error>> {
        if key.is_empty() || [key, value.unwrap_or("")].iter().any(|text| text.contains(['\0', '\n'])) {
            return Err("a key has characters, and neither it nor its value has a NUL or a line's end".into());
        }
        Ok(self.log.append([encode(&(key.to_owned(), value.map(str::to_owned)))]).await?)
    }

    /// Applies all entries that were appended before the call.
    async fn catch_up(&mut self) -> Result<(), Box<dyn Error>> {
        let tail = self.log.tail().await?;
        self.play(Some(tail), |_, _| ()).await
    }

    /// Applies entries up to a position, or for ever, and passes each change to `tell`. It uses a subscription because
    /// that delivers a retried append once; a read by position might return it twice.
    async fn play(&mut self, end: Option<u64>, tell: impl Fn(u64, &Change)) -> Result<(), Box<dyn Error>> {
        let mut entries = self.log.subscribe(self.at.clone());
        while end.is_none_or(|end| self.at.position() < end) {
            let Some(entry) = entries.next().await else { return Ok(()) };
            let entry = entry?;
            if matches!(entry.content, Content::Trimmed { before } if before > entry.position) {
                self.begin().await?;
                entries = self.log.subscribe(self.at.clone());
                continue;
            }
            self.change_map(&entry, &tell);
            self.at = entries.cursor().clone();
        }
        Ok(())
    }

    fn change_map(&mut self, entry: &Entry, tell: impl Fn(u64, &Change)) {
        for change in entry.records().iter().map(|record| decode(record)) {
            tell(entry.position, &change);
            match change {
                (key, Some(value)) => self.map.insert(key, value),
                (key, None) => self.map.remove(&key),
            };
        }
    }

    /// Prints each change as it is applied, for ever.
    async fn watch(&mut self) -> Result<(), Box<dyn Error>> {
        let tell = |position, (key, value): &Change| {
            println!("{position}: {key} = {}", value.as_deref().unwrap_or("(removed)"));
        };
        self.play(None, tell).await
    }

    async fn run(&mut self, command: &[&str]) -> Result<(), Box<dyn Error>> {
        if matches!(command, ["get", _] | ["list"] | ["compact"]) {
            self.catch_up().await?;
        }
        match command {
            ["put", key, value] => println!("{}", self.change(key, Some(value)).await?),
            ["remove", key] => println!("{}", self.change(key, None).await?),
            ["get", key] => println!("{}", self.map.get(*key).map_or("(none)", String::as_str)),
            ["list"] => self.map.iter().for_each(|(key, value)| println!("{key} = {value}")),
            ["watch"] => self.watch().await?,
            ["compact"] => self.compact().await?,
            _ => return Err(USAGE.into()),
        }
        Ok(())
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let Some((endpoints, command)) = arguments.split_first() else { return Err(USAGE.into()) };
    let log = Client::connect(endpoints.split(','))?.log("replicated-map");
    log.create().send().await?;
    let mut replica = Replica { log, map: BTreeMap::new(), at: Cursor::default() };
    if !command.is_empty() {
        return replica.run(&command.iter().map(String::as_str).collect::<Vec<_>>()).await;
    }
    for line in io::stdin().lock().lines() {
        let line = line?;
        let words: Vec<&str> = line.splitn(3, ' ').collect();
        if let Err(error) = replica.run(&words).await {
            eprintln!("{error}");
        }
    }
    Ok(())
}
