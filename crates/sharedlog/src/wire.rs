//! Encodings of messages between nodes about shared logs: requests to log units and sequencers, and their replies.

use base::codec::{DecodeError, Reader, Writer};
use base::{Boot, Duration, NodeId};
use state_machine::Wire;

use crate::client::Suspect;
use crate::limits::MANY_MAX;
use crate::unit::{EncodedCommand, Reply, Report, Request};
use crate::{ClientId, Entry, Kind, Position, PositionRun, ProjectionEpoch, SequencerId, Stripe, UnitId, sequencer};

impl Wire for Request {
    fn encode(&self, out: &mut Writer) {
        encode_request(self, out);
    }

    fn decode(input: &mut Reader) -> Result<Self, DecodeError> {
        decode_request(input)
    }
}

impl Wire for Reply {
    fn encode(&self, out: &mut Writer) {
        encode_reply(self, out);
    }

    fn decode(input: &mut Reader) -> Result<Self, DecodeError> {
        decode_reply(input)
    }
}

fn encode_request(request: &Request, out: &mut Writer) {
    match request {
        Request::Read { epoch, position } => {
            out.u8(1);
            out.u64(epoch.0);
            out.u64(position.0);
        }
        Request::Await { epoch, position, wait, bytes } => {
            out.u8(6);
            out.u64(epoch.0);
            out.u64(position.0);
            out.u64(wait.0);
            out.u32(u32::try_from(*bytes).unwrap_or(u32::MAX));
        }
        Request::ReadMany { epoch, run, bytes } => {
            out.u8(5);
            out.u64(epoch.0);
            run.encode(out);
            out.u32(u32::try_from(*bytes).unwrap_or(u32::MAX));
        }
        Request::Follow { epoch, from, lease, credit } => {
            out.u8(7);
            out.u64(epoch.0);
            out.u64(from.0);
            out.u64(lease.0);
            out.u32(u32::try_from(*credit).unwrap_or(u32::MAX));
        }
        Request::Confirm { epoch } => {
            out.u8(2);
            out.u64(epoch.0);
        }
        Request::Holes { epoch, stripe, from, to } => {
            out.u8(4);
            out.u64(epoch.0);
            stripe.encode(out);
            out.u64(from.0);
            out.u64(to.0);
        }
        Request::Command(command) => {
            out.u8(3);
            out.bytes(command.bytes());
        }
    }
}

fn decode_request(input: &mut Reader) -> Result<Request, DecodeError> {
    Ok(match input.u8()? {
        1 => Request::Read { epoch: decode_epoch(input)?, position: decode_position(input)? },
        2 => Request::Confirm { epoch: decode_epoch(input)? },
        3 => Request::Command(EncodedCommand::decode(input.bytes()?)?),
        4 => Request::Holes {
            epoch: decode_epoch(input)?,
            stripe: Stripe::decode(input)?,
            from: decode_position(input)?,
            to: decode_position(input)?,
        },
        6 => Request::Await {
            epoch: decode_epoch(input)?,
            position: decode_position(input)?,
            wait: Duration(input.u64()?),
            bytes: input.u32()? as usize,
        },
        5 => Request::ReadMany {
            epoch: decode_epoch(input)?,
            run: PositionRun::decode(input)?,
            bytes: input.u32()? as usize,
        },
        7 => Request::Follow {
            epoch: decode_epoch(input)?,
            from: decode_position(input)?,
            lease: Duration(input.u64()?),
            credit: input.u32()? as usize,
        },
        tag => return Err(DecodeError::UnknownTag { what: "request to a log unit", tag: u64::from(tag) }),
    })
}

fn encode_reply(reply: &Reply, out: &mut Writer) {
    match reply {
        Reply::Written => out.u8(1),
        Reply::Occupied { by } => {
            out.u8(2);
            out.bool(*by == Kind::Data);
        }
        Reply::Value(entry) => {
            out.u8(3);
            entry.encode(out);
        }
        Reply::Unwritten => out.u8(4),
        Reply::Trimmed { mark } => {
            out.u8(5);
            out.u64(mark.0);
        }
        Reply::Refused { sealed } => {
            out.u8(6);
            out.u64(sealed.0);
        }
        Reply::Sealed(report) => encode_report(7, report, out),
        Reply::Begun(report) => encode_report(8, report, out),
        Reply::NotEmpty => out.u8(9),
        Reply::Confirmed => out.u8(10),
        Reply::StripesAssigned(report) => encode_report(11, report, out),
        Reply::Done => out.u8(12),
        Reply::Unknown => out.u8(13),
        Reply::Damaged => out.u8(14),
        Reply::Elsewhere => out.u8(16),
        Reply::Holes(holes) => {
            out.u8(15);
            out.u32(u32::try_from(holes.len()).unwrap_or(u32::MAX));
            holes.iter().for_each(|hole| out.u64(hole.0));
        }
        Reply::Feed { from, entries, tail } => {
            out.u8(18);
            out.u64(from.0);
            out.u64(tail.0);
            out.u32(u32::try_from(entries.len()).unwrap_or(u32::MAX));
            entries.iter().for_each(|entry| entry.encode(out));
        }
        Reply::Many(replies) => {
            out.u8(MANY);
            out.u32(u32::try_from(replies.len()).unwrap_or(u32::MAX));
            replies.iter().for_each(|reply| encode_reply(reply, out));
        }
    }
}

