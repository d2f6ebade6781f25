//! `ALTER TABLE`

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use sqlparser::ast::{self, Expr, Ident};

use super::create::{key_parts, set_not_null};
use super::{Changer, Work, check_default};
use crate::error::{SqlError, sqlstate};
use crate::ids::TableId;
use crate::parse::{fold, parse_expression};
use crate::schema::{Column, IndexState, PrimaryKey, Relation, Table, undefined_column};
use crate::statement::{AlterTable, Constraint};
use crate::types::SqlType;

/// An expression with another name of a column.
fn renamed(text: &str, from: &str, to: &str) -> Result<String, SqlError> {
    let mut expression = parse_expression(text)?;
    let to = Ident::with_quote('"', to);
    let _ = ast::visit_expressions_mut(&mut expression, |part| {
        match part {
            Expr::Identifier(name) if fold(name) == from => *name = to.clone(),
            Expr::CompoundIdentifier(names) => {
                if let Some(name) = names.last_mut().filter(|name| fold(name) == from) {
                    *name = to.clone();
                }
            }
            _ => {}
        }
        ControlFlow::<()>::Continue(())
    });
    Ok(expression.to_string())
}

impl Changer<'_> {
    pub(super) fn alter_table(
        &mut self,
        name: &str,
        if_exists: bool,
        changes: &[AlterTable],
    ) -> Result<bool, SqlError> {
        if let Some(Relation::View(_) | Relation::Sequence(_)) = self.before.relation(name)
            && changes.iter().all(|change| *change == AlterTable::NoEffect)
        {
            return Ok(false);
        }
        if if_exists && self.before.relation(name).is_none() {
            self.notices.push(format!("relation \"{name}\" does not exist, skipping"));
            return Ok(false);
        }
        let mut table = (**self.before.table_named(name)?).clone();
        for change in changes {
            self.change(&mut table, change)?;
        }
        self.builder.put_table(table)?;
        Ok(true)
    }

    fn change(&mut self, table: &mut Table, change: &AlterTable) -> Result<(), SqlError> {
        match change {
            AlterTable::AddColumn(definition, if_not_exists, constraints) => {
                if table.column_named(&definition.name).is_some() {
                    let message =
                        format!("column \"{}\" of relation \"{}\" already exists", definition.name, table.name);
                    if *if_not_exists {
                        self.notices.push(format!("{message}, skipping"));
                        return Ok(());
                    }
                    return Err(SqlError::new(sqlstate::DUPLICATE_COLUMN, message));
                }
                let mut taken = BTreeMap::new();
                let mut column = self.new_column(table, definition, &mut taken)?;
                let initial = check_default(self.before, &column)?.filter(|_| column.generated.is_none());
                let Some(initial) = initial else {
                    let what = format!("adding column \"{}\" with a default that is not constant", column.name);
                    return Err(SqlError::unsupported(what).with_hint("Add the column first, then its default."));
                };
                if column.not_null && initial.is_null() {
                    self.work.push(Work::CheckNotNull(table.id, column.id));
                }
                column.initial = initial.to_text();
                table.columns.push(column);
                constraints.iter().try_for_each(|constraint| self.add_later(table, constraint))
            }
            AlterTable::DropColumn(name, if_exists) => self.drop_column(table, name, *if_exists),
            AlterTable::RenameColumn(from, to) => {
                if table.column_named(to).is_some() {
                    let message = format!("column \"{to}\" of relation \"{}\" already exists", table.name);
                    return Err(SqlError::new(sqlstate::DUPLICATE_COLUMN, message));
                }
                if !self.before.dependent_views(&table.name).is_empty() {
                    return Err(SqlError::unsupported("renaming a column of a table with views"));
                }
                if self.before.children(table.id).next().is_some() || table.interleave.is_some() {
                    return Err(SqlError::unsupported("renaming a column of an interleaved table"));
                }
                column_mut(table, from)?.name.clone_from(to);
                for check in &mut table.checks {
                    check.expression = renamed(&check.expression, from, to)?;
                }
                Ok(())
            }
            AlterTable::Rename(to) => {
                self.is_taken(to, false)?;
                if let Some(view) = self.before.dependent_views(&table.name).first() {
                    return Err(SqlError::unsupported(format!("renaming a table that view {view} uses")));
                }
                table.name.clone_from(to);
                Ok(())
            }
            AlterTable::AddConstraint(constraint) => self.add_later(table, constraint),
            AlterTable::DropConstraint(name, if_exists) => self.drop_constraint(table, name, *if_exists),
            AlterTable::SetDefault(name, default) => {
                let column = column_mut(table, name)?;
                if column.generated.is_some() {
                    let message = format!("column \"{name}\" of relation \"{}\" is an identity column", table.name);
                    return Err(SqlError::new(sqlstate::SYNTAX_ERROR, message));
                }
                column.default.clone_from(default);
                check_default(self.before, column).map(|_| ())
            }
            AlterTable::SetNotNull(name, not_null) => {
                let id = column_mut(table, name)?.id;
                let is_pending = table.pending_key.as_ref().is_some_and(|key| key.has(id));
                if !not_null && (table.is_in_key(id) || is_pending) {
                    let message = format!("column \"{name}\" is in a primary key");
                    return Err(SqlError::new(sqlstate::INVALID_TABLE_DEFINITION, message));
                }
                let check = Work::CheckNotNull(table.id, id);
                let column = column_mut(table, name)?;
                let was_not_null = std::mem::replace(&mut column.not_null, *not_null);
                if *not_null && !was_not_null {
                    self.work.push(check);
                } else if !not_null {
                    table.jobs.iter_mut().for_each(|job| job.work.retain(|work| *work != check));
                }
                Ok(())
            }
            AlterTable::SetType(name, to) => {
                let id = column_mut(table, name)?.id;
                if table.is_in_key(id) && self.before.children(table.id).next().is_some() {
                    let what = "changing the type of a key column of a table with interleaved tables";
                    return Err(SqlError::unsupported(what));
                }
                set_type(table, name, to)
            }
            AlterTable::NoEffect => Ok(()),
        }
    }

    /// Adds a constraint to a table with existing rows.
    fn add_later(&mut self, table: &mut Table, constraint: &Constraint) -> Result<(), SqlError> {
        if let Constraint::PrimaryKey(name, columns) = constraint {
            if !table.primary_key.name.is_empty() || table.pending_key.is_some() {
                let message = format!("multiple primary keys for table \"{}\" are not allowed", table.name);
                return Err(SqlError::new(sqlstate::INVALID_TABLE_DEFINITION, message));
            }
            if !table.indexes.is_empty() {
                let what = "adding a primary key to a table with indexes";
                return Err(SqlError::unsupported(what).with_hint("Create the indexes after the primary key."));
            }
            let parts = key_parts(table, columns)?;
            let nullable = |column: &&Column| !column.not_null && parts.iter().any(|part| part.column == column.id);
            self.work
                .extend(table.columns.iter().filter(nullable).map(|column| Work::CheckNotNull(table.id, column.id)));
            set_not_null(table, &parts);
            let name = name.clone().unwrap_or_else(|| self.free_name(&[&table.name, "pkey"], &BTreeMap::new()));
            let storage = TableId(self.builder.new_id());
            table.pending_key = Some(PrimaryKey { storage, name, columns: parts });
            self.work.push(Work::FillPrimaryKey(table.id));
            return Ok(());
        }
        if table.pending_key.is_some() && matches!(constraint, Constraint::Unique(..)) {
            return Err(SqlError::unsupported("adding an index while a primary key is being added"));
        }
        let mut taken = BTreeMap::new();
        self.add_constraint(table, constraint, IndexState::WriteOnly, &mut taken)?;
        if let (Constraint::Check(..), Some(check)) = (constraint, table.checks.last()) {
            self.work.push(Work::CheckConstraint(table.id, check.name.clone()));
        }
        Ok(())
    }

    fn drop_column(&mut self, table: &mut Table, name: &str, if_exists: bool) -> Result<(), SqlError> {
        let Some(column) = table.column_named(name).filter(|column| !column.is_hidden).cloned() else {
            if if_exists {
                self.notices.push(format!("column \"{name}\" of relation \"{}\" does not exist, skipping", table.name));
                return Ok(());
            }
            return Err(undefined_column(table, name));
        };
        if table.is_in_key(column.id) || table.pending_key.as_ref().is_some_and(|key| key.has(column.id)) {
            return Err(SqlError::unsupported(format!("dropping column \"{name}\" of a primary key")));
        }
        if let Some(view) = self.before.dependent_views(&table.name).first() {
            let what = format!("column {name} of table {}", table.name);
            return Err(self.dependency(&what, &format!("view {view}")));
        }
        // As in PostgreSQL, indexes and constraints with the column are dropped, too.
        let (dropped, kept) = std::mem::take(&mut table.indexes).into_iter().partition(|index| {
            index.storing.contains(&column.id) || index.columns.iter().any(|part| part.column == column.id)
        });
        table.indexes = kept;
        let dropped: Vec<crate::schema::Index> = dropped;
        dropped.iter().for_each(|index| self.builder.discard(index.id.0));
        if let Some(generated) = column.generated {
            self.builder.remove_sequence(generated.sequence);
        }
        table.columns.retain(|candidate| candidate.id != column.id);
        let mut broken = Vec::new();
        for check in &table.checks {
            match super::check_condition(self.before, table, &check.expression) {
                Err(error) if error.sqlstate == sqlstate::UNDEFINED_COLUMN => broken.push(check.name.clone()),
                _ => {}
            }
        }
        table.checks.retain(|check| !broken.contains(&check.name));
        Ok(())
    }

    fn drop_constraint(&mut self, table: &mut Table, name: &str, if_exists: bool) -> Result<(), SqlError> {
        if table.primary_key.name == name && !name.is_empty() {
            return Err(SqlError::unsupported("dropping a primary key"));
        }
        if let Some(key) = table.pending_key.take_if(|key| key.name == name) {
            self.builder.discard(key.storage.0);
            return Ok(());
        }
        let found = table.indexes.iter().find(|index| index.is_constraint && index.name == name);
        if let Some(id) = found.map(|index| index.id) {
            table.indexes.retain(|index| index.id != id);
            self.builder.discard(id.0);
            return Ok(());
        }
        let before = table.checks.len();
        table.checks.retain(|check| check.name != name);
        if table.checks.len() == before {
            let message = format!("constraint \"{name}\" of relation \"{}\" does not exist", table.name);
            if if_exists {
                self.notices.push(format!("{message}, skipping"));
                return Ok(());
            }
            return Err(SqlError::new(sqlstate::UNDEFINED_OBJECT, message));
        }
        Ok(())
    }
}

