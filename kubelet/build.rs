//! Compiles the container runtime interface: `proto/api.proto`, which is upstream's.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto/api.proto");
    let files = protox::compile(["proto/api.proto"], ["proto"])?;
    // Upstream's comments are no Markdown: rustdoc finds unclosed tags in them.
    prost_build::Config::new().disable_comments(["."]).compile_fds(files)?;
    Ok(())
}
