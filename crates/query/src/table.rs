//! Tables as DataFusion reads them: the filters of a query select a range of keys or an index, and rows come in pages.

use std::collections::BTreeSet;
use std::ops::Bound;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use datafusion::arrow::array::{RecordBatch, RecordBatchOptions};
use datafusion::arrow::datatypes::{Schema as ArrowSchema, SchemaRef};
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::{Column, Result};
use datafusion::execution::TaskContext;
use datafusion::logical_expr::{BinaryExpr, Expr, Operator, TableProviderFilterPushDown, TableType};
use datafusion::physical_expr::EquivalenceProperties;
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType};
use datafusion::physical_plan::metrics::{BaselineMetrics, Count, ExecutionPlanMetricsSet, MetricBuilder, MetricsSet};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, Partitioning, PhysicalExpr, PlanProperties, SendableRecordBatchStream,
};
use futures::stream;
use sql::direct::Read;
use sql::keys::{KeyColumn, KeyRange, bounded_range, is_key_type};
use sql::rows::{TableRows, Wanted};
use sql::schema::{Index, IndexState, KeyPart, Table};
use sql::{SqlError, SqlType, Value, cells};

use crate::Source;
use crate::error::{from_source, wrap};
use crate::operators::literal;
use crate::values::{field, stored_column};

/// Rows of the first page of a scan, and of all further ones.
const FIRST_PAGE_ROWS: usize = 256;
const PAGE_ROWS: usize = 4_096;
/// Maximum values of one column of a key, each of which is read by itself.
const POINTS_MAX: usize = 1_000;
/// Rows that are read by their keys at once, after a page of an index.
const LOOKUPS: usize = 256;

/// A table of the schema.
#[derive(Debug)]
pub(crate) struct Rows {
    pub(crate) rows: Arc<TableRows>,
    pub(crate) schema: SchemaRef,
    /// The numbers of the columns that the query can name.
    columns: Vec<usize>,
    source: SourceSlot,
}

/// The source of rows of an execution. Plans are made without one.
pub(crate) type SourceSlot = Option<Arc<dyn Source>>;

impl Rows {
    /// `with_hidden` includes the columns that `*` does not.
    pub(crate) fn new(rows: Arc<TableRows>, with_hidden: bool, source: SourceSlot) -> Self {
        let visible = rows.table().columns.iter().enumerate().filter(|(_, column)| with_hidden || !column.is_hidden);
        let columns: Vec<usize> = visible.map(|(number, _)| number).collect();
        let fields: Vec<_> = columns
            .iter()
            .filter_map(|number| rows.table().columns.get(*number))
            .map(|column| field(&column.name, &column.sql_type, !column.not_null))
            .collect();
        Self { schema: Arc::new(ArrowSchema::new(fields)), rows, columns, source }
    }

    /// The same table, with a source of rows.
    pub(crate) fn with_source(&self, source: SourceSlot) -> Self {
        Self { rows: Arc::clone(&self.rows), schema: Arc::clone(&self.schema), columns: self.columns.clone(), source }
    }
}

#[async_trait]
impl TableProvider for Rows {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    fn supports_filters_pushdown(&self, filters: &[&Expr]) -> Result<Vec<TableProviderFilterPushDown>> {
        // They only reduce the rows that are read.
        Ok(vec![TableProviderFilterPushDown::Inexact; filters.len()])
    }

    async fn scan(
        &self,
        _: &dyn Session,
        projection: Option<&Vec<usize>>,
        filters: &[Expr],
        limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let access = choose(&self.rows, filters).map_err(wrap)?;
        let all: Vec<usize> = (0..self.columns.len()).collect();
        let projection = projection.unwrap_or(&all);
        let schema = Arc::new(self.schema.project(projection)?);
        let wanted: Vec<usize> = projection.iter().filter_map(|number| self.columns.get(*number).copied()).collect();
        let limit = limit.filter(|_| filters.is_empty());
        Ok(Arc::new(Scan::new(Arc::clone(&self.rows), access, wanted, schema, limit, self.source.clone())))
    }
}

