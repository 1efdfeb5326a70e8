//! FlexVolume drivers: programs in `--flex-volume-plugin-dir` that attach and detach volumes. The
//! driver `vendor/name` is the program `vendor~name/name` there.
//! Upstream: `pkg/volume/flexvolume`.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::SystemTime;

use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::objects::Istr;
use crate::task;

const SUCCESS: &str = "Success";
const NOT_SUPPORTED: &str = "Not supported";

/// A volume as its driver gets it.
#[derive(Clone, Debug, PartialEq)]
pub struct Flex {
    pub driver: Istr,
    /// The options as JSON. Upstream: `OptionsForDriver`.
    pub options: Box<str>,
}

impl Flex {
    /// Reads a FlexVolume source of the volume `name`; `None` if it names no driver. `read_only`:
    /// as the pod mounts it.
    pub fn from_source(fields: &Value, name: &str, read_only: bool) -> Option<Flex> {
        let text = |field: &str| fields[field].as_str().unwrap_or_default();
        let mut options = Map::new();
        options.insert("kubernetes.io/fsType".into(), text("fsType").into());
        let access = if read_only { "ro" } else { "rw" };
        options.insert("kubernetes.io/readwrite".into(), access.into());
        options.insert("kubernetes.io/pvOrVolumeName".into(), name.into());
        for (key, value) in fields["options"].as_object().into_iter().flatten() {
            options.insert(key.clone(), value.clone());
        }
        let driver = text("driver");
        if driver.is_empty() {
            return None;
        }
        Some(Flex { driver: driver.into(), options: Value::Object(options).to_string().into() })
    }
}

/// The output of a driver. Upstream: `DriverStatus`.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Answer {
    status: String,
    message: String,
    device: String,
    attached: bool,
    capabilities: Capabilities,
}

/// The capabilities in the answer to `init`; a driver that does not say so attaches.
#[derive(Debug, Deserialize)]
#[serde(default)]
struct Capabilities {
    attach: bool,
}

impl Default for Capabilities {
    fn default() -> Capabilities {
        Capabilities { attach: true }
    }
}

/// Rewrites a value as Go's `encoding/json` would read it into a struct: the case of keys does not
/// matter, and null leaves a field as it is.
fn as_go_reads(value: Value) -> Value {
    match value {
        // Only the whole output: all fields keep their defaults.
        Value::Null => Value::Object(Map::new()),
        Value::Object(members) => members
            .into_iter()
            .filter(|(_, value)| !value.is_null())
            .map(|(key, value)| (key.to_ascii_lowercase(), as_go_reads(value)))
            .collect(),
        other => other,
    }
}

/// Why a call of a driver failed.
#[derive(Debug, PartialEq)]
enum Failure {
    NotSupported,
    Other(String),
}

impl Answer {
    /// Parses the output of a driver.
    fn parse(output: &[u8]) -> serde_json::Result<Answer> {
        let value = serde_json::from_str(&String::from_utf8_lossy(output))?;
        Answer::deserialize(as_go_reads(value))
    }

    /// Parses the output of a driver, and returns the answer if it reports success.
    /// Upstream: `handleCmdResponse`.
    fn check(command: &str, output: &[u8]) -> Result<Answer, Failure> {
        let answer = Answer::parse(output).map_err(|error| Failure::Other(error.to_string()))?;
        match &*answer.status {
            SUCCESS => Ok(answer),
            NOT_SUPPORTED => Err(Failure::NotSupported),
            status => {
                let reason = &answer.message;
                let text = format!("{command} command failed, status: {status}, reason: {reason}");
                Err(Failure::Other(text))
            }
        }
    }
}

/// A driver whose capabilities are known.
struct KnownDriver {
    /// The stamp of its program, which may be replaced.
    modified: Option<SystemTime>,
    attaches: bool,
    /// Commands that it does not know.
    unsupported: HashSet<&'static str>,
}

/// The drivers of a folder.
#[derive(Default)]
pub struct Drivers {
    folder: PathBuf,
    known: Mutex<HashMap<Istr, KnownDriver>>,
}

