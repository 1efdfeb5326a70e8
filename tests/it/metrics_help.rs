//! The help of the metrics.

use std::path::Path;

/// Metrics that upstream does not have.
const OWN: [&str; 11] = [
    "controller_panics_total",
    "informer_handler_backlog",
    "informer_handler_panics_total",
    "informer_panics_total",
    "reflector_lists_total",
    "reflector_short_watches_total",
    "reflector_watches_total",
    "shadow_incumbent_writes",
    "shadow_intentions",
    // From the macro's own documentation and tests.
    "pods_deleted_total",
    "sync_seconds",
];

/// The sources below `folder`.
fn sources(folder: &Path, all: &mut Vec<String>) {
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            sources(&path, all);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            all.push(std::fs::read_to_string(&path).expect("a source"));
        }
    }
}

/// The first two string literals of `text`: a metric's name and its help.
fn name_and_help(text: &str) -> Option<(&str, &str)> {
    let (_, rest) = text.split_once('"')?;
    let (name, rest) = rest.split_once('"')?;
    let (_, help) = rest.split_once('"')?;
    Some((name, help))
}

/// The names and helps of all metrics that the source declares.
fn declared() -> Vec<(String, String)> {
    let mut all = Vec::new();
    sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut all);
    let mut found = Vec::new();
    for source in &all {
        let blocks = source.split("metrics! {").skip(1);
        for block in blocks.map(|block| block.split("\n}").next().unwrap_or_default()) {
            // After the labels, which are quoted too.
            let metrics = block.split("static ").skip(1).filter_map(|text| text.split_once(" ="));
            let metrics = metrics.filter_map(|(_, text)| name_and_help(text));
            found.extend(metrics.map(|(name, help)| (name.to_owned(), help.to_owned())));
        }
    }
    found
}

/// Upstream writes the stability of a metric before its help.
#[test]
fn the_help_of_a_metric_of_upstream_says_how_stable_it_is() {
    let declared = declared();
    for (name, help) in &declared {
        let is_stable = ["[ALPHA] ", "[BETA] ", "[STABLE] "];
        let says = is_stable.iter().any(|stability| help.starts_with(stability));
        let is_own = OWN.contains(&name.as_str()) || name.starts_with("test_");
        assert!(says != is_own, "{name}: {help:.40}");
    }
    assert!(declared.len() > 80, "{}", declared.len());
}
