use bytes::{Bytes, BytesMut};
use postgres::protocol::message::{Bind, Message, length};
use sql::sqlstate;

fn decode(kind: u8, body: &[u8]) -> Result<Message, &'static str> {
    Message::decode(kind, BytesMut::from(body)).map_err(|error| error.sqlstate)
}

#[test]
fn messages_are_decoded() {
    assert_eq!(decode(b'Q', b"SELECT 1\0"), Ok(Message::Query("SELECT 1".to_owned())));
    let parse = decode(b'P', b"s\0SELECT $1\0\0\x01\0\0\0\x17");
    assert_eq!(parse, Ok(Message::Parse { name: "s".to_owned(), text: "SELECT $1".to_owned(), types: vec![23] }));
    let bind = decode(b'B', b"\0s\0\0\x01\0\x01\0\x02\0\0\0\x01x\xff\xff\xff\xff\0\0");
    assert_eq!(
        bind,
        Ok(Message::Bind(Bind {
            portal: String::new(),
            statement: "s".to_owned(),
            formats: vec![1],
            parameters: vec![Some(Bytes::from_static(b"x")), None],
            results: vec![],
        }))
    );
    assert_eq!(decode(b'E', b"p\0\0\0\0\x05"), Ok(Message::Execute { portal: "p".to_owned(), rows: 5 }));
    assert_eq!(decode(b'E', b"\0\xff\xff\xff\xff"), Ok(Message::Execute { portal: String::new(), rows: 0 }));
    assert_eq!(decode(b'D', b"S\0"), Ok(Message::Describe { is_portal: false, name: String::new() }));
}

#[test]
fn invalid_messages_are_errors() {
    for (kind, body) in [
        (b'Q', &b"SELECT 1"[..]),
        (b'Q', b"SELECT 1\0x"),
        (b'P', b"s\0SELECT $1\0\0\x02\0\0\0\x17"),
        (b'B', b"\0s\0\0\0\0\x01\x7f\xff\xff\xffx\0\0"),
        (b'B', b"\0s\0\xff\xff"),
        (b'B', b""),
        (b'E', b"\0\0"),
        (b'D', b"X\0"),
        (b'p', b"password\0"),
        (b'S', b"x"),
    ] {
        assert_eq!(decode(kind, body), Err(sqlstate::PROTOCOL_VIOLATION), "{} {body:?}", char::from(kind));
    }
    assert_eq!(decode(b'Q', b"\xff\0"), Err(sqlstate::CHARACTER_NOT_IN_REPERTOIRE));
    assert!(length([b'Q', 0xff, 0, 0, 0]).is_err() && length([b'Q', 0, 0, 0, 3]).is_err());
    assert!(length([b'S', 0, 1, 0, 5]).is_err() && length([b'?', 0, 0, 0, 4]).is_err());
    assert_eq!(length([b'S', 0, 0, 0, 4]), Ok(0));
}

/// Every prefix and every changed byte of a valid message is decoded without a panic.
#[test]
fn damaged_messages_are_harmless() {
    let bind = b"\0s\0\0\x01\0\x01\0\x02\0\0\0\x01x\xff\xff\xff\xff\0\0";
    for length in 0..bind.len() {
        let _ = decode(b'B', &bind[..length]);
        for value in [0, 1, 0x7f, 0x80, 0xff] {
            let mut damaged = bind.to_vec();
            damaged[length] = value;
            let _ = decode(b'B', &damaged);
        }
    }
}
