//! The protobuf messages of the decoded kinds, with the fields that are read.
//! Upstream: `generated.proto` of `core/v1` and `meta/v1`.

use crate::objects::wire::protobuf::{Field, Kind, Message};
use Kind::{Bool, Int, MicroTime, Text, Time, Wrapped};

pub static METADATA: Message = Message(&[
    Field::single(1, "name", Text),
    Field::single(2, "generateName", Text),
    Field::single(3, "namespace", Text),
    Field::single(5, "uid", Text),
    Field::single(6, "resourceVersion", Text),
    Field::single(7, "generation", Int),
    Field::single(8, "creationTimestamp", Time),
    Field::single(9, "deletionTimestamp", Time),
    Field::single(10, "deletionGracePeriodSeconds", Int),
    Field::map(11, "labels", Text),
    Field::map(12, "annotations", Text),
    Field::list(13, "ownerReferences", Kind::Message(&OWNER)),
    Field::list(14, "finalizers", Text),
]);

static OWNER: Message = Message(&[
    Field::single(1, "kind", Text),
    Field::single(3, "name", Text),
    Field::single(4, "uid", Text),
    Field::single(5, "apiVersion", Text),
    Field::single(6, "controller", Bool),
    Field::single(7, "blockOwnerDeletion", Bool),
]);

/// The metadata of any object.
pub static PARTIAL: Message = Message(&[Field::single(1, "metadata", Kind::Message(&METADATA))]);

/// The fields of any object on which its deletion depends.
pub static DELETION: Message =
    Message(&[Field::single(1, "metadata", Kind::Message(&DELETION_META))]);

/// The fields of a Pod on which its deletion depends.
pub static POD_DELETION: Message = Message(&[
    Field::single(1, "metadata", Kind::Message(&DELETION_META)),
    Field::single(2, "spec", Kind::Message(&DELETION_SPEC)),
    Field::single(3, "status", Kind::Message(&PHASE)),
]);

static DELETION_META: Message = Message(&[
    Field::single(1, "name", Text),
    Field::single(9, "deletionTimestamp", Time),
    Field::single(10, "deletionGracePeriodSeconds", Int),
    Field::list(14, "finalizers", Text),
]);

static DELETION_SPEC: Message = Message(&[
    Field::single(4, "terminationGracePeriodSeconds", Int),
    Field::single(10, "nodeName", Text),
]);

static PHASE: Message = Message(&[Field::single(1, "phase", Text)]);

pub static LIST_META: Message =
    Message(&[Field::single(2, "resourceVersion", Text), Field::single(3, "continue", Text)]);

pub static STATUS: Message = Message(&[
    Field::single(2, "status", Text),
    Field::single(3, "message", Text),
    Field::single(4, "reason", Text),
    Field::single(5, "details", Kind::Message(&DETAILS)),
    Field::single(6, "code", Int),
]);

static DETAILS: Message = Message(&[
    Field::list(4, "causes", Kind::Message(&CAUSE)),
    Field::single(5, "retryAfterSeconds", Int),
]);

static CAUSE: Message = Message(&[
    Field::single(1, "reason", Text),
    Field::single(2, "message", Text),
    Field::single(3, "field", Text),
]);

pub static POD: Message = Message(&[
    Field::single(1, "metadata", Kind::Message(&METADATA)),
    Field::single(2, "spec", Kind::Message(&POD_SPEC)),
    Field::single(3, "status", Kind::Message(&POD_STATUS)),
]);

pub static POD_SPEC: Message = Message(&[
    Field::list(1, "volumes", Kind::Message(&VOLUME)),
    Field::list(2, "containers", Kind::Message(&CONTAINER)),
    Field::single(5, "activeDeadlineSeconds", Int),
    Field::single(10, "nodeName", Text),
    Field::single(16, "hostname", Text),
    Field::single(17, "subdomain", Text),
    Field::single(18, "affinity", Kind::Message(&AFFINITY)),
    Field::list(20, "initContainers", Kind::Message(&CONTAINER)),
    Field::list(22, "tolerations", Kind::Message(&TOLERATION)),
    Field::single(24, "priorityClassName", Text),
    Field::map(32, "overhead", Wrapped),
    Field::list(39, "resourceClaims", Kind::Message(&RESOURCE_CLAIM)),
    Field::single(40, "resources", Kind::Message(&RESOURCES)),
    Field::single(43, "schedulingGroup", Kind::Message(&SCHEDULING_GROUP)),
]);

static SCHEDULING_GROUP: Message = Message(&[Field::single(1, "podGroupName", Text)]);

static VOLUME: Message =
    Message(&[Field::single(1, "name", Text), Field::inline(2, &VOLUME_SOURCE)]);

