//! Names: unlink, rename, link, and what stays of an inode that loses them.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;

use crate::common::{ROOT, both_ways, errno, name};
use rustix::io::Errno;
use umemcg_vfs::{Attributes, Create, Lookup, Names, NodeId, OFlags, Open, RenameFlags, SetAttr, Volume};

const PLAIN: RenameFlags = RenameFlags::empty();

#[test]
fn hard_links_share_one_inode_and_one_cached_content() {
    both_ways(|v| {
        let (a, file) = v.create(ROOT, "a");
        v.write(&file, 0, b"not yet on the host");
        let b = v.vfs.link(&v.root, a.node, ROOT, name("b")).unwrap();
        assert_eq!((b.node, b.attr.nlink), (a.node, 2));
        let other = v.open(v.walk("b").unwrap().node, OFlags::RDWR);
        assert_eq!(v.read(&other, 0, 100), b"not yet on the host");
        v.write(&other, 0, b"NOT");
        assert_eq!(v.read(&file, 0, 3), b"NOT");
        v.vfs.unlink(&v.root, ROOT, name("a")).unwrap();
        assert_eq!(v.attr("b").nlink, 1);
        assert_eq!(v.cat("b"), b"NOT yet on the host");
    });
}

#[test]
fn an_open_file_outlives_its_last_name_and_is_not_written() {
    both_ways(|v| {
        let (entry, file) = v.create(ROOT, "f");
        v.write(&file, 0, &[7; 10_000]);
        v.vfs.unlink(&v.root, ROOT, name("f")).unwrap();
        assert_eq!(file.getattr().unwrap().nlink, 0);
        assert_eq!(v.read(&file, 9_999, 10), [7]);
        v.set(entry.node, SetAttr { mode: Some(0o600), ..SetAttr::default() }).unwrap();
        v.vfs.forget(entry.node, 1);
        assert_eq!(v.read(&file, 0, 2), [7, 7], "forgotten, but open");
        drop(file);
        assert_eq!(errno(v.vfs.getattr(entry.node)), Errno::STALE);
        assert_eq!(v.vfs.nr_inodes(), 1, "only the root is left");
    });
}

#[test]
fn a_name_can_be_taken_over_while_the_old_file_is_open() {
    both_ways(|v| {
        let (old, old_file) = v.create(ROOT, "target");
        v.write(&old_file, 0, b"old");
        let (new, new_file) = v.create(ROOT, "temporary");
        v.write(&new_file, 0, b"new");
        v.vfs.rename(&v.root, ROOT, name("temporary"), ROOT, name("target"), PLAIN).unwrap();
        assert_eq!(v.walk("target").unwrap().node, new.node);
        assert_eq!(v.cat("target"), b"new");
        assert_eq!(v.read(&old_file, 0, 10), b"old");
        assert_eq!(v.vfs.getattr(old.node).unwrap().nlink, 0);
    });
}

#[test]
fn rename_keeps_what_is_cached() {
    both_ways(|v| {
        let (entry, file) = v.create(ROOT, "a");
        v.write(&file, 0, &[1; 8192]);
        file.fsync(false).unwrap();
        let cached = file.content().nr_cached_pages();
        assert_eq!(cached, 2);
        v.vfs.rename(&v.root, ROOT, name("a"), ROOT, name("b"), PLAIN).unwrap();
        v.vfs.link(&v.root, entry.node, ROOT, name("c")).unwrap();
        v.vfs.unlink(&v.root, ROOT, name("b")).unwrap();
        let again = v.open(entry.node, OFlags::RDONLY);
        assert_eq!(again.content().nr_cached_pages(), cached, "our own changes are not taken for others'");
    });
}

#[test]
fn noreplace_refuses_and_exchange_swaps() {
    both_ways(|v| {
        let (a, file) = v.create(ROOT, "a");
        v.write(&file, 0, b"A");
        let d = v.mkdir(ROOT, "d");
        let b = v.mkdir(d.node, "b");
        let taken = v.vfs.rename(&v.root, ROOT, name("a"), d.node, name("b"), RenameFlags::NOREPLACE);
        assert_eq!(errno(taken), Errno::EXIST);
        v.vfs.rename(&v.root, ROOT, name("a"), d.node, name("b"), RenameFlags::EXCHANGE).unwrap();
        assert_eq!(v.walk("d/b").unwrap().node, a.node);
        assert_eq!(v.walk("a").unwrap().node, b.node);
        assert_eq!(v.cat("d/b"), b"A");
        v.create(b.node, "inside");
        assert!(v.host("a/inside").exists());
        let both = RenameFlags::EXCHANGE | RenameFlags::WHITEOUT;
        assert_eq!(errno(v.vfs.rename(&v.root, ROOT, name("a"), d.node, name("b"), both)), Errno::INVAL);
    });
}

