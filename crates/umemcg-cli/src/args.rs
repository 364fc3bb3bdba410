//! The command line: its arguments, and its help texts.
//!
//! Every number in a help text carries its unit. The examples are the ones a newcomer needs first;
//! a test parses each of them, so that they stay true.

use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Parser, Subcommand, ValueEnum};
use serde::Deserialize;
use umemcg_control::Style;
use umemcg_fuse::Rule;

use crate::duration::parse_duration;
use crate::pool::PoolSize;

const EXAMPLES: &str = "\
Examples:
  umemcg demo
      See it work: a real mount, two groups, real programs in them, a table of what happened.

  umemcg demo --background
      See background reclaim: a file written and read in a group with marks and without, beside the mail's figures.

  umemcg mount ./data ./mnt --control ./cg --pool 1G
      Serve ./data on ./mnt with 1 GiB of cache, and the control files on ./cg. Then, in another shell:

        mkdir cg/A                                   a group is a directory
        echo 64m > cg/A/memory.limit_in_bytes        it may hold 64 MiB (or: memory.max)
        echo $$ > cg/A/tasks                         this shell and what it starts belong to it
        sha256sum mnt/big                            what they read and write is charged to it
        cat cg/A/memory.usage_in_bytes cg/A/memory.max_usage_in_bytes cg/A/memory.failcnt

  umemcg mount /srv/data /mnt/data --rule 'cgroup:/kubepods/*=/pods/{1}' --allow-other
      One group for each pod, made when its first request arrives.

  umemcg mount --volumes /mnt --pool 2G
      Serve volumes as directories of /mnt. They come and go while it is served:

        umemcg volume add data --dir /srv/data --mount /mnt
        umemcg volume add scratch --tmpfs --size 256M --mount /mnt
        umemcg volume list --mount /mnt
        umemcg volume remove scratch --mount /mnt

  umemcg mount --config examples/umemcg.toml /mnt --control /cg
      The same with groups, limits, rules and volumes from a file.

  umemcg top
      Watch the groups: usage, limits and marks, what is read again, time stalled, dirty data, pages reclaimed.

  umemcg top --once --json --control ./cg
      The same once, for a program.

  umemcg trim --idle 5m
      Watch for five minutes; what nobody has used goes back to the operating system.

  umemcg sync ./mnt
      Wait until everything written so far is durable in ./data.

  umemcg umount ./mnt
      Write everything back, then unmount; the daemon ends.

Exit status:
  0  done, and everything that was written is durable
  1  it failed; the message says what and why
  2  the command line makes no sense
  3  some data could not be made durable; the list says which
  4  the path is no umemcg mount, or no daemon answers behind it
  5  the mount is busy, or the mount point is in use by something else";

/// Memory cgroups in user space, with a caching mount on top.
///
/// `umemcg mount` serves a directory through a page cache of its own, and charges every cached page
/// to a group. Groups form a tree of directories with the control files of Linux memory cgroups:
/// limits, usage, statistics.
#[derive(Debug, Parser)]
#[command(name = "umemcg", version, after_long_help = EXAMPLES, after_help = "`umemcg --help` shows examples and exit codes.")]
#[command(arg_required_else_help = true, max_term_width = 110)]
pub struct Arguments {
    /// Say more on stderr: -v what happens, -vv each decision. UMEMCG_LOG takes a filter such as
    /// `umemcg_fuse=trace`.
    #[arg(short, long, global = true, action = ArgAction::Count)]
    pub verbose: u8,
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

/// The command.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve a directory on a mount point until Ctrl-C, SIGTERM or umount
    #[command(long_about = "Serve a directory on a mount point until Ctrl-C, SIGTERM or umount.\n\n\
        Stays in the foreground. When it is told to end it writes everything back first; files that are still open keep \
        the mount alive until they are closed or the flush timeout has passed. A second Ctrl-C ends it at once, \
        whatever is not written yet.")]
    Mount(MountArguments),
    /// Wait until everything is durable, then unmount and end the daemon
    Umount(UmountArguments),
    /// Wait until everything written so far is durable
    Sync(SyncArguments),
    /// Add, list and remove volumes of a mount that shows volumes
    #[command(subcommand)]
    Volume(VolumeCommand),
    /// Show the groups and what happens in them, again and again
    #[command(long_about = "Show the groups and what happens in them, again and again.\n\n\
        usage, limit, high, dirty: bytes, groups below included. low mark: usage at which background reclaim starts. min, low: of \
        the usage, what reclaim of the pool leaves alone, and what it takes last. excess: of the usage, what is above the soft limit and goes first. \
        hits: of the pages that were read, the part that was there. in/s: pages brought into the cache. refault/s: pages read again that had been evicted; many of them mean that the group is too \
        small for what it works on. stalled: part of the time in which a request waited for memory. kswapd/s, direct/s: pages reclaimed \
        in the background, and by whoever needed the room. `-` means none.\n\n\
        On a terminal the table stays in place until Ctrl-C; elsewhere it is printed as plain text each time.")]
    Top(TopArguments),
    /// Give the cached memory of groups back to the operating system
    #[command(long_about = "Give the cached memory of groups back to the operating system.\n\n\
        Everything that can go of the group and those below it goes: clean pages, names and inodes that nobody uses. Dirty data stays until it has been written back. \
        With --idle only of those groups in which nothing was read or written for so long.")]
    Trim(TrimArguments),
    /// Show it at work: a real mount, two groups, real programs, a table of what happened
    Demo(DemoArguments),
    /// Started by the daemon: reports changes of control files to inotify
    #[command(name = "__touch-control", hide = true)]
    TouchControl(TouchControlArguments),
    /// Started by the daemon: ends the mount if the daemon is killed
    #[command(name = "__orphan-guard", hide = true)]
    OrphanGuard(OrphanGuardArguments),
}

