//! The parts of objects that many kinds share: keys, labels and selectors, quantities, times,
//! templates, metadata.

pub mod address;
pub mod condition;
pub mod intern;
pub mod key;
pub mod label_syntax;
pub mod meta;
pub mod node_selector;
mod one_of;
pub mod owner;
pub mod quantity;
pub mod raw;
pub mod resource_list;
pub mod selector;
pub mod taint;
pub mod template;
pub mod time;
