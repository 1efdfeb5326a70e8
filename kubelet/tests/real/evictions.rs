//! Pods of an API server that are evicted for the node's sake.

use kube_controller_manager::client::ListOptions;
use kube_controller_manager::objects::Quantity;
use kube_controller_manager::task;
use serde_json::{Value, json};

use super::api::{Agent, Server, sleeps};
use super::machine::{Error, Machine};
use super::pods::{condition, container, is_ready};
use super::registration::EVENTS;

/// More memory than any machine has, from soon after the start on.
const SHORT_OF_MEMORY: &str = "evictionSoft: {memory.available: 1Pi}\n\
                               evictionSoftGracePeriod: {memory.available: 20s}\n\
                               evictionMaxPodGracePeriod: 25\n";

/// The events of a reason about an object.
async fn events(server: &Server, object: &str, reason: &str) -> Vec<Value> {
    let events = server.client.resource(&EVENTS);
    let all = events.list::<Value>(Some("default"), &ListOptions::default()).await;
    let is_it =
        |event: &Value| event["involvedObject"]["name"] == object && event["reason"] == reason;
    all.expect("a list").items.into_iter().filter(is_it).collect()
}

fn is_failed(pod: &Value) -> bool {
    pod["status"]["phase"] == "Failed" && container(pod)["state"]["terminated"].is_object()
}

fn with_memory(mut spec: Value, request: &str) -> Value {
    spec["containers"][0]["resources"] = json!({"requests": {"memory": request}});
    spec
}

#[test]
fn pods_are_evicted_once_and_one_after_the_other() {
    let Some(_place) = super::node::place("evictions") else { return };
    let machine = match Machine::start(format!("/tmp/kevi{}", std::process::id()).into()) {
        Ok(machine) => machine,
        Err(Error::Missing(line)) => return eprintln!("evictions: {line}"),
        Err(Error::Failed(text)) => panic!("{text}"),
    };
    task::run(1, async move {
        let server = Server::start().await;
        let kubeconfig = server.sandbox.kubeconfig();
        let mut greedy = with_memory(sleeps(), "1Mi");
        // It ends by force only.
        let script = "trap '' TERM; dd if=/dev/zero of=/dev/shm/file bs=1M count=20; \
                      while true; do sleep 1; done";
        greedy["containers"][0]["command"] = json!(["sh", "-c", script]);
        greedy["terminationGracePeriodSeconds"] = json!(25);
        server.create("greedy", "n", json!({}), greedy).await;
        server.create("modest", "n", json!({}), with_memory(sleeps(), "100Mi")).await;
        let agent = Agent::start(&machine, &kubeconfig);
        server.eventually("greedy", "ready", is_ready).await;
        server.eventually("modest", "ready", is_ready).await;
        drop(agent);
        let agent = Agent::start_with(&machine, &kubeconfig, SHORT_OF_MEMORY);
        let modest = server.eventually("modest", "evicted", is_failed).await;
        let greedy = server.eventually("greedy", "evicted", is_failed).await;

        assert_eq!(greedy["status"]["reason"], "Evicted", "{greedy:#}");
        assert_eq!(condition(&greedy, "DisruptionTarget")["status"], "True");
        let evicted = events(&server, "greedy", "Evicted").await;
        let [event] = &evicted[..] else { panic!("{evicted:#?}\n{}", machine.log()) };
        assert_eq!((&event["count"], &event["message"]), (&json!(1), &greedy["status"]["message"]));
        let message = event["message"].as_str().expect("a message");
        let start = "The node was low on resource: memory. Threshold quantity: 1Pi, available: ";
        assert!(message.starts_with(start), "{message}");
        let end = ", request is 1Mi, has larger consumption of memory. ";
        assert!(message.ends_with(end), "{message}");
        let annotations = &event["metadata"]["annotations"];
        assert_eq!(annotations["starved_resource"], "memory");
        assert_eq!(annotations["offending_containers"], "main");
        let used = annotations["offending_containers_usage"].as_str().expect("an amount");
        assert!(used.parse::<Quantity>().expect("an amount").value() > 20 << 20, "{used}");
        assert!(!events(&server, "n", "EvictionThresholdMet").await.is_empty());

        // The other one goes only when what the first had is free.
        let ended = container(&greedy)["state"]["terminated"]["finishedAt"].as_str();
        let evicted = events(&server, "modest", "Evicted").await;
        let [event] = &evicted[..] else { panic!("{evicted:#?}\n{}", machine.log()) };
        assert!(event["firstTimestamp"].as_str() >= ended, "{event:#}\n{greedy:#}");
        assert_eq!(event["metadata"]["annotations"]["offending_containers"], "");
        assert_eq!(modest["status"]["reason"], "Evicted", "{modest:#}");
        drop(agent);
    });
}
