//! Statements as logical plans.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use datafusion::arrow::datatypes::{DataType, SchemaRef};
use datafusion::catalog::{TableProvider, cte_worktable::CteWorkTable};
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{DFSchema, DataFusionError, Result as PlanResult, ScalarValue, TableReference};
use datafusion::datasource::{ViewTable, provider_as_source};
use datafusion::execution::SessionStateDefaults;
use datafusion::execution::session_state::{SessionState, SessionStateBuilder};
use datafusion::logical_expr::expr::{Case, GroupingSet, Placeholder};
use datafusion::logical_expr::planner::{ContextProvider, ExprPlanner};
use datafusion::logical_expr::{AggregateUDF, Expr, HigherOrderUDF, LogicalPlan, ScalarUDF, TableSource, WindowUDF};
use datafusion::prelude::SessionConfig;
use datafusion::sql::planner::{NullOrdering, ParserOptions, PlannerContext, SqlToRel};
use sql::direct::{ALL_COLUMNS, OutputColumn};
use sql::parse::parse_one;
use sql::rows::TableRows;
use sql::schema::{Relation, Schema};
use sql::statement::Statement;
use sql::{SqlError, SqlType, Value, sqlstate};
use sqlparser::ast;

use crate::Source;
use crate::branches::with_types_of_branches;
use crate::error::{Failed, wrap};
use crate::frames::has_parameters;
use crate::functions::{FUNCTIONS, VECTOR};
use crate::lists::{with_literals, with_types as with_types_of_lists};
use crate::operators::{Inferred, Operators, assignment, cast_function, operand_of_same_type, sql_type};
use crate::rewrite::{INTERNAL, NOW, Rewrite, locate, with_types};
use crate::system::{SystemFunctions, SystemTables};
use crate::table::Rows;
use crate::unions::with_common_types;
use crate::values::{is_average, is_vector, scalar, type_of};

const VIEWS_MAX: usize = 32;

/// The settings of all queries, and DataFusion's rules.
pub(crate) static STATE: LazyLock<SessionState> = LazyLock::new(|| {
    let mut config =
        SessionConfig::new().with_target_partitions(1).with_batch_size(4_096).with_information_schema(false);
    let options = config.options_mut();
    options.sql_parser.parse_float_as_decimal = true;
    options.sql_parser.map_string_types_to_utf8view = false;
    options.sql_parser.default_null_ordering = "nulls_max".to_owned();
    options.optimizer.repartition_joins = false;
    SessionStateBuilder::new()
        .with_config(config)
        .with_default_features()
        .with_optimizer_rules(crate::rules::rules())
        .with_physical_optimizer_rules(crate::rules::physical_rules())
        .build()
});

/// Plans statements on one version of a schema.
#[derive(Debug)]
pub struct Planner {
    schema: Schema,
    pub(crate) system: Arc<SystemTables>,
    tables: HashMap<String, Arc<TableRows>>,
    constants: Vec<(String, Value)>,
    functions: SystemFunctions,
}

#[derive(Clone, Debug)]
pub struct Query {
    pub(crate) plan: LogicalPlan,
    /// The types of the parameters.
    pub parameters: Vec<SqlType>,
    /// The columns of the result.
    pub columns: Vec<OutputColumn>,
    /// Which of them are averages.
    pub(crate) averages: Vec<bool>,
}

