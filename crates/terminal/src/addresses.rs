//! The addresses of a cluster on the command line, in the environment, or by default.

use crate::stop::Stop;

/// Default number of nodes of a cluster.
const NODES: u16 = 3;

/// A protocol that nodes serve, with the environment variable of its addresses.
#[derive(Clone, Copy, Debug)]
pub struct Service {
    variable: &'static str,
    /// Node I uses this port plus I by default.
    port_base: u16,
}

/// Clients of the nodes' gRPC services.
pub const GRPC: Service = Service { variable: "LOGGOS_AT", port_base: 7200 };
pub const ZOOKEEPER: Service = Service { variable: "LOGGOS_ZK_AT", port_base: 2180 };

impl Service {
    /// The addresses given with `--at`; else those that `--port-offset` defines; else those of the environment; else
    /// those of a local cluster.
    ///
    /// # Errors
    /// [`Stop::Invalid`] if the offset exceeds the range of ports.
    pub fn endpoints(self, at: &[String], port_offset: Option<u16>) -> Result<Vec<String>, Stop> {
        self.chosen(at, port_offset, std::env::var(self.variable).ok())
    }

    fn chosen(self, at: &[String], port_offset: Option<u16>, variable: Option<String>) -> Result<Vec<String>, Stop> {
        if !at.is_empty() {
            return Ok(at.to_vec());
        }
        if let Some(variable) = variable.filter(|variable| !variable.is_empty() && port_offset.is_none()) {
            return Ok(variable.split(',').map(|address| address.trim().to_owned()).collect());
        }
        let offset = port_offset.unwrap_or(0);
        let port = |node| self.port_base.checked_add(node)?.checked_add(offset);
        (1..=NODES)
            .map(|node| port(node).map(|port| format!("127.0.0.1:{port}")))
            .collect::<Option<_>>()
            .ok_or_else(|| Stop::invalid(format!("--port-offset {offset} exceeds the range of ports")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_take_precedence_over_environment() {
        let at = ["a:1".to_owned()];
        let chosen = |at: &[String], offset, variable: Option<&str>| {
            GRPC.chosen(at, offset, variable.map(str::to_owned)).expect("addresses").join(",")
        };
        assert_eq!(chosen(&at, None, Some("b:1")), "a:1");
        assert_eq!(chosen(&[], Some(100), Some("b:1")), "127.0.0.1:7301,127.0.0.1:7302,127.0.0.1:7303");
        assert_eq!(chosen(&[], Some(0), Some("b:1")), "127.0.0.1:7201,127.0.0.1:7202,127.0.0.1:7203");
        assert_eq!(chosen(&[], None, Some("b:1, c:2")), "b:1,c:2");
        for variable in [None, Some("")] {
            assert_eq!(chosen(&[], None, variable), "127.0.0.1:7201,127.0.0.1:7202,127.0.0.1:7203");
        }
        let zookeeper = ZOOKEEPER.chosen(&[], None, None).expect("addresses");
        assert_eq!(zookeeper[0], "127.0.0.1:2181");
        assert!(GRPC.chosen(&[], Some(60_000), None).is_err());
    }
}
