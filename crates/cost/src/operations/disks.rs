//! A virtual disk, attached by one NBD client.

use bytes::{BufMut, Bytes, BytesMut};
use catalog::TableOptions;
use node::request::{Request, Response};
use state_machine::{Failure, StateMachine as _};
use streams::gateway::{Action, Gateway, Settings};
use streams::layout::{Layout, UNIT_BYTES};
use streams::nbd::{Connection, Export, Exports, Refusal, Step};
use streams::stripe::Stripe;

use super::{Run, value};
use crate::cluster::Cluster;

const DISK: &str = "disk";
const DISK_BYTES: u64 = 4 * UNIT_BYTES;
/// Bytes of a read or write.
const BYTES: usize = 8 << 10;
/// Places that are written and read in turn.
const PLACES: u64 = 100;

// Numbers of the NBD protocol.
const FIXED_NEWSTYLE_NO_ZEROES: u32 = 0b11;
const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
const OPTION_GO: u32 = 7;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const COMMAND_READ: u16 = 0;
const COMMAND_WRITE: u16 = 1;
const SIMPLE_REPLY: [u8; 8] = [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0];

struct Disks;

impl Exports for Disks {
    fn names(&self) -> Vec<String> {
        vec![DISK.to_owned()]
    }

    fn find(&self, _: &str) -> Result<Export, Refusal> {
        Ok(Export { size: DISK_BYTES, is_read_only: false, description: String::new() })
    }
}

struct Client {
    cluster: Cluster,
    node: usize,
    codec: Connection,
    gateway: Gateway,
    input: BytesMut,
    requests: u64,
}

impl Client {
    fn attach() -> Self {
        let mut cluster = Cluster::start();
        let layout = Layout::new(1).expect("a valid number of stripes");
        let options = TableOptions { disk_bytes: DISK_BYTES, ..TableOptions::of(Stripe::KIND) };
        let node = cluster.create_table(DISK, layout.split_keys(), options);
        let (codec, _) = Connection::new();
        let gateway = Gateway::new(layout, Settings::default());
        let mut client = Self { cluster, node, codec, gateway, input: BytesMut::new(), requests: 0 };
        client.input.put_u32(FIXED_NEWSTYLE_NO_ZEROES);
        client.input.put_u64(OPTION_MAGIC);
        client.input.put_u32(OPTION_GO);
        client.input.put_u32(u32::try_from(4 + DISK.len() + 2).expect("a short name"));
        client.input.put_u32(u32::try_from(DISK.len()).expect("a short name"));
        client.input.put_slice(DISK.as_bytes());
        client.input.put_u16(0);
        let mut out = Vec::new();
        while !client.codec.is_attached() {
            client.codec.advance(&mut client.input, &Disks, &mut out).expect("a valid handshake");
        }
        client
    }

    /// Sends a request for the next place. Returns the reply.
    fn exchange(&mut self, command: u16, data: &[u8]) -> Vec<Bytes> {
        self.requests += 1;
        self.input.put_u32(REQUEST_MAGIC);
        self.input.put_u16(0);
        self.input.put_u16(command);
        self.input.put_u64(self.requests);
        self.input.put_u64(self.requests % PLACES * BYTES as u64);
        self.input.put_u32(BYTES as u32);
        self.input.put_slice(data);
        let mut out = Vec::new();
        let step = self.codec.advance(&mut self.input, &Disks, &mut out).expect("a valid request");
        let Step::Request(request) = step else { panic!("unexpected {step:?}") };
        self.gateway.submit(self.cluster.now().monotonic, request);
        let replies = self.codec.replies();
        while out.is_empty() {
            for action in self.gateway.take_actions() {
                match action {
                    Action::Reply(reply) => reply.encode(replies, &mut out),
                    Action::Call { call, request } => {
                        let outcome = self.cluster.ask(self.node, Request::table(DISK, request));
                        let outcome = outcome.and_then(|response| match response {
                            Response::Stripe(response) => Ok(response),
                            other => Err(Failure::Unavailable(format!("unexpected {other:?}"))),
                        });
                        self.gateway.answered(self.cluster.now().monotonic, call, outcome);
                    }
                }
            }
        }
        self.cluster.settle();
        assert!(out[0].starts_with(&SIMPLE_REPLY), "{:?}", out[0]);
        out
    }
}

pub(super) fn write() -> Run {
    let (mut client, data) = (Client::attach(), value(BYTES));
    Box::new(move || drop(client.exchange(COMMAND_WRITE, &data)))
}

pub(super) fn read() -> Run {
    let (mut client, data) = (Client::attach(), value(BYTES));
    for _ in 0..PLACES {
        client.exchange(COMMAND_WRITE, &data);
    }
    Box::new(move || {
        let reply = client.exchange(COMMAND_READ, &[]);
        assert_eq!(reply.iter().map(Bytes::len).sum::<usize>(), SIMPLE_REPLY.len() + 8 + BYTES);
    })
}