/// How the rows of a table are found.
#[derive(Clone, Debug)]
pub(crate) enum Access {
    /// Rows with these keys.
    Points(Vec<Bytes>),
    /// Rows of ranges of keys, in this order.
    Ranges(Vec<KeyRange>),
    /// The rows that the entries of a range of an index refer to.
    Index(Box<Index>, KeyRange),
}

/// The restrictions of filters on a column.
#[derive(Clone, Debug, Default)]
struct Restriction {
    equal: Option<Vec<Value>>,
    low: Option<(bool, Value)>,
    high: Option<(bool, Value)>,
}

impl Restriction {
    fn single(&self) -> Option<&Value> {
        match self.equal.as_deref() {
            Some([value]) => Some(value),
            _ => None,
        }
    }
}

fn choose(rows: &TableRows, filters: &[Expr]) -> std::result::Result<Access, SqlError> {
    let table = rows.table();
    let key = &table.primary_key.columns;
    let layout = rows.layout();
    let primary = restrictions(table, key, filters);
    let fixed: Vec<Value> = primary.iter().map_while(|of| of.single().cloned()).collect();
    // All columns are fixed, except that the last one can have one of a few values.
    if let Some(last) = primary.get(fixed.len().min(key.len().saturating_sub(1)))
        && let Some(values) = &last.equal
        && fixed.len() + 1 >= key.len()
        && values.len() <= POINTS_MAX
        && !key.is_empty()
    {
        let mut keys = BTreeSet::new();
        for value in values {
            let mut all = fixed.clone();
            all.truncate(key.len() - 1);
            all.push(value.clone());
            if all.iter().any(Value::is_null) {
                continue;
            }
            let key = layout.key(&all)?;
            if sql::keys::check_length(&key).is_ok() {
                keys.insert(Bytes::from(key));
            }
        }
        return Ok(Access::Points(keys.into_iter().collect()));
    }
    let has_range = |of: Option<&Restriction>| of.is_some_and(|of| of.low.is_some() || of.high.is_some());
    let primary_score = score(fixed.len(), has_range(primary.get(fixed.len())));
    let public = table.indexes.iter().filter(|index| index.state == IndexState::Public);
    let mut best: Option<(usize, &Index, Vec<Restriction>)> = None;
    for index in public {
        let found = restrictions(table, &index.columns, filters);
        let fixed = found.iter().take_while(|of| of.single().is_some()).count();
        let score = score(fixed, has_range(found.get(fixed)));
        if score > primary_score && best.as_ref().is_none_or(|(best, ..)| score > *best) {
            best = Some((score, index, found));
        }
    }
    if let Some((_, index, found)) = best {
        let fixed: Vec<Value> = found.iter().map_while(|of| of.single().cloned()).collect();
        let layout = table.index_layout(index);
        let range = range(&layout.prefix(&fixed)?, &layout.columns, fixed.len(), &found)?;
        return Ok(Access::Index(Box::new(index.clone()), range));
    }
    let columns: Vec<KeyColumn> = layout.columns().cloned().collect();
    let range = range(&layout.key(&fixed)?, &columns, fixed.len(), &primary)?;
    Ok(Access::Ranges(if range.is_empty() { Vec::new() } else { vec![range] }))
}

/// A range of more fixed columns is smaller.
fn score(fixed: usize, has_range: bool) -> usize {
    fixed * 2 + usize::from(has_range)
}

fn range(
    prefix: &[u8],
    columns: &[KeyColumn],
    fixed: usize,
    restrictions: &[Restriction],
) -> std::result::Result<KeyRange, SqlError> {
    let bound = |of: &'_ Option<(bool, Value)>| match of {
        None => Bound::Unbounded,
        Some((true, value)) => Bound::Included(value.clone()),
        Some((false, value)) => Bound::Excluded(value.clone()),
    };
    match (columns.get(fixed), restrictions.get(fixed)) {
        (Some(column), Some(of)) if of.low.is_some() || of.high.is_some() => {
            let (low, high) = (bound(&of.low), bound(&of.high));
            bounded_range(prefix, column.direction, (low.as_ref(), high.as_ref()))
        }
        _ => Ok(sql::keys::prefix_range(prefix)),
    }
}

