//! The types of the served kinds: documents about them, and bodies held against them.

pub mod decode;
pub mod discovery;
pub mod documents;
pub mod openapi;
pub mod shape;
pub mod validation;
