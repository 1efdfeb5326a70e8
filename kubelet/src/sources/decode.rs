//! From the bytes of a manifest to pods. Upstream: `pkg/kubelet/config/common.go`.

use std::fmt;
use std::path::{Path, PathBuf};

use kube_controller_manager::objects::golang::static_pod_dump;
use serde_json::{Value, json};

use super::Error;
use super::defaults;
use super::octal;
use super::validate;
use crate::pod::{CONFIG_HASH, Pod, PodExt, annotations_mut};

/// The largest manifest.
pub const MAX_BYTES: u64 = 10 << 20;

/// Where pods come to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    pub node: String,
    /// Whether there are ConfigMaps and Secrets that pods may refer to.
    pub has_objects: bool,
}

/// Where a manifest was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    File(PathBuf),
    Url(String),
}

impl Origin {
    pub fn file(path: &Path) -> Origin {
        Origin::File(path.to_owned())
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::File(path) => write!(f, "{}", path.display()),
            Origin::Url(url) => f.write_str(url),
        }
    }
}

/// Reads the pod of a manifest, JSON or YAML.
///
/// # Errors
/// Not a document, several documents, not a pod, or an invalid pod.
pub fn pod(bytes: &[u8], origin: &Origin, to: &Placement) -> Result<Pod, Error> {
    let document = document(bytes)?;
    match kind(&document)? {
        "Pod" => complete_pod(document, origin, to),
        kind => Err(Error::NotAPod { kind: kind.to_owned() }),
    }
}

/// Reads a pod, or the pods of a list.
///
/// # Errors
/// As [`pod`]; one invalid pod makes the whole list invalid.
pub fn pods(bytes: &[u8], origin: &Origin, to: &Placement) -> Result<Vec<Pod>, Error> {
    let mut document = document(bytes)?;
    match kind(&document)? {
        "Pod" => Ok(vec![complete_pod(document, origin, to)?]),
        "PodList" => {
            let items = document.get_mut("items").map(Value::take).unwrap_or_default();
            let Value::Array(items) = items else {
                return Err(Error::NoItems);
            };
            items.into_iter().map(|item| complete_pod(item, origin, to)).collect()
        }
        kind => Err(Error::NotPods { kind: kind.to_owned() }),
    }
}

/// Parses a manifest as JSON, else as YAML.
fn document(bytes: &[u8]) -> Result<Value, Error> {
    let text = std::str::from_utf8(bytes).map_err(Error::NotUtf8)?;
    // JSON is YAML, but for control characters and the largest numbers.
    match serde_json::from_str(text) {
        Ok(document) => Ok(document),
        Err(_) => serde_yaml_ng::from_str(text).map_err(Error::Syntax),
    }
}

/// Returns the kind of a document. Fails if the document is not an object of `v1`.
fn kind(document: &Value) -> Result<&str, Error> {
    if !document.is_object() {
        return Err(Error::NotAnObject);
    }
    let text = |field: &str| document.get(field).and_then(Value::as_str).unwrap_or_default();
    match (text("apiVersion"), text("kind")) {
        (_, "") => Err(Error::NoKind),
        ("v1", kind) => Ok(kind),
        (version, kind) => {
            Err(Error::UnknownKind { kind: kind.to_owned(), version: version.to_owned() })
        }
    }
}

/// Completes a pod with defaults, uid and place, and validates it. Errors: it is invalid, or refers
/// to objects that a static pod may not refer to.
fn complete_pod(mut document: Value, origin: &Origin, to: &Placement) -> Result<Pod, Error> {
    let node = to.node.as_str();
    if let Some(object) = document.as_object_mut() {
        // Items of lists may lack them.
        object.entry("apiVersion").or_insert(json!("v1"));
        object.entry("kind").or_insert(json!("Pod"));
        // The kubelet computes it.
        object.remove("status");
    }
    octal::complete(&mut document);
    defaults::complete(&mut document);
    let uid = generated_uid(&document, origin, node);
    let mut pod: Pod = serde_json::from_value(document).map_err(Error::Field)?;
    if pod.name().is_empty() {
        return Err(Error::NoName);
    }
    place(&mut pod, uid, origin, node);
    let faults = validate::faults(&pod);
    if !faults.is_empty() {
        return Err(Error::Invalid(faults));
    }
    match validate::api_reference(&pod, to.has_objects) {
        Some(resource) => Err(Error::Reference { resource }),
        None => Ok(pod),
    }
}

