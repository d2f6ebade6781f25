//! Messages to clients.

use bytes::{BufMut as _, BytesMut};
use sql::direct::OutputColumn;
use sql::{SqlError, SqlType, Value};

use crate::session::Status;

/// Messages that are not sent yet.
#[derive(Debug, Default)]
pub(super) struct Outgoing(pub(super) BytesMut);

/// The severity of an error or notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Severity {
    Notice,
    Warning,
    Error,
    Fatal,
}

fn text(out: &mut BytesMut, text: &str) {
    // A text ends at its first 0 byte.
    out.extend(text.bytes().take_while(|byte| *byte != 0));
    out.put_u8(0);
}

fn count(out: &mut BytesMut, count: usize) {
    out.put_u16(u16::try_from(count).unwrap_or(u16::MAX));
}

/// The format of a column: none for text, one for all, or one for each.
pub(super) fn format_of(formats: &[i16], column: usize) -> i16 {
    match formats {
        [] => 0,
        [format] => *format,
        formats => formats.get(column).copied().unwrap_or(0),
    }
}

impl Outgoing {
    fn message(&mut self, kind: u8, body: impl FnOnce(&mut BytesMut)) {
        self.0.put_u8(kind);
        let start = self.0.len();
        self.0.put_u32(0);
        body(&mut self.0);
        let length = u32::try_from(self.0.len() - start).unwrap_or(u32::MAX);
        self.0[start..start + 4].copy_from_slice(&length.to_be_bytes());
    }

    pub(super) fn authenticated(&mut self) {
        self.message(b'R', |out| out.put_u32(0));
    }

    pub(super) fn negotiate_version(&mut self, unknown: &[String]) {
        self.message(b'v', |out| {
            out.put_u32(0);
            out.put_u32(u32::try_from(unknown.len()).unwrap_or(u32::MAX));
            unknown.iter().for_each(|name| text(out, name));
        });
    }

    pub(super) fn key(&mut self, process: i32, secret: i32) {
        self.message(b'K', |out| {
            out.put_i32(process);
            out.put_i32(secret);
        });
    }

    pub(super) fn setting(&mut self, name: &str, value: &str) {
        self.message(b'S', |out| {
            text(out, name);
            text(out, value);
        });
    }

    pub(super) fn ready(&mut self, status: Status) {
        let status = match status {
            Status::Idle => b'I',
            Status::Block => b'T',
            Status::Failed => b'E',
        };
        self.message(b'Z', |out| out.put_u8(status));
    }

    pub(super) fn parse_complete(&mut self) {
        self.message(b'1', |_| ());
    }

    pub(super) fn bind_complete(&mut self) {
        self.message(b'2', |_| ());
    }

    pub(super) fn close_complete(&mut self) {
        self.message(b'3', |_| ());
    }

    pub(super) fn no_data(&mut self) {
        self.message(b'n', |_| ());
    }

    pub(super) fn suspended(&mut self) {
        self.message(b's', |_| ());
    }

    pub(super) fn empty_query(&mut self) {
        self.message(b'I', |_| ());
    }

    pub(super) fn complete(&mut self, tag: &str) {
        self.message(b'C', |out| text(out, tag));
    }

    pub(super) fn parameters(&mut self, types: &[SqlType]) {
        self.message(b't', |out| {
            count(out, types.len());
            types.iter().for_each(|of| out.put_u32(of.oid()));
        });
    }

    pub(super) fn columns(&mut self, columns: &[OutputColumn], formats: &[i16]) {
        self.message(b'T', |out| {
            count(out, columns.len());
            for (number, column) in columns.iter().enumerate() {
                text(out, &column.name);
                let (table, attribute) =
                    column.origin.map_or((0, 0), |(table, column)| (sql::system::oids::table(table), column.0));
                out.put_u32(table);
                out.put_u16(u16::try_from(attribute).unwrap_or(0));
                out.put_u32(column.sql_type.oid());
                out.put_i16(column.sql_type.length());
                out.put_i32(column.sql_type.modifier());
                out.put_i16(format_of(formats, number));
            }
        });
    }

    pub(super) fn row(&mut self, row: &[Value], formats: &[i16]) {
        self.message(b'D', |out| {
            count(out, row.len());
            let mut shown = String::new();
            for (number, value) in row.iter().enumerate() {
                if value.is_null() {
                    out.put_i32(-1);
                    continue;
                }
                let start = out.len();
                out.put_u32(0);
                if format_of(formats, number) == 1 {
                    value.write_binary(out);
                } else {
                    shown.clear();
                    value.write_text(&mut shown);
                    out.extend_from_slice(shown.as_bytes());
                }
                let length = u32::try_from(out.len() - start - 4).unwrap_or(u32::MAX);
                out[start..start + 4].copy_from_slice(&length.to_be_bytes());
            }
        });
    }

    /// The begin of COPY, in text format.
    pub(super) fn copy(&mut self, is_input: bool, columns: usize) {
        self.message(if is_input { b'G' } else { b'H' }, |out| {
            out.put_u8(0);
            count(out, columns);
            (0..columns).for_each(|_| out.put_u16(0));
        });
    }

    pub(super) fn copy_data(&mut self, data: &[u8]) {
        self.message(b'd', |out| out.extend_from_slice(data));
    }

    pub(super) fn copy_done(&mut self) {
        self.message(b'c', |_| ());
    }

    pub(super) fn notice(&mut self, notice: &SqlError) {
        let is_warning = !notice.sqlstate.starts_with("00");
        self.report(if is_warning { Severity::Warning } else { Severity::Notice }, notice);
    }

    pub(super) fn report(&mut self, severity: Severity, error: &SqlError) {
        let (kind, name) = match severity {
            Severity::Notice => (b'N', "NOTICE"),
            Severity::Warning => (b'N', "WARNING"),
            Severity::Error => (b'E', "ERROR"),
            Severity::Fatal => (b'E', "FATAL"),
        };
        self.message(kind, |out| {
            let mut field = |kind: u8, value: &str| {
                out.put_u8(kind);
                text(out, value);
            };
            field(b'S', name);
            field(b'V', name);
            field(b'C', error.sqlstate);
            field(b'M', &error.message);
            if let Some(detail) = &error.detail {
                field(b'D', detail);
            }
            if let Some(hint) = &error.hint {
                field(b'H', hint);
            }
            if let Some(context) = &error.context {
                field(b'W', context);
            }
            if let Some(position) = error.position {
                field(b'P', &position.to_string());
            }
            if let Some(object) = &error.object {
                field(b's', "public");
                field(b't', &object.table);
                if let Some(column) = &object.column {
                    field(b'c', column);
                }
                if let Some(constraint) = &object.constraint {
                    field(b'n', constraint);
                }
            }
            out.put_u8(0);
        });
    }
}
