//! The target of a request, from its path. Upstream: `RequestInfoFactory.NewRequestInfo`.

use crate::percent;

/// A resource, one of its objects, or a subresource of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Target {
    /// Empty for the core group.
    pub group: String,
    pub plural: String,
    pub namespace: String,
    /// Empty: the collection.
    pub name: String,
    pub subresource: String,
    /// The path without the subresource.
    pub object_path: String,
}

impl Target {
    /// Parses the path of a request; `None` for a path of no API resource.
    pub fn parse(path: &str) -> Option<Target> {
        let mut segments = path.trim_matches('/').split('/');
        let group = match segments.next()? {
            "api" => String::new(),
            "apis" => segments.next()?.to_owned(),
            _ => return None,
        };
        // The version.
        segments.next()?;
        let rest: Vec<String> = segments.map(percent::decode).collect();
        let rest: Vec<&str> = rest.iter().map(String::as_str).collect();
        let (namespace, rest) = match &rest[..] {
            // A subresource of the Namespace itself.
            ["namespaces", _, "status" | "finalize", ..] => ("", &rest[..]),
            ["namespaces", namespace, rest @ ..] if !rest.is_empty() => (*namespace, rest),
            rest => ("", rest),
        };
        let (plural, name, subresource) = match *rest {
            [plural] => (plural, "", String::new()),
            [plural, name] => (plural, name, String::new()),
            [plural, name, ref below @ ..] => (plural, name, below.join("/")),
            [] => return None,
        };
        let object_path = match subresource.is_empty() {
            true => path.to_owned(),
            false => {
                // The segments of the subresource are cut off.
                let below = subresource.matches('/').count() + 1;
                let end = path.trim_end_matches('/').rmatch_indices('/').nth(below - 1)?.0;
                path[..end].to_owned()
            }
        };
        Some(Target {
            group,
            plural: plural.to_owned(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            subresource,
            object_path,
        })
    }

    /// Returns `deployments.apps`, as upstream's GroupResource prints.
    pub fn resource(&self) -> String {
        match self.group.as_str() {
            "" => self.plural.clone(),
            group => format!("{}.{group}", self.plural),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_taken_apart() {
        for (path, resource, namespace, name, subresource, object_path) in [
            ("/api/v1/pods", "pods", "", "", "", "/api/v1/pods"),
            ("/api/v1/namespaces/a/pods", "pods", "a", "", "", "/api/v1/namespaces/a/pods"),
            (
                "/api/v1/namespaces/a/pods/b/status",
                "pods",
                "a",
                "b",
                "status",
                "/api/v1/namespaces/a/pods/b",
            ),
            ("/api/v1/namespaces/a", "namespaces", "", "a", "", "/api/v1/namespaces/a"),
            (
                "/api/v1/namespaces/a/finalize",
                "namespaces",
                "",
                "a",
                "finalize",
                "/api/v1/namespaces/a",
            ),
            (
                "/apis/apps/v1/namespaces/a/deployments/b",
                "deployments.apps",
                "a",
                "b",
                "",
                "/apis/apps/v1/namespaces/a/deployments/b",
            ),
            (
                "/apis/rbac.authorization.k8s.io/v1/clusterroles/system%3Anode%2Fx",
                "clusterroles.rbac.authorization.k8s.io",
                "",
                "system:node/x",
                "",
                "/apis/rbac.authorization.k8s.io/v1/clusterroles/system%3Anode%2Fx",
            ),
        ] {
            let target = Target::parse(path).unwrap_or_else(|| panic!("{path}"));
            let found =
                (target.resource(), &*target.namespace, &*target.name, &*target.subresource);
            assert_eq!(found, (resource.to_owned(), namespace, name, subresource), "{path}");
            assert_eq!(target.object_path, object_path);
        }
        for path in ["/healthz", "/api", "/api/v1", "/apis/apps/v1", "/"] {
            assert_eq!(Target::parse(path), None, "{path}");
        }
    }
}
