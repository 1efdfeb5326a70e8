//! The node's certificates, from a bootstrap token on: an embedded API server, with the signers and
//! approvers of the controller manager.

mod bootstrap;
mod cluster;
mod faults;
mod renewal;
mod serving;