#[test]
fn a_rename_may_leave_a_whiteout_that_is_the_callers() {
    both_ways(|v| {
        let ann = v.user(1001, 1002);
        let (a, file) = v.create(ROOT, "a");
        v.write(&file, 0, b"A");
        v.create(ROOT, "b");
        v.vfs.rename(&ann, ROOT, name("a"), ROOT, name("b"), RenameFlags::WHITEOUT).unwrap();
        assert_eq!((v.walk("b").unwrap().node, v.cat("b")), (a.node, b"A".to_vec()));
        let whiteout = v.attr("a");
        assert_eq!((whiteout.mode, whiteout.rdev, whiteout.nlink), (0o020_000, 0, 1));
        if rustix::process::geteuid().is_root() {
            assert_eq!((whiteout.uid, whiteout.gid), (1001, 1002));
        }
        v.vfs.unlink(&v.root, ROOT, name("a")).unwrap();
        assert_eq!(v.ls(ROOT), ["b"]);
    });
}

#[test]
fn renaming_one_link_over_the_other_changes_nothing() {
    both_ways(|v| {
        let (a, _file) = v.create(ROOT, "a");
        v.vfs.link(&v.root, a.node, ROOT, name("b")).unwrap();
        v.vfs.rename(&v.root, ROOT, name("a"), ROOT, name("b"), PLAIN).unwrap();
        assert_eq!(v.walk("a").unwrap().node, v.walk("b").unwrap().node);
        assert_eq!(v.attr("a").nlink, 2);
    });
}

#[test]
fn a_moved_directory_is_found_with_everything_below() {
    both_ways(|v| {
        let a = v.mkdir(ROOT, "a");
        let deep = v.mkdir(a.node, "deep");
        let (f, file) = v.create(deep.node, "f");
        v.write(&file, 0, b"x");
        drop(file);
        let b = v.mkdir(ROOT, "b");
        v.vfs.rename(&v.root, ROOT, name("a"), b.node, name("moved"), PLAIN).unwrap();
        v.vfs.syncfs().unwrap();
        assert_eq!(v.vfs.path_of(f.node).unwrap().to_str(), Some("b/moved/deep/f"));
        assert_eq!(v.read(&v.open(f.node, OFlags::RDONLY), 0, 9), b"x");
        v.create(deep.node, "g");
        assert!(v.host("b/moved/deep/g").exists());
        let loops = v.vfs.rename(&v.root, ROOT, name("b"), deep.node, name("b"), PLAIN);
        assert_eq!(errno(loops), Errno::INVAL);
    });
}

#[test]
fn a_removed_directory_is_empty_and_takes_nothing_new() {
    both_ways(|v| {
        let d = v.mkdir(ROOT, "d");
        let handle = v.vfs.opendir(&v.root, d.node).unwrap();
        v.vfs.rmdir(&v.root, ROOT, name("d")).unwrap();
        assert_eq!(v.vfs.getattr(d.node).unwrap().nlink, 0);
        assert_eq!(v.ls(d.node), [""; 0]);
        assert_eq!(errno(v.vfs.mkdir(&v.root, d.node, name("x"), 0o755)), Errno::NOENT);
        assert_eq!(errno(v.vfs.lookup(&v.root, d.node, name("x"))), Errno::NOENT);
        v.vfs.forget(d.node, 1);
        drop(handle);
        assert_eq!(v.vfs.nr_inodes(), 1);
    });
}

#[test]
fn the_usual_refusals_have_the_usual_numbers() {
    both_ways(|v| {
        let d = v.mkdir(ROOT, "d");
        let (f, _file) = v.create(d.node, "f");
        let root = &v.root;
        assert_eq!(errno(v.vfs.unlink(&v.root, ROOT, name("d"))), Errno::ISDIR);
        assert_eq!(errno(v.vfs.rmdir(&v.root, ROOT, name("d"))), Errno::NOTEMPTY);
        assert_eq!(errno(v.vfs.rmdir(&v.root, d.node, name("f"))), Errno::NOTDIR);
        assert_eq!(errno(v.vfs.unlink(&v.root, ROOT, name("none"))), Errno::NOENT);
        assert_eq!(errno(v.vfs.mkdir(root, ROOT, name("d"), 0o755)), Errno::EXIST);
        assert_eq!(errno(v.vfs.link(root, d.node, ROOT, name("l"))), Errno::PERM);
        assert_eq!(errno(v.vfs.link(root, f.node, ROOT, name("d"))), Errno::EXIST);
        assert_eq!(errno(v.vfs.lookup(root, f.node, name("x"))), Errno::NOTDIR);
        assert_eq!(errno(v.vfs.opendir(&v.root, f.node)), Errno::NOTDIR);
        assert_eq!(errno(v.vfs.readlink(f.node)), Errno::INVAL);
        assert_eq!(errno(v.vfs.open(root, d.node, OFlags::RDONLY)), Errno::ISDIR);
        assert_eq!(errno(v.vfs.open(root, f.node, OFlags::DIRECTORY)), Errno::NOTDIR);
        assert_eq!(errno(v.vfs.lookup(root, NodeId(1 << 40), name("x"))), Errno::STALE);
        v.mkdir(ROOT, "e");
        let over = v.vfs.rename(&v.root, d.node, name("f"), ROOT, name("e"), PLAIN);
        assert_eq!(errno(over), Errno::ISDIR);
    });
}

