//! Declarative codecs: the macro [`wire!`](crate::wire) lists the fields of a message in the order of their bytes, and
//! the tags of an enum in one table.
//!
//! # Format
//! - A number: little-endian, in the width of its type. A `bool`: one byte, 0 or 1.
//! - A byte string or text: its length as `u32`, then the bytes.
//! - `Option`: a `bool`, then the value if there is one. `Result`: a `bool`, true for `Ok`, then the value.
//! - A list or map: the number of items as `u32`, then the items.
//! - A struct or tuple: its fields. An enum: a tag of one byte, then the fields of the variant.
//! - Other encodings of a field are adapters ([`WireAs`]): `field as Adapter` in the macro.
//!
//! Fields are decoded in order; the first invalid one determines the error. The decoders never panic. They check the
//! number of items of a list against the remaining input, so that they allocate no more than the input justifies.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;

use super::{DecodeError, Reader, Writer};

/// A value with a binary encoding.
pub trait Wire: Sized {
    /// A lower bound of the encoded length in bytes. It limits the number of items in a list.
    const BYTES_MIN: usize;

    /// Appends the encoding to `out`.
    fn encode(&self, out: &mut Writer);

    /// Decodes the output of [`Wire::encode`].
    ///
    /// # Errors
    /// The input is not a valid encoding. Decoding never panics, and allocates no more than the size of the input.
    fn decode(input: &mut Reader) -> Result<Self, DecodeError>;

    fn to_bytes(&self) -> Bytes {
        let mut out = Writer::new();
        self.encode(&mut out);
        out.finish()
    }

    /// Decodes bytes that contain nothing else.
    ///
    /// # Errors
    /// The bytes are not exactly one valid encoding.
    fn from_bytes(bytes: Bytes) -> Result<Self, DecodeError> {
        let mut input = Reader::new(bytes);
        let value = Self::decode(&mut input)?;
        input.end()?;
        Ok(value)
    }
}

/// An encoding of a field that differs from the one of its type.
pub trait WireAs<T> {
    /// A lower bound of the encoded length in bytes.
    const BYTES_MIN: usize;

    /// Appends the encoding of `value` to `out`.
    fn encode(&self, value: &T, out: &mut Writer);

    /// Decodes the output of [`WireAs::encode`].
    ///
    /// # Errors
    /// The input is not a valid encoding.
    fn decode(&self, input: &mut Reader) -> Result<T, DecodeError>;
}

