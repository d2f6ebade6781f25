//! The codec of what nodes ask each other about shared logs: requests to log units and sequencers, and their answers.

use base::codec::{DecodeError, Reader, Writer};
use base::{Boot, Duration, NodeId};
use sharedlog::client::Suspect;
use sharedlog::limits::MANY_MAX;
use sharedlog::sequencer::{Named, Placed};
use sharedlog::unit::{Command, Reply, Report, Request};
use sharedlog::{ClientId, Entry, Kind, Position, ProjectionEpoch, Run, SequencerId, Stamp, Stripe, UnitId, sequencer};

pub(super) fn encode_request(request: &Request, out: &mut Writer) {
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
        Request::Stamps { epoch, run } => {
            out.u8(7);
            out.u64(epoch.0);
            run.encode(out);
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
            out.bytes(&command.encode());
        }
    }
}

pub(super) fn decode_request(input: &mut Reader) -> Result<Request, DecodeError> {
    Ok(match input.u8()? {
        1 => Request::Read { epoch: decode_epoch(input)?, position: decode_position(input)? },
        2 => Request::Confirm { epoch: decode_epoch(input)? },
        3 => Request::Command(Command::decode(input.bytes()?)?),
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
        5 => Request::ReadMany { epoch: decode_epoch(input)?, run: Run::decode(input)?, bytes: input.u32()? as usize },
        7 => Request::Stamps { epoch: decode_epoch(input)?, run: Run::decode(input)? },
        tag => return Err(DecodeError::UnknownTag { what: "request to a log unit", tag: u64::from(tag) }),
    })
}

