//! The start of the kubelet, in upstream's order: identity, runtime, sources, serving, sync loop.
//! Upstream: `cmd/kubelet/app`.

mod admission;
mod enforce;
mod error;
mod identity;
mod requirements;
mod systemd;

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use async_lock::OnceCell;
use futures_lite::FutureExt;
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use kube_controller_manager::client::Client;
use kube_controller_manager::clock::{SharedClock, SystemClock};
use kube_controller_manager::events::EventBroadcaster;
use kube_controller_manager::logging;
use kube_controller_manager::open_files;
use kube_controller_manager::options::{answer, git_version, version};
use kube_controller_manager::source::ClientSource;
use kube_controller_manager::task::{self, StopToken};
use parking_lot::Mutex;
use rustix::process::{Resource, Rlimit, setrlimit};

use self::error::Error;
use self::identity::Identity;
use self::systemd::Systemd;
use crate::allocation::Checkpoint;
use crate::causes::chain;
use crate::certificate::ServingCertificate;
use crate::cgroups::{self, Cgroups, Driver, Hierarchy, SystemCgroups};
use crate::cri::{self, ImageService, RuntimeService, api};
use crate::csi::{CsiDrivers, DriverRegistration, Drivers, NodeInfo};
use crate::events;
use crate::eviction::{self, Signal};
use crate::http::Target;
use crate::images::Images;
use crate::images::credential_plugins::Plugins;
use crate::images::credentials;
use crate::images::gc::ImageGc;
use crate::images::pull_records::PullRecords;
use crate::images::verification_policy::VerificationPolicy;
use crate::kubelet::Kubelet;
use crate::kuberuntime::garbage;
use crate::kuberuntime::logs::Rotation;
use crate::kuberuntime::{Manager, Node};
use crate::locks::Locks;
use crate::metrics;
use crate::node::address::{NodeAddress, NodeIps};
use crate::node::heartbeat::Heartbeats;
use crate::node::lease::LeaseController;
use crate::node::machine_info::{self, MachineInfo};
use crate::node::network::NetworkState;
use crate::node::oom;
use crate::node::own::OwnNode;
use crate::node::pressure::NodePressure;
use crate::node::register::{self, Registration};
use crate::node::resources::{self, NodeResources, PodLimit};
use crate::node::status::Constants;
use crate::node_sync::{self, NodeStartup, NodeSync, Periods, RuntimeWatch};
use crate::objects::Objects;
use crate::objects::folder::{self, LocalObjects};
use crate::options::configuration::{Configuration, JSON};
use crate::options::{self, Command, Settings};
use crate::prober::Probes;
use crate::runtime::backoff::Backoff;
use crate::runtime::dns::Resolvers;
use crate::server::{self, SecurePages, SecurePort, SetVerbosity, StreamLimits};
use crate::shutdown::{self, NodePods, Shutdown, groups};
use crate::sources::{Placement, PodConfig, Source, api as api_pods, file, url};
use crate::status;
use crate::upkeep::{self, Evictions, Upkeep};
use crate::user_namespaces::{HostIds, UserNamespaces};
use crate::volumes::{self, Folders, Parts, Server, VolumeManager};

/// The first delay of a restart. Upstream: `initialBackOff`.
const BACKOFF: Duration = Duration::from_secs(10);
/// Upstream: `CgroupV1DeprecatedWarning`.
const CGROUP_V1_DEPRECATED: &str = "cgroup v1 detected. cgroup v1 support is deprecated and will \
    be removed in a future release. Please migrate to cgroup v2. More information at \
    https://git.k8s.io/enhancements/keps/sig-node/5573-remove-cgroup-v1";
/// What the Node says that this kubelet can do, of the features that others ask for.
/// Upstream: `nodedeclaredfeatures.AllFeatures`.
const DECLARED_FEATURES: [&str; 3] = [
    "InPlacePodLevelResourcesVerticalScaling",
    "InPlacePodVerticalScalingInitContainers",
    "RestartAllContainersOnContainerExits",
];

/// Parses the arguments and runs the kubelet, or prints the help, the version or the error. Call it
/// once, from no task.
pub fn main(args: &[String]) -> ExitCode {
    match options::parse(args) {
        Ok(Command::Run(settings)) => task::run(1, run(*settings)),
        Ok(Command::Help) => answer(Ok(options::usage())),
        Ok(Command::Version(how)) => answer(Ok(version(&how))),
        Err(error) => answer(Err(chain(&error))),
    }
}

