//! Each room uses only the rooms below it, in the library, the sandbox and the kubelet: checks every
//! path to an item of these crates against the lists of `docs/architecture.md`.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::paths::{Named, Source};

const GROUND: &[&str] = &[
    "clock",
    "files",
    "jwt",
    "lines",
    "lookup",
    "task",
    "objects",
    "metrics",
    "open_files",
    "options",
    "percent",
    "buffer_pool",
    "trace",
];

/// The rooms that a room may use beside itself; `None`: it is not in the list.
fn below(room: &str) -> Option<Vec<&'static str>> {
    let above: &[&str] = match room {
        "clock" | "task" => return Some(vec!["objects"]),
        "objects" => return Some(vec!["lookup", "buffer_pool"]),
        "cel" | "files" | "metrics" | "jwt" | "lines" | "lookup" | "open_files" | "options"
        | "percent" | "buffer_pool" => {
            return Some(vec![]);
        }
        "trace" => return Some(vec!["objects", "options"]),
        "logging" => return Some(vec!["clock", "lines", "objects", "trace"]),
        "client" | "cache" | "workqueue" => &[],
        "source" => &["client", "cache"],
        "events" => &["client"],
        "leaderelection" => &["client", "events"],
        "controllers" => &["client", "cache", "source", "workqueue", "events"],
        "server" => &["client"],
        "shadow" => &["client", "cache", "controllers"],
        "app" => &[
            "client",
            "cache",
            "source",
            "workqueue",
            "events",
            "leaderelection",
            "logging",
            "controllers",
            "server",
            "shadow",
        ],
        "bin" => return Some(vec!["app", "options", "task"]),
        _ => return None,
    };
    Some(GROUND.iter().chain(above).copied().collect())
}

/// The paths below `controllers` that a family may use of another one.
const ACROSS: [(&str, &str); 4] = [
    ("accounts", "certificates::root_ca"),
    ("runner", "workloads::expectations"),
    ("storage", "nodes::pods"),
    ("workloads", "storage::protection"),
];

/// The rooms of the library, or paths below them, that the sandbox may use.
const SANDBOX: [&str; 14] = [
    // The binary starts the embedded manager.
    "app",
    "cache",
    "client",
    "clock",
    "events",
    "jwt",
    "metrics",
    "objects",
    "options",
    "percent",
    "server",
    "source",
    "task",
    "workqueue",
];

/// The rooms of the library, or paths below them, that the examples may use: the machinery.
const EXAMPLES: [&str; 11] = [
    "cache",
    "client",
    "clock",
    "events",
    "leaderelection",
    "metrics",
    "objects",
    "server",
    "source",
    "task",
    "workqueue",
];
/// They include messages that build scripts make.
const GENERATED: [&str; 3] =
    ["cloud/src/grpc/mod.rs", "kubelet/src/cri/mod.rs", "kubelet/src/csi/mod.rs"];

/// The rooms of the library, or paths below them, that the gRPC client may use.
const GRPC: [&str; 5] = ["client", "clock", "objects", "percent", "task"];

/// The rooms of the library, or paths below them, that the kubelet may use.
const KUBELET: [&str; 14] = [
    "cache",
    "client",
    "clock",
    "events",
    "files",
    "logging",
    "metrics",
    "objects",
    "open_files",
    "options",
    "percent",
    "server",
    "source",
    "task",
];

