//! How the Go manager sees an object: its typed structs, as JSON and as the dump that it hashes.
//!
//! ControllerRevisions and the names of ReplicaSets are computed from Go's own encodings of a pod
//! template. A manager that takes over must compute the same, or else every StatefulSet and
//! DaemonSet restarts its pods. Go decodes into structs: fields that the structs lack are dropped,
//! empty lists are nil, and each field's tag decides whether its zero value is written. So the
//! encodings need the struct definitions, which are kept as a table (`pod_template.types`).
//!
//! The uid of a static pod is computed from the dump of the kubelet's internal struct (`pod.types`).

mod defaults;
mod dump;
mod json;
mod quantity;
mod selector;
mod types;

pub use defaults::complete_pod_template;
pub use dump::{pod_template_dump, static_pod_dump};
pub use json::{Numbers, pod_template_patch};
pub use selector::label_selector;
