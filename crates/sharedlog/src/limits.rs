//! What bounds the parts of a shared log, each with its reason.

/// Chains of one extent, at most: a projection goes whole into one entry of the catalogue.
pub const STRIPES_MAX: usize = 64;
/// Units of one chain, at most: each further one is a step more of every append.
pub const COPIES_MAX: usize = 8;
/// Extents of a projection, at most. Trimming and copying make them fewer again.
pub const EXTENTS_MAX: usize = 64;
/// Stripes that one unit is told of, at most: one for each extent, and as many that are over.
pub const UNIT_STRIPES_MAX: usize = 2 * EXTENTS_MAX;
/// Bytes of one batch, at most: an append travels as one message and one log entry.
pub const BATCH_BYTES_MAX: usize = 4 << 20;
/// Records of one batch, at most.
pub const RECORDS_MAX: usize = 65_536;
/// The positions of a log lie below this, so that no sum of two overflows.
pub const POSITION_MAX: u64 = 1 << 62;
/// Positions that a sequencer hands out at one asking, at most: those that are not written must be filled.
pub const POSITIONS_AT_ONCE_MAX: u64 = 4_096;
/// Positions before an entry that a single read looks through for an earlier copy of it, at most.
pub const LOOK_BACK_MAX: u64 = 1_024;
/// Sequences of one client that are remembered one by one, at most. A client has fewer appends under way.
pub const DUPLICATES_WINDOW: usize = 1_024;
/// Clients whose sequences are remembered, at most; whoever appended longest ago is forgotten first.
pub const DUPLICATES_CLIENTS_MAX: usize = 100_000;
