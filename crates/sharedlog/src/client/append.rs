//! An append: a position, then the entry down its chain.

use base::canary::{Bug, planted};

use crate::client::filling::{Filled, Filling};
use crate::client::task::{Next, View};
use crate::client::{Answer, Error};
use crate::limits::POSITION_MAX;
use crate::sequencer::{Named, Placed};
use crate::unit::{Command, Reply, Request};
use crate::{Data, Entry, Kept, Kind, Position, ProjectionEpoch, UnitId};

/// An append under way.
#[derive(Debug)]
pub(super) struct Append {
    data: Data,
    /// No attempt at it lies below.
    since: Option<Position>,
    /// Another process may append it, too: it has one place in an epoch.
    is_shared: bool,
    /// Something else was decided at every position up to this one that it was given, in that epoch. A newer one may
    /// start below.
    decided: Option<(ProjectionEpoch, Position)>,
    stage: Stage,
    pub(super) asked: Option<UnitId>,
}

#[derive(Debug)]
enum Stage {
    /// A position is wanted.
    Wanting,
    Writing(Writing),
    /// The projection was replaced, or the head has lost what it holds: is the entry there, or can it not come there
    /// any more? The position was given in that epoch.
    Resolving(Filling, ProjectionEpoch),
    /// It lies there since an epoch before, or did until it was trimmed: the head has taken it, as the sequencer of
    /// that epoch says.
    Remembered(Filling, ProjectionEpoch),
    Ended(Result<Answer, Error>),
}

#[derive(Debug)]
struct Writing {
    position: Position,
    /// The epoch that the position was given in: it is written in no other.
    epoch: ProjectionEpoch,
    /// So many units hold the entry.
    count: usize,
    /// The head was asked and may hold the entry.
    in_doubt: bool,
    /// An asking of the head had no answer.
    lost: bool,
    /// The next unit has the entry, and has lost it.
    mends: bool,
    /// The head has taken it, as the sequencer says, and may have given it up since. What lies there on other units is
    /// the same append, be it another attempt's.
    is_remembered: bool,
}

impl Writing {
    fn at(position: Position, epoch: ProjectionEpoch, is_remembered: bool) -> Self {
        Self { position, epoch, count: 0, in_doubt: false, lost: false, mends: false, is_remembered }
    }
}

impl Append {
    pub(super) fn new(data: Data, since: Option<Position>, is_shared: bool) -> Self {
        Self { data, since, is_shared, decided: None, stage: Stage::Wanting, asked: None }
    }

    /// What the sequencer must know of it, if it may be appended elsewhere, too.
    pub(super) fn named(&self) -> Option<(Named, ProjectionEpoch)> {
        let (stamp, oldest_open) = (self.data.stamp, self.data.oldest_open);
        let decided = self.decided.map(|(_, position)| position);
        let decided_in = self.decided.map_or(ProjectionEpoch(0), |(epoch, _)| epoch);
        self.is_shared.then_some((Named { stamp, oldest_open, decided, since: self.since }, decided_in))
    }

    /// Its client has said that it is decided: whoever tries it still is not waited for.
    pub(super) fn called_decided(&mut self) {
        if matches!(self.stage, Stage::Wanting) {
            self.stage = Stage::Ended(Err(Error::Decided));
        }
    }

    /// It may lie where nobody knows any more what did.
    pub(super) fn called_forgotten(&mut self, known_from: Position) {
        if matches!(self.stage, Stage::Wanting) {
            let since = self.since.unwrap_or_default();
            self.stage = Stage::Ended(Err(Error::TooLate { since, known_from }));
        }
    }

    /// What it says of its attempts can't be true: the log ends below.
    pub(super) fn called_beyond(&mut self, next: Position) {
        if let (Stage::Wanting, Some(since)) = (&self.stage, self.since) {
            self.stage = Stage::Ended(Err(Error::Ahead { since, tail: next }));
        }
    }

    /// Something else has this position: another is wanted.
    fn wants_another(&mut self, than: Position, given_in: ProjectionEpoch) {
        self.decided = self.decided.max(Some((given_in, than)));
        self.stage = Stage::Wanting;
    }

    /// A position has come.
    pub(super) fn given(&mut self, position: Position, epoch: ProjectionEpoch) {
        if matches!(self.stage, Stage::Wanting) {
            self.stage = Stage::Writing(Writing::at(position, epoch, false));
        }
    }

