use base::SplitMix64;
use bytes::{BufMut, Bytes, BytesMut};

use super::constants::{answer, chunk, command, flag, info, option, transmission as flags};
use super::*;

/// Two disks of 1 MiB: "data", and "frozen", which is read-only.
struct Disks;

impl Exports for Disks {
    fn names(&self) -> Vec<String> {
        vec!["data".to_owned(), "frozen".to_owned()]
    }

    fn find(&self, name: &str) -> Result<Export, Refusal> {
        let is_read_only = name == "frozen";
        let known = is_read_only || name == "data";
        if name == "held" {
            return Err(Refusal::Policy("attach it as held@HOLDER".to_owned()));
        }
        let export = || Export { size: 1 << 20, is_read_only, description: "a disk".to_owned() };
        known.then(export).ok_or(Refusal::Unknown)
    }
}

/// A connection, with the bytes of the client and the server that are not yet processed.
struct Pair {
    connection: Connection,
    input: BytesMut,
    out: Vec<Bytes>,
}

impl Pair {
    fn new(client_flags: u32) -> Self {
        let (connection, greeting) = Connection::new();
        assert_eq!(greeting[..], hex("4e42444d41474943 49484156454f5054 0003"));
        let mut pair = Self { connection, input: BytesMut::new(), out: Vec::new() };
        pair.input.put_u32(client_flags);
        assert_eq!(pair.run(), Ok(vec![]));
        pair
    }

    /// A client that has attached an export.
    fn attached(name: &str, is_structured: bool) -> Self {
        let mut pair = Self::new(3);
        if is_structured {
            pair.option(option::STRUCTURED_REPLY, b"");
            pair.option(option::SET_META_CONTEXT, &contexts(name, &["base:allocation"]));
        }
        pair.option(option::GO, &go(name, &[]));
        let steps = pair.run().expect("a valid handshake");
        assert!(matches!(&steps[..], [Step::Attached { name: found, .. }] if found == name), "{steps:?}");
        pair.sent();
        pair
    }

    fn option(&mut self, option: u32, data: &[u8]) {
        self.input.put_slice(b"IHAVEOPT");
        self.input.put_u32(option);
        self.input.put_u32(data.len() as u32);
        self.input.put_slice(data);
    }

    fn request(&mut self, kind: u16, flags: u16, offset: u64, length: u32) {
        self.input.put_u32(constants::REQUEST);
        self.input.put_u16(flags);
        self.input.put_u16(kind);
        self.input.put_u64(7);
        self.input.put_u64(offset);
        self.input.put_u32(length);
    }

    /// Processes all input; the steps that need the driver's attention.
    fn run(&mut self) -> Result<Vec<Step>, NbdError> {
        let mut steps = Vec::new();
        loop {
            match self.connection.advance(&mut self.input, &Disks, &mut self.out)? {
                Step::Continue => {}
                Step::NeedsBytes(_) => return Ok(steps),
                Step::Disconnect => {
                    steps.push(Step::Disconnect);
                    return Ok(steps);
                }
                step => steps.push(step),
            }
        }
    }

    /// Everything that the server has sent since the last call.
    fn sent(&mut self) -> Vec<u8> {
        self.out.drain(..).collect::<Vec<_>>().concat()
    }

    /// Processes all input, and returns the types of the replies to options.
    fn answers(&mut self) -> Vec<u32> {
        self.run().expect("no violation");
        let sent = self.sent();
        let (mut rest, mut answers) = (&sent[..], Vec::new());
        while rest.len() >= 20 && rest.starts_with(&constants::OPTION_REPLY.to_be_bytes()) {
            let word = |at: usize| u32::from_be_bytes(rest[at..at + 4].try_into().expect("four bytes"));
            answers.push(word(12));
            rest = &rest[20 + word(16) as usize..];
        }
        answers
    }

