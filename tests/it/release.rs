//! The image of a release: `deploy/image` writes a layout that is read back here as container
//! runtimes read it. With `IMAGE_LAYOUT` the layout that it names is read as well.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::env::Folder;

const ARCHITECTURES: [(&str, &str); 3] =
    [("x86_64", "amd64"), ("aarch64", "arm64"), ("armv7", "arm")];

fn succeeds(command: &mut Command) {
    let output = command.output().expect("it starts");
    assert!(output.status.success(), "{command:?}: {output:?}");
}

/// Writes the layout of binaries that only hold the name of their architecture.
fn write(folder: &Path, layout: &Path) {
    let licences = folder.join("licences");
    fs::write(&licences, "licences").unwrap();
    let mut image = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/image"));
    image.arg(layout).arg("1.2.3").arg(&licences).env("SOURCE_DATE_EPOCH", "1777000000");
    for (arch, _) in ARCHITECTURES {
        let binary = folder.join(arch);
        fs::write(&binary, arch).unwrap();
        image.arg(format!("{arch}={}", binary.display()));
    }
    succeeds(&mut image);
}

fn digest(bytes: &[u8]) -> String {
    let hex: String = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{hex}")
}

/// The file of a blob that a descriptor names, once its size and digest have been compared.
fn blob(layout: &Path, descriptor: &Value) -> PathBuf {
    let named = descriptor["digest"].as_str().expect("a digest");
    let file = layout.join("blobs").join(named.replace(':', "/"));
    let bytes = fs::read(&file).unwrap_or_else(|error| panic!("{file:?}: {error}"));
    assert_eq!(
        (digest(&bytes), json!(bytes.len())),
        (named.to_owned(), descriptor["size"].clone())
    );
    file
}

fn json_of(file: &Path) -> Value {
    serde_json::from_slice(&fs::read(file).unwrap()).expect("JSON")
}

/// The files of a layout with their bytes.
fn contents(layout: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut files = Vec::new();
    for folder in [layout.to_owned(), layout.join("blobs/sha256")] {
        let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        files.extend(entries.filter(|path| path.is_file()));
    }
    files.sort();
    let read = |file: PathBuf| {
        let bytes = fs::read(&file).unwrap();
        (file.strip_prefix(layout).unwrap().to_owned(), bytes)
    };
    files.into_iter().map(read).collect()
}

/// Follows a layout to its binaries: their architectures, as the platforms name them, with the
/// content of each. Panics at a blob that is not what its descriptor says, and at one that no
/// descriptor names.
fn read(layout: &Path, work: &Path) -> Vec<(String, Vec<u8>)> {
    assert_eq!(json_of(&layout.join("oci-layout")), json!({ "imageLayoutVersion": "1.0.0" }));
    let mut found = Vec::new();
    let index = json_of(&layout.join("index.json"));
    let [image] = &index["manifests"].as_array().expect("a list")[..] else {
        panic!("not one image: {index}");
    };
    assert!(image["annotations"]["org.opencontainers.image.ref.name"].is_string(), "{index}");
    let mut blobs = vec![blob(layout, image)];
    for platform in json_of(&blobs[0])["manifests"].as_array().expect("a list") {
        let manifest = blob(layout, platform);
        let parts = json_of(&manifest);
        let (config, layer) = (blob(layout, &parts["config"]), blob(layout, &parts["layers"][0]));
        let settings = json_of(&config);
        assert_eq!(settings["architecture"], platform["platform"]["architecture"]);
        let arch = settings["architecture"].as_str().expect("a text").to_owned();
        let tar = work.join(format!("{arch}.tar"));
        let unpacked = Command::new("gzip").arg("-dc").arg(&layer).output().expect("gzip");
        fs::write(&tar, &unpacked.stdout).unwrap();
        assert_eq!(settings["rootfs"]["diff_ids"], json!([digest(&unpacked.stdout)]));
        let root = work.join(&arch);
        fs::create_dir(&root).unwrap();
        succeeds(Command::new("tar").arg("-xf").arg(&tar).arg("-C").arg(&root));
        let entry = settings["config"]["Entrypoint"][0].as_str().expect("a path");
        let binary = fs::read(root.join(entry.trim_start_matches('/'))).expect("the binary");
        assert!(root.join("usr/share/doc/kube-controller-manager/licences.txt").exists());
        found.push((arch, binary));
        blobs.extend([manifest, config, layer]);
    }
    blobs.sort();
    blobs.dedup();
    let stored = fs::read_dir(layout.join("blobs/sha256")).unwrap();
    let mut stored: Vec<PathBuf> = stored.map(|entry| entry.unwrap().path()).collect();
    stored.sort();
    assert_eq!(stored, blobs, "each blob is named");
    found
}

#[test]
fn an_image_holds_the_binary_of_each_architecture() {
    let folder = Folder::new("release-image");
    let layout = folder.0.join("layout");
    write(&folder.0, &layout);
    let expected: Vec<(String, Vec<u8>)> = ARCHITECTURES
        .map(|(arch, platform)| (platform.to_owned(), arch.as_bytes().to_vec()))
        .into();
    assert_eq!(read(&layout, &folder.0), expected);
}

#[test]
fn the_same_files_give_the_same_image() {
    let folders = [Folder::new("release-one"), Folder::new("release-other")];
    let [one, other] = folders.each_ref().map(|folder| {
        let layout = folder.0.join("layout");
        write(&folder.0, &layout);
        contents(&layout)
    });
    assert_eq!(one, other);
    // The layout, an index in another, and three blobs for each architecture.
    assert_eq!(one.len(), 3 + 3 * ARCHITECTURES.len());
}

#[test]
fn an_unknown_architecture_is_refused() {
    let folder = Folder::new("release-refused");
    let image = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/image");
    let layout = folder.0.join("layout");
    let output =
        Command::new(image).arg(layout).args(["1", "/dev/null", "mips=/dev/null"]).output();
    let output = output.expect("it starts");
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert_eq!(output.stderr, b"unknown architecture: mips\n");
}

/// `deploy/release` checks the image that it has written by this.
#[test]
fn the_image_of_a_release_is_sound() {
    let Some(layout) = std::env::var_os("IMAGE_LAYOUT") else {
        println!("skipped: IMAGE_LAYOUT names no image");
        return;
    };
    let folder = Folder::new("release-read");
    for (arch, binary) in read(Path::new(&layout), &folder.0) {
        assert!(binary.starts_with(b"\x7fELF"), "{arch}");
    }
}
