//! What a user sees, end to end: the built binary against the sandbox over HTTPS.

mod aggregation;
mod deployments;
mod env;
mod garbage;
mod kubectl;
mod layers;
mod resync;
mod servicecidrs;
mod ttl;
