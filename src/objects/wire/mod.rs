//! The encodings of objects (JSON and protobuf), and the resource types of views.

pub(crate) mod messages;
pub mod parts;
pub mod protobuf;
pub mod resource;
