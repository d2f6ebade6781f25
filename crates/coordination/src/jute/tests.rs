//! Golden frames from the protocol's specification, and invalid frames.

use base::SplitMix64;
use bytes::Bytes;

use super::*;

fn from_hex(hex: &str) -> Vec<u8> {
    let digits: Vec<u32> = hex.chars().filter_map(|digit| digit.to_digit(16)).collect();
    digits.chunks(2).map(|pair| u8::try_from(pair[0] * 16 + pair[1]).unwrap()).collect()
}

fn encoded<'a>(record: &impl Record<'a>) -> Vec<u8> {
    let mut writer = Writer::new();
    record.encode(&mut writer);
    writer.take().to_vec()
}

/// Decodes `hex`, compares, encodes again.
fn golden<'a, T: Record<'a> + PartialEq + std::fmt::Debug>(record: &T, bytes: &'a [u8]) {
    let mut reader = Reader::new(bytes);
    assert_eq!(T::decode(&mut reader).as_ref(), Ok(record));
    assert!(reader.rest().is_empty());
    assert_eq!(encoded(record), bytes);
}

/// A request's frame without the length: xid, operation, record.
fn golden_request(xid: i32, request: &Request<'_>, hex: &str) {
    let bytes = from_hex(hex);
    let mut reader = Reader::new(&bytes);
    let header = RequestHeader::decode(&mut reader).unwrap();
    assert_eq!(header, RequestHeader { xid, op: request.op() });
    assert_eq!(Request::decode(header.op, reader.rest()).as_ref(), Ok(request));
    let frame = request.to_frame(xid);
    assert_eq!(&frame[4..], bytes);
    assert_eq!(frame[..4], i32::try_from(bytes.len()).unwrap().to_be_bytes());
}

const STAT: Stat = Stat {
    czxid: 1,
    mzxid: 2,
    ctime: 3,
    mtime: 4,
    version: 5,
    cversion: -1,
    aversion: 7,
    ephemeral_owner: 0x0100_0000_0000_0008,
    data_length: 9,
    num_children: 10,
    pzxid: 11,
};
const STAT_HEX: &str = "0000000000000001 0000000000000002 0000000000000003 0000000000000004 00000005 ffffffff 00000007
    0100000000000008 00000009 0000000a 000000000000000b";
const WORLD: AclRecord<'_> = AclRecord { perms: 31, id: IdRecord { scheme: Some("world"), id: Some("anyone") } };
const WORLD_HEX: &str = "0000001f 00000005 776f726c64 00000006 616e796f6e65";

#[test]
fn connect_requests() {
    let password = [0; 16];
    let request = ConnectRequest {
        protocol_version: 0,
        last_zxid_seen: 0x1_0000_0002,
        timeout_ms: 10_000,
        session: 0,
        password: Some(&password),
        read_only: Some(false),
    };
    let hex = "00000000 0000000100000002 00002710 0000000000000000 00000010 00000000000000000000000000000000 00";
    let bytes = from_hex(hex);
    assert_eq!(bytes.len(), 45);
    golden(&request, &bytes);
    golden(&ConnectRequest { read_only: None, ..request }, &bytes[..44]);
}

#[test]
fn connect_responses() {
    let response = ConnectResponse {
        timeout_ms: 10_000,
        session: 0x0100_0000_0000_0001,
        password: *b"0123456789abcdef",
        read_only: Some(true),
    };
    let bytes = from_hex("00000000 00002710 0100000000000001 00000010 30313233343536373839616263646566 01");
    assert_eq!(bytes.len(), 37);
    golden(&response, &bytes);
    golden(&ConnectResponse { read_only: None, ..response }, &bytes[..36]);
}

