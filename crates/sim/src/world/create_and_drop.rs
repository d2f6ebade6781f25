//! A table that one client repeatedly creates, writes and drops under one name. Dropped data must never reappear, on
//! any node and with any stale copy of the map.
//!
//! The client performs one operation at a time, so that each response can be checked against all earlier ones. A
//! request of unknown outcome may take effect later: the client then uses a new name for the next round, and accepts
//! values that may still be written.

use std::collections::BTreeSet;

use bytes::Bytes;
use catalog::{CatalogCommand, CatalogRequest, CatalogResponse, TableOptions};
use client::Effect;
use node::request::{Ask, Outcome, Request, Response};
use state_machine::{Consistency, Failure, StateMachine as _};
use tablets::request::{Mutation, TableRequest, Write};
use tablets::{TableResponse, Tablet};

use super::World;
use super::clients::RETENTION;

/// The client's operations on the table, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Create,
    ReadEmpty,
    Write,
    Read,
    Drop,
    ReadDropped,
}

impl Step {
    /// How the library may treat the operation.
    pub(super) fn effect(self) -> Effect {
        match self {
            Self::Create | Self::Drop => Effect::Repeatable,
            Self::Write => Effect::Writes,
            Self::ReadEmpty | Self::Read | Self::ReadDropped => Effect::Reads,
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Spare {
    pub(crate) step: Step,
    name: u64,
    round: u64,
    /// A create or drop of this name may still take effect.
    is_in_doubt: bool,
    /// Values that may still be written.
    late: BTreeSet<Bytes>,
}

impl Spare {
    pub(crate) fn new() -> Self {
        Self { step: Step::Create, name: 0, round: 0, is_in_doubt: false, late: BTreeSet::new() }
    }

    /// Whether the next operation follows immediately, while some nodes may have a stale map.
    pub(crate) fn is_urgent(&self) -> bool {
        self.step == Step::ReadDropped
    }

    fn value(&self) -> Bytes {
        Bytes::from(format!("of round {}", self.round))
    }

    pub(crate) fn request(&self, step: Step) -> Request {
        let name = format!("spare-{}", self.name);
        let of_table = |request| Request::Table { table: name.clone(), request: Ask::Tablet(request) };
        let key = || Bytes::from_static(if self.round.is_multiple_of(2) { b"a" } else { b"z" });
        match step {
            Step::Create => {
                let split_at = vec![Bytes::from_static(b"m")];
                Request::Catalog(CatalogRequest::Change(CatalogCommand::CreateTable {
                    name,
                    split_at,
                    options: TableOptions { retention: RETENTION, ..TableOptions::of(Tablet::KIND) },
                }))
            }
            Step::ReadEmpty | Step::Read | Step::ReadDropped => of_table(TableRequest::Get {
                key: key(),
                columns: tablets::request::Columns::default(),
                consistency: Consistency::Strong,
            }),
            Step::Write => {
                let mutations =
                    vec![Mutation { column: Bytes::from_static(b"c"), value: Some(self.value()), condition: None }];
                of_table(TableRequest::Write(Write { stamp: None, key: key(), mutations }))
            }
            Step::Drop => Request::Catalog(CatalogRequest::Change(CatalogCommand::BeginDrop { name, force: false })),
        }
    }

    /// Checks a response and advances to the next operation.
    ///
    /// # Errors
    /// The invariant that the response violates.
    fn answered(&mut self, step: Step, outcome: &Outcome, maybe_done: bool) -> Result<(), &'static str> {
        match (step, outcome) {
            (Step::Create, Ok(Response::Catalog(CatalogResponse::TableCreated { existed }))) => {
                self.is_in_doubt |= maybe_done;
                if *existed && !maybe_done {
                    return Err("a dropped or never created table exists");
                }
            }
            (Step::ReadEmpty, Ok(Response::Tablet(TableResponse::Row { cells, .. }))) => {
                if cells.iter().any(|cell| !self.late.contains(&cell.value)) {
                    return Err("a new table contains dropped data");
                }
            }
            (Step::Write, Ok(Response::Tablet(TableResponse::Written { .. }))) => {
                if maybe_done {
                    self.late.insert(self.value());
                }
            }
            (Step::Read, Ok(Response::Tablet(TableResponse::Row { cells, .. }))) => {
                let is_right = |value: &Bytes| *value == self.value() || self.late.contains(value);
                if cells.len() != 1 || !cells.iter().all(|cell| is_right(&cell.value)) {
                    return Err("an acknowledged write is not visible");
                }
            }
            (Step::Drop, Ok(Response::Catalog(CatalogResponse::TableDropped))) => self.is_in_doubt |= maybe_done,
            (Step::Drop, Err(Failure::UnknownTable(_))) if maybe_done => self.is_in_doubt = true,
            (Step::ReadDropped, Err(Failure::UnknownTable(_))) => {}
            (Step::ReadDropped, Ok(Response::Tablet(TableResponse::Row { .. }))) if self.is_in_doubt => {}
            (Step::ReadDropped, Ok(_)) => return Err("a dropped table serves a read"),
            _ => return Err("unexpected outcome"),
        }
        self.step = self.after(step);
        Ok(())
    }

    fn after(&mut self, step: Step) -> Step {
        match step {
            Step::Create => Step::ReadEmpty,
            Step::ReadEmpty => Step::Write,
            Step::Write => Step::Read,
            Step::Read => Step::Drop,
            Step::Drop => Step::ReadDropped,
            Step::ReadDropped => {
                self.round += 1;
                if std::mem::take(&mut self.is_in_doubt) {
                    self.name += 1;
                    self.late.clear();
                }
                Step::Create
            }
        }
    }
}

impl World {
    /// Handles a response to the client of this table.
    pub(super) fn spare_answered(&mut self, step: Step, outcome: &Outcome, maybe_done: bool) {
        let Some(spare) = self.clients.spare.as_mut() else { return };
        if let Err(wrong) = spare.answered(step, outcome, maybe_done) {
            let what = format!("{wrong}: {step:?} of {spare:?}, outcome {outcome:?}");
            return self.violate(&what);
        }
        match step {
            Step::Drop => self.count("tables dropped"),
            Step::ReadDropped => self.count("requests for dropped tables"),
            _ => {}
        }
    }
}
