//! The settings of a session: those that clients set or read.

use std::collections::BTreeMap;
use std::time::Duration;

use sql::{SqlError, sqlstate};

/// The version of PostgreSQL that is reported to clients.
pub const SERVER_VERSION: &str = "15.0";

/// The duration from which on a statement is logged; -1 for none.
const LOG_MIN_DURATION: &str = "log_min_duration_statement";

/// Settings, their defaults, and whether changes are reported to clients.
const DEFAULTS: [(&str, &str, bool); 34] = [
    ("application_name", "", true),
    ("bytea_output", "hex", false),
    ("client_encoding", "UTF8", true),
    ("client_min_messages", "notice", false),
    ("datestyle", "ISO, MDY", true),
    ("default_table_access_method", "heap", false),
    ("default_text_search_config", "pg_catalog.simple", false),
    ("default_transaction_isolation", "serializable", false),
    ("default_transaction_read_only", "off", true),
    ("extra_float_digits", "1", false),
    ("idle_in_transaction_session_timeout", "0", false),
    ("in_hot_standby", "off", true),
    ("integer_datetimes", "on", true),
    ("intervalstyle", "postgres", true),
    ("is_superuser", "on", true),
    ("jit", "off", false),
    ("lock_timeout", "0", false),
    (LOG_MIN_DURATION, "-1", false),
    ("max_identifier_length", "63", false),
    ("max_index_keys", "32", false),
    ("row_security", "on", false),
    ("search_path", "\"$user\", public", false),
    ("server_encoding", "UTF8", true),
    ("server_version", SERVER_VERSION, true),
    ("server_version_num", "150000", false),
    ("session_authorization", "", true),
    ("standard_conforming_strings", "on", true),
    ("statement_timeout", "0", false),
    ("synchronize_seqscans", "on", false),
    ("timezone", "UTC", true),
    ("transaction_isolation", "serializable", false),
    ("transaction_read_only", "off", false),
    ("work_mem", "64MB", false),
    ("xmloption", "content", false),
];

/// The settings that cannot be changed.
const FIXED: [&str; 10] = [
    "in_hot_standby",
    "integer_datetimes",
    "is_superuser",
    "max_identifier_length",
    "max_index_keys",
    "server_encoding",
    "server_version",
    "server_version_num",
    "session_authorization",
    "transaction_isolation",
];

/// The name under which a setting is reported to a client.
fn reported_name(name: &str) -> &str {
    match name {
        "datestyle" => "DateStyle",
        "intervalstyle" => "IntervalStyle",
        "timezone" => "TimeZone",
        other => other,
    }
}

/// The settings of a session.
#[derive(Clone, Debug, Default)]
pub(crate) struct Settings {
    /// The values in the client's startup message, to which RESET returns.
    initial: BTreeMap<String, String>,
    changed: BTreeMap<String, String>,
    /// Those of this transaction only.
    local: BTreeMap<String, String>,
    /// Names and values that are not reported to the client yet.
    reports: Vec<(String, String)>,
}

impl Settings {
    /// The value that is in force.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        let own = [&self.local, &self.changed, &self.initial].into_iter().find_map(|level| level.get(name));
        let default = || DEFAULTS.iter().find(|(known, ..)| *known == name).map(|(_, value, _)| *value);
        own.map(String::as_str).or_else(default)
    }

    pub(crate) fn show(&self, name: &str) -> Result<String, SqlError> {
        let name = match name {
            "time zone" => "timezone",
            "transaction isolation level" => "transaction_isolation",
            other => other,
        };
        self.get(name).map(str::to_owned).ok_or_else(|| unrecognized(name))
    }

    /// All settings in the order of their names.
    pub(crate) fn all(&self) -> Vec<(String, String)> {
        DEFAULTS.iter().map(|(name, ..)| ((*name).to_owned(), self.get(name).unwrap_or_default().to_owned())).collect()
    }

    /// SET; without a value, the default.
    pub(crate) fn set(&mut self, name: &str, value: Option<&str>, local: bool) -> Result<(), SqlError> {
        let name = if name == "time zone" { "timezone" } else { name };
        // Names with a point are for the client's own use, as in PostgreSQL.
        let is_known = DEFAULTS.iter().any(|(known, ..)| *known == name) || name.contains('.');
        if !is_known {
            return Err(unrecognized(name));
        }
        if FIXED.contains(&name) && name != "transaction_isolation" {
            let message = format!("parameter \"{name}\" cannot be changed");
            return Err(SqlError::new("55P02", message));
        }
        if name == "timezone" && value.is_some_and(|value| !is_utc(value)) {
            let error = SqlError::unsupported(format!("time zone \"{}\"", value.unwrap_or_default()));
            return Err(error.with_hint("The time zone is always UTC."));
        }
        let value = value.map(|value| check(name, value)).transpose()?;
        let level = if local { &mut self.local } else { &mut self.changed };
        match value {
            Some(value) => level.insert(name.to_owned(), value),
            None => level.remove(name),
        };
        self.report(name);
        Ok(())
    }

    /// A setting of the connection's start. Unknown ones are ignored.
    pub(crate) fn start(&mut self, name: &str, value: &str) -> Result<(), SqlError> {
        let name = name.to_lowercase();
        if DEFAULTS.iter().any(|(known, ..)| *known == name) && !FIXED.contains(&name.as_str()) {
            self.initial.insert(name.clone(), check(&name, value)?);
        }
        Ok(())
    }

    pub(crate) fn set_user(&mut self, user: &str) {
        self.initial.insert("session_authorization".to_owned(), user.to_owned());
    }

    pub(crate) fn reset(&mut self, name: Option<&str>) -> Result<(), SqlError> {
        match name {
            Some(name) => self.set(name, None, false),
            None => {
                let changed = std::mem::take(&mut self.changed);
                changed.keys().for_each(|name| self.report(name));
                Ok(())
            }
        }
    }

    /// The end of a transaction. A rollback returns to earlier settings by replacing all.
    pub(crate) fn end_transaction(&mut self) {
        let local = std::mem::take(&mut self.local);
        local.keys().for_each(|name| self.report(name));
    }

    fn report(&mut self, name: &str) {
        if DEFAULTS.iter().any(|(known, _, is_reported)| *known == name && *is_reported) {
            let value = self.get(name).unwrap_or_default().to_owned();
            self.reports.push((reported_name(name).to_owned(), value));
        }
    }

    /// The settings that are reported to clients at the start.
    pub(crate) fn reported(&self) -> Vec<(String, String)> {
        let reported = DEFAULTS.iter().filter(|(.., is_reported)| *is_reported);
        reported
            .map(|(name, ..)| (reported_name(name).to_owned(), self.get(name).unwrap_or_default().to_owned()))
            .collect()
    }

    pub(crate) fn take_reports(&mut self) -> Vec<(String, String)> {
        std::mem::take(&mut self.reports)
    }

    pub(crate) fn statement_timeout(&self) -> Option<Duration> {
        let timeout = self.get("statement_timeout").and_then(milliseconds).unwrap_or(0);
        (timeout > 0).then(|| Duration::from_millis(timeout))
    }

    /// Called after each statement, so it does not search the defaults.
    pub(crate) fn log_min_duration(&self) -> Option<Duration> {
        let levels = [&self.local, &self.changed, &self.initial];
        let value = levels.into_iter().find_map(|level| level.get(LOG_MIN_DURATION))?;
        milliseconds(value).map(Duration::from_millis)
    }

    pub(crate) fn is_read_only_by_default(&self) -> bool {
        self.get("default_transaction_read_only").is_some_and(|value| boolean(value) == Some(true))
    }
}