/// The tag of [`Reply::Many`].
const MANY: u8 = 17;

fn decode_reply(input: &mut Reader) -> Result<Reply, DecodeError> {
    let tag = input.u8()?;
    if tag != MANY {
        return decode_one(tag, input);
    }
    let count = input.count(1)?;
    if count > MANY_MAX {
        return Err(DecodeError::Invalid { what: "number of replies" });
    }
    // These must not be nested.
    let replies = (0..count).map(|_| input.u8().and_then(|tag| decode_one(tag, input)));
    Ok(Reply::Many(replies.collect::<Result<_, _>>()?))
}

fn decode_one(tag: u8, input: &mut Reader) -> Result<Reply, DecodeError> {
    Ok(match tag {
        1 => Reply::Written,
        2 => Reply::Occupied { by: if input.bool()? { Kind::Data } else { Kind::Junk } },
        3 => Reply::Value(Entry::decode(input)?),
        4 => Reply::Unwritten,
        5 => Reply::Trimmed { mark: decode_position(input)? },
        6 => Reply::Refused { sealed: decode_epoch(input)? },
        7 => Reply::Sealed(decode_report(input)?),
        8 => Reply::Begun(decode_report(input)?),
        9 => Reply::NotEmpty,
        10 => Reply::Confirmed,
        11 => Reply::StripesAssigned(decode_report(input)?),
        12 => Reply::Done,
        13 => Reply::Unknown,
        14 => Reply::Damaged,
        16 => Reply::Elsewhere,
        18 => {
            let (from, tail) = (decode_position(input)?, decode_position(input)?);
            let count = input.count(1)?;
            if count > MANY_MAX {
                return Err(DecodeError::Invalid { what: "number of entries" });
            }
            Reply::Feed { from, entries: (0..count).map(|_| Entry::decode(input)).collect::<Result<_, _>>()?, tail }
        }
        15 => Reply::Holes((0..input.count(8)?).map(|_| decode_position(input)).collect::<Result<_, _>>()?),
        tag => return Err(DecodeError::UnknownTag { what: "reply of a log unit", tag: u64::from(tag) }),
    })
}

fn encode_report(tag: u8, report: &Report, out: &mut Writer) {
    out.u8(tag);
    out.u64(report.sealed.0);
    out.u64(report.tail.0);
    out.u64(report.trimmed.0);
    out.u32(report.damaged);
    out.u32(u32::try_from(report.whole.len()).unwrap_or(u32::MAX));
    for (stripe, missing) in &report.whole {
        stripe.encode(out);
        out.u64(missing.0);
    }
}

fn decode_report(input: &mut Reader) -> Result<Report, DecodeError> {
    let (sealed, tail, trimmed) = (decode_epoch(input)?, decode_position(input)?, decode_position(input)?);
    let damaged = input.u32()?;
    let whole = |input: &mut Reader| Ok((Stripe::decode(input)?, decode_position(input)?));
    let whole = (0..input.count(Stripe::BYTES + 8)?).map(|_| whole(input)).collect::<Result<_, DecodeError>>()?;
    Ok(Report { sealed, tail, trimmed, damaged, whole })
}

/// Appends a request to a sequencer to `out`.
pub fn encode_question(sequencer: SequencerId, request: &sequencer::Request, out: &mut Writer) {
    out.u32(sequencer.node.0);
    out.u64(sequencer.boot.0);
    match request {
        sequencer::Request::Positions { epoch, client, count } => {
            out.u8(1);
            out.u64(epoch.0);
            out.u64(client.0);
            out.u64(*count);
        }
        sequencer::Request::Tail { epoch } => {
            out.u8(2);
            out.u64(epoch.0);
        }
    }
}

