//! Compiles the protobuf definitions with `protox`, which is written in Rust, so that no `protoc` is needed.

use std::error::Error;
use std::{env, fs, path::PathBuf};

use prost::Message;
use prost_types::FileDescriptorSet;

/// The services of the endpoints.
const PROTOS: [&str; 5] = [
    "loggos/columns/v1/columns.proto",
    "loggos/log/v1/log.proto",
    "loggos/disks/v1/disks.proto",
    "loggos/admin/v1/admin.proto",
    "loggos/admin/v1/formation.proto",
];
/// Definitions for clients and for status details.
const OTHERS: [&str; 2] = ["google/rpc/status.proto", "etcdserverpb/kv.proto"];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto");
    let out = PathBuf::from(env::var("OUT_DIR")?);

    let services = protox::compile(PROTOS, ["proto"])?;
    fs::write(out.join("services.fds"), services.encode_to_vec())?;
    tonic_prost_build::configure()
        .bytes(".")
        .build_server(false)
        .extern_path(".loggos.common.v1", "crate::common")
        .compile_fds(services.clone())?;
    // The messages of the package that the services import.
    let common = out.join("common");
    fs::create_dir_all(&common)?;
    let imported = FileDescriptorSet {
        file: services.file.iter().filter(|file| file.package() == "loggos.common.v1").cloned().collect(),
    };
    tonic_prost_build::configure().bytes(".").out_dir(common).compile_fds(imported)?;

    // Only the server stubs, for the same messages. They use their own codec to decode untrusted requests.
    let servers = out.join("servers");
    fs::create_dir_all(&servers)?;
    tonic_prost_build::configure()
        .build_client(false)
        .extern_path(".loggos.common.v1", "crate::common")
        .extern_path(".loggos.columns.v1", "crate::columns")
        .extern_path(".loggos.admin.v1", "crate::admin")
        .extern_path(".loggos.log.v1", "crate::log")
        .extern_path(".loggos.disks.v1", "crate::disks")
        .codec_path("crate::frugal::FrugalCodec")
        .out_dir(servers)
        .compile_fds(services)?;

    let others = protox::compile(OTHERS, ["proto"])?;
    tonic_prost_build::configure().bytes(".").build_server(false).compile_fds(others)?;
    Ok(())
}