/// Implements [`Wire`](crate::codec::Wire) for types that are defined elsewhere.
///
/// ```
/// # use base::codec::{Text, Wire as _};
/// #[derive(Debug, PartialEq)]
/// struct Version(u64);
///
/// #[derive(Debug, PartialEq)]
/// enum Message {
///     Hello { name: String, version: Version },
///     Stop { force: bool },
///     Bye(Option<Version>),
/// }
///
/// base::wire! { newtype Version }
///
/// base::wire! {
///     // The name is used in errors.
///     enum Message, "message" {
///         // A tag, then the fields in the order of their bytes.
///         1 => Hello { version, name as Text("name") },
///         2 => Bye(version),
///         // A field that the tag determines.
///         3 => Stop { force = false },
///         4 => Stop { force = true },
///     }
/// }
///
/// let bytes = Message::Hello { name: "a".into(), version: Version(5) }.to_bytes();
/// assert_eq!(bytes[..], [1, 5, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, b'a']);
/// assert_eq!(Message::from_bytes(vec![4].into()), Ok(Message::Stop { force: true }));
/// ```
///
/// `struct Name { field, other as Adapter }` implements it for a struct. A last line `_ => "reason"` in an enum covers
/// variants that are never encoded. After the closing brace, `checked by |value| ...` names a check of the decoded
/// value, which returns `Result<(), DecodeError>`.
#[macro_export]
macro_rules! wire {
    (newtype $($name:ty),+ $(,)?) => {$(
        impl $crate::codec::Wire for $name {
            const BYTES_MIN: usize = $crate::codec::wire::bytes_min(|value: &Self| &value.0);

            fn encode(&self, out: &mut $crate::codec::Writer) {
                $crate::codec::Wire::encode(&self.0, out);
            }

            fn decode(input: &mut $crate::codec::Reader) -> ::core::result::Result<Self, $crate::codec::DecodeError> {
                ::core::result::Result::Ok(Self($crate::codec::Wire::decode(input)?))
            }
        }
    )+};
    (struct $name:ty { $($field:ident $(as $adapter:expr)?),* $(,)? } $(checked by $check:expr)?) => {
        impl $crate::codec::Wire for $name {
            const BYTES_MIN: usize = 0 $(+ $crate::wire!(@min $field $(as $adapter)?))*;

            fn encode(&self, out: &mut $crate::codec::Writer) {
                let Self { $($field),* } = self;
                $($crate::wire!(@encode $field, out $(, as $adapter)?);)*
            }

            fn decode(input: &mut $crate::codec::Reader) -> ::core::result::Result<Self, $crate::codec::DecodeError> {
                let value = Self { $($field: $crate::wire!(@decode input $(, as $adapter)?)),* };
                $($crate::codec::wire::check(&value, $check)?;)?
                ::core::result::Result::Ok(value)
            }
        }
    };
    (enum $name:ty, $what:literal {
        $($tag:literal => $variant:ident
            $({ $($field:ident $(= $constant:tt)? $(as $adapter:expr)?),* $(,)? })?
            $(( $($item:ident $(as $with:expr)?),* ))?
        ,)*
        $(_ => $never:literal $(,)?)?
    } $(checked by $check:expr)?) => {
        impl $crate::codec::Wire for $name {
            const BYTES_MIN: usize = 1;

            fn encode(&self, out: &mut $crate::codec::Writer) {
                match self {
                    $(Self::$variant $({ $($field $(: $constant)?),* })? $(( $($item),* ))? => {
                        out.u8($tag);
                        $($($crate::wire!(@encode $field, out $(, = $constant)? $(, as $adapter)?);)*)?
                        $($($crate::wire!(@encode $item, out $(, as $with)?);)*)?
                    })*
                    $(_ => {
                        debug_assert!(false, $never);
                        out.u8(u8::MAX);
                    })?
                }
            }

            fn decode(input: &mut $crate::codec::Reader) -> ::core::result::Result<Self, $crate::codec::DecodeError> {
                let value = match input.u8()? {
                    $($tag => Self::$variant
                        $({ $($field: $crate::wire!(@decode input $(, = $constant)? $(, as $adapter)?)),* })?
                        $(( $($crate::wire!(@decode input $(, as $with)?)),* ))?,)*
                    tag => {
                        let tag = ::core::convert::From::from(tag);
                        return ::core::result::Result::Err($crate::codec::DecodeError::UnknownTag { what: $what, tag });
                    }
                };
                $($crate::codec::wire::check(&value, $check)?;)?
                ::core::result::Result::Ok(value)
            }
        }
    };
    (@min $field:ident) => {
        $crate::codec::wire::bytes_min(|value: &Self| &value.$field)
    };
    (@min $field:ident as $adapter:expr) => {
        $crate::codec::wire::bytes_min_as(|value: &Self| &value.$field, &$adapter)
    };
    (@encode $field:ident, $out:ident) => {
        $crate::codec::Wire::encode($field, $out)
    };
    (@encode $field:ident, $out:ident, as $adapter:expr) => {
        $crate::codec::WireAs::encode(&$adapter, $field, $out)
    };
    (@encode $field:ident, $out:ident, = $constant:tt) => {};
    (@decode $input:ident) => {
        $crate::codec::Wire::decode($input)?
    };
    (@decode $input:ident, as $adapter:expr) => {
        $crate::codec::WireAs::decode(&$adapter, $input)?
    };
    (@decode $input:ident, = $constant:tt) => {
        $constant
    };
}

/// [`Wire::BYTES_MIN`] of a field. For [`wire!`](crate::wire).
#[doc(hidden)]
#[must_use]
pub const fn bytes_min<S, T: Wire>(_: fn(&S) -> &T) -> usize {
    T::BYTES_MIN
}

/// [`WireAs::BYTES_MIN`] of a field. For [`wire!`](crate::wire).
#[doc(hidden)]
#[must_use]
pub const fn bytes_min_as<S, T, A: WireAs<T>>(_: fn(&S) -> &T, _: &A) -> usize {
    A::BYTES_MIN
}

/// Checks a decoded value. For [`wire!`](crate::wire), where the type of a closure's argument must be known.
#[doc(hidden)]
pub fn check<T>(value: &T, check: impl FnOnce(&T) -> Result<(), DecodeError>) -> Result<(), DecodeError> {
    check(value)
}

