//! One look at one autoscaler: read the Scale and the metrics, scale, write the status.
//! Upstream: `reconcileAutoscaler`.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::Autoscaling;
use super::calculator::Calculator;
use super::metrics_api::described;
use super::monitor::{self, Action, Fault};
use super::normalize::{Normalized, ReplicaBounds};
use super::scaling_mode::{BELOW_MIN, ScalingMode, Zero, lifted};
use super::sources::{self, Computed, Failed, Target};
use super::status::{
    ABLE_TO_SCALE, SCALED_TO_ZERO, SCALING_ACTIVE, SCALING_LIMITED, remove_condition, set_condition,
};
use crate::client;
use crate::objects::{
    HorizontalPodAutoscaler, HorizontalPodAutoscalerStatus, ObjectKey, Pod, Resource, ResourceType,
    Scale, Selector,
};

/// Tries and the time between them when the Scale changes meanwhile. Upstream: `retry.DefaultRetry`.
const TRIES: u32 = 5;
const BETWEEN_TRIES: Duration = Duration::from_millis(10);

/// Why it ended early.
struct ReconcileError {
    fault: Fault,
    error: String,
}

impl From<String> for ReconcileError {
    fn from(error: String) -> ReconcileError {
        ReconcileError { fault: Fault::Internal, error }
    }
}

/// What all metrics together ask for.
struct Proposed {
    replicas: i32,
    name: String,
    statuses: Vec<Value>,
    /// Of the metrics that could not be read.
    error: Option<String>,
}

/// An autoscaler and what becomes of its status.
struct Reconcile<'a> {
    autoscaler: &'a HorizontalPodAutoscaler,
    key: &'a ObjectKey,
    status: HorizontalPodAutoscalerStatus,
    /// `Deployment/default/web`
    reference: String,
    action: Action,
}

impl Reconcile<'_> {
    /// Upstream: `setStatus`.
    fn set_counts(&mut self, current: i32, desired: i32, metrics: Vec<Value>) {
        self.status.observed_generation = None;
        self.status.current_replicas = current;
        self.status.desired_replicas = desired;
        self.status.current_metrics = metrics;
    }
}

impl Autoscaling {
    pub(super) async fn reconcile(
        &self,
        autoscaler: &HorizontalPodAutoscaler,
        key: &ObjectKey,
    ) -> Result<(), String> {
        let start = self.clock.monotonic();
        let target = &autoscaler.spec.scale_target_ref;
        let reference = format!("{}/{}/{}", target.kind, key.namespace, target.name);
        let (status, action) = (autoscaler.status.clone(), Action::None);
        let mut subject = Reconcile { autoscaler, key, status, reference, action };
        let result = self.run(&mut subject).await;
        let fault = result.as_ref().err().map_or(Fault::None, |broken| broken.fault);
        let took = self.clock.monotonic().saturating_sub(start);
        monitor::reconciled(subject.action, fault, took);
        result.map_err(|broken| broken.error)
    }

