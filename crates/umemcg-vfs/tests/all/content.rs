//! Content through the volume: open flags, sparse and large files, allocation, data and holes,
//! durability.

use crate::common::{Fixture, ROOT, both_ways, errno, name};
use rustix::io::Errno;
use umemcg_vfs::{
    Attributes, Create, FallocateFlags, IoMode, Lookup, Names, OFlags, Open, SetAttr, Volume, Whence,
};

const PUNCH: FallocateFlags = FallocateFlags::PUNCH_HOLE.union(FallocateFlags::KEEP_SIZE);

/// Every I/O mode that the file system has.
fn all_modes(claim: impl Fn(&Fixture, IoMode)) {
    for mode in [IoMode::DontCache, IoMode::Direct, IoMode::DropBehind] {
        let dir = tempfile::tempdir().unwrap();
        let engine = umemcg::Engine::new(umemcg::EngineConfig::new(16 << 20)).unwrap();
        let config = umemcg_vfs::VolumeConfig { io_mode: mode, ..umemcg_vfs::VolumeConfig::new(dir.path()) };
        if let Err(error) = umemcg_vfs::HostVolume::new(&engine, config) {
            eprintln!("SKIPPED {mode:?}: {error}");
            continue;
        }
        let v = Fixture::with(|config| config.io_mode = mode);
        assert_eq!(v.vfs.io_mode(), mode);
        claim(&v, mode);
        assert_eq!(v.vfs.io_mode(), mode, "it did not have to step down");
    }
}

#[test]
fn every_io_mode_writes_and_reads_odd_lengths_and_offsets() {
    all_modes(|v, mode| {
        let pattern: Vec<u8> = (0..300_001u32).map(|n| ((n * 31) >> 3) as u8).collect();
        let (entry, file) = v.create(ROOT, "f");
        v.write(&file, 0, &pattern[..5]);
        file.fsync(false).unwrap();
        v.write(&file, 5, &pattern[5..]);
        file.fsync(true).unwrap();
        v.write(&file, 100_003, &pattern[100_003..100_010]);
        drop(file);
        v.vfs.syncfs().unwrap();
        assert_eq!(std::fs::read(v.host("f")).unwrap(), pattern, "{mode:?}");
        let file = v.open(entry.node, OFlags::RDONLY);
        file.content().invalidate_clean();
        assert_eq!(v.read(&file, 0, 1 << 20), pattern, "{mode:?}, read from the host");
        assert_eq!(v.read(&file, 299_999, 100), pattern[299_999..]);
        assert_eq!(v.read(&file, 300_001, 100), b"");
    });
}

#[test]
fn no_second_copy_stays_in_the_kernels_page_cache() {
    let resident = |path: std::path::PathBuf| -> Option<u64> {
        let out =
            std::process::Command::new("fincore").args(["-b", "-n", "-o", "RES"]).arg(path).output().ok()?;
        String::from_utf8(out.stdout).ok()?.trim().parse().ok()
    };
    const LEN: usize = 4 << 20;
    let few = LEN as u64 / 16;
    all_modes(|v, mode| {
        // The kernel does not drop a page that is just then in other hands, and that may be one of
        // two megabytes: another file has none.
        let mut seen = Vec::new();
        for name in ["f", "g", "h"] {
            let (entry, file) = v.create(ROOT, name);
            for chunk in 0..LEN / (256 << 10) {
                v.write(&file, (chunk * (256 << 10)) as u64, &[5; 256 << 10]);
            }
            file.fsync(false).unwrap();
            let Some(after_write) = resident(v.host(name)) else {
                eprintln!("SKIPPED: fincore is missing");
                return;
            };
            file.content().invalidate_clean();
            drop(file);
            let file = v.open(entry.node, OFlags::RDONLY);
            for chunk in 0..LEN / (64 << 10) {
                v.read(&file, (chunk * (64 << 10)) as u64, 64 << 10);
            }
            seen.push((after_write, resident(v.host(name)).unwrap()));
            if seen.iter().any(|&(after_write, after_read)| after_write <= few && after_read <= few) {
                return;
            }
        }
        panic!("{mode:?}: after the write and the read {seen:?} bytes of {LEN}");
    });
}

#[test]
fn appends_go_to_the_end_whatever_the_offset() {
    both_ways(|v| {
        let (entry, file) = v.create(ROOT, "f");
        v.write(&file, 0, b"start ");
        let append = v.open(entry.node, OFlags::WRONLY | OFlags::APPEND);
        v.write(&append, 0, b"middle ");
        v.write(&file, 13, b"more ");
        v.write(&append, 2, b"end");
        assert_eq!(v.cat("f"), b"start middle more end");
    });
}