macro_rules! numbers {
    ($($number:ident)*) => {$(
        impl Wire for $number {
            const BYTES_MIN: usize = size_of::<Self>();

            fn encode(&self, out: &mut Writer) {
                out.$number(*self);
            }

            fn decode(input: &mut Reader) -> Result<Self, DecodeError> {
                input.$number()
            }
        }
    )*};
}

numbers! { u8 bool u32 u64 i64 u128 }

impl Wire for Bytes {
    const BYTES_MIN: usize = 4;

    fn encode(&self, out: &mut Writer) {
        out.shared(self);
    }

    fn decode(input: &mut Reader) -> Result<Self, DecodeError> {
        input.bytes()
    }
}

impl<T: Wire> Wire for Option<T> {
    const BYTES_MIN: usize = 1;

    fn encode(&self, out: &mut Writer) {
        out.bool(self.is_some());
        if let Some(value) = self {
            value.encode(out);
        }
    }

    fn decode(input: &mut Reader) -> Result<Self, DecodeError> {
        if input.bool()? { T::decode(input).map(Some) } else { Ok(None) }
    }
}

impl<T: Wire, E: Wire> Wire for Result<T, E> {
    const BYTES_MIN: usize = 1;

    fn encode(&self, out: &mut Writer) {
        out.bool(self.is_ok());
        match self {
            Ok(value) => value.encode(out),
            Err(error) => error.encode(out),
        }
    }

    fn decode(input: &mut Reader) -> Result<Self, DecodeError> {
        Ok(if input.bool()? { Ok(T::decode(input)?) } else { Err(E::decode(input)?) })
    }
}

impl<T: Wire> Wire for Box<T> {
    const BYTES_MIN: usize = T::BYTES_MIN;

    fn encode(&self, out: &mut Writer) {
        (**self).encode(out);
    }

    fn decode(input: &mut Reader) -> Result<Self, DecodeError> {
        T::decode(input).map(Self::new)
    }
}

impl<T: Wire> Wire for Arc<T> {
    const BYTES_MIN: usize = T::BYTES_MIN;

    fn encode(&self, out: &mut Writer) {
        (**self).encode(out);
    }

    fn decode(input: &mut Reader) -> Result<Self, DecodeError> {
        T::decode(input).map(Self::new)
    }
}

impl<A: Wire, B: Wire> Wire for (A, B) {
    const BYTES_MIN: usize = A::BYTES_MIN + B::BYTES_MIN;

    fn encode(&self, out: &mut Writer) {
        self.0.encode(out);
        self.1.encode(out);
    }

    fn decode(input: &mut Reader) -> Result<Self, DecodeError> {
        Ok((A::decode(input)?, B::decode(input)?))
    }
}

fn encode_items<'a, T: Wire + 'a>(items: impl ExactSizeIterator<Item = &'a T>, out: &mut Writer) {
    out.count(items.len());
    items.for_each(|item| item.encode(out));
}

/// Decodes `count` items. Allocates as they are decoded, not in advance.
fn decode_items<T: Wire, C: FromIterator<T>>(count: usize, input: &mut Reader) -> Result<C, DecodeError> {
    const { assert!(T::BYTES_MIN > 0, "the input limits the number of items") };
    (0..count).map(|_| T::decode(input)).collect()
}

impl<T: Wire> Wire for Vec<T> {
    const BYTES_MIN: usize = 4;

    fn encode(&self, out: &mut Writer) {
        encode_items(self.iter(), out);
    }

    fn decode(input: &mut Reader) -> Result<Self, DecodeError> {
        decode_items(input.count(T::BYTES_MIN)?, input)
    }
}

impl<T: Wire> Wire for Arc<[T]> {
    const BYTES_MIN: usize = 4;

    fn encode(&self, out: &mut Writer) {
        encode_items(self.iter(), out);
    }

    fn decode(input: &mut Reader) -> Result<Self, DecodeError> {
        decode_items(input.count(T::BYTES_MIN)?, input)
    }
}

impl<K: Wire + Ord, V: Wire> Wire for BTreeMap<K, V> {
    const BYTES_MIN: usize = 4;

    fn encode(&self, out: &mut Writer) {
        out.count(self.len());
        for (key, value) in self {
            key.encode(out);
            value.encode(out);
        }
    }

