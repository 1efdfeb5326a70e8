//! How objects arrive: JSON and protobuf, and which resource a view is of.

pub(crate) mod messages;
pub mod parts;
pub mod protobuf;
pub mod resource;