impl Planner {
    /// A planner for a schema. `constants` are values of functions without arguments, such as `version`.
    #[must_use]
    pub fn new(schema: &Schema, context: sql::system::Context, constants: &[(&str, Value)]) -> Arc<Self> {
        // A table with a condition that is no longer valid is not available.
        let tables = schema.tables().filter_map(|table| {
            let rows = TableRows::new(schema, table).ok()?;
            Some((table.name.clone(), Arc::new(rows)))
        });
        let tables: HashMap<_, _> = tables.collect();
        let constants: Vec<_> = constants.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
        let with = |context: sql::system::Context| {
            let system = Arc::new(SystemTables::new(schema, context));
            let functions = SystemFunctions::new(&system);
            Arc::new(Self {
                schema: schema.clone(),
                tables: tables.clone(),
                functions,
                system,
                constants: constants.clone(),
            })
        };
        let planner = with(context.clone());
        // The columns of a view are known once it is planned.
        let columns = schema.views().filter_map(|view| {
            let Statement::Query(query, _) = parse_one(&view.query).ok()? else { return None };
            let query = planner.prepare(&query, &view.query, &[], None).ok()?;
            let named =
                query.columns.into_iter().enumerate().map(|(number, column)| {
                    (view.columns.get(number).cloned().unwrap_or(column.name), column.sql_type)
                });
            Some((view.id, named.collect()))
        });
        let view_columns: std::collections::BTreeMap<_, Vec<(String, SqlType)>> = columns.collect();
        if view_columns.is_empty() {
            return planner;
        }
        with(sql::system::Context { view_columns, ..context })
    }

    /// The version of the schema.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.schema.version()
    }

    /// Prepares a query of a statement's text. `declared` are the types of parameters that the client has declared;
    /// `wanted` are the types of the result in an `INSERT`.
    ///
    /// # Errors
    /// The statement is not valid, or not supported.
    pub fn prepare(
        self: &Arc<Self>,
        query: &ast::Query,
        text: &str,
        declared: &[Option<SqlType>],
        wanted: Option<&[SqlType]>,
    ) -> Result<Query, SqlError> {
        self.prepare_unlocated(query, declared, wanted).map_err(|error| locate(error, query, text))
    }

    fn prepare_unlocated(
        self: &Arc<Self>,
        query: &ast::Query,
        declared: &[Option<SqlType>],
        wanted: Option<&[SqlType]>,
    ) -> Result<Query, SqlError> {
        let constants: Vec<(&str, Value)> =
            self.constants.iter().map(|(name, value)| (name.as_str(), value.clone())).collect();
        let mut rewrite = Rewrite::new(&constants, &self.functions);
        let mut statement = rewrite.query(query)?;
        if let Some(wanted) = wanted {
            with_types(&mut statement, wanted);
        }
        let mut types = rewrite.parameters;
        types.resize(rewrite.count.max(declared.len()), None);
        for (slot, declared) in types.iter_mut().zip(declared) {
            if declared.is_some() {
                slot.clone_from(declared);
            }
        }
        let inferred: Inferred = Arc::new(Mutex::new(types));
        let plan = self.plan(statement, &inferred, 0, wanted)?;
        self.finish(plan, &inferred, wanted)
    }

    fn plan(
        self: &Arc<Self>,
        mut statement: ast::Statement,
        inferred: &Inferred,
        depth: usize,
        wanted: Option<&[SqlType]>,
    ) -> Result<LogicalPlan, SqlError> {
        let context = Context::new(self, inferred, depth);
        let options = ParserOptions::new()
            .with_parse_float_as_decimal(true)
            .with_map_string_types_to_utf8view(false)
            .with_support_varchar_with_length(true)
            .with_default_null_ordering(NullOrdering::NullsMax);
        let planner = SqlToRel::new_with_options(&context, options);
        let none = DFSchema::empty();
        with_types_of_lists(&mut statement, wanted, inferred, |value| {
            let planned = planner.sql_to_expr(value.clone(), &none, &mut PlannerContext::new()).ok()?;
            sql_type(&planned, &none)
        })?;
        let plan = planner.sql_statement_to_plan(statement).and_then(with_literals);
        plan.map_err(|error| SqlError::from(Failed(error)))
    }

    fn finish(
        self: &Arc<Self>,
        plan: LogicalPlan,
        inferred: &Inferred,
        wanted: Option<&[SqlType]>,
    ) -> Result<Query, SqlError> {
        let failed = |error: DataFusionError| SqlError::from(Failed(error));
        crate::checks::check(&plan).map_err(failed)?;
        let plan = narrow_literals(plan)
            .and_then(with_types_of_branches)
            .and_then(with_common_types)
            .and_then(with_text_of_vectors)
            .map_err(failed)?;
        let plan = match wanted {
            Some(wanted) => assigned(plan, wanted, inferred)?,
            None => plan,
        };
        let mut types = inferred.lock().unwrap_or_else(PoisonError::into_inner).clone();
        // If the operator does not determine a type, DataFusion infers it.
        for (id, found) in plan.get_parameter_fields().map_err(failed)? {
            let number = id.trim_start_matches('$').parse::<usize>().ok().and_then(|number| number.checked_sub(1));
            if let Some(slot) = number.and_then(|number| types.get_mut(number))
                && slot.is_none()
                && let Some(field) = found
                && *field.data_type() != DataType::Null
            {
                *slot = Some(type_of(&field));
            }
        }
        let parameters = types.into_iter().map(|of| of.unwrap_or(SqlType::Text)).collect();
        let columns = plan.schema().fields().iter().enumerate().map(|(number, field)| OutputColumn {
            name: field.name().split(INTERNAL).next().unwrap_or_default().to_owned(),
            sql_type: type_of(field),
            origin: crate::origins::origin(&plan, number, &self.schema),
        });
        let columns = columns.collect();
        let averages = plan.schema().fields().iter().map(|field| is_average(field)).collect();
        Ok(Query { columns, averages, plan, parameters })
    }
}

