//! Syntax trees of definitions to the form of [`crate::statement`].

use std::ops::ControlFlow;

use sqlparser::ast::{
    self, AlterColumnOperation, AlterTableOperation, ColumnDef, ColumnOption, Expr, GeneratedAs, IndexColumn,
    ObjectName, TableConstraint, UnaryOperator, visit_relations,
};

use super::convert::{fold, simple_name};
use super::types::{serial, sql_type};
use crate::error::{SqlError, sqlstate};
use crate::keys::Direction;
use crate::schema::GeneratedKind;
use crate::statement::{
    AlterTable, ColumnDefinition, Constraint, CreateIndex, CreateTable, Definition, SequenceOptions,
};

pub(super) fn create_table(create: &ast::CreateTable) -> Result<Definition, SqlError> {
    if create.temporary {
        return Err(SqlError::unsupported("a temporary table"));
    }
    if create.query.is_some() || create.like.is_some() || create.clone.is_some() {
        return Err(SqlError::unsupported("CREATE TABLE AS or LIKE"));
    }
    if create.inherits.is_some() || create.partition_of.is_some() || create.partition_by.is_some() {
        return Err(SqlError::unsupported("inheritance or partitioning"));
    }
    let mut table =
        CreateTable { name: simple_name(&create.name)?, if_not_exists: create.if_not_exists, ..CreateTable::default() };
    for column in &create.columns {
        table.columns.push(column_definition(column, &mut table.constraints)?);
    }
    for constraint in &create.constraints {
        table.constraints.push(table_constraint(constraint)?);
    }
    Ok(Definition::CreateTable(table))
}

fn column_definition(column: &ColumnDef, constraints: &mut Vec<Constraint>) -> Result<ColumnDefinition, SqlError> {
    let name = fold(&column.name);
    let mut serial_kind = None;
    let kind = match serial(&column.data_type) {
        Some((kind, generated)) => {
            serial_kind = Some(generated);
            kind
        }
        None => sql_type(&column.data_type)?,
    };
    let mut definition = ColumnDefinition {
        name: name.clone(),
        sql_type: kind,
        not_null: serial_kind.is_some(),
        default: None,
        generated: serial_kind.map(|kind| (kind, SequenceOptions::default())),
    };
    for option in &column.options {
        let label = option.name.as_ref().map(fold);
        let own = || vec![(name.clone(), Direction::Ascending)];
        match &option.option {
            ColumnOption::Null => {}
            ColumnOption::NotNull => definition.not_null = true,
            ColumnOption::Default(expression) => definition.default = Some(expression.to_string()),
            ColumnOption::PrimaryKey(key) => {
                constraints.push(Constraint::PrimaryKey(label.or_else(|| key.name.as_ref().map(fold)), own()));
            }
            ColumnOption::Unique(key) => {
                constraints.push(Constraint::Unique(label.or_else(|| key.name.as_ref().map(fold)), own()));
            }
            ColumnOption::Check(check) => {
                let label = label.or_else(|| check.name.as_ref().map(fold));
                constraints.push(Constraint::Check(label, condition(&check.expr)));
            }
            ColumnOption::Generated { generated_as, sequence_options: options, generation_expr: None, .. } => {
                let kind = match generated_as {
                    GeneratedAs::Always => GeneratedKind::Always,
                    GeneratedAs::ByDefault => GeneratedKind::ByDefault,
                    GeneratedAs::ExpStored => return Err(SqlError::unsupported("a generated column")),
                };
                let options = sequence_options(options.as_deref().unwrap_or_default())?;
                definition.generated = Some((kind, options));
                definition.not_null = true;
            }
            ColumnOption::Collation(collation) => check_collation(collation)?,
            ColumnOption::ForeignKey(_) => return Err(SqlError::unsupported("a foreign key")),
            other => return Err(SqlError::unsupported(other)),
        }
    }
    if definition.generated.is_some() && definition.default.is_some() {
        let message = format!("both default and identity specified for column \"{name}\"");
        return Err(SqlError::new(sqlstate::SYNTAX_ERROR, message));
    }
    Ok(definition)
}

