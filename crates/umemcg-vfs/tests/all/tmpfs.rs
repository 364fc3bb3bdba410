//! Tmpfs volumes: what is theirs alone. That they behave like a directory of the host,
//! `against_host` claims.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::common::{Fixture, ROOT, errno, name};
use rustix::io::Errno;
use umemcg::{Group, StatItem};
use umemcg_vfs::{
    Caller, FallocateFlags, NodeId, OFlags, RenameFlags, SetAttr, Tmpfs, TmpfsConfig, Volume, VolumeKind,
    Whence, XattrFlags,
};

const NEW: OFlags = OFlags::RDWR.union(OFlags::EXCL);

struct Memory {
    volume: Arc<dyn Volume>,
    tmpfs: Arc<Tmpfs>,
    me: Caller,
    v: Fixture,
    /// The bytes that the engine has made for itself.
    own_bytes: i64,
}

impl Memory {
    /// A volume of this size, used by a group of this limit.
    fn new(size_bytes: Option<u64>, limit: u64) -> Self {
        let v = Fixture::new();
        let group = v.engine.create_group(v.engine.root(), OsStr::new("tenant")).unwrap();
        group.store_max(limit);
        let own_bytes = v.engine.root().stat_total(StatItem::SlabUnreclaimable);
        let tmpfs = Tmpfs::new(&v.engine, &TmpfsConfig { size_bytes, ..TmpfsConfig::default() }, 0);
        Self { volume: Arc::clone(&tmpfs) as _, tmpfs, me: Caller { group, ..v.root.clone() }, v, own_bytes }
    }

    fn group(&self) -> &Arc<Group> {
        &self.me.group
    }

    fn names(&self, node: NodeId) -> Vec<String> {
        let mut names = Vec::new();
        let mut take = |entry: &umemcg_vfs::DirEntry<'_>| {
            names.push(entry.name.to_string_lossy().into_owned());
            true
        };
        self.volume.opendir(&self.me, node).unwrap().readdir(2, &mut take).unwrap();
        names
    }

    /// The volume goes; nothing of it is left.
    fn ends_at_zero(self) {
        let Self { volume, tmpfs, me, v, own_bytes } = self;
        drop((volume, tmpfs));
        for item in [StatItem::Shmem, StatItem::Unevictable, StatItem::SlabUnreclaimable] {
            assert_eq!(me.group.stat_local(item), 0, "{item:?}");
        }
        let root = v.engine.root();
        assert_eq!((root.stat_total(StatItem::Shmem), root.stat_total(StatItem::Unevictable)), (0, 0));
        // What holes read as was made with the first file.
        assert!(root.stat_total(StatItem::SlabUnreclaimable) - own_bytes <= 4096);
        me.group.drain_stocks();
        assert_eq!(me.group.usage_bytes(), 0);
        assert_eq!(v.engine.cache().nr_index_nodes(), 0);
    }
}

#[test]
fn a_removed_file_lives_while_open_then_gives_all_back() {
    let m = Memory::new(None, 8 << 20);
    let (entry, file) = m.volume.create(&m.me, ROOT, name("f"), 0o644, NEW).unwrap();
    file.write(m.group(), 0, &vec![5; 1 << 20], false).unwrap();
    m.volume.unlink(&m.me, ROOT, name("f")).unwrap();
    assert_eq!(file.getattr().unwrap().nlink, 0);
    m.volume.forget(entry.node, 1);
    assert_eq!(errno(m.volume.getattr(entry.node)), Errno::STALE);
    assert_eq!(file.read(m.group(), 1000, 10).unwrap().to_vec(), [5; 10]);
    assert_eq!(m.group().stat_local(StatItem::Shmem), 1 << 20);
    drop(file);
    assert_eq!(m.group().stat_local(StatItem::Shmem), 0);
    assert_eq!(m.tmpfs.nr_inodes(), 1);
    m.ends_at_zero();
}

