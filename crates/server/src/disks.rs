//! The disks service: each call becomes one request to the catalog.

use std::sync::Arc;

use api::disks as message;
use api::servers::disks_server::Disks;
use catalog::request::DiskDescription;
use catalog::{CatalogCommand, CatalogRequest, CatalogResponse, TableOptions};
use node::registry::Ask;
use node::request::{Request, Response};
use state_machine::StateMachine as _;
use streams::layout::{Layout, StripeId};
use streams::stripe::Stripe;
use streams::stripe::request::{StripeRequest, StripeResponse};
use tonic::Status;

use crate::Gateway;
use crate::columns::{RpcResult, answer, ask, unexpected};
use crate::reads::undated;

pub(crate) struct Handler<G> {
    gateway: Arc<G>,
}

impl<G: Gateway> Handler<G> {
    pub(crate) fn new(gateway: Arc<G>) -> Self {
        Self { gateway }
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
                let unknown = || crate::refusal::status(&state_machine::Failure::UnknownTable(name.to_owned()));
                disk.ok_or_else(unknown)
            }
            other => Err(unexpected(&other)),
        }
    }
}

#[tonic::async_trait]
impl<G: Gateway> Disks for Handler<G> {
    async fn create_disk(
        &self,
        mut call: tonic::Request<message::CreateDiskRequest>,
    ) -> RpcResult<message::CreateDiskResponse> {
        let message::CreateDiskRequest { disk: name, bytes, stripes, replicas } = std::mem::take(call.get_mut());
        if bytes == 0 {
            return Err(Status::invalid_argument("the size of the disk is missing"));
        }
        let stripes = match stripes {
            0 => Layout::default_stripes(bytes),
            given => given.try_into().unwrap_or(u16::MAX),
        };
        let layout = Layout::new(stripes);
        let layout = layout.ok_or_else(|| Status::invalid_argument(format!("a disk cannot have {stripes} stripes")))?;
        let options = TableOptions { replicas, disk_bytes: bytes, ..TableOptions::of(Stripe::KIND) };
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
                let disk = |DiskDescription { name, bytes, stripes, created }: DiskDescription| message::Disk {
                    disk: name,
                    bytes,
                    stripes,
                    created_ns: created.0,
                };
                answer(message::ListDisksResponse { disks: disks.into_iter().map(disk).collect() })
            }
            other => Err(unexpected(&other)),
        }
    }

    async fn resize_disk(
        &self,
        mut call: tonic::Request<message::ResizeDiskRequest>,
    ) -> RpcResult<message::ResizeDiskResponse> {
        let message::ResizeDiskRequest { disk: name, bytes } = std::mem::take(call.get_mut());
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
        let stripe = u16::try_from(stripe).ok().filter(|stripe| u32::from(*stripe) < disk.stripes);
        let stripe = StripeId(stripe.ok_or_else(|| Status::invalid_argument("the disk has no such stripe"))?);
        let check = StripeRequest::Check { stripe, first: first_block };
        let request = Request::Table { table: disk.name, request: Ask::Stripe(check) };
        match undated(ask(&*self.gateway, &call, request).await?).0 {
            Response::Stripe(StripeResponse::Checked { verified, damaged, next }) => {
                answer(message::CheckDiskResponse {
                    verified_blocks: verified,
                    damaged_blocks: damaged,
                    next_block: next,
                })
            }
            other => Err(unexpected(&other)),
        }
    }

    async fn delete_disk(
        &self,
        mut call: tonic::Request<message::DeleteDiskRequest>,
    ) -> RpcResult<message::DeleteDiskResponse> {
        let message::DeleteDiskRequest { disk: name, force } = std::mem::take(call.get_mut());
        // A table with rows is not deleted by mistake.
        self.find(&call, &name).await?;
        match self.ask(&call, CatalogCommand::BeginDrop { name, force }).await? {
            Response::Catalog(CatalogResponse::TableDropped) => answer(message::DeleteDiskResponse {}),
            other => Err(unexpected(&other)),
        }
    }
}
