//! The system catalogs, as tables and functions of DataFusion.

use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use async_trait::async_trait;
use datafusion::arrow::array::{RecordBatch, RecordBatchOptions};
use datafusion::arrow::datatypes::{DataType, FieldRef, Schema as ArrowSchema, SchemaRef};
use datafusion::catalog::{MemTable, Session, TableProvider};
use datafusion::common::{Result, internal_datafusion_err};
use datafusion::logical_expr::{
    ColumnarValue, Expr, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, TableType,
    TypeSignature, Volatility,
};
use datafusion::physical_plan::ExecutionPlan;
use sql::schema::Schema;
use sql::system::{self, CatalogType, Context, SystemTable};
use sql::{SqlError, SqlType, Value, sqlstate};

use crate::functions::by_rows;
use crate::values::{arrow_type, as_vector, column, field, field_ref, type_of};

/// The catalogs of a version of a schema.
#[derive(Debug)]
pub(crate) struct SystemTables {
    schema: Schema,
    context: Context,
}

impl SystemTables {
    pub(crate) fn new(schema: &Schema, context: Context) -> Self {
        Self { schema: schema.clone(), context }
    }

    /// A table by its name.
    pub(crate) fn table(self: &Arc<Self>, schema: Option<&str>, name: &str) -> Option<Arc<dyn TableProvider>> {
        let table = system::table(schema, name)?;
        let filled: Arc<dyn TableProvider> = Arc::new(self.filled(table)?);
        if !table.is_live() {
            return Some(filled);
        }
        Some(Arc::new(LiveTable { tables: Arc::clone(self), table, schema: filled.schema() }))
    }

    /// The rows of this moment.
    fn filled(&self, table: &'static SystemTable) -> Option<MemTable> {
        let fields: Vec<_> = table
            .columns
            .iter()
            .map(|column| {
                let field = field(column.name, &column.kind.sql_type(), !column.not_null);
                match column.kind {
                    CatalogType::Int2Vector | CatalogType::OidVector => as_vector(field),
                    _ => field,
                }
            })
            .collect();
        let arrow = Arc::new(ArrowSchema::new(fields));
        let rows = system::rows(table, &self.schema, &self.context);
        let null = Value::Null;
        let arrays =
            table.columns.iter().enumerate().map(|(number, of)| {
                column(&of.kind.sql_type(), rows.iter().map(|row| row.get(number).unwrap_or(&null)))
            });
        let arrays = arrays.collect::<std::result::Result<Vec<_>, SqlError>>().ok()?;
        let options = RecordBatchOptions::new().with_row_count(Some(rows.len()));
        let batch = RecordBatch::try_new_with_options(Arc::clone(&arrow), arrays, &options).ok()?;
        MemTable::try_new(arrow, vec![vec![batch]]).ok()
    }
}

/// A table with rows that are computed at each execution, not when the plan is made.
#[derive(Debug)]
struct LiveTable {
    tables: Arc<SystemTables>,
    table: &'static SystemTable,
    schema: SchemaRef,
}

#[async_trait]
impl TableProvider for LiveTable {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn table_type(&self) -> TableType {
        TableType::View
    }

    async fn scan(
        &self,
        session: &dyn Session,
        projection: Option<&Vec<usize>>,
        filters: &[Expr],
        limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let filled = self.tables.filled(self.table);
        let filled = filled.ok_or_else(|| internal_datafusion_err!("no rows of {}", self.table.name))?;
        filled.scan(session, projection, filters, limit).await
    }
}

/// The functions of the catalogs.
#[derive(Debug)]
pub(crate) struct SystemFunctions {
    functions: HashMap<&'static str, Arc<ScalarUDF>>,
    schema: Schema,
}

impl SystemFunctions {
    pub(crate) fn new(tables: &Arc<SystemTables>) -> Self {
        let named =
            system::functions().iter().map(|function| (function.name, function.name, function.result.sql_type()));
        // Casts to references, of names or of identifiers.
        let references = REFERENCES.iter().map(|(name, function)| (*name, *function, SqlType::Int8));
        let made = named.chain(references).map(|(name, function, result)| {
            let called = SystemFunction { name, function, result, tables: Arc::clone(tables), signature: any_number() };
            (name, Arc::new(ScalarUDF::new_from_impl(called)))
        });
        Self { functions: made.collect(), schema: tables.schema.clone() }
    }

    pub(crate) fn get(&self, name: &str) -> Option<Arc<ScalarUDF>> {
        self.functions.get(name).cloned()
    }

    pub(crate) fn schema(&self) -> &Schema {
        &self.schema
    }
}

/// The functions of casts to references, and those that look up names.
const REFERENCES: [(&str, &str); 6] = [
    ("/regclass", "regclassin"),
    ("/regtype", "regtypein"),
    ("/regproc", "regprocin"),
    ("/regprocedure", "regprocin"),
    ("/regnamespace", "regnamespacein"),
    ("/regrole", "regrolein"),
];

fn any_number() -> Signature {
    Signature::one_of(vec![TypeSignature::Nullary, TypeSignature::VariadicAny], Volatility::Stable)
}

struct SystemFunction {
    name: &'static str,
    /// The function of the catalogs that it calls.
    function: &'static str,
    result: SqlType,
    tables: Arc<SystemTables>,
    signature: Signature,
}

impl std::fmt::Debug for SystemFunction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

impl PartialEq for SystemFunction {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name && Arc::ptr_eq(&self.tables, &other.tables)
    }
}

impl Eq for SystemFunction {}

impl Hash for SystemFunction {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name.hash(state);
    }
}

impl ScalarUDFImpl for SystemFunction {
    fn name(&self) -> &str {
        self.name
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(arrow_type(&self.result))
    }

    fn return_field_from_args(&self, _: ReturnFieldArgs) -> Result<FieldRef> {
        Ok(field_ref(self.name, &self.result))
    }

    fn invoke_with_args(&self, arguments: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let types: Vec<SqlType> = arguments.arg_fields.iter().map(|field| type_of(field)).collect();
        by_rows(&arguments, &types, &self.result, |values| {
            // A cast of an identifier, or of its digits.
            if let (true, [value]) = (self.name.starts_with('/'), values) {
                let number = match value {
                    Value::Text(text) => text.parse().ok(),
                    other => other.as_integer(),
                };
                if let Some(number) = number {
                    return Ok(Value::Int8(number));
                }
            }
            let result = system::call(self.function, values, &self.tables.schema, &self.tables.context);
            result.unwrap_or_else(|| {
                let message = format!("function {} does not exist with these arguments", self.name);
                Err(SqlError::new(sqlstate::UNDEFINED_FUNCTION, message))
            })
        })
    }
}
