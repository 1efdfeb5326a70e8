//! Compiles the files of `proto/`, which are upstream's: the container runtime interface, the node
//! service of the container storage interface and the registration of plugins.

use std::error::Error;

/// What the kubelet needs of CSI's messages, beside those of the node service.
const CSI_PARTS: [&str; 5] =
    ["CapacityRange", "Topology", "VolumeCapability", "VolumeCondition", "VolumeUsage"];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto");
    for (folder, file) in [
        ("proto", "api.proto"),
        ("proto/pluginregistration", "api.proto"),
        ("proto/csi", "csi.proto"),
    ] {
        let mut files = protox::compile([format!("{folder}/{file}")], [folder])?;
        // The controller's messages would bring types of Google's own files.
        for csi in files.file.iter_mut().filter(|file| file.package() == "csi.v1") {
            csi.service.clear();
            csi.message_type.retain(|message| {
                let name = message.name();
                name.starts_with("Node") || CSI_PARTS.contains(&name)
            });
        }
        // Upstream's comments are no Markdown: rustdoc finds unclosed tags in them.
        prost_build::Config::new().disable_comments(["."]).compile_fds(files)?;
    }
    Ok(())
}