/// `umemcg __orphan-guard`.
#[derive(Debug, clap::Args)]
pub struct OrphanGuardArguments {
    /// The mount point
    pub point: PathBuf,
    /// `major:minor` of that file system
    pub device: String,
    /// The daemon's process id
    pub daemon: i32,
}

/// `umemcg __touch-control`.
#[derive(Debug, clap::Args)]
pub struct TouchControlArguments {
    /// The mount point of the control files
    pub point: PathBuf,
    /// `major:minor` of that file system
    pub device: String,
}

/// `umemcg mount`.
#[derive(Debug, clap::Args)]
#[command(allow_missing_positional = true)]
pub struct MountArguments {
    /// Directory that holds the files; left out, the mount shows volumes (--volumes, --config)
    #[arg(required_unless_present_any = ["volumes", "config"])]
    pub data: Option<PathBuf>,
    /// Directory on which they appear (it must exist)
    #[arg(value_name = "MNT")]
    pub mountpoint: PathBuf,
    /// Show volumes as directories of MNT, to be added and removed with `umemcg volume` while the
    /// mount is served
    #[arg(long, conflicts_with = "data")]
    pub volumes: bool,
    /// Make the groups, limits, rules and volumes that this file describes (TOML; see
    /// examples/umemcg.toml)
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Directory on which the groups and their control files appear (it must exist)
    #[arg(long, value_name = "DIR")]
    pub control: Option<PathBuf>,
    /// The control files to show, with their meanings: those of version 1 of Linux, of version 2,
    /// or both in one directory (both, unless the configuration says otherwise)
    #[arg(long, value_enum, value_name = "STYLE")]
    pub control_style: Option<ControlStyle>,
    /// The most memory that the caches may hold: 512M, 8G, or a part of what this process may use,
    /// as 25% (the default)
    #[arg(long, value_name = "SIZE|PERCENT")]
    pub pool: Option<PoolSize>,
    /// Hand protection (memory.min, memory.low) that no child of a group claims down to all its
    /// children, in proportion to what they use, as the mount option memory_recursiveprot of Linux
    /// does; off: only children that claim it have it (on, unless the configuration says otherwise)
    #[arg(long, value_enum, value_name = "ON|OFF")]
    pub recursive_protection: Option<Switch>,
    /// Put processes that were not put into a group by hand into one: `cgroup:PATTERN=GROUP`,
    /// `uid:UID=GROUP` or `path:PATTERN=GROUP`. `*` in a pattern stands for one name, `{1}` in the
    /// group for the first of them (`{0}` for the whole match). May be given many times; the first
    /// that fits counts
    #[arg(long = "rule", value_name = "RULE")]
    pub rules: Vec<Rule>,
    /// Let other users in, not only the one that mounts (as root they are let in anyway)
    #[arg(long)]
    pub allow_other: bool,
    /// Take over a mount point whose daemon has died
    #[arg(long)]
    pub replace: bool,
    /// Listen on this socket, too, for `umemcg volume --socket`; only its owner may open it
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// The time to try to write everything back at the end: 30s, 500ms, 2m
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_duration)]
    pub flush_timeout: Duration,
    /// The time for which the kernel may answer for names and attributes without asking: 1s, 0s
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_duration)]
    pub attr_timeout: Duration,
    /// No other program changes the directory: names and attributes stay in the kernel's cache
    /// without a time limit, and an open does not look for changes
    #[arg(long, conflicts_with = "attr_timeout")]
    pub exclusive: bool,
    /// The cache that keeps file pages; default: own
    #[arg(long, value_enum, value_name = "WHOSE")]
    pub page_cache: Option<PageCache>,
    /// Threads that read requests from the kernel; 0 chooses by the number of processors
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub threads: usize,
    /// The way to read and write files without leaving a second copy in the kernel's page cache
    #[arg(long, value_enum, value_name = "MODE", default_value_t = IoModeArgument::Auto)]
    pub io_mode: IoModeArgument,
}

