//! The tables of `pg_catalog` about databases, roles and settings.

use super::catalog::with_zeros;
use super::definitions::SystemTable;
use super::fill::fill;
use super::{Context, Generator, SessionRow, oids};
use crate::schema::Schema;
use crate::value::{Interval, Value};

type Rows = Vec<Vec<Value>>;

/// UTF8.
pub(super) const ENCODING: i32 = 6;
/// `pg_default`
const TABLESPACE: u32 = 1663;

pub(super) fn generator(name: &str) -> Option<Generator> {
    Some(match name {
        "pg_namespace" => pg_namespace,
        "pg_database" => pg_database,
        "pg_stat_database" => pg_stat_database,
        "pg_stat_activity" => pg_stat_activity,
        "pg_locks" => pg_locks,
        "pg_roles" => pg_roles,
        "pg_authid" => pg_authid,
        "pg_user" | "pg_shadow" => pg_user,
        "pg_settings" => pg_settings,
        "pg_timezone_names" => pg_timezone_names,
        _ => return None,
    })
}

pub(super) const NAMESPACES: [(u32, &str); 3] =
    [(oids::PG_CATALOG, "pg_catalog"), (oids::PUBLIC, "public"), (oids::INFORMATION_SCHEMA, "information_schema")];

fn pg_namespace(table: &SystemTable, _: &Schema, _: &Context) -> Rows {
    fill!(table, NAMESPACES, |(oid, name)| { oid: oid, nspname: name, nspowner: oids::ROLE })
}

/// The names of the databases, in order.
pub(super) fn databases(context: &Context) -> Vec<&str> {
    let mut names: Vec<&str> = context.databases.iter().map(String::as_str).collect();
    names.push(&context.database);
    names.sort_unstable();
    names.dedup();
    names
}

fn pg_database(table: &SystemTable, _: &Schema, context: &Context) -> Rows {
    fill!(table, databases(context), |name| {
        oid: oids::database(name),
        datname: name,
        datdba: oids::ROLE,
        encoding: ENCODING,
        datlocprovider: "c",
        datallowconn: true,
        datconnlimit: -1,
        dattablespace: TABLESPACE,
        datcollate: "C.UTF-8",
        datctype: "C.UTF-8",
    })
}

fn pg_stat_database(table: &SystemTable, _: &Schema, context: &Context) -> Rows {
    let sessions = sessions(context);
    let backends = |name: &str| sessions.iter().filter(|session| session.database == name).count();
    let rows = fill!(table, databases(context), |name| {
        datid: oids::database(name),
        datname: name,
        numbackends: i32::try_from(backends(name)).unwrap_or(i32::MAX),
    });
    with_zeros(table, rows)
}

fn sessions(context: &Context) -> Vec<SessionRow> {
    context.live.as_ref().map(|live| live.sessions()).unwrap_or_default()
}

fn pg_stat_activity(table: &SystemTable, _: &Schema, context: &Context) -> Rows {
    let time = |micros: Option<i64>| micros.map_or(Value::Null, Value::Timestamptz);
    fill!(table, sessions(context), |session| {
        datid: oids::database(&session.database),
        datname: &session.database,
        pid: session.process,
        usesysid: oids::ROLE,
        usename: &session.user,
        application_name: &session.application,
        client_addr: session.client.as_ref().map(|(address, _)| address),
        client_port: session.client.as_ref().map_or(-1, |(_, port)| i32::from(*port)),
        backend_start: time(Some(session.started)),
        xact_start: time(session.transaction_started),
        query_start: time(session.statement_started),
        state_change: time(Some(session.changed)),
        // A session that executes nothing waits for its client.
        wait_event_type: (session.state != "active").then_some("Client"),
        wait_event: (session.state != "active").then_some("ClientRead"),
        state: session.state,
        query: &*session.text,
        backend_type: "client backend",
    })
}

/// Each transaction in progress holds its own identifier. Locks of rows are at the leaders of their ranges, and are not
/// listed.
fn pg_locks(table: &SystemTable, _: &Schema, context: &Context) -> Rows {
    let open = sessions(context).into_iter().filter(|session| session.transaction_started.is_some());
    fill!(table, open, |session| {
        locktype: "virtualxid",
        virtualxid: format!("{}/1", session.process),
        virtualtransaction: format!("{}/1", session.process),
        pid: session.process,
        mode: "ExclusiveLock",
        granted: true,
        fastpath: true,
    })
}

fn pg_roles(table: &SystemTable, _: &Schema, context: &Context) -> Rows {
    fill!(table, [&context.user], |name| {
        rolname: name,
        rolsuper: true,
        rolinherit: true,
        rolcreaterole: true,
        rolcreatedb: true,
        rolcanlogin: true,
        rolreplication: false,
        rolconnlimit: -1,
        rolpassword: "********",
        rolbypassrls: true,
        oid: oids::ROLE,
    })
}

fn pg_authid(table: &SystemTable, _: &Schema, context: &Context) -> Rows {
    fill!(table, [&context.user], |name| {
        oid: oids::ROLE,
        rolname: name,
        rolsuper: true,
        rolinherit: true,
        rolcreaterole: true,
        rolcreatedb: true,
        rolcanlogin: true,
        rolbypassrls: true,
        rolconnlimit: -1,
    })
}

fn pg_user(table: &SystemTable, _: &Schema, context: &Context) -> Rows {
    fill!(table, [&context.user], |name| {
        usename: name,
        usesysid: oids::ROLE,
        usecreatedb: true,
        usesuper: true,
        userepl: false,
        usebypassrls: true,
    })
}

fn pg_settings(table: &SystemTable, _: &Schema, context: &Context) -> Rows {
    let mut settings: Vec<&(String, String)> = context.settings.iter().collect();
    settings.sort_unstable();
    fill!(table, settings, |(name, value)| {
        name: name,
        setting: value,
        context: "user",
        vartype: "string",
        source: "session",
        boot_val: value,
        reset_val: value,
        pending_restart: false,
    })
}

fn pg_timezone_names(table: &SystemTable, _: &Schema, _: &Context) -> Rows {
    fill!(table, ["UTC"], |name| {
        name: name,
        abbrev: name,
        utc_offset: Value::Interval(Interval::default()),
        is_dst: false,
    })
}
