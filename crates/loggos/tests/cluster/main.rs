//! End-to-end tests: real processes, sockets and files, through the binary and the client library.
//!
//! A single test binary, so that the number of concurrent clusters can be limited ([`harness`]).

mod benchmarks;
#[path = "../../../cli/src/zk/client.rs"]
#[allow(dead_code, reason = "the tests do not hold sessions")]
mod client;
mod commands;
mod configuration;
mod console;
mod crashes;
mod disks;
mod formation;
mod harness;
mod hosts;
mod house;
mod joins;
mod loads;
mod logs;
mod memory;
mod moves;
#[cfg(feature = "sql")]
mod online;
mod outages;
#[cfg(feature = "sql")]
mod postgres;
mod ranges;
mod reads;
mod refusals;
mod rollbacks;
mod splits;
mod strangers;
mod streams;
mod transactions;
mod translation_server;
mod zoo_cfg;
mod zookeeper;
