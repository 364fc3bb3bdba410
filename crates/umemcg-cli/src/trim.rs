//! `umemcg trim`: drops the cached memory of groups and returns it to the operating system.
//!
//! It uses only the control files, so every user with write access to them can run it. A group is
//! idle if no page was read, brought in or dirtied in its subtree during the watch. A group with
//! pages in the kernel's cache is not known to be idle, because the kernel serves reads of them by
//! itself. Of an idle subtree, the topmost group is trimmed.

use std::fs;
use std::io;
use std::path::Path;

use serde::Serialize;

use crate::args::TrimArguments;
use crate::exit::Failure;
use crate::group_sample::{GroupSample, SampledGroup, TreeSample};
use crate::table::{TextTable, human_bytes};
use crate::top::control_tree;

/// The result for one group.
#[derive(Debug, Serialize)]
struct Trimmed {
    group: String,
    before_bytes: u64,
    after_bytes: u64,
}

/// Returns whether the subtree of a group was idle between two samples.
fn is_idle(before: &GroupSample, now: &GroupSample) -> bool {
    let same = |name| before.stat(name) == now.stat(name);
    ["total_cache_hit", "total_cache_miss", "total_pgpgin"].into_iter().all(same)
        && [before, now].iter().all(|sample| {
            ["total_dirty", "total_writeback", "file_kernel"].iter().all(|name| sample.stat(name) == 0)
        })
}

/// Returns the topmost idle groups at or below `top` with memory charged.
fn idle_groups(before: &TreeSample, now: &TreeSample, top: &str) -> Vec<String> {
    let (known, top) = (before.by_inode(), place_of(now, top));
    let mut chosen = Vec::new();
    // By index, parents first: whether a group is within `top`, and whether it or an ancestor has
    // been chosen.
    let mut seen: Vec<(bool, bool)> = Vec::new();
    for (place, SampledGroup { parent, inode, sample, .. }) in now.groups.iter().enumerate() {
        let (within, covered) = parent.map_or((false, false), |parent| seen[parent]);
        let within = within || Some(place) == top;
        let was_idle = known.get(inode).is_some_and(|was| is_idle(was, sample));
        let choose = within && !covered && sample.usage_bytes > 0 && was_idle;
        if choose {
            chosen.push(now.path(place));
        }
        seen.push((within, covered || choose));
    }
    chosen
}

/// Returns the index of a group by its path.
fn place_of(tree: &TreeSample, path: &str) -> Option<usize> {
    let child = |parent: usize, name: &str| {
        tree.groups.iter().position(|group| group.parent == Some(parent) && group.name == name)
    };
    path.split('/').filter(|name| !name.is_empty()).try_fold(0, child)
}

/// Returns the path in the form `/a/b`.
fn path_of(group: &str) -> String {
    let names: Vec<&str> = group.split('/').filter(|name| !name.is_empty()).collect();
    format!("/{}", names.join("/"))
}

/// Returns the bytes charged to a group, as the sum of its parts: the root of version 2 has no file
/// for the total.
fn usage(control: &Path, group: &str) -> io::Result<u64> {
    let text = fs::read_to_string(control.join(group.trim_start_matches('/')).join("umemcg.stat"))?;
    let lines = text.lines().filter_map(|line| line.split_once(' '));
    let charged = lines.filter(|(name, _)| matches!(*name, "anon" | "file" | "kernel"));
    charged.map(|(_, bytes)| bytes.parse::<u64>()).sum::<Result<_, _>>().map_err(io::Error::other)
}

/// Reclaims everything reclaimable in the subtree of a group.
fn trim_group(control: &Path, group: &str) -> io::Result<Trimmed> {
    let before_bytes = usage(control, group)?;
    let directory = control.join(group.trim_start_matches('/'));
    let reclaim = directory.join("memory.reclaim");
    let reclaimed = if reclaim.exists() {
        fs::write(reclaim, before_bytes.to_string())
    } else if group == "/" {
        fs::write(directory.join("vm.drop_caches"), "3")
    } else {
        // The file of version 1; the root has no such file.
        fs::write(directory.join("memory.force_empty"), "1")
    };
    match reclaimed {
        // Less was reclaimed than requested, because some memory is in use.
        Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
        _ => {}
    }
    Ok(Trimmed { group: group.to_owned(), before_bytes, after_bytes: usage(control, group)? })
}

