//! Requests to containers: logs, streams, commands. Upstream: `Server.getExec` and those beside it.

use std::sync::Arc;

use futures_lite::stream;
use hyper::header::RETRY_AFTER;
use k8s_openapi::api::core::v1::ContainerStatus;
use kube_controller_manager::percent;
use kube_controller_manager::server::http::{Bytes, Method};
use kube_controller_manager::server::routes::Routes;
use kube_controller_manager::server::{Handler, Request, Response};

use super::stream::{self as streams, StreamLimits};
use crate::causes::chain;
use crate::cri::{self, api};
use crate::kubelet::Kubelet;
use crate::logs::format::Stamp;
use crate::logs::{self, LogFile, LogOptions, LogReader, Streams};
use crate::pod::{Pod, PodExt, PodStatus};
use crate::runtime::status::{self, State};

/// How long the runtime keeps the address of a stream for its client, of which it has a limited
/// number.
const TOKEN_SECONDS: &str = "60";

/// What is done with a container, or with a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Logs,
    Exec,
    Attach,
    PortForward,
    Run,
    Checkpoint,
}

/// The paths with their actions.
const ACTIONS: [(&str, Action); 6] = [
    ("/containerLogs", Action::Logs),
    ("/exec", Action::Exec),
    ("/attach", Action::Attach),
    ("/portForward", Action::PortForward),
    ("/run", Action::Run),
    ("/checkpoint", Action::Checkpoint),
];

/// Adds the routes of requests to containers.
pub fn install(routes: &Routes, kubelet: &Arc<Kubelet>, limits: &StreamLimits) {
    for (path, action) in ACTIONS {
        let (kubelet, limits) = (kubelet.clone(), limits.clone());
        let answer: Handler = Arc::new(move |request| {
            let containers = Containers { kubelet: kubelet.clone(), limits: limits.clone() };
            Box::pin(async move { containers.answer(path, action, request).await })
        });
        routes.add_unlisted(path, answer);
    }
}

/// The pod, and with most actions the container, that a path names.
#[derive(Debug, PartialEq, Eq)]
struct Target {
    namespace: String,
    pod: String,
    /// Empty: any.
    uid: String,
    /// Empty for ports.
    container: String,
}

impl Target {
    /// Parses the path of a request to the pod or container of an action. `path`: what follows the
    /// action's own path. `None`: it has other parts.
    fn parse(action: Action, path: &str) -> Option<Target> {
        let parts: Vec<String> = path.strip_prefix('/')?.split('/').map(percent::decode).collect();
        let mut parts = parts.into_iter();
        let (namespace, pod) = (parts.next()?, parts.next()?);
        let rest: Vec<String> = parts.collect();
        let has_uid = !matches!(action, Action::Logs | Action::Checkpoint);
        let (uid, container) = match (action, &rest[..]) {
            (Action::PortForward, []) => (String::new(), String::new()),
            (Action::PortForward, [uid]) => (uid.clone(), String::new()),
            (Action::PortForward, _) => return None,
            (_, [container]) => (String::new(), container.clone()),
            (_, [uid, container]) if has_uid => (uid.clone(), container.clone()),
            _ => return None,
        };
        Some(Target { namespace, pod, uid, container })
    }
}

/// The streams of a container that a client wants. Upstream: `remotecommand.NewOptions`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct StreamOptions {
    stdin: bool,
    stdout: bool,
    stderr: bool,
    tty: bool,
}

impl StreamOptions {
    /// Parses the query of a stream; `None`: it asks for no stream.
    fn parse(query: &[(String, String)]) -> Option<StreamOptions> {
        let is = |name: &str| query.iter().find(|(n, _)| n == name).is_some_and(|(_, v)| v == "1");
        let (tty, stdin, stdout) = (is("tty"), is("input"), is("output"));
        // A terminal has one stream of output.
        let stderr = is("error") && !tty;
        (stdin || stdout || stderr).then_some(StreamOptions { stdin, stdout, stderr, tty })
    }
}

