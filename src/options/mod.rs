//! Flags as data: the table of flags, their parser, checks and `--help`. Upstream: `pflag`,
//! `component-base/cli/flag`, `component-base/featuregate`.

mod answer;
mod compatibility;
mod duration;
mod feature_gate_table;
mod feature_gates;
mod flags;
mod parse;
mod release;
mod usage;
mod validate;
mod values;
mod version;

pub use answer::answer;
pub use compatibility::emulated;
pub use duration::{parse_duration, show_duration};
pub use feature_gate_table::{GateSpec, Stage};
pub use feature_gates::specs as feature_gates;
#[doc(inline)]
pub use flags::flag_table;
pub use flags::{FLAGS, FlagInfo, Options, flag_values};
pub use parse::{Arguments, Command, PROGRAM, parse};
pub use release::Release;
pub use usage::{Manual, program_usage, usage};
pub use validate::{controller_faults, tls_faults, validate};
pub use values::{
    CertKey, CertKeys, Count, Gates, Given, Level, Map, Quantity, TraceObject, TraceObjects, Value,
    Version, Vmodule,
};
pub use version::{
    VERSION, followed, git_version, model_version, platform, report_release, report_version,
    version, version_info,
};
