//! Resyncs of informers in a controller.

use std::sync::Arc;
use std::time::Duration;

use kube_controller_manager::cache::SharedInformerFactory;
use kube_controller_manager::controllers::runner::Change;
use kube_controller_manager::controllers::{
    Controller, ControllerContext, ControllerContextParts, Profile, Queue, QueuePolicy,
};
use kube_controller_manager::objects::Node;
use kube_controller_manager::source::ClientSource;
use kube_controller_manager::task::{StopToken, spawn};

use crate::env::*;

#[test]
fn a_watch_has_the_factorys_resync_period_or_its_own() {
    Env::run("resync", async |env| {
        let source = ClientSource::new(env.client.clone());
        let second = Duration::from_secs(1);
        let factory = SharedInformerFactory::with_resync(source, env.clock.clone(), second);
        let context = ControllerContext::new(ControllerContextParts {
            options: Arc::default(),
            factory: factory.clone(),
            clients: Arc::new(env.client.clone()),
            clock: env.clock.clone(),
            extension: None,
        });
        let mut controller = Controller::new(Profile::new("resync"), &context).unwrap();
        let nodes = controller.lister::<Node>();
        let queue: Queue = controller.queue(QueuePolicy::default());
        let (sender, receiver) = async_channel::unbounded();
        let handler = |name: &'static str| {
            let sender = sender.clone();
            move |change: Change<'_, Node>, _: &Queue| {
                if let Change::Resync { .. } = change {
                    sender.try_send(name).unwrap();
                }
            }
        };
        controller.watch(&nodes, &queue, handler("default"));
        controller.watch_resyncing(&nodes, Some(Duration::from_secs(3600)), &queue, handler("own"));
        let stop = StopToken::new();
        factory.start(&stop);
        let running = spawn(controller.run(stop.clone()));
        for _ in 0..8 {
            assert_eq!(receiver.recv().await.unwrap(), "default");
        }
        stop.stop();
        running.await;
        factory.shutdown().await;
    });
}
