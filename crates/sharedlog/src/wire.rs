//! The codec of what nodes ask each other about shared logs: requests to log units and sequencers, and their answers.

use base::codec::{DecodeError, Reader, Writer};
use base::{Boot, Duration, NodeId};
use machine::Wire;

use crate::client::Suspect;
use crate::limits::{MANY_MAX, POSITIONS_AT_ONCE_MAX};
use crate::sequencer::{Named, Placed, Told};
use crate::unit::{Command, Reply, Report, Request};
use crate::unit::{decode_appends, decode_ranges, encode_appends, encode_ranges};
use crate::{ClientId, Entry, Kind, Position, ProjectionEpoch, Run, SequencerId, Stamp, Stripe, UnitId, sequencer};

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
        Request::Recent { epoch, from } => {
            out.u8(7);
            out.u64(epoch.0);
            out.u64(from.0);
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

fn decode_request(input: &mut Reader) -> Result<Request, DecodeError> {
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
        7 => Request::Recent { epoch: decode_epoch(input)?, from: decode_position(input)? },
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
        Reply::Took { mark } => {
            out.u8(19);
            out.u64(mark.0);
        }
        Reply::Recent { from, told_of, appends } => {
            out.u8(18);
            out.u64(from.0);
            encode_ranges(out, told_of);
            encode_appends(out, appends);
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
        19 => Reply::Took { mark: decode_position(input)? },
        18 => Reply::Recent {
            from: decode_position(input)?,
            told_of: decode_ranges(input)?,
            appends: decode_appends(input)?,
        },
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
        sequencer::Request::Positions { epoch, client, count, named } => {
            out.u8(1);
            out.u64(epoch.0);
            out.u64(client.0);
            out.u64(*count);
            out.u32(named.len() as u32);
            for Named { stamp, oldest_open, decided, since } in named {
                out.u64(stamp.client.0);
                out.u64(stamp.sequence);
                out.u64(*oldest_open);
                encode_optional(decided.map(|decided| decided.0), out);
                encode_optional(since.map(|since| since.0), out);
            }
        }
        sequencer::Request::Tail { epoch } => {
            out.u8(2);
            out.u64(epoch.0);
        }
    }
}

/// Reads what [`encode_question`] wrote.
///
/// # Errors
/// When the bytes are something else.
pub fn decode_question(input: &mut Reader) -> Result<(SequencerId, sequencer::Request), DecodeError> {
    let sequencer = SequencerId { node: NodeId(input.u32()?), boot: Boot(input.u64()?) };
    let request = match input.u8()? {
        1 => {
            let (epoch, client) = (decode_epoch(input)?, ClientId(input.u64()?));
            let count = input.u64()?;
            let named = (0..count_named(input, 26)?).map(|_| decode_named(input)).collect::<Result<_, _>>()?;
            sequencer::Request::Positions { epoch, client, count, named }
        }
        2 => sequencer::Request::Tail { epoch: decode_epoch(input)? },
        tag => return Err(DecodeError::UnknownTag { what: "request to a sequencer", tag: u64::from(tag) }),
    };
    Ok((sequencer, request))
}

/// Appends a sequencer's reply to `out`.
pub fn encode_given(reply: &sequencer::Reply, out: &mut Writer) {
    match reply {
        sequencer::Reply::Positions { first, count, named } => {
            out.u8(1);
            out.u64(first.0);
            out.u64(*count);
            out.u32(named.len() as u32);
            for told in named {
                match told {
                    Told::Decided => out.u8(0),
                    Told::At(Placed { position, oldest_open }) => {
                        out.u8(1);
                        out.u64(position.0);
                        out.u64(*oldest_open);
                    }
                    Told::Forgotten { known_from } => {
                        out.u8(2);
                        out.u64(known_from.0);
                    }
                    Told::Beyond { next } => {
                        out.u8(3);
                        out.u64(next.0);
                    }
                }
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

/// Reads what [`encode_given`] wrote.
///
/// # Errors
/// When the bytes are something else.
pub fn decode_given(input: &mut Reader) -> Result<sequencer::Reply, DecodeError> {
    Ok(match input.u8()? {
        1 => {
            let (first, count) = (decode_position(input)?, input.u64()?);
            let named = (0..count_named(input, 1)?).map(|_| decode_told(input)).collect::<Result<_, _>>()?;
            sequencer::Reply::Positions { first, count, named }
        }
        2 => sequencer::Reply::Tail(decode_position(input)?),
        3 => sequencer::Reply::Refused { newest: decode_epoch(input)? },
        tag => return Err(DecodeError::UnknownTag { what: "reply of a sequencer", tag: u64::from(tag) }),
    })
}

/// How many appends are named, of so many bytes each at least.
fn count_named(input: &mut Reader, bytes: usize) -> Result<usize, DecodeError> {
    let count = input.count(bytes)?;
    let is_bounded = count as u64 <= POSITIONS_AT_ONCE_MAX;
    if is_bounded { Ok(count) } else { Err(DecodeError::Invalid { what: "number of appends" }) }
}

fn decode_named(input: &mut Reader) -> Result<Named, DecodeError> {
    let stamp = decode_stamp(input)?;
    let oldest_open = input.u64()?;
    let decided = decode_optional(input)?;
    let since = decode_optional(input)?;
    Ok(Named { stamp, oldest_open, decided, since })
}

fn decode_stamp(input: &mut Reader) -> Result<Stamp, DecodeError> {
    let stamp = Stamp { client: ClientId(input.u64()?), sequence: input.u64()? };
    if stamp.sequence == 0 { Err(DecodeError::Invalid { what: "sequence" }) } else { Ok(stamp) }
}

fn decode_told(input: &mut Reader) -> Result<Told, DecodeError> {
    Ok(match input.u8()? {
        0 => Told::Decided,
        1 => Told::At(Placed { position: decode_position(input)?, oldest_open: input.u64()? }),
        2 => Told::Forgotten { known_from: decode_position(input)? },
        3 => Told::Beyond { next: decode_position(input)? },
        tag => return Err(DecodeError::UnknownTag { what: "place of an append", tag: u64::from(tag) }),
    })
}

fn decode_optional(input: &mut Reader) -> Result<Option<Position>, DecodeError> {
    if input.bool()? { decode_position(input).map(Some) } else { Ok(None) }
}

fn encode_optional(number: Option<u64>, out: &mut Writer) {
    out.bool(number.is_some());
    if let Some(number) = number {
        out.u64(number);
    }
}

/// Appends who is suspected to `out`.
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

/// Reads what [`encode_suspect`] wrote.
///
/// # Errors
/// When the bytes are something else.
pub fn decode_suspect(input: &mut Reader) -> Result<Suspect, DecodeError> {
    Ok(match input.u8()? {
        1 => Suspect::Sequencer,
        2 => Suspect::Unit(UnitId(input.u64()?)),
        3 => Suspect::Projection,
        tag => return Err(DecodeError::UnknownTag { what: "suspect", tag: u64::from(tag) }),
    })
}

/// Reads the epoch of a projection.
///
/// # Errors
/// When the input ends first.
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
    use crate::limits::RECENT_MAX;

    use super::*;

    fn encoded(reply: &Reply) -> bytes::Bytes {
        let mut out = Writer::new();
        encode_reply(reply, &mut out);
        out.finish()
    }

    #[test]
    fn appends_come_back_as_they_were_sent_and_are_bounded() {
        let request = Request::Recent { epoch: ProjectionEpoch(3), from: Position(9) };
        let mut out = Writer::new();
        encode_request(&request, &mut out);
        assert_eq!(decode_request(&mut Reader::new(out.finish())), Ok(request));
        let append = |number| (Position(number), Stamp { client: ClientId(7), sequence: number });
        let stripe = Stripe { from: Position(0), count: 1, index: 0, width: 1 };
        let of = |appends: Vec<(Position, Stamp)>| Reply::Recent {
            from: Position(4),
            told_of: vec![(stripe, Position(1), Position(3))],
            appends,
        };
        let few = of(vec![append(5), append(9)]);
        let bytes = encoded(&few);
        assert_eq!(decode_reply(&mut Reader::new(bytes.clone())), Ok(few));
        for at in 0..bytes.len() {
            assert!(decode_reply(&mut Reader::new(bytes.slice(..at))).is_err());
        }
        let many = |count: usize| encoded(&of((1..=count as u64).map(append).collect()));
        assert!(decode_reply(&mut Reader::new(many(RECENT_MAX))).is_ok());
        assert!(decode_reply(&mut Reader::new(many(RECENT_MAX + 1))).is_err());
        assert!(decode_reply(&mut Reader::new(encoded(&of(vec![append(0)])))).is_err(), "they are numbered from 1");
    }

    /// What a sequencer is asked and answers of appends that are known by their stamps.
    #[test]
    fn places_come_back_as_they_were_sent() {
        let sequencer = SequencerId { node: NodeId(2), boot: Boot(5) };
        let stamp = Stamp { client: ClientId(7), sequence: 3 };
        let named = |decided: Option<u64>, since: Option<u64>| Named {
            stamp,
            oldest_open: 2,
            decided: decided.map(Position),
            since: since.map(Position),
        };
        let named = vec![named(None, None), named(Some(4), None), named(None, Some(9)), named(Some(4), Some(0))];
        let request = sequencer::Request::Positions { epoch: ProjectionEpoch(3), client: ClientId(9), count: 2, named };
        let mut out = Writer::new();
        encode_question(sequencer, &request, &mut out);
        assert_eq!(decode_question(&mut Reader::new(out.finish())), Ok((sequencer, request)));
        let at = Told::At(Placed { position: Position(8), oldest_open: 2 });
        let named =
            vec![at, Told::Decided, Told::Forgotten { known_from: Position(5) }, Told::Beyond { next: Position(6) }];
        let reply = sequencer::Reply::Positions { first: Position(7), count: 1, named };
        let mut out = Writer::new();
        encode_given(&reply, &mut out);
        let bytes = out.finish();
        assert_eq!(decode_given(&mut Reader::new(bytes.clone())), Ok(reply));
        for at in 0..bytes.len() {
            assert!(decode_given(&mut Reader::new(bytes.slice(..at))).is_err());
        }
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
        assert!(decoded(Reply::Many(vec![many])).is_err(), "none is many itself");
    }
}
