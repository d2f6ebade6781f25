//! Changes of a schema, checked one by one.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{
    COLUMNS_MAX, Column, Contents, Garbage, INDEXES_MAX, IndexState, KEY_COLUMNS_MAX, KeyPart, LEVELS_MAX, PrimaryKey,
    RELATIONS_MAX, Relation, Schema, Sequence, Table, View, Work, undefined_column,
};
use crate::error::{SqlError, sqlstate};
use crate::ids::{ColumnId, IndexId, SequenceId, TableId, ViewId};
use crate::keys::{KeyColumn, is_key_type};
use crate::types::SqlType;

/// Builds the next version of a schema.
#[derive(Clone, Debug)]
pub struct Builder {
    contents: Contents,
}

fn invalid(message: impl Into<String>) -> SqlError {
    SqlError::new(sqlstate::INVALID_TABLE_DEFINITION, message)
}

impl Builder {
    /// Starts from a schema.
    #[must_use]
    pub fn new(schema: &Schema) -> Self {
        let mut contents = (*schema.0).clone();
        contents.version += 1;
        Self { contents }
    }

    /// The next version.
    ///
    /// # Errors
    /// It is not valid.
    pub fn finish(mut self) -> Result<Schema, SqlError> {
        // The key of a parent may have changed after its children.
        let children = self.contents.tables.values().filter(|table| table.interleave.is_some());
        children.into_iter().try_for_each(|child| self.contents.check_interleaving(child))?;
        self.contents.names = self.contents.collect_names()?;
        Ok(Schema(Arc::new(self.contents)))
    }

    /// The state so far.
    ///
    /// # Errors
    /// Two relations have the same name.
    pub fn so_far(&self) -> Result<Schema, SqlError> {
        self.clone().finish()
    }

    pub fn new_id(&mut self) -> u32 {
        self.contents.last_id = self.contents.last_id.saturating_add(1);
        self.contents.last_id
    }

    /// Adds or replaces a table.
    ///
    /// # Errors
    /// The table is not valid.
    pub fn put_table(&mut self, mut table: Table) -> Result<(), SqlError> {
        table.prune_jobs();
        self.contents.check_table(&table)?;
        self.contents.tables.insert(table.id, Arc::new(table));
        Ok(())
    }

    /// Removes a table with the sequences of its columns. The caller removes its children.
    pub fn remove_table(&mut self, schema: &Schema, id: TableId) {
        let Some(table) = self.contents.tables.remove(&id) else { return };
        self.contents.garbage.push(garbage_of(schema, &table));
        self.contents.garbage.extend(table.indexes.iter().map(|index| Garbage::Prefix(index.id.0)));
        self.contents.garbage.extend(table.pending_key.iter().map(|key| Garbage::Prefix(key.storage.0)));
        let owned = |sequence: &Sequence| sequence.owner.is_some_and(|(owner, _)| owner == id);
        let owned: Vec<SequenceId> =
            self.contents.sequences.values().filter(|sequence| owned(sequence)).map(|sequence| sequence.id).collect();
        owned.into_iter().for_each(|id| self.remove_sequence(id));
    }

    /// Gives a table and its indexes new identifiers for their keys, and discards the data.
    ///
    /// # Errors
    /// The table is not valid.
    pub fn truncate_table(&mut self, schema: &Schema, id: TableId) -> Result<(), SqlError> {
        let Some(mut table) = self.contents.tables.get(&id).map(|table| (**table).clone()) else { return Ok(()) };
        self.contents.garbage.push(garbage_of(schema, &table));
        table.primary_key.storage = TableId(self.new_id());
        if let Some(key) = &mut table.pending_key {
            self.contents.garbage.push(Garbage::Prefix(key.storage.0));
            key.storage = TableId(self.new_id());
        }
        for index in &mut table.indexes {
            self.contents.garbage.push(Garbage::Prefix(index.id.0));
            let new = IndexId(self.new_id());
            for work in table.jobs.iter_mut().flat_map(|job| &mut job.work) {
                match work {
                    Work::FillIndex(_, id) if *id == index.id => *id = new,
                    _ => {}
                }
            }
            index.id = new;
        }
        self.put_table(table)
    }

    /// Adds or replaces a view.
    pub fn put_view(&mut self, view: View) {
        self.contents.views.insert(view.id, Arc::new(view));
    }

    pub fn remove_view(&mut self, id: ViewId) {
        self.contents.views.remove(&id);
    }

    /// Adds or replaces a sequence.
    ///
    /// # Errors
    /// 22023: its bounds are contradictory.
    pub fn put_sequence(&mut self, sequence: Sequence) -> Result<(), SqlError> {
        check_sequence(&sequence)?;
        self.contents.sequences.insert(sequence.id, Arc::new(sequence));
        Ok(())
    }

    pub fn remove_sequence(&mut self, id: SequenceId) {
        if self.contents.sequences.remove(&id).is_some() {
            self.contents.garbage.push(Garbage::Prefix(id.0));
        }
    }

