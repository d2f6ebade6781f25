use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration as StdDuration;

use bytes::{Bytes, BytesMut};

use super::*;
use crate::connections::{self, Connection};
use crate::listener::{address, bind};
use base::budget::ByteBudget;

/// Echoes lines. A line "stop" blocks the connection, and "garbage" is not a line.
#[derive(Default)]
struct Echo<const GIVES_UP: bool = false> {
    replies: Vec<(ConnectionId, Bytes)>,
    changes: Vec<OutputChange>,
    gone: usize,
}

#[derive(Default)]
struct Lines(BytesMut);

impl connections::Client for Lines {
    fn push(&mut self, bytes: &[u8], _: Monotonic) {
        self.0.extend_from_slice(bytes);
    }

    fn held(&self) -> usize {
        self.0.len()
    }

    fn has_greeted(&self) -> bool {
        true
    }
}

impl<const GIVES_UP: bool> Protocol for Echo<GIVES_UP> {
    type Client = Lines;

    const NAME: &'static str = "echo";
    const CLIENT: &'static str = "an echo client";
    const READ_BYTES: usize = 64 << 10;
    const GREETING_TIMEOUT: Duration = Duration::from_millis(1_000);
    const OUTPUT_HIGH_BYTES: usize = 4 << 20;
    const OUTPUT_LOW_BYTES: usize = 1 << 20;
    const STOPS_READING_WHEN_FULL: bool = true;
    const GIVES_UP: bool = GIVES_UP;

    fn connected(&mut self, _: ConnectionId, _: SocketAddr, _: Now) -> io::Result<(Lines, Bytes)> {
        Ok((Lines::default(), Bytes::from_static(b"hello\n")))
    }

    fn disconnected(&mut self, _: ConnectionId, _: Lines) {
        self.gone += 1;
    }

    fn take(&mut self, id: ConnectionId, connection: &mut Connection<Lines>, _: Now) -> Step {
        let input = &mut connection.client.0;
        let Some(end) = input.iter().position(|byte| *byte == b'\n') else { return Step::NeedsInput };
        match &input[..end] {
            b"stop" => Step::Blocked,
            b"garbage" => Step::Invalid,
            _ => {
                self.replies.push((id, input.split_to(end + 1).freeze()));
                Step::Taken
            }
        }
    }

    fn output_changed(&mut self, _: ConnectionId, change: OutputChange) {
        self.changes.push(change);
    }

    fn next_timer(&self, _: &Connections<Lines>) -> Monotonic {
        clock::monotonic() + Duration::from_millis(5)
    }

    fn begin_turn(&mut self, _: &mut Connections<Lines>, _: Now) {}

    fn end_turn(&mut self, connections: &mut Connections<Lines>) {
        self.replies.drain(..).for_each(|(id, line)| connections.send(id, line));
    }
}

fn endpoint<const GIVES_UP: bool>(all: usize) -> (Endpoint<Echo<GIVES_UP>>, SocketAddr) {
    endpoint_within(all, 64 << 20)
}

fn endpoint_within<const GIVES_UP: bool>(all: usize, memory: usize) -> (Endpoint<Echo<GIVES_UP>>, SocketAddr) {
    let socket = bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    let address = address(&socket).unwrap();
    let limits = ConnectionLimits { all, per_address: usize::MAX };
    let memory = ByteBudget::new(memory);
    (Endpoint::listen(Poll::new().unwrap(), socket, limits, &memory, Echo::default()).unwrap(), address)
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(StdDuration::from_secs(20))).unwrap();
    stream
}

fn until<const GIVES_UP: bool>(
    endpoint: &mut Endpoint<Echo<GIVES_UP>>,
    is_so: impl Fn(&Endpoint<Echo<GIVES_UP>>) -> bool,
) {
    let mut ready = Events::with_capacity(READY_MAX);
    let began = clock::monotonic();
    while !is_so(endpoint) {
        assert!(clock::monotonic().since(began) < Duration::from_millis(20_000), "timed out");
        let deadline = endpoint.next_timer();
        wait(&mut endpoint.poll, &mut ready, deadline).unwrap();
        endpoint.turn(&ready).unwrap();
    }
}

#[test]
fn requests_before_the_end_of_input_are_executed() {
    let (mut endpoint, address) = endpoint::<false>(8);
    let mut client = connect(address);
    client.write_all(b"one\ntwo\nthr").unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    until(&mut endpoint, |endpoint| endpoint.protocol.gone == 1);
    assert_eq!(endpoint.connections.traffic.received, 2);
    assert_eq!(endpoint.connections.buffered_bytes(), 0);
}