#[test]
fn requests() {
    let acl = [WORLD];
    let create = Create {
        kind: CreateKind::Create,
        path: "/a",
        data: Some(b"xy"),
        acl: Sequence::of(&acl),
        flags: 3,
        ttl_ms: None,
    };
    let create_hex = format!("00000002 2f61 00000002 7879 00000001 {WORLD_HEX} 00000003");
    golden_request(1, &Request::Create(create), &format!("00000001 00000001 {create_hex}"));
    let create2 = Create { kind: CreateKind::Create2, ..create };
    golden_request(1, &Request::Create(create2), &format!("00000001 0000000f {create_hex}"));
    let container = Create { kind: CreateKind::Container, ..create };
    golden_request(1, &Request::Create(container), &format!("00000001 00000013 {create_hex}"));
    let ttl = Create { kind: CreateKind::Ttl, ttl_ms: Some(5), ..create };
    golden_request(1, &Request::Create(ttl), &format!("00000001 00000015 {create_hex} 0000000000000005"));

    let watched = PathAndWatch { path: "/a", watch: true };
    for (request, op) in [
        (Request::Exists(watched), "03"),
        (Request::GetData(watched), "04"),
        (Request::GetChildren(watched), "08"),
        (Request::GetChildren2(watched), "0c"),
    ] {
        golden_request(7, &request, &format!("00000007 000000{op} 00000002 2f61 01"));
    }
    let delete = Delete { path: "/a", version: -1 };
    golden_request(2, &Request::Delete(delete), "00000002 00000002 00000002 2f61 ffffffff");
    let (null, empty) =
        (SetData { path: "/a", data: None, version: 3 }, SetData { path: "/a", data: Some(b""), version: 3 });
    golden_request(2, &Request::SetData(null), "00000002 00000005 00000002 2f61 ffffffff 00000003");
    golden_request(2, &Request::SetData(empty), "00000002 00000005 00000002 2f61 00000000 00000003");
    let set_acl = SetAcl { path: "/a", acl: Sequence::of(&acl), version: 4 };
    golden_request(
        2,
        &Request::SetAcl(set_acl),
        &format!("00000002 00000007 00000002 2f61 00000001 {WORLD_HEX} 00000004"),
    );
    golden_request(-2, &Request::Ping, "fffffffe 0000000b");
    golden_request(9, &Request::CloseSession, "00000009 fffffff5");
    golden_request(9, &Request::WhoAmI, "00000009 0000006b");
    golden_request(9, &Request::GetAcl(GetAcl { path: "/" }), "00000009 00000006 00000001 2f");
    golden_request(9, &Request::Sync(Sync { path: "/" }), "00000009 00000009 00000001 2f");
    golden_request(9, &Request::GetAllChildrenNumber(GetChildrenNumber { path: "/" }), "00000009 00000068 00000001 2f");
    golden_request(9, &Request::GetEphemerals(GetEphemerals { prefix: None }), "00000009 00000067 ffffffff");
    golden_request(9, &Request::AddWatch(AddWatch { path: "/", mode: 1 }), "00000009 0000006a 00000001 2f 00000001");
    let of_type = WatchesOfType { path: "/", kind: 3 };
    golden_request(9, &Request::CheckWatches(of_type), "00000009 00000011 00000001 2f 00000003");
    golden_request(9, &Request::RemoveWatches(of_type), "00000009 00000012 00000001 2f 00000003");
    let auth = AuthPacket { kind: 0, scheme: Some("digest"), auth: Some(b"u:p") };
    golden_request(-4, &Request::Auth(auth), "fffffffc 00000064 00000000 00000006 646967657374 00000003 753a70");
    let reconfig = Reconfig { joining: None, leaving: Some("3"), members: None, config: -1 };
    golden_request(9, &Request::Reconfig(reconfig), "00000009 00000010 ffffffff 00000001 33 ffffffff ffffffffffffffff");
}

#[test]
fn set_watches_requests() {
    let (data, child) = (["/a", "/b"], ["/c"]);
    let one = SetWatches {
        relative_zxid: 5,
        data: Sequence::of(&data),
        exist: Sequence::of(&[]),
        child: Sequence::of(&child),
    };
    let hex = "0000000000000005 00000002 00000002 2f61 00000002 2f62 00000000 00000001 00000002 2f63";
    golden_request(-8, &Request::SetWatches(one), &format!("fffffff8 00000065 {hex}"));
    let two = SetWatches2 {
        relative_zxid: 5,
        data: one.data,
        exist: one.exist,
        child: one.child,
        persistent: Sequence::of(&[]),
        persistent_recursive: Sequence::of(&child),
    };
    golden_request(-8, &Request::SetWatches2(two), &format!("fffffff8 00000069 {hex} 00000000 00000001 00000002 2f63"));
}

#[test]
fn multis() {
    let operations = [
        Operation::Check(CheckVersion { path: "/a", version: 1 }),
        Operation::Delete(Delete { path: "/a", version: 1 }),
    ];
    golden_request(
        3,
        &Request::Multi(Operations::of(&operations)),
        "00000003 0000000e 0000000d 00 ffffffff 00000002 2f61 00000001
         00000002 00 ffffffff 00000002 2f61 00000001 ffffffff 01 ffffffff",
    );
    golden_request(3, &Request::Multi(Operations::of(&[])), "00000003 0000000e ffffffff 01 ffffffff");
    let reads = [ReadOperation::GetData(PathAndWatch { path: "/a", watch: false })];
    golden_request(
        3,
        &Request::MultiRead(Operations::of(&reads)),
        "00000003 00000016 00000004 00 ffffffff 00000002 2f61 00 ffffffff 01 ffffffff",
    );
    // A read in a multi, and unknown create flags.
    let read = from_hex("00000004 00 ffffffff 00000002 2f61 00 ffffffff 01 ffffffff");
    assert_eq!(Request::decode(op::MULTI, &read), Err(DecodeError::Invalid { what: "operation of a multi", value: 4 }));
    let flags = from_hex("00000001 00 ffffffff 00000002 2f61 ffffffff 00000000 00000007 ffffffff 01 ffffffff");
    assert_eq!(Request::decode(op::MULTI, &flags), Err(DecodeError::Invalid { what: "create flags", value: 7 }));
}

