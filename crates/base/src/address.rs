//! Addresses as users write them: a host name or an IP address, with a port.

use core::net::{IpAddr, Ipv6Addr};
use std::fmt;
use std::str::FromStr;

/// Maximum length of a host name in the domain name system.
const NAME_BYTES_MAX: usize = 253;

/// A host name or an IP address, and a port: `node-1.example:7101`, `10.0.0.1:7101`, `[::1]:7101`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostPort {
    /// Without the brackets of an IPv6 address.
    host: String,
    port: u16,
}

/// The text is not an address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not of the form HOST:PORT, with a host name or an IP address (IPv6 in brackets)")]
pub struct ParseHostPortError(String);

impl HostPort {
    /// The host name, or the IP address without brackets.
    #[must_use]
    pub fn host(&self) -> &str {
        &self.host
    }

    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The IP address; `None` for a host name.
    #[must_use]
    pub fn ip(&self) -> Option<IpAddr> {
        self.host.parse().ok()
    }

    /// Whether other machines surely can't reach the address: it is of the loopback interface.
    #[must_use]
    pub fn is_loopback(&self) -> bool {
        self.ip().map_or_else(|| self.host.eq_ignore_ascii_case("localhost"), |ip| ip.is_loopback())
    }

    /// Whether a client can connect to it: the host is not "all addresses" (`0.0.0.0`, `[::]`), and the port is not 0.
    #[must_use]
    pub fn is_specific(&self) -> bool {
        self.port != 0 && self.ip().is_none_or(|ip| !ip.is_unspecified())
    }
}

impl FromStr for HostPort {
    type Err = ParseHostPortError;

    fn from_str(text: &str) -> Result<Self, ParseHostPortError> {
        let wrong = || ParseHostPortError(text.chars().take(NAME_BYTES_MAX).collect());
        let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
        let is_number = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
        let port = port.parse().ok().filter(|_| is_number).ok_or_else(wrong)?;
        if let Some(bracketed) = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
            let address: Ipv6Addr = bracketed.parse().map_err(|_| wrong())?;
            return Ok(Self { host: address.to_string(), port });
        }
        let is_of_name = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
        let is_name = !host.is_empty() && host.len() <= NAME_BYTES_MAX && host.bytes().all(is_of_name);
        if is_name { Ok(Self { host: host.to_owned(), port }) } else { Err(wrong()) }
    }
}

impl From<core::net::SocketAddr> for HostPort {
    fn from(address: core::net::SocketAddr) -> Self {
        Self { host: address.ip().to_string(), port: address.port() }
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> HostPort {
        text.parse().unwrap_or_else(|error| panic!("{error}"))
    }

    #[test]
    fn parses_names_and_ip_addresses() {
        for text in ["node-1.db.example:7101", "localhost:1", "10.0.0.1:65535", "[::1]:7101", "0.0.0.0:0"] {
            assert_eq!(parse(text).to_string(), text);
        }
        assert_eq!(parse("[0::1]:7").to_string(), "[::1]:7");
        assert_eq!((parse("[::1]:7").host(), parse("a:7").port()), ("::1", 7));
        for wrong in ["", ":1", "a", "a:", "a:x", "a:+1", "a:65536", "::1:7", "[::1]", "[a]:1", "a b:1", "a/b:1", "é:1"]
        {
            assert!(wrong.parse::<HostPort>().is_err(), "{wrong:?}");
        }
        assert!(format!("{}:1", "a".repeat(254)).parse::<HostPort>().is_err());
    }

    #[test]
    fn loopback_and_unspecified_addresses() {
        assert!(["127.0.0.1:1", "[::1]:1", "localhost:1"].iter().all(|text| parse(text).is_loopback()));
        assert!(["10.0.0.1:1", "0.0.0.0:1", "node:1"].iter().all(|text| !parse(text).is_loopback()));
        assert!(["10.0.0.1:1", "node:1"].iter().all(|text| parse(text).is_specific()));
        assert!(["0.0.0.0:1", "[::]:1", "node:0"].iter().all(|text| !parse(text).is_specific()));
    }
}