static VOLUME_SOURCE: Message = Message(&[
    Field::single(3, "gcePersistentDisk", Kind::Message(&GCE_DISK)),
    Field::single(4, "awsElasticBlockStore", Kind::Message(&AWS_DISK)),
    Field::single(8, "iscsi", Kind::Message(&ISCSI)),
    Field::single(10, "persistentVolumeClaim", Kind::Message(&CLAIM_SOURCE)),
    Field::single(12, "flexVolume", Kind::Message(&FLEX)),
    Field::single(13, "cinder", Kind::Message(&CINDER)),
    Field::single(17, "fc", Kind::Message(&FIBRE_CHANNEL)),
    Field::single(18, "azureFile", Kind::Message(&AZURE_FILE)),
    Field::single(20, "vsphereVolume", Kind::Message(&VSPHERE)),
    Field::single(22, "azureDisk", Kind::Message(&AZURE_DISK)),
    Field::single(24, "portworxVolume", Kind::Message(&PORTWORX)),
    Field::single(28, "csi", Kind::Message(&CSI)),
    Field::single(29, "ephemeral", Kind::Message(&Message(&[]))),
]);

static GCE_DISK: Message = Message(&[
    Field::single(1, "pdName", Text),
    Field::single(2, "fsType", Text),
    Field::single(3, "partition", Int),
    Field::single(4, "readOnly", Bool),
]);

static AWS_DISK: Message = Message(&[
    Field::single(1, "volumeID", Text),
    Field::single(2, "fsType", Text),
    Field::single(3, "partition", Int),
    Field::single(4, "readOnly", Bool),
]);

static ISCSI: Message = Message(&[
    Field::single(1, "targetPortal", Text),
    Field::single(2, "iqn", Text),
    Field::single(3, "lun", Int),
]);

static FLEX: Message = Message(&[
    Field::single(1, "driver", Text),
    Field::single(2, "fsType", Text),
    Field::single(4, "readOnly", Bool),
    Field::map(5, "options", Text),
]);

static CINDER: Message = Message(&[
    Field::single(1, "volumeID", Text),
    Field::single(2, "fsType", Text),
    Field::single(3, "readOnly", Bool),
]);

static FIBRE_CHANNEL: Message = Message(&[
    Field::list(1, "targetWWNs", Text),
    Field::single(2, "lun", Int),
    Field::list(5, "wwids", Text),
]);

static AZURE_FILE: Message = Message(&[
    Field::single(1, "secretName", Text),
    Field::single(2, "shareName", Text),
    Field::single(3, "readOnly", Bool),
]);

static VSPHERE: Message = Message(&[
    Field::single(1, "volumePath", Text),
    Field::single(2, "fsType", Text),
    Field::single(3, "storagePolicyName", Text),
]);

static AZURE_DISK: Message = Message(&[
    Field::single(2, "diskURI", Text),
    Field::single(3, "cachingMode", Text),
    Field::single(4, "fsType", Text),
    Field::single(5, "readOnly", Bool),
    Field::single(6, "kind", Text),
]);

static PORTWORX: Message = Message(&[
    Field::single(1, "volumeID", Text),
    Field::single(2, "fsType", Text),
    Field::single(3, "readOnly", Bool),
]);

static CSI: Message = Message(&[Field::single(1, "driver", Text)]);

static CLAIM_SOURCE: Message =
    Message(&[Field::single(1, "claimName", Text), Field::single(2, "readOnly", Bool)]);

static CONTAINER: Message = Message(&[
    Field::single(1, "name", Text),
    Field::list(6, "ports", Kind::Message(&PORT)),
    Field::single(8, "resources", Kind::Message(&RESOURCES)),
    Field::single(24, "restartPolicy", Text),
]);

static PORT: Message = Message(&[
    Field::single(1, "name", Text),
    Field::single(3, "containerPort", Int),
    Field::single(4, "protocol", Text),
]);

static RESOURCES: Message =
    Message(&[Field::map(1, "limits", Wrapped), Field::map(2, "requests", Wrapped)]);

static TOLERATION: Message = Message(&[
    Field::single(1, "key", Text),
    Field::single(2, "operator", Text),
    Field::single(3, "value", Text),
    Field::single(4, "effect", Text),
    Field::single(5, "tolerationSeconds", Int),
]);

static RESOURCE_CLAIM: Message = Message(&[
    Field::single(1, "name", Text),
    Field::single(3, "resourceClaimName", Text),
    Field::single(4, "resourceClaimTemplateName", Text),
]);

static AFFINITY: Message = Message(&[
    Field::single(1, "nodeAffinity", Kind::Message(&NODE_AFFINITY)),
    Field::single(2, "podAffinity", Kind::Message(&AFFINITY_TERMS)),
    Field::single(3, "podAntiAffinity", Kind::Message(&AFFINITY_TERMS)),
]);

static NODE_AFFINITY: Message = Message(&[Field::single(
    1,
    "requiredDuringSchedulingIgnoredDuringExecution",
    Kind::Message(&NODE_SELECTOR),
)]);