    async fn run(&self, subject: &mut Reconcile<'_>) -> Result<(), ReconcileError> {
        let (autoscaler, settings) = (subject.autoscaler, &self.settings);
        let (resource, mut scale) = self.scale_of(subject).await?;
        let now = self.clock.now();
        set_condition(
            &mut subject.status,
            ABLE_TO_SCALE,
            (
                "True",
                "SucceededGetScale",
                "the HPA controller was able to get the target's current scale",
            ),
            now,
        );
        let current = scale.replicas;
        let moment = self.clock.monotonic();
        self.histories.lock().entry(subject.key.clone()).or_default().start(current, moment);

        let (min, max) = (autoscaler.min_replicas(), autoscaler.spec.max_replicas);
        let zero = Zero {
            gate: settings.scale_to_zero,
            was_scaled: autoscaler
                .condition(SCALED_TO_ZERO)
                .is_some_and(|known| known.status == "True"),
            has_other_metrics: has_object_or_external_metrics(autoscaler),
        };
        let mut partial_error = None;
        let mut statuses = Vec::new();
        let (desired, reason) = match ScalingMode::of(current, min, max, zero) {
            ScalingMode::Disabled => {
                let message = "scaling is disabled since the replica count of the target is zero";
                let disabled = ("False", "ScalingDisabled", message);
                set_condition(&mut subject.status, SCALING_ACTIVE, disabled, now);
                if !zero.gate {
                    remove_condition(&mut subject.status, SCALED_TO_ZERO);
                }
                (0, String::new())
            }
            ScalingMode::Set(replicas, reason) => (replicas, reason.to_owned()),
            ScalingMode::Follow => {
                let proposed = self.proposed(subject, &scale).await?;
                statuses = proposed.statuses;
                partial_error = proposed.error;
                let replicas = proposed.replicas.max(0);
                let name = proposed.name;
                log::debug!("{}: proposing {replicas} replicas by {name}", subject.reference);
                let normalized =
                    self.normalize(subject, ReplicaBounds { current, desired: replicas, min, max });
                let desired = lifted(current, normalized, min, zero);
                let reason = match replicas {
                    more if more > current => format!("{name} above target"),
                    less if less < current => "All metrics below target".to_owned(),
                    _ if desired > normalized => BELOW_MIN.to_owned(),
                    _ => String::new(),
                };
                (desired, reason)
            }
        };

        let rescales = desired != current;
        if rescales {
            let rescaled = self.rescale(subject, &resource, &mut scale, desired).await;
            if let Err(error) = rescaled {
                let event = format!("New size: {desired}; reason: {reason}; error: {error}");
                self.recorder.warning(autoscaler, "FailedRescale", event);
                let message =
                    format!("the HPA controller was unable to update the target scale: {error}");
                let failed = ("False", "FailedUpdateScale", message);
                set_condition(&mut subject.status, ABLE_TO_SCALE, failed, self.clock.now());
                let known = autoscaler.status.desired_replicas;
                subject.set_counts(current, known, statuses);
                self.write_or_log(subject).await;
                return Err(format!("failed to rescale {}: {error}", subject.reference).into());
            }
            let now = self.clock.now();
            let message =
                format!("the HPA controller was able to update the target scale to {desired}");
            let succeeded = ("True", "SucceededRescale", message);
            set_condition(&mut subject.status, ABLE_TO_SCALE, succeeded, now);
            let event = format!("New size: {desired}; reason: {reason}");
            self.recorder.normal(autoscaler, "SuccessfulRescale", event);
            if let Some(behavior) = &autoscaler.spec.behavior {
                let mut histories = self.histories.lock();
                let history = histories.entry(subject.key.clone()).or_default();
                history.scaled(behavior, current, desired, self.clock.monotonic());
            }
            let (from, to) = (current, desired);
            log::info!("{}: rescaled from {from} to {to}: {reason}", subject.reference);
            if zero.gate {
                let is_reached = zero.is_reached(current, desired, min);
                let condition = if is_reached { SCALED } else { NOT_SCALED };
                set_condition(&mut subject.status, SCALED_TO_ZERO, condition, now);
            } else {
                remove_condition(&mut subject.status, SCALED_TO_ZERO);
            }
            subject.action = if desired > current { Action::ScaleUp } else { Action::ScaleDown };
            subject.status.last_scale_time = Some(now.truncate_to_secs());
        }
        subject.set_counts(current, desired, statuses);
        monitor::desires(&subject.key.namespace, &subject.key.name, desired);
        self.write(subject).await?;
        partial_error.map_or(Ok(()), |error| Err(error.into()))
    }

    /// The Scale of the target, and its resource: the first that has one.
    async fn scale_of(
        &self,
        subject: &mut Reconcile<'_>,
    ) -> Result<(ResourceType, Scale), ReconcileError> {
        let target = &subject.autoscaler.spec.scale_target_ref;
        let group = match group_of(&target.api_version) {
            Ok(group) => group,
            Err(error) => {
                self.has_no_scale(subject, &error).await;
                let error = format!("invalid API version in scale target reference: {error}");
                return Err(ReconcileError { fault: Fault::Spec, error });
            }
        };
        let kind = &target.kind;
        let resources = self.scales.resources_of(group, kind, None).await;
        let resources = match resources {
            Ok(resources) if !resources.is_empty() => Ok(resources),
            Ok(_) => Err(format!("no matches for kind {:?} in group {group:?}", kind.as_str())),
            Err(error) => Err(described(&error, "get", "")),
        };
        let resources = match resources {
            Ok(resources) => resources,
            Err(error) => {
                self.has_no_scale(subject, &error).await;
                let doing = "unable to determine resource for scale target reference";
                return Err(format!("{doing}: {error}").into());
            }
        };
        let key = ObjectKey::new(&subject.key.namespace, &target.name);
        let mut first = None;
        for resource in resources {
            match self.scales.get(&resource, &key).await {
                Ok(scale) => return Ok((resource, scale)),
                Err(error) => {
                    let what = scale_name(&resource, &target.name);
                    first.get_or_insert_with(|| described(&error, "get", &what));
                }
            }
        }
        let error = first.unwrap_or_default();
        self.has_no_scale(subject, &error).await;
        let doing = "failed to query scale subresource for";
        Err(format!("{doing} {}: {error}", subject.reference).into())
    }

    async fn has_no_scale(&self, subject: &mut Reconcile<'_>, error: &str) {
        self.recorder.warning(subject.autoscaler, "FailedGetScale", error);
        let message =
            format!("the HPA controller was unable to get the target's current scale: {error}");
        let failed = ("False", "FailedGetScale", message);
        set_condition(&mut subject.status, ABLE_TO_SCALE, failed, self.clock.now());
        self.write_or_log(subject).await;
    }