/// Reads the ports of a WebSocket's query; other clients name them in the stream. Upstream:
/// `portforward.NewV4Options`.
fn ports(request: &Request, query: &[(String, String)]) -> Result<Vec<i32>, String> {
    let upgrade = request.header("upgrade").unwrap_or_default();
    if !upgrade.eq_ignore_ascii_case("websocket") {
        return Ok(Vec::new());
    }
    let given: Vec<_> = query.iter().filter(|(name, _)| name == "port").map(|(_, v)| v).collect();
    if given.is_empty() {
        return Err("query parameter \"port\" is required".to_owned());
    }
    let mut ports = Vec::new();
    for text in given {
        if text.is_empty() {
            return Err("query parameter \"port\" cannot be empty".to_owned());
        }
        for port in text.split(',') {
            match port.parse::<u16>() {
                Ok(0) => return Err(format!("port {text:?} must be > 0")),
                Ok(port) => ports.push(port.into()),
                Err(error) => return Err(format!("unable to parse {text:?} as a port: {error}")),
            }
        }
    }
    Ok(ports)
}

/// Answers the requests to containers.
struct Containers {
    kubelet: Arc<Kubelet>,
    limits: StreamLimits,
}

impl Containers {
    /// Parses a request for a container or pod, checks its method, and carries out the action.
    async fn answer(&self, path: &str, action: Action, request: Request) -> Response {
        let below = request.path.strip_prefix(path).unwrap_or_default();
        let Some(target) = Target::parse(action, below) else {
            return Response::text(404, "404: Page Not Found");
        };
        let methods: &[Method] = match action {
            Action::Logs => &[Method::GET],
            Action::Run | Action::Checkpoint => &[Method::POST],
            Action::Exec | Action::Attach | Action::PortForward => &[Method::GET, Method::POST],
        };
        if !methods.contains(&request.method) {
            return super::method_not_allowed();
        }
        let query: Vec<(String, String)> = request
            .query_pairs()
            .map(|(name, value)| (percent::decode_query(name), percent::decode_query(value)))
            .collect();
        let outcome = match action {
            Action::Logs => self.logs(&target, &query).await,
            Action::Exec | Action::Attach => self.stream(action, &target, &query, request).await,
            Action::PortForward => self.port_forward(&target, &query, request).await,
            Action::Run => self.run(&target, &query).await,
            Action::Checkpoint => self.checkpoint(&target),
        };
        outcome.unwrap_or_else(|refusal| refusal)
    }

    fn pod(&self, target: &Target) -> Result<(Arc<Pod>, PodStatus), Response> {
        let found = self.kubelet.named(&target.namespace, &target.pod);
        found.ok_or_else(|| Response::text(404, "pod does not exist"))
    }

    /// Returns the id of a container that runs; `None`: it does not run, or its pod has another
    /// uid. Upstream: `findContainer`.
    async fn running(&self, pod: &Pod, target: &Target) -> Result<Option<String>, Response> {
        if !target.uid.is_empty() && !self.kubelet.has_uid(pod, &target.uid) {
            return Ok(None);
        }
        let found = status::read(&self.kubelet.manager().runtime, &pod.uid()).await;
        let found = found.map_err(|error| call_failure(&error))?;
        let container = found.container(&target.container);
        Ok(container.filter(|one| one.state == State::Running).map(|one| one.id.clone()))
    }

    /// Passes a client's exec or attach to the streaming server that the runtime names.
    async fn stream(
        &self,
        action: Action,
        target: &Target,
        query: &[(String, String)],
        request: Request,
    ) -> Result<Response, Response> {
        let options = StreamOptions::parse(query).ok_or_else(|| {
            Response::text(400, "you must specify at least 1 of stdin, stdout, stderr")
        })?;
        let (pod, _) = self.pod(target)?;
        let name = &target.container;
        let Some(container_id) = self.running(&pod, target).await? else {
            let text = match action {
                Action::Exec => format!("container not found ({name:?})"),
                _ => format!("container {name} not found in pod {}", pod.full_name()),
            };
            return Err(Response::text(500, text));
        };
        let StreamOptions { stdin, stdout, stderr, tty } = options;
        let runtime = &self.kubelet.manager().runtime;
        let url = match action {
            Action::Exec => {
                let cmd = query.iter().filter(|(name, _)| name == "command");
                let cmd = cmd.map(|(_, word)| word.clone()).collect();
                let call = api::ExecRequest { container_id, cmd, tty, stdin, stdout, stderr };
                runtime.exec(call).await.map(|answer| answer.url)
            }
            _ => {
                // As the container was made.
                let tty = has_terminal(&pod, name).unwrap_or_default();
                let stderr = stderr && !tty;
                let call = api::AttachRequest { container_id, stdin, tty, stdout, stderr };
                runtime.attach(call).await.map(|answer| answer.url)
            }
        };
        self.proxy(request, url).await
    }

