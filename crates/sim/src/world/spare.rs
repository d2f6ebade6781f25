//! A table that one client creates, writes, drops and creates again, under one name: what was dropped must never show
//! again, whichever node is asked and however old its copy of the map is.
//!
//! The client does one thing after the other, so that each answer can be held against all that came before. A request
//! whose outcome it never learned may still come into effect later: then the client takes another name for the next
//! round, and a value that may still be written is let pass.

use std::collections::BTreeSet;

use bytes::Bytes;
use catalog::{CatalogCommand, CatalogRequest, CatalogResponse};
use client::Effect;
use machine::{Consistency, Failure, Kind};
use node::request::{Ask, Outcome, Request, Response};
use tablets::TableResponse;
use tablets::request::{Mutation, TableRequest, Write};

use super::World;
use super::clients::RETENTION;

/// What the client does with the table, one after the other.
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
    /// What it may change.
    pub(super) fn effect(self) -> Effect {
        match self {
            Self::Create | Self::Drop => Effect::Repeatable,
            Self::Write => Effect::Writes,
            Self::ReadEmpty | Self::Read | Self::ReadDropped => Effect::Reads,
        }
    }
}

/// How far it has come.
#[derive(Clone, Debug)]
pub(crate) struct Spare {
    pub(crate) step: Step,
    /// Counts the names.
    name: u64,
    /// Counts the tables.
    round: u64,
    /// A creation or a drop of this name may still come into effect.
    is_in_doubt: bool,
    /// Values that may still be written.
    late: BTreeSet<Bytes>,
}

impl Spare {
    pub(crate) fn new() -> Self {
        Self { step: Step::Create, name: 0, round: 0, is_in_doubt: false, late: BTreeSet::new() }
    }

    /// Whether the next step comes at once: while some nodes may not know yet.
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
                    kind: Kind::TABLET,
                    split_at,
                    replicas: 0,
                    retention: RETENTION,
                    durability: None,
                }))
            }
            Step::ReadEmpty | Step::Read | Step::ReadDropped => {
                of_table(TableRequest::Get { key: key(), columns: None, consistency: Consistency::Strong })
            }
            Step::Write => {
                let mutations =
                    vec![Mutation { column: Bytes::from_static(b"c"), value: Some(self.value()), condition: None }];
                of_table(TableRequest::Write(Write { stamp: None, key: key(), mutations }))
            }
            Step::Drop => Request::Catalog(CatalogRequest::Change(CatalogCommand::BeginDrop { name })),
        }
    }

    /// Takes an answer in, and says what is wrong with it. The next step is then the next one's turn.
    fn answered(&mut self, step: Step, outcome: &Outcome, maybe_done: bool) -> Result<(), &'static str> {
        match (step, outcome) {
            (Step::Create, Ok(Response::Catalog(CatalogResponse::TableCreated { existed }))) => {
                self.is_in_doubt |= maybe_done;
                if *existed && !maybe_done {
                    return Err("a table is there that was dropped, or never created");
                }
            }
            (Step::ReadEmpty, Ok(Response::Tablet(TableResponse::Row(cells)))) => {
                if cells.iter().any(|cell| !self.late.contains(&cell.value)) {
                    return Err("a fresh table shows what was dropped");
                }
            }
            (Step::Write, Ok(Response::Tablet(TableResponse::Written { .. }))) => {
                if maybe_done {
                    self.late.insert(self.value());
                }
            }
            (Step::Read, Ok(Response::Tablet(TableResponse::Row(cells)))) => {
                let is_right = |value: &Bytes| *value == self.value() || self.late.contains(value);
                if cells.len() != 1 || !cells.iter().all(|cell| is_right(&cell.value)) {
                    return Err("what was written does not show");
                }
            }
            (Step::Drop, Ok(Response::Catalog(CatalogResponse::TableDropped))) => self.is_in_doubt |= maybe_done,
            (Step::Drop, Err(Failure::UnknownTable(_))) if maybe_done => self.is_in_doubt = true,
            (Step::ReadDropped, Err(Failure::UnknownTable(_))) => {}
            (Step::ReadDropped, Ok(Response::Tablet(TableResponse::Row(_)))) if self.is_in_doubt => {}
            (Step::ReadDropped, Ok(_)) => return Err("a dropped table is answered for"),
            _ => return Err("that is no answer"),
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
    /// The client that has the spare table was answered.
    pub(super) fn spare_answered(&mut self, step: Step, outcome: &Outcome, maybe_done: bool) {
        let Some(spare) = self.clients.spare.as_mut() else { return };
        if let Err(wrong) = spare.answered(step, outcome, maybe_done) {
            let what = format!("{wrong}: {step:?} of {spare:?} was answered with {outcome:?}");
            return self.violate(&what);
        }
        match step {
            Step::Drop => self.count("tables dropped"),
            Step::ReadDropped => self.count("dropped tables asked"),
            _ => {}
        }
    }
}
