//! Finding inodes again on the host: its cost, and changes of the host behind our back.

use std::path::Path;

use crate::common::{Fixture, ROOT, both_ways, errno, name};
use rustix::io::Errno;
use umemcg_vfs::{Attributes, Create, Lookup, Names, OFlags, Open, Resolve, SetAttr, Volume, Xattrs};

/// Descriptors of this process below a directory.
fn open_below(dir: &Path) -> usize {
    let fds = std::fs::read_dir("/proc/self/fd").unwrap();
    fds.filter(|fd| std::fs::read_link(fd.as_ref().unwrap().path()).is_ok_and(|t| t.starts_with(dir))).count()
}

#[test]
fn many_names_pin_few_descriptors() {
    const NR: usize = 3_000;
    for resolve in crate::common::RESOLVES {
        let v = Fixture::with(|config| {
            config.resolve = resolve;
            config.max_idle_descriptors = 64;
        });
        for n in 0..NR {
            if n % 1000 == 0 {
                std::fs::create_dir(v.host(&format!("d{}", n / 1000))).unwrap();
            }
            std::fs::write(v.host(&format!("d{}/f{n}", n / 1000)), "").unwrap();
        }
        let mut nodes = Vec::new();
        for n in 0..NR {
            let dir = v.vfs.lookup(&v.root, ROOT, name(&format!("d{}", n / 1000))).unwrap();
            nodes.push(v.vfs.lookup(&v.root, dir.node, name(&format!("f{n}"))).unwrap().node);
            v.vfs.forget(dir.node, 1);
        }
        assert_eq!(v.vfs.nr_inodes(), 1 + NR + NR / 1000);
        for &node in &nodes {
            v.vfs.getattr(node).unwrap();
        }
        assert!(v.vfs.nr_idle_descriptors() <= 64);
        assert!(open_below(v.dir.path()) <= 64 + 1, "{}", open_below(v.dir.path()));
        for node in nodes {
            v.vfs.forget(node, 1);
        }
        assert_eq!(v.vfs.nr_inodes(), 1);
        assert_eq!(v.vfs.nr_idle_descriptors(), 0);
    }
}

#[test]
fn by_handle_a_file_moved_on_the_host_is_still_found() {
    let v = Fixture::with(|config| config.max_idle_descriptors = 1);
    if v.vfs.resolve() != Resolve::Handle {
        eprintln!("SKIPPED: no file handles here");
        return;
    }
    std::fs::write(v.host("f"), "content").unwrap();
    let node = v.walk("f").unwrap().node;
    std::fs::create_dir(v.host("d")).unwrap();
    std::fs::rename(v.host("f"), v.host("d/g")).unwrap();
    assert_eq!(v.vfs.getattr(node).unwrap().size, 7);
    assert_eq!(v.read(&v.open(node, OFlags::RDONLY), 0, 100), b"content");
}

/// A volume by names whose descriptor cache does not help.
fn by_names() -> Fixture {
    Fixture::with(|config| {
        config.resolve = Resolve::Names;
        config.max_idle_descriptors = 1;
    })
}

/// Pushes everything out of a descriptor cache of one place per shard. The shard depends on the
/// number of the inode, as good as random: with so many, each of eight shards has one.
fn flush_descriptors(v: &Fixture) {
    for n in 0..256 {
        let path = format!("other-{n}");
        let _ = std::fs::create_dir(v.host(&path));
        v.vfs.getattr(v.walk(&path).unwrap().node).unwrap();
    }
}

#[test]
fn by_names_a_replaced_file_is_stale_and_never_mistaken() {
    let v = by_names();
    std::fs::create_dir(v.host("d")).unwrap();
    std::fs::write(v.host("d/f"), "mine").unwrap();
    let node = v.walk("d/f").unwrap().node;
    flush_descriptors(&v);
    assert_eq!(v.vfs.getattr(node).unwrap().size, 4);
    flush_descriptors(&v);
    std::fs::write(v.host("d/new"), "another program's").unwrap();
    std::fs::rename(v.host("d/new"), v.host("d/f")).unwrap();
    assert_eq!(errno(v.vfs.getattr(node)), Errno::STALE);
    assert_eq!(errno(v.vfs.open(&v.root, node, OFlags::RDONLY)), Errno::STALE);
    assert_ne!(v.walk("d/f").unwrap().node, node);
    assert_eq!(v.cat("d/f"), b"another program's");
}

#[test]
fn by_names_a_directory_replaced_with_a_link_leads_nowhere() {
    let v = by_names();
    let outside = tempfile::tempdir().unwrap();
    std::fs::create_dir(v.host("d")).unwrap();
    std::fs::write(v.host("d/f"), "inside").unwrap();
    let dir = v.walk("d").unwrap().node;
    let file = v.walk("d/f").unwrap().node;
    flush_descriptors(&v);
    // The very same inodes, behind a link out of the volume and back in.
    std::fs::rename(v.host("d"), v.host("moved")).unwrap();
    std::os::unix::fs::symlink(v.host("moved"), outside.path().join("back")).unwrap();
    std::os::unix::fs::symlink(outside.path().join("back"), v.host("d")).unwrap();
    assert_eq!(errno(v.vfs.getattr(file)), Errno::STALE);
    assert_eq!(errno(v.vfs.lookup(&v.root, dir, name("f"))), Errno::STALE);
    assert_eq!(errno(v.vfs.mkdir(&v.root, dir, name("x"), 0o755)), Errno::STALE);
    assert_eq!(errno(v.vfs.unlink(&v.root, dir, name("f"))), Errno::STALE);
    assert!(v.host("moved/f").exists());
    // Looked up where it is now, it is the old inode again.
    assert_eq!(v.walk("moved/f").unwrap().node, file);
    assert_eq!(v.cat("moved/f"), b"inside");
}

