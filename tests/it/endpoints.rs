//! Endpoints and EndpointSlices of Services.

use std::collections::BTreeSet;
use std::time::Duration;

use kube_controller_manager::client::{Delete, ListOptions};
use kube_controller_manager::clock::FakeClock;
use kube_controller_manager::objects::{
    Deployment, EndpointSlice, Endpoints, ObjectKey, Pod, Resource, ResourceType, Service,
};
use kube_controller_manager::task::spawn;
use sandbox::faults::Fault;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::env::*;

fn service(name: &str, spec: Value) -> Value {
    let metadata = json!({"name": name, "namespace": "default", "labels": {"team": "x"}});
    json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec})
}

/// A Deployment whose container calls port 8080 `web`.
fn with_port(name: &str, replicas: i32, behavior: &str) -> Value {
    let mut deployment = deployment(name, replicas, "web:1");
    let template = &mut deployment["spec"]["template"];
    template["metadata"]["annotations"] = json!({"sandbox/behavior": behavior});
    template["spec"]["containers"][0]["ports"] = json!([{"name": "web", "containerPort": 8080}]);
    deployment
}

type Addresses = BTreeSet<String>;

/// The ready addresses, the others, and the ports in a Service's Endpoints or slices.
#[derive(Clone, Debug, Default, PartialEq)]
struct Shown {
    ready: Addresses,
    not_ready: Addresses,
    ports: BTreeSet<i32>,
}

async fn get<T: Resource + DeserializeOwned>(env: &TestCluster, name: &str) -> Result<T, String> {
    env.client.get(&ObjectKey::new("default", name)).await.map_err(|error| error.to_string())
}

async fn in_endpoints(env: &TestCluster, name: &str) -> Result<Shown, String> {
    let endpoints: Endpoints = get(env, name).await?;
    let mut shown = Shown::default();
    for subset in &endpoints.subsets {
        shown.ready.extend(subset.addresses.iter().map(|address| address.ip.to_string()));
        let not_ready = subset.not_ready_addresses.iter();
        shown.not_ready.extend(not_ready.map(|address| address.ip.to_string()));
        shown.ports.extend(subset.ports.iter().map(|port| port.port));
    }
    Ok(shown)
}

async fn slices(env: &TestCluster, name: &str) -> Vec<EndpointSlice> {
    let mut slices: Vec<EndpointSlice> = list(&env.client).await;
    slices.retain(|slice| slice.meta.labels.get("kubernetes.io/service-name") == Some(name));
    slices
}

fn in_slices(slices: &[EndpointSlice]) -> Shown {
    let mut shown = Shown::default();
    for slice in slices {
        for endpoint in &slice.endpoints {
            let of = if endpoint.is_ready() { &mut shown.ready } else { &mut shown.not_ready };
            of.extend(endpoint.addresses.iter().map(|address| address.to_string()));
        }
        shown.ports.extend(slice.ports.iter().filter_map(|port| port.port));
    }
    shown
}

/// Waits until both show exactly this. Returns the slices.
async fn shows(env: &TestCluster, name: &str, wanted: &Shown) -> Vec<EndpointSlice> {
    eventually(&env.clock, &format!("{name} shows {wanted:?}"), || async {
        let (endpoints, slices) = (in_endpoints(env, name).await?, slices(env, name).await);
        let found = in_slices(&slices);
        if endpoints == *wanted && found == *wanted {
            return Ok(slices);
        }
        Err(format!("Endpoints: {endpoints:?}, slices: {found:?}"))
    })
    .await
}

async fn pods_of(env: &TestCluster, app: &str) -> Addresses {
    let pods: Vec<Pod> = list(&env.client).await;
    let of_app = pods.iter().filter(|pod| pod.meta.labels.get("app") == Some(app));
    of_app
        .filter(|pod| pod.is_active())
        .map(|pod| pod.ips().next().expect("an address").to_string())
        .collect()
}

async fn nothing_left(env: &TestCluster, name: &str) {
    eventually(&env.clock, "Endpoints and slices go with their Service", || async {
        let slices = slices(env, name).await.len();
        match env.client.get::<Endpoints>(&ObjectKey::new("default", name)).await {
            Err(error) if error.is_not_found() && slices == 0 => Ok(()),
            other => Err(format!("{slices} slices, {other:?}")),
        }
    })
    .await;
}

