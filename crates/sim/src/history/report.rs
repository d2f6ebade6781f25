//! Formats violations for people.

use std::fmt::Write as _;

use base::Timestamp;
use bytes::Bytes;

use super::{Kind, Operation, Violation, What, WriteOutcome};

/// Lines of an excerpt: one screen.
const EXCERPT_LINES: usize = 24;

/// Bytes shown of a name or a value.
const SHOWN_BYTES: usize = 32;

/// A violation before it is formatted.
#[derive(Debug)]
pub(super) struct Finding {
    pub(super) kind: Kind,
    pub(super) what: String,
    pub(super) suspects: Vec<usize>,
}

impl Finding {
    pub(super) fn new(kind: Kind, suspects: impl Into<Vec<usize>>, what: impl Into<String>) -> Self {
        Self { kind, what: what.into(), suspects: suspects.into() }
    }
}

/// Adds the operations of the row around the suspects.
pub(super) fn violation(history: &[Operation], key: &Bytes, row: &[usize], mut finding: Finding) -> Violation {
    finding.suspects.sort_unstable();
    finding.suspects.dedup();
    let mut shown: Vec<usize> = finding.suspects.iter().copied().take(EXCERPT_LINES).collect();
    let answered_until = |index: usize| history[index].returned.unwrap_or(history[index].called);
    let from = finding.suspects.iter().map(|&index| history[index].called).min().unwrap_or(0);
    let to = finding.suspects.iter().map(|&index| answered_until(index)).max().unwrap_or(u64::MAX);
    let mut around: Vec<usize> = row
        .iter()
        .copied()
        .filter(|index| finding.suspects.binary_search(index).is_err())
        .filter(|&index| history[index].called <= to && from <= history[index].end())
        .collect();
    // Prefer completed operations, latest first: a failure shows at its end.
    around.sort_by_key(|&index| (history[index].is_unknown_write(), std::cmp::Reverse(history[index].called)));
    let left_out = around.len().saturating_sub(EXCERPT_LINES - shown.len());
    shown.extend(around.iter().take(EXCERPT_LINES - shown.len()));
    shown.sort_by_key(|&index| (history[index].called, index));
    let mut excerpt = String::new();
    for index in shown {
        let mark = if finding.suspects.contains(&index) { '>' } else { ' ' };
        let _ = writeln!(excerpt, "{mark} #{index} {}", line(&history[index]));
    }
    if left_out > 0 {
        let _ = writeln!(excerpt, "  and {left_out} more overlapping operations");
    }
    Violation { kind: finding.kind, key: key.clone(), what: finding.what, suspects: finding.suspects, excerpt }
}

/// Escaped text, truncated to [`SHOWN_BYTES`].
pub(super) fn text(bytes: &Bytes) -> String {
    let cut = if bytes.len() > SHOWN_BYTES { ".." } else { "" };
    format!("\"{}\"{cut}", bytes[..bytes.len().min(SHOWN_BYTES)].escape_ascii())
}

fn line(operation: &Operation) -> String {
    let until = operation.returned.map_or_else(|| "never".into(), |returned| returned.to_string());
    let mut line = format!("client {} [{}, {until}] ", operation.client, operation.called);
    let _ = match &operation.what {
        What::Write { mutations, outcome } => {
            line.push_str("write");
            for mutation in mutations {
                let _ = match &mutation.value {
                    Some(value) => write!(line, " {}={}", text(&mutation.column), text(value)),
                    None => write!(line, " delete {}", text(&mutation.column)),
                };
                let _ = match mutation.condition {
                    Some(Timestamp(0)) => write!(line, " if absent"),
                    Some(version) => write!(line, " if {version}"),
                    None => Ok(()),
                };
            }
            match outcome {
                WriteOutcome::Written(version) => write!(line, " -> written {version}"),
                WriteOutcome::Mismatch { column, expected, actual } => {
                    write!(line, " -> refused: {} is {actual}, not {expected}", text(column))
                }
                WriteOutcome::Unknown => write!(line, " -> unknown"),
                WriteOutcome::NotDone => write!(line, " -> not done"),
            }
        }
        What::Read { columns, cells } => {
            match columns {
                None => line.push_str("read all ->"),
                Some(columns) => {
                    let names: Vec<String> = columns.iter().map(text).collect();
                    let _ = write!(line, "read {} ->", names.join(", "));
                }
            }
            for cell in cells {
                let _ = write!(line, " {}={}@{}", text(&cell.column), text(&cell.value), cell.version);
            }
            if cells.is_empty() { write!(line, " nothing") } else { Ok(()) }
        }
    };
    line
}
