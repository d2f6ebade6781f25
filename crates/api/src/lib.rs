//! The protobuf definitions (`proto/`) and the types generated from them, for the server, the client, and the peer that
//! the benchmark measures.
//!
//! Bytes fields are [`Bytes`](prost::bytes::Bytes): what is decoded shares its message's buffer, and no value is
//! copied.
//!
//! **Architecture invariant:** this crate knows no other crate of ours. What a message means is the doors' and the SDK's.

pub mod details;
pub mod frugal;

macro_rules! generated {
    ($(#[$doc:meta])* $name:ident, $package:literal) => {
        $(#[$doc])*
        #[allow(missing_docs, unreachable_pub, clippy::all, reason = "generated")]
        pub mod $name {
            tonic::include_proto!($package);
        }
    };
}

generated! {
    /// The columns door, `loggos.columns.v1`.
    columns, "loggos.columns.v1"
}
/// The log door, `loggos.log.v1`.
#[allow(missing_docs, unreachable_pub, clippy::all, reason = "generated")]
pub mod log {
    include!(concat!(env!("OUT_DIR"), "/log/loggos.log.v1.rs"));
}
generated! {
    /// Looking at a node, `loggos.admin.v1`.
    admin, "loggos.admin.v1"
}
generated! {
    /// The little of etcd's v3 API that the benchmark needs.
    etcd, "etcdserverpb"
}

mod google {
    #[allow(missing_docs, unreachable_pub, clippy::all, reason = "generated")]
    pub(crate) mod rpc {
        tonic::include_proto!("google.rpc");
    }
}

/// The servers' side of the services. Requests are decoded by [`frugal`].
#[allow(missing_docs, unreachable_pub, clippy::all, reason = "generated")]
pub mod servers {
    include!(concat!(env!("OUT_DIR"), "/servers/loggos.columns.v1.rs"));
    include!(concat!(env!("OUT_DIR"), "/servers/loggos.admin.v1.rs"));
    include!(concat!(env!("OUT_DIR"), "/servers/loggos.log.v1.rs"));
}

/// The descriptors of all services that a node serves, for gRPC reflection: an encoded `FileDescriptorSet`.
pub const DOORS_DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/doors.fds"));