    /// What the metrics ask for. When that is nothing, the status is written.
    async fn proposed(
        &self,
        subject: &mut Reconcile<'_>,
        scale: &Scale,
    ) -> Result<Proposed, ReconcileError> {
        let (error, statuses) = match self.computed(subject, scale).await {
            Ok(proposed) => return Ok(proposed),
            Err(failed) => failed,
        };
        let desired = subject.autoscaler.status.desired_replicas;
        subject.set_counts(scale.replicas, desired, statuses);
        self.write_or_log(subject).await;
        self.recorder.warning(subject.autoscaler, "FailedComputeMetricsReplicas", &*error);
        let doing = "failed to compute desired number of replicas based on listed metrics for";
        Err(format!("{doing} {}: {error}", subject.reference).into())
    }

    /// The highest of what the metrics ask for. A metric that cannot be read may ask for more than the
    /// others, so then there is no scaling down. Upstream: `computeReplicasForMetrics`.
    async fn computed(
        &self,
        subject: &mut Reconcile<'_>,
        scale: &Scale,
    ) -> Result<Proposed, (String, Vec<Value>)> {
        let autoscaler = subject.autoscaler;
        let (selector, pods) =
            self.selected(subject, &scale.selector).map_err(|error| (error, Vec::new()))?;
        let target = Target {
            namespace: &subject.key.namespace,
            selector: &selector,
            replicas: scale.replicas,
            status_replicas: scale.status_replicas,
        };
        let mut statuses = Vec::new();
        let (mut failures, mut first): (usize, Option<Failed>) = (0, None);
        let (mut replicas, mut name) = (0, String::new());
        for spec in &autoscaler.spec.metrics {
            let start = self.clock.monotonic();
            let calculator = Calculator {
                pods: &pods,
                tolerances: self.settings.tolerances(autoscaler),
                startup: self.settings.startup,
                now: self.clock.now(),
                pod_level_resources: self.settings.pod_level_resources,
            };
            let result = sources::compute(&self.api, spec, target, calculator).await;
            let took = self.clock.monotonic().saturating_sub(start);
            let (action, fault) = outcome(&result, autoscaler.status.current_replicas);
            monitor::computed(action, fault, &spec.r#type, took);
            match result {
                Ok(computed) => {
                    statuses.push(computed.status);
                    if replicas == 0 || computed.replicas > replicas {
                        (replicas, name) = (computed.replicas, computed.name);
                    }
                }
                Err(failed) => {
                    self.recorder.warning(autoscaler, failed.reason, &*failed.cause);
                    statuses.push(json!({ "type": "" }));
                    failures += 1;
                    first.get_or_insert(failed);
                }
            }
        }
        let now = self.clock.now();
        let all = autoscaler.spec.metrics.len();
        let error = first.as_ref().map(|failed| {
            let error = &failed.error;
            format!("invalid metrics ({failures} invalid out of {all}), first error is: {error}")
        });
        if let (Some(failed), Some(error)) = (first, &error)
            && (failures >= all || replicas < scale.replicas)
        {
            let message =
                format!("the HPA was unable to compute the replica count: {}", failed.cause);
            let inactive = ("False", failed.reason, message);
            set_condition(&mut subject.status, SCALING_ACTIVE, inactive, now);
            return Err((error.clone(), statuses));
        }
        let message =
            format!("the HPA was able to successfully calculate a replica count from {name}");
        let active = ("True", "ValidMetricFound", message);
        set_condition(&mut subject.status, SCALING_ACTIVE, active, now);
        Ok(Proposed { replicas, name, statuses, error })
    }

    /// The pods that a Scale selects, which no other autoscaler may select.
    /// Upstream: `validateAndParseSelector`.
    fn selected(
        &self,
        subject: &mut Reconcile<'_>,
        text: &str,
    ) -> Result<(Selector, Vec<Arc<Pod>>), String> {
        let now = self.clock.now();
        let mut refuse = |event: &str, reason: &str, error: &str, message: &str| {
            self.recorder.warning(subject.autoscaler, event, error);
            set_condition(&mut subject.status, SCALING_ACTIVE, ("False", reason, message), now);
            error.to_owned()
        };
        if text.is_empty() {
            let message = "the HPA target's scale is missing a selector";
            return Err(refuse(
                "SelectorRequired",
                "InvalidSelector",
                "selector is required",
                message,
            ));
        }
        let selector: Selector = text.parse().map_err(|error| {
            let error = format!(
                "couldn't convert selector into a corresponding internal selector object: {error}"
            );
            refuse("InvalidSelector", "InvalidSelector", &error, &error)
        })?;
        self.selectors.set(subject.key, &selector);
        let namespace = &subject.key.namespace;
        let mut pods = self.pods.in_namespace(namespace);
        pods.retain(|pod| selector.matches(&pod.meta.labels));
        let selecting = self.selectors.selecting(namespace, &pods);
        if selecting.len() > 1 {
            let names: Vec<String> = selecting.iter().map(ToString::to_string).collect();
            let error = format!(
                "pods by selector {text} are controlled by multiple HPAs: [{}]",
                names.join(" ")
            );
            return Err(refuse("AmbiguousSelector", "AmbiguousSelector", &error, &error));
        }
        Ok((selector, pods))
    }

    fn normalize(&self, subject: &mut Reconcile<'_>, wish: ReplicaBounds) -> i32 {
        let now = self.clock.now();
        let Normalized { desired, able, limited } = {
            let mut histories = self.histories.lock();
            let history = histories.entry(subject.key.clone()).or_default();
            let behavior = subject.autoscaler.spec.behavior.as_ref();
            let window = self.settings.downscale_stabilization;
            history.normalize(wish, behavior, window, self.clock.monotonic())
        };
        set_condition(&mut subject.status, ABLE_TO_SCALE, able, now);
        set_condition(&mut subject.status, SCALING_LIMITED, limited, now);
        desired
    }

    /// Asks for `replicas`, again when the Scale has changed meanwhile.
    async fn rescale(
        &self,
        subject: &Reconcile<'_>,
        resource: &ResourceType,
        scale: &mut Scale,
        replicas: i32,
    ) -> Result<(), String> {
        let name = &subject.autoscaler.spec.scale_target_ref.name;
        let key = ObjectKey::new(&subject.key.namespace, name);
        let what = scale_name(resource, name);
        for tries in 1.. {
            let error = match self.scales.update(resource, &key, scale, replicas).await {
                Ok(_) => break,
                Err(error) => error,
            };
            if !error.is_conflict() || tries == TRIES {
                return Err(described(&error, "put", &what));
            }
            match self.scales.get(resource, &key).await {
                Ok(latest) => *scale = latest,
                Err(error) => log::error!(
                    "error getting latest scale for {} during conflict retry: {error}",
                    subject.reference
                ),
            }
            self.clock.sleep(BETWEEN_TRIES).await;
        }
        Ok(())
    }

    /// Writes the status, if it has changed. Upstream: `updateStatusIfNeeded`.
    async fn write(&self, subject: &Reconcile<'_>) -> Result<(), String> {
        let Reconcile { autoscaler, status, .. } = subject;
        if *status == autoscaler.status {
            return Ok(());
        }
        let written = self.client.update_status(*autoscaler, status).await;
        written.map(drop).map_err(|error: client::Error| {
            let name = &autoscaler.meta.name;
            let what = format!("{} {name}", HorizontalPodAutoscaler::RESOURCE);
            let error = described(&error, "put", &what);
            self.recorder.warning(*autoscaler, "FailedUpdateStatus", &*error);
            format!("failed to update status for {name}: {error}")
        })
    }

    async fn write_or_log(&self, subject: &Reconcile<'_>) {
        if let Err(error) = self.write(subject).await {
            log::error!("horizontal-pod-autoscaler-controller: {error}");
        }
    }
}

const SCALED: (&str, &str, &str) =
    ("True", "ScaledToZero", "the HPA controller scaled the workload to zero");
const NOT_SCALED: (&str, &str, &str) =
    ("False", "NotScaledToZero", "the HPA controller did not scale the workload to zero");

/// Metrics that are there without pods.
fn has_object_or_external_metrics(autoscaler: &HorizontalPodAutoscaler) -> bool {
    autoscaler.spec.metrics.iter().any(|spec| matches!(spec.r#type.as_str(), "Object" | "External"))
}

/// As errors name it: upstream's client of Scales serves all groups and names none.
fn scale_name(resource: &ResourceType, name: &str) -> String {
    format!("{} {name}", resource.plural)
}

/// Upstream: `schema.ParseGroupVersion`.
fn group_of(api_version: &str) -> Result<&str, String> {
    match api_version.split_once('/') {
        None => Ok(""),
        Some((_, version)) if version.contains('/') => {
            Err(format!("unexpected GroupVersion string: {api_version}"))
        }
        Some((group, _)) => Ok(group),
    }
}

/// What the metrics say of one computation.
fn outcome(result: &Result<Computed, Failed>, current: i32) -> (Action, Fault) {
    match result {
        Ok(computed) if computed.replicas > current => (Action::ScaleUp, Fault::None),
        Ok(computed) if computed.replicas < current => (Action::ScaleDown, Fault::None),
        Ok(_) => (Action::None, Fault::None),
        Err(failed) if failed.is_spec => (Action::None, Fault::Spec),
        Err(_) => (Action::None, Fault::Internal),
    }
}
