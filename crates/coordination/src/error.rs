//! The error codes of the ZooKeeper protocol.

macro_rules! codes {
    ($($name:ident = $code:literal, $what:literal;)*) => {
        /// Why a request failed, as ZooKeeper clients know it (`KeeperException.Code`).
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
        pub enum ErrorCode {
            $(#[doc = $what] #[error($what)] $name,)*
        }

        impl ErrorCode {
            /// The error code in the header of a reply.
            #[must_use]
            pub const fn code(self) -> i32 {
                match self { $(Self::$name => $code,)* }
            }

            /// The error with that code.
            #[must_use]
            pub const fn from_code(code: i32) -> Option<Self> {
                match code { $($code => Some(Self::$name),)* _ => None }
            }
        }
    };
}

codes! {
    RuntimeInconsistency = -2, "an earlier operation of the same multi failed";
    Marshalling = -5, "the request could not be decoded";
    Unimplemented = -6, "the operation is not implemented";
    BadArguments = -8, "invalid arguments";
    NoNode = -101, "no such node";
    NoAuth = -102, "not permitted by the node's ACL";
    BadVersion = -103, "the version does not match";
    NoChildrenForEphemerals = -108, "an ephemeral node may not have children";
    NodeExists = -110, "the node exists";
    NotEmpty = -111, "the node has children";
    SessionExpired = -112, "the session has expired";
    InvalidAcl = -114, "invalid ACL";
    AuthFailed = -115, "authentication failed";
    SessionMoved = -118, "the session moved to another server";
    NotReadOnly = -119, "the server is read-only";
    NoWatcher = -121, "no such watch";
    ReconfigDisabled = -123, "reconfiguration is disabled";
}