/// Runs the kubelet until a signal stops it.
async fn run(settings: Settings) -> ExitCode {
    let clock = SystemClock::shared();
    let log = logging::Settings {
        program: env!("CARGO_CRATE_NAME"),
        json: settings.configuration.logging.format == JSON,
        split: false,
        verbosity: settings.verbosity.0,
        modules: &[],
    };
    let verbosity = logging::init(&log, clock.clone());
    let set_verbosity: SetVerbosity = Arc::new(move |text| verbosity.set(text));
    for field in &settings.ignored_fields {
        log::warn!("{field} has no effect: see docs/kubelet-flags.md");
    }
    set_open_files(&settings.configuration);
    match start(settings, set_verbosity, clock).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            log::error!("{}", chain(&error));
            ExitCode::FAILURE
        }
    }
}

/// Gets the node's identity and serves as that node until a signal, or until the client certificate
/// is lost.
async fn start(
    settings: Settings,
    set_verbosity: SetVerbosity,
    clock: SharedClock,
) -> Result<(), Error> {
    let stop = task::stop_on_signal().map_err(Error::Signals)?;
    requirements::check(&settings.configuration)?;
    let systemd = Arc::new(Systemd::detect()?);
    let (watched, time, ended) = (systemd.clone(), clock.clone(), stop.clone());
    drop(task::spawn(async move { ended.unless_stopped(watched.keep_alive(&time)).await }));
    let machine = MachineInfo::detect();
    let name = node_name(&settings);
    let ips = NodeIps::parse(&settings.node_ip).map_err(Error::Node)?;
    let address = NodeAddress::new(name.clone(), ips, settings.is_cloud_external());
    let own = OwnNode::new(&name, address.clone());
    let identity = identity::establish(&settings, &own, &address, &clock, &stop).await?;
    let Some(Identity { client, serving, lost }) = identity else { return Ok(()) };
    let lost = async { Err(Error::IdentityLost(lost.await)) };
    join_cgroup(&settings.configuration);
    let node = node(&settings, &machine, own);
    let secure = serving.map(|certificate| Secure { certificate, set_verbosity });
    let ends = Ends { client, secure, systemd };
    serve(settings, machine, address, node, ends, clock, stop).or(lost).await
}

/// The ways to the API server and from it, and to what has started this program.
struct Ends {
    /// `None`: there is no API server.
    client: Option<Client>,
    /// `None`: the port with authentication is not served.
    secure: Option<Secure>,
    systemd: Arc<Systemd>,
}

/// What the port with authentication needs before there are pods.
struct Secure {
    certificate: ServingCertificate,
    set_verbosity: SetVerbosity,
}

