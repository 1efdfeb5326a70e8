//! The resources of pods' volumes that API servers of different releases serve in different
//! versions, or not at all.

use std::time::Duration;

use kube_controller_manager::client::{self, Client, Versions};
use kube_controller_manager::clock::SharedClock;
use kube_controller_manager::objects::{PodCertificateRequest, Resource, ResourceType};

/// The bundles. The client asks for them in the version that the server serves.
pub(super) const BUNDLES: ResourceType = ResourceType::fixed(
    "certificates.k8s.io",
    "v1beta1",
    "ClusterTrustBundle",
    "clustertrustbundles",
    false,
);

/// Each with the versions that the kubelet can use, the best one first.
const SERVED_VERSIONS: &[Versions] = &[
    (BUNDLES, &["v1", "v1beta1", "v1alpha1"]),
    (PodCertificateRequest::RESOURCE, &["v1", "v1beta1"]),
];

/// The pause after a failure, and the first one after the answer that a resource is not served.
const MIN_PAUSE: Duration = Duration::from_secs(10);
/// The longest pause while a resource is not served.
const MAX_PAUSE: Duration = Duration::from_secs(5 * 60);

/// Waits until the API server serves one of these resources, which requests ask for in its best
/// version from then on. `report` gets each other answer: the fault, or `None` if the resource is
/// not served. May be dropped at any time.
pub(super) async fn until_served(
    client: &Client,
    clock: &SharedClock,
    resource: &ResourceType,
    report: impl Fn(Option<client::Error>) + Send,
) {
    let mut pause = MIN_PAUSE;
    loop {
        let wait = match is_served(client, resource).await {
            Ok(Some(true)) => return,
            Ok(Some(false)) => {
                if pause == MIN_PAUSE {
                    log::info!(
                        "No version of the {} API was found: its informer starts once there is one",
                        resource.kind
                    );
                }
                report(None);
                let wait = pause;
                pause = (pause * 2).min(MAX_PAUSE);
                wait
            }
            Ok(None) => {
                log::warn!("the served versions of {} cannot be read", resource.group);
                MIN_PAUSE
            }
            Err(error) => {
                log::warn!("the served versions of {} cannot be read: {error}", resource.group);
                report(Some(error));
                MIN_PAUSE
            }
        };
        clock.sleep(wait).await;
    }
}

/// Asks the API server whether it serves a resource in one of its versions; `None`: its group
/// cannot be read.
async fn is_served(client: &Client, resource: &ResourceType) -> client::Result<Option<bool>> {
    client.choose_versions(SERVED_VERSIONS).await?;
    let (found, chosen) = (client.discovery().await?, client.served(resource));
    let is_served = found.resource_for(&chosen.group, &chosen.version, &chosen.kind).is_some();
    Ok((is_served || !found.has_failure_in(&chosen.group)).then_some(is_served))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use futures_lite::FutureExt;
    use kube_controller_manager::clock::{Clock, Sleep, SystemClock};
    use kube_controller_manager::objects::Timestamp;
    use kube_controller_manager::task;
    use parking_lot::Mutex;
    use sandbox::cluster::administrator;
    use sandbox::{Sandbox, SandboxOptions};

    use super::*;

    /// A clock that sleeps no time, and records for how many seconds it should.
    #[derive(Default)]
    struct Pauses(Mutex<Vec<u64>>);

    impl Clock for Pauses {
        fn now(&self) -> Timestamp {
            SystemClock.now()
        }

        fn monotonic(&self) -> Duration {
            SystemClock.monotonic()
        }

        fn sleep(&self, duration: Duration) -> Sleep {
            self.0.lock().push(duration.as_secs());
            Box::pin(std::future::ready(()))
        }
    }

    #[test]
    fn resource_that_is_not_served_is_waited_for() {
        for (name, resource, version) in [
            ("bundles-v1", BUNDLES, "v1"),
            ("bundles-v1alpha1", BUNDLES, "v1alpha1"),
            ("requests-v1beta1", PodCertificateRequest::RESOURCE, "v1beta1"),
        ] {
            task::run(1, async move {
                let name = format!("kubelet-served-{name}-{}", std::process::id());
                let folder = std::env::temp_dir().join(name);
                let options = SandboxOptions { minor: 36, ..SandboxOptions::new(&folder) };
                let sandbox = Sandbox::start(options).await.expect("the sandbox starts");
                sandbox.api().serve_versions(&resource.kind, &[]);
                let system = SystemClock::shared();
                let client = administrator(&sandbox.kubeconfig(), "test", &system);
                let client = client.expect("a client");
                let clock = Arc::new(Pauses::default());
                let shared: SharedClock = clock.clone();
                let serve = |fault: Option<client::Error>| {
                    assert!(fault.is_none(), "{fault:?}");
                    // This answer is the seventh one.
                    if clock.0.lock().len() == 6 {
                        sandbox.api().serve_versions(&resource.kind, &[version]);
                    }
                };
                until_served(&client, &shared, &resource, serve).await;
                assert_eq!(*clock.0.lock(), [10, 20, 40, 80, 160, 300, 300]);
                assert_eq!(client.served(&resource).version, version);
                sandbox.stop().await;
                let _ = std::fs::remove_dir_all(&folder);
            });
        }
    }

    #[test]
    fn server_that_is_away_is_asked_each_ten_seconds() {
        task::run(1, async {
            let config = client::Config::new("http://127.0.0.1:1".to_owned());
            let client = Client::new(config, SystemClock::shared()).expect("a client");
            let clock = Arc::new(Pauses::default());
            let shared: SharedClock = clock.clone();
            let (sender, faults) = async_channel::unbounded();
            let report = |fault| sender.try_send(fault).expect("it is read");
            let served = async {
                until_served(&client, &shared, &BUNDLES, report).await;
                panic!("it is served");
            };
            let failed = async {
                for _ in 0..3 {
                    assert!(faults.recv().await.expect("an answer").is_some());
                }
            };
            served.or(failed).await;
            assert!(clock.0.lock().iter().all(|pause| *pause == 10));
        });
    }
}
