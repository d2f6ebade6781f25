//! An append: gets a position, then writes the entry down its chain.
//!
//! An append without a reply is resolved by its position. In the same epoch the entry is written again, and a unit that
//! holds it acknowledges it. After the projection was replaced, or if the head's value is damaged, the position is
//! filled first: it then holds the entry or never will, and only then does the append take another position. So a
//! client that does not crash appends an entry once.

use base::canary::{Bug, planted};

use crate::client::hole_fill::{Filled, HoleFill};
use crate::client::task::{Next, View};
use crate::client::{Error, LogReply};
use crate::unit::{Command, EncodedCommand, Reply, Request};
use crate::{Data, Entry, Kept, Position, ProjectionEpoch, UnitId};

/// An append in progress.
#[derive(Debug)]
pub(super) struct Append {
    data: Data,
    stage: Stage,
    pub(super) asked: Option<UnitId>,
}

#[derive(Debug)]
enum Stage {
    /// It needs a position.
    Wanting,
    Writing(Writing),
    /// The projection was replaced, or the head's value is damaged. Finds out whether the position holds the entry, and
    /// prevents a later write if not. The epoch is that of the position.
    Resolving(HoleFill, ProjectionEpoch),
    Ended(Result<LogReply, Error>),
}

#[derive(Debug)]
struct Writing {
    position: Position,
    /// The epoch of the position. It is written in no other.
    epoch: ProjectionEpoch,
    /// Number of units, from the head, that hold the entry.
    count: usize,
    /// A write was sent to the head, which may hold the entry.
    in_doubt: bool,
    /// The next unit holds the entry, but its value is damaged.
    repairs: bool,
    /// The write command for every unit of the chain.
    write: EncodedCommand,
}

impl Append {
    pub(super) fn new(data: Data) -> Self {
        Self { data, stage: Stage::Wanting, asked: None }
    }

    pub(super) fn given(&mut self, position: Position, epoch: ProjectionEpoch) {
        if matches!(self.stage, Stage::Wanting) {
            let write = write(epoch, position, &self.data);
            self.stage = Stage::Writing(Writing { position, epoch, count: 0, in_doubt: false, repairs: false, write });
        }
    }

    /// Continues in the newest projection.
    fn renew(&mut self, view: &View) {
        let newest = view.projection.epoch;
        match &mut self.stage {
            Stage::Writing(writing) if writing.epoch != newest => {
                if planted(Bug::OldPositionWritten) {
                    (writing.epoch, writing.count) = (newest, 0);
                    writing.write = write(newest, writing.position, &self.data);
                } else if writing.in_doubt {
                    self.stage = Stage::Resolving(HoleFill::new(writing.position), writing.epoch);
                } else {
                    self.stage = Stage::Wanting;
                }
            }
            _ => {}
        }
        if let Stage::Resolving(filling, given_in) = &self.stage
            && *given_in < newest
            && (filling.position >= view.projection.start || planted(Bug::RetryUnresolved))
        {
            // No unit of the newer projection holds an entry at this position, or accepts one from this client.
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
                    // The epoch's own positions are in its last extent.
                    debug_assert!(false, "position {position} of epoch {} has no chain in it", writing.epoch);
                    return Next::Done(Err(Error::Unknown { position }));
                };
                let Some(unit) = chain.get(writing.count) else {
                    return Next::Done(Ok(LogReply::Appended(position)));
                };
                writing.in_doubt = true;
                self.asked = Some(*unit);
                if writing.repairs {
                    let kept = Kept::Entry(Entry::Data(self.data.clone()));
                    return Next::Unit(*unit, Request::Command(Command::Repair { position, kept }.into()));
                }
                Next::Unit(*unit, Request::Command(writing.write.clone()))
            }
            Stage::Resolving(filling, _) => {
                let position = filling.position;
                let ended = match filling.next(view.projection) {
                    Ok((unit, request)) => {
                        self.asked = Some(unit);
                        return Next::Unit(unit, request);
                    }
                    Err(Filled::Entry(entry)) if entry.stamp() == Some(self.data.stamp) => {
                        Ok(LogReply::Appended(position))
                    }
                    Err(Filled::Entry(_)) => {
                        self.stage = Stage::Wanting;
                        self.asked = None;
                        return Next::Position;
                    }
                    Err(Filled::Trimmed(_) | Filled::Lost) => Err(Error::Unknown { position }),
                    Err(Filled::Damaged) => return Next::Until(view.now + view.pause),
                    Err(Filled::Conflict) => Err(Error::Conflict { position }),
                };
                Next::Done(ended)
            }
            Stage::Ended(outcome) => Next::Done(outcome.clone()),
        }
    }

    pub(super) fn unit_replied(&mut self, reply: Reply) {
        let writing = match &mut self.stage {
            Stage::Resolving(filling, _) => return filling.unit_replied(reply),
            Stage::Writing(writing) => writing,
            Stage::Wanting | Stage::Ended(_) => return,
        };
        let position = writing.position;
        match reply {
            Reply::Written => (writing.count, writing.repairs) = (writing.count + 1, false),
            // The head accepted the entry, and this unit was trimmed since: it accepts no other entry there.
            Reply::Trimmed { .. } if writing.count > 0 => (writing.count, writing.repairs) = (writing.count + 1, false),
            // The preceding unit holds this entry, so this unit held it too.
            Reply::Damaged if writing.count > 0 => writing.repairs = true,
            // The head holds this entry or another one; the units after it may know which.
            Reply::Damaged => self.stage = Stage::Resolving(HoleFill::new(position), writing.epoch),
            // Another client filled the position: this entry will never be there.
            Reply::Occupied { .. } if writing.count == 0 => self.stage = Stage::Wanting,
            Reply::Occupied { .. } => self.stage = Stage::Ended(Err(Error::Conflict { position })),
            Reply::Trimmed { .. } if planted(Bug::TrimmedPlaceLeft) => self.stage = Stage::Wanting,
            // The entry may have been there, and readers may have seen it.
            Reply::Trimmed { .. } => self.stage = Stage::Ended(Err(Error::Unknown { position })),
            _ => {}
        }
    }

    /// A planted bug: treats a sealed unit as if it had accepted the entry.
    pub(super) fn ignores_seal(&mut self) -> bool {
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
            Stage::Writing(Writing { position, in_doubt: true, .. }) => Error::Unknown { position: *position },
            Stage::Resolving(filling, _) => Error::Unknown { position: filling.position },
            _ => Error::OutOfTime,
        }
    }
}

fn write(epoch: ProjectionEpoch, position: Position, data: &Data) -> EncodedCommand {
    Command::Write { epoch, position, entry: Entry::Data(data.clone()) }.into()
}