    /// The place that it has, whoever appends it.
    pub(super) fn placed(&mut self, placed: Placed, epoch: ProjectionEpoch, start: Position) {
        // What it writes, or has written, stays as it is.
        if !matches!(self.stage, Stage::Wanting) {
            return;
        }
        if placed.position < start && start.0 < POSITION_MAX {
            self.stage = Stage::Remembered(Filling::new(placed.position), epoch);
            return;
        }
        self.data.oldest_open = self.data.oldest_open.min(placed.oldest_open);
        self.given(placed.position, epoch);
    }

    /// Goes on in the newest projection.
    fn renew(&mut self, view: &View) {
        let newest = view.projection.epoch;
        match &mut self.stage {
            Stage::Writing(writing) if writing.epoch != newest => {
                if planted(Bug::OldPositionWritten) {
                    (writing.epoch, writing.count) = (newest, 0);
                } else if writing.in_doubt && !writing.is_remembered {
                    self.stage = Stage::Resolving(Filling::new(writing.position), writing.epoch);
                } else {
                    self.stage = Stage::Wanting;
                }
            }
            // There may be another head, which has not taken it.
            Stage::Remembered(_, told_in) if *told_in < newest => self.stage = Stage::Wanting,
            _ => {}
        }
        if let Stage::Resolving(filling, given_in) = &self.stage
            && *given_in < newest
            && (filling.position >= view.projection.start || planted(Bug::RetryUnresolved))
        {
            // No unit of the newer projection holds anything there, or takes it from us.
            self.stage = Stage::Wanting;
        }
    }

    pub(super) fn next(&mut self, view: &View) -> Next {
        self.renew(view);
        match &mut self.stage {
            Stage::Wanting => {
                self.asked = None;
                Next::Position
            }
            Stage::Writing(writing) => {
                let position = writing.position;
                let Some(chain) = view.projection.chain_of(position) else {
                    // What was given out lies in the last extents: that one is of a time before, and was trimmed whole.
                    return Next::Done(Err(Error::Forgotten { position }));
                };
                let Some(unit) = chain.get(writing.count) else {
                    return Next::Done(Ok(Answer::Appended(position)));
                };
                writing.in_doubt = true;
                self.asked = Some(*unit);
                let entry = Entry::Data(self.data.clone());
                let epoch = writing.epoch;
                if writing.mends {
                    let kept = Kept::Entry(entry);
                    return Next::Unit(*unit, Request::Command(Command::Mend { position, kept }));
                }
                Next::Unit(*unit, Request::Command(Command::Write { epoch, position, entry }))
            }
            Stage::Resolving(filling, given_in) => {
                let position = filling.position;
                let ended = match filling.next(view.projection) {
                    Ok((unit, request)) => {
                        self.asked = Some(unit);
                        return Next::Unit(unit, request);
                    }
                    Err(Filled::Entry(entry)) if entry.stamp() == Some(self.data.stamp) => {
                        Ok(Answer::Appended(position))
                    }
                    Err(Filled::Entry(_)) => {
                        let given_in = *given_in;
                        self.wants_another(position, given_in);
                        self.asked = None;
                        return Next::Position;
                    }
                    Err(Filled::Trimmed(_) | Filled::Lost) => Err(Error::Forgotten { position }),
                    Err(Filled::Damaged) => return Next::Until(view.now + view.pause),
                    Err(Filled::Conflict) => Err(Error::Conflict { position }),
                };
                Next::Done(ended)
            }
            Stage::Remembered(filling, told_in) => {
                let (position, told_in) = (filling.position, *told_in);
                Next::Done(match filling.next(view.projection) {
                    Ok((unit, request)) => {
                        self.asked = Some(unit);
                        return Next::Unit(unit, request);
                    }
                    Err(Filled::Entry(entry)) if entry.stamp() == Some(self.data.stamp) => {
                        Ok(Answer::Appended(position))
                    }
                    // It was trimmed by itself: the whole chain had it.
                    Err(Filled::Trimmed(mark)) if mark <= position => Ok(Answer::Appended(position)),
                    // Who else of its chain knows of it? What its client had decided when it was made isn't known:
                    // whoever hasn't got it is told the least.
                    Err(Filled::Trimmed(_)) => {
                        self.data.oldest_open = self.data.stamp.least_open();
                        self.stage = Stage::Writing(Writing::at(position, told_in, true));
                        return self.next(view);
                    }
                    Err(Filled::Entry(_)) => {
                        self.wants_another(position, told_in);
                        self.asked = None;
                        return Next::Position;
                    }
                    Err(Filled::Conflict) => Err(Error::Conflict { position }),
                    Err(Filled::Lost) => Err(Error::Forgotten { position }),
                    Err(Filled::Damaged) => return Next::Until(view.now + view.pause),
                })
            }
            Stage::Ended(outcome) => Next::Done(outcome.clone()),
        }
    }

