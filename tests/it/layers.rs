//! Each room uses only the rooms below it: `docs/architecture.md`. Holds every path to an item of
//! the crate against that list, in the library and in the sandbox.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::paths::{Named, Source};

const GROUND: &[&str] = &[
    "cel", "clock", "files", "jwt", "lines", "lookup", "task", "objects", "metrics", "options",
    "sort", "spare", "storm", "trace",
];

/// What a room may use beside itself; `None`: it is not in the list.
fn below(room: &str) -> Option<Vec<&'static str>> {
    let above: &[&str] = match room {
        "clock" | "task" => return Some(vec!["objects"]),
        "cel" | "options" => return Some(vec!["sort"]),
        "objects" => return Some(vec!["lookup", "sort", "spare"]),
        "files" | "metrics" | "jwt" | "lines" | "lookup" | "sort" | "spare" | "storm" => {
            return Some(vec![]);
        }
        "trace" => return Some(vec!["objects", "options"]),
        "client" | "cache" | "workqueue" => &[],
        "source" => &["client", "cache"],
        "events" => &["client"],
        "leaderelection" => &["client", "events"],
        "controllers" => &["client", "cache", "workqueue", "events"],
        "server" => &["client"],
        "shadow" => &["client", "cache", "controllers"],
        "app" => &[
            "client",
            "cache",
            "source",
            "workqueue",
            "events",
            "leaderelection",
            "controllers",
            "server",
            "shadow",
        ],
        "bin" => return Some(vec!["app", "options", "task"]),
        _ => return None,
    };
    Some(GROUND.iter().chain(above).copied().collect())
}

/// What a family of controllers uses of another: the path below `controllers`.
const ACROSS: [(&str, &str); 4] = [
    ("accounts", "certificates::root_ca"),
    ("cluster", "storage::protection"),
    ("runner", "workloads::expectations"),
    ("storage", "nodes::pods"),
];

/// What the sandbox uses of the library: rooms, and paths in a room that is not all its own.
const SANDBOX: [&str; 14] = [
    // The binary starts the embedded manager.
    "app",
    "cache",
    "cel",
    "client",
    "clock",
    "events",
    "jwt",
    "metrics",
    "objects",
    "options",
    "server",
    "source",
    "task",
    "workqueue",
];

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

/// `src/a/b.rs` and `src/a/b/mod.rs` are `a::b`.
fn module_of(below: &Path) -> Vec<String> {
    let parts = below.with_extension("");
    let mut parts: Vec<String> =
        parts.iter().map(|part| part.to_string_lossy().into_owned()).collect();
    parts.pop_if(|last| last == "mod" || last == "lib" || last == "main");
    parts
}

/// The files of a crate with their modules.
fn sources(folder: &str) -> Vec<(PathBuf, Vec<String>, Source)> {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let mut files = Vec::new();
    rust_files(&src, &mut files);
    assert!(files.len() > 20, "{folder} has {} files", files.len());
    let read = |file: PathBuf| {
        let below = file.strip_prefix(&src).unwrap().to_path_buf();
        let module = module_of(&below);
        let names: Vec<&str> = module.iter().map(String::as_str).collect();
        let source = Source::new(&fs::read_to_string(&file).unwrap(), &names);
        (Path::new(folder).join(below), module, source)
    };
    files.into_iter().map(read).collect()
}

/// Whether `path` is `prefix` or below it.
fn is_within(path: &[String], prefix: &str) -> bool {
    let mut path = path.iter();
    prefix.split("::").all(|part| path.next().is_some_and(|it| it == part))
}

/// What is wrong with a path that `module` names.
fn fault(module: &[String], path: &[String]) -> Option<String> {
    let (room, used) = match (module, path) {
        // The root only declares the rooms.
        ([], _) => return None,
        (_, []) => return Some("names the whole crate".to_owned()),
        ([room, ..], [used, ..]) => (room, used),
    };
    let Some(below) = below(room) else {
        return Some(format!("{room} is not in this test's list of rooms"));
    };
    if room != used {
        let is_fine = below.contains(&used.as_str());
        return (!is_fine).then(|| format!("uses {}", path.join("::")));
    }
    match (room.as_str(), module.get(1), path.get(1)) {
        ("controllers", Some(family), Some(other)) => {
            // Beside its families the room has what the runner exports.
            let is_family = other.starts_with(|c: char| c.is_ascii_lowercase()) && other != "keys";
            let crosses = ACROSS.iter();
            let is_fine = family == other
                || (other == "runner" || !is_family) && other != "*"
                || crosses.clone().any(|(from, to)| from == family && is_within(&path[1..], to));
            (!is_fine).then(|| format!("uses {}", path.join("::")))
        }
        ("controllers", Some(_), None) => Some("names all controllers".to_owned()),
        _ => None,
    }
}