#[test]
fn concurrent_appends_lose_nothing() {
    let v = Fixture::new();
    let (entry, _file) = v.create(ROOT, "f");
    std::thread::scope(|scope| {
        for id in 0..4u8 {
            let v = &v;
            scope.spawn(move || {
                let file = v.open(entry.node, OFlags::WRONLY | OFlags::APPEND);
                for _ in 0..200 {
                    v.write(&file, 0, &[b'a' + id; 10]);
                }
            });
        }
    });
    let all = v.cat("f");
    assert_eq!(all.len(), 8000);
    assert!(all.chunks(10).all(|record| record.iter().all(|&b| b == record[0])), "records are whole");
}

#[test]
fn reading_is_not_writing() {
    both_ways(|v| {
        let (entry, _file) = v.create(ROOT, "f");
        let read_only = v.open(entry.node, OFlags::RDONLY);
        assert_eq!(errno(read_only.write(&v.root.group, 0, b"x", false)), Errno::BADF);
        assert_eq!(
            errno(read_only.fallocate(read_only.group(), FallocateFlags::empty(), 0, 10, false)),
            Errno::BADF
        );
        assert!(read_only.try_write(&v.root.group, 0, b"x", false).is_none());
    });
}

#[test]
fn synchronous_writes_are_on_the_host_when_they_return() {
    both_ways(|v| {
        let (entry, _file) = v.create(ROOT, "f");
        let dsync = OFlags::from_bits_retain(0o10_000);
        for (n, flags) in [OFlags::SYNC, dsync].into_iter().enumerate() {
            let file = v.open(entry.node, OFlags::RDWR | flags);
            v.write(&file, n as u64 * 3, b"abc");
            assert_eq!(std::fs::read(v.host("f")).unwrap(), b"abc".repeat(n + 1));
            assert_eq!(file.content().nr_dirty(), 0);
        }
    });
}

#[test]
fn files_beyond_4_gib_are_sparse_and_whole() {
    both_ways(|v| {
        const FAR: u64 = (5 << 30) + 123;
        let (entry, file) = v.create(ROOT, "f");
        v.write(&file, FAR, b"far");
        v.write(&file, 10, b"near");
        assert_eq!(v.attr("f").size, FAR + 3);
        file.fsync(false).unwrap();
        assert_eq!(v.read(&file, FAR - 2, 100), b"\0\0far");
        assert_eq!(v.read(&file, 8, 8), b"\0\0near\0\0");
        assert!(v.attr("f").blocks * 512 < 1 << 20);
        v.set(entry.node, SetAttr { size: Some(6 << 30), ..SetAttr::default() }).unwrap();
        assert_eq!(std::fs::metadata(v.host("f")).unwrap().len(), 6 << 30);
        assert_eq!(v.read(&file, FAR, 5), b"far\0\0");
    });
}

#[test]
fn what_the_host_cannot_hold_is_refused_before_it_is_accepted() {
    both_ways(|v| {
        let (entry, file) = v.create(ROOT, "f");
        let write = |offset| file.write(&v.root.group, offset, b"x", false);
        assert_eq!(errno(write(i64::MAX as u64)), Errno::FBIG);
        assert_eq!(errno(write(u64::MAX)), Errno::FBIG);
        assert!(file.try_write(&v.root.group, u64::MAX, b"x", false).is_none());
        let size = |len| v.set(entry.node, SetAttr { size: Some(len), ..SetAttr::default() });
        assert_eq!(errno(size(u64::MAX)), Errno::FBIG);
        assert_eq!(
            errno(file.fallocate(file.group(), FallocateFlags::empty(), u64::MAX, 2, false)),
            Errno::FBIG
        );
        assert_eq!(errno(file.fallocate(file.group(), FallocateFlags::empty(), 0, 0, false)), Errno::INVAL);
        assert_eq!(v.attr("f").size, 0);
        file.fsync(false).unwrap();
    });
}

#[test]
fn allocation_extends_or_keeps_the_size() {
    both_ways(|v| {
        let (_, file) = v.create(ROOT, "f");
        v.write(&file, 0, b"data");
        match file.fallocate(file.group(), FallocateFlags::empty(), 0, 100_000, false) {
            Err(error) if error.errno() == Errno::OPNOTSUPP => {
                eprintln!("SKIPPED: no fallocate here");
                return;
            }
            result => result.unwrap(),
        }
        assert_eq!(v.attr("f").size, 100_000);
        file.fallocate(file.group(), FallocateFlags::KEEP_SIZE, 0, 200_000, false).unwrap();
        assert_eq!(v.attr("f").size, 100_000);
        assert!(v.attr("f").blocks * 512 >= 200_000);
        assert_eq!(v.read(&file, 0, 6), b"data\0\0");
        let odd = FallocateFlags::COLLAPSE_RANGE;
        assert_eq!(errno(file.fallocate(file.group(), odd, 0, 4096, false)), Errno::OPNOTSUPP);
        assert_eq!(
            errno(file.fallocate(file.group(), FallocateFlags::PUNCH_HOLE, 0, 4096, false)),
            Errno::OPNOTSUPP
        );
    });
}

