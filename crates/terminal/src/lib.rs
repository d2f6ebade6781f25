//! Common parts of the commands of the binary: output, errors with their exit statuses, and values of common options.

mod arguments;
mod output;
mod stop;
mod table;

pub use arguments::{Durability, ReadKind};
pub use output::{Output, to_json};
pub use stop::{Appended, EXIT_STATUSES, LoadedUntil, Stop, unless_interrupted};
pub use table::Table;

/// Default directory of a local cluster.
pub const DATA_DEFAULT: &str = "./loggos-data";
