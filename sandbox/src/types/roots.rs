//! The type of each built-in kind, from which its schema is generated.

use k8s_openapi::api;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1 as apiextensions;
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1 as apiregistration;
use schemars::SchemaGenerator;

macro_rules! roots {
    ($generator:ident, $group:expr, $kind:expr; $($of:literal, $name:literal => $type:ty;)*) => {
        match ($group, $kind) {
            $(($of, $name) => {
                $generator.subschema_for::<$type>();
                Some(<$type as schemars::JsonSchema>::schema_name().into_owned())
            })*
            _ => None,
        }
    };
}

/// Adds the schema of a built-in kind, and of everything it refers to, to the generator. Returns
/// its name; `None` for a kind without a schema.
pub fn add(generator: &mut SchemaGenerator, group: &str, kind: &str) -> Option<String> {
    use api::admissionregistration::v1 as admission;
    roots!(generator, group, kind;
        "", "Binding" => api::core::v1::Binding;
        "", "ComponentStatus" => api::core::v1::ComponentStatus;
        "", "ConfigMap" => api::core::v1::ConfigMap;
        "", "Endpoints" => api::core::v1::Endpoints;
        "", "Event" => api::core::v1::Event;
        "", "LimitRange" => api::core::v1::LimitRange;
        "", "Namespace" => api::core::v1::Namespace;
        "", "Node" => api::core::v1::Node;
        "", "PersistentVolume" => api::core::v1::PersistentVolume;
        "", "PersistentVolumeClaim" => api::core::v1::PersistentVolumeClaim;
        "", "Pod" => api::core::v1::Pod;
        "", "PodTemplate" => api::core::v1::PodTemplate;
        "", "ReplicationController" => api::core::v1::ReplicationController;
        "", "ResourceQuota" => api::core::v1::ResourceQuota;
        "", "Secret" => api::core::v1::Secret;
        "", "Service" => api::core::v1::Service;
        "", "ServiceAccount" => api::core::v1::ServiceAccount;
        "apps", "ControllerRevision" => api::apps::v1::ControllerRevision;
        "apps", "DaemonSet" => api::apps::v1::DaemonSet;
        "apps", "Deployment" => api::apps::v1::Deployment;
        "apps", "ReplicaSet" => api::apps::v1::ReplicaSet;
        "apps", "StatefulSet" => api::apps::v1::StatefulSet;
        "batch", "CronJob" => api::batch::v1::CronJob;
        "batch", "Job" => api::batch::v1::Job;
        "autoscaling/v1", "HorizontalPodAutoscaler" => api::autoscaling::v1::HorizontalPodAutoscaler;
        "autoscaling", "HorizontalPodAutoscaler" => api::autoscaling::v2::HorizontalPodAutoscaler;
        "policy", "PodDisruptionBudget" => api::policy::v1::PodDisruptionBudget;
        "networking.k8s.io", "IngressClass" => api::networking::v1::IngressClass;
        "networking.k8s.io", "Ingress" => api::networking::v1::Ingress;
        "networking.k8s.io", "IPAddress" => api::networking::v1::IPAddress;
        "networking.k8s.io", "NetworkPolicy" => api::networking::v1::NetworkPolicy;
        "networking.k8s.io", "ServiceCIDR" => api::networking::v1::ServiceCIDR;
        "events.k8s.io", "Event" => api::events::v1::Event;
        "flowcontrol.apiserver.k8s.io", "FlowSchema" => api::flowcontrol::v1::FlowSchema;
        "flowcontrol.apiserver.k8s.io", "PriorityLevelConfiguration" => api::flowcontrol::v1::PriorityLevelConfiguration;
        "resource.k8s.io", "DeviceTaintRule" => api::resource::v1beta2::DeviceTaintRule;
        "resource.k8s.io", "ResourcePoolStatusRequest" => api::resource::v1alpha3::ResourcePoolStatusRequest;
        "storagemigration.k8s.io", "StorageVersionMigration" => api::storagemigration::v1beta1::StorageVersionMigration;
        "internal.apiserver.k8s.io", "StorageVersion" => api::apiserverinternal::v1alpha1::StorageVersion;
        "scheduling.k8s.io", "PodGroup" => api::scheduling::v1alpha2::PodGroup;
        "scheduling.k8s.io", "Workload" => api::scheduling::v1alpha2::Workload;
        "resource.k8s.io", "DeviceClass" => api::resource::v1::DeviceClass;
        "resource.k8s.io", "ResourceClaim" => api::resource::v1::ResourceClaim;
        "resource.k8s.io", "ResourceClaimTemplate" => api::resource::v1::ResourceClaimTemplate;
        "resource.k8s.io", "ResourceSlice" => api::resource::v1::ResourceSlice;
        "authentication.k8s.io", "SelfSubjectReview" => api::authentication::v1::SelfSubjectReview;
        "authentication.k8s.io", "TokenReview" => api::authentication::v1::TokenReview;
        "authorization.k8s.io", "LocalSubjectAccessReview" => api::authorization::v1::LocalSubjectAccessReview;
        "authorization.k8s.io", "SelfSubjectAccessReview" => api::authorization::v1::SelfSubjectAccessReview;
        "authorization.k8s.io", "SelfSubjectRulesReview" => api::authorization::v1::SelfSubjectRulesReview;
        "authorization.k8s.io", "SubjectAccessReview" => api::authorization::v1::SubjectAccessReview;
        "discovery.k8s.io", "EndpointSlice" => api::discovery::v1::EndpointSlice;
        "coordination.k8s.io", "Lease" => api::coordination::v1::Lease;
        "rbac.authorization.k8s.io", "ClusterRole" => api::rbac::v1::ClusterRole;
        "rbac.authorization.k8s.io", "ClusterRoleBinding" => api::rbac::v1::ClusterRoleBinding;
        "rbac.authorization.k8s.io", "Role" => api::rbac::v1::Role;
        "rbac.authorization.k8s.io", "RoleBinding" => api::rbac::v1::RoleBinding;
        "storage.k8s.io", "CSIDriver" => api::storage::v1::CSIDriver;
        "storage.k8s.io", "CSINode" => api::storage::v1::CSINode;
        "storage.k8s.io", "CSIStorageCapacity" => api::storage::v1::CSIStorageCapacity;
        "storage.k8s.io", "StorageClass" => api::storage::v1::StorageClass;
        "storage.k8s.io", "VolumeAttributesClass" => api::storage::v1::VolumeAttributesClass;
        "storage.k8s.io", "VolumeAttachment" => api::storage::v1::VolumeAttachment;
        "scheduling.k8s.io", "PriorityClass" => api::scheduling::v1::PriorityClass;
        "node.k8s.io", "RuntimeClass" => api::node::v1::RuntimeClass;
        "certificates.k8s.io", "CertificateSigningRequest" => api::certificates::v1::CertificateSigningRequest;
        "certificates.k8s.io", "ClusterTrustBundle" => api::certificates::v1beta1::ClusterTrustBundle;
        "certificates.k8s.io", "PodCertificateRequest" => api::certificates::v1beta1::PodCertificateRequest;
        "admissionregistration.k8s.io", "MutatingAdmissionPolicy" => admission::MutatingAdmissionPolicy;
        "admissionregistration.k8s.io", "MutatingAdmissionPolicyBinding" => admission::MutatingAdmissionPolicyBinding;
        "admissionregistration.k8s.io", "MutatingWebhookConfiguration" => admission::MutatingWebhookConfiguration;
        "admissionregistration.k8s.io", "ValidatingAdmissionPolicy" => admission::ValidatingAdmissionPolicy;
        "admissionregistration.k8s.io", "ValidatingAdmissionPolicyBinding" => admission::ValidatingAdmissionPolicyBinding;
        "admissionregistration.k8s.io", "ValidatingWebhookConfiguration" => admission::ValidatingWebhookConfiguration;
        "apiextensions.k8s.io", "CustomResourceDefinition" => apiextensions::CustomResourceDefinition;
        "apiregistration.k8s.io", "APIService" => apiregistration::APIService;
    )
}