#[test]
fn holes_are_punched_and_ranges_zeroed_through_dirty_data() {
    both_ways(|v| {
        for is_durable in [false, true] {
            for (mode, n) in [(PUNCH, "p"), (FallocateFlags::ZERO_RANGE, "z")] {
                let (_, file) = v.create(ROOT, &format!("{n}{is_durable}"));
                v.write(&file, 0, &[9; 5 * 4096]);
                if is_durable {
                    file.fsync(false).unwrap();
                }
                file.fallocate(file.group(), mode, 4000, 2 * 4096, false).unwrap();
                let check = || {
                    let bytes = v.read(&file, 0, 6 * 4096);
                    assert_eq!(bytes.len(), 5 * 4096);
                    for (at, &byte) in bytes.iter().enumerate() {
                        let zeroed = (4000..4000 + 8192).contains(&at);
                        assert_eq!(byte, if zeroed { 0 } else { 9 }, "{n} {is_durable} at {at}");
                    }
                };
                check();
                file.fsync(false).unwrap();
                file.content().invalidate_clean();
                check();
            }
        }
    });
}

#[test]
fn zeroing_beyond_the_end_extends_unless_told_otherwise() {
    both_ways(|v| {
        let (_, file) = v.create(ROOT, "f");
        v.write(&file, 0, &[9; 5000]);
        let zero = FallocateFlags::ZERO_RANGE;
        file.fallocate(file.group(), zero | FallocateFlags::KEEP_SIZE, 4000, 8000, false).unwrap();
        assert_eq!(v.attr("f").size, 5000);
        file.fallocate(file.group(), zero, 4000, 8000, false).unwrap();
        assert_eq!(v.attr("f").size, 12_000);
        assert_eq!(v.read(&file, 3999, 20_000), [&[9][..], &[0; 8000]].concat());
    });
}

#[test]
fn data_and_holes_are_found_also_when_dirty() {
    both_ways(|v| {
        let (_, file) = v.create(ROOT, "f");
        v.write(&file, 1 << 20, b"island");
        v.set(v.walk("f").unwrap().node, SetAttr { size: Some(3 << 20), ..SetAttr::default() }).unwrap();
        let seek = |whence, offset| file.lseek(whence, offset);
        assert_eq!(seek(Whence::Data, 0).unwrap(), 1 << 20);
        assert_eq!(seek(Whence::Data, (1 << 20) + 3).unwrap(), (1 << 20) + 3);
        let hole = seek(Whence::Hole, 1 << 20).unwrap();
        assert!(hole > 1 << 20 && hole <= (1 << 20) + (64 << 10), "{hole}");
        assert_eq!(seek(Whence::Hole, 0).unwrap(), 0);
        assert_eq!(errno(seek(Whence::Data, 2 << 20)), Errno::NXIO);
        assert_eq!(errno(seek(Whence::Hole, 3 << 20)), Errno::NXIO);
        assert_eq!(errno(seek(Whence::Data, u64::MAX)), Errno::NXIO);
    });
}

#[test]
fn the_last_close_writes_back_and_then_lets_go_of_the_host_file() {
    both_ways(|v| {
        let open_files = || {
            std::fs::read_dir("/proc/self/fd")
                .unwrap()
                .filter(|fd| {
                    let target = std::fs::read_link(fd.as_ref().unwrap().path());
                    target.is_ok_and(|t| t == v.host("f"))
                })
                .count()
        };
        let (entry, file) = v.create(ROOT, "f");
        v.write(&file, 0, &[1; 100_000]);
        drop(file);
        assert_eq!(v.cat("f").len(), 100_000, "closed and dirty is as readable as ever");
        v.vfs.forget(entry.node, 2);
        assert_eq!(v.cat("f").len(), 100_000, "forgotten and dirty, too");
        v.vfs.syncfs().unwrap();
        assert_eq!(std::fs::read(v.host("f")).unwrap(), vec![1; 100_000]);
        assert!(open_files() <= 1, "at most a descriptor without I/O");
        v.vfs.forget(v.walk("f").unwrap().node, 100);
        assert_eq!((open_files(), v.vfs.nr_inodes()), (0, 1));
    });
}

