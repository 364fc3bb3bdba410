//! The integration tests of `umemcg-tidy`, in one program.

mod figures;
mod kernel_locks;
mod own_directories;
mod proc_files;
mod public_face;
mod threads;
mod tidy;

use std::env;
use std::path::{Path, PathBuf};

/// The root of the project. Asked at run time: two checkouts may share their build outputs, and a
/// program that was built in one has to check the one that it runs in.
fn root() -> PathBuf {
    let package = env::var_os("CARGO_MANIFEST_DIR").expect("cargo runs this program");
    Path::new(&package).join("../..").canonicalize().unwrap()
}
