//! Volumes of CSI drivers: attached, staged and published for a pod, and the way back. What undoes a
//! call is on the disk before the call, so a kubelet that starts finishes what an earlier one has
//! begun. Upstream: `csi_attacher.go`, `csi_mounter.go`, `csi_block.go`.

mod disk;
mod limit;
mod volume;

use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::storage::v1 as storage;
use kube_controller_manager::objects::{ObjectKey, ResourceType};
use kube_controller_manager::task;
use serde_json::{Value, json};

pub(super) use self::disk::{
    FOLDER, Published, Staged, absent_is_fine, entries, make_link, published, staged, users,
};
use self::disk::{UPSTREAMS_DEVICES, remove_published, remove_staged};
pub(super) use self::volume::{CsiVolume, Handle};
use self::volume::{plugin, string_map};
use super::claim::Bound;
use super::manager::{Inner, Mounted, Server};
use super::ownership::{self, Progress};
use super::{CLOSED, Error, fs_group, loop_device, make_all};
use crate::csi::{
    Capabilities, CsiDriver, Driver, Lifecycle, Publish, VolumeData, attachment_name, unique_name,
};
use crate::objects::Unavailable;
use crate::pod::{Pod, PodExt, Uid};

const SECRETS: ResourceType = ResourceType::fixed("", "v1", "Secret", "secrets", true);
const ATTACHMENTS: ResourceType =
    ResourceType::fixed("storage.k8s.io", "v1", "VolumeAttachment", "volumeattachments", false);

impl Inner {
    /// Stages and publishes a driver's volume for a pod, once it is attached, and expands it where
    /// that is due. May be repeated. `bound`: its claim, for a persistent volume; `is_published`:
    /// this process has published it before, so it is published again only if its CSIDriver asks
    /// for that.
    pub(super) async fn mount_csi(
        &self,
        pod: &Pod,
        volume: &CsiVolume,
        bound: Option<&Bound>,
        is_published: bool,
    ) -> Result<Mounted, Error> {
        let server = self.server.as_ref().ok_or(Error::NoServer)?;
        let name = &volume.name;
        // Upstream's names of the steps, for errors.
        let (set_up, device_step, wait_step) = match volume.is_block {
            true => (
                "MapVolume.MapPodDevice failed",
                "MapVolume.SetUpDevice failed",
                "MapVolume.WaitForAttach failed",
            ),
            false => (
                "MountVolume.SetUp failed",
                "MountVolume.MountDevice failed",
                "MountVolume.WaitForAttach failed",
            ),
        };
        let in_set_up = Error::in_step(set_up, name);
        let object = server.csi_drivers.get(&volume.driver).map_err(|e| in_set_up(e.into()))?;
        if let Some(refusal) = object.refusal(&volume.driver, volume.lifecycle) {
            return Err(in_set_up(Error::Lifecycle(refusal)));
        }
        if volume.is_exclusive() {
            let users = self.users(self.staged_form(volume)).await.map_err(&in_set_up)?;
            if users.iter().any(|user| **user != *pod.uid()) {
                return Err(in_set_up(Error::UsedByOther));
            }
        }
        let (plugin, migrated) = (plugin(&volume.driver), volume.migrated);
        if migrated {
            self.state.lock().migrated.insert(volume.device());
        }
        let attached = self.check_attached(server, volume, &object);
        // Upstream's metric counts the check only for volumes that are attached.
        let context = match volume.lifecycle == Lifecycle::Persistent && object.attaches() {
            true => {
                let operation = "verify_controller_attached_volume";
                self.counted(&plugin, operation, migrated, attached).await
            }
            false => attached.await,
        };
        let context = context.map_err(Error::in_step(wait_step, name))?;
        let driver = self.drivers.get(&volume.driver).map_err(|e| in_set_up(e.into()))?;
        let able = driver.capabilities(migrated).await.map_err(|e| in_set_up(e.into()))?;
        let call = CsiCall { server, driver, able, object, context };
        let mut staging = String::new();
        if volume.lifecycle == Lifecycle::Persistent && able.stages {
            staging =
                self.stage(&call, pod, volume).await.map_err(Error::in_step(device_step, name))?;
        }
        let path = match is_published && !call.object.republishes() {
            true => self.published_path(pod, volume),
            false => {
                let operation = if volume.is_block { "map_volume" } else { "volume_mount" };
                let path = self.publish(&call, pod, volume, &staging);
                self.counted(&plugin, operation, migrated, path).await.map_err(in_set_up)?
            }
        };
        if let Some(bound) = bound {
            // The volume is not in use by this pod yet: its driver may expand it now.
            if !is_published {
                self.state.lock().not_expanded.remove(&volume.device());
            }
            // The driver's own path, not the link to it.
            let published = match volume.is_block {
                true => self.folders.published_block(name, &pod.uid()),
                false => path.clone(),
            };
            self.expand(&call, pod, volume, bound, &published, &staging).await?;
        }
        let group = bound.and_then(Bound::group);
        let persistent = bound.map(|bound| bound.name().to_owned());
        let (read_only, is_device) = (volume.read_only, volume.is_block);
        Ok(Mounted { path, read_only, is_device, group, persistent })
    }

