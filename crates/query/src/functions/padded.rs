//! Functions of text for values of `char(n)`, without their padding.

use std::sync::Arc;

use datafusion::arrow::array::{Array as _, ArrayRef, AsArray as _, StringArray};
use datafusion::arrow::datatypes::{DataType, FieldRef};
use datafusion::common::{Result, ScalarValue};
use datafusion::logical_expr::{
    ColumnarValue, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
};
use sql::SqlType;

use crate::values::type_of;

/// Functions with arguments that PostgreSQL casts to `text`.
const OF_TEXT: [&str; 27] = [
    "ascii",
    "btrim",
    "char_length",
    "character_length",
    "initcap",
    "left",
    "length",
    "lower",
    "lpad",
    "ltrim",
    "position",
    "regexp_count",
    "regexp_like",
    "regexp_match",
    "regexp_replace",
    "repeat",
    "replace",
    "reverse",
    "right",
    "rpad",
    "rtrim",
    "split_part",
    "strpos",
    "substr",
    "substring",
    "translate",
    "upper",
];

/// The function, without the padding of its arguments.
pub(super) fn without_padding(name: &str, function: &Arc<ScalarUDF>) -> Arc<ScalarUDF> {
    if OF_TEXT.contains(&name) {
        Arc::new(ScalarUDF::new_from_impl(Unpadding { inner: Arc::clone(function) }))
    } else {
        Arc::clone(function)
    }
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Unpadding {
    inner: Arc<ScalarUDF>,
}

impl ScalarUDFImpl for Unpadding {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn signature(&self) -> &Signature {
        self.inner.signature()
    }

    fn return_type(&self, arguments: &[DataType]) -> Result<DataType> {
        self.inner.return_type(arguments)
    }

    fn return_field_from_args(&self, arguments: ReturnFieldArgs) -> Result<FieldRef> {
        self.inner.return_field_from_args(arguments)
    }

    fn coerce_types(&self, arguments: &[DataType]) -> Result<Vec<DataType>> {
        self.inner.inner().coerce_types(arguments)
    }

    fn invoke_with_args(&self, mut arguments: ScalarFunctionArgs) -> Result<ColumnarValue> {
        for (value, field) in arguments.args.iter_mut().zip(&arguments.arg_fields) {
            if matches!(type_of(field), SqlType::Char(_)) {
                trim(value);
            }
        }
        self.inner.invoke_with_args(arguments)
    }
}

fn trim(value: &mut ColumnarValue) {
    match value {
        ColumnarValue::Scalar(ScalarValue::Utf8(Some(text))) => text.truncate(text.trim_end_matches(' ').len()),
        ColumnarValue::Array(array) if *array.data_type() == DataType::Utf8 => {
            let trimmed: StringArray =
                array.as_string::<i32>().iter().map(|text| text.map(|text| text.trim_end_matches(' '))).collect();
            *array = Arc::new(trimmed) as ArrayRef;
        }
        _ => {}
    }
}