/// The restrictions of the filters on the columns of a key.
fn restrictions(table: &Table, key: &[KeyPart], filters: &[Expr]) -> Vec<Restriction> {
    key.iter()
        .map(|part| {
            let mut found = Restriction::default();
            if let Some(column) = table.column(part.column)
                && is_key_type(&column.sql_type)
                && !matches!(column.sql_type, SqlType::Char(_))
            {
                filters.iter().for_each(|filter| restrict(&column.name, &column.sql_type, filter, &mut found));
            }
            found
        })
        .collect()
}

fn restrict(name: &str, of: &SqlType, filter: &Expr, found: &mut Restriction) {
    let is_column = |expression: &Expr| matches!(expression, Expr::Column(Column { name: other, .. }) if other == name);
    match filter {
        Expr::BinaryExpr(BinaryExpr { left, op: Operator::And, right }) => {
            restrict(name, of, left, found);
            restrict(name, of, right, found);
        }
        Expr::BinaryExpr(BinaryExpr { op: Operator::Or, .. }) if found.equal.is_none() => {
            found.equal = alternatives(name, of, filter);
        }
        Expr::BinaryExpr(BinaryExpr { left, op, right }) => {
            let (op, value) = if is_column(left) {
                (Some(*op), right)
            } else if is_column(right) {
                (op.swap(), left)
            } else {
                return;
            };
            let Some(value) = op.and_then(|_| constant(value, of)) else { return };
            match op {
                Some(Operator::Eq) if found.equal.is_none() => found.equal = Some(vec![value]),
                Some(Operator::Lt) if found.high.is_none() => found.high = Some((false, value)),
                Some(Operator::LtEq) if found.high.is_none() => found.high = Some((true, value)),
                Some(Operator::Gt) if found.low.is_none() => found.low = Some((false, value)),
                Some(Operator::GtEq) if found.low.is_none() => found.low = Some((true, value)),
                _ => {}
            }
        }
        Expr::Between(between) if !between.negated && is_column(&between.expr) => {
            if let (Some(low), Some(high)) = (constant(&between.low, of), constant(&between.high, of))
                && found.low.is_none()
                && found.high.is_none()
            {
                found.low = Some((true, low));
                found.high = Some((true, high));
            }
        }
        Expr::InList(list) if !list.negated && is_column(&list.expr) && found.equal.is_none() => {
            found.equal = list.list.iter().map(|item| constant(item, of)).collect();
        }
        _ => {}
    }
}

/// The values of a column that a disjunction of equalities allows.
fn alternatives(name: &str, of: &SqlType, filter: &Expr) -> Option<Vec<Value>> {
    match filter {
        Expr::BinaryExpr(BinaryExpr { left, op: Operator::Or, right }) => {
            let mut values = alternatives(name, of, left)?;
            values.extend(alternatives(name, of, right)?);
            Some(values)
        }
        _ => {
            let mut found = Restriction::default();
            restrict(name, of, filter, &mut found);
            found.equal
        }
    }
}

/// A constant that compares with values of the type as their keys do.
fn constant(expression: &Expr, of: &SqlType) -> Option<Value> {
    let Expr::Literal(scalar, _) = expression else { return None };
    // DataFusion has cast the constant to the type of the column, or the comparison does not use the column alone.
    (scalar.data_type() == crate::values::arrow_type(of))
        .then(|| literal(expression, of))
        .flatten()
        .filter(|value| !value.is_null())
}

/// Reads the rows of a table.
#[derive(Debug)]
pub(crate) struct Scan {
    rows: Arc<TableRows>,
    access: Access,
    /// The numbers of the columns to return.
    wanted: Arc<[usize]>,
    /// The same columns, as they are read.
    columns: Arc<Wanted>,
    schema: SchemaRef,
    limit: Option<usize>,
    source: SourceSlot,
    properties: Arc<PlanProperties>,
    metrics: ExecutionPlanMetricsSet,
}

