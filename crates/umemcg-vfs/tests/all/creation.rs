//! New objects: whose they are and which permissions they have.

use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::process::Command;

use crate::common::{Fixture, ROOT, both_ways, errno, name};
use rustix::io::Errno;
use umemcg_vfs::{Attributes, Caller, Create, Lookup, Names, OFlags, Open, SetAttr, Volume, Xattrs};

/// Ownership can be tested by a process that may give files away.
fn is_root() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        eprintln!("SKIPPED: needs root");
    }
    is_root
}

fn setgid_dir(v: &Fixture, path: &str, gid: u32) -> umemcg_vfs::NodeId {
    let dir = v.mkdir(ROOT, path);
    v.set(dir.node, SetAttr { gid: Some(gid), ..SetAttr::default() }).unwrap();
    v.set(dir.node, SetAttr { mode: Some(0o2775), ..SetAttr::default() }).unwrap();
    dir.node
}

#[test]
fn everything_new_belongs_to_the_caller() {
    if !is_root() {
        return;
    }
    both_ways(|v| {
        let ann = v.user(1001, 1002);
        let vfs = &v.vfs;
        vfs.create(&ann, ROOT, name("file"), 0o644, OFlags::RDWR).unwrap();
        vfs.mkdir(&ann, ROOT, name("dir"), 0o755).unwrap();
        vfs.symlink(&ann, ROOT, name("link"), name("anywhere")).unwrap();
        vfs.mknod(&ann, ROOT, name("fifo"), 0o010_600, 0).unwrap();
        vfs.mknod(&ann, ROOT, name("socket"), 0o140_600, 0).unwrap();
        vfs.mknod(&ann, ROOT, name("plain"), 0o600, 0).unwrap();
        for path in ["file", "dir", "link", "fifo", "socket", "plain"] {
            let attr = v.attr(path);
            assert_eq!((attr.uid, attr.gid), (1001, 1002), "{path}");
            let host = std::fs::symlink_metadata(v.host(path)).unwrap();
            assert_eq!((host.uid(), host.gid()), (1001, 1002), "{path}");
        }
        assert!(std::fs::metadata(v.host("fifo")).unwrap().file_type().is_fifo());
        assert!(std::fs::metadata(v.host("socket")).unwrap().file_type().is_socket());
    });
}

#[test]
fn devices_keep_their_numbers() {
    if !is_root() {
        return;
    }
    both_ways(|v| {
        let rdev = rustix::fs::makedev(1, 3);
        let entry = v.vfs.mknod(&v.root, ROOT, name("null"), 0o020_666, rdev);
        match entry {
            // Containers may forbid devices.
            Err(error) => assert_eq!(error.errno(), Errno::PERM),
            Ok(entry) => assert_eq!((entry.attr.rdev, entry.attr.mode), (rdev, 0o020_644)),
        }
        assert_eq!(errno(v.vfs.mknod(&v.root, ROOT, name("x"), 0o040_755, 0)), Errno::INVAL);
    });
}

#[test]
fn the_mode_is_exactly_what_the_umask_leaves() {
    both_ways(|v| {
        for (umask, mode, expected) in [
            (0o000, 0o666, 0o666),
            (0o022, 0o666, 0o644),
            (0o077, 0o777, 0o700),
            (0o777, 0o666, 0o000),
            (0o022, 0o4755, 0o4755),
            (0o022, 0o2755, 0o2755),
            (0o022, 0o1777, 0o1755),
            (0o010, 0o6770, 0o6760),
        ] {
            let caller = Caller { umask, ..v.root.clone() };
            let made = v.vfs.create(&caller, ROOT, name("f"), mode, OFlags::RDWR | OFlags::EXCL).unwrap();
            assert_eq!(made.0.attr.mode & 0o7777, expected, "umask {umask:o}, mode {mode:o}");
            v.vfs.unlink(&v.root, ROOT, name("f")).unwrap();
        }
    });
}

