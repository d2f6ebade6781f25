//! The handshake: greeting, options, and the choice of an export.

use bytes::{Buf, BufMut, Bytes, BytesMut};

use super::constants::{FIXED_NEWSTYLE, GREETING, NO_ZEROES, OPTION, OPTION_REPLY, answer, info, option};
use super::{
    BLOCK_BYTES_PREFERRED, Export, Exports, NbdError, PAYLOAD_BYTES_MAX, Refusal, STRING_BYTES_MAX, transmission,
};

/// Magic, option, length.
const OPTION_BYTES: usize = 16;
/// Maximum bytes of an option's data: larger ones are skipped and refused. Enough for a name and many queries.
const OPTION_DATA_BYTES_MAX: u32 = 32 << 10;
/// Maximum bytes of an option's data that are skipped. With more, the connection is closed.
const OPTION_SKIPPED_BYTES_MAX: u32 = 16 << 20;
/// Maximum options of a client before it attaches an export: a client needs about ten, or two for each export that it
/// asks about.
const OPTIONS_MAX: u32 = 4_096;
/// The only metadata context, and its id.
const CONTEXT: &str = "base:allocation";
/// The part of its name that selects all contexts of the namespace in a list.
const NAMESPACE: &str = "base:";
pub(super) const CONTEXT_ID: u32 = 1;
/// The zeros after the answer to `NBD_OPT_EXPORT_NAME`, unless the client refuses them.
const ZEROES: usize = 124;

/// The state of a handshake.
#[derive(Clone, Debug)]
pub(super) struct Handshake {
    /// The flags in the client's answer to the greeting; none before it.
    client_flags: Option<u16>,
    is_structured: bool,
    /// The export for which the client has selected the context.
    context_of: Option<String>,
    options: u32,
    /// An option that is too large, and how many bytes of it are still to be skipped.
    skipped: Option<(u32, usize)>,
}

/// The result of a step.
#[derive(Debug)]
pub(super) enum Step {
    Attached(Box<Attached>),
    Other(super::Step),
}

/// The result of a handshake.
#[derive(Debug)]
pub(super) struct Attached {
    pub(super) name: String,
    pub(super) export: Export,
    pub(super) is_structured: bool,
    pub(super) has_context: bool,
}

const CONTINUE: Step = Step::Other(super::Step::Continue);

fn needs(bytes: usize) -> Step {
    Step::Other(super::Step::NeedsBytes(bytes))
}

/// The data of an option is malformed.
#[derive(Debug)]
struct Malformed;

impl Handshake {
    pub(super) fn new() -> (Self, Bytes) {
        let mut greeting = BytesMut::with_capacity(18);
        greeting.put_u64(GREETING);
        greeting.put_u64(OPTION);
        greeting.put_u16(FIXED_NEWSTYLE | NO_ZEROES);
        let handshake = Self { client_flags: None, is_structured: false, context_of: None, options: 0, skipped: None };
        (handshake, greeting.freeze())
    }

    pub(super) fn advance(
        &mut self,
        input: &mut BytesMut,
        exports: &dyn Exports,
        out: &mut Vec<Bytes>,
    ) -> Result<Step, NbdError> {
        let Some(flags) = self.client_flags else { return self.client_flags(input) };
        if let Some((option, left)) = self.skipped {
            return Ok(self.skip(option, left, input, out));
        }
        let mut header = &input[..];
        if header.len() < OPTION_BYTES {
            return Ok(needs(OPTION_BYTES));
        }
        let magic = header.get_u64();
        if magic != OPTION {
            return Err(NbdError::WrongMagic { expected: OPTION, found: magic });
        }
        let (option, length) = (header.get_u32(), header.get_u32());
        if flags & FIXED_NEWSTYLE == 0 && option != option::EXPORT_NAME {
            return Err(NbdError::NotFixedNewstyle(option));
        }
        let limit = if option == option::EXPORT_NAME { STRING_BYTES_MAX as u32 } else { OPTION_DATA_BYTES_MAX };
        if length > OPTION_SKIPPED_BYTES_MAX || length > limit && option == option::EXPORT_NAME {
            return Err(NbdError::TooLarge { what: "an option", bytes: length, limit });
        }
        if length > limit {
            self.count()?;
            input.advance(OPTION_BYTES);
            self.skipped = Some((option, length as usize));
            return Ok(CONTINUE);
        }
        let whole = OPTION_BYTES + length as usize;
        if input.len() < whole {
            return Ok(needs(whole));
        }
        self.count()?;
        let mut data = input.split_to(whole).freeze();
        data.advance(OPTION_BYTES);
        self.option(option, data, flags, exports, out)
    }

