//! The objects of a soak: each namespace has the same parts, and Jobs and dependents that come and
//! go.

use serde_json::{Value, json};

use crate::nodes::DRIVER;
use kube_controller_manager::objects::ResourceType;

/// The number of namespaces.
pub const NAMESPACES: usize = 3;
/// The label of dependents and of their owners.
pub const DEPENDENT: &str = "soak/dependent";
/// The class of the StatefulSets' volumes.
pub const CLASS: &str = "soak";
/// The pods that a namespace may have. A large enough scale-up meets this limit.
const PODS: u32 = 18;
/// The seconds that a pod stays on a lost node.
const TOLERATED: u32 = 4;

macro_rules! kinds {
    ($($name:ident = $group:literal $version:literal $kind:literal $plural:literal $in:literal;)*) => {
        $(pub static $name: ResourceType = ResourceType::fixed($group, $version, $kind, $plural, $in);)*
        /// All kinds that are observed.
        pub static KINDS: &[&ResourceType] = &[$(&$name),*];
    };
}

kinds! {
    NAMESPACE = "" "v1" "Namespace" "namespaces" false;
    NODES = "" "v1" "Node" "nodes" false;
    PODS_KIND = "" "v1" "Pod" "pods" true;
    SERVICES = "" "v1" "Service" "services" true;
    CONFIG_MAPS = "" "v1" "ConfigMap" "configmaps" true;
    QUOTAS = "" "v1" "ResourceQuota" "resourcequotas" true;
    CLAIMS = "" "v1" "PersistentVolumeClaim" "persistentvolumeclaims" true;
    VOLUMES = "" "v1" "PersistentVolume" "persistentvolumes" false;
    ENDPOINTS = "" "v1" "Endpoints" "endpoints" true;
    ACCOUNTS = "" "v1" "ServiceAccount" "serviceaccounts" true;
    DEPLOYMENTS = "apps" "v1" "Deployment" "deployments" true;
    REPLICA_SETS = "apps" "v1" "ReplicaSet" "replicasets" true;
    STATEFUL_SETS = "apps" "v1" "StatefulSet" "statefulsets" true;
    DAEMON_SETS = "apps" "v1" "DaemonSet" "daemonsets" true;
    REVISIONS = "apps" "v1" "ControllerRevision" "controllerrevisions" true;
    JOBS = "batch" "v1" "Job" "jobs" true;
    CRON_JOBS = "batch" "v1" "CronJob" "cronjobs" true;
    BUDGETS = "policy" "v1" "PodDisruptionBudget" "poddisruptionbudgets" true;
    SLICES = "discovery.k8s.io" "v1" "EndpointSlice" "endpointslices" true;
    ATTACHMENTS = "storage.k8s.io" "v1" "VolumeAttachment" "volumeattachments" false;
}

/// A part of each namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// A Deployment behind a Service, with a budget.
    Web,
    /// A Deployment whose pods are all replaced at once.
    Api,
    /// A StatefulSet with a volume for each pod.
    Db,
    /// A DaemonSet.
    Agent,
    /// A CronJob that does not run twice at a time.
    Tick,
    WebService,
    DbService,
    Budget,
    Quota,
}

impl Part {
    /// In the order in which they are created.
    pub const ALL: [Part; 9] = [
        Part::Quota,
        Part::WebService,
        Part::DbService,
        Part::Budget,
        Part::Web,
        Part::Api,
        Part::Db,
        Part::Agent,
        Part::Tick,
    ];

