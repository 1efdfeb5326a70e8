//! A parsed request: its path, query and verb, and the call that handlers serve.
//! Upstream: `apiserver/pkg/endpoints/request.RequestInfo`.

use parking_lot::Mutex;
use std::sync::Arc;

use crate::access::User;
use crate::apply::Writer;
use crate::failures;
use crate::kinds::Kind;
use crate::request::accept::{Encoding, Form};
use crate::status::{ApiResult, Cause};
use kube_controller_manager::percent::{decode, decode_query};
use kube_controller_manager::server::http::Method;

/// The decoded query.
#[derive(Clone, Debug, Default)]
pub struct Query(Vec<(String, String)>);

impl Query {
    pub fn parse(text: &str) -> Query {
        let pairs = text.split('&').filter(|pair| !pair.is_empty()).map(|pair| {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            (decode_query(key), decode_query(value))
        });
        Query(pairs.collect())
    }

    /// Returns the first value of `key`; empty when absent.
    pub fn get(&self, key: &str) -> &str {
        self.0.iter().find(|(k, _)| k == key).map_or("", |(_, value)| value)
    }

    /// Returns all values of `key`.
    pub fn values(&self, key: &str) -> impl Iterator<Item = &str> {
        self.0.iter().filter(move |(k, _)| k == key).map(|(_, value)| value.as_str())
    }

    /// Sets a parameter that the request does not set.
    pub fn fill(&mut self, key: &str, value: &str) {
        if !self.has(key) {
            self.0.insert(0, (key.to_owned(), value.to_owned()));
        }
    }

    pub fn has(&self, key: &str) -> bool {
        !self.get(key).is_empty()
    }

    /// Returns whether a parameter is true, as Go reads query booleans: set, and neither `false`
    /// nor `0`.
    pub fn is(&self, key: &str) -> bool {
        self.0.iter().any(|(k, value)| k == key && !matches!(value.as_str(), "false" | "0"))
    }

    /// Parses a query parameter that is a number; `None`: it is absent or empty.
    pub fn number<T: std::str::FromStr>(&self, key: &str) -> ApiResult<Option<T>> {
        match self.get(key) {
            "" => Ok(None),
            text => text.parse().map(Some).map_err(|_| {
                failures::bad_request(format!(
                    "unable to decode query: {key}={text:?} is no number"
                ))
            }),
        }
    }

    /// Returns whether the request is a dry run. Errors: 422 for a value other than `All`.
    pub fn dry_run(&self) -> ApiResult<bool> {
        let mut values = self.0.iter().filter(|(key, _)| key == "dryRun").map(|(_, value)| value);
        if let Some(other) = values.clone().find(|value| *value != "All") {
            let cause = Cause {
                reason: "FieldValueNotSupported",
                message: format!("Unsupported value: [{other:?}]: supported values: \"All\""),
                field: "dryRun".to_owned(),
            };
            return Err(failures::invalid("meta.k8s.io", "CreateOptions", "", &[cause]));
        }
        Ok(values.next().is_some())
    }
}

/// A path below `/api/v1` or `/apis/GROUP/VERSION`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResourcePath {
    pub group: String,
    pub version: String,
    pub resource: String,
    pub namespace: String,
    /// Empty for a collection.
    pub name: String,
    /// Empty for the object itself.
    pub subresource: String,
}

impl ResourcePath {
    /// Parses the path of a resource; `None` for any other path.
    pub fn parse(path: &str) -> Option<ResourcePath> {
        let (found, more) = ResourcePath::read(path)?;
        (!more).then_some(found)
    }

    /// Parses the path of a resource; it may end in a slash, or continue after the subresource.
    pub fn parse_prefix(path: &str) -> Option<ResourcePath> {
        ResourcePath::read(path.trim_end_matches('/')).map(|(found, _)| found)
    }

    /// Returns the name of the resource with its subresource: `pods`, `pods/status`.
    pub fn full_name(&self) -> String {
        match self.subresource.as_str() {
            "" => self.resource.clone(),
            sub => format!("{}/{sub}", self.resource),
        }
    }

    /// Parses the path of an object, a collection or a subresource; `None` for other paths. Also
    /// returns whether the path continues after the subresource.
    fn read(path: &str) -> Option<(ResourcePath, bool)> {
        let parts: Vec<String> = path.split('/').skip(1).map(decode).collect();
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        let (group, version, rest) = match parts.as_slice() {
            ["api", version, rest @ ..] => ("", *version, rest),
            ["apis", group, version, rest @ ..] => (*group, *version, rest),
            _ => return None,
        };
        let (namespace, resource, rest) = match rest {
            // The namespaces themselves, and their subresources.
            ["namespaces"] | ["namespaces", _] | ["namespaces", _, "status" | "finalize", ..] => {
                ("", "namespaces", &rest[1..])
            }
            ["namespaces", namespace, resource, rest @ ..] => (*namespace, *resource, rest),
            [resource, rest @ ..] => ("", *resource, rest),
            [] => return None,
        };
        let (name, subresource) = match rest {
            [] => ("", ""),
            [name] => (*name, ""),
            [name, subresource, ..] => (*name, *subresource),
        };
        if resource.is_empty() {
            return None;
        }
        let own = str::to_owned;
        let found = ResourcePath {
            group: own(group),
            version: own(version),
            resource: own(resource),
            namespace: own(namespace),
            name: own(name),
            subresource: own(subresource),
        };
        Some((found, rest.len() > 2))
    }
}

