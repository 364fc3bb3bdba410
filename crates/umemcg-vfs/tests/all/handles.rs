//! The cost of open files and directories: memory that their group pays for, and few descriptors.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::common::{Fixture, ROOT, errno, name};
use rustix::io::Errno;
use umemcg::StatItem;
use umemcg_vfs::{Caller, Create, HANDLE_BYTES, NR_HANDLES_BEYOND_MAX, Names, OFlags, Open, VolumeDir};

/// Descriptors of this process for what is in the volume's directory.
fn nr_descriptors(v: &Fixture) -> usize {
    let fds = std::fs::read_dir("/proc/self/fd").unwrap();
    fds.filter_map(|fd| std::fs::read_link(fd.ok()?.path()).ok())
        .filter(|target| target.starts_with(v.dir.path()))
        .count()
}

fn tenant(v: &Fixture) -> Caller {
    let group = v.engine.create_group(v.engine.root(), name("tenant")).unwrap();
    Caller { group, ..v.root.clone() }
}

/// Takes up to `max` names from a position.
fn take(handle: &Arc<dyn VolumeDir>, offset: &mut u64, max: usize) -> Vec<String> {
    let mut names = Vec::new();
    handle
        .readdir(*offset, &mut |entry| {
            if names.len() == max {
                return false;
            }
            names.push(entry.name.to_string_lossy().into_owned());
            *offset = entry.next_offset;
            true
        })
        .unwrap();
    names
}

#[test]
fn directories_in_the_middle_of_a_listing_hold_no_descriptor() {
    let v = Fixture::with(|config| config.max_idle_descriptors = 8);
    for n in 0..1000 {
        std::fs::write(v.host(&format!("{n}")), "").unwrap();
    }
    let before = nr_descriptors(&v);
    let open: Vec<_> = (0..300)
        .map(|_| {
            let handle = v.vfs.opendir(&v.root, ROOT).unwrap();
            assert_eq!(take(&handle, &mut 0, 10).len(), 10);
            handle
        })
        .collect();
    assert_eq!(nr_descriptors(&v), before);
    drop(open);
}

#[test]
fn open_handles_are_charged_to_their_group() {
    let v = Fixture::new();
    let tenant = tenant(&v);
    let (entry, first) = v.vfs.create(&tenant, ROOT, name("f"), 0o644, OFlags::RDWR | OFlags::EXCL).unwrap();
    let slab = || tenant.group.stat_local(StatItem::SlabUnreclaimable) as u64;
    let before = slab();
    let files: Vec<_> = (0..100).map(|_| v.vfs.open(&tenant, entry.node, OFlags::RDONLY).unwrap()).collect();
    let dirs: Vec<_> = (0..100).map(|_| v.vfs.opendir(&tenant, ROOT).unwrap()).collect();
    assert_eq!(slab(), before + 200 * HANDLE_BYTES);
    drop((files, dirs));
    assert_eq!(slab(), before);
    drop(first);
    assert_eq!(slab(), before - HANDLE_BYTES);
}

#[test]
fn a_group_without_room_is_refused_handles_in_the_end() {
    let v = Fixture::new();
    let tenant = tenant(&v);
    v.engine.set_max(&tenant.group, 0);
    let mut open: Vec<_> =
        (0..NR_HANDLES_BEYOND_MAX).map(|_| v.vfs.opendir(&tenant, ROOT).unwrap()).collect();
    assert_eq!(errno(v.vfs.opendir(&tenant, ROOT)), Errno::NOMEM);
    assert!(v.vfs.opendir(&v.root, ROOT).is_ok(), "others go on");
    open.pop();
    assert!(v.vfs.opendir(&tenant, ROOT).is_ok());
}

/// Lists a directory a few names at a time while what was listed goes and other names come.
fn each_name_that_stays_is_listed_once(v: &Fixture) {
    let dir = v.mkdir(ROOT, "dir").node;
    let stays: BTreeSet<String> = (0..2000).map(|n| format!("stays-{n}")).collect();
    for n in &stays {
        std::fs::write(v.host(&format!("dir/{n}")), "").unwrap();
        std::fs::write(v.host(&format!("dir/goes-{n}")), "").unwrap();
    }
    let handle = v.vfs.opendir(&v.root, dir).unwrap();
    let (mut offset, mut seen) = (0, Vec::new());
    loop {
        let names = take(&handle, &mut offset, 37);
        if names.is_empty() {
            break;
        }
        for n in names.iter().filter(|n| n.starts_with("goes")) {
            v.vfs.unlink(&v.root, dir, name(n)).unwrap();
        }
        std::fs::write(v.host(&format!("dir/comes-{offset}")), "").unwrap();
        seen.extend(names.into_iter().filter(|n| n.starts_with("stays")));
    }
    assert_eq!(seen.len(), stays.len());
    assert_eq!(seen.into_iter().collect::<BTreeSet<_>>(), stays);
}

#[test]
fn a_listing_beside_changes_is_whole() {
    each_name_that_stays_is_listed_once(&Fixture::new());
}

#[test]
fn a_listing_beside_changes_is_whole_with_a_kept_descriptor() {
    let v = Fixture::on_tmpfs();
    each_name_that_stays_is_listed_once(&v);
    // The handle pays for what it keeps.
    let tenant = tenant(&v);
    let before = tenant.group.usage_bytes();
    let handle = v.vfs.opendir(&tenant, ROOT).unwrap();
    assert!(tenant.group.usage_bytes() >= before + (32 << 10));
    drop(handle);
    assert_eq!(tenant.group.stat_local(StatItem::SlabUnreclaimable), 0);
}

#[test]
fn a_removed_directory_lists_nothing_and_is_synced() {
    // No descriptor of a removed directory is kept, so that there is no way back to it.
    let v = Fixture::with(|config| config.max_idle_descriptors = 0);
    let nodes: Vec<_> = (0..20).map(|n| v.mkdir(ROOT, &format!("{n}")).node).collect();
    let handles: Vec<_> = nodes.iter().map(|node| v.vfs.opendir(&v.root, *node).unwrap()).collect();
    for n in 0..20 {
        v.vfs.rmdir(&v.root, ROOT, name(&format!("{n}"))).unwrap();
    }
    for handle in &handles {
        assert!(take(handle, &mut 0, 10).is_empty());
        handle.fsyncdir(false).unwrap();
    }
    drop(Arc::clone(&handles[0]));
}
