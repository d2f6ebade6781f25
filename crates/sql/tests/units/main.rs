//! Statements on rows in memory, and the parts that they use.

mod ddl;
mod direct;
mod jobs;
mod keys;
mod parse;
mod system;
mod values;
