//! Tests of the formats of messages and of COPY.

mod copy;
mod message;
mod startup;