/// Decodes the output of [`encode_question`].
///
/// # Errors
/// When the bytes are malformed.
pub fn decode_question(input: &mut Reader) -> Result<(SequencerId, sequencer::Request), DecodeError> {
    let sequencer = SequencerId { node: NodeId(input.u32()?), boot: Boot(input.u64()?) };
    let request = match input.u8()? {
        1 => sequencer::Request::Positions {
            epoch: decode_epoch(input)?,
            client: ClientId(input.u64()?),
            count: input.u64()?,
        },
        2 => sequencer::Request::Tail { epoch: decode_epoch(input)? },
        tag => return Err(DecodeError::UnknownTag { what: "request to a sequencer", tag: u64::from(tag) }),
    };
    Ok((sequencer, request))
}

/// Appends a sequencer's reply to `out`.
pub fn encode_given(reply: &sequencer::Reply, out: &mut Writer) {
    match reply {
        sequencer::Reply::Positions { first, count } => {
            out.u8(1);
            out.u64(first.0);
            out.u64(*count);
        }
        sequencer::Reply::Tail(tail) => {
            out.u8(2);
            out.u64(tail.0);
        }
        sequencer::Reply::Refused { newest } => {
            out.u8(3);
            out.u64(newest.0);
        }
    }
}

/// Decodes the output of [`encode_given`].
///
/// # Errors
/// When the bytes are malformed.
pub fn decode_given(input: &mut Reader) -> Result<sequencer::Reply, DecodeError> {
    Ok(match input.u8()? {
        1 => sequencer::Reply::Positions { first: decode_position(input)?, count: input.u64()? },
        2 => sequencer::Reply::Tail(decode_position(input)?),
        3 => sequencer::Reply::Refused { newest: decode_epoch(input)? },
        tag => return Err(DecodeError::UnknownTag { what: "reply of a sequencer", tag: u64::from(tag) }),
    })
}

/// Appends a suspect to `out`.
pub fn encode_suspect(suspect: Suspect, out: &mut Writer) {
    match suspect {
        Suspect::Sequencer => out.u8(1),
        Suspect::Unit(unit) => {
            out.u8(2);
            out.u64(unit.0);
        }
        Suspect::Projection => out.u8(3),
    }
}

/// Decodes the output of [`encode_suspect`].
///
/// # Errors
/// When the bytes are malformed.
pub fn decode_suspect(input: &mut Reader) -> Result<Suspect, DecodeError> {
    Ok(match input.u8()? {
        1 => Suspect::Sequencer,
        2 => Suspect::Unit(UnitId(input.u64()?)),
        3 => Suspect::Projection,
        tag => return Err(DecodeError::UnknownTag { what: "suspect", tag: u64::from(tag) }),
    })
}

/// Decodes the epoch of a projection.
///
/// # Errors
/// When the input is too short.
pub fn decode_epoch(input: &mut Reader) -> Result<ProjectionEpoch, DecodeError> {
    Ok(ProjectionEpoch(input.u64()?))
}

fn decode_position(input: &mut Reader) -> Result<Position, DecodeError> {
    let position = Position(input.u64()?);
    if position.0 > crate::limits::POSITION_MAX {
        return Err(DecodeError::Invalid { what: "position" });
    }
    Ok(position)
}

#[cfg(test)]
mod tests {
    use base::Incarnation;
    use base::codec::golden;

    use super::*;
    use crate::request::{ExtentDescription, LogDescription, LogResponse};
    use crate::unit::Command;
    use crate::{Batch, Data, Extent, Kept, LogId, Projection, Stamp};

    fn encoded(reply: &Reply) -> bytes::Bytes {
        let mut out = Writer::new();
        encode_reply(reply, &mut out);
        out.finish()
    }

    #[test]
    fn sequencer_messages_round_trip() {
        let sequencer = SequencerId { node: NodeId(2), boot: Boot(5) };
        let request = sequencer::Request::Positions { epoch: ProjectionEpoch(3), client: ClientId(9), count: 2 };
        let mut out = Writer::new();
        encode_question(sequencer, &request, &mut out);
        assert_eq!(decode_question(&mut Reader::new(out.finish())), Ok((sequencer, request)));
        let reply = sequencer::Reply::Positions { first: Position(7), count: 1 };
        let mut out = Writer::new();
        encode_given(&reply, &mut out);
        let bytes = out.finish();
        assert_eq!(decode_given(&mut Reader::new(bytes.clone())), Ok(reply));
        for at in 0..bytes.len() {
            assert!(decode_given(&mut Reader::new(bytes.slice(..at))).is_err());
        }
    }

