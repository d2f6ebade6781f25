//! Multi requests: a sequence of operations or results, each with a header, terminated by a final header.

use super::request::op;
use super::{
    CheckVersion, ChildrenReply, Create, Create2Reply, CreateKind, DataReply, DecodeError, Delete, ErrorReply,
    PathAndWatch, PathReply, Reader, Record, SetData, StatReply, Writer, record,
};

record! {
    /// The header of each operation and result.
    MultiHeader {
        op: i32,
        done: bool,
        err: i32,
    }
}

const END: MultiHeader = MultiHeader { op: -1, done: true, err: -1 };

/// An operation of a multi.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the operations' own names")]
pub enum Operation<'a> {
    Create(Create<'a>),
    Delete(Delete<'a>),
    SetData(SetData<'a>),
    Check(CheckVersion<'a>),
}

/// An operation of a multiRead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the operations' own names")]
pub enum ReadOperation<'a> {
    GetData(PathAndWatch<'a>),
    GetChildren(PathAndWatch<'a>),
}

/// An operation that follows a [`MultiHeader`].
pub trait Headed<'a>: Sized {
    /// Decodes the operation with that code.
    ///
    /// # Errors
    /// When this kind of request does not permit the operation, or it cannot be decoded.
    fn decode(op: i32, reader: &mut Reader<'a>) -> Result<Self, DecodeError>;
    fn op(&self) -> i32;
    /// Writes the operation without the header.
    fn encode(&self, writer: &mut Writer);
}

const fn not_allowed(op: i32) -> DecodeError {
    DecodeError::Invalid { what: "operation of a multi", value: op }
}

impl<'a> Headed<'a> for Operation<'a> {
    fn decode(op: i32, reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let mut create = |kind| {
            let create = Create::decode(kind, reader)?;
            if (0..=6).contains(&create.flags) {
                Ok(Self::Create(create))
            } else {
                Err(DecodeError::Invalid { what: "create flags", value: create.flags })
            }
        };
        match op {
            op::CREATE => create(CreateKind::Create),
            op::CREATE2 => create(CreateKind::Create2),
            op::CREATE_CONTAINER => create(CreateKind::Container),
            op::CREATE_TTL => create(CreateKind::Ttl),
            op::DELETE => Ok(Self::Delete(Record::decode(reader)?)),
            op::SET_DATA => Ok(Self::SetData(Record::decode(reader)?)),
            op::CHECK => Ok(Self::Check(Record::decode(reader)?)),
            other => Err(not_allowed(other)),
        }
    }

    fn op(&self) -> i32 {
        match self {
            Self::Create(create) => create.kind.op(),
            Self::Delete(_) => op::DELETE,
            Self::SetData(_) => op::SET_DATA,
            Self::Check(_) => op::CHECK,
        }
    }

    fn encode(&self, writer: &mut Writer) {
        match self {
            Self::Create(create) => create.encode(writer),
            Self::Delete(delete) => delete.encode(writer),
            Self::SetData(set) => set.encode(writer),
            Self::Check(check) => check.encode(writer),
        }
    }
}

impl<'a> Headed<'a> for ReadOperation<'a> {
    fn decode(op: i32, reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        match op {
            op::GET_DATA => Ok(Self::GetData(Record::decode(reader)?)),
            op::GET_CHILDREN => Ok(Self::GetChildren(Record::decode(reader)?)),
            other => Err(not_allowed(other)),
        }
    }

    fn op(&self) -> i32 {
        match self {
            Self::GetData(_) => op::GET_DATA,
            Self::GetChildren(_) => op::GET_CHILDREN,
        }
    }

    fn encode(&self, writer: &mut Writer) {
        let (Self::GetData(read) | Self::GetChildren(read)) = self;
        read.encode(writer);
    }
}

/// The operations of a request: either a slice, or validated but still encoded.
#[derive(Clone, Copy, Debug)]
pub struct Operations<'a, T>(Source<'a, T>);

#[derive(Clone, Copy, Debug)]
enum Source<'a, T> {
    Given(&'a [T]),
    Encoded(&'a [u8]),
}

impl<'a, T> Operations<'a, T> {
    /// Creates a list of these operations.
    #[must_use]
    pub const fn of(operations: &'a [T]) -> Self {
        Self(Source::Given(operations))
    }
}

/// The next operation; `None` at the end.
fn next<'a, T: Headed<'a>>(reader: &mut Reader<'a>) -> Result<Option<T>, DecodeError> {
    let header = MultiHeader::decode(reader)?;
    if header.done { Ok(None) } else { T::decode(header.op, reader).map(Some) }
}

impl<'a, T: Headed<'a> + Copy> Operations<'a, T> {
    /// The operations in order.
    pub fn iter(&self) -> impl Iterator<Item = T> + use<'a, T> {
        let (given, bytes): (&[T], Option<&[u8]>) = match self.0 {
            Source::Given(operations) => (operations, None),
            Source::Encoded(bytes) => (&[], Some(bytes)),
        };
        let mut reader = bytes.map(Reader::new);
        let encoded = std::iter::from_fn(move || next(reader.as_mut()?).ok().flatten());
        given.iter().copied().chain(encoded)
    }
}

