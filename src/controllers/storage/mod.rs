//! Claims, volumes and their classes.

pub mod claims;
pub mod ephemeral;
pub mod protection;
pub mod pvcprotection;
pub mod pvprotection;
pub mod vacprotection;
