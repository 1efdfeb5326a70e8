//! The CRI client on a real runtime, with faults put in by a proxy on its socket.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_lite::future::block_on;
use kube_controller_manager::clock::{Clock, SystemClock};
use kubelet::cri::{self, Error, ImageService, RuntimeService, api};
use parking_lot::Mutex;

use super::node::{Node, cgroups_of};

const DEADLINE: Duration = Duration::from_secs(60);

fn runtime(socket: &Path, deadline: Duration) -> RuntimeService {
    RuntimeService::new(cri::channel(socket, SystemClock::shared()), deadline)
}

/// Passes bytes on, unless its answers are held.
struct Proxy {
    socket: PathBuf,
    holds_answers: Arc<AtomicBool>,
    connections: Arc<Mutex<Vec<UnixStream>>>,
}

impl Proxy {
    fn start(node: &Node) -> Proxy {
        let (socket, target) = (node.folder.join("proxy.sock"), node.socket());
        let listener = UnixListener::bind(&socket).expect("a socket");
        let holds_answers = Arc::new(AtomicBool::new(false));
        let connections: Arc<Mutex<Vec<UnixStream>>> = Arc::default();
        let (holds, all) = (holds_answers.clone(), connections.clone());
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let client = client.expect("a connection");
                let server = UnixStream::connect(&target).expect("the runtime");
                all.lock().push(client.try_clone().expect("a descriptor"));
                let (from, to) = (client.try_clone(), server.try_clone());
                copy(from.expect("a descriptor"), to.expect("a descriptor"), Arc::default());
                copy(server, client, holds.clone());
            }
        });
        Proxy { socket, holds_answers, connections }
    }

    fn cut(&self) {
        for connection in self.connections.lock().drain(..) {
            let _ = connection.shutdown(std::net::Shutdown::Both);
        }
    }
}

/// Bytes that arrive while `holds` is set are dropped.
fn copy(mut from: UnixStream, mut to: UnixStream, holds: Arc<AtomicBool>) {
    std::thread::spawn(move || {
        let mut buffer = [0; 16 << 10];
        while let Ok(count @ 1..) = from.read(&mut buffer) {
            if !holds.load(Ordering::SeqCst) && to.write_all(&buffer[..count]).is_err() {
                break;
            }
        }
        let _ = to.shutdown(std::net::Shutdown::Both);
    });
}

#[test]
fn runtime_answers_what_it_is() {
    let Some(node) = Node::start("cri") else { return };
    let client = runtime(&node.socket(), DEADLINE);
    block_on(async {
        let version = client.version(api::VersionRequest::default()).await.expect("a version");
        assert_eq!((&*version.runtime_name, &*version.runtime_api_version), ("containerd", "v1"));
        let status = client.status(api::StatusRequest::default()).await.expect("a status");
        let conditions = status.status.expect("a status").conditions;
        assert!(conditions.iter().all(|condition| condition.status), "{conditions:?}");
        let config = client.runtime_config(api::RuntimeConfigRequest {}).await.expect("it has it");
        let driver = config.linux.expect("Linux").cgroup_driver();
        assert_eq!(driver, api::CgroupDriver::Cgroupfs);
        let request = api::ContainerStatusRequest { container_id: "x".to_owned(), verbose: false };
        let error = client.container_status(request).await.expect_err("no container");
        assert!(error.is_not_found(), "{error}");
        let images = cri::channel(&node.socket(), SystemClock::shared());
        let images = ImageService::new(images, DEADLINE);
        let image =
            Some(api::ImageSpec { image: "node.test/busybox:1".into(), ..Default::default() });
        let request = api::ImageStatusRequest { image, verbose: false };
        assert!(images.image_status(request).await.expect("a status").image.is_some());
    });
}

#[test]
fn faults_of_the_connection_are_distinguished() {
    let Some(node) = Node::start("faults") else { return };
    let proxy = Proxy::start(&node);
    block_on(async {
        let nowhere = runtime(&node.folder.join("none.sock"), DEADLINE);
        let error = nowhere.version(api::VersionRequest::default()).await.expect_err("no socket");
        assert!(matches!(error, Error::Unreachable { .. }), "{error:?}");
        let waiting = runtime(&proxy.socket, DEADLINE);
        waiting.version(api::VersionRequest::default()).await.expect("a version");
        // A connection that broke between calls is replaced, once the client has noticed.
        proxy.cut();
        let give_up = SystemClock.monotonic() + DEADLINE;
        while let Err(error) = waiting.version(api::VersionRequest::default()).await {
            assert!(SystemClock.monotonic() < give_up, "{error:?}");
            SystemClock.sleep(Duration::from_millis(50)).await;
        }
        // An answer that does not come ends the call at its deadline.
        // Its connection is open before the short time begins.
        let channel = cri::channel(&proxy.socket, SystemClock::shared());
        let hasty = RuntimeService::new(channel.clone(), Duration::from_millis(300));
        let unhurried = RuntimeService::new(channel, DEADLINE);
        unhurried.version(api::VersionRequest::default()).await.expect("a version");
        proxy.holds_answers.store(true, Ordering::SeqCst);
        let error = hasty.version(api::VersionRequest::default()).await.expect_err("no answer");
        assert!(matches!(error, Error::DeadlineExceeded { .. }), "{error:?}");
        // A connection that breaks during a call leaves its outcome unknown.
        let call = waiting.version(api::VersionRequest::default());
        let cut = async {
            futures_lite::future::yield_now().await;
            kube_controller_manager::task::blocking(|| ()).await;
            proxy.cut();
            std::future::pending().await
        };
        let error = futures_lite::FutureExt::or(call, cut).await.expect_err("no answer");
        assert!(matches!(error, Error::Lost { .. } | Error::Unreachable { .. }), "{error:?}");
        proxy.holds_answers.store(false, Ordering::SeqCst);
        waiting.version(api::VersionRequest::default()).await.expect("a version");
    });
}

#[test]
fn end_of_a_machine_spares_those_whose_names_begin_with_its_own() {
    let Some(node) = Node::start("end") else { return };
    let base = cgroups_of("pids");
    let cgroups = [base.join(&node.name).join("own"), base.join(format!("{}0", node.name))];
    let [mut own, mut other] = cgroups.each_ref().map(|cgroup| {
        std::fs::create_dir_all(cgroup).expect("a cgroup");
        let process = Command::new("sleep").arg("infinity").spawn().expect("a process");
        std::fs::write(cgroup.join("cgroup.procs"), process.id().to_string()).expect("a member");
        process
    });
    drop(node);
    assert_eq!(own.wait().expect("an end").signal(), Some(9));
    let is_alive = other.try_wait().expect("a process").is_none();
    other.kill().expect("a process");
    other.wait().expect("an end");
    std::fs::remove_dir(&cgroups[1]).expect("an empty cgroup");
    assert!(is_alive);
    assert!(!cgroups[0].exists());
}