/// Text is ordered by its bytes.
fn check_collation(collation: &ObjectName) -> Result<(), SqlError> {
    let name = collation.0.last().and_then(|part| part.as_ident()).map(|name| name.value.to_lowercase());
    match name.as_deref() {
        Some("c" | "posix" | "default" | "ucs_basic" | "c.utf8" | "c.utf-8") => Ok(()),
        _ => Err(SqlError::unsupported(format!("collation {collation}"))),
    }
}

fn key_columns(columns: &[IndexColumn]) -> Result<Vec<(String, Direction)>, SqlError> {
    let part = |column: &IndexColumn| {
        let name = match &column.column.expr {
            Expr::Identifier(name) => fold(name),
            other => return Err(SqlError::unsupported(format!("an index on the expression {other}"))),
        };
        let options = &column.column.options;
        let direction = if options.asc == Some(false) { Direction::Descending } else { Direction::Ascending };
        if options.nulls_first.is_some_and(|first| first != (direction == Direction::Descending)) {
            return Err(SqlError::unsupported("an index with this order of NULLs"));
        }
        Ok((name, direction))
    };
    columns.iter().map(part).collect()
}

/// The condition of a check, without parentheses around the whole of it.
fn condition(expression: &ast::Expr) -> String {
    match expression {
        ast::Expr::Nested(inner) => condition(inner),
        other => other.to_string(),
    }
}

fn table_constraint(constraint: &TableConstraint) -> Result<Constraint, SqlError> {
    Ok(match constraint {
        TableConstraint::PrimaryKey(key) => {
            Constraint::PrimaryKey(key.name.as_ref().map(fold), key_columns(&key.columns)?)
        }
        TableConstraint::Unique(key) => {
            if key.nulls_distinct == ast::NullsDistinctOption::NotDistinct {
                return Err(SqlError::unsupported("NULLS NOT DISTINCT"));
            }
            Constraint::Unique(key.name.as_ref().map(fold), key_columns(&key.columns)?)
        }
        TableConstraint::Check(check) => Constraint::Check(check.name.as_ref().map(fold), condition(&check.expr)),
        TableConstraint::ForeignKey(_) => return Err(SqlError::unsupported("a foreign key")),
        other => return Err(SqlError::unsupported(other)),
    })
}

fn number(expression: &Expr) -> Result<i64, SqlError> {
    let parsed = match expression {
        Expr::Value(value) => value.value.to_string().parse().ok(),
        Expr::UnaryOp { op: UnaryOperator::Minus, expr } => match &**expr {
            // With the sign, so that the least number can be read.
            Expr::Value(value) => format!("-{}", value.value).parse().ok(),
            _ => None,
        },
        _ => None,
    };
    let message = || format!("invalid value for a sequence option: \"{expression}\"");
    parsed.ok_or_else(|| SqlError::new(sqlstate::INVALID_PARAMETER_VALUE, message()))
}

pub(super) fn sequence_options(options: &[ast::SequenceOptions]) -> Result<SequenceOptions, SqlError> {
    let mut all = SequenceOptions::default();
    for option in options {
        match option {
            ast::SequenceOptions::IncrementBy(by, _) => all.increment = Some(number(by)?),
            ast::SequenceOptions::MinValue(min) => all.min = min.as_ref().map(number).transpose()?,
            ast::SequenceOptions::MaxValue(max) => all.max = max.as_ref().map(number).transpose()?,
            ast::SequenceOptions::StartWith(start, _) => all.start = Some(number(start)?),
            ast::SequenceOptions::Cache(cache) => all.cache = Some(number(cache)?),
            ast::SequenceOptions::Cycle(without) => all.is_cyclic = !without,
        }
    }
    Ok(all)
}

/// The table and column of `OWNED BY`; `None` for `OWNED BY NONE`.
pub(super) fn owner(name: &ObjectName) -> Option<Result<(String, String), SqlError>> {
    let mut parts: Vec<String> = name.0.iter().filter_map(|part| part.as_ident().map(fold)).collect();
    let column = parts.pop()?;
    if parts.is_empty() {
        let message = "invalid OWNED BY option";
        return (column != "none").then(|| Err(SqlError::new(sqlstate::SYNTAX_ERROR, message)));
    }
    Some(Ok((parts.pop()?, column)))
}

