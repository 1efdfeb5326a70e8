//! /configz: the flags in the shape of `KubeControllerManagerConfiguration`.
//! Upstream: `kube-controller-manager/config/v1alpha1`.

use std::time::Duration;

use serde_json::{Value, json};

use super::controller_table::{CONTROLLERS, DISRUPTION_SECTION, Descriptor, canonical};
use super::leader_migration::LeaderMigration;
use crate::options::{Options, Release, show_duration};

/// Returns the content of `/configz`, with the migration of `--enable-leader-migration`.
pub fn content(o: &Options, migration: Option<&LeaderMigration>, release: Release) -> Value {
    let mut configuration = serde_json::Map::new();
    configuration.insert("kind".into(), "KubeControllerManagerConfiguration".into());
    let version = "kubecontrollermanager.config.k8s.io/v1alpha1";
    configuration.insert("apiVersion".into(), version.into());
    configuration.insert("DeprecatedController".into(), json!({}));
    for part in [shared(CONTROLLERS, o, migration), volumes_and_certificates(o), controllers(o)] {
        if let Value::Object(part) = part {
            configuration.extend(part);
        }
    }
    for row in CONTROLLERS {
        let Some((section, member)) = row.configured_workers else { continue };
        if section == DISRUPTION_SECTION && release < Release::V1_37 {
            continue;
        }
        let section = configuration.entry(section).or_insert_with(|| json!({}));
        section[member] = row.profile.workers.resolve(o).into();
    }
    if release >= Release::V1_37 {
        // Moved there from what the managers share.
        let shared = configuration.get_mut("KubeCloudShared").and_then(Value::as_object_mut);
        let period = shared.and_then(|shared| shared.remove("NodeMonitorPeriod"));
        configuration["NodeLifecycleController"]["NodeMonitorPeriod"] = period.into();
        // No flag is for it any more.
        configuration["ServiceController"]["ConcurrentServiceSyncs"] = 0.into();
    }
    json!({ "kubecontrollermanager.config.k8s.io": configuration })
}

fn time(duration: Duration) -> String {
    show_duration(duration)
}

/// Returns the shortest number that parses to the same 32 bits: 0.55, not 0.550000011920929.
fn shortest(number: f32) -> Value {
    number.to_string().parse::<f64>().map_or(Value::Null, Value::from)
}

/// Returns the sections of `/configz` that all managers have in common. `table`: the manager's
/// controllers.
pub fn shared(table: &[Descriptor], o: &Options, migration: Option<&LeaderMigration>) -> Value {
    json!({
        "Generic": {
            "Port": 0,
            // As upstream, the configuration does not contain --bind-address.
            "Address": "0.0.0.0",
            "MinResyncPeriod": time(o.min_resync_period),
            "ClientConnection": {
                "kubeconfig": o.kubeconfig,
                "acceptContentTypes": "",
                "contentType": o.kube_api_content_type,
                "qps": shortest(o.kube_api_qps),
                "burst": o.kube_api_burst,
            },
            "ControllerStartInterval": time(o.controller_start_interval),
            "LeaderElection": {
                "leaderElect": o.leader_elect,
                "leaseDuration": time(o.leader_elect_lease_duration),
                "renewDeadline": time(o.leader_elect_renew_deadline),
                "retryPeriod": time(o.leader_elect_retry_period),
                "resourceLock": o.leader_elect_resource_lock,
                "resourceName": o.leader_elect_resource_name,
                "resourceNamespace": o.leader_elect_resource_namespace,
            },
            "Controllers": canonical(table, &o.controllers),
            "Debugging": {
                "enableProfiling": o.profiling,
                "enableContentionProfiling": o.contention_profiling,
            },
            "LeaderMigrationEnabled": o.enable_leader_migration,
            "LeaderMigration": match migration {
                Some(migration) => migration.configz(),
                None => json!({ "leaderName": "", "resourceLock": "", "controllerLeaders": null }),
            },
        },
        "KubeCloudShared": {
            "CloudProvider": { "Name": o.cloud_provider, "CloudConfigFile": o.cloud_config },
            "ExternalCloudVolumePlugin": o.external_cloud_volume_plugin,
            "UseServiceAccountCredentials": o.use_service_account_credentials,
            "AllowUntaggedCloud": o.allow_untagged_cloud,
            "RouteReconciliationPeriod": time(o.route_reconciliation_period),
            "NodeMonitorPeriod": time(o.node_monitor_period),
            "ClusterName": o.cluster_name,
            "ClusterCIDR": o.cluster_cidr,
            "AllocateNodeCIDRs": o.allocate_node_cidrs,
            "CIDRAllocatorType": o.cidr_allocator_type,
            "ConfigureCloudRoutes": o.configure_cloud_routes,
            "NodeSyncPeriod": time(o.node_sync_period),
        },
    })
}

