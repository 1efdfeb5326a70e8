//! A proxy between the kubelet and the runtime: passes calls on, puts in faults, and counts.

use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use async_io::Async;
use event_listener::Event;
use futures_lite::FutureExt;
use futures_lite::stream;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::client::conn::http2 as client;
use hyper::header::HeaderMap;
use hyper::server::conn::http2 as server;
use hyper::service::service_fn;
use hyper::{Request, Response};
use kube_controller_manager::task::{self, Latch};
use kubelet::cri::Executor;
use parking_lot::Mutex;
use smol_hyper::rt::FuturesIo;

/// The calls that change something in the runtime.
pub const CHANGES: [&str; 8] = [
    "RunPodSandbox",
    "CreateContainer",
    "StartContainer",
    "StopContainer",
    "StopPodSandbox",
    "RemoveContainer",
    "RemovePodSandbox",
    "PullImage",
];

/// gRPC's code for a server that cannot be reached.
const UNAVAILABLE: u32 = 14;

/// What happens to a call.
#[derive(Clone)]
pub enum Fault {
    /// The runtime does not get it; the answer is an error of this code.
    Refused(u32),
    /// The runtime carries it out; the answer is an error of this code.
    LostAnswer(u32),
    /// The runtime carries it out; no answer comes.
    Silence,
    /// The runtime carries it out; the connection is cut before the answer.
    Cut,
    /// The runtime gets it once the latch opens.
    Held(Latch),
}

/// When a caller is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// The runtime does not get the call.
    Before,
    /// The runtime has carried out the call.
    After,
}

/// Kills the process with SIGKILL at one of its calls.
struct Kill {
    /// The calls until then, with this one.
    left: usize,
    moment: Moment,
    process: u32,
    /// All calls are counted, or only changes.
    counts_all: bool,
}

#[derive(Default)]
struct Plan {
    faults: BTreeMap<&'static str, VecDeque<Fault>>,
    kill: Option<Kill>,
    /// The calls so far by method, those with faults too.
    calls: BTreeMap<String, usize>,
    /// The calls without an answer, and the most that there were at a time.
    open: BTreeMap<String, (usize, usize)>,
    /// The last call at which a process was killed.
    killed_at: Option<String>,
}

pub struct Proxy {
    pub socket: PathBuf,
    shared: Arc<Shared>,
}

struct Shared {
    target: PathBuf,
    plan: Mutex<Plan>,
    cut: Event,
}

type Body = BoxBody<Bytes, Infallible>;

impl Proxy {
    /// A proxy in `folder` for the runtime at `target`.
    pub fn start(folder: &Path, target: &Path) -> Proxy {
        let socket = folder.join("proxy.sock");
        let listener = Async::<UnixListener>::bind(&socket).expect("a socket");
        let shared = Arc::new(Shared {
            target: target.to_owned(),
            plan: Mutex::default(),
            cut: Event::new(),
        });
        let all = shared.clone();
        drop(task::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let shared = all.clone();
                drop(task::spawn(shared.serve(stream)));
            }
        }));
        Proxy { socket, shared }
    }

    /// The next call of `method` that has no fault yet gets this one.
    pub fn inject(&self, method: &'static str, fault: Fault) {
        self.shared.plan.lock().faults.entry(method).or_default().push_back(fault);
    }

    /// Whether each fault has happened.
    pub fn is_used_up(&self) -> bool {
        self.shared.plan.lock().faults.values().all(VecDeque::is_empty)
    }

    /// Kills `process` at its call number `call`, which starts at 1.
    pub fn kill_at(&self, call: usize, moment: Moment, process: u32, counts_all: bool) {
        let mut plan = self.shared.plan.lock();
        plan.killed_at = None;
        plan.kill = Some(Kill { left: call, moment, process, counts_all });
    }

    /// The method of the call at which the process was killed.
    pub fn killed_at(&self) -> Option<String> {
        self.shared.plan.lock().killed_at.clone()
    }

    /// Ends the plan to kill, if it is still to come.
    pub fn spare(&self) {
        self.shared.plan.lock().kill = None;
    }

    /// The most calls of a method that were under way at a time.
    pub fn most_at_a_time(&self, method: &str) -> usize {
        self.shared.plan.lock().open.get(method).map_or(0, |(_, most)| *most)
    }

    /// How often a method was called.
    pub fn calls(&self, method: &str) -> usize {
        self.shared.plan.lock().calls.get(method).copied().unwrap_or(0)
    }
}

