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
pub mod local;

macro_rules! generated {
    ($(#[$doc:meta])* $name:ident, $package:literal) => {
        $(#[$doc])*
        #[allow(missing_docs, unreachable_pub, clippy::all, reason = "generated")]
        pub mod $name {
            tonic::include_proto!($package);
        }
    };
}

/// Errors of all services, `loggos.common.v1`.
#[allow(missing_docs, unreachable_pub, clippy::all, reason = "generated")]
pub mod common {
    include!(concat!(env!("OUT_DIR"), "/common/loggos.common.v1.rs"));
}
generated! {
    /// The columns service, `loggos.columns.v1`.
    columns, "loggos.columns.v1"
}
generated! {
    /// The log service, `loggos.log.v1`.
    log, "loggos.log.v1"
}
generated! {
    /// The disks service, `loggos.disks.v1`.
    disks, "loggos.disks.v1"
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
    include!(concat!(env!("OUT_DIR"), "/servers/loggos.disks.v1.rs"));
}

/// An encoded `FileDescriptorSet` of all services of a node, for gRPC reflection.
pub const SERVICE_DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/services.fds"));

#[cfg(test)]
mod tests {
    use prost::Message;
    use prost_types::{DescriptorProto, EnumDescriptorProto, FileDescriptorSet};

    use super::SERVICE_DESCRIPTORS;

    /// Keywords of Python that could be names of fields. A field named so cannot be passed by keyword.
    const KEYWORDS: [&str; 14] = [
        "as", "class", "def", "del", "except", "from", "global", "import", "in", "is", "lambda", "pass", "raise",
        "with",
    ];

    fn check_enum(listed: &EnumDescriptorProto) {
        // `FooBar` has the prefix `FOO_BAR_`.
        let upper = |c: char| if c.is_uppercase() { format!("_{c}") } else { c.to_uppercase().to_string() };
        let prefix = format!("{}_", listed.name().chars().map(upper).collect::<String>().trim_start_matches('_'));
        for value in &listed.value {
            assert!(value.name().starts_with(&prefix), "{} of {}", value.name(), listed.name());
        }
    }

    fn check_message(message: &DescriptorProto) {
        for field in &message.field {
            assert!(!KEYWORDS.contains(&field.name()), "field {} of {}", field.name(), message.name());
        }
        message.nested_type.iter().for_each(check_message);
        message.enum_type.iter().for_each(check_enum);
    }

    #[test]
    fn names_suit_other_languages() {
        let services = FileDescriptorSet::decode(SERVICE_DESCRIPTORS).expect("a descriptor set");
        let own = services.file.iter().filter(|file| file.package().starts_with("loggos."));
        own.clone().flat_map(|file| &file.enum_type).for_each(check_enum);
        let messages: Vec<_> = own.flat_map(|file| &file.message_type).collect();
        assert!(messages.len() > 50, "{}", messages.len());
        messages.into_iter().for_each(check_message);
    }
}