    /// Gives a sequence a new identifier, so that it starts again.
    ///
    /// # Errors
    /// A table that uses it is not valid.
    pub fn restart_sequence(&mut self, id: SequenceId) -> Result<(), SqlError> {
        let Some(sequence) = self.contents.sequences.get(&id).map(|sequence| (**sequence).clone()) else {
            return Ok(());
        };
        self.remove_sequence(id);
        let new = SequenceId(self.new_id());
        self.put_sequence(Sequence { id: new, ..sequence })?;
        let uses = |column: &Column| column.generated.is_some_and(|generated| generated.sequence == id);
        let users = self.contents.tables.values().filter(|table| table.columns.iter().any(uses));
        for mut table in users.map(|table| (**table).clone()).collect::<Vec<_>>() {
            for generated in table.columns.iter_mut().filter_map(|column| column.generated.as_mut()) {
                if generated.sequence == id {
                    generated.sequence = new;
                }
            }
            self.put_table(table)?;
        }
        Ok(())
    }

    /// Marks the data of an identifier for deletion.
    pub fn discard(&mut self, id: u32) {
        self.contents.garbage.push(Garbage::Prefix(id));
    }

    /// Removes the record of garbage that was deleted.
    pub fn collected(&mut self, deleted: &[Garbage]) {
        self.contents.garbage.retain(|garbage| !deleted.contains(garbage));
    }
}

/// The rows of a table, as they are before a change.
fn garbage_of(schema: &Schema, table: &Table) -> Garbage {
    match schema.ancestry(table)[..] {
        [root, _, ..] => Garbage::Interleaved { root: root.storage(), table: table.storage() },
        _ => Garbage::Prefix(table.storage().0),
    }
}

fn check_sequence(sequence: &Sequence) -> Result<(), SqlError> {
    let bad = |message: String| Err(SqlError::new(sqlstate::INVALID_PARAMETER_VALUE, message));
    if sequence.increment == 0 {
        return bad("INCREMENT must not be zero".to_owned());
    }
    if sequence.min >= sequence.max {
        return bad(format!("MINVALUE ({}) must be less than MAXVALUE ({})", sequence.min, sequence.max));
    }
    if sequence.start < sequence.min {
        return bad(format!("START value ({}) cannot be less than MINVALUE ({})", sequence.start, sequence.min));
    }
    if sequence.start > sequence.max {
        return bad(format!("START value ({}) cannot be greater than MAXVALUE ({})", sequence.start, sequence.max));
    }
    if sequence.cache < 1 {
        return bad(format!("CACHE ({}) must be greater than zero", sequence.cache));
    }
    let (min, max) = match sequence.sql_type {
        SqlType::Int2 => (i64::from(i16::MIN), i64::from(i16::MAX)),
        SqlType::Int4 => (i64::from(i32::MIN), i64::from(i32::MAX)),
        SqlType::Int8 => (i64::MIN, i64::MAX),
        _ => return bad("sequence type must be smallint, integer, or bigint".to_owned()),
    };
    if sequence.min < min || sequence.max > max {
        return bad(format!("sequence bounds are out of range for type {}", sequence.sql_type));
    }
    Ok(())
}

impl Contents {
    pub(super) fn collect_names(&self) -> Result<std::collections::BTreeMap<String, Relation>, SqlError> {
        let of_tables = self.tables.values().flat_map(|table| {
            let key = &table.primary_key.name;
            let pending = table.pending_key.iter().map(|key| &key.name);
            let keys = std::iter::once(key).chain(pending).filter(|name| !name.is_empty());
            let keys = keys.map(|name| (name, Relation::Index(table.id, None)));
            let live = table.indexes.iter().filter(|index| index.state != IndexState::Dropping);
            let indexes = live.map(|index| (&index.name, Relation::Index(table.id, Some(index.id))));
            std::iter::once((&table.name, Relation::Table(table.id))).chain(keys).chain(indexes)
        });
        let of_views = self.views.values().map(|view| (&view.name, Relation::View(view.id)));
        let of_sequences = self.sequences.values().map(|sequence| (&sequence.name, Relation::Sequence(sequence.id)));
        let mut names = std::collections::BTreeMap::new();
        for (name, relation) in of_tables.chain(of_views).chain(of_sequences) {
            if names.insert(name.clone(), relation).is_some() {
                let message = format!("relation \"{name}\" already exists");
                return Err(SqlError::new(sqlstate::DUPLICATE_TABLE, message));
            }
        }
        if names.len() > RELATIONS_MAX {
            let message = format!("a database has at most {RELATIONS_MAX} relations");
            return Err(SqlError::new(sqlstate::PROGRAM_LIMIT_EXCEEDED, message));
        }
        Ok(names)
    }

