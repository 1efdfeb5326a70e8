//! The API server of a load.

use std::path::PathBuf;

use super::Result;
use super::measure::{PROGRAM, Requests};
use crate::cluster::{Cluster, administrator};
use crate::nodes::{NodeOptions, StandIns};
use crate::server::{Sandbox, SandboxOptions};
use kube_controller_manager::client::Client;

/// The API server, embedded or elsewhere, with a scheduler and nodes.
pub enum Server {
    Embedded(Box<Cluster>),
    Elsewhere { client: Client, stand_ins: StandIns, kubeconfig: PathBuf },
}

impl Server {
    /// Starts the sandbox in this process; with a kubeconfig, uses that API server and starts only
    /// the nodes.
    pub async fn start(
        options: SandboxOptions,
        kubeconfig: Option<PathBuf>,
        nodes: NodeOptions,
    ) -> Result<Server> {
        let Some(kubeconfig) = kubeconfig else {
            return Ok(Server::Embedded(Box::new(Cluster::start(options, nodes).await?)));
        };
        let client = administrator(&kubeconfig, "sandbox", &options.clock)?;
        let stand_ins = StandIns::start(&client, &options.clock, nodes);
        Ok(Server::Elsewhere { client, stand_ins, kubeconfig })
    }

    pub fn client(&self) -> &Client {
        match self {
            Server::Embedded(cluster) => &cluster.client,
            Server::Elsewhere { client, .. } => client,
        }
    }

    pub fn sandbox(&self) -> Option<&Sandbox> {
        match self {
            Server::Embedded(cluster) => Some(&cluster.sandbox),
            Server::Elsewhere { .. } => None,
        }
    }

    /// Returns the kubeconfig for a manager.
    pub fn kubeconfig(&self) -> PathBuf {
        match self {
            Server::Embedded(cluster) => cluster.manager_kubeconfig(),
            Server::Elsewhere { kubeconfig, .. } => kubeconfig.clone(),
        }
    }

    /// Returns the requests of the managers so far.
    pub fn traffic(&self) -> Requests {
        Some(self.sandbox()?.traffic().of(PROGRAM))
    }

    pub async fn stop(self) {
        match self {
            Server::Embedded(cluster) => cluster.stop().await,
            Server::Elsewhere { stand_ins, .. } => stand_ins.stop().await,
        }
    }
}
