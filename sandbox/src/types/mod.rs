//! The types of the served kinds: documents about them, and the validation of bodies.

pub mod decode;
pub mod discovery;
pub mod documents;
pub mod openapi;
pub mod roots;
pub mod schema_fixes;
pub mod schemas;
pub mod shape;
pub mod validation;
