//! Fuzz targets: functions of any bytes. They panic when the product breaks a promise.
//!
//! [`driver`] runs them on stable Rust with inputs mutated from `corpus/NAME`. libFuzzer runs the
//! same functions (`cargo fuzz run NAME`). A target returns the outcome of the input, and the
//! driver keeps inputs with a new outcome.
#![forbid(unsafe_code)]

mod config;
mod control;
pub mod driver;
mod hierarchy;
mod mutate;
mod outcome;
mod proc_files;
mod request;
mod rules;

pub use config::config;
pub use control::control;
pub use outcome::Outcome;
pub use proc_files::proc_files;
pub use request::request;
pub use rules::rules;

/// Makes a program of a target.
#[macro_export]
macro_rules! target {
    ($name:ident) => {
        #[cfg(fuzzing)]
        libfuzzer_sys::fuzz_target!(|input: &[u8]| {
            let _ = $crate::$name(input);
        });

        #[cfg(not(fuzzing))]
        fn main() -> std::process::ExitCode {
            $crate::driver::main(stringify!($name), $crate::$name)
        }
    };
}
