//! Files and folders of the machine: walks through folders of any depth, files below a folder, and
//! watches.

pub mod beneath;
pub mod folder_watch;
pub mod tree;
