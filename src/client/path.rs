//! Paths of resources, made of names that may come from objects.

use std::borrow::Cow;

use super::{Call, Error, Result};

/// A path below `/api` or `/apis`, built segment by segment. Segments are escaped. A name that
/// would address another path (`..`, or with a slash or percent sign) is refused with
/// [`Error::Path`], as client-go refuses it. Upstream: `rest.Request`.
#[derive(Clone, Debug)]
pub struct ApiPath(String);

impl ApiPath {
    /// Returns the path of a group version, both as discovery names them: `/api/v1` where `group`
    /// is empty. The two are not escaped.
    pub fn new(group: &str, version: &str) -> ApiPath {
        ApiPath(match group {
            "" => format!("/api/{version}"),
            group => format!("/apis/{group}/{version}"),
        })
    }

    /// Adds `namespaces/` and the name of a namespace.
    ///
    /// # Errors
    /// [`Error::Path`] when the name would address another path.
    pub fn namespace(self, namespace: &str) -> Result<ApiPath> {
        ApiPath(self.0 + "/namespaces").push("namespace", namespace)
    }

    /// Adds a resource's plural name, in lower case as client-go sends it: names of external
    /// metrics stand here too.
    ///
    /// # Errors
    /// [`Error::Path`] when the name would address another path.
    pub fn resource(self, resource: &str) -> Result<ApiPath> {
        match resource.contains(char::is_uppercase) {
            true => self.push("resource", &resource.to_lowercase()),
            false => self.push("resource", resource),
        }
    }

    /// Adds the name of an object.
    ///
    /// # Errors
    /// [`Error::Path`] when the name would address another path, or is empty: the path would be the
    /// collection's.
    pub fn name(self, name: &str) -> Result<ApiPath> {
        match name {
            "" => Err(Error::Path("resource name may not be empty".to_owned())),
            name => self.push("resource name", name),
        }
    }

    /// Adds a subresource, such as `status`.
    ///
    /// # Errors
    /// [`Error::Path`] when the name would address another path.
    pub fn subresource(self, subresource: &str) -> Result<ApiPath> {
        self.push("subresource", subresource)
    }

    /// Adds a segment. `what`: names it in errors.
    fn push(mut self, what: &str, segment: &str) -> Result<ApiPath> {
        let faults = faults(segment);
        if !faults.is_empty() {
            let faults = faults.join(" ");
            return Err(Error::Path(format!("invalid {what} {segment:?}: [{faults}]")));
        }
        self.0.push('/');
        self.0.push_str(&escape(segment));
        Ok(self)
    }

    /// Returns a request to this path, without parameters and body.
    pub fn call(self, method: &'static str) -> Call {
        Call::new(method, self.0)
    }
}

/// Returns why a text cannot be one segment of a path; empty if it can. Upstream:
/// `rest.IsValidPathSegmentName`.
fn faults(segment: &str) -> Vec<String> {
    if matches!(segment, "." | "..") {
        return vec![format!("may not be '{segment}'")];
    }
    let forbidden = ['/', '%'].into_iter().filter(|byte| segment.contains(*byte));
    forbidden.map(|byte| format!("may not contain '{byte}'")).collect()
}

/// Returns a segment, escaped where it has to be.
fn escape(text: &str) -> Cow<'_, str> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~:@!$&'()*+,;=".contains(&byte);
    if text.bytes().all(is_plain) {
        return Cow::Borrowed(text);
    }
    let escaped = text.bytes().fold(String::new(), |mut escaped, byte| {
        match is_plain(byte) {
            true => escaped.push(byte as char),
            false => escaped.push_str(&format!("%{byte:02X}")),
        }
        escaped
    });
    Cow::Owned(escaped)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_address_another_path_are_refused() {
        let path = |namespace: &str, name: &str, subresource: &str| {
            let path = ApiPath::new("apps", "v1").namespace(namespace)?.resource("deployments")?;
            path.name(name)?.subresource(subresource).map(|path| path.0)
        };
        for (namespace, name, subresource, expected) in [
            ("a", "b", "scale", "/apis/apps/v1/namespaces/a/deployments/b/scale"),
            ("a", "b:c d?é", "x", "/apis/apps/v1/namespaces/a/deployments/b:c%20d%3F%C3%A9/x"),
            ("a", "...", ".x", "/apis/apps/v1/namespaces/a/deployments/.../.x"),
            ("a", "..", "x", "invalid resource name \"..\": [may not be '..']"),
            ("a", ".", "x", "invalid resource name \".\": [may not be '.']"),
            ("..", "b", "x", "invalid namespace \"..\": [may not be '..']"),
            ("a", "b", "..", "invalid subresource \"..\": [may not be '..']"),
            ("a", "../b", "x", "invalid resource name \"../b\": [may not contain '/']"),
            (
                "a",
                "%2e%2e/",
                "x",
                "invalid resource name \"%2e%2e/\": [may not contain '/' may not contain '%']",
            ),
            ("a", "", "x", "resource name may not be empty"),
        ] {
            let found = path(namespace, name, subresource).unwrap_or_else(|e| e.to_string());
            assert_eq!(found, expected);
        }
        let metric = ApiPath::new("external.metrics.k8s.io", "v1beta1").resource("Queue-Depth");
        assert_eq!(metric.expect("a path").0, "/apis/external.metrics.k8s.io/v1beta1/queue-depth");
        let error = ApiPath::new("", "v1").resource("..").expect_err("it is refused");
        assert_eq!(error.to_string(), "invalid resource \"..\": [may not be '..']");
        assert!(!error.is_not_found() && !error.is_unsure());
    }
}
