//! Folders of NFS servers, which the machine's `mount` mounts. Upstream: `pkg/volume/nfs`.

use std::collections::BTreeSet;
use std::fs;
use std::net::Ipv6Addr;
use std::path::Path;
use std::process::Command;

use k8s_openapi::api::core::v1 as core;

use super::claim::Bound;
use super::mounts_below::is_mounted;
use super::{CLOSED, Error, make_all};

/// The folder of such volumes of a pod.
pub(super) const FOLDER: &str = "kubernetes.io~nfs";
pub(super) const PLUGIN: &str = "kubernetes.io/nfs";

/// What is mounted, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Export {
    source: String,
    pub(super) read_only: bool,
    /// Each once, in upstream's order.
    options: BTreeSet<String>,
}

impl Export {
    /// Describes the export of a pod's own volume.
    pub(super) fn of_pod(source: &core::NFSVolumeSource) -> Export {
        Export::new(source, source.read_only.unwrap_or_default(), BTreeSet::new())
    }

    /// Describes the export of the volume of a claim. `None`: it is not an NFS volume. The
    /// annotation with mount options replaces those of the spec, also when it is empty. Upstream:
    /// `MountOptionFromSpec`.
    pub(super) fn of_claim(bound: &Bound) -> Option<Export> {
        let spec = bound.volume.spec.as_ref()?;
        let annotations = bound.volume.metadata.annotations.as_ref();
        let old = annotations.and_then(|all| all.get("volume.beta.kubernetes.io/mount-options"));
        let options: BTreeSet<String> = match old {
            Some(list) => list.split(',').map(str::to_owned).collect(),
            None => spec.mount_options.iter().flatten().cloned().collect(),
        };
        let options = options.into_iter().filter(|option| !option.is_empty());
        Some(Export::new(spec.nfs.as_ref()?, bound.read_only, options.collect()))
    }

    /// Describes an export: an IPv6 address stands in brackets, and a read-only one has the option
    /// `ro`.
    fn new(source: &core::NFSVolumeSource, read_only: bool, options: BTreeSet<String>) -> Export {
        let mut options = options;
        if read_only {
            options.insert("ro".to_owned());
        }
        let server = match source.server.parse::<Ipv6Addr>() {
            Ok(_) => format!("[{}]", source.server),
            Err(_) => source.server.clone(),
        };
        Export { source: format!("{server}:{}", source.path), read_only, options }
    }

    /// Returns the arguments of `mount` before the target.
    fn arguments(&self) -> Vec<String> {
        let mut arguments = vec!["-t".to_owned(), "nfs".to_owned()];
        if !self.options.is_empty() {
            let options: Vec<&str> = self.options.iter().map(String::as_str).collect();
            arguments.extend(["-o".to_owned(), options.join(",")]);
        }
        arguments.extend(["--".to_owned(), self.source.clone()]);
        arguments
    }

    /// Mounts the export. What is mounted there already stays as it is. Blocks, until `mount` gives
    /// up if the server does not answer.
    ///
    /// # Errors
    /// `mount` fails, or is missing.
    pub(super) fn mount(&self, target: &Path) -> Result<(), Error> {
        if is_mounted(target).map_err(Error::at(target))? {
            return Ok(());
        }
        make_all(target, CLOSED).map_err(Error::at(target))?;
        let done = Command::new("mount").args(self.arguments()).arg(target).output();
        let fault = match done {
            Ok(done) if done.status.success() => return Ok(()),
            Ok(done) => {
                let text = String::from_utf8_lossy(&done.stderr);
                Error::MountCommand(format!("{}: {}", done.status, text.trim()))
            }
            Err(error) => Error::at("mount")(error),
        };
        // Fails where the folder is not empty: its files stay.
        let _ = fs::remove_dir(target);
        Err(fault)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::{Value, json};

    use super::*;

    fn source(server: &str, read_only: bool) -> core::NFSVolumeSource {
        core::NFSVolumeSource {
            server: server.to_owned(),
            path: "/p".to_owned(),
            read_only: Some(read_only),
        }
    }

    #[test]
    fn exports_of_pods_are_mounted_as_they_say() {
        for (server, read_only, expected) in [
            ("s", false, "-t nfs -- s:/p"),
            ("s", true, "-t nfs -o ro -- s:/p"),
            ("10.0.0.1", false, "-t nfs -- 10.0.0.1:/p"),
            ("fd00::1", false, "-t nfs -- [fd00::1]:/p"),
            // It is no option.
            ("-s", false, "-t nfs -- -s:/p"),
        ] {
            let export = Export::of_pod(&source(server, read_only));
            assert_eq!(export.arguments().join(" "), expected);
            assert_eq!(export.read_only, read_only);
        }
    }

    #[test]
    fn exports_of_claims_have_the_options_of_their_volumes() {
        let bound = |metadata: Value, spec: Value, read_only| Bound {
            claim: Arc::default(),
            volume: Arc::new(
                serde_json::from_value(json!({"metadata": metadata, "spec": spec}))
                    .expect("a volume"),
            ),
            read_only,
            migrated: false,
        };
        // Whether it is read-only is what the claim's user says.
        let nfs = json!({"server": "s", "path": "/p", "readOnly": true});
        let options = json!({"nfs": nfs, "mountOptions": ["nfsvers=4.1", "hard"]});
        let old = json!({"annotations": {"volume.beta.kubernetes.io/mount-options": "hard,soft"}});
        let empty = json!({"annotations": {"volume.beta.kubernetes.io/mount-options": ""}});
        for (bound, expected) in [
            (bound(json!({}), json!({"nfs": nfs}), false), Some("-t nfs -- s:/p")),
            (
                bound(json!({}), options.clone(), true),
                Some("-t nfs -o hard,nfsvers=4.1,ro -- s:/p"),
            ),
            (bound(old, options.clone(), false), Some("-t nfs -o hard,soft -- s:/p")),
            (bound(empty, options, false), Some("-t nfs -- s:/p")),
            (bound(json!({}), json!({"local": {"path": "/l"}}), false), None),
        ] {
            let export = Export::of_claim(&bound);
            let shown = export.map(|export| export.arguments().join(" "));
            assert_eq!(shown.as_deref(), expected);
        }
    }

    #[test]
    fn a_mount_that_fails_leaves_no_folder() {
        let target = std::env::temp_dir().join(format!("kubelet-nfs-{}", std::process::id()));
        // It is refused before anything is asked of the network.
        let export = Export::of_pod(&source("", false));
        let error = export.mount(&target).expect_err("no server");
        assert!(matches!(error, Error::MountCommand(_) | Error::Path { .. }), "{error}");
        assert!(!target.exists());
    }
}