/// A sync of everything asks each file that was dirty when it began, and some have been written and
/// closed meanwhile.
#[test]
fn a_sync_after_the_last_close_is_no_error_and_leaves_none() {
    let v = Fixture::with(|_| {});
    let (entry, file) = v.create(ROOT, "f");
    v.write(&file, 0, b"content");
    let content = std::sync::Arc::clone(file.content());
    drop(file);
    v.vfs.syncfs().unwrap();
    content.fsync(false, &content.sample_error()).unwrap();
    content.write_back().unwrap();
    let again = v.open(entry.node, OFlags::RDWR);
    again.fsync(true).unwrap();
}

#[test]
fn an_idle_file_costs_no_descriptor_and_keeps_its_cache() {
    let v = Fixture::with(|config| config.max_idle_descriptors = 8);
    for n in 0..200 {
        let (_, file) = v.create(ROOT, &format!("f{n}"));
        v.write(&file, 0, b"content");
    }
    v.vfs.syncfs().unwrap();
    assert!(v.vfs.nr_idle_descriptors() <= 8);
    let open = std::fs::read_dir("/proc/self/fd").unwrap().filter(|fd| {
        let target = std::fs::read_link(fd.as_ref().unwrap().path());
        target.is_ok_and(|t| t.starts_with(v.dir.path()))
    });
    assert!(open.count() <= 8 + 2);
    let file = v.open(v.walk("f7").unwrap().node, OFlags::RDONLY);
    assert_eq!(file.content().nr_cached_pages(), 1);
    assert!(file.try_read(0, 7).is_some());
}

#[test]
fn an_unknown_open_mode_of_other_kinds_is_left_to_the_kernel() {
    both_ways(|v| {
        let fifo = v.vfs.mknod(&v.root, ROOT, name("fifo"), 0o010_644, 0).unwrap();
        assert_eq!(errno(v.vfs.open(&v.root, fifo.node, OFlags::RDONLY)), Errno::NXIO);
        let size = SetAttr { size: Some(0), ..SetAttr::default() };
        assert_eq!(errno(v.set(fifo.node, size)), Errno::INVAL);
        assert_eq!(errno(v.set(ROOT, size)), Errno::ISDIR);
    });
}

#[test]
fn what_the_kernel_forgets_stays_cached_within_a_bound() {
    for resolve in crate::common::RESOLVES {
        let v = Fixture::with(|config| {
            config.resolve = resolve;
            config.max_kept_files = 4;
        });
        let forget_all = |n: usize| {
            let path = format!("d/f{n}");
            v.vfs.forget(v.walk(&path).unwrap().node, u64::MAX);
            v.vfs.forget(v.walk("d").unwrap().node, u64::MAX);
        };
        let dir = v.mkdir(ROOT, "d");
        for n in 0..10 {
            let (_, file) = v.create(dir.node, &format!("f{n}"));
            v.write(&file, 0, b"content");
            file.fsync(false).unwrap();
            drop(file);
            forget_all(n);
        }
        assert_eq!(v.vfs.nr_inodes(), 1 + 1 + 4, "the root, the directory, and what is kept");
        let cached = |n: usize| {
            let file = v.open(v.walk(&format!("d/f{n}")).unwrap().node, OFlags::RDONLY);
            file.content().nr_cached_pages()
        };
        assert_eq!(cached(9), 1);
        assert_eq!(cached(0), 0, "the oldest had to go");
        // What changed meanwhile is noticed.
        forget_all(9);
        std::fs::write(v.host("d/f9"), "from outside").unwrap();
        assert_eq!(v.cat("d/f9"), b"from outside");
        // What has no name is not kept.
        let node = v.walk("d/f9").unwrap().node;
        v.vfs.unlink(&v.root, v.walk("d").unwrap().node, name("f9")).unwrap();
        v.vfs.forget(node, u64::MAX);
        assert_eq!(errno(v.vfs.getattr(node)), Errno::STALE);
    }
}

#[test]
fn fallocate_takes_set_id_bits_as_a_write_does() {
    both_ways(|v| {
        let (entry, file) = v.create(ROOT, "f");
        v.write(&file, 0, &[1; 8192]);
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        for mode in [FallocateFlags::empty(), FallocateFlags::KEEP_SIZE, punch] {
            let bits = SetAttr { mode: Some(0o6755), ..SetAttr::default() };
            v.set(entry.node, bits).unwrap();
            file.fallocate(file.group(), mode, 0, 4096, false).unwrap();
            assert_eq!(v.attr("f").mode & 0o7777, 0o6755, "{mode:?}: the superuser keeps them");
            file.fallocate(file.group(), mode, 0, 4096, true).unwrap();
            assert_eq!(v.attr("f").mode & 0o7777, 0o755, "{mode:?}");
        }
    });
}
