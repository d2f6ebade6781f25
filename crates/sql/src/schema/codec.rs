//! The encoding of a schema: a version byte, and the fields in the format of `base::wire!`.

use std::sync::Arc;

use base::codec::{DecodeError, Reader, Text, Wire, WireAs, Writer};
use bytes::Bytes;

use super::{
    Check, Column, Contents, Garbage, Generated, GeneratedKind, Index, IndexState, Interleave, Job, KeyPart,
    PrimaryKey, Schema, Sequence, Table, View, Work,
};
use crate::error::SqlError;
use crate::keys::Direction;
use crate::types::SqlType;

/// The version of the encoding.
const FORMAT: u8 = 1;

/// An optional text, and its name in errors.
struct OptionalText(&'static str);

impl WireAs<Option<String>> for OptionalText {
    const BYTES_MIN: usize = 1;

    fn encode(&self, value: &Option<String>, out: &mut Writer) {
        out.bool(value.is_some());
        if let Some(text) = value {
            Text(self.0).encode(text, out);
        }
    }

    fn decode(&self, input: &mut Reader) -> Result<Option<String>, DecodeError> {
        if input.bool()? { Text(self.0).decode(input).map(Some) } else { Ok(None) }
    }
}

/// By PostgreSQL's identifier and modifier, which are stable.
impl Wire for SqlType {
    const BYTES_MIN: usize = 12;

    fn encode(&self, out: &mut Writer) {
        out.u32(self.oid());
        out.i64(i64::from(self.modifier()));
    }

    fn decode(input: &mut Reader) -> Result<Self, DecodeError> {
        let (oid, modifier) = (input.u32()?, input.i64()?);
        let with_length = || Self::from_oid(oid)?.with_modifier(i32::try_from(modifier).ok()?);
        with_length().ok_or(DecodeError::Invalid { what: "type" })
    }
}

base::wire! {
    enum Direction, "direction" {
        1 => Ascending,
        2 => Descending,
    }
}

base::wire! {
    enum GeneratedKind, "kind of generated column" {
        1 => Serial,
        2 => ByDefault,
        3 => Always,
    }
}

base::wire! {
    enum IndexState, "state of an index" {
        1 => WriteOnly,
        2 => Public,
        3 => Dropping,
    }
}

base::wire! {
    enum Garbage, "garbage" {
        1 => Prefix(id),
        2 => Interleaved { root, table },
    }
}

base::wire! {
    enum Work, "work on rows" {
        1 => FillIndex(table, index),
        2 => FillPrimaryKey(table),
        3 => CheckNotNull(table, column),
        4 => CheckConstraint(table, name as Text("name")),
    }
}

base::wire! { struct Job { id, work } }
base::wire! { struct KeyPart { column, direction } }
base::wire! { struct PrimaryKey { storage, name as Text("name"), columns } }
base::wire! { struct Generated { sequence, kind } }
base::wire! { struct Interleave { parent, on_delete_cascade } }
base::wire! { struct Check { name as Text("name"), expression as Text("expression") } }
base::wire! {
    struct Column {
        id,
        name as Text("name"),
        sql_type,
        not_null,
        default as OptionalText("default"),
        generated,
        initial as OptionalText("initial value"),
        is_hidden,
    }
}
base::wire! {
    struct Index { id, name as Text("name"), columns, is_unique, is_constraint, storing, state }
}
base::wire! {
    struct Table {
        id,
        name as Text("name"),
        columns,
        last_column,
        primary_key,
        pending_key,
        interleave,
        checks,
        indexes,
        jobs,
    }
}
base::wire! {
    struct View {
        id,
        name as Text("name"),
        columns as Text("column"),
        query as Text("query"),
        relations as Text("relation"),
    }
}
base::wire! {
    struct Sequence {
        id,
        name as Text("name"),
        sql_type,
        start,
        increment,
        min,
        max,
        is_cyclic,
        cache,
        owner,
    }
}

impl Schema {
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let Contents { version, last_id, tables, views, sequences, garbage, names: _ } = &*self.0;
        let mut out = Writer::new();
        out.u8(FORMAT);
        version.encode(&mut out);
        last_id.encode(&mut out);
        // The identifiers are also in the objects.
        tables.values().cloned().collect::<Vec<_>>().encode(&mut out);
        views.values().cloned().collect::<Vec<_>>().encode(&mut out);
        sequences.values().cloned().collect::<Vec<_>>().encode(&mut out);
        garbage.encode(&mut out);
        out.finish()
    }

    /// Decodes and checks the output of [`Schema::encode`].
    ///
    /// # Errors
    /// XX001: the bytes are not a schema, or one of a later format.
    pub fn decode(bytes: Bytes) -> Result<Self, SqlError> {
        let mut input = Reader::new(bytes);
        let contents = decode(&mut input).and_then(|contents| input.end().map(|()| contents));
        let mut contents = contents.map_err(|error| SqlError::corrupt("a schema").with_detail(error.to_string()))?;
        let check = |contents: &mut Contents| {
            contents.tables.values().try_for_each(|table| contents.check_table(table))?;
            contents.names = contents.collect_names()?;
            Ok::<_, SqlError>(())
        };
        check(&mut contents).map_err(|error| SqlError::corrupt("a schema").with_detail(error.message))?;
        Ok(Self(Arc::new(contents)))
    }
}

fn decode(input: &mut Reader) -> Result<Contents, DecodeError> {
    if input.u8()? != FORMAT {
        return Err(DecodeError::Invalid { what: "format of a schema" });
    }
    let (version, last_id) = (input.u64()?, input.u32()?);
    let tables: Vec<Arc<Table>> = Wire::decode(input)?;
    let views: Vec<Arc<View>> = Wire::decode(input)?;
    let sequences: Vec<Arc<Sequence>> = Wire::decode(input)?;
    let garbage = Wire::decode(input)?;
    Ok(Contents {
        version,
        last_id,
        tables: tables.into_iter().map(|table| (table.id, table)).collect(),
        views: views.into_iter().map(|view| (view.id, view)).collect(),
        sequences: sequences.into_iter().map(|sequence| (sequence.id, sequence)).collect(),
        garbage,
        names: std::collections::BTreeMap::new(),
    })
}