    fn decode(input: &mut Reader) -> Result<Self, DecodeError> {
        decode_items::<(K, V), Self>(input.count(K::BYTES_MIN + V::BYTES_MIN)?, input)
    }
}

/// Text, or a list of texts, and its name in errors.
#[derive(Clone, Copy, Debug)]
pub struct Text(pub &'static str);

impl WireAs<String> for Text {
    const BYTES_MIN: usize = 4;

    fn encode(&self, value: &String, out: &mut Writer) {
        out.bytes(value.as_bytes());
    }

    fn decode(&self, input: &mut Reader) -> Result<String, DecodeError> {
        input.text(self.0)
    }
}

impl WireAs<Vec<String>> for Text {
    const BYTES_MIN: usize = 4;

    fn encode(&self, value: &Vec<String>, out: &mut Writer) {
        out.count(value.len());
        value.iter().for_each(|text| out.bytes(text.as_bytes()));
    }

    fn decode(&self, input: &mut Reader) -> Result<Vec<String>, DecodeError> {
        (0..input.count(4)?).map(|_| input.text(self.0)).collect()
    }
}

/// A list with a maximum number of items, and the name of this number in errors.
#[derive(Clone, Copy, Debug)]
pub struct AtMost(pub usize, pub &'static str);

impl<T: Wire> WireAs<Vec<T>> for AtMost {
    const BYTES_MIN: usize = 4;

    fn encode(&self, value: &Vec<T>, out: &mut Writer) {
        value.encode(out);
    }

    fn decode(&self, input: &mut Reader) -> Result<Vec<T>, DecodeError> {
        let count = input.count(T::BYTES_MIN)?;
        if count > self.0 {
            return Err(DecodeError::Invalid { what: self.1 });
        }
        decode_items(count, input)
    }
}

/// An optional number that is never 0: 0 means that there is none.
#[derive(Clone, Copy, Debug)]
pub struct OrZero;

impl<T: Wire + Copy + Default + PartialEq> WireAs<Option<T>> for OrZero {
    const BYTES_MIN: usize = T::BYTES_MIN;

    fn encode(&self, value: &Option<T>, out: &mut Writer) {
        value.unwrap_or_default().encode(out);
    }

    fn decode(&self, input: &mut Reader) -> Result<Option<T>, DecodeError> {
        Ok(Some(T::decode(input)?).filter(|value| *value != T::default()))
    }
}

/// A size as `u32`. A larger one is encoded as the maximum.
#[derive(Clone, Copy, Debug)]
pub struct Size32;

impl WireAs<usize> for Size32 {
    const BYTES_MIN: usize = 4;

    fn encode(&self, value: &usize, out: &mut Writer) {
        out.u32(u32::try_from(*value).unwrap_or(u32::MAX));
    }

    fn decode(&self, input: &mut Reader) -> Result<usize, DecodeError> {
        Ok(input.u32()? as usize)
    }
}

/// A size as `u64`. A larger one than this machine can address is decoded as the maximum.
#[derive(Clone, Copy, Debug)]
pub struct Size64;

impl WireAs<usize> for Size64 {
    const BYTES_MIN: usize = 8;

    fn encode(&self, value: &usize, out: &mut Writer) {
        out.u64(*value as u64);
    }

    fn decode(&self, input: &mut Reader) -> Result<usize, DecodeError> {
        Ok(usize::try_from(input.u64()?).unwrap_or(usize::MAX))
    }
}

/// An optional value without a flag, for a tag that implies that there is one. An earlier line of the enum must cover
/// `None`.
#[derive(Clone, Copy, Debug)]
pub struct Present;

impl<T: Wire> WireAs<Option<T>> for Present {
    const BYTES_MIN: usize = T::BYTES_MIN;

    fn encode(&self, value: &Option<T>, out: &mut Writer) {
        debug_assert!(value.is_some(), "another tag encodes `None`");
        if let Some(value) = value {
            value.encode(out);
        }
    }

    fn decode(&self, input: &mut Reader) -> Result<Option<T>, DecodeError> {
        T::decode(input).map(Some)
    }
}

/// A value after its encoded length in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Framed;

impl<T: Wire> WireAs<T> for Framed {
    const BYTES_MIN: usize = 4;

    fn encode(&self, value: &T, out: &mut Writer) {
        out.bytes(&value.to_bytes());
    }

    fn decode(&self, input: &mut Reader) -> Result<T, DecodeError> {
        T::from_bytes(input.bytes()?)
    }
}