#[test]
fn a_name_is_any_255_bytes_and_no_more() {
    both_ways(|v| {
        let long = "n".repeat(255);
        let odd = OsStr::from_bytes(b"\xff\xfe line\nbreak \\ *");
        for text in [name(&long), odd] {
            let entry = v.vfs.mkdir(&v.root, ROOT, text, 0o755).unwrap();
            assert_eq!(v.vfs.lookup(&v.root, ROOT, text).unwrap().node, entry.node);
            v.create(entry.node, "f");
            v.vfs.unlink(&v.root, entry.node, name("f")).unwrap();
            v.vfs.rmdir(&v.root, ROOT, text).unwrap();
        }
        let too_long = "n".repeat(256);
        assert_eq!(errno(v.vfs.lookup(&v.root, ROOT, name(&too_long))), Errno::NAMETOOLONG);
        assert_eq!(errno(v.vfs.mkdir(&v.root, ROOT, name(&too_long), 0o755)), Errno::NAMETOOLONG);
    });
}

#[test]
fn nothing_leaves_the_directory() {
    both_ways(|v| {
        let secret = tempfile::tempdir().unwrap();
        std::fs::write(secret.path().join("s"), "secret").unwrap();
        for bad in ["..", ".", "", "a/b", "/etc", "../x"] {
            assert_eq!(errno(v.vfs.lookup(&v.root, ROOT, name(bad))), Errno::INVAL, "{bad:?}");
            assert_eq!(errno(v.vfs.mkdir(&v.root, ROOT, name(bad), 0o755)), Errno::INVAL, "{bad:?}");
            assert_eq!(errno(v.vfs.unlink(&v.root, ROOT, name(bad))), Errno::INVAL, "{bad:?}");
        }
        let link = v.vfs.symlink(&v.root, ROOT, name("l"), secret.path().as_os_str()).unwrap();
        assert_eq!(v.vfs.readlink(link.node).unwrap(), secret.path().as_os_str());
        assert_eq!(errno(v.vfs.lookup(&v.root, link.node, name("s"))), Errno::NOTDIR);
        assert_eq!(errno(v.vfs.open(&v.root, link.node, OFlags::RDONLY)), Errno::LOOP);
        assert_eq!(errno(v.vfs.opendir(&v.root, link.node)), Errno::NOTDIR);
        // Operations on the link are on the link.
        v.vfs.setattr(&v.root, link.node, &SetAttr { uid: Some(12), ..SetAttr::default() }).unwrap();
        assert_ne!(std::fs::metadata(secret.path()).unwrap().uid(), 12);
        assert_eq!(v.attr("l").uid, 12);
    });
}

#[test]
fn a_link_to_a_link_is_a_name_of_the_link_itself() {
    both_ways(|v| {
        let target = v.mkdir(ROOT, "target");
        let link = v.vfs.symlink(&v.root, ROOT, name("l"), name("target")).unwrap();
        let again = v.vfs.link(&v.root, link.node, target.node, name("l2")).unwrap();
        assert_eq!((again.node, again.attr.nlink), (link.node, 2));
        assert_eq!(std::fs::read_link(v.host("target/l2")).unwrap().to_str(), Some("target"));
    });
}

#[test]
fn removed_inodes_not_yet_forgotten_hold_few_descriptors() {
    for resolve in crate::common::RESOLVES {
        let v = crate::common::Fixture::with(|config| {
            config.resolve = resolve;
            config.max_idle_descriptors = 16;
        });
        let mut nodes = Vec::new();
        let (open, file) = v.create(ROOT, "open");
        v.write(&file, 0, b"x");
        for n in 0..500 {
            nodes.push(v.mkdir(ROOT, &format!("d{n}")).node);
            v.vfs.rmdir(&v.root, ROOT, name(&format!("d{n}"))).unwrap();
        }
        v.vfs.unlink(&v.root, ROOT, name("open")).unwrap();
        let held = std::fs::read_dir("/proc/self/fd").unwrap().filter(|fd| {
            std::fs::read_link(fd.as_ref().unwrap().path()).is_ok_and(|t| t.starts_with(v.dir.path()))
        });
        assert!(held.count() <= 2 * 16 + 2);
        assert_eq!(v.vfs.getattr(nodes[0]).unwrap().nlink, 0);
        // Which of the others are held depends on the numbers of their inodes.
        let is_stale = |&&node: &&NodeId| match v.vfs.getattr(node) {
            Ok(attr) => attr.nlink != 0,
            Err(error) => error.errno() == Errno::STALE,
        };
        assert!(nodes.iter().filter(is_stale).count() >= 500 - (2 * 16 + 2));
        // What is open is reached in any case.
        assert_eq!(v.vfs.getattr(open.node).unwrap().nlink, 0);
        v.set(open.node, SetAttr { mode: Some(0o600), ..SetAttr::default() }).unwrap();
        let again = v.open(open.node, OFlags::RDWR);
        assert_eq!(v.read(&again, 0, 9), b"x");
        drop((file, again));
        for node in nodes.into_iter().chain([open.node]) {
            v.vfs.forget(node, 1);
        }
        assert_eq!(v.vfs.nr_inodes(), 1);
    }
}