/// Returns the driver whose folder has this name; `None` if that is not the name of a driver.
/// Upstream: `UnescapeQualifiedName`.
fn driver_in(folder: &str) -> Option<Istr> {
    let name = folder.replacen('~', "/", 1);
    is_driver(&name).then(|| name.into())
}

/// Returns whether `name` is the valid name of a driver, `name` or `vendor/name`. Names come from
/// users and become parts of a path.
fn is_driver(name: &str) -> bool {
    let is_part = |part: &str| {
        part.starts_with(|first: char| first.is_ascii_alphanumeric())
            && part.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
    };
    name.split('/').count() <= 2 && name.split('/').all(is_part)
}

impl Drivers {
    pub fn new(folder: &str) -> Drivers {
        Drivers { folder: folder.into(), known: Mutex::default() }
    }

    /// Returns the path of a driver's program.
    fn program(&self, driver: &str) -> PathBuf {
        let name = driver.rsplit('/').next().unwrap_or(driver);
        self.folder.join(driver.replace('/', "~")).join(name)
    }

    /// Returns whether the driver existed and attached volumes when it was last probed.
    pub fn attaches(&self, driver: &str) -> bool {
        self.known.lock().get(driver).is_some_and(|known| known.attaches)
    }

    pub fn is_there(&self, driver: &str) -> bool {
        self.known.lock().contains_key(driver)
    }

    /// Probes all drivers in the folder, once at the start.
    pub async fn find(&self) {
        let folder = self.folder.clone();
        let names = task::blocking(move || folders(&folder)).await;
        for driver in names.iter().filter_map(|name| driver_in(name)) {
            self.probe(&driver).await;
        }
    }

    /// Calls `init` of a driver that is new or whose program has changed, and stores its
    /// capabilities; forgets a driver that is gone or whose `init` fails. Upstream: the prober,
    /// which watches the folder.
    pub async fn probe(&self, driver: &Istr) {
        if !is_driver(driver) {
            return;
        }
        let program = self.program(driver);
        let modified = task::blocking(move || {
            let meta = std::fs::metadata(program).ok().filter(std::fs::Metadata::is_file)?;
            Some(meta.modified().ok())
        });
        let Some(modified) = modified.await else {
            self.known.lock().remove(driver);
            return;
        };
        if self.known.lock().get(driver).is_some_and(|known| known.modified == modified) {
            return;
        }
        match self.run(driver, "init", Vec::new()).await {
            Ok(answer) => {
                log::info!("found FlexVolume driver {driver}");
                let attaches = answer.capabilities.attach;
                let known = KnownDriver { modified, attaches, unsupported: HashSet::new() };
                self.known.lock().insert(driver.clone(), known);
            }
            Err(failure) => {
                log::error!("cannot use FlexVolume driver {driver}: {failure:?}");
                self.known.lock().remove(driver);
            }
        }
    }

    /// Attaches the volume, and returns the path of the device; an empty one if the driver does not
    /// know this command. Upstream: `flexVolumeAttacher.Attach`.
    pub async fn attach(&self, volume: &Flex, node: &str) -> Result<Istr, String> {
        let arguments = vec![volume.options.to_string(), node.to_owned()];
        match self.run(&volume.driver, "attach", arguments).await {
            Ok(answer) => Ok(answer.device.into()),
            Err(Failure::NotSupported) => Ok(Istr::default()),
            Err(Failure::Other(error)) => Err(error),
        }
    }

    /// Detaches a volume; a driver that does not know this command needs no detach. `volume`: the
    /// driver's name of the volume. Upstream: `flexVolumeDetacher.Detach`.
    pub async fn detach(&self, driver: &str, volume: &str, node: &str) -> Result<(), String> {
        match self.run(driver, "detach", vec![volume.to_owned(), node.to_owned()]).await {
            Ok(_) | Err(Failure::NotSupported) => Ok(()),
            Err(Failure::Other(error)) => Err(error),
        }
    }