/// Builds the parts of the kubelet, starts their tasks and ports, and runs the sync loop until the
/// kubelet is stopped.
async fn serve(
    settings: Settings,
    machine: MachineInfo,
    address: NodeAddress,
    node: Node,
    Ends { client, secure, systemd }: Ends,
    clock: SharedClock,
    stop: StopToken,
) -> Result<(), Error> {
    let configuration = &settings.configuration;
    let verification = VerificationPolicy::of(configuration).map_err(Error::Images)?;
    let (name, is_external) = (node.name.clone(), settings.is_cloud_external());
    let broadcaster =
        client.as_ref().map(|client| send_events(client, configuration, &name, &clock));
    events::node_normal(&name, "Starting", "Starting kubelet.");
    let (runtime, images) = connect(configuration, &clock)?;
    let (runtime_name, driver) = check_runtime(&runtime, configuration, &clock, &stop).await?;
    set_oom_score(configuration)?;
    let objects_folder = Some(&settings.objects).filter(|folder| !folder.is_empty());
    let objects_folder = objects_folder.map(PathBuf::from);
    let in_folder = match &objects_folder {
        Some(folder) => folder::first(folder).map_err(Error::of("--local-objects-path"))?,
        None => LocalObjects::default(),
    };
    // The pods that have to be synced again.
    let (again, results) = async_channel::unbounded();
    let objects = Objects::new(in_folder.clone(), clock.clone());
    let objects = Arc::new(match &client {
        Some(client) => {
            let period = configuration.sync_frequency.0;
            let objects = objects.with_server(client, again.clone(), period, &stop);
            let objects = match configuration.projects_trust_bundles() {
                true => objects.with_trust_bundles(client, &stop),
                false => objects,
            };
            match configuration.requests_pod_certificates() {
                true => objects.with_certificates(client, node.own.clone(), &stop),
                false => objects,
            }
        }
        None => objects,
    });
    let folders = Folders {
        root: settings.root.clone().into(),
        logs: configuration.pod_logs_dir.clone().into(),
    };
    folders.make().map_err(Error::Volumes)?;
    let shared = volumes::make_shared(&folders.root);
    shared.map_err(Error::of(format!("--root-dir {}", settings.root)))?;
    let max_backoff = configuration.crash_loop_back_off.max_container_restart_period.0;
    let dead = settings.dead_containers;
    let dead = garbage::Policy {
        min_age: dead.min_age,
        max_per_container: usize::try_from(dead.max_per_container).ok(),
        max_containers: usize::try_from(dead.max).ok(),
    };
    let policy = upkeep::image_policy(configuration)?;
    let pull_records = match verification {
        Some(policy) => {
            let opened = PullRecords::open(&folders.root, policy, clock.clone(), &images);
            Some(opened.await.map_err(Error::Images)?)
        }
        None => None,
    };
    let image_gc =
        ImageGc::new(images.clone(), runtime.clone(), clock.clone(), policy, pull_records.clone());
    let image_gc = Arc::new(image_gc);
    let enforced = enforce::Keys::of(configuration)?;
    let limits_pods = enforced.pods && configuration.cgroups_per_qos;
    let evictions = upkeep::evictions(configuration, limits_pods, node.pressure.clone())?;
    let resources = resources(configuration, &machine, &folders.root, &evictions)?;
    let cgroups = make_cgroups(configuration, &node, driver)?;
    if let Some(cgroups) = &cgroups {
        let settings = enforce::Settings { keys: enforced, configuration, resources: &resources };
        enforce::start(cgroups, &settings, &name, &clock, &stop)?;
    }
    let rotation = upkeep::log_policy(configuration)?;
    let rotation = rotation.map(|policy| Rotation::new(runtime.clone(), clock.clone(), policy));
    let plugins = match settings.credential_providers.get() {
        Some((config, programs)) => Some(
            Plugins::read(config, programs, clock.clone())
                .map_err(Error::of("--image-credential-provider-config"))?,
        ),
        None => None,
    };
    let volume_server = client.as_ref().map(|client| Server {
        client: client.clone(),
        csi_drivers: CsiDrivers::start(ClientSource::new(client.clone()), clock.clone(), &stop),
        csi_node: NodeInfo::new(client.clone(), node.own.clone(), clock.clone()),
    });
    let node_sync = NodeSync {
        own: node.own.clone(),
        registration: Registration {
            name: name.clone(),
            labels: settings.node_labels.0.clone(),
            taints: configuration.register_with_taints.0.clone(),
            provider_id: configuration.provider_id.clone(),
            is_external,
            controller_attaches: configuration.enable_controller_attach_detach,
            former_devices: register::former_devices(&folders.root),
        },
        registers: configuration.register_node,
        constants: Arc::new(Constants {
            machine,
            resources,
            kubelet_version: git_version().to_owned(),
            runtime_name: runtime_name.clone(),
            kubelet_port: configuration.port.into(),
            max_images: usize::try_from(configuration.node_status_max_images).ok(),
            counts_storage: configuration.local_storage_capacity_isolation,
            declared_features: DECLARED_FEATURES.map(str::to_owned).into(),
        }),
        address,
        pressure: node.pressure.clone(),
        runtime: RuntimeWatch::new(
            runtime.clone(),
            images.clone(),
            node.network.clone(),
            clock.clone(),
        ),
        csi_node: volume_server.as_ref().map(|server| server.csi_node.clone()),
        clock: clock.clone(),
        periods: Periods {
            update: configuration.node_status_update_frequency.0,
            report: configuration.node_status_report_frequency.0,
        },
        startup: Mutex::new(NodeStartup::new(machine_info::boot_time(), clock.now())),
        state: node_sync::State::default(),
    };
    node_sync.runtime.set_pod_cidr(&configuration.pod_cidr).await;
    node_sync.prepare().await;
    let user_namespaces = user_namespaces(configuration, &folders)?;
    let checkpoint = |name: &str| Checkpoint::open(folders.root.join(name));
    let allocated = checkpoint("allocated_pods_state").map_err(Error::Allocation)?;
    let actuated = checkpoint("actuated_pods_state").map_err(Error::Allocation)?;
    let parts = Parts {
        folders: folders.clone(),
        own: node.own.clone(),
        objects: objects.clone(),
        drivers: Drivers::default(),
        server: volume_server,
        controller_attaches: configuration.enable_controller_attach_detach,
        usage_period: Some(configuration.volume_stats_agg_period.0)
            .filter(|period| !period.is_zero()),
        clock: clock.clone(),
        again: again.clone(),
    };
    let volumes = keep_volumes(parts, &stop);
    let manager = Manager {
        actuated,
        user_namespaces: Arc::new(user_namespaces),
        cgroups,
        classes: Arc::default(),
        cgroup_features: OnceCell::new(),
        dead,
        images: Images::new(
            images,
            clock.clone(),
            configuration.max_parallel_pulls().map_err(Error::Options)?,
            credentials::Files::new(
                Path::new(&settings.root),
                std::env::var_os("HOME").as_deref().map(Path::new),
            ),
            plugins,
            objects.clone(),
            pull_records,
        ),
        objects,
        probes: Probes::new(runtime.clone(), folders.clone(), clock.clone(), again, stop.clone()),
        runtime,
        runtime_name,
        folders,
        volumes,
        node: node.clone(),
        clock: clock.clone(),
        backoff: Backoff::new(BACKOFF, max_backoff).into(),
        starts: Locks::default(),
    };
    let (config, updates) = PodConfig::new(clock.clone());
    let mut sources = start_sources(&settings, &node.name, &config, &clock, &stop)?;
    if let Some(client) = &client {
        drop(task::spawn(api_pods::run(
            ClientSource::new(client.clone()),
            node.own.clone(),
            config.clone(),
            clock.clone(),
            stop.clone(),
        )));
        sources.insert(Source::Api);
    }
    if sources.is_empty() {
        log::warn!(
            "there is no source of pods: --pod-manifest-path, --manifest-url or --kubeconfig names one"
        );
    }
    let shutdown_groups = groups::of(configuration).map_err(Error::Shutdown)?;
    let admission = admission::admission(configuration, client.as_ref(), &node.name, &clock)?;
    let period = configuration.sync_frequency.0;
    let kubelet = Kubelet::new(manager, admission, allocated, sources, period);
    if let Some(folder) = objects_folder {
        let users = kubelet.clone();
        let changed = move |keys| users.sync_users(&keys);
        let period = configuration.file_check_frequency.0;
        let (clock, stop) = (clock.clone(), stop.clone());
        drop(task::spawn(folder::run(folder, period, in_folder, changed, clock, stop)));
    }
    match &client {
        None => {
            node.own.set_standalone();
            let stop = stop.clone();
            drop(task::spawn(async move { node_sync.run_standalone(stop).await }));
        }
        Some(client) => keep_node(client, node_sync, &kubelet, configuration, &clock, &stop),
    }
    if let Some(client) = client.clone() {
        let (changes, pods) = (kubelet.changes(), kubelet.clone());
        let manager =
            status::manager::Manager { pods, client, node: node.own.clone(), clock: clock.clone() };
        drop(task::spawn(manager.run(changes, stop.clone())));
    }
    metrics::register();
    metrics::NODE_NAME.with_label_values(&[&node.name]).set(1);
    report_cgroup_version(&node.name);
    let upkeep = Upkeep {
        kubelet: kubelet.clone(),
        dead,
        images: image_gc,
        keeps_images: policy.is_off(),
        rotation,
        evictions,
    };
    drop(task::spawn(upkeep.run(stop.clone())));
    if !shutdown_groups.is_empty() {
        let shutdown = Shutdown {
            pods: Arc::new(NodePods(kubelet.clone())),
            groups: shutdown_groups,
            node: node.name.clone(),
            clock: clock.clone(),
            paths: shutdown::Paths::new(Path::new(&settings.root)),
        };
        drop(task::spawn(shutdown.run(stop.clone())));
    }
    let (name, ended) = (node.name.clone(), stop.clone());
    drop(task::spawn(async move { ended.unless_stopped(oom::watch(&name)).await.unwrap_or(()) }));
    let checks = server::checks(&kubelet);
    let (address, port) = (&configuration.healthz_bind_address, configuration.healthz_port);
    let routes = server::health_routes(&checks);
    let health = server::serve(server::HEALTHZ, address, port, routes, &clock, &stop)?;
    let (address, port) = (&configuration.address, configuration.read_only_port);
    let routes = server::read_only_routes(&kubelet, &checks, &node);
    let read_only = server::serve(server::READ_ONLY, address, port, routes, &clock, &stop)?;
    let secure = match secure.filter(|_| configuration.serves(client.is_some())) {
        Some(Secure { certificate, set_verbosity }) => {
            let limits = StreamLimits {
                idle: configuration.streaming_connection_idle_timeout.0,
                clock: clock.clone(),
                stop: stop.clone(),
            };
            let (kubelet, checks, settings) = (&kubelet, &checks, &settings);
            let pages = SecurePages { kubelet, checks, settings, set_verbosity, limits };
            let port = SecurePort {
                configuration,
                client: client.as_ref(),
                certificate,
                node: &node.name,
                clock: &clock,
                stop: &stop,
            };
            Some(port.serve(&pages.routes()).await?)
        }
        None => None,
    };
    systemd.report_started(&kubelet);
    log::info!("Starting kubelet main sync loop on node {}", node.name);
    kubelet.run(updates, results, stop).await;
    for server in [health, read_only, secure].into_iter().flatten() {
        server.join().await;
    }
    if let Some(broadcaster) = broadcaster {
        broadcaster.shutdown().await;
    }
    Ok(())
}

