//! The load of claims: some are bound to existing volumes, a driver creates volumes for others, and
//! all are deleted in the end.

use kube_controller_manager::cache::{Lister, SharedInformerFactory};
use kube_controller_manager::client::{Delete, ListOptions};
use kube_controller_manager::objects::{
    ObjectKey, PersistentVolume, PersistentVolumeClaim, Resource, StorageClass,
};
use kube_controller_manager::source::ClientSource;
use kube_controller_manager::task::StopToken;
use serde_json::{Value, json};

use super::manager_process::ManagerProcess;
use super::{NAMESPACE, POLL, Result, Run};
use crate::nodes::DRIVER;

/// The class of existing volumes, and the class for which the driver creates volumes.
const STATIC: &str = "load-static";
const MADE: &str = "load-made";
/// Sizes of volumes and claims.
const SIZES: usize = 10;

/// The claims and volumes of the API server, kept up to date by watches.
struct Seen {
    factory: SharedInformerFactory,
    stop: StopToken,
    claims: Lister<PersistentVolumeClaim>,
    volumes: Lister<PersistentVolume>,
}

impl Seen {
    /// Counts the claims in this phase that the informers have seen.
    fn claims(&self, phase: &str) -> usize {
        self.claims.list().iter().filter(|claim| claim.status.phase == *phase).count()
    }

    /// Counts the volumes in this phase that the informers have seen.
    fn volumes(&self, phase: &str) -> usize {
        self.volumes.list().iter().filter(|volume| volume.status.phase == *phase).count()
    }
}

impl Run {
    /// Runs the phases of a load of `count` claims, while informers watch them and their volumes.
    pub(super) async fn claims(
        &mut self,
        manager: &mut ManagerProcess,
        count: usize,
    ) -> Result<()> {
        let source = ClientSource::new(self.client.clone());
        let factory = SharedInformerFactory::new(source, self.clock.clone());
        let stop = StopToken::new();
        let claims = factory.informer::<PersistentVolumeClaim>().lister();
        let volumes = factory.informer::<PersistentVolume>().lister();
        factory.start(&stop);
        let seen = Seen { factory, stop, claims, volumes };
        let ended = self.claim_phases(manager, count, &seen).await;
        seen.stop.stop();
        seen.factory.shutdown().await;
        ended
    }

    /// Measures the life of `count` claims: bound to existing volumes, deleted, then provisioned by
    /// a driver and deleted again.
    async fn claim_phases(
        &mut self,
        manager: &mut ManagerProcess,
        count: usize,
        seen: &Seen,
    ) -> Result<()> {
        for (name, provisioner) in [(STATIC, "kubernetes.io/no-provisioner"), (MADE, DRIVER)] {
            self.create(&StorageClass::RESOURCE, "", &class(name, provisioner)).await?;
        }

        self.phase("volumes");
        let mark = self.start_mark(Some(manager))?;
        for n in 0..count {
            self.create(&PersistentVolume::RESOURCE, "", &volume(n)).await?;
        }
        let available = || seen.volumes("Available") == count;
        self.wait_for(manager, "volumes are available", available).await?;
        self.add_row("volumes available", manager, mark).await?;

        self.phase("claims");
        let mark = self.start_mark(Some(manager))?;
        self.create_claims(count, STATIC).await?;
        self.wait_for(manager, "claims are bound", || seen.claims("Bound") == count).await?;
        self.add_row("claims bound", manager, mark).await?;
        let mark = self.start_mark(Some(manager))?;
        self.wait_until_settled(manager).await?;
        self.add_row("settled, bound", manager, mark).await?;

        self.phase("deletion of the claims");
        let mark = self.start_mark(Some(manager))?;
        self.delete_claims().await?;
        let released = || seen.claims.is_empty() && seen.volumes("Released") == count;
        self.wait_for(manager, "volumes are released", released).await?;
        self.add_row("volumes released", manager, mark).await?;
        let mark = self.start_mark(Some(manager))?;
        for n in 0..count {
            let key = ObjectKey::cluster(&volume_name(n));
            self.client.delete::<PersistentVolume>(&key, Delete::new()).await?;
        }
        self.wait_for(manager, "volumes are gone", || seen.volumes.is_empty()).await?;
        self.add_row("volumes gone", manager, mark).await?;

        self.phase("claims of a driver");
        let mark = self.start_mark(Some(manager))?;
        self.create_claims(count, MADE).await?;
        self.wait_for(manager, "volumes are made", || seen.claims("Bound") == count).await?;
        self.add_row("claims provisioned", manager, mark).await?;
        let mark = self.start_mark(Some(manager))?;
        self.wait_until_settled(manager).await?;
        self.add_row("settled, provisioned", manager, mark).await?;

        self.phase("deletion of the claims");
        let mark = self.start_mark(Some(manager))?;
        self.delete_claims().await?;
        let gone = || seen.claims.is_empty() && seen.volumes.is_empty();
        self.wait_for(manager, "claims and volumes are gone", gone).await?;
        self.add_row("claims, volumes deleted", manager, mark).await?;
        let mark = self.start_mark(Some(manager))?;
        self.wait_until_settled(manager).await?;
        self.add_row("settled, empty again", manager, mark).await
    }

    async fn create_claims(&self, count: usize, class: &str) -> Result<()> {
        for n in 0..count {
            let claim = claim(n, class);
            self.create(&PersistentVolumeClaim::RESOURCE, NAMESPACE, &claim).await?;
        }
        Ok(())
    }

    async fn delete_claims(&self) -> Result<()> {
        let claims = self.client.resource(&PersistentVolumeClaim::RESOURCE);
        let all = ListOptions::default();
        Ok(claims.delete_collection(Some(NAMESPACE), Delete::new(), &all).await?)
    }

    /// Waits until `done` returns true. Fails when the manager ends, or after the patience. `what`:
    /// what the error says.
    async fn wait_for(
        &self,
        manager: &mut ManagerProcess,
        what: &str,
        done: impl Fn() -> bool,
    ) -> Result<()> {
        let give_up = self.clock.monotonic() + self.patience;
        while !done() {
            self.check_alive(manager)?;
            if self.clock.monotonic() > give_up {
                return Err(format!("{what}: not after {:?}", self.patience).into());
            }
            self.clock.sleep(POLL).await;
        }
        Ok(())
    }
}

fn class(name: &str, provisioner: &str) -> Value {
    json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": { "name": name },
        "provisioner": provisioner, "volumeBindingMode": "Immediate", "reclaimPolicy": "Delete",
    })
}

fn size(n: usize) -> String {
    format!("{}Gi", n % SIZES + 1)
}

fn volume_name(n: usize) -> String {
    format!("load-volume-{n}")
}

/// Builds the volume with this number, as an administrator provides it by hand.
fn volume(n: usize) -> Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": { "name": volume_name(n) },
        "spec": {
            "capacity": { "storage": size(n) }, "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Retain", "storageClassName": STATIC,
            "csi": { "driver": "static.example.com", "volumeHandle": format!("handle-{n}") },
        },
    })
}

/// Builds the claim with this number.
fn claim(n: usize, class: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": { "name": format!("claim-{n}"), "labels": { "app": format!("app-{}", n % 100) } },
        "spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": class,
            "resources": { "requests": { "storage": size(n) } },
        },
    })
}
