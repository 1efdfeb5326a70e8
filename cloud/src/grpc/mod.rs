//! The provider `grpc`: a cloud as a process of its own, behind a Unix socket or TLS. The interface
//! is `cloud/proto/provider.proto`, `docs/cloud-grpc.md` its page.

mod config;
mod messages;

/// The messages, compiled from `proto/provider.proto`.
#[allow(clippy::all, clippy::allow_attributes, reason = "generated code")]
pub mod api {
    include!(concat!(env!("OUT_DIR"), "/cloudprovider.v1.rs"));
}

use std::sync::Arc;
use std::time::Duration;

use ::grpc::{Channel, Code, Endpoint};
use k8s_openapi::api::core::v1::LoadBalancerStatus;
use kube_controller_manager::clock::{SharedClock, SystemClock};
use kube_controller_manager::controllers::{Controller, ControllerContext, Profile};
use kube_controller_manager::metrics::metrics;

use self::api::get_instance_response::State;
use self::config::{Config, Part};
use crate::objects::{Node, Service};
use crate::provider::{
    Answer, Cloud, Error, InstanceMetadata, Instances, LoadBalancer, Route, Routes, Settings,
    default_load_balancer_name,
};

/// The value of `--cloud-provider`.
pub const NAME: &str = "grpc";

/// The delay before a call that found work under way for its object is repeated.
const WHILE_ABORTED: Duration = Duration::from_secs(5);
/// The delay before a call that met a limit is repeated.
const WHILE_EXHAUSTED: Duration = Duration::from_secs(30);
/// The shortest and the longest delay that a provider may ask for.
const RETRY_AFTER: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(600)];
/// How often a provider that cannot be reached at the start is asked again what it is.
const DESCRIBE_PERIOD: Duration = Duration::from_secs(10);

metrics! {
    static DURATIONS: HistogramVec["request"] = "cloudprovider_grpc_api_request_duration_seconds",
        "[ALPHA] Latency of a call of the cloud provider";
    static ERRORS: IntCounterVec["request"] = "cloudprovider_grpc_api_request_errors",
        "[ALPHA] Cumulative number of calls of the cloud provider that failed";
}

/// The path of a method.
macro_rules! method {
    ($name:literal) => {
        concat!("cloudprovider.v1.CloudProvider/", $name)
    };
}

/// The client of a provider. Cheap to clone.
#[derive(Clone)]
struct Remote {
    channel: Channel,
    config: Arc<Config>,
    cluster_name: Arc<str>,
}

/// Makes the provider from its configuration.
///
/// # Errors
/// When the file cannot be read, or a field is wrong.
pub fn open(settings: &Settings) -> Result<Arc<dyn Cloud>, String> {
    let (config, endpoint) = Config::load(settings.config.as_deref())?;
    Ok(Arc::new(Remote::new(config, endpoint, &settings.cluster_name, SystemClock::shared())))
}

impl Remote {
    fn new(config: Config, endpoint: Endpoint, cluster_name: &str, clock: SharedClock) -> Remote {
        let channel = Channel::new("cloud provider", endpoint, clock, observe);
        Remote { channel, config: config.into(), cluster_name: cluster_name.into() }
    }

    async fn call<A: prost::Message + Default>(
        &self,
        method: &'static str,
        request: impl prost::Message,
    ) -> Result<A, ::grpc::Error> {
        self.channel.call(method, &request, Some(self.config.timeout)).await
    }

    fn cluster_name(&self) -> String {
        self.cluster_name.to_string()
    }

