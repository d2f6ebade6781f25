//! The protobuf definitions (`proto/`) and the types generated from them, for the server, the client, and the etcd
//! client of the benchmark.
//!
//! Bytes fields are [`Bytes`](prost::bytes::Bytes): decoded values share the message's buffer and are not copied.
//!
//! **Architecture invariant:** this crate depends on no other crate of the workspace. The servers and the SDK implement
//! the meaning of the messages.

#![warn(missing_docs)]

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
    /// The columns service, `loggos.columns.v1`.
    columns, "loggos.columns.v1"
}
/// The log service, `loggos.log.v1`.
#[allow(missing_docs, unreachable_pub, clippy::all, reason = "generated")]
pub mod log {
    include!(concat!(env!("OUT_DIR"), "/log/loggos.log.v1.rs"));
}
generated! {
    /// The admin services, `loggos.admin.v1`.
    admin, "loggos.admin.v1"
}
generated! {
    /// The subset of etcd's v3 API that the benchmark uses.
    etcd, "etcdserverpb"
}

mod google {
    #[allow(missing_docs, unreachable_pub, clippy::all, reason = "generated")]
    pub(crate) mod rpc {
        tonic::include_proto!("google.rpc");
    }
}

/// The server stubs of the services. They decode requests with [`frugal`].
#[allow(missing_docs, unreachable_pub, clippy::all, reason = "generated")]
pub mod servers {
    include!(concat!(env!("OUT_DIR"), "/servers/loggos.columns.v1.rs"));
    include!(concat!(env!("OUT_DIR"), "/servers/loggos.admin.v1.rs"));
    include!(concat!(env!("OUT_DIR"), "/servers/loggos.log.v1.rs"));
}

/// An encoded `FileDescriptorSet` of all services of a node, for gRPC reflection.
pub const SERVICE_DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/services.fds"));
