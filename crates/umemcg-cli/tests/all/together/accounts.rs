//! The invariants of the groups once all users have ended: the numbers add up, and everything can
//! go.

use std::fs;
use std::time::{Duration, Instant};

use crate::harness::Mount;
use crate::together::killed;
use crate::together::tree::{NR_DIRECTORIES, NR_NAMES};
use crate::together::world::GROUPS;

/// Longest that the kernel takes to let go of names.
const TIMEOUT: Duration = Duration::from_secs(120);

/// The cost of the names of all directories, and of the notes of a group's shrinkers: names that do
/// not exist hold directories in the kernel, and the last of them stay.
const LEFT_BYTES: u64 =
    (NR_DIRECTORIES + NR_DIRECTORIES * NR_NAMES + killed::NR_DIRECTORIES + 1) as u64 * 400 + 2048;

/// Writes to a control file; a refusal says that there was nothing to do.
fn write(mount: &Mount, group: &str, file: &str, value: &str) {
    let _ = fs::write(mount.cg().join(group).join(file), value);
}

/// The usage, and the sum of what is named.
fn usage(mount: &Mount, group: &str) -> (u64, u64) {
    let named = ["anon", "file", "kernel"].map(|key| mount.value(group, "umemcg.stat", key));
    (mount.number(group, "memory.usage_in_bytes"), named.iter().sum())
}

/// Tries until it is so.
fn until(mount: &Mount, what: &str, mut is_so: impl FnMut() -> bool) -> Result<(), String> {
    let deadline = Instant::now() + TIMEOUT;
    while !is_so() {
        if Instant::now() > deadline {
            let text = |group: &str| {
                let file =
                    |name: &str| fs::read_to_string(mount.cg().join(group).join(name)).unwrap_or_default();
                let (usage, stat) = (file("memory.usage_in_bytes"), file("umemcg.stat"));
                let of_subtree =
                    |line: &&str| line.split(' ').all(|word| word != "0" && !word.contains("total"));
                let stat: Vec<&str> = stat.lines().filter(of_subtree).collect();
                format!("  {group}: {usage}{stat:?}\n{}\n", file("memory.kmem.slabinfo"))
            };
            let groups: String = [""].iter().chain(&GROUPS).map(|group| text(group)).collect();
            return Err(format!("never: {what}\n{groups}"));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Groups that a disturber has left.
fn remove_temporary(mount: &Mount) {
    for group in GROUPS {
        (0..2).for_each(|nr| drop(fs::remove_dir(mount.cg().join(format!("{group}/t{nr}")))));
    }
}

/// All of it, for a mount on which no file is open; the groups are gone afterwards.
pub fn check(mount: &Mount) -> Result<(), String> {
    remove_temporary(mount);
    for group in GROUPS {
        for (file, value) in [("memory.max", "max"), ("memory.high", "max"), ("memory.low", "0")] {
            write(mount, group, file, value);
        }
    }
    mount.umemcg(&["sync", mount.mnt().to_str().unwrap()]).good();
    for key in ["dirty", "writeback", "nfs_unstable"] {
        let key = format!("total_{key}");
        until(mount, &format!("{key} is 0"), || mount.value("", "umemcg.stat", &key) == 0)?;
    }
    // From the leaves up: what a removed group held is its parent's.
    for group in ["a/b", "c", "a"] {
        until(mount, &format!("what {group} uses is named"), || {
            // Threads give their stocks back.
            write(mount, group, "memory.force_empty", "0");
            let (usage, named) = usage(mount, group);
            usage == named
        })?;
        until(mount, &format!("{group} uses nothing but for directories"), || {
            write(mount, "", "vm.drop_caches", "3");
            write(mount, group, "memory.force_empty", "0");
            usage(mount, group).0 <= LEFT_BYTES && mount.value(group, "umemcg.stat", "file") == 0
        })?;
        fs::remove_dir(mount.cg().join(group)).map_err(|error| format!("rmdir of {group}: {error}"))?;
    }
    Ok(())
}
