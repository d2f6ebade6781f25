//! Replies to writes.

use bytes::Bytes;

use super::Server;
use crate::ErrorCode;
use crate::jute::{Create2Reply, ErrorReply, MultiResult, PathReply, Record, ReplyHeader, StatReply, Writer};
use crate::tree::{MultiError, OperationResult, WriteResult};

impl Server {
    pub(super) fn write_reply(&mut self, xid: i32, result: &Result<WriteResult, ErrorCode>) -> Bytes {
        let zxid = self.state.zxid();
        self.writer.frame(|writer| {
            let err = result.as_ref().map_or_else(|error| error.code(), |_| 0);
            ReplyHeader { xid, zxid, err }.encode(writer);
            match result {
                Err(_) => {}
                Ok(WriteResult::SetAcl(stat)) => stat.encode(writer),
                Ok(WriteResult::Operation(result)) => encode(result, writer),
                Ok(WriteResult::Multi(results)) => {
                    results.iter().for_each(|result| of_multi(result).encode(writer));
                    MultiResult::encode_end(writer);
                }
            }
        })
    }
}

fn encode(result: &OperationResult, writer: &mut Writer) {
    match result {
        OperationResult::Create { path } => PathReply { path }.encode(writer),
        OperationResult::Create2 { path, stat } => Create2Reply { path, stat: *stat }.encode(writer),
        OperationResult::SetData(stat) => stat.encode(writer),
        OperationResult::Delete | OperationResult::Check => {}
    }
}

fn of_multi(result: &Result<OperationResult, MultiError>) -> MultiResult<'_> {
    match result {
        Ok(OperationResult::Create { path }) => MultiResult::Create(PathReply { path }),
        Ok(OperationResult::Create2 { path, stat }) => MultiResult::Create2(Create2Reply { path, stat: *stat }),
        Ok(OperationResult::Delete) => MultiResult::Delete,
        Ok(OperationResult::SetData(stat)) => MultiResult::SetData(StatReply { stat: *stat }),
        Ok(OperationResult::Check) => MultiResult::Check,
        Err(error) => MultiResult::Error(ErrorReply { err: error.map_or(0, ErrorCode::code) }),
    }
}
