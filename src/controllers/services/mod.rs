//! From Services to Endpoints and EndpointSlices, and the addresses of Services.

pub mod endpoint;
pub mod endpointslice;
pub mod endpointslicemirroring;
pub mod servicecidrs;

// What the controllers of endpoints share.
mod endpoint_set;
mod endpoint_writes;
mod port_hash;
mod repack_subsets;
mod service_pods;
mod service_slices;
mod slice_counts;
mod slice_tracker;
mod trigger_times;