/// Runs `umemcg trim`.
///
/// # Errors
/// [`Failure`].
pub fn trim(arguments: &TrimArguments) -> Result<(), Failure> {
    let control = control_tree(arguments.control.as_deref())?;
    let top = path_of(&arguments.group);
    let failed = |group: &str, error: &io::Error| match error.kind() {
        io::ErrorKind::NotFound => Failure::Failed(format!("no group {group} in {}", control.display())),
        _ => Failure::Failed(format!("cannot trim {group} in {}: {error}", control.display())),
    };
    let groups = match arguments.idle {
        None => vec![top],
        Some(idle) => {
            let sample = || TreeSample::read(&control).map_err(|error| failed("/", &error));
            let before = sample()?;
            if place_of(&before, &top).is_none() {
                return Err(failed(&top, &io::ErrorKind::NotFound.into()));
            }
            std::thread::sleep(idle);
            idle_groups(&before, &sample()?, &top)
        }
    };
    let mut trimmed = Vec::new();
    for group in &groups {
        match trim_group(&control, group) {
            Ok(done) => trimmed.push(done),
            // The group has been removed meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound && arguments.idle.is_some() => {}
            Err(error) => return Err(failed(group, &error)),
        }
    }
    let compact = control.join("vm.compact_memory");
    fs::write(&compact, "1").map_err(|error| Failure::at("cannot write", &compact, &error))?;
    let shown = if arguments.json {
        serde_json::to_string(&trimmed).unwrap_or_default() + "\n"
    } else if trimmed.is_empty() {
        "no group that is known to be idle has anything to trim\n".to_owned()
    } else {
        let mut table = TextTable::new(&["group", "before", "after", "given back"]);
        for Trimmed { group, before_bytes, after_bytes } in &trimmed {
            let given = before_bytes.saturating_sub(*after_bytes);
            table.row(
                [group.clone()].into_iter().chain([*before_bytes, *after_bytes, given].map(human_bytes)),
            );
        }
        table.to_string()
    };
    crate::output::print(&shown)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::time::Instant;

    fn tree(groups: &[(&'static str, u64, u64)]) -> TreeSample {
        let sample = |&(path, usage_bytes, hits): &(&'static str, u64, u64)| {
            let stat = BTreeMap::from([("total_cache_hit".to_owned(), hits)]);
            (path, GroupSample { usage_bytes, stat, ..Default::default() })
        };
        TreeSample::of(Instant::now(), groups.iter().map(sample))
    }

    #[test]
    fn a_group_that_the_kernel_may_serve_is_not_idle() {
        let sample = |kernel: u64| {
            let stat = BTreeMap::from([("file_kernel".to_owned(), kernel)]);
            GroupSample { usage_bytes: 1, stat, ..GroupSample::default() }
        };
        assert!(is_idle(&sample(0), &sample(0)));
        assert!(!is_idle(&sample(4096), &sample(4096)));
    }

    #[test]
    fn the_highest_idle_groups_at_or_below_the_path_are_chosen() {
        let before = tree(&[
            ("/", 9, 5),
            ("/a", 3, 0),
            ("/a/b", 3, 0),
            ("/ab", 2, 0),
            ("/c", 2, 1),
            ("/c/d", 1, 0),
            ("/e", 0, 0),
        ]);
        let now = tree(&[
            ("/", 9, 6),
            ("/a", 3, 0),
            ("/a/b", 3, 0),
            ("/ab", 2, 0),
            ("/c", 2, 2),
            ("/c/d", 1, 0),
            ("/e", 0, 0),
            ("/new", 7, 0),
        ]);
        assert_eq!(idle_groups(&before, &now, "/"), ["/a", "/ab", "/c/d"]);
        assert_eq!(idle_groups(&before, &now, "/a"), ["/a"]);
        assert_eq!(idle_groups(&before, &now, "/c"), ["/c/d"]);
        assert_eq!([path_of(""), path_of("/"), path_of("a/b/"), path_of("//a")], ["/", "/", "/a/b", "/a"]);
    }
}
