//! The columns of each built-in kind.

use serde_json::Value;

use super::Column;
use super::cells::*;
use super::json::{int, list, members, text, truth};

const NAME: &str = "Name must be unique within a namespace. Is required when creating resources, \
    although some resources may allow a client to request the generation of an appropriate name \
    automatically. Name is primarily intended for creation idempotence and configuration \
    definition. Cannot be updated. More info: \
    https://kubernetes.io/docs/concepts/overview/working-with-objects/names#names";
const CREATED: &str = "CreationTimestamp is a timestamp representing the server time when this \
    object was created. It is not guaranteed to be set in happens-before order across separate \
    operations. Clients may not set this value. It is represented in RFC3339 form and is in UTC.";

/// Builds a column; `cell` makes its cell from the object and the time now, in seconds since 1970.
pub fn column(
    name: &str,
    r#type: &'static str,
    priority: i32,
    cell: impl Fn(&Value, i64) -> Value + Send + Sync + 'static,
) -> Column {
    Column {
        name: name.to_owned(),
        r#type,
        format: "",
        description: String::new(),
        priority,
        cell: Box::new(cell),
    }
}

pub fn name() -> Column {
    let cell = |object: &Value, _| text(object, "/metadata/name").into();
    Column { format: "name", description: NAME.to_owned(), ..column("Name", "string", 0, cell) }
}

pub fn age_column() -> Column {
    let cell = |object: &Value, now| age(object, now).into();
    Column { description: CREATED.to_owned(), ..column("Age", "string", 0, cell) }
}

fn created_at() -> Column {
    let cell = |object: &Value, _| text(object, "/metadata/creationTimestamp").into();
    Column { description: CREATED.to_owned(), ..column("Created At", "date", 0, cell) }
}

fn string(name: &str, cell: impl Fn(&Value) -> String + Send + Sync + 'static) -> Column {
    column(name, "string", 0, move |object, _| cell(object).into())
}

/// Builds a column with the text at a pointer.
fn at(name: &str, pointer: &'static str) -> Column {
    string(name, move |object| text(object, pointer).to_owned())
}

/// Builds a column with the text at a pointer, or `other` when it is absent.
fn at_or(name: &str, pointer: &'static str, other: &'static str) -> Column {
    string(name, move |object| or(object, pointer, other).to_owned())
}

/// Builds a column with the number at a pointer, zero when absent.
fn number(name: &str, pointer: &'static str) -> Column {
    column(name, "integer", 0, move |object, _| int(object, pointer).unwrap_or(0).into())
}

fn boolean(name: &str, pointer: &'static str) -> Column {
    column(name, "boolean", 0, move |object, _| truth(object, pointer).into())
}

/// Builds a column with the length of a list.
fn count(name: &str, pointer: &'static str) -> Column {
    column(name, "integer", 0, move |object, _| list(object, pointer).len().into())
}

/// Builds a column with a number or text as text, or `other` when it is absent.
fn shown_or(name: &str, pointer: &'static str, other: &'static str) -> Column {
    string(name, move |object| match object.pointer(pointer) {
        None | Some(Value::Null) => other.to_owned(),
        Some(Value::String(text)) => text.clone(),
        Some(value) => value.to_string(),
    })
}

fn wide(column: Column) -> Column {
    Column { priority: 1, ..column }
}

/// Builds the column of ready pods of those wanted.
fn ready_of_replicas() -> Column {
    string("Ready", |object| {
        let ready = int(object, "/status/readyReplicas").unwrap_or(0);
        format!("{ready}/{}", int(object, "/spec/replicas").unwrap_or(0))
    })
}

/// Builds a column of type string that shows a number, as some kinds do.
fn number_as_string(name: &str, pointer: &'static str) -> Column {
    column(name, "string", 0, move |object, _| int(object, pointer).unwrap_or(0).into())
}

fn containers_and_images(spec: &'static str) -> [Column; 2] {
    [
        wide(string("Containers", move |object| containers(object, spec, "/name"))),
        wide(string("Images", move |object| containers(object, spec, "/image"))),
    ]
}

fn selected_by(pointer: &'static str) -> Column {
    wide(string("Selector", move |object| selector(object, pointer)))
}