    /// Returns where containers have a published volume.
    fn published_path(&self, pod: &Pod, volume: &CsiVolume) -> PathBuf {
        match volume.is_block {
            true => self.folders.device_link(&pod.uid(), FOLDER, &volume.name),
            false => self.folders.published(&pod.uid(), &volume.name).join("mount"),
        }
    }

    /// Lists the uids of the pods that use a volume, by the files in their folders.
    async fn users(&self, of: Staged) -> Result<Vec<String>, Error> {
        let folders = self.folders.clone();
        let users = task::blocking(move || users(&folders, &of).map_err(Error::at(folders.pods())));
        users.await
    }

    /// Describes where a volume is or will be staged: its folders on the disk.
    fn staged_form(&self, volume: &CsiVolume) -> Staged {
        let (driver, handle) = (volume.driver.clone(), volume.handle.clone());
        match volume.is_block {
            true => Staged {
                driver,
                handle,
                folder: self.folders.block_data(&volume.name),
                path: self.folders.staged_block(&volume.name),
                block: Some(volume.name.clone()),
            },
            false => {
                let folder = self.folders.staged(&driver, &handle);
                Staged { driver, handle, path: folder.join("globalmount"), folder, block: None }
            }
        }
    }

    /// Checks that a volume is attached to this node, and returns what the attachment says to the
    /// driver; nothing for a volume that is not attached by a controller. Upstream:
    /// `GenerateVerifyControllerAttachedVolumeFunc`, `WaitForAttach`.
    async fn check_attached(
        &self,
        server: &Server,
        volume: &CsiVolume,
        object: &CsiDriver,
    ) -> Result<HashMap<String, String>, Error> {
        if volume.lifecycle == Lifecycle::Ephemeral || !object.attaches() {
            return Ok(HashMap::new());
        }
        if !self.controller_attaches {
            return Err(Error::AttachesItself);
        }
        let unique = volume.device();
        if !self.in_use.add(&unique) {
            return Err(Error::NotInUse);
        }
        let node = self.own.registered();
        let status = node.as_ref().and_then(|node| node.status.as_ref());
        let mut attached = status.and_then(|s| s.volumes_attached.as_ref()).into_iter().flatten();
        if !attached.any(|attached| attached.name == unique) {
            return Err(Error::NotAttached(unique));
        }
        let name = attachment_name(&volume.handle, &volume.driver, self.own.name());
        let attachments = server.client.resource(&ATTACHMENTS);
        let found = attachments.get(&ObjectKey::cluster(&name)).await;
        let attachment: storage::VolumeAttachment =
            found.map_err(|source| Error::FetchAttachment {
                volume: volume.handle.clone(),
                attachment: name.clone(),
                source: source.into(),
            })?;
        check_attachment(&attachment, &volume.handle)
    }