#[test]
fn ready_addresses_follow_the_pods() {
    everywhere("endpoints", async |env| {
        let _manager = env.manager("manager", &["--max-endpoints-per-slice=2"]);
        let (client, clock) = (&env.client, &env.clock);
        let spec = json!({
            "selector": {"app": "web"},
            "ports": [{"name": "http", "port": 80, "targetPort": "web"}],
        });
        let made = create(client, service("web", spec)).await;
        eventually(clock, "there is a slice of no pods", || async {
            let slices = slices(env, "web").await;
            let trigger = "endpoints.kubernetes.io/last-change-trigger-time";
            let marked = |slice: &EndpointSlice| slice.meta.annotations.contains_key(trigger);
            let placeholder = slices.len() == 1 && slices.iter().all(marked);
            if placeholder { Ok(()) } else { Err(format!("{slices:?}")) }
        })
        .await;
        shows(env, "web", &Shown::default()).await;

        create(client, with_port("web", 3, "ready")).await;
        for replicas in [3, 5, 1] {
            let scale = json!({"spec": {"replicas": replicas}});
            merge::<Deployment>(client, "web", scale).await;
            rolled_out(client, clock, "web").await;
            let wanted = Shown {
                ready: pods_of(env, "web").await,
                not_ready: Addresses::new(),
                ports: [8080].into(),
            };
            assert_eq!(wanted.ready.len(), replicas as usize);
            let slices = shows(env, "web", &wanted).await;
            assert!(slices.iter().all(|slice| slice.endpoints.len() <= 2), "{slices:?}");
            for slice in &slices {
                let labels = &slice.meta.labels;
                assert_eq!(
                    labels.get("endpointslice.kubernetes.io/managed-by"),
                    Some("endpointslice-controller.k8s.io")
                );
                assert_eq!((labels.get("team"), &*slice.address_type), (Some("x"), "IPv4"));
                let owner = slice.meta.controller().expect("a controller");
                assert_eq!(owner.uid.to_string(), made["metadata"]["uid"]);
            }
        }
        let pods: Vec<Pod> = list(client).await;
        let endpoints: Endpoints = get(env, "web").await.unwrap();
        let target = endpoints.subsets[0].addresses[0].target_ref.as_ref().unwrap();
        let pod = pods.iter().find(|pod| pod.is_active()).expect("one is left");
        assert_eq!((&*target.kind, &target.uid), ("Pod", &pod.meta.uid));
        assert_eq!(endpoints.meta.labels.get("team"), Some("x"));

        // Labels of the Service are copied to its Endpoints and slices.
        let label = json!({"metadata": {"labels": {"team": "y"}}});
        merge::<Service>(client, "web", label).await;
        eventually(clock, "labels follow", || async {
            let endpoints: Endpoints = get(env, "web").await?;
            let slices = slices(env, "web").await;
            let team = |labels: &kube_controller_manager::objects::Labels| {
                labels.get("team").map(str::to_owned)
            };
            let found = (team(&endpoints.meta.labels), team(&slices[0].meta.labels));
            let y = || Some("y".to_owned());
            if found == (y(), y()) { Ok(()) } else { Err(format!("{found:?}")) }
        })
        .await;

        client.delete::<Service>(&ObjectKey::new("default", "web"), Delete::new()).await.unwrap();
        nothing_left(env, "web").await;
    });
}

#[test]
fn unready_pods_are_published_on_request() {
    everywhere("publish", async |env| {
        let _manager = env.manager("manager", &[]);
        let client = &env.client;
        let spec = |published: bool| {
            json!({
                "selector": {"app": "slow"}, "publishNotReadyAddresses": published,
                "clusterIP": if published { "None" } else { "" },
                "ports": [{"port": 80, "targetPort": 9090}],
            })
        };
        create(client, service("plain", spec(false))).await;
        create(client, service("published", spec(true))).await;
        create(client, with_port("slow", 2, "never-ready")).await;
        let addresses = eventually(&env.clock, "the pods run", || async {
            let pods: Vec<Pod> = list(client).await;
            let with_address = pods.iter().filter(|pod| pod.ips().next().is_some()).count();
            if with_address < 2 {
                return Err(format!("{with_address} with an address"));
            }
            Ok(pods_of(env, "slow").await)
        })
        .await;
        let not_ready =
            Shown { not_ready: addresses.clone(), ports: [9090].into(), ..Shown::default() };
        shows(env, "plain", &not_ready).await;
        let ready = Shown { ready: addresses, ports: [9090].into(), ..Shown::default() };
        let slices = shows(env, "published", &ready).await;
        assert!(slices[0].meta.labels.contains_key("service.kubernetes.io/headless"));
        assert!(slices[0].endpoints.iter().all(|e| e.conditions.serving == Some(false)));
    });
}

