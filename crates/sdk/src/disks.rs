//! Virtual disks: their creation, size and deletion.

use api::disks as message;
use base::Timestamp;

use crate::driver::Ended;
use crate::request::{ApiRequest, ApiResponse};
use crate::{Client, Error, client_api::unexpected};

/// A virtual disk, of which any node serves the blocks with the Network Block Device protocol. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Disk {
    client: Client,
    name: String,
}

/// The properties of a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskDescription {
    /// Its name.
    pub name: String,
    /// Its size in bytes.
    pub bytes: u64,
    /// The number of stripes.
    pub stripes: u32,
    /// When it was created.
    pub created: Timestamp,
    /// Whether it can be attached only under the name of a holder.
    pub is_exclusive: bool,
}

/// Blocks of a stripe that were verified at one replica.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DiskCheck {
    /// The number of blocks with content that were read.
    pub verified: u64,
    /// Those that are damaged, in the numbers of the stripe.
    pub damaged: Vec<u64>,
    /// The block to continue from; none at the end of the stripe.
    pub next: Option<u64>,
}

/// A disk to be created.
#[derive(Debug)]
pub struct CreateDisk<'a> {
    disk: &'a Disk,
    request: message::CreateDiskRequest,
}

impl Client {
    /// A handle for a disk, which may not exist yet.
    #[must_use]
    pub fn disk(&self, name: impl Into<String>) -> Disk {
        Disk { client: self.clone(), name: name.into() }
    }

    /// Lists the disks, in order of name.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn list_disks(&self) -> Result<Vec<DiskDescription>, Error> {
        match self.ask(ApiRequest::ListDisks).await? {
            ApiResponse::Disks(answer) => Ok(answer.disks.into_iter().map(DiskDescription::from).collect()),
            other => Err(unexpected(&other)),
        }
    }
}

impl From<message::Disk> for DiskDescription {
    fn from(disk: message::Disk) -> Self {
        let message::Disk { disk: name, bytes, stripes, created_ns, exclusive } = disk;
        Self { name, bytes, stripes, created: Timestamp(created_ns), is_exclusive: exclusive }
    }
}

impl Disk {
    /// Creates the disk with this many bytes, unless it exists: sent by [`CreateDisk::send`].
    pub fn create(&self, bytes: u64) -> CreateDisk<'_> {
        let request = message::CreateDiskRequest { disk: self.name.clone(), bytes, ..Default::default() };
        CreateDisk { disk: self, request }
    }

    /// Describes the disk.
    ///
    /// # Errors
    /// [`Error::NotFound`] if it does not exist.
    pub async fn describe(&self) -> Result<DiskDescription, Error> {
        let found = self.client.list_disks().await?.into_iter().find(|disk| disk.name == self.name);
        found.ok_or_else(|| Error::NotFound(format!("no disk named {:?}", self.name)))
    }

    /// The client that alone may change the disk; two while one takes over from another.
    ///
    /// # Errors
    /// [`Error::NotFound`] if the disk does not exist.
    pub async fn holders(&self) -> Result<Vec<String>, Error> {
        let request = message::GetDiskRequest { disk: self.name.clone() };
        match self.client.ask(ApiRequest::GetDisk(request)).await? {
            ApiResponse::Disk(answer) => Ok(answer.holders),
            other => Err(unexpected(&other)),
        }
    }

    /// Ends the right of its holder, and the requests of its clients. Then everyone may change the disk again.
    ///
    /// # Errors
    /// [`Error::NotFound`] if it does not exist.
    pub async fn release(&self) -> Result<(), Error> {
        match self.client.ask(ApiRequest::ReleaseDisk(message::ReleaseDiskRequest { disk: self.name.clone() })).await? {
            ApiResponse::DiskReleased => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    /// Sets its size in bytes. A disk only grows.
    ///
    /// # Errors
    /// [`Error::Precondition`] if it is larger, [`Error::NotFound`] if it does not exist.
    pub async fn resize(&self, bytes: u64) -> Result<(), Error> {
        let request = message::ResizeDiskRequest { disk: self.name.clone(), bytes };
        match self.client.ask(ApiRequest::ResizeDisk(request)).await? {
            ApiResponse::DiskResized => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    /// Verifies some blocks of a stripe, from a block on, at the replica of the node that this client is connected to. To
    /// verify a certain replica, connect to its node alone.
    ///
    /// # Errors
    /// [`Error::NotFound`] if the disk does not exist, [`Error::Unavailable`] if the replica has not caught up.
    pub async fn check(&self, stripe: u32, first_block: u64) -> Result<DiskCheck, Error> {
        let request = message::CheckDiskRequest { disk: self.name.clone(), stripe, first_block };
        match self.client.ask(ApiRequest::CheckDisk(request)).await? {
            ApiResponse::DiskChecked(message::CheckDiskResponse { verified_blocks, damaged_blocks, next_block }) => {
                Ok(DiskCheck { verified: verified_blocks, damaged: damaged_blocks, next: next_block })
            }
            other => Err(unexpected(&other)),
        }
    }

    /// Deletes the disk with all its data. With `force`, also if it has a holder or is attached through the node that
    /// executes this, and replicas that cannot be reached are not waited for: this declares that they are lost for good.
    ///
    /// # Errors
    /// [`Error::NotFound`] if it does not exist, [`Error::Precondition`] if it is in use.
    pub async fn delete(&self, force: bool) -> Result<(), Error> {
        let request = message::DeleteDiskRequest { disk: self.name.clone(), force };
        let Ended { outcome, in_doubt, .. } =
            self.client.driver.call(ApiRequest::DeleteDisk(request), self.client.deadline).await;
        match outcome {
            // The disk existed at the first attempt: that attempt, or another client, has deleted it.
            Err(Error::NotFound(_)) if in_doubt => Ok(()),
            outcome => outcome.map(|_| ()),
        }
    }
}

impl CreateDisk<'_> {
    /// The number of stripes, 1 to 16; 0: one that suits the size.
    #[must_use]
    pub fn stripes(mut self, stripes: u32) -> Self {
        self.request.stripes = stripes;
        self
    }

    /// The replicas of each stripe: 1, 3 or 5; 0: the default.
    #[must_use]
    pub fn replicas(mut self, replicas: u32) -> Self {
        self.request.replicas = replicas;
        self
    }

    /// The disk can be attached only under the name of a holder.
    #[must_use]
    pub fn exclusive(mut self, is_exclusive: bool) -> Self {
        self.request.exclusive = is_exclusive;
        self
    }

    /// Creates the disk. Returns whether it existed before.
    ///
    /// # Errors
    /// [`Error::Exists`] if it exists with other properties.
    pub async fn send(self) -> Result<bool, Error> {
        match self.disk.client.ask(ApiRequest::CreateDisk(self.request)).await? {
            ApiResponse::DiskCreated(answer) => Ok(answer.existed),
            other => Err(unexpected(&other)),
        }
    }
}
