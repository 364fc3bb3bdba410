//! The command line: its arguments, and its help texts.
//!
//! Every number in a help text carries its unit. The examples are the first commands of a new user.
//! A test parses each example, so they stay valid.

use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Parser, Subcommand, ValueEnum};

use crate::csi_arguments::CsiArguments;
use crate::doctor::arguments::DoctorArguments;
use crate::duration::parse_duration;
use crate::log::LogFormat;
use crate::mount_arguments::MountArguments;
use crate::stores::StoreOptions;

const EXAMPLES: &str = "\
Examples:
  umemcg demo
      Demonstrate umemcg: mount, run programs in two groups, print a table of the results.

  umemcg mount ./data ./mnt --control ./cg --pool 1G
      Serve ./data on ./mnt with 1 GiB of cache, and the control files on ./cg. Then, in another shell:

        mkdir cg/A                                   create a group
        echo 64m > cg/A/memory.limit_in_bytes        limit it to 64 MiB (or: memory.max)
        echo $$ > cg/A/tasks                         move this shell and its future children into it
        sha256sum mnt/big                            what they read and write is charged to it
        cat cg/A/memory.usage_in_bytes cg/A/memory.max_usage_in_bytes cg/A/memory.failcnt

  umemcg mount /srv/data /mnt/data --rule 'cgroup:/kubepods/*=/pods/{1}' --allow-other
      One group for each pod, created when its first request arrives.

  umemcg mount --volumes /mnt --pool 2G
      Serve volumes as directories of /mnt. They can be added and removed while it is served:

        umemcg volume add data --dir /srv/data --mount /mnt
        umemcg volume add scratch --tmpfs --size 256M --mount /mnt
        umemcg volume list --mount /mnt
        umemcg volume remove scratch --mount /mnt

  umemcg mount s3://bucket/prefix ./mnt --control ./cg --pool 1G
      Serve the objects below a prefix as files, read only, within the groups' limits.

  umemcg mount --config examples/umemcg.toml /mnt --control /cg
      Serve volumes with the groups, limits, rules and volumes that a file describes.

  umemcg top
      Watch the groups: usage, limits, watermarks, refaults, stalls, dirty data, pages reclaimed.

  umemcg top --once --json --control ./cg
      Print the same numbers once, as JSON.

  umemcg trim --idle 5m
      Watch for five minutes, then return the memory of idle groups to the operating system.

  umemcg metrics ./mnt
      Print what Prometheus gets from a mount with `--metrics 127.0.0.1:9470`.

  umemcg sync ./mnt
      Wait until everything written so far is durable in ./data.

  umemcg umount ./mnt
      Write everything back, then unmount and end the daemon.

Exit status:
  0  success; everything that was written is durable
  1  failure; the message says what failed and why
  2  invalid command line or configuration
  3  some data could not be made durable; the files are listed
  4  the path is not a umemcg mount, or its daemon does not answer
  5  the mount is busy, or the mount point or the directory is already in use";

const TOP_HELP: &str = "\
Show the groups and their activity, refreshed at an interval.

On a terminal it is a program of pages: a tree of groups that can be folded, sorted and filtered, a page for each
group, and a page of volumes with the requests and bytes of each store. Keys: arrows move and fold, Enter shows a
group, s sorts, / filters, v shows the volumes, ? all keys, q quits. NO_COLOR is respected. A sample reads what is on
the screen; of other groups as many as an eighth of the interval allows.

Elsewhere (a pipe, a file, TERM=dumb), and with --once or --json, each table of all groups is printed as plain text or
as a line of JSON.

Columns (`-` means none):
  usage      bytes charged, including the groups below; likewise limit, high (memory.high) and dirty
  low mark   usage at which background reclaim starts
  min        part of the usage that reclaim of the pool spares
  low        part of the usage that reclaim of the pool takes last
  excess     part of the usage above the soft limit, which is reclaimed first
  hits       share of the pages asked of the daemon that it had, without those that were only read
             ahead; none while the kernel keeps pages of the group, for its reads are not all seen
  in/s       pages brought into the cache
  refault/s  pages fetched again after they were evicted; many mean that the group is too small
             for its working set; of many small files they are not seen
  stalled    share of time in which a request waited for memory
  kswapd/s   pages reclaimed in the background
  direct/s   pages reclaimed by the requests that needed memory";

