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

            /// The number of the guarantee that it breaks; 0 for "acknowledged means synced".
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
    AcknowledgeBeforeForce(0, "a follower acknowledges an entry before its own log is synced"),
    RestampReproposed(1, "a new leader assigns LSNs of its own epoch to the entries that it re-proposes"),
    NoPredecessorCheck(1, "a follower accepts an entry without checking its predecessor's LSN"),
    CommitOldEpochByCount(1, "a leader commits an older epoch's entry by counting replicas before its barrier commits"),
    ApplyPastMatched(1, "a follower applies entries up to the commit point that it has not matched with this leader"),
    EarlyOutlivesReign(1, "a proposal in the reorder buffer is accepted in a later epoch"),
    CommitFromOldLeader(1, "a follower accepts a commit point from a leader of an older epoch"),
    PromiseNotForced(2, "a promise is sent before it is synced"),
    PromiseTwice(2, "an epoch is promised to two candidates"),
    CandidateNotForced(2, "a candidate counts its own promise before it is synced"),
    PrepareIgnoresVote(2, "a prepare is granted while a lease vote for another leader is valid"),
    VoteAfterRestart(2, "a restarted replica promises immediately, although its forgotten lease vote may be valid"),
    AnswerBeforeBarrier(2, "a new leader serves reads before its barrier is committed"),
    LeaseOfMinority(2, "a leader counts its own vote as a quorum of lease votes"),
    BeatVouchedBlindly(2, "a follower votes for all cohorts of a heartbeat batch without checking their leaders"),
    BeatRefusalsIgnored(2, "a heartbeat response counts as a vote of every cohort in the batch, also of refused ones"),
    ReadAfterRelease(3, "a leader serves reads in an epoch that it has released"),
    ReadViewNotWithdrawn(3, "a leader that steps down does not withdraw its published read view"),
    RestartedLeaderGoesOn(3, "a restarted leader continues to propose in its old epoch"),
    LastLsnFromLogOnly(3, "a restarted replica ignores its checkpoint when it determines its last LSN"),
    ReplayByEpoch(5, "replay keeps the record with the higher epoch, not the later record"),
    HeldEntryLoggedAgain(5, "an entry that is already in the log is logged again"),
    TruncateToCommitPoint(5, "a follower truncates its log to its own commit point when it follows a new leader"),
    TruncationLoggedAgain(5, "a truncation is logged again after entries that followed it"),
    SegmentsOutOfOrder(5, "a log segment is deleted before an older one"),
    OldestNotForced(5, "a log segment is deleted before the number of the new oldest segment is synced"),
    IdlePromiseForgotten(5, "a log segment is deleted although the manifest lacks an idle cohort's promise"),
    TableNotForced(5, "the manifest names an SSTable before its file is synced"),
    TableDirectoryNotForced(5, "the manifest names an SSTable before its directory is synced"),
    BlankDiskJoins(6, "an empty disk under a known node id is accepted as the former replica"),
    NumberUsedTwice(6, "an empty disk joins under the id of a node that the cluster knows with another disk"),
    RolledBackDiskAccepted(6, "a disk that was rolled back to an older copy is accepted as the same replica"),
    PromiseInOnePlace(6, "a promise is sent when only one of its two copies is synced"),
    ManifestNotMended(6, "recovery does not restore a lost or older copy of the manifest"),
    DamagedTailCut(7, "recovery truncates a damaged last batch as a torn write although an echo confirms it"),
    DamageSkipped(7, "recovery skips damage inside the log without reporting it"),
    DoubtfulPromises(7, "a replica with a doubtful log promises as if its log were complete"),
    MembershipOnCommit(8, "a membership change takes effect when it is committed, not when it is appended"),
    MembershipBeforeBarrier(8, "a new leader changes the membership before an entry of its own epoch is committed"),
    TwoChangesAtOnce(8, "a leader changes the membership before the previous change is committed"),
    CandidateAcknowledges(8, "a learner's acknowledgements count toward the majority"),
    PromotedUnawares(8, "a learner is promoted before its own log contains its addition"),
    FormerLifeHeard(8, "a removed and re-added replica accepts, and is sent, messages of its former membership"),
    LeaverStillVotes(8, "a node is removed from the roster while it is a member of the catalog's cohort"),
    LeaverLeftBehind(8, "a node is removed from the roster while it holds a replica of a range"),
    FilterOnWholeKey(9, "an SSTable's filter contains whole keys, but is queried by row"),
    RecentOutlivesState(9, "retained flushed memtables serve reads after the state was replaced"),
    StaleBlockCached(9, "the block cache returns a block of another SSTable"),
    TableRemovedEarly(9, "an SSTable is deleted while a manifest that is being written names it"),
    FlushOldestOnly(9, "a retried flush omits the memtables that were frozen in the meantime"),
    CompactionLosesVersion(9, "a compaction loses the first version of each further output SSTable"),
    TombstoneDroppedEarly(9, "a compaction drops a tombstone while another SSTable contains versions that it deletes"),
    DedupeNotInCheckpoint(10, "checkpoints omit the outcomes of the sessions' writes"),
    DedupeOnlyInFlight(10, "a retry is deduplicated only against proposals in flight"),
    WriterEvicted(10, "a full session table evicts idle writers before sessions that never wrote"),
    UnknownSessionExecuted(10, "a write of an unknown session is executed"),
    RetryTakesNewStamp(10, "a client retries a write with a new sequence number"),
    StampReused(10, "a client reuses the sequence number of a completed write"),
    ExpiredRetryExecuted(10, "a client retries a write in a new session although an earlier attempt may have succeeded"),
    DoubtForgotten(10, "a client reports that a write was not executed although the outcome of an attempt is unknown"),
    ForgetfulVotes(11, "a restarted replica with a main-memory log votes as if its log were complete"),
    LossNotDeclared(11, "a majority that lost main-memory entries continues without declaring the loss"),
    StateBeyondWinnerKept(11, "a replica keeps committed state beyond the new leader's log after a data loss"),
    MemoryPromiseNotForced(11, "promises of a cohort with a main-memory log are not synced"),
    MembersForgotten(11, "a membership change of a main-memory cohort counts before it is synced"),
    StopMarkBeforeForce(11, "a clean shutdown is recorded before the log is synced"),
    AnswerBeforeCommit(12, "a write is acknowledged when only the leader's own log is synced"),
    RefusalBeforeCommit(12, "a conditional write is rejected because of state that is not committed yet"),
    ConditionIgnoresUnderWay(12, "a condition is evaluated without the logged, unapplied writes of its row"),
    ViewCheckBeforeRead(12, "a local read assumes that a published view's lease is valid, without reading the clock"),
    ReadViewAfterReply(12, "a read view is published after the replies to the writes that it contains"),
    LeaseCheckedBefore(12, "the lease is checked before a read is evaluated, and not afterwards"),
    LostLeadMeansFailed(12, "a leader that loses its lead reports pending writes as not executed"),
    ViewStampIsOwn(13, "a replica uses its own commit point as the read index"),
    LeaseFromReceipt(14, "a lease starts when the vote is received, not when the request was sent"),
    BeatFromReceipt(14, "the leases of quiescent cohorts start when the heartbeat response is received"),
    GraceWithoutDrift(14, "the grace period equals the lease, without a margin for clock drift"),
    SuspendedTimeNotCounted(14, "leases and grace periods use a clock that stops while the machine is suspended"),
    TimelineGoesBack(15, "a restarted replica serves timeline reads before it has reached its former position"),
    AgeFromReceipt(15, "staleness is measured from the receipt of the leader's message"),
    AgeOfOldCommit(15, "staleness is measured from an announced commit point although a newer one was known"),
    WatermarkIgnored(16, "a compaction drops versions that reads above the watermark need"),
    WatermarkPassesHold(16, "a leader raises the watermark above the timestamp of a hold"),
    VersionFromWallClock(17, "a timestamp is the wall clock's reading, even if it is below an earlier timestamp"),
    TimestampIgnoresLog(17, "a new leader's timestamps start from its clock, without regard to its log"),
    TimestampIgnoresCheckpoint(17, "a replica that starts from a checkpoint ignores the checkpoint's last timestamp"),
    WallClockOutOfRange(17, "a clock reading outside the allowed range is accepted"),
    CommitNotValidated(18, "a transaction commits although a version that it has read has been replaced"),
    ReadIgnoresPrepared(18, "a read does not wait for a prepared transaction that may change its result"),
    ReadFixedEarly(18, "a strong read that waits for prepared transactions is answered as of the time before they commit"),
    StrongAsOfWhilePrepared(18, "a strong read states the timestamp of a state that lacks a prepared transaction"),
    PreparedReadsNotLocked(18, "a prepared transaction does not lock what it has only read"),
    BlindWriteOverPrepared(18, "a blind write does not wait for a prepared transaction that writes the row"),
    CommitBelowPrepare(18, "a commit's timestamp may be below that of a participant's prepare"),
    ReaderNotPrepared(18, "a range in which a transaction has only read does not prepare"),
    AbortAfterCommit(18, "an abort that arrives after the commit counts"),
    AbortNotRecorded(18, "a transaction that was reported as aborted can still be committed"),
    DecisionForgottenEarly(18, "a coordinator forgets a commit before all participants have resolved it"),
    SplitWhilePrepared(18, "a range is split while a transaction is prepared in it"),
    PreparedLocksLate(18, "a new leader admits changes before it holds the locks of prepared transactions"),
    CommitExecutedTwice(18, "a commit that is sent twice is executed twice"),
    ResolveBelowCommit(18, "the entry that resolves a transaction may have a lower timestamp than its commit"),
    DoubtMeansAbort(18, "a participant in doubt aborts by itself"),
    PrepareNotInCheckpoint(18, "a checkpoint omits prepared transactions"),
    NoCommitWait(18, "an entry is committed before its timestamp has passed"),
    DropInMapOnly(19, "a table counts as dropped when the catalog says so, before its cohorts have logged the drop"),
    SplitInMapOnly(19, "a tablet continues to serve keys that its log has split off"),
    SplitForgetsSessions(10, "a range that is split off starts without the sessions of its parent"),
    SplitForgetsTimestamp(17, "a range that is split off starts without the last timestamp of its parent"),
    SplitUnnamed(19, "a checkpoint advances past a split before the manifest names the new range"),
    BegunBeforeParent(19, "a range starts empty although the replica of its parent has not reached the split yet"),
    CompactionAheadOfSplit(19, "a compaction drops split-off keys while the checkpoint is older than the split"),
    FillFromTail(20, "a hole fill starts at the tail of a chain"),
    FillOverwrites(20, "a hole fill overwrites a value at the head of a chain"),
    FeedLossIgnored(20, "a subscriber ignores the loss of a part of its feed"),
    FeedFromHead(20, "a subscriber is fed by the head of a chain"),
    ReadAtHead(20, "a read is served by the head of a chain"),
    SealNotForced(20, "a unit acknowledges a seal before it is synced"),
    SealForgotten(20, "a unit forgets its sealed epoch at a restart"),
    SealIgnored(20, "a writer continues in the old projection after a unit rejected its epoch as sealed"),
    ChainUnsealed(20, "a projection is installed although no unit of one chain is sealed"),
    OldValuesReturn(20, "a unit that was removed returns with its old values"),
    CopyNotWhole(20, "a copied unit joins a chain before the copy is complete"),
    TailUnchecked(20, "the tail is returned without a check that the sequencer was not replaced"),
    SequencerReborn(20, "a restarted sequencer continues under the identity in its projection"),
    OldPositionWritten(20, "a writer writes a position from an older sequencer in a newer projection"),
    RetryUnresolved(20, "a writer takes another position before the outcome of the first one is known"),
    TrimmedPlaceLeft(20, "an append takes another position although its first, now trimmed, may have contained it"),
    LeaseNotWaited(20, "a projection is replaced before the lease of its sequencer has expired"),
    AnswerToFormerProcess(20, "a process accepts a sequencer's reply to the previous process on its node"),
    DuplicateDelivered(20, "a reader delivers a second entry with the same stamp"),
    TwoOnOneNode(20, "a chain contains two units of one node"),
    OldTailCounts(20, "a tail from an older epoch counts as proof that a position was assigned"),
    StripesOverlap(20, "a unit counts positions by its latest stripe, not by the stripe of their extent"),
    BegunOnAnotherDisk(20, "a unit starts on a disk other than the one that its number was assigned to"),
    RowAtHead(20, "a range read is served by the heads of the chains"),
    DamageCountsAsWhole(20, "a unit that has lost a value reports that it is complete"),
    TrimmedBeforeKept(20, "the log is trimmed up to a snapshot before its pointer is known to be in the log"),
    PartInDoubtNamed(20, "a snapshot's pointer names a part that may be missing from the log"),
    TableNotInSnapshot(20, "a snapshot omits the stamp table of the earlier appends"),
    ExpiryIgnoresTouch(21, "a session expires although it was touched after the expiry was proposed"),
    ExpirerCountsStalls(21, "the expiry timer includes the time during which the log accepted no appends"),
    StaleServerAnswers(21, "a server replies although the last touch of the session that it has applied is too old"),
    EphemeralsOutliveExpiry(21, "the ephemeral nodes of a session remain when it expires"),
    SnapshotMissesSession(21, "a snapshot of the tree omits a session"),
    LateRequestOfMovedSession(22, "a request takes effect after its session has moved to another server"),
    BatchOutOfOrder(22, "a server's batch is applied before an earlier batch of the same server"),
    SnapshotMissesEarlyBatch(22, "a snapshot omits a batch that waits for an earlier one"),
    ReadOvertakesWrite(22, "a read does not wait for the earlier writes of its session"),
    DuplicateBatchApplied(28, "a batch that is in the log twice is applied twice"),
    OwnBatchEarly(28, "a server applies its own batch before the positions ahead of it"),
    OwnDuplicateSkipped(28, "a server skips the position of a duplicate of its own batch"),
    IdentitiesUnbounded(28, "a client's identities can make a batch exceed the maximum size of a log entry"),
    LateSnapshotEventCounts(28, "an event of a cancelled snapshot is attributed to the current one"),
    WatchAfterReply(28, "a watch event is sent after a reply that shows the change"),
    SyncAnsweredAtOnce(28, "a sync is acknowledged without a tail check"),
    UnreachedTailReplaced(28, "the tail that syncs wait for is replaced by a later one before it is reached"),
    TurnOutputUnbounded(28, "all queued replies are sent in one turn, regardless of their size"),
    MultiKeepsFirst(28, "a failed multi leaves the effects of its first operations"),
    FailedReadIsHole(28, "a position whose read failed is treated as a hole"),
    DoubtfulAppendDone(28, "an append with an unknown outcome is reported as done"),
    ZnodesKeptEarly(28, "a snapshot of the znodes is reported as stored before its parts are in the log"),
    ViewWithdrawnAfterPetition(26, "a primary petitions before it has withdrawn its published read view"),
    PrimaryPastLease(26, "a primary serves reads although a secondary's lease has ended"),
    AppointedBeforeGrace(26, "a new primary does not wait until its lease vote for the former one has ended"),
    StaleVersionAccepted(26, "a replica accepts proposals of an older configuration version"),
    PrimaryGoesOn(26, "a restarted primary continues in its old configuration version"),
    DoubtfulAppointed(26, "a replica in doubt petitions and leads as a new primary"),
    CommitWithoutMember(27, "an update commits without a member that is still in the configuration"),
    CandidateWithGap(27, "a candidate is added although its log is not contiguous with the primary's"),
    JoiningNotCounted(27, "an update commits without a candidate whose addition may already be recorded"),
    NewPrimaryTruncates(27, "a new primary drops its prepared updates instead of committing them"),
    DiskRetryRestamped(29, "a gateway repeats a change of unknown outcome with a new stamp"),
    DiskStampIgnored(29, "a stripe executes a change again that it has executed with the same stamp"),
    DiskAttachKeepsSessions(29, "an exclusive attachment does not end the sessions of earlier ones"),
    DiskGenerationUnchecked(29, "a session is opened by the name of the holder, also if another one held the disk meanwhile"),
    HealUnchecked(29, "a damaged block is mended although it has been overwritten meanwhile"),
    DiskUnknownIsDone(29, "a gateway answers a change whose outcome is unknown"),
    DiskPartUnlocked(29, "a part of a block is completed without the block's latch"),
    DiskReadStale(29, "a read at any replica does not obtain a read index"),
    DiskZeroRounded(29, "zeroing a part of a block zeroes the whole block"),
    DiskTrimLost(29, "a trim of several blocks leaves the last one"),
    StreamChecksumUnseeded(29, "the checksum of a block does not include its number"),
    StreamChecksumIgnored(29, "the checksum of a block is not verified when it is read"),
    StreamCacheStale(29, "the cache keeps a block that a flush has overwritten"),
    StreamMapBeforeData(29, "a flush writes the map of a checkpoint without forcing the data first"),
    StreamIncompleteRead(29, "a received stream answers reads before the log completes it"),
    IndexNotUpdated(30, "an UPDATE does not change the entries of indexes"),
    UniqueNotRead(30, "a unique key is written without a read of the entry that would be in conflict"),
    OwnWriteMissed(30, "the reads of a transaction do not show its own writes"),
    SchemaFenceIgnored(30, "a transaction does not compare the token of its version of the schema with that in the store"),
    CascadeMissesChild(30, "the deletion of a row leaves the last of the rows that are interleaved in it"),
    BackfillMissesWrite(30, "statements do not maintain an index while it is being filled"),
    ForceRetried(25, "a failed sync is retried and its success trusted"),
    CompletionAfterError(25, "the log publishes a completion after a failed sync"),
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