    /// Asks the driver whether the volume is attached. If the driver does not know this command,
    /// the volume counts as attached.
    /// Upstream: `VolumesAreAttached`.
    pub async fn is_attached(&self, volume: &Flex, node: &str) -> Result<bool, String> {
        let arguments = vec![volume.options.to_string(), node.to_owned()];
        match self.run(&volume.driver, "isattached", arguments).await {
            Ok(answer) => Ok(answer.attached),
            Err(Failure::NotSupported) => Ok(true),
            Err(Failure::Other(error)) => Err(error),
        }
    }

    /// Runs the program of a driver with a command, and remembers commands that it does not
    /// support: these are not run again. `Err` also if it prints a success but exits with an error.
    /// Upstream: `DriverCall.Run`.
    async fn run(
        &self,
        driver: &str,
        command: &'static str,
        arguments: Vec<String>,
    ) -> Result<Answer, Failure> {
        let is_unsupported = |known: &KnownDriver| known.unsupported.contains(command);
        if self.known.lock().get(driver).is_some_and(is_unsupported) {
            return Err(Failure::NotSupported);
        }
        let program = self.program(driver);
        let ran = task::blocking(move || {
            let mut call = Command::new(program);
            call.arg(command).args(arguments).stdin(Stdio::null()).output()
        });
        let output = ran.await.map_err(|error| Failure::Other(error.to_string()))?;
        let (mut printed, succeeded) = (output.stdout, output.status.success());
        printed.extend(output.stderr);
        let answer = match Answer::check(command, &printed) {
            Ok(_) if !succeeded => Err(Failure::Other(output.status.to_string())),
            answer => answer,
        };
        if let Err(Failure::NotSupported) = answer
            && let Some(known) = self.known.lock().get_mut(driver)
        {
            known.unsupported.insert(command);
        }
        answer
    }
}

