//! The functions over the catalogs: their signatures, and their execution.

mod definitions;
mod objects;
mod text;

use super::kinds::CatalogType as T;
use super::{CatalogType, Context};
use crate::error::SqlError;
use crate::schema::Schema;
use crate::value::Value;

/// The type of an argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Argument {
    Is(CatalogType),
    /// An object of a kind: by its identifier, or its name as text.
    Object,
}

/// A form of a function.
#[derive(Clone, Copy, Debug)]
pub struct Function {
    /// Its name in `pg_catalog`.
    pub name: &'static str,
    pub arguments: &'static [Argument],
    /// The number of arguments that must be given.
    pub required: usize,
    /// The type of the result.
    pub result: CatalogType,
}

const OBJECT: Argument = Argument::Object;
const OID: Argument = Argument::Is(T::Oid);
const TEXT: Argument = Argument::Is(T::Text);
const NAME: Argument = Argument::Is(T::Name);
const INT4: Argument = Argument::Is(T::Int4);
const BOOL: Argument = Argument::Is(T::Bool);

const fn function(
    name: &'static str,
    arguments: &'static [Argument],
    required: usize,
    result: CatalogType,
) -> Function {
    Function { name, arguments, required, result }
}

const FUNCTIONS: &[Function] = &[
    function("col_description", &[OID, INT4], 2, T::Text),
    function("current_catalog", &[], 0, T::Name),
    function("current_database", &[], 0, T::Name),
    function("current_role", &[], 0, T::Name),
    function("current_schema", &[], 0, T::Name),
    function("current_schemas", &[BOOL], 1, T::NameArray),
    function("current_setting", &[TEXT, BOOL], 1, T::Text),
    function("current_user", &[], 0, T::Name),
    function("format_type", &[OID, INT4], 2, T::Text),
    function("getdatabaseencoding", &[], 0, T::Name),
    function("has_any_column_privilege", &[OBJECT, TEXT], 2, T::Bool),
    function("has_any_column_privilege", &[OBJECT, OBJECT, TEXT], 3, T::Bool),
    function("has_column_privilege", &[OBJECT, OBJECT, TEXT], 3, T::Bool),
    function("has_column_privilege", &[OBJECT, OBJECT, OBJECT, TEXT], 4, T::Bool),
    function("has_database_privilege", &[OBJECT, TEXT], 2, T::Bool),
    function("has_database_privilege", &[OBJECT, OBJECT, TEXT], 3, T::Bool),
    function("has_foreign_data_wrapper_privilege", &[OBJECT, TEXT], 2, T::Bool),
    function("has_foreign_data_wrapper_privilege", &[OBJECT, OBJECT, TEXT], 3, T::Bool),
    function("has_function_privilege", &[OBJECT, TEXT], 2, T::Bool),
    function("has_function_privilege", &[OBJECT, OBJECT, TEXT], 3, T::Bool),
    function("has_language_privilege", &[OBJECT, TEXT], 2, T::Bool),
    function("has_language_privilege", &[OBJECT, OBJECT, TEXT], 3, T::Bool),
    function("has_schema_privilege", &[OBJECT, TEXT], 2, T::Bool),
    function("has_schema_privilege", &[OBJECT, OBJECT, TEXT], 3, T::Bool),
    function("has_sequence_privilege", &[OBJECT, TEXT], 2, T::Bool),
    function("has_sequence_privilege", &[OBJECT, OBJECT, TEXT], 3, T::Bool),
    function("has_server_privilege", &[OBJECT, TEXT], 2, T::Bool),
    function("has_server_privilege", &[OBJECT, OBJECT, TEXT], 3, T::Bool),
    function("has_table_privilege", &[OBJECT, TEXT], 2, T::Bool),
    function("has_table_privilege", &[OBJECT, OBJECT, TEXT], 3, T::Bool),
    function("has_tablespace_privilege", &[OBJECT, TEXT], 2, T::Bool),
    function("has_tablespace_privilege", &[OBJECT, OBJECT, TEXT], 3, T::Bool),
    function("has_type_privilege", &[OBJECT, TEXT], 2, T::Bool),
    function("has_type_privilege", &[OBJECT, OBJECT, TEXT], 3, T::Bool),
    function("obj_description", &[OID, NAME], 1, T::Text),
    function("parse_ident", &[TEXT, BOOL], 1, T::TextArray),
    function("pg_char_to_encoding", &[NAME], 1, T::Int4),
    function("pg_client_encoding", &[], 0, T::Name),
    function("pg_collation_is_visible", &[OID], 1, T::Bool),
    function("pg_conversion_is_visible", &[OID], 1, T::Bool),
    function("pg_database_size", &[OBJECT], 1, T::Int8),
    function("pg_encoding_to_char", &[INT4], 1, T::Name),
    function("pg_function_is_visible", &[OID], 1, T::Bool),
    function("pg_get_constraintdef", &[OID, BOOL], 1, T::Text),
    function("pg_get_expr", &[Argument::Is(T::NodeTree), OID, BOOL], 2, T::Text),
    function("pg_get_function_arg_default", &[OID, INT4], 2, T::Text),
    function("pg_get_function_arguments", &[OID], 1, T::Text),
    function("pg_get_function_identity_arguments", &[OID], 1, T::Text),
    function("pg_get_function_result", &[OID], 1, T::Text),
    function("pg_get_function_sqlbody", &[OID], 1, T::Text),
    function("pg_get_functiondef", &[OID], 1, T::Text),
    function("pg_get_indexdef", &[OID], 1, T::Text),
    function("pg_get_indexdef", &[OID, INT4, BOOL], 3, T::Text),
    function("pg_get_partition_constraintdef", &[OID], 1, T::Text),
    function("pg_get_partkeydef", &[OID], 1, T::Text),
    function("pg_get_ruledef", &[OID, BOOL], 1, T::Text),
    function("pg_get_serial_sequence", &[TEXT, TEXT], 2, T::Text),
    function("pg_get_statisticsobjdef", &[OID], 1, T::Text),
    function("pg_get_statisticsobjdef_columns", &[OID], 1, T::Text),
    function("pg_get_triggerdef", &[OID, BOOL], 1, T::Text),
    function("pg_get_userbyid", &[OID], 1, T::Name),
    function("pg_get_viewdef", &[OBJECT, BOOL], 1, T::Text),
    function("pg_get_viewdef", &[OBJECT, INT4], 2, T::Text),
    function("pg_has_role", &[OBJECT, TEXT], 2, T::Bool),
    function("pg_has_role", &[OBJECT, OBJECT, TEXT], 3, T::Bool),
    function("pg_indexes_size", &[OBJECT], 1, T::Int8),
    function("pg_is_in_recovery", &[], 0, T::Bool),
    function("pg_is_other_temp_schema", &[OID], 1, T::Bool),
    function("pg_my_temp_schema", &[], 0, T::Oid),
    function("pg_opclass_is_visible", &[OID], 1, T::Bool),
    function("pg_operator_is_visible", &[OID], 1, T::Bool),
    function("pg_opfamily_is_visible", &[OID], 1, T::Bool),
    function("pg_relation_is_publishable", &[OBJECT], 1, T::Bool),
    function("pg_relation_size", &[OBJECT, TEXT], 1, T::Int8),
    function("pg_sequence_last_value", &[OBJECT], 1, T::Int8),
    function("pg_size_pretty", &[Argument::Is(T::Int8)], 1, T::Text),
    function("pg_size_pretty", &[Argument::Is(T::Numeric)], 1, T::Text),
    function("pg_statistics_obj_is_visible", &[OID], 1, T::Bool),
    function("pg_table_is_visible", &[OID], 1, T::Bool),
    function("pg_table_size", &[OBJECT], 1, T::Int8),
    function("pg_tablespace_location", &[OID], 1, T::Text),
    function("pg_tablespace_size", &[OBJECT], 1, T::Int8),
    function("pg_total_relation_size", &[OBJECT], 1, T::Int8),
    function("pg_ts_config_is_visible", &[OID], 1, T::Bool),
    function("pg_ts_dict_is_visible", &[OID], 1, T::Bool),
    function("pg_ts_parser_is_visible", &[OID], 1, T::Bool),
    function("pg_ts_template_is_visible", &[OID], 1, T::Bool),
    function("pg_type_is_visible", &[OID], 1, T::Bool),
    function("quote_ident", &[TEXT], 1, T::Text),
    function("quote_literal", &[TEXT], 1, T::Text),
    function("quote_nullable", &[TEXT], 1, T::Text),
    function("regclassin", &[TEXT], 1, T::Regclass),
    function("regclassout", &[OID], 1, T::Text),
    function("regnamespacein", &[TEXT], 1, T::Regnamespace),
    function("regnamespaceout", &[OID], 1, T::Text),
    function("regprocin", &[TEXT], 1, T::Regproc),
    function("regprocout", &[OID], 1, T::Text),
    function("regrolein", &[TEXT], 1, T::Regrole),
    function("regroleout", &[OID], 1, T::Text),
    function("regtypein", &[TEXT], 1, T::Regtype),
    function("regtypeout", &[OID], 1, T::Text),
    function("row_security_active", &[OBJECT], 1, T::Bool),
    function("session_user", &[], 0, T::Name),
    function("shobj_description", &[OID, NAME], 2, T::Text),
    function("to_regclass", &[TEXT], 1, T::Regclass),
    function("to_regnamespace", &[TEXT], 1, T::Regnamespace),
    function("to_regproc", &[TEXT], 1, T::Regproc),
    function("to_regrole", &[TEXT], 1, T::Regrole),
    function("to_regtype", &[TEXT], 1, T::Regtype),
    function("user", &[], 0, T::Name),
    function("version", &[], 0, T::Text),
];

