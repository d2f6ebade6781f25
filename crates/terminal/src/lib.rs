//! What the commands of the binary share: how they print, why they stop, with which exit status, and the values of their
//! common options.

mod arguments;
mod output;
mod stop;
mod table;

pub use arguments::{Durability, ReadKind};
pub use output::{Output, to_json};
pub use stop::{Appended, LoadedUntil, Stop, unless_interrupted};
pub use table::Table;

/// The directory of a local universe, unless an option names another.
pub const DATA_DEFAULT: &str = "./loggos-data";
