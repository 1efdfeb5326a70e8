//! The types of the served kinds: their schemas, discovery and OpenAPI documents, and the decoding
//! of bodies by type.

pub mod decode;
pub mod discovery;
pub mod documents;
pub mod merge_rules;
pub mod openapi;
pub mod roots;
pub mod schema_fixes;
pub mod schemas;
pub mod shape;
