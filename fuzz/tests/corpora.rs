//! Gives each target the inputs of its corpus, whole, cut and changed, so that a crash that the
//! fuzzer has found stays mended where no fuzzer is installed. The changes are the same in each
//! run; `FUZZ_CHANGES` is their number for each input.

use std::fs;
use std::path::{Path, PathBuf};

/// Inputs that are larger are not cut at each byte.
const CUT_BYTES: usize = 256;
/// A corpus stays small: it holds what a person has written, and what has crashed.
const MAX_BYTES: usize = 4 << 10;
const MAX_INPUTS: usize = 64;
const CHANGES: usize = 20;
/// Bytes that mean something to a parser.
const SPECIAL: &[u8] = b"\0\n\r \"'\\{}[]():;,.%/-+*=<>@#09AZaz\x7f\x80\xc3\xff";

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

/// `input` after a few random changes; parts come from `other`.
fn changed(random: &mut fastrand::Rng, input: &[u8], other: &[u8]) -> Vec<u8> {
    let mut bytes = input.to_vec();
    for _ in 0..random.usize(1..6) {
        let at = random.usize(..=bytes.len());
        let end = bytes.len().min(at + random.usize(..16));
        match random.u8(..6) {
            0 => bytes.insert(at, SPECIAL[random.usize(..SPECIAL.len())]),
            1 => bytes.insert(at, random.u8(..)),
            2 => drop(bytes.drain(at..end)),
            3 => bytes.extend_from_within(at..end),
            4 if at < end => bytes[at] ^= 1 << random.u8(..8),
            _ => {
                let from = random.usize(..=other.len());
                let to = other.len().min(from + random.usize(..64));
                bytes.splice(at..end, other[from..to].iter().copied());
            }
        }
    }
    bytes
}

fn replay(name: &str) {
    let (_, target) = fuzz::TARGETS.iter().find(|(known, _)| *known == name).expect("a target");
    let inputs = files(&corpus(name));
    assert!((1..=MAX_INPUTS).contains(&inputs.len()), "{name} has {} inputs", inputs.len());
    target(b"");
    let changes = std::env::var("FUZZ_CHANGES").map_or(CHANGES, |count| count.parse().unwrap());
    let mut random = fastrand::Rng::with_seed(7);
    let texts: Vec<Vec<u8>> = inputs.iter().map(|file| fs::read(file).unwrap()).collect();
    for (file, input) in inputs.iter().zip(&texts) {
        assert!(input.len() <= MAX_BYTES, "{file:?} has {} bytes", input.len());
        let run = |input: &[u8]| {
            let result = std::panic::catch_unwind(|| target(input));
            assert!(result.is_ok(), "{}: {}", file.display(), input.escape_ascii());
        };
        run(input);
        for _ in 0..changes {
            let other = random.usize(..texts.len());
            run(&changed(&mut random, input, &texts[other]));
        }
        let step = input.len().div_ceil(CUT_BYTES).max(1);
        for cut in (0..input.len()).step_by(step) {
            run(&input[..cut]);
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
