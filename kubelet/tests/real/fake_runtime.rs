//! A container runtime without containers, for tests of what the kubelet does beside its pods.

use std::convert::Infallible;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_io::Async;
use futures_lite::stream;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::header::{HeaderMap, HeaderValue};
use hyper::server::conn::http2 as server;
use hyper::service::service_fn;
use hyper::{Request, Response};
use kube_controller_manager::task;
use kubelet::cri::{Executor, api};
use parking_lot::Mutex;
use prost::Message;
use smol_hyper::rt::FuturesIo;

/// gRPC's code for a method that the server does not have.
const UNIMPLEMENTED: u32 = 12;

type Body = BoxBody<Bytes, Infallible>;

/// What the runtime answers.
#[derive(Clone, Debug, Default)]
pub struct Answers {
    pub status: api::StatusResponse,
    pub images: Vec<api::Image>,
    /// It does not answer at all.
    pub is_silent: bool,
    /// The ranges of addresses for pods that it was given.
    pub pod_cidrs: Arc<Mutex<Vec<String>>>,
}

pub struct FakeRuntime {
    pub socket: PathBuf,
    answers: Arc<Mutex<Answers>>,
}

impl FakeRuntime {
    /// A runtime with its socket in `folder`.
    pub fn start(folder: &Path, answers: Answers) -> FakeRuntime {
        let socket = folder.join("runtime.sock");
        let listener = Async::<UnixListener>::bind(&socket).expect("a socket");
        let answers = Arc::new(Mutex::new(answers));
        let all = answers.clone();
        drop(task::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                drop(task::spawn(serve(stream, all.clone())));
            }
        }));
        FakeRuntime { socket, answers }
    }

    /// Changes what it answers from now on.
    pub fn change(&self, change: impl FnOnce(&mut Answers)) {
        change(&mut self.answers.lock());
    }
}

async fn serve(stream: Async<UnixStream>, answers: Arc<Mutex<Answers>>) {
    let service = service_fn(move |request| {
        let answers = answers.lock().clone();
        async move { Ok::<_, Infallible>(answer(request, answers).await) }
    });
    // An end of the client is no fault of the server.
    let _ = server::Builder::new(Executor).serve_connection(FuturesIo::new(stream), service).await;
}

async fn answer(request: Request<Incoming>, answers: Answers) -> Response<Body> {
    if answers.is_silent {
        return std::future::pending().await;
    }
    let path = request.uri().path().to_owned();
    let message = match path.rsplit('/').next().unwrap_or_default() {
        "UpdateRuntimeConfig" => {
            let body = request.into_body().collect().await.expect("a body").to_bytes();
            // After a byte of flags and the length in four.
            let given = api::UpdateRuntimeConfigRequest::decode(&body[5..]).expect("a request");
            let network = given.runtime_config.and_then(|config| config.network_config);
            answers.pod_cidrs.lock().push(network.expect("a network").pod_cidr);
            api::UpdateRuntimeConfigResponse::default().encode_to_vec()
        }
        "Version" => api::VersionResponse {
            version: "0.1.0".to_owned(),
            runtime_name: "fake".to_owned(),
            runtime_version: "v1.2.3".to_owned(),
            runtime_api_version: "v1".to_owned(),
        }
        .encode_to_vec(),
        "Status" => answers.status.encode_to_vec(),
        "ListImages" => api::ListImagesResponse { images: answers.images }.encode_to_vec(),
        "ListPodSandbox" => api::ListPodSandboxResponse::default().encode_to_vec(),
        "ListContainers" => api::ListContainersResponse::default().encode_to_vec(),
        _ => return whole(None, UNIMPLEMENTED),
    };
    let mut frame = vec![0];
    frame.extend((message.len() as u32).to_be_bytes());
    frame.extend(message);
    whole(Some(frame.into()), 0)
}

fn whole(data: Option<Bytes>, code: u32) -> Response<Body> {
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from(code));
    let frames = [data.map(Frame::data), Some(Frame::trailers(trailers))];
    let frames: Vec<Result<Frame<Bytes>, Infallible>> =
        frames.into_iter().flatten().map(Ok).collect();
    Response::builder()
        .header("content-type", "application/grpc")
        .body(BodyExt::boxed(StreamBody::new(stream::iter(frames))))
        .expect("a response")
}