/// Memory cgroups in user space, with a caching mount on top.
///
/// `umemcg mount` serves a directory, a bucket of objects, or volumes of these and of memory, and
/// charges every cached page to a group. Groups form a tree of directories with the control files
/// of Linux memory cgroups: limits, usage, statistics.
#[derive(Debug, Parser)]
#[command(name = "umemcg", version, after_long_help = EXAMPLES, after_help = "`umemcg --help` shows examples and exit codes.")]
#[command(arg_required_else_help = true, max_term_width = 110)]
pub struct Arguments {
    /// Log more to stderr: -v events, -vv decisions. UMEMCG_LOG takes a filter such as
    /// `umemcg_fuse=trace`.
    #[arg(short, long, global = true, action = ArgAction::Count)]
    pub verbose: u8,
    /// The format of what goes to stderr (default: journald where it goes to the journal, else
    /// text)
    #[arg(long, global = true, value_enum, value_name = "FORMAT")]
    pub log_format: Option<LogFormat>,
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

/// The command.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve a directory or a bucket on a mount point until Ctrl-C, SIGTERM or umount
    #[command(
        long_about = "Serve a directory or a bucket on a mount point until Ctrl-C, SIGTERM or umount.\n\n\
        Stays in the foreground. Before it ends, it writes everything back; files that are still open keep the mount \
        alive until they are closed or the flush timeout has passed. A second Ctrl-C ends it immediately, and reports \
        the data that is not written as lost. SIGHUP has it read --config again."
    )]
    Mount(MountArguments),
    /// Wait until everything is durable, then unmount and end the daemon
    Umount(UmountArguments),
    /// Wait until everything written so far is durable
    Sync(SyncArguments),
    /// Have the daemon of a mount read its configuration again, as SIGHUP does
    Reload(DaemonArguments),
    /// Add, list and remove volumes of a mount that shows volumes
    #[command(subcommand)]
    Volume(VolumeCommand),
    /// Show the groups and their activity, refreshed at an interval
    #[command(long_about = TOP_HELP)]
    Top(TopArguments),
    /// Print the metrics of a mount once, in the OpenMetrics format
    Metrics(MetricsArguments),
    /// Give the cached memory of groups back to the operating system
    #[command(long_about = "Give the cached memory of groups back to the operating system.\n\n\
        Drops everything reclaimable of the group and of those below it: clean pages, unused names and inodes. Dirty data \
        stays until it has been written back. --idle limits it to the groups in which nothing was read or written for that time, \
        without those with pages in the kernel's cache (`--page-cache kernel`): not all their reads are seen.")]
    Trim(TrimArguments),
    /// Check whether this machine can run a daemon, and say what to do if not
    Doctor(DoctorArguments),
    /// Serve the volumes of a mount to Kubernetes, as its CSI plugin on this node
    Csi(CsiArguments),
    /// Demonstrate umemcg: mount, run programs in two groups, print a table of the results
    Demo(DemoArguments),
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
    pub daemon: u32,
}

/// `umemcg metrics`.
#[derive(Debug, clap::Args)]
pub struct MetricsArguments {
    /// Mount point
    #[arg(value_name = "MNT")]
    pub mountpoint: PathBuf,
    /// Print groups down to N levels below the root (default: all levels)
    #[arg(long, value_name = "N")]
    pub depth: Option<usize>,
}

/// `umemcg umount`.
#[derive(Debug, clap::Args)]
pub struct UmountArguments {
    /// The mount point
    #[arg(value_name = "MNT")]
    pub mountpoint: PathBuf,
    /// How long to try to write everything back (default: the mount's --flush-timeout)
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
    /// How long to try (default: the mount's --flush-timeout)
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub flush_timeout: Option<Duration>,
    /// Print the result as JSON
    #[arg(long)]
    pub json: bool,
}

/// `umemcg volume`.
#[derive(Debug, Subcommand)]
pub enum VolumeCommand {
    /// Add a volume: a directory of the host, memory, or a bucket
    Add(VolumeAddArguments),
    /// List the volumes
    List(VolumeListArguments),
    /// Make a volume durable, then remove it
    Remove(VolumeRemoveArguments),
}