    #[test]
    fn feed_messages_round_trip_and_limit() {
        let (epoch, from, lease) = (ProjectionEpoch(3), Position(9), Duration(5));
        let request = Request::Follow { epoch, from, lease, credit: 70_000 };
        let mut out = Writer::new();
        encode_request(&request, &mut out);
        assert_eq!(decode_request(&mut Reader::new(out.finish())), Ok(request));
        let feed = |count| Reply::Feed { from, entries: vec![Entry::Junk; count], tail: Position(20) };
        let bytes = encoded(&feed(2));
        assert_eq!(decode_reply(&mut Reader::new(bytes.clone())), Ok(feed(2)));
        for at in 0..bytes.len() {
            assert!(decode_reply(&mut Reader::new(bytes.slice(..at))).is_err());
        }
        assert!(decode_reply(&mut Reader::new(encoded(&feed(MANY_MAX + 1)))).is_err());
    }

    #[test]
    fn read_many_round_trip_and_limit() {
        let run = PositionRun { from: Position(9), step: 4, count: 200 };
        let request = Request::ReadMany { epoch: ProjectionEpoch(3), run, bytes: 70_000 };
        let mut out = Writer::new();
        encode_request(&request, &mut out);
        let bytes = out.finish();
        assert_eq!(decode_request(&mut Reader::new(bytes.clone())), Ok(request));
        let one_by_one =
            [Reply::Value(Entry::Junk), Reply::Unwritten, Reply::Damaged, Reply::Trimmed { mark: Position(7) }];
        let many = Reply::Many(one_by_one.into_iter().take(MANY_MAX).collect());
        let reply = encoded(&many);
        assert_eq!(decode_reply(&mut Reader::new(reply.clone())), Ok(many.clone()));
        for at in 0..bytes.len() {
            assert!(decode_request(&mut Reader::new(bytes.slice(..at))).is_err());
        }
        for at in 0..reply.len() {
            assert!(decode_reply(&mut Reader::new(reply.slice(..at))).is_err());
            let mut damaged = reply.to_vec();
            damaged[at] ^= 0x81;
            let _ = decode_reply(&mut Reader::new(damaged.into()));
        }
        let decoded = |reply: Reply| decode_reply(&mut Reader::new(encoded(&reply)));
        assert!(decoded(Reply::Many(vec![Reply::Unwritten; MANY_MAX])).is_ok());
        assert!(decoded(Reply::Many(vec![Reply::Unwritten; MANY_MAX + 1])).is_err());
        assert!(decoded(Reply::Many(vec![many])).is_err(), "nested replies are refused");
    }

    const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/wire/golden");

    fn check<T: std::fmt::Debug + PartialEq>(
        file: &str,
        samples: &[T],
        encode: impl Fn(&T, &mut Writer),
        decode: impl Fn(&mut Reader) -> Result<T, DecodeError>,
    ) {
        let encode = |sample: &T| {
            let mut out = Writer::new();
            encode(sample, &mut out);
            out.finish()
        };
        let decode = |bytes| {
            let mut input = Reader::new(bytes);
            let sample = decode(&mut input)?;
            input.end()?;
            Ok(sample)
        };
        golden::check(&format!("{GOLDEN}/{file}.txt"), samples, encode, decode);
    }

    fn data() -> Entry {
        let batch = Batch::of(&["one".into(), bytes::Bytes::new()]).expect("within the limits");
        Entry::Data(Data { stamp: Stamp { client: ClientId(3), sequence: 4 }, batch })
    }

    #[test]
    fn golden_requests() {
        let (epoch, position) = (ProjectionEpoch(3), Position(1 << 33));
        let stripe = Stripe { from: Position(7), count: 3, index: 2, width: 32 };
        let samples = [
            Request::Read { epoch, position },
            Request::Await { epoch, position, wait: Duration(5), bytes: 70_000 },
            Request::ReadMany { epoch, run: PositionRun { from: position, step: 4, count: 200 }, bytes: 70_000 },
            Request::Follow { epoch, from: position, lease: Duration(6), credit: 80_000 },
            Request::Confirm { epoch },
            Request::Holes { epoch, stripe, from: Position(8), to: Position(9) },
            Request::Command(Command::Write { epoch, position, entry: data() }.into()),
        ];
        check("request", &samples, Request::encode, Request::decode);
        let huge = Request::Follow { epoch, from: position, lease: Duration(6), credit: usize::MAX };
        let mut out = Writer::new();
        huge.encode(&mut out);
        let Ok(Request::Follow { credit, .. }) = Request::decode(&mut Reader::new(out.finish())) else {
            panic!("another request")
        };
        assert_eq!(credit, u32::MAX as usize);
    }

