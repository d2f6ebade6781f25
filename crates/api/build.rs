//! Compiles the protobuf definitions with `protox`, which is Rust throughout: no `protoc` is needed.

use std::error::Error;
use std::{env, fs, path::PathBuf};

use prost::Message;

/// What the doors serve.
const DOORS: [&str; 3] =
    ["loggos/columns/v1/columns.proto", "loggos/admin/v1/admin.proto", "loggos/admin/v1/formation.proto"];
/// What only clients and status details need.
const OTHERS: [&str; 2] = ["google/rpc/status.proto", "etcdserverpb/kv.proto"];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto");
    let out = PathBuf::from(env::var("OUT_DIR")?);

    let doors = protox::compile(DOORS, ["proto"])?;
    fs::write(out.join("doors.fds"), doors.encode_to_vec())?;
    tonic_prost_build::configure().bytes(".").build_server(false).compile_fds(doors.clone())?;

    // The servers alone, over the same messages: they decode what strangers send, and do so with a codec of their own.
    let servers = out.join("servers");
    fs::create_dir_all(&servers)?;
    tonic_prost_build::configure()
        .build_client(false)
        .extern_path(".loggos.columns.v1", "crate::columns")
        .extern_path(".loggos.admin.v1", "crate::admin")
        .codec_path("crate::frugal::FrugalCodec")
        .out_dir(servers)
        .compile_fds(doors)?;

    let others = protox::compile(OTHERS, ["proto"])?;
    tonic_prost_build::configure().bytes(".").build_server(false).compile_fds(others)?;
    Ok(())
}
