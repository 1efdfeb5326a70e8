//! The controllers of clouds and their program against the sandbox, with a cloud in memory.

mod env;
mod fake;
mod nodes;
mod program;
mod routes;
mod services;
