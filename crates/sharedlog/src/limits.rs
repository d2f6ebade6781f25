//! What bounds the parts of a shared log, each with its reason.

use base::Duration;

/// Chains of one extent, at most: a projection goes whole into one entry of the catalogue.
pub const STRIPES_MAX: usize = 64;
/// Positions in a row that are of one chain, at most.
pub const STRIPE_WIDTH_MAX: u64 = 1 << 10;
/// As many as a log has that is created now. What gets its positions at one time, some ten appends at a door that is
/// busy, mostly goes down one chain together, and costs no more than in a log of one chain. With more, it would take
/// more appends at one time to keep all chains busy.
pub const STRIPE_WIDTH: u64 = 64;
/// Units of one chain, at most: each further one is a step more of every append.
pub const COPIES_MAX: usize = 8;
/// Extents of a projection, at most. Trimming and copying make them fewer again.
pub const EXTENTS_MAX: usize = 64;
/// Stripes that one unit is told of, at most: one for each extent, and as many that are over.
pub const UNIT_STRIPES_MAX: usize = 2 * EXTENTS_MAX;
/// Damaged positions that a unit remembers, at most. What else is damaged is found when it is looked up.
pub const DAMAGED_MAX: usize = 1_024;
/// Bytes of one batch, at most: an append travels as one message and one log entry.
pub const BATCH_BYTES_MAX: usize = 4 << 20;
/// Records of one batch, at most.
pub const RECORDS_MAX: usize = 65_536;
/// The positions of a log lie below this.
pub const POSITION_MAX: u64 = base::limits::LOG_POSITION_MAX;
/// Positions that a sequencer hands out at one asking, at most: those that are not written must be filled.
pub const POSITIONS_AT_ONCE_MAX: u64 = 4_096;
/// Positions that a sequencer gives one client within [`POSITIONS_WINDOW`], at most: so many holes it may leave before
/// they are filled. Small in this crate's own tests.
pub const POSITIONS_OUTSTANDING_MAX: u64 = if cfg!(test) { 8 } else { 262_144 };
/// For how long a sequencer counts what it gave a client.
pub const POSITIONS_WINDOW: Duration = Duration::from_millis(if cfg!(test) { 40 } else { 1_000 });
/// Holes that a unit tells at one asking, at most. Small in this crate's own tests.
pub const HOLES_MAX: usize = if cfg!(test) { 3 } else { 1_024 };
/// Positions that a unit is asked for at one time, or that are copied to it by one command, at most: an answer takes no
/// more of its node's time than a large append does. Small in this crate's own tests.
pub const MANY_MAX: usize = if cfg!(test) { 3 } else { 256 };
/// Bytes of the values in one answer to that, or in one such command, at most; a single value may be longer. Small in
/// this crate's own tests: two of their values.
pub const MANY_BYTES_MAX: usize = if cfg!(test) { 32 } else { 1 << 20 };
/// How long a unit holds an answer back, at most, until something comes.
pub const AWAIT_MAX: Duration = Duration::from_millis(300);
/// Positions of one row, at most: what a client machine is asked to read at one time.
pub const ROW_MAX: usize = 4_096;
/// Calls that a row has under way, at most: all that may bring many positions share its bytes. Small in this crate's
/// own tests.
pub const ROW_CALLS_MAX: usize = if cfg!(test) { 3 } else { 16 };
/// Bytes that the parts of a row may bring together, at most: with so many it asks for nothing more. Small in this
/// crate's own tests.
pub const ROW_BYTES_MAX: usize = if cfg!(test) { 96 } else { 2 << 20 };
/// Intervals of sequences that a table of duplicates holds over all clients, at most. In memory an interval takes 130 bytes
/// at worst (each of another client), 1 MB in all; in a snapshot 40 bytes, 330 KB in all. Small in this crate's own tests, so
/// that they come to it.
pub const DUPLICATES_MAX: usize = if cfg!(test) { 64 } else { 8_192 };
/// Clients for which a sequencer counts the positions of one [`POSITIONS_WINDOW`], at most.
pub const GRANTED_CLIENTS_MAX: usize = 100_000;
/// Bytes of a part of a snapshot, at most: one append. Small in this crate's own tests, so that there are several.
pub const SNAPSHOT_PART_BYTES: usize = if cfg!(test) { 32 } else { 1 << 20 };
/// Parts of a snapshot, at most: 4 GiB, and the pointer that names them is a small append.
pub const SNAPSHOT_PARTS_MAX: usize = 1 << 12;
/// Parts that are appended at one time: others' appends go on beside.
pub const SNAPSHOT_PARTS_AT_ONCE: usize = 4;
