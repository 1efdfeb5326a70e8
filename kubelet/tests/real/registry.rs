//! A registry on the loopback address of a node, with images made of the node's busybox.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};
use serde_json::Value;

use super::node::Node;

pub const ADDRESS: &str = "127.0.0.1:5000";

/// What it has: blobs and manifests by digest, and manifests by image name.
#[derive(Default)]
struct Content {
    blobs: BTreeMap<String, Vec<u8>>,
    manifests: BTreeMap<String, String>,
    /// The header `Authorization` that each request needs.
    authorization: Option<String>,
    gate: Option<Arc<Gate>>,
}

/// Holds back the manifest of each image until it is opened: a pull takes as long as a test needs.
#[derive(Default)]
pub struct Gate {
    images: Mutex<Images>,
    opened: Condvar,
}

#[derive(Default)]
struct Images {
    held: BTreeSet<String>,
    open: BTreeSet<String>,
}

impl Gate {
    /// The images whose manifests are asked for and held back.
    pub fn held(&self) -> BTreeSet<String> {
        self.images.lock().held.clone()
    }

    pub fn open(&self, image: &str) {
        let mut images = self.images.lock();
        images.held.remove(image);
        images.open.insert(image.to_owned());
        self.opened.notify_all();
    }

    fn pass(&self, image: &str) {
        let mut images = self.images.lock();
        while !images.open.contains(image) {
            images.held.insert(image.to_owned());
            self.opened.wait(&mut images);
        }
    }
}

/// Starts a registry with the images `names`, which differ. `user`: `NAME:PASSWORD` in base64.
/// It ends with the test's process.
pub fn start(node: &Node, names: &[&str], user: Option<&str>) {
    serve(node, names, user, None);
}

/// As [`start`], with a gate for each image.
pub fn start_held(node: &Node, names: &[&str]) -> Arc<Gate> {
    let gate = Arc::<Gate>::default();
    serve(node, names, None, Some(gate.clone()));
    gate
}

fn serve(node: &Node, names: &[&str], user: Option<&str>, gate: Option<Arc<Gate>>) {
    let layout = node.folder.join("layout");
    fs::create_dir_all(&layout).expect("a folder");
    let archive = node.packages.join("busybox.tar");
    let unpacked = Command::new("tar").arg("-C").arg(&layout).arg("-xf").arg(archive).status();
    assert!(unpacked.expect("tar").success());
    let authorization = user.map(|user| format!("Basic {user}"));
    let mut content = Content { authorization, gate, ..Content::default() };
    for entry in fs::read_dir(layout.join("blobs/sha256")).expect("blobs").flatten() {
        let digest = format!("sha256:{}", entry.file_name().to_string_lossy());
        content.blobs.insert(digest, fs::read(entry.path()).expect("a blob"));
    }
    let index: Value = json(&layout.join("index.json"));
    let digest = index["manifests"][0]["digest"].as_str().expect("a digest");
    let manifest: Value = serde_json::from_slice(&content.blobs[digest]).expect("JSON");
    let config = manifest["config"]["digest"].as_str().expect("a digest");
    let config: Value = serde_json::from_slice(&content.blobs[config]).expect("JSON");
    for name in names {
        let (mut manifest, mut config) = (manifest.clone(), config.clone());
        config["config"]["Labels"] = serde_json::json!({ "name": name });
        let config = config.to_string().into_bytes();
        manifest["config"]["size"] = config.len().into();
        manifest["config"]["digest"] = content.add(config).into();
        let digest = content.add(manifest.to_string().into_bytes());
        content.manifests.insert((*name).to_owned(), digest);
    }
    let hosts = node.folder.join("certs.d").join(ADDRESS);
    fs::create_dir_all(&hosts).expect("a folder");
    let text = format!("server = \"http://{ADDRESS}\"\n[host.\"http://{ADDRESS}\"]\n");
    fs::write(hosts.join("hosts.toml"), text).expect("a file");
    let listener = node.listen(ADDRESS);
    let content = Arc::new(content);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let content = content.clone();
            // A client that closes early is no fault.
            std::thread::spawn(move || content.answer(stream).unwrap_or_default());
        }
    });
}

fn json(file: &Path) -> Value {
    serde_json::from_slice(&fs::read(file).expect("a file")).expect("JSON")
}

impl Content {
    fn add(&mut self, blob: Vec<u8>) -> String {
        let digest = format!("sha256:{}", sha256(&blob));
        self.blobs.insert(digest.clone(), blob);
        digest
    }

    /// The content of a path, and its type.
    fn at(&self, path: &str) -> Option<(&str, &[u8], &str)> {
        let path = path.strip_prefix("/v2/")?;
        if path.is_empty() {
            return Some(("", b"{}", "application/json"));
        }
        if let Some((name, reference)) = path.split_once("/manifests/") {
            let digest = self.manifests.get(name)?;
            let digest = if reference.starts_with("sha256:") { reference } else { digest };
            let (digest, blob) = self.blobs.get_key_value(digest)?;
            return Some((digest, blob, "application/vnd.oci.image.manifest.v1+json"));
        }
        let (_, digest) = path.split_once("/blobs/")?;
        let (digest, blob) = self.blobs.get_key_value(digest)?;
        Some((digest, blob, "application/octet-stream"))
    }

    fn answer(&self, stream: TcpStream) -> std::io::Result<()> {
        let mut lines = BufReader::new(stream.try_clone()?).lines();
        let first = lines.next().transpose()?.unwrap_or_default();
        let mut words = first.split(' ');
        let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let mut is_allowed = self.authorization.is_none();
        for line in lines {
            let line = line?;
            if line.is_empty() {
                break;
            }
            let header = line.split_once(": ");
            is_allowed |= header.is_some_and(|(name, value)| {
                name.eq_ignore_ascii_case("authorization")
                    && self.authorization.as_deref() == Some(value)
            });
        }
        let path = path.split('?').next().unwrap_or_default();
        let image = path.strip_prefix("/v2/").and_then(|path| path.split_once("/manifests/"));
        if let (Some(gate), Some((image, _))) = (&self.gate, image) {
            gate.pass(image);
        }
        let (status, digest, body, kind) = match self.at(path) {
            _ if !is_allowed => ("401 Unauthorized", "", &b"{}"[..], "application/json"),
            Some((digest, body, kind)) => ("200 OK", digest, body, kind),
            None => ("404 Not Found", "", &b"{}"[..], "application/json"),
        };
        let mut stream = stream;
        write!(
            stream,
            "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\
             Docker-Content-Digest: {digest}\r\nWWW-Authenticate: Basic realm=\"test\"\r\n\
             Docker-Distribution-API-Version: registry/2.0\r\nConnection: close\r\n\r\n",
            body.len()
        )?;
        if method != "HEAD" {
            stream.write_all(body)?;
        }
        Ok(())
    }
}

fn sha256(bytes: &[u8]) -> String {
    let program = Command::new("sha256sum").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let mut program = program.expect("sha256sum");
    program.stdin.take().expect("a pipe").write_all(bytes).expect("written");
    let output = program.wait_with_output().expect("an end").stdout;
    String::from_utf8(output).expect("text").split(' ').next().expect("a digest").to_owned()
}
