//! The options of a mount in `/etc/fstab`, as passed by mount(8) to its helper.
//!
//! Options of mount(8) itself become flags of the mount, or are ignored. Each option of
//! `umemcg mount` is also an option here, under the same name: `pool=1G` is `--pool 1G`. So the
//! options are defined in one place.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use clap::CommandFactory;
use umemcg_fuse::MountFlag;

use crate::args::Arguments;

/// Write permission for group and others.
const OTHERS_WRITE: u32 = 0o022;
/// Options of mount(8) without meaning for the helper, or always in effect here.
const WITHOUT_MEANING: [&str; 24] = [
    "defaults",
    "auto",
    "noauto",
    "nofail",
    "nouser",
    "nousers",
    "owner",
    "noowner",
    "group",
    "nogroup",
    "_netdev",
    "_rnetdev",
    "comment",
    "helper",
    "uhelper",
    "nosuid",
    "nodev",
    "relatime",
    "norelatime",
    "nostrictatime",
    "lazytime",
    "nolazytime",
    "silent",
    "loud",
];

/// The parsed options of a mount.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct DaemonOptions {
    /// The flags of the mount.
    pub flags: Vec<MountFlag>,
    /// Arguments of `umemcg mount`.
    pub arguments: Vec<String>,
    /// The file with the daemon's environment.
    pub environment: Option<PathBuf>,
    /// The mount shows volumes.
    pub shows_volumes: bool,
}

impl DaemonOptions {
    /// Parses options separated by commas. If `sloppy`, ignores unknown options.
    ///
    /// # Errors
    /// A message for the user.
    pub fn parse(text: &str, sloppy: bool) -> Result<Self, String> {
        let known = daemon_options();
        let mut options = Self::default();
        for option in split(text) {
            let (name, value) = match option.split_once('=') {
                Some((name, value)) => (name, Some(value.replace('"', ""))),
                None => (option.as_str(), None),
            };
            if options.set_generic(name)? {
                continue;
            }
            let name = name.replace('_', "-");
            if name == "environment" {
                options.environment = Some(value_of(&name, value)?.into());
                continue;
            }
            match (known.get(&name), value) {
                (Some(true), value) => {
                    options.arguments.push(format!("--{name}={}", value_of(&name, value)?));
                }
                (Some(false), None) => {
                    options.shows_volumes |= name == "volumes";
                    options.arguments.push(format!("--{name}"));
                }
                (Some(false), Some(_)) => return Err(format!("the option `{name}` takes no value")),
                (None, _) if sloppy => {}
                (None, _) => return Err(unknown(&option, &known)),
            }
        }
        Ok(options)
    }

    /// Applies a generic mount option. Returns whether the name is one. Later options override
    /// earlier ones.
    fn set_generic(&mut self, name: &str) -> Result<bool, String> {
        match name {
            "rw" => self.clear(MountFlag::ReadOnly),
            "exec" => self.clear(MountFlag::NoExec),
            "atime" | "strictatime" => self.clear(MountFlag::NoAtime),
            "diratime" => self.clear(MountFlag::NoDirAtime),
            "async" => {
                self.clear(MountFlag::Sync);
                self.clear(MountFlag::DirSync);
            }
            // As mount(8) says: unless a later option allows it.
            "user" | "users" => self.add(MountFlag::NoExec),
            "suid" | "dev" => {
                return Err(format!("the option `{name}` is refused: every mount is nosuid and nodev"));
            }
            "remount" => {
                return Err("a daemon that runs cannot be given other options: unmount, then mount again; \
                            `mount -i -o remount,ro` changes the kernel's flags alone"
                    .into());
            }
            name if WITHOUT_MEANING.contains(&name) || name.starts_with("x-") || name.starts_with("X-") => {}
            name => match name.parse() {
                Ok(flag) => self.add(flag),
                Err(_) => return Ok(false),
            },
        }
        Ok(true)
    }

    fn add(&mut self, flag: MountFlag) {
        self.clear(flag);
        self.flags.push(flag);
    }

    fn clear(&mut self, flag: MountFlag) {
        self.flags.retain(|&other| other != flag);
    }
}

/// Returns the options of `umemcg mount` by name, and whether each takes a value.
fn daemon_options() -> BTreeMap<String, bool> {
    let command = Arguments::command();
    let mount = command.get_subcommands().find(|command| command.get_name() == "mount");
    let options = mount.into_iter().flat_map(clap::Command::get_arguments);
    options
        .filter(|option| !option.is_hide_set())
        .filter_map(|option| Some((option.get_long()?.to_owned(), option.get_action().takes_values())))
        .filter(|(name, _)| name != "mount-flags")
        .collect()
}

fn value_of(name: &str, value: Option<String>) -> Result<String, String> {
    value.filter(|value| !value.is_empty()).ok_or_else(|| format!("the option `{name}` takes a value"))
}

fn unknown(option: &str, known: &BTreeMap<String, bool>) -> String {
    let names: Vec<&str> = known.keys().map(String::as_str).collect();
    format!("unknown option `{option}`; beside those of mount(8) there are environment, {}", names.join(", "))
}