/// `--control-style`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ControlStyle {
    /// Files of version 1 alone
    V1,
    /// Files of version 2 alone
    V2,
    /// All of them
    Both,
}

impl From<ControlStyle> for Style {
    fn from(style: ControlStyle) -> Self {
        match style {
            ControlStyle::V1 => Self::V1,
            ControlStyle::V2 => Self::V2,
            ControlStyle::Both => Self::Both,
        }
    }
}

/// `--recursive-protection`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Switch {
    /// Handed down
    On,
    /// Only what is claimed
    Off,
}

/// `--page-cache`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PageCache {
    /// The kernel's, under the limits of the groups: hits are as fast as on a local file system
    Kernel,
    /// The daemon's alone: every read and write comes to it, and its order of use is exact
    Own,
}

/// `--io-mode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum IoModeArgument {
    /// The first of the others that the directory's file system allows
    Auto,
    /// Buffered I/O that drops its pages when it is done (RWF_DONTCACHE, Linux 6.14)
    Dontcache,
    /// Direct I/O (O_DIRECT)
    Direct,
    /// Buffered I/O, and advice to drop the pages afterwards
    Dropbehind,
}

/// `umemcg umount`.
#[derive(Debug, clap::Args)]
pub struct UmountArguments {
    /// The mount point
    #[arg(value_name = "MNT")]
    pub mountpoint: PathBuf,
    /// The time to try to write everything back (the mount's own --flush-timeout if not given)
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub flush_timeout: Option<Duration>,
    /// Print the result as JSON
    #[arg(long)]
    pub json: bool,
}

/// `umemcg sync`.
#[derive(Debug, clap::Args)]
pub struct SyncArguments {
    /// The mount point
    #[arg(value_name = "MNT")]
    pub mountpoint: PathBuf,
    /// The time to try (the mount's own --flush-timeout if not given)
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub flush_timeout: Option<Duration>,
    /// Print the result as JSON
    #[arg(long)]
    pub json: bool,
}

/// `umemcg volume`.
#[derive(Debug, Subcommand)]
pub enum VolumeCommand {
    /// Add a volume: a directory of the host, or memory
    Add(VolumeAddArguments),
    /// List the volumes
    List(VolumeListArguments),
    /// Make a volume durable, then remove it
    Remove(VolumeRemoveArguments),
}

/// The daemon to ask.
#[derive(Debug, clap::Args)]
pub struct DaemonArguments {
    /// The daemon of this mount (may be left out when there is one mount)
    #[arg(long, value_name = "MNT")]
    pub mount: Option<PathBuf>,
    /// The daemon that listens here (`umemcg mount --socket`)
    #[arg(long, value_name = "PATH", conflicts_with = "mount")]
    pub socket: Option<PathBuf>,
    /// Print the result as JSON
    #[arg(long)]
    pub json: bool,
}

/// `umemcg volume add`.
#[derive(Debug, clap::Args)]
pub struct VolumeAddArguments {
    /// Its name: a directory of the mount
    pub name: String,
    /// Its data lives in this directory of the host
    #[arg(long, value_name = "PATH", required_unless_present = "tmpfs", conflicts_with_all = ["tmpfs", "size"])]
    pub dir: Option<PathBuf>,
    /// Its data lives in the pool, charged to the group that writes it, and is gone with the volume
    #[arg(long)]
    pub tmpfs: bool,
    /// The most data that a tmpfs volume holds: 64M, 2G (as much as its writers' groups may hold if
    /// not given)
    #[arg(long, value_name = "SIZE", value_parser = parse_volume_size)]
    pub size: Option<u64>,
    /// The daemon to ask.
    #[command(flatten)]
    pub daemon: DaemonArguments,
}

/// `umemcg volume list`.
#[derive(Debug, clap::Args)]
pub struct VolumeListArguments {
    /// The daemon to ask.
    #[command(flatten)]
    pub daemon: DaemonArguments,
}

/// `umemcg volume remove`.
#[derive(Debug, clap::Args)]
pub struct VolumeRemoveArguments {
    /// Its name
    pub name: String,
    /// Also when files on it are open, which then get errors (ENODEV), and when something cannot be
    /// made durable, which is then lost and named
    #[arg(long)]
    pub force: bool,
    /// The time to try to write everything back (the mount's own --flush-timeout if not given)
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub flush_timeout: Option<Duration>,
    /// The daemon to ask.
    #[command(flatten)]
    pub daemon: DaemonArguments,
}