/// The daemon to ask.
#[derive(Debug, clap::Args)]
pub struct DaemonArguments {
    /// The daemon of this mount (optional if there is only one mount)
    #[arg(long, value_name = "MNT")]
    pub mount: Option<PathBuf>,
    /// The daemon that listens on this socket (`umemcg mount --socket`)
    #[arg(long, value_name = "PATH", conflicts_with = "mount")]
    pub socket: Option<PathBuf>,
    /// Print the result as JSON
    #[arg(long)]
    pub json: bool,
}

/// `umemcg volume add`.
#[derive(Debug, clap::Args)]
pub struct VolumeAddArguments {
    /// Name of the volume, and of its directory in the mount
    pub name: String,
    /// Keep its data in this directory of the host
    #[arg(long, value_name = "PATH", required_unless_present_any = ["tmpfs", "store"], conflicts_with_all = ["tmpfs", "size", "store"])]
    pub dir: Option<PathBuf>,
    /// Show the objects below a prefix of a bucket: s3://BUCKET/PREFIX, gs://… or az://…; the
    /// daemon's environment has the credentials
    #[arg(long, value_name = "URL", conflicts_with_all = ["tmpfs", "size"])]
    pub store: Option<String>,
    /// How the store is reached.
    #[command(flatten)]
    pub options: StoreOptions,
    /// Keep its data in the pool, charged to the groups that write it; it is lost when the volume
    /// is removed
    #[arg(long)]
    pub tmpfs: bool,
    /// The most data that a tmpfs volume holds: 64M, 2G (default: as much as the groups of its
    /// writers may hold)
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
    /// Name of the volume
    pub name: String,
    /// Remove it even if files on it are open (they get ENODEV from then on), or if some data
    /// cannot be made durable (it is reported; staged files stay in `lost/` of the staging
    /// directory, and other data is lost)
    #[arg(long)]
    pub force: bool,
    /// How long to try to write everything back (default: the mount's --flush-timeout)
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub flush_timeout: Option<Duration>,
    /// The daemon to ask.
    #[command(flatten)]
    pub daemon: DaemonArguments,
}

/// Parses the size of a volume, in bytes.
fn parse_volume_size(text: &str) -> Result<u64, String> {
    match umemcg_base::parse_size(text.as_bytes()) {
        Ok(0) => Err("a volume of size 0 holds nothing".into()),
        Ok(bytes) => Ok(bytes),
        Err(_) => Err(format!("`{text}` is not a size; write a number with k, M, G or T, such as 64M")),
    }
}

/// The sort key of the table of `umemcg top`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum TopSort {
    /// Bytes charged
    Usage,
    /// The hard limit; groups without one come first
    Limit,
    /// Dirty bytes
    Dirty,
    /// Pages asked of the daemon that it did not have
    Misses,
    /// Pages fetched again after they were evicted
    Refaults,
    /// Share of time in which a request was stalled
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
    /// The mount point of the control files (optional if there is only one such mount)
    #[arg(long, value_name = "DIR")]
    pub control: Option<PathBuf>,
    /// The column to sort by, largest first
    #[arg(long, value_enum, default_value_t = TopSort::Usage)]
    pub sort: TopSort,
    /// Time between two tables; rates are averages over it: 1s, 500ms
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_duration)]
    pub interval: Duration,
    /// Print one table and exit
    #[arg(long)]
    pub once: bool,
    /// Print each table as a line of JSON: bytes, pages per second, percent
    #[arg(long)]
    pub json: bool,
}

/// `umemcg trim`.
#[derive(Debug, clap::Args)]
pub struct TrimArguments {
    /// The mount point of the control files (optional if there is only one such mount)
    #[arg(long, value_name = "DIR")]
    pub control: Option<PathBuf>,
    /// Watch for this long, then trim only the groups that were idle: 30s, 5m
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub idle: Option<Duration>,
    /// Print the bytes returned as JSON
    #[arg(long)]
    pub json: bool,
    /// Path of the group to trim, with all groups below it
    #[arg(default_value = "/")]
    pub group: String,
}

/// `umemcg demo`.
#[derive(Debug, clap::Args)]
pub struct DemoArguments {
    /// Print the table as JSON
    #[arg(long)]
    pub json: bool,
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
