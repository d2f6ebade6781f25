//! A guard for speed that noise cannot blur: the instructions that an operation takes.
//!
//! [`operations`] executes each operation on one thread: the nodes, their codecs and stores, and where stated the gRPC
//! server, driven by [`cluster`] in virtual time with fixed seeds. [`count`] counts the instructions with valgrind, and
//! compares them with those that are recorded. Waiting, locks between threads, system calls and sockets are not part of
//! it: `loggos bench` measures them.

pub mod cluster;
pub mod count;
pub mod operations;