impl Scan {
    fn new(
        rows: Arc<TableRows>,
        access: Access,
        wanted: Vec<usize>,
        schema: SchemaRef,
        limit: Option<usize>,
        source: SourceSlot,
    ) -> Self {
        let properties = PlanProperties::new(
            EquivalenceProperties::new(Arc::clone(&schema)),
            Partitioning::UnknownPartitioning(1),
            EmissionType::Incremental,
            Boundedness::Bounded,
        );
        Self {
            columns: Arc::new(rows.wanted(wanted.iter().copied())),
            rows,
            access,
            wanted: wanted.into(),
            schema,
            limit,
            source,
            properties: Arc::new(properties),
            metrics: ExecutionPlanMetricsSet::new(),
        }
    }
}

impl DisplayAs for Scan {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        let table = self.rows.table();
        match &self.access {
            Access::Points(keys) => write!(f, "Point Reads on {} ({} keys)", table.name, keys.len())?,
            Access::Ranges(ranges) => {
                let whole = sql::keys::prefix_range(&self.rows.layout().key(&[]).unwrap_or_default());
                match &ranges[..] {
                    [range] if *range == whole => write!(f, "Scan on {}", table.name)?,
                    _ => write!(f, "Range Scan on {} ({} key ranges)", table.name, ranges.len())?,
                }
            }
            Access::Index(index, _) => write!(f, "Index Scan using {} on {}", index.name, table.name)?,
        }
        let names =
            self.wanted.iter().filter_map(|number| table.columns.get(*number)).map(|column| column.name.as_str());
        write!(f, ": columns=[{}]", names.collect::<Vec<_>>().join(", "))?;
        match self.limit {
            Some(limit) => write!(f, ", limit={limit}"),
            None => Ok(()),
        }
    }
}

impl ExecutionPlan for Scan {
    fn name(&self) -> &str {
        "Scan"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        Vec::new()
    }

    fn apply_expressions(
        &self,
        _: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<datafusion::common::tree_node::TreeNodeRecursion>,
    ) -> Result<datafusion::common::tree_node::TreeNodeRecursion> {
        Ok(datafusion::common::tree_node::TreeNodeRecursion::Continue)
    }

    fn with_new_children(self: Arc<Self>, _: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(self)
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }

    fn execute(&self, partition: usize, _: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let source = self.source.clone();
        let source =
            source.ok_or_else(|| wrap(crate::error::internal("a plan without a source of rows".to_owned())))?;
        let mut reader = Reader {
            rows: Arc::clone(&self.rows),
            wanted: Arc::clone(&self.wanted),
            columns: Arc::clone(&self.columns),
            schema: Arc::clone(&self.schema),
            source,
            left: self.limit.unwrap_or(usize::MAX),
            page: FIRST_PAGE_ROWS,
            work: Work::of(&self.access),
            baseline: BaselineMetrics::new(&self.metrics, partition),
            rows_read: MetricBuilder::new(&self.metrics).counter("rows_read", partition),
            reads: MetricBuilder::new(&self.metrics).counter("reads", partition),
        };
        reader.work.prepare();
        let batches =
            stream::try_unfold(
                reader,
                |mut reader| async move { Ok(reader.next().await?.map(|batch| (batch, reader))) },
            );
        Ok(Box::pin(RecordBatchStreamAdapter::new(Arc::clone(&self.schema), batches)))
    }
}

/// The remaining reads of a scan.
#[derive(Debug)]
enum Work {
    Points(std::vec::IntoIter<Bytes>),
    Ranges(Vec<KeyRange>),
    Index(Box<Index>, Option<KeyRange>),
}

impl Work {
    fn of(access: &Access) -> Self {
        match access {
            Access::Points(keys) => Self::Points(keys.clone().into_iter()),
            Access::Ranges(ranges) => Self::Ranges(ranges.clone()),
            Access::Index(index, range) => Self::Index(index.clone(), Some(range.clone())),
        }
    }

    /// The next range is the last one of the list.
    fn prepare(&mut self) {
        if let Self::Ranges(ranges) = self {
            ranges.reverse();
        }
    }
}

