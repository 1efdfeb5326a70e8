//! All parts in one binary. The part is the name by which the binary is called, or its first
//! argument. Upstream: `cmd/hyperkube`, which ended with Kubernetes 1.18.

use std::path::Path;
use std::process::ExitCode;

use cloud::app as cloud_manager;
use kube_controller_manager::app as manager;
use kube_controller_manager::options::{answer, git_version};
use kubelet::app as agent;

/// glibc's malloc has such a cache itself.
#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: process::ThreadCache = process::ThreadCache;

/// A program of this binary.
#[derive(Debug)]
struct Part {
    name: &'static str,
    /// Another name of it.
    alias: Option<&'static str>,
    about: &'static str,
    /// Gets the arguments after the part's name.
    main: fn(&[String]) -> ExitCode,
}

static PARTS: [Part; 3] = [
    Part {
        name: "kube-controller-manager",
        alias: Some("controller-manager"),
        about: "runs the controllers of a cluster",
        main: manager::main,
    },
    Part {
        name: "cloud-controller-manager",
        alias: None,
        about: "runs the controllers of a cloud",
        main: cloud_manager::main,
    },
    Part {
        name: "kubelet",
        alias: None,
        about: "keeps the pods of this machine",
        main: agent::main,
    },
];

/// What a command line asks for.
#[derive(Debug)]
enum Choice<'a> {
    Run(&'static Part, &'a [String]),
    Help,
    /// There is nothing to do: the help, as an error.
    Nothing,
    Version,
    Unknown(&'a str),
}

/// Returns the part of this name or alias.
fn part(name: &str) -> Option<&'static Part> {
    PARTS.iter().find(|part| part.name == name || part.alias == Some(name))
}

/// Chooses the program to run: by the name with which this one was called, else by the first
/// argument. `args`: with the program's name.
fn choice(args: &[String]) -> Choice<'_> {
    let (program, args) =
        args.split_first().map_or(("", args), |(first, rest)| (first.as_str(), rest));
    let called = Path::new(program).file_name().and_then(|name| name.to_str());
    if let Some(part) = called.and_then(part) {
        return Choice::Run(part, args);
    }
    let Some((first, rest)) = args.split_first() else { return Choice::Nothing };
    match (first.as_str(), part(first)) {
        (_, Some(part)) => Choice::Run(part, rest),
        ("--help" | "-h" | "help", _) => Choice::Help,
        ("--version" | "version", _) => Choice::Version,
        (other, _) => Choice::Unknown(other),
    }
}

/// Returns the text of `--help`, with all parts.
fn usage() -> String {
    let mut text = "All parts of Kubernetes in one binary.\n\nUsage:\n  hyperkube PART [flags]\n  \
                    PART [flags]         through a link with the part's name\n\nParts:\n"
        .to_owned();
    for Part { name, alias, about, .. } in &PARTS {
        let alias = alias.map(|alias| format!(" (or {alias})")).unwrap_or_default();
        text.push_str(&format!("  {name:<24} {about}{alias}\n"));
    }
    text.push_str(
        "\nFlags:\n  --help, --version\n\nhyperkube PART --help has the flags of a part.\n",
    );
    text
}

/// Runs the part that the arguments choose.
fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().collect();
    match choice(&args) {
        Choice::Run(part, args) => (part.main)(args),
        Choice::Help => answer(Ok(usage())),
        Choice::Nothing => {
            answer(Ok(usage()));
            ExitCode::FAILURE
        }
        Choice::Version => answer(Ok(format!("Kubernetes {}\n", git_version()))),
        Choice::Unknown(name) => {
            let names = PARTS.iter().map(|part| part.name).collect::<Vec<_>>().join(" or ");
            answer(Err(format!("unknown command {name:?} for \"hyperkube\": expected {names}")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn part_is_the_programs_name_or_the_first_argument() {
        for (line, expected) in [
            ("hyperkube kubelet --v=4", "kubelet --v=4"),
            ("/usr/bin/kubelet --v=4", "kubelet --v=4"),
            // A link's name wins: its first argument is the part's.
            ("kubelet kube-controller-manager", "kubelet kube-controller-manager"),
            ("hyperkube kube-controller-manager", "kube-controller-manager "),
            ("./controller-manager a b", "kube-controller-manager a b"),
            ("hyperkube controller-manager", "kube-controller-manager "),
            ("cloud-controller-manager --v=4", "cloud-controller-manager --v=4"),
            ("hyperkube", "nothing"),
            ("", "nothing"),
            ("any-name --help", "help"),
            ("hyperkube -h kubelet", "help"),
            ("hyperkube --version", "version"),
            ("hyperkube --v=4 kubelet", "unknown --v=4"),
            ("hyperkube kube-proxy", "unknown kube-proxy"),
        ] {
            let args: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
            let chosen = match choice(&args) {
                Choice::Run(part, args) => format!("{} {}", part.name, args.join(" ")),
                Choice::Help => "help".to_owned(),
                Choice::Nothing => "nothing".to_owned(),
                Choice::Version => "version".to_owned(),
                Choice::Unknown(name) => format!("unknown {name}"),
            };
            assert_eq!(chosen, expected, "{line}");
        }
    }
}
