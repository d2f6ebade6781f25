//! A map that any number of processes keep equal: each plays the same log, from its beginning, in the same order.
//!
//! A put is an append. A get asks where the log ends, and plays up to there before it looks: so it sees every put that
//! had ended when it began, whichever process made it. No process knows of another, and no one leads. Whoever likes
//! keeps the map in the log and trims what was before: others begin with that.

use std::collections::BTreeMap;
use std::env;
use std::error::Error;
use std::io::{self, BufRead as _};
use std::time::Duration;

use sdk::{Client, Content, Entry, Log};

const USAGE: &str =
    "usage: replicated-map HOST:PORT,... [put KEY VALUE | remove KEY | get KEY | list | watch | compact]
Without a command it takes commands from standard input, a line each, and keeps its map meanwhile.";

/// How long to wait for whoever was given a position and hasn't written there yet. Then it becomes a hole.
const PATIENCE: Duration = Duration::from_millis(500);
/// Positions that are read at a time.
const POSITIONS: u32 = 256;

/// What a record says: a key, and its new value; without one it is removed. The key ends at the first NUL.
type Change = (String, Option<String>);

fn encode((key, value): &Change) -> String {
    value.as_ref().map_or_else(|| key.clone(), |value| format!("{key}\0{value}"))
}

fn decode(record: &[u8]) -> Change {
    let text = String::from_utf8_lossy(record);
    text.split_once('\0').map_or_else(|| (text.to_string(), None), |(key, value)| (key.into(), Some(value.into())))
}

/// The map as of a position of its log.
struct Replica {
    log: Log,
    map: BTreeMap<String, String>,
    /// The first position that was not played.
    next: u64,
}

impl Replica {
    /// Begins with what somebody kept, if the log can't be played from its beginning any more.
    async fn begin(&mut self) -> Result<(), Box<dyn Error>> {
        if let Some(kept) = self.log.snapshot().await? {
            let changes = kept.state.split(|byte| *byte == b'\n').filter(|change| !change.is_empty()).map(decode);
            self.map = changes.filter_map(|(key, value)| Some((key, value?))).collect();
            self.next = kept.next;
        }
        Ok(())
    }

    /// Keeps the map in its log, and gives up what it was made of.
    async fn compact(&mut self) -> Result<(), Box<dyn Error>> {
        let changes = self.map.iter().map(|(key, value)| encode(&(key.clone(), Some(value.clone()))) + "\n");
        self.log.keep_snapshot(self.next, changes.collect::<String>()).await?;
        Ok(self.log.trim(self.next).await?)
    }

    /// Appends a change. It is in this map, as in all others, once it is played.
    async fn change(&self, key: &str, value: Option<&str>) -> Result<u64, Box<dyn Error>> {
        if key.is_empty() || [key, value.unwrap_or("")].iter().any(|text| text.contains(['\0', '\n'])) {
            return Err("a key has characters, and neither it nor its value has a NUL or a line's end".into());
        }
        Ok(self.log.append([encode(&(key.to_owned(), value.map(str::to_owned)))]).await?)
    }

    /// Plays whatever had been put when this was called.
    async fn catch_up(&mut self) -> Result<(), Box<dyn Error>> {
        let tail = self.log.tail().await?;
        while self.next < tail {
            let count = (tail - self.next).min(POSITIONS.into()) as u32;
            for entry in self.log.read_waiting(self.next, count, PATIENCE).await? {
                self.play(&entry).await?;
            }
        }
        Ok(())
    }

    /// Plays what lies at the next position; tells what that changes.
    async fn play(&mut self, entry: &Entry) -> Result<Vec<Change>, Box<dyn Error>> {
        if matches!(entry.content, Content::Trimmed { before } if before > entry.position) {
            self.begin().await?;
        }
        // Holes change nothing: a put that was tried twice lies there once.
        let is_next = entry.position >= self.next;
        let changes: Vec<Change> = entry.records().iter().filter(|_| is_next).map(|record| decode(record)).collect();
        for (key, value) in changes.clone() {
            match value {
                Some(value) => self.map.insert(key, value),
                None => self.map.remove(&key),
            };
        }
        self.next = self.next.max(entry.after());
        Ok(changes)
    }

    /// Tells each change, as it comes, for ever.
    async fn watch(&mut self) -> Result<(), Box<dyn Error>> {
        let mut entries = self.log.subscribe(self.next);
        while let Some(entry) = entries.next().await {
            let entry = entry?;
            for (key, value) in self.play(&entry).await? {
                println!("{}: {key} = {}", entry.position, value.as_deref().unwrap_or("(removed)"));
            }
        }
        Ok(())
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
    log.create().await?;
    let mut replica = Replica { log, map: BTreeMap::new(), next: 0 };
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