/// Results of type `int2vector` and `oidvector` are shown as text.
fn with_text_of_vectors(plan: LogicalPlan) -> PlanResult<LogicalPlan> {
    let Some(shown) = FUNCTIONS.scalar.get(VECTOR) else { return Ok(plan) };
    if !plan.schema().fields().iter().any(|field| is_vector(field)) {
        return Ok(plan);
    }
    let columns: Vec<Expr> = plan
        .schema()
        .iter()
        .map(|(qualifier, field)| {
            let column = Expr::Column(datafusion::common::Column::from((qualifier, field)));
            if is_vector(field) { shown.call(vec![column]).alias(field.name()) } else { column }
        })
        .collect();
    datafusion::logical_expr::LogicalPlanBuilder::from(plan).project(columns)?.build()
}

/// Integer literals are `integer` if they fit, and `bigint` for DataFusion.
fn narrow_literals(plan: LogicalPlan) -> PlanResult<LogicalPlan> {
    // Both parts of a recursive query have one type.
    if plan.exists(|plan| Ok(matches!(plan, LogicalPlan::RecursiveQuery(_))))? {
        return Ok(plan);
    }
    let plan = plan.transform_up_with_subqueries(|plan| {
        let is_values = matches!(plan, LogicalPlan::Values(_));
        if !matches!(plan, LogicalPlan::Projection(_) | LogicalPlan::Values(_)) {
            let changed = plan.recompute_schema()?;
            return Ok(Transformed::yes(changed));
        }
        if is_values {
            return Ok(Transformed::no(plan));
        }
        let changed = plan.map_expressions(|expression| Ok(Transformed::yes(narrow(expression))))?.data;
        Ok(Transformed::yes(changed.recompute_schema()?))
    })?;
    Ok(plan.data)
}

fn narrow(expression: Expr) -> Expr {
    match expression {
        Expr::Literal(ScalarValue::Int64(Some(number)), None) => match i32::try_from(number) {
            Ok(number) => Expr::Literal(ScalarValue::Int32(Some(number)), None),
            Err(_) => expression,
        },
        Expr::Alias(mut alias) => {
            alias.expr = Box::new(narrow(*alias.expr));
            Expr::Alias(alias)
        }
        Expr::Negative(inner) => Expr::Negative(Box::new(narrow(*inner))),
        Expr::Case(Case { expr, when_then_expr, else_expr }) => Expr::Case(Case {
            expr,
            when_then_expr: when_then_expr.into_iter().map(|(when, then)| (when, Box::new(narrow(*then)))).collect(),
            else_expr: else_expr.map(|other| Box::new(narrow(*other))),
        }),
        Expr::ScalarFunction(mut function)
            if ["coalesce", "nullif", "greatest", "least", "nvl", crate::functions::TYPE_OF]
                .contains(&function.name()) =>
        {
            function.args = function.args.into_iter().map(narrow).collect();
            Expr::ScalarFunction(function)
        }
        other => other,
    }
}

