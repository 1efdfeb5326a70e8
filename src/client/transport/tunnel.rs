//! Tunnels through a connected proxy: HTTP's CONNECT, and SOCKS 5 (RFC 1928, 1929).
//! Upstream: `net/http.Transport`, `golang.org/x/net/proxy`.

use std::io;
use std::net::IpAddr;

use futures_lite::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};

use super::head::{Head, read_head};
use super::proxy::{Kind, Proxy};

/// Asks `proxy`, at the other end of `stream`, for a tunnel to `host` and `port`. The proxy looks
/// names up.
pub(super) async fn open<S>(stream: S, proxy: &Proxy, host: &str, port: u16) -> io::Result<S>
where
    S: AsyncRead + AsyncWrite + Send + Unpin,
{
    let opened = match proxy.kind {
        Kind::Http | Kind::Https => open_http(stream, proxy, host, port).await,
        Kind::Socks5 => open_socks(stream, proxy, host, port).await,
    };
    opened.map_err(|error| {
        let text = format!("proxy {}:{}: {error}", proxy.host, proxy.port);
        io::Error::new(error.kind(), text)
    })
}

/// Returns the error of a proxy that does not open the tunnel.
fn refusal(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionRefused, what)
}

/// Opens a tunnel by `CONNECT` through an HTTP proxy.
async fn open_http<S>(mut stream: S, proxy: &Proxy, host: &str, port: u16) -> io::Result<S>
where
    S: AsyncRead + AsyncWrite + Send + Unpin,
{
    let target = match host.contains(':') {
        true => format!("[{host}]:{port}"),
        false => format!("{host}:{port}"),
    };
    let mut head = format!("CONNECT {target} HTTP/1.1\r\nhost: {target}\r\n");
    if let Some(value) = proxy.authorization() {
        head.push_str(&format!("proxy-authorization: {value}\r\n"));
    }
    head.push_str("\r\n");
    stream.write_all(head.as_bytes()).await?;
    stream.flush().await?;
    let mut reader = BufReader::new(stream);
    let Head { code, .. } = read_head(&mut reader).await?;
    if !(200..300).contains(&code) {
        return Err(refusal(format!("CONNECT {target}: {code}")));
    }
    // The server does not send first: no byte of it can be here yet.
    if !reader.buffer().is_empty() {
        return Err(refusal("it sent more than an answer".to_owned()));
    }
    Ok(reader.into_inner())
}

/// The version of SOCKS, and its methods of authentication.
const VERSION: u8 = 5;
const NO_LOGIN: u8 = 0;
const LOGIN: u8 = 2;
const NO_ACCEPTABLE_METHOD: u8 = 0xff;

/// Opens a tunnel through a SOCKS5 proxy (RFC 1928, with the login of RFC 1929).
async fn open_socks<S>(mut stream: S, proxy: &Proxy, host: &str, port: u16) -> io::Result<S>
where
    S: AsyncRead + AsyncWrite + Send + Unpin,
{
    let bad = |what: String| io::Error::new(io::ErrorKind::InvalidData, what);
    let methods: &[u8] = if proxy.login.is_some() { &[NO_LOGIN, LOGIN] } else { &[NO_LOGIN] };
    let greeting = [&[VERSION], with_length(methods)?.as_slice()].concat();
    let [version, method] = exchange(&mut stream, &greeting).await?;
    if version != VERSION {
        return Err(bad(format!("unexpected SOCKS version {version}")));
    }
    match (method, &proxy.login) {
        (NO_LOGIN, _) => {}
        (LOGIN, Some((user, password))) => {
            // 1 is the version of this exchange.
            let login =
                [&[1], with_length(user)?.as_slice(), with_length(password)?.as_slice()].concat();
            let [_, status] = exchange(&mut stream, &login).await?;
            if status != 0 {
                return Err(refusal("username/password authentication failed".to_owned()));
            }
        }
        (NO_ACCEPTABLE_METHOD, _) => {
            return Err(refusal("no acceptable authentication methods".to_owned()));
        }
        (other, _) => return Err(bad(format!("unsupported authentication method {other}"))),
    }
    let address = match host.parse::<IpAddr>() {
        Ok(IpAddr::V4(ip)) => [&[1], ip.octets().as_slice()].concat(),
        Ok(IpAddr::V6(ip)) => [&[4], ip.octets().as_slice()].concat(),
        Err(_) => [&[3], with_length(host.as_bytes())?.as_slice()].concat(),
    };
    // 1 is the command CONNECT, 0 is reserved. The address begins with its type: 1, 3 or 4.
    let request = [&[VERSION, 1, 0], address.as_slice(), &port.to_be_bytes()].concat();
    let [_, reply, _, kind] = exchange(&mut stream, &request).await?;
    if reply != 0 {
        return Err(refusal(format!("{host}:{port}: {}", reply_text(reply))));
    }
    // The proxy's own address is read and ignored.
    let length = match kind {
        1 => 4,
        4 => 16,
        3 => {
            let mut length = [0];
            stream.read_exact(&mut length).await?;
            usize::from(length[0])
        }
        other => return Err(bad(format!("unknown address type {other}"))),
    };
    stream.read_exact(&mut vec![0; length + size_of::<u16>()]).await?;
    Ok(stream)
}

