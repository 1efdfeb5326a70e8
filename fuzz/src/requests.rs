//! Requests to the sandbox, as they stand on a connection. Each answer is HTTP, and none is a fault
//! of the server. A request without credentials is the administrator's.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_lite::{AsyncRead, AsyncWrite};
use kube_controller_manager::server::http::{Guard, Handler, Method, Server};
use parking_lot::Mutex;

use crate::bytes::{Pieces, cut, parameters};
use crate::world::world;

/// A connection whose client sends pieces and then waits.
struct Connection {
    input: Pieces,
    output: Arc<Mutex<Vec<u8>>>,
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        output: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        match Pin::new(&mut self.input).poll_read(context, output) {
            Poll::Ready(Ok(0)) => Poll::Pending,
            read => read,
        }
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.output.lock().extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// Serves bytes as a connection; the server must answer in HTTP and not fail.
pub fn target(input: &[u8]) {
    let (seed, bytes) = parameters(input);
    let world = world();
    let (api, output) = (world.sandbox.api().clone(), Arc::<Mutex<Vec<u8>>>::default());
    let mut headers = Default::default();
    world.authorize(&mut headers);
    let handler: Handler = Arc::new(move |mut request| {
        // Kinds would be served to later inputs as well: another target defines them.
        if request.path.contains("customresourcedefinitions") {
            request.method = Method::GET;
        }
        if !request.headers.contains_key("authorization") {
            request.headers.extend(headers.clone());
        }
        Box::pin(api.clone().handle(request))
    });
    let connection = Connection { input: Pieces::new(&cut(seed, bytes)), output: output.clone() };
    world.finish(Server::serve(connection, handler, Guard::UNTRUSTED, world.clock.clone()));
    let output = output.lock();
    let text = String::from_utf8_lossy(&output);
    assert!(text.is_empty() || text.starts_with("HTTP/1."), "{text}");
    // Upstream answers some malformed patches so.
    let has = |part: &[u8]| bytes.windows(part.len()).any(|found| found == part);
    let may_fail = has(b"strategic") || has(b"apply-patch");
    assert!(may_fail || !text.starts_with("HTTP/1.1 500"), "{text}");
}