fn column_mut<'a>(table: &'a mut Table, name: &str) -> Result<&'a mut Column, SqlError> {
    let error = undefined_column(table, name);
    table.columns.iter_mut().find(|column| column.name == name && !column.is_hidden).ok_or(error)
}

/// Permits only changes that keep all encodings valid: wider integers and longer text.
fn set_type(table: &mut Table, name: &str, to: &SqlType) -> Result<(), SqlError> {
    let column = column_mut(table, name)?;
    let is_wider = match (&column.sql_type, to) {
        (from, to) if from == to => true,
        (SqlType::Int2, SqlType::Int4 | SqlType::Int8) | (SqlType::Int4, SqlType::Int8) => true,
        (SqlType::Varchar(_), SqlType::Text | SqlType::Varchar(None)) | (SqlType::Text, SqlType::Varchar(None)) => true,
        (SqlType::Varchar(Some(from)), SqlType::Varchar(Some(to))) => from <= to,
        (SqlType::Numeric(Some((from, scale))), SqlType::Numeric(Some((to, same)))) => from <= to && scale == same,
        _ => false,
    };
    if !is_wider {
        let what = format!("changing column \"{name}\" from type {} to {to}", column.sql_type);
        return Err(SqlError::unsupported(what));
    }
    column.sql_type = to.clone();
    Ok(())
}
