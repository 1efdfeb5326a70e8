//! A request as the handlers see it: its path, query and body, the caller, and the form of the
//! answer.

pub mod accept;
pub mod call;
pub mod payload;
mod validation;