#[test]
fn a_set_group_id_directory_hands_down_its_group_and_bit() {
    if !is_root() {
        return;
    }
    both_ways(|v| {
        let shared = setgid_dir(v, "shared", 2000);
        let ann = v.user(1001, 1002);
        let (file, _) = v.vfs.create(&ann, shared, name("f"), 0o664, OFlags::RDWR).unwrap();
        assert_eq!((file.attr.uid, file.attr.gid, file.attr.mode & 0o7777), (1001, 2000, 0o644));
        let dir = v.vfs.mkdir(&ann, shared, name("d"), 0o777).unwrap();
        assert_eq!((dir.attr.gid, dir.attr.mode & 0o7777), (2000, 0o2755));
        let plain = v.mkdir(ROOT, "plain");
        let dir = v.vfs.mkdir(&ann, plain.node, name("d"), 0o2777).unwrap();
        assert_eq!((dir.attr.gid, dir.attr.mode & 0o7777), (1002, 0o755));
    });
}

#[test]
fn only_members_make_set_group_id_programs_of_a_group() {
    if !is_root() {
        return;
    }
    both_ways(|v| {
        let shared = setgid_dir(v, "shared", 2000);
        let make = |caller: &Caller, n: &str| {
            v.vfs.create(caller, shared, name(n), 0o2755, OFlags::RDWR).unwrap().0.attr.mode & 0o7777
        };
        let stranger = v.user(1001, 1002);
        assert_eq!(make(&stranger, "stranger"), 0o755);
        let member = Caller { supplementary_gid: Some(2000), ..stranger.clone() };
        assert_eq!(make(&member, "member"), 0o2755);
        assert_eq!(make(&v.root, "root"), 0o2755);
    });
}

#[test]
fn a_default_access_list_decides_instead_of_the_umask() {
    if !is_root() {
        return;
    }
    both_ways(|v| {
        let dir = v.mkdir(ROOT, "d");
        let set =
            Command::new("setfacl").args(["-d", "-m", "u:1234:rwx,g::rwx,o::---"]).arg(v.host("d")).status();
        if !set.is_ok_and(|s| s.success()) {
            eprintln!("SKIPPED: setfacl or access lists are missing");
            return;
        }
        let ann = Caller { umask: 0o077, ..v.user(1001, 1002) };
        let (file, _) = v.vfs.create(&ann, dir.node, name("f"), 0o664, OFlags::RDWR).unwrap();
        let by_host = {
            std::fs::OpenOptions::new().write(true).create_new(true).open(v.host("d/h")).unwrap();
            std::fs::metadata(v.host("d/h")).unwrap().permissions().mode()
        };
        assert_eq!(file.attr.mode & 0o777, 0o660);
        assert_eq!(by_host & 0o777, 0o660, "as the host does");
        assert_eq!((file.attr.uid, file.attr.gid), (1001, 1002));
        let list = v.vfs.getxattr(file.node, name("system.posix_acl_access")).unwrap();
        assert!(list.windows(4).any(|w| w == 1234u32.to_le_bytes()), "the list is inherited");
        let sub = v.vfs.mkdir(&ann, dir.node, name("sub"), 0o777).unwrap();
        assert!(!v.vfs.getxattr(sub.node, name("system.posix_acl_default")).unwrap().is_empty());
    });
}