    /// Reads a Secret of a volume for a call to its driver; without a `key` it is empty. `what`:
    /// the volume's field, for the error.
    async fn secret(
        &self,
        server: &Server,
        what: &'static str,
        key: Option<&ObjectKey>,
    ) -> Result<HashMap<String, String>, Error> {
        let Some(key) = key else { return Ok(HashMap::new()) };
        let found = server.client.resource(&SECRETS).get(key).await;
        let secret: core::Secret = found.map_err(|source| Error::FetchSecret {
            what,
            namespace: key.namespace.to_string(),
            name: key.name.to_string(),
            source: source.into(),
        })?;
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        let data = secret.data.into_iter().flatten();
        Ok(data.map(|(key, value)| (key, text(value.0))).collect())
    }

    /// Stages a volume on the node, unless that is done, and returns the staging path. Upstream:
    /// `MountDevice`, `stageVolumeForBlock`.
    async fn stage(
        &self,
        call: &CsiCall<'_>,
        pod: &Pod,
        volume: &CsiVolume,
    ) -> Result<String, Error> {
        let of = self.staged_form(volume);
        let path = of.path.display().to_string();
        if self.state.lock().staged.contains(&of.path) {
            return Ok(path);
        }
        let what = "NodeStageSecretRef";
        let secrets = self.secret(call.server, what, volume.stage_secret.as_ref()).await?;
        let data = VolumeData {
            driver_name: volume.driver.clone(),
            volume_handle: volume.handle.clone(),
            ..VolumeData::default()
        };
        let new = of.clone();
        let made = task::blocking(move || -> Result<bool, Error> {
            make_all(&new.folder, CLOSED).map_err(Error::at(&new.folder))?;
            make_all(&new.path, CLOSED).map_err(Error::at(&new.path))?;
            // A file that cannot be read was written by an earlier attempt too.
            let was_begun = VolumeData::load(&new.folder).map_or(true, |data| data.is_some());
            data.save(&new.folder)?;
            Ok(was_begun)
        });
        let was_begun = made.await?;
        let group = fs_group(pod).filter(|_| call.able.sets_group);
        let mut request = volume.call(&of.path, group);
        request.publish_context = call.context.clone();
        request.secrets = secrets;
        match call.driver.stage(call.able, request).await {
            Ok(()) => {
                self.state.lock().staged.insert(of.path);
                Ok(path)
            }
            Err(error) => {
                // Files of a volume that may be staged stay: its driver has to unstage it first.
                if error.is_final() && !was_begun {
                    log_failure(self.forget_staged(of).await);
                }
                Err(error.into())
            }
        }
    }

    /// Removes the files of a volume that is certainly not staged, unless a pod has it published.
    async fn forget_staged(&self, of: Staged) -> Result<(), Error> {
        match self.users(of.clone()).await?.is_empty() {
            true => task::blocking(move || remove_staged(&of)).await,
            false => Ok(()),
        }
    }

