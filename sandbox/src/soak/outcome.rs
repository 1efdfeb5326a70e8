//! What must hold in the end, when no fault has come for a while: each object is as its spec says.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use serde_json::Value;

use super::Result;
use super::workload::{
    ACCOUNTS, ATTACHMENTS, BUDGETS, CLAIMS, CONFIG_MAPS, CRON_JOBS, DAEMON_SETS, DEPLOYMENTS,
    ENDPOINTS, JOBS, KINDS, NAMESPACE, NAMESPACES, NODES, PODS_KIND, Part, QUOTAS, REPLICA_SETS,
    SERVICES, SLICES, STATEFUL_SETS, VOLUMES, namespace_name,
};
use crate::object::{is_deleting, list, text};
use kube_controller_manager::client::{Client, ListOptions};
use kube_controller_manager::objects::ResourceType;

const TRACKED: &str = "batch.kubernetes.io/job-tracking";

/// All objects of the observed kinds.
#[derive(Default)]
pub struct Snapshot {
    objects: BTreeMap<String, Vec<Value>>,
}

/// The differences to what the specs say.
struct Faults(Vec<String>);

impl Snapshot {
    /// Lists the objects of all observed kinds.
    pub async fn read(client: &Client) -> Result<Snapshot> {
        let mut snapshot = Snapshot::default();
        for kind in KINDS {
            let all = ListOptions::default();
            let found = client.resource(kind).list::<Value>(None, &all).await?;
            snapshot.objects.insert(kind.to_string(), found.items);
        }
        Ok(snapshot)
    }

    fn all(&self, kind: &ResourceType) -> &[Value] {
        self.objects.get(&kind.to_string()).map_or(&[], Vec::as_slice)
    }

    /// Returns the objects of this kind in the namespaces of the soak.
    fn of_soak(&self, kind: &ResourceType) -> impl Iterator<Item = &Value> {
        let is_ours = |it: &&Value| text(it, "/metadata/namespace").starts_with("soak-");
        self.all(kind).iter().filter(is_ours)
    }

    /// Returns the pods with this controller.
    fn pods_of<'a>(&'a self, owner: &'a Value) -> impl Iterator<Item = &'a Value> {
        let uid = text(owner, "/metadata/uid");
        self.of_soak(&PODS_KIND).filter(move |pod| is_controlled_by(pod, uid))
    }

    /// Lists what is not as it must be; one line for each object.
    pub fn faults(&self) -> Vec<String> {
        let mut faults = Faults(Vec::new());
        self.check_presence(&mut faults);
        self.check_references(&mut faults);
        self.check_deployments(&mut faults);
        self.check_stateful_sets(&mut faults);
        self.check_daemon_sets(&mut faults);
        self.check_jobs(&mut faults);
        self.check_endpoints(&mut faults);
        self.check_limits(&mut faults);
        self.check_volumes(&mut faults);
        faults.0
    }

    /// Checks that all parts are there, nothing is being deleted, no namespace lacks its account,
    /// and no node is tainted.
    fn check_presence(&self, faults: &mut Faults) {
        for (kind, objects) in &self.objects {
            for object in objects.iter().filter(|object| is_deleting(object)) {
                let finalizers = &object["metadata"]["finalizers"];
                faults.add(kind, object, format!("is being deleted, finalizers {finalizers}"));
            }
        }
        let has = |kind: &ResourceType, namespace: &str, name: &str| {
            self.all(kind).iter().any(|it| {
                text(it, "/metadata/namespace") == namespace && text(it, "/metadata/name") == name
            })
        };
        for namespace in (0..NAMESPACES).map(namespace_name) {
            let parts = Part::ALL.iter().map(|part| (part.resource(), part.name()));
            let made = [(&ACCOUNTS, "default"), (&CONFIG_MAPS, "kube-root-ca.crt")];
            for (kind, name) in parts.chain(made) {
                if !has(kind, &namespace, name) {
                    faults.0.push(format!("{kind} {namespace}/{name}: does not exist"));
                }
            }
        }
        for node in self.all(&NODES).iter().filter(|node| !list(node, "/spec/taints").is_empty()) {
            faults.add(&NODES, node, format!("has the taints {}", node["spec"]["taints"]));
        }
    }

