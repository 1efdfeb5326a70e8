//! A client certificate that the process itself renews.

use std::fmt;
use std::sync::Arc;

use event_listener::{Event, EventListener};
use parking_lot::Mutex;

use super::Pair;
use crate::task;

/// A client certificate that is renewed while the process runs; all clones are one. Clients show it
/// on new connections from then on, and restart their watches when it replaces another one. Before
/// the first one is set they show none. Upstream: `tls.Config.GetClientCertificate` with
/// `connrotation.Dialer`.
#[derive(Clone, Default)]
pub struct RenewedCertificate(Arc<Renewed>);

#[derive(Default)]
struct Renewed {
    pair: Mutex<Option<Pair>>,
    /// Notified when another certificate is set.
    more: Event,
}

impl RenewedCertificate {
    /// Shows this certificate, with its chain, from now on. Both are in PEM, and the key is the
    /// certificate's: otherwise requests fail.
    pub fn set(&self, certificate: Vec<u8>, key: Vec<u8>) {
        *self.0.pair.lock() = Some(Pair { certificate, key });
        task::notify_all(&self.0.more);
    }

    pub(in crate::client) fn pair(&self) -> Option<Pair> {
        self.0.pair.lock().clone()
    }

    /// Resolves when a certificate is set after this call.
    pub(in crate::client) fn listen(&self) -> EventListener {
        self.0.more.listen()
    }
}

impl PartialEq for RenewedCertificate {
    fn eq(&self, other: &RenewedCertificate) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for RenewedCertificate {}

impl fmt::Debug for RenewedCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RenewedCertificate")
    }
}