    /// The error of a request, which the connection answers itself.
    fn refusal(&mut self, kind: u16, flags: u16, offset: u64, length: u32) -> u32 {
        self.request(kind, flags, offset, length);
        assert_eq!(self.run(), Ok(vec![]));
        let sent = self.sent();
        let at = if sent.starts_with(&constants::SIMPLE_REPLY.to_be_bytes()) { 4 } else { 20 };
        u32::from_be_bytes(sent[at..at + 4].try_into().expect("an error number"))
    }
}

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u32> = text.chars().filter_map(|c| c.to_digit(16)).collect();
    digits.chunks(2).map(|pair| (pair[0] << 4 | pair[1]) as u8).collect()
}

fn go(name: &str, wanted: &[u16]) -> Vec<u8> {
    let mut data = BytesMut::new();
    data.put_u32(name.len() as u32);
    data.put_slice(name.as_bytes());
    data.put_u16(wanted.len() as u16);
    wanted.iter().for_each(|item| data.put_u16(*item));
    data.to_vec()
}

fn contexts(name: &str, queries: &[&str]) -> Vec<u8> {
    let mut data = BytesMut::new();
    data.put_u32(name.len() as u32);
    data.put_slice(name.as_bytes());
    data.put_u32(queries.len() as u32);
    for query in queries {
        data.put_u32(query.len() as u32);
        data.put_slice(query.as_bytes());
    }
    data.to_vec()
}

/// The bytes of a client in a whole session.
const CLIENT: &str = "
    00000003
    49484156454f5054 00000008 00000000
    49484156454f5054 0000000a 0000001f 00000004 64617461 00000001 0000000f 626173653a616c6c6f636174696f6e
    49484156454f5054 00000007 0000000c 00000004 64617461 0001 0003
    25609513 0001 0001 0000000000000001 0000000000001000 00000004 61626364
    25609513 0000 0000 0000000000000002 0000000000000ffe 00000008
    25609513 0000 0003 0000000000000003 0000000000000000 00000000
    25609513 0008 0007 0000000000000004 0000000000000000 00002000
    25609513 0012 0006 0000000000000005 0000000000001000 00001000
    25609513 0000 0004 0000000000000006 0000000000100000 00000001
    25609513 0000 0002 0000000000000007 0000000000000000 00000000
";

/// The bytes of the server, without the greeting.
const SERVER: &str = "
    0003e889045565a9 00000008 00000001 00000000
    0003e889045565a9 0000000a 00000004 00000013 00000001 626173653a616c6c6f636174696f6e
    0003e889045565a9 0000000a 00000001 00000000
    0003e889045565a9 00000007 00000003 0000000c 0000 0000000000100000 0ded
    0003e889045565a9 00000007 00000003 0000000e 0003 00000001 00001000 02000000
    0003e889045565a9 00000007 00000001 00000000
    67446698 00000000 0000000000000001
    668e33ef 0000 0002 0000000000000002 0000000c 0000000000000ffe 00000002
    668e33ef 0000 0001 0000000000000002 0000000c 0000000000001000 61626364
    668e33ef 0001 0002 0000000000000002 0000000c 0000000000001004 00000002
    67446698 00000000 0000000000000003
    668e33ef 0001 0005 0000000000000004 0000000c 00000001 00001000 00000003
    67446698 00000000 0000000000000005
    668e33ef 0001 8001 0000000000000006 00000022 00000016 001c 6265796f6e642074686520656e64206f6620746865206578706f7274
";