    /// Checks that the namespace and all owners of each object exist.
    fn check_references(&self, faults: &mut Faults) {
        let uids: HashSet<&str> =
            self.objects.values().flatten().map(|it| text(it, "/metadata/uid")).collect();
        let namespaces: HashSet<&str> =
            self.all(&NAMESPACE).iter().map(|it| text(it, "/metadata/name")).collect();
        for (kind, objects) in &self.objects {
            for object in objects {
                let namespace = text(object, "/metadata/namespace");
                if !namespace.is_empty() && !namespaces.contains(namespace) {
                    faults.add(kind, object, "its namespace does not exist".to_owned());
                }
                let owners = list(object, "/metadata/ownerReferences").iter();
                for owner in owners.filter(|owner| !uids.contains(text(owner, "/uid"))) {
                    faults.add(kind, object, format!("its owner does not exist: {owner}"));
                }
            }
        }
    }

    /// Checks that ReplicaSets and Deployments have as many pods as they want, and say so in their
    /// status.
    fn check_deployments(&self, faults: &mut Faults) {
        for set in self.of_soak(&REPLICA_SETS) {
            let wanted = count(set, "/spec/replicas");
            let pods = self.pods_of(set).filter(|pod| is_ready(pod)).count() as i64;
            let kept = self.pods_of(set).count() as i64;
            let numbers = [pods, kept, count(set, "/status/replicas")];
            faults.expect(&REPLICA_SETS, set, &numbers, wanted);
            faults.expect_observed(&REPLICA_SETS, set);
        }
        for deployment in self.of_soak(&DEPLOYMENTS) {
            let wanted = count(deployment, "/spec/replicas");
            let status = |field: &str| count(deployment, &format!("/status/{field}"));
            let numbers =
                ["replicas", "updatedReplicas", "readyReplicas", "availableReplicas"].map(status);
            faults.expect(&DEPLOYMENTS, deployment, &numbers, wanted);
            faults.expect_observed(&DEPLOYMENTS, deployment);
            let uid = text(deployment, "/metadata/uid");
            let sets = self.of_soak(&REPLICA_SETS).filter(|set| is_controlled_by(set, uid));
            let live = sets.filter(|set| count(set, "/spec/replicas") > 0);
            let live: i64 = live.map(|set| count(set, "/spec/replicas")).sum();
            faults.expect(&DEPLOYMENTS, deployment, &[live], wanted);
        }
    }

    /// Checks that each StatefulSet has ready pods of exactly the wanted ordinals, and says so in
    /// its status.
    fn check_stateful_sets(&self, faults: &mut Faults) {
        for set in self.of_soak(&STATEFUL_SETS) {
            let wanted = count(set, "/spec/replicas");
            let names = self.pods_of(set).filter(|pod| is_ready(pod));
            let names: BTreeSet<&str> = names.map(|pod| text(pod, "/metadata/name")).collect();
            let expected: Vec<String> =
                (0..wanted).map(|n| format!("{}-{n}", text(set, "/metadata/name"))).collect();
            if !names.iter().eq(expected.iter()) {
                faults.add(&STATEFUL_SETS, set, format!("has the pods {names:?}"));
            }
            let status = |field: &str| count(set, &format!("/status/{field}"));
            let numbers =
                ["replicas", "readyReplicas", "availableReplicas", "updatedReplicas"].map(status);
            faults.expect(&STATEFUL_SETS, set, &numbers, wanted);
            faults.expect_observed(&STATEFUL_SETS, set);
        }
    }

