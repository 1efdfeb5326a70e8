//! A function for each reader of bytes from other programs or people: it must not panic on any
//! input, and holds what the module's comment promises. `fuzz/run` gives these functions to
//! libFuzzer; `tests/corpora.rs` calls them with the inputs in `corpus/`, as a part of the normal
//! tests.
//!
//! Where an input has parameters, they are its first byte, so that an input is a text that a person
//! can read and write.

mod answers;
mod bytes;
mod cel;
mod certificate_requests;
mod chunks;
mod cron;
mod definitions;
mod flags;
mod kubeconfig;
mod objects;
mod patches;
mod protobuf;
mod quantities;
mod requests;
mod schemas;
mod selectors;
mod streams;
mod times;
mod world;

/// A target's name, and its function.
pub type Target = (&'static str, fn(&[u8]));

/// All targets. `corpus/` has a folder for each.
pub const TARGETS: &[Target] = &[
    ("answers", answers::target),
    ("cel", cel::target),
    ("certificate_requests", certificate_requests::target),
    ("chunks", chunks::target),
    ("cron", cron::target),
    ("definitions", definitions::target),
    ("flags", flags::target),
    ("kubeconfig", kubeconfig::target),
    ("objects", objects::target),
    ("patches", patches::target),
    ("protobuf", protobuf::target),
    ("quantities", quantities::target),
    ("requests", requests::target),
    ("selectors", selectors::target),
    ("streams", streams::target),
    ("times", times::target),
];
