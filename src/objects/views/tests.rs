//! Tests that in every field of every view an explicit null is the same as an absent field: Go
//! writes null for an empty list or map without `omitempty`.

use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::objects::*;

fn metadata() -> Value {
    json!({
        "name": "n", "generateName": "n-", "namespace": "ns", "uid": "u", "resourceVersion": "5",
        "generation": 2, "creationTimestamp": "2026-01-01T00:00:00Z",
        "deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 30,
        "labels": {"a": "b"}, "annotations": {"a": "b"}, "finalizers": ["f"],
        "ownerReferences": [{
            "apiVersion": "v1", "kind": "K", "name": "o", "uid": "u", "controller": true,
            "blockOwnerDeletion": true,
        }],
    })
}

fn selector() -> Value {
    json!({
        "matchLabels": {"a": "b"},
        "matchExpressions": [{"key": "k", "operator": "In", "values": ["v"]}],
    })
}

fn template() -> Value {
    json!({"metadata": metadata(), "spec": {"containers": [{"name": "c"}]}})
}

fn conditions() -> Value {
    json!([{
        "type": "Ready", "status": "True", "reason": "r", "message": "m",
        "lastTransitionTime": "2026-01-01T00:00:00Z", "lastUpdateTime": "2026-01-01T00:00:00Z",
    }])
}

fn resources() -> Value {
    json!({"requests": {"cpu": "1"}, "limits": {"cpu": "1"}})
}

fn container() -> Value {
    json!({
        "name": "c", "restartPolicy": "Always", "resources": resources(),
        "ports": [{"name": "p", "protocol": "TCP", "containerPort": 80}],
    })
}

fn pod() -> Value {
    let term = json!({"namespaces": ["a"], "namespaceSelector": {}});
    let terms = json!({
        "requiredDuringSchedulingIgnoredDuringExecution": [term],
        "preferredDuringSchedulingIgnoredDuringExecution": [{"podAffinityTerm": term}],
    });
    let status = json!({
        "name": "c", "restartCount": 1, "resources": resources(), "allocatedResources": {"cpu": "1"},
        "state": {
            "waiting": {}, "terminated": {"exitCode": 1, "finishedAt": "2026-01-01T00:00:00Z"},
        },
    });
    let node = json!({"key": "metadata.name", "operator": "In", "values": ["n"]});
    let nodes = json!({"requiredDuringSchedulingIgnoredDuringExecution": {
        "nodeSelectorTerms": [{"matchFields": [node]}],
    }});
    let toleration = json!({
        "key": "k", "operator": "Exists", "value": "v", "effect": "NoExecute", "tolerationSeconds": 1,
    });
    let claim = json!({"name": "r", "resourceClaimName": "r", "resourceClaimTemplateName": "t"});
    json!({
        "spec": {
            "nodeName": "n", "hostname": "h", "subdomain": "s", "containers": [container()],
            "initContainers": [container()], "resources": resources(), "overhead": {"cpu": "1"},
            "activeDeadlineSeconds": 1, "priorityClassName": "p",
            "affinity": {
                "podAffinity": terms, "podAntiAffinity": terms, "nodeAffinity": nodes,
            },
            "tolerations": [toleration], "resourceClaims": [claim],
            "schedulingGroup": {"podGroupName": "g"},
            "volumes": [
                {"name": "v", "persistentVolumeClaim": {"claimName": "c"}},
                {"name": "e", "ephemeral": {}}, {"name": "p", "projected": {"sources": null}},
                {"name": "d", "csi": {"driver": "d", "volumeHandle": "h"}},
                {"name": "i", "awsElasticBlockStore": {}, "azureDisk": {}, "azureFile": {},
                 "cinder": {}, "fc": {}, "gcePersistentDisk": {}, "iscsi": {},
                 "portworxVolume": {}, "vsphereVolume": {}},
            ],
        },
        "status": {
            "phase": "Running", "reason": "r", "conditions": conditions(),
            "startTime": "2026-01-01T00:00:00Z", "resourceClaimStatuses": [claim],
            "podIPs": [{"ip": "10.0.0.1"}], "containerStatuses": [status],
            "initContainerStatuses": [status], "ephemeralContainerStatuses": [status],
            "qosClass": "Burstable",
            "extendedResourceClaimStatus": {"resourceClaimName": "c"},
        },
    })
}