/// A plan with its columns cast to the types of an `INSERT`.
fn assigned(plan: LogicalPlan, wanted: &[SqlType], inferred: &Inferred) -> Result<LogicalPlan, SqlError> {
    let count = plan.schema().fields().len();
    if count != wanted.len() {
        let message = if count > wanted.len() {
            "INSERT has more expressions than target columns"
        } else {
            "INSERT has more target columns than expressions"
        };
        return Err(SqlError::new(sqlstate::SYNTAX_ERROR, message));
    }
    let mut expressions = Vec::with_capacity(count);
    for (number, ((qualifier, field), to)) in plan.schema().iter().zip(wanted).enumerate() {
        let column = Expr::Column(datafusion::common::Column::from((qualifier, field)));
        let from = (*field.data_type() != DataType::Null).then(|| type_of(field));
        if let Some(from) = &from
            && !sql::cast::is_allowed(from, to, sql::cast::Context::Assignment)
        {
            let message = format!("column {} is of type {to} but expression is of type {from}", number + 1);
            return Err(SqlError::new(sqlstate::DATATYPE_MISMATCH, message));
        }
        expressions.push(assignment(from, to, column).alias(format!("column{}", number + 1)));
    }
    let _ = inferred;
    let built =
        datafusion::logical_expr::LogicalPlanBuilder::from(plan).project(expressions).and_then(|plan| plan.build());
    built.map_err(|error| SqlError::from(Failed(error)))
}

/// A plan for the parameters, the time and the source of an execution.
pub(crate) fn bind(
    query: &Query,
    parameters: &[Value],
    now: i64,
    source: &Arc<dyn Source>,
) -> Result<LogicalPlan, SqlError> {
    let failed = |error: DataFusionError| SqlError::from(Failed(error));
    let binding = Binding { query, parameters, now };
    let plan = query.plan.clone().transform_up_with_subqueries(|plan| {
        // Other expressions refer to these by their names.
        let is_named = matches!(plan, LogicalPlan::Projection(_) | LogicalPlan::Aggregate(_) | LogicalPlan::Window(_));
        let plan = plan.map_expressions(|expression| binding.named(expression, is_named))?;
        let plan = match plan.data {
            LogicalPlan::TableScan(mut scan) => {
                let provider = datafusion::datasource::source_as_provider(&scan.source)?;
                if let Some(rows) = provider.downcast_ref::<Rows>() {
                    scan.source = provider_as_source(Arc::new(rows.with_source(Some(Arc::clone(source)))));
                }
                LogicalPlan::TableScan(scan)
            }
            other => other.recompute_schema()?,
        };
        Ok(Transformed::yes(plan))
    });
    Ok(plan.map_err(failed)?.data)
}

/// The values of an execution.
struct Binding<'a> {
    query: &'a Query,
    parameters: &'a [Value],
    now: i64,
}

