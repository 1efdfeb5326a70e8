//! The Kubernetes controller manager in Rust: client-go's informer machinery and, on top of it,
//! the controllers of kube-controller-manager 1.36.
//!
//! The machinery is a library for any controller: a client, caches that follow the API server, work
//! queues, leader election, events, and a runner that joins them. Names are client-go's, in Rust's
//! case. Each type says what it promises, what it does not promise, and what its counterpart
//! upstream is.
//!
//! - To write a controller, begin with [`guide::writing_a_controller`].
//! - To understand how one sees its cluster, follow the path below, and then read the [`guide`],
//!   which also maps client-go's types to these.
//! - `examples/` has client-go's examples and its sample-controller, each with its output.
//!
//! # The path of an object
//!
//! ```text
//! API server ── watch ──▶ client ──▶ Reflector ──▶ DeltaFifo ──▶ Indexer (+ indices)
//!                                                     │              │
//!                                                     │              └─ Lister ◀── reads ──┐
//!                                                     └──▶ EventHandler                    │
//!                                                              │ maps the event to a key   │
//!                                                              ▼                           │
//! API server ◀── create, update, patch, delete ── sync(key) ◀─ RateLimitingQueue           │
//!                                                     └────────────────────────────────────┘
//! ```
//!
//! 1. A [`Client`](client::Client) opens a watch, and a [`WatchStream`](client::WatchStream) cuts
//!    its body into [`WatchEvent`](objects::WatchEvent)s, each with an object as
//!    [`Encoded`](objects::Encoded) as it came.
//! 2. [`ClientSource`](source::ClientSource) is the client as the caches' [`Source`](cache::Source):
//!    it gives errors in the cache's terms, such as [`Expired`](cache::Error::Expired) for 410.
//! 3. The [`Reflector`](cache::Reflector) decodes each object once, into the `Arc` that all readers
//!    share. [`Phase::after`](cache::Phase::after) decides whether it lists, watches or waits next.
//! 4. The [`DeltaFifo`](cache::DeltaFifo) queues each [`Delta`](cache::Delta) under the key of its
//!    object, [`ObjectKey`](objects::ObjectKey).
//! 5. The [`SharedIndexInformer`](cache::SharedIndexInformer) pops it: first the
//!    [`Indexer`](cache::Indexer) holds the object, and a [`Lister`](cache::Lister) finds it by key,
//!    namespace or [`Index`](cache::Index); then each [`EventHandler`](cache::EventHandler) is
//!    called. A [`SharedInformerFactory`](cache::SharedInformerFactory) has one informer for each
//!    kind.
//! 6. The runner's handler gives a [`Change`](controllers::Change) to a
//!    [`Mapper`](controllers::runner::Mapper), such as those of [`keys`](controllers::keys), which
//!    adds the keys of the concerned objects to a [`Queue`](controllers::Queue), a
//!    [`RateLimitingQueue`](workqueue::RateLimitingQueue) with a policy of retries.
//! 7. A worker takes the key and calls the controller's sync. It reads Listers, decides, and writes
//!    by the client's verbs, [`Client`](client::Client) by type or [`Dynamic`](client::Dynamic) by
//!    resource. [`Next`](controllers::Next) or an [`Error`](controllers::Error) says what happens to
//!    the key.
//! 8. The write comes back by the watch, on the same path; the sync that it causes finds nothing to
//!    do.
//!
//! Beside it: [`ControllerContext::run`](controllers::ControllerContext::run) runs the controllers of
//! a program, a [`LeaderElector`](leaderelection::LeaderElector) lets one of several processes work,
//! a [`Recorder`](events::Recorder) records events, a [`Clock`](clock::Clock) is the only source of
//! time, and [`task`] has what is spawned, joined and stopped.
//!
//! # Modules
//!
//! A module uses only modules that are above it in this table; `docs/architecture.md` has all rows.
//!
//! | module | what it is | upstream |
//! |---|---|---|
//! | [`clock`], [`task`] | injected time; tasks, and the token that stops them | `k8s.io/utils/clock`, `context` |
//! | [`objects`] | kinds as their readers need them; keys, selectors, quantities, times | `k8s.io/api`, `apimachinery` |
//! | [`metrics`](mod@metrics) | counters in the Prometheus text format | `component-base/metrics` |
//! | [`client`] | requests to the API server | `client-go/rest`, `dynamic`, `discovery`, `clientcmd` |
//! | [`cache`] | informers, indexers, listers | `client-go/tools/cache`, `informers` |
//! | [`workqueue`] | queues of keys, with delays and rate limits | `client-go/util/workqueue` |
//! | [`source`] | the client as the caches' source | `cache.ListWatch` |
//! | [`events`] | the recorder of events, with its correlator | `client-go/tools/record` |
//! | [`leaderelection`] | the elector and its lease | `client-go/tools/leaderelection` |
//! | [`controllers::runner`] | what is the same in all controllers | each controller's `Run` |
//! | [`controllers`] | the controllers of kube-controller-manager | `pkg/controller` |
//! | [`server`] | health checks, metrics and debug pages over HTTP | `apiserver/pkg/server` |
//! | [`app`] | the process | `cmd/kube-controller-manager` |

mod buffer_pool;
pub mod clock;
pub mod files;
pub mod jwt;
mod lines;
pub mod logging;
mod lookup;
pub mod metrics;
pub mod open_files;
pub mod percent;
pub mod task;
mod trace;

pub mod objects;

pub mod cache;
pub mod client;
pub mod workqueue;

pub mod source;

pub mod events;
pub mod leaderelection;

pub mod controllers;
pub mod server;
mod shadow;

pub mod app;
pub mod options;

/// [differences.md]: crate::guide::differences
#[doc = include_str!("../docs/client-go.md")]
pub mod guide {
    /// [adding-a-controller.md]: crate::controllers
    /// [client-go.md]: crate::guide
    #[doc = include_str!("../docs/writing-a-controller.md")]
    pub mod writing_a_controller {}

    #[doc = include_str!("../docs/waiting.md")]
    pub mod waiting {}

    /// [differences of the cache]: crate::guide#where-we-differ-from-upstream-on-purpose
    /// [profiling.md]: crate::server::profiling
    /// [waiting.md]: crate::guide::waiting
    #[doc = include_str!("../docs/differences.md")]
    pub mod differences {}
}
