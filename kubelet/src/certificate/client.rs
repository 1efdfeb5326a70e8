//! The client certificate of a kubelet that renews it. Upstream: `buildKubeletClientConfig`,
//! `NewKubeletClientCertificateManager`, `UpdateTransport`.

use std::sync::Arc;
use std::time::Duration;

use futures_lite::FutureExt;
use kube_controller_manager::client::{Client, Config, Credentials, Pem, Tls};
use kube_controller_manager::clock::SharedClock;

use super::bootstrap::{Configs, Places};
use super::csr::CLIENT_SIGNER;
use super::key::Template;
use super::manager::{CLOCK_PERIOD, Initial, Manager, Purpose, Wanted};
use super::store::{Pair, Store};
use super::{CLIENT_AUTH, CLIENT_STORE, Error};
use crate::causes::chain;
use crate::metrics::CertificateMetrics;

/// How long there may be no valid certificate although the server answers. Upstream: `exitAfter`.
const LOSS_TIMEOUT: Duration = Duration::from_secs(5 * 60);
/// How often this is checked without a valid certificate.
const LOSS_PERIOD: Duration = Duration::from_secs(10);

/// The client certificate of a kubelet, which is renewed while it runs.
pub struct ClientCertificate {
    /// The configuration of the kubelet's own client, which shows the certificate of the moment.
    pub config: Config,
    bootstrap: Config,
    manager: Arc<Manager>,
    clock: SharedClock,
}

impl ClientCertificate {
    /// Creates the client's configuration and the manager of its certificate. The first certificate
    /// is that of the store, or else of the kubeconfig; or none, until the bootstrap credential has
    /// brought one. An administrator's certificate in the kubeconfig itself is replaced at once.
    /// Reads and writes files, sends nothing.
    pub fn new(places: &Places, node: &str, clock: &SharedClock) -> Result<Self, Error> {
        let Configs { bootstrap, client, is_bootstrapping } = places.configs(clock)?;
        let tls = &client.tls;
        let files = match (&tls.certificate, &tls.key) {
            (Some(Pem::File(certificate)), Some(Pem::File(key))) => {
                Some((certificate.clone(), key.clone()))
            }
            _ => None,
        };
        let store = Store::open(CLIENT_STORE, &places.folder, files)?;
        let stored = match store.current() {
            // Upstream does not start then.
            Err(error) if is_bootstrapping => {
                log::warn!("{}: it is replaced", chain(&error));
                None
            }
            stored => stored?,
        };
        let initial = match (stored, &tls.certificate, &tls.key) {
            (Some(pair), ..) if !pair.is_expired(clock.now()) => Initial::Stored(pair),
            (_, Some(Pem::Inline(certificate)), Some(Pem::Inline(key))) => {
                let pair = Pair::from_pem(certificate, key, "the kubeconfig")?;
                if let Err(error) = store.update(&pair, clock.now()) {
                    log::error!("the kubeconfig's certificate is not written: {}", chain(&error));
                }
                Initial::Replaced(pair)
            }
            _ => Initial::None,
        };
        let metrics = CertificateMetrics::Client;
        let purpose = Purpose { signer: CLIENT_SIGNER, usage: CLIENT_AUTH, metrics };
        let wanted = Wanted::default();
        wanted.set(Some(Template::of_node(node)));
        let manager = Manager::new(purpose, store, wanted, initial, clock.clone());
        let renewed = Some(manager.shown().clone());
        let tls = Tls { certificate: None, key: None, renewed, ..client.tls };
        let (credentials, impersonation) = (Credentials::None, None);
        let config = Config { tls, credentials, impersonation, ..client };
        Ok(ClientCertificate {
            config,
            bootstrap,
            manager: Arc::new(manager),
            clock: clock.clone(),
        })
    }

    /// Renews the certificate until it is lost: the server answers, but for five minutes there has
    /// been no valid certificate. The process has to end then, so that it starts with the bootstrap
    /// credential or with what an administrator has placed. `client` is made of the configuration.
    pub async fn run(self, client: Client) -> &'static str {
        let (bootstrap, clock) = (self.bootstrap, self.clock.clone());
        let client_for = move |has_certificate| match has_certificate {
            true => Ok(client.clone()),
            false => Client::new(bootstrap.clone(), clock.clone()),
        };
        let renewing = async { match self.manager.run(Box::new(client_for)).await {} };
        wait_for_loss(&self.manager, &self.clock).or(renewing).await
    }
}

