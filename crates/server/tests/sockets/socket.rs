//! The gRPC server over a real socket, in front of an in-memory node.

use std::time::Duration;

use api::columns as message;
use api::common::error::Kind;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tonic::Code;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
use tonic_reflection::pb::v1::{ServerReflectionRequest, ServiceResponse};

use crate::served::{Served, get, put};

#[tokio::test]
async fn put_and_get_with_version() {
    let served = Served::start().await;
    let mut columns = served.columns().await;
    let value = vec![7; base::limits::VALUE_BYTES_MAX];
    let written = columns.put(put("k", value.clone())).await.expect("a write").into_inner();
    let row = columns.get(get("k")).await.expect("a read").into_inner();
    assert_eq!(row.cells, [message::Cell { column: "c".into(), value: value.into(), version: written.version }]);
}

#[tokio::test]
async fn version_mismatch_reports_both_versions() {
    let served = Served::start().await;
    let mut columns = served.columns().await;
    let conditional = message::ConditionalPutRequest {
        table: "t".into(),
        key: "k".into(),
        column: "c".into(),
        value: "v".into(),
        version: 7,
        stamp: None,
    };
    let status = columns.conditional_put(conditional).await.expect_err("the column is absent");
    assert_eq!(status.code(), Code::FailedPrecondition);
    let error = api::details::error(&status).expect("details");
    assert_eq!((error.kind(), error.expected, error.actual), (Kind::VersionMismatch, 7, 0));
}

/// Limits of memory count the bytes of a request as received.
#[tokio::test]
async fn compressed_request_is_unimplemented() {
    let served = Served::start().await;
    let mut columns = served.columns().await;
    let mut request = tonic::Request::new(get("k"));
    request.metadata_mut().insert("grpc-encoding", "gzip".parse().expect("a header"));
    let refused = columns.get(request).await.expect_err("compressed");
    assert_eq!(refused.code(), Code::Unimplemented);
    assert!(refused.message().contains("gzip"), "{refused}");
    columns.get(get("k")).await.expect("the connection lives on");
}

#[tokio::test]
async fn unknown_table_and_empty_key_errors() {
    let served = Served::start().await;
    let mut columns = served.columns().await;
    let elsewhere = message::GetRequest { table: "u".into(), ..get("k") };
    assert_eq!(columns.get(elsewhere).await.expect_err("no such table").code(), Code::NotFound);
    assert_eq!(columns.get(get("")).await.expect_err("no key").code(), Code::InvalidArgument);
    columns.get(get("k")).await.expect("the connection lives on");
}

#[tokio::test]
async fn node_silence_answered_before_deadline() {
    let served = Served::start().await;
    let mut columns = served.columns().await;
    let mut call = tonic::Request::new(get("silent"));
    call.set_timeout(Duration::from_millis(300));
    let status = columns.get(call).await.expect_err("no answer");
    assert_eq!(status.code(), Code::Unavailable, "{status}");
}

#[tokio::test]
async fn oversized_message_keeps_connection() {
    let served = Served::start().await;
    let columns = served.columns().await;
    let mut other = columns.clone();
    let under_way = tokio::spawn(async move { other.get(get("slow")).await });
    let mut columns = columns;
    let status = columns.put(put("k", vec![0; 13 << 20])).await.expect_err("too large");
    assert_eq!(status.code(), Code::OutOfRange, "{status}");
    under_way.await.expect("no panic").expect("a concurrent call on the same connection");
}

#[tokio::test]
async fn rejects_empty_mutation_flood() {
    let served = Served::start().await;
    let mut columns = served.columns().await;
    let mutations = vec![message::Mutation::default(); 1 << 20];
    let write = message::WriteRequest { table: "t".into(), key: "k".into(), mutations, stamp: None };
    let status = columns.write(write).await.expect_err("too many");
    assert_eq!(status.code(), Code::InvalidArgument, "{status}");
    columns.get(get("k")).await.expect("the connection lives on");
}

#[tokio::test]
async fn garbage_closes_only_its_connection() {
    let served = Served::start().await;
    let mut columns = served.columns().await;
    for garbage in
        [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0xff; 64], b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\xff\xff\xff\xff\xff\xff"]
    {
        let mut connection = TcpStream::connect(served.address).await.expect("the port is open");
        connection.write_all(garbage).await.expect("the port takes bytes");
        let mut answer = Vec::new();
        let closed = tokio::time::timeout(Duration::from_secs(4), connection.read_to_end(&mut answer)).await;
        assert!(closed.is_ok(), "still open after {garbage:?}");
        columns.get(get("k")).await.expect("other connections are unaffected");
    }
}

#[tokio::test]
async fn half_open_connections_do_not_block() {
    let served = Served::start().await;
    let mut connections = Vec::new();
    for _ in 0..300 {
        let mut connection = TcpStream::connect(served.address).await.expect("the port is open");
        connection.write_all(b"PRI * HT").await.expect("the port takes bytes");
        connections.push(connection);
    }
    let mut columns = served.columns().await;
    columns.get(get("k")).await.expect("other connections are unaffected");
}

#[tokio::test]
async fn serves_health() {
    let served = Served::start().await;
    let mut health = HealthClient::new(served.channel().await);
    for service in ["", "loggos.columns.v1.Columns", "loggos.admin.v1.Admin"] {
        let request = HealthCheckRequest { service: service.into() };
        let status = health.check(request).await.expect("a known service").into_inner().status();
        assert_eq!(status.as_str_name(), "SERVING", "{service:?}");
    }
}

#[tokio::test]
async fn reflection_lists_services() {
    let served = Served::start().await;
    let mut reflection = ServerReflectionClient::new(served.channel().await);
    let request = ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::ListServices(String::new())),
    };
    let mut answers =
        reflection.server_reflection_info(tokio_stream::once(request)).await.expect("a stream").into_inner();
    let answer = answers.message().await.expect("an answer").and_then(|answer| answer.message_response);
    let Some(MessageResponse::ListServicesResponse(list)) = answer else { panic!("{answer:?}") };
    let names: Vec<_> = list.service.into_iter().map(|ServiceResponse { name }| name).collect();
    for name in ["loggos.columns.v1.Columns", "loggos.admin.v1.Admin", "grpc.health.v1.Health"] {
        assert!(names.iter().any(|listed| listed == name), "{name} is not in {names:?}");
    }
}