/// The rooms of the library, or paths below them, that the controllers of clouds may use: the
/// machinery, and the start-up of managers.
const CLOUD: [&str; 12] = [
    "app",
    "cache",
    "client",
    "clock",
    "controllers",
    "events",
    "metrics",
    "objects",
    "options",
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
    assert!(files.len() > 3, "{folder} has {} files", files.len());
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

/// A room of the sandbox, and the rooms that it may use.
struct MemberRoom {
    name: String,
    uses: Vec<String>,
}

/// The rows of a member's table in `docs/architecture.md`, ground floor first.
fn member_rooms(member: &str) -> Vec<MemberRoom> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/architecture.md");
    let docs = fs::read_to_string(file).unwrap();
    let head = format!("| below `{member}/src/` |");
    let (_, table) = docs.split_once(&head).expect("the member's table");
    let rows = table.lines().skip(2).take_while(|row| row.starts_with('|'));
    let mut rooms: Vec<MemberRoom> = Vec::new();
    for row in rows {
        let [_, room, _, uses, _] = row.split('|').collect::<Vec<_>>()[..] else {
            panic!("not three columns: {row}")
        };
        let names = |cell: &str| -> Vec<String> {
            cell.split('`').skip(1).step_by(2).map(str::to_owned).collect()
        };
        let name = names(room).concat();
        let name = name.trim_end_matches('/').trim_end_matches(".rs").to_owned();
        let above: Vec<String> = rooms.iter().map(|room| room.name.clone()).collect();
        let uses = if uses.trim() == "all rows above" { above.clone() } else { names(uses) };
        let is_above = |used: &String| above.contains(used);
        assert!(uses.iter().all(is_above), "{name} uses a room that is not above it in the table");
        rooms.push(MemberRoom { name, uses });
    }
    rooms
}

/// The fault of a path that `module` of a member with a table names.
fn member_fault(rooms: &[MemberRoom], module: &[String], path: &[String]) -> Option<String> {
    let (name, used) = match (module, path) {
        // The root only declares the rooms; the binary has no room.
        ([], _) => return None,
        (_, []) => return Some("names the whole crate".to_owned()),
        ([name, ..], [used, ..]) => (name, used),
    };
    let Some(room) = rooms.iter().find(|room| room.name == *name) else {
        return Some(format!("{name} is not in the table of docs/architecture.md"));
    };
    let is_fine = name == used || room.uses.contains(used);
    (!is_fine).then(|| format!("uses {}", path.join("::")))
}

/// The fault of a path that `module` of the library names.
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
            // Besides the families, this room exports items of the runner.
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

/// The faults of the paths in a crate, with their files and lines. `name`: the crate's name, by which
/// its binaries use it. `fault`: the fault of a path that a module names.
fn faults(
    folder: &str,
    name: Option<&str>,
    fault: impl Fn(&[String], &[String]) -> Option<String>,
) -> Vec<String> {
    let sources = sources(folder);
    let mut macros: BTreeMap<String, Vec<Vec<String>>> = BTreeMap::new();
    for (_, _, source) in &sources {
        for (name, module) in source.macros() {
            macros.entry(name).or_default().push(module);
        }
    }
    let mut faults = Vec::new();
    for (file, module, source) in &sources {
        let mut named = source.internal();
        named.extend(name.into_iter().flat_map(|name| source.external(name)));
        named.extend(source.calls(&macros));
        for Named { line, path } in named {
            if let Some(fault) = fault(module, &path) {
                faults.push(format!("{}:{line}: {fault}", file.display()));
            }
        }
        let detours = source
            .detours()
            .into_iter()
            .filter(|_| !GENERATED.iter().any(|generated| file.ends_with(generated)));
        faults.extend(detours.map(|line| format!("{}:{line}: a detour", file.display())));
    }
    faults
}

