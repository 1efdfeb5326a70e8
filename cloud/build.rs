//! Compiles the interface to a provider that is a process of its own.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto/provider.proto");
    let files = protox::compile(["proto/provider.proto"], ["proto"])?;
    // Comments of a file for programs in any language are no Markdown.
    prost_build::Config::new().disable_comments(["."]).btree_map(["."]).compile_fds(files)?;
    Ok(())
}
