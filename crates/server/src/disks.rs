//! The disks service: each call becomes a request to the catalog or to stripes.

use std::collections::BTreeSet;
use std::sync::Arc;

use api::common::Error;
use api::common::error::Kind;
use api::servers::disks_server::Disks;
use api::{details, disks as message};
use catalog::request::DiskDescription;
use catalog::{CatalogCommand, CatalogRequest, CatalogResponse, TableOptions};
use node::registry::Ask;
use node::request::{Request, Response};
use state_machine::StateMachine as _;
use state_machine::failure::precondition;
use streams::layout::{Layout, StripeId};
use streams::stripe::Stripe;
use streams::stripe::request::{StripeRequest, StripeResponse};
use tonic::{Code, Status};

use crate::Gateway;
use crate::columns::{RpcResult, answer, ask, unexpected};
use crate::nbd::Endpoint;
use crate::reads::undated;

pub(crate) struct Handler<G> {
    gateway: Arc<G>,
    nbd: Arc<Endpoint>,
}

impl<G: Gateway> Handler<G> {
    pub(crate) fn new(gateway: Arc<G>, nbd: Arc<Endpoint>) -> Self {
        Self { gateway, nbd }
    }

    async fn ask<T: Sync>(
        &self,
        call: &tonic::Request<T>,
        request: impl Into<CatalogRequest>,
    ) -> Result<Response, Status> {
        ask(&*self.gateway, call, Request::Catalog(request.into())).await
    }

    /// The disk with this name.
    async fn find<T: Sync>(&self, call: &tonic::Request<T>, name: &str) -> Result<DiskDescription, Status> {
        match self.ask(call, CatalogRequest::ListDisks).await? {
            Response::Catalog(CatalogResponse::Disks(disks)) => {
                let disk = disks.into_iter().find(|disk| disk.name == name);
                disk.ok_or_else(|| unknown(name))
            }
            other => Err(unexpected(&other)),
        }
    }

    async fn ask_stripe<T: Sync>(
        &self,
        call: &tonic::Request<T>,
        disk: &DiskDescription,
        request: impl Fn(StripeId) -> StripeRequest,
        stripe: u32,
    ) -> Result<StripeResponse, Status> {
        let stripe = u16::try_from(stripe).ok().filter(|stripe| u32::from(*stripe) < disk.stripes);
        let stripe = StripeId(stripe.ok_or_else(|| Status::invalid_argument("the disk has no such stripe"))?);
        let request = Request::Table { table: disk.name.clone(), request: Ask::Stripe(request(stripe)) };
        match undated(ask(&*self.gateway, call, request).await?).0 {
            Response::Stripe(response) => Ok(response),
            other => Err(unexpected(&other)),
        }
    }

    /// The holders of the stripes, without repetition.
    async fn holders<T: Sync>(&self, call: &tonic::Request<T>, disk: &DiskDescription) -> Result<Vec<String>, Status> {
        let mut holders = BTreeSet::new();
        for stripe in 0..disk.stripes {
            match self.ask_stripe(call, disk, |stripe| StripeRequest::Holder { stripe }, stripe).await? {
                StripeResponse::Holder(holder) => holders.extend(holder.map(|holder| holder.name)),
                other => return Err(unexpected(&Response::Stripe(other))),
            }
        }
        Ok(holders.into_iter().collect())
    }

    /// Refuses to delete a disk that has a holder, or that is attached through this node.
    async fn check_unused<T: Sync>(&self, call: &tonic::Request<T>, disk: &DiskDescription) -> Result<(), Status> {
        if let Some(attachment) = self.nbd.attachments().iter().find(|attachment| attachment.disk == disk.name) {
            let why = format!("disk {} is attached by {}: force its deletion", disk.name, attachment.client);
            return Err(crate::refusal::status(&precondition(why)));
        }
        match &self.holders(call, disk).await?[..] {
            [] => Ok(()),
            [holder, ..] => {
                let why = format!("disk {} is held by {holder:?}: release it, or force its deletion", disk.name);
                Err(crate::refusal::status(&precondition(why)))
            }
        }
    }
}

fn unknown(disk: &str) -> Status {
    let error = Error { kind: Kind::UnknownTable.into(), table: disk.to_owned(), ..Error::default() };
    details::status(Code::NotFound, format!("no disk named {disk:?}"), &error)
}

fn described(disk: DiskDescription) -> message::Disk {
    let DiskDescription { name, bytes, stripes, created, is_exclusive } = disk;
    message::Disk { disk: name, bytes, stripes, created_ns: created.0, exclusive: is_exclusive }
}