    /// Publishes a volume for a pod; returns where containers have it. Upstream: `SetUpAt`,
    /// `MapPodDevice`.
    async fn publish(
        &self,
        call: &CsiCall<'_>,
        pod: &Pod,
        volume: &CsiVolume,
        staging: &str,
    ) -> Result<PathBuf, Error> {
        let uid = pod.uid();
        let (path, folder) = match volume.is_block {
            true => {
                let path = self.folders.published_block(&volume.name, &uid);
                (path, self.folders.block_data(&volume.name))
            }
            false => {
                let folder = self.folders.published(&uid, &volume.name);
                (folder.join("mount"), folder)
            }
        };
        let what = "NodePublishSecretRef";
        let mut secrets = self.secret(call.server, what, volume.publish_secret.as_ref()).await?;
        let mut attributes = volume.attributes.clone();
        if call.object.wants_pod() {
            attributes.extend(pod_info(pod, volume.lifecycle));
        }
        let tokens = self.tokens(pod, &call.object).await?;
        match call.object.has_tokens_in_secrets() {
            true => secrets.extend(tokens),
            false => attributes.extend(tokens),
        }
        let data = VolumeData {
            driver_name: volume.driver.clone(),
            volume_handle: volume.handle.clone(),
            volume: volume.name.clone(),
            node_name: self.own.name().to_owned(),
            attachment: attachment_name(&volume.handle, &volume.driver, self.own.name()),
            lifecycle: Some(volume.lifecycle),
        };
        let link = volume.is_block.then(|| self.folders.device_link(&uid, FOLDER, &volume.name));
        let (of, new, to) = (folder.clone(), path.clone(), link);
        let made = task::blocking(move || -> Result<bool, Error> {
            make_all(&of, CLOSED).map_err(Error::at(&of))?;
            // A file that cannot be read was written by an earlier attempt too.
            let was_begun = VolumeData::load(&of).map_or(true, |data| data.is_some());
            data.save(&of)?;
            let parent = new.parent().unwrap_or(&new);
            make_all(parent, CLOSED).map_err(Error::at(parent))?;
            if let Some(link) = to {
                // It stands for the use of the volume, so it is there before the device.
                make_link(&new, &link).map_err(Error::at(link))?;
            }
            Ok(was_begun)
        });
        let was_begun = made.await?;
        let group = fs_group(pod);
        let mut stage = volume.call(&path, group.filter(|_| call.able.sets_group));
        stage.publish_context = call.context.clone();
        stage.attributes = attributes;
        stage.secrets = secrets;
        let request =
            Publish { stage, staging_path: staging.to_owned(), read_only: volume.read_only };
        if let Err(error) = call.driver.publish(call.able, request).await {
            // Files of an earlier attempt stay: it may have published the volume to containers.
            if error.is_final() && !was_begun && !volume.is_block {
                let removed = task::blocking(move || remove_published(&folder)).await;
                log_failure(removed);
            }
            return Err(error.into());
        }
        if let Some(group) = group
            && !call.able.sets_group
            && !volume.is_block
            && volume.gets_group(call.object.group_policy())
        {
            let security = pod.spec().security_context.as_ref();
            let policy = security.and_then(|s| s.fs_group_change_policy.as_deref());
            let only_if_needed = policy == Some("OnRootMismatch");
            let of = path.clone();
            let progress = Progress::default();
            let counted = progress.clone();
            let applied =
                task::blocking(move || ownership::apply(&of, group, only_if_needed, &counted));
            let applied = self.with_progress(pod, &path, &progress, applied);
            let volume = volume.handle.clone();
            applied.await.map_err(|source| Error::Ownership { volume, source })?;
        }
        Ok(self.published_path(pod, volume))
    }

    /// Fetches the tokens that a driver asks for. Returns the name and the value (JSON by audience)
    /// of the attribute that has them; `None`: it asks for none. Upstream:
    /// `podServiceAccountTokenAttrs`.
    async fn tokens(
        &self,
        pod: &Pod,
        object: &CsiDriver,
    ) -> Result<Option<(String, String)>, Error> {
        let wanted = object.tokens();
        if wanted.is_empty() {
            return Ok(None);
        }
        let found: Result<Vec<_>, Unavailable> = self.objects.tokens(pod, &wanted).await;
        let mut tokens = serde_json::Map::<String, Value>::new();
        for (audience, token, expires) in found.map_err(Error::NoObject)? {
            let token = json!({"token": &*token, "expirationTimestamp": expires.to_string()});
            tokens.insert(audience, token);
        }
        let name = "csi.storage.k8s.io/serviceAccount.tokens".to_owned();
        Ok(Some((name, Value::Object(tokens).to_string())))
    }

