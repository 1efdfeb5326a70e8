//! Which manager asks the API server for what: each manager has a port of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::Result;
use crate::object::text;
use crate::request::call::{Query, ResourcePath, verb};
use crate::server::Sandbox;
use crate::storage::store::Store;
use kube_controller_manager::server::http::{Body, Handler};

pub const LEASE: &str = "kube-controller-manager";
const LEASE_NAMESPACE: &str = "kube-system";
const LEASES: &str = "leases.coordination.k8s.io";
const WRITES: [&str; 5] = ["create", "update", "patch", "delete", "deletecollection"];

/// A process of a manager: its seat, and how many ran there before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Writer {
    pub seat: usize,
    pub run: u64,
}

/// A write that a manager sent.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    pub writer: Writer,
    pub verb: &'static str,
    /// With its group and its subresource.
    pub resource: String,
    pub namespace: String,
    pub name: String,
    pub agent: String,
    /// `None`: not answered, and perhaps carried out.
    pub code: Option<u16>,
    /// Of a write to the managers' lease: its holder afterwards.
    pub holder: Option<String>,
}

/// The records that were not taken yet.
#[derive(Default)]
pub struct Audit {
    records: Mutex<Vec<Record>>,
}

impl Audit {
    pub fn take(&self) -> Vec<Record> {
        std::mem::take(&mut *self.records.lock())
    }

    /// Opens a port of the API server for the manager of a seat, of which `run` counts the
    /// processes.
    pub async fn port(
        self: &Arc<Self>,
        sandbox: &Sandbox,
        seat: usize,
        run: Arc<AtomicU64>,
    ) -> Result<std::net::SocketAddr> {
        let (audit, api) = (self.clone(), sandbox.api().clone());
        let wrap = move |handler: Handler| -> Handler {
            Arc::new(move |request| {
                let path = ResourcePath::parse(&request.path);
                let verb = verb(&request.method, path.as_ref(), &Query::parse(&request.query));
                let Some(path) = path.filter(|_| WRITES.contains(&verb)) else {
                    return handler(request);
                };
                let writer = Writer { seat, run: run.load(Ordering::SeqCst) };
                let agent = request.header("user-agent").unwrap_or_default().to_owned();
                let (audit, api, answer) = (audit.clone(), api.clone(), handler(request));
                Box::pin(async move {
                    let response = answer.await;
                    let code = match response.body {
                        Body::Abort => None,
                        _ => Some(response.status),
                    };
                    let holder = is_lease(&path).then(|| holder(&api.store));
                    let resource = named(&path);
                    let ResourcePath { namespace, name, .. } = path;
                    let record =
                        Record { writer, verb, resource, namespace, name, agent, code, holder };
                    audit.records.lock().push(record);
                    response
                })
            })
        };
        Ok(sandbox.listen(wrap).await?)
    }
}

/// `replicasets.apps/status`
fn named(path: &ResourcePath) -> String {
    let mut named = path.resource.clone();
    if !path.group.is_empty() {
        named = format!("{named}.{}", path.group);
    }
    if !path.subresource.is_empty() {
        named = format!("{named}/{}", path.subresource);
    }
    named
}

fn is_lease(path: &ResourcePath) -> bool {
    path.resource == "leases"
        && path.namespace == LEASE_NAMESPACE
        && (path.name == LEASE || path.name.is_empty())
}

/// The holder of the managers' lease; empty: it has no holder.
pub fn holder(store: &Store) -> String {
    let lease = store.get(LEASES, &format!("{LEASE_NAMESPACE}/{LEASE}"));
    lease.map_or_else(String::new, |lease| text(&lease.value, "/spec/holderIdentity").to_owned())
}
