//! The server over real sockets. One binary, because each one takes as long to build as all of the tests to run.

mod console;
mod log;
mod served;
mod socket;
mod stream;
