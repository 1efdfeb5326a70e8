//! The requests that a read-only client may send.

use std::fmt;

/// The only review with a namespace.
const LOCAL: &str = "localsubjectaccessreviews";

/// Groups whose objects are reviews: the API server answers them and stores nothing.
const REVIEWS: [(&str, &[&str]); 2] = [
    ("authentication.k8s.io", &["tokenreviews", "selfsubjectreviews"]),
    (
        "authorization.k8s.io",
        &["subjectaccessreviews", LOCAL, "selfsubjectaccessreviews", "selfsubjectrulesreviews"],
    ),
];

/// Why a request was not sent: it is a write, and the client only reads.
#[derive(Debug)]
pub(in crate::client) struct WriteRefused;

impl fmt::Display for WriteRefused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a write, which a client that only reads does not send")
    }
}

impl std::error::Error for WriteRefused {}

/// Returns whether a request changes nothing: it fetches, or creates a review. `path`: without the
/// prefix of the server's address.
pub(in crate::client) fn is_read(method: &str, path: &str) -> bool {
    match method {
        "GET" | "HEAD" | "OPTIONS" => true,
        "POST" => is_review(path),
        _ => false,
    }
}

/// Returns whether a path is that of reviews: `/apis/GROUP/VERSION/REVIEWS` or
/// `/apis/GROUP/VERSION/namespaces/NAMESPACE/REVIEWS`.
fn is_review(path: &str) -> bool {
    let segments: Vec<&str> = path.split('/').collect();
    let (group, reviews) = match segments[..] {
        ["", "apis", group, _, reviews] if reviews != LOCAL => (group, reviews),
        ["", "apis", group, _, "namespaces", _, LOCAL] => (group, LOCAL),
        _ => return false,
    };
    REVIEWS.iter().any(|(of, kinds)| group == *of && kinds.contains(&reviews))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use futures_lite::future::block_on;

    use super::*;
    use crate::client::{Call, Client, Config};
    use crate::clock::FakeClock;
    use crate::objects::Timestamp;

    #[test]
    fn no_client_of_a_read_only_connection_sends_a_write() {
        let clock = FakeClock::new(Timestamp::from_secs(0));
        let config = Config { read_only: true, ..Config::new("http://127.0.0.1:1/prefix") };
        let client = Client::new(config, clock).expect("no certificates are read");
        let tokens = Arc::new(|_| -> futures_lite::future::Boxed<_> {
            Box::pin(async { Ok("token".to_owned()) })
        });
        let with_tokens = client.with_tokens("t", tokens).expect("no certificates are read");
        for client in [client.named("n"), client.for_lease(), with_tokens, client] {
            for method in ["POST", "PUT", "PATCH", "DELETE"] {
                let call = Call::new(method, "/api/v1/namespaces/a/pods/b");
                let error = block_on(client.send(&call)).expect_err("it is a write");
                assert!(error.is_shadowed(), "{error}");
            }
            let review = Call::new("POST", "/apis/authentication.k8s.io/v1/tokenreviews");
            let error = block_on(client.send(&review)).expect_err("nothing listens");
            assert!(error.is_transport(), "it was to be sent: {error}");
        }
    }

    #[test]
    fn reads_and_reviews_pass() {
        let authorization = "/apis/authorization.k8s.io/v1";
        for (method, path, passes) in [
            ("GET", "/api/v1/pods", true),
            ("HEAD", "/healthz", true),
            ("POST", "/api/v1/namespaces/a/pods", false),
            ("PUT", "/api/v1/namespaces/a/pods/b", false),
            ("PATCH", "/api/v1/namespaces/a/pods/b/status", false),
            ("DELETE", "/api/v1/namespaces/a/pods/b", false),
            ("POST", "/api/v1/namespaces/a/pods/b/eviction", false),
            ("POST", "/api/v1/namespaces/a/serviceaccounts/b/token", false),
            ("POST", &format!("{authorization}/subjectaccessreviews"), true),
            ("POST", &format!("{authorization}/selfsubjectrulesreviews"), true),
            ("POST", &format!("{authorization}/localsubjectaccessreviews"), false),
            ("POST", &format!("/proxied{authorization}/selfsubjectrulesreviews"), false),
            ("POST", &format!("{authorization}/namespaces/a/localsubjectaccessreviews"), true),
            ("POST", "/apis/authentication.k8s.io/v1/tokenreviews", true),
            ("PUT", "/apis/authentication.k8s.io/v1/tokenreviews", false),
            ("DELETE", &format!("{authorization}/subjectaccessreviews"), false),
            ("POST", "/apis/authentication.k8s.io/v1/tokenrequests", false),
            ("POST", "/apis/authorization.k8s.io.example.com/v1/subjectaccessreviews", false),
            // Objects with the names of reviews.
            ("POST", "/api/v1/namespaces/tokenreviews/tokenreviews", false),
            ("POST", "/apis/a.io/v1/namespaces/authorization.k8s.io/subjectaccessreviews", false),
            ("POST", "/api/v1/namespaces/apis/pods/authorization.k8s.io/v1/tokenreviews", false),
            ("CONNECT", "/", false),
        ] {
            assert_eq!(is_read(method, path), passes, "{method} {path}");
        }
    }
}