#[test]
fn endpoints_and_slices_that_somebody_edits_are_put_right() {
    everywhere("edited", async |env| {
        let _manager = env.manager("manager", &[]);
        let client = &env.client;
        let spec = json!({ "selector": { "app": "web" }, "ports": [{ "port": 8080 }] });
        create(client, service("web", spec)).await;
        create(client, with_port("web", 2, "ready")).await;
        rolled_out(client, &env.clock, "web").await;
        let ready = pods_of(env, "web").await;
        let wanted = Shown { ready, ports: [8080].into(), ..Shown::default() };
        let slice = shows(env, "web", &wanted).await.remove(0);
        // Endpoints without a Service are their user's.
        let subsets =
            |ip: &str| json!([{ "addresses": [{ "ip": ip }], "ports": [{ "port": 8080 }] }]);
        let metadata = json!({ "name": "free", "namespace": "default" });
        let free = json!({
            "apiVersion": "v1", "kind": "Endpoints", "metadata": metadata,
            "subsets": subsets("192.0.2.1"),
        });
        let all = client.resource(&Endpoints::RESOURCE);
        all.create::<Value>("default", &free).await.expect("free Endpoints");
        merge::<Endpoints>(client, "free", json!({ "subsets": subsets("192.0.2.2") })).await;

        for edit in [json!([]), subsets("192.0.2.3")] {
            merge::<Endpoints>(client, "web", json!({ "subsets": edit })).await;
            merge::<EndpointSlice>(client, &slice.meta.name, json!({ "endpoints": [] })).await;
            shows(env, "web", &wanted).await;
        }
        let label = json!({ "metadata": { "labels": { "team": "y" } } });
        merge::<Endpoints>(client, "web", label).await;
        eventually(&env.clock, "the label is put right", || async {
            let labels = get::<Endpoints>(env, "web").await?.meta.labels;
            if labels.get("team") == Some("x") { Ok(()) } else { Err(format!("{labels:?}")) }
        })
        .await;
        let free = in_endpoints(env, "free").await.expect("they stay");
        assert_eq!(free.ready, ["192.0.2.2".to_owned()].into());
    });
}

#[test]
fn endpoints_of_a_service_without_a_selector_are_mirrored() {
    everywhere("mirror", async |env| {
        let _manager = env.manager("manager", &[]);
        let client = &env.client;
        create(client, service("outside", json!({"ports": [{"port": 80}]}))).await;
        let subsets = |ready: &[&str], not_ready: &[&str]| {
            let of = |ips: &[&str]| ips.iter().map(|ip| json!({"ip": ip})).collect::<Vec<_>>();
            json!([{
                "addresses": of(ready), "notReadyAddresses": of(not_ready),
                "ports": [{"port": 443}],
            }])
        };
        // The plural of this kind is the kind's own name.
        let endpoints = json!({
            "apiVersion": "v1", "kind": "Endpoints",
            "metadata": {
                "name": "outside", "namespace": "default", "labels": {"kept": "yes"},
                "annotations": {"kept": "too"},
            },
            "subsets": subsets(&["192.0.2.7"], &["192.0.2.8"]),
        });
        let _: Value =
            client.resource(&Endpoints::RESOURCE).create("default", &endpoints).await.unwrap();
        let shown = |ready: &[&str], not_ready: &[&str]| Shown {
            ready: ready.iter().map(|ip| ip.to_string()).collect(),
            not_ready: not_ready.iter().map(|ip| ip.to_string()).collect(),
            ports: [443].into(),
        };
        let slices = shows(env, "outside", &shown(&["192.0.2.7"], &["192.0.2.8"])).await;
        let meta = &slices[0].meta;
        assert_eq!(
            meta.labels.get("endpointslice.kubernetes.io/managed-by"),
            Some("endpointslicemirroring-controller.k8s.io")
        );
        assert_eq!(
            (meta.labels.get("kept"), meta.annotations.get("kept")),
            (Some("yes"), Some("too"))
        );
        assert_eq!(&*meta.controller().expect("a controller").kind, "Endpoints");

        let patch = json!({"subsets": subsets(&["192.0.2.8", "192.0.2.9"], &[])});
        merge::<Endpoints>(client, "outside", patch).await;
        let slices = shows(env, "outside", &shown(&["192.0.2.8", "192.0.2.9"], &[])).await;
        assert_eq!((slices.len(), &slices[0].meta.name), (1, &meta.name), "changed in place");

        let key = ObjectKey::new("default", "outside");
        client.delete::<Service>(&key, Delete::new()).await.unwrap();
        nothing_left(env, "outside").await;
    });
}

