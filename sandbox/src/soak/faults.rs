//! Carries out the faults of a plan.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::{Value, json};

use super::clock::SteppedClock;
use super::managers::{Managers, SEATS};
use super::observer::Observer;
use super::plan::{Affected, Fault, Impairment};
use super::server::Server;
use super::workload::{NAMESPACES, namespace_name};
use crate::api::faults::{Fault as Answer, Faults};
use crate::real_server::{Part, RealServer};
use kube_controller_manager::client::Delete;
use kube_controller_manager::clock::SharedClock;
use kube_controller_manager::objects::{ObjectKey, ResourceType};
use kube_controller_manager::task::{StopToken, TaskGroup};

const GROUP: &str = "admissionregistration.k8s.io";
const POLICIES: ResourceType = ResourceType::fixed(
    GROUP,
    "v1",
    "ValidatingAdmissionPolicy",
    "validatingadmissionpolicies",
    false,
);
const BINDINGS: ResourceType = ResourceType::fixed(
    GROUP,
    "v1",
    "ValidatingAdmissionPolicyBinding",
    "validatingadmissionpolicybindings",
    false,
);
/// The policy that denies pods, and its binding.
const DENIAL: &str = "soak-denial";

/// What faults act on. Cheap to clone.
#[derive(Clone)]
pub struct FaultInjector {
    pub server: Arc<Server>,
    pub clock: SharedClock,
    /// The clock of the embedded API server and the nodes.
    pub stepped: Arc<SteppedClock>,
    pub managers: Arc<Mutex<Managers>>,
    pub observer: Arc<Observer>,
    /// The faults under way.
    pub tasks: Arc<TaskGroup>,
    /// Ends them early.
    pub stop: StopToken,
}

impl FaultInjector {
    /// Begins a fault, which ends by itself.
    pub fn begin(&self, fault: Fault) {
        let this = self.clone();
        self.tasks.spawn(async move { this.carry_out(fault).await });
    }

    /// Ends all faults.
    pub async fn end(&self) {
        self.stop.stop();
        self.tasks.join().await;
        self.faults().clear();
        if let Some(webhook) = self.server.webhook() {
            webhook.delay(0, Duration::ZERO);
        }
    }

    fn faults(&self) -> &Faults {
        self.server.faults()
    }

    /// Waits for the length of a fault, or until the stop.
    async fn wait(&self, millis: u64) {
        self.stop.unless_stopped(self.clock.sleep(Duration::from_millis(millis))).await;
    }

    /// Returns the seats of the affected managers.
    fn seats(&self, affected: Affected) -> Vec<usize> {
        let leader = self.observer.leader().map_or(0, |leader| leader.seat);
        match affected {
            Affected::Leader => vec![leader],
            Affected::Standby => (0..SEATS).filter(|seat| *seat != leader).collect(),
            Affected::Both => (0..SEATS).collect(),
        }
    }

    /// Causes one fault, waits as long as it lasts, and ends it.
    async fn carry_out(self, fault: Fault) {
        match fault {
            Fault::Network { affected, impairment, millis, cut } => {
                let seats = self.seats(affected);
                self.impair(&seats, impairment);
                self.wait(millis).await;
                // Answers that were held for long are not delivered.
                self.clear(&seats, cut || impairment == Impairment::StallAnswers);
            }
            Fault::Kill(affected) => self.signal(affected, "-KILL"),
            Fault::Terminate(affected) => self.signal(affected, "-TERM"),
            Fault::Freeze { millis } => {
                let [seat] = self.seats(Affected::Leader)[..] else { return };
                let frozen = self.managers.lock().signal(seat, "-STOP", None);
                let Some(frozen) = frozen else { return };
                self.wait(millis).await;
                // It may have been killed meanwhile.
                self.managers.lock().signal(frozen.seat, "-CONT", Some(frozen.run));
            }
            Fault::Restart { millis } | Fault::KillEtcd { millis } => {
                if let Server::Real(real) = &*self.server {
                    let is_etcd = matches!(fault, Fault::KillEtcd { .. });
                    let part = if is_etcd { Part::Etcd } else { Part::ApiServer };
                    return self.restart(&real.server, part, millis).await;
                }
                let seats = self.seats(Affected::Both);
                self.impair(&seats, Impairment::Refuse);
                self.faults().cut_all();
                self.wait(millis).await;
                self.observer.compact().await;
                self.faults().come_back();
                self.clear(&seats, false);
            }
            Fault::Expire => {
                self.observer.compact().await;
                self.faults().expire_watches();
            }
            Fault::Answer { code, retry_after, verb, resource, times } => {
                self.faults().next(times, verb, resource, Answer::code(code, retry_after));
            }
            Fault::LoseAnswers { verb, resource, times } => {
                self.faults().next(times, verb, resource, Answer::LoseAnswer);
            }
            Fault::CutBodies { verb, resource, bytes, times } => {
                self.faults().next(times, verb, resource, Answer::CutAfter(bytes));
                self.faults().cut_watches();
            }
            Fault::SlowAdmission { millis, times } => {
                let delay = Duration::from_millis(millis);
                match self.server.webhook() {
                    Some(webhook) => webhook.delay(times, delay),
                    None => self.faults().next(times, "create", "*", Answer::Delay(delay)),
                }
            }
            Fault::DenyAdmission { millis } => {
                if let Some(webhook) = self.server.webhook() {
                    let _denial = webhook.deny();
                    return self.wait(millis).await;
                }
                self.deny_pods().await;
                self.wait(millis).await;
                self.admit_pods().await;
            }
            Fault::StepClock { seconds, millis } => {
                self.stepped.step(seconds);
                self.wait(millis).await;
                self.stepped.step(-seconds);
            }
            Fault::Node { node, millis } => {
                let name = format!("node-{node}");
                self.server.steering().kill(&name);
                self.wait(millis).await;
                self.server.steering().revive(&name);
            }
        }
    }