#[test]
fn without_a_umask_the_default_access_list_decides_too() {
    both_ways(|v| {
        let dir = v.mkdir(ROOT, "d");
        // u::rwx g::r-x o::---, as `setfacl` writes it.
        let entries = [[1u16, 7], [4, 5], [0x20, 0]].map(|[tag, bits]| {
            [&tag.to_le_bytes()[..], &bits.to_le_bytes(), &u32::MAX.to_le_bytes()].concat()
        });
        let list = [&2u32.to_le_bytes()[..], &entries.concat()].concat();
        let set = v.vfs.setxattr(
            &v.root,
            dir.node,
            name("system.posix_acl_default"),
            &list,
            umemcg_vfs::XattrFlags::empty(),
            false,
        );
        if let Err(error) = set {
            eprintln!("SKIPPED: no access lists here: {error}");
            return;
        }
        let caller = Caller { umask: 0, ..v.root.clone() };
        let (file, _) = v.vfs.create(&caller, dir.node, name("f"), 0o666, OFlags::RDWR).unwrap();
        assert_eq!(file.attr.mode & 0o777, 0o640);
        assert_eq!(v.vfs.mkdir(&caller, dir.node, name("sub"), 0o777).unwrap().attr.mode & 0o777, 0o750);
    });
}

#[test]
fn a_file_without_a_name_is_written_and_may_get_one() {
    both_ways(|v| {
        let ann = v.user(1001, 1002);
        let dir = v.mkdir(ROOT, "d");
        let (entry, file) = v.vfs.tmpfile(&ann, dir.node, 0o666, OFlags::RDWR).unwrap();
        assert_eq!((entry.attr.nlink, entry.attr.mode), (0, 0o100_644));
        if rustix::process::geteuid().is_root() {
            assert_eq!((entry.attr.uid, entry.attr.gid), (1001, 1002));
        }
        v.write(&file, 0, b"content");
        assert_eq!((v.vfs.getattr(entry.node).unwrap().size, v.ls(dir.node).len()), (7, 0));
        let named = v.vfs.link(&ann, entry.node, dir.node, name("f")).unwrap();
        assert_eq!((named.node, named.attr.nlink, named.attr.size), (entry.node, 1, 7));
        drop(file);
        v.vfs.forget(entry.node, 2);
        v.vfs.syncfs().unwrap();
        assert_eq!(std::fs::read(v.host("d/f")).unwrap(), b"content");
        assert_eq!(v.cat("d/f"), b"content");
    });
}

#[test]
fn a_file_that_never_gets_a_name_leaves_nothing() {
    both_ways(|v| {
        let nr_inodes = v.vfs.nr_inodes();
        let (entry, file) = v.vfs.tmpfile(&v.root, ROOT, 0o600, OFlags::RDWR).unwrap();
        v.write(&file, 0, &[1; 100_000]);
        drop(file);
        v.vfs.forget(entry.node, 1);
        assert_eq!((v.vfs.nr_inodes(), v.ls(ROOT).len()), (nr_inodes, 0));
    });
}

#[test]
fn create_opens_what_is_there_unless_it_must_be_new() {
    both_ways(|v| {
        let (first, file) = v.create(ROOT, "f");
        v.write(&file, 0, b"content");
        let again = v.vfs.create(&v.root, ROOT, name("f"), 0o600, OFlags::RDWR);
        let (entry, other) = again.unwrap();
        assert_eq!((entry.node, entry.attr.mode & 0o777, entry.attr.size), (first.node, 0o644, 7));
        assert_eq!(v.read(&other, 0, 100), b"content");
        let new = v.vfs.create(&v.root, ROOT, name("f"), 0o600, OFlags::RDWR | OFlags::EXCL);
        assert_eq!(errno(new), Errno::EXIST);
        let cut = v.vfs.create(&v.root, ROOT, name("f"), 0o600, OFlags::RDWR | OFlags::TRUNC).unwrap();
        assert_eq!(cut.0.attr.size, 0);
        v.mkdir(ROOT, "d");
        assert_eq!(errno(v.vfs.create(&v.root, ROOT, name("d"), 0o600, OFlags::RDWR)), Errno::ISDIR);
        v.vfs.symlink(&v.root, ROOT, name("l"), name("/etc/passwd")).unwrap();
        assert_eq!(errno(v.vfs.create(&v.root, ROOT, name("l"), 0o600, OFlags::RDWR)), Errno::LOOP);
    });
}

