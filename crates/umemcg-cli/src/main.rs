//! The program `umemcg`; its code is in this crate's library.
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    umemcg_cli::run()
}
