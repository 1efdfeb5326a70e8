//! Clients of servers whose answers a test writes beforehand.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_std::net::TcpListener;
use futures_lite::{AsyncReadExt, AsyncWriteExt};

use super::{Client, Config};
use crate::clock::{SharedClock, SystemClock};
use crate::task;

/// A client whose requests all fail: nothing listens at its server's address.
pub fn without_server(clock: SharedClock) -> Client {
    let config = Config::new("http://127.0.0.1:1".to_owned());
    Client::new(config, clock).expect("no certificates are read")
}

/// A client of a server that leaves the first `unanswered` requests for each path without an
/// answer and answers the others with 404; and the number of requests it received.
pub async fn forgetful(unanswered: usize) -> (Client, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let config = Config::new(format!("http://{}", listener.local_addr().unwrap()));
    let heard = Arc::new(AtomicUsize::new(0));
    let count = heard.clone();
    let tries = Arc::new(parking_lot::Mutex::new(HashMap::<String, usize>::new()));
    task::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let (count, tries) = (count.clone(), tries.clone());
            // The client may keep a connection for a later request.
            task::spawn(async move {
                let Some(request) = Received::read(&mut stream).await else { return };
                count.fetch_add(1, Ordering::SeqCst);
                let line = request.line().to_owned();
                let tried = {
                    let mut tries = tries.lock();
                    let tried = tries.entry(line).or_default();
                    *tried += 1;
                    *tried
                };
                if tried > unanswered {
                    let answer =
                        b"HTTP/1.1 404 No\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
                    stream.write_all(answer).await.unwrap();
                }
            });
        }
    });
    (Client::new(config, SystemClock::shared()).unwrap(), heard)
}

/// A client of a server that answers each request line with the status and the body that
/// `answer` gives.
pub async fn answering(
    mut answer: impl FnMut(&str) -> (u16, serde_json::Value) + Send + 'static,
) -> Client {
    answering_requests(move |request| answer(request.line())).await
}

/// [`answering`] by the whole request.
pub async fn answering_requests(
    answer: impl FnMut(&Received) -> (u16, serde_json::Value) + Send + 'static,
) -> Client {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let config = Config::new(format!("http://{}", listener.local_addr().unwrap()));
    let answer = Arc::new(parking_lot::Mutex::new(answer));
    task::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let answer = answer.clone();
            // The client may keep a connection for a later request.
            task::spawn(async move {
                let Some(request) = Received::read(&mut stream).await else { return };
                let (status, body) = answer.lock()(&request);
                let answer = format!(
                    "HTTP/1.1 {status} Any\r\ncontent-type: application/json\r\n\
                     content-length: {}\r\nconnection: close\r\n\r\n{body}",
                    body.to_string().len()
                );
                stream.write_all(answer.as_bytes()).await.unwrap();
            });
        }
    });
    Client::new(config, SystemClock::shared()).unwrap()
}

/// A request that a server has received.
pub struct Received {
    head: String,
    body: String,
}

impl Received {
    /// Reads a request to its end; `None` when the client closes before it.
    async fn read(stream: &mut (impl AsyncReadExt + Unpin)) -> Option<Received> {
        let (mut text, mut piece) = (String::new(), [0; 4096]);
        loop {
            let length = stream.read(&mut piece).await.unwrap();
            text.push_str(&String::from_utf8_lossy(&piece[..length]));
            let Some((head, body)) = text.split_once("\r\n\r\n") else {
                if length == 0 && text.is_empty() {
                    return None;
                }
                assert!(length > 0, "cut off: {text}");
                continue;
            };
            let request = Received { head: head.to_owned(), body: body.to_owned() };
            let wanted = request.header("content-length").map_or(0, |text| text.parse().unwrap());
            if length == 0 || request.body.len() >= wanted {
                return Some(request);
            }
        }
    }

    /// The method and the path, with the protocol.
    pub fn line(&self) -> &str {
        self.head.lines().next().unwrap_or_default()
    }

    /// The value of a header; `None` without it.
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut headers = self.head.lines().filter_map(|line| line.split_once(": "));
        headers.find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }

    /// The body, which is JSON.
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap()
    }
}