    /// Asks the provider for its name and version, and logs whether the name is that of the
    /// configuration.
    async fn describe(&self) -> Result<(), ::grpc::Error> {
        let request = api::DescribeRequest {};
        match self.call::<api::DescribeResponse>(method!("Describe"), request).await {
            Ok(answer) if answer.name == self.config.name => {
                log::info!("the cloud provider is {} {}", answer.name, answer.version);
            }
            Ok(answer) => log::error!(
                "the cloud provider calls itself {:?}, the configuration calls it {:?}",
                answer.name,
                self.config.name
            ),
            Err(error) if error.is_unimplemented() => {
                log::error!("the cloud provider does not serve cloudprovider.v1");
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Asks the provider for the machine of a Node; returns its state, and the whole answer.
    async fn instance(&self, node: &Node) -> Result<(State, api::GetInstanceResponse), Error> {
        let node = Some(messages::node(node));
        let request = api::GetInstanceRequest { cluster_name: self.cluster_name(), node };
        let method = method!("GetInstance");
        let answer = self.call::<api::GetInstanceResponse>(method, request).await;
        let answer = answer.map_err(fault_of_instance)?;
        match answer.state() {
            State::Unspecified => {
                Err(malformed(method, &format!("the state {} is not valid", answer.state)))
            }
            state => Ok((state, answer)),
        }
    }
}

/// Returns the name of a method: the last part of its path.
fn name(method: &str) -> &str {
    method.rsplit('/').next().unwrap_or(method)
}

/// Counts a call that ended.
fn observe(method: &str, took: Duration, is_error: bool) {
    let name = name(method);
    log::debug!("{name} took {took:?}, error: {is_error}");
    DURATIONS.with_label_values(&[name]).observe(took.as_secs_f64());
    if is_error {
        ERRORS.with_label_values(&[name]).inc();
    }
}

/// Returns the error of an answer that follows the protocol and cannot be used.
fn malformed(method: &str, what: &str) -> Error {
    Error::other(format!("{}: {what}", name(method)))
}

/// Returns the error of a failed call in the interface's terms.
fn fault(error: ::grpc::Error) -> Error {
    let message = error.with_causes();
    let ::grpc::Error::Status { code, retry_after, .. } = error else {
        return Error::other(message);
    };
    let [shortest, longest] = RETRY_AFTER;
    match (retry_after, code) {
        (Some(after), _) => Error::Retry { message, after: after.clamp(shortest, longest) },
        (None, Code::Unimplemented) => Error::NotImplemented,
        (None, Code::Aborted) => Error::Retry { message, after: WHILE_ABORTED },
        (None, Code::ResourceExhausted) => Error::Retry { message, after: WHILE_EXHAUSTED },
        (None, _) => Error::other(message),
    }
}

/// Does the same as `fault`, but never returns `NotImplemented`. The configuration says that the
/// provider has instances: without the call it is not complete, as in an update, and a Node that
/// waits for it is asked for again.
fn fault_of_instance(error: ::grpc::Error) -> Error {
    let message = error.with_causes();
    match fault(error) {
        Error::NotImplemented => Error::other(message),
        other => other,
    }
}

/// Returns the outcome of a deletion: something that does not exist is deleted too.
fn deletion_result<T>(outcome: Result<T, ::grpc::Error>) -> Result<(), Error> {
    match outcome {
        Err(error) if error.is_not_found() => Ok(()),
        outcome => outcome.map(drop).map_err(fault),
    }
}

impl Cloud for Remote {
    fn provider_name(&self) -> &str {
        &self.config.name
    }

    fn has_cluster_id(&self) -> bool {
        self.config.has_cluster_id
    }

    /// Returns a controller that calls `describe` until the provider answers; it has no other work.
    fn initialize(&self, context: &Arc<ControllerContext>) -> Result<Vec<Controller>, String> {
        let mut c = Controller::new(Profile::new("grpc-cloud-provider"), context)?;
        let (this, clock) = (self.clone(), c.clock());
        c.background(move |stop| async move {
            while let Some(Err(error)) = stop.unless_stopped(this.describe()).await {
                log::warn!("{}", error.with_causes());
                stop.unless_stopped(clock.sleep(DESCRIBE_PERIOD)).await;
            }
            stop.stopped().await;
        });
        Ok(vec![c])
    }

    fn load_balancer(&self) -> Option<&dyn LoadBalancer> {
        self.config.has(Part::LoadBalancers).then_some(self as _)
    }

    fn instances(&self) -> Option<&dyn Instances> {
        self.config.has(Part::Instances).then_some(self as _)
    }

    fn routes(&self) -> Option<&dyn Routes> {
        self.config.has(Part::Routes).then_some(self as _)
    }
}

impl LoadBalancer for Remote {
    fn name(&self, service: &Service) -> String {
        default_load_balancer_name(service)
    }

    /// Asks the provider for the status of the load balancer.
    fn get<'a>(&'a self, service: &'a Service) -> Answer<'a, Option<LoadBalancerStatus>> {
        Box::pin(async move {
            let request = api::GetLoadBalancerRequest {
                cluster_name: self.cluster_name(),
                name: self.name(service),
                service: Some(messages::service(service)),
            };
            let method = method!("GetLoadBalancer");
            let answer: api::GetLoadBalancerResponse =
                self.call(method, request).await.map_err(fault)?;
            let status = answer.status.map(messages::status_of).transpose();
            status.map_err(|what| malformed(method, &what))
        })
    }

    /// Calls the provider to make the load balancer what the Service asks for, and returns its
    /// status.
    fn ensure<'a>(
        &'a self,
        service: &'a Service,
        nodes: &'a [Arc<Node>],
    ) -> Answer<'a, LoadBalancerStatus> {
        Box::pin(async move {
            let request = api::EnsureLoadBalancerRequest {
                cluster_name: self.cluster_name(),
                name: self.name(service),
                service: Some(messages::service(service)),
                nodes: nodes.iter().map(|node| messages::node(node)).collect(),
            };
            let method = method!("EnsureLoadBalancer");
            let answer: api::EnsureLoadBalancerResponse =
                self.call(method, request).await.map_err(fault)?;
            if answer.implemented_elsewhere {
                return Err(Error::ImplementedElsewhere);
            }
            // An answer without a status is that of a provider which has forgotten it: it would
            // empty the Service's status.
            let status = answer.status.ok_or_else(|| malformed(method, "there is no status"))?;
            messages::status_of(status).map_err(|what| malformed(method, &what))
        })
    }

    /// Calls the provider with the new nodes of the load balancer.
    fn update<'a>(&'a self, service: &'a Service, nodes: &'a [Arc<Node>]) -> Answer<'a, ()> {
        Box::pin(async move {
            let request = api::UpdateLoadBalancerRequest {
                cluster_name: self.cluster_name(),
                name: self.name(service),
                service: Some(messages::service(service)),
                nodes: nodes.iter().map(|node| messages::node(node)).collect(),
            };
            let answer: api::UpdateLoadBalancerResponse =
                self.call(method!("UpdateLoadBalancer"), request).await.map_err(fault)?;
            match answer.implemented_elsewhere {
                true => Err(Error::ImplementedElsewhere),
                false => Ok(()),
            }
        })
    }

    /// Calls the provider to delete the load balancer.
    fn ensure_deleted<'a>(&'a self, service: &'a Service) -> Answer<'a, ()> {
        Box::pin(async move {
            let request = api::DeleteLoadBalancerRequest {
                cluster_name: self.cluster_name(),
                name: self.name(service),
                service: Some(messages::service(service)),
            };
            let outcome = self.call(method!("DeleteLoadBalancer"), request).await;
            deletion_result::<api::DeleteLoadBalancerResponse>(outcome)
        })
    }
}