/// Gives a static pod its name on this node, the uid unless it names one, a namespace, the node,
/// the annotation with its hash, the phase `Pending`, and a toleration. Upstream: `applyDefaults`.
fn place(pod: &mut Pod, uid: String, origin: &Origin, node: &str) {
    if pod.metadata.uid.as_deref().unwrap_or_default().is_empty() {
        pod.metadata.uid = Some(uid);
    }
    pod.metadata.name = Some(format!("{}-{}", pod.name(), node.to_lowercase()));
    if pod.namespace().is_empty() {
        pod.metadata.namespace = Some("default".to_owned());
    }
    let uid = pod.metadata.uid.clone().unwrap_or_default();
    annotations_mut(pod).insert(CONFIG_HASH.to_owned(), uid);
    let spec = pod.spec.get_or_insert_default();
    spec.node_name = Some(node.to_owned());
    // As upstream, pods of a URL do not get it.
    if matches!(origin, Origin::File(_)) {
        let tolerations = spec.tolerations.get_or_insert_default();
        let is_for_all = |toleration: &k8s_openapi::api::core::v1::Toleration| {
            toleration.operator.as_deref() == Some("Exists")
                && toleration.effect.as_deref() == Some("NoExecute")
                && toleration.key.is_none()
        };
        if !tolerations.iter().any(is_for_all) {
            tolerations.push(k8s_openapi::api::core::v1::Toleration {
                operator: Some("Exists".to_owned()),
                effect: Some("NoExecute".to_owned()),
                ..Default::default()
            });
        }
    }
    pod.status.get_or_insert_default().phase = Some("Pending".to_owned());
}

/// Computes a uid that depends on the pod's content, the node and the file or URL: the Go
/// kubelet's, so that a change from one to the other restarts no pod.
fn generated_uid(document: &Value, origin: &Origin, node: &str) -> String {
    let mut hash = Fnv128::default();
    hash.write(static_pod_dump(document).as_bytes());
    match origin {
        Origin::File(path) => {
            hash.write(format!("host:{node}file:{}", path.display()).as_bytes());
        }
        Origin::Url(url) => hash.write(format!("url:{url}").as_bytes()),
    }
    format!("{:032x}", hash.0)
}

/// FNV-1a of 128 bits. Upstream: `fnv.New128a`.
struct Fnv128(u128);

impl Default for Fnv128 {
    fn default() -> Fnv128 {
        Fnv128(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d)
    }
}

impl Fnv128 {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            // The prime of FNV with 128 bits.
            self.0 = (self.0 ^ u128::from(*byte)).wrapping_mul((1 << 88) + 0x13b);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WEB: &str = "
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  containers: [{name: a, image: 'b:1'}]
";

    fn read(text: &str) -> Result<Pod, String> {
        let read = pod(text.as_bytes(), &Origin::file(Path::new("/pods/web.yaml")), &to("Node-1"));
        read.map_err(|error| crate::causes::chain(&error))
    }

    fn to(node: &str) -> Placement {
        Placement { node: node.to_owned(), has_objects: false }
    }

