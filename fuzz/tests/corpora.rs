//! Gives each target the inputs of its corpus, whole and cut, so that a crash that the fuzzer has
//! found stays mended where no fuzzer is installed.

use std::fs;
use std::path::{Path, PathBuf};

/// Inputs that are larger are not cut at each byte.
const CUT_BYTES: usize = 256;
/// A corpus stays small: it holds what a person has written, and what has crashed.
const MAX_BYTES: usize = 4 << 10;
const MAX_INPUTS: usize = 64;

fn corpus(target: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target)
}

/// The files of a folder, in the order of their names.
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{folder:?}: {error}"));
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

fn replay(name: &str) {
    let (_, target) = fuzz::TARGETS.iter().find(|(known, _)| *known == name).expect("a target");
    let inputs = files(&corpus(name));
    assert!((1..=MAX_INPUTS).contains(&inputs.len()), "{name} has {} inputs", inputs.len());
    target(b"");
    for file in inputs {
        let input = fs::read(&file).unwrap();
        assert!(input.len() <= MAX_BYTES, "{file:?} has {} bytes", input.len());
        // Shown if the target panics.
        println!("{}", file.display());
        target(&input);
        let step = input.len().div_ceil(CUT_BYTES).max(1);
        for cut in (0..input.len()).step_by(step) {
            target(&input[..cut]);
        }
    }
}

#[test]
fn each_target_has_a_corpus_and_each_corpus_a_target() {
    let folders = files(corpus("").as_path());
    let folders = folders.iter().map(|folder| folder.file_name().unwrap().to_str().unwrap());
    let targets: Vec<&str> = fuzz::TARGETS.iter().map(|(name, _)| *name).collect();
    assert_eq!(folders.collect::<Vec<_>>(), targets);
}

macro_rules! replays {
    ($($target:ident)*) => {
        $(
            #[test]
            fn $target() {
                replay(stringify!($target));
            }
        )*

        #[test]
        fn each_target_is_replayed() {
            let targets: Vec<&str> = fuzz::TARGETS.iter().map(|(name, _)| *name).collect();
            assert_eq!([$(stringify!($target)),*].as_slice(), targets);
        }
    };
}

replays! {
    answers cel certificate_requests chunks cron definitions flags kubeconfig objects patches
    protobuf quantities requests selectors streams times
}