/// Returns a size of a volume, in bytes.
fn parse_volume_size(text: &str) -> Result<u64, String> {
    match umemcg_base::parse_size(text.as_bytes()) {
        Ok(0) => Err("a volume of no size holds nothing".into()),
        Ok(bytes) => Ok(bytes),
        Err(_) => Err(format!("`{text}` is no size; write a number with k, M, G or T, such as 64M")),
    }
}

/// Returns a part of the full size; a smaller file would fit into the group.
fn parse_scale(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(scale) if (0.05..=100.0).contains(&scale) => Ok(scale),
        _ => Err("a number from 0.05 to 100, where 1 is the mail's size".into()),
    }
}

/// The sort key of the table of `umemcg top`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum TopSort {
    /// Bytes charged, most first
    Usage,
    /// The hard limit, none first
    Limit,
    /// Bytes to be written back
    Dirty,
    /// Pages read that were not there
    Misses,
    /// Pages read again soon after they were evicted
    Refaults,
    /// Time in which a request was stalled
    Stalls,
    /// Pages reclaimed
    Reclaim,
    /// Bytes above the soft limit
    Excess,
    /// The path
    Name,
}

/// `umemcg top`.
#[derive(Debug, Clone, clap::Args)]
pub struct TopArguments {
    /// The mount point of the control files (found by itself when there is one such mount)
    #[arg(long, value_name = "DIR")]
    pub control: Option<PathBuf>,
    /// The groups that come first
    #[arg(long, value_enum, default_value_t = TopSort::Usage)]
    pub sort: TopSort,
    /// Time between two tables, over which rates are taken: 1s, 500ms
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_duration)]
    pub interval: Duration,
    /// Print one table and end
    #[arg(long)]
    pub once: bool,
    /// Print each table as a line of JSON: bytes, pages a second, percent
    #[arg(long)]
    pub json: bool,
}

/// `umemcg trim`.
#[derive(Debug, clap::Args)]
pub struct TrimArguments {
    /// The mount point of the control files (found by itself when there is one such mount)
    #[arg(long, value_name = "DIR")]
    pub control: Option<PathBuf>,
    /// Watch for so long, then trim what was idle: 30s, 5m
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub idle: Option<Duration>,
    /// Print what was given back as JSON: bytes
    #[arg(long)]
    pub json: bool,
    /// The group, with all below it
    #[arg(default_value = "/")]
    pub group: String,
}

/// `umemcg demo`.
#[derive(Debug, clap::Args)]
pub struct DemoArguments {
    /// Print the table as JSON
    #[arg(long)]
    pub json: bool,
    /// Show background reclaim instead: the steps of the mail that proposed it, with its figures
    /// beside ours
    #[arg(long)]
    pub background: bool,
    /// With --background: the size of the file, as a part of the mail's 20 GiB, 0.05 at least
    #[arg(long, value_name = "PART", requires = "background", default_value_t = 0.1, value_parser = parse_scale)]
    pub scale: f64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_definition_is_sound() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn the_long_help_says_what_the_short_one_does_not() {
        for (name, word) in [("mount", "foreground"), ("top", "refault/s"), ("trim", "Dirty data")] {
            let mut command = Arguments::command();
            let help = command.find_subcommand_mut(name).unwrap().render_long_help().to_string();
            assert!(help.contains(word), "{name}: {help}");
        }
    }

    #[test]
    fn every_example_in_the_help_is_accepted() {
        let examples: Vec<&str> =
            EXAMPLES.lines().map(str::trim).filter(|line| line.starts_with("umemcg ")).collect();
        assert!(examples.len() >= 5);
        for example in examples {
            let words = example.split_whitespace().map(|word| word.trim_matches('\''));
            Arguments::try_parse_from(words).unwrap_or_else(|error| panic!("{example}: {error}"));
        }
    }

    #[test]
    fn nonsense_is_refused_with_a_reason() {
        for (line, reason) in [
            ("umemcg mount a", "MNT"),
            ("umemcg mount a b --pool 0", "pool"),
            ("umemcg mount a b --pool 120%", "100%"),
            ("umemcg mount a b --flush-timeout soon", "30s"),
            ("umemcg mount a b --rule nonsense", "cgroup:"),
            ("umemcg mount a b --io-mode mmap", "dropbehind"),
            ("umemcg umount", "MNT"),
            ("umemcg mount a b --volumes", "DATA"),
            ("umemcg volume add x", "--dir"),
            ("umemcg volume add x --dir a --tmpfs", "--tmpfs"),
            ("umemcg volume add x --tmpfs --size lots", "64M"),
            ("umemcg volume add x --tmpfs --size 0", "nothing"),
            ("umemcg volume list --mount a --socket b", "--socket"),
        ] {
            let error = Arguments::try_parse_from(line.split_whitespace()).unwrap_err().to_string();
            assert!(error.contains(reason), "{line}: {error}");
        }
    }
}