#[test]
fn names_and_attributes_are_charged_or_refused_in_a_full_group() {
    let m = Memory::new(None, 256 << 10);
    let mut nr = 0;
    let refused = loop {
        match m.volume.mkdir(&m.me, ROOT, name(&format!("directory-{nr}")), 0o755) {
            Ok(_) => nr += 1,
            Err(error) => break error.errno(),
        }
    };
    assert_eq!(refused, Errno::NOSPC);
    assert!((400..600).contains(&nr), "{nr} directories in 256 KiB");
    assert_eq!(m.names(ROOT).len(), nr, "what was refused is not there");
    let slab = m.group().stat_local(StatItem::SlabUnreclaimable) as u64;
    assert!(slab > 200 << 10 && slab <= m.group().usage_bytes());
    let big = vec![1; 60_000];
    let set = m.volume.setxattr(&m.me, ROOT, name("user.big"), &big, XattrFlags::empty(), false);
    assert_eq!(errno(set), Errno::NOSPC);
    assert_eq!(errno(m.volume.symlink(&m.me, ROOT, name("l"), name(&"x".repeat(4000)))), Errno::NOSPC);
    for n in 0..150 {
        m.volume.rmdir(&m.me, ROOT, name(&format!("directory-{n}"))).unwrap();
    }
    // The kernel still refers to them.
    assert_eq!(m.tmpfs.nr_inodes(), nr + 1);
    m.ends_at_zero();
}

#[test]
fn a_set_group_id_directory_hands_down_its_group_and_bit() {
    let m = Memory::new(None, 8 << 20);
    let d = m.volume.mkdir(&m.me, ROOT, name("d"), 0o755).unwrap().node;
    let shared = SetAttr { mode: Some(0o2775), gid: Some(12), ..SetAttr::default() };
    m.volume.setattr(&m.me, d, &shared).unwrap();
    let me = Caller { uid: 3, gid: 4, ..m.me.clone() };
    let (made, file) = m.volume.create(&me, d, name("file"), 0o644, NEW).unwrap();
    drop(file);
    let below = m.volume.mkdir(&me, d, name("below"), 0o755).unwrap();
    let link = m.volume.symlink(&me, d, name("link"), name("file")).unwrap();
    for (node, mode) in [(made.node, 0o644), (below.node, 0o2755), (link.node, 0o777)] {
        let attr = m.volume.getattr(node).unwrap();
        assert_eq!((attr.mode & 0o7777, attr.uid, attr.gid), (mode, 3, 12), "{mode:o}");
    }
    drop(me);
    m.ends_at_zero();
}

#[test]
fn the_size_bounds_data_and_is_shown() {
    let m = Memory::new(Some(100_000), 8 << 20);
    let (_, file) = m.volume.create(&m.me, ROOT, name("f"), 0o644, NEW).unwrap();
    assert_eq!(file.write(m.group(), 0, &[1; 200_000], false).unwrap(), 25 * 4096, "rounded up to pages");
    assert_eq!(errno(file.write(m.group(), 1 << 30, b"x", false)), Errno::NOSPC);
    let stat = m.volume.statfs().unwrap();
    assert_eq!((stat.blocks, stat.bfree, stat.bsize), (25, 0, 4096));
    assert_eq!(m.volume.kind(), VolumeKind::Tmpfs { size_bytes: Some(25 * 4096), used_bytes: 25 * 4096 });
    let none = FallocateFlags::empty();
    assert_eq!(errno(file.fallocate(m.group(), none, 0, 26 * 4096, false)), Errno::NOSPC);
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    file.fallocate(m.group(), punch, 4096, 8192, false).unwrap();
    assert_eq!(file.getattr().unwrap().blocks, 23 * 8);
    assert_eq!(file.lseek(Whence::Hole, 0).unwrap(), 4096);
    assert_eq!(file.lseek(Whence::Data, 4096).unwrap(), 3 * 4096);
    assert_eq!(
        errno(file.fallocate(m.group(), FallocateFlags::COLLAPSE_RANGE, 0, 4096, false)),
        Errno::OPNOTSUPP
    );
    drop(file);
    m.ends_at_zero();
}

#[test]
fn a_listing_goes_on_where_it_was_whatever_comes_and_goes() {
    let m = Memory::new(None, 8 << 20);
    for n in 0..1000 {
        m.volume.mknod(&m.me, ROOT, name(&format!("{n}")), 0o644, 0).unwrap();
    }
    let directory = m.volume.opendir(&m.me, ROOT).unwrap();
    let (mut offset, mut seen) = (0, BTreeSet::new());
    let mut round = 0;
    loop {
        let (mut nr, from) = (0, offset);
        let mut take = |entry: &umemcg_vfs::DirEntry<'_>| {
            nr += 1;
            if nr > 7 {
                return false;
            }
            offset = entry.next_offset;
            assert!(seen.insert(entry.name.to_string_lossy().into_owned()), "{:?} twice", entry.name);
            true
        };
        directory.readdir(from, &mut take).unwrap();
        if nr == 0 {
            break;
        }
        // One that has been listed goes, one that has not moves to the end, and a new one comes.
        let _ = m.volume.unlink(&m.me, ROOT, name(&format!("{}", round * 3)));
        let (old, new) = (format!("{}", 999 - round), format!("moved-{round}"));
        if round < 100 {
            m.volume.rename(&m.me, ROOT, name(&old), ROOT, name(&new), RenameFlags::empty()).unwrap();
        }
        round += 1;
    }
    let stayed = (0..1000).filter(|n| seen.contains(&n.to_string())).count();
    assert!(stayed >= 800, "{stayed}");
    assert!((0..100).all(|n| seen.contains(&format!("moved-{n}"))));
    drop(directory);
    m.ends_at_zero();
}

