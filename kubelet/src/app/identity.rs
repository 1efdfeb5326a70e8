//! The client of the API server, and the certificates of the node. Upstream:
//! `buildKubeletClientConfig`, `InitializeTLS`.

use std::path::PathBuf;
use std::time::Duration;

use futures_lite::FutureExt;
use futures_lite::future::{Boxed, pending};
use k8s_openapi::api::core::v1::Node;
use kube_controller_manager::client::{Client, Config};
use kube_controller_manager::clock::SharedClock;
use kube_controller_manager::task::{self, StopToken};

use super::error::Error;
use crate::causes::chain;
use crate::certificate::{ClientCertificate, Places, ServingCertificate, ServingOptions};
use crate::node::address::NodeAddress;
use crate::node::own::OwnNode;
use crate::options::Settings;

/// How often the addresses for the serving certificate are read.
const ADDRESS_PERIOD: Duration = Duration::from_secs(60);

/// The node's identity at the API server.
pub struct Identity {
    /// `None`: there is no API server.
    pub client: Option<Client>,
    /// `None`: without an API server, where no port takes it.
    pub serving: Option<ServingCertificate>,
    /// Resolves when the certificate is lost, with the reason.
    pub lost: Boxed<&'static str>,
}

/// Makes the client of the API server and the serving certificate, and starts to renew the
/// certificates. Where a bootstrap is asked for, it gets the first client certificate. `None`:
/// stopped meanwhile.
pub async fn establish(
    settings: &Settings,
    own: &OwnNode,
    address: &NodeAddress,
    clock: &SharedClock,
    stop: &StopToken,
) -> Result<Option<Identity>, Error> {
    let configuration = &settings.configuration;
    let mut lost: Boxed<&'static str> = Box::pin(pending());
    let serving = |options: &ServingOptions| {
        let made = ServingCertificate::new(options, own.name(), clock);
        made.map_err(Error::of("the serving certificate"))
    };
    let options = ServingOptions {
        certificate: configuration.tls_cert_file.clone().into(),
        key: configuration.tls_private_key_file.clone().into(),
        is_requested: configuration.server_tls_bootstrap,
        folder: settings.cert_dir.clone().into(),
    };
    if settings.kubeconfig.is_empty() {
        // No API server signs one.
        let options = ServingOptions { is_requested: false, ..options };
        let serving = configuration.serves(false).then(|| serving(&options)).transpose()?;
        return Ok(Some(Identity { client: None, serving, lost }));
    }
    let setting = format!("--kubeconfig {}", settings.kubeconfig);
    let bootstrap = Some(&settings.bootstrap_kubeconfig).filter(|path| !path.is_empty());
    let places = Places {
        kubeconfig: settings.kubeconfig.clone().into(),
        bootstrap: bootstrap.map(PathBuf::from),
        folder: settings.cert_dir.clone().into(),
    };
    let renewed = match configuration.rotate_certificates {
        true => {
            let certificate = ClientCertificate::new(&places, own.name(), clock);
            Some(certificate.map_err(Error::of(setting.as_str()))?)
        }
        false => {
            let bootstrap = places.bootstrap(own.name(), clock);
            let Some(done) = stop.unless_stopped(bootstrap).await else { return Ok(None) };
            done.map_err(Error::of(setting.as_str()))?;
            None
        }
    };
    let mut config = match &renewed {
        Some(certificate) => certificate.config.clone(),
        None => Config::from_kubeconfig(&settings.kubeconfig, None, None)
            .map_err(Error::of(setting.as_str()))?,
    };
    config.qps = configuration.kube_api_qps.into();
    config.burst = configuration.kube_api_burst;
    config.user_agent = "kubelet".to_owned();
    let client = Client::new(config, clock.clone()).map_err(Error::of(setting))?;
    if let Some(certificate) = renewed {
        lost = Box::pin(task::spawn(certificate.run(client.clone())));
    }
    let serving = serving(&options)?;
    if options.is_requested {
        let addresses =
            follow_addresses(serving.clone(), own.clone(), address.clone(), clock.clone());
        let (requests, renewed) = (client.clone(), serving.clone());
        drop(task::spawn(async move { renewed.run(requests).or(addresses).await }));
    }
    Ok(Some(Identity { client: Some(client), serving: Some(serving), lost }))
}

/// Sets the addresses of the Node in the serving certificate, again and again, as they may change.
async fn follow_addresses(
    serving: ServingCertificate,
    own: OwnNode,
    address: NodeAddress,
    clock: SharedClock,
) {
    loop {
        let mut node = Node::clone(&own.get());
        let has_addresses = node.status.as_ref().is_some_and(|status| status.addresses.is_some());
        // Its status is not computed before the runtime is there.
        if !has_addresses && let Err(error) = address.set(&mut node) {
            log::warn!("the serving certificate waits for the node's addresses: {}", chain(&error));
        }
        let addresses = node.status.and_then(|status| status.addresses);
        serving.set_addresses(&addresses.unwrap_or_default());
        clock.sleep(ADDRESS_PERIOD).await;
    }
}
