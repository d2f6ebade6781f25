//! Rows by the names of their columns.

use super::definitions::SystemTable;
use super::kinds::CatalogType;
use crate::types::SqlType;
use crate::value::{Array, Value};

/// Creates rows of a table from items: `fill!(table, items, |item| { column: value, ... })`. Other columns have 0,
/// false or the empty string if they are never NULL.
macro_rules! fill {
    ($table:expr, $items:expr, |$item:pat_param| { $($name:ident: $value:expr),* $(,)? }) => {
        $crate::system::fill::Filler::new($table, [$(stringify!($name)),*])
            .rows($items.into_iter().map(|$item| [$($crate::system::fill::IntoValue::into_value($value)),*]))
    };
}

pub(super) use fill;

pub(super) struct Filler<const N: usize> {
    defaults: Vec<Value>,
    places: [Option<usize>; N],
}

impl<const N: usize> Filler<N> {
    pub(super) fn new(table: &SystemTable, names: [&str; N]) -> Self {
        let place = |name: &str| table.columns.iter().position(|column| column.name == name);
        let places = names.map(place);
        debug_assert!(places.iter().all(Option::is_some), "{}: {names:?}", table.name);
        let defaults = table.columns.iter().map(|column| match column.kind {
            _ if !column.not_null => Value::Null,
            CatalogType::Char | CatalogType::Name | CatalogType::Text | CatalogType::NodeTree => {
                Value::Text(String::new())
            }
            kind => match kind.sql_type() {
                SqlType::Bool => Value::Bool(false),
                SqlType::Int2 => Value::Int2(0),
                SqlType::Int4 => Value::Int4(0),
                SqlType::Int8 => Value::Int8(0),
                SqlType::Float4 => Value::Float4(0.0),
                SqlType::Float8 => Value::Float8(0.0),
                SqlType::Array(element) => Value::Array(Array::new(*element, Vec::new())),
                _ => Value::Null,
            },
        });
        Self { defaults: defaults.collect(), places }
    }

    pub(super) fn rows(&self, items: impl Iterator<Item = [Value; N]>) -> Vec<Vec<Value>> {
        let row = |values: [Value; N]| {
            let mut row = self.defaults.clone();
            for (place, value) in self.places.iter().zip(values) {
                if let Some(slot) = place.and_then(|place| row.get_mut(place)) {
                    *slot = value;
                }
            }
            row
        };
        items.map(row).collect()
    }
}

pub(super) trait IntoValue {
    fn into_value(self) -> Value;
}

macro_rules! into_value {
    ($($from:ty => |$value:ident| $into:expr;)*) => {$(
        impl IntoValue for $from {
            fn into_value(self) -> Value {
                let $value = self;
                $into
            }
        }
    )*};
}

into_value! {
    Value => |value| value;
    bool => |value| Value::Bool(value);
    i16 => |value| Value::Int2(value);
    i32 => |value| Value::Int4(value);
    i64 => |value| Value::Int8(value);
    f32 => |value| Value::Float4(value);
    // An object identifier.
    u32 => |value| Value::Int8(i64::from(value));
    char => |value| Value::Text(value.to_string());
    &str => |value| Value::Text(value.to_owned());
    String => |value| Value::Text(value);
    &String => |value| Value::Text(value.clone());
    Vec<i16> => |value| Value::Array(Array::new(SqlType::Int2, value.into_iter().map(Value::Int2).collect()));
    Vec<u32> => |value| {
        let items = value.into_iter().map(|oid| Value::Int8(i64::from(oid)));
        Value::Array(Array::new(SqlType::Int8, items.collect()))
    };
    Vec<String> => |value| Value::Array(Array::new(SqlType::Text, value.into_iter().map(Value::Text).collect()));
}

impl<T: IntoValue> IntoValue for Option<T> {
    fn into_value(self) -> Value {
        self.map_or(Value::Null, T::into_value)
    }
}