#[test]
fn a_rename_makes_no_cycle_and_removes_no_full_directory() {
    let m = Memory::new(None, 8 << 20);
    let a = m.volume.mkdir(&m.me, ROOT, name("a"), 0o755).unwrap().node;
    let b = m.volume.mkdir(&m.me, a, name("b"), 0o755).unwrap().node;
    let c = m.volume.mkdir(&m.me, b, name("c"), 0o755).unwrap().node;
    let rename =
        |from, old: &str, to, new: &str, flags| m.volume.rename(&m.me, from, name(old), to, name(new), flags);
    let plain = RenameFlags::empty();
    assert_eq!(errno(rename(ROOT, "a", c, "x", plain)), Errno::INVAL);
    assert_eq!(errno(rename(ROOT, "a", a, "x", RenameFlags::empty())), Errno::INVAL);
    assert_eq!(errno(rename(b, "c", ROOT, "a", plain)), Errno::NOTEMPTY);
    assert_eq!(errno(rename(b, "c", ROOT, "a", RenameFlags::EXCHANGE)), Errno::INVAL);
    assert_eq!(
        errno(rename(ROOT, "a", ROOT, "b", RenameFlags::EXCHANGE | RenameFlags::NOREPLACE)),
        Errno::INVAL
    );
    assert_eq!(m.volume.path_of(c).unwrap().to_str(), Some("a/b/c"));
    rename(a, "b", ROOT, "d", plain).unwrap();
    assert_eq!(m.volume.path_of(c).unwrap().to_str(), Some("d/c"));
    rename(ROOT, "a", b, "a", plain).unwrap();
    let links = |node| m.volume.getattr(node).unwrap().nlink;
    assert_eq!((links(ROOT), links(b), links(a)), (3, 4, 2));
    // One that was removed takes nothing in any more.
    m.volume.rmdir(&m.me, b, name("a")).unwrap();
    assert_eq!(errno(m.volume.mkdir(&m.me, a, name("x"), 0o755)), Errno::NOENT);
    assert_eq!(errno(rename(b, "c", a, "x", plain)), Errno::NOENT);
    assert!(m.names(a).is_empty());
    m.ends_at_zero();
}

#[test]
fn a_write_takes_set_id_bits_beside_writers_that_may_keep_them() {
    let m = Memory::new(None, 8 << 20);
    let (entry, file) = m.volume.create(&m.me, ROOT, name("f"), 0o755, NEW).unwrap();
    let set_id = SetAttr { mode: Some(0o2755), ..SetAttr::default() };
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    file.write(m.group(), 0, b"root", false).unwrap();
                }
            });
        }
        let left = (0..50_000).find(|_| {
            m.volume.setattr(&m.me, entry.node, &set_id).unwrap();
            file.write(m.group(), 0, b"user", true).unwrap();
            file.getattr().unwrap().mode & 0o7777 != 0o755
        });
        is_over.store(true, Ordering::Relaxed);
        assert_eq!(left, None);
    });
}

