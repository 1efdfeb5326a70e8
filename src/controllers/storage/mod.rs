//! Claims, volumes and their classes.

pub mod annotations;
pub mod attachdetach;
pub mod binder;
pub mod claims;
pub mod csi_migration;
pub mod ephemeral;
pub mod expander;
pub mod flexvolume;
pub mod operation_metrics;
pub mod protection;
pub mod pvcprotection;
pub mod pvprotection;
pub mod selinuxwarning;
pub mod vacprotection;
pub mod volume_specs;
