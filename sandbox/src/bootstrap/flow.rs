//! Creates the default priority levels and flow schemas. They have no effect: this server serves
//! all requests at once. Upstream: `apiserver/pkg/apis/flowcontrol/bootstrap`.

use serde_json::{Value, json};

use super::{condition, set_conditions};
use crate::api::Api;
use crate::status::ApiResult;

const GROUP: &str = "flowcontrol.apiserver.k8s.io";

/// A priority level: its name, its shares of the server, the per cent of them that it lends, and
/// its queues; without queues, requests above the limit are rejected.
struct Level(&'static str, i32, i32, Option<Queues>);

struct Queues {
    count: i32,
    /// The number of queues that one flow may use.
    hand_size: i32,
}

const fn queues(count: i32, hand_size: i32) -> Option<Queues> {
    Some(Queues { count, hand_size })
}

const LEVELS: [Level; 7] = [
    Level("catch-all", 5, 0, None),
    Level("global-default", 20, 50, queues(128, 6)),
    Level("leader-election", 10, 0, queues(16, 4)),
    Level("node-high", 40, 25, queues(64, 6)),
    Level("system", 30, 33, queues(64, 6)),
    Level("workload-high", 40, 50, queues(128, 6)),
    Level("workload-low", 100, 90, queues(128, 6)),
];

/// A flow schema: its name, precedence and priority level, the attribute that distinguishes its
/// flows, its requests, and their users.
struct Schema(&'static str, i32, &'static str, &'static str, Requests, &'static [&'static str]);

#[derive(Clone, Copy)]
enum Requests {
    All,
    Probes,
    Leases,
    Nodes,
}

const EVERYONE: &[&str] = &["group:system:unauthenticated", "group:system:authenticated"];
const MANAGER: &str = "user:system:kube-controller-manager";
const SCHEDULER: &str = "user:system:kube-scheduler";
/// All service accounts of this namespace.
const ACCOUNTS: &str = "accounts:kube-system";
const NODES: &[&str] = &["group:system:nodes"];

const SCHEMAS: [Schema; 11] = {
    use Requests::*;
    [
        Schema("exempt", 1, "exempt", "", All, &["group:system:masters"]),
        Schema("probes", 2, "exempt", "", Probes, EVERYONE),
        Schema(
            "system-leader-election",
            100,
            "leader-election",
            "ByUser",
            Leases,
            &[MANAGER, SCHEDULER, ACCOUNTS],
        ),
        Schema("system-node-high", 400, "node-high", "ByUser", Nodes, NODES),
        Schema("system-nodes", 500, "system", "ByUser", All, NODES),
        Schema("kube-controller-manager", 800, "workload-high", "ByNamespace", All, &[MANAGER]),
        Schema("kube-scheduler", 800, "workload-high", "ByNamespace", All, &[SCHEDULER]),
        Schema(
            "kube-system-service-accounts",
            900,
            "workload-high",
            "ByNamespace",
            All,
            &[ACCOUNTS],
        ),
        Schema(
            "service-accounts",
            9_000,
            "workload-low",
            "ByUser",
            All,
            &["group:system:serviceaccounts"],
        ),
        Schema("global-default", 9_900, "global-default", "ByUser", All, EVERYONE),
        Schema("catch-all", 10_000, "catch-all", "ByUser", All, EVERYONE),
    ]
};

/// Builds an object of the flow-control group, annotated as one that the API server maintains.
fn object(kind: &str, name: &str, spec: Value) -> Value {
    json!({
        "apiVersion": format!("{GROUP}/v1"), "kind": kind,
        "metadata": {
            "name": name, "annotations": { "apf.kubernetes.io/autoupdate-spec": "true" },
        },
        "spec": spec,
    })
}

/// Builds a priority level; one without queues rejects what is beyond its share.
fn level(Level(name, shares, lent, queues): &Level) -> Value {
    let response = match queues {
        None => json!({ "type": "Reject" }),
        Some(Queues { count, hand_size }) => {
            let queuing = json!({ "queues": count, "handSize": hand_size, "queueLengthLimit": 50 });
            json!({ "type": "Queue", "queuing": queuing })
        }
    };
    let limited = json!({
        "nominalConcurrencyShares": shares, "lendablePercent": lent, "limitResponse": response,
    });
    let spec = json!({ "type": "Limited", "limited": limited });
    object("PriorityLevelConfiguration", name, spec)
}

/// Builds a subject: `group:…`, `accounts:…` for all service accounts of a namespace, or `user:…`.
fn subject(who: &&str) -> Value {
    match who.split_once(':') {
        Some(("group", name)) => json!({ "kind": "Group", "group": { "name": name } }),
        Some(("accounts", namespace)) => {
            let accounts = json!({ "name": "*", "namespace": namespace });
            json!({ "kind": "ServiceAccount", "serviceAccount": accounts })
        }
        _ => json!({ "kind": "User", "user": { "name": who.trim_start_matches("user:") } }),
    }
}

/// Builds the rule of a FlowSchema that matches these requests.
fn rule(requests: Requests) -> Value {
    let leases = |verbs: &[&str]| {
        json!({
            "apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": verbs,
            "namespaces": ["*"],
        })
    };
    let all_verbs_on = |groups: &[&str], resources: &[&str]| {
        json!({
            "apiGroups": groups, "resources": resources, "verbs": ["*"], "namespaces": ["*"],
            "clusterScope": true,
        })
    };
    match requests {
        Requests::All => json!({
            "resourceRules": [all_verbs_on(&["*"], &["*"])],
            "nonResourceRules": [{ "nonResourceURLs": ["*"], "verbs": ["*"] }],
        }),
        Requests::Probes => json!({ "nonResourceRules": [{
            "nonResourceURLs": ["/healthz", "/readyz", "/livez"], "verbs": ["get"],
        }] }),
        Requests::Leases => json!({ "resourceRules": [leases(&["get", "create", "update"])] }),
        Requests::Nodes => {
            let nodes = all_verbs_on(&[""], &["nodes", "nodes/status"]);
            json!({ "resourceRules": [nodes, leases(&["*"])] })
        }
    }
}

/// Builds a flow schema.
fn schema(Schema(name, precedence, level, flows, requests, who): &Schema) -> Value {
    let mut rule = rule(*requests);
    rule["subjects"] = who.iter().map(subject).collect();
    let mut spec = json!({
        "matchingPrecedence": precedence, "priorityLevelConfiguration": { "name": level },
        "rules": [rule],
    });
    if !flows.is_empty() {
        spec["distinguisherMethod"] = json!({ "type": flows });
    }
    object("FlowSchema", name, spec)
}

/// Creates the default priority levels and flow schemas, the schemas with the status that their
/// level exists. Does nothing if the API is not served.
pub fn create(api: &Api) -> ApiResult<()> {
    if api.registry.find(GROUP, "v1", "flowschemas").is_none() {
        return Ok(());
    }
    let shares = json!({ "nominalConcurrencyShares": 0, "lendablePercent": 0 });
    let spec = json!({ "type": "Exempt", "exempt": shares });
    let exempt = object("PriorityLevelConfiguration", "exempt", spec);
    for level in LEVELS.iter().map(level).chain([exempt]) {
        api.create_value(GROUP, "prioritylevelconfigurations", level)?;
    }
    for (made, Schema(name, _, level, ..)) in SCHEMAS.iter().map(|s| (schema(s), s)) {
        api.create_value(GROUP, "flowschemas", made)?;
        let message = format!(
            "This FlowSchema references the PriorityLevelConfiguration object named {level:?} \
             and it exists"
        );
        let found = condition("Dangling", "False", "Found", &message);
        set_conditions(api, GROUP, "flowschemas", name, found)?;
    }
    Ok(())
}
