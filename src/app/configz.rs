//! /configz: the flags in the shape of `KubeControllerManagerConfiguration`.
//! Upstream: `kube-controller-manager/config/v1alpha1`.

use serde_json::{Value, json};

use crate::options::{Options, show_duration};

/// What is served under `/configz`.
pub fn of(o: &Options) -> Value {
    let configuration = json!({
        "kind": "KubeControllerManagerConfiguration",
        "apiVersion": "kubecontrollermanager.config.k8s.io/v1alpha1",
        "Generic": {
            "Port": 0,
            "Address": o.bind_address.to_string(),
            "MinResyncPeriod": show_duration(o.min_resync_period),
            "ClientConnection": {
                "kubeconfig": o.kubeconfig,
                "acceptContentTypes": "",
                "contentType": o.kube_api_content_type,
                "qps": o.kube_api_qps,
                "burst": o.kube_api_burst,
            },
            "ControllerStartInterval": show_duration(o.controller_start_interval),
            "LeaderElection": {
                "leaderElect": o.leader_elect,
                "leaseDuration": show_duration(o.leader_elect_lease_duration),
                "renewDeadline": show_duration(o.leader_elect_renew_deadline),
                "retryPeriod": show_duration(o.leader_elect_retry_period),
                "resourceLock": o.leader_elect_resource_lock,
                "resourceName": o.leader_elect_resource_name,
                "resourceNamespace": o.leader_elect_resource_namespace,
            },
            "Controllers": o.controllers,
            "Debugging": {
                "enableProfiling": o.profiling,
                "enableContentionProfiling": o.contention_profiling,
            },
            "LeaderMigrationEnabled": o.enable_leader_migration,
        },
        "KubeCloudShared": {
            "CloudProvider": { "Name": o.cloud_provider, "CloudConfigFile": o.cloud_config },
            "ExternalCloudVolumePlugin": o.external_cloud_volume_plugin,
            "UseServiceAccountCredentials": o.use_service_account_credentials,
            "RouteReconciliationPeriod": show_duration(o.route_reconciliation_period),
            "NodeMonitorPeriod": show_duration(o.node_monitor_period),
            "ClusterName": o.cluster_name,
            "ClusterCIDR": o.cluster_cidr,
            "AllocateNodeCIDRs": o.allocate_node_cidrs,
            "CIDRAllocatorType": o.cidr_allocator_type,
            "ConfigureCloudRoutes": o.configure_cloud_routes,
        },
        "DeploymentController": { "ConcurrentDeploymentSyncs": o.concurrent_deployment_syncs },
        "ReplicaSetController": { "ConcurrentRSSyncs": o.concurrent_replicaset_syncs },
        "ReplicationController": { "ConcurrentRCSyncs": o.concurrent_rc_syncs },
        "StatefulSetController": { "ConcurrentStatefulSetSyncs": o.concurrent_statefulset_syncs },
        "DaemonSetController": { "ConcurrentDaemonSetSyncs": o.concurrent_daemonset_syncs },
        "JobController": { "ConcurrentJobSyncs": o.concurrent_job_syncs },
        "CronJobController": { "ConcurrentCronJobSyncs": o.concurrent_cron_job_syncs },
        "EndpointController": {
            "ConcurrentEndpointSyncs": o.concurrent_endpoint_syncs,
            "EndpointUpdatesBatchPeriod": show_duration(o.endpoint_updates_batch_period),
        },
        "EndpointSliceController": {
            "ConcurrentServiceEndpointSyncs": o.concurrent_service_endpoint_syncs,
            "MaxEndpointsPerSlice": o.max_endpoints_per_slice,
            "EndpointUpdatesBatchPeriod": show_duration(o.endpointslice_updates_batch_period),
        },
        "GarbageCollectorController": {
            "EnableGarbageCollector": o.enable_garbage_collector,
            "ConcurrentGCSyncs": o.concurrent_gc_syncs,
        },
        "NamespaceController": {
            "NamespaceSyncPeriod": show_duration(o.namespace_sync_period),
            "ConcurrentNamespaceSyncs": o.concurrent_namespace_syncs,
        },
        "NodeIPAMController": {
            "ServiceCIDR": o.service_cluster_ip_range,
            "NodeCIDRMaskSize": o.node_cidr_mask_size,
            "NodeCIDRMaskSizeIPv4": o.node_cidr_mask_size_ipv4,
            "NodeCIDRMaskSizeIPv6": o.node_cidr_mask_size_ipv6,
        },
        "NodeLifecycleController": {
            "NodeEvictionRate": o.node_eviction_rate,
            "SecondaryNodeEvictionRate": o.secondary_node_eviction_rate,
            "NodeStartupGracePeriod": show_duration(o.node_startup_grace_period),
            "NodeMonitorGracePeriod": show_duration(o.node_monitor_grace_period),
            "LargeClusterSizeThreshold": o.large_cluster_size_threshold,
            "UnhealthyZoneThreshold": o.unhealthy_zone_threshold,
        },
        "PodGCController": { "TerminatedPodGCThreshold": o.terminated_pod_gc_threshold },
        "ResourceQuotaController": {
            "ResourceQuotaSyncPeriod": show_duration(o.resource_quota_sync_period),
            "ConcurrentResourceQuotaSyncs": o.concurrent_resource_quota_syncs,
        },
        "SAController": {
            "ServiceAccountKeyFile": o.service_account_private_key_file,
            "ConcurrentSATokenSyncs": o.concurrent_serviceaccount_token_syncs,
            "RootCAFile": o.root_ca_file,
        },
        "TTLAfterFinishedController": {
            "ConcurrentTTLSyncs": o.concurrent_ttl_after_finished_syncs,
        },
    });
    json!({ "kubecontrollermanager.config.k8s.io": configuration })
}