#[test]
fn a_write_takes_capabilities_and_set_id_bits() {
    let m = Memory::new(None, 8 << 20);
    let (entry, file) = m.volume.create(&m.me, ROOT, name("f"), 0o755, NEW).unwrap();
    let capability = name("security.capability");
    m.volume.setxattr(&m.me, entry.node, capability, b"cap", XattrFlags::CREATE, false).unwrap();
    let change = SetAttr { mode: Some(0o6755), ..SetAttr::default() };
    m.volume.setattr(&m.me, entry.node, &change).unwrap();
    file.write_mapped(m.group(), 0, b"x").unwrap();
    assert_eq!(m.volume.getxattr(entry.node, capability).unwrap(), b"cap", "a mapping is no write");
    file.write(m.group(), 0, b"x", false).unwrap();
    assert_eq!(file.getattr().unwrap().mode & 0o7777, 0o6755, "a caller that may keeps the bits");
    assert_eq!(errno(m.volume.getxattr(entry.node, capability)), Errno::NODATA);
    // As the kernel does before it changes the owner, beside an asynchronous write.
    m.volume.setxattr(&m.me, entry.node, capability, b"cap", XattrFlags::CREATE, false).unwrap();
    m.volume.getxattr(entry.node, capability).unwrap();
    file.write(m.group(), 0, b"x", true).unwrap();
    m.volume.removexattr(&m.me, entry.node, capability).unwrap();
    assert_eq!(errno(m.volume.removexattr(&m.me, entry.node, capability)), Errno::NODATA);
    assert_eq!(file.getattr().unwrap().mode & 0o7777, 0o755);
    assert_eq!(file.try_write(m.group(), 0, b"quick", false), Some(5), "nothing is left to look for");
    m.volume.setxattr(&m.me, entry.node, name("trusted.t"), b"", XattrFlags::empty(), false).unwrap();
    let user = Caller { uid: 5, ..m.me.clone() };
    assert_eq!(m.volume.listxattr(&user, entry.node).unwrap(), b"");
    assert_eq!(m.volume.listxattr(&m.me, entry.node).unwrap(), b"trusted.t\0");
    assert_eq!(errno(m.volume.getxattr(entry.node, name("system.other"))), Errno::OPNOTSUPP);
    drop(file);
    m.ends_at_zero();
}

#[test]
fn appends_do_not_overlap_and_a_refused_one_leaves_no_hole() {
    let m = Memory::new(Some(1 << 20), 8 << 20);
    let (entry, _) = m.volume.create(&m.me, ROOT, name("log"), 0o644, NEW).unwrap();
    std::thread::scope(|scope| {
        for letter in *b"abcd" {
            let m = &m;
            scope.spawn(move || {
                let file = m.volume.open(&m.me, entry.node, OFlags::WRONLY | OFlags::APPEND).unwrap();
                for _ in 0..100 {
                    assert_eq!(file.write(m.group(), 0, &[letter; 1000], false).unwrap(), 1000);
                }
            });
        }
    });
    let file = m.volume.open(&m.me, entry.node, OFlags::RDWR | OFlags::APPEND).unwrap();
    let all = file.read(m.group(), 0, 1 << 20).unwrap().to_vec();
    assert_eq!(all.len(), 400_000);
    assert!(all.chunks(1000).all(|line| line.iter().all(|&byte| byte == line[0])));
    let mut len = 400_000;
    while let Ok(written) = file.write(m.group(), 0, &[7; 50_000], false) {
        len += written as u64;
    }
    assert_eq!((file.getattr().unwrap().size, len), (1 << 20, 1 << 20));
    drop(file);
    m.ends_at_zero();
}

#[test]
fn many_threads_make_move_and_remove_and_all_gauges_end_at_zero() {
    let m = Memory::new(Some(2 << 20), 4 << 20);
    let dirs: Vec<NodeId> =
        (0..3).map(|n| m.volume.mkdir(&m.me, ROOT, name(&format!("d{n}")), 0o755).unwrap().node).collect();
    std::thread::scope(|scope| {
        for seed in 0..4u64 {
            let (m, dirs) = (&m, &dirs);
            scope.spawn(move || {
                let mut random = seed + 1;
                let mut next = |below: u64| {
                    random = random
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1_442_695_040_888_963_407);
                    (random >> 33) % below
                };
                for _ in 0..1500 {
                    let (dir, to) = (dirs[next(3) as usize], dirs[next(3) as usize]);
                    let (one, other) = (format!("{}", next(8)), format!("{}", next(8)));
                    let (one, other) = (name(&one), name(&other));
                    let forget = |entry: umemcg_vfs::Entry| m.volume.forget(entry.node, 1);
                    match next(8) {
                        0 | 1 => {
                            if let Ok((entry, file)) = m.volume.create(&m.me, dir, one, 0o644, OFlags::RDWR) {
                                let _ = file.write(m.group(), next(100_000), &[1; 9000], false);
                                forget(entry);
                            }
                        }
                        2 => drop(m.volume.mkdir(&m.me, dir, one, 0o755).map(forget)),
                        3 => drop(m.volume.unlink(&m.me, dir, one)),
                        4 => drop(m.volume.rmdir(&m.me, dir, one)),
                        5 => drop(m.volume.rename(&m.me, dir, one, to, other, RenameFlags::empty())),
                        6 => drop(m.volume.rename(&m.me, dir, one, to, other, RenameFlags::EXCHANGE)),
                        _ => {
                            if let Ok(entry) = m.volume.lookup(&m.me, dir, one) {
                                drop(m.volume.link(&m.me, entry.node, to, other).map(forget));
                                forget(entry);
                            }
                        }
                    }
                }
            });
        }
    });
    // Every name leads somewhere, and nothing else is remembered.
    let names: usize = dirs.iter().map(|&dir| m.names(dir).len()).sum();
    assert!(m.tmpfs.nr_inodes() <= 4 + names, "{} inodes, {names} names", m.tmpfs.nr_inodes());
    m.ends_at_zero();
}

