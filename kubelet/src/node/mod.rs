//! The machine: its address, its huge pages, and the processes that its kernel kills.

pub mod address;
pub mod huge_pages;
pub mod oom;
