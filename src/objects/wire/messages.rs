//! The protobuf messages of the decoded kinds, with the fields that are read.
//! Upstream: `generated.proto` of `core/v1` and `meta/v1`.

use crate::objects::wire::protobuf::{Field, Kind, Message};
use Kind::{Bool, Int, MicroTime, Text, Time, Wrapped};

pub static METADATA: Message = Message(&[
    Field::one(1, "name", Text),
    Field::one(2, "generateName", Text),
    Field::one(3, "namespace", Text),
    Field::one(5, "uid", Text),
    Field::one(6, "resourceVersion", Text),
    Field::one(7, "generation", Int),
    Field::one(8, "creationTimestamp", Time),
    Field::one(9, "deletionTimestamp", Time),
    Field::one(10, "deletionGracePeriodSeconds", Int),
    Field::map(11, "labels", Text),
    Field::map(12, "annotations", Text),
    Field::list(13, "ownerReferences", Kind::Message(&OWNER)),
    Field::list(14, "finalizers", Text),
]);

static OWNER: Message = Message(&[
    Field::one(1, "kind", Text),
    Field::one(3, "name", Text),
    Field::one(4, "uid", Text),
    Field::one(5, "apiVersion", Text),
    Field::one(6, "controller", Bool),
    Field::one(7, "blockOwnerDeletion", Bool),
]);

/// The metadata of any object.
pub static PARTIAL: Message = Message(&[Field::one(1, "metadata", Kind::Message(&METADATA))]);

/// The fields of any object on which its deletion depends.
pub static DELETION: Message = Message(&[Field::one(1, "metadata", Kind::Message(&DELETION_META))]);

/// The fields of a Pod on which its deletion depends.
pub static POD_DELETION: Message = Message(&[
    Field::one(1, "metadata", Kind::Message(&DELETION_META)),
    Field::one(2, "spec", Kind::Message(&DELETION_SPEC)),
    Field::one(3, "status", Kind::Message(&PHASE)),
]);

static DELETION_META: Message = Message(&[
    Field::one(1, "name", Text),
    Field::one(9, "deletionTimestamp", Time),
    Field::one(10, "deletionGracePeriodSeconds", Int),
    Field::list(14, "finalizers", Text),
]);

static DELETION_SPEC: Message = Message(&[
    Field::one(4, "terminationGracePeriodSeconds", Int),
    Field::one(10, "nodeName", Text),
]);

static PHASE: Message = Message(&[Field::one(1, "phase", Text)]);

pub static LIST_META: Message =
    Message(&[Field::one(2, "resourceVersion", Text), Field::one(3, "continue", Text)]);

pub static STATUS: Message = Message(&[
    Field::one(2, "status", Text),
    Field::one(3, "message", Text),
    Field::one(4, "reason", Text),
    Field::one(5, "details", Kind::Message(&DETAILS)),
    Field::one(6, "code", Int),
]);

static DETAILS: Message = Message(&[
    Field::list(4, "causes", Kind::Message(&CAUSE)),
    Field::one(5, "retryAfterSeconds", Int),
]);

static CAUSE: Message = Message(&[
    Field::one(1, "reason", Text),
    Field::one(2, "message", Text),
    Field::one(3, "field", Text),
]);

pub static POD: Message = Message(&[
    Field::one(1, "metadata", Kind::Message(&METADATA)),
    Field::one(2, "spec", Kind::Message(&POD_SPEC)),
    Field::one(3, "status", Kind::Message(&POD_STATUS)),
]);

pub static POD_SPEC: Message = Message(&[
    Field::list(1, "volumes", Kind::Message(&VOLUME)),
    Field::list(2, "containers", Kind::Message(&CONTAINER)),
    Field::one(5, "activeDeadlineSeconds", Int),
    Field::one(10, "nodeName", Text),
    Field::one(16, "hostname", Text),
    Field::one(17, "subdomain", Text),
    Field::one(18, "affinity", Kind::Message(&AFFINITY)),
    Field::list(20, "initContainers", Kind::Message(&CONTAINER)),
    Field::list(22, "tolerations", Kind::Message(&TOLERATION)),
    Field::one(24, "priorityClassName", Text),
    Field::map(32, "overhead", Wrapped),
    Field::list(39, "resourceClaims", Kind::Message(&RESOURCE_CLAIM)),
    Field::one(40, "resources", Kind::Message(&RESOURCES)),
    Field::one(43, "schedulingGroup", Kind::Message(&SCHEDULING_GROUP)),
]);

static SCHEDULING_GROUP: Message = Message(&[Field::one(1, "podGroupName", Text)]);

static VOLUME: Message = Message(&[Field::one(1, "name", Text), Field::inline(2, &VOLUME_SOURCE)]);