/// Decodes `sample`, and then again with each of its members null in turn.
fn check<T: Resource + DeserializeOwned>(mut sample: Value) {
    if sample.get("metadata").is_none() {
        sample["metadata"] = metadata();
    }
    let decode = |value: &Value, path: &str| {
        // Decoded from text, as from the API.
        if let Err(error) = serde_json::from_str::<T>(&value.to_string()) {
            panic!("{} with {path}: {error}", T::RESOURCE);
        }
    };
    decode(&sample, "everything");
    let mut paths = Vec::new();
    members(&sample, String::new(), &mut paths);
    assert!(paths.len() > 15, "{}", T::RESOURCE);
    for path in paths {
        let mut odd = sample.clone();
        *odd.pointer_mut(&path).unwrap() = Value::Null;
        decode(&odd, &format!("{path} null"));
    }
}

/// The paths of all members of objects. Entries of maps come from users and are never null.
fn members(value: &Value, at: String, into: &mut Vec<String>) {
    const MAPS: [&str; 11] = [
        "capacity",
        "labels",
        "annotations",
        "matchLabels",
        "requests",
        "limits",
        "overhead",
        "hard",
        "used",
        "allocatedResources",
        "deprecatedTopology",
    ];
    match value {
        Value::Object(object) => {
            for (name, value) in object {
                let path = format!("{at}/{}", name.replace('/', "~1"));
                into.push(path.clone());
                if !MAPS.contains(&name.as_str()) {
                    members(value, path, into);
                }
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                members(item, format!("{at}/{index}"), into);
            }
        }
        _ => {}
    }
}

