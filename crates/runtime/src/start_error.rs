//! Why a node cannot start.

use std::io;
use std::net::TcpListener;
use std::path::PathBuf;

use base::{ClusterId, HostPort, NodeId};
use store::StoreError;

use super::config::ConfigError;
use super::directory_lock::DirectoryLockError;
use super::resolver;

/// Why a node cannot start. The exit status is 2 (invalid use) for configuration errors, otherwise 3 (unavailable).
#[derive(Debug, thiserror::Error)]
pub(crate) enum StartError {
    #[error("{0}")]
    Config(#[from] ConfigError),
    #[error("{0}")]
    DirectoryLock(#[from] DirectoryLockError),
    #[error(
        "{0} contains no data of a cluster: it was never formatted, or its data is lost. It is not formatted now, \
         because a blank disk with the identity of a member would have lost its promises and acknowledged writes. To \
         form or join a cluster with a new disk, use a configuration without the key `cluster`"
    )]
    Blank(PathBuf),
    #[error("{directory} contains node {found}, but the configuration is for node {wanted}")]
    OtherNode { directory: PathBuf, found: NodeId, wanted: u32 },
    #[error("{directory} contains data of cluster {found}, but the configuration is for cluster {wanted}")]
    OtherCluster { directory: PathBuf, found: ClusterId, wanted: String },
    #[error("{directory} is not used any more: {reason}")]
    RolledBack { directory: PathBuf, reason: String },
    #[error("can't use {directory} as the directory `data`: {error}")]
    Directory { directory: PathBuf, error: io::Error },
    #[error("{directory}: {error}")]
    Store { directory: PathBuf, error: StoreError },
    #[error("{0}")]
    Machine(String),
    #[error("can't listen on {address} for {what}: {error}")]
    Listen { what: &'static str, address: HostPort, error: io::Error },
    #[error("{0}")]
    Io(#[from] io::Error),
}

impl StartError {
    pub(crate) fn exit_status(&self) -> u8 {
        match self {
            Self::Config(_) | Self::OtherNode { .. } => 2,
            // A restart is of no use.
            Self::RolledBack { .. } => super::EXIT_HALTED as u8,
            _ => 3,
        }
    }
}

pub(crate) fn listen(what: &'static str, address: &HostPort) -> Result<TcpListener, StartError> {
    let bound = resolver::lookup(address).and_then(|addresses| TcpListener::bind(&addresses[..]));
    bound.map_err(|error| StartError::Listen { what, address: address.clone(), error })
}
