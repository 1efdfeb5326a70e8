//! Managers with one of the providers that the program has.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cloud::app::controller_table::controllers;
use cloud::controllers::Parts;
use cloud::provider::{Cloud, Settings};
use cloud::providers;
use kube_controller_manager::cache::SharedInformerFactory;
use kube_controller_manager::client::Guard;
use kube_controller_manager::clock::FakeClock;
use kube_controller_manager::controllers::{Controller, ControllerContext, ControllerContextParts};
use kube_controller_manager::options::{Count, Options};
use kube_controller_manager::source::ClientSource;
use kube_controller_manager::task::{self, StopToken, Task};

use crate::env::Env;

/// The provider of this name, with this configuration.
pub fn provider(env: &Env, name: &str, config: &str) -> Arc<dyn Cloud> {
    let file: PathBuf = env.write(&format!("{name}.yaml"), config);
    let settings = Settings { config: Some(file), cluster_name: "test".to_owned() };
    providers::open(name, &settings).expect("a provider")
}

/// A manager with some of the controllers, and those of the provider.
pub struct Manager {
    /// The time of its periods and retries.
    pub clock: Arc<FakeClock>,
    alive: Arc<AtomicBool>,
    stop: StopToken,
    ended: Task<Result<(), String>>,
}

impl Manager {
    pub fn start(env: &Env, cloud: Arc<dyn Cloud>, names: &[&str]) -> Manager {
        let clock = FakeClock::new(env.clock.now());
        let alive = Arc::new(AtomicBool::new(true));
        let guard = alive.clone();
        let client = env.client.guarded(Guard::new(move || guard.load(Ordering::SeqCst)));
        let options = Options {
            concurrent_service_syncs: Count::new(8),
            cluster_cidr: "10.244.0.0/16".into(),
            ..Options::default()
        };
        let source = ClientSource::new(env.client.clone());
        let context = ControllerContext::new(ControllerContextParts {
            options: Arc::new(options),
            factory: SharedInformerFactory::new(source, env.clock.clone()),
            clients: Arc::new(client),
            clock: clock.clone(),
            extension: Some(Arc::new(Parts {
                cloud: cloud.clone(),
                node_status_update_frequency: Duration::from_secs(300),
                concurrent_node_syncs: 2,
                concurrent_node_status_updates: 2,
                concurrent_node_lifecycle_syncs: 2,
            })),
        });
        let rows = controllers();
        let rows = rows.iter().filter(|row| names.contains(&row.name()));
        let mut made: Vec<Controller> =
            rows.map(|row| row.construct(&context).expect("a controller")).collect();
        assert_eq!(made.len(), names.len());
        made.extend(cloud.initialize(&context).expect("controllers"));
        let stop = StopToken::new();
        let stopped = stop.clone();
        let ended = task::spawn(async move { context.run(made, &stopped).await });
        Manager { clock, alive, stop, ended }
    }

    pub async fn stop(self) {
        self.stop.stop();
        assert_eq!(self.ended.await, Ok(()));
    }

    /// As a process that is killed: nothing that it does has an effect on the API server from now
    /// on.
    pub async fn kill(self) {
        self.alive.store(false, Ordering::SeqCst);
        self.stop().await;
    }
}