#[test]
fn a_sync_neither_computes_nor_writes_while_its_cache_lags_and_retries_ever_later() {
    Env::run("lagging", async |env| {
        lagging(env, "endpoints-controller", &Endpoints::RESOURCE).await;
        lagging(env, "endpointslice-controller", &EndpointSlice::RESOURCE).await;
    });
}

/// Runs a controller whose watch of `resource`, which it also writes, gets no events for a minute.
async fn lagging(env: &Env, controller: &str, resource: &ResourceType) {
    let clock = FakeClock::new(env.clock.now());
    let InProcess { cx, factory, stop } = InProcess::new(env, clock.clone(), env.options());
    let controller = controller_of(controller, &cx);
    let watcher = controller.watcher();
    factory.start(&stop);
    let ran = spawn(controller.run(stop.clone()));
    let (faults, plural) = (env.cluster.sandbox.faults(), &*resource.plural);
    let writes = || ["create", "update", "patch", "delete"].map(|verb| faults.count(verb, plural));
    let written = async || -> Result<Value, String> {
        let all = env.client.resource(resource);
        let all = all.list::<Value>(Some("default"), &ListOptions::default()).await;
        let all = all.map_err(|error| error.to_string())?.items;
        let of =
            |object: &Value| object["metadata"]["name"].as_str().map(|n| n.starts_with(plural));
        all.into_iter().find(|object| of(object) == Some(true)).ok_or("none".to_owned())
    };
    let version = |object: &Value| object["metadata"]["resourceVersion"].clone();
    let spec = json!({ "selector": { "app": plural }, "ports": [{ "port": 80 }] });
    create(&env.client, service(plural, spec)).await;
    // Timers of waiting work expire.
    let passes = || clock.advance(Duration::from_millis(100));
    let cached = || {
        let all = factory.status().into_iter();
        all.filter(|informer| informer.scope.resource == *resource).map(|i| i.version).max()
    };
    let empty = eventually(&env.clock, "the service has an object, and the cache too", || async {
        passes();
        let object = written().await?;
        let written = version(&object).as_str().and_then(|version| version.parse().ok());
        if cached() >= written { Ok(object) } else { Err(format!("{:?}: {object}", cached())) }
    })
    .await;

    let watches = faults.count("watch", plural);
    faults.next(usize::MAX, "watch", plural, Fault::Hold);
    faults.cut_watches();
    eventually(&env.clock, "the watch is silent", || async {
        passes();
        let count = faults.count("watch", plural);
        if count > watches { Ok(()) } else { Err(count.to_string()) }
    })
    .await;
    let pod = async |name: &str| {
        let name = format!("{plural}-{name}");
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": name, "namespace": "default", "labels": { "app": plural } },
            "spec": { "containers": [{ "name": "main", "image": "web:1" }] },
        });
        create(&env.client, pod).await;
        eventually(&env.clock, &format!("{name} is ready"), || async {
            let pod: Pod = get(env, &name).await?;
            if pod.is_ready() { Ok(()) } else { Err(format!("{:?}", pod.status)) }
        })
        .await;
        name
    };
    let first = pod("first").await;
    let shown = eventually(&env.clock, "the first pod is written", || async {
        passes();
        let object = written().await?;
        if version(&object) == version(&empty) { Err(object.to_string()) } else { Ok(object) }
    })
    .await;
    assert!(shown.to_string().contains(&first), "{shown}");
    let before = writes();
    let second = pod("second").await;
    // Each sync from now on finds that its cache lags, and writes nothing.
    let syncs = || watcher.status().queues[0].syncs;
    let at_first = syncs();
    for _ in 0..300 {
        clock.advance(Duration::from_millis(200));
        env.clock.sleep(Duration::from_millis(2)).await;
    }
    // 100 ms, doubled to 5 s.
    let in_a_minute = syncs() - at_first;
    assert!(in_a_minute < 20, "{in_a_minute} syncs in a minute");
    eventually(&env.clock, "the service is synced again and again", || async {
        clock.advance(Duration::from_secs(5));
        let count = syncs() - at_first;
        if count >= 5 { Ok(()) } else { Err(count.to_string()) }
    })
    .await;
    assert_eq!(writes(), before);

    faults.clear();
    let all = eventually(&env.clock, "the second pod is written", || async {
        clock.advance(Duration::from_secs(1));
        let object = written().await?;
        if object.to_string().contains(&second) { Ok(object) } else { Err(object.to_string()) }
    })
    .await;
    // It is computed with the first sync that sees a change, and then not again.
    let changed =
        &all["metadata"]["annotations"]["endpoints.kubernetes.io/last-change-trigger-time"];
    assert!(changed.is_string(), "a sync on an old cache has computed: {all}");
    stop.stop();
    ran.await;
    factory.shutdown().await;
}
