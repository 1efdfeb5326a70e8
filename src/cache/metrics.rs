//! The metrics of the caches.

use crate::metrics::metrics;

metrics! {
    pub static QUEUED_ITEMS: IntGaugeVec["name", "group", "version", "resource"] =
        "informer_queued_items", "[ALPHA] Number of keys that wait in the informer's queue";
    pub static STORE_RESOURCE_VERSION: IntGaugeVec["name", "group", "version", "resource"] =
        "informer_store_resource_version",
        "Newest resource version of which the informer's store has all changes";
    pub static HANDLER_BACKLOG: IntGaugeVec["informer", "handler"] = "informer_handler_backlog",
        "Number of notifications that wait for an event handler";
    pub static HANDLER_PANICS: IntCounterVec["informer", "handler"] =
        "informer_handler_panics_total",
        "Number of notifications at which an event handler panicked";
    pub static INFORMER_PANICS: IntCounterVec["informer"] = "informer_panics_total",
        "Number of panics while objects were decoded or indexed";
    pub static LISTS: IntCounterVec["informer", "method"] = "reflector_lists_total",
        "Number of lists begun, by how they are asked for";
    pub static WATCHES: IntCounterVec["informer"] =
        "reflector_watches_total", "Number of watches opened";
    pub static SHORT_WATCHES: IntCounterVec["informer"] = "reflector_short_watches_total",
        "Number of watches that ended within a second without an event";
}