/// Waits until the certificate is lost, and returns the reason. Upstream: `addCertRotation`.
async fn wait_for_loss(manager: &Manager, clock: &SharedClock) -> &'static str {
    let mut since = None;
    loop {
        let changed = manager.listen();
        let pause = match manager.current() {
            Some(pair) => {
                since = None;
                // It is valid at the last second of its life.
                let rest = pair.leaf.not_after().duration_since(clock.now());
                (rest + Duration::from_secs(1)).min(CLOCK_PERIOD)
            }
            None => {
                let now = clock.monotonic();
                let begin = *since.get_or_insert(now);
                if now - begin > LOSS_TIMEOUT && manager.is_server_healthy() {
                    return "No valid client certificate is found and the server is responsive, \
                            exiting.";
                }
                LOSS_PERIOD
            }
        };
        clock.sleep(pause).or(changed).await;
    }
}

#[cfg(test)]
mod tests {
    use futures_lite::future::{block_on, poll_once};
    use kube_controller_manager::client::{self, Failure, FailureBody, Status};
    use kube_controller_manager::clock::{Clock, FakeClock};
    use kube_controller_manager::objects::Timestamp;

    use super::super::testing::{Folder, authority};
    use super::*;

    const NOW: Timestamp = Timestamp::from_secs(1_800_000_000);
    const HOUR: Duration = Duration::from_secs(3600);

    fn manager(folder: &Folder, clock: &Arc<FakeClock>) -> Manager {
        let store = Store::open(CLIENT_STORE, folder.path(), None).expect("a store");
        let metrics = CertificateMetrics::Client;
        let purpose = Purpose { signer: CLIENT_SIGNER, usage: CLIENT_AUTH, metrics };
        let initial = Initial::Stored(authority().sign("n1", NOW, HOUR));
        Manager::new(purpose, store, Wanted::default(), initial, clock.clone())
    }

    fn answer(code: u16) -> Error {
        let source = client::Error::Status(Box::new(Failure {
            request: "POST /x".to_owned(),
            code,
            retry_after: None,
            body: FailureBody::Text,
            status: Status::default(),
        }));
        Error::Request { doing: "test", source }
    }

    #[test]
    fn certificate_is_lost_after_five_minutes_if_the_server_answers() {
        let folder = Folder::new("client-lost");
        let clock = FakeClock::new(NOW);
        let manager = manager(&folder, &clock);
        let shared: SharedClock = clock.clone();
        let mut lost = Box::pin(wait_for_loss(&manager, &shared));
        let mut is_lost_after = |time: Duration| {
            let end = clock.monotonic() + time;
            while clock.monotonic() < end {
                if block_on(poll_once(&mut lost)).is_some() {
                    return true;
                }
                clock.advance(LOSS_PERIOD.min(end - clock.monotonic()));
            }
            block_on(poll_once(&mut lost)).is_some()
        };
        assert!(!is_lost_after(HOUR), "it is valid for an hour");
        assert!(!is_lost_after(HOUR), "the server does not answer");
        manager.note_answer(&answer(503));
        assert!(!is_lost_after(HOUR));
        manager.note_answer(&answer(401));
        assert!(is_lost_after(LOSS_PERIOD));
    }

    #[test]
    fn expired_certificate_has_five_minutes() {
        let folder = Folder::new("client-expired");
        let clock = FakeClock::new(NOW + HOUR + Duration::from_secs(1));
        let manager = manager(&folder, &clock);
        manager.note_answer(&answer(401));
        let shared: SharedClock = clock.clone();
        let mut lost = Box::pin(wait_for_loss(&manager, &shared));
        for _ in 0..31 {
            assert!(block_on(poll_once(&mut lost)).is_none());
            clock.advance(LOSS_PERIOD);
        }
        assert!(block_on(poll_once(&mut lost)).is_some());
    }
}