impl Binding<'_> {
    /// The bound expression. It keeps the name that it has in a plan before.
    fn named(&self, expression: Expr, is_named: bool) -> PlanResult<Transformed<Expr>> {
        if !expression.exists(|part| Ok(is_unbound(part)))? {
            return Ok(Transformed::no(expression));
        }
        if let Expr::GroupingSet(set) = expression {
            let all = |list: Vec<Expr>| -> PlanResult<Vec<Expr>> {
                list.into_iter().map(|one| Ok(self.named(one, is_named)?.data)).collect()
            };
            return Ok(Transformed::yes(Expr::GroupingSet(match set {
                GroupingSet::Rollup(list) => GroupingSet::Rollup(all(list)?),
                GroupingSet::Cube(list) => GroupingSet::Cube(all(list)?),
                GroupingSet::GroupingSets(lists) => {
                    GroupingSet::GroupingSets(lists.into_iter().map(all).collect::<PlanResult<_>>()?)
                }
            })));
        }
        let before = is_named.then(|| expression.qualified_name());
        let bound = expression.transform_up(|part| self.part(part))?.data;
        Ok(Transformed::yes(match before {
            Some((table, name)) if bound.qualified_name() != (table.clone(), name.clone()) => {
                bound.alias_qualified(table, name)
            }
            _ => bound,
        }))
    }

    fn value(&self, id: &str) -> PlanResult<(&Value, &SqlType)> {
        let number = id.trim_start_matches('$').parse::<usize>().ok().and_then(|id| id.checked_sub(1));
        let found = number.and_then(|number| Some((self.parameters.get(number)?, self.query.parameters.get(number)?)));
        let missing = || SqlError::new(sqlstate::UNDEFINED_PARAMETER, format!("there is no parameter {id}"));
        found.ok_or_else(|| wrap(missing()))
    }

    fn part(&self, expression: Expr) -> PlanResult<Transformed<Expr>> {
        match expression {
            Expr::ScalarFunction(function) if function.name() == NOW => {
                let (scalar, metadata) = scalar(&Value::Timestamptz(self.now), &SqlType::Timestamptz).map_err(wrap)?;
                Ok(Transformed::yes(Expr::Literal(scalar, metadata)))
            }
            Expr::ScalarFunction(function) => Ok(match operand_of_same_type(&function) {
                Some(operand) => Transformed::yes(operand),
                None => Transformed::no(Expr::ScalarFunction(function)),
            }),
            Expr::Placeholder(Placeholder { id, .. }) => {
                let (value, of) = self.value(&id)?;
                let (scalar, metadata) = scalar(value, of).map_err(wrap)?;
                Ok(Transformed::yes(Expr::Literal(scalar, metadata)))
            }
            Expr::WindowFunction(mut function) if has_parameters(&function.params.window_frame) => {
                let value = |number: usize| Ok(self.value(&format!("${}", number + 1))?.0.clone());
                function.params.window_frame = crate::frames::bound(&function.params.window_frame, value)?;
                Ok(Transformed::yes(Expr::WindowFunction(function)))
            }
            other => Ok(Transformed::no(other)),
        }
    }
}

fn is_unbound(part: &Expr) -> bool {
    match part {
        Expr::Placeholder(_) => true,
        Expr::ScalarFunction(function) => function.name() == NOW,
        Expr::WindowFunction(function) => has_parameters(&function.params.window_frame),
        _ => false,
    }
}

/// The tables, functions and settings that DataFusion requests when it plans a statement.
struct Context<'a> {
    planner: &'a Arc<Planner>,
    inferred: &'a Inferred,
    expressions: Vec<Arc<dyn ExprPlanner>>,
    options: ConfigOptions,
    depth: usize,
}

impl<'a> Context<'a> {
    fn new(planner: &'a Arc<Planner>, inferred: &'a Inferred, depth: usize) -> Self {
        let own: Arc<dyn ExprPlanner> = Arc::new(Operators { inferred: Arc::clone(inferred) });
        Self {
            planner,
            inferred,
            expressions: std::iter::once(own).chain(SessionStateDefaults::default_expr_planners()).collect(),
            options: STATE.config_options().as_ref().clone(),
            depth,
        }
    }

    fn view(&self, text: &str, columns: &[String]) -> Result<Arc<dyn TableProvider>, SqlError> {
        if self.depth >= VIEWS_MAX {
            return Err(SqlError::new(sqlstate::STATEMENT_TOO_COMPLEX, "views are nested too deeply"));
        }
        let Statement::Query(query, _) = parse_one(text)? else {
            return Err(SqlError::corrupt("a view"));
        };
        let constants: Vec<(&str, Value)> =
            self.planner.constants.iter().map(|(name, value)| (name.as_str(), value.clone())).collect();
        let statement = Rewrite::new(&constants, &self.planner.functions).query(&query)?;
        let plan = self.planner.plan(statement, self.inferred, self.depth + 1, None)?;
        let plan = narrow_literals(plan).and_then(with_types_of_branches);
        let plan = plan.map_err(|error| SqlError::from(Failed(error)))?;
        let mut renamed = Vec::new();
        for (number, (qualifier, field)) in plan.schema().iter().enumerate() {
            let name = columns.get(number).cloned();
            let name = name.unwrap_or_else(|| field.name().split(INTERNAL).next().unwrap_or_default().to_owned());
            renamed.push(Expr::Column(datafusion::common::Column::from((qualifier, field))).alias(name));
        }
        let builder = datafusion::logical_expr::LogicalPlanBuilder::from(plan);
        let plan = builder.project(renamed).and_then(|plan| plan.build());
        Ok(Arc::new(ViewTable::new(plan.map_err(|error| SqlError::from(Failed(error)))?, None)))
    }