/// Finds the ids that pods with user namespaces get.
fn user_namespaces(
    configuration: &Configuration,
    folders: &Folders,
) -> Result<UserNamespaces, Error> {
    // A larger number is refused too: it is no multiple of 65536.
    let per_pod = u32::try_from(configuration.user_namespaces.ids_per_pod).unwrap_or(u32::MAX);
    let max_pods = u32::try_from(configuration.max_pods).unwrap_or_default();
    let ids = HostIds::detect(per_pod).map_err(Error::UserNamespaces)?;
    UserNamespaces::new(folders.pods(), ids, per_pod, max_pods).map_err(Error::UserNamespaces)
}

/// Sends events to the API server too, within their own limits.
fn send_events(
    client: &Client,
    configuration: &Configuration,
    name: &str,
    clock: &SharedClock,
) -> EventBroadcaster {
    let burst = u32::try_from(configuration.event_burst).unwrap_or_default();
    let client = client.with_limits(configuration.event_record_qps.into(), burst);
    let broadcaster = EventBroadcaster::new(client, clock.clone());
    events::send_to(broadcaster.recorder_on("kubelet", name));
    broadcaster
}

/// Starts the tasks that keep the Node and its lease up to date in the API server.
fn keep_node(
    client: &Client,
    node_sync: NodeSync,
    kubelet: &Arc<Kubelet>,
    configuration: &Configuration,
    clock: &SharedClock,
    stop: &StopToken,
) {
    let own = node_sync.own.clone();
    let (source, time, ended) = (ClientSource::new(client.clone()), clock.clone(), stop.clone());
    let name = own.name().to_owned();
    drop(task::spawn(async move { own.follow(source, time, ended).await }));
    let duration = configuration.node_lease_duration_seconds.unsigned_abs();
    // No request takes longer than its result is of use.
    let limit = configuration.node_status_update_frequency.0;
    let limit = limit.min(Duration::from_secs(duration.into()));
    let heartbeats = Heartbeats::new(client, clock.clone(), limit);
    let lease = LeaseController::new(heartbeats.clone(), name, duration);
    drop(task::spawn(lease.run(stop.clone())));
    let (kubelet, stop) = (kubelet.clone(), stop.clone());
    drop(task::spawn(async move { node_sync.run(&heartbeats, &kubelet, stop).await }));
}