#[test]
fn multi_results() {
    let results = [
        MultiResult::Create(PathReply { path: "/a" }),
        MultiResult::Delete,
        MultiResult::Error(ErrorReply { err: -2 }),
    ];
    let mut writer = Writer::new();
    results.iter().for_each(|result| result.encode(&mut writer));
    MultiResult::encode_end(&mut writer);
    let bytes = from_hex(
        "00000001 00 00000000 00000002 2f61 00000002 00 00000000 ffffffff 00 fffffffe fffffffe ffffffff 01 ffffffff",
    );
    assert_eq!(writer.take(), bytes);
    let mut reader = Reader::new(&bytes);
    for result in results {
        assert_eq!(MultiResult::decode_next(&mut reader), Ok(Some(result)));
    }
    assert_eq!(MultiResult::decode_next(&mut reader), Ok(None));
}

#[test]
fn replies() {
    golden(&ReplyHeader { xid: -1, zxid: 7, err: -101 }, &from_hex("ffffffff 0000000000000007 ffffff9b"));
    golden(&STAT, &from_hex(STAT_HEX));
    golden(&DataReply { data: None, stat: STAT }, &from_hex(&format!("ffffffff {STAT_HEX}")));
    golden(&DataReply { data: Some(b""), stat: STAT }, &from_hex(&format!("00000000 {STAT_HEX}")));
    let names = ["a", "bc"];
    let children = Sequence::of(&names);
    golden(&ChildrenReply { children }, &from_hex("00000002 00000001 61 00000002 6263"));
    golden(
        &Children2Reply { children, stat: STAT },
        &from_hex(&format!("00000002 00000001 61 00000002 6263 {STAT_HEX}")),
    );
    let acl = [WORLD];
    golden(&AclReply { acl: Sequence::of(&acl), stat: STAT }, &from_hex(&format!("00000001 {WORLD_HEX} {STAT_HEX}")));
    golden(&Create2Reply { path: "/a", stat: STAT }, &from_hex(&format!("00000002 2f61 {STAT_HEX}")));
    let clients = [ClientInfo { scheme: "ip", user: "::1" }];
    golden(&WhoAmIReply { clients: Sequence::of(&clients) }, &from_hex("00000001 00000002 6970 00000003 3a3a31"));
    golden(&WatcherEvent::of(EventType::ChildrenChanged, "/a"), &from_hex("00000004 00000003 00000002 2f61"));
}

#[test]
fn null_vectors_and_paths() {
    let request = from_hex("00000002 2f61 ffffffff ffffffff 00000000");
    let Ok(Request::Create(create)) = Request::decode(op::CREATE, &request) else { panic!() };
    assert_eq!((create.data, create.acl.len()), (None, 0));
    assert_eq!(Request::decode(op::GET_ACL, &from_hex("ffffffff")), Err(DecodeError::Null));
    assert_eq!(Request::decode(op::GET_ACL, &from_hex("fffffffe")), Err(DecodeError::NegativeLength(-2)));
    assert_eq!(Request::decode(op::GET_ACL, &from_hex("00000001 ff")), Err(DecodeError::NotUtf8));
    assert_eq!(Request::decode(op::CHECK, &request), Err(DecodeError::UnknownOperation(13)));
    let truncated = DecodeError::Truncated { wanted: 0x7fff_ffff, left: 1 };
    assert_eq!(Request::decode(op::GET_ACL, &from_hex("7fffffff 00")), Err(truncated));
    // A vector with a declared length of 2^31 - 1 strings.
    let lie = from_hex("0000000000000000 7fffffff 00000000");
    assert!(matches!(Request::decode(op::SET_WATCHES, &lie), Err(DecodeError::Truncated { .. })));
}

#[test]
fn ignores_trailing_bytes() {
    assert_eq!(Request::decode(op::PING, b"more"), Ok(Request::Ping));
}

