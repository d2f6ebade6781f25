//! The merged columns of joins with `USING`, and of `NATURAL` joins. DataFusion shows them at their place in the left
//! table, and as those of the left table even if it has no row.

use std::ops::ControlFlow;

use sql::SqlError;
use sql::parse::fold;
use sql::schema::{Relation, Schema};
use sqlparser::ast::{
    self, BinaryOperator, ExcludeSelectItem, Expr, Ident, JoinConstraint, JoinOperator, ObjectName, Query, Select,
    SelectItem, SelectItemQualifiedWildcardKind, SetExpr, TableFactor, VisitMut, VisitorMut, WildcardAdditionalOptions,
};

use super::subqueries::name_of_table;
use super::{binary, call, plain_name};

struct Merged {
    name: String,
    value: Expr,
    /// The tables that have it.
    tables: Vec<String>,
}

fn constraint_of(join: &mut JoinOperator) -> Option<(&mut JoinConstraint, bool, bool)> {
    Some(match join {
        JoinOperator::Join(of) | JoinOperator::Inner(of) | JoinOperator::Left(of) | JoinOperator::LeftOuter(of) => {
            (of, true, false)
        }
        JoinOperator::Right(of) | JoinOperator::RightOuter(of) => (of, false, true),
        JoinOperator::FullOuter(of) => (of, false, false),
        _ => return None,
    })
}

/// The tables of an item of `FROM`, with their columns if these are known, and the merged columns.
#[derive(Default)]
struct Item {
    merged: Vec<Merged>,
    tables: Vec<(String, Option<Vec<String>>)>,
}

/// Replaces names and `*` that refer to merged columns, and `USING` by conditions.
pub(super) fn merge(query: &mut Query, schema: &Schema) -> Result<(), SqlError> {
    let SetExpr::Select(select) = &mut *query.body else { return Ok(()) };
    let mut from = select.from.clone();
    let mut items = Vec::with_capacity(from.len());
    for part in &mut from {
        match item_of(part, schema)? {
            Some(item) => items.push(item),
            // DataFusion's own way is right for inner and left joins.
            None => return Ok(()),
        }
    }
    let merged: Vec<&Merged> = items.iter().flat_map(|item| &item.merged).collect();
    if merged.is_empty() {
        return Ok(());
    }
    select.from = from;
    expand(select, &items);
    let mut replace = Replace { merged: &merged, depth: 0 };
    for item in &mut select.projection {
        if let SelectItem::UnnamedExpr(Expr::Identifier(name)) = item {
            let name = fold(name);
            if let Some(of) = merged.iter().find(|of| of.name == name) {
                *item = SelectItem::ExprWithAlias { expr: of.value.clone(), alias: Ident::with_quote('"', name) };
                continue;
            }
        }
        if let SelectItem::UnnamedExpr(expression) | SelectItem::ExprWithAlias { expr: expression, .. } = item {
            _ = VisitMut::visit(expression, &mut replace);
        }
    }
    _ = VisitMut::visit(&mut select.selection, &mut replace);
    _ = VisitMut::visit(&mut select.group_by, &mut replace);
    _ = VisitMut::visit(&mut select.having, &mut replace);
    let shown: Vec<String> = select.projection.iter().filter_map(name_of_item).collect();
    if let Some(order) = &mut query.order_by
        && let ast::OrderByKind::Expressions(parts) = &mut order.kind
    {
        for part in parts {
            let is_result = matches!(&part.expr, Expr::Identifier(name) if shown.contains(&fold(name)));
            if !is_result {
                _ = VisitMut::visit(&mut part.expr, &mut replace);
            }
        }
    }
    Ok(())
}

/// An item of `FROM` with conditions instead of `USING`. `None` if it has tables without names, or merged columns of an
/// unknown table.
fn item_of(from: &mut ast::TableWithJoins, schema: &Schema) -> Result<Option<Item>, SqlError> {
    let mut item = Item::default();
    let mut is_known = true;
    let add = |item: &mut Item, table: &TableFactor| match name_of_table(table) {
        Some(name) => {
            item.tables.push((name, columns_of(table, schema)));
            true
        }
        None => false,
    };
    is_known &= add(&mut item, &from.relation);
    for join in &mut from.joins {
        let before = item.tables.clone();
        is_known &= add(&mut item, &join.relation);
        let Some((constraint, is_left, is_right)) = constraint_of(&mut join.join_operator) else { continue };
        let unsupported = || SqlError::unsupported("USING or NATURAL in this outer join");
        let right = item.tables.last().cloned().unwrap_or_default();
        let names: Vec<String> = match constraint {
            JoinConstraint::Using(names) => names.iter().map(plain_name).collect(),
            JoinConstraint::Natural => match common(&before, &item.merged, &right.1) {
                Some(names) if names.is_empty() => continue,
                Some(names) => names,
                None if is_left => {
                    is_known = false;
                    continue;
                }
                None => return Err(unsupported()),
            },
            _ => continue,
        };
        if !is_known && !is_left {
            return Err(unsupported());
        }
        let (mut here, mut condition) = (Vec::new(), None);
        for name in names {
            let (left, mut tables) = match item.merged.iter().position(|of| of.name == name) {
                Some(at) => {
                    let of = item.merged.remove(at);
                    (of.value, of.tables)
                }
                None => match holder(&before, &name) {
                    Some(table) => (qualified(table, &name), vec![table.to_owned()]),
                    None if is_left => {
                        is_known = false;
                        continue;
                    }
                    None => return Err(unsupported()),
                },
            };
            tables.push(right.0.clone());
            let right = qualified(&right.0, &name);
            let equal = binary(left.clone(), BinaryOperator::Eq, right.clone());
            condition = Some(match condition {
                None => equal,
                Some(all) => binary(all, BinaryOperator::And, equal),
            });
            let value = match (is_left, is_right) {
                (true, _) => left,
                (_, true) => right,
                _ => call("coalesce", vec![left, right]),
            };
            here.push(Merged { name, value, tables });
        }
        if let Some(condition) = condition {
            *constraint = JoinConstraint::On(condition);
        }
        here.extend(std::mem::take(&mut item.merged));
        item.merged = here;
    }
    let is_left = |of: &Merged| matches!(of.value, Expr::CompoundIdentifier(_));
    if !is_known && !item.merged.iter().all(is_left) {
        return Err(SqlError::unsupported("USING or NATURAL in this outer join"));
    }
    Ok(is_known.then_some(item))
}