static VOLUME_SOURCE: Message = Message(&[
    Field::one(3, "gcePersistentDisk", Kind::Message(&GCE_DISK)),
    Field::one(4, "awsElasticBlockStore", Kind::Message(&AWS_DISK)),
    Field::one(8, "iscsi", Kind::Message(&ISCSI)),
    Field::one(10, "persistentVolumeClaim", Kind::Message(&CLAIM_SOURCE)),
    Field::one(12, "flexVolume", Kind::Message(&FLEX)),
    Field::one(13, "cinder", Kind::Message(&CINDER)),
    Field::one(17, "fc", Kind::Message(&FIBRE_CHANNEL)),
    Field::one(18, "azureFile", Kind::Message(&AZURE_FILE)),
    Field::one(20, "vsphereVolume", Kind::Message(&VSPHERE)),
    Field::one(22, "azureDisk", Kind::Message(&AZURE_DISK)),
    Field::one(24, "portworxVolume", Kind::Message(&PORTWORX)),
    Field::one(28, "csi", Kind::Message(&CSI)),
    Field::one(29, "ephemeral", Kind::Message(&Message(&[]))),
]);

static GCE_DISK: Message = Message(&[
    Field::one(1, "pdName", Text),
    Field::one(2, "fsType", Text),
    Field::one(3, "partition", Int),
    Field::one(4, "readOnly", Bool),
]);

static AWS_DISK: Message = Message(&[
    Field::one(1, "volumeID", Text),
    Field::one(2, "fsType", Text),
    Field::one(3, "partition", Int),
    Field::one(4, "readOnly", Bool),
]);

static ISCSI: Message = Message(&[
    Field::one(1, "targetPortal", Text),
    Field::one(2, "iqn", Text),
    Field::one(3, "lun", Int),
]);

static FLEX: Message = Message(&[
    Field::one(1, "driver", Text),
    Field::one(2, "fsType", Text),
    Field::one(4, "readOnly", Bool),
    Field::map(5, "options", Text),
]);

static CINDER: Message = Message(&[
    Field::one(1, "volumeID", Text),
    Field::one(2, "fsType", Text),
    Field::one(3, "readOnly", Bool),
]);

static FIBRE_CHANNEL: Message = Message(&[
    Field::list(1, "targetWWNs", Text),
    Field::one(2, "lun", Int),
    Field::list(5, "wwids", Text),
]);

static AZURE_FILE: Message = Message(&[
    Field::one(1, "secretName", Text),
    Field::one(2, "shareName", Text),
    Field::one(3, "readOnly", Bool),
]);

static VSPHERE: Message = Message(&[
    Field::one(1, "volumePath", Text),
    Field::one(2, "fsType", Text),
    Field::one(3, "storagePolicyName", Text),
]);

static AZURE_DISK: Message = Message(&[
    Field::one(2, "diskURI", Text),
    Field::one(3, "cachingMode", Text),
    Field::one(4, "fsType", Text),
    Field::one(5, "readOnly", Bool),
    Field::one(6, "kind", Text),
]);

static PORTWORX: Message = Message(&[
    Field::one(1, "volumeID", Text),
    Field::one(2, "fsType", Text),
    Field::one(3, "readOnly", Bool),
]);

static CSI: Message = Message(&[Field::one(1, "driver", Text)]);

static CLAIM_SOURCE: Message =
    Message(&[Field::one(1, "claimName", Text), Field::one(2, "readOnly", Bool)]);

static CONTAINER: Message = Message(&[
    Field::one(1, "name", Text),
    Field::list(6, "ports", Kind::Message(&PORT)),
    Field::one(8, "resources", Kind::Message(&RESOURCES)),
    Field::one(24, "restartPolicy", Text),
]);

static PORT: Message = Message(&[
    Field::one(1, "name", Text),
    Field::one(3, "containerPort", Int),
    Field::one(4, "protocol", Text),
]);

static RESOURCES: Message =
    Message(&[Field::map(1, "limits", Wrapped), Field::map(2, "requests", Wrapped)]);

static TOLERATION: Message = Message(&[
    Field::one(1, "key", Text),
    Field::one(2, "operator", Text),
    Field::one(3, "value", Text),
    Field::one(4, "effect", Text),
    Field::one(5, "tolerationSeconds", Int),
]);

static RESOURCE_CLAIM: Message = Message(&[
    Field::one(1, "name", Text),
    Field::one(3, "resourceClaimName", Text),
    Field::one(4, "resourceClaimTemplateName", Text),
]);

static AFFINITY: Message = Message(&[
    Field::one(1, "nodeAffinity", Kind::Message(&NODE_AFFINITY)),
    Field::one(2, "podAffinity", Kind::Message(&AFFINITY_TERMS)),
    Field::one(3, "podAntiAffinity", Kind::Message(&AFFINITY_TERMS)),
]);

static NODE_AFFINITY: Message = Message(&[Field::one(
    1,
    "requiredDuringSchedulingIgnoredDuringExecution",
    Kind::Message(&NODE_SELECTOR),
)]);

static NODE_SELECTOR: Message =
    Message(&[Field::list(1, "nodeSelectorTerms", Kind::Message(&NODE_SELECTOR_TERM))]);

