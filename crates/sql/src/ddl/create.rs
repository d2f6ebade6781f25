//! `CREATE TABLE`, `CREATE INDEX`, `CREATE VIEW`, `CREATE SEQUENCE`.

use std::collections::BTreeMap;

use super::{Changer, Work, check_column_type, check_condition, check_default};
use crate::error::{SqlError, sqlstate};
use crate::ids::{ColumnId, IndexId, SequenceId, TableId, ViewId};
use crate::keys::Direction;
use crate::schema::{
    Check, Column, Generated, Index, IndexState, Interleave, KeyPart, PrimaryKey, Relation, Sequence, Table, View,
    undefined_column,
};
use crate::statement::{ColumnDefinition, Constraint, CreateIndex, CreateTable, SequenceOptions};
use crate::types::SqlType;

impl Changer<'_> {
    pub(super) fn create_table(&mut self, create: &CreateTable) -> Result<bool, SqlError> {
        if self.is_taken(&create.name, create.if_not_exists)? {
            return Ok(false);
        }
        let id = TableId(self.builder.new_id());
        let mut table = Table {
            id,
            name: create.name.clone(),
            columns: Vec::new(),
            last_column: ColumnId(0),
            primary_key: PrimaryKey { storage: id, name: String::new(), columns: Vec::new() },
            pending_key: None,
            interleave: None,
            checks: Vec::new(),
            indexes: Vec::new(),
            jobs: Vec::new(),
        };
        let mut taken = BTreeMap::from([(create.name.clone(), ())]);
        for definition in &create.columns {
            let column = self.new_column(&mut table, definition, &mut taken)?;
            table.columns.push(column);
        }
        if let Some((parent, on_delete_cascade)) = &create.interleave {
            let parent = self.before.table_named(parent)?.id;
            table.interleave = Some(Interleave { parent, on_delete_cascade: *on_delete_cascade });
        }
        self.add_primary_key(&mut table, &create.constraints, &mut taken)?;
        for constraint in &create.constraints {
            self.add_constraint(&mut table, constraint, IndexState::Public, &mut taken)?;
        }
        self.builder.put_table(table)?;
        Ok(true)
    }

    /// A new column of a table, with its sequence.
    pub(super) fn new_column(
        &mut self,
        table: &mut Table,
        definition: &ColumnDefinition,
        taken: &mut BTreeMap<String, ()>,
    ) -> Result<Column, SqlError> {
        let name = &definition.name;
        if table.column_named(name).is_some() {
            let message = format!("column \"{name}\" specified more than once");
            return Err(SqlError::new(sqlstate::DUPLICATE_COLUMN, message));
        }
        check_column_type(name, &definition.sql_type)?;
        table.last_column = ColumnId(table.last_column.0.saturating_add(1));
        let mut column = Column {
            id: table.last_column,
            name: name.clone(),
            sql_type: definition.sql_type.clone(),
            not_null: definition.not_null,
            default: definition.default.clone(),
            generated: None,
            initial: None,
            is_hidden: false,
        };
        if let Some((kind, options)) = &definition.generated {
            if !column.sql_type.is_integer() {
                let message = "identity column type must be smallint, integer, or bigint";
                return Err(SqlError::new(sqlstate::INVALID_PARAMETER_VALUE, message));
            }
            let id = SequenceId(self.builder.new_id());
            let sequence_name = self.free_name(&[&table.name, name, "seq"], taken);
            taken.insert(sequence_name.clone(), ());
            let options = SequenceOptions { sql_type: Some(column.sql_type.clone()), ..options.clone() };
            self.builder.put_sequence(sequence(id, sequence_name, &options, Some((table.id, column.id))))?;
            column.generated = Some(Generated { sequence: id, kind: *kind });
        }
        check_default(self.before, &column)?;
        Ok(column)
    }

    /// The declared primary key, or a hidden column.
    fn add_primary_key(
        &mut self,
        table: &mut Table,
        constraints: &[Constraint],
        taken: &mut BTreeMap<String, ()>,
    ) -> Result<(), SqlError> {
        let declared = constraints.iter().filter_map(|constraint| match constraint {
            Constraint::PrimaryKey(name, columns) => Some((name, columns)),
            _ => None,
        });
        let declared: Vec<_> = declared.collect();
        match declared[..] {
            [] if table.interleave.is_some() => {
                let message = format!("interleaved table \"{}\" needs a primary key", table.name);
                Err(SqlError::new(sqlstate::INVALID_TABLE_DEFINITION, message))
            }
            [] => {
                table.last_column = ColumnId(table.last_column.0.saturating_add(1));
                let column = table.last_column;
                let is_free = |name: &String| table.column_named(name).is_none();
                let name = (0_u32..).map(|number| format!("rowid{number}")).find(is_free).unwrap_or_default();
                table.columns.push(Column {
                    id: column,
                    name,
                    sql_type: SqlType::Uuid,
                    not_null: true,
                    default: Some("gen_random_uuid()".to_owned()),
                    generated: None,
                    initial: None,
                    is_hidden: true,
                });
                table.primary_key.columns = vec![KeyPart { column, direction: Direction::Ascending }];
                Ok(())
            }
            [(name, columns)] => {
                let parts = key_parts(table, columns)?;
                set_not_null(table, &parts);
                let name = name.clone().unwrap_or_else(|| self.free_name(&[&table.name, "pkey"], taken));
                taken.insert(name.clone(), ());
                table.primary_key = PrimaryKey { storage: table.id, name, columns: parts };
                Ok(())
            }
            _ => {
                let message = format!("multiple primary keys for table \"{}\" are not allowed", table.name);
                Err(SqlError::new(sqlstate::INVALID_TABLE_DEFINITION, message))
            }
        }
    }

    /// Adds a constraint other than the primary key.
    pub(super) fn add_constraint(
        &mut self,
        table: &mut Table,
        constraint: &Constraint,
        state: IndexState,
        taken: &mut BTreeMap<String, ()>,
    ) -> Result<(), SqlError> {
        match constraint {
            Constraint::PrimaryKey(..) => Ok(()),
            Constraint::Unique(name, columns) => {
                let names: Vec<&str> = columns.iter().map(|(name, _)| name.as_str()).collect();
                let parts: Vec<&str> =
                    std::iter::once(table.name.as_str()).chain(names).chain(std::iter::once("key")).collect();
                let name = name.clone().unwrap_or_else(|| self.free_name(&parts, taken));
                taken.insert(name.clone(), ());
                let index = Index {
                    id: IndexId(self.builder.new_id()),
                    name,
                    columns: key_parts(table, columns)?,
                    is_unique: true,
                    is_constraint: true,
                    storing: Vec::new(),
                    state,
                };
                if state == IndexState::WriteOnly {
                    self.work.push(Work::FillIndex(table.id, index.id));
                }
                table.indexes.push(index);
                Ok(())
            }
            Constraint::Check(name, expression) => {
                check_condition(self.before, table, expression)?;
                let is_free = |name: &String| table.checks.iter().all(|check| check.name != *name);
                // The name contains that of the column if there is only one.
                let base = match crate::system::columns_of(table, expression)[..] {
                    [column] => {
                        let column = table.column(column).map_or("", |column| column.name.as_str());
                        format!("{}_{column}_check", table.name)
                    }
                    _ => format!("{}_check", table.name),
                };
                let derived = std::iter::once(base.clone()).chain((1_u32..).map(|number| format!("{base}{number}")));
                let name =
                    name.clone().unwrap_or_else(|| derived.into_iter().find(is_free).unwrap_or_else(|| base.clone()));
                table.checks.push(Check { name, expression: expression.clone() });
                Ok(())
            }
        }
    }

    pub(super) fn create_index(&mut self, create: &CreateIndex) -> Result<bool, SqlError> {
        let mut table = (**self.before.table_named(&create.table)?).clone();
        if let Some(name) = &create.name
            && self.is_taken(name, create.if_not_exists)?
        {
            return Ok(false);
        }
        if table.pending_key.is_some() {
            return Err(SqlError::unsupported("adding an index while a primary key is being added"));
        }
        let columns = key_parts(&table, &create.columns)?;
        let storing = create
            .storing
            .iter()
            .map(|name| table.column_named(name).map(|column| column.id).ok_or_else(|| undefined_column(&table, name)));
        let storing = storing.collect::<Result<Vec<_>, _>>()?;
        let names: Vec<&str> = create.columns.iter().map(|(name, _)| name.as_str()).collect();
        let parts: Vec<&str> =
            std::iter::once(table.name.as_str()).chain(names).chain(std::iter::once("idx")).collect();
        let name = create.name.clone().unwrap_or_else(|| self.free_name(&parts, &BTreeMap::new()));
        let id = IndexId(self.builder.new_id());
        let index = Index {
            id,
            name,
            columns,
            is_unique: create.is_unique,
            is_constraint: false,
            storing,
            state: IndexState::WriteOnly,
        };
        self.work.push(Work::FillIndex(table.id, id));
        table.indexes.push(index);
        self.builder.put_table(table)?;
        Ok(true)
    }

    pub(super) fn create_view(
        &mut self,
        name: &str,
        or_replace: bool,
        columns: &[String],
        query: &str,
        relations: &[String],
    ) -> Result<bool, SqlError> {
        let id = match self.before.relation(name) {
            Some(Relation::View(id)) if or_replace => {
                if self.before.dependent_views(name).contains(name) || relations.iter().any(|used| used == name) {
                    let message = format!("infinite recursion detected in view \"{name}\"");
                    return Err(SqlError::new(sqlstate::INVALID_OBJECT_DEFINITION, message));
                }
                id
            }
            _ => {
                self.is_taken(name, false)?;
                ViewId(self.builder.new_id())
            }
        };
        let (name, query) = (name.to_owned(), query.to_owned());
        self.builder.put_view(View { id, name, columns: columns.to_vec(), query, relations: relations.to_vec() });
        Ok(true)
    }

    pub(super) fn create_sequence(
        &mut self,
        name: &str,
        if_not_exists: bool,
        options: &SequenceOptions,
        owner: Option<&(String, String)>,
    ) -> Result<bool, SqlError> {
        if self.is_taken(name, if_not_exists)? {
            return Ok(false);
        }
        let owner = owner.map(|(table, column)| {
            let table = self.before.table_named(table)?;
            let column = table.column_named(column).ok_or_else(|| undefined_column(table, column))?;
            Ok::<_, SqlError>((table.id, column.id))
        });
        let owner = owner.transpose()?;
        let id = SequenceId(self.builder.new_id());
        self.builder.put_sequence(sequence(id, name.to_owned(), options, owner))?;
        Ok(true)
    }
}