#[test]
fn a_file_made_without_permissions_is_writable_as_first_opened() {
    both_ways(|v| {
        let made = v.vfs.create(&v.root, ROOT, name("f"), 0o000, OFlags::WRONLY | OFlags::EXCL);
        let (entry, file) = made.unwrap();
        assert_eq!(entry.attr.mode & 0o7777, 0);
        v.write(&file, 0, b"x");
        file.fsync(true).unwrap();
        assert_eq!(std::fs::metadata(v.host("f")).unwrap().len(), 1);
    });
}

#[test]
fn what_cannot_be_given_away_is_not_left_behind() {
    if !is_root() {
        return;
    }
    both_ways(|v| {
        let nobody = v.user(u32::MAX, 5);
        assert_eq!(errno(v.vfs.mkdir(&nobody, ROOT, name("d"), 0o755)), Errno::INVAL);
        assert_eq!(errno(v.vfs.create(&nobody, ROOT, name("f"), 0o644, OFlags::RDWR)), Errno::INVAL);
        assert_eq!(v.ls(ROOT), [""; 0]);
        assert_eq!(v.vfs.nr_inodes(), 1);
    });
}

#[test]
fn changing_the_owner_clears_set_id_bits() {
    if !is_root() {
        return;
    }
    both_ways(|v| {
        let (entry, _file) = v.create(ROOT, "f");
        v.set(entry.node, SetAttr { mode: Some(0o6755), ..SetAttr::default() }).unwrap();
        let attr = v.set(entry.node, SetAttr { uid: Some(7), ..SetAttr::default() }).unwrap();
        assert_eq!((attr.uid, attr.mode & 0o7777), (7, 0o755));
        let attr =
            v.set(entry.node, SetAttr { uid: Some(8), mode: Some(0o4711), ..SetAttr::default() }).unwrap();
        assert_eq!((attr.uid, attr.mode & 0o7777), (8, 0o4711), "a mode in the same change comes after");
    });
}

#[test]
fn an_accepted_write_and_a_truncation_clear_set_id_bits() {
    both_ways(|v| {
        let (entry, file) = v.create(ROOT, "f");
        let set = |mode| v.set(entry.node, SetAttr { mode: Some(mode), ..SetAttr::default() }).unwrap();
        let mode = || v.vfs.getattr(entry.node).unwrap().mode & 0o7777;
        set(0o6755);
        file.write(&v.root.group, 0, b"x", false).unwrap();
        assert_eq!(mode(), 0o6755, "the superuser's write leaves them");
        file.write(&v.root.group, 0, b"x", true).unwrap();
        assert_eq!(mode(), 0o755);
        set(0o2745);
        file.write(&v.root.group, 0, b"x", true).unwrap();
        assert_eq!(mode(), 0o2745, "without group execution it is a lock mark");
        set(0o4700);
        let cut = SetAttr { size: Some(0), kill_set_id: true, ..SetAttr::default() };
        v.set(entry.node, cut).unwrap();
        assert_eq!(mode(), 0o700);
        set(0o4777);
        drop(v.vfs.open(&v.user(5, 5), entry.node, OFlags::WRONLY | OFlags::TRUNC).unwrap());
        assert_eq!(mode(), 0o777);
    });
}

#[test]
fn an_accepted_write_takes_file_capabilities() {
    if !is_root() {
        return;
    }
    let v = Fixture::new();
    let (entry, file) = v.create(ROOT, "f");
    let capability = [1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let empty = umemcg_vfs::XattrFlags::empty();
    v.vfs.setxattr(&v.root, entry.node, name("security.capability"), &capability, empty, false).unwrap();
    assert!(v.vfs.getxattr(entry.node, name("security.capability")).is_ok());
    v.write(&file, 0, b"other code");
    assert_eq!(errno(v.vfs.getxattr(entry.node, name("security.capability"))), Errno::NODATA);
}
