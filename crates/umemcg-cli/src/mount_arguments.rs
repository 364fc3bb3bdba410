//! The arguments of `umemcg mount`.
//!
//! The helper of mount(8) accepts them as options, too: `pool=1G` is `--pool 1G`.

use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;
use serde::Deserialize;
use umemcg_control::Style;
use umemcg_fuse::{MountFlag, Rule};
use umemcg_metrics::MetricsAddress;

use crate::duration::parse_duration;
use crate::pool::PoolSize;
use crate::stores::StoreOptions;

/// `umemcg mount`.
#[derive(Debug, clap::Args)]
#[command(allow_missing_positional = true)]
pub struct MountArguments {
    /// Directory that holds the files, or the URL of a store of objects (s3://BUCKET/PREFIX);
    /// omitted if the mount shows volumes (--volumes, --config)
    #[arg(required_unless_present_any = ["volumes", "config"])]
    pub data: Option<PathBuf>,
    /// Mount point: an existing directory on which the files appear
    #[arg(value_name = "MNT")]
    pub mountpoint: PathBuf,
    /// How the store is reached.
    #[command(flatten)]
    pub options: StoreOptions,
    /// Show volumes as directories of MNT; `umemcg volume` adds and removes them while the mount is
    /// served
    #[arg(long, conflicts_with = "data")]
    pub volumes: bool,
    /// Create the groups, limits, rules and volumes that this file describes (TOML; see
    /// examples/umemcg.toml)
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Mount point of the groups and their control files: an existing directory
    #[arg(long, value_name = "DIR")]
    pub control: Option<PathBuf>,
    /// The control files to show, and their semantics: cgroup version 1, version 2, or both in one
    /// directory (default: both, unless the configuration says otherwise)
    #[arg(long, value_enum, value_name = "STYLE")]
    pub control_style: Option<ControlStyle>,
    /// The most memory that the caches may hold: 512M, 8G, or a share of the memory that this
    /// process may use (default: 25%)
    #[arg(long, value_name = "SIZE|PERCENT")]
    pub pool: Option<PoolSize>,
    /// Assign a process to a group unless it has been moved into one: `cgroup:PATTERN=GROUP`,
    /// `uid:UID=GROUP` or `path:PATTERN=GROUP`. In a pattern, `*` matches one name; in the group,
    /// `{1}` stands for the first such name and `{0}` for the whole match. May be given many times;
    /// the first rule that matches applies
    #[arg(long = "rule", value_name = "RULE")]
    pub rules: Vec<Rule>,
    /// Mount with these flags of mount(8): ro, noexec, noatime, nodiratime, sync, dirsync. Every
    /// mount has nosuid and nodev
    #[arg(short = 'o', long = "mount-flags", value_name = "FLAGS", value_delimiter = ',')]
    pub mount_flags: Vec<MountFlag>,
    /// Allow other users to access the mount (always allowed if root mounts)
    #[arg(long)]
    pub allow_other: bool,
    /// Also listen on this socket, for `umemcg volume --socket`; only its owner may open it
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// Serve metrics for Prometheus at this address, in the OpenMetrics format: 127.0.0.1:9470, or
    /// unix:PATH for a socket that only its owner may open
    #[arg(long, value_name = "ADDRESS")]
    pub metrics: Option<MetricsAddress>,
    /// How long to try to write everything back at the end: 30s, 500ms, 2m
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_duration)]
    pub flush_timeout: Duration,
    /// How long the kernel may cache names and attributes where other programs' changes are not
    /// watched: 1s; with 0s it asks each time, in any case
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_duration)]
    pub attr_timeout: Duration,
    /// Assume that no other program changes the directory: the kernel caches names and attributes
    /// without a time limit, and an open does not look for changes. With one directory, files are
    /// opened and directories listed without a request, unless `--page-cache own` is given
    #[arg(long, conflicts_with = "attr_timeout")]
    pub exclusive: bool,
    /// Do not watch the file system of the directory. Where root mounts a directory of a local file
    /// system, the daemon is told of other programs' changes and tells the kernel, which caches
    /// names without a time limit, and attributes for a minute
    #[arg(long, conflicts_with = "exclusive")]
    pub no_watch: bool,
    /// The cache that keeps file pages (default: kernel, unless the configuration says otherwise)
    #[arg(long, value_enum, value_name = "WHOSE")]
    pub page_cache: Option<PageCache>,
    /// How to read and write files without leaving a second copy in the kernel's page cache
    #[arg(long, value_enum, value_name = "MODE", default_value_t = IoModeArgument::Auto)]
    pub io_mode: IoModeArgument,
    /// Given by the helper of mount(8): leave the session at the start, and stderr when ready
    #[arg(long, hide = true)]
    pub detached: bool,
}

/// `--control-style`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ControlStyle {
    /// Only files of version 1
    V1,
    /// Only files of version 2
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

/// `--page-cache`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PageCache {
    /// The kernel's, within the limits of the groups: hits are as fast as on a local file system
    Kernel,
    /// Only the daemon's: it sees every read and write, so its LRU order is exact
    Own,
}

/// `--io-mode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum IoModeArgument {
    /// The first of the following that the directory's file system supports
    Auto,
    /// Uncached buffered I/O (RWF_DONTCACHE, Linux 6.14)
    Dontcache,
    /// Direct I/O (O_DIRECT)
    Direct,
    /// Buffered I/O, followed by advice to drop the pages
    Dropbehind,
}