static NODE_SELECTOR: Message =
    Message(&[Field::list(1, "nodeSelectorTerms", Kind::Message(&NODE_SELECTOR_TERM))]);

static NODE_SELECTOR_TERM: Message =
    Message(&[Field::list(2, "matchFields", Kind::Message(&REQUIREMENT))]);

static REQUIREMENT: Message = Message(&[
    Field::single(1, "key", Text),
    Field::single(2, "operator", Text),
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

static WEIGHTED_TERM: Message =
    Message(&[Field::single(2, "podAffinityTerm", Kind::Message(&TERM))]);

static TERM: Message = Message(&[
    Field::list(2, "namespaces", Text),
    Field::single(4, "namespaceSelector", Kind::Message(&Message(&[]))),
]);

pub static POD_STATUS: Message = Message(&[
    Field::single(1, "phase", Text),
    Field::list(2, "conditions", Kind::Message(&CONDITION)),
    Field::single(4, "reason", Text),
    Field::single(7, "startTime", Time),
    Field::list(8, "containerStatuses", Kind::Message(&CONTAINER_STATUS)),
    Field::single(9, "qosClass", Text),
    Field::list(10, "initContainerStatuses", Kind::Message(&CONTAINER_STATUS)),
    Field::list(12, "podIPs", Kind::Message(&POD_IP)),
    Field::list(13, "ephemeralContainerStatuses", Kind::Message(&CONTAINER_STATUS)),
    Field::list(15, "resourceClaimStatuses", Kind::Message(&CLAIM_STATUS)),
    Field::single(18, "extendedResourceClaimStatus", Kind::Message(&EXTENDED_CLAIM)),
]);

static CONDITION: Message = Message(&[
    Field::single(1, "type", Text),
    Field::single(2, "status", Text),
    Field::single(4, "lastTransitionTime", Time),
    Field::single(5, "reason", Text),
]);

static CONTAINER_STATUS: Message = Message(&[
    Field::single(1, "name", Text),
    Field::single(2, "state", Kind::Message(&CONTAINER_STATE)),
    Field::single(5, "restartCount", Int),
    Field::map(10, "allocatedResources", Wrapped),
    Field::single(11, "resources", Kind::Message(&RESOURCES)),
]);

static CONTAINER_STATE: Message = Message(&[
    Field::single(1, "waiting", Kind::Message(&Message(&[]))),
    Field::single(3, "terminated", Kind::Message(&TERMINATED)),
]);

static TERMINATED: Message =
    Message(&[Field::single(1, "exitCode", Int), Field::single(6, "finishedAt", Time)]);

static CLAIM_STATUS: Message =
    Message(&[Field::single(1, "name", Text), Field::single(2, "resourceClaimName", Text)]);

static POD_IP: Message = Message(&[Field::single(1, "ip", Text)]);

static EXTENDED_CLAIM: Message = Message(&[Field::single(2, "resourceClaimName", Text)]);

pub static NODE: Message = Message(&[
    Field::single(1, "metadata", Kind::Message(&METADATA)),
    Field::single(2, "spec", Kind::Message(&NODE_SPEC)),
    Field::single(3, "status", Kind::Message(&NODE_STATUS)),
]);

static NODE_SPEC: Message = Message(&[
    Field::single(4, "unschedulable", Bool),
    Field::list(5, "taints", Kind::Message(&TAINT)),
    Field::list(7, "podCIDRs", Text),
]);

static TAINT: Message = Message(&[
    Field::single(1, "key", Text),
    Field::single(2, "value", Text),
    Field::single(3, "effect", Text),
    Field::single(4, "timeAdded", Time),
]);

static NODE_STATUS: Message = Message(&[
    Field::map(2, "allocatable", Wrapped),
    Field::list(4, "conditions", Kind::Message(&NODE_CONDITION)),
    Field::list(9, "volumesInUse", Text),
    Field::list(10, "volumesAttached", Kind::Message(&ATTACHED_VOLUME)),
]);

static ATTACHED_VOLUME: Message =
    Message(&[Field::single(1, "name", Text), Field::single(2, "devicePath", Text)]);

static NODE_CONDITION: Message = Message(&[
    Field::single(1, "type", Text),
    Field::single(2, "status", Text),
    Field::single(3, "lastHeartbeatTime", Time),
    Field::single(4, "lastTransitionTime", Time),
    Field::single(5, "reason", Text),
    Field::single(6, "message", Text),
]);

pub static LEASE: Message = Message(&[
    Field::single(1, "metadata", Kind::Message(&METADATA)),
    Field::single(2, "spec", Kind::Message(&LEASE_SPEC)),
]);

static LEASE_SPEC: Message = Message(&[Field::single(4, "renewTime", MicroTime)]);
