//! The helper of umount(8): a plain `umount MNT` waits for write-back, like `umemcg umount MNT`.
//!
//! The kernel notifies a FUSE daemon of an unmount only afterwards, so umount(8) must ask the
//! daemon first. umount(8) uses a helper program, `umount.TYPE`, for mounts recorded with a helper
//! type in `/run/mount/utab`. So where the helper is installed, the daemon records its mount, and
//! this program acts as the helper when called by that name. `umount -i`, umount2(2) and ending
//! containers call no helper. The daemon then writes its data back after the unmount, and keeps its
//! lock on the directory until then.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use clap::Parser;
use tracing::Level;
use umemcg_fuse::Unmount;
use umemcg_fuse::mount::{is_dead, unmount};
use umemcg_fuse::mountinfo::Mount;

use crate::args::{SyncArguments, UmountArguments};
use crate::client::{self, our_mount};
use crate::exit::Failure;
use crate::log::tell;

/// The type of data mounts; it names their helper.
const TYPE: &str = "fuse.umemcg";
/// The directories searched by umount(8) for helpers.
const DIRECTORIES: [&str; 3] = ["/sbin", "/sbin/fs.d", "/sbin/fs"];
/// The timeout of write-back before a lazy unmount detaches the mount. The daemon continues
/// write-back after that.
const LAZY_FLUSH: Duration = Duration::from_secs(5);

/// The arguments that umount(8) gives its helpers.
#[derive(Debug, Parser)]
#[command(name = "umount.fuse.umemcg", about = "Called by umount(8): writes everything back, then unmounts")]
struct HelperArguments {
    /// The mount point
    directory: PathBuf,
    /// Detach it immediately, and let its users finish
    #[arg(short)]
    lazy: bool,
    /// Do not wait for anything
    #[arg(short)]
    force: bool,
    #[arg(short, hide = true)]
    no_record: bool,
    #[arg(short, hide = true)]
    read_only: bool,
    #[arg(short, hide = true)]
    verbose: bool,
    #[arg(short = 't', hide = true)]
    kind: Option<String>,
    #[arg(short = 'N', hide = true)]
    namespace: Option<PathBuf>,
}

/// Returns whether this program was called as the helper.
pub fn is_called_for() -> bool {
    let name = std::env::args_os().next().map(PathBuf::from);
    name.as_deref().and_then(Path::file_name) == Some(&helper_name())
}

fn helper_name() -> OsString {
    OsString::from(format!("umount.{TYPE}"))
}

/// Runs the helper.
///
/// # Errors
/// As `umemcg umount`.
pub fn run() -> Result<(), Failure> {
    let arguments = HelperArguments::parse();
    if arguments.namespace.is_some() {
        return Err(Failure::Usage(
            "option -N is not supported; use nsenter(1) to enter another mount namespace".into(),
        ));
    }
    let mountpoint = arguments.directory;
    let mount = our_mount(&mountpoint)?;
    let how = match (arguments.force, arguments.lazy) {
        (true, _) => Unmount::ByForce,
        (false, true) => {
            let sync = SyncArguments { mountpoint, flush_timeout: Some(LAZY_FLUSH), json: false };
            if let Err(failure) = client::sync(&sync) {
                tell(Level::WARN, format_args!("{failure}; the daemon keeps trying"));
            }
            Unmount::Lazily
        }
        (false, false) => {
            match client::umount(&UmountArguments { mountpoint, flush_timeout: None, json: false }) {
                // The mount is gone, as requested.
                Err(failure @ Failure::NotServed(_)) if is_gone(&mount) => {
                    tell(Level::WARN, failure);
                    return Ok(());
                }
                Err(Failure::NotServed(_)) if !is_dead(&mount.point) => {
                    tell(Level::WARN, "no daemon answers; it writes its remaining data after the unmount");
                    Unmount::IfIdle
                }
                result => return result,
            }
        }
    };
    forget(&mount.point);
    unmount(&mount.point, how).map_err(|error| Failure::at("cannot unmount", &mount.point, &error))
}

fn is_gone(mount: &Mount) -> bool {
    umemcg_fuse::mountinfo::mount_at(&mount.point).is_ok_and(|there| there.is_none())
}

/// Records a mount with its helper for umount(8). Does nothing if no helper is installed.
pub fn record(source: &OsStr, point: &Path) {
    let is_installed = DIRECTORIES.iter().any(|directory| Path::new(directory).join(helper_name()).exists());
    if !rustix::process::geteuid().is_root() || !is_installed {
        return;
    }
    let mut command = Command::new("mount");
    command.args(["--fake", "--internal-only", "-t", TYPE, "-o"]).arg(format!("helper={TYPE}"));
    let recorded = quietly(command.arg(source).arg(point));
    if !recorded {
        tracing::info!("umount(8) will not call the helper: after a plain umount, data may be written later");
    }
}

/// Removes the record of a mount before an unmount without umount(8).
pub fn forget(point: &Path) {
    if rustix::process::geteuid().is_root() && Path::new("/run/mount/utab").exists() {
        quietly(Command::new("umount").args(["--fake", "--internal-only"]).arg(point));
    }
}

fn quietly(command: &mut Command) -> bool {
    let run = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
    run.is_ok_and(|status| status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_helper_takes_what_umount_calls_it_with() {
        let parse = |words: &[&str]| HelperArguments::try_parse_from(words).unwrap();
        let words = ["umount.fuse.umemcg", "/mnt", "-n", "-l", "-f", "-v", "-r", "-t", "fuse.umemcg"];
        let arguments = parse(&words);
        assert!(arguments.lazy && arguments.force && arguments.directory == Path::new("/mnt"));
        let arguments = parse(&words[..2]);
        assert!(!arguments.lazy && !arguments.force);
    }
}