#[test]
fn session_has_golden_bytes() {
    let mut pair = Pair::new(3);
    pair.input.put_slice(&hex(CLIENT)[4..]);
    let mut steps = Vec::new();
    loop {
        let step = pair.connection.advance(&mut pair.input, &Disks, &mut pair.out).expect("a valid session");
        let Step::Request(request) = step else {
            match step {
                Step::Continue => continue,
                Step::NeedsBytes(_) => panic!("the session is whole"),
                step => steps.push(step),
            }
            if steps.last() == Some(&Step::Disconnect) {
                break;
            }
            continue;
        };
        let replies = pair.connection.replies();
        let Request { cookie, offset, length, command } = request;
        match (cookie, command) {
            (1, Command::Write(data)) => {
                assert_eq!((offset, length, &data[..]), (0x1000, 4, &b"abcd"[..]));
                replies.done(cookie, &mut pair.out);
            }
            (2, Command::Read { is_whole: false }) => {
                assert_eq!((offset, length), (0xffe, 8));
                let runs = vec![Run::Zeroes(2), Run::Data("abcd".into()), Run::Zeroes(2)];
                replies.read(cookie, offset, false, runs, &mut pair.out);
            }
            (3, Command::Flush) => replies.done(cookie, &mut pair.out),
            (4, Command::BlockStatus { is_single: true }) => {
                let extents = [Extent { length: 0x1000, state: BlockState::Hole }];
                replies.block_status(cookie, &extents, &mut pair.out);
            }
            (5, Command::WriteZeroes { keeps_allocated: true, must_be_fast: true }) => {
                replies.done(cookie, &mut pair.out);
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(matches!(&steps[..], [Step::Attached { .. }, Step::Disconnect]), "{steps:?}");
    let text = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    assert_eq!(text(&pair.sent()), text(&hex(SERVER)));
    let after = pair.connection.advance(&mut pair.input, &Disks, &mut pair.out);
    assert_eq!(after, Err(NbdError::Closed));
}

#[test]
fn export_name_ends_the_handshake() {
    for (client_flags, bytes) in [(3, 10), (1, 134), (0, 134), (2, 10)] {
        let mut pair = Pair::new(client_flags);
        pair.option(option::EXPORT_NAME, b"frozen");
        let steps = pair.run().expect("a known export");
        assert!(matches!(&steps[..], [Step::Attached { name, .. }] if name == "frozen"));
        let sent = pair.sent();
        assert_eq!(sent.len(), bytes);
        let found = u16::from_be_bytes([sent[8], sent[9]]);
        assert_eq!(found & (flags::READ_ONLY | flags::SEND_TRIM | flags::SEND_DF), flags::READ_ONLY);
        assert_eq!(pair.refusal(command::READ, flag::DF, 0, 1), 22, "no structured replies");
    }
    let mut pair = Pair::new(3);
    pair.option(option::EXPORT_NAME, b"lost");
    assert_eq!(pair.run(), Err(NbdError::UnknownExport));
}

#[test]
fn list_and_abort() {
    let mut pair = Pair::new(3);
    pair.option(option::LIST, b"");
    pair.option(option::LIST, b"x");
    assert_eq!(pair.answers(), [answer::SERVER, answer::SERVER, answer::ACK, answer::INVALID]);
    pair.option(option::ABORT, b"");
    assert_eq!(pair.run(), Ok(vec![Step::Disconnect]));
    assert!(!pair.sent().is_empty(), "an acknowledgment");
    assert_eq!(pair.run(), Err(NbdError::Closed));
}

#[test]
fn info_describes_an_export() {
    let mut pair = Pair::new(3);
    pair.option(option::INFO, &go("data", &[info::NAME, info::DESCRIPTION, info::BLOCK_SIZE, 77]));
    assert_eq!(pair.answers(), [answer::INFO; 4].into_iter().chain([answer::ACK]).collect::<Vec<_>>());
    pair.option(option::INFO, &go("lost", &[]));
    pair.option(option::GO, &go("lost", &[]));
    assert_eq!(pair.answers(), [answer::UNKNOWN; 2]);
    let whole = go("data", &[info::NAME]);
    for length in 0..whole.len() {
        pair.option(option::GO, &whole[..length]);
    }
    pair.option(option::GO, &[&whole[..], &[0]].concat());
    assert_eq!(pair.answers(), vec![answer::INVALID; whole.len() + 1]);
    assert!(!pair.connection.is_attached());
}

#[test]
fn unknown_options_are_refused() {
    let mut pair = Pair::new(3);
    for option in [0, 4, 11, 12, u32::MAX] {
        pair.option(option, b"data");
    }
    pair.option(option::STARTTLS, b"");
    let refused = [answer::UNSUPPORTED; 5].into_iter().chain([answer::POLICY]).collect::<Vec<_>>();
    assert_eq!(pair.answers(), refused);
    pair.option(option::GO, &go("data", &[]));
    assert!(matches!(&pair.run().expect("still negotiating")[..], [Step::Attached { .. }]));
}

#[test]
fn oversized_option_is_skipped() {
    let mut pair = Pair::new(3);
    pair.option(option::GO, &vec![0; 1 << 20]);
    pair.option(option::LIST, b"");
    assert_eq!(pair.answers(), [answer::TOO_BIG, answer::SERVER, answer::SERVER, answer::ACK]);
    for (option, length) in [(option::GO, u32::MAX), (option::EXPORT_NAME, 5_000)] {
        let mut pair = Pair::new(3);
        pair.input.put_slice(b"IHAVEOPT");
        pair.input.put_u32(option);
        pair.input.put_u32(length);
        assert!(matches!(pair.run(), Err(NbdError::TooLarge { .. })));
    }
}

#[test]
fn handshake_violations_end_the_connection() {
    let (mut connection, _) = Connection::new();
    let mut input = BytesMut::from(&[0, 0, 0, 7][..]);
    let error = connection.advance(&mut input, &Disks, &mut Vec::new());
    assert_eq!(error, Err(NbdError::UnknownClientFlags(7)));

    let mut pair = Pair::new(2);
    pair.option(option::LIST, b"");
    assert_eq!(pair.run(), Err(NbdError::NotFixedNewstyle(option::LIST)));

    let mut pair = Pair::new(3);
    pair.input.put_slice(&[0; 16]);
    assert!(matches!(pair.run(), Err(NbdError::WrongMagic { found: 0, .. })));
    assert_eq!(pair.run(), Err(NbdError::Closed));

    let mut pair = Pair::new(3);
    let error = loop {
        pair.option(option::LIST, b"");
        if let Err(error) = pair.run() {
            break error;
        }
        pair.sent();
    };
    assert_eq!(error, NbdError::TooManyOptions);
}

#[test]
fn contexts_are_listed_and_selected() {
    let mut pair = Pair::new(3);
    pair.option(option::SET_META_CONTEXT, &contexts("data", &["base:allocation"]));
    assert_eq!(pair.answers(), [answer::INVALID], "structured replies come first");
    pair.option(option::STRUCTURED_REPLY, b"");
    assert_eq!(pair.answers(), [answer::ACK]);
    let (listed, none) = (vec![answer::META_CONTEXT, answer::ACK], vec![answer::ACK]);
    let cases: [(u32, &[&str], &Vec<u32>); 8] = [
        (option::LIST_META_CONTEXT, &[], &listed),
        (option::LIST_META_CONTEXT, &["base:"], &listed),
        (option::LIST_META_CONTEXT, &["base:allocation", "base:"], &listed),
        (option::LIST_META_CONTEXT, &["qemu:dirty-bitmap:x"], &none),
        (option::SET_META_CONTEXT, &[], &none),
        (option::SET_META_CONTEXT, &["base:"], &none),
        (option::SET_META_CONTEXT, &["base:other"], &none),
        (option::SET_META_CONTEXT, &["x:y", "base:allocation"], &listed),
    ];
    for (option, queries, expected) in cases {
        pair.option(option, &contexts("data", queries));
        assert_eq!(&pair.answers(), expected, "{option} {queries:?}");
    }
    // The selection is for another export than the one attached.
    pair.option(option::GO, &go("frozen", &[]));
    pair.run().expect("a known export");
    pair.sent();
    assert_eq!(pair.refusal(command::BLOCK_STATUS, 0, 0, 4096), 22);

    for (name, queries) in [("lost", &["base:allocation"][..]), ("data", &["base:"][..])] {
        let mut pair = Pair::new(3);
        pair.option(option::STRUCTURED_REPLY, b"");
        pair.option(option::SET_META_CONTEXT, &contexts("data", &["base:allocation"]));
        pair.option(option::SET_META_CONTEXT, &contexts(name, queries));
        pair.option(option::GO, &go("data", &[]));
        pair.run().expect("a known export");
        pair.sent();
        assert_eq!(pair.refusal(command::BLOCK_STATUS, 0, 0, 4096), 22, "a later selection replaces it");
    }
}

#[test]
fn invalid_requests_get_the_protocols_error() {
    const END: u64 = 1 << 20;
    for is_structured in [true, false] {
        let mut pair = Pair::attached("data", is_structured);
        let cases = [
            (command::READ, 0, END, 1, 22),
            (command::READ, 0, u64::MAX, 1, 22),
            (command::READ, 0, 0, 0, 22),
            (command::READ, 0, 0, (32 << 20) + 1, 22),
            (command::READ, flag::NO_HOLE, 0, 1, 22),
            (command::TRIM, 0, END - 1, 2, 22),
            (command::TRIM, 1 << 9, 0, 1, 22),
            (command::WRITE_ZEROES, 0, END - 1, 2, 28),
            (command::WRITE_ZEROES, flag::DF, 0, 1, 22),
            (command::FLUSH, 0, 1, 0, 22),
            (command::CACHE, 0, END, 1, 22),
            (command::BLOCK_STATUS, flag::DF, 0, 1, 22),
            (8, 0, 0, 1, 22),
            (u16::MAX, 0, 0, 1, 22),
        ];
        for (kind, flags, offset, length, errno) in cases {
            assert_eq!(pair.refusal(kind, flags, offset, length), errno, "{kind} {flags} {offset} {length}");
        }
        pair.request(command::READ, flag::FUA, END - 1, 1);
        assert!(matches!(&pair.run().expect("valid")[..], [Step::Request(_)]), "FUA is valid for every command");
        pair.connection.resize(END + 1);
        pair.request(command::READ, 0, END, 1);
        assert!(matches!(&pair.run().expect("valid")[..], [Step::Request(_)]), "the disk has grown");
    }
    let mut pair = Pair::attached("frozen", true);
    for kind in [command::TRIM, command::WRITE_ZEROES] {
        assert_eq!(pair.refusal(kind, 0, 0, 1), 1);
    }
    pair.input.put_slice(b"rubbish where a request should be");
    assert!(matches!(pair.run(), Err(NbdError::WrongMagic { .. })));
}

#[test]
fn data_of_a_refused_write_is_skipped() {
    let cases = [("data", 1 << 20, 4096, 28), ("frozen", 0, 4096, 1), ("data", 0, PAYLOAD_BYTES_MAX + 1, 22)];
    for (name, offset, length, errno) in cases {
        let mut pair = Pair::attached(name, true);
        assert_eq!(pair.refusal(command::WRITE, 0, offset, length), errno);
        pair.input.put_bytes(0x25, length as usize);
        pair.request(command::READ, 0, 0, 512);
        assert!(matches!(&pair.run().expect("in step")[..], [Step::Request(Request { length: 512, .. })]));
    }
    let mut pair = Pair::attached("data", true);
    pair.request(command::WRITE, 0, 0, u32::MAX);
    assert!(matches!(pair.run(), Err(NbdError::TooLarge { .. })));
}

#[test]
fn replies_of_reads() {
    let runs = || vec![Run::Zeroes(70_000), Run::Data("abc".into())];
    let text = |replies: Replies, is_whole: bool| {
        let mut out = Vec::new();
        replies.read(9, 5, is_whole, runs(), &mut out);
        out.concat()
    };
    let simple = text(Replies { is_structured: false }, false);
    assert_eq!(simple.len(), 16 + 70_003);
    assert!(simple[16..70_016].iter().all(|byte| *byte == 0) && simple.ends_with(b"abc"));
    let whole = text(Replies { is_structured: true }, true);
    assert_eq!(whole[..28], hex("668e33ef 0001 0001 0000000000000009 0001117b 0000000000000005"));
    assert_eq!(whole.len(), 28 + 70_003);
    let divided = text(Replies { is_structured: true }, false);
    assert_eq!(divided.len(), 32 + 28 + 3);
    let mut out = Vec::new();
    Replies { is_structured: true }.error(9, Errno::Io, "é", Some(4096), &mut out);
    assert_eq!(out.concat(), hex("668e33ef 0001 8002 0000000000000009 00000010 00000005 0002 c3a9 0000000000001000"));
    assert_eq!(u32::from(chunk::ERROR_OFFSET), 0x8002);
}

/// Feeds bytes in random portions, and checks the limits of each step.
fn feed(bytes: &[u8], random: &mut SplitMix64) -> (Vec<Step>, Vec<u8>, Option<NbdError>) {
    let (mut connection, _) = Connection::new();
    let (mut input, mut steps, mut sent) = (BytesMut::new(), Vec::new(), Vec::new());
    let mut rest = bytes;
    loop {
        let mut out = Vec::new();
        let left = input.len();
        let step = connection.advance(&mut input, &Disks, &mut out);
        sent.extend(out.concat());
        match step {
            Ok(Step::NeedsBytes(wanted)) => {
                assert!(wanted > left && wanted <= INPUT_BYTES_MAX, "{wanted} of {left}");
                if rest.is_empty() {
                    return (steps, sent, None);
                }
                let now = (1 + random.below(40) as usize).min(rest.len());
                input.put_slice(&rest[..now]);
                rest = &rest[now..];
            }
            Ok(Step::Continue) => assert!(input.len() < left, "progress"),
            Ok(Step::Disconnect) => return (steps, sent, None),
            Ok(step) => steps.push(step),
            Err(error) => return (steps, sent, Some(error)),
        }
    }
}

#[test]
fn mutated_sessions_neither_panic_nor_depend_on_splits() {
    let golden = hex(CLIENT);
    let mut random = SplitMix64::new(39);
    let mut errors = 0;
    for round in 0..5_000 {
        let mut bytes = golden.clone();
        for _ in 0..random.below(4) {
            let at = random.below(bytes.len() as u64) as usize;
            match random.below(4) {
                0 => bytes[at] = random.below(256) as u8,
                1 => bytes[at] ^= 1 << random.below(8),
                2 => bytes.truncate(at.max(1)),
                _ => {
                    let from = random.below(at as u64 + 1) as usize;
                    let copy = bytes[from..at].to_vec();
                    bytes.splice(at..at, copy);
                }
            }
        }
        let (one, other) = (feed(&bytes, &mut random), feed(&bytes, &mut random));
        assert_eq!(one, other, "round {round}");
        errors += usize::from(one.2.is_some());
    }
    assert!(errors > 100, "{errors} violations");
}

#[test]
fn arbitrary_bytes_never_panic() {
    let mut random = SplitMix64::new(40);
    for _ in 0..2_000 {
        let length = random.below(300) as usize;
        let mut bytes: Vec<u8> = vec![0, 0, 0, 3];
        // Random frames of options and requests, because random bytes do not get beyond their magic.
        while bytes.len() < length {
            bytes.extend_from_slice(b"IHAVEOPT");
            bytes.extend_from_slice(&(random.below(14) as u32).to_be_bytes());
            let data = random.below(40) as usize;
            bytes.extend_from_slice(&(data as u32).to_be_bytes());
            bytes.extend((0..data).map(|_| if random.below(2) == 0 { 0 } else { random.below(256) as u8 }));
        }
        feed(&bytes, &mut random);
    }
}