/// Returns the sections of `/configz` about volumes, signing and service accounts.
fn volumes_and_certificates(o: &Options) -> Value {
    let signer = |cert: &str, key: &str| json!({ "CertFile": cert, "KeyFile": key });
    json!({
        "AttachDetachController": {
            "DisableAttachDetachReconcilerSync": o.disable_attach_detach_reconcile_sync,
            "ReconcilerSyncLoopPeriod": time(o.attach_detach_reconcile_sync_period),
            "disableForceDetachOnTimeout": o.disable_force_detach_on_timeout,
        },
        "CSRSigningController": {
            "ClusterSigningCertFile": o.cluster_signing_cert_file,
            "ClusterSigningKeyFile": o.cluster_signing_key_file,
            "KubeletServingSignerConfiguration": signer(
                &o.cluster_signing_kubelet_serving_cert_file,
                &o.cluster_signing_kubelet_serving_key_file,
            ),
            "KubeletClientSignerConfiguration": signer(
                &o.cluster_signing_kubelet_client_cert_file,
                &o.cluster_signing_kubelet_client_key_file,
            ),
            "KubeAPIServerClientSignerConfiguration": signer(
                &o.cluster_signing_kube_apiserver_client_cert_file,
                &o.cluster_signing_kube_apiserver_client_key_file,
            ),
            "LegacyUnknownSignerConfiguration": signer(
                &o.cluster_signing_legacy_unknown_cert_file,
                &o.cluster_signing_legacy_unknown_key_file,
            ),
            "ClusterSigningDuration": time(o.cluster_signing_duration),
        },
        "PersistentVolumeBinderController": {
            "PVClaimBinderSyncPeriod": time(o.pvclaimbinder_sync_period),
            "VolumeConfiguration": {
                "EnableHostPathProvisioning": o.enable_hostpath_provisioner,
                "EnableDynamicProvisioning": o.enable_dynamic_provisioning,
                "PersistentVolumeRecyclerConfiguration": {
                    "MaximumRetry": 3,
                    "MinimumTimeoutNFS": o.pv_recycler_minimum_timeout_nfs,
                    "PodTemplateFilePathNFS": o.pv_recycler_pod_template_filepath_nfs,
                    "IncrementTimeoutNFS": o.pv_recycler_increment_timeout_nfs,
                    "PodTemplateFilePathHostPath": o.pv_recycler_pod_template_filepath_hostpath,
                    "MinimumTimeoutHostPath": o.pv_recycler_minimum_timeout_hostpath,
                    "IncrementTimeoutHostPath": o.pv_recycler_timeout_increment_hostpath,
                },
                "FlexVolumePluginDir": o.flex_volume_plugin_dir,
            },
        },
        "SAController": {
            "ServiceAccountKeyFile": o.service_account_private_key_file,
            "RootCAFile": o.root_ca_file,
        },
        "LegacySATokenCleaner": {
            "CleanUpPeriod": time(o.legacy_service_account_token_clean_up_period),
        },
    })
}