pub(super) fn encode_reply(reply: &Reply, out: &mut Writer) {
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
        Reply::Told(report) => encode_report(11, report, out),
        Reply::Done => out.u8(12),
        Reply::Unknown => out.u8(13),
        Reply::Damaged => out.u8(14),
        Reply::Elsewhere => out.u8(16),
        Reply::Holes(holes) => {
            out.u8(15);
            out.u32(u32::try_from(holes.len()).unwrap_or(u32::MAX));
            holes.iter().for_each(|hole| out.u64(hole.0));
        }
        Reply::Stamps { mark, stamps } => {
            out.u8(18);
            out.u64(mark.0);
            out.u32(u32::try_from(stamps.len()).unwrap_or(u32::MAX));
            for stamp in stamps {
                out.bool(stamp.is_some());
                if let Some(Stamp { client, sequence }) = stamp {
                    out.u64(client.0);
                    out.u64(*sequence);
                }
            }
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

pub(super) fn decode_reply(input: &mut Reader) -> Result<Reply, DecodeError> {
    let tag = input.u8()?;
    if tag != MANY {
        return decode_one(tag, input);
    }
    let count = input.count(1)?;
    if count > MANY_MAX {
        return Err(DecodeError::Invalid { what: "number of replies" });
    }
    // None of them is one of many itself.
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
        11 => Reply::Told(decode_report(input)?),
        12 => Reply::Done,
        13 => Reply::Unknown,
        14 => Reply::Damaged,
        16 => Reply::Elsewhere,
        15 => Reply::Holes((0..input.count(8)?).map(|_| decode_position(input)).collect::<Result<_, _>>()?),
        18 => {
            let mark = decode_position(input)?;
            let count = input.count(1)?;
            if count > MANY_MAX {
                return Err(DecodeError::Invalid { what: "number of stamps" });
            }
            let stamp = |input: &mut Reader| if input.bool()? { decode_stamp(input).map(Some) } else { Ok(None) };
            Reply::Stamps { mark, stamps: (0..count).map(|_| stamp(input)).collect::<Result<_, _>>()? }
        }
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

pub(super) fn encode_question(sequencer: SequencerId, request: &sequencer::Request, out: &mut Writer) {
    out.u32(sequencer.node.0);
    out.u64(sequencer.boot.0);
    match request {
        sequencer::Request::Positions { epoch, client, count, named } => {
            out.u8(1);
            out.u64(epoch.0);
            out.u64(client.0);
            out.u64(*count);
            out.u32(named.len() as u32);
            for Named { stamp, oldest_open, decided } in named {
                out.u64(stamp.client.0);
                out.u64(stamp.sequence);
                out.u64(*oldest_open);
                encode_optional(decided.map(|decided| decided.0), out);
            }
        }
        sequencer::Request::Tail { epoch } => {
            out.u8(2);
            out.u64(epoch.0);
        }
    }
}

pub(super) fn decode_question(input: &mut Reader) -> Result<(SequencerId, sequencer::Request), DecodeError> {
    let sequencer = SequencerId { node: NodeId(input.u32()?), boot: Boot(input.u64()?) };
    let request = match input.u8()? {
        1 => {
            let (epoch, client) = (decode_epoch(input)?, ClientId(input.u64()?));
            let count = input.u64()?;
            let named = (0..input.count(25)?).map(|_| decode_named(input)).collect::<Result<_, _>>()?;
            sequencer::Request::Positions { epoch, client, count, named }
        }
        2 => sequencer::Request::Tail { epoch: decode_epoch(input)? },
        tag => return Err(DecodeError::UnknownTag { what: "request to a sequencer", tag: u64::from(tag) }),
    };
    Ok((sequencer, request))
}

pub(super) fn encode_given(reply: &sequencer::Reply, out: &mut Writer) {
    match reply {
        sequencer::Reply::Positions { first, count, named } => {
            out.u8(1);
            out.u64(first.0);
            out.u64(*count);
            out.u32(named.len() as u32);
            for placed in named {
                encode_optional(placed.map(|placed| placed.position.0), out);
                out.u64(placed.map_or(0, |placed| placed.oldest_open));
            }
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

pub(super) fn decode_given(input: &mut Reader) -> Result<sequencer::Reply, DecodeError> {
    Ok(match input.u8()? {
        1 => {
            let (first, count) = (decode_position(input)?, input.u64()?);
            let named = (0..input.count(9)?).map(|_| decode_placed(input)).collect::<Result<_, _>>()?;
            sequencer::Reply::Positions { first, count, named }
        }
        2 => sequencer::Reply::Tail(decode_position(input)?),
        3 => sequencer::Reply::Refused { newest: decode_epoch(input)? },
        tag => return Err(DecodeError::UnknownTag { what: "reply of a sequencer", tag: u64::from(tag) }),
    })
}

fn decode_named(input: &mut Reader) -> Result<Named, DecodeError> {
    let stamp = decode_stamp(input)?;
    let oldest_open = input.u64()?;
    let decided = if input.bool()? { Some(decode_position(input)?) } else { None };
    Ok(Named { stamp, oldest_open, decided })
}

fn decode_stamp(input: &mut Reader) -> Result<Stamp, DecodeError> {
    let stamp = Stamp { client: ClientId(input.u64()?), sequence: input.u64()? };
    if stamp.sequence == 0 { Err(DecodeError::Invalid { what: "sequence" }) } else { Ok(stamp) }
}

fn decode_placed(input: &mut Reader) -> Result<Option<Placed>, DecodeError> {
    let position = if input.bool()? { Some(decode_position(input)?) } else { None };
    let oldest_open = input.u64()?;
    Ok(position.map(|position| Placed { position, oldest_open }))
}

fn encode_optional(number: Option<u64>, out: &mut Writer) {
    out.bool(number.is_some());
    if let Some(number) = number {
        out.u64(number);
    }
}

pub(super) fn encode_suspect(suspect: Suspect, out: &mut Writer) {
    match suspect {
        Suspect::Sequencer => out.u8(1),
        Suspect::Unit(unit) => {
            out.u8(2);
            out.u64(unit.0);
        }
        Suspect::Projection => out.u8(3),
    }
}

pub(super) fn decode_suspect(input: &mut Reader) -> Result<Suspect, DecodeError> {
    Ok(match input.u8()? {
        1 => Suspect::Sequencer,
        2 => Suspect::Unit(UnitId(input.u64()?)),
        3 => Suspect::Projection,
        tag => return Err(DecodeError::UnknownTag { what: "suspect", tag: u64::from(tag) }),
    })
}

pub(super) fn decode_epoch(input: &mut Reader) -> Result<ProjectionEpoch, DecodeError> {
    Ok(ProjectionEpoch(input.u64()?))
}

fn decode_position(input: &mut Reader) -> Result<Position, DecodeError> {
    let position = Position(input.u64()?);
    if position.0 > sharedlog::limits::POSITION_MAX {
        return Err(DecodeError::Invalid { what: "position" });
    }
    Ok(position)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(reply: &Reply) -> bytes::Bytes {
        let mut out = Writer::new();
        encode_reply(reply, &mut out);
        out.finish()
    }

    #[test]
    fn stamps_come_back_as_they_were_sent_and_are_bounded() {
        let request = Request::Stamps { epoch: ProjectionEpoch(3), run: Run::of(Position(9), 200) };
        let mut out = Writer::new();
        encode_request(&request, &mut out);
        assert_eq!(decode_request(&mut Reader::new(out.finish())), Ok(request));
        let stamp = |sequence| Some(Stamp { client: ClientId(7), sequence });
        let of = |stamps: Vec<Option<Stamp>>| encoded(&Reply::Stamps { mark: Position(4), stamps });
        let few = of(vec![None, stamp(1), stamp(u64::MAX)]);
        let decoded = decode_reply(&mut Reader::new(few.clone()));
        assert_eq!(decoded.map(|reply| encoded(&reply)), Ok(few.clone()));
        for at in 0..few.len() {
            assert!(decode_reply(&mut Reader::new(few.slice(..at))).is_err());
        }
        assert!(decode_reply(&mut Reader::new(of(vec![None; MANY_MAX]))).is_ok());
        assert!(decode_reply(&mut Reader::new(of(vec![None; MANY_MAX + 1]))).is_err());
        assert!(decode_reply(&mut Reader::new(of(vec![stamp(0)]))).is_err(), "appends are numbered from 1");
    }

    #[test]
    fn many_come_back_as_they_were_sent_and_are_bounded() {
        let run = Run { from: Position(9), step: 4, count: 200 };
        let request = Request::ReadMany { epoch: ProjectionEpoch(3), run, bytes: 70_000 };
        let mut out = Writer::new();
        encode_request(&request, &mut out);
        let bytes = out.finish();
        assert_eq!(decode_request(&mut Reader::new(bytes.clone())), Ok(request));
        let one_by_one =
            [Reply::Value(Entry::Junk), Reply::Unwritten, Reply::Damaged, Reply::Trimmed { mark: Position(7) }];
        let many = Reply::Many(one_by_one.to_vec());
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
        assert!(decoded(Reply::Many(vec![many])).is_err(), "none is many itself");
    }
}