    fn table(&self, schema: Option<&str>, name: &str) -> Result<Arc<dyn TableProvider>, SqlError> {
        let undefined = || {
            let shown = schema.map_or_else(|| name.to_owned(), |schema| format!("{schema}.{name}"));
            SqlError::new(sqlstate::UNDEFINED_TABLE, format!("relation \"{shown}\" does not exist"))
        };
        let is_own = schema.is_none() || schema == Some("public") || schema == Some(ALL_COLUMNS);
        if is_own {
            match self.planner.schema.relation(name) {
                Some(Relation::Table(_)) => {
                    let rows = self.planner.tables.get(name).ok_or_else(undefined)?;
                    return Ok(Arc::new(Rows::new(Arc::clone(rows), schema == Some(ALL_COLUMNS), None)));
                }
                Some(Relation::View(id)) => {
                    let view = self.planner.schema.view(id).ok_or_else(undefined)?;
                    let (text, columns) = (view.query.clone(), view.columns.clone());
                    return self.view(&text, &columns);
                }
                Some(Relation::Sequence(_)) => {
                    return Err(SqlError::unsupported(format!("a query of the sequence \"{name}\"")));
                }
                Some(Relation::Index(..)) => {
                    return Err(SqlError::new(sqlstate::WRONG_OBJECT_TYPE, format!("\"{name}\" is an index")));
                }
                None => {}
            }
        }
        self.planner.system.table(schema, name).ok_or_else(undefined)
    }
}

impl ContextProvider for Context<'_> {
    fn get_table_source(&self, name: TableReference) -> PlanResult<Arc<dyn TableSource>> {
        let provider = self.table(name.schema(), name.table()).map_err(wrap)?;
        Ok(provider_as_source(provider))
    }

    fn get_table_function_source(&self, name: &str, arguments: Vec<Expr>) -> PlanResult<Arc<dyn TableSource>> {
        if name == "generate_series" {
            return crate::series::source(arguments);
        }
        let message = format!("function {name} does not exist");
        Err(wrap(SqlError::new(sqlstate::UNDEFINED_FUNCTION, message)))
    }

    fn create_cte_work_table(&self, name: &str, schema: SchemaRef) -> PlanResult<Arc<dyn TableSource>> {
        Ok(provider_as_source(Arc::new(CteWorkTable::new(name, schema))))
    }

    fn get_expr_planners(&self) -> &[Arc<dyn ExprPlanner>] {
        &self.expressions
    }

    fn get_function_meta(&self, name: &str) -> Option<Arc<ScalarUDF>> {
        if name.starts_with("::") {
            return cast_function(name);
        }
        self.planner.functions.get(name).or_else(|| FUNCTIONS.scalar.get(name).cloned())
    }

    fn get_higher_order_meta(&self, _: &str) -> Option<Arc<HigherOrderUDF>> {
        None
    }

    fn get_aggregate_meta(&self, name: &str) -> Option<Arc<AggregateUDF>> {
        FUNCTIONS.aggregate.get(name).cloned()
    }

    fn get_window_meta(&self, name: &str) -> Option<Arc<WindowUDF>> {
        FUNCTIONS.window.get(name).cloned()
    }

    fn get_variable_type(&self, _: &[String]) -> Option<DataType> {
        None
    }

    fn options(&self) -> &ConfigOptions {
        &self.options
    }

    // Only for the hints of errors.
    fn udf_names(&self) -> Vec<String> {
        Vec::new()
    }

    fn higher_order_function_names(&self) -> Vec<String> {
        Vec::new()
    }

    fn udaf_names(&self) -> Vec<String> {
        Vec::new()
    }

    fn udwf_names(&self) -> Vec<String> {
        Vec::new()
    }
}
