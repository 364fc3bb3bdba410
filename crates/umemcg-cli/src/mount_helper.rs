//! The helper of mount(8), for `/etc/fstab` and `mount -t fuse.umemcg SOURCE POINT`.
//!
//! mount(8) calls `mount.TYPE` for a type with a helper, and this program acts as the helper when
//! called by that name. It starts `umemcg mount` with arguments from the options, copies the
//! daemon's stderr until the daemon serves ([`crate::detachment`]), and then exits. It uses the
//! exit codes of mount(8).

use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::thread::JoinHandle;

use clap::{ArgAction, Parser};
use umemcg_fuse::Unmount;
use umemcg_fuse::mount::{is_dead, unmount};

use crate::detachment::has_journal;
use crate::mount_options::{DaemonOptions, read_environment};
use crate::mounts::{find_mount, is_control};
use crate::stores::is_store_url;
use crate::stuck_daemon::end_if_stuck_at;

/// The name of this program when called by mount(8).
const NAME: &str = "mount.fuse.umemcg";
/// The source of a mount of volumes in the mount table.
const VOLUMES: &str = "volumes";
/// The exit code of `umemcg mount` for an invalid command line or configuration.
const USAGE: i32 = 2;
/// Environment variables of a service. Removed for the daemon: they belong to the program that runs
/// mount(8).
const SERVICE_VARIABLES: [&str; 4] = ["NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "JOURNAL_STREAM"];

/// The arguments that mount(8) gives its helpers.
#[derive(Debug, Parser)]
#[command(name = NAME, about = "Called by mount(8): serves a mount in the background")]
struct HelperArguments {
    /// Directory, URL of a store, or `volumes`
    source: PathBuf,
    /// Mount point
    point: PathBuf,
    /// Options of mount(8) and of `umemcg mount`, separated by commas
    #[arg(short, action = ArgAction::Append)]
    options: Vec<String>,
    /// Pass over unknown options
    #[arg(short)]
    sloppy: bool,
    /// Mount nothing
    #[arg(short)]
    fake: bool,
    /// Log events while the daemon starts
    #[arg(short)]
    verbose: bool,
    #[arg(short, hide = true)]
    read_only: bool,
    #[arg(short, hide = true)]
    write: bool,
    #[arg(short, hide = true)]
    no_record: bool,
    #[arg(short = 't', hide = true)]
    kind: Option<String>,
    #[arg(short = 'N', hide = true)]
    namespace: Option<PathBuf>,
}

/// The reason why nothing is mounted.
enum Refusal {
    /// The options or the configuration are wrong.
    Invocation(String),
    /// The mount failed.
    Failed(String),
}

/// Returns whether this program was called as the helper.
pub fn is_called_for() -> bool {
    let name = std::env::args_os().next().map(PathBuf::from);
    name.as_deref().and_then(Path::file_name).is_some_and(|name| name == NAME)
}

/// Runs the helper.
pub fn run() -> ExitCode {
    let arguments = match HelperArguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            let _ = error.print();
            return ExitCode::from(u8::from(error.use_stderr()));
        }
    };
    let (message, code) = match mount(&arguments) {
        Ok(()) => return ExitCode::SUCCESS,
        Err(Refusal::Invocation(message)) => (message, 1),
        Err(Refusal::Failed(message)) => (message, 32),
    };
    let _ = writeln!(io::stderr(), "{NAME}: {message}");
    ExitCode::from(code)
}

fn mount(arguments: &HelperArguments) -> Result<(), Refusal> {
    if arguments.namespace.is_some() {
        return Err(Refusal::Invocation(
            "option -N is not supported; use nsenter(1) to enter another mount namespace".into(),
        ));
    }
    let mut text = arguments.options.join(",");
    if arguments.read_only {
        text.push_str(",ro");
    }
    let options = DaemonOptions::parse(&text, arguments.sloppy).map_err(Refusal::Invocation)?;
    let mut command = daemon_command(arguments, &options).map_err(Refusal::Failed)?;
    if let Some(path) = &options.environment {
        command.envs(read_environment(path).map_err(Refusal::Failed)?);
    }
    if arguments.fake {
        return Ok(());
    }
    // Before the control directory is made: its mount is of the same daemon.
    end_if_stuck_at(&arguments.point);
    // A directory below /run is gone after each boot, and no other program would create it in time.
    for control in options.arguments.iter().filter_map(|argument| argument.strip_prefix("--control=")) {
        make_control_directory(Path::new(control))
            .map_err(|error| Refusal::Failed(format!("cannot make {control}: {error}")))?;
    }
    let started = start(&mut command);
    started.map_err(|error| Refusal::Failed(format!("cannot start the daemon: {error}")))?
}

