//! The address of the node. Upstream: `nodestatus.NodeAddress`.

use std::io::{self, ErrorKind};
use std::net::UdpSocket;
use std::sync::Arc;

use parking_lot::Mutex;

/// Where it connects from is the address; nothing is sent. Upstream: `ChooseHostInterface`.
const FAR: [Far; 2] = [("0.0.0.0:0", "192.0.2.1:9"), ("[::]:0", "[2001:db8::1]:9")];

/// An unspecified address of a family, and one behind its default route.
type Far = (&'static str, &'static str);

/// The address of the node, which is read when it is needed: a node may start before it has one, and
/// each lease may bring another. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct NodeAddress {
    /// `--node-ip`.
    fixed: Option<String>,
    /// The last one that was found, which stays while none is.
    last: Arc<Mutex<Option<String>>>,
}

impl NodeAddress {
    pub fn new(fixed: Option<String>) -> NodeAddress {
        NodeAddress { fixed, ..Default::default() }
    }

    /// The address of the default route, IPv4 before IPv6; `None`: there never was such a route.
    pub fn now(&self) -> Option<String> {
        self.read(|(any, far)| {
            let socket = UdpSocket::bind(any)?;
            socket.connect(far)?;
            Ok(socket.local_addr()?.ip().to_string())
        })
    }

    fn read(&self, source: impl Fn(Far) -> io::Result<String>) -> Option<String> {
        if self.fixed.is_some() {
            return self.fixed.clone();
        }
        let [v4, v6] = FAR;
        let found = source(v4).or_else(|error| match error.kind() {
            ErrorKind::NetworkUnreachable | ErrorKind::HostUnreachable => source(v6),
            // It says nothing about the route: for instance, there is no descriptor.
            _ => Err(error),
        });
        let mut last = self.last.lock();
        if let Ok(found) = found {
            *last = Some(found);
        }
        last.clone()
    }

    /// Where pods with the node's network listen, without an address on the loopback at least.
    pub fn or_loopback(&self) -> String {
        self.now().unwrap_or_else(|| "127.0.0.1".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;

    use super::*;

    #[test]
    fn last_address_stays_until_another_is_found() {
        let address = NodeAddress::new(None);
        let (lost, lack) = (Err(Errno::NETUNREACH), Err(Errno::MFILE));
        for (v4, v6, expected) in [
            (lack, Ok("fd00::1"), None),
            (lost, lost, None),
            (lost, Ok("fd00::1"), Some("fd00::1")),
            (Ok("10.0.0.1"), Ok("fd00::1"), Some("10.0.0.1")),
            (lack, Ok("fd00::1"), Some("10.0.0.1")),
            (lost, lost, Some("10.0.0.1")),
            (lost, lack, Some("10.0.0.1")),
            (Ok("10.0.0.2"), lost, Some("10.0.0.2")),
            (Err(Errno::HOSTUNREACH), Ok("fd00::2"), Some("fd00::2")),
        ] {
            // All clones have the same.
            let found = address.clone().read(|far| {
                let source = if far == FAR[0] { v4 } else { v6 };
                source.map(str::to_owned).map_err(io::Error::from)
            });
            assert_eq!(found.as_deref(), expected, "{v4:?}, {v6:?}");
        }
        let fixed = NodeAddress::new(Some("10.0.0.9".to_owned()));
        assert_eq!(fixed.read(|_| Ok("10.0.0.1".to_owned())).as_deref(), Some("10.0.0.9"));
    }
}
