//! The files in which the kubelet keeps what it needs to undo a driver's work, in upstream's
//! layout: a kubelet that starts, this one or upstream's, finds them. Upstream: `vol_data.json`.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::error::Error;

const FILE: &str = "vol_data.json";

/// How long a volume exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Lifecycle {
    Persistent,
    /// As long as its pod.
    Ephemeral,
}

impl Lifecycle {
    /// Returns the lifecycle's name in a CSIDriver.
    pub fn name(self) -> &'static str {
        match self {
            Lifecycle::Persistent => "Persistent",
            Lifecycle::Ephemeral => "Ephemeral",
        }
    }
}

/// The content of a file: of a pod's volume, or of a staged one, which has only the first two.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeData {
    pub driver_name: String,
    pub volume_handle: String,
    /// The name of the volume: that of the pod's, or of the PersistentVolume.
    #[serde(rename = "specVolID", skip_serializing_if = "String::is_empty")]
    pub volume: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub node_name: String,
    #[serde(rename = "attachmentID", skip_serializing_if = "String::is_empty")]
    pub attachment: String,
    #[serde(rename = "volumeLifecycleMode", skip_serializing_if = "Option::is_none")]
    pub lifecycle: Option<Lifecycle>,
}

impl VolumeData {
    /// Writes the file in a folder, whole or not at all. Blocks.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn save(&self, folder: &Path) -> Result<(), Error> {
        let (path, new) = (folder.join(FILE), folder.join(".vol_data.new"));
        let text = serde_json::to_vec(self)
            .map_err(|source| Error::Data { path: path.clone(), source })?;
        let write = || {
            let mut options = fs::File::options();
            let mut file =
                options.write(true).create(true).truncate(true).mode(0o644).open(&new)?;
            file.write_all(&text)?;
            file.sync_all()?;
            fs::rename(&new, &path)
        };
        write().map_err(Error::at(&path))
    }

    /// Reads the file of a folder; `None`: it has none. Blocks.
    ///
    /// # Errors
    /// It cannot be read, or has another content.
    pub fn load(folder: &Path) -> Result<Option<VolumeData>, Error> {
        let path = folder.join(FILE);
        match fs::read(&path) {
            Ok(text) => match serde_json::from_slice(&text) {
                Ok(data) => Ok(Some(data)),
                Err(source) => Err(Error::Data { path, source }),
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Error::at(path)(error)),
        }
    }

    /// Removes the file of a folder. Blocks.
    ///
    /// # Errors
    /// It is there and cannot be removed.
    pub fn remove(folder: &Path) -> Result<(), Error> {
        match fs::remove_file(folder.join(FILE)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(Error::at(folder.join(FILE))(error))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_have_upstreams_fields() {
        let data = VolumeData {
            driver_name: "d".to_owned(),
            volume_handle: "h".to_owned(),
            volume: "v".to_owned(),
            node_name: "n".to_owned(),
            attachment: "csi-1".to_owned(),
            lifecycle: Some(Lifecycle::Ephemeral),
        };
        let text = serde_json::to_value(&data).expect("JSON");
        let expected = serde_json::json!({
            "driverName": "d", "volumeHandle": "h", "specVolID": "v", "nodeName": "n",
            "attachmentID": "csi-1", "volumeLifecycleMode": "Ephemeral",
        });
        assert_eq!(text, expected);
        // One of a staged volume that upstream has written, with a field that is not read here.
        let text = r#"{"driverName":"d","volumeHandle":"h","seLinuxMountContext":"s"}"#;
        let staged: VolumeData = serde_json::from_str(text).expect("data");
        let expected = VolumeData {
            driver_name: "d".to_owned(),
            volume_handle: "h".to_owned(),
            ..VolumeData::default()
        };
        assert_eq!(staged, expected);
    }

    #[test]
    fn a_file_is_whole_or_not_there() {
        let folder = std::env::temp_dir().join(format!("kubelet-csi-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        assert_eq!(VolumeData::load(&folder).expect("no file"), None);
        let data = VolumeData { driver_name: "d".to_owned(), ..VolumeData::default() };
        data.save(&folder).expect("a file");
        assert_eq!(VolumeData::load(&folder).expect("a file"), Some(data));
        fs::write(folder.join(FILE), "{").expect("a file");
        assert!(VolumeData::load(&folder).is_err());
        VolumeData::remove(&folder).expect("removed");
        VolumeData::remove(&folder).expect("removed before");
        fs::remove_dir_all(&folder).expect("removed");
    }
}
