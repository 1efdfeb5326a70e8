//! A CSI driver for tests: its volumes are folders. It runs in the test's process, where it makes
//! folders in place of mounts, or in a machine of containers, where it mounts.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::convert::Infallible;
use std::fs;
use std::io::{self, Write};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use async_io::{Async, Timer};
use futures_lite::stream;
use grpc::{Code, Executor, frame, message_of};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::header::{HeaderMap, HeaderValue};
use hyper::server::conn::http2::Builder;
use hyper::service::service_fn;
use hyper::{Request, Response};
use kube_controller_manager::task::{self, StopToken};
use kubelet::csi::api::node_service_capability::{Rpc, Type};
use kubelet::csi::api::volume_usage::Unit;
use kubelet::csi::api::{self, NodeServiceCapability};
use kubelet::csi::registration_api as registration;
use parking_lot::Mutex;
use prost::Message;
use rustix::mount::{MountFlags, UnmountFlags, mount_bind, mount_remount, unmount};
use smol_hyper::rt::FuturesIo;

/// Its name.
pub const DRIVER: &str = "fake.csi.test";

/// What goes wrong with a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It fails and has no effect.
    Before(Code),
    /// It fails after its effect.
    After(Code),
    /// It has its effect, and no answer as long as the driver runs.
    Silent,
}

/// What it can do, and what it says about the node.
#[derive(Clone, Debug)]
pub struct Abilities {
    pub rpcs: Vec<i32>,
    pub max_volumes: i64,
    pub topology: HashMap<String, String>,
}

impl Default for Abilities {
    fn default() -> Abilities {
        Abilities { rpcs: vec![1, 3], max_volumes: 0, topology: HashMap::new() }
    }
}

/// The numbers of capabilities.
pub const GET_VOLUME_STATS: i32 = 2;
pub const VOLUME_MOUNT_GROUP: i32 = 6;

/// Cheap to clone: clones are the same. Its volumes outlive its servers.
#[derive(Clone)]
pub struct Driver(Arc<Inner>);

struct Inner {
    /// Of the volumes: the folder `volumes`.
    folder: PathBuf,
    /// The kubelet's.
    root: PathBuf,
    mounts: bool,
    abilities: Abilities,
    max_volumes: AtomicI64,
    faults: Mutex<BTreeMap<String, VecDeque<Fault>>>,
    calls: Mutex<Vec<String>>,
    requests: Mutex<BTreeMap<String, Bytes>>,
    /// What an earlier call has made.
    made: Mutex<BTreeSet<PathBuf>>,
}

/// The servers of a driver, until dropped.
pub struct Running {
    sockets: Vec<PathBuf>,
    stop: StopToken,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.stop();
        for socket in &self.sockets {
            let _ = fs::remove_file(socket);
        }
    }
}

struct Failure(Code, String);

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        Failure(Code::Internal, error.to_string())
    }
}

impl From<rustix::io::Errno> for Failure {
    fn from(error: rustix::io::Errno) -> Failure {
        Failure(Code::Internal, error.to_string())
    }
}

impl Driver {
    /// `folder`: its own; `root`: the kubelet's.
    pub fn new(folder: &Path, root: &Path, mounts: bool, abilities: Abilities) -> Driver {
        fs::create_dir_all(folder.join("volumes")).expect("a folder");
        Driver(Arc::new(Inner {
            folder: folder.to_owned(),
            root: root.to_owned(),
            mounts,
            max_volumes: abilities.max_volumes.into(),
            abilities,
            faults: Mutex::default(),
            calls: Mutex::default(),
            requests: Mutex::default(),
            made: Mutex::default(),
        }))
    }

    /// From now on it says that the node may have this number of volumes.
    pub fn set_max_volumes(&self, count: i64) {
        self.0.max_volumes.store(count, Ordering::SeqCst);
    }

    /// Serves its node service, and registers at the kubelet.
    pub fn start(&self) -> Running {
        let stop = StopToken::new();
        let node = self.0.folder.join("csi.sock");
        let registry = self.0.root.join("plugins_registry");
        fs::create_dir_all(&registry).expect("a folder");
        let sockets = vec![node, registry.join("fake-reg.sock")];
        for socket in &sockets {
            let _ = fs::remove_file(socket);
            let listener = Async::<UnixListener>::bind(socket).expect("a socket");
            let (driver, until) = (self.clone(), stop.clone());
            drop(task::spawn(async move { driver.serve(listener, until).await }));
        }
        Running { sockets, stop }
    }

    async fn serve(&self, listener: Async<UnixListener>, stop: StopToken) {
        while let Some(accepted) = stop.unless_stopped(listener.accept()).await {
            let (stream, _) = accepted.expect("a connection");
            let (driver, until) = (self.clone(), stop.clone());
            drop(task::spawn(async move {
                let service = service_fn(|request| {
                    let driver = driver.clone();
                    async move { driver.answer(request).await }
                });
                let connection =
                    Builder::new(Executor).serve_connection(FuturesIo::new(stream), service);
                // A kubelet that is killed breaks it.
                let _ = until.unless_stopped(connection).await;
            }));
        }
    }