static NODE_SELECTOR_TERM: Message =
    Message(&[Field::list(2, "matchFields", Kind::Message(&REQUIREMENT))]);

static REQUIREMENT: Message = Message(&[
    Field::one(1, "key", Text),
    Field::one(2, "operator", Text),
    Field::list(3, "values", Text),
]);

static AFFINITY_TERMS: Message = Message(&[
    Field::list(1, "requiredDuringSchedulingIgnoredDuringExecution", Kind::Message(&TERM)),
    Field::list(
        2,
        "preferredDuringSchedulingIgnoredDuringExecution",
        Kind::Message(&WEIGHTED_TERM),
    ),
]);

static WEIGHTED_TERM: Message = Message(&[Field::one(2, "podAffinityTerm", Kind::Message(&TERM))]);

static TERM: Message = Message(&[
    Field::list(2, "namespaces", Text),
    Field::one(4, "namespaceSelector", Kind::Message(&Message(&[]))),
]);

pub static POD_STATUS: Message = Message(&[
    Field::one(1, "phase", Text),
    Field::list(2, "conditions", Kind::Message(&CONDITION)),
    Field::one(4, "reason", Text),
    Field::one(7, "startTime", Time),
    Field::list(8, "containerStatuses", Kind::Message(&CONTAINER_STATUS)),
    Field::one(9, "qosClass", Text),
    Field::list(10, "initContainerStatuses", Kind::Message(&CONTAINER_STATUS)),
    Field::list(12, "podIPs", Kind::Message(&POD_IP)),
    Field::list(13, "ephemeralContainerStatuses", Kind::Message(&CONTAINER_STATUS)),
    Field::list(15, "resourceClaimStatuses", Kind::Message(&CLAIM_STATUS)),
    Field::one(18, "extendedResourceClaimStatus", Kind::Message(&EXTENDED_CLAIM)),
]);

static CONDITION: Message = Message(&[
    Field::one(1, "type", Text),
    Field::one(2, "status", Text),
    Field::one(4, "lastTransitionTime", Time),
    Field::one(5, "reason", Text),
]);

static CONTAINER_STATUS: Message = Message(&[
    Field::one(1, "name", Text),
    Field::one(2, "state", Kind::Message(&CONTAINER_STATE)),
    Field::one(5, "restartCount", Int),
    Field::map(10, "allocatedResources", Wrapped),
    Field::one(11, "resources", Kind::Message(&RESOURCES)),
]);

static CONTAINER_STATE: Message = Message(&[
    Field::one(1, "waiting", Kind::Message(&Message(&[]))),
    Field::one(3, "terminated", Kind::Message(&TERMINATED)),
]);

static TERMINATED: Message =
    Message(&[Field::one(1, "exitCode", Int), Field::one(6, "finishedAt", Time)]);

static CLAIM_STATUS: Message =
    Message(&[Field::one(1, "name", Text), Field::one(2, "resourceClaimName", Text)]);

static POD_IP: Message = Message(&[Field::one(1, "ip", Text)]);

static EXTENDED_CLAIM: Message = Message(&[Field::one(2, "resourceClaimName", Text)]);

pub static NODE: Message = Message(&[
    Field::one(1, "metadata", Kind::Message(&METADATA)),
    Field::one(2, "spec", Kind::Message(&NODE_SPEC)),
    Field::one(3, "status", Kind::Message(&NODE_STATUS)),
]);

static NODE_SPEC: Message = Message(&[
    Field::one(4, "unschedulable", Bool),
    Field::list(5, "taints", Kind::Message(&TAINT)),
    Field::list(7, "podCIDRs", Text),
]);

static TAINT: Message = Message(&[
    Field::one(1, "key", Text),
    Field::one(2, "value", Text),
    Field::one(3, "effect", Text),
    Field::one(4, "timeAdded", Time),
]);

static NODE_STATUS: Message = Message(&[
    Field::map(2, "allocatable", Wrapped),
    Field::list(4, "conditions", Kind::Message(&NODE_CONDITION)),
    Field::list(9, "volumesInUse", Text),
    Field::list(10, "volumesAttached", Kind::Message(&ATTACHED_VOLUME)),
]);

static ATTACHED_VOLUME: Message =
    Message(&[Field::one(1, "name", Text), Field::one(2, "devicePath", Text)]);

static NODE_CONDITION: Message = Message(&[
    Field::one(1, "type", Text),
    Field::one(2, "status", Text),
    Field::one(3, "lastHeartbeatTime", Time),
    Field::one(4, "lastTransitionTime", Time),
    Field::one(5, "reason", Text),
    Field::one(6, "message", Text),
]);

pub static LEASE: Message = Message(&[
    Field::one(1, "metadata", Kind::Message(&METADATA)),
    Field::one(2, "spec", Kind::Message(&LEASE_SPEC)),
]);

static LEASE_SPEC: Message = Message(&[Field::one(4, "renewTime", MicroTime)]);