/// Randomly damaged frames decode or fail, but never panic; decoded requests survive a round trip.
#[test]
fn fuzz_damaged_requests() {
    let mut random = SplitMix64::new(7);
    let acl = [WORLD];
    let paths = ["/a", "/b/c", "", "/zookeeper"];
    let create = Create {
        kind: CreateKind::Ttl,
        path: "/a/b",
        data: Some(b"data"),
        acl: Sequence::of(&acl),
        flags: 6,
        ttl_ms: Some(1),
    };
    let operations = [
        Operation::Create(create),
        Operation::SetData(SetData { path: "/a", data: None, version: 1 }),
        Operation::Check(CheckVersion { path: "/a", version: 1 }),
    ];
    let reads = [ReadOperation::GetChildren(PathAndWatch { path: "/a", watch: false })];
    let set_watches = SetWatches2 {
        relative_zxid: 1,
        data: Sequence::of(&paths),
        exist: Sequence::of(&paths),
        child: Sequence::of(&paths),
        persistent: Sequence::of(&paths),
        persistent_recursive: Sequence::of(&paths),
    };
    let requests = [
        Request::Create(create),
        Request::Multi(Operations::of(&operations)),
        Request::MultiRead(Operations::of(&reads)),
        Request::SetWatches2(set_watches),
        Request::SetAcl(SetAcl { path: "/a", acl: Sequence::of(&acl), version: 1 }),
        Request::Auth(AuthPacket { kind: 0, scheme: Some("digest"), auth: Some(b"a:b") }),
    ];
    let ops: Vec<i32> = (-12..=110).collect();
    let mut read = 0;
    for _ in 0..60_000 {
        let request = requests[random.below(6) as usize];
        let mut bytes = request.to_frame(1)[12..].to_vec();
        for _ in 0..random.below(4) {
            let at = random.below(bytes.len() as u64) as usize;
            match random.below(3) {
                0 => bytes[at] = random.draw() as u8,
                1 => bytes.truncate(at.max(1)),
                _ => bytes.insert(at, random.draw() as u8),
            }
        }
        let op = if random.chance(100_000) { ops[random.below(ops.len() as u64) as usize] } else { request.op() };
        if let Ok(request) = Request::decode(op, &bytes) {
            read += 1;
            let again = request.to_frame(1).slice(12..);
            assert_eq!(Request::decode(op, &again), Ok(request));
            assert!(again.len() <= bytes.len());
        }
        let mut reader = Reader::new(&bytes);
        let _ = ConnectRequest::decode(&mut reader.clone());
        let _ = ConnectResponse::decode(&mut reader.clone());
        while let Ok(Some(_)) = MultiResult::decode_next(&mut reader) {}
    }
    assert!(read > 10_000);
}

#[test]
fn frames_arrive_in_fragments() {
    let mut random = SplitMix64::new(3);
    let sent: Vec<Bytes> = (0..200_u32).map(|length| vec![length as u8; (length % 50) as usize].into()).collect();
    let mut stream = Vec::new();
    for frame in &sent {
        stream.extend_from_slice(&(frame.len() as u32).to_be_bytes());
        stream.extend_from_slice(frame);
    }
    let (mut frames, mut received, mut rest) = (Frames::new(50), Vec::new(), &stream[..]);
    while !rest.is_empty() {
        let (portion, after) = rest.split_at((1 + random.below(40) as usize).min(rest.len()));
        frames.push(portion);
        rest = after;
        while let Some(frame) = frames.next().unwrap() {
            received.push(frame);
        }
    }
    assert_eq!(received, sent);
    assert_eq!(frames.held(), 0);
}

#[test]
fn invalid_length_closes_connection() {
    let limit = 0xf_ffff;
    for length in [-1, i32::MIN, i32::MAX, 0x7275_6f6b, 0x10_0000] {
        let mut frames = Frames::new(limit);
        frames.push(&length.to_be_bytes());
        assert_eq!(frames.next(), Err(FrameError::Length { length, limit }));
    }
    let mut frames = Frames::new(limit);
    frames.push(&0xf_ffff_i32.to_be_bytes());
    assert_eq!(frames.next(), Ok(None));
}

#[test]
fn frame_size_limit() {
    let mut writer = Writer::new();
    let value: Option<&[u8]> = Some(b"12345678");
    assert_eq!(writer.frame_within(16, |writer| value.encode(writer)).unwrap().len(), 16);
    for limit in [0, 3, 4, 15] {
        assert_eq!(writer.frame_within(limit, |writer| value.encode(writer)), Err(FrameTooLong { limit }));
    }
    let mut lost = 0;
    let result = writer.frame_within(100, |writer| {
        for _ in 0..1_000 {
            value.encode(writer);
            lost += usize::from(writer.is_over_limit());
        }
    });
    assert_eq!((result, lost), (Err(FrameTooLong { limit: 100 }), 992));
    // The writer remains usable.
    assert_eq!(writer.frame(|writer| 1.encode(writer))[..], [0, 0, 0, 4, 0, 0, 0, 1]);
}