/// Returns the sections of `/configz` of the other controllers of this manager.
fn controllers(o: &Options) -> Value {
    let (service, secondary) =
        o.service_cluster_ip_range.split_once(',').unwrap_or((&o.service_cluster_ip_range, ""));
    json!({
        "EndpointController": {
            "EndpointUpdatesBatchPeriod": time(o.endpoint_updates_batch_period),
        },
        "EndpointSliceController": {
            "MaxEndpointsPerSlice": o.max_endpoints_per_slice,
            "EndpointUpdatesBatchPeriod": time(o.endpointslice_updates_batch_period),
        },
        "EndpointSliceMirroringController": {
            "MirroringMaxEndpointsPerSubset": o.mirroring_max_endpoints_per_subset,
            "MirroringEndpointUpdatesBatchPeriod":
                time(o.mirroring_endpointslice_updates_batch_period),
        },
        "GarbageCollectorController": {
            "EnableGarbageCollector": o.enable_garbage_collector,
            "GCIgnoredResources": [
                { "Group": "", "Resource": "events" },
                { "Group": "events.k8s.io", "Resource": "events" },
            ],
        },
        "HPAController": {
            "HorizontalPodAutoscalerSyncPeriod": time(o.horizontal_pod_autoscaler_sync_period),
            "HorizontalPodAutoscalerDownscaleStabilizationWindow":
                time(o.horizontal_pod_autoscaler_downscale_stabilization),
            "HorizontalPodAutoscalerTolerance": o.horizontal_pod_autoscaler_tolerance,
            "HorizontalPodAutoscalerCPUInitializationPeriod":
                time(o.horizontal_pod_autoscaler_cpu_initialization_period),
            "HorizontalPodAutoscalerInitialReadinessDelay":
                time(o.horizontal_pod_autoscaler_initial_readiness_delay),
        },
        "NamespaceController": {
            "NamespaceSyncPeriod": time(o.namespace_sync_period),
        },
        "NodeIPAMController": {
            "ServiceCIDR": service,
            "SecondaryServiceCIDR": secondary,
            "NodeCIDRMaskSize": o.node_cidr_mask_size,
            "NodeCIDRMaskSizeIPv4": o.node_cidr_mask_size_ipv4,
            "NodeCIDRMaskSizeIPv6": o.node_cidr_mask_size_ipv6,
        },
        "NodeLifecycleController": {
            "NodeEvictionRate": shortest(o.node_eviction_rate),
            "SecondaryNodeEvictionRate": shortest(o.secondary_node_eviction_rate),
            "NodeStartupGracePeriod": time(o.node_startup_grace_period),
            "NodeMonitorGracePeriod": time(o.node_monitor_grace_period),
            "PodEvictionTimeout": "0s",
            "LargeClusterSizeThreshold": o.large_cluster_size_threshold,
            "UnhealthyZoneThreshold": shortest(o.unhealthy_zone_threshold),
        },
        "PodGCController": { "TerminatedPodGCThreshold": o.terminated_pod_gc_threshold },
        "ResourceQuotaController": {
            "ResourceQuotaSyncPeriod": time(o.resource_quota_sync_period),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Count;

    #[test]
    fn values_have_the_format_of_the_go_manager() {
        let mut options = Options::default();
        options.controllers.push("podgc".into());
        options.concurrent_replicaset_syncs = Count::new(7);
        options.service_cluster_ip_range = "10.0.0.0/16,fd00::/108".into();
        let whole = content(&options, None, Release::V1_36);
        let config = &whole["kubecontrollermanager.config.k8s.io"];
        for (pointer, expected) in [
            ("/Generic/LeaderElection/leaseDuration", json!("15s")),
            ("/Generic/Controllers", json!(["*", "pod-garbage-collector-controller"])),
            ("/Generic/LeaderMigration/controllerLeaders", Value::Null),
            ("/ReplicaSetController/ConcurrentRSSyncs", json!(7)),
            ("/ServiceController/ConcurrentServiceSyncs", json!(1)),
            ("/SAController/ConcurrentSATokenSyncs", json!(5)),
            ("/NodeLifecycleController/UnhealthyZoneThreshold", json!(0.55)),
            ("/NodeIPAMController/ServiceCIDR", json!("10.0.0.0/16")),
            ("/NodeIPAMController/SecondaryServiceCIDR", json!("fd00::/108")),
            ("/CSRSigningController/ClusterSigningDuration", json!("8760h0m0s")),
        ] {
            assert_eq!(config.pointer(pointer), Some(&expected), "{pointer}");
        }
    }

    /// Pull requests 140014, 137964 and 138002.
    #[test]
    fn members_of_1_37_are_one_more_one_elsewhere_and_one_without_its_flag() {
        let workers = "/DisruptionController/ConcurrentDisruptionSyncs";
        let before = "/KubeCloudShared/NodeMonitorPeriod";
        let period = "/NodeLifecycleController/NodeMonitorPeriod";
        let services = "/ServiceController/ConcurrentServiceSyncs";
        for (release, expected) in [
            (Release::V1_36, [None, Some(json!("5s")), None, Some(json!(2))]),
            (Release::V1_37, [Some(json!(3)), None, Some(json!("5s")), Some(json!(0))]),
        ] {
            let options = Options {
                concurrent_disruption_syncs: Count::new(3),
                concurrent_service_syncs: Count::new(2),
                ..Options::default()
            };
            let whole = content(&options, None, release);
            let config = &whole["kubecontrollermanager.config.k8s.io"];
            let found =
                [workers, before, period, services].map(|pointer| config.pointer(pointer).cloned());
            assert_eq!(found, expected, "{release}");
        }
    }
}