impl Shared {
    async fn serve(self: Arc<Self>, stream: Async<UnixStream>) {
        let upstream: Arc<async_lock::Mutex<Option<client::SendRequest<Incoming>>>> =
            Arc::default();
        let cut = self.cut.listen();
        let service = service_fn(move |request| {
            let (shared, upstream) = (self.clone(), upstream.clone());
            async move { Ok::<_, Infallible>(shared.answer(request, &upstream).await) }
        });
        let connection =
            server::Builder::new(Executor).serve_connection(FuturesIo::new(stream), service);
        let served = async {
            // An end of the client is no fault of the proxy.
            let _ = connection.await;
        };
        served.or(cut).await;
    }

    async fn answer(
        &self,
        request: Request<Incoming>,
        upstream: &async_lock::Mutex<Option<client::SendRequest<Incoming>>>,
    ) -> Response<Body> {
        let path = request.uri().path().to_owned();
        let method = path.rsplit('/').next().unwrap_or_default().to_owned();
        let (fault, kill) = self.next(&method);
        let _open = Open::new(self, &method);
        if kill == Some(Moment::Before) {
            self.kill(&method);
            return std::future::pending().await;
        }
        match &fault {
            Some(Fault::Refused(code)) => return error(*code),
            Some(Fault::Held(latch)) => latch.opened().await,
            _ => {}
        }
        let answer = self.forward(request, upstream).await.unwrap_or_else(|| error(UNAVAILABLE));
        if kill == Some(Moment::After) {
            self.kill(&method);
            return std::future::pending().await;
        }
        match fault {
            Some(Fault::LostAnswer(code)) => error(code),
            Some(Fault::Silence) => std::future::pending().await,
            Some(Fault::Cut) => {
                self.cut.notify(usize::MAX);
                std::future::pending().await
            }
            _ => answer,
        }
    }

    /// The fault of a call, and whether its caller is killed.
    fn next(&self, method: &str) -> (Option<Fault>, Option<Moment>) {
        let mut plan = self.plan.lock();
        *plan.calls.entry(method.to_owned()).or_default() += 1;
        let fault = plan.faults.get_mut(method).and_then(VecDeque::pop_front);
        let is_change = CHANGES.contains(&method);
        let kill = plan.kill.as_mut().filter(|kill| is_change || kill.counts_all);
        let moment = kill.and_then(|kill| {
            kill.left = kill.left.checked_sub(1)?;
            (kill.left == 0).then_some(kill.moment)
        });
        (fault, moment)
    }

    fn kill(&self, method: &str) {
        let mut plan = self.plan.lock();
        let Some(kill) = plan.kill.take() else { return };
        let killed = Command::new("kill").arg("-KILL").arg(kill.process.to_string()).status();
        assert!(killed.expect("kill").success(), "the process has ended already");
        plan.killed_at = Some(method.to_owned());
    }

    /// `None`: the runtime cannot be reached, or has ended meanwhile.
    async fn forward(
        &self,
        request: Request<Incoming>,
        upstream: &async_lock::Mutex<Option<client::SendRequest<Incoming>>>,
    ) -> Option<Response<Body>> {
        let mut sender = {
            let mut open = upstream.lock().await;
            if open.as_ref().is_none_or(client::SendRequest::is_closed) {
                let stream = Async::<UnixStream>::connect(&self.target).await.ok()?;
                let (sender, connection) =
                    client::handshake(Executor, FuturesIo::new(stream)).await.ok()?;
                drop(task::spawn(connection));
                *open = Some(sender);
            }
            open.clone()?
        };
        let (head, body) = sender.send_request(request).await.ok()?.into_parts();
        let collected = body.collect().await.ok()?;
        let trailers = collected.trailers().cloned();
        Some(Response::from_parts(head, whole(collected.to_bytes(), trailers)))
    }
}

/// A call that has no answer yet. Dropped with the answer, or when the caller gives up.
struct Open<'a>(&'a Shared, &'a str);

impl Open<'_> {
    fn new<'a>(shared: &'a Shared, method: &'a str) -> Open<'a> {
        let mut plan = shared.plan.lock();
        let (open, most) = plan.open.entry(method.to_owned()).or_default();
        *open += 1;
        *most = (*most).max(*open);
        Open(shared, method)
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        if let Some((open, _)) = self.0.plan.lock().open.get_mut(self.1) {
            *open -= 1;
        }
    }
}

fn whole(data: Bytes, trailers: Option<HeaderMap>) -> Body {
    let data = Some(data).filter(|data| !data.is_empty()).map(Frame::data);
    let frames = data.into_iter().chain(trailers.map(Frame::trailers));
    let frames: Vec<Result<Frame<Bytes>, Infallible>> = frames.map(Ok).collect();
    BodyExt::boxed(StreamBody::new(stream::iter(frames)))
}

fn error(code: u32) -> Response<Body> {
    Response::builder()
        .header("content-type", "application/grpc")
        .header("grpc-status", code.to_string())
        .header("grpc-message", "put in by the proxy")
        .body(whole(Bytes::new(), None))
        .expect("a response")
}
