//! Files and folders of the machine: walks through folders of any depth, and watches.

pub mod folder_watch;
pub mod tree;