    /// Checks that each DaemonSet has one ready pod on each node, and says so in its status.
    fn check_daemon_sets(&self, faults: &mut Faults) {
        let nodes = self.all(&NODES).len() as i64;
        for set in self.of_soak(&DAEMON_SETS) {
            let ready = self.pods_of(set).filter(|pod| is_ready(pod));
            let on: HashSet<&str> = ready.map(|pod| text(pod, "/spec/nodeName")).collect();
            let status = |field: &str| count(set, &format!("/status/{field}"));
            let [desired, current, ready, updated] = [
                "desiredNumberScheduled",
                "currentNumberScheduled",
                "numberReady",
                "updatedNumberScheduled",
            ]
            .map(status);
            let kept = self.pods_of(set).count() as i64;
            let numbers = [on.len() as i64, kept, desired, current, ready, updated];
            faults.expect(&DAEMON_SETS, set, &numbers, nodes);
            faults.expect_observed(&DAEMON_SETS, set);
        }
    }

    /// Checks that Jobs have finished with the numbers of their specs, and that no pod waits to be
    /// counted. The Jobs of a CronJob may run.
    fn check_jobs(&self, faults: &mut Faults) {
        let crons: HashMap<&str, &Value> =
            self.of_soak(&CRON_JOBS).map(|cron| (text(cron, "/metadata/uid"), cron)).collect();
        for job in self.of_soak(&JOBS) {
            let has = |name: &str| {
                let conditions = list(job, "/status/conditions");
                conditions.iter().any(|it| it["type"] == name && it["status"] == "True")
            };
            let status = |field: &str| count(job, &format!("/status/{field}"));
            let (done, failed) = (has("Complete"), has("Failed"));
            let is_of_cron = list(job, "/metadata/ownerReferences")
                .iter()
                .any(|owner| crons.contains_key(text(owner, "/uid")));
            if !done && !failed && is_of_cron {
                continue;
            }
            // Only Jobs whose pods fail on purpose have such a low limit.
            let may_fail = count(job, "/spec/backoffLimit") <= 1;
            let wanted = count(job, "/spec/completions");
            let succeeded =
                self.pods_of(job).filter(|pod| text(pod, "/status/phase") == "Succeeded");
            let is_right = match (done, failed) {
                (true, false) => {
                    status("succeeded") == wanted && succeeded.count() as i64 <= wanted
                }
                (false, true) => may_fail && status("succeeded") < wanted,
                _ => false,
            };
            let uncounted = &job["status"]["uncountedTerminatedPods"];
            let is_counted = ["succeeded", "failed"]
                .iter()
                .all(|list| uncounted[list].as_array().is_none_or(Vec::is_empty));
            let indexes = text(job, "/status/completedIndexes");
            let are_indexes_right = !done
                || text(job, "/spec/completionMode") != "Indexed"
                || indexes == format!("0-{}", wanted - 1)
                // Upstream writes a range only for three indexes or more.
                || wanted == 2 && indexes == "0,1";
            let is_over = is_right && is_counted && are_indexes_right;
            if !is_over || status("active") + status("terminating") > 0 {
                faults.add(&JOBS, job, format!("{} of {wanted}", job["status"]));
            }
            for pod in self.pods_of(job) {
                let kept = list(pod, "/metadata/finalizers").iter().any(|it| it == TRACKED);
                if kept || !matches!(text(pod, "/status/phase"), "Succeeded" | "Failed") {
                    faults.add(&PODS_KIND, pod, "its Job has finished".to_owned());
                }
            }
        }
        for cron in crons.values() {
            for active in list(cron, "/status/active") {
                let job = self.of_soak(&JOBS).find(|job| job["metadata"]["uid"] == active["uid"]);
                if job.is_none() {
                    faults.add(&CRON_JOBS, cron, format!("{active} is active, and is gone"));
                }
            }
        }
    }