#[test]
fn ended_connection_executes_nothing() {
    let (mut endpoint, address) = endpoint::<true>(8);
    let mut client = connect(address);
    until(&mut endpoint, |endpoint| endpoint.connections.iter().count() == 1);
    client.write_all(b"one\n").unwrap();
    drop(client);
    std::thread::sleep(StdDuration::from_millis(20));
    until(&mut endpoint, |endpoint| endpoint.protocol.gone == 1);
    assert_eq!(endpoint.connections.traffic.received, 0);
}

#[test]
fn stall_closes_connections_with_requests() {
    let (mut endpoint, address) = endpoint::<true>(8);
    let mut clients = [(); 3].map(|()| connect(address));
    until(&mut endpoint, |endpoint| endpoint.connections.iter().count() == 3);
    clients[0].write_all(b"sto").unwrap();
    until(&mut endpoint, |endpoint| endpoint.connections.iter().any(|(_, connection)| connection.client.held() > 0));
    clients[1].write_all(b"one\n").unwrap();
    std::thread::sleep(StdDuration::from_millis(250));
    until(&mut endpoint, |endpoint| endpoint.protocol.gone == 2);
    assert_eq!(endpoint.connections.traffic.received, 0);
    clients[2].write_all(b"two\n").unwrap();
    until(&mut endpoint, |endpoint| endpoint.connections.traffic.received == 1);
}

#[test]
fn connection_limit_and_garbage() {
    let (mut endpoint, address) = endpoint::<false>(2);
    let mut clients = [(); 3].map(|()| connect(address));
    until(&mut endpoint, |endpoint| endpoint.connections.traffic.rejected == 1);
    clients[0].write_all(b"one\ngarbage\ntwo\n").unwrap();
    until(&mut endpoint, |endpoint| endpoint.protocol.gone == 1);
    // Its place is free again.
    let _fourth = connect(address);
    until(&mut endpoint, |endpoint| endpoint.connections.iter().count() == 2);
    assert_eq!(endpoint.connections.traffic.rejected, 1);
}

#[test]
fn slow_consumer_is_not_read() {
    const LINES: usize = 40_000;
    let (mut endpoint, address) = endpoint::<false>(2);
    let mut client = connect(address);
    let mut writer = client.try_clone().unwrap();
    let line = [&[b'x'; 1_023][..], b"\n"].concat();
    let writing = std::thread::spawn(move || (0..LINES).for_each(|_| writer.write_all(&line).unwrap()));
    until(&mut endpoint, |endpoint| endpoint.protocol.changes.contains(&OutputChange::Full));
    let mut ready = Events::with_capacity(READY_MAX);
    for _ in 0..20 {
        wait(&mut endpoint.poll, &mut ready, clock::monotonic() + Duration::from_millis(2)).unwrap();
        endpoint.turn(&ready).unwrap();
    }
    let held = endpoint.connections.buffered_bytes();
    assert!(held > Echo::<false>::OUTPUT_HIGH_BYTES && held < 3 * Echo::<false>::OUTPUT_HIGH_BYTES, "{held}");
    let reading = std::thread::spawn(move || {
        let mut received = vec![0; 6 + 1_024 * LINES];
        client.read_exact(&mut received).unwrap();
        client
    });
    until(&mut endpoint, |endpoint| endpoint.connections.traffic.received == LINES as u64);
    until(&mut endpoint, |endpoint| endpoint.connections.buffered_bytes() == 0);
    writing.join().unwrap();
    drop(reading.join().unwrap());
    assert!(endpoint.protocol.changes.contains(&OutputChange::Drained));
}

#[test]
fn largest_connection_is_evicted() {
    let (mut endpoint, address) = endpoint_within::<false>(8, 1 << 20);
    let [mut small, mut large] = [(); 2].map(|()| connect(address));
    small.write_all(b"stop\n").unwrap();
    let writing = std::thread::spawn(move || {
        let mut input = vec![b'x'; 2 << 20];
        input[..5].copy_from_slice(b"line\n");
        // It fails when the connection is closed.
        let _ = large.write_all(&input);
        large
    });
    until(&mut endpoint, |endpoint| endpoint.connections.traffic.dropped == 1);
    drop(writing.join().unwrap());
    let left: Vec<usize> = endpoint.connections.iter().map(|(_, connection)| connection.client.0.len()).collect();
    assert_eq!((left, endpoint.protocol.gone), (vec![5], 1));
}