    #[test]
    fn golden_replies() {
        let stripe = Stripe { from: Position(7), count: 3, index: 2, width: 32 };
        let report = Report {
            sealed: ProjectionEpoch(2),
            tail: Position(9),
            trimmed: Position(4),
            damaged: 1,
            whole: vec![(Stripe::ALL, Position(3)), (stripe, Position(11))],
        };
        let samples = [
            Reply::Written,
            Reply::Occupied { by: Kind::Data },
            Reply::Occupied { by: Kind::Junk },
            Reply::Value(data()),
            Reply::Value(Entry::Junk),
            Reply::Many(vec![Reply::Value(Entry::Junk), Reply::Trimmed { mark: Position(7) }, Reply::Damaged]),
            Reply::Feed { from: Position(1), entries: vec![Entry::Junk, data()], tail: Position(4) },
            Reply::Unwritten,
            Reply::Holes(vec![Position(5), Position(1 << 40)]),
            Reply::Trimmed { mark: Position(6) },
            Reply::Refused { sealed: ProjectionEpoch(8) },
            Reply::Sealed(report.clone()),
            Reply::Begun(Report::default()),
            Reply::NotEmpty,
            Reply::Elsewhere,
            Reply::Confirmed,
            Reply::StripesAssigned(report),
            Reply::Done,
            Reply::Unknown,
            Reply::Damaged,
        ];
        check("reply", &samples, Reply::encode, Reply::decode);
    }

    #[test]
    fn golden_sequencer_messages() {
        let (sequencer, epoch) = (SequencerId { node: NodeId(2), boot: Boot(5) }, ProjectionEpoch(3));
        let samples = [
            (sequencer, sequencer::Request::Positions { epoch, client: ClientId(9), count: 2 }),
            (sequencer, sequencer::Request::Tail { epoch }),
        ];
        check("question", &samples, |(to, request), out| encode_question(*to, request, out), decode_question);
        let samples = [
            sequencer::Reply::Positions { first: Position(7), count: 1 },
            sequencer::Reply::Tail(Position(8)),
            sequencer::Reply::Refused { newest: epoch },
        ];
        check("given", &samples, encode_given, decode_given);
        let samples = [Suspect::Sequencer, Suspect::Unit(UnitId(7)), Suspect::Projection];
        check("suspect", &samples, |suspect, out| encode_suspect(*suspect, out), decode_suspect);
    }

    #[test]
    fn golden_responses() {
        let chains = vec![vec![(1, NodeId(1)), (2, NodeId(2))], Vec::new()];
        let log = LogDescription {
            id: 4,
            epoch: ProjectionEpoch(2),
            sequencer: NodeId(3),
            stripes: 2,
            copies: 3,
            extents: vec![ExtentDescription { from: Position(10), width: 16, chains }],
        };
        let projection = Projection {
            log: LogId(4),
            epoch: ProjectionEpoch(2),
            sequencer: SequencerId { node: NodeId(2), boot: Boot(5) },
            start: Position(12),
            newest_unit: UnitId(9),
            extents: vec![Extent::new(Position(0), 16, vec![vec![UnitId(3), UnitId(4)], vec![UnitId(9)]])],
        };
        let samples = [
            LogResponse::Created { existed: true },
            LogResponse::Logs(vec!["a".into(), "bc".into()]),
            LogResponse::Log(Box::new(log)),
            LogResponse::Projected(Box::new(projection)),
            LogResponse::UnitsGone(vec![UnitId(9), UnitId(11)]),
        ];
        check("response", &samples, LogResponse::encode, LogResponse::decode);
    }

    #[test]
    fn golden_commands() {
        let (epoch, position) = (ProjectionEpoch(3), Position(1 << 33));
        let stripes = vec![Stripe::ALL, Stripe { from: Position(7), count: 3, index: 2, width: 32 }];
        let (log, disk) = (LogId(4), Incarnation(6));
        let copies = vec![(Position(1), Kept::Entry(data())), (Position(2), Kept::Trimmed)];
        let samples = [
            Command::Begin { disk, log, epoch, trimmed: Position(5), stripes: stripes.clone() },
            Command::Write { epoch, position, entry: Entry::Junk },
            Command::CopyMany { copies },
            Command::Damaged { position },
            Command::Repair { position, kept: Kept::Entry(Entry::Junk) },
            Command::Seal { epoch },
            Command::Trim { epoch: Some(epoch), before: position },
            Command::Trim { epoch: None, before: position },
            Command::TrimOne { epoch, position },
            Command::AssignStripes { stripes },
        ];
        golden::check(&format!("{GOLDEN}/command.txt"), &samples, Command::encode, Command::decode);
    }
}
