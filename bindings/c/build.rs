//! Gives the shared library its soname: `libumemcg.so.` and the number of the binary interface.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libumemcg.so.0");
}
