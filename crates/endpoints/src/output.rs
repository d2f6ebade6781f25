//! Output that waits until a socket takes it.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, IoSlice};

use bytes::{Buf as _, Bytes};

use crate::transport::Transport;

/// Buffers written in one call.
const SLICES: usize = 64;

/// The unsent frames of a connection.
#[derive(Debug, Default)]
pub struct OutputQueue {
    frames: VecDeque<Bytes>,
    bytes: usize,
}

impl OutputQueue {
    pub fn push(&mut self, frame: Bytes) {
        // A write of nothing but empty frames would look like a closed socket.
        if !frame.is_empty() {
            self.bytes += frame.len();
            self.frames.push_back(frame);
        }
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Writes as much as the socket takes; false if it takes no more.
    pub fn write(&mut self, transport: &mut Transport) -> io::Result<bool> {
        self.write_by(|slices| transport.write_vectored(slices))
    }

    fn write_by(&mut self, mut write: impl FnMut(&[IoSlice<'_>]) -> io::Result<usize>) -> io::Result<bool> {
        while !self.frames.is_empty() {
            let mut slices = [IoSlice::new(&[]); SLICES];
            let mut count = 0;
            for (slice, frame) in slices.iter_mut().zip(&self.frames) {
                *slice = IoSlice::new(frame);
                count += 1;
            }
            let mut written = match write(&slices[..count]) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(written) => written,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            self.bytes -= written;
            while let Some(first) = self.frames.front_mut() {
                if first.len() > written {
                    first.advance(written);
                    break;
                }
                written -= first.len();
                self.frames.pop_front();
            }
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A socket with room for a few bytes at a time.
    struct Socket {
        taken: Vec<u8>,
        room: usize,
    }

    impl Socket {
        fn write(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
            let bytes: Vec<u8> = slices.iter().flat_map(|slice| slice.iter().copied()).take(self.room).collect();
            self.room -= bytes.len();
            self.taken.extend_from_slice(&bytes);
            if bytes.is_empty() { Err(ErrorKind::WouldBlock.into()) } else { Ok(bytes.len()) }
        }
    }

    #[test]
    fn partial_writes_continue_in_order() {
        let mut queue = OutputQueue::default();
        for frame in ["one", "", "two", "three"] {
            queue.push(Bytes::from_static(frame.as_bytes()));
        }
        let mut socket = Socket { taken: Vec::new(), room: 0 };
        assert_eq!((queue.bytes(), queue.is_empty()), (11, false));
        for (room, left) in [(0, 11), (2, 9), (4, 5), (3, 2)] {
            socket.room = room;
            assert!(!queue.write_by(|slices| socket.write(slices)).expect("room is not an error"));
            assert_eq!(queue.bytes(), left);
        }
        socket.room = 100;
        assert!(queue.write_by(|slices| socket.write(slices)).expect("room"));
        assert!(queue.is_empty() && queue.bytes() == 0);
        assert_eq!(socket.taken, b"onetwothree");
    }
}
