//! The table of flags. Upstream: `CloudControllerManagerOptions.Flags`.

use std::net::IpAddr;
use std::time::Duration;

use kube_controller_manager::options::{
    CertKeys, Count, Gates, Level, Quantity, Version, Vmodule, flag_table,
};

use super::CloudOptions;

flag_table! {
    CloudOptions;
    "Debugging" {
        /// Accepted; no effect here.
        contention_profiling: bool => shared.contention_profiling;
        /// Serve profiles under /debug/pprof/.
        profiling: bool => shared.profiling;
    }
    "Leader-migration" {
        /// Take a second lease for the controllers that migrate to another manager.
        enable_leader_migration: bool => shared.enable_leader_migration;
        /// File with the LeaderMigrationConfiguration; empty: the default one.
        leader_migration_config: String => shared.leader_migration_config;
    }
    "Generic" {
        /// Give each Node a range of Pod addresses. Needs --cluster-cidr.
        allocate_node_cidrs: bool => shared.allocate_node_cidrs;
        /// Use cloud instances without a cluster-id.
        allow_untagged_cloud: bool => shared.allow_untagged_cloud;
        /// How Pod ranges are chosen: "RangeAllocator" alone.
        cidr_allocator_type: String => shared.cidr_allocator_type;
        /// File with the cloud provider's settings.
        cloud_config: String => shared.cloud_config;
        /// The cloud provider.
        cloud_provider: String => shared.cloud_provider;
        /// Ranges of Pod addresses, at most one a family.
        cluster_cidr: String => shared.cluster_cidr;
        /// The cluster's name, as cloud resources carry it.
        cluster_name: String => shared.cluster_name;
        /// Have the cloud route the ranges given by --allocate-node-cidrs.
        configure_cloud_routes: bool => shared.configure_cloud_routes;
        /// Time between the starts of two controllers.
        controller_start_interval: Duration => shared.controller_start_interval;
        /// Controllers to run: '*' those on by default, 'foo' also foo, '-foo' all but foo.
        controllers: Vec<String> => shared.controllers;
        /// Accepted; no effect here.
        external_cloud_volume_plugin: String => shared.external_cloud_volume_plugin;
        /// Feature gates: key=value pairs such as GateA=true,kube:GateB=false.
        feature_gates: Gates => shared.feature_gates;
        /// Requests that may go to the API server at once, above --kube-api-qps.
        kube_api_burst: i32 => shared.kube_api_burst;
        /// What objects' metadata are asked for in; all else is JSON.
        kube_api_content_type: String => shared.kube_api_content_type;
        /// Requests a second to the API server; below 0: no limit.
        kube_api_qps: f32 => shared.kube_api_qps;
        /// Work only while holding the lease, so that several replicas can run.
        leader_elect: bool => shared.leader_elect;
        /// How long a lease that is not renewed is left to its holder.
        leader_elect_lease_duration: Duration => shared.leader_elect_lease_duration;
        /// How long the leader tries to renew before it gives up.
        leader_elect_renew_deadline: Duration => shared.leader_elect_renew_deadline;
        /// Kind of the lock: 'leases'.
        leader_elect_resource_lock: String => shared.leader_elect_resource_lock;
        /// Name of the lease.
        leader_elect_resource_name: String => shared.leader_elect_resource_name;
        /// Namespace of the lease.
        leader_elect_resource_namespace: String => shared.leader_elect_resource_namespace;
        /// Time between two tries to take or to renew the lease.
        leader_elect_retry_period: Duration => shared.leader_elect_retry_period;
        /// Informers resync after a random time between this and twice this.
        min_resync_period: Duration => shared.min_resync_period;
        /// How often machines of Nodes that are not ready are looked for in the cloud.
        node_monitor_period: Duration => shared.node_monitor_period;
        /// How often Nodes are synced.
        node_sync_period: Duration => shared.node_sync_period;
        /// How often routes to Nodes are reconciled.
        route_reconciliation_period: Duration => shared.route_reconciliation_period;
        /// Run each controller under a service account of its own.
        use_service_account_credentials: bool => shared.use_service_account_credentials;
    }
    "Cloud-node-controller" {
        /// Statuses of Nodes that are updated at once; 0: as --concurrent-node-syncs.
        concurrent_node_status_updates: i32 => concurrent_node_status_updates;
        /// Nodes that are initialized at once.
        concurrent_node_syncs: i32 => concurrent_node_syncs;
    }
    "Cloud-node-lifecycle-controller" {
        /// Nodes that are checked at once.
        concurrent_node_lifecycle_syncs: i32 => concurrent_node_lifecycle_syncs;
    }
    "Service-lb-controller" {
        /// Services that are worked on at once.
        concurrent_service_syncs: Count => shared.concurrent_service_syncs;
    }
    "Webhook" {
        /// Webhooks to run. No provider has one.
        webhooks: Vec<String> => webhook.names;
    }
    "Webhook serving" {
        /// Address of the port for webhooks.
        webhook_bind_address: IpAddr => webhook.bind_address;
        /// Directory for a self-signed certificate of the webhooks.
        webhook_cert_dir: String => webhook.cert_dir;
        /// Never serve webhooks by HTTP/2.
        webhook_disable_http2_serving: bool => webhook.disable_http2_serving;
        /// Port of the webhooks; 0: none.
        webhook_secure_port: i32 => webhook.secure_port;
        /// Serving certificate of the webhooks, with its chain, in PEM.
        webhook_tls_cert_file: String => webhook.tls_cert_file;
        /// Cipher suites of the webhooks, by their Go names.
        webhook_tls_cipher_suites: Vec<String> => webhook.tls_cipher_suites;
        /// Key exchanges of the webhooks, by their Go CurveID.
        webhook_tls_curve_preferences: Vec<i32> => webhook.tls_curve_preferences;
        /// Oldest version of TLS of the webhooks.
        webhook_tls_min_version: String => webhook.tls_min_version;
        /// Key of --webhook-tls-cert-file, in PEM.
        webhook_tls_private_key_file: String => webhook.tls_private_key_file;
        /// Certificate and key of the webhooks for some names.
        webhook_tls_sni_cert_key: CertKeys => webhook.tls_sni_cert_key;
    }
    "Secure serving" {
        /// Address of the secure port; unspecified (0.0.0.0 or ::): all interfaces.
        bind_address: IpAddr => shared.bind_address;
        /// Directory for a self-signed certificate; empty: it is kept in memory.
        cert_dir: String => shared.cert_dir;
        /// Never serve HTTP/2. This build serves HTTP/1.1 alone.
        disable_http2_serving: bool => shared.disable_http2_serving;
        /// Limit of streams in a HTTP/2 connection; 0: the default.
        http2_max_streams_per_connection: i32 => shared.http2_max_streams_per_connection;
        /// Bind with SO_REUSEADDR.
        permit_address_sharing: bool => shared.permit_address_sharing;
        /// Bind with SO_REUSEPORT.
        permit_port_sharing: bool => shared.permit_port_sharing;
        /// Port of the HTTPS server; 0: none.
        secure_port: i32 => shared.secure_port;
        /// Serving certificate, with its chain, in PEM.
        tls_cert_file: String => shared.tls_cert_file;
        /// Cipher suites to serve with, by their Go names; empty: the default ones.
        tls_cipher_suites: Vec<String> => shared.tls_cipher_suites;
        /// Key exchanges to serve with, by their Go CurveID; empty: the default ones.
        tls_curve_preferences: Vec<i32> => shared.tls_curve_preferences;
        /// Oldest version of TLS to serve: VersionTLS10 to VersionTLS13.
        tls_min_version: String => shared.tls_min_version;
        /// Key of --tls-cert-file, in PEM.
        tls_private_key_file: String => shared.tls_private_key_file;
        /// Certificate and key for some names: cert,key or cert,key:name1,name2.
        tls_sni_cert_key: CertKeys => shared.tls_sni_cert_key;
    }
    "Authentication" {
        /// Kubeconfig with which tokens are reviewed; empty: the Pod's own, else tokens count as
        /// anonymous.
        authentication_kubeconfig: String => shared.authentication_kubeconfig;
        /// Don't read missing authentication settings from the cluster.
        authentication_skip_lookup: bool => shared.authentication_skip_lookup;
        /// How long an answer about a token is kept.
        authentication_token_webhook_cache_ttl: Duration =>
            shared.authentication_token_webhook_cache_ttl;
        /// Continue when authentication settings cannot be read from the cluster.
        authentication_tolerate_lookup_failure: bool =>
            shared.authentication_tolerate_lookup_failure;
        /// Authorities whose client certificates authenticate by their common name.
        client_ca_file: String => shared.client_ca_file;
        /// Common names of proxies that may name users in headers; empty: any.
        requestheader_allowed_names: Vec<String> => shared.requestheader_allowed_names;
        /// Authorities of the proxies that may name users in headers.
        requestheader_client_ca_file: String => shared.requestheader_client_ca_file;
        /// Prefixes of headers with extra data of a user.
        requestheader_extra_headers_prefix: Vec<String> =>
            shared.requestheader_extra_headers_prefix;
        /// Headers with a user's groups.
        requestheader_group_headers: Vec<String> => shared.requestheader_group_headers;
        /// Headers with a user's uid.
        requestheader_uid_headers: Vec<String> => shared.requestheader_uid_headers;
        /// Headers with a user's name.
        requestheader_username_headers: Vec<String> => shared.requestheader_username_headers;
    }
    "Authorization" {
        /// Paths that need no authorization.
        authorization_always_allow_paths: Vec<String> => shared.authorization_always_allow_paths;
        /// Kubeconfig with which access is reviewed; empty: the Pod's own, else it is refused.
        authorization_kubeconfig: String => shared.authorization_kubeconfig;
        /// How long a yes is kept.
        authorization_webhook_cache_authorized_ttl: Duration =>
            shared.authorization_webhook_cache_authorized_ttl;
        /// How long a no is kept.
        authorization_webhook_cache_unauthorized_ttl: Duration =>
            shared.authorization_webhook_cache_unauthorized_ttl;
    }
    "Node-ipam-controller" {
        /// Mask size of a Node's range; 0: 24 for IPv4, 64 for IPv6.
        node_cidr_mask_size: i32 => shared.node_cidr_mask_size;
        /// Mask size of a Node's IPv4 range in a dual-stack cluster; 0: 24.
        node_cidr_mask_size_ipv4: i32 => shared.node_cidr_mask_size_ipv4;
        /// Mask size of a Node's IPv6 range in a dual-stack cluster; 0: 64.
        node_cidr_mask_size_ipv6: i32 => shared.node_cidr_mask_size_ipv6;
        /// Ranges of Service addresses, at most two. Used with --allocate-node-cidrs.
        service_cluster_ip_range: String => shared.service_cluster_ip_range;
    }
    "Logs" {
        /// Longest time between two flushes of the log.
        log_flush_frequency: Duration => shared.log_flush_frequency;
        /// Bytes of info messages that are buffered in JSON format with split streams.
        log_json_info_buffer_size: Quantity => shared.log_json_info_buffer_size;
        /// In JSON format, write errors to stderr and the rest to stdout.
        log_json_split_stream: bool => shared.log_json_split_stream;
        /// Bytes of info messages that are buffered in text format with split streams.
        log_text_info_buffer_size: Quantity => shared.log_text_info_buffer_size;
        /// In text format, write errors to stderr and the rest to stdout.
        log_text_split_stream: bool => shared.log_text_split_stream;
        /// Format of the log: "text" or "json".
        logging_format: String => shared.logging_format;
        /// Verbosity of the log: 0 to 10.
        v: Level => shared.v;
        /// Verbosity by file: pattern=N,...
        vmodule: Vmodule => shared.vmodule;
    }
    "Misc" {
        /// Kubeconfig of the API server. Without it and --master: the Pod's own service account.
        kubeconfig: String => shared.kubeconfig;
        /// Address of the API server, before what the kubeconfig says.
        master: String => shared.master;
        /// How often the addresses of Nodes are brought up to date.
        node_status_update_frequency: Duration => node_status_update_frequency;
    }
    "Global" {
        /// Print the version and quit; "raw" prints all of it.
        version: Version => shared.version;
    }
}
