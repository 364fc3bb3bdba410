//! Extended attributes.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::common::{Fixture, ROOT, both_ways, errno, name};
use rustix::io::Errno;
use umemcg_vfs::{Create, SetAttr, XattrFlags, Xattrs};

const ANY: XattrFlags = XattrFlags::empty();

#[test]
fn attributes_are_listed_while_descriptors_are_short() {
    let v = Fixture::with(|config| config.max_idle_descriptors = 1);
    let made = ["a", "b", "c"].map(|n| v.vfs.mkdir(&v.root, ROOT, name(n), 0o755).unwrap().node);
    let list = |node| v.vfs.listxattr(&v.root, node);
    // Two threads do not always meet.
    for _ in 0..5 {
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                (0..100_000).for_each(|nr: usize| drop(list(made[1 + nr % 2])));
                is_over.store(true, Ordering::Relaxed);
            });
            let mut nr_failed = 0;
            while !is_over.load(Ordering::Relaxed) {
                nr_failed += usize::from(list(made[0]).is_err());
            }
            assert_eq!(nr_failed, 0, "the others have had its descriptor closed");
        });
    }
}

#[test]
fn attributes_are_set_read_listed_and_removed() {
    both_ways(|v| {
        let (file, _open) = v.create(ROOT, "f");
        let node = file.node;
        let set = |n: &str, value: &[u8], flags| v.vfs.setxattr(&v.root, node, name(n), value, flags, false);
        if let Err(error) = set("user.a", b"1", ANY) {
            assert_eq!(error.errno(), Errno::OPNOTSUPP);
            eprintln!("SKIPPED: no user attributes here");
            return;
        }
        set("user.b", b"", ANY).unwrap();
        assert_eq!(v.vfs.getxattr(node, name("user.a")).unwrap(), b"1");
        assert_eq!(v.vfs.getxattr(node, name("user.b")).unwrap(), b"");
        assert_eq!(errno(set("user.a", b"2", XattrFlags::CREATE)), Errno::EXIST);
        assert_eq!(errno(set("user.c", b"2", XattrFlags::REPLACE)), Errno::NODATA);
        let list = v.vfs.listxattr(&v.root, node).unwrap();
        let names: Vec<_> = list.split(|&b| b == 0).filter(|n| n.starts_with(b"user.")).collect();
        assert_eq!(names, [&b"user.a"[..], b"user.b"]);
        v.vfs.removexattr(&v.root, node, name("user.a")).unwrap();
        assert_eq!(errno(v.vfs.getxattr(node, name("user.a"))), Errno::NODATA);
        assert_eq!(errno(v.vfs.removexattr(&v.root, node, name("user.a"))), Errno::NODATA);
        let large = vec![7; 2000];
        set("user.large", &large, ANY).unwrap();
        assert_eq!(v.vfs.getxattr(node, name("user.large")).unwrap(), large);
    });
}

#[test]
fn bad_names_are_refused_as_the_kernel_refuses_them() {
    both_ways(|v| {
        let (file, _open) = v.create(ROOT, "f");
        let get = |n: &str| errno(v.vfs.getxattr(file.node, name(n)));
        assert_eq!(get(""), Errno::RANGE);
        assert_eq!(get(&format!("user.{}", "x".repeat(300))), Errno::RANGE);
        assert_eq!(get("nonsense.x"), Errno::OPNOTSUPP);
        assert_eq!(get("user.\0x"), Errno::INVAL);
        let set = v.vfs.setxattr(&v.root, file.node, name("user.x"), &vec![0; 100_000], ANY, false);
        assert!([Errno::TOOBIG, Errno::NOSPC, Errno::RANGE].contains(&errno(set)));
    });
}

#[test]
fn links_and_pipes_have_no_user_attributes_and_directories_have() {
    both_ways(|v| {
        let link = v.vfs.symlink(&v.root, ROOT, name("l"), name("/etc/passwd")).unwrap();
        let fifo = v.vfs.mknod(&v.root, ROOT, name("p"), 0o010_600, 0).unwrap();
        let dir = v.mkdir(ROOT, "d");
        for node in [link.node, fifo.node] {
            assert_eq!(errno(v.vfs.setxattr(&v.root, node, name("user.x"), b"1", ANY, false)), Errno::PERM);
        }
        v.vfs.setxattr(&v.root, dir.node, name("user.x"), b"1", ANY, false).unwrap();
        assert_eq!(v.vfs.getxattr(dir.node, name("user.x")).unwrap(), b"1");
    });
}