    /// Ends a pod's use of a volume of files, by the folder of its data. Upstream: `TearDownAt`.
    pub(super) async fn unpublish(&self, folder: PathBuf) -> Result<(), Error> {
        let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let in_step = Error::in_step("UnmountVolume.TearDown failed", &name);
        let path = folder.join("mount");
        let of = folder.clone();
        let loaded = task::blocking(move || VolumeData::load(&of)).await;
        if let Some(data) = loaded.map_err(|error| in_step(error.into()))? {
            let unique = unique_name(&data.driver_name, &data.volume_handle);
            let _held = self.locks.lock(&unique).await;
            let migrated = self.state.lock().migrated.contains(&unique);
            let done = async {
                let driver = self.drivers.get(&data.driver_name)?;
                driver.unpublish(&data.volume_handle, &path).await?;
                task::blocking(move || remove_published(&folder)).await
            };
            let plugin = plugin(&data.driver_name);
            let counted = self.counted(&plugin, "volume_unmount", migrated, done);
            return counted.await.map_err(in_step);
        }
        // The set-up had not begun, or the end was reached before: only empty folders are there.
        task::blocking(move || remove_published(&folder)).await.map_err(in_step)
    }

    /// Ends a pod's use of a volume of blocks, by its link. Upstream: `UnmapPodDevice`.
    pub(super) async fn unpublish_block(&self, uid: &Uid, link: PathBuf) -> Result<(), Error> {
        let name = link.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let in_step = Error::in_step("UnmapVolume.UnmapPodDevice failed", &name);
        let folder = self.folders.block_data(&name);
        let path = self.folders.published_block(&name, uid);
        let upstreams = folder.with_file_name(UPSTREAMS_DEVICES).join(&**uid);
        let loaded = task::blocking(move || VolumeData::load(&folder)).await;
        if let Some(data) = loaded.map_err(|error| in_step(error.into()))? {
            let unique = unique_name(&data.driver_name, &data.volume_handle);
            let _held = self.locks.lock(&unique).await;
            let migrated = self.state.lock().migrated.contains(&unique);
            // Upstream's bind mount keeps the driver's device busy, so it ends first.
            let ended =
                task::blocking(move || loop_device::end(&upstreams).map_err(Error::at(upstreams)));
            ended.await.map_err(&in_step)?;
            let done = async {
                let driver = self.drivers.get(&data.driver_name)?;
                let done = driver.unpublish(&data.volume_handle, &path).await;
                done.map_err(Error::Csi)
            };
            let plugin = plugin(&data.driver_name);
            self.counted(&plugin, "unmap_volume", migrated, done).await.map_err(&in_step)?;
        }
        let removed = task::blocking(move || fs::remove_file(&link).map_err(Error::at(&link)));
        removed.await.map_err(in_step)
    }

    /// Unstages a volume that no pod uses. Returns whether it is unstaged; false: a pod uses it
    /// meanwhile. Upstream: `UnmountDevice`, `TearDownDevice`.
    pub(super) async fn unstage(&self, of: &Staged) -> Result<bool, Error> {
        let unique = unique_name(&of.driver, &of.handle);
        let name = of.block.as_ref().unwrap_or(&of.handle);
        let in_step = Error::in_step("UnmountDevice failed", name);
        let _held = self.locks.lock(&unique).await;
        let users = self.users(of.clone()).await.map_err(&in_step)?;
        if !users.is_empty() || self.state.lock().is_wanted(&unique) {
            return Ok(false);
        }
        let migrated = self.state.lock().migrated.contains(&unique);
        let done = async {
            let driver = self.drivers.get(&of.driver)?;
            match driver.capabilities(false).await?.stages {
                true => driver.unstage(&of.handle, &of.path).await.map_err(Error::Csi),
                false => Ok(()),
            }
        };
        let operation = if of.block.is_some() { "unmap_device" } else { "unmount_device" };
        let done = self.counted(&plugin(&of.driver), operation, migrated, done).await;
        done.map_err(&in_step)?;
        {
            let mut state = self.state.lock();
            state.staged.remove(&of.path);
            state.not_expanded.remove(&unique);
        }
        let staged = of.clone();
        let removed = task::blocking(move || remove_staged(&staged)).await;
        removed.map_err(in_step)?;
        self.in_use.remove(&unique);
        Ok(true)
    }
}

/// What the calls for one volume need.
pub(super) struct CsiCall<'a> {
    pub(super) server: &'a Server,
    pub(super) driver: Driver,
    pub(super) able: Capabilities,
    object: CsiDriver,
    /// What the attachment says.
    context: HashMap<String, String>,
}