#[test]
fn every_room_uses_only_the_rooms_below_it() {
    let faults = faults("src", Some("kube_controller_manager"), fault);
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

fn check_rooms_of(member: &str) {
    let rooms = member_rooms(member);
    let folder = format!("{member}/src");
    let faults = faults(&folder, None, |module, path| member_fault(&rooms, module, path));
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    // Each row names a room that exists: the table has no rows of former rooms.
    let sources = sources(&folder);
    for MemberRoom { name, .. } in &rooms {
        let exists = sources.iter().any(|(_, module, _)| module.first() == Some(name));
        assert!(exists, "{name} is in the table but not in {folder}");
    }
}

#[test]
fn every_room_of_the_sandbox_uses_only_the_rooms_below_it() {
    check_rooms_of("sandbox");
}

#[test]
fn every_room_of_the_kubelet_uses_only_the_rooms_below_it() {
    check_rooms_of("kubelet");
}

#[test]
fn every_room_of_clouds_uses_only_the_rooms_below_it() {
    check_rooms_of("cloud");
}

#[test]
fn clouds_use_only_their_rooms_of_the_library() {
    check_library_rooms("cloud/src", &CLOUD);
}

#[test]
fn the_kubelet_uses_only_its_rooms_of_the_library() {
    check_library_rooms("kubelet/src", &KUBELET);
}

#[test]
fn the_grpc_client_uses_only_its_rooms_of_the_library() {
    check_library_rooms("grpc/src", &GRPC);
}

fn check_library_rooms(folder: &str, rooms: &[&str]) {
    let mut faults = Vec::new();
    for (file, _, source) in sources(folder) {
        for Named { line, path } in source.external("kube_controller_manager") {
            if !rooms.iter().any(|prefix| is_within(&path, prefix)) {
                faults.push(format!("{}:{line}: uses {}", file.display(), path.join("::")));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// Whether an example may use an item of the library: of the controllers only the runner.
fn is_machinery(path: &[String]) -> bool {
    let is_family = |name: &String| name.starts_with(|c: char| c.is_ascii_lowercase());
    match path {
        [room, item, ..] if room == "controllers" => {
            item == "runner" || item == "keys" || !is_family(item)
        }
        path => EXAMPLES.iter().any(|prefix| is_within(path, prefix)),
    }
}

#[test]
fn the_examples_use_the_machinery_alone() {
    let mut files = Vec::new();
    rust_files(&Path::new(env!("CARGO_MANIFEST_DIR")).join("examples"), &mut files);
    assert!(files.len() >= 10, "{files:?}");
    let mut faults = Vec::new();
    for file in files {
        let source = Source::new(&fs::read_to_string(&file).unwrap(), &[]);
        let named = source.external("kube_controller_manager");
        assert!(!named.is_empty(), "{} uses nothing of the library", file.display());
        for Named { line, path } in named.into_iter().filter(|named| !is_machinery(&named.path)) {
            faults.push(format!("{}:{line}: uses {}", file.display(), path.join("::")));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    for (path, is_fine) in [
        ("cache::Lister", true),
        ("controllers::Controller", true),
        ("controllers::runner::Mapper", true),
        ("controllers", false),
        ("controllers::workloads::ttlafterfinished", false),
        ("app::run", false),
        ("", false),
    ] {
        let path: Vec<String> = path.split("::").map(str::to_owned).collect();
        assert_eq!(is_machinery(&path), is_fine, "{path:?}");
    }
}

#[test]
fn the_sandbox_uses_only_its_rooms_of_the_library() {
    check_library_rooms("sandbox/src", &SANDBOX);
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

#[test]
fn a_path_to_a_room_above_is_a_fault_in_the_sandbox() {
    let rooms = member_rooms("sandbox");
    for (file, text, expected) in [
        ("storage/store.rs", "use crate::protobuf; use super::registry::Registry;", None),
        ("storage/store.rs", "use crate::api::Api;", Some("uses api::Api")),
        ("admission/quota.rs", "fn f(api: &crate::api::Api) {}", Some("uses api::Api")),
        ("auth/rbac/mod.rs", "use super::super::super::admission;", Some("uses admission")),
        ("auth/rbac/mod.rs", "use crate::storage::store::Store;", None),
        ("api/write.rs", "use crate::{admission::quota, auth::rbac::Rbac};", None),
        ("api/write.rs", "use crate::server::Sandbox;", Some("uses server::Sandbox")),
        ("load/mod.rs", "use crate::SandboxOptions;", Some("uses SandboxOptions")),
        ("new.rs", "use crate::api;", Some("new is not in the table of docs/architecture.md")),
        ("lib.rs", "pub use crate::api::faults;", None),
    ] {
        let module = module_of(Path::new(file));
        let names: Vec<&str> = module.iter().map(String::as_str).collect();
        let named = Source::new(text, &names).internal();
        let found: Vec<String> =
            named.iter().filter_map(|it| member_fault(&rooms, &module, &it.path)).collect();
        let expected: Vec<String> = expected.into_iter().map(str::to_owned).collect();
        assert_eq!(found, expected, "{file}: {text}");
    }
}
