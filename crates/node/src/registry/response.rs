//! Responses of all kinds: their properties that the node uses, and their codec.

use base::Duration;
use base::codec::{DecodeError, Reader, Writer};

use super::*;

/// Tags of responses that come from no state machine. Others use the machine's kind.
pub(super) const PLAN_DONE: u8 = 0;
pub(super) const LOG: u8 = u8::MAX;
pub(super) const DATED: u8 = u8::MAX - 1;

impl Response {
    /// A response of the catalog.
    pub(crate) fn of_catalog(response: CatalogResponse) -> Self {
        Self::Catalog(response).flat()
    }

    /// Converts a catalog response about a log to a log response.
    pub(super) fn flat(self) -> Self {
        match self {
            Self::Catalog(CatalogResponse::Log(response)) => Self::Log(response),
            other => other,
        }
    }

    /// The result of a verification of blocks, if it is one.
    pub(crate) fn checked(&self) -> Option<Checked<'_>> {
        dispatch!(
            Self,
            self,
            _M,
            response => state_machine::Response::checked(response),
            Self::Dated { response, .. } => response.checked(),
            Self::Log(_) | Self::Status(_) | Self::Clock(_) | Self::PlanDone => None
        )
    }

    /// Whether it answers a read. A refusal may then replace it, and the read may be repeated.
    #[must_use]
    pub fn is_of_read(&self) -> bool {
        dispatch!(
            Self,
            self,
            _M,
            response => response.is_of_read(),
            Self::Log(LogResponse::Logs(_) | LogResponse::Log(_)) | Self::Dated { .. } => true,
            Self::Log(_) | Self::Status(_) | Self::Clock(_) | Self::PlanDone => false
        )
    }

    /// The response to a change that needs a clock.
    pub(crate) fn committed(self, uncertainty: Duration, waited: Duration) -> Self {
        dispatch!(
            Self,
            self,
            M,
            response => <M as Hosted>::response(response.committed(uncertainty, waited)),
            other => other
        )
    }

    pub(super) fn decode_undated(tag: u8, input: &mut Reader) -> Result<Self, DecodeError> {
        match tag {
            PLAN_DONE => Ok(Self::PlanDone),
            LOG => LogResponse::decode(input).map(Self::Log),
            kind => by_kind!(
                Kind(kind),
                M => Wire::decode(input).map(<M as Hosted>::response),
                Kind(tag) => Err(DecodeError::UnknownTag { what: "kind of response", tag: u64::from(tag) })
            ),
        }
    }
}

/// A status is never forwarded, because each node reports only its own.
impl Wire for Response {
    const BYTES_MIN: usize = 1;

    fn encode(&self, out: &mut Writer) {
        dispatch!(
            Self,
            self,
            M,
            response => {
                out.u8(M::KIND.0);
                response.encode(out);
            },
            Self::PlanDone => out.u8(PLAN_DONE),
            Self::Log(response) => {
                out.u8(LOG);
                response.encode(out);
            },
            Self::Dated { response, as_of } => {
                out.u8(DATED);
                as_of.encode(out);
                response.encode(out);
            },
            Self::Status(_) | Self::Clock(_) => {
                debug_assert!(false, "a status is never forwarded");
                out.u8(PLAN_DONE);
            }
        );
    }

    fn decode(input: &mut Reader) -> Result<Self, DecodeError> {
        match input.u8()? {
            DATED => {
                let as_of = Box::new(AsOf::decode(input)?);
                let tag = input.u8()?;
                Ok(Self::Dated { response: Box::new(Self::decode_undated(tag, input)?), as_of })
            }
            tag => Self::decode_undated(tag, input),
        }
    }
}