/// Builds the column with the name of a class, marked when its annotation makes it the default one.
fn class_name(annotation: &'static str) -> Column {
    let cell = move |object: &Value, _| {
        let name = text(object, "/metadata/name");
        match text(object, annotation) {
            "true" => format!("{name} (default)").into(),
            _ => name.into(),
        }
    };
    Column { format: "name", description: NAME.to_owned(), ..column("Name", "string", 0, cell) }
}

/// Returns the columns of a built-in resource; those without their own show name and age.
pub fn of(group: &str, plural: &str) -> Vec<Column> {
    const TEMPLATE: &str = "/spec/template/spec";
    let mut columns = match (group, plural) {
        ("", "nodes") => return nodes(),
        ("" | "events.k8s.io", "events") => return events(),
        ("storage.k8s.io", "storageclasses") => return storage_classes(),
        ("networking.k8s.io", "ingressclasses") => return ingress_classes(),
        ("", "limitranges")
        | ("rbac.authorization.k8s.io", "roles" | "clusterroles")
        | ("storage.k8s.io", "csistoragecapacities")
        | ("apiextensions.k8s.io", "customresourcedefinitions") => {
            return vec![name(), created_at()];
        }
        ("networking.k8s.io", "ipaddresses") => {
            let parent = string("ParentRef", |object| {
                let of = |part: &str| text(object, &format!("/spec/parentRef/{part}")).to_owned();
                [of("group"), of("resource"), of("namespace"), of("name")]
                    .into_iter()
                    .filter(|part| !part.is_empty())
                    .collect::<Vec<_>>()
                    .join("/")
            });
            return vec![name(), parent];
        }
        ("", "podtemplates") => {
            let mut columns = vec![name()];
            columns.extend(
                containers_and_images("/template/spec").map(|c| Column { priority: 0, ..c }),
            );
            columns.push(string("Pod Labels", |object| {
                label_map(object, "/template/metadata/labels")
            }));
            return columns;
        }
        ("certificates.k8s.io", "clustertrustbundles") => {
            return vec![name(), at_or("SignerName", "/spec/signerName", "<none>")];
        }
        ("certificates.k8s.io", "podcertificaterequests") => {
            return vec![
                name(),
                at("PodName", "/spec/podName"),
                at("ServiceAccountName", "/spec/serviceAccountName"),
                at("NodeName", "/spec/nodeName"),
                at("SignerName", "/spec/signerName"),
                string("State", |request| pod_request_state(request).to_owned()),
                wide(string("UnverifiedUserAnnotations", |request| {
                    label_map(request, "/spec/unverifiedUserAnnotations")
                })),
            ];
        }
        ("certificates.k8s.io", _) => {
            return vec![
                name(),
                age_column(),
                at_or("SignerName", "/spec/signerName", "<none>"),
                at("Requestor", "/spec/username"),
                string("RequestedDuration", |csr| {
                    let seconds = int(csr, "/spec/expirationSeconds");
                    seconds.map_or_else(|| "<none>".to_owned(), crate::kinds::human_duration)
                }),
                string("Condition", csr_condition),
            ];
        }
        ("", "pods") => vec![
            string("Ready", pod_ready),
            string("Status", pod_status),
            column("Restarts", "string", 0, |pod, now| pod_restarts(pod, now).into()),
        ],
        ("", "configmaps") => vec![column("Data", "string", 0, |object, _| {
            (members(object, "/data").count() + members(object, "/binaryData").count()).into()
        })],
        ("", "secrets") => vec![
            at("Type", "/type"),
            column("Data", "string", 0, |object, _| members(object, "/data").count().into()),
        ],
        ("", "endpoints") => vec![string("Endpoints", endpoints)],
        ("", "namespaces") => vec![at("Status", "/status/phase")],
        ("", "persistentvolumeclaims") => {
            fn if_bound(claim: &Value, cell: impl Fn(&Value) -> String) -> String {
                if text(claim, "/spec/volumeName").is_empty() { String::new() } else { cell(claim) }
            }
            vec![
                string("Status", |claim| phase_or_terminating(claim).to_owned()),
                at("Volume", "/spec/volumeName"),
                string("Capacity", |claim| {
                    if_bound(claim, |c| or(c, "/status/capacity/storage", "0").to_owned())
                }),
                string("Access Modes", |claim| {
                    if_bound(claim, |c| access_modes(c, "/status/accessModes"))
                }),
                string("StorageClass", |claim| storage_class(claim).to_owned()),
                at_or("VolumeAttributesClass", "/spec/volumeAttributesClassName", "<unset>"),
            ]
        }
        ("", "persistentvolumes") => vec![
            at_or("Capacity", "/spec/capacity/storage", "0"),
            string("Access Modes", |volume| access_modes(volume, "/spec/accessModes")),
            at("Reclaim Policy", "/spec/persistentVolumeReclaimPolicy"),
            string("Status", |volume| phase_or_terminating(volume).to_owned()),
            string("Claim", |volume| match volume.pointer("/spec/claimRef") {
                Some(claim) => format!("{}/{}", text(claim, "/namespace"), text(claim, "/name")),
                None => String::new(),
            }),
            string("StorageClass", |volume| storage_class(volume).to_owned()),
            at_or("VolumeAttributesClass", "/spec/volumeAttributesClassName", "<unset>"),
            at("Reason", "/status/reason"),
        ],
        ("", "replicationcontrollers") | ("apps", "replicasets") => vec![
            number("Desired", "/spec/replicas"),
            number("Current", "/status/replicas"),
            number("Ready", "/status/readyReplicas"),
        ],
        ("", "resourcequotas") => vec![
            string("Request", |object| quota(object, false)),
            string("Limit", |object| quota(object, true)),
        ],
        ("", "services") => vec![
            at("Type", "/spec/type"),
            at_or("Cluster-IP", "/spec/clusterIPs/0", "<none>"),
            string("External-IP", service_external_ip),
            string("Port(s)", service_ports),
        ],
        ("apps", "controllerrevisions") => vec![
            string("Controller", controller),
            column("Revision", "string", 0, |object, _| {
                int(object, "/revision").unwrap_or(0).into()
            }),
        ],
        ("apps", "deployments") => vec![
            ready_of_replicas(),
            number_as_string("Up-to-date", "/status/updatedReplicas"),
            number_as_string("Available", "/status/availableReplicas"),
        ],
        ("apps", "statefulsets") => vec![ready_of_replicas()],
        ("apps", "daemonsets") => vec![
            number("Desired", "/status/desiredNumberScheduled"),
            number("Current", "/status/currentNumberScheduled"),
            number("Ready", "/status/numberReady"),
            number("Up-to-date", "/status/updatedNumberScheduled"),
            number("Available", "/status/numberAvailable"),
            string("Node Selector", |set| label_map(set, "/spec/template/spec/nodeSelector")),
        ],
        ("batch", "jobs") => vec![
            string("Status", |job| job_status(job).to_owned()),
            string("Completions", job_completions),
            column("Duration", "string", 0, |job, now| job_duration(job, now).into()),
        ],
        ("batch", "cronjobs") => vec![
            at("Schedule", "/spec/schedule"),
            at_or("Timezone", "/spec/timeZone", "<none>"),
            column("Suspend", "boolean", 0, |object, _| {
                // Capitals, in a column of booleans: upstream prints it so.
                if truth(object, "/spec/suspend") { "True".into() } else { "False".into() }
            }),
            count("Active", "/status/active"),
            column("Last Schedule", "string", 0, |object, now| {
                match text(object, "/status/lastScheduleTime") {
                    "" => "<none>".into(),
                    _ => since(object, "/status/lastScheduleTime", now).into(),
                }
            }),
        ],
        ("autoscaling", _) => vec![
            string("Reference", |hpa| {
                let of = |part: &str| text(hpa, &format!("/spec/scaleTargetRef/{part}")).to_owned();
                format!("{}/{}", of("kind"), of("name"))
            }),
            string("Targets", hpa_targets),
            shown_or("MinPods", "/spec/minReplicas", "<unset>"),
            number_as_string("MaxPods", "/spec/maxReplicas"),
            number_as_string("Replicas", "/status/currentReplicas"),
        ],
        ("policy", "poddisruptionbudgets") => vec![
            shown_or("Min Available", "/spec/minAvailable", "N/A"),
            shown_or("Max Unavailable", "/spec/maxUnavailable", "N/A"),
            number("Allowed Disruptions", "/status/disruptionsAllowed"),
        ],
        ("networking.k8s.io", "ingresses") => vec![
            at_or("Class", "/spec/ingressClassName", "<none>"),
            string("Hosts", ingress_hosts),
            string("Address", ingress_address),
            string("Ports", |ingress| {
                if list(ingress, "/spec/tls").is_empty() { "80".into() } else { "80, 443".into() }
            }),
        ],
        ("networking.k8s.io", "networkpolicies") => {
            vec![string("Pod-Selector", |object| selector(object, "/spec/podSelector"))]
        }
        ("networking.k8s.io", "servicecidrs") => vec![string("CIDRs", |object| {
            let cidrs = list(object, "/spec/cidrs").iter().filter_map(Value::as_str);
            cidrs.collect::<Vec<_>>().join(",")
        })],
        ("discovery.k8s.io", "endpointslices") => vec![
            at("AddressType", "/addressType"),
            string("Ports", slice_ports),
            string("Endpoints", slice_endpoints),
        ],
        ("coordination.k8s.io", "leases") => vec![at("Holder", "/spec/holderIdentity")],
        ("rbac.authorization.k8s.io", _) => vec![string("Role", |binding| {
            format!("{}/{}", text(binding, "/roleRef/kind"), text(binding, "/roleRef/name"))
        })],
        ("storage.k8s.io", "csidrivers") => vec![
            boolean("AttachRequired", "/spec/attachRequired"),
            boolean("PodInfoOnMount", "/spec/podInfoOnMount"),
            boolean("StorageCapacity", "/spec/storageCapacity"),
            string("TokenRequests", |driver| {
                let requests = list(driver, "/spec/tokenRequests").iter();
                match requests.map(|r| text(r, "/audience")).collect::<Vec<_>>().join(",") {
                    none if none.is_empty() => "<unset>".to_owned(),
                    audiences => audiences,
                }
            }),
            boolean("RequiresRepublish", "/spec/requiresRepublish"),
            string("Modes", |driver| {
                let modes = list(driver, "/spec/volumeLifecycleModes").iter();
                modes.filter_map(Value::as_str).collect::<Vec<_>>().join(",")
            }),
        ],
        ("storage.k8s.io", "csinodes") => vec![count("Drivers", "/spec/drivers")],
        ("storage.k8s.io", "volumeattachments") => vec![
            Column { format: "name", ..at("Attacher", "/spec/attacher") },
            at("PV", "/spec/source/persistentVolumeName"),
            at("Node", "/spec/nodeName"),
            boolean("Attached", "/status/attached"),
        ],
        ("admissionregistration.k8s.io", "mutatingwebhookconfigurations")
        | ("admissionregistration.k8s.io", "validatingwebhookconfigurations") => {
            vec![count("Webhooks", "/webhooks")]
        }
        ("admissionregistration.k8s.io", "validatingadmissionpolicies") => vec![
            count("Validations", "/spec/validations"),
            string("ParamKind", |object| match object.pointer("/spec/paramKind") {
                Some(kind) => format!("{}/{}", text(kind, "/apiVersion"), text(kind, "/kind")),
                None => "<unset>".to_owned(),
            }),
        ],
        ("admissionregistration.k8s.io", _) => vec![
            at("PolicyName", "/spec/policyName"),
            string("ParamRef", |object| {
                let reference = |part: &str| text(object, &format!("/spec/paramRef/{part}"));
                match (object.pointer("/spec/paramRef"), reference("namespace")) {
                    (None, _) => "<unset>".to_owned(),
                    (_, "") => format!("*/{}", reference("name")),
                    (_, namespace) => format!("{namespace}/{}", reference("name")),
                }
            }),
        ],
        ("scheduling.k8s.io", _) => {
            vec![number("Value", "/value"), boolean("Global-Default", "/globalDefault")]
        }
        ("node.k8s.io", _) => vec![at("Handler", "/handler")],
        ("apiregistration.k8s.io", _) => vec![
            string("Service", |object| match object.pointer("/spec/service") {
                Some(Value::Object(_)) => format!(
                    "{}/{}",
                    text(object, "/spec/service/namespace"),
                    text(object, "/spec/service/name")
                ),
                _ => "Local".to_owned(),
            }),
            string("Available", |object| {
                let available = |c: &&Value| text(c, "/type") == "Available";
                let condition = list(object, "/status/conditions").iter().find(available);
                condition.map_or("Unknown", |c| text(c, "/status")).to_owned()
            }),
        ],
        _ => Vec::new(),
    };
    columns.insert(0, name());
    columns.push(age_column());
    match (group, plural) {
        ("", "pods") => columns.extend([
            wide(at_or("IP", "/status/podIPs/0/ip", "<none>")),
            wide(at_or("Node", "/spec/nodeName", "<none>")),
            wide(at_or("Nominated Node", "/status/nominatedNodeName", "<none>")),
            wide(string("Readiness Gates", pod_gates)),
        ]),
        ("", "persistentvolumes" | "persistentvolumeclaims") => {
            columns.push(wide(at_or("VolumeMode", "/spec/volumeMode", "<unset>")));
        }
        ("", "services") => {
            columns.push(wide(string("Selector", |service| label_map(service, "/spec/selector"))));
        }
        ("", "replicationcontrollers") => {
            columns.extend(containers_and_images(TEMPLATE));
            columns.push(wide(string("Selector", |object| label_map(object, "/spec/selector"))));
        }
        ("apps", "deployments" | "replicasets" | "daemonsets") | ("batch", "jobs") => {
            columns.extend(containers_and_images(TEMPLATE));
            columns.push(selected_by("/spec/selector"));
        }
        ("apps", "statefulsets") => columns.extend(containers_and_images(TEMPLATE)),
        ("batch", "cronjobs") => {
            columns.extend(containers_and_images("/spec/jobTemplate/spec/template/spec"));
            columns.push(selected_by("/spec/jobTemplate/spec/selector"));
        }
        ("rbac.authorization.k8s.io", _) => columns.extend([
            wide(string("Users", |binding| subjects(binding, "User"))),
            wide(string("Groups", |binding| subjects(binding, "Group"))),
            wide(string("ServiceAccounts", |binding| subjects(binding, "ServiceAccount"))),
        ]),
        ("scheduling.k8s.io", _) => columns.push(at("PreemptionPolicy", "/preemptionPolicy")),
        _ => {}
    }
    columns
}