fn unrecognized(name: &str) -> SqlError {
    SqlError::new(sqlstate::UNDEFINED_OBJECT, format!("unrecognized configuration parameter \"{name}\""))
}

fn boolean(value: &str) -> Option<bool> {
    match value.to_lowercase().as_str() {
        "on" | "true" | "yes" | "1" | "t" | "y" => Some(true),
        "off" | "false" | "no" | "0" | "f" | "n" => Some(false),
        _ => None,
    }
}

/// Whether a time zone is UTC.
fn is_utc(zone: &str) -> bool {
    let zone = zone.to_ascii_lowercase();
    let name = zone.strip_prefix("etc/").unwrap_or(&zone);
    let offset = name.trim_start_matches(['+', '-']);
    matches!(name, "utc" | "gmt" | "uct" | "zulu" | "universal" | "greenwich" | "z" | "utc0" | "gmt0" | "local")
        || !offset.is_empty() && offset.chars().all(|digit| matches!(digit, '0' | ':' | '.'))
        || zone.starts_with("interval") && !zone.contains(|digit: char| matches!(digit, '1'..='9'))
}

/// A time, in milliseconds unless it has a unit.
fn milliseconds(value: &str) -> Option<u64> {
    let value = value.trim();
    let digits = value.find(|c: char| !c.is_ascii_digit()).unwrap_or(value.len());
    let factor = match value[digits..].trim() {
        "" | "ms" => 1,
        "s" => 1_000,
        "min" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return None,
    };
    value[..digits].parse::<u64>().ok()?.checked_mul(factor)
}

/// Checks the values that have an effect.
fn check(name: &str, value: &str) -> Result<String, SqlError> {
    let invalid = || {
        let message = format!("invalid value for parameter \"{name}\": \"{value}\"");
        SqlError::new(sqlstate::INVALID_PARAMETER_VALUE, message)
    };
    match name {
        "statement_timeout" | "lock_timeout" | "idle_in_transaction_session_timeout" => {
            milliseconds(value).map(|_| value.to_owned()).ok_or_else(invalid)
        }
        LOG_MIN_DURATION if value.trim() == "-1" => Ok("-1".to_owned()),
        LOG_MIN_DURATION => milliseconds(value).map(|_| value.to_owned()).ok_or_else(invalid),
        "default_transaction_read_only" => {
            boolean(value).map(|value| if value { "on" } else { "off" }.to_owned()).ok_or_else(invalid)
        }
        "client_encoding" => match value.to_lowercase().replace(['-', '_'], "").as_str() {
            "utf8" | "unicode" => Ok("UTF8".to_owned()),
            _ => Err(invalid().with_hint("Only UTF8 is supported.")),
        },
        // Drivers send the time zone of their host when they connect. Output is always in UTC, and the setting shows this.
        "timezone" => Ok("UTC".to_owned()),
        // ISO is the only supported style. The order of input is always MDY.
        "datestyle" if value.to_lowercase().starts_with("iso") => Ok("ISO, MDY".to_owned()),
        "datestyle" => Err(invalid().with_hint("Only ISO is supported.")),
        "intervalstyle" if value.eq_ignore_ascii_case("postgres") => Ok("postgres".to_owned()),
        "intervalstyle" => Err(invalid().with_hint("Only postgres is supported.")),
        "standard_conforming_strings" if boolean(value) == Some(true) => Ok("on".to_owned()),
        "standard_conforming_strings" => Err(invalid()),
        "bytea_output" if value.eq_ignore_ascii_case("hex") => Ok("hex".to_owned()),
        "bytea_output" => Err(invalid().with_hint("Only hex is supported.")),
        // Every level gives serializable transactions.
        "default_transaction_isolation" | "transaction_isolation" => Ok("serializable".to_owned()),
        _ => Ok(value.to_owned()),
    }
}
