//! Timeline tokens: the states that a client has seen, for clients of other processes.

use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use bytes::Bytes;

use crate::{Client, Error, Table};

/// The latest states that a client has seen, for another client of the same cluster, possibly in another process. The
/// other client's [timeline reads](crate::Reads::Timeline) are then not older than the first client's.
///
/// A token contains the states of reads with a reported state ([`AsOf`](crate::AsOf)). Strong reads and writes are not
/// included. It is opaque: bytes, or text of letters, digits, `-` and `_`, suitable for a header or a URL. Its size is
/// about 50 bytes for each range read, and at most 1 MiB.
///
/// ```no_run
/// # async fn example(here: loggos_client::Client, there: loggos_client::Client) -> Result<(), loggos_client::Error> {
/// use loggos_client::{Reads, TimelineToken};
///
/// let timeline = Reads::Timeline { stale_ok: false };
/// let first = here.table("airports").read("JFK").consistency(timeline).send().await?;
/// let text = here.timeline_token()?.to_string();
///
/// let token: TimelineToken = text.parse()?;
/// there.observe(&token);
/// let second = there.table("airports").read("JFK").consistency(timeline).send().await?;
/// // `second` is not older than `first`.
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimelineToken {
    states: client::TimelineToken,
    encoded: Bytes,
}

impl TimelineToken {
    fn new(states: client::TimelineToken) -> Result<Self, Error> {
        let encoded = states.encode().map_err(invalid)?;
        Ok(Self { states, encoded })
    }

    /// The token as bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.encoded
    }

    /// The token in bytes from [`TimelineToken::as_bytes`].
    ///
    /// # Errors
    /// [`Error::Invalid`] if they are not a token, or one of an incompatible version.
    pub fn from_bytes(bytes: impl Into<Bytes>) -> Result<Self, Error> {
        let encoded = bytes.into();
        let states = client::TimelineToken::decode(encoded.clone()).map_err(invalid)?;
        Ok(Self { states, encoded })
    }
}

impl fmt::Display for TimelineToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&BASE64_URL_SAFE_NO_PAD.encode(&self.encoded))
    }
}

impl FromStr for TimelineToken {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        Self::from_bytes(BASE64_URL_SAFE_NO_PAD.decode(text).map_err(invalid)?)
    }
}

impl Client {
    /// The latest states that this client, with all its clones, has seen in any table.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the token would exceed 1 MiB; [`Table::timeline_token`] is smaller.
    pub fn timeline_token(&self) -> Result<TimelineToken, Error> {
        TimelineToken::new(self.driver.token(None))
    }

    /// Records the states that another client has seen: timeline reads of this client, and of all its clones, that begin
    /// later are not older. Tokens of other clusters must not be used: reads could fail as unavailable.
    pub fn observe(&self, token: &TimelineToken) {
        self.driver.observe(&token.states);
    }
}

impl Table {
    /// The latest states of this table that its client, with all its clones, has seen.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the token would exceed 1 MiB.
    pub fn timeline_token(&self) -> Result<TimelineToken, Error> {
        TimelineToken::new(self.client.driver.token(Some(&self.name)))
    }
}

fn invalid(error: impl fmt::Display) -> Error {
    Error::Invalid(format!("invalid timeline token: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_as_text_and_bytes() {
        let client = Client::connect(["127.0.0.1:1"]).expect("an address");
        let token = client.timeline_token().expect("a small token");
        assert_eq!(token.to_string().parse(), Ok(token.clone()));
        assert_eq!(TimelineToken::from_bytes(token.as_bytes().to_vec()), Ok(token.clone()));
        assert_eq!(client.table("t").timeline_token(), Ok(token.clone()));
        client.observe(&token);
        for wrong in ["", "AQ", "no token", &token.to_string()[1..]] {
            assert!(matches!(wrong.parse::<TimelineToken>(), Err(Error::Invalid(_))), "{wrong:?}");
        }
    }
}