    /// Checks the conditions that every decoded or changed table must satisfy.
    pub(super) fn check_table(&self, table: &Table) -> Result<(), SqlError> {
        if table.columns.len() > COLUMNS_MAX {
            let message = format!("tables can have at most {COLUMNS_MAX} columns");
            return Err(SqlError::new(sqlstate::TOO_MANY_COLUMNS, message));
        }
        let mut names = BTreeSet::new();
        let mut ids = BTreeSet::new();
        for column in &table.columns {
            check_column(column)?;
            if !names.insert(&column.name) {
                let message = format!("column \"{}\" specified more than once", column.name);
                return Err(SqlError::new(sqlstate::DUPLICATE_COLUMN, message));
            }
            if column.id == crate::cells::MARKER || column.id > table.last_column || !ids.insert(column.id) {
                return Err(SqlError::corrupt("a table's columns"));
            }
        }
        check_key(table, &table.primary_key)?;
        table.pending_key.iter().try_for_each(|key| check_key(table, key))?;
        self.check_indexes(table)?;
        let mut names = BTreeSet::new();
        for check in &table.checks {
            if !names.insert(&check.name) {
                let message = format!("constraint \"{}\" for relation \"{}\" already exists", check.name, table.name);
                return Err(SqlError::new(sqlstate::DUPLICATE_OBJECT, message));
            }
        }
        self.check_interleaving(table)
    }

    fn check_indexes(&self, table: &Table) -> Result<(), SqlError> {
        if table.indexes.len() > INDEXES_MAX {
            let message = format!("tables can have at most {INDEXES_MAX} indexes");
            return Err(SqlError::new(sqlstate::PROGRAM_LIMIT_EXCEEDED, message));
        }
        let mut ids: BTreeSet<IndexId> = BTreeSet::new();
        for index in &table.indexes {
            check_parts(table, &index.columns)?;
            if let Some(missing) = index.storing.iter().find(|id| table.column(**id).is_none()) {
                return Err(undefined_column(table, &format!("#{missing}")));
            }
            if !ids.insert(index.id) || index.id.0 > self.last_id {
                return Err(SqlError::corrupt("an index's identifier"));
            }
        }
        Ok(())
    }

    fn check_interleaving(&self, table: &Table) -> Result<(), SqlError> {
        let mut child = table;
        let mut levels = 1;
        while let Some(interleave) = child.interleave {
            let parent =
                self.tables.get(&interleave.parent).ok_or_else(|| SqlError::corrupt("an interleaved table"))?;
            levels += 1;
            if levels > LEVELS_MAX {
                return Err(invalid(format!("tables can be interleaved in at most {LEVELS_MAX} levels")));
            }
            check_start_of_key(child, parent)?;
            child = parent;
        }
        Ok(())
    }
}

/// The child's primary key starts with the parent's: the same names, types and directions.
fn check_start_of_key(child: &Table, parent: &Table) -> Result<(), SqlError> {
    if parent.primary_key.name.is_empty() {
        return Err(invalid(format!("parent table \"{}\" has no primary key", parent.name)));
    }
    let describe = |table: &Table, part: &KeyPart| {
        let column = table.column(part.column)?;
        Some((column.name.clone(), KeyColumn { sql_type: column.sql_type.clone(), direction: part.direction }))
    };
    for (number, part) in parent.primary_key.columns.iter().enumerate() {
        let wanted = describe(parent, part);
        let found = child.primary_key.columns.get(number).and_then(|part| describe(child, part));
        if wanted != found {
            let name = wanted.map_or_else(String::new, |(name, _)| name);
            let message = format!(
                "primary key of \"{}\" must start with that of its parent table \"{}\"",
                child.name, parent.name
            );
            let detail = format!("Column {} must be \"{name}\", with the same type and order.", number + 1);
            return Err(invalid(message).with_detail(detail));
        }
    }
    Ok(())
}

fn check_column(column: &Column) -> Result<(), SqlError> {
    if matches!(column.sql_type, SqlType::Interval | SqlType::Array(_)) {
        let what = format!("a column of type {}", column.sql_type);
        return Err(SqlError::unsupported(what));
    }
    Ok(())
}

fn check_parts(table: &Table, parts: &[KeyPart]) -> Result<(), SqlError> {
    if parts.is_empty() {
        return Err(invalid("a key must have at least one column"));
    }
    if parts.len() > KEY_COLUMNS_MAX {
        let message = format!("cannot use more than {KEY_COLUMNS_MAX} columns in an index");
        return Err(SqlError::new("54011", message));
    }
    let mut seen: BTreeSet<ColumnId> = BTreeSet::new();
    for part in parts {
        let Some(column) = table.column(part.column) else {
            return Err(SqlError::corrupt("a column of a key"));
        };
        if !is_key_type(&column.sql_type) {
            return Err(SqlError::unsupported(format!("a key column of type {}", column.sql_type)));
        }
        if !seen.insert(part.column) {
            let message = format!("column \"{}\" appears twice in a key", column.name);
            return Err(SqlError::new(sqlstate::DUPLICATE_COLUMN, message));
        }
    }
    Ok(())
}

fn check_key(table: &Table, key: &PrimaryKey) -> Result<(), SqlError> {
    check_parts(table, &key.columns)?;
    let columns = key.columns.iter().filter_map(|part| table.column(part.column));
    let nullable = columns.into_iter().find(|column| !table.is_required(column));
    match nullable {
        Some(column) => Err(invalid(format!("column \"{}\" in a primary key is not marked NOT NULL", column.name))),
        None => Ok(()),
    }
}