#[test]
fn fallocate_takes_set_id_bits() {
    let m = Memory::new(None, 8 << 20);
    let (entry, file) = m.volume.create(&m.me, ROOT, name("f"), 0o755, NEW).unwrap();
    let bits = SetAttr { mode: Some(0o6755), ..SetAttr::default() };
    m.volume.setattr(&m.me, entry.node, &bits).unwrap();
    file.fallocate(m.group(), FallocateFlags::empty(), 0, 4096, true).unwrap();
    assert_eq!(file.getattr().unwrap().mode & 0o7777, 0o755);
}

#[test]
fn a_file_without_a_name_may_get_one_and_is_gone_otherwise() {
    let m = Memory::new(None, 8 << 20);
    let (unnamed, file) = m.volume.tmpfile(&m.me, ROOT, 0o644, OFlags::RDWR).unwrap();
    assert_eq!(unnamed.attr.nlink, 0);
    file.write(m.group(), 0, b"content", false).unwrap();
    let named = m.volume.link(&m.me, unnamed.node, ROOT, name("f")).unwrap();
    assert_eq!((named.node, named.attr.nlink, named.attr.size), (unnamed.node, 1, 7));
    drop(file);
    m.volume.forget(unnamed.node, 2);
    assert_eq!(m.names(ROOT), ["f"]);
    let nr_inodes = m.tmpfs.nr_inodes();
    let (gone, file) = m.volume.tmpfile(&m.me, ROOT, 0o644, OFlags::RDWR).unwrap();
    file.write(m.group(), 0, b"content", false).unwrap();
    drop(file);
    m.volume.forget(gone.node, 1);
    assert_eq!(m.tmpfs.nr_inodes(), nr_inodes);
    // A name that was the last does not come back.
    m.volume.unlink(&m.me, ROOT, name("f")).unwrap();
    let (last, _file) = m.volume.create(&m.me, ROOT, name("g"), 0o644, NEW).unwrap();
    m.volume.unlink(&m.me, ROOT, name("g")).unwrap();
    assert_eq!(errno(m.volume.link(&m.me, last.node, ROOT, name("h"))), Errno::NOENT);
    drop(_file);
    m.ends_at_zero();
}

#[test]
fn a_rename_may_leave_a_whiteout() {
    let m = Memory::new(None, 8 << 20);
    let (a, _) = m.volume.create(&m.me, ROOT, name("a"), 0o644, NEW).unwrap();
    let rename =
        |from: &str, to: &str, flags| m.volume.rename(&m.me, ROOT, name(from), ROOT, name(to), flags);
    rename("a", "b", RenameFlags::WHITEOUT | RenameFlags::NOREPLACE).unwrap();
    assert_eq!(m.volume.lookup(&m.me, ROOT, name("b")).unwrap().node, a.node);
    let whiteout = m.volume.lookup(&m.me, ROOT, name("a")).unwrap().attr;
    assert_eq!((whiteout.mode, whiteout.rdev, whiteout.nlink), (0o020_000, 0, 1));
    assert_eq!(errno(rename("b", "a", RenameFlags::WHITEOUT | RenameFlags::EXCHANGE)), Errno::INVAL);
    assert_eq!(errno(rename("b", "a", RenameFlags::WHITEOUT | RenameFlags::NOREPLACE)), Errno::EXIST);
    m.volume.unlink(&m.me, ROOT, name("a")).unwrap();
    m.volume.forget(a.node, 2);
    m.ends_at_zero();
}

#[test]
fn a_read_after_a_change_moves_the_access_time() {
    let m = Memory::new(None, 8 << 20);
    let (_, file) = m.volume.create(&m.me, ROOT, name("f"), 0o644, NEW).unwrap();
    for _ in 0..2 {
        file.write(m.group(), 0, b"content", false).unwrap();
        let written = file.getattr().unwrap();
        assert!(written.atime <= written.mtime);
        file.read(m.group(), 0, 7).unwrap();
        let read = file.getattr().unwrap();
        assert!(read.atime > read.mtime && read.ctime == written.ctime);
        file.read(m.group(), 0, 7).unwrap();
        assert_eq!(file.getattr().unwrap(), read, "one read for each change");
    }
}