pub(super) fn create_index(create: &ast::CreateIndex) -> Result<Definition, SqlError> {
    if create.predicate.is_some() {
        return Err(SqlError::unsupported("a partial index"));
    }
    if create.nulls_distinct == Some(false) {
        return Err(SqlError::unsupported("NULLS NOT DISTINCT"));
    }
    match &create.using {
        None | Some(ast::IndexType::BTree) => {}
        Some(other) => return Err(SqlError::unsupported(format!("an index of type {other}"))),
    }
    Ok(Definition::CreateIndex(CreateIndex {
        name: create.name.as_ref().map(simple_name).transpose()?,
        table: simple_name(&create.table_name)?,
        if_not_exists: create.if_not_exists,
        columns: key_columns(&create.columns)?,
        is_unique: create.unique,
        storing: create.include.iter().map(fold).collect(),
    }))
}

pub(super) fn create_view(create: &ast::CreateView) -> Result<Definition, SqlError> {
    if create.materialized || create.temporary {
        return Err(SqlError::unsupported("a materialized or temporary view"));
    }
    let mut relations = Vec::new();
    // Names of common table expressions are among them, which only adds dependencies.
    let _ = visit_relations(&create.query, |name| {
        if let Ok(name) = simple_name(name)
            && !relations.contains(&name)
        {
            relations.push(name);
        }
        ControlFlow::<()>::Continue(())
    });
    Ok(Definition::CreateView {
        name: simple_name(&create.name)?,
        or_replace: create.or_replace,
        columns: create.columns.iter().map(|column| fold(&column.name)).collect(),
        query: create.query.to_string(),
        relations,
    })
}

pub(super) fn alter_table(alter: ast::AlterTable) -> Result<Definition, SqlError> {
    let mut changes = Vec::new();
    for operation in alter.operations {
        change(operation, &mut changes)?;
    }
    Ok(Definition::AlterTable { name: simple_name(&alter.name)?, if_exists: alter.if_exists, changes })
}

fn change(operation: AlterTableOperation, changes: &mut Vec<AlterTable>) -> Result<(), SqlError> {
    use AlterTableOperation as O;
    changes.push(match operation {
        O::AddColumn { if_not_exists, column_def, .. } => {
            let mut constraints = Vec::new();
            let definition = column_definition(&column_def, &mut constraints)?;
            AlterTable::AddColumn(definition, if_not_exists, constraints)
        }
        O::DropColumn { column_names, if_exists, .. } => {
            changes.extend(column_names.iter().map(|name| AlterTable::DropColumn(fold(name), if_exists)));
            return Ok(());
        }
        O::RenameColumn { old_column_name, new_column_name } => {
            AlterTable::RenameColumn(fold(&old_column_name), fold(&new_column_name))
        }
        O::RenameTable { table_name: ast::RenameTableNameKind::To(name) } => AlterTable::Rename(simple_name(&name)?),
        O::AddConstraint { constraint, .. } => AlterTable::AddConstraint(table_constraint(&constraint)?),
        O::DropConstraint { if_exists, name, .. } => AlterTable::DropConstraint(fold(&name), if_exists),
        O::AlterColumn { column_name, op } => {
            let name = fold(&column_name);
            match op {
                AlterColumnOperation::SetNotNull => AlterTable::SetNotNull(name, true),
                AlterColumnOperation::DropNotNull => AlterTable::SetNotNull(name, false),
                AlterColumnOperation::SetDefault { value } => AlterTable::SetDefault(name, Some(value.to_string())),
                AlterColumnOperation::DropDefault => AlterTable::SetDefault(name, None),
                AlterColumnOperation::SetDataType { data_type, using: None, .. } => {
                    AlterTable::SetType(name, sql_type(&data_type)?)
                }
                other => return Err(SqlError::unsupported(format!("ALTER COLUMN {other}"))),
            }
        }
        O::OwnerTo { .. } | O::ReplicaIdentity { .. } | O::ValidateConstraint { .. } => AlterTable::NoEffect,
        other => return Err(SqlError::unsupported(format!("ALTER TABLE {other}"))),
    });
    Ok(())
}