    fn count(&mut self) -> Result<(), NbdError> {
        self.options += 1;
        if self.options > OPTIONS_MAX { Err(NbdError::TooManyOptions) } else { Ok(()) }
    }

    fn client_flags(&mut self, input: &mut BytesMut) -> Result<Step, NbdError> {
        if input.len() < 4 {
            return Ok(needs(4));
        }
        let flags = input.get_u32();
        let known = u16::try_from(flags).ok().filter(|flags| flags & !(FIXED_NEWSTYLE | NO_ZEROES) == 0);
        self.client_flags = Some(known.ok_or(NbdError::UnknownClientFlags(flags))?);
        Ok(CONTINUE)
    }

    /// Skips the data of an option that is too large, and refuses it at the end.
    fn skip(&mut self, option: u32, left: usize, input: &mut BytesMut, out: &mut Vec<Bytes>) -> Step {
        if input.is_empty() {
            return needs(1);
        }
        let now = left.min(input.len());
        input.advance(now);
        self.skipped = Some((option, left - now)).filter(|(_, left)| *left > 0);
        if self.skipped.is_none() {
            refuse(option, answer::TOO_BIG, "the option is too large", out);
        }
        CONTINUE
    }

    fn option(
        &mut self,
        option: u32,
        data: Bytes,
        flags: u16,
        exports: &dyn Exports,
        out: &mut Vec<Bytes>,
    ) -> Result<Step, NbdError> {
        let parsed = match option {
            option::EXPORT_NAME => return self.export_name(&data, flags, exports, out),
            option::ABORT => {
                reply(option, answer::ACK, &[], out);
                return Ok(Step::Other(super::Step::Disconnect));
            }
            option::INFO | option::GO => match Self::info_request(data) {
                Ok((name, wanted)) => return Ok(self.info(option, name, &wanted, exports, out)),
                Err(malformed) => Err(malformed),
            },
            option::LIST => self.list(&data, exports, out),
            option::STRUCTURED_REPLY => self.structured_reply(&data, out),
            option::LIST_META_CONTEXT | option::SET_META_CONTEXT => self.contexts(option, data, exports, out),
            option::STARTTLS => {
                refuse(option, answer::POLICY, "this server does not offer TLS", out);
                Ok(())
            }
            _ => {
                refuse(option, answer::UNSUPPORTED, "unknown option", out);
                Ok(())
            }
        };
        if let Err(Malformed) = parsed {
            refuse(option, answer::INVALID, "malformed option", out);
        }
        Ok(CONTINUE)
    }

    fn export_name(
        &self,
        data: &[u8],
        flags: u16,
        exports: &dyn Exports,
        out: &mut Vec<Bytes>,
    ) -> Result<Step, NbdError> {
        let name = std::str::from_utf8(data).map_err(|_| NbdError::UnknownExport)?;
        let export = exports.find(name).map_err(|_| NbdError::UnknownExport)?;
        let mut answer = BytesMut::with_capacity(10 + ZEROES);
        answer.put_u64(export.size);
        answer.put_u16(transmission::flags(&export, self.is_structured));
        if flags & NO_ZEROES == 0 {
            answer.put_bytes(0, ZEROES);
        }
        out.push(answer.freeze());
        Ok(self.attached(name.to_owned(), export))
    }

    fn attached(&self, name: String, export: Export) -> Step {
        let has_context = self.is_structured && self.context_of.as_ref() == Some(&name);
        Step::Attached(Box::new(Attached { name, export, is_structured: self.is_structured, has_context }))
    }

    fn list(&self, data: &[u8], exports: &dyn Exports, out: &mut Vec<Bytes>) -> Result<(), Malformed> {
        if !data.is_empty() {
            return Err(Malformed);
        }
        for name in exports.names() {
            let mut server = BytesMut::with_capacity(4 + name.len());
            server.put_u32(name.len() as u32);
            server.put_slice(name.as_bytes());
            reply(option::LIST, answer::SERVER, &server, out);
        }
        reply(option::LIST, answer::ACK, &[], out);
        Ok(())
    }

    fn structured_reply(&mut self, data: &[u8], out: &mut Vec<Bytes>) -> Result<(), Malformed> {
        if !data.is_empty() {
            return Err(Malformed);
        }
        self.is_structured = true;
        reply(option::STRUCTURED_REPLY, answer::ACK, &[], out);
        Ok(())
    }

