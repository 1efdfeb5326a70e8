//! The controllers of clouds and their program against the sandbox, with a cloud in memory and with
//! each provider.

mod bare;
mod env;
mod fake;
mod managers;
mod metrics;
mod nodes;
mod program;
mod reference;
mod remote;
mod routes;
mod services;
