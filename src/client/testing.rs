//! Clients of servers whose answers a test writes beforehand.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_std::net::TcpListener;
use futures_lite::{AsyncReadExt, AsyncWriteExt};

use super::{Client, Config};
use crate::clock::SystemClock;
use crate::task;

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
                let head = read_request(&mut stream).await;
                if head.is_empty() {
                    return;
                }
                count.fetch_add(1, Ordering::SeqCst);
                let line = head.lines().next().unwrap_or_default().to_owned();
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
    answer: impl FnMut(&str) -> (u16, serde_json::Value) + Send + 'static,
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
                let head = read_request(&mut stream).await;
                if head.is_empty() {
                    return;
                }
                let (status, body) = answer.lock()(head.lines().next().unwrap_or_default());
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

/// The head of a request whose body is read as well; empty when the client closes before it.
async fn read_request(stream: &mut (impl AsyncReadExt + Unpin)) -> String {
    let (mut text, mut piece) = (String::new(), [0; 4096]);
    loop {
        let length = stream.read(&mut piece).await.unwrap();
        text.push_str(&String::from_utf8_lossy(&piece[..length]));
        let Some((head, body)) = text.split_once("\r\n\r\n") else {
            if length == 0 && text.is_empty() {
                return String::new();
            }
            assert!(length > 0, "cut off: {text}");
            continue;
        };
        let lengths = head.lines().filter_map(|line| line.split_once(": "));
        let mut lengths = lengths.filter(|(name, _)| name.eq_ignore_ascii_case("content-length"));
        let wanted = lengths.next().map_or(0, |(_, length)| length.parse().unwrap());
        if length == 0 || body.len() >= wanted {
            return head.to_owned();
        }
    }
}
