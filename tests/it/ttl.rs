//! The TTL annotation of nodes.

use kube_controller_manager::client::{ListOptions, Patch};
use kube_controller_manager::objects::{Node, Object};
use serde_json::json;

use crate::env::*;

const ANNOTATION: &str = "node.alpha.kubernetes.io/ttl";

#[test]
fn every_node_has_the_ttl_of_a_small_cluster() {
    everywhere("ttl", async |env| {
        let _manager = env.manager("manager", &[]);
        let (client, clock) = (&env.client, &env.clock);
        let all_have_it = || async {
            let nodes: Vec<Node> = client.list(None, &ListOptions::default()).await.unwrap();
            let ttl = |node: &Node| node.meta.annotations.get(ANNOTATION).map(str::to_owned);
            let found: Vec<Option<String>> = nodes.iter().map(ttl).collect();
            let good = !nodes.is_empty() && found.iter().all(|ttl| ttl.as_deref() == Some("0"));
            if good { Ok(nodes) } else { Err(format!("{found:?}")) }
        };
        let nodes = eventually(clock, "the nodes are annotated", all_have_it).await;
        for (node, wrong) in nodes.iter().zip(["15", "soon"].into_iter().cycle()) {
            let body = json!({ "metadata": { "annotations": { ANNOTATION: wrong } } });
            client.patch::<Node>(&node.meta().key(), &Patch::Merge(body)).await.unwrap();
        }
        eventually(clock, "changed annotations are corrected", all_have_it).await;
    });
}
