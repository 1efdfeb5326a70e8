//! What differs between the managers that this module starts.

use std::any::Any;
use std::sync::Arc;

use serde_json::Value;

use super::controller_table::{CONTROLLERS, Descriptor, is_known};
use super::leader_migration::LeaderMigration;
use super::{configz, notices};
use crate::controllers::{Controller, ControllerContext};
use crate::options::{Options, Release, validate};

/// A manager: its controllers, and what it shows of its flags. The flags that all managers have are
/// in [`Options`], which names the manager.
pub trait Program: Send + Sync + 'static {
    /// Returns the crate whose log follows `-v`.
    fn log_target(&self) -> &'static str;

    /// Returns the controllers in the order in which they start.
    fn controllers(&self) -> &[Descriptor];

    /// Returns the faults of the flags, a line each.
    fn problems(&self, options: &Options) -> Vec<String>;

    /// Returns what the log says of flags that are accepted, a line each.
    fn notices(&self, options: &Options) -> Vec<String>;

    /// Returns each flag's name and its value as pflag shows it.
    fn flags(&self, options: &Options) -> Vec<(String, String)>;

    /// Returns the content of `/configz`.
    fn configz(
        &self,
        options: &Options,
        migration: Option<&LeaderMigration>,
        release: Release,
    ) -> Value;

    /// Returns what the controllers' constructors need beside the options: see
    /// [`Controller::extension`].
    fn extension(&self) -> Option<Arc<dyn Any + Send + Sync>> {
        None
    }

    /// Makes controllers beside those of the table. Called once, before those of the main lease are
    /// made.
    ///
    /// # Errors
    /// What ends the process.
    fn further_controllers(
        &self,
        context: &Arc<ControllerContext>,
    ) -> Result<Vec<Controller>, String> {
        let _ = context;
        Ok(Vec::new())
    }
}

/// The kube-controller-manager.
pub(super) struct KubeControllerManager;

impl Program for KubeControllerManager {
    fn log_target(&self) -> &'static str {
        env!("CARGO_CRATE_NAME")
    }

    fn controllers(&self) -> &[Descriptor] {
        CONTROLLERS
    }

    fn problems(&self, options: &Options) -> Vec<String> {
        let releases = options.possible_releases();
        validate(options, &|name| is_known(CONTROLLERS, name, &releases))
    }

    fn notices(&self, options: &Options) -> Vec<String> {
        notices::lines(options)
    }

    fn flags(&self, options: &Options) -> Vec<(String, String)> {
        options.pairs()
    }

    fn configz(
        &self,
        options: &Options,
        migration: Option<&LeaderMigration>,
        release: Release,
    ) -> Value {
        configz::content(options, migration, release)
    }
}