    pub(super) fn heard(&mut self, reply: Reply) {
        let writing = match &mut self.stage {
            Stage::Resolving(filling, _) | Stage::Remembered(filling, _) => return filling.heard(reply),
            Stage::Writing(writing) => writing,
            Stage::Wanting | Stage::Ended(_) => return,
        };
        let (position, epoch) = (writing.position, writing.epoch);
        match reply {
            Reply::Written => (writing.count, writing.mends) = (writing.count + 1, false),
            // The head had it, so that nothing else is there.
            Reply::Occupied { by: Kind::Data } | Reply::Damaged if writing.is_remembered => writing.count += 1,
            // The one before it has our entry: so had this one.
            Reply::Damaged if writing.count > 0 => writing.mends = true,
            // Ours, or another's: who has it after the head?
            Reply::Damaged => self.stage = Stage::Resolving(Filling::new(position), writing.epoch),
            // It may be ours, as another process has put it there.
            Reply::Occupied { by: Kind::Data } if writing.count == 0 && self.is_shared => {
                self.stage = Stage::Resolving(Filling::new(position), writing.epoch);
            }
            // Somebody has filled the position: it is decided, and not for us.
            Reply::Occupied { .. } if writing.count == 0 => self.wants_another(position, epoch),
            Reply::Occupied { .. } => self.stage = Stage::Ended(Err(Error::Conflict { position })),
            // It was trimmed by itself, which fills first: the whole chain had it.
            Reply::Took { mark } if mark <= position => self.stage = Stage::Ended(Ok(Answer::Appended(position))),
            Reply::Trimmed { mark } if writing.count > 0 && mark <= position => {
                self.stage = Stage::Ended(Ok(Answer::Appended(position)));
            }
            // It remembers the append, as all must before it is told to lie there: any of them may be the next head.
            Reply::Took { .. } => (writing.count, writing.mends) = (writing.count + 1, false),
            // Nobody else tries it: it is enough that none can take anything there any more.
            Reply::Trimmed { .. } if writing.count > 0 && (!self.is_shared || planted(Bug::HeadAloneRemembers)) => {
                (writing.count, writing.mends) = (writing.count + 1, false);
            }
            // It may have lain there, by our hand or another's, and was readers' once then.
            Reply::Trimmed { .. }
                if writing.count > 0 || writing.lost || self.is_shared && !planted(Bug::TrimmedPlaceLeft) =>
            {
                self.stage = Stage::Ended(Err(Error::Forgotten { position }));
            }
            // Nobody else knows of it.
            Reply::Trimmed { .. } => self.wants_another(position, epoch),
            _ => {}
        }
    }

    /// There was no answer: the entry may be there all the same.
    pub(super) fn unanswered(&mut self) {
        if let Stage::Writing(writing) = &mut self.stage {
            writing.lost = true;
        }
    }

    /// What a client must not do: takes a unit that is sealed for one that has taken the entry.
    pub(super) fn heeds_no_seal(&mut self) -> bool {
        match &mut self.stage {
            Stage::Writing(writing) if writing.count > 0 && planted(Bug::SealIgnored) => {
                writing.count += 1;
                true
            }
            _ => false,
        }
    }

    pub(super) fn out_of_time(&self) -> Error {
        match &self.stage {
            Stage::Writing(Writing { position, in_doubt: true, .. }) => Error::Unknown { since: *position },
            Stage::Resolving(filling, _) | Stage::Remembered(filling, _) => Error::Unknown { since: filling.position },
            _ => Error::OutOfTime,
        }
    }
}
