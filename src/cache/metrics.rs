//! What the caches count.

use std::sync::LazyLock;

use prometheus::{IntCounterVec, IntGaugeVec, register_int_counter_vec, register_int_gauge_vec};

/// Upstream: `informer_queued_items`.
pub static QUEUED_ITEMS: LazyLock<IntGaugeVec> = LazyLock::new(|| {
    register_int_gauge_vec!(
        "informer_queued_items",
        "Number of keys that wait in the informer's queue",
        &["name", "group", "version", "resource"]
    )
    .expect("registered once, with valid names")
});

/// Upstream: `informer_store_resource_version`.
pub static STORE_RESOURCE_VERSION: LazyLock<IntGaugeVec> = LazyLock::new(|| {
    register_int_gauge_vec!(
        "informer_store_resource_version",
        "Newest resource version of which the informer's store has all changes",
        &["name", "group", "version", "resource"]
    )
    .expect("registered once, with valid names")
});

pub static HANDLER_BACKLOG: LazyLock<IntGaugeVec> = LazyLock::new(|| {
    register_int_gauge_vec!(
        "informer_handler_backlog",
        "Number of notifications that wait for an event handler",
        &["informer", "handler"]
    )
    .expect("registered once, with valid names")
});

pub static HANDLER_PANICS: LazyLock<IntCounterVec> = LazyLock::new(|| {
    register_int_counter_vec!(
        "informer_handler_panics_total",
        "Number of notifications at which an event handler panicked",
        &["informer", "handler"]
    )
    .expect("registered once, with valid names")
});

pub static LISTS: LazyLock<IntCounterVec> = LazyLock::new(|| {
    register_int_counter_vec!(
        "reflector_lists_total",
        "Number of lists begun, by how they are asked for",
        &["informer", "method"]
    )
    .expect("registered once, with valid names")
});

pub static WATCHES: LazyLock<IntCounterVec> = LazyLock::new(|| {
    register_int_counter_vec!("reflector_watches_total", "Number of watches opened", &["informer"])
        .expect("registered once, with valid names")
});

pub static SHORT_WATCHES: LazyLock<IntCounterVec> = LazyLock::new(|| {
    register_int_counter_vec!(
        "reflector_short_watches_total",
        "Number of watches that ended within a second without an event",
        &["informer"]
    )
    .expect("registered once, with valid names")
});