#[tonic::async_trait]
impl<G: Gateway> Disks for Handler<G> {
    async fn create_disk(
        &self,
        mut call: tonic::Request<message::CreateDiskRequest>,
    ) -> RpcResult<message::CreateDiskResponse> {
        let message::CreateDiskRequest { disk: name, bytes, stripes, replicas, exclusive } =
            std::mem::take(call.get_mut());
        if bytes == 0 {
            return Err(Status::invalid_argument("the size of the disk is missing"));
        }
        let stripes = match stripes {
            0 => Layout::default_stripes(bytes),
            given => given.try_into().unwrap_or(u16::MAX),
        };
        let layout = Layout::new(stripes);
        let layout = layout.ok_or_else(|| Status::invalid_argument(format!("a disk cannot have {stripes} stripes")))?;
        let options =
            TableOptions { replicas, disk_bytes: bytes, is_exclusive: exclusive, ..TableOptions::of(Stripe::KIND) };
        let create = CatalogCommand::CreateTable { name, split_at: layout.split_keys(), options };
        match self.ask(&call, create).await? {
            Response::Catalog(CatalogResponse::TableCreated { existed }) => {
                answer(message::CreateDiskResponse { existed })
            }
            other => Err(unexpected(&other)),
        }
    }

    async fn list_disks(
        &self,
        call: tonic::Request<message::ListDisksRequest>,
    ) -> RpcResult<message::ListDisksResponse> {
        match self.ask(&call, CatalogRequest::ListDisks).await? {
            Response::Catalog(CatalogResponse::Disks(disks)) => {
                answer(message::ListDisksResponse { disks: disks.into_iter().map(described).collect() })
            }
            other => Err(unexpected(&other)),
        }
    }

    async fn get_disk(&self, mut call: tonic::Request<message::GetDiskRequest>) -> RpcResult<message::GetDiskResponse> {
        let name = std::mem::take(&mut call.get_mut().disk);
        let disk = self.find(&call, &name).await?;
        let holders = self.holders(&call, &disk).await?;
        answer(message::GetDiskResponse { disk: Some(described(disk)), holders })
    }

    async fn release_disk(
        &self,
        mut call: tonic::Request<message::ReleaseDiskRequest>,
    ) -> RpcResult<message::ReleaseDiskResponse> {
        let name = std::mem::take(&mut call.get_mut().disk);
        let disk = self.find(&call, &name).await?;
        for stripe in 0..disk.stripes {
            match self.ask_stripe(&call, &disk, |stripe| StripeRequest::Release { stripe }, stripe).await? {
                StripeResponse::Released => {}
                other => return Err(unexpected(&Response::Stripe(other))),
            }
        }
        answer(message::ReleaseDiskResponse {})
    }

    async fn resize_disk(
        &self,
        mut call: tonic::Request<message::ResizeDiskRequest>,
    ) -> RpcResult<message::ResizeDiskResponse> {
        let message::ResizeDiskRequest { disk: name, bytes } = std::mem::take(call.get_mut());
        self.find(&call, &name).await?;
        match self.ask(&call, CatalogCommand::ResizeDisk { name, bytes }).await? {
            Response::Catalog(CatalogResponse::DiskResized) => answer(message::ResizeDiskResponse {}),
            other => Err(unexpected(&other)),
        }
    }

    async fn check_disk(
        &self,
        mut call: tonic::Request<message::CheckDiskRequest>,
    ) -> RpcResult<message::CheckDiskResponse> {
        let message::CheckDiskRequest { disk, stripe, first_block } = std::mem::take(call.get_mut());
        let disk = self.find(&call, &disk).await?;
        let check = |stripe| StripeRequest::Check { stripe, first: first_block };
        match self.ask_stripe(&call, &disk, check, stripe).await? {
            StripeResponse::Checked { verified, damaged, next } => answer(message::CheckDiskResponse {
                verified_blocks: verified,
                damaged_blocks: damaged,
                next_block: next,
            }),
            other => Err(unexpected(&Response::Stripe(other))),
        }
    }

    async fn delete_disk(
        &self,
        mut call: tonic::Request<message::DeleteDiskRequest>,
    ) -> RpcResult<message::DeleteDiskResponse> {
        let message::DeleteDiskRequest { disk: name, force } = std::mem::take(call.get_mut());
        // A table with rows is not deleted by mistake.
        let disk = self.find(&call, &name).await?;
        if !force {
            self.check_unused(&call, &disk).await?;
        }
        match self.ask(&call, CatalogCommand::BeginDrop { name, force }).await? {
            Response::Catalog(CatalogResponse::TableDropped) => answer(message::DeleteDiskResponse {}),
            other => Err(unexpected(&other)),
        }
    }
}
