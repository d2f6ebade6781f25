use bytes::BytesMut;
use postgres::protocol::startup::{SSL_REQUEST, Startup};
use sql::sqlstate;

fn decode(body: &[u8]) -> Result<Startup, &'static str> {
    Startup::decode(BytesMut::from(body)).map_err(|error| error.sqlstate)
}

#[test]
fn first_messages_are_decoded() {
    assert_eq!(decode(&SSL_REQUEST.to_be_bytes()), Ok(Startup::Encryption));
    let session = decode(b"\0\x03\0\x02user\0u\0options\0-c statement_timeout=5s\0_pq_.x\x001\0\0");
    let parameters = [("user", "u"), ("statement_timeout", "5s")];
    assert_eq!(
        session,
        Ok(Startup::Session {
            parameters: parameters.map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
            unknown: vec!["_pq_.x".to_owned()],
            is_newer: true,
        })
    );
    for bad in [&b""[..], b"\0\x03\0\0user", b"\0\x03\0\0user\0u", b"\x04\xd2\x16\x2e\0"] {
        assert_eq!(decode(bad), Err(sqlstate::PROTOCOL_VIOLATION), "{bad:?}");
    }
    assert_eq!(decode(b"\0\x02\0\0user\0u\0\0"), Err(sqlstate::FEATURE_NOT_SUPPORTED));
}