struct Reader {
    rows: Arc<TableRows>,
    wanted: Arc<[usize]>,
    columns: Arc<Wanted>,
    schema: SchemaRef,
    source: Arc<dyn Source>,
    left: usize,
    page: usize,
    work: Work,
    baseline: BaselineMetrics,
    rows_read: Count,
    reads: Count,
}

impl Reader {
    /// The next rows; `None` at the end.
    async fn next(&mut self) -> Result<Option<RecordBatch>> {
        loop {
            if self.left == 0 {
                return Ok(None);
            }
            let Some(stored) = self.read().await? else { return Ok(None) };
            let timer = self.baseline.elapsed_compute().timer();
            self.rows_read.add(stored.len());
            let mut decoded = Vec::with_capacity(stored.len());
            for row in &stored {
                if let Some(row) = self.rows.decode_wanted(row, &self.columns).map_err(wrap)? {
                    decoded.push(row);
                }
                if decoded.len() == self.left {
                    break;
                }
            }
            drop(stored);
            if decoded.is_empty() {
                timer.done();
                continue;
            }
            self.left -= decoded.len();
            let mut arrays = Vec::with_capacity(self.wanted.len());
            for number in self.wanted.iter() {
                let Some(of) = self.rows.table().columns.get(*number) else { continue };
                let null = Value::Null;
                let values = decoded.iter().map(|row| row.get(*number).unwrap_or(&null));
                arrays.push(stored_column(&of.sql_type, values).map_err(wrap)?);
            }
            let options = RecordBatchOptions::new().with_row_count(Some(decoded.len()));
            let batch = RecordBatch::try_new_with_options(Arc::clone(&self.schema), arrays, &options)?;
            self.baseline.record_output(batch.num_rows());
            timer.done();
            return Ok(Some(batch));
        }
    }

    /// The next rows of the store.
    async fn read(&mut self) -> Result<Option<Vec<sql::rows::StoredRow>>> {
        let page = self.page.min(self.left.max(1));
        self.page = PAGE_ROWS;
        let reads = match &mut self.work {
            Work::Points(keys) => {
                let reads: Vec<Read> = keys.by_ref().take(LOOKUPS).map(Read::Row).collect();
                if reads.is_empty() {
                    return Ok(None);
                }
                reads
            }
            Work::Ranges(ranges) => match ranges.last() {
                None => return Ok(None),
                Some(range) => vec![Read::range(range.clone(), page, self.columns.cells())],
            },
            Work::Index(_, range) => match range {
                None => return Ok(None),
                Some(range) => vec![Read::Range(range.clone(), page.min(LOOKUPS))],
            },
        };
        self.reads.add(reads.len());
        let pages = self.source.read(reads).await.map_err(from_source)?;
        match &mut self.work {
            Work::Points(_) => {}
            Work::Ranges(ranges) => {
                let next = pages.first().and_then(|page| page.next.clone());
                match (next, ranges.last_mut()) {
                    (Some(next), Some(range)) => range.start = next,
                    _ => {
                        ranges.pop();
                    }
                }
            }
            Work::Index(index, range) => {
                let page = pages.into_iter().next().unwrap_or_default();
                *range = match (page.next, range.take()) {
                    (Some(next), Some(range)) => Some(KeyRange { start: next, end: range.end }),
                    _ => None,
                };
                let layout = self.rows.table().index_layout(index);
                let mut keys = Vec::with_capacity(page.rows.len());
                for entry in &page.rows {
                    let name = cells::name(cells::MARKER);
                    let reference = entry.cells.iter().find(|(cell, _)| *cell == name);
                    let Some((_, reference)) = reference else { continue };
                    let (_, primary) = layout.decode(&entry.key, reference).map_err(wrap)?;
                    keys.push(Read::Row(self.rows.layout().key(&primary).map_err(wrap)?.into()));
                }
                if keys.is_empty() {
                    return Ok(Some(Vec::new()));
                }
                self.reads.add(keys.len());
                let found = self.source.read(keys).await.map_err(from_source)?;
                return Ok(Some(found.into_iter().flat_map(|page| page.rows).collect()));
            }
        }
        Ok(Some(pages.into_iter().flat_map(|page| page.rows).collect()))
    }
}