    /// The next calls of a method have these faults.
    pub fn plan(&self, method: &str, faults: &[Fault]) {
        self.0.faults.lock().insert(method.to_owned(), faults.iter().copied().collect());
    }

    /// Whether all planned faults have happened.
    pub fn is_done(&self) -> bool {
        self.0.faults.lock().values().all(VecDeque::is_empty)
    }

    /// The calls so far that change something: the method and the volume.
    pub fn calls(&self) -> Vec<String> {
        self.0.calls.lock().clone()
    }

    /// The last request of a method.
    pub fn request<T: Message + Default>(&self, method: &str) -> T {
        let requests = self.0.requests.lock();
        T::decode(requests.get(method).expect("a call").clone()).expect("a message")
    }

    /// The paths that are staged or published.
    pub fn paths(&self) -> Vec<PathBuf> {
        self.0.made.lock().iter().cloned().collect()
    }

    async fn answer(&self, request: Request<Incoming>) -> Result<Response<Body>, Infallible> {
        let path = request.uri().path().to_owned();
        let outcome = match request.into_body().collect().await {
            Ok(body) => self.call(&path, body.to_bytes()).await,
            Err(error) => Err(Failure(Code::Canceled, error.to_string())),
        };
        let (mut trailers, mut frames) = (HeaderMap::new(), Vec::new());
        let text = |text: &str| HeaderValue::from_str(text).expect("text");
        match outcome {
            Ok(content) => {
                trailers.insert("grpc-status", HeaderValue::from_static("0"));
                frames.push(Ok(Frame::data(frame(&content))));
            }
            Err(Failure(code, message)) => {
                trailers.insert("grpc-status", text(&u32::from(code).to_string()));
                trailers.insert("grpc-message", text(&message));
            }
        }
        frames.push(Ok(Frame::trailers(trailers)));
        let mut response = Response::new(StreamBody::new(stream::iter(frames)));
        response.headers_mut().insert("content-type", HeaderValue::from_static("application/grpc"));
        Ok(response)
    }

    async fn call(&self, path: &str, body: Bytes) -> Result<Vec<u8>, Failure> {
        let method = path.rsplit('/').next().unwrap_or_default().to_owned();
        let message = message_of(body).map_err(|text| Failure(Code::InvalidArgument, text))?;
        let fault = self.0.faults.lock().get_mut(&method).and_then(VecDeque::pop_front);
        if let Some(Fault::Before(code)) = fault {
            return Err(Failure(code, "planned".to_owned()));
        }
        self.0.requests.lock().insert(method.clone(), message.clone());
        let answer = self.carry_out(&method, message)?;
        match fault {
            Some(Fault::After(code)) => Err(Failure(code, "planned".to_owned())),
            Some(Fault::Silent) => loop {
                Timer::after(Duration::from_secs(3600)).await;
            },
            Some(Fault::Before(_)) | None => Ok(answer),
        }
    }

    fn record(&self, method: &str, volume: &str) {
        self.0.calls.lock().push(format!("{method} {volume}"));
        let file = fs::File::options().append(true).create(true).open(self.0.folder.join("calls"));
        writeln!(file.expect("a file"), "{method} {volume}").expect("a line");
    }

