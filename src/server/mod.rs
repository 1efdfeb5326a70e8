//! HTTPS serving: /healthz /livez /readyz, /metrics, /configz, /debug, with delegated
//! authentication and authorization.

pub mod auth;
pub mod health;
pub mod http;
pub mod https;
pub mod routes;
pub mod tls;
pub mod zpages;

use std::sync::Arc;

use futures_lite::future::Boxed;

/// One request, its body left out: none of our paths read one.
#[derive(Clone, Debug, Default)]
pub struct Request {
    pub method: String,
    /// Without the query.
    pub path: String,
    /// What stands behind the `?`, as it came.
    pub query: String,
    pub headers: Vec<(String, String)>,
    /// The client's certificate chain in DER, its own first. Asked for but not verified by TLS.
    pub peer_certificates: Vec<Vec<u8>>,
}

impl Request {
    pub fn get(path: &str) -> Request {
        let (path, query) = path.split_once('?').unwrap_or((path, ""));
        Request {
            method: "GET".into(),
            path: path.into(),
            query: query.into(),
            ..Request::default()
        }
    }

    /// The first header of this name, in any case.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers(name).next()
    }

    pub fn headers(&self, name: &str) -> impl Iterator<Item = &str> {
        let headers = self.headers.iter();
        headers.filter(move |(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    /// The parameters of the query, each with its value or an empty one, as they came.
    pub fn query_pairs(&self) -> impl Iterator<Item = (&str, &str)> {
        let pairs = self.query.split('&').filter(|pair| !pair.is_empty());
        pairs.map(|pair| pair.split_once('=').unwrap_or((pair, "")))
    }

    /// Each value of a parameter of the query; empty where it has none.
    pub fn query_values(&self, name: &str) -> impl Iterator<Item = &str> {
        self.query_pairs().filter(move |(n, _)| *n == name).map(|(_, value)| value)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    pub status: u16,
    pub content_type: String,
    pub body: Vec<u8>,
}

impl Response {
    pub fn text(status: u16, text: impl Into<String>) -> Response {
        Response {
            status,
            content_type: "text/plain; charset=utf-8".into(),
            body: text.into().into_bytes(),
        }
    }

    pub fn json(status: u16, body: &serde_json::Value) -> Response {
        let content_type = "application/json".into();
        Response { status, content_type, body: body.to_string().into_bytes() }
    }

    /// An error as the API tells it. Upstream: `metav1.Status`.
    pub fn status(code: u16, reason: &str, message: &str) -> Response {
        let body = serde_json::json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": message, "reason": reason, "code": code,
        });
        Response::json(code, &body)
    }
}

/// Answers requests. Called from many tasks at once.
pub type Handler = Arc<dyn Fn(Request) -> Boxed<Response> + Send + Sync>;

/// A handler that answers at once.
pub fn handler(answer: impl Fn(&Request) -> Response + Send + Sync + 'static) -> Handler {
    Arc::new(move |request| {
        let response = answer(&request);
        Box::pin(async move { response })
    })
}