    #[test]
    fn static_pods_are_placed_on_the_node() {
        let pod = read(WEB).expect("a pod");
        assert_eq!((pod.name(), pod.namespace()), ("web-node-1", "default"));
        assert_eq!(pod.annotation(CONFIG_HASH), Some(&*pod.uid()));
        assert_eq!(pod.uid().len(), 32);
        assert_eq!(pod.spec().node_name.as_deref(), Some("Node-1"));
        let tolerations = pod.spec().tolerations.as_deref().unwrap_or_default();
        assert_eq!(tolerations.len(), 1);
        assert_eq!(pod.status.and_then(|status| status.phase).as_deref(), Some("Pending"));
    }

    /// The uids that upstream's own code computes for these manifests.
    #[test]
    fn uids_are_the_go_kubelets() {
        let rich = include_str!("testdata/rich.yaml");
        for (text, file, node, uid) in [
            (WEB, "/pods/web.yaml", "Node-1", "2c2b40ab4b0c6770dd02ad1a3cfde600"),
            (rich, "/pods/rich.yaml", "node-1", "c6caacf06aac911a2f2b42d779df5d01"),
        ] {
            let origin = Origin::file(Path::new(file));
            let pod = pod(text.as_bytes(), &origin, &to(node)).expect(file);
            assert_eq!(&*pod.uid(), uid, "{file}");
        }
    }

    #[test]
    fn uid_changes_with_content_file_and_node_only() {
        let uid = |text: &str, file: &str, node: &str| {
            let origin = Origin::file(Path::new(file));
            pod(text.as_bytes(), &origin, &to(node)).expect("a pod").uid()
        };
        let same = uid(WEB, "/a", "n");
        assert_eq!(uid(&format!("# comment\n{WEB}"), "/a", "n"), same);
        assert_ne!(uid(&WEB.replace("b:1", "b:2"), "/a", "n"), same);
        assert_ne!(uid(WEB, "/b", "n"), same);
        assert_ne!(uid(WEB, "/a", "m"), same);
        let fixed = WEB.replace("{name: web}", "{name: web, uid: x}");
        assert_eq!(&*uid(&fixed, "/a", "n"), "x");
    }

    #[test]
    fn faults_are_named() {
        for (text, fault) in [
            ("", "the document is not an object"),
            ("{", "did not find"),
            ("a: 1", "Object 'Kind' is missing"),
            ("kind: Pod", "no kind \"Pod\" is registered for version \"\""),
            ("{apiVersion: v1, kind: Service}", "invalid pod: the document's kind is \"Service\""),
            (&WEB.replace("name: web", "labels: {}"), "invalid pod: name is needed for the pod"),
            (&WEB.replace("'b:1'", "3"), "invalid pod: "),
            (&WEB.replace("image: 'b:1'", "tty: true"), "spec.containers[0].image: Required value"),
            (
                &WEB.replace("spec:", "spec:\n  serviceAccountName: x"),
                "static pods may not reference serviceaccounts",
            ),
            (&format!("{WEB}---\n{WEB}"), "more than one document"),
        ] {
            let error = read(text).expect_err(text);
            assert!(error.contains(fault), "{text}: {error}");
        }
    }

    #[test]
    fn lists_are_read_whole() {
        let list = json!({"apiVersion": "v1", "kind": "PodList", "items": [
            {"metadata": {"name": "a"}, "spec": {"containers": [{"name": "a", "image": "b"}]}},
            {"metadata": {"name": "c"}, "spec": {"containers": [{"name": "a", "image": "b"}]}},
        ]});
        let origin = Origin::Url("http://a".to_owned());
        let read = pods(list.to_string().as_bytes(), &origin, &to("n")).expect("pods");
        let names: Vec<&str> = read.iter().map(PodExt::name).collect();
        assert_eq!(names, ["a-n", "c-n"]);
        assert!(read[0].spec().tolerations.is_none(), "only files' pods tolerate everything");
    }

    #[test]
    fn hash_is_fnv_1a() {
        let mut hash = Fnv128::default();
        hash.write(b"a");
        assert_eq!(format!("{:032x}", hash.0), "d228cb696f1a8caf78912b704e4a8964");
    }
}
