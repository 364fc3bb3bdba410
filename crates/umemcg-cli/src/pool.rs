//! The size of the pool: a number of bytes, or a share of the memory usable by this process.
//!
//! The usable memory is the least of the machine's memory and all memory limits of the process's
//! kernel cgroups, of version 1 and 2. In a container only a part of the hierarchy is mounted; the
//! path in `/proc/self/cgroup` is then resolved inside that part.
//!
//! The daemon needs memory beside its pool. If the pool were too large, the kernel would kill the
//! daemon once the pool has filled up, and dirty data would be lost. So a size in bytes that does
//! not fit is refused, and a percentage is reduced to the largest size that fits.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use umemcg_base::{ParseSizeError, parse_size};
use umemcg_fuse::mountinfo::{Mount, parse};

use crate::table::human_bytes;

/// The smallest pool: a few blocks of frames, enough for every thread.
pub const MIN_POOL_BYTES: u64 = 8 << 20;

/// The daemon's memory beside its pool: `BESIDE_BYTES`, and one `BESIDE_PART`th of the remainder.
/// The records of frames alone are a 64th of the pool.
const BESIDE_BYTES: u64 = 16 << 20;
const BESIDE_PART: u64 = 32;

/// A pool size on the command line.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum PoolSize {
    /// This many bytes.
    Bytes(u64),
    /// A percentage of the memory usable by this process, above 0 and at most 100.
    Percent(f64),
}

impl FromStr for PoolSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Some(number) = text.trim().strip_suffix('%') {
            let percent: f64 = number.parse().map_err(|_| {
                format!("`{text}` is not a percentage; write a number between 0 and 100, such as 25%")
            })?;
            if !(percent > 0.0 && percent <= 100.0) {
                return Err(format!("`{text}` is not above 0% and at most 100%"));
            }
            return Ok(Self::Percent(percent));
        }
        let bytes = parse_size(text.as_bytes()).map_err(|error| match error {
            ParseSizeError::Malformed => {
                format!("`{text}` is no size; write a number with k, M, G or T, such as 512M, or a percentage such as 25%")
            }
            ParseSizeError::TooLarge => format!("`{text}` does not fit in 64 bits"),
        })?;
        if bytes < MIN_POOL_BYTES {
            return Err(format!("a pool of `{text}` is too small; the minimum is 8M"));
        }
        Ok(Self::Bytes(bytes))
    }
}

impl fmt::Display for PoolSize {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(bytes) => write!(formatter, "{bytes}"),
            Self::Percent(percent) => write!(formatter, "{percent}%"),
        }
    }
}

impl PoolSize {
    /// The default size.
    pub const DEFAULT: Self = Self::Percent(25.0);

    /// Returns the size in bytes, rounded down to whole pages. A percentage is reduced to the
    /// largest size that fits, but not below the smallest pool.
    ///
    /// # Errors
    /// A message for the user if the size does not fit.
    pub fn to_bytes(self, usable: &Usable) -> Result<u64, String> {
        let bytes = match self {
            Self::Bytes(bytes) if bytes > usable.largest_pool_bytes() => return Err(usable.refusal(bytes)),
            Self::Bytes(bytes) => bytes,
            // The rounding error of the float is far below a page.
            Self::Percent(percent) => ((usable.bytes as f64 * percent / 100.0) as u64)
                .min(usable.largest_pool_bytes())
                .max(MIN_POOL_BYTES),
        };
        Ok(bytes & !(umemcg_base::PAGE_SIZE_U64 - 1))
    }
}

/// The memory usable by this process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Usable {
    bytes: u64,
    /// The file with the limit; `None` for the machine's memory.
    limit: Option<PathBuf>,
}

impl Usable {
    /// Creates a value for tests.
    #[cfg(test)]
    pub fn new(bytes: u64, limit: Option<PathBuf>) -> Self {
        Self { bytes, limit }
    }

    /// Returns the usable memory, in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the file with the limit; none if it is the machine's memory.
    pub fn limit(&self) -> Option<&Path> {
        self.limit.as_deref()
    }