/// The functions, in the order of their names; some have several forms.
#[must_use]
pub const fn functions() -> &'static [Function] {
    FUNCTIONS
}

/// Executes a function of [`functions`]. `None` if there is none with this name and number of arguments.
///
/// The functions with names that end in `in` or `out` convert between the name and the identifier of an object, as casts
/// to and from `regclass` and the like do. [`Function`] has the types; identifiers may also be given as text.
#[must_use]
pub fn call(name: &str, arguments: &[Value], schema: &Schema, context: &Context) -> Option<Result<Value, SqlError>> {
    let accepts = |function: &&Function| {
        function.name == name && (function.required..=function.arguments.len()).contains(&arguments.len())
    };
    let function = FUNCTIONS.iter().find(accepts)?;
    // Most functions are NULL if an argument is. The modifier of a type may be NULL.
    let may_be_null = matches!(name, "format_type" | "quote_nullable");
    if !may_be_null && arguments.iter().any(Value::is_null) {
        return Some(Ok(Value::Null));
    }
    let call = Call { function, arguments, schema, context };
    let families = [objects::call, definitions::call, text::call];
    let result = families.into_iter().find_map(|family| family(&call));
    Some(result.unwrap_or(Ok(Value::Null)))
}

/// A call of a function.
struct Call<'a> {
    function: &'static Function,
    arguments: &'a [Value],
    schema: &'a Schema,
    context: &'a Context,
}

type Outcome = Option<Result<Value, SqlError>>;

impl Call<'_> {
    fn argument(&self, at: usize) -> &Value {
        self.arguments.get(at).unwrap_or(&Value::Null)
    }

    fn text(&self, at: usize) -> String {
        self.argument(at).to_text().unwrap_or_default()
    }

    fn number(&self, at: usize) -> Option<i64> {
        match self.argument(at) {
            Value::Text(text) => text.trim().parse().ok(),
            value => value.as_integer(),
        }
    }

    /// The identifier of an object, 0 if it cannot be one.
    fn oid(&self, at: usize) -> u32 {
        self.number(at).and_then(|number| u32::try_from(number).ok()).unwrap_or(0)
    }

    fn is_true(&self, at: usize) -> bool {
        match self.argument(at) {
            Value::Bool(value) => *value,
            Value::Text(text) => text.starts_with(['t', 'T', '1']),
            _ => false,
        }
    }
}