impl Instances for Remote {
    fn exists<'a>(&'a self, node: &'a Node) -> Answer<'a, bool> {
        Box::pin(async move { Ok(self.instance(node).await?.0 != State::Gone) })
    }

    fn is_shut_down<'a>(&'a self, node: &'a Node) -> Answer<'a, bool> {
        Box::pin(async move { Ok(self.instance(node).await?.0 == State::ShutDown) })
    }

    fn metadata<'a>(&'a self, node: &'a Node) -> Answer<'a, InstanceMetadata> {
        Box::pin(async move {
            match self.instance(node).await? {
                (State::Gone, _) => Err(Error::InstanceNotFound),
                (_, answer) => messages::metadata_of(answer, &self.config.name)
                    .map_err(|what| malformed("GetInstance", &what)),
            }
        })
    }
}

impl Routes for Remote {
    fn list(&self) -> Answer<'_, Vec<Route>> {
        Box::pin(async move {
            let request = api::ListRoutesRequest { cluster_name: self.cluster_name() };
            let answer: api::ListRoutesResponse =
                self.call(method!("ListRoutes"), request).await.map_err(fault)?;
            Ok(answer.routes.into_iter().map(messages::route_of).collect())
        })
    }

    /// Calls the provider to make a route.
    fn create<'a>(&'a self, name_hint: &'a str, route: &'a Route) -> Answer<'a, ()> {
        Box::pin(async move {
            let request = api::CreateRouteRequest {
                cluster_name: self.cluster_name(),
                name_hint: name_hint.to_owned(),
                route: Some(messages::route(route)),
            };
            let outcome = self.call::<api::CreateRouteResponse>(method!("CreateRoute"), request);
            outcome.await.map(drop).map_err(fault)
        })
    }

    /// Calls the provider to delete a route.
    fn delete<'a>(&'a self, route: &'a Route) -> Answer<'a, ()> {
        Box::pin(async move {
            let request = api::DeleteRouteRequest {
                cluster_name: self.cluster_name(),
                route: Some(messages::route(route)),
            };
            let outcome = self.call(method!("DeleteRoute"), request).await;
            deletion_result::<api::DeleteRouteResponse>(outcome)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_become_errors_and_delays() {
        let error = |code, retry_after| {
            let message = "why".to_owned();
            fault(::grpc::Error::Status { method: "X", code, message, retry_after })
        };
        let seconds = |seconds| Some(Duration::from_secs(seconds));
        for (code, hint, after) in [
            (Code::Aborted, None, seconds(5)),
            (Code::ResourceExhausted, None, seconds(30)),
            (Code::Unavailable, None, None),
            (Code::Unavailable, seconds(7), seconds(7)),
            (Code::Internal, seconds(0), seconds(1)),
            (Code::Internal, seconds(86_400), seconds(600)),
            (Code::NotFound, None, None),
        ] {
            match (error(code, hint), after) {
                (Error::Retry { message, after }, Some(expected)) => {
                    assert_eq!((message.as_str(), after), ("X: why", expected));
                }
                (Error::Other(error), None) => assert_eq!(error.to_string(), "X: why"),
                (other, _) => panic!("{code}: {other:?}"),
            }
        }
        assert!(matches!(error(Code::Unimplemented, None), Error::NotImplemented));
        let (message, retry_after) = ("why".to_owned(), None);
        let code = Code::Unimplemented;
        let of_instance =
            fault_of_instance(::grpc::Error::Status { method: "X", code, message, retry_after });
        assert!(matches!(of_instance, Error::Other(_)), "{of_instance:?}");
    }

    #[test]
    fn only_not_found_is_a_successful_deletion() {
        let error = |code| {
            let message = String::new();
            Err(::grpc::Error::Status { method: "X", code, message, retry_after: None })
        };
        assert!(deletion_result(Ok(())).is_ok());
        assert!(deletion_result::<()>(error(Code::NotFound)).is_ok());
        assert!(deletion_result::<()>(error(Code::Unavailable)).is_err());
        assert!(deletion_result::<()>(error(Code::Unimplemented)).is_err());
    }
}