/// Starts the task that registers drivers, and the volume manager, which is returned.
fn keep_volumes(parts: Parts, stop: &StopToken) -> VolumeManager {
    let server = parts.server.as_ref();
    let server = server.map(|server| (server.csi_node.clone(), server.csi_drivers.clone()));
    let node = server.as_ref().map(|(node, _)| node.clone());
    let registration = DriverRegistration {
        folder: parts.folders.plugin_sockets(),
        drivers: parts.drivers.clone(),
        server,
        clock: parts.clock.clone(),
    };
    drop(task::spawn(registration.run(stop.clone())));
    if let Some(node) = node {
        let stop = stop.clone();
        drop(task::spawn(
            async move { stop.unless_stopped(node.initialize()).await.unwrap_or(()) },
        ));
    }
    let volumes = VolumeManager::new(parts);
    drop(task::spawn(volumes.clone().run(stop.clone())));
    volumes
}

/// Computes what the machine has, and what is reserved of it.
fn resources(
    configuration: &Configuration,
    machine: &MachineInfo,
    root: &Path,
    evictions: &Evictions,
) -> Result<NodeResources, Error> {
    let disk = rustix::fs::statvfs(root).map_err(|error| {
        Error::of(format!("--root-dir {}", root.display()))(io::Error::from(error))
    })?;
    let disk_bytes = i64::try_from(disk.f_blocks.saturating_mul(disk.f_frsize)).unwrap_or(i64::MAX);
    let storage = configuration.local_storage_capacity_isolation.then_some(disk_bytes);
    let pods = PodLimit {
        max: configuration.max_pods.into(),
        per_core: configuration.pods_per_core.into(),
    };
    let thresholds = evictions.watch.lock().thresholds().to_vec();
    let evicted = [
        ("memory", Signal::MemoryAvailable, Some(machine.memory_bytes)),
        ("ephemeral-storage", Signal::NodeFsAvailable, storage),
    ];
    let evicted = evicted.into_iter().filter_map(|(name, signal, capacity)| {
        let reserved = eviction::reserved(&thresholds, signal, capacity?);
        Some((name.to_owned(), resources::bytes(reserved)))
    });
    let mut resources = NodeResources {
        capacity: resources::capacity(machine, pods, storage),
        hard_eviction: evicted.collect(),
        ..NodeResources::default()
    };
    let (system, kube) = (&configuration.system_reserved.0, &configuration.kube_reserved.0);
    let cpus = configuration.reserved_cpus().map_err(Error::Options)?;
    let parsed = resources.parse_reserved(system, kube, cpus);
    parsed.and_then(|()| resources.check()).map_err(Error::Node)?;
    Ok(resources)
}