    /// The name and the items of `NBD_OPT_INFO` and `NBD_OPT_GO`.
    fn info_request(mut data: Bytes) -> Result<(String, Vec<u16>), Malformed> {
        let name = string(&mut data)?;
        let count = data.try_get_u16().map_err(|_| Malformed)?;
        if data.len() != 2 * usize::from(count) {
            return Err(Malformed);
        }
        let wanted = data.chunks_exact(2).map(|pair| u16::from_be_bytes([pair[0], pair[1]])).collect();
        Ok((name, wanted))
    }

    fn info(&self, option: u32, name: String, wanted: &[u16], exports: &dyn Exports, out: &mut Vec<Bytes>) -> Step {
        let export = match exports.find(&name) {
            Ok(export) => export,
            Err(refusal) => {
                refuse_export(option, &refusal, out);
                return CONTINUE;
            }
        };
        let mut item = |kind: u16, data: &[u8]| {
            let mut item = BytesMut::with_capacity(2 + data.len());
            item.put_u16(kind);
            item.put_slice(data);
            reply(option, answer::INFO, &item, out);
        };
        let mut fields = BytesMut::new();
        fields.put_u64(export.size);
        fields.put_u16(transmission::flags(&export, self.is_structured));
        item(info::EXPORT, &fields);
        if wanted.contains(&info::NAME) {
            item(info::NAME, name.as_bytes());
        }
        if wanted.contains(&info::DESCRIPTION) && !export.description.is_empty() {
            item(info::DESCRIPTION, export.description.as_bytes());
        }
        if wanted.contains(&info::BLOCK_SIZE) {
            fields.clear();
            fields.put_u32(1);
            fields.put_u32(BLOCK_BYTES_PREFERRED);
            fields.put_u32(PAYLOAD_BYTES_MAX);
            item(info::BLOCK_SIZE, &fields);
        }
        reply(option, answer::ACK, &[], out);
        if option == option::GO { self.attached(name, export) } else { CONTINUE }
    }

    fn contexts(
        &mut self,
        option: u32,
        mut data: Bytes,
        exports: &dyn Exports,
        out: &mut Vec<Bytes>,
    ) -> Result<(), Malformed> {
        let is_list = option == option::LIST_META_CONTEXT;
        if !is_list {
            // A selection replaces the previous one, also if it fails.
            self.context_of = None;
        }
        let name = string(&mut data)?;
        let count = data.try_get_u32().map_err(|_| Malformed)?;
        let mut is_wanted = is_list && count == 0;
        for _ in 0..count {
            // Each query takes at least four bytes, so the loop is bounded by the data.
            let query = string(&mut data)?;
            is_wanted |= query == CONTEXT || is_list && query == NAMESPACE;
        }
        if !data.is_empty() || !self.is_structured {
            return Err(Malformed);
        }
        if let Err(refusal) = exports.find(&name) {
            refuse_export(option, &refusal, out);
            return Ok(());
        }
        if is_wanted {
            let mut context = BytesMut::with_capacity(4 + CONTEXT.len());
            context.put_u32(if is_list { 0 } else { CONTEXT_ID });
            context.put_slice(CONTEXT.as_bytes());
            reply(option, answer::META_CONTEXT, &context, out);
            if !is_list {
                self.context_of = Some(name);
            }
        }
        reply(option, answer::ACK, &[], out);
        Ok(())
    }
}

/// Takes a length and a text of this length.
fn string(data: &mut Bytes) -> Result<String, Malformed> {
    let length = data.try_get_u32().map_err(|_| Malformed)? as usize;
    if length > STRING_BYTES_MAX || length > data.len() {
        return Err(Malformed);
    }
    let text = data.split_to(length);
    std::str::from_utf8(&text).map(str::to_owned).map_err(|_| Malformed)
}

fn reply(option: u32, kind: u32, data: &[u8], out: &mut Vec<Bytes>) {
    let mut reply = BytesMut::with_capacity(20 + data.len());
    reply.put_u64(OPTION_REPLY);
    reply.put_u32(option);
    reply.put_u32(kind);
    reply.put_u32(data.len() as u32);
    reply.put_slice(data);
    out.push(reply.freeze());
}

fn refuse(option: u32, kind: u32, message: &str, out: &mut Vec<Bytes>) {
    reply(option, kind, message.as_bytes(), out);
}

fn refuse_export(option: u32, refusal: &Refusal, out: &mut Vec<Bytes>) {
    match refusal {
        Refusal::Unknown => refuse(option, answer::UNKNOWN, "no such export", out),
        Refusal::Policy(why) => refuse(option, answer::POLICY, why, out),
    }
}
