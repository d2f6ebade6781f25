//! Runs the product's own state machines under a simulated network, disks, clocks and processes.

pub mod campaign;
pub mod history;
pub mod list_append;
pub mod register;
pub mod search;
pub mod world;
