//! Loggos as its users meet it: real processes, real sockets, real files, through the binary and the client library.
//!
//! One test binary, so that one place bounds how many universes run at a time ([`harness`]).

mod benchmarks;
mod commands;
mod console;
mod crashes;
mod formation;
mod harness;
mod hosts;
mod house;
mod joins;
mod loads;
mod logs;
mod memory;
mod moves;
mod ranges;
mod reads;
mod refusals;
mod splits;
mod strangers;
mod streams;
