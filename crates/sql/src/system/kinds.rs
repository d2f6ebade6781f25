//! The types of the catalogs' columns. PostgreSQL has more types there than [`SqlType`].

use bytes::{BufMut as _, Bytes, BytesMut};

use crate::error::SqlError;
use crate::types::SqlType;
use crate::value::{Array, Value};

macro_rules! kinds {
    ($($variant:ident $name:literal $oid:literal $sql_type:expr;)*) => {
        /// PostgreSQL's type of a column of the catalogs, or of an argument or the result of a function over them.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[allow(missing_docs, reason = "the names are PostgreSQL's")]
        pub enum CatalogType { $($variant,)* }

        impl CatalogType {
            /// The object identifier (`pg_type.oid`).
            #[must_use]
            pub const fn oid(self) -> u32 {
                match self { $(Self::$variant => $oid,)* }
            }

            /// The internal name (`pg_type.typname`).
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// The type of the values.
            #[must_use]
            pub fn sql_type(self) -> SqlType {
                match self { $(Self::$variant => $sql_type,)* }
            }

            pub(super) fn named(name: &str) -> Option<Self> {
                match name { $($name => Some(Self::$variant),)* _ => None }
            }
        }
    };
}

fn array(element: SqlType) -> SqlType {
    SqlType::Array(Box::new(element))
}

// Identifiers are unsigned 32-bit integers.
kinds! {
    Bool "bool" 16 SqlType::Bool;
    Bytea "bytea" 17 SqlType::Bytea;
    Char "char" 18 SqlType::Text;
    Name "name" 19 SqlType::Text;
    Int8 "int8" 20 SqlType::Int8;
    Int2 "int2" 21 SqlType::Int2;
    Int2Vector "int2vector" 22 array(SqlType::Int2);
    Int4 "int4" 23 SqlType::Int4;
    Regproc "regproc" 24 SqlType::Int8;
    Text "text" 25 SqlType::Text;
    Oid "oid" 26 SqlType::Int8;
    Xid "xid" 28 SqlType::Int8;
    OidVector "oidvector" 30 array(SqlType::Int8);
    NodeTree "pg_node_tree" 194 SqlType::Text;
    Float4 "float4" 700 SqlType::Float4;
    Float8 "float8" 701 SqlType::Float8;
    Inet "inet" 869 SqlType::Text;
    CharArray "_char" 1002 array(SqlType::Text);
    NameArray "_name" 1003 array(SqlType::Text);
    Int2Array "_int2" 1005 array(SqlType::Int2);
    TextArray "_text" 1009 array(SqlType::Text);
    Float4Array "_float4" 1021 array(SqlType::Float4);
    OidArray "_oid" 1028 array(SqlType::Int8);
    AclItemArray "_aclitem" 1034 array(SqlType::Text);
    Varchar "varchar" 1043 SqlType::Varchar(None);
    Timestamptz "timestamptz" 1184 SqlType::Timestamptz;
    Interval "interval" 1186 SqlType::Interval;
    Numeric "numeric" 1700 SqlType::Numeric(None);
    Regclass "regclass" 2205 SqlType::Int8;
    Regtype "regtype" 2206 SqlType::Int8;
    RegtypeArray "_regtype" 2211 array(SqlType::Int8);
    AnyArray "anyarray" 2277 array(SqlType::Text);
    Lsn "pg_lsn" 3220 SqlType::Text;
    Regnamespace "regnamespace" 4089 SqlType::Int8;
    Regrole "regrole" 4096 SqlType::Int8;
}

impl CatalogType {
    /// Reads a value in PostgreSQL's text format.
    pub(super) fn parse(self, text: &str) -> Result<Value, SqlError> {
        match (self, self.sql_type()) {
            (Self::Int2Vector | Self::OidVector, SqlType::Array(element)) => {
                let items = text.split_ascii_whitespace().map(|item| element.parse(item)).collect::<Result<_, _>>()?;
                Ok(Value::Array(Array::new(*element, items)))
            }
            (_, sql_type) => sql_type.parse(text),
        }
    }

    /// The value in PostgreSQL's text format for the client; `None` for NULL. The names that stand for identifiers
    /// (`regclass` and so on) are the result of functions such as `regclassout`.
    #[must_use]
    pub fn to_text(self, value: &Value) -> Option<String> {
        match (self, value) {
            (Self::Int2Vector | Self::OidVector, Value::Array(array)) => {
                let items: Vec<String> = array.items.iter().filter_map(Value::to_text).collect();
                Some(items.join(" "))
            }
            _ => value.to_text(),
        }
    }

    /// The value in PostgreSQL's binary format for the client, if it differs from that of [`Self::sql_type`].
    #[must_use]
    pub fn to_binary(self, value: &Value) -> Option<Bytes> {
        let oid = |value: &Value| value.as_integer().and_then(|number| u32::try_from(number).ok());
        let (element, start) = match self {
            Self::Oid | Self::Xid | Self::Regproc | Self::Regclass | Self::Regtype => {
                return oid(value).map(|oid| Bytes::copy_from_slice(&oid.to_be_bytes()));
            }
            Self::Regnamespace | Self::Regrole => {
                return oid(value).map(|oid| Bytes::copy_from_slice(&oid.to_be_bytes()));
            }
            // The first subscript of vectors is 0.
            Self::Int2Vector => (Self::Int2, 0),
            Self::OidVector => (Self::Oid, 0),
            Self::OidArray => (Self::Oid, 1),
            Self::RegtypeArray => (Self::Regtype, 1),
            Self::NameArray => (Self::Name, 1),
            Self::CharArray => (Self::Char, 1),
            _ => return None,
        };
        let Value::Array(array) = value else { return None };
        let mut out = BytesMut::new();
        let is_vector = start == 0;
        out.put_i32(i32::from(is_vector || !array.items.is_empty()));
        out.put_i32(i32::from(array.items.iter().any(Value::is_null)));
        out.put_u32(element.oid());
        if is_vector || !array.items.is_empty() {
            out.put_i32(i32::try_from(array.items.len()).ok()?);
            out.put_i32(start);
        }
        for item in &array.items {
            let bytes = match item {
                Value::Null => None,
                Value::Text(text) => Some(Bytes::copy_from_slice(text.as_bytes())),
                Value::Int2(number) => Some(Bytes::copy_from_slice(&number.to_be_bytes())),
                other => Some(Bytes::copy_from_slice(&oid(other)?.to_be_bytes())),
            };
            match bytes {
                Some(bytes) => {
                    out.put_i32(i32::try_from(bytes.len()).ok()?);
                    out.put_slice(&bytes);
                }
                None => out.put_i32(-1),
            }
        }
        Some(out.freeze())
    }
}