    /// Forwards ports of a running pod: asks the runtime for a stream, and passes the request on to
    /// it.
    async fn port_forward(
        &self,
        target: &Target,
        query: &[(String, String)],
        request: Request,
    ) -> Result<Response, Response> {
        let port = ports(&request, query).map_err(|fault| Response::text(400, fault))?;
        let (pod, _) = self.pod(target)?;
        // As upstream: the uid of a mirror pod is not accepted here.
        if !target.uid.is_empty() && *target.uid != *pod.uid() {
            return Err(Response::text(404, "pod not found"));
        }
        let runtime = &self.kubelet.manager().runtime;
        let found =
            status::read(runtime, &pod.uid()).await.map_err(|error| call_failure(&error))?;
        let sandbox = found.sandboxes.first().filter(|_| found.has_running());
        let Some(sandbox) = sandbox else {
            return Err(Response::text(500, format!("pod not found ({:?})", pod.full_name())));
        };
        let call = api::PortForwardRequest { pod_sandbox_id: sandbox.id.clone(), port };
        let url = runtime.port_forward(call).await.map(|answer| answer.url);
        self.proxy(request, url).await
    }

    /// Passes a request on to the address of a stream that the runtime has given.
    async fn proxy(
        &self,
        request: Request,
        url: Result<String, cri::Error>,
    ) -> Result<Response, Response> {
        let url = url.map_err(|error| call_failure(&error))?;
        let answer = streams::proxy(request, &url, &self.limits).await;
        answer.map_err(|error| streams::failure(&error))
    }

    /// Runs a command to its end and answers with its output.
    async fn run(&self, target: &Target, query: &[(String, String)]) -> Result<Response, Response> {
        let (pod, _) = self.pod(target)?;
        let Some(id) = self.running(&pod, target).await? else {
            let text = format!("container not found ({:?})", target.container);
            return Err(Response::text(500, text));
        };
        let words = query.iter().find(|(name, _)| name == "cmd").map(|(_, words)| words.as_str());
        let words = words.unwrap_or_default();
        let command: Vec<String> = words.split(' ').map(str::to_owned).collect();
        let runtime = &self.kubelet.manager().runtime;
        let output = runtime.exec_sync(&id, &command, None).await;
        let output = output.map_err(|error| Response::text(500, chain(&error)))?;
        if output.exit_code != 0 {
            let (code, stderr) = (output.exit_code, String::from_utf8_lossy(&output.stderr));
            let text = format!("command '{words}' exited with {code}: {stderr}");
            return Err(Response::text(500, text));
        }
        let output = [output.stdout, output.stderr].concat();
        Ok(Response::new(200, "application/json", output))
    }

    /// Refuses a checkpoint of a container, which this kubelet does not make.
    fn checkpoint(&self, target: &Target) -> Result<Response, Response> {
        let (pod, _) = self.pod(target)?;
        let Target { namespace, pod: name, container, .. } = target;
        if has_terminal(&pod, container).is_none() {
            return Err(Response::text(404, format!("container {container} does not exist")));
        }
        let text = format!(
            "checkpointing of {namespace}/{name}/{container} failed (rpc error: code = \
             Unimplemented desc = this kubelet makes no checkpoints)"
        );
        Err(Response::text(500, text))
    }

