//! Command lines: an argument a line. Refusals are one line, and options that parse can be
//! validated and shown.

use kube_controller_manager::options::{Command, FLAGS, Manual, Options, parse, usage, validate};

/// Parses a command line; each error and each fault has a text of one line.
pub fn target(input: &[u8]) {
    let Ok(text) = str::from_utf8(input) else { return };
    let args: Vec<String> = text.lines().map(str::to_owned).collect();
    // Each use of a deprecated flag prints a line.
    let deprecated: Vec<String> =
        FLAGS.iter().filter(|flag| flag.deprecated().is_some()).map(|flag| flag.name()).collect();
    let is_deprecated = |arg: &String| {
        let arg = arg.replace('_', "-");
        deprecated.iter().any(|name| arg.contains(name.as_str()))
    };
    if args.iter().any(is_deprecated) {
        return;
    }
    match parse(&args) {
        Ok(Command::Run(options)) => {
            for fault in validate(&options, &|name| name == "deployment-controller") {
                assert!(!fault.is_empty());
            }
            assert_eq!(options.pairs().len(), FLAGS.len());
        }
        Ok(Command::Help) => {
            let manual = Manual { program: "a", about: "b", controllers: &["c"], off: &[] };
            assert!(!usage(&manual, FLAGS, &Options::default()).is_empty());
        }
        Ok(Command::Version(version)) => assert!(!version.is_empty()),
        Err(error) => assert!(!error.is_empty() && !error.contains('\n'), "{error:?}"),
    }
}
