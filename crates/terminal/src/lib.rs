//! Common parts of the commands of the binary: output, errors with their exit statuses, values of common options, and the
//! view of a cluster that `loggos status` and the console show.

mod addresses;
mod arguments;
mod duration;
mod output;
mod stop;
mod table;
pub mod view;

pub use addresses::{GRPC, Service, ZOOKEEPER};
pub use arguments::{Durability, ReadKind, Replication};
pub use duration::{duration, positive_duration, timestamp_ns};
pub use output::{Output, range_field, to_json};
pub use stop::{Appended, EXIT_STATUSES, LoadedUntil, Signals, Stop, unless_interrupted};
pub use table::Table;

/// Default directory of a local cluster.
pub const DATA_DEFAULT: &str = "./loggos-data";