    /// Answers a request for a container's log, which is followed if the client asks for that.
    async fn logs(
        &self,
        target: &Target,
        query: &[(String, String)],
    ) -> Result<Response, Response> {
        for (part, message) in [
            (&target.pod, "Missing podID."),
            (&target.container, "Missing container name."),
            (&target.namespace, "Missing podNamespace."),
        ] {
            if part.is_empty() {
                return Err(Response::text(400, format!("{{\"message\": {message:?}}}")));
            }
        }
        let manager = self.kubelet.manager();
        let micros = manager.clock.now().as_micros();
        let nanos = u32::try_from(micros.rem_euclid(1_000_000) * 1000).unwrap_or_default();
        let now = Stamp::of(micros.div_euclid(1_000_000), nanos);
        let options = LogOptions::parse(query, now).map_err(|error| {
            let is_query = matches!(error, logs::Error::Query);
            Response::text(if is_query { 400 } else { 422 }, error.to_string())
        })?;
        let Target { namespace, pod: name, container, .. } = target;
        let found = self.kubelet.named(namespace, name);
        let (pod, status) =
            found.ok_or_else(|| Response::text(404, format!("pod {name:?} does not exist")))?;
        if has_terminal(&pod, container).is_none() {
            let text = format!("container {container:?} not found in pod {name:?}");
            return Err(Response::text(404, text));
        }
        let id = container_with_log(name, &status, container, options.previous);
        let id = id.map_err(|text| Response::text(400, text))?;
        match self.open(&pod, &id, &options).await {
            Ok(reader) => Ok(body(reader)),
            // As upstream, whose answer has begun by then; not where it has nothing to begin with.
            Err(text) if options.streams == Streams::Stderr => Err(Response::text(400, text)),
            Err(text) => Err(Response::text(200, text)),
        }
    }

    /// Opens the log of a container, whose path the runtime knows. `id`: with the runtime's name in
    /// front.
    async fn open(&self, pod: &Pod, id: &str, options: &LogOptions) -> Result<LogReader, String> {
        let manager = self.kubelet.manager();
        let own = id.split_once("://").map_or(id, |(_, own)| own);
        let request = api::ContainerStatusRequest { container_id: own.to_owned(), verbose: false };
        let answer = manager.runtime.container_status(request).await;
        let path = match answer.map(|answer| answer.status.unwrap_or_default().log_path) {
            Ok(path) if !path.is_empty() => path,
            Ok(_) => return Err(format!("unable to retrieve container logs for {id}")),
            Err(error) => {
                log::debug!("{}", chain(&error));
                return Err(format!("unable to retrieve container logs for {id}"));
            }
        };
        let folders = &manager.folders;
        let log = LogFile::new(&folders.logs, &folders.pod_logs(pod), path.as_ref());
        let log = log.map_err(|error| chain(&error))?;
        let is_running = logs::is_running(&manager.runtime, own);
        let reader = LogReader::open(log, options, is_running, &manager.clock).await;
        reader.map_err(|error| chain(&error))
    }
}

/// Returns whether the container of a name, of any kind, was made with a terminal; `None`: there is
/// no such container. Upstream: `GetContainerSpec`.
fn has_terminal(pod: &Pod, name: &str) -> Option<bool> {
    let mut ephemeral = pod.ephemeral_containers().iter();
    let tty = match pod.container(name) {
        Some(container) => container.tty,
        None => ephemeral.find(|container| container.name == name)?.tty,
    };
    Some(tty.unwrap_or_default())
}

/// Streams the log as the body of an answer. A fault is its last line, as the head is sent by then.
fn body(reader: LogReader) -> Response {
    let parts = stream::unfold(Some(reader), |reader| async {
        let mut reader = reader?;
        match reader.next().await? {
            Ok(bytes) => Some((Ok(Bytes::from(bytes)), Some(reader))),
            Err(error) => Some((Ok(Bytes::from(chain(&error))), None)),
        }
    });
    Response::stream(200, "text/plain; charset=utf-8", Box::pin(parts))
}

/// Builds the answer to the runtime's refusal of a stream. Upstream: `streaming.WriteError`.
fn call_failure(error: &cri::Error) -> Response {
    let text = chain(error);
    match error.code() {
        Some(cri::Code::NotFound) => Response::text(404, text),
        Some(cri::Code::ResourceExhausted) => {
            Response::text(429, text).with_header(RETRY_AFTER, TOKEN_SECONDS)
        }
        _ => Response::text(500, text),
    }
}