    /// Kills a part of a real server, which comes back with the data that it had.
    async fn restart(&self, server: &RealServer, part: Part, millis: u64) {
        server.kill(part);
        self.wait(millis).await;
        if let Err(error) = server.run().await {
            log::error!("{error}");
        }
    }

    fn impair(&self, seats: &[usize], impairment: Impairment) {
        let managers = self.managers.lock();
        seats.iter().for_each(|seat| managers.seats()[*seat].proxy.impair(impairment));
    }

    /// Ends the impairment of these managers. `cut`: their connections are reset.
    fn clear(&self, seats: &[usize], cut: bool) {
        let managers = self.managers.lock();
        seats.iter().for_each(|seat| managers.seats()[*seat].proxy.clear(cut));
    }

    /// Sends a signal to the affected managers.
    fn signal(&self, affected: Affected, signal: &str) {
        for seat in self.seats(affected) {
            self.managers.lock().signal(seat, signal, None);
        }
    }

    /// Creates a policy that refuses all new pods of the soak.
    async fn deny_pods(&self) {
        let name = json!({ "name": DENIAL });
        let policy = json!({
            "apiVersion": POLICIES.api_version(), "kind": POLICIES.kind, "metadata": name,
            "spec": {
                "failurePolicy": "Fail",
                "matchConstraints": { "resourceRules": [{
                    "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"],
                    "operations": ["CREATE"],
                }] },
                "validations": [{
                    "expression": "false", "message": "no pod for now", "reason": "Forbidden",
                }],
            },
        });
        let namespaces: Vec<String> = (0..NAMESPACES).map(namespace_name).collect();
        let binding = json!({
            "apiVersion": BINDINGS.api_version(), "kind": BINDINGS.kind, "metadata": name,
            "spec": {
                "policyName": DENIAL, "validationActions": ["Deny"],
                "matchResources": { "namespaceSelector": { "matchExpressions": [{
                    "key": "kubernetes.io/metadata.name", "operator": "In", "values": namespaces,
                }] } },
            },
        });
        for (resource, object) in [(&POLICIES, policy), (&BINDINGS, binding)] {
            // Other faults may refuse it: then nothing is denied.
            if let Err(error) =
                self.server.client().resource(resource).create::<Value>("", &object).await
            {
                log::debug!("{resource}: {error}");
            }
        }
    }

    /// Deletes the policy of [`Self::deny_pods`]. Other faults may refuse that for a while.
    async fn admit_pods(&self) {
        for resource in [&BINDINGS, &POLICIES] {
            let key = ObjectKey::cluster(DENIAL);
            loop {
                match self.server.client().resource(resource).delete(&key, Delete::new()).await {
                    Err(error) if !error.is_not_found() => {
                        log::debug!("{resource}: {error}");
                        self.clock.sleep(Duration::from_millis(100)).await;
                    }
                    _ => break,
                }
            }
        }
    }
}
