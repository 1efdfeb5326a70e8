//! TCP connections that tasks read and write.

use std::future::poll_fn;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_lite::io::{AsyncRead, AsyncWrite};
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketFlags, SocketType};

use super::executor::runtime;
use super::reactor::{Direction, Source};

/// One TCP connection. Clones share it.
#[derive(Clone)]
pub struct Tcp {
    shared: Arc<Shared>,
}

struct Shared {
    source: Arc<Source>,
}

impl Drop for Shared {
    fn drop(&mut self) {
        runtime().reactor.remove(&self.source);
    }
}

impl Tcp {
    fn new(io: TcpStream, ready: [bool; 2]) -> io::Result<Tcp> {
        let source = runtime().reactor.add(io, ready)?;
        Ok(Tcp { shared: Arc::new(Shared { source }) })
    }

    pub async fn connect(address: SocketAddr) -> io::Result<Tcp> {
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = net::socket_with(family, SocketType::STREAM, flags, None)?;
        match net::connect(&socket, &address) {
            Ok(()) | Err(Errno::INPROGRESS) => (),
            Err(error) => return Err(error.into()),
        }
        let tcp = Tcp::new(socket.into(), [false; 2])?;
        let source = &tcp.shared.source;
        poll_fn(|context| source.poll(Direction::Write, context)).await;
        let error = source.io.take_error()?;
        error.map_or(Ok(tcp), Err)
    }

    pub fn get_ref(&self) -> &TcpStream {
        &self.shared.source.io
    }

    /// Nothing can be read now, not even the end.
    pub fn is_silent(&self) -> bool {
        let found = self.shared.source.io.peek(&mut [0]);
        found.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    }
}

#[cfg(test)]
impl TryFrom<TcpStream> for Tcp {
    type Error = io::Error;

    fn try_from(io: TcpStream) -> io::Result<Tcp> {
        io.set_nonblocking(true)?;
        Tcp::new(io, [true; 2])
    }
}

impl AsFd for Tcp {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.source.io.as_fd()
    }
}

impl AsyncRead for Tcp {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        output: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let source = &self.shared.source;
        source.poll_io(Direction::Read, output.len(), context, || (&source.io).read(output))
    }
}

impl AsyncWrite for Tcp {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        input: &[u8],
    ) -> Poll<io::Result<usize>> {
        let source = &self.shared.source;
        source.poll_io(Direction::Write, input.len(), context, || (&source.io).write(input))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.shared.source.io.shutdown(std::net::Shutdown::Write) {
            // The peer has closed first.
            Err(error) if error.kind() == io::ErrorKind::NotConnected => Poll::Ready(Ok(())),
            result => Poll::Ready(result),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use futures_lite::future::{block_on, poll_once, zip};
    use futures_lite::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    fn pair() -> (Tcp, Tcp) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("an address");
        let one = block_on(Tcp::connect(address)).expect("it listens");
        let other = listener.accept().expect("it connects").0;
        (one, Tcp::try_from(other).expect("a socket"))
    }

    #[test]
    fn more_than_the_kernel_holds_goes_both_ways() {
        let (mut one, mut other) = pair();
        let sent: Vec<u8> = (0..20_000_000_u32).map(|n| (n % 251) as u8).collect();
        let mut found = vec![0; sent.len()];
        block_on(async {
            let (written, read) = zip(one.write_all(&sent), other.read_exact(&mut found)).await;
            written.and(read).expect("both are open");
        });
        assert!(found == sent, "what arrives is what was sent");
    }

    #[test]
    fn an_end_is_read_after_the_last_bytes() {
        let (mut one, mut other) = pair();
        assert!(one.is_silent());
        assert!(block_on(poll_once(one.read(&mut [0; 8]))).is_none());
        block_on(other.write_all(b"last")).expect("it is open");
        block_on(other.close()).expect("it is open");
        let mut found = Vec::new();
        block_on(one.read_to_end(&mut found)).expect("it ends in order");
        assert_eq!(found, b"last");
        assert!(!one.is_silent(), "the end can be read");
        drop(other);
        block_on(async { while one.write_all(b"nobody reads this").await.is_ok() {} });
    }

    #[test]
    fn a_refused_connection_says_so() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("an address");
        drop(listener);
        let error = block_on(Tcp::connect(address)).err().expect("nobody listens");
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
    }
}
