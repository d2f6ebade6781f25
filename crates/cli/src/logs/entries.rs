//! Prints log entries: for people one line per record, in JSON one object per entry.

use std::io::{self, Write};

use base::{counted, shown};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use sdk::{Content, Entry};
use serde_json::{Map, Value};
use terminal::{Output, Stop, Table, to_json};

/// Prints entries; as text with a heading, unless `has_heading`.
pub(super) fn print(output: Output, log: &str, entries: &[Entry], has_heading: bool) -> Result<(), Stop> {
    let mut out = io::BufWriter::new(io::stdout().lock());
    if output.is_json() {
        for entry in entries {
            writeln!(out, "{}", to_json(&object(log, entry)))?;
        }
    } else {
        let mut lines = Table::new(["POSITION", "RECORD"]);
        for entry in entries {
            for line in lines_of(entry) {
                lines.add([entry.position.to_string(), line]);
            }
        }
        if has_heading {
            lines.omit_heading();
        }
        write!(out, "{lines}")?;
    }
    out.flush()?;
    Ok(())
}

fn lines_of(entry: &Entry) -> Vec<String> {
    match &entry.content {
        Content::Records(records) => records.iter().map(|record| shown(record)).collect(),
        Content::Snapshot(records) => {
            vec![format!("(part of a snapshot, {})", counted(bytes_of(records), "byte"))]
        }
        Content::Junk => vec!["(hole)".to_owned()],
        Content::Repeated => vec!["(repeated)".to_owned()],
        Content::Lost => vec!["(lost)".to_owned()],
        Content::Trimmed { before } if *before > entry.position => vec![format!("(trimmed, up to {before})")],
        Content::Trimmed { .. } => vec!["(trimmed)".to_owned()],
    }
}

/// An entry as a JSON object with its records (all in base64 if one is not UTF-8), the size of its part of a snapshot,
/// or the kind of hole.
fn object(log: &str, entry: &Entry) -> Map<String, Value> {
    let mut object = Map::new();
    object.insert("log".into(), log.into());
    object.insert("position".into(), entry.position.into());
    let hole = match &entry.content {
        Content::Records(records) => {
            let (name, records) = records_field(records);
            object.insert(name.into(), records);
            return object;
        }
        Content::Snapshot(records) => {
            object.insert("snapshot_bytes".into(), bytes_of(records).into());
            return object;
        }
        Content::Junk => "junk",
        Content::Repeated => "repeated",
        Content::Lost => "lost",
        Content::Trimmed { .. } => "trimmed",
    };
    object.insert("hole".into(), hole.into());
    if let Content::Trimmed { before } = entry.content {
        object.insert("before".into(), before.max(entry.position + 1).into());
    }
    object
}

fn bytes_of(records: &[Bytes]) -> u64 {
    records.iter().map(|record| record.len() as u64).sum()
}

fn records_field(records: &[Bytes]) -> (&'static str, Value) {
    match records.iter().map(|record| std::str::from_utf8(record)).collect::<Result<Vec<_>, _>>() {
        Ok(records) => ("records", records.into()),
        Err(_) => {
            let encoded = records.iter().map(|record| BASE64_STANDARD.encode(record));
            ("records_base64", encoded.collect::<Vec<_>>().into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(content: Content, json: &str, people: &[&str]) {
        let entry = Entry { position: 7, content };
        assert_eq!(to_json(&object("l", &entry)), json);
        assert_eq!(lines_of(&entry), people);
    }

    #[test]
    fn entry_output_formats() {
        let records = Content::Records(vec!["a".into(), "b\tc".into()]);
        check(records, r#"{"log":"l","position":7,"records":["a","b\tc"]}"#, &["a", "b\\tc"]);
        let bytes = Content::Records(vec!["a".into(), vec![0xff].into()]);
        check(bytes, r#"{"log":"l","position":7,"records_base64":["YQ==","/w=="]}"#, &["a", "\\xff"]);
    }

    #[test]
    fn hole_output_formats() {
        check(Content::Junk, r#"{"log":"l","position":7,"hole":"junk"}"#, &["(hole)"]);
        let part = Content::Snapshot(vec!["a".into(), "bc".into()]);
        check(part, r#"{"log":"l","position":7,"snapshot_bytes":3}"#, &["(part of a snapshot, 3 bytes)"]);
        check(Content::Repeated, r#"{"log":"l","position":7,"hole":"repeated"}"#, &["(repeated)"]);
        check(Content::Lost, r#"{"log":"l","position":7,"hole":"lost"}"#, &["(lost)"]);
        let many = Content::Trimmed { before: 20 };
        check(many, r#"{"log":"l","position":7,"hole":"trimmed","before":20}"#, &["(trimmed, up to 20)"]);
        let alone = Content::Trimmed { before: 2 };
        check(alone, r#"{"log":"l","position":7,"hole":"trimmed","before":8}"#, &["(trimmed)"]);
    }
}