/// A sequence with PostgreSQL's defaults.
fn sequence(id: SequenceId, name: String, options: &SequenceOptions, owner: Option<(TableId, ColumnId)>) -> Sequence {
    let sql_type = options.sql_type.clone().unwrap_or(SqlType::Int8);
    let (lowest, highest) = match sql_type {
        SqlType::Int2 => (i64::from(i16::MIN), i64::from(i16::MAX)),
        SqlType::Int4 => (i64::from(i32::MIN), i64::from(i32::MAX)),
        _ => (i64::MIN, i64::MAX),
    };
    let increment = options.increment.unwrap_or(1);
    let min = options.min.unwrap_or(if increment > 0 { 1 } else { lowest });
    let max = options.max.unwrap_or(if increment > 0 { highest } else { -1 });
    let start = options.start.unwrap_or(if increment > 0 { min } else { max });
    let cache = options.cache.unwrap_or(1);
    Sequence { id, name, sql_type, start, increment, min, max, is_cyclic: options.is_cyclic, cache, owner }
}

/// The columns of a key by their names.
pub(super) fn key_parts(table: &Table, columns: &[(String, Direction)]) -> Result<Vec<KeyPart>, SqlError> {
    let part = |(name, direction): &(String, Direction)| {
        let column = table.column_named(name).filter(|column| !column.is_hidden).ok_or_else(|| {
            let message = format!("column \"{name}\" named in key does not exist");
            SqlError { message, ..undefined_column(table, name) }
        })?;
        Ok(KeyPart { column: column.id, direction: *direction })
    };
    columns.iter().map(part).collect()
}

pub(super) fn set_not_null(table: &mut Table, parts: &[KeyPart]) {
    for column in &mut table.columns {
        column.not_null |= parts.iter().any(|part| part.column == column.id);
    }
}
