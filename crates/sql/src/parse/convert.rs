//! Syntax trees to statements.

use sqlparser::ast::{self, ObjectName, ObjectType};

use super::definitions;
use super::types::sql_type;
use crate::error::{SqlError, sqlstate};
use crate::schema::NAME_BYTES_MAX;
use crate::statement::{Copy, CopySource, Definition, DropKind, Modes, Statement};

/// Cuts a name at PostgreSQL's maximum length.
pub(super) fn truncate(mut name: String) -> String {
    if name.len() > NAME_BYTES_MAX {
        let end = (0..=NAME_BYTES_MAX).rev().find(|at| name.is_char_boundary(*at)).unwrap_or(0);
        name.truncate(end);
    }
    name
}

/// A name as PostgreSQL folds it: to lower case unless it is quoted.
pub fn fold(name: &ast::Ident) -> String {
    truncate(if name.quote_style.is_some() { name.value.clone() } else { name.value.to_lowercase() })
}

/// The name of a relation without its schema, which must be `public`.
///
/// # Errors
/// 3F000: another schema; 0A000: another database.
pub fn simple_name(name: &ObjectName) -> Result<String, SqlError> {
    let parts: Option<Vec<String>> = name.0.iter().map(|part| part.as_ident().map(fold)).collect();
    match parts.as_deref() {
        Some([name]) => Ok(name.clone()),
        Some([schema, name]) if schema == "public" => Ok(name.clone()),
        Some([schema, _]) => {
            Err(SqlError::new(sqlstate::INVALID_SCHEMA_NAME, format!("schema \"{schema}\" does not exist")))
        }
        _ => Err(SqlError::unsupported(format!("cross-database reference \"{name}\""))),
    }
}

pub(super) fn names(names: &[ObjectName]) -> Result<Vec<String>, SqlError> {
    names.iter().map(simple_name).collect()
}

fn modes(modes: Vec<ast::TransactionMode>) -> Modes {
    let mut all = Modes::default();
    for mode in modes {
        match mode {
            ast::TransactionMode::AccessMode(ast::TransactionAccessMode::ReadOnly) => all.read_only = Some(true),
            ast::TransactionMode::AccessMode(ast::TransactionAccessMode::ReadWrite) => all.read_only = Some(false),
            // Every level gives serializable transactions.
            ast::TransactionMode::IsolationLevel(_) => {}
        }
    }
    all
}

/// The name of a setting, which may have a prefix.
fn setting(name: &ObjectName) -> String {
    name.to_string().replace('"', "").to_lowercase()
}

fn setting_value(value: &ast::Expr) -> Option<String> {
    match value {
        ast::Expr::Value(value) => match &value.value {
            ast::Value::SingleQuotedString(text) | ast::Value::EscapedStringLiteral(text) => Some(text.clone()),
            other => Some(other.to_string()),
        },
        ast::Expr::Identifier(name) if name.quote_style.is_none() && name.value.eq_ignore_ascii_case("default") => None,
        ast::Expr::Identifier(name) => Some(name.value.clone()),
        other => Some(other.to_string()),
    }
}

fn set(set: ast::Set) -> Result<Statement, SqlError> {
    Ok(match set {
        ast::Set::SingleAssignment { scope, variable, values, .. } => {
            let values: Option<Vec<String>> = values.iter().map(setting_value).collect();
            let local = scope == Some(ast::ContextModifier::Local);
            Statement::Set { name: setting(&variable), value: values.map(|values| values.join(", ")), local }
        }
        ast::Set::SetTimeZone { local, value } => {
            Statement::Set { name: "timezone".to_owned(), value: setting_value(&value), local }
        }
        ast::Set::SetNames { charset_name, .. } => {
            Statement::Set { name: "client_encoding".to_owned(), value: Some(charset_name.value), local: false }
        }
        ast::Set::SetNamesDefault {} => {
            Statement::Set { name: "client_encoding".to_owned(), value: None, local: false }
        }
        ast::Set::SetTransaction { modes: of, snapshot: None, session } => {
            Statement::SetTransaction { modes: modes(of), session }
        }
        other => return Err(SqlError::unsupported(other)),
    })
}

/// An `INSERT` with the `WITH` before it in its query.
fn with_queries(mut insert: ast::Insert, outer: Option<ast::With>) -> Result<ast::Insert, SqlError> {
    let (Some(mut outer), Some(source)) = (outer, &mut insert.source) else { return Ok(insert) };
    if let Some(inner) = source.with.take() {
        let name = |table: &ast::Cte| fold(&table.alias.name);
        let is_hidden = |table: &ast::Cte| inner.cte_tables.iter().any(|inner| name(inner) == name(table));
        if outer.cte_tables.iter().any(is_hidden) {
            return Err(SqlError::unsupported("WITH of the same names before INSERT and in its query"));
        }
        outer.recursive |= inner.recursive;
        outer.cte_tables.extend(inner.cte_tables);
    }
    source.with = Some(outer);
    Ok(insert)
}

fn drop_kind(kind: ObjectType) -> Result<DropKind, SqlError> {
    Ok(match kind {
        ObjectType::Table => DropKind::Table,
        ObjectType::Index => DropKind::Index,
        ObjectType::View => DropKind::View,
        ObjectType::Sequence => DropKind::Sequence,
        other => return Err(SqlError::unsupported(format!("DROP {other}"))),
    })
}