/// Splits at commas outside quotes.
fn split(text: &str) -> Vec<String> {
    let mut is_quoted = false;
    let parts = text.split(|char| {
        is_quoted ^= char == '"';
        char == ',' && !is_quoted
    });
    parts.filter(|part| !part.is_empty()).map(str::to_owned).collect()
}

/// Reads a file of lines `NAME=VALUE`, in the format of a service's `EnvironmentFile=`. A value may
/// be in quotes; a line beginning with `#` is a comment. Only this user and root may have write
/// access to the file: its variables can make the daemon load libraries.
///
/// # Errors
/// A message for the user.
pub fn read_environment(path: &Path) -> Result<Vec<(String, String)>, String> {
    let text = read_unshared(path)
        .map_err(|error| format!("cannot read the environment of {}: {error}", path.display()))?;
    let lines = text.lines().map(str::trim).enumerate();
    let lines = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    lines
        .map(|(at, line)| {
            let (name, value) = line
                .split_once('=')
                .filter(|(name, _)| !name.is_empty())
                .ok_or_else(|| format!("{}:{}: write NAME=VALUE", path.display(), at + 1))?;
            let unquoted = ['"', '\'']
                .iter()
                .find_map(|&quote| value.strip_prefix(quote).and_then(|value| value.strip_suffix(quote)));
            Ok((name.to_owned(), unquoted.unwrap_or(value).to_owned()))
        })
        .collect()
}

/// Reads a file writable by this user and root only.
fn read_unshared(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let found = file.metadata()?;
    let is_trusted = found.uid() == 0 || found.uid() == rustix::process::geteuid().as_raw();
    if !is_trusted || found.mode() & OTHERS_WRITE != 0 {
        return Err(io::Error::other("other users can change it; see chmod(1) and chown(1)"));
    }
    let mut text = String::new();
    file.read_to_string(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> DaemonOptions {
        DaemonOptions::parse(text, false).unwrap()
    }

    #[test]
    fn options_of_the_daemon_are_its_arguments() {
        let options = parsed("rw,pool=1G,page_cache=own,exclusive,rule=uid:7=/a,rule=uid:8=/b,control=/cg");
        let expected = [
            "--pool=1G",
            "--page-cache=own",
            "--exclusive",
            "--rule=uid:7=/a",
            "--rule=uid:8=/b",
            "--control=/cg",
        ];
        assert_eq!(options.arguments, expected);
        assert!(options.flags.is_empty() && !options.shows_volumes);
        assert_eq!(parsed("metrics=\"unix:/a,b\"").arguments, ["--metrics=unix:/a,b"]);
        assert!(parsed("volumes").shows_volumes);
        assert_eq!(parsed("environment=/etc/x.env").environment, Some("/etc/x.env".into()));
    }

    #[test]
    fn options_of_every_mount_are_flags_or_say_nothing() {
        use MountFlag::{NoAtime, NoExec, ReadOnly, Sync};
        assert_eq!(parsed("ro,noexec,noatime,sync").flags, [ReadOnly, NoExec, NoAtime, Sync]);
        assert_eq!(parsed("ro,noexec,sync,rw,exec,async").flags, []);
        assert_eq!(parsed("user").flags, [NoExec]);
        assert_eq!(parsed("user=joe,exec").flags, []);
        let ignored =
            "defaults,noauto,nofail,_netdev,x-systemd.automount,X-mount.mkdir,comment=a b,nosuid,nodev";
        assert_eq!(parsed(ignored), DaemonOptions::default());
    }

    #[test]
    fn what_is_not_known_or_not_possible_is_said() {
        for (text, reason) in [
            ("colour=red", "`colour=red`"),
            ("detached", "unknown"),
            ("mount-flags=ro", "unknown"),
            ("pool", "takes a value"),
            ("pool=", "takes a value"),
            ("exclusive=yes", "takes no value"),
            ("suid", "nosuid"),
            ("remount,ro", "mount -i"),
        ] {
            let error = DaemonOptions::parse(text, false).unwrap_err();
            assert!(error.contains(reason), "{text}: {error}");
        }
        assert_eq!(DaemonOptions::parse("colour=red,ro", true).unwrap().flags, [MountFlag::ReadOnly]);
    }

    #[test]
    fn an_environment_is_read_line_by_line() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("env");
        std::fs::write(&path, "# keys\nA=1\n\n B=\"two words\"\nC='a=b'\n").unwrap();
        let pairs = [("A", "1"), ("B", "two words"), ("C", "a=b")].map(|(a, b)| (a.to_owned(), b.to_owned()));
        assert_eq!(read_environment(&path).unwrap(), pairs);
        std::fs::write(&path, "A=1\nnonsense\n").unwrap();
        assert!(read_environment(&path).unwrap_err().contains("env:2:"));
    }

    #[test]
    fn an_environment_that_others_can_change_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("env");
        std::fs::write(&path, "A=1\n").unwrap();
        for (mode, is_read) in [(0o600, true), (0o644, true), (0o664, false), (0o602, false)] {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(read_environment(&path).is_ok(), is_read, "{mode:o}");
        }
        if rustix::process::geteuid().is_root() {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
            std::os::unix::fs::chown(&path, Some(12345), None).unwrap();
            assert!(read_environment(&path).unwrap_err().contains("other users can change it"));
        }
    }
}