    /// Checks that EndpointSlices and Endpoints have the ready pods that Services select.
    fn check_endpoints(&self, faults: &mut Faults) {
        for service in self.of_soak(&SERVICES) {
            let at = |object: &Value| {
                let namespace = text(object, "/metadata/namespace");
                (namespace.to_owned(), text(object, "/metadata/name").to_owned())
            };
            let (namespace, name) = at(service);
            let app = text(service, "/spec/selector/app");
            let selected = self.of_soak(&PODS_KIND).filter(|pod| {
                text(pod, "/metadata/namespace") == namespace
                    && text(pod, "/metadata/labels/app") == app
                    && is_ready(pod)
            });
            let pods: BTreeSet<&str> = selected.map(|pod| text(pod, "/metadata/uid")).collect();
            let slices = self.of_soak(&SLICES).filter(|slice| {
                text(slice, "/metadata/namespace") == namespace
                    && text(slice, "/metadata/labels/kubernetes.io~1service-name") == name
            });
            let ready = slices.flat_map(|slice| list(slice, "/endpoints"));
            let ready = ready.filter(|it| it["conditions"]["ready"] == true);
            let listed: Vec<&str> = ready.map(|it| text(it, "/targetRef/uid")).collect();
            let in_slices: BTreeSet<&str> = listed.iter().copied().collect();
            if in_slices != pods || listed.len() != pods.len() {
                let what = format!("slices have {listed:?}, ready are {pods:?}");
                faults.add(&SERVICES, service, what);
            }
            let endpoints =
                self.of_soak(&ENDPOINTS).filter(|it| at(it) == (namespace.clone(), name.clone()));
            let subsets = endpoints.flat_map(|it| list(it, "/subsets"));
            let addresses = subsets.flat_map(|subset| list(subset, "/addresses"));
            let in_endpoints: BTreeSet<&str> =
                addresses.map(|it| text(it, "/targetRef/uid")).collect();
            if in_endpoints != pods {
                let what = format!("endpoints have {in_endpoints:?}, ready are {pods:?}");
                faults.add(&SERVICES, service, what);
            }
        }
    }

    /// Checks that quotas and budgets have counted what there is.
    fn check_limits(&self, faults: &mut Faults) {
        for quota in self.of_soak(&QUOTAS) {
            let namespace = text(quota, "/metadata/namespace");
            let in_namespace = |kind| {
                self.of_soak(kind).filter(move |it| text(it, "/metadata/namespace") == namespace)
            };
            let live = in_namespace(&PODS_KIND)
                .filter(|pod| !matches!(text(pod, "/status/phase"), "Succeeded" | "Failed"));
            let wanted = [
                ("pods", live.count()),
                ("configmaps", in_namespace(&CONFIG_MAPS).count()),
                ("count/jobs.batch", in_namespace(&JOBS).count()),
                ("persistentvolumeclaims", in_namespace(&CLAIMS).count()),
                ("services", in_namespace(&SERVICES).count()),
            ];
            for (name, wanted) in wanted {
                let used = quota["status"]["used"][name].as_str().unwrap_or_default();
                if used != wanted.to_string() {
                    faults.add(&QUOTAS, quota, format!("used {used:?} {name}, there are {wanted}"));
                }
            }
        }
        for budget in self.of_soak(&BUDGETS) {
            let healthy = self.of_soak(&PODS_KIND).filter(|pod| {
                pod["metadata"]["namespace"] == budget["metadata"]["namespace"]
                    && pod["metadata"]["labels"]["app"]
                        == budget["spec"]["selector"]["matchLabels"]["app"]
                    && is_ready(pod)
            });
            let healthy = healthy.count() as i64;
            let allowed = healthy - count(budget, "/spec/minAvailable");
            let numbers =
                ["/status/currentHealthy", "/status/expectedPods"].map(|at| count(budget, at));
            faults.expect(&BUDGETS, budget, &numbers, healthy);
            faults.expect(
                &BUDGETS,
                budget,
                &[count(budget, "/status/disruptionsAllowed")],
                allowed,
            );
            faults.expect_observed(&BUDGETS, budget);
        }
    }

    /// Returns whether a claim's pod was gone when its StatefulSet was scaled down. The pods that
    /// go with the scale take their claims; such a claim stays, as with upstream.
    fn is_left_by_its_pod(&self, claim: &Value) -> bool {
        let [owner] = list(claim, "/metadata/ownerReferences") else { return false };
        let ordinal = text(claim, "/metadata/name").rsplit_once('-');
        let ordinal = ordinal.and_then(|(_, ordinal)| ordinal.parse::<i64>().ok());
        let mut sets = self.of_soak(&STATEFUL_SETS);
        let set = sets.find(|set| set["metadata"]["uid"] == owner["uid"]);
        set.is_some_and(|set| ordinal >= Some(count(set, "/spec/replicas")))
    }