/// Returns the verb of a request, as authorization and the counters name it.
pub fn verb(method: &Method, path: Option<&ResourcePath>, query: &Query) -> &'static str {
    let collection = path.is_some_and(|path| path.name.is_empty());
    match method.as_str() {
        "GET" | "HEAD" if query.is("watch") && collection => "watch",
        "GET" | "HEAD" if collection => "list",
        "GET" | "HEAD" => "get",
        "POST" => "create",
        "PUT" => "update",
        "PATCH" => "patch",
        "DELETE" if collection => "deletecollection",
        "DELETE" => "delete",
        _ => "other",
    }
}

/// A request for a kind that is served.
pub struct Call {
    pub kind: Arc<Kind>,
    /// Empty for cluster-scoped kinds, and for all namespaces.
    pub namespace: String,
    pub name: String,
    pub subresource: String,
    pub query: Query,
    pub form: Form,
    pub encoding: Encoding,
    pub warnings: Warnings,
    /// The caller.
    pub user: Arc<User>,
}

/// The warnings of the answer.
#[derive(Default)]
pub struct Warnings(Mutex<Vec<String>>);

impl Warnings {
    pub fn all(&self) -> Vec<String> {
        self.0.lock().clone()
    }
}

impl Call {
    /// Builds a request of the server itself, for one object, or for a collection when `name` is
    /// empty.
    pub fn of(kind: Arc<Kind>, namespace: &str, name: &str) -> Call {
        Call {
            kind,
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            subresource: String::new(),
            query: Query::default(),
            form: Form::Object,
            encoding: Encoding::Json,
            warnings: Warnings::default(),
            user: Arc::new(User::server()),
        }
    }

    /// Adds a warning to the answer, unless it has that warning.
    pub fn warn(&self, warning: String) {
        let mut warnings = self.warnings.0.lock();
        if !warnings.contains(&warning) {
            warnings.push(warning);
        }
    }

    /// Returns the key under which the store has an object of this call's namespace.
    pub fn key(&self, name: &str) -> String {
        if self.namespace.is_empty() {
            name.to_owned()
        } else {
            format!("{}/{name}", self.namespace)
        }
    }

    /// Returns the field manager of this call.
    pub fn writer<'a>(&'a self, now: &'a str) -> Writer<'a> {
        Writer { manager: self.query.get("fieldManager"), subresource: &self.subresource, now }
    }

    /// Returns the prefix of every key of this call's collection.
    pub fn prefix(&self) -> String {
        if self.namespace.is_empty() { String::new() } else { format!("{}/", self.namespace) }
    }

    /// Returns the table in the store.
    pub fn table(&self) -> String {
        match self.kind.view.map(|view| view.of) {
            None => self.kind.resource.to_string(),
            Some(("", _, plural)) => plural.to_owned(),
            Some((group, _, plural)) => format!("{plural}.{group}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_name_resources() {
        for (path, group, namespace, resource, name, sub) in [
            ("/api/v1/pods", "", "", "pods", "", ""),
            ("/api/v1/namespaces/a/pods/b/log", "", "a", "pods", "b", "log"),
            ("/api/v1/namespaces/a/finalize", "", "", "namespaces", "a", "finalize"),
            ("/api/v1/namespaces", "", "", "namespaces", "", ""),
            ("/apis/apps/v1/namespaces/a/deployments", "apps", "a", "deployments", "", ""),
            ("/apis/x/v1/roles/a%3Ab", "x", "", "roles", "a:b", ""),
        ] {
            let parsed = ResourcePath::parse(path).unwrap();
            let got = (&*parsed.group, &*parsed.namespace, &*parsed.resource, &*parsed.name);
            assert_eq!((got, &*parsed.subresource), ((group, namespace, resource, name), sub));
        }
        for path in ["/", "/api", "/api/v1", "/apis/apps/v1", "/version", "/api/v1/pods/a/b/c"] {
            assert_eq!(ResourcePath::parse(path), None, "{path}");
        }
    }

    #[test]
    fn queries_are_decoded() {
        let query = Query::parse("labelSelector=app%3Dweb%2Ctier+in+%28a%29&watch=1&x=false&%zz=%");
        assert_eq!(query.get("labelSelector"), "app=web,tier in (a)");
        assert_eq!((query.is("watch"), query.is("x"), query.is("y")), (true, false, false));
        assert_eq!(query.get("%zz"), "%");
    }
}