    /// Returns the largest pool that leaves the rest of the daemon enough memory.
    fn largest_pool_bytes(&self) -> u64 {
        let room = self.bytes.saturating_sub(BESIDE_BYTES);
        room - room / BESIDE_PART
    }

    fn refusal(&self, bytes: u64) -> String {
        let limit = self.limit.as_ref().map_or_else(
            || "the memory of this machine".to_owned(),
            |file| format!("the limit in {}", file.display()),
        );
        format!(
            "a pool of {} does not fit: this process may use {} ({limit}), and the daemon needs some beside its pool; \
             the largest pool here is {}M",
            human_bytes(bytes),
            human_bytes(self.bytes),
            self.largest_pool_bytes() >> 20
        )
    }
}

/// Returns the memory usable by this process: the least of the machine's memory and all limits of
/// its cgroups.
///
/// # Errors
/// When `/proc` cannot be read.
pub fn usable_memory() -> std::io::Result<Usable> {
    let meminfo = std::fs::read_to_string("/proc/meminfo")?;
    // Without cgroups in the kernel these are empty, and only the machine's memory counts.
    let cgroup = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let mountinfo = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
    least_of(&meminfo, &cgroup, &parse(&mountinfo).collect::<Vec<_>>(), &|path| {
        std::fs::read_to_string(path).ok()
    })
    .ok_or_else(|| std::io::Error::other("/proc/meminfo has no MemTotal line"))
}

/// Returns the least of the machine's memory and the limits of the cgroups in `cgroup`.
pub(crate) fn least_of(
    meminfo: &str,
    cgroup: &str,
    mounts: &[Mount],
    read: &dyn Fn(&Path) -> Option<String>,
) -> Option<Usable> {
    let total_kib: u64 = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))
        .and_then(|rest| rest.split_whitespace().next())
        .and_then(|number| number.parse().ok())?;
    let mut usable = Usable { bytes: total_kib.saturating_mul(1024), limit: None };
    for line in cgroup.lines() {
        // hierarchy number : controllers : path
        let mut fields = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next()) else {
            continue;
        };
        let unified = controllers.is_empty();
        let file = match controllers.split(',').any(|name| name == "memory") {
            true => "memory.limit_in_bytes",
            false if unified => "memory.max",
            false => continue,
        };
        let mount = mounts.iter().rfind(|mount| match unified {
            true => mount.kind == "cgroup2",
            false => mount.kind == "cgroup" && mount.super_options.split(',').any(|name| name == "memory"),
        });
        let Some(mount) = mount else { continue };
        for directory in directories_up_from(mount, Path::new(path)) {
            let file = directory.join(file);
            if let Some(bytes) = read(&file).and_then(|text| text.trim().parse::<u64>().ok())
                && bytes < usable.bytes
            {
                usable = Usable { bytes, limit: Some(file) };
            }
        }
    }
    Some(usable)
}

