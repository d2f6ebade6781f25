//! Output of commands: text for users, or one JSON object per line for programs.

use std::io::{self, Write};
use std::process::ExitCode;

use base::shown;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::stop::Stop;

#[derive(Clone, Copy, Debug)]
pub struct Output {
    json: bool,
}

impl Output {
    /// JSON if `json`, otherwise text.
    #[must_use]
    pub fn new(json: bool) -> Self {
        Self { json }
    }

    /// Whether the output is JSON.
    #[must_use]
    pub fn is_json(self) -> bool {
        self.json
    }

    /// Prints one JSON object, or its text for users.
    ///
    /// # Errors
    /// [`Stop::Print`] if writing to standard output fails.
    pub fn print(self, object: &impl Serialize, people: impl FnOnce() -> String) -> Result<(), Stop> {
        writeln!(io::stdout().lock(), "{}", self.line(object, people))?;
        Ok(())
    }

    /// Prints the result of a command that has had its effect. If writing to standard output fails, prints it to
    /// standard error instead: the command has succeeded, and a script must not repeat it.
    pub fn acknowledge(self, object: &impl Serialize, people: impl FnOnce() -> String) {
        self.acknowledge_to(&mut io::stdout().lock(), &mut io::stderr().lock(), object, people);
    }

    /// Prints a warning to standard error, as text or as an object with the field `warning`. The command continues.
    pub fn warn(self, warning: &str) {
        let object = serde_json::json!({ "warning": warning });
        // A closed standard error is ignored.
        let _ = writeln!(io::stderr().lock(), "{}", self.line(&object, || format!("loggos: warning: {warning}")));
    }

    fn acknowledge_to(
        self,
        out: &mut impl Write,
        err: &mut impl Write,
        object: &impl Serialize,
        people: impl FnOnce() -> String,
    ) {
        let line = self.line(object, people);
        let Err(error) = writeln!(out, "{line}").and_then(|()| out.flush()) else { return };
        // If standard error is closed too, the exit status still tells the outcome.
        let _ = match self.json {
            true => writeln!(err, "{line}"),
            false => writeln!(err, "loggos: done, but can't print the result to standard output ({error}): {line}"),
        };
    }

    fn line(self, object: &impl Serialize, people: impl FnOnce() -> String) -> String {
        if self.json { to_json(object) } else { people() }
    }

    /// Reports the outcome of a command, and returns its exit status.
    pub fn finish(self, done: Result<(), Stop>) -> ExitCode {
        match done {
            Ok(()) => ExitCode::SUCCESS,
            Err(stop) => self.report(&stop),
        }
    }

    /// Prints the error of a command to standard error, and returns its exit status.
    pub fn report(self, stop: &Stop) -> ExitCode {
        if matches!(stop, Stop::Print(error) if error.kind() == io::ErrorKind::BrokenPipe) {
            // The reader has closed the pipe, as in `loggos columns scan t | head`. This is not an error.
            return ExitCode::SUCCESS;
        }
        if matches!(stop, Stop::Named(_)) && !self.json {
            return ExitCode::from(stop.exit_status());
        }
        let line = if self.json { to_json(&refusal(stop)) } else { format!("loggos: {}", sentence(stop)) };
        // If standard error is closed too, the error cannot be reported.
        let _ = writeln!(io::stderr().lock(), "{line}");
        ExitCode::from(stop.exit_status())
    }
}

/// The JSON object printed to standard error for a failed command.
fn refusal(stop: &Stop) -> Map<String, Value> {
    let mut object = Map::new();
    object.insert("error".into(), stop.to_string().into());
    object.insert("kind".into(), stop.kind().into());
    match stop {
        Stop::Cluster(sdk::Error::Refused { expected, actual, .. }) => {
            object.insert("expected".into(), expected.to_string().into());
            object.insert("actual".into(), actual.to_string().into());
        }
        Stop::Invalid { at: Some(at), .. } => {
            object.insert("line".into(), at.line.into());
            object.insert("rows".into(), at.rows.into());
        }
        Stop::LoadCutShort { rows, .. } | Stop::Stopped { rows, .. } => {
            object.insert("rows".into(), (*rows).into());
        }
        Stop::AppendCutShort { appended, .. } => {
            object.insert("records".into(), appended.records.into());
            object.insert("first".into(), appended.positions.map(|(first, _)| first).into());
            object.insert("last".into(), appended.positions.map(|(_, last)| last).into());
        }
        _ => {}
    }
    object
}