#[test]
fn a_null_field_is_an_absent_one() {
    check::<CertificateSigningRequest>(json!({
        "spec": {
            "request": "eA==", "signerName": "s", "expirationSeconds": 600, "usages": ["u"],
            "username": "u", "uid": "1", "groups": ["g"], "extra": {"a": ["b"]},
        },
        "status": {"conditions": conditions(), "certificate": "eA=="},
    }));
    check::<PodCertificateRequest>(json!({}));
    check::<ConfigMap>(json!({"immutable": false, "data": {}, "binaryData": {}}));
    check::<BootstrapToken>(json!({
        "data": {
            "token-id": "eA==", "token-secret": "eA==", "expiration": "eA==",
            "usage-bootstrap-signing": "eA==",
        },
    }));
    check::<Pod>(pod());
    let context = json!({
        "seLinuxOptions": {"user": "u", "role": "r", "type": "t", "level": "l"},
        "seLinuxChangePolicy": "Recursive",
    });
    let container = json!({"volumeMounts": [{"name": "v"}], "securityContext": context});
    check::<SelinuxPod>(json!({
        "spec": {
            "volumes": pod()["spec"]["volumes"], "containers": [container],
            "initContainers": [container], "ephemeralContainers": [container],
            "securityContext": context,
        },
        "status": {"phase": "Running"},
    }));
    check::<ReplicaSet>(json!({
        "spec": {"replicas": 1, "minReadySeconds": 1, "selector": selector(), "template": template()},
        "status": {
            "replicas": 1, "fullyLabeledReplicas": 1, "readyReplicas": 1, "availableReplicas": 1,
            "terminatingReplicas": 1, "observedGeneration": 1, "conditions": conditions(),
        },
    }));
    check::<ReplicationController>(json!({
        "spec": {"replicas": 1, "minReadySeconds": 1, "selector": {"a": "b"}, "template": template()},
        "status": {"replicas": 1, "observedGeneration": 1, "conditions": conditions()},
    }));
    check::<Deployment>(json!({
        "spec": {
            "replicas": 1, "selector": selector(), "template": template(), "minReadySeconds": 1,
            "strategy": {
                "type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1, "maxSurge": "25%"},
            },
            "revisionHistoryLimit": 1, "paused": true, "progressDeadlineSeconds": 1,
        },
        "status": {"replicas": 1, "collisionCount": 1, "conditions": conditions()},
    }));
    check::<DaemonSet>(json!({
        "spec": {
            "selector": selector(), "minReadySeconds": 1, "revisionHistoryLimit": 1,
            "updateStrategy": {
                "type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1, "maxSurge": "25%"},
            },
            "template": {"metadata": metadata(), "spec": {
                "nodeName": "n", "nodeSelector": {"a": "b"}, "hostNetwork": true,
                "tolerations": [{
                    "key": "k", "operator": "Equal", "value": "v", "effect": "NoExecute",
                    "tolerationSeconds": 1,
                }],
                "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [{
                        "matchExpressions": [{"key": "k", "operator": "In", "values": ["v"]}],
                        "matchFields": [{"key": "k", "operator": "In", "values": ["v"]}],
                    }],
                }}},
            }},
        },
        "status": {
            "desiredNumberScheduled": 1, "numberReady": 1, "collisionCount": 1,
            "observedGeneration": 1, "conditions": conditions(),
        },
    }));
    check::<Job>(json!({
        "spec": {
            "ttlSecondsAfterFinished": 1, "parallelism": 1, "completions": 1,
            "completionMode": "Indexed", "backoffLimit": 1, "activeDeadlineSeconds": 1,
            "suspend": true, "managedBy": "m", "podReplacementPolicy": "Failed",
            "selector": selector(), "template": template(), "backoffLimitPerIndex": 1,
            "maxFailedIndexes": 1,
            "successPolicy": {"rules": [{"succeededIndexes": "0", "succeededCount": 1}]},
            "podFailurePolicy": {"rules": [{
                "action": "Ignore",
                "onExitCodes": {"containerName": "c", "operator": "In", "values": [1]},
                "onPodConditions": [{"type": "t", "status": "True"}],
            }]},
        },
        "status": {
            "startTime": "2026-01-01T00:00:00Z", "completionTime": "2026-01-01T00:00:00Z",
            "conditions": conditions(), "active": 1, "succeeded": 1, "failed": 1,
            "terminating": 1, "ready": 1, "completedIndexes": "0", "failedIndexes": "0",
            "uncountedTerminatedPods": {"succeeded": ["u"], "failed": ["u"]},
        },
    }));
    check::<CronJob>(json!({
        "spec": {
            "schedule": "* * * * *", "timeZone": "UTC", "startingDeadlineSeconds": 1,
            "concurrencyPolicy": "Allow", "suspend": true, "successfulJobsHistoryLimit": 1,
            "failedJobsHistoryLimit": 1,
            "jobTemplate": {"metadata": {"labels": {"a": "b"}, "annotations": {"a": "b"}}, "spec": {}},
        },
        "status": {"active": [{"name": "j"}], "lastScheduleTime": "2026-01-01T00:00:00Z"},
    }));
    check::<PodDisruptionBudget>(json!({
        "spec": {"minAvailable": 1, "maxUnavailable": "10%", "selector": selector()},
        "status": {
            "observedGeneration": 1, "disruptedPods": {"p": "2026-01-01T00:00:00Z"},
            "disruptionsAllowed": 1, "currentHealthy": 1, "desiredHealthy": 1, "expectedPods": 1,
            "conditions": conditions(),
        },
    }));
    let target = json!({
        "type": "Value", "value": "1", "averageValue": "1m", "averageUtilization": 50,
    });
    let reference = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "d"});
    let source = json!({
        "name": "cpu", "container": "c", "describedObject": reference, "target": target,
        "metric": {"name": "m", "selector": selector()},
    });
    let rules = json!({
        "stabilizationWindowSeconds": 1, "selectPolicy": "Max", "tolerance": "0.1",
        "policies": [{"type": "Pods", "value": 1, "periodSeconds": 1}],
    });
    check::<HorizontalPodAutoscaler>(json!({
        "spec": {
            "scaleTargetRef": reference, "minReplicas": 1, "maxReplicas": 2,
            "metrics": [{
                "type": "Pods", "pods": source, "object": source, "resource": source,
                "containerResource": source, "external": source,
            }],
            "behavior": {"scaleUp": rules, "scaleDown": rules},
        },
        "status": {
            "observedGeneration": 1, "lastScaleTime": "2026-01-01T00:00:00Z", "currentReplicas": 1,
            "desiredReplicas": 1, "currentMetrics": [{"type": ""}], "conditions": conditions(),
        },
    }));
    check::<PersistentVolume>(json!({
        "spec": {
            "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"],
            "claimRef": {"namespace": "ns", "name": "c", "uid": "u"},
            "persistentVolumeReclaimPolicy": "Delete", "storageClassName": "s",
            "volumeAttributesClassName": "v", "volumeMode": "Block",
            "csi": {"driver": "d", "volumeHandle": "h"}, "hostPath": {"path": "/tmp/x"},
        },
        "status": {"phase": "Bound", "reason": "r"},
    }));
    check::<StorageClass>(json!({
        "provisioner": "p", "reclaimPolicy": "Delete", "volumeBindingMode": "Immediate",
        "mountOptions": ["ro"],
    }));
    check::<VolumeAttachment>(json!({
        "spec": {"nodeName": "n", "source": {"persistentVolumeName": "v"}},
        "status": {
            "attached": true, "attachError": {"message": "m"}, "detachError": {"message": "m"},
        },
    }));
    check::<VolumeAttributesClass>(json!({}));
    check::<CSIDriver>(json!({"spec": {"attachRequired": true, "seLinuxMount": true}}));
    check::<StatefulSet>(json!({
        "spec": {
            "replicas": 1, "selector": selector(), "template": template(), "serviceName": "s",
            "volumeClaimTemplates": [{"metadata": {"name": "data"}}],
            "podManagementPolicy": "Parallel", "revisionHistoryLimit": 10, "minReadySeconds": 1,
            "updateStrategy": {
                "type": "RollingUpdate", "rollingUpdate": {"partition": 1, "maxUnavailable": 1},
            },
            "persistentVolumeClaimRetentionPolicy": {
                "whenDeleted": "Delete", "whenScaled": "Delete",
            },
            "ordinals": {"start": 1},
        },
        "status": {
            "observedGeneration": 1, "replicas": 1, "readyReplicas": 1, "currentReplicas": 1,
            "updatedReplicas": 1, "currentRevision": "r", "updateRevision": "r",
            "collisionCount": 1, "availableReplicas": 1,
        },
    }));
    check::<ControllerRevision>(json!({"data": {"spec": {}}, "revision": 3}));
    check::<Service>(json!({"spec": {
        "type": "ClusterIP", "selector": {"a": "b"}, "clusterIP": "10.0.0.1", "ipFamilies": ["IPv4"],
        "ports": [{
            "name": "p", "protocol": "TCP", "appProtocol": "http", "port": 80, "targetPort": 80,
            "nodePort": 30000,
        }],
        "publishNotReadyAddresses": true, "trafficDistribution": "PreferClose",
        "allocateLoadBalancerNodePorts": true,
    }}));
    let target = json!({
        "kind": "Pod", "namespace": "n", "name": "p", "uid": "u", "apiVersion": "v1",
        "resourceVersion": "7", "fieldPath": "x",
    });
    let address = json!({"ip": "10.0.0.1", "hostname": "h", "nodeName": "n", "targetRef": target});
    let port = json!({"name": "p", "port": 80, "protocol": "TCP", "appProtocol": "http"});
    check::<Endpoints>(json!({"subsets": [
        {"addresses": [address], "notReadyAddresses": [address], "ports": [port]},
    ]}));
    check::<EndpointSlice>(json!({
        "addressType": "IPv4", "ports": [port],
        "endpoints": [{
            "addresses": ["10.0.0.1"], "hostname": "h", "targetRef": target, "nodeName": "n",
            "conditions": {"ready": true, "serving": true, "terminating": true}, "zone": "z",
            "deprecatedTopology": {"a": "b"},
            "hints": {"forZones": [{"name": "z"}], "forNodes": [{"name": "n"}]},
        }],
    }));
    check::<Namespace>(json!({
        "spec": {"finalizers": ["kubernetes"]},
        "status": {"phase": "Active", "conditions": conditions()},
    }));
    check::<Node>(json!({
        "spec": {
            "taints": [{"key": "k", "value": "v", "effect": "NoSchedule"}],
            "unschedulable": true, "podCIDRs": ["10.0.0.0/24"],
        },
        "status": {
            "conditions": conditions(), "allocatable": {"cpu": "1"}, "volumesInUse": ["v"],
            "volumesAttached": [{"name": "v", "devicePath": "/dev/x"}],
        },
    }));
    check::<Lease>(json!({"spec": {"renewTime": "2026-01-01T00:00:00.000001Z"}}));
    let time = "2026-01-01T00:00:00.000001Z";
    check::<LeaseCandidate>(json!({"spec": {"pingTime": time, "renewTime": time}}));
    check::<PersistentVolumeClaim>(json!({
        "spec": {
            "resources": {"requests": {"storage": "1Gi"}}, "storageClassName": "s",
            "volumeAttributesClassName": "v", "accessModes": ["ReadWriteOnce"],
            "volumeMode": "Block", "selector": selector(), "volumeName": "v",
            "dataSource": {"kind": "VolumeSnapshot", "name": "s"},
        },
        "status": {
            "phase": "Bound", "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"},
            "allocatedResources": {"storage": "1Gi"}, "currentVolumeAttributesClassName": "v",
            "modifyVolumeStatus": {"targetVolumeAttributesClassName": "v", "status": "Pending"},
        },
    }));
    let toleration = json!({
        "key": "k", "operator": "Exists", "value": "v", "effect": "NoExecute",
        "tolerationSeconds": 1,
    });
    check::<ResourceClaim>(json!({
        "spec": {"devices": {"requests": [{
            "name": "r",
            "exactly": {
                "deviceClassName": "c", "allocationMode": "ExactCount", "count": 1,
                "adminAccess": true,
            },
            "firstAvailable": [{"deviceClassName": "c", "allocationMode": "All", "count": 1}],
        }]}},
        "status": {
            "allocation": {"devices": {"results": [{
                "driver": "d", "pool": "p", "device": "x", "tolerations": [toleration],
            }]}},
            "reservedFor": [{"apiGroup": "g", "resource": "pods", "name": "p", "uid": "u"}],
        },
    }));
    check::<ResourceClaimTemplate>(json!({"spec": {"metadata": metadata(), "spec": {}}}));
    let taint = json!({
        "key": "k", "value": "v", "effect": "NoExecute", "timeAdded": "2026-01-01T00:00:00Z",
    });
    check::<ResourceSlice>(json!({"spec": {
        "driver": "d", "nodeName": "n",
        "pool": {"name": "p", "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": "x", "taints": [taint]}],
    }}));
    check::<DeviceTaintRule>(json!({
        "spec": {"deviceSelector": {"driver": "d", "pool": "p", "device": "x"}, "taint": taint},
        "status": {"conditions": [{
            "type": "t", "status": "True", "reason": "r", "message": "m", "observedGeneration": 1,
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }]},
    }));
    check::<ResourcePoolStatusRequest>(json!({
        "spec": {"driver": "d", "poolName": "p", "limit": 1},
        "status": {"conditions": conditions()},
    }));
    let claim = json!({"name": "r", "resourceClaimName": "r", "resourceClaimTemplateName": "t"});
    check::<PodGroup>(json!({
        "spec": {
            "resourceClaims": [claim],
            "podGroupTemplateRef": {"workload": {"workloadName": "w"}},
        },
        "status": {"resourceClaimStatuses": [claim]},
    }));
    check::<Workload>(json!({"spec": {
        "controllerRef": {"apiGroup": "batch", "kind": "Job", "name": "j"},
        "podGroupTemplates": [{"name": "t", "schedulingPolicy": {"basic": {}}}],
    }}));
    check::<StorageVersion>(json!({"status": {"storageVersions": [{"apiServerID": "a"}]}}));
    check::<StorageVersionMigration>(json!({
        "spec": {"resource": {"group": "g", "resource": "r"}},
        "status": {"conditions": conditions(), "resourceVersion": "7"},
    }));
    check::<DeviceClass>(json!({"spec": {"extendedResourceName": "a.b/c"}}));
    check::<ResourceQuota>(json!({
        "spec": {
            "hard": {"pods": "1"}, "scopes": ["BestEffort"],
            "scopeSelector": {"matchExpressions": [
                {"scopeName": "PriorityClass", "operator": "In", "values": ["v"]},
            ]},
        },
        "status": {"hard": {"pods": "1"}, "used": {"pods": "1"}},
    }));
    check::<ServiceAccount>(json!({"secrets": [{"name": "s"}]}));
    check::<TokenSecret>(json!({"data": {"ca.crt": "Y2E=", "namespace": "bg==", "token": "dA=="}}));
    check::<ServiceCIDR>(json!({
        "spec": {"cidrs": ["10.0.0.0/16"]}, "status": {"conditions": conditions()},
    }));
    check::<IPAddress>(json!({}));
    check::<ClusterRole>(json!({
        "rules": [{
            "verbs": ["get"], "apiGroups": [""], "resources": ["pods"], "resourceNames": ["n"],
            "nonResourceURLs": ["/x"],
        }],
        "aggregationRule": {"clusterRoleSelectors": [selector()]},
    }));
    check::<ValidatingAdmissionPolicy>(json!({
        "spec": {
            "paramKind": {"apiVersion": "v1", "kind": "K"},
            "matchConstraints": {"resourceRules": [
                {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]},
            ]},
            "validations": [{"expression": "true", "messageExpression": "''"}],
            "variables": [{"name": "v", "expression": "1"}],
        },
        "status": {
            "observedGeneration": 1, "conditions": conditions(),
            "typeChecking": {"expressionWarnings": [{"fieldRef": "f", "warning": "w"}]},
        },
    }));
}

#[test]
fn every_view_is_checked() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/objects/views");
    let mut files = vec![folder];
    let mut sources = Vec::new();
    while let Some(path) = files.pop() {
        match path.is_dir() {
            true => files.extend(path.read_dir().unwrap().map(|entry| entry.unwrap().path())),
            false => sources.push(std::fs::read_to_string(path).unwrap()),
        }
    }
    let mut views = Vec::new();
    for source in &sources {
        for (before, after) in [("\nresource!(", ','), ("\nimpl Resource for ", ' ')] {
            let found = source.split(before).skip(1).filter_map(|rest| rest.split(after).next());
            views.extend(found.map(str::trim));
        }
    }
    assert!(views.len() > 40, "{views:?}");
    views.retain(|view| !include_str!("tests.rs").contains(&format!("check::<{view}>(")));
    assert_eq!(views, [""; 0], "views without a check");
}