impl Inner {
    /// Reads the Secret for the expansion of a volume.
    pub(super) async fn expand_secret(
        &self,
        call: &CsiCall<'_>,
        volume: &CsiVolume,
    ) -> Result<HashMap<String, String>, Error> {
        self.secret(call.server, "NodeExpandSecretRef", volume.expand_secret.as_ref()).await
    }
}

/// Returns the metadata of an attachment that is complete. Errors: it is pending, has failed, or is
/// being deleted. Upstream: `verifyAttachmentStatus`.
fn check_attachment(
    attachment: &storage::VolumeAttachment,
    handle: &str,
) -> Result<HashMap<String, String>, Error> {
    if attachment.metadata.deletion_timestamp.is_some() {
        return Err(Error::AttachmentDeleted);
    }
    let status = attachment.status.clone().unwrap_or_default();
    if status.attached {
        return Ok(string_map(status.attachment_metadata.as_ref()));
    }
    match status.attach_error {
        Some(error) => Err(Error::AttachFailed(error.message.unwrap_or_default())),
        None => Err(Error::AttachmentPending {
            volume: handle.to_owned(),
            attachment: attachment.metadata.name.clone().unwrap_or_default(),
        }),
    }
}

/// Returns the attributes by which a driver learns about the pod. Upstream: `getPodInfoAttrs`.
fn pod_info(pod: &Pod, lifecycle: Lifecycle) -> [(String, String); 5] {
    let account = pod.spec().service_account_name.as_deref().unwrap_or_default();
    let is_ephemeral = lifecycle == Lifecycle::Ephemeral;
    [
        ("pod.name", pod.name()),
        ("pod.namespace", pod.namespace()),
        ("pod.uid", &*pod.uid()),
        ("serviceAccount.name", account),
        ("ephemeral", if is_ephemeral { "true" } else { "false" }),
    ]
    .map(|(name, value)| (format!("csi.storage.k8s.io/{name}"), value.to_owned()))
}

fn log_failure(outcome: Result<(), Error>) {
    if let Err(error) = outcome {
        log::error!("{}", crate::causes::chain(&error));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn pod() -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": "p", "namespace": "n", "uid": "u"},
            "spec": {"containers": [], "serviceAccountName": "a"},
        }))
        .expect("a pod")
    }

    #[test]
    fn drivers_get_to_know_the_pod() {
        let info = pod_info(&pod(), Lifecycle::Ephemeral);
        let shown: Vec<String> = info
            .iter()
            .map(|(name, value)| format!("{}={value}", &name["csi.storage.k8s.io/".len()..]))
            .collect();
        let expected = [
            "pod.name=p",
            "pod.namespace=n",
            "pod.uid=u",
            "serviceAccount.name=a",
            "ephemeral=true",
        ];
        assert_eq!(shown, expected);
    }

    #[test]
    fn attachments_are_waited_for_and_say_why_they_fail() {
        let attachment = |status: Value, is_deleted| -> storage::VolumeAttachment {
            let mut value = json!({
                "metadata": {"name": "csi-1"},
                "spec": {"attacher": "d", "nodeName": "n", "source": {}},
                "status": status,
            });
            if is_deleted {
                value["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
            }
            serde_json::from_value(value).expect("an attachment")
        };
        let attached = json!({"attached": true, "attachmentMetadata": {"k": "v"}});
        let failed = json!({"attached": false, "attachError": {"message": "no slot"}});
        for (attachment, expected) in [
            (attachment(attached.clone(), false), Ok("v")),
            (attachment(attached, true), Err("volume attachment is being deleted")),
            (attachment(failed, false), Err("no slot")),
            (
                attachment(json!({"attached": false}), false),
                Err("volume h is not attached for volume attachment csi-1"),
            ),
        ] {
            let found = check_attachment(&attachment, "h").map_err(|error| error.to_string());
            let found = found.map(|context| context["k"].clone());
            assert_eq!(found.as_deref().map_err(String::as_str), expected);
        }
    }
}
