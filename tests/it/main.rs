//! What a user sees, end to end: the built binary against the sandbox over HTTPS.

mod deployments;
mod endpoints;
mod env;
mod garbage;
mod kubectl;
mod layers;
