//! Functions of the values of a domain.

use std::sync::{Arc, LazyLock};

use datafusion::arrow::array::Scalar;
use datafusion::arrow::compute::is_null;
use datafusion::arrow::compute::kernels::zip::zip;
use datafusion::arrow::datatypes::{DataType, FieldRef};
use datafusion::common::utils::take_function_args;
use datafusion::common::{Result, ScalarValue};
use datafusion::logical_expr::{
    ColumnarValue, Expr, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Kind {
    Same,
    Known,
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Function {
    kind: Kind,
    signature: Signature,
}

static SAME: LazyLock<Arc<ScalarUDF>> = LazyLock::new(|| function(Kind::Same));
static KNOWN: LazyLock<Arc<ScalarUDF>> = LazyLock::new(|| function(Kind::Known));

fn function(kind: Kind) -> Arc<ScalarUDF> {
    let signature = Signature::any(1, Volatility::Immutable);
    Arc::new(ScalarUDF::new_from_impl(Function { kind, signature }))
}

/// The same value. DataFusion assumes that the columns of a `GROUP BY` determine all columns of later joins and groups,
/// and then groups by too few columns. It does not know this of functions. The result may be NULL: DataFusion's logical
/// and physical plans do not agree whether a `CASE` may be, and then an aggregation of it fails.
pub(super) fn same(of: Expr) -> Expr {
    SAME.call(vec![of])
}

/// A value of the type instead of NULL.
pub(super) fn known(of: Expr) -> Expr {
    KNOWN.call(vec![of])
}

impl ScalarUDFImpl for Function {
    fn name(&self) -> &str {
        match self.kind {
            Kind::Same => "/same",
            Kind::Known => "/known",
        }
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, arguments: &[DataType]) -> Result<DataType> {
        let [of] = take_function_args(self.name(), arguments)?;
        Ok(of.clone())
    }

    fn return_field_from_args(&self, arguments: ReturnFieldArgs) -> Result<FieldRef> {
        let [of] = take_function_args(self.name(), arguments.arg_fields)?;
        let is_nullable = self.kind == Kind::Same || of.is_nullable();
        Ok(Arc::new(of.as_ref().clone().with_nullable(is_nullable)))
    }

    fn invoke_with_args(&self, arguments: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let rows = arguments.number_rows;
        let [of] = take_function_args(self.name(), arguments.args)?;
        if self.kind == Kind::Same {
            return Ok(of);
        }
        let array = of.into_array(rows)?;
        if array.null_count() == 0 {
            return Ok(ColumnarValue::Array(array));
        }
        let value = ScalarValue::new_default(array.data_type())?.to_array()?;
        Ok(ColumnarValue::Array(zip(&is_null(&array)?, &Scalar::new(value), &array)?))
    }
}