/// Makes the directory of the control files. Removes the control mount that a dead daemon has left
/// there, because the system finds no directory at such a place.
fn make_control_directory(path: &Path) -> io::Result<()> {
    if let Ok((point, Some(mount))) = find_mount(path)
        && is_control(&mount)
        && is_dead(&point)
    {
        unmount(&point, Unmount::Lazily)?;
    }
    fs::create_dir_all(path)
}

/// Returns the command of the daemon.
fn daemon_command(arguments: &HelperArguments, options: &DaemonOptions) -> Result<Command, String> {
    let program = std::env::current_exe().map_err(|error| format!("cannot find this program: {error}"))?;
    let absolute = |path: &Path| {
        std::path::absolute(path).map_err(|error| format!("cannot resolve {}: {error}", path.display()))
    };
    let mut command = Command::new(program);
    command.arg0("umemcg").args(has_journal().then_some("--log-format=journald"));
    command.args(arguments.verbose.then_some("--verbose"));
    command.args(["mount", "--detached"]).args(&options.arguments);
    if !options.flags.is_empty() {
        let names: Vec<_> = options.flags.iter().map(|flag| flag.name()).collect();
        command.arg(format!("--mount-flags={}", names.join(",")));
    }
    // No path begins with a dash: each is absolute.
    let source = &arguments.source;
    match source.to_str() {
        _ if options.shows_volumes => {}
        Some(VOLUMES) => {}
        Some(text) if is_store_url(text) => drop(command.arg(source)),
        _ => drop(command.arg(absolute(source)?)),
    }
    command.arg(absolute(&arguments.point)?);
    for name in SERVICE_VARIABLES {
        command.env_remove(name);
    }
    // The working directory of a daemon would keep its file system from being unmounted.
    command.current_dir("/").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    Ok(command)
}

/// Starts the daemon, and waits until it serves or has ended.
fn start(command: &mut Command) -> io::Result<Result<(), Refusal>> {
    let mut daemon = command.spawn()?;
    // Without a thread for them, its messages are not shown.
    let said = daemon.stderr.take().and_then(|stderr| show(stderr).ok());
    let serves = reads_line(&mut daemon)?;
    // Once the daemon serves, its stderr goes elsewhere, so this thread always ends.
    let _ = said.map(JoinHandle::join);
    if serves {
        return Ok(Ok(()));
    }
    let status = daemon.wait()?;
    let message = format!("nothing is mounted: the daemon ended with {status}");
    Ok(Err(match status.code() {
        Some(USAGE) => Refusal::Invocation(message),
        _ => Refusal::Failed(message),
    }))
}

/// Waits for the daemon's "serving" line. Returns whether it came.
fn reads_line(daemon: &mut Child) -> io::Result<bool> {
    let Some(stdout) = daemon.stdout.take() else { return Ok(false) };
    Ok(BufReader::new(stdout).read_until(b'\n', &mut Vec::new())? > 0)
}

/// Shows the lines of a daemon on stderr, without their priorities for the journal.
fn show(from: impl Read + Send + 'static) -> io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name("umemcg-messages".into()).spawn(move || {
        for line in BufReader::new(from).lines().map_while(Result::ok) {
            let _ = writeln!(io::stderr(), "{NAME}: {}", without_priority(&line));
        }
    })
}

fn without_priority(line: &str) -> &str {
    let rest = line.strip_prefix('<').and_then(|rest| rest.split_once('>'));
    match rest {
        Some((priority, text)) if priority.len() == 1 && priority.as_bytes()[0].is_ascii_digit() => text,
        _ => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsString;

    fn words(line: &str) -> Vec<OsString> {
        let arguments = HelperArguments::try_parse_from(line.split_whitespace()).unwrap();
        let options = DaemonOptions::parse(&arguments.options.join(","), arguments.sloppy).unwrap();
        let command = daemon_command(&arguments, &options).unwrap();
        let words = command.get_args().map(OsString::from);
        words.skip_while(|word| word != "mount").collect()
    }

    #[test]
    fn the_helper_takes_what_mount_calls_it_with() {
        let line = "mount.fuse.umemcg /data /mnt -s -n -v -o rw,noexec,pool=1G -t fuse.umemcg";
        let expected = ["mount", "--detached", "--pool=1G", "--mount-flags=noexec", "/data", "/mnt"];
        assert_eq!(words(line), expected);
        let line = "mount.fuse.umemcg volumes /mnt -o config=/etc/umemcg/a.toml";
        assert_eq!(words(line), ["mount", "--detached", "--config=/etc/umemcg/a.toml", "/mnt"]);
        assert_eq!(
            words("mount.fuse.umemcg s3://bucket/p /mnt"),
            ["mount", "--detached", "s3://bucket/p", "/mnt"]
        );
    }

    #[test]
    fn priorities_are_for_the_journal_alone() {
        assert_eq!(without_priority("<3>cannot mount"), "cannot mount");
        assert_eq!(without_priority("<file>"), "<file>");
    }
}