fn copy(
    source: ast::CopySource,
    to: bool,
    target: &ast::CopyTarget,
    options: &[ast::CopyOption],
    legacy: &[ast::CopyLegacyOption],
) -> Result<Statement, SqlError> {
    match (to, target) {
        (true, ast::CopyTarget::Stdout) | (false, ast::CopyTarget::Stdin) => {}
        _ => return Err(SqlError::unsupported("COPY of a file on the server")),
    }
    let source = match source {
        ast::CopySource::Table { table_name, columns } => {
            CopySource::Table(simple_name(&table_name)?, columns.iter().map(fold).collect())
        }
        ast::CopySource::Query(query) => CopySource::Query(query),
    };
    let option = |text: String| {
        let (name, value) = text.split_once(' ').unwrap_or((&text, ""));
        (name.to_lowercase(), value.trim_matches('\'').to_owned())
    };
    let options = options.iter().map(ToString::to_string).chain(legacy.iter().map(ToString::to_string)).map(option);
    Ok(Statement::Copy(Box::new(Copy { is_input: !to, source, options: options.collect() })))
}

pub(super) fn statement(parsed: ast::Statement) -> Result<Statement, SqlError> {
    use ast::Statement as S;
    Ok(match parsed {
        S::Query(query) => match *query.body {
            ast::SetExpr::Insert(S::Insert(insert)) => Statement::Insert(Box::new(with_queries(insert, query.with)?)),
            ast::SetExpr::Insert(_) | ast::SetExpr::Update(_) | ast::SetExpr::Delete(_) | ast::SetExpr::Merge(_) => {
                return Err(SqlError::unsupported("WITH before this statement"));
            }
            _ => Statement::Query(query, None),
        },
        S::Insert(insert) => Statement::Insert(Box::new(insert)),
        S::Update(update) => Statement::Update(Box::new(update)),
        S::Delete(delete) => Statement::Delete(Box::new(delete)),
        S::Truncate(truncate) => Statement::Truncate {
            tables: truncate.table_names.iter().map(|table| simple_name(&table.name)).collect::<Result<_, _>>()?,
            restart_identity: matches!(truncate.identity, Some(ast::TruncateIdentityOption::Restart)),
            cascade: matches!(truncate.cascade, Some(ast::CascadeOption::Cascade)),
        },
        S::Copy { source, to, target, options, legacy_options, .. } => {
            copy(source, to, &target, &options, &legacy_options)?
        }
        S::Explain { analyze, statement: inner, options, .. } => {
            let is_on = |option: &ast::UtilityOption| {
                let is_off = option.arg.as_ref().is_some_and(|value| {
                    matches!(value.to_string().to_lowercase().as_str(), "false" | "off" | "0" | "'false'" | "'off'")
                });
                option.name.value.eq_ignore_ascii_case("analyze") && !is_off
            };
            let analyze = analyze || options.is_some_and(|options| options.iter().any(is_on));
            Statement::Explain { analyze, statement: Box::new(statement(*inner)?) }
        }
        S::StartTransaction { modes: of, statements, .. } if statements.is_empty() => Statement::Begin(modes(of)),
        S::Commit { chain, .. } => Statement::Commit { chain },
        S::Rollback { chain, savepoint: None } => Statement::Rollback { chain },
        S::Rollback { savepoint: Some(name), .. } => Statement::RollbackTo(fold(&name)),
        S::Savepoint { name } => Statement::Savepoint(fold(&name)),
        S::ReleaseSavepoint { name } => Statement::Release(fold(&name)),
        S::Set(parsed) => set(parsed)?,
        S::Reset(reset) => Statement::Reset(match &reset.reset {
            ast::Reset::ALL => None,
            ast::Reset::ConfigurationParameter(name) => Some(setting(name)),
        }),
        S::ShowVariable { variable } => {
            let words: Vec<String> = variable.iter().map(|word| word.value.to_lowercase()).collect();
            Statement::Show(words.join(" "))
        }
        S::Prepare { name, data_types, statement: inner } => Statement::Prepare {
            name: fold(&name),
            types: data_types.iter().map(sql_type).collect::<Result<_, _>>()?,
            statement: Box::new(statement(*inner)?),
        },
        S::Execute { name: Some(name), parameters, .. } => Statement::Execute { name: simple_name(&name)?, parameters },
        S::Deallocate { name, .. } => {
            let is_all = name.quote_style.is_none() && name.value.eq_ignore_ascii_case("all");
            Statement::Deallocate((!is_all).then(|| fold(&name)))
        }
        S::Discard { .. } => Statement::Discard,
        S::Comment { .. } => Statement::NoEffect("COMMENT"),
        S::CreateExtension(_) => Statement::NoEffect("CREATE EXTENSION"),
        S::CreateTable(create) => Statement::Definition(definitions::create_table(&create)?),
        S::AlterTable(alter) => Statement::Definition(definitions::alter_table(alter)?),
        S::CreateIndex(create) => Statement::Definition(definitions::create_index(&create)?),
        S::CreateView(create) => Statement::Definition(definitions::create_view(&create)?),
        S::CreateSequence { temporary: false, if_not_exists, name, data_type, sequence_options, owned_by } => {
            let mut options = definitions::sequence_options(&sequence_options)?;
            options.sql_type = data_type.as_ref().map(sql_type).transpose()?;
            let owner = owned_by.as_ref().and_then(definitions::owner).transpose()?;
            Statement::Definition(Definition::CreateSequence {
                name: simple_name(&name)?,
                if_not_exists,
                options,
                owner,
            })
        }
        S::Drop { object_type, if_exists, names: of, cascade, .. } => Statement::Definition(Definition::Drop {
            kind: drop_kind(object_type)?,
            names: names(&of)?,
            if_exists,
            cascade,
        }),
        other => {
            let text = other.to_string();
            let words: Vec<&str> = text.split_whitespace().take(2).collect();
            return Err(SqlError::unsupported(words.join(" ")));
        }
    })
}