impl<'a, T: Headed<'a> + Copy + PartialEq> PartialEq for Operations<'a, T> {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl<'a, T: Headed<'a> + Copy + Eq> Eq for Operations<'a, T> {}

impl<'a, T: Headed<'a> + Copy> Record<'a> for Operations<'a, T> {
    fn decode(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let bytes = reader.rest();
        while next::<T>(reader)?.is_some() {}
        Ok(Self(Source::Encoded(&bytes[..bytes.len() - reader.rest().len()])))
    }

    fn encode(&self, writer: &mut Writer) {
        for operation in self.iter() {
            MultiHeader { op: operation.op(), done: false, err: -1 }.encode(writer);
            operation.encode(writer);
        }
        END.encode(writer);
    }
}

/// The result of one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the operations' own names")]
pub enum MultiResult<'a> {
    Create(PathReply<'a>),
    Create2(Create2Reply<'a>),
    Delete,
    SetData(StatReply),
    Check,
    GetData(DataReply<'a>),
    GetChildren(ChildrenReply<'a>),
    Error(ErrorReply),
}

impl<'a> MultiResult<'a> {
    /// Writes the header and the result.
    pub fn encode(&self, writer: &mut Writer) {
        let (op, err) = match self {
            Self::Create(_) => (op::CREATE, 0),
            Self::Create2(_) => (op::CREATE2, 0),
            Self::Delete => (op::DELETE, 0),
            Self::SetData(_) => (op::SET_DATA, 0),
            Self::Check => (op::CHECK, 0),
            Self::GetData(_) => (op::GET_DATA, 0),
            Self::GetChildren(_) => (op::GET_CHILDREN, 0),
            Self::Error(error) => (op::ERROR, error.err),
        };
        MultiHeader { op, done: false, err }.encode(writer);
        match self {
            Self::Create(reply) => reply.encode(writer),
            Self::Create2(reply) => reply.encode(writer),
            Self::Delete | Self::Check => {}
            Self::SetData(reply) => reply.encode(writer),
            Self::GetData(reply) => reply.encode(writer),
            Self::GetChildren(reply) => reply.encode(writer),
            Self::Error(reply) => reply.encode(writer),
        }
    }

    pub fn encode_end(writer: &mut Writer) {
        END.encode(writer);
    }

    /// Decodes the next result; `None` at the end.
    ///
    /// # Errors
    /// When it cannot be decoded.
    pub fn decode_next(reader: &mut Reader<'a>) -> Result<Option<Self>, DecodeError> {
        let header = MultiHeader::decode(reader)?;
        if header.done {
            return Ok(None);
        }
        Ok(Some(match header.op {
            op::CREATE => Self::Create(Record::decode(reader)?),
            op::CREATE2 => Self::Create2(Record::decode(reader)?),
            op::DELETE => Self::Delete,
            op::SET_DATA => Self::SetData(Record::decode(reader)?),
            op::CHECK => Self::Check,
            op::GET_DATA => Self::GetData(Record::decode(reader)?),
            op::GET_CHILDREN => Self::GetChildren(Record::decode(reader)?),
            op::ERROR => Self::Error(Record::decode(reader)?),
            other => return Err(not_allowed(other)),
        }))
    }
}