/// Returns the names of the folders in `folder`, which may not exist.
fn folders(folder: &Path) -> Vec<String> {
    let found = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let folders = found.filter(|entry| entry.path().is_dir());
    folders.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use futures_lite::future::block_on;
    use serde_json::json;

    use super::*;

    /// A folder of drivers, removed at the end of the test.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Folder {
            let folder = std::env::temp_dir().join(format!("kcm-{name}-{}", std::process::id()));
            Folder(folder)
        }

        fn add(&self, folder: &str, name: &str, script: &str) {
            let folder = self.0.join(folder);
            std::fs::create_dir_all(&folder).unwrap();
            let program = folder.join(name);
            // Renamed into place: a program that is open for writing cannot be run.
            let new = folder.join(".new");
            std::fs::write(&new, format!("#!/bin/sh\n{script}\n")).unwrap();
            std::fs::set_permissions(&new, std::fs::Permissions::from_mode(0o755)).unwrap();
            std::fs::rename(new, program).unwrap();
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn volume(driver: &str) -> Flex {
        Flex::from_source(&json!({ "driver": driver, "options": { "size": "1" } }), "v", false)
            .unwrap()
    }

    #[test]
    fn options_are_those_of_upstream() {
        let fields = json!({ "driver": "d", "fsType": "ext4", "options": { "a": "b" } });
        let options = |read_only| -> Value {
            serde_json::from_str(&Flex::from_source(&fields, "v", read_only).unwrap().options)
                .unwrap()
        };
        assert_eq!(
            options(true),
            json!({
                "kubernetes.io/fsType": "ext4", "kubernetes.io/readwrite": "ro",
                "kubernetes.io/pvOrVolumeName": "v", "a": "b",
            })
        );
        assert_eq!(options(false)["kubernetes.io/readwrite"], "rw");
        assert_eq!(Flex::from_source(&json!({}), "v", false), None);
    }

    #[test]
    fn names_of_drivers_stay_in_the_folder() {
        for (name, is_good) in [
            ("lvm", true),
            ("k8s/lvm", true),
            ("example.com/lvm-2_a", true),
            ("", false),
            ("..", false),
            ("../lvm", false),
            ("a/..", false),
            ("a/b/c", false),
            ("a~b", false),
            ("/bin", false),
        ] {
            assert_eq!(is_driver(name), is_good, "{name}");
        }
        let drivers = Drivers::new("/drivers");
        assert_eq!(drivers.program("k8s/lvm"), Path::new("/drivers/k8s~lvm/lvm"));
        assert_eq!(drivers.program("lvm"), Path::new("/drivers/lvm/lvm"));
        assert_eq!(driver_in("k8s~lvm").as_deref(), Some("k8s/lvm"));
        assert_eq!(driver_in(".hidden"), None);
    }

    #[test]
    fn answers_are_read_as_upstream_reads_them() {
        let failed = |text: &str| Err(Failure::Other(text.to_owned()));
        for (output, expected) in [
            (json!({ "status": "Success" }), Ok(true)),
            (json!({ "status": "Success", "capabilities": { "attach": false } }), Ok(false)),
            (json!({ "status": "Success", "capabilities": { "fsGroup": false } }), Ok(true)),
            (json!({ "Status": "Success", "Capabilities": { "ATTACH": false } }), Ok(false)),
            (
                json!({ "status": "Success", "message": null, "device": null, "attached": null }),
                Ok(true),
            ),
            (json!({ "status": "Success", "capabilities": null }), Ok(true)),
            (json!({ "status": "Success", "capabilities": { "attach": null } }), Ok(true)),
            (Value::Null, failed("init command failed, status: , reason: ")),
            (json!({ "status": "Not supported" }), Err(Failure::NotSupported)),
            (
                json!({ "status": "Failure", "message": "no" }),
                failed("init command failed, status: Failure, reason: no"),
            ),
        ] {
            let answer = Answer::check("init", output.to_string().as_bytes());
            assert_eq!(answer.map(|answer| answer.capabilities.attach), expected, "{output}");
        }
        for wrong in ["oops", "[]", r#"{"status": 1}"#, r#"{"status": "Success"} x"#] {
            assert!(
                matches!(Answer::check("init", wrong.as_bytes()), Err(Failure::Other(_))),
                "{wrong}"
            );
        }
    }

    #[test]
    fn programs_are_found_and_run() {
        let folder = Folder::new("flex");
        folder.add(
            "k8s~disk",
            "disk",
            r#"case $1 in
            init) echo '{"status": "Success"}' ;;
            attach) echo "{\"status\": \"Success\", \"device\": \"/dev/$3\"}" ;;
            isattached) echo '{"status": "Success", "attached": false}' ;;
            detach) echo "{\"status\": \"Failure\", \"message\": \"$2 $3\"}"; exit 1 ;;
            esac"#,
        );
        folder.add(
            "plain",
            "plain",
            r#"case $1 in
            init) echo '{"status": "Success", "capabilities": {"attach": false}}' ;;
            *) echo '{"status": "Not supported"}'; exit 1 ;;
            esac"#,
        );
        folder.add("broken", "broken", "echo no");
        let drivers = Drivers::new(folder.0.to_str().unwrap());
        block_on(async {
            drivers.find().await;
            assert!(drivers.attaches("k8s/disk"));
            assert!(!drivers.attaches("plain") && !drivers.attaches("broken"));
            let disk = volume("k8s/disk");
            assert_eq!(drivers.attach(&disk, "node").await, Ok("/dev/node".into()));
            assert_eq!(drivers.is_attached(&disk, "node").await, Ok(false));
            let refused = "detach command failed, status: Failure, reason: v node".to_owned();
            assert_eq!(drivers.detach("k8s/disk", "v", "node").await, Err(refused));
            // Commands that a driver does not know succeed.
            let plain = volume("plain");
            assert_eq!(drivers.attach(&plain, "node").await, Ok("".into()));
            assert_eq!(drivers.is_attached(&plain, "node").await, Ok(true));
            assert_eq!(drivers.detach("plain", "v", "node").await, Ok(()));
            // A driver that is removed is forgotten.
            std::fs::remove_dir_all(folder.0.join("k8s~disk")).unwrap();
            drivers.probe(&"k8s/disk".into()).await;
            assert!(!drivers.attaches("k8s/disk"));
        });
    }
}