#[test]
fn trusted_attributes_are_listed_for_the_superuser_only() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: needs root");
        return;
    }
    both_ways(|v| {
        let (file, _open) = v.create(ROOT, "f");
        v.vfs.setxattr(&v.root, file.node, name("trusted.secret"), b"1", ANY, false).unwrap();
        v.vfs.setxattr(&v.root, file.node, name("user.open"), b"1", ANY, false).unwrap();
        let has = |list: Vec<u8>, n: &[u8]| list.split(|&b| b == 0).any(|part| part == n);
        assert!(has(v.vfs.listxattr(&v.root, file.node).unwrap(), b"trusted.secret"));
        let others = v.vfs.listxattr(&v.user(1, 1), file.node).unwrap();
        assert!(!has(others.clone(), b"trusted.secret") && has(others, b"user.open"));
    });
}

#[test]
fn an_access_list_changes_the_mode_and_may_clear_set_group_id() {
    both_ways(|v| {
        let (file, _open) = v.create(ROOT, "f");
        let change = umemcg_vfs::SetAttr { mode: Some(0o2775), ..Default::default() };
        v.set(file.node, change).unwrap();
        // Version 2; owner rwx, group r-x, others ---.
        let mut list = 2u32.to_le_bytes().to_vec();
        for (tag, permissions) in [(1u16, 7u16), (4, 5), (0x20, 0)] {
            list.extend(tag.to_le_bytes());
            list.extend(permissions.to_le_bytes());
            list.extend(u32::MAX.to_le_bytes());
        }
        match v.vfs.setxattr(&v.root, file.node, name("system.posix_acl_access"), &list, ANY, true) {
            Err(error) if error.errno() == Errno::OPNOTSUPP => eprintln!("SKIPPED: no access lists here"),
            set => {
                set.unwrap();
                assert_eq!(v.attr("f").mode & 0o7777, 0o750);
            }
        }
    });
}

/// `cap_net_raw=ep`, as `setcap` writes it.
const CAPABILITIES: [u8; 20] = [1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

#[test]
fn write_back_leaves_capabilities_and_a_write_takes_them() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: needs root to give files capabilities");
        return;
    }
    both_ways(|v| {
        let (entry, file) = v.create(ROOT, "f");
        v.write(&file, 0, b"before");
        let attribute = name("security.capability");
        v.vfs.setxattr(&v.root, entry.node, attribute, &CAPABILITIES, ANY, false).unwrap();
        file.fsync(false).unwrap();
        assert_eq!(v.vfs.getxattr(entry.node, attribute).unwrap(), CAPABILITIES);
        let mut on_host = [0; 64];
        let len = rustix::fs::getxattr(v.host("f"), "security.capability", &mut on_host).unwrap();
        assert_eq!(on_host[..len], CAPABILITIES);
        // Late, and of a mapping, which may be older than they are.
        file.write_mapped(&v.root.group, 0, b"mapped").unwrap();
        assert_eq!(v.vfs.getxattr(entry.node, attribute).unwrap(), CAPABILITIES);
        v.write(&file, 0, b"after");
        assert_eq!(errno(v.vfs.getxattr(entry.node, attribute)), Errno::NODATA);
        file.fsync(false).unwrap();
        assert_eq!(errno(v.vfs.getxattr(entry.node, attribute)), Errno::NODATA);
    });
}

#[test]
fn capabilities_that_went_after_a_look_count_as_removed() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: needs root to give files capabilities");
        return;
    }
    both_ways(|v| {
        let (entry, _file) = v.create(ROOT, "f");
        let attribute = name("security.capability");
        v.vfs.setxattr(&v.root, entry.node, attribute, &CAPABILITIES, ANY, false).unwrap();
        // As the kernel does before it changes the owner; and another program writes in between.
        v.vfs.getxattr(entry.node, attribute).unwrap();
        std::fs::write(v.host("f"), "outside").unwrap();
        v.vfs.removexattr(&v.root, entry.node, attribute).unwrap();
        assert_eq!(errno(v.vfs.removexattr(&v.root, entry.node, attribute)), Errno::NODATA);
        assert_eq!(errno(v.vfs.getxattr(entry.node, attribute)), Errno::NODATA);
    });
}

/// Writers beside one.
const NR_OTHERS: usize = 4;

#[test]
fn a_write_takes_set_id_bits_beside_writers_that_may_keep_them() {
    both_ways(|v| {
        let (_, file) = v.create(ROOT, "f");
        let set_id = SetAttr { mode: Some(0o2755), ..SetAttr::default() };
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..NR_OTHERS {
                scope.spawn(|| {
                    while !is_over.load(Ordering::Relaxed) {
                        v.write(&file, 0, b"root");
                    }
                });
            }
            let left = (0..500).find(|_| {
                file.setattr(&v.root, &set_id).unwrap();
                file.write(&v.root.group, 0, b"user", true).unwrap();
                file.getattr().unwrap().mode & 0o7777 != 0o755
            });
            is_over.store(true, Ordering::Relaxed);
            assert_eq!(left, None);
        });
    });
}