    /// Checks that each claim has one volume, which is attached where a pod uses it, and only
    /// there.
    fn check_volumes(&self, faults: &mut Faults) {
        let mut wanted: BTreeSet<(String, String)> = BTreeSet::new();
        let mut names = BTreeSet::new();
        for claim in self.of_soak(&CLAIMS) {
            let volume = text(claim, "/spec/volumeName");
            names.insert(volume);
            let bound = self.all(&VOLUMES).iter().find(|it| text(it, "/metadata/name") == volume);
            let is_bound = text(claim, "/status/phase") == "Bound"
                && bound.is_some_and(|bound| {
                    bound["spec"]["claimRef"]["uid"] == claim["metadata"]["uid"]
                        && text(bound, "/status/phase") == "Bound"
                });
            if !is_bound {
                faults.add(&CLAIMS, claim, format!("is not bound to the volume {volume:?}"));
            }
            let users = self.of_soak(&PODS_KIND).filter(|pod| {
                pod["metadata"]["namespace"] == claim["metadata"]["namespace"]
                    && list(pod, "/spec/volumes").iter().any(|it| {
                        it["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
                    })
            });
            let users: Vec<&str> = users.map(|pod| text(pod, "/spec/nodeName")).collect();
            if users.is_empty() && !self.is_left_by_its_pod(claim) {
                faults.add(&CLAIMS, claim, "no pod uses it".to_owned());
            }
            wanted.extend(users.iter().map(|node| (volume.to_owned(), (*node).to_owned())));
        }
        let of_soak = |it: &&Value| text(it, "/spec/claimRef/namespace").starts_with("soak-");
        for volume in self.all(&VOLUMES).iter().filter(of_soak) {
            if !names.contains(text(volume, "/metadata/name")) {
                faults.add(&VOLUMES, volume, "no claim has it".to_owned());
            }
        }
        let attached = self.all(&ATTACHMENTS).iter().filter(|it| it["status"]["attached"] == true);
        let attached: BTreeSet<(String, String)> = attached
            .map(|it| {
                let volume = text(it, "/spec/source/persistentVolumeName").to_owned();
                (volume, text(it, "/spec/nodeName").to_owned())
            })
            .collect();
        if attached != wanted {
            faults.0.push(format!("attached are {attached:?}, in use are {wanted:?}"));
        }
    }
}

impl Faults {
    /// Adds a fault of an object.
    fn add(&mut self, kind: &impl ToString, object: &Value, what: String) {
        let [namespace, name] =
            ["/metadata/namespace", "/metadata/name"].map(|at| text(object, at));
        self.0.push(format!("{} {namespace}/{name}: {what}", kind.to_string()));
    }

    /// Adds a fault unless all numbers are as wanted.
    fn expect(&mut self, kind: &ResourceType, object: &Value, numbers: &[i64], wanted: i64) {
        if numbers.iter().any(|number| *number != wanted) {
            self.add(kind, object, format!("has {numbers:?} of {wanted}: {}", object["status"]));
        }
    }

