//! How large the pool is: a size, or a part of the memory that this process may use.
//!
//! What a process may use is the smaller of the machine's memory and every kernel memory cgroup limit above it,
//! version 1 and 2 alike. In a container the mount shows only a part of the hierarchy; the path in
//! `/proc/self/cgroup` is then looked up below what the mount shows.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use umemcg_base::{ParseSizeError, parse_size};
use umemcg_fuse::mountinfo::{Mount, parse};

/// Smallest pool that makes sense: a few blocks of frames, so that every thread finds one.
pub const MIN_POOL_BYTES: u64 = 8 << 20;

/// A pool size as the command line takes it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum PoolSize {
    /// So many bytes.
    Bytes(u64),
    /// A part of the memory that this process may use, above 0 and at most 100.
    Percent(f64),
}

impl FromStr for PoolSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Some(number) = text.trim().strip_suffix('%') {
            let percent: f64 = number.parse().map_err(|_| {
                format!("`{text}` is no percentage; write a number between 0 and 100, such as 25%")
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
            return Err(format!("a pool of `{text}` is too small; the least is 8M"));
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
    /// When nothing is said.
    pub const DEFAULT: Self = Self::Percent(25.0);

    /// The size in whole pages, in bytes. A percentage never gives less than the smallest pool.
    pub fn to_bytes(self, usable_bytes: u64) -> u64 {
        let bytes = match self {
            Self::Bytes(bytes) => bytes,
            // A part of 64 bits: the rounding of the float is far below a page.
            Self::Percent(percent) => ((usable_bytes as f64 * percent / 100.0) as u64).max(MIN_POOL_BYTES),
        };
        bytes & !(umemcg_base::PAGE_SIZE_U64 - 1)
    }
}

/// The memory that this process may use, in bytes: the least of the machine's and of every limit above it.
///
/// # Errors
/// When `/proc` cannot be read.
pub fn usable_memory_bytes() -> std::io::Result<u64> {
    let meminfo = std::fs::read_to_string("/proc/meminfo")?;
    // Without cgroups in the kernel these two say so, and the machine's memory is all there is.
    let cgroup = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let mountinfo = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
    usable_memory(&meminfo, &cgroup, &parse(&mountinfo).collect::<Vec<_>>(), &|path| {
        std::fs::read_to_string(path).ok()
    })
    .ok_or_else(|| std::io::Error::other("/proc/meminfo has no MemTotal line"))
}

fn usable_memory(
    meminfo: &str,
    cgroup: &str,
    mounts: &[Mount],
    read: &dyn Fn(&Path) -> Option<String>,
) -> Option<u64> {
    let total_kib: u64 = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))
        .and_then(|rest| rest.split_whitespace().next())
        .and_then(|number| number.parse().ok())?;
    let mut usable_bytes = total_kib.saturating_mul(1024);
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
            if let Some(limit_bytes) =
                read(&directory.join(file)).and_then(|text| text.trim().parse::<u64>().ok())
            {
                usable_bytes = usable_bytes.min(limit_bytes);
            }
        }
    }
    Some(usable_bytes)
}

/// The directories of a cgroup and of all above it that the mount shows.
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
        usable_memory(MEMINFO, cgroup, &mounts, &|path| files.get(path).map(|text| (*text).to_owned()))
            .unwrap()
    }

    #[test]
    fn sizes_and_percentages_are_accepted() {
        assert_eq!("512M".parse(), Ok(PoolSize::Bytes(512 << 20)));
        assert_eq!("8G".parse(), Ok(PoolSize::Bytes(8 << 30)));
        assert_eq!("25%".parse(), Ok(PoolSize::Percent(25.0)));
        assert_eq!(PoolSize::Percent(25.0).to_bytes(8 * GIB), 2 * GIB);
        assert_eq!(PoolSize::Percent(33.3).to_bytes(GIB) % 4096, 0);
        assert_eq!(PoolSize::Percent(0.001).to_bytes(GIB), MIN_POOL_BYTES);
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
