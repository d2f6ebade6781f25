//! Planted bugs: each breaks one part of one guarantee (`docs/guarantees.md`), and the exhaustive search or the
//! simulator must find each of them. Without the Cargo feature `canary`, [`planted`] is the constant `false`, and the
//! binary contains none of the bugs.
//!
//! The active bug is thread-local: a simulation runs in one thread and plants at most one bug.

macro_rules! bugs {
    ($($bug:ident($rule:literal, $what:literal),)*) => {
        /// A bug that can be planted.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Bug {
            $(#[doc = $what] $bug,)*
        }

        impl Bug {
            /// All bugs, in order of the guarantees that they break.
            pub const ALL: &'static [Self] = &[$(Self::$bug,)*];

            /// The name, as printed and as given on the command line.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Self::$bug => stringify!($bug),)* }
            }

            /// The number of the guarantee that it breaks; 0 for "acknowledged means forced".
            #[must_use]
            pub fn guarantee(self) -> u8 {
                match self { $(Self::$bug => $rule,)* }
            }

            /// A description of the faulty behavior.
            #[must_use]
            pub fn description(self) -> &'static str {
                match self { $(Self::$bug => $what,)* }
            }
        }
    };
}

bugs! {
    AcknowledgeBeforeForce(0, "a follower acknowledges an entry before its own log is forced"),
    RestampReproposed(1, "a new leader gives the entries it re-proposes LSNs of its own epoch"),
    NoPredecessorCheck(1, "a follower accepts an entry without looking at its predecessor"),
    CommitOldEpochByCount(1, "replicas of an older epoch's entry count as commit, before the leader's barrier"),
    ApplyPastMatched(1, "a follower applies up to the commit point, matched with this leader or not"),
    EarlyOutlivesReign(1, "a buffered out-of-order proposal is accepted in a later epoch"),
    RelayBelieved(1, "a follower takes what another hands on for its leader's, whomever it follows"),
    CommitFromOldLeader(1, "a follower takes a commit point from a leader of an older epoch"),
    PromiseNotForced(2, "a promise leaves before it is forced"),
    PromiseTwice(2, "one epoch is promised to two candidates"),
    CandidateNotForced(2, "a candidate counts its own promise before it is forced"),
    PrepareIgnoresVote(2, "a prepare is granted while the lease vote for another leader lives"),
    VoteAfterRestart(2, "a restarted replica promises at once, having forgotten its lease vote"),
    AnswerBeforeBarrier(2, "a new leader serves reads before its barrier is committed"),
    LeaseOfMinority(2, "a leader counts itself as a quorum of lease votes"),
    BeatVouchedBlindly(2, "a follower vouches for a beat's cohorts, whoever leads them by now"),
    BeatRefusalsIgnored(2, "a beat's answer counts as a vote of every cohort in it, though some were refused"),
    ReadAfterRelease(3, "a leader goes on reading in the epoch it has released"),
    ReadViewNotWithdrawn(3, "a leader that gives up its lead leaves its published view as it is"),
    RestartedLeaderGoesOn(3, "a restarted leader goes on proposing in its old epoch"),
    LastLsnFromLogOnly(3, "the last LSN after a restart is the log's, whatever the checkpoint holds"),
    ReplayByEpoch(5, "replay compares epochs to decide which record lives"),
    HeldEntryLoggedAgain(5, "an entry that is held already is logged again"),
    TruncateToCommitPoint(5, "a follower of a new leader cuts its log back to its commit point"),
    TruncationLoggedAgain(5, "a cut is logged again after entries that came since"),
    SegmentsOutOfOrder(5, "a newer segment goes before an older one"),
    OldestNotForced(5, "a segment goes before the number of the new oldest is forced"),
    IdlePromiseForgotten(5, "the manifest that lets a segment go leaves out an idle cohort's promise"),
    TableNotForced(5, "a sorted table is named before its file is forced"),
    TableDirectoryNotForced(5, "a sorted table is named before its directory is forced"),
    BlankDiskJoins(6, "an empty disk under a known name is taken for the old replica"),
    NumberUsedTwice(6, "a blank disk joins under the number of a node that the cluster knows with another disk"),
    PromiseInOnePlace(6, "a promise leaves when only one copy of it is forced"),
    ManifestNotMended(6, "recovery leaves the lost or older copy of the manifest as it is"),
    DamagedTailCut(7, "a damaged last batch is taken for a torn one and cut, its echo ignored"),
    DamageSkipped(7, "damage inside the log is skipped in silence"),
    DoubtfulPromises(7, "a replica that doubts its log promises as if it were whole"),
    MembershipOnCommit(8, "a change of the membership takes effect once it is committed, not when it is appended"),
    MembershipBeforeBarrier(8, "a new leader changes the membership before an entry of its own epoch is committed"),
    TwoChangesAtOnce(8, "a leader changes the membership while the change before is not committed"),
    CandidateAcknowledges(8, "a candidate member's acknowledgements count toward the majority"),
    PromotedUnawares(8, "a candidate member is given a vote before its own log says that it is one"),
    FormerLifeHeard(8, "a replica that left and came back takes what was meant for the one that left, and its peers what that said"),
    LeaverStillVotes(8, "a node is gone from the roster while it is a member of the catalog's cohort"),
    LeaverLeftBehind(8, "a node is gone from the roster while a range counts on it"),
    FilterOnWholeKey(9, "a table's filter is made of whole keys, and asked for rows"),
    RecentOutlivesState(9, "memtables that were flushed answer for the state that took their place"),
    StaleBlockCached(9, "the cache answers for one table with another's block"),
    TableRemovedEarly(9, "a table is removed that no forced manifest names, but one on its way"),
    FlushOldestOnly(9, "a flush that was tried again leaves out what was frozen meanwhile"),
    CompactionLosesVersion(9, "a compaction loses the version with which it begins its next table"),
    TombstoneDroppedEarly(9, "a compaction drops a tombstone while another table holds what it deletes"),
    DedupeNotInCheckpoint(10, "checkpoints leave the sessions' outcomes out"),
    DedupeOnlyInFlight(10, "a retry is looked for among the proposals in flight only"),
    UnknownSessionExecuted(10, "a write of an unknown session is executed"),
    RetryTakesNewStamp(10, "a client's further attempt at a write carries a stamp of its own"),
    StampReused(10, "a client gives the number of a write that has ended to the next"),
    ExpiredRetryExecuted(10, "a client begins a write anew whose session has expired, though an attempt may have been carried out"),
    DoubtForgotten(10, "a client tells that nothing was done, though an attempt was lost"),
    ForgetfulVotes(11, "a restarted replica with a main-memory log counts as if it had forgotten nothing"),
    LossNotDeclared(11, "a majority that has forgotten leads on as if nothing were lost"),
    StateBeyondWinnerKept(11, "what a replica has committed counts as the leader's, though it was lost"),
    MemoryPromiseNotForced(11, "where entries needn't be forced, promises aren't either"),
    MembersForgotten(11, "a change of the members counts before disks have it"),
    StopMarkBeforeForce(11, "a clean stop is marked before the log is forced"),
    AnswerBeforeCommit(12, "a write is answered when the leader's own log is forced"),
    RefusalBeforeCommit(12, "a conditional write is refused from state that is not committed yet"),
    ConditionIgnoresUnderWay(12, "a condition is decided though writes of its row are in the log and not applied"),
    ViewCheckBeforeRead(12, "a local read assumes that a published view's lease is valid, without reading the clock"),
    ReadViewAfterReply(12, "a view is published after the answers to the writes that it holds"),
    LeaseCheckedBefore(12, "the lease is looked at before a read is evaluated, and not after"),
    LostLeadMeansFailed(12, "on losing the lead, pending writes are answered as not done"),
    ViewStampIsOwn(13, "a replica takes its own commit point for the view check's stamp"),
    LeaseFromReceipt(14, "a lease counts from the receipt of the vote, not from the sending of the request"),
    BeatFromReceipt(14, "the leases of cohorts at rest count from the receipt of the beat's answer"),
    GraceWithoutDrift(14, "the grace is as long as the lease, as if clocks ran alike"),
    SuspendedTimeNotCounted(14, "lease and grace are measured on a clock that stops with the machine"),
    TimelineGoesBack(15, "a restarted replica answers timeline reads before it has come as far as it had been"),
    AgeFromReceipt(15, "the age of a state counts from the receipt of what a leader sent"),
    AgeOfOldCommit(15, "the age of a state counts from when a commit point was told, though a newer one was known"),
    WatermarkIgnored(16, "a compaction drops versions that a read above the watermark asks for"),
    VersionFromWallClock(17, "a timestamp is the wall clock's, whatever came before"),
    TimestampIgnoresLog(17, "a new leader's timestamps start from its clock, not from its log"),
    TimestampIgnoresCheckpoint(17, "a replica that starts from a checkpoint forgets its last timestamp"),
    WallClockOutOfRange(17, "a clock reading outside the stated range is believed"),
    DropInMapOnly(19, "a table counts as dropped once the map says so, whatever its cohorts' logs hold"),
    SplitInMapOnly(19, "a tablet goes on to answer for the keys that its log has split off"),
    SplitForgetsSessions(10, "a range that is split off begins without the sessions of the range it was part of"),
    SplitForgetsTimestamp(17, "a range that is split off begins without the last timestamp of the range it was part of"),
    SplitUnnamed(19, "a checkpoint passes a split before what was split off is named in the manifest"),
    BegunBeforeParent(19, "a range begins with nothing where the range that it is split off from hasn't begun yet"),
    CompactionAheadOfSplit(19, "a compaction drops what was split off though the checkpoint beside it is of before"),
    FillFromTail(20, "a fill begins at the tail of a chain"),
    FillOverwrites(20, "a fill puts junk over what the head of a chain holds"),
    FeedLossIgnored(20, "a follower ignores that a part of its feed was lost"),
    FeedFromHead(20, "a follower is fed by the head of a chain"),
    ReadAtHead(20, "a read is answered by the head of a chain"),
    SealNotForced(20, "a unit answers a seal before it is forced"),
    SealForgotten(20, "a unit forgets at a restart how far it is sealed"),
    SealIgnored(20, "a writer goes on in the old projection after a unit told it of a newer one"),
    ChainUnsealed(20, "a projection is installed though one chain has no sealed unit"),
    OldValuesReturn(20, "a unit that was left out returns with its old values"),
    CopyNotWhole(20, "a copied unit stands in a chain before it is whole"),
    TailUnchecked(20, "the tail is answered without a check that the sequencer was not replaced"),
    SequencerReborn(20, "a restarted sequencer goes on as the one that its projection names"),
    OldPositionWritten(20, "a writer writes the position that an older sequencer gave it in a newer projection"),
    RetryUnresolved(20, "a writer takes another position before it knows what came of the first"),
    TrimmedPlaceLeft(20, "an append whose position is trimmed, and may have held it, takes another"),
    LeaseNotWaited(20, "a projection is replaced before the lease of its sequencer has ended"),
    AnswerToFormerProcess(20, "a process takes what a sequencer answered to the one before it on its node"),
    DuplicateDelivered(20, "a reader delivers the second entry of a stamp, too"),
    TwoOnOneNode(20, "two units of one node come to stand in one chain"),
    OldTailCounts(20, "a position counts as given out by a tail that was told in an older epoch"),
    StripesOverlap(20, "a unit counts positions in the stripe that it was told of last, not in that of their extent"),
    BegunOnAnotherDisk(20, "a unit begins on a disk that is not the one its number was given for"),
    RowAtHead(20, "many positions at one time are read at the heads of their chains"),
    DamageCountsAsWhole(20, "a unit that has lost a value says that it holds all"),
    TrimmedBeforeKept(20, "the log is trimmed up to a snapshot whose pointer is not known to lie in it yet"),
    PartInDoubtNamed(20, "a snapshot's pointer names a part that may not lie in the log"),
    TableNotInSnapshot(20, "a snapshot is kept without the table of the appends that were seen before it"),
    ExpiryIgnoresTouch(21, "a session expires though it was touched after the expiry was proposed"),
    ExpirerCountsStalls(21, "the expirer counts the time in which the log took no appends"),
    StaleServerAnswers(21, "a server answers though the last touch of the session that it knows of is old"),
    EphemeralsOutliveExpiry(21, "the ephemeral nodes of a session stay when it expires"),
    SnapshotMissesSession(21, "a snapshot of the tree leaves a session out"),
    LateRequestOfMovedSession(22, "a request takes effect after its session has moved to another server"),
    BatchOutOfOrder(22, "a server's batch is applied before the one that it appended before it"),
    SnapshotMissesEarlyBatch(22, "a snapshot leaves out a batch that waits for the one before it"),
    ReadOvertakesWrite(22, "a read does not wait for the session's writes before it"),
    DuplicateBatchApplied(28, "a batch that lies in the log twice is applied twice"),
    OwnBatchEarly(28, "a server applies its own batch before the positions in front of it"),
    OwnDuplicateSkipped(28, "a server does not apply the position of its own batch that it has applied at another one"),
    IdentitiesUnbounded(28, "the identities of a client may make a batch larger than an entry of the log"),
    LateSnapshotEventCounts(28, "an event about a cancelled snapshot counts for the one in progress"),
    WatchAfterReply(28, "a client is told of a change after a reply that shows it"),
    SyncAnsweredAtOnce(28, "a sync is answered without asking for the log's tail"),
    UnreachedTailReplaced(28, "the tail that syncs wait for is replaced by later ones before it is reached"),
    TurnOutputUnbounded(28, "all queued replies are sent in one turn, however large they are"),
    MultiKeepsFirst(28, "a multi that fails leaves what its first operations did"),
    FailedReadIsHole(28, "a position whose read has failed is taken for a hole"),
    DoubtfulAppendDone(28, "an append that may be in the log is reported as done"),
    ZnodesKeptEarly(28, "a snapshot of the znodes is reported as kept before its parts are in the log"),
    ForceRetried(25, "a failed force is tried again and believed"),
    CompletionAfterError(25, "the log publishes a completion after a failed force"),
}

impl Bug {
    /// The bug with this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|bug| bug.name() == name)
    }
}

#[cfg(feature = "canary")]
mod active {
    use super::Bug;
    use std::cell::Cell;

    thread_local! {
        static ACTIVE: Cell<Option<Bug>> = const { Cell::new(None) };
    }

    /// Plants `bug` in this thread, or removes the current one.
    pub fn plant(bug: Option<Bug>) {
        ACTIVE.set(bug);
    }

    /// Whether `bug` is planted in this thread.
    #[must_use]
    pub fn planted(bug: Bug) -> bool {
        ACTIVE.get() == Some(bug)
    }
}

#[cfg(feature = "canary")]
pub use active::{plant, planted};

/// Whether `bug` is planted: never, in a build without the feature `canary`.
#[cfg(not(feature = "canary"))]
#[inline(always)]
#[must_use]
pub const fn planted(_bug: Bug) -> bool {
    false
}

/// Whether this build contains the planted bugs.
pub const COMPILED_IN: bool = cfg!(feature = "canary");
