//! Each folder uses only the rooms below it: `docs/architecture.md`.

use std::fs;
use std::path::{Path, PathBuf};

const GROUND: &[&str] = &["cel", "clock", "task", "objects", "metrics", "options"];

/// What a room may use, beside itself.
fn allowed(room: &str) -> Vec<&'static str> {
    let above: &[&str] = match room {
        "clock" | "task" | "objects" => return vec!["objects"],
        "metrics" | "options" | "cel" => return vec![],
        "client" | "cache" | "workqueue" => &[],
        "events" => &["client"],
        "leaderelection" => &["client", "events"],
        "controllers" => &["client", "cache", "workqueue", "events"],
        "server" => &["client"],
        "app" => {
            &["client", "cache", "workqueue", "events", "leaderelection", "controllers", "server"]
        }
        other => panic!("src/{other}: not in this test's list of rooms"),
    };
    GROUND.iter().chain(above).copied().collect()
}

fn rust_files(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            rust_files(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
}

/// The room of `crate::room::…` at the start of `text`.
fn room_of(text: &str) -> &str {
    text.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default()
}

#[test]
fn every_room_uses_only_the_rooms_below_it() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    rust_files(&src, &mut files);
    let mut faults = Vec::new();
    for file in files {
        let below = file.strip_prefix(&src).unwrap().to_path_buf();
        let first = below.components().next().unwrap().as_os_str().to_string_lossy().to_string();
        let room = first.trim_end_matches(".rs").to_owned();
        if room == "bin" || room == "lib" {
            continue;
        }
        let allowed = allowed(&room);
        for (number, line) in fs::read_to_string(&file).unwrap().lines().enumerate() {
            let Some(used) = line.trim_start().strip_prefix("use crate::").map(room_of) else {
                continue;
            };
            if used != room && !allowed.contains(&used) {
                faults.push(format!("{}:{}: uses {used}", below.display(), number + 1));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
