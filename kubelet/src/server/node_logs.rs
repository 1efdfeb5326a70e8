//! `/logs/`: the files below `/var/log`. Upstream: `Kubelet.ServeLogs`, `http.FileServer`.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Component, Path};

use futures_lite::stream;
use hyper::header::LOCATION;
use kube_controller_manager::percent;
use kube_controller_manager::server::http::{Bytes, Method};
use kube_controller_manager::server::{Request, Response};
use kube_controller_manager::task;

use crate::files::beneath;

/// Upstream: `nodeLogDir`.
pub const FOLDER: &str = "/var/log";
/// Bytes that are read at a time.
const BLOCK: u64 = 64 << 10;

/// Answers a request for the node's logs with a file, or with the names in a folder. A link counts
/// if it leads to a file below `folder`.
pub async fn answer(request: &Request, folder: &Path) -> Response {
    if request.method != Method::GET {
        return Response::text(405, "405: Method Not Allowed");
    }
    let below = percent::decode(request.path.strip_prefix("/logs").unwrap_or_default());
    let (folder, asked) = (folder.to_owned(), below.clone());
    match task::blocking(move || find(&folder, asked.trim_matches('/'))).await {
        Ok(Found::Folder(_)) if !below.ends_with('/') => {
            let name = request.path.rsplit('/').next().unwrap_or_default();
            Response::text(301, "").with_header(LOCATION, &format!("{name}/"))
        }
        Ok(Found::Folder(names)) => Response::new(200, "text/html; charset=utf-8", page(&names)),
        Ok(Found::File(file)) => file_response(file),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            Response::text(403, "403 Forbidden\n")
        }
        Err(_) => Response::text(404, "404 page not found\n"),
    }
}

/// What a path below the folder leads to.
enum Found {
    /// The names in it; those of folders end with a slash.
    Folder(Vec<String>),
    File(File),
}

/// Finds a file or folder below `folder`; links must not lead out of it. Blocks.
fn find(folder: &Path, below: &str) -> io::Result<Found> {
    let asked = Path::new(below);
    let is_plain = |part: Component<'_>| matches!(part, Component::Normal(_));
    if below.contains('\0') || !asked.components().all(is_plain) {
        return Err(io::ErrorKind::NotFound.into());
    }
    let folder = folder.canonicalize()?;
    let target = folder.join(asked).canonicalize()?;
    let path = target.strip_prefix(&folder).map_err(|_| io::ErrorKind::PermissionDenied)?;
    if !target.is_dir() {
        // Not by the links that were resolved: these may have changed.
        return beneath::open(&folder, path).map(Found::File);
    }
    let mut names = Vec::new();
    for entry in std::fs::read_dir(&target)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let is_folder = entry.file_type()?.is_dir();
        names.push(if is_folder { name + "/" } else { name });
    }
    names.sort();
    Ok(Found::Folder(names))
}

/// Builds the page of a folder, as `http.FileServer` has it.
fn page(names: &[String]) -> String {
    let mut page =
        "<!doctype html>\n<meta name=\"viewport\" content=\"width=device-width\">\n<pre>\n"
            .to_owned();
    for name in names {
        let (link, slash) = match name.strip_suffix('/') {
            Some(folder) => (escaped_path(folder), "/"),
            None => (escaped_path(name), ""),
        };
        page.push_str(&format!("<a href=\"{link}{slash}\">{}</a>\n", escaped(name)));
    }
    page + "</pre>\n"
}

/// Escapes a text for HTML, as Go does.
fn escaped(text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    text.replace('"', "&#34;").replace('\'', "&#39;")
}

/// Escapes a name as a part of a URL's path.
fn escaped_path(name: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    let escape = |byte: u8| match is_plain(byte) {
        true => char::from(byte).to_string(),
        false => format!("%{byte:02X}"),
    };
    name.bytes().map(escape).collect()
}

/// Answers with the file as it is now: what is appended meanwhile is left out.
fn file_response(file: File) -> Response {
    let length = file.metadata().map_or(0, |data| data.len());
    let blocks = stream::unfold((file, 0), move |(file, position)| async move {
        let size = usize::try_from(BLOCK.min(length - position)).unwrap_or_default();
        let (file, read) = task::blocking(move || {
            let mut block = vec![0; size];
            let read = file.read_at(&mut block, position).map(|length| {
                block.truncate(length);
                block
            });
            (file, read)
        })
        .await;
        match read {
            Ok(block) if block.is_empty() => None,
            Ok(block) => {
                let position = position + block.len() as u64;
                Some((Ok(Bytes::from(block)), (file, position)))
            }
            Err(error) => Some((Err(error), (file, length))),
        }
    });
    Response::stream(200, "text/plain; charset=utf-8", Box::pin(blocks))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use futures_lite::StreamExt;
    use futures_lite::future::block_on;
    use kube_controller_manager::server::http::Body;

    use super::*;

    async fn ask(folder: &Path, path: &str) -> (u16, String) {
        let response = answer(&Request::get(path), folder).await;
        let mut body = Vec::new();
        match response.body {
            Body::Full(bytes) => body.extend_from_slice(&bytes),
            Body::Stream(mut blocks) => {
                while let Some(block) = blocks.next().await {
                    body.extend_from_slice(&block.expect("a block"));
                }
            }
            Body::Abort => {}
        }
        (response.status, String::from_utf8(body).expect("text"))
    }

    #[test]
    fn files_and_links_below_the_folder_are_served() {
        let base = std::env::temp_dir().join(format!("kubelet-node-logs-{}", std::process::id()));
        let folder = base.join("log");
        fs::create_dir_all(folder.join("pods")).expect("folders");
        let long = "x".repeat(3 * BLOCK as usize + 7);
        fs::write(folder.join("sys<log"), &long).expect("a file");
        fs::write(folder.join("pods/0.log"), "zero").expect("a file");
        fs::write(base.join("secret"), "secret").expect("a file");
        symlink("pods/0.log", folder.join("link")).expect("a link");
        symlink(base.join("secret"), folder.join("away")).expect("a link");
        symlink("/", folder.join("root")).expect("a link");
        block_on(async {
            for (path, status, text) in [
                ("/logs/sys%3Clog", 200, long.as_str()),
                ("/logs/pods/0.log", 200, "zero"),
                ("/logs/link", 200, "zero"),
                ("/logs/pods", 301, ""),
                ("/logs", 301, ""),
                ("/logs/absent", 404, "404 page not found\n"),
                ("/logs/away", 403, "403 Forbidden\n"),
                ("/logs/root/etc/passwd", 403, "403 Forbidden\n"),
                ("/logs/../secret", 404, "404 page not found\n"),
                ("/logs/%2e%2e/secret", 404, "404 page not found\n"),
                ("/logs/pods/..%2f..%2f..%2fsecret", 404, "404 page not found\n"),
                ("/logs/a%00b", 404, "404 page not found\n"),
            ] {
                let (found, body) = ask(&folder, path).await;
                assert_eq!((found, body == text), (status, true), "{path}: {found}");
            }
            let (status, page) = ask(&folder, "/logs/").await;
            assert_eq!(status, 200);
            assert!(page.contains("<a href=\"pods/\">pods/</a>\n"), "{page}");
            assert!(page.contains("<a href=\"sys%3Clog\">sys&lt;log</a>\n"), "{page}");
        });
        fs::remove_dir_all(&base).expect("removed");
    }
}
