//! Names in a schema, with the errors and hints of PostgreSQL.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{Relation, Schema, Sequence, Table};
use crate::error::{SqlError, sqlstate};

/// The most similar of some names, if it is similar enough to be meant.
#[must_use]
pub fn similar<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // Names are short, but column references of a statement are not bounded.
    let name: Vec<char> = name.chars().take(super::NAME_BYTES_MAX).collect();
    let with_distance = candidates.into_iter().map(|candidate| (distance(&name, candidate), candidate));
    let closest = with_distance.min_by_key(|(distance, _)| *distance);
    // The limits of PostgreSQL.
    closest.filter(|(distance, _)| *distance <= 3 && *distance <= name.len() / 2).map(|(_, candidate)| candidate)
}

fn distance(a: &[char], b: &str) -> usize {
    let mut row: Vec<usize> = (0..=a.len()).collect();
    for (number, b) in b.chars().take(super::NAME_BYTES_MAX).enumerate() {
        let mut diagonal = row[0];
        row[0] = number + 1;
        for (at, a) in a.iter().enumerate() {
            let substituted = diagonal + usize::from(*a != b);
            diagonal = row[at + 1];
            row[at + 1] = substituted.min(row[at] + 1).min(diagonal + 1);
        }
    }
    row[a.len()]
}

/// The error for a column that a table does not have.
#[must_use]
pub fn undefined_column(table: &Table, name: &str) -> SqlError {
    let error = SqlError::new(sqlstate::UNDEFINED_COLUMN, format!("column \"{name}\" does not exist"));
    match similar(name, table.visible_columns().map(|column| column.name.as_str())) {
        Some(meant) => {
            error.with_hint(format!("Perhaps you meant to reference the column \"{}.{meant}\".", table.name))
        }
        None => error,
    }
}

impl Schema {
    /// A table by its name.
    ///
    /// # Errors
    /// 42P01: there is no such relation; 42809: it is not a table.
    pub fn table_named(&self, name: &str) -> Result<&Arc<Table>, SqlError> {
        match self.relation(name) {
            Some(Relation::Table(id)) => self.table(id).ok_or_else(|| self.undefined_table(name)),
            Some(_) => Err(wrong_kind(name, "table")),
            None => Err(self.undefined_table(name)),
        }
    }

    /// A sequence by its name.
    ///
    /// # Errors
    /// 42P01: there is no such relation; 42809: it is not a sequence.
    pub fn sequence_named(&self, name: &str) -> Result<&Arc<Sequence>, SqlError> {
        match self.relation(name) {
            Some(Relation::Sequence(id)) => self.sequence(id).ok_or_else(|| self.undefined_table(name)),
            Some(_) => Err(wrong_kind(name, "sequence")),
            None => Err(self.undefined_table(name)),
        }
    }

    /// The error for a name without an object.
    #[must_use]
    pub fn undefined_table(&self, name: &str) -> SqlError {
        let error = SqlError::new(sqlstate::UNDEFINED_TABLE, format!("relation \"{name}\" does not exist"));
        let tables = self.tables().map(|table| table.name.as_str());
        match similar(name, tables.chain(self.views().map(|view| view.name.as_str()))) {
            Some(meant) => error.with_hint(format!("Perhaps you meant the relation \"{meant}\".")),
            None => error,
        }
    }

    /// Views that use a relation, also through other views.
    #[must_use]
    pub fn dependent_views(&self, name: &str) -> BTreeSet<&str> {
        let mut found = BTreeSet::new();
        let mut queue = vec![name];
        while let Some(name) = queue.pop() {
            for view in self.views().filter(|view| view.relations.iter().any(|used| used == name)) {
                if found.insert(view.name.as_str()) {
                    queue.push(&view.name);
                }
            }
        }
        found
    }
}

fn wrong_kind(name: &str, wanted: &str) -> SqlError {
    SqlError::new(sqlstate::WRONG_OBJECT_TYPE, format!("\"{name}\" is not a {wanted}"))
}
