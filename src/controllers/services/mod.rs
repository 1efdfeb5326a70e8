//! From Services to Endpoints and EndpointSlices, and the addresses of Services.

pub mod endpoint;
pub mod endpointslice;
pub mod endpointslicemirroring;
pub mod service_endpoints;
pub mod servicecidrs;
