//! A reader with a buffer that exists only while bytes are in it.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_lite::io::{AsyncBufRead, AsyncRead, AsyncWrite};

use crate::buffer_pool;

/// A `BufReader` that frees its buffer when it is empty, for connections without TLS. Most of them
/// are watches, which are silent most of the time.
pub struct Buffered<R> {
    inner: R,
    bytes: Vec<u8>,
    /// The bytes before this place are consumed.
    at: usize,
}

impl<R> Buffered<R> {
    pub fn new(inner: R) -> Buffered<R> {
        Buffered { inner, bytes: Vec::new(), at: 0 }
    }

    /// Returns the bytes that are read and not consumed.
    pub fn buffer(&self) -> &[u8] {
        &self.bytes[self.at..]
    }
}

impl<R: AsyncRead + Unpin> AsyncRead for Buffered<R> {
    /// Copies bytes out of the buffer, which is filled first if it is empty.
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        to: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let bytes = std::task::ready!(self.as_mut().poll_fill_buf(context))?;
        let count = bytes.len().min(to.len());
        to[..count].copy_from_slice(&bytes[..count]);
        self.consume(count);
        Poll::Ready(Ok(count))
    }
}

impl<R: AsyncRead + Unpin> AsyncBufRead for Buffered<R> {
    fn poll_fill_buf(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        let this = self.get_mut();
        if this.bytes.is_empty() {
            std::task::ready!(buffer_pool::poll_read(&mut this.inner, context, &mut this.bytes))?;
        }
        Poll::Ready(Ok(this.buffer()))
    }

    fn consume(mut self: Pin<&mut Self>, count: usize) {
        self.at = (self.at + count).min(self.bytes.len());
        // The connection may be idle from here on: it is not read until its next answer.
        if self.at == self.bytes.len() {
            buffer_pool::give(&mut self.bytes);
            self.at = 0;
        }
    }
}

impl<R: AsyncWrite + Unpin> AsyncWrite for Buffered<R> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_close(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_close(context)
    }
}

#[cfg(test)]
mod tests {
    use futures_lite::future::block_on;
    use futures_lite::io::{AsyncBufReadExt, AsyncReadExt};

    use super::*;

    /// Pieces, and pauses (`None`) between them, from the last to the first; then the end.
    struct Pieces(Vec<Option<&'static [u8]>>);

    impl AsyncRead for Pieces {
        fn poll_read(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            to: &mut [u8],
        ) -> Poll<io::Result<usize>> {
            match self.0.pop() {
                Some(Some(piece)) => {
                    to[..piece.len()].copy_from_slice(piece);
                    Poll::Ready(Ok(piece.len()))
                }
                Some(None) => Poll::Pending,
                None => Poll::Ready(Ok(0)),
            }
        }
    }

    #[test]
    fn a_silent_reader_holds_no_memory() {
        let mut reader = Buffered::new(Pieces(vec![Some(b"de"), None, Some(b"abc"), None]));
        let mut context = Context::from_waker(std::task::Waker::noop());
        let mut poll =
            |reader: &mut Buffered<Pieces>| match Pin::new(reader).poll_fill_buf(&mut context) {
                Poll::Ready(bytes) => Some(bytes.unwrap().to_vec()),
                Poll::Pending => None,
            };
        assert_eq!(poll(&mut reader), None);
        assert_eq!(reader.bytes.capacity(), 0);
        assert_eq!(poll(&mut reader).unwrap(), b"abc");
        reader.consume(2);
        assert_eq!((poll(&mut reader).unwrap(), reader.buffer()), (b"c".to_vec(), &b"c"[..]));
        reader.consume(1);
        assert_eq!(reader.bytes.capacity(), 0, "all is consumed");
        assert_eq!(poll(&mut reader), None);
        assert_eq!(reader.bytes.capacity(), 0);
        let mut rest = String::new();
        block_on(reader.read_to_string(&mut rest)).unwrap();
        assert_eq!((rest.as_str(), reader.bytes.capacity()), ("de", 0));
    }
}