/// Returns the clients of the runtime and of its images. They share a channel, unless the
/// configuration names another socket for images.
fn connect(
    configuration: &Configuration,
    clock: &SharedClock,
) -> Result<(RuntimeService, ImageService), Error> {
    let endpoint = configuration.container_runtime_endpoint.as_str();
    let deadline = configuration.runtime_request_timeout.0;
    let channel = cri::channel(&socket("container-runtime-endpoint", endpoint)?, clock.clone());
    let images = match configuration.image_service_endpoint.as_str() {
        "" => channel.clone(),
        own if own == endpoint => channel.clone(),
        own => cri::channel(&socket("image-service-endpoint", own)?, clock.clone()),
    };
    Ok((RuntimeService::new(channel, deadline), ImageService::new(images, deadline)))
}

/// Returns the path of the socket that an endpoint names, with or without `unix://`.
fn socket(flag: &'static str, endpoint: &str) -> Result<PathBuf, Error> {
    let path = endpoint.strip_prefix("unix://").unwrap_or(endpoint);
    match Path::new(path).is_absolute() {
        true => Ok(path.into()),
        false => Err(Error::NotSocket { flag, endpoint: endpoint.to_owned() }),
    }
}

/// Waits until the runtime answers, and returns its name and the driver of cgroups: that of the
/// runtime, or the configured one if the runtime names none. Upstream: `NewRemoteRuntimeService`,
/// `updateRuntimeUp`.
async fn check_runtime(
    runtime: &RuntimeService,
    configuration: &Configuration,
    clock: &SharedClock,
    stop: &StopToken,
) -> Result<(String, Driver), Error> {
    let configured = match configuration.cgroup_driver.as_str() {
        "" | "cgroupfs" => Driver::Cgroupfs,
        "systemd" => Driver::Systemd,
        other => return Err(Error::UnknownDriver(other.to_owned())),
    };
    let mut fault = String::new();
    let version = loop {
        match runtime.version(api::VersionRequest { version: "0.1.0".to_owned() }).await {
            Ok(version) => break version,
            Err(error) if error.is_unimplemented() => return Err(Error::RuntimeTooOld),
            Err(error) => {
                let now = chain(&error);
                if now != fault {
                    log::warn!("{now}; waiting for it");
                    fault = now;
                }
            }
        }
        if stop.unless_stopped(clock.sleep(Duration::from_secs(1))).await.is_none() {
            return Err(Error::Stopped);
        }
    };
    log::info!("container runtime {} {}", version.runtime_name, version.runtime_version);
    let driver = match runtime.runtime_config(api::RuntimeConfigRequest {}).await {
        Ok(config) => match config.linux.map(|linux| linux.cgroup_driver()) {
            Some(api::CgroupDriver::Systemd) => Driver::Systemd,
            Some(api::CgroupDriver::Cgroupfs) => Driver::Cgroupfs,
            None => configured,
        },
        // Runtimes before CRI 1.28.
        Err(error) if error.is_unimplemented() => {
            log::info!("the runtime does not name its cgroup driver: {configured:?} is used");
            configured
        }
        Err(error) => return Err(error.into()),
    };
    let status = runtime.status(api::StatusRequest { verbose: false }).await?.status;
    let conditions = status.unwrap_or_default().conditions;
    for condition in conditions.iter().filter(|condition| !condition.status) {
        log::warn!("the runtime's condition {}: {}", condition.r#type, condition.message);
    }
    Ok((version.runtime_name, driver))
}

/// Sets the kubelet's OOM score, so that it is among the last processes that the kernel ends for
/// memory. Fails only if the score is out of range: one that cannot be set is logged.
fn set_oom_score(configuration: &Configuration) -> Result<(), Error> {
    let score = configuration.oom_score_adj;
    if !(-1000..=1000).contains(&score) {
        return Err(Error::ScoreOutOfRange(score));
    }
    if let Err(error) = std::fs::write("/proc/self/oom_score_adj", score.to_string()) {
        log::warn!("Failed to apply oom_score_adj {score}: {error}");
    }
    Ok(())
}

/// Sets the limits of open files of this process and of its children, as upstream, or else raises
/// the soft limit to the hard one.
fn set_open_files(configuration: &Configuration) {
    let limit = u64::try_from(configuration.max_open_files).ok().filter(|limit| *limit > 0);
    let Some(limit) = limit else {
        return open_files::raise_limit();
    };
    let limits = Rlimit { current: Some(limit), maximum: Some(limit) };
    if let Err(error) = setrlimit(Resource::Nofile, limits) {
        log::warn!("Failed to set rlimit on max file handles: {error}");
        open_files::raise_limit();
    }
}

/// Moves this process to the cgroup of the configuration. Where that is not possible it stays in
/// its own, as upstream.
fn join_cgroup(configuration: &Configuration) {
    let path = configuration.kubelet_cgroups.as_str();
    if path.is_empty() {
        return;
    }
    let hierarchy = Hierarchy::detect().map_err(io::Error::other);
    let joined = hierarchy.and_then(|hierarchy| cgroups::join(&hierarchy, path));
    if let Err(error) = joined {
        log::warn!("kubeletCgroups (--kubelet-cgroups): {error}");
    }
}

/// Creates the manager of cgroups; `None`: without cgroups of classes.
fn make_cgroups(
    configuration: &Configuration,
    node: &Node,
    driver: Driver,
) -> Result<Option<Arc<Cgroups>>, Error> {
    if !configuration.cgroups_per_qos {
        return Ok(None);
    }
    let settings = cgroups::Settings {
        root: node.cgroup_root.clone(),
        driver,
        pids_limit: Some(configuration.pod_pids_limit).filter(|limit| *limit > 0),
        page_sizes: node.page_sizes.clone(),
    };
    let hierarchy = Hierarchy::detect().map_err(Error::Cgroups)?;
    Ok(Some(Arc::new(Cgroups::new(&settings, hierarchy))))
}

/// Starts to read static pods from the folder and the URL of the configuration, and returns these
/// sources.
fn start_sources(
    settings: &Settings,
    node: &str,
    config: &PodConfig,
    clock: &SharedClock,
    stop: &StopToken,
) -> Result<BTreeSet<Source>, Error> {
    let configuration = &settings.configuration;
    let to = Placement { node: node.to_owned(), has_objects: !settings.objects.is_empty() };
    let mut sources = BTreeSet::new();
    if !configuration.static_pod_path.is_empty() {
        let path = &configuration.static_pod_path;
        let period = configuration.file_check_frequency.0;
        log::info!("Adding static pod path {path}");
        drop(task::spawn(file::run(
            path.into(),
            to.clone(),
            period,
            config.clone(),
            clock.clone(),
            stop.clone(),
        )));
        sources.insert(Source::File);
    }
    if !configuration.static_pod_url.is_empty() {
        let target =
            Target::parse(&configuration.static_pod_url).map_err(Error::of("--manifest-url"))?;
        let period = configuration.http_check_frequency.0;
        let headers = headers(configuration)?;
        drop(task::spawn(url::run(
            target,
            headers,
            to,
            period,
            config.clone(),
            clock.clone(),
            stop.clone(),
        )));
        sources.insert(Source::Http);
    }
    Ok(sources)
}

/// Parses the headers that are sent to `--manifest-url`.
fn headers(configuration: &Configuration) -> Result<HeaderMap, Error> {
    let mut headers = HeaderMap::new();
    for (name, values) in &configuration.static_pod_url_header.0 {
        let setting = format!("--manifest-url-header {name:?}");
        let header = HeaderName::try_from(name).map_err(Error::of(&setting))?;
        for value in values {
            let value = HeaderValue::try_from(value).map_err(Error::of(&setting))?;
            headers.append(&header, value);
        }
    }
    Ok(headers)
}

/// Returns the name of the Node: the given one, else the machine's, in lower case. Upstream:
/// `nodeutil.GetHostname`.
fn node_name(settings: &Settings) -> String {
    let machine = rustix::system::uname();
    let name = match settings.hostname.as_str() {
        "" => machine.nodename().to_string_lossy(),
        own => own.into(),
    };
    name.trim().to_lowercase()
}

/// Returns what the other parts of the kubelet need of their node.
fn node(settings: &Settings, machine: &MachineInfo, own: OwnNode) -> Node {
    let configuration = &settings.configuration;
    let resolver = Some(&configuration.resolv_conf).filter(|file| !file.is_empty());
    let resolvers = Resolvers {
        host: resolver.map(PathBuf::from),
        cluster_servers: configuration.cluster_dns.clone(),
        cluster_domain: configuration.cluster_domain.clone(),
    };
    Node {
        name: own.name().to_owned(),
        own,
        pressure: NodePressure::new(configuration.eviction_pressure_transition_period.0),
        network: NetworkState::default(),
        cpus: machine.cpus,
        memory_bytes: machine.memory_bytes,
        page_sizes: machine.page_sizes.clone(),
        resolvers,
        cgroup_root: configuration.cgroup_root.clone(),
        system_cgroups: SystemCgroups::detect(
            &configuration.kubelet_cgroups,
            &settings.runtime_cgroups,
        ),
        seccomp_default: configuration.seccomp_default,
        single_process_oom_kill: configuration.single_process_oom_kill == Some(true),
    }
}

/// Returns the version of cgroups: 2 where the unified hierarchy is mounted.
fn cgroup_version() -> i64 {
    if Path::new("/sys/fs/cgroup/cgroup.controllers").exists() { 2 } else { 1 }
}

/// Sets the metric of the version of cgroups. Version 1 is an event of the node too. Upstream:
/// `cgroupVersionCheck`.
fn report_cgroup_version(node: &str) {
    let version = cgroup_version();
    metrics::CGROUP_VERSION.set(version);
    if version == 1 {
        events::node_warning(node, "CgroupV1", CGROUP_V1_DEPRECATED);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_paths_of_sockets() {
        assert_eq!(socket("f", "unix:///a/b").ok().as_deref(), Some(Path::new("/a/b")));
        assert_eq!(socket("f", "/a").ok().as_deref(), Some(Path::new("/a")));
        let fault = socket("f", "tcp://a").expect_err("not a socket");
        assert_eq!(fault.to_string(), "--f: \"tcp://a\" is not unix:///PATH");
    }
}
