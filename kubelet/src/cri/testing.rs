//! A container runtime of a test: it keeps the calls, and answers them as the test says.

use std::convert::Infallible;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_io::Async;
use futures_lite::stream;
use grpc::{Executor, frame, message_of};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::header::{HeaderMap, HeaderValue};
use hyper::server::conn::http2::Builder;
use hyper::service::service_fn;
use hyper::{Request, Response};
use kube_controller_manager::clock::SharedClock;
use kube_controller_manager::task;
use parking_lot::Mutex;
use prost::Message;
use smol_hyper::rt::FuturesIo;

use super::{ImageService, RuntimeService, channel};

/// gRPC's number of the code `Unknown`.
const UNKNOWN: u32 = 2;

/// Returns the message with which a method answers, or the text of its error.
type Answers = dyn Fn(&str) -> Result<Vec<u8>, &'static str> + Send + Sync;

type Body = StreamBody<stream::Iter<std::vec::IntoIter<Result<Frame<Bytes>, Infallible>>>>;

/// The calls of a runtime: their methods and messages.
type Calls = Arc<Mutex<Vec<(String, Bytes)>>>;

pub(crate) struct FakeRuntime {
    socket: PathBuf,
    calls: Calls,
}

impl FakeRuntime {
    /// Starts a runtime with its socket in `folder`.
    pub(crate) fn start(
        folder: &Path,
        answers: impl Fn(&str) -> Result<Vec<u8>, &'static str> + Send + Sync + 'static,
    ) -> FakeRuntime {
        let socket = folder.join("runtime.sock");
        let listener = Async::<UnixListener>::bind(&socket).expect("a socket");
        let (answers, calls): (Arc<Answers>, Calls) = (Arc::new(answers), Arc::default());
        let kept = calls.clone();
        drop(task::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                drop(task::spawn(serve(stream, answers.clone(), kept.clone())));
            }
        }));
        FakeRuntime { socket, calls }
    }

    /// Returns clients of the runtime.
    pub(crate) fn services(&self, clock: &SharedClock) -> (RuntimeService, ImageService) {
        let deadline = Duration::from_secs(60);
        let channel = channel(&self.socket, clock.clone());
        (RuntimeService::new(channel.clone(), deadline), ImageService::new(channel, deadline))
    }

    /// Returns the messages of a method since the last call of this function.
    pub(crate) fn take<M: Message + Default>(&self, method: &str) -> Vec<M> {
        let mut taken = Vec::new();
        self.calls.lock().retain(|(of, message)| {
            let is_other = of != method;
            if !is_other {
                taken.push(M::decode(message.clone()).expect("a message"));
            }
            is_other
        });
        taken
    }
}

async fn serve(stream: Async<UnixStream>, answers: Arc<Answers>, calls: Calls) {
    let service = service_fn(move |request| {
        let (answers, calls) = (answers.clone(), calls.clone());
        async move { Ok::<_, Infallible>(answer(request, &*answers, &calls).await) }
    });
    // The end of a client is no fault of the server.
    let _ = Builder::new(Executor).serve_connection(FuturesIo::new(stream), service).await;
}

async fn answer(
    request: Request<Incoming>,
    answers: &Answers,
    calls: &Mutex<Vec<(String, Bytes)>>,
) -> Response<Body> {
    let path = request.uri().path().to_owned();
    let method = path.rsplit('/').next().unwrap_or_default();
    let body = request.into_body().collect().await.expect("a body").to_bytes();
    calls.lock().push((method.to_owned(), message_of(body).expect("a message")));
    let mut trailers = HeaderMap::new();
    let mut frames = Vec::new();
    match answers(method) {
        Ok(message) => {
            trailers.insert("grpc-status", HeaderValue::from(0_u32));
            frames.push(Ok(Frame::data(frame(&message))));
        }
        Err(text) => {
            trailers.insert("grpc-status", HeaderValue::from(UNKNOWN));
            trailers.insert("grpc-message", HeaderValue::from_static(text));
        }
    }
    frames.push(Ok(Frame::trailers(trailers)));
    Response::builder()
        .header("content-type", "application/grpc")
        .body(StreamBody::new(stream::iter(frames)))
        .expect("a response")
}