/// Sends `what` and reads `N` bytes of the answer.
async fn exchange<const N: usize>(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    what: &[u8],
) -> io::Result<[u8; N]> {
    stream.write_all(what).await?;
    stream.flush().await?;
    let mut answer = [0; N];
    stream.read_exact(&mut answer).await?;
    Ok(answer)
}

/// Returns `bytes` after a byte that holds their length.
fn with_length(bytes: &[u8]) -> io::Result<Vec<u8>> {
    let long = |_| io::Error::new(io::ErrorKind::InvalidInput, "name or password too long");
    let length = u8::try_from(bytes.len()).map_err(long)?;
    Ok([&[length], bytes].concat())
}

/// Returns the text of a reply code of RFC 1928.
fn reply_text(reply: u8) -> String {
    let known = [
        "general SOCKS server failure",
        "connection not allowed by ruleset",
        "network unreachable",
        "host unreachable",
        "connection refused",
        "TTL expired",
        "command not supported",
        "address type not supported",
    ];
    let index = usize::from(reply).wrapping_sub(1);
    known.get(index).map_or_else(|| format!("unknown code {reply}"), |text| (*text).to_owned())
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use futures_lite::future::block_on;

    use super::*;

    /// A peer that sends fixed bytes.
    struct Script {
        says: io::Cursor<Vec<u8>>,
        heard: Vec<u8>,
    }

    impl AsyncRead for Script {
        fn poll_read(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            output: &mut [u8],
        ) -> Poll<io::Result<usize>> {
            // A byte at a time: answers may be cut anywhere.
            let output = &mut output[..1];
            Poll::Ready(io::Read::read(&mut self.says, output))
        }
    }

    impl AsyncWrite for Script {
        fn poll_write(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            input: &[u8],
        ) -> Poll<io::Result<usize>> {
            self.heard.extend_from_slice(input);
            Poll::Ready(Ok(input.len()))
        }
        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
        fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    /// What the proxy received and how many of its bytes were not read, or the error.
    fn connect_through(proxy: &str, host: &str, says: &[u8]) -> Result<(Vec<u8>, usize), String> {
        let script = Script { says: io::Cursor::new(says.to_vec()), heard: Vec::new() };
        let proxy = Proxy::parse(proxy).unwrap();
        let script = block_on(open(script, &proxy, host, 443)).map_err(|e| e.to_string())?;
        Ok((script.heard, says.len() - script.says.position() as usize))
    }

    #[test]
    fn socks_follows_the_rfc() {
        const AT: &[u8] = &[0, 0, 0, 0, 0, 0];
        let fine = [&[5, 0, 5, 0, 0, 1], AT, b"more"].concat();
        let name = [b"\x05\x01\x00\x05\x01\x00\x03\x01k".as_slice(), &[1, 187]].concat();
        assert_eq!(connect_through("socks5://p", "k", &fine), Ok((name, 4)));
        let four = [b"\x05\x01\x00\x05\x01\x00\x01".as_slice(), &[10, 0, 0, 1, 1, 187]].concat();
        assert_eq!(connect_through("socks5://p", "10.0.0.1", &fine), Ok((four, 4)));
        let from_name = [&[5, 0, 5, 0, 0, 3, 2], b"ab".as_slice(), &[0, 0]].concat();
        assert_eq!(connect_through("socks5://p", "::1", &from_name).unwrap().0[6], 4);
        let login = [&[5, 2, 1, 0, 5, 0, 0, 1], AT].concat();
        let (heard, _) = connect_through("socks5://u:pw@p", "k", &login).unwrap();
        assert!(heard.starts_with(b"\x05\x02\x00\x02\x01\x01u\x02pw\x05\x01"), "{heard:?}");
        for (proxy, says, expected) in [
            ("socks5://p", [5, 0xff].as_slice(), "no acceptable authentication methods"),
            ("socks5://p", &[5, 2], "unsupported authentication method 2"),
            ("socks5://u:pw@p", &[5, 2, 1, 1], "username/password authentication failed"),
            ("socks5://p", &[4, 0], "unexpected SOCKS version 4"),
            ("socks5://p", &[5, 0, 5, 5, 0, 1], "k:443: connection refused"),
            ("socks5://p", &[5, 0, 5, 99, 0, 1], "k:443: unknown code 99"),
            ("socks5://p", &[5, 0, 5, 0, 0, 7], "unknown address type 7"),
            ("socks5://p", &[5, 0, 5], "p:1080: "),
        ] {
            let error = connect_through(proxy, "k", says).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
        assert!(connect_through("socks5://p", &"k".repeat(256), &fine).is_err());
    }

    #[test]
    fn a_tunnel_is_requested_by_connect() {
        let (heard, left) =
            connect_through("http://u:p@p", "::1", b"HTTP/1.1 200 OK\r\n\r\n").unwrap();
        let expected = "CONNECT [::1]:443 HTTP/1.1\r\nhost: [::1]:443\r\n\
                        proxy-authorization: Basic dTpw\r\n\r\n";
        assert_eq!((String::from_utf8(heard).unwrap().as_str(), left), (expected, 0));
        let error = connect_through("https://p", "k", b"HTTP/1.1 403 No\r\n\r\n").unwrap_err();
        assert_eq!(error, "proxy p:443: CONNECT k:443: 403");
    }
}
