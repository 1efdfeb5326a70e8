//! Kubeconfig files, which are YAML or JSON. A configuration has an address; an error names the
//! file.

use std::path::Path;

use kube_controller_manager::client::Config;

/// Parses any bytes as a kubeconfig: each has a host, or an error of one line that names the file.
pub fn target(input: &[u8]) {
    let path = Path::new("/nonexistent/kubeconfig");
    for (master, context) in [(None, None), (Some("https://master:6443"), Some("other"))] {
        match Config::parse(input, path, master, context) {
            Ok(config) => {
                assert!(!config.host.is_empty());
                // Debug output has rules of its own: secrets are left out.
                assert!(!format!("{config:?}").is_empty());
            }
            Err(error) => {
                let text = error.to_string();
                assert!(text.contains("/nonexistent/"), "{text}");
                assert!(!text.trim_end().contains('\n'), "{text}");
            }
        }
    }
}