/// Builds the columns of Nodes.
fn nodes() -> Vec<Column> {
    vec![
        name(),
        string("Status", node_status),
        string("Roles", node_roles),
        age_column(),
        at("Version", "/status/nodeInfo/kubeletVersion"),
        wide(string("Internal-IP", |node| node_address(node, "InternalIP"))),
        wide(string("External-IP", |node| node_address(node, "ExternalIP"))),
        wide(at_or("OS-Image", "/status/nodeInfo/osImage", "<unknown>")),
        wide(string("Kernel-Version", node_kernel)),
        wide(at_or("Container-Runtime", "/status/nodeInfo/containerRuntimeVersion", "<unknown>")),
    ]
}

/// Builds the columns of Events.
fn events() -> Vec<Column> {
    vec![
        column("Last Seen", "string", 0, |event, now| event_last_seen(event, now).into()),
        at("Type", "/type"),
        at("Reason", "/reason"),
        string("Object", event_object),
        wide(at("Subobject", "/involvedObject/fieldPath")),
        wide(string("Source", event_source)),
        string("Message", |event| text(event, "/message").trim().to_owned()),
        wide(column("First Seen", "string", 0, |event, now| event_first_seen(event, now).into())),
        wide(column("Count", "string", 0, |event, _| event_count(event).into())),
        wide(name()),
    ]
}

/// Builds the columns of StorageClasses.
fn storage_classes() -> Vec<Column> {
    vec![
        class_name("/metadata/annotations/storageclass.kubernetes.io~1is-default-class"),
        at("Provisioner", "/provisioner"),
        at_or("ReclaimPolicy", "/reclaimPolicy", "Delete"),
        at_or("VolumeBindingMode", "/volumeBindingMode", "Immediate"),
        column("AllowVolumeExpansion", "string", 0, |object, _| {
            truth(object, "/allowVolumeExpansion").into()
        }),
        age_column(),
    ]
}

/// Builds the columns of IngressClasses.
fn ingress_classes() -> Vec<Column> {
    vec![
        class_name("/metadata/annotations/ingressclass.kubernetes.io~1is-default-class"),
        at("Controller", "/spec/controller"),
        string("Parameters", |object| {
            let of = |part: &str| text(object, &format!("/spec/parameters/{part}"));
            match (object.pointer("/spec/parameters"), of("apiGroup")) {
                (None, _) => "<none>".to_owned(),
                (_, "") => format!("{}/{}", of("kind"), of("name")),
                (_, group) => format!("{}.{group}/{}", of("kind"), of("name")),
            }
        }),
        age_column(),
    ]
}