    /// Checks that the status is of the newest spec.
    fn expect_observed(&mut self, kind: &ResourceType, object: &Value) {
        let observed = count(object, "/status/observedGeneration");
        let generation = count(object, "/metadata/generation");
        if observed != generation {
            self.add(kind, object, format!("observed generation {observed} of {generation}"));
        }
    }
}

fn count(object: &Value, at: &str) -> i64 {
    object.pointer(at).and_then(Value::as_i64).unwrap_or_default()
}

fn is_controlled_by(object: &Value, uid: &str) -> bool {
    let mut owners = list(object, "/metadata/ownerReferences").iter();
    owners.any(|owner| owner["controller"] == true && text(owner, "/uid") == uid)
}

fn is_ready(pod: &Value) -> bool {
    !is_deleting(pod)
        && text(pod, "/status/phase") == "Running"
        && list(pod, "/status/conditions")
            .iter()
            .any(|it| it["type"] == "Ready" && it["status"] == "True")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    type Check = fn(&Snapshot, &mut Faults);

    /// The objects that a check finds at fault.
    fn found(check: Check, objects: &[(&ResourceType, Value)]) -> Vec<String> {
        let mut snapshot = Snapshot::default();
        for (kind, object) in objects {
            let mut object = object.clone();
            object["metadata"]["namespace"] = json!("soak-0");
            snapshot.objects.entry(kind.to_string()).or_default().push(object);
        }
        let mut faults = Faults(Vec::new());
        check(&snapshot, &mut faults);
        let named = faults.0.iter().filter_map(|fault| fault.split(':').next());
        named.map(str::to_owned).collect()
    }

    /// An object that another one controls.
    fn of(owner: &str, name: &str, more: Value) -> Value {
        let mut object = json!({ "metadata": {
            "name": name, "uid": name, "ownerReferences": [{ "uid": owner, "controller": true }],
        } });
        json_patch::merge(&mut object, &more);
        object
    }

    fn pod(owner: &str, name: &str, phase: &str) -> (&'static ResourceType, Value) {
        let pod = json!({
            "metadata": { "labels": { "app": "web" } },
            "spec": { "nodeName": "n", "volumes": [
                { "persistentVolumeClaim": { "claimName": format!("data-{name}") } },
            ] },
            "status": { "phase": phase, "conditions": [{ "type": "Ready", "status": "True" }] },
        });
        (&PODS_KIND, of(owner, name, pod))
    }

    #[test]
    fn numbers_that_differ_from_the_spec_are_found() {
        let sized = |name: &str, replicas: i64, ready: i64, observed: i64| {
            json!({
                "metadata": { "name": name, "uid": name, "generation": 2 },
                "spec": { "replicas": replicas },
                "status": {
                    "replicas": ready, "readyReplicas": ready, "availableReplicas": ready,
                    "updatedReplicas": ready, "observedGeneration": observed,
                },
            })
        };
        let set = |replicas, ready| (&REPLICA_SETS, of("d", "r", sized("r", replicas, ready, 2)));
        let running = pod("r", "x", "Running");
        for (objects, expected) in [
            (vec![(&DEPLOYMENTS, sized("d", 1, 1, 2)), set(1, 1), running.clone()], vec![]),
            (vec![(&DEPLOYMENTS, sized("d", 1, 1, 1)), set(1, 1), running.clone()], vec!["d"]),
            (vec![(&DEPLOYMENTS, sized("d", 1, 0, 2)), set(1, 1), running.clone()], vec!["d"]),
            (vec![(&DEPLOYMENTS, sized("d", 1, 1, 2)), set(1, 1)], vec!["r"]),
            (vec![(&DEPLOYMENTS, sized("d", 1, 1, 2)), set(0, 0)], vec!["d"]),
            (vec![set(1, 1), running.clone(), pod("r", "y", "Failed")], vec!["r"]),
        ] {
            let names = found(Snapshot::check_deployments, &objects);
            let names: Vec<&str> =
                names.iter().filter_map(|name| name.rsplit('/').next()).collect();
            assert_eq!(names, expected, "{objects:#?}");
        }
        let stateful = |ready| (&STATEFUL_SETS, sized("s", 1, ready, 2));
        for (objects, expected) in [
            (vec![stateful(1), pod("s", "s-0", "Running")], 0),
            (vec![stateful(1), pod("s", "s-1", "Running")], 1),
            (vec![stateful(0), pod("s", "s-0", "Running")], 1),
        ] {
            let found = found(Snapshot::check_stateful_sets, &objects);
            assert_eq!(found.len(), expected, "{found:?}");
        }
    }

    #[test]
    fn unfinished_jobs_and_uncounted_pods_are_found() {
        let job = |condition: &str, succeeded: i64, indexes: &str, limit: i64| {
            let job = json!({
                "metadata": { "name": "j", "uid": "j" },
                "spec": { "completions": 2, "completionMode": "Indexed", "backoffLimit": limit },
                "status": {
                    "succeeded": succeeded, "completedIndexes": indexes,
                    "conditions": [{ "type": condition, "status": "True" }],
                },
            });
            (&JOBS, job)
        };
        let mut tracked = pod("j", "x", "Succeeded");
        tracked.1["metadata"]["finalizers"] = json!([TRACKED]);
        for (objects, expected) in [
            (vec![job("Complete", 2, "0,1", 50)], 0),
            (vec![job("Complete", 1, "0", 50)], 1),
            (vec![job("Complete", 2, "0", 50)], 1),
            (vec![job("Suspended", 2, "0,1", 50)], 1),
            (vec![job("Failed", 0, "", 1)], 0),
            (vec![job("Failed", 0, "", 50)], 1),
            (vec![job("Complete", 2, "0,1", 50), tracked], 1),
            (vec![job("Complete", 2, "0,1", 50), pod("j", "x", "Running")], 1),
        ] {
            let found = found(Snapshot::check_jobs, &objects);
            assert_eq!(found.len(), expected, "{found:?} {objects:#?}");
        }
    }

    #[test]
    fn missing_owners_and_objects_in_deletion_are_found() {
        let here = || (&NAMESPACE, json!({ "metadata": { "name": "soak-0", "uid": "n" } }));
        let map = of("n", "m", json!({}));
        let orphan = of("gone", "o", json!({}));
        for (objects, expected) in [
            (vec![here(), (&CONFIG_MAPS, map.clone())], 0),
            (vec![here(), (&CONFIG_MAPS, orphan)], 1),
        ] {
            let found = found(Snapshot::check_references, &objects);
            assert_eq!(found.len(), expected, "{found:?}");
        }
        let all = found(Snapshot::check_presence, &[]).len();
        let deleting = of("n", "m", json!({ "metadata": { "deletionTimestamp": "now" } }));
        assert_eq!(found(Snapshot::check_presence, &[(&CONFIG_MAPS, deleting)]).len(), all + 1);
        let tainted = json!({ "metadata": { "name": "n" }, "spec": { "taints": [{}] } });
        assert_eq!(found(Snapshot::check_presence, &[(&NODES, tainted)]).len(), all + 1);
        assert_eq!(all, NAMESPACES * (Part::ALL.len() + 2), "every part is missing");
    }

    #[test]
    fn endpoints_quotas_and_budgets_that_differ_from_the_pods_are_found() {
        let service = || {
            let spec = json!({ "selector": { "app": "web" } });
            (&SERVICES, json!({ "metadata": { "name": "web" }, "spec": spec }))
        };
        let slice = |uids: &[&str]| {
            let endpoints = uids
                .iter()
                .map(|uid| json!({ "conditions": { "ready": true }, "targetRef": { "uid": uid } }));
            let labels = json!({ "kubernetes.io/service-name": "web" });
            let endpoints: Vec<Value> = endpoints.collect();
            (&SLICES, json!({ "metadata": { "labels": labels }, "endpoints": endpoints }))
        };
        let endpoints = |uids: &[&str]| {
            let addresses = uids.iter().map(|uid| json!({ "targetRef": { "uid": uid } }));
            let addresses: Vec<Value> = addresses.collect();
            let subsets = json!([{ "addresses": addresses }]);
            (&ENDPOINTS, json!({ "metadata": { "name": "web" }, "subsets": subsets }))
        };
        for (objects, expected) in [
            (vec![slice(&["x"]), endpoints(&["x"])], 0),
            (vec![slice(&[]), endpoints(&["x"])], 1),
            (vec![slice(&["x", "x"]), endpoints(&["x"])], 1),
            (vec![slice(&["x", "y"]), endpoints(&["x", "y"])], 2),
        ] {
            let fixed = [service(), pod("r", "x", "Running"), pod("r", "z", "Pending")];
            let objects: Vec<_> = fixed.into_iter().chain(objects).collect();
            let found = found(Snapshot::check_endpoints, &objects);
            assert_eq!(found.len(), expected, "{found:?} {objects:#?}");
        }

        let quota = |pods: &str| {
            let used = json!({
                "pods": pods, "configmaps": "0", "count/jobs.batch": "0",
                "persistentvolumeclaims": "0", "services": "0",
            });
            (&QUOTAS, json!({ "metadata": { "name": "q" }, "status": { "used": used } }))
        };
        let budget = |healthy: i64, allowed: i64| {
            let budget = json!({
                "metadata": { "name": "b", "generation": 1 },
                "spec": { "minAvailable": 1, "selector": { "matchLabels": { "app": "web" } } },
                "status": {
                    "currentHealthy": healthy, "expectedPods": healthy,
                    "disruptionsAllowed": allowed, "observedGeneration": 1,
                },
            });
            (&BUDGETS, budget)
        };
        for (limit, expected) in [
            (quota("2"), 0),
            (quota("3"), 1),
            (budget(2, 1), 0),
            (budget(1, 1), 1),
            (budget(2, 0), 1),
        ] {
            let pods = ["x", "y"].map(|name| pod("r", name, "Running"));
            let ended = pod("j", "z", "Succeeded");
            let objects: Vec<_> = pods.into_iter().chain([ended, limit]).collect();
            let found = found(Snapshot::check_limits, &objects);
            assert_eq!(found.len(), expected, "{found:?} {objects:#?}");
        }
    }

    #[test]
    fn volumes_that_are_not_where_they_are_used_are_found() {
        let claim = json!({
            "metadata": { "name": "data-x", "uid": "c" }, "spec": { "volumeName": "v" },
            "status": { "phase": "Bound" },
        });
        let volume = |name: &str, claim: &str| {
            let volume = json!({
                "metadata": { "name": name },
                "spec": { "claimRef": { "uid": claim, "namespace": "soak-0" } },
                "status": { "phase": "Bound" },
            });
            (&VOLUMES, volume)
        };
        let attached = |node: &str| {
            let attachment = json!({
                "metadata": { "name": node },
                "spec": { "nodeName": node, "source": { "persistentVolumeName": "v" } },
                "status": { "attached": true },
            });
            (&ATTACHMENTS, attachment)
        };
        for (objects, expected) in [
            (vec![volume("v", "c"), attached("n")], 0),
            (vec![volume("v", "other"), attached("n")], 1),
            (vec![volume("v", "c"), volume("w", "c"), attached("n")], 1),
            (vec![volume("v", "c"), attached("m")], 1),
            (vec![volume("v", "c"), attached("n"), attached("m")], 1),
            (vec![volume("v", "c")], 1),
        ] {
            let fixed: [(&ResourceType, Value); 2] =
                [(&CLAIMS, claim.clone()), pod("s", "x", "Running")];
            let objects: Vec<(&ResourceType, Value)> = fixed.into_iter().chain(objects).collect();
            let found = found(Snapshot::check_volumes, &objects);
            assert_eq!(found.len(), expected, "{found:?} {objects:#?}");
        }
        // No pod uses the claim.
        let set = json!({
            "metadata": { "name": "db", "uid": "s" },
            "spec": { "replicas": 2 },
        });
        for (name, owners, expected) in [
            ("data-db-2", &["s"][..], 0),
            ("data-db-1", &["s"], 1),
            ("data-db-2", &["s", "p"], 1),
            ("data-db-2", &["p"], 1),
            ("data-db-2", &[], 1),
        ] {
            let mut claim = claim.clone();
            claim["metadata"]["name"] = name.into();
            let owners = owners.iter().map(|uid| json!({ "uid": uid })).collect();
            claim["metadata"]["ownerReferences"] = Value::Array(owners);
            let objects = [(&CLAIMS, claim), (&STATEFUL_SETS, set.clone()), volume("v", "c")];
            let found = found(Snapshot::check_volumes, &objects);
            assert_eq!(found.len(), expected, "{found:?} {name} {objects:#?}");
        }
    }
}
