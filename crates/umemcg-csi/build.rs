//! Generates the types and services of the Container Storage Interface from its definition.
//! `protox` parses it, so a build needs no protobuf compiler.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=proto/csi.proto");
    let definition = protox::compile(["csi.proto"], ["proto"])?;
    tonic_prost_build::configure().compile_fds(definition)?;
    Ok(())
}
