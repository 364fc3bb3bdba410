//! Reading directories.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::common::{Fixture, ROOT, both_ways, errno, name};
use rustix::io::Errno;
use umemcg_vfs::{Attributes, FileKind, Lookup, Names, NodeId, Open, VolumeDir};

/// Up to `max` names from a position, and the position after them.
fn some(handle: &Arc<dyn VolumeDir>, offset: u64, max: usize) -> (Vec<String>, u64) {
    let (mut names, mut next) = (Vec::new(), offset);
    handle
        .readdir(offset, &mut |entry| {
            if names.len() == max {
                return false;
            }
            names.push(entry.name.to_string_lossy().into_owned());
            next = entry.next_offset;
            true
        })
        .unwrap();
    (names, next)
}

fn fill(v: &Fixture, nr: usize) -> NodeId {
    let dir = v.mkdir(ROOT, "dir").node;
    for n in 0..nr {
        std::fs::write(v.host(&format!("dir/file-with-a-longish-name-{n}")), "").unwrap();
    }
    dir
}

#[test]
fn every_name_is_seen_once_in_small_and_large_reads() {
    both_ways(|v| {
        let dir = fill(v, 3000);
        for step in [1, 7, 1000, usize::MAX] {
            let handle = v.vfs.opendir(&v.root, dir).unwrap();
            let (mut seen, mut offset) = (BTreeSet::new(), 0);
            loop {
                let (names, next) = some(&handle, offset, step);
                if names.is_empty() {
                    break;
                }
                for n in names {
                    assert!(seen.insert(n.clone()), "{n} twice");
                }
                offset = next;
            }
            assert_eq!(seen.len(), 3002, "step {step}");
            assert!(seen.contains(".") && seen.contains(".."));
        }
    });
}

#[test]
fn positions_stay_good_when_names_come_and_go() {
    both_ways(|v| {
        let dir = fill(v, 500);
        let handle = v.vfs.opendir(&v.root, dir).unwrap();
        let (first, cookie) = some(&handle, 0, 100);
        let (rest, _) = some(&handle, cookie, usize::MAX);
        // Everything that was read first goes, and something is added.
        for n in first.iter().filter(|n| !n.starts_with('.')) {
            v.vfs.unlink(&v.root, dir, name(n)).unwrap();
        }
        v.create(dir, "new");
        let (again, _) = some(&handle, cookie, usize::MAX);
        let again: BTreeSet<_> = again.into_iter().filter(|n| n != "new").collect();
        assert_eq!(again, rest.into_iter().collect(), "seekdir to where telldir was");
        // And from a handle that has never been there.
        let fresh = v.vfs.opendir(&v.root, dir).unwrap();
        let (other, _) = some(&fresh, cookie, usize::MAX);
        assert_eq!(other.into_iter().filter(|n| n != "new").collect::<BTreeSet<_>>(), again);
    });
}

#[test]
fn positions_on_ext4_fit_a_32_bit_program() {
    const EXT4: u64 = 0xef53;
    both_ways(|v| {
        if rustix::fs::statfs(v.dir.path()).unwrap().f_type as u64 != EXT4 {
            return;
        }
        let dir = fill(v, 100);
        let handle = v.vfs.opendir(&v.root, dir).unwrap();
        let mut take = |entry: &umemcg_vfs::DirEntry<'_>| {
            assert!(entry.next_offset < 1 << 31, "{:?} {:#x}", entry.name, entry.next_offset);
            true
        };
        handle.readdir(0, &mut take).unwrap();
    });
}

#[test]
fn rewinding_shows_what_is_new() {
    both_ways(|v| {
        let dir = fill(v, 3);
        let handle = v.vfs.opendir(&v.root, dir).unwrap();
        assert_eq!(some(&handle, 0, usize::MAX).0.len(), 5);
        v.create(dir, "new");
        assert!(some(&handle, 0, usize::MAX).0.contains(&"new".to_string()));
    });
}

#[test]
fn readdirplus_looks_up_what_is_taken_and_nothing_else() {
    both_ways(|v| {
        let dir = fill(v, 50);
        std::fs::create_dir(v.host("dir/sub")).unwrap();
        std::os::unix::fs::symlink("x", v.host("dir/link")).unwrap();
        let before = v.vfs.nr_inodes();
        let handle = v.vfs.opendir(&v.root, dir).unwrap();
        let mut taken = Vec::new();
        let mut seen = 0;
        handle
            .readdirplus(&v.root, 0, &mut |entry| {
                seen += 1;
                if seen > 20 {
                    return false;
                }
                let is_dot = entry.name == "." || entry.name == "..";
                assert_eq!(entry.entry.is_none(), is_dot, "{:?}", entry.name);
                if let Some(found) = entry.entry {
                    assert_eq!(found.attr.ino, entry.ino);
                    assert_eq!(FileKind::from_mode(found.attr.mode), entry.kind);
                    taken.push(found.node);
                }
                true
            })
            .unwrap();
        assert_eq!(v.vfs.nr_inodes(), before + taken.len());
        for node in taken {
            v.vfs.forget(node, 1);
        }
        assert_eq!(v.vfs.nr_inodes(), before);
    });
}

#[test]
fn what_is_above_the_volume_stays_hidden() {
    both_ways(|v| {
        let above = std::fs::metadata(v.dir.path().parent().unwrap()).unwrap();
        let handle = v.vfs.opendir(&v.root, ROOT).unwrap();
        handle
            .readdir(0, &mut |entry| {
                assert_ne!(entry.ino, std::os::unix::fs::MetadataExt::ino(&above));
                true
            })
            .unwrap();
    });
}

#[test]
fn fsync_of_a_directory_and_statfs_answer() {
    both_ways(|v| {
        let handle = v.vfs.opendir(&v.root, ROOT).unwrap();
        handle.fsyncdir(true).unwrap();
        handle.fsyncdir(false).unwrap();
        let fs = v.vfs.statfs().unwrap();
        assert!(fs.blocks > 0 && fs.namemax == 255 && fs.frsize > 0);
        assert_eq!(errno(handle.readdir(u64::MAX, &mut |_| true)), Errno::INVAL);
    });
}
