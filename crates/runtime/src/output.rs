//! Output that waits until a client's socket takes it.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, IoSlice, Write};

use bytes::{Buf as _, Bytes};

/// Buffers written in one call.
const SLICES: usize = 64;

/// The unsent frames of a connection.
#[derive(Debug, Default)]
pub(crate) struct OutputQueue {
    frames: VecDeque<Bytes>,
    bytes: usize,
}

impl OutputQueue {
    pub(crate) fn push(&mut self, frame: Bytes) {
        // A write of nothing but empty frames would look like a closed socket.
        if !frame.is_empty() {
            self.bytes += frame.len();
            self.frames.push_back(frame);
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Writes as much as the socket takes; false if it takes no more.
    pub(crate) fn write(&mut self, socket: &mut impl Write) -> io::Result<bool> {
        while !self.frames.is_empty() {
            let slices: Vec<IoSlice<'_>> = self.frames.iter().take(SLICES).map(|frame| IoSlice::new(frame)).collect();
            let mut written = match socket.write_vectored(&slices) {
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

    impl Write for Socket {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let count = bytes.len().min(self.room);
            if count == 0 {
                return Err(ErrorKind::WouldBlock.into());
            }
            self.taken.extend_from_slice(&bytes[..count]);
            self.room -= count;
            Ok(count)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
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
            assert!(!queue.write(&mut socket).expect("room is not an error"));
            assert_eq!(queue.bytes(), left);
        }
        socket.room = 100;
        assert!(queue.write(&mut socket).expect("room"));
        assert!(queue.is_empty() && queue.bytes() == 0);
        assert_eq!(socket.taken, b"onetwothree");
    }
}
