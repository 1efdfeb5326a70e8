//! The address of the node. Upstream: `nodestatus.NodeAddress`.

use std::net::UdpSocket;

/// Where it connects from is the address; nothing is sent. Upstream: `ChooseHostInterface`.
const FAR: [(&str, &str); 2] = [("0.0.0.0:0", "192.0.2.1:9"), ("[::]:0", "[2001:db8::1]:9")];

/// The address of the node, which is read when it is needed: a node may start before it has one, and
/// each lease may bring another.
#[derive(Clone, Debug)]
pub struct NodeAddress {
    /// `--node-ip`.
    fixed: Option<String>,
}

impl NodeAddress {
    pub fn new(fixed: Option<String>) -> NodeAddress {
        NodeAddress { fixed }
    }

    /// The address of the default route, IPv4 before IPv6; `None`: there is no such route.
    pub fn now(&self) -> Option<String> {
        let from = |(any, far): (&str, &str)| {
            let socket = UdpSocket::bind(any).ok()?;
            socket.connect(far).ok()?;
            Some(socket.local_addr().ok()?.ip().to_string())
        };
        self.fixed.clone().or_else(|| FAR.into_iter().find_map(from))
    }

    /// Where pods with the node's network listen, without an address on the loopback at least.
    pub fn or_loopback(&self) -> String {
        self.now().unwrap_or_else(|| "127.0.0.1".to_owned())
    }
}
