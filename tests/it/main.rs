//! What a user sees, end to end: the built binary against the sandbox over HTTPS.

mod accounts;
mod aggregation;
mod apiserver;
mod credentials;
mod deployments;
mod discovery;
mod election;
mod endpoints;
mod env;
mod faults;
mod garbage;
mod kinds;
mod kubectl;
mod layers;
mod namespaces;
mod podgc;
mod policies;
mod protobuf;
mod quota;
mod rbac;
mod real;
mod resync;
mod rollouts;
mod servicecidrs;
mod serving;
mod ttl;