fn sentence(stop: &Stop) -> String {
    match stop {
        Stop::Cluster(sdk::Error::Refused { column, expected, actual }) => {
            format!("version mismatch on column {}: expected {expected}, actual {actual}", shown(column))
        }
        Stop::Cluster(sdk::Error::Unavailable(why)) if why.contains("Connection refused") => {
            format!("{why}; is the cluster running? Set its address with --at or --port-offset")
        }
        _ => stop.to_string(),
    }
}

/// Serializes an object on one line.
///
/// # Panics
/// If the keys of a map are not strings.
#[must_use]
pub fn to_json(object: &impl Serialize) -> String {
    serde_json::to_string(object).expect("map keys are strings")
}

/// A range as a field of an object: the first key, and the end key or null; in base64 if one of them is not UTF-8.
pub fn range_field(start: &[u8], end: Option<&[u8]>) -> (&'static str, Value) {
    let as_text = |key| std::str::from_utf8(key).ok();
    match (as_text(start), end.map(as_text)) {
        (Some(start), None) => ("range", json!([start, null])),
        (Some(start), Some(Some(end))) => ("range", json!([start, end])),
        _ => ("range_base64", json!([BASE64_STANDARD.encode(start), end.map(|end| BASE64_STANDARD.encode(end))])),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stop::{Appended, LoadedUntil};

    #[track_caller]
    fn check(stop: &Stop, object: &str, exit_status: u8) {
        let expected: Map<String, Value> = serde_json::from_str(object).expect("JSON");
        assert_eq!(refusal(stop), expected);
        assert_eq!(stop.exit_status(), exit_status);
    }

    #[test]
    fn unprintable_result_goes_to_standard_error() {
        struct Full;
        impl Write for Full {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::ErrorKind::StorageFull.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let said = |json| {
            let mut err = Vec::new();
            let object = serde_json::json!({ "version": "7" });
            Output::new(json).acknowledge_to(&mut Full, &mut err, &object, || "7".to_owned());
            String::from_utf8(err).expect("text")
        };
        assert_eq!(said(true), "{\"version\":\"7\"}\n");
        assert!(said(false).ends_with(": 7\n"), "{}", said(false));
    }

    #[test]
    fn error_json_has_kind_and_details() {
        let (expected, actual) = (sdk::Version::from_nanos(7), sdk::Version::from_nanos(9));
        let mismatch = sdk::Error::Refused { column: "c".into(), expected, actual };
        check(&mismatch.into(), r#"{"error":"version mismatch","kind":"refused","expected":"7","actual":"9"}"#, 1);
        check(&Stop::NotFound("no column".into()), r#"{"error":"no column","kind":"not found"}"#, 1);
        check(&sdk::Error::Unavailable("x".into()).into(), r#"{"error":"x","kind":"unavailable"}"#, 3);
        let unknown = sdk::Error::OutcomeUnknown("x".into());
        check(&unknown.into(), r#"{"error":"outcome unknown: x","kind":"unknown"}"#, 4);
        let no_node = sdk::Error::Precondition("there is no node 9".into());
        check(&no_node.into(), r#"{"error":"there is no node 9","kind":"precondition"}"#, 1);
        let mut appended = Appended::default();
        appended.note(64, 7);
        appended.note(36, 8);
        let unavailable = Box::new(sdk::Error::Unavailable("x".into()).into());
        let cut_short = Stop::AppendCutShort { error: unavailable, appended };
        let said = "x; 100 records appended at positions 7 to 8 before";
        check(&cut_short, &format!(r#"{{"error":"{said}","kind":"unavailable","records":100,"first":7,"last":8}}"#), 4);
        let unreadable = Box::new(Stop::io("read f")(io::ErrorKind::NotFound.into()));
        let cut_short = Stop::AppendCutShort { error: unreadable, appended };
        assert_eq!((cut_short.exit_status(), cut_short.kind()), (4, "io"), "a repetition appends records twice");
        let at = Some(LoadedUntil { line: 7, rows: 5 });
        let bad = Stop::Invalid { message: "line 7".into(), at };
        check(&bad, r#"{"error":"line 7","kind":"invalid","line":7,"rows":5}"#, 2);
    }

    #[test]
    fn range_json_has_both_bounds() {
        assert_eq!(range_field(b"", None), ("range", json!(["", null])));
        assert_eq!(range_field(b"a", Some(b"b")), ("range", json!(["a", "b"])));
        assert_eq!(range_field(b"\xff", None), ("range_base64", json!(["/w==", null])));
        assert_eq!(range_field(b"a", Some(b"\xff")), ("range_base64", json!(["YQ==", "/w=="])));
    }
}