    fn carry_out(&self, method: &str, message: Bytes) -> Result<Vec<u8>, Failure> {
        fn read<T: Message + Default>(message: Bytes) -> Result<T, Failure> {
            T::decode(message).map_err(|error| Failure(Code::InvalidArgument, error.to_string()))
        }
        let abilities = &self.0.abilities;
        Ok(match method {
            "GetInfo" => {
                let endpoint = self.0.folder.join("csi.sock").display().to_string();
                let (kind, name) = ("CSIPlugin".to_owned(), DRIVER.to_owned());
                let supported_versions = vec!["1.0.0".to_owned()];
                registration::PluginInfo { r#type: kind, name, endpoint, supported_versions }
                    .encode_to_vec()
            }
            "NotifyRegistrationStatus" => Vec::new(),
            "NodeGetInfo" => api::NodeGetInfoResponse {
                node_id: "node-of-fake".to_owned(),
                max_volumes_per_node: self.0.max_volumes.load(Ordering::SeqCst),
                accessible_topology: Some(api::Topology { segments: abilities.topology.clone() }),
            }
            .encode_to_vec(),
            "NodeGetCapabilities" => {
                let able = |rpc: &i32| NodeServiceCapability {
                    r#type: Some(Type::Rpc(Rpc { r#type: *rpc })),
                };
                let capabilities = abilities.rpcs.iter().map(able).collect();
                api::NodeGetCapabilitiesResponse { capabilities }.encode_to_vec()
            }
            "NodeStageVolume" => {
                let stage: api::NodeStageVolumeRequest = read(message)?;
                self.record(method, &stage.volume_id);
                self.make(
                    &self.volume(&stage.volume_id)?,
                    &stage.staging_target_path,
                    false,
                    false,
                )?;
                Vec::new()
            }
            "NodeUnstageVolume" => {
                let unstage: api::NodeUnstageVolumeRequest = read(message)?;
                self.record(method, &unstage.volume_id);
                self.undo(Path::new(&unstage.staging_target_path), false)?;
                Vec::new()
            }
            "NodePublishVolume" => {
                let publish: api::NodePublishVolumeRequest = read(message)?;
                self.record(method, &publish.volume_id);
                let capability = publish.volume_capability.and_then(|c| c.access_type);
                let is_block =
                    matches!(capability, Some(api::volume_capability::AccessType::Block(_)));
                let staged = Path::new(&publish.staging_target_path).to_owned();
                let is_staged = self.0.made.lock().contains(&staged);
                if !publish.staging_target_path.is_empty() && !is_staged {
                    return Err(Failure(Code::FailedPrecondition, "not staged".to_owned()));
                }
                let volume = self.volume(&publish.volume_id)?;
                self.make(&volume, &publish.target_path, publish.readonly, is_block)?;
                Vec::new()
            }
            "NodeUnpublishVolume" => {
                let unpublish: api::NodeUnpublishVolumeRequest = read(message)?;
                self.record(method, &unpublish.volume_id);
                self.undo(Path::new(&unpublish.target_path), true)?;
                Vec::new()
            }
            "NodeGetVolumeStats" => {
                let wanted: api::NodeGetVolumeStatsRequest = read(message)?;
                if !self.0.made.lock().contains(Path::new(&wanted.volume_path)) {
                    return Err(Failure(Code::NotFound, wanted.volume_path));
                }
                let usage = |unit: Unit, total, available, used| api::VolumeUsage {
                    available,
                    total,
                    used,
                    unit: unit.into(),
                };
                let usage = vec![usage(Unit::Bytes, 100, 70, 30), usage(Unit::Inodes, 10, 7, 3)];
                api::NodeGetVolumeStatsResponse { usage, volume_condition: None }.encode_to_vec()
            }
            "NodeExpandVolume" => {
                let expand: api::NodeExpandVolumeRequest = read(message)?;
                self.record(method, &expand.volume_id);
                Vec::new()
            }
            _ => return Err(Failure(Code::Unimplemented, method.to_owned())),
        })
    }

    fn volume(&self, handle: &str) -> io::Result<PathBuf> {
        let folder = self.0.folder.join("volumes").join(handle);
        fs::create_dir_all(&folder)?;
        Ok(folder)
    }

    fn make(
        &self,
        volume: &Path,
        target: &str,
        read_only: bool,
        is_block: bool,
    ) -> Result<(), Failure> {
        let target = PathBuf::from(target);
        let is_new = self.0.made.lock().insert(target.clone());
        if is_block {
            fs::write(&target, "")?;
            return Ok(());
        }
        fs::create_dir_all(&target)?;
        if self.0.mounts && is_new {
            mount_bind(volume, &target)?;
            if read_only {
                mount_remount(&target, MountFlags::BIND | MountFlags::RDONLY, c"")?;
            }
        }
        Ok(())
    }

    fn undo(&self, target: &Path, removes: bool) -> Result<(), Failure> {
        self.0.made.lock().remove(target);
        if self.0.mounts {
            // A driver that has started again does not know what is mounted.
            let _ = unmount(target, UnmountFlags::NOFOLLOW);
        }
        if removes {
            let _ = fs::remove_dir(target).or_else(|_| fs::remove_file(target));
        }
        Ok(())
    }
}

type Body = StreamBody<stream::Iter<std::vec::IntoIter<Result<Frame<Bytes>, Infallible>>>>;

/// A driver in a process of its own, for a machine: this test is the process, with these variables.
pub const PROCESS: [&str; 2] = ["FAKE_CSI_FOLDER", "FAKE_CSI_ROOT"];

#[test]
fn driver_process() {
    let [Some(folder), Some(root)] = PROCESS.map(std::env::var_os) else { return };
    let driver = Driver::new(Path::new(&folder), Path::new(&root), true, Abilities::default());
    // What an earlier process has staged is still there.
    let table = fs::read_to_string("/proc/self/mountinfo").expect("the table");
    let points = table.lines().filter_map(|line| line.split(' ').nth(4)).map(PathBuf::from);
    driver.0.made.lock().extend(points);
    task::run(1, async move {
        let _running = driver.start();
        std::future::pending::<()>().await
    })
}