/// Returns the id of the container whose log is asked for. Upstream: `validateContainerLogStatus`.
///
/// # Errors
/// Why it has no log, in upstream's words.
fn container_with_log(
    pod: &str,
    status: &PodStatus,
    container: &str,
    previous: bool,
) -> Result<String, String> {
    let lists = [
        &status.container_statuses,
        &status.init_container_statuses,
        &status.ephemeral_container_statuses,
    ];
    let mut all = lists.into_iter().flatten().flatten();
    let found = all.find(|status| status.name == container);
    let place = format!("container {container:?} in pod {pod:?}");
    let Some(ContainerStatus { container_id, last_state, state, .. }) = found else {
        return Err(format!("{place} is not available"));
    };
    let id = |id: &Option<String>| id.clone().filter(|id| !id.is_empty());
    let last = last_state.as_ref().and_then(|state| state.terminated.as_ref());
    let last_id = last.and_then(|last| id(&last.container_id));
    if previous {
        return last_id.ok_or_else(|| format!("previous terminated {place} not found"));
    }
    let ended = || format!("{place} is terminated");
    let state = state.clone().unwrap_or_default();
    if state.running.is_some() {
        return Ok(container_id.clone().unwrap_or_default());
    }
    if let Some(terminated) = state.terminated {
        // The next container may not have started.
        return id(&terminated.container_id).or(last_id).ok_or_else(ended);
    }
    if last.is_some() {
        return last_id.ok_or_else(ended);
    }
    let waits = format!("{place} is waiting to start");
    Err(match state.waiting.map(|waiting| waiting.reason.unwrap_or_default()).as_deref() {
        Some("ErrImagePull") => format!("{waits}: image can't be pulled"),
        Some("ImagePullBackOff") => format!("{waits}: trying and failing to pull image"),
        Some(reason) => format!("{waits}: {reason}"),
        None => format!("{waits} - no logs yet"),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn paths_name_pods_and_containers() {
        let target = |parts: [&str; 4]| {
            let [namespace, pod, uid, container] = parts.map(str::to_owned);
            Some(Target { namespace, pod, uid, container })
        };
        for (action, path, expected) in [
            (Action::Logs, "/ns/p/c", target(["ns", "p", "", "c"])),
            (Action::Logs, "/ns/p/u/c", None),
            (Action::Logs, "/ns/p", None),
            (Action::Logs, "", None),
            (Action::Logs, "/ns/%70/c", target(["ns", "p", "", "c"])),
            (Action::Logs, "/ns/p/a%2Fb", target(["ns", "p", "", "a/b"])),
            (Action::Exec, "/ns/p/c", target(["ns", "p", "", "c"])),
            (Action::Exec, "/ns/p/u/c", target(["ns", "p", "u", "c"])),
            (Action::Exec, "/ns/p/u/c/x", None),
            (Action::Run, "/ns/p/u/c", target(["ns", "p", "u", "c"])),
            (Action::PortForward, "/ns/p", target(["ns", "p", "", ""])),
            (Action::PortForward, "/ns/p/u", target(["ns", "p", "u", ""])),
            (Action::PortForward, "/ns/p/u/c", None),
            (Action::Checkpoint, "/ns/p/c", target(["ns", "p", "", "c"])),
            (Action::Checkpoint, "/ns/p/u/c", None),
        ] {
            assert_eq!(Target::parse(action, path), expected, "{action:?} {path}");
        }
    }

    #[test]
    fn containers_of_all_kinds_are_found_with_their_terminals() {
        let pod = json!({"metadata": {}, "spec": {
            "containers": [{"name": "c", "tty": true}],
            "initContainers": [{"name": "i"}],
            "ephemeralContainers": [{"name": "e", "tty": true}, {"name": "f"}],
        }});
        let pod: Pod = serde_json::from_value(pod).expect("a pod");
        for (name, expected) in [
            ("c", Some(true)),
            ("i", Some(false)),
            ("e", Some(true)),
            ("f", Some(false)),
            ("x", None),
        ] {
            assert_eq!(has_terminal(&pod, name), expected, "{name}");
        }
    }

    #[test]
    fn streams_are_chosen_by_the_query() {
        let options = |bits: [bool; 4]| {
            let [stdin, stdout, stderr, tty] = bits;
            Some(StreamOptions { stdin, stdout, stderr, tty })
        };
        for (query, expected) in [
            ("", None),
            ("input=1", options([true, false, false, false])),
            ("input=true", None),
            ("output=1&error=1", options([false, true, true, false])),
            ("output=1&error=1&tty=1", options([false, true, false, true])),
            ("error=1&tty=1", None),
        ] {
            let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
            let pairs: Vec<_> = pairs.map(|(n, v)| (n.to_owned(), v.to_owned())).collect();
            assert_eq!(StreamOptions::parse(&pairs), expected, "{query}");
        }
    }

    #[test]
    fn websockets_name_their_ports() {
        for (is_websocket, given, expected) in [
            (false, &[][..], Ok(vec![])),
            (true, &["80"], Ok(vec![80])),
            (true, &["80,81", "82"], Ok(vec![80, 81, 82])),
            (true, &[], Err("query parameter \"port\" is required")),
            (true, &[""], Err("query parameter \"port\" cannot be empty")),
            (true, &["0"], Err("port \"0\" must be > 0")),
            (true, &["x"], Err("unable to parse \"x\" as a port: invalid digit found in string")),
        ] {
            let mut request = Request::get("/portForward/ns/p");
            if is_websocket {
                request.headers.insert("upgrade", "websocket".parse().expect("a header"));
            }
            let query = given.iter().map(|port| ("port".to_owned(), (*port).to_owned()));
            let found = ports(&request, &query.collect::<Vec<_>>());
            assert_eq!(found, expected.map_err(str::to_owned), "{given:?}");
        }
    }

    #[test]
    fn clients_of_a_busy_runtime_come_back_later() {
        let shown = |code| {
            let (method, message) = ("Exec", "busy".to_owned());
            let error = cri::Error::Status { method, code, message, retry_after: None };
            let failure = call_failure(&error);
            let later = failure.headers.iter().find(|(name, _)| *name == RETRY_AFTER);
            (failure.status, later.map(|(_, value)| value.clone()))
        };
        assert_eq!(
            shown(cri::Code::ResourceExhausted),
            (429, Some("60".parse().expect("a value")))
        );
        assert_eq!(shown(cri::Code::NotFound), (404, None));
        assert_eq!(shown(cri::Code::Internal), (500, None));
    }

    #[test]
    fn log_is_that_of_the_container_or_upstream_says_why_not() {
        let running = json!({"running": {}});
        let ended = |id: &str| json!({"terminated": {"exitCode": 0, "containerID": id}});
        let waits = |reason: &str| json!({"waiting": {"reason": reason}});
        let null = Value::Null;
        for (state, last, previous, expected) in [
            (&running, &null, false, Ok("r://now")),
            (&running, &ended("r://old"), true, Ok("r://old")),
            (
                &running,
                &null,
                true,
                Err("previous terminated container \"c\" in pod \"p\" not found"),
            ),
            (&ended("r://end"), &null, false, Ok("r://end")),
            (&ended(""), &ended("r://old"), false, Ok("r://old")),
            (&ended(""), &null, false, Err("container \"c\" in pod \"p\" is terminated")),
            (&waits("CrashLoopBackOff"), &ended("r://old"), false, Ok("r://old")),
            (
                &waits("CrashLoopBackOff"),
                &ended(""),
                false,
                Err("container \"c\" in pod \"p\" is terminated"),
            ),
            (
                &waits("ContainerCreating"),
                &null,
                false,
                Err("container \"c\" in pod \"p\" is waiting to start: ContainerCreating"),
            ),
            (
                &waits("ErrImagePull"),
                &null,
                false,
                Err("container \"c\" in pod \"p\" is waiting to start: image can't be pulled"),
            ),
            (
                &waits("ImagePullBackOff"),
                &null,
                false,
                Err(
                    "container \"c\" in pod \"p\" is waiting to start: trying and failing to pull image",
                ),
            ),
            (
                &json!({}),
                &null,
                false,
                Err("container \"c\" in pod \"p\" is waiting to start - no logs yet"),
            ),
        ] {
            for list in ["containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses"]
            {
                let one = json!({
                    "name": "c", "containerID": "r://now", "image": "", "imageID": "",
                    "ready": false, "restartCount": 0, "state": state, "lastState": last,
                });
                let status = serde_json::from_value(json!({ list: [one] })).expect("a status");
                let found = container_with_log("p", &status, "c", previous);
                let expected = expected.map(str::to_owned).map_err(str::to_owned);
                assert_eq!(found, expected, "{state} {last} {previous}");
                let other = container_with_log("p", &status, "d", previous);
                assert_eq!(other, Err("container \"d\" in pod \"p\" is not available".to_owned()));
            }
        }
    }
}