#[test]
fn by_names_another_link_is_tried_when_one_is_gone() {
    let v = by_names();
    let (entry, file) = v.create(ROOT, "a");
    v.write(&file, 0, b"x");
    v.vfs.link(&v.root, entry.node, ROOT, name("b")).unwrap();
    drop(file);
    v.vfs.syncfs().unwrap();
    flush_descriptors(&v);
    std::fs::remove_file(v.host("b")).unwrap();
    assert_eq!(v.vfs.getattr(entry.node).unwrap().nlink, 1);
    assert_eq!(v.read(&v.open(entry.node, OFlags::RDONLY), 0, 9), b"x");
}

#[test]
fn paths_longer_than_the_kernel_takes_are_resolved_in_steps() {
    for resolve in crate::common::RESOLVES {
        const DEPTH: usize = 60;
        let v = &Fixture::with(|config| {
            config.resolve = resolve;
            config.max_idle_descriptors = 1;
        });
        let part = "p".repeat(200);
        let mut at = ROOT;
        for _ in 0..DEPTH {
            at = v.mkdir(at, &part).node;
        }
        assert!(v.vfs.path_of(at).unwrap().as_os_str().len() > 4096 * 2);
        flush_descriptors(v);
        let (file, open) = v.create(at, "f");
        v.write(&open, 0, b"deep");
        drop(open);
        v.vfs.syncfs().unwrap();
        assert_eq!(v.read(&v.open(file.node, OFlags::RDONLY), 0, 9), b"deep");
        // The fixture's own removal takes paths that are too long.
        let mut chain = vec![(ROOT, part.clone())];
        let mut at = v.walk(&part).unwrap().node;
        while let Ok(next) = v.vfs.lookup(&v.root, at, name(&part)) {
            chain.push((at, part.clone()));
            at = next.node;
        }
        v.vfs.unlink(&v.root, at, name("f")).unwrap();
        for (parent, part) in chain.into_iter().rev() {
            v.vfs.rmdir(&v.root, parent, name(&part)).unwrap();
        }
    }
}

#[test]
fn a_directory_that_vanishes_gives_clean_errors() {
    both_ways(|v| {
        let dir = v.mkdir(ROOT, "d");
        let (_, file) = v.create(dir.node, "f");
        v.write(&file, 0, b"kept");
        std::fs::remove_dir_all(v.dir.path()).unwrap();
        assert_eq!(errno(v.walk("d")), Errno::NOENT);
        let made = v.vfs.create(&v.root, ROOT, name("new"), 0o644, OFlags::RDWR);
        assert_eq!(errno(made), Errno::NOENT);
        assert_eq!(errno(v.vfs.mkdir(&v.root, dir.node, name("x"), 0o755)), Errno::NOENT);
        assert_eq!(v.ls(ROOT), [""; 0]);
        // An open file still is one, as on the host.
        assert_eq!(v.read(&file, 0, 9), b"kept");
        v.write(&file, 4, b" alive");
        file.fsync(false).unwrap();
        assert_eq!(file.getattr().unwrap().nlink, 0);
        v.vfs.syncfs().unwrap();
        std::fs::create_dir(v.dir.path()).unwrap();
    });
}

#[test]
fn unknown_nodes_are_stale_for_every_operation() {
    both_ways(|v| {
        let node = umemcg_vfs::NodeId(0xdead_beef);
        let n = name("x");
        let root = &v.root;
        let empty = umemcg_vfs::XattrFlags::empty();
        v.vfs.forget(node, 1);
        assert_eq!(errno(v.vfs.getattr(node)), Errno::STALE);
        assert_eq!(errno(v.vfs.setattr(root, node, &SetAttr::default())), Errno::STALE);
        assert_eq!(errno(v.vfs.open(root, node, OFlags::RDONLY)), Errno::STALE);
        assert_eq!(errno(v.vfs.opendir(&v.root, node)), Errno::STALE);
        assert_eq!(errno(v.vfs.readlink(node)), Errno::STALE);
        assert_eq!(errno(v.vfs.create(root, node, n, 0o644, OFlags::RDWR)), Errno::STALE);
        assert_eq!(errno(v.vfs.symlink(root, node, n, n)), Errno::STALE);
        assert_eq!(errno(v.vfs.mknod(root, node, n, 0o010_644, 0)), Errno::STALE);
        assert_eq!(errno(v.vfs.rmdir(&v.root, node, n)), Errno::STALE);
        assert_eq!(errno(v.vfs.link(root, node, ROOT, n)), Errno::STALE);
        assert_eq!(
            errno(v.vfs.rename(&v.root, ROOT, n, node, n, umemcg_vfs::RenameFlags::empty())),
            Errno::STALE
        );
        assert_eq!(errno(v.vfs.getxattr(node, n)), Errno::STALE);
        assert_eq!(errno(v.vfs.setxattr(&v.root, node, n, b"", empty, false)), Errno::STALE);
        assert_eq!(errno(v.vfs.listxattr(root, node)), Errno::STALE);
        assert_eq!(errno(v.vfs.removexattr(&v.root, node, n)), Errno::STALE);
        assert!(v.vfs.path_of(node).is_none());
    });
}
