//! The program `umemcg`: a daemon to serve a directory through a cache charged to groups, and the
//! commands to control it.
//!
//! `mount` runs the daemon in the foreground. `sync`, `umount`, `volume`, `reload` and `metrics`
//! send it requests over a socket. `top` and `trim` use the control files. `doctor` checks the
//! machine. `demo` demonstrates all of it. The mount itself is in the layers below; this crate has
//! the command line, the signals and the exit codes. It is a library only for the program, the fuzz
//! targets, and generated man pages and completions.
#![forbid(unsafe_code)]
// These macros panic when the disk is full; see `output` and `log::tell`.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod acceptor;
mod args;
mod ask;
mod client;
mod config;
mod csi;
mod csi_arguments;
mod daemon_process;
#[doc(hidden)]
pub mod definitions;
mod demo;
mod detachment;
mod doctor;
mod duration;
mod endpoint;
mod exit;
#[doc(hidden)]
pub mod fuzzing;
mod group_sample;
mod lifecycle;
mod limits;
mod log;
mod log_rate;
mod metrics;
mod mount;
mod mount_arguments;
mod mount_helper;
mod mount_options;
mod mounts;
mod output;
mod plain_text;
mod pods;
mod pool;
mod reload;
mod service_manager;
mod signals;
mod start;
#[cfg(feature = "object")]
mod state_directory;
mod stores;
mod stuck_daemon;
mod table;
mod top;
mod trim;
mod umount_helper;
mod users;
mod volumes;
mod watchdog;
mod writes;

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::process::ExitCode;

use clap::Parser;

use args::{Arguments, Command};

/// Runs the program with the arguments of the process.
pub fn run() -> ExitCode {
    if mount_helper::is_called_for() {
        return mount_helper::run();
    }
    if umount_helper::is_called_for() {
        return ended(umount_helper::run());
    }
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        // Also for help and the version: exit code 0 once printed. 2 if the command line is
        // invalid.
        Err(shown) => match output::told(shown.print()) {
            Ok(()) => return ExitCode::from(shown.exit_code() as u8),
            failed => return ended(failed),
        },
    };
    log::start(arguments.verbose, arguments.log_format);
    let result = match &arguments.command {
        Command::Mount(mount) => mount::mount(mount),
        Command::Umount(umount) => client::umount(umount),
        Command::Sync(sync) => client::sync(sync),
        Command::Reload(which) => reload::ask(which),
        Command::Volume(volume) => volumes::volume(volume),
        Command::Top(top) => top::top(top),
        Command::Metrics(metrics) => metrics::metrics(metrics),
        Command::Trim(trim) => trim::trim(trim),
        Command::Doctor(arguments) => doctor::doctor(arguments),
        Command::Csi(csi) => csi::csi(csi),
        Command::Demo(demo) => demo::demo(demo),
        Command::OrphanGuard(guard) => {
            let run = |()| {
                let abort = File::from(io::stdin().as_fd().try_clone_to_owned()?);
                umemcg_fuse::orphan_guard::run(abort, &guard.point, &guard.device, guard.daemon)
            };
            // They may be meant for the daemon and its helpers alike, and the daemon ends last.
            signals::outlast()
                .and_then(run)
                .map_err(|error| exit::Failure::at("cannot guard", &guard.point, &error))
        }
    };
    ended(result)
}

fn ended(result: Result<(), exit::Failure>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}