fn name_of_item(item: &SelectItem) -> Option<String> {
    match item {
        SelectItem::UnnamedExpr(expression) => Some(sql::direct::name_of(expression)),
        SelectItem::ExprWithAlias { alias, .. } => Some(fold(alias)),
        _ => None,
    }
}

fn qualified(table: &str, column: &str) -> Expr {
    Expr::CompoundIdentifier(vec![Ident::with_quote('"', table), Ident::with_quote('"', column)])
}

/// The columns of a table of the schema, if they keep their names.
fn columns_of(table: &TableFactor, schema: &Schema) -> Option<Vec<String>> {
    let TableFactor::Table { name, args: None, alias, .. } = table else { return None };
    if alias.as_ref().is_some_and(|alias| !alias.columns.is_empty()) {
        return None;
    }
    let Some(Relation::Table(id)) = schema.relation(&plain_name(name)) else { return None };
    let columns = schema.table(id)?.columns.iter().filter(|column| !column.is_hidden);
    Some(columns.map(|column| column.name.clone()).collect())
}

/// The table with a column: the only one, or the first one of which that is known.
fn holder<'a>(tables: &'a [(String, Option<Vec<String>>)], column: &str) -> Option<&'a str> {
    match tables {
        [(name, _)] => Some(name),
        tables => {
            let holds = |columns: &Option<Vec<String>>| {
                columns.as_ref().is_some_and(|columns| columns.iter().any(|name| name == column))
            };
            tables.iter().find(|(_, columns)| holds(columns)).map(|(name, _)| name.as_str())
        }
    }
}

/// The columns that a `NATURAL` join merges, if they are known.
fn common(
    left: &[(String, Option<Vec<String>>)],
    merged: &[Merged],
    right: &Option<Vec<String>>,
) -> Option<Vec<String>> {
    let right = right.as_ref()?;
    let mut names: Vec<String> = merged.iter().map(|of| of.name.clone()).collect();
    for (_, columns) in left {
        for name in columns.as_ref()? {
            if !names.contains(name) {
                names.push(name.clone());
            }
        }
    }
    names.retain(|name| right.contains(name));
    Some(names)
}

/// `*`, with the merged columns first.
fn expand(select: &mut Select, from: &[Item]) {
    let mut items = Vec::new();
    for item in std::mem::take(&mut select.projection) {
        if !matches!(item, SelectItem::Wildcard(_)) {
            items.push(item);
            continue;
        }
        for Item { merged, tables } in from {
            for of in merged {
                let alias = Ident::with_quote('"', of.name.clone());
                items.push(SelectItem::ExprWithAlias { expr: of.value.clone(), alias });
            }
            for (table, _) in tables {
                let names: Vec<ObjectName> = merged
                    .iter()
                    .filter(|of| of.tables.contains(table))
                    .map(|of| super::object_name(&of.name))
                    .collect();
                let options = WildcardAdditionalOptions {
                    opt_exclude: (!names.is_empty()).then_some(ExcludeSelectItem::Multiple(names)),
                    ..Default::default()
                };
                let table = SelectItemQualifiedWildcardKind::ObjectName(super::object_name(table));
                items.push(SelectItem::QualifiedWildcard(table, options));
            }
        }
    }
    select.projection = items;
}

struct Replace<'a> {
    merged: &'a [&'a Merged],
    depth: usize,
}

impl VisitorMut for Replace<'_> {
    type Break = ();

    fn pre_visit_query(&mut self, _: &mut Query) -> ControlFlow<()> {
        self.depth += 1;
        ControlFlow::Continue(())
    }

    fn post_visit_query(&mut self, _: &mut Query) -> ControlFlow<()> {
        self.depth = self.depth.saturating_sub(1);
        ControlFlow::Continue(())
    }

    fn post_visit_expr(&mut self, expression: &mut Expr) -> ControlFlow<()> {
        if let Expr::Identifier(name) = expression
            && self.depth == 0
        {
            let name = fold(name);
            if let Some(of) = self.merged.iter().find(|of| of.name == name) {
                *expression = of.value.clone();
            }
        }
        ControlFlow::Continue(())
    }
}