#[test]
fn every_room_uses_only_the_rooms_below_it() {
    let sources = sources("src");
    let mut macros: BTreeMap<String, Vec<Vec<String>>> = BTreeMap::new();
    for (_, _, source) in &sources {
        for (name, module) in source.macros() {
            macros.entry(name).or_default().push(module);
        }
    }
    let mut faults = Vec::new();
    for (file, module, source) in &sources {
        let mut named = source.internal();
        named.extend(source.external("kube_controller_manager"));
        named.extend(source.calls(&macros));
        for Named { line, path } in named {
            if let Some(fault) = fault(module, &path) {
                faults.push(format!("{}:{line}: {fault}", file.display()));
            }
        }
        let detours = source.detours().into_iter();
        faults.extend(detours.map(|line| format!("{}:{line}: a detour", file.display())));
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn the_sandbox_uses_only_what_it_may() {
    let mut faults = Vec::new();
    for (file, _, source) in sources("sandbox/src") {
        for Named { line, path } in source.external("kube_controller_manager") {
            if !SANDBOX.iter().any(|prefix| is_within(&path, prefix)) {
                faults.push(format!("{}:{line}: uses {}", file.display(), path.join("::")));
            }
        }
        let detours = source.detours().into_iter();
        faults.extend(detours.map(|line| format!("{}:{line}: a detour", file.display())));
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn a_path_out_of_its_room_is_a_fault() {
    let faults = |file: &str, text: &str| -> Vec<String> {
        let module = module_of(Path::new(file));
        let names: Vec<&str> = module.iter().map(String::as_str).collect();
        let named = Source::new(text, &names).internal();
        named.iter().filter_map(|named| fault(&module, &named.path)).collect()
    };
    for (file, text, expected) in [
        ("cache/store.rs", "use super::indexer::Indexer; use crate::objects::Meta;", None),
        ("cache/store.rs", "use crate::client::Client;", Some("uses client::Client")),
        ("cache/store.rs", "fn f() { crate::app::start::run() }", Some("uses app::start::run")),
        ("cache/store.rs", "use super::super::client;", Some("uses client")),
        ("cache/mod.rs", "use super::client;", Some("uses client")),
        ("cache/store.rs", "use crate::{objects::Meta, server};", Some("uses server")),
        ("clock.rs", "use super::*;", Some("uses *")),
        ("new/mod.rs", "use crate::client;", Some("new is not in this test's list of rooms")),
        ("cache/mod.rs", "use crate as all;", Some("names the whole crate")),
        (
            "controllers/nodes/ttl.rs",
            "use crate::controllers::{Queue, runner::Change, nodes::x};",
            None,
        ),
        (
            "controllers/nodes/ttl.rs",
            "use crate::controllers::workloads::pod_control::PodControl;",
            Some("uses controllers::workloads::pod_control::PodControl"),
        ),
        (
            "controllers/nodes/ttl.rs",
            "use super::super::services;",
            Some("uses controllers::services"),
        ),
        ("controllers/nodes/ttl.rs", "use super::super::*;", Some("uses controllers::*")),
        ("controllers/nodes/ttl.rs", "use crate::controllers;", Some("names all controllers")),
        ("controllers/accounts/a.rs", "use crate::controllers::certificates::root_ca;", None),
        ("controllers/mod.rs", "pub use self::runner::Queue;", None),
        ("bin/x.rs", "use crate::client;", Some("uses client")),
    ] {
        let expected: Vec<String> = expected.into_iter().map(str::to_owned).collect();
        assert_eq!(faults(file, text), expected, "{file}: {text}");
    }
}