    /// Returns the type of the object that this part is.
    pub fn resource(self) -> &'static ResourceType {
        match self {
            Part::Web | Part::Api => &DEPLOYMENTS,
            Part::Db => &STATEFUL_SETS,
            Part::Agent => &DAEMON_SETS,
            Part::Tick => &CRON_JOBS,
            Part::WebService | Part::DbService => &SERVICES,
            Part::Budget => &BUDGETS,
            Part::Quota => &QUOTAS,
        }
    }

    /// Returns the name of the object that this part is.
    pub fn name(self) -> &'static str {
        match self {
            Part::Web | Part::WebService | Part::Budget => "web",
            Part::Api => "api",
            Part::Db | Part::DbService => "db",
            Part::Agent => "agent",
            Part::Tick => "tick",
            Part::Quota => "limits",
        }
    }

    /// Returns the replicas at the beginning and in the end.
    pub fn replicas(self) -> Option<u32> {
        match self {
            Part::Web => Some(4),
            Part::Api | Part::Db => Some(2),
            _ => None,
        }
    }

    /// Builds the object that this part is at the beginning and in the end.
    pub fn object(self) -> Value {
        let resource = self.resource();
        let name = self.name();
        let selected = json!({ "matchLabels": { "app": name } });
        let template = json!({
            "metadata": { "labels": { "app": name } },
            "spec": pod_spec(name, &image(name, 0)),
        });
        let spec = match self {
            Part::Web => json!({
                "replicas": 4, "selector": selected, "template": template,
                "revisionHistoryLimit": 2,
            }),
            Part::Api => json!({
                "replicas": 2, "selector": selected, "template": template,
                "revisionHistoryLimit": 2, "strategy": { "type": "Recreate" },
            }),
            Part::Db => json!({
                "replicas": 2, "selector": selected, "template": template,
                "serviceName": name, "revisionHistoryLimit": 2,
                "persistentVolumeClaimRetentionPolicy": {
                    "whenDeleted": "Delete", "whenScaled": "Delete",
                },
                "volumeClaimTemplates": [{
                    "metadata": { "name": "data" },
                    "spec": {
                        "accessModes": ["ReadWriteOnce"], "storageClassName": CLASS,
                        "resources": { "requests": { "storage": "1Gi" } },
                    },
                }],
            }),
            Part::Agent => json!({
                "selector": selected, "template": template, "revisionHistoryLimit": 2,
            }),
            Part::Tick => json!({
                "schedule": "* * * * *", "concurrencyPolicy": "Forbid",
                "successfulJobsHistoryLimit": 1, "failedJobsHistoryLimit": 1,
                "jobTemplate": { "spec": job_spec(&JobShape {
                    indexed: false, completions: 1, parallelism: 1, seconds: 2,
                    fails: false, waits_for_end: false, is_removed: false,
                }) },
            }),
            Part::WebService => json!({
                "selector": { "app": name }, "ports": [{ "port": 80, "targetPort": 8080 }],
            }),
            Part::DbService => json!({
                "clusterIP": "None", "selector": { "app": name }, "ports": [{ "port": 5432 }],
            }),
            Part::Budget => json!({ "minAvailable": 2, "selector": selected }),
            Part::Quota => json!({ "hard": {
                "pods": PODS.to_string(), "configmaps": "200", "count/jobs.batch": "100",
                "persistentvolumeclaims": "6", "services": "4",
            } }),
        };
        json!({
            "apiVersion": resource.api_version(), "kind": resource.kind,
            "metadata": { "name": name }, "spec": spec,
        })
    }
}

pub fn namespace_name(number: usize) -> String {
    format!("soak-{number}")
}

pub fn image(name: &str, version: u32) -> String {
    format!("{name}:{version}")
}

/// Builds the specification of a pod that ends fast, and leaves a dead node after a short time.
pub fn pod_spec(container: &str, image: &str) -> Value {
    let tolerate = |key: &str| {
        json!({
            "key": format!("node.kubernetes.io/{key}"), "operator": "Exists",
            "effect": "NoExecute", "tolerationSeconds": TOLERATED,
        })
    };
    json!({
        "containers": [{ "name": container, "image": image }],
        "terminationGracePeriodSeconds": 5,
        "tolerations": [tolerate("not-ready"), tolerate("unreachable")],
    })
}

/// The properties of a Job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobShape {
    pub indexed: bool,
    pub completions: u32,
    pub parallelism: u32,
    /// How long each pod runs.
    pub seconds: u32,
    /// Whether its pods fail.
    pub fails: bool,
    /// Whether a pod is replaced only when it has ended.
    pub waits_for_end: bool,
    /// Whether it is deleted when it has finished.
    pub is_removed: bool,
}

/// Builds the specification of a Job of this shape.
fn job_spec(shape: &JobShape) -> Value {
    let mut pod = pod_spec("main", "busybox:1");
    let code = u32::from(shape.fails);
    let script = format!("sleep {}; exit {code}", shape.seconds);
    pod["containers"][0]["command"] = json!(["sh", "-c", script]);
    pod["restartPolicy"] = json!("Never");
    // Pods that are evicted or deleted count as failures.
    let limit = if shape.fails { 1 } else { 50 };
    let mut spec = json!({
        "completions": shape.completions, "parallelism": shape.parallelism, "backoffLimit": limit,
        "completionMode": if shape.indexed { "Indexed" } else { "NonIndexed" },
        "template": { "metadata": { "labels": { "app": "job" } }, "spec": pod },
    });
    if shape.waits_for_end {
        spec["podReplacementPolicy"] = json!("Failed");
    }
    if shape.is_removed {
        spec["ttlSecondsAfterFinished"] = json!(5);
    }
    spec
}

pub fn job(number: u32, shape: &JobShape) -> Value {
    json!({
        "apiVersion": JOBS.api_version(), "kind": JOBS.kind,
        "metadata": { "name": format!("job-{number}") }, "spec": job_spec(shape),
    })
}

/// Returns the name of the `nth` ConfigMap of these owners.
pub fn owner_name(owner: u32, nth: u32) -> String {
    format!("owner-{owner}-{nth}")
}

/// Builds a ConfigMap that these others own, by name and uid.
pub fn config_map(name: &str, owners: &[(String, String)]) -> Value {
    let references = owners.iter().map(|(name, uid)| {
        json!({
            "apiVersion": "v1", "kind": "ConfigMap", "name": name, "uid": uid,
            "blockOwnerDeletion": true,
        })
    });
    let references: Vec<Value> = references.collect();
    json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {
            "name": name, "labels": { DEPENDENT: "true" }, "ownerReferences": references,
        },
    })
}

pub fn namespace(name: &str) -> Value {
    json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name } })
}

/// Returns the class of volumes that the nodes' driver makes.
pub fn class() -> Value {
    json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": { "name": CLASS },
        "provisioner": DRIVER, "volumeBindingMode": "Immediate", "reclaimPolicy": "Delete",
    })
}