/// Returns the directories of a cgroup and its ancestors visible in the mount.
fn directories_up_from(mount: &Mount, path: &Path) -> Vec<PathBuf> {
    let below = path.strip_prefix(&mount.root).unwrap_or(Path::new(""));
    let below = below.strip_prefix("/").unwrap_or(below);
    below.ancestors().map(|part| mount.point.join(part)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    const MEMINFO: &str = "MemTotal:        8388608 kB\nMemFree:  1 kB\n";
    const GIB: u64 = 1 << 30;

    fn check(cgroup: &str, mountinfo: &str, files: &[(&str, &str)]) -> u64 {
        let files: HashMap<&Path, &str> =
            files.iter().map(|(path, text)| (Path::new(*path), *text)).collect();
        let mounts: Vec<Mount> = parse(mountinfo.as_bytes()).collect();
        least_of(MEMINFO, cgroup, &mounts, &|path| files.get(path).map(|text| (*text).to_owned()))
            .unwrap()
            .bytes
    }

    #[test]
    fn sizes_and_percentages_are_accepted() {
        assert_eq!("512M".parse(), Ok(PoolSize::Bytes(512 << 20)));
        assert_eq!("8G".parse(), Ok(PoolSize::Bytes(8 << 30)));
        assert_eq!("25%".parse(), Ok(PoolSize::Percent(25.0)));
        let of =
            |percent, bytes| PoolSize::Percent(percent).to_bytes(&Usable { bytes, limit: None }).unwrap();
        assert_eq!(of(25.0, 8 * GIB), 2 * GIB);
        assert_eq!(of(33.3, GIB) % 4096, 0);
        assert_eq!(of(0.001, GIB), MIN_POOL_BYTES);
    }

    #[test]
    fn a_pool_leaves_room_for_the_daemon_below_its_limit() {
        let file = PathBuf::from("/sys/fs/cgroup/job/memory.max");
        let usable = Usable { bytes: GIB, limit: Some(file) };
        let largest = usable.largest_pool_bytes();
        assert!(largest < GIB - (32 << 20) && largest > GIB - (64 << 20), "{largest}");
        assert_eq!(PoolSize::Bytes(900 << 20).to_bytes(&usable), Ok(900 << 20));
        for bytes in [largest + 1, 2 * GIB] {
            let refusal = PoolSize::Bytes(bytes).to_bytes(&usable).unwrap_err();
            let largest = format!("{}M", largest >> 20);
            for part in ["does not fit", "/sys/fs/cgroup/job/memory.max", "1.0 GiB", &*largest] {
                assert!(refusal.contains(part), "{part}: {refusal}");
            }
        }
        assert_eq!(PoolSize::Percent(100.0).to_bytes(&usable).unwrap(), largest & !4095);
        // If no size fits, a percentage still gives the smallest pool.
        let tiny = Usable { bytes: 16 << 20, limit: None };
        assert_eq!(PoolSize::Percent(25.0).to_bytes(&tiny), Ok(MIN_POOL_BYTES));
    }

    #[test]
    fn anything_else_is_refused() {
        for text in ["", "0", "-1", "4k", "1.5G", "0%", "101%", "-5%", "nan%", "%", "lots", "16E", "1GB"] {
            assert!(text.parse::<PoolSize>().is_err(), "{text}");
        }
    }

    #[test]
    fn without_cgroups_it_is_the_memory_of_the_machine() {
        assert_eq!(check("", "", &[]), 8 * GIB);
    }

    #[test]
    fn the_tightest_limit_above_counts_in_version_2() {
        let mountinfo = "30 20 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n";
        let files = [
            ("/sys/fs/cgroup/a/memory.max", "1073741824\n"),
            ("/sys/fs/cgroup/a/b/memory.max", "max\n"),
            ("/sys/fs/cgroup/x/memory.max", "4096\n"),
        ];
        assert_eq!(check("0::/a/b\n", mountinfo, &files), GIB);
        assert_eq!(check("0::/\n", mountinfo, &files), 8 * GIB);
    }

    #[test]
    fn version_1_beside_version_2_counts_too() {
        let mountinfo = "\
            31 20 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
            32 20 0:28 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
        let files = [
            ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
            ("/sys/fs/cgroup/memory/job/memory.limit_in_bytes", "2147483648\n"),
        ];
        assert_eq!(check("4:memory:/job\n1:cpu:/other\n0::/\n", mountinfo, &files), 2 * GIB);
    }

    #[test]
    fn a_container_sees_only_its_part_of_the_hierarchy() {
        let mountinfo = "30 20 0:26 /docker/77 /sys/fs/cgroup ro - cgroup2 cgroup2 rw\n";
        let files = [("/sys/fs/cgroup/memory.max", "536870912\n")];
        assert_eq!(check("0::/docker/77\n", mountinfo, &files), GIB / 2);
        // Its own cgroup namespace: the path no longer fits the mount's root.
        assert_eq!(check("0::/\n", mountinfo, &files), GIB / 2);
    }
}
