//! The program `umemcg`; all of it is in the library beside it.
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    umemcg_cli::run()
}
