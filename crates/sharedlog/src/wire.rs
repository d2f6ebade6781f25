//! Encodings of messages between nodes about shared logs: requests to log units and sequencers, and their replies.

use base::codec::{AtMost, DecodeError, Reader, Size32, Wire, WireAs, Writer};

use crate::client::Suspect;
use crate::limits::MANY_MAX;
use crate::unit::{Reply, Report, Request};
use crate::{Kind, SequencerId, sequencer};

base::wire! {
    enum Request, "request to a log unit" {
        1 => Read { epoch, position },
        2 => Confirm { epoch },
        3 => Command(command),
        4 => Holes { epoch, stripe, from, to },
        5 => ReadMany { epoch, run, bytes as Size32 },
        6 => Await { epoch, position, wait, bytes as Size32 },
        7 => Follow { epoch, from, lease, credit as Size32 },
    }
}

base::wire! {
    enum Reply, "reply of a log unit" {
        1 => Written,
        2 => Occupied { by },
        3 => Value(entry),
        4 => Unwritten,
        5 => Trimmed { mark },
        6 => Refused { sealed },
        7 => Sealed(report),
        8 => Begun(report),
        9 => NotEmpty,
        10 => Confirmed,
        11 => StripesAssigned(report),
        12 => Done,
        13 => Unknown,
        14 => Damaged,
        15 => Holes(holes),
        16 => Elsewhere,
        17 => Many(replies as Replies),
        18 => Feed { from, tail, entries as AtMost(MANY_MAX, "number of entries") },
    }
}

base::wire! { struct Report { sealed, tail, trimmed, damaged, whole } }

base::wire! { struct SequencerId { node, boot } }

base::wire! {
    enum sequencer::Request, "request to a sequencer" {
        1 => Positions { epoch, client, count },
        2 => Tail { epoch },
    }
}

base::wire! {
    enum sequencer::Reply, "reply of a sequencer" {
        1 => Positions { first, count },
        2 => Tail(tail),
        3 => Refused { newest },
    }
}

base::wire! {
    enum Suspect, "suspect" {
        1 => Sequencer,
        2 => Unit(unit),
        3 => Projection,
    }
}

/// A flag: whether it is data.
impl Wire for Kind {
    const BYTES_MIN: usize = 1;

    fn encode(&self, out: &mut Writer) {
        out.bool(*self == Self::Data);
    }

    fn decode(input: &mut Reader) -> Result<Self, DecodeError> {
        Ok(if input.bool()? { Self::Data } else { Self::Junk })
    }
}

/// The replies in [`Reply::Many`], none of which is another `Many`.
struct Replies;

impl Replies {
    const MANY: u8 = 17;
}

impl WireAs<Vec<Reply>> for Replies {
    const BYTES_MIN: usize = 4;

    fn encode(&self, replies: &Vec<Reply>, out: &mut Writer) {
        replies.encode(out);
    }

    fn decode(&self, input: &mut Reader) -> Result<Vec<Reply>, DecodeError> {
        let count = input.count(1)?;
        if count > MANY_MAX {
            return Err(DecodeError::Invalid { what: "number of replies" });
        }
        let reply = |input: &mut Reader| match input.clone().u8()? {
            Self::MANY => Err(DecodeError::UnknownTag { what: "reply of a log unit", tag: Self::MANY.into() }),
            _ => Reply::decode(input),
        };
        (0..count).map(|_| reply(input)).collect()
    }
}

#[cfg(test)]
mod tests {
    use base::codec::testing::check_golden;
    use base::{Boot, Duration, Incarnation, NodeId};

    use super::*;
    use crate::request::{ExtentDescription, LogDescription, LogResponse};
    use crate::unit::Command;
    use crate::{
        Batch, ClientId, Data, Entry, Extent, Kept, LogId, Position, PositionRun, Projection, ProjectionEpoch, Stamp,
        Stripe, UnitId,
    };

    #[test]
    fn limits_of_replies() {
        let decoded = |reply: Reply| Reply::from_bytes(reply.to_bytes());
        let many = |count| Reply::Many(vec![Reply::Unwritten; count]);
        let feed = |count| Reply::Feed { from: Position(9), entries: vec![Entry::Junk; count], tail: Position(20) };
        assert!(decoded(many(MANY_MAX)).is_ok() && decoded(feed(MANY_MAX)).is_ok());
        assert!(decoded(many(MANY_MAX + 1)).is_err() && decoded(feed(MANY_MAX + 1)).is_err());
        assert!(decoded(Reply::Many(vec![many(1)])).is_err(), "nested replies are refused");
    }

    const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/wire/golden");

    fn check<T: Wire + std::fmt::Debug + PartialEq>(file: &str, samples: &[T]) {
        check_golden(&format!("{GOLDEN}/{file}.txt"), samples, T::to_bytes, T::from_bytes);
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
        check("request", &samples);
        let huge = Request::Follow { epoch, from: position, lease: Duration(6), credit: usize::MAX };
        let Ok(Request::Follow { credit, .. }) = Request::from_bytes(huge.to_bytes()) else {
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
        check("reply", &samples);
    }

    #[test]
    fn golden_sequencer_messages() {
        let (sequencer, epoch) = (SequencerId { node: NodeId(2), boot: Boot(5) }, ProjectionEpoch(3));
        let samples = [
            (sequencer, sequencer::Request::Positions { epoch, client: ClientId(9), count: 2 }),
            (sequencer, sequencer::Request::Tail { epoch }),
        ];
        check("question", &samples);
        let samples = [
            sequencer::Reply::Positions { first: Position(7), count: 1 },
            sequencer::Reply::Tail(Position(8)),
            sequencer::Reply::Refused { newest: epoch },
        ];
        check("given", &samples);
        let samples = [Suspect::Sequencer, Suspect::Unit(UnitId(7)), Suspect::Projection];
        check("suspect", &samples);
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
        check("response", &samples);
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
        check_golden(&format!("{GOLDEN}/command.txt"), &samples, Command::encode, Command::decode);
    }
}
